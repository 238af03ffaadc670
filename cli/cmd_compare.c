/* linnet compare: runs side by side. */
#include <sys/stat.h>

#include "commands.h"
#include "linnet/task.h"
#include "say.h"

static void on_result(void *user, const char *json, const char *text)
{
    printf("%s\n", *(int *)user ? json : text);
}

int compare_runs(const char *const *runs, int n, const char *out, const char *asked, int json)
{
    linnet_context *c = NULL;
    linnet_compare_options o = LINNET_COMPARE_OPTIONS_INIT;
    linnet_task_callbacks k = LINNET_TASK_CALLBACKS_INIT;
    linnet_status s = linnet_context_create(NULL, &c);
    o.runs = runs;
    o.n_runs = n;
    o.out = out;
    o.command = asked;
    k.user = &json;
    k.result = on_result;
    if (s == LINNET_OK) s = linnet_compare(c, &o, &k);
    const int code = s == LINNET_OK ? EXIT_GOOD : say_status(c, s);
    linnet_context_destroy(c);
    return code;
}

int page_of_run(const char *folder)
{
    linnet_context *c = NULL;
    linnet_compare_options o = LINNET_COMPARE_OPTIONS_INIT;
    linnet_status s = linnet_context_create(NULL, &c);
    o.runs = &folder;
    o.n_runs = 1;
    o.out = folder;
    o.page = 1;
    if (s == LINNET_OK) s = linnet_compare(c, &o, NULL);
    const int code = s == LINNET_OK ? EXIT_GOOD : say_status(c, s);
    linnet_context_destroy(c);
    return code;
}

/* Files beside folders: a shell's "SWEEP/" followed by a star means the runs there. */
static void leave_files_out(arg_list *runs)
{
    const char **kept = args_alloc((size_t)(runs->count + 1) * sizeof *kept);
    struct stat st;
    int n = 0;
    for (int i = 0; i < runs->count; i++)
        if (stat(runs->item[i], &st) != 0 || S_ISDIR(st.st_mode)) kept[n++] = runs->item[i];
    const int out = runs->count - n;
    if (!n || !out) return;
    fprintf(stderr, "note: %d file%s no run%s left out\n", out, out == 1 ? " that is" : "s that are", out == 1 ? " is" : "s are");
    runs->item = kept;
    runs->count = n;
}

static int run(const command *self, int argc, char **argv)
{
    const char *out = NULL;
    int json = 0;
    arg_list words = { 0 };
    const arg table[] = {
        { "comparison", ARG_HEADING },
        { "out", ARG_TEXT, &out, "DIR", "folder for CSV files and page.svg, the curves of all runs on one page", .fallback = "none" },
        { "json", ARG_SWITCH, &json, .help = "print the rows as JSON lines" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 1, -1);
    if (code >= 0) return code;
    leave_files_out(&words);
    return compare_runs(words.item, words.count, out, args_command(argc, argv), json);
}

const command cmd_compare = {
    .name = "compare",
    .summary = "runs side by side: a table, and their curves on one page",
    .usage = "RUN... [options]",
    .about = "A run is a folder that `linnet train --out` or `linnet task --out` left. Files beside such folders are left out.",
    .example = "linnet compare model-a/ model-b/ --out compared",
    .run = run,
};
