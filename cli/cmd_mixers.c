/* linnet mixers: the layers on offer, their keys, and the named sizes. */
#include <string.h>

#include "commands.h"
#include "say.h"
#include "term.h"

static const char *const families[] = { "mixer", "block", "norm", "mlp" };
enum { FAMILIES = sizeof families / sizeof *families };

/* One kind with its keys. */
static int describe(const char *name, int json)
{
    char *text = linnet_kind_describe(name, json), known[1024] = "";
    if (text) {
        printf("%s%s", text, json ? "\n" : "");
        linnet_free(text);
        return EXIT_GOOD;
    }
    for (int f = 0, n = 0; f < FAMILIES; f++)
        for (int i = 0; linnet_kind_at(families[f], i) && n < (int)sizeof known; i++)
            n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", n ? ", " : "", linnet_kind_at(families[f], i)->name);
    return say_error(NULL, NULL, "there is no \"%.60s\", expected one of %s", name, known);
}

static int run(const command *self, int argc, char **argv)
{
    arg_list words = { 0 };
    int json = 0;
    const arg table[] = {
        { "output", ARG_HEADING },
        { "json", ARG_SWITCH, &json, .help = "one JSON line for each" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, 1);
    if (code >= 0) return code;
    if (words.count == 1) return describe(words.item[0], json);
    if (json) {
        const linnet_mixer_info *m;
        for (int f = 0; f < FAMILIES; f++)
            for (int i = 0; (m = linnet_kind_at(families[f], i)) != NULL; i++) {
                json_line j;
                line_open(&j, stdout);
                line_text(&j, families[f], m->name);
                line_text(&j, "summary", m->summary);
                if (m->recurrence) line_text(&j, "recurrence", m->recurrence);
                if (m->paper) line_text(&j, "paper", m->paper);
                line_close(&j);
            }
        for (int i = 0; linnet_preset_name(i); i++) {
            json_line j;
            line_open(&j, stdout);
            line_text(&j, "preset", linnet_preset_name(i));
            line_text(&j, "summary", linnet_preset_summary(i));
            line_close(&j);
        }
        return EXIT_GOOD;
    }
    const char *bold = term_colours(stdout) ? "\033[1m" : "", *plain = *bold ? "\033[0m" : "", *dim = *bold ? "\033[2m" : "";
    const linnet_mixer_info *m;
    static const char *const headings[FAMILIES] = { "mixers (--mixer)", "blocks (--set block=NAME)", "norms (--set norm=NAME)",
                                                      "MLPs (--set mlp=NAME)" };
    for (int f = 0; f < FAMILIES; f++) {
        printf("%s%s\n", f ? "\n" : "", headings[f]);
        for (int i = 0; (m = linnet_kind_at(families[f], i)) != NULL; i++) {
            printf("  %s%-18s%s %s\n", bold, m->name, plain, m->summary);
            if (m->paper) printf("  %18s %s%s%s\n", "", dim, m->paper, plain);
        }
    }
    printf("\n`linnet mixers NAME` shows the keys of one.\n\npresets (--preset)\n");
    for (int i = 0; linnet_preset_name(i); i++) printf("  %s%-18s%s %s\n", bold, linnet_preset_name(i), plain, linnet_preset_summary(i));
    return EXIT_GOOD;
}

const command cmd_mixers = {
    .name = "mixers",
    .summary = "the kinds of layer with their keys, and the named sizes on offer",
    .usage = "[NAME] [--json]",
    .example = "linnet mixers\nlinnet mixers gated_deltanet",
    .run = run,
};
