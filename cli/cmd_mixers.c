/* linnet mixers: the layers on offer, and the named sizes. */
#include <string.h>

#include "commands.h"
#include "say.h"
#include "term.h"

static int run(const command *self, int argc, char **argv)
{
    arg_list words = { 0 };
    int json = 0;
    const arg table[] = {
        { "output", ARG_HEADING },
        { "json", ARG_SWITCH, &json, .help = "one JSON line for each" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, 0);
    if (code >= 0) return code;
    if (json) {
        const linnet_mixer_info *m;
        for (int i = 0; (m = linnet_mixer_at(i)) != NULL; i++) {
            json_line j;
            line_open(&j, stdout);
            line_text(&j, "mixer", m->name);
            line_text(&j, "summary", m->summary);
            line_text(&j, "recurrence", m->recurrence);
            line_text(&j, "paper", m->paper);
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
    printf("mixers (--mixer)\n");
    for (int i = 0; (m = linnet_mixer_at(i)) != NULL; i++)
        printf("  %s%-16s%s %s\n  %16s %s%s%s\n", bold, m->name, plain, m->summary, "", dim, m->paper ? m->paper : "", plain);
    printf("\npresets (--preset)\n");
    for (int i = 0; linnet_preset_name(i); i++) printf("  %s%-16s%s %s\n", bold, linnet_preset_name(i), plain, linnet_preset_summary(i));
    return EXIT_GOOD;
}

const command cmd_mixers = {
    .name = "mixers",
    .summary = "the kinds of layer and the named sizes on offer",
    .usage = "[--json]",
    .example = "linnet mixers",
    .run = run,
};
