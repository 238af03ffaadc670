/* linnet sweep: a grid over flags of train or of a task, one folder a run, several at a time; what is done is not done again. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "say.h"
#include "term.h"

enum { MOST_KEYS = 8, MOST_VALUES = 64, MOST_RUNS = 4096, MOST_JOBS = 256 };

typedef struct {
    const char *key; /* the flag's name, or "set:KEY" for --set KEY=VALUE */
    int n;
    const char *value[MOST_VALUES];
} axis;

typedef struct {
    const char *folder, *log, *done; /* done: a file of the command, once it has ended well */
    const char *command;             /* what makes the run what it is, words between blanks */
    char **argv;
    pid_t pid;       /* 0: it does not run */
    int state;       /* of the enumeration below */
} sweep_run;
enum { WAITING, RUNNING, FINISHED, FAILED };

static char *join(const char *a, const char *b, const char *c)
{
    char *text = args_alloc(strlen(a) + strlen(b) + strlen(c) + 1);
    return strcat(strcat(strcpy(text, a), b), c);
}

/* "learning-rate=1e-3,3e-3" */
static int read_axis(const char *text, axis *a)
{
    char *copy = join(text, "", ""), *sign = strchr(copy, '=');
    *sign = 0; /* args_parse has looked for it */
    *a = (axis){ .key = copy };
    for (char *v = strtok(sign + 1, ","); v; v = strtok(NULL, ",")) {
        if (a->n == MOST_VALUES) return say_error(NULL, NULL, "--grid %s has more than %d values", copy, MOST_VALUES);
        for (int i = 0; i < a->n; i++)
            if (strcmp(a->value[i], v) == 0) return say_error(NULL, NULL, "--grid %s has %s twice", copy, v);
        a->value[a->n++] = v;
    }
    return a->n ? 0 : say_error(NULL, NULL, "--grid is \"%s\", expected KEY=VALUE,VALUE...", text);
}

/* A key has one grid, and no value of its own in the command: the grid's would come last and be the one that counts. */
static int check_axis(const axis *a, const axis *before, int n_before, const arg_list *words)
{
    const bool set = strncmp(a->key, "set:", 4) == 0;
    const char *flag = join("--", set ? "set" : a->key, ""), *pair = set ? join(a->key + 4, "=", "") : NULL;
    const size_t length = strlen(flag);
    for (int i = 0; i < n_before; i++)
        if (strcmp(before[i].key, a->key) == 0) return say_error(NULL, "Put all its values into one.", "there are two grids of %s", a->key);
    for (int i = 0; i < words->count; i++) {
        const char *word = words->item[i];
        if (strncmp(word, flag, length) != 0 || (word[length] && word[length] != '=')) continue;
        const char *value = word[length] ? word + length + 1 : i + 1 < words->count ? words->item[i + 1] : "";
        if (!set || strncmp(value, pair, strlen(pair)) == 0)
            return say_error(NULL, "Leave one of them out.", "--grid %s and the command behind -- both give %s%s%s", a->key, flag, set ? " " : "",
                             set ? a->key + 4 : "");
    }
    return 0;
}

static bool is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* Run number i of the grid: its folder's name and its command. */
static void make_run(sweep_run *r, const axis *axes, int n_axes, int i, const char *out, const arg_list *words, const char *threads)
{
    char *name = join("", "", "");
    int n = 0;
    char **argv = args_alloc((size_t)(words->count + 2 * n_axes + 8) * sizeof *argv);
    argv[n++] = join("linnet", "", "");
    for (int w = 0; w < words->count; w++) argv[n++] = join(words->item[w], "", "");
    for (int a = 0; a < n_axes; a++) {
        const char *v = axes[a].value[i % axes[a].n], *key = axes[a].key;
        const bool set = strncmp(key, "set:", 4) == 0;
        i /= axes[a].n;
        name = join(name, *name ? "," : "", join(set ? key + 4 : key, "=", v));
        argv[n++] = set ? join("--set", "", "") : join("--", key, "");
        argv[n++] = set ? join(key + 4, "=", v) : join(v, "", "");
    }
    if (!*name) name = join("run", "", "");
    for (char *p = name; *p; p++)
        if (*p == '/') *p = '-';
    r->folder = join(out, "/", name);
    r->log = join(r->folder, ".log", "");
    r->done = join(r->folder, ".done", "");
    r->command = argv[0];
    for (int w = 1; w < n; w++) r->command = join(r->command, " ", argv[w]);
    argv[n++] = join("--out", "", "");
    argv[n++] = join(r->folder, "", "");
    if (threads) {
        argv[n++] = join("--threads", "", "");
        argv[n++] = join(threads, "", "");
    }
    if (strcmp(words->item[0], "train") == 0 && is_there(join(r->folder, "/train_state.safetensors", ""))) argv[n++] = join("--resume", "", "");
    argv[n] = NULL;
    r->argv = argv;
    r->state = is_there(r->done) ? FINISHED : WAITING;
}

/* In a group of its own: what the terminal sends comes to it once, from here. */
static pid_t start_run(const sweep_run *r)
{
    const pid_t pid = fork();
    if (pid) return pid;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGINT);
    const int log = open(r->log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0666), none = open("/dev/null", O_RDONLY);
    if (log < 0 || none < 0) _exit(127);
    dup2(none, 0);
    dup2(log, 1);
    dup2(log, 2);
    execv("/proc/self/exe", r->argv);
    _exit(127);
}

/* The file appears whole, or the run is not done. */
static bool mark_done(const sweep_run *r)
{
    const char *part = join(r->done, ".part", "");
    FILE *f = fopen(part, "w");
    if (!f) return false;
    const bool written = fprintf(f, "%s\n", r->command) > 0;
    return fclose(f) == 0 && written && rename(part, r->done) == 0;
}

/* A run that is done must be the one that is asked for: its folder's name says no more than its place in the grid. */
static int check_done(const sweep_run *r)
{
    char *was = NULL;
    size_t room = 0;
    FILE *f = fopen(r->done, "r");
    const ssize_t n = f ? getline(&was, &room, f) : -1;
    if (f) fclose(f);
    if (n > 0 && was[n - 1] == '\n') was[n - 1] = 0;
    const bool same = n > 0 && strcmp(was, r->command) == 0;
    const char *hint = join("Another --out keeps both; without ", r->done, " the run is made again.");
    const int code = same ? 0 : say_error(NULL, hint, "%s is of \"%s\", expected \"%s\"", r->folder, n > 0 ? was : "", r->command);
    free(was);
    return code;
}

/* A run that ended. Returns 1 when it failed. */
static int take_run(sweep_run *r, int status, bool stopped, int at, int n)
{
    r->pid = 0;
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0 && mark_done(r);
    r->state = good ? FINISHED : stopped ? WAITING : FAILED;
    if (good) fprintf(stderr, "done   %d of %d: %s\n", at, n, r->folder);
    else if (!stopped) fprintf(stderr, "failed %d of %d: %s, see %s\n", at, n, r->folder, r->log);
    return !good && !stopped;
}

/* Start and wait until all are done or stopping was asked for; the number that failed. */
static int run_all(sweep_run *runs, int n, int jobs)
{
    int running = 0, next = 0, failed = 0, ended = 0;
    bool stopped = false;
    for (int i = 0; i < n; i++) ended += runs[i].state == FINISHED;
    if (ended) fprintf(stderr, "%d of %d runs were done before\n", ended, n);
    for (;;) {
        if (!stopped && stop_asked()) {
            stopped = true;
            for (int i = 0; i < n; i++)
                if (runs[i].pid) kill(runs[i].pid, SIGINT);
        }
        for (; !stopped && next < n && running < jobs; next++) {
            if (runs[next].state != WAITING) continue;
            const pid_t pid = start_run(&runs[next]);
            if (pid < 0) break; /* no more processes for now */
            runs[next].pid = pid;
            runs[next].state = RUNNING;
            running++;
        }
        if (!running && (stopped || next == n)) return failed;
        int status;
        const pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0) {
            usleep(20000);
            continue;
        }
        for (int i = 0; i < n; i++)
            if (runs[i].pid == pid) {
                failed += take_run(&runs[i], status, stopped, ++ended, n);
                running--;
            }
    }
}

static int check_words(const arg_list *words)
{
    const char *first = words->item[0];
    if (strcmp(first, "train") != 0 && strcmp(first, "task") != 0)
        return say_error(NULL, "Behind -- stands the command to run: -- train TEXT..., or -- task NAME ...",
                         "a sweep of \"%s\", expected train or task", first);
    if (strcmp(first, "task") == 0 && words->count == 1) return say_error(NULL, NULL, "a sweep of task, expected its name too: -- task NAME ...");
    for (int i = 0; i < words->count; i++)
        if (strcmp(words->item[i], "--out") == 0 || strncmp(words->item[i], "--out=", 6) == 0)
            return say_error(NULL, NULL, "--out behind --, but each run has a folder of its own");
    return 0;
}

/* What the commands themselves say of their flags, before anything is made. */
static int check_runs(const sweep_run *runs, int n)
{
    int code = 0;
    args_only_check = true;
    for (int i = 0; i < n && !code; i++) {
        const command *c = strcmp(runs[i].argv[1], "train") == 0 ? &cmd_train : &cmd_task;
        int argc = 0;
        while (runs[i].argv[argc]) argc++;
        code = c->run(c, argc - 1, runs[i].argv + 1);
    }
    args_only_check = false;
    return code;
}

/* What is left at the end takes the place of an earlier sweep's, and of nothing else: that one has .done files. */
static int check_out(const char *out)
{
    bool swept = false;
    struct stat st;
    if (stat(out, &st) == 0 && !S_ISDIR(st.st_mode)) return say_error(NULL, NULL, "--out is %s, which is there and is not a folder", out);
    if (is_there(join(out, "/log.jsonl", "")))
        return say_error(NULL, "Another folder keeps both.", "--out is %s, which holds a training (log.jsonl)", out);
    DIR *d = is_there(join(out, "/results.jsonl", "")) ? opendir(out) : NULL;
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL && !swept;) {
        const size_t n = strlen(e->d_name);
        swept = n > 5 && strcmp(e->d_name + n - 5, ".done") == 0;
    }
    closedir(d);
    return swept ? 0 : say_error(NULL, "Another folder keeps both.", "--out is %s, which holds results that are no sweep's", out);
}

static bool names_threads(const arg_list *words)
{
    for (int i = 0; i < words->count; i++)
        if (strncmp(words->item[i], "--threads", 9) == 0) return true;
    return false;
}

/* A table and a page of what is done: the runs have left theirs. */
static int summarise(const sweep_run *runs, int n, const char *out, const char *asked, int json)
{
    const char **done = args_alloc((size_t)n * sizeof *done);
    int count = 0;
    for (int i = 0; i < n; i++)
        if (runs[i].state == FINISHED) done[count++] = runs[i].folder;
    return count ? compare_runs(done, count, out, asked, json) : EXIT_GOOD;
}

static int run(const command *self, int argc, char **argv)
{
    const char *out = NULL;
    int jobs = 1, json = 0, n = 1;
    arg_list grid = { 0 }, words = { 0 };
    axis axes[MOST_KEYS];
    const arg table[] = {
        { "sweep", ARG_HEADING },
        { "out", ARG_TEXT, &out, "DIR", "folder for the runs, a table (*.csv) and page.svg (required)", .fallback = "" },
        { "grid", ARG_LIST, &grid, "KEY=VALUE,VALUE...",
          "a flag of the command and what it takes; set:KEY for --set; repeated: all combinations" },
        { "jobs", ARG_INT, &jobs, "N", "runs at a time; each gets its share of the cores", 1, MOST_JOBS },
        { "json", ARG_SWITCH, &json, .help = "print the table as JSON lines" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 1, -1);
    if (code >= 0) return code;
    if (!out) return say_error(NULL, "Run `linnet sweep --help` for usage and flags.", "--out is missing: a folder for the runs");
    if ((code = check_words(&words)) != 0) return code;
    if (grid.count > MOST_KEYS) return say_error(NULL, NULL, "%d grids, expected at most %d", grid.count, MOST_KEYS);
    for (int i = 0; i < grid.count; i++) {
        if ((code = read_axis(grid.item[i], &axes[i])) != 0 || (code = check_axis(&axes[i], axes, i, &words)) != 0) return code;
        if (n > MOST_RUNS / axes[i].n) return say_error(NULL, NULL, "more than %d runs", MOST_RUNS);
        n *= axes[i].n;
    }
    char threads[32];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(threads, sizeof threads, "%ld", cores > jobs ? cores / jobs : 1);
    sweep_run *runs = args_alloc((size_t)n * sizeof *runs);
    memset(runs, 0, (size_t)n * sizeof *runs);
    for (int i = 0; i < n; i++) make_run(&runs[i], axes, grid.count, i, out, &words, jobs > 1 && !names_threads(&words) ? threads : NULL);
    for (int i = 0; i < n; i++)
        if (runs[i].state == FINISHED && (code = check_done(&runs[i])) != 0) return code;
    if ((code = check_runs(runs, n)) != 0 || (code = check_out(out)) != 0) return code;
    if (mkdir(out, 0777) != 0 && errno != EEXIST) return say_error(NULL, NULL, "cannot make the folder %s: %s", out, strerror(errno));
    stop_watch();
    (void)stop_asked(); /* from here on there is something to finish */
    const int failed = run_all(runs, n, jobs);
    code = summarise(runs, n, out, args_command(argc, argv), json);
    if (code) return code;
    if (stop_asked()) return EXIT_STOPPED;
    return failed ? say_error(NULL, "The same command again runs them again, and no others.", "%d of %d runs failed", failed, n) : EXIT_GOOD;
}

const command cmd_sweep = {
    .name = "sweep",
    .summary = "a grid over flags of train or of a task, one folder a run",
    .usage = "--out DIR --grid KEY=VALUE,VALUE... [options] -- train|task ...",
    .about = "Runs every combination, several at a time, and leaves a table and a page of all. The same command again runs what is not done: a "
             "training goes on where its checkpoint is. Another command is refused where one has been.",
    .example = "linnet sweep --out widths --grid width=32,64 --jobs 2 -- task mqar --mixer delta_net",
    .run = run,
};
