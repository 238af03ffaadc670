/* linnet: the command-line tool. A table of commands; each is one file cmd_*.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "say.h"
#include "term.h"

static const command *const commands[] = { &cmd_train,   &cmd_eval,   &cmd_generate, &cmd_chat,  &cmd_serve,   &cmd_tokenize, &cmd_logits,
                                           &cmd_inspect, &cmd_convert,  &cmd_mixers,   &cmd_task,  &cmd_sweep,   &cmd_compare,
                                           &cmd_op,      &cmd_bench };
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_overview(FILE *f)
{
    const char *bold = term_colours(f) ? "\033[1m" : "", *plain = *bold ? "\033[0m" : "";
    fprintf(f, "%slinnet%s %s: linear-time sequence models, trained, evaluated and run\n\n%susage%s  linnet COMMAND [arguments]\n\n", bold, plain,
            linnet_version(), bold, plain);
    for (int i = 0; i < COMMANDS; i++) fprintf(f, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(f, "\n`linnet COMMAND --help` tells more, with an example.\n");
}

/* The commands and their parts, a JSON object each. */
static void print_json(void)
{
    for (int i = 0; i < COMMANDS; i++) {
        json_line j;
        line_open(&j, stdout);
        line_text(&j, "command", commands[i]->name);
        line_text(&j, "summary", commands[i]->summary);
        line_list(&j, "parts");
        for (int p = 0; commands[i]->part && commands[i]->part(p); p++) {
            line_item(&j);
            line_text(&j, "name", commands[i]->part(p));
            line_item_end(&j);
        }
        line_list_end(&j);
        line_close(&j);
    }
}

static const command *find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[COMMANDS];
    char hint[128] = "Run `linnet --help` for the list.";
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *nearest = args_nearest(name, names, COMMANDS);
    if (nearest) snprintf(hint, sizeof hint, "Did you mean `linnet %s`?", nearest);
    return say_error(NULL, hint, "there is no command \"%s\"", name);
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USER;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("linnet %s\n", linnet_version());
        return EXIT_GOOD;
    }
    if (strcmp(argv[1], "--help=json") == 0) {
        print_json();
        return EXIT_GOOD;
    }
    if (strncmp(argv[1], "--help=", 7) == 0) return say_error(NULL, NULL, "--help is \"%s\", expected json, or no value", argv[1] + 7);
    bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_overview(stdout);
        return EXIT_GOOD;
    }
    const command *c = find(argv[help ? 2 : 1]);
    if (!c) return unknown_command(argv[help ? 2 : 1]);
    if (!help) return c->run(c, argc - 1, argv + 1);
    char *ask[] = { argv[2], "--help", NULL };
    return c->run(c, 2, ask);
}

/* Waiting OpenMP threads spin for milliseconds by default; when another process wants a core too, every barrier costs a time slice (measured
 * on two cores beside two busy processes: 3136 ms a training step against 135). libgomp reads its spin count before main() begins, so setting
 * it takes a second exec. Not under valgrind, which would lose sight of the process. */
static void spin_briefly(char **argv)
{
    const char *preload = getenv("LD_PRELOAD");
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || (preload && strstr(preload, "valgrind"))) return;
    if (setenv("GOMP_SPINCOUNT", "10000", 1) == 0) execv("/proc/self/exe", argv); /* about 20 us; when it fails we go on as we are */
}

int main(int argc, char **argv)
{
    spin_briefly(argv);
    int code = run(argc, argv);
    const int lost = say_lost();
    if (lost) {
        if (code != EXIT_STOPPED || !stop_output_gone(stdout)) fprintf(stderr, "linnet: cannot write to standard output: %s\n", strerror(lost));
        if (code == EXIT_GOOD) code = EXIT_USER;
    }
    args_release();
    return code;
}
