/* linnet mixers: the layers on offer, what they take, their keys, and the named sizes. */
#include <string.h>

#include "commands.h"
#include "say.h"
#include "term.h"

static const char *const families[] = { "mixer", "block", "norm", "mlp" };
enum { FAMILIES = sizeof families / sizeof *families };

enum { WIDTH = 2048, TOKENS = 2048 }; /* for which is said what a layer takes */

/* `lead`, then "4.2M parameters, 1.0 MiB of state a sequence, 12M FLOPs a token", or "... at most, 3M of them in solves"; nothing where it is no
 * mixer. */
static void print_cost(linnet_context *c, const char *lead, const char *mixer)
{
    char a[SAY_TEXT], b[SAY_TEXT], f[SAY_TEXT], in[SAY_TEXT];
    linnet_mixer_cost r = { .size = sizeof r };
    if (linnet_mixer_measure(c, mixer, WIDTH, TOKENS, &r) != LINNET_OK) return;
    printf("%s%s parameters, %s of state a sequence%s, %s FLOPs a token", lead, say_count(a, (double)r.parameters),
           say_bytes(b, (double)r.state_bytes), r.grows ? ", which grows with its length" : "", say_count(f, r.flops_a_token));
    if (r.flops_in_solves > 0) printf(" at most, %s of them in solves", say_count(in, r.flops_in_solves));
    printf("\n");
}

static void line_cost(json_line *j, linnet_context *c, const char *mixer)
{
    linnet_mixer_cost r = { .size = sizeof r };
    if (linnet_mixer_measure(c, mixer, WIDTH, TOKENS, &r) != LINNET_OK) return;
    line_int(j, "width", WIDTH);
    line_int(j, "tokens", TOKENS);
    line_int(j, "parameters", r.parameters);
    line_int(j, "state_bytes", r.state_bytes);
    line_int(j, "state_grows", r.grows);
    line_real(j, "flops_a_token", r.flops_a_token);
    line_real(j, "flops_in_solves", r.flops_in_solves);
}

/* One kind with its keys. */
static int describe(linnet_context *c, const char *name, int json)
{
    char *text = linnet_kind_describe(name, json), known[1024] = "";
    if (text) {
        char lead[96];
        json_line j = { .file = stdout, .more = true };
        printf("%.*s", (int)strlen(text) - json, text); /* without the last brace, behind which there is more */
        linnet_free(text);
        snprintf(lead, sizeof lead, "\nat width %d, in a sequence of %d tokens: ", WIDTH, TOKENS);
        if (!json) print_cost(c, lead, name);
        else line_cost(&j, c, name), line_close(&j);
        return EXIT_GOOD;
    }
    for (int f = 0, n = 0; f < FAMILIES; f++)
        for (int i = 0; linnet_kind_at(families[f], i) && n < (int)sizeof known; i++)
            n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", n ? ", " : "", linnet_kind_at(families[f], i)->name);
    return say_error(NULL, NULL, "there is no \"%.60s\", expected one of %s", name, known);
}

static void list_json(linnet_context *c)
{
    const linnet_mixer_info *m;
    json_line j;
    for (int f = 0; f < FAMILIES; f++)
        for (int i = 0; (m = linnet_kind_at(families[f], i)) != NULL; i++) {
            line_open(&j, stdout);
            line_text(&j, families[f], m->name);
            line_text(&j, "summary", m->summary);
            if (m->recurrence) line_text(&j, "recurrence", m->recurrence);
            if (m->paper) line_text(&j, "paper", m->paper);
            if (f == 0) line_cost(&j, c, m->name);
            line_close(&j);
        }
    for (int i = 0; linnet_preset_name(i); i++) {
        line_open(&j, stdout);
        line_text(&j, "preset", linnet_preset_name(i));
        line_text(&j, "summary", linnet_preset_summary(i));
        line_close(&j);
    }
}

static void list_text(linnet_context *c)
{
    const char *bold = term_colours(stdout) ? "\033[1m" : "", *plain = *bold ? "\033[0m" : "", *dim = *bold ? "\033[2m" : "";
    const linnet_mixer_info *m;
    static const char *const headings[FAMILIES] = {
        "mixers (--mixer), with what a layer of width 2048 takes in a sequence of 2048 tokens", "blocks (--set block=NAME)",
        "norms (--set norm=NAME)", "MLPs (--set mlp=NAME)" };
    for (int f = 0; f < FAMILIES; f++) {
        printf("%s%s\n", f ? "\n" : "", headings[f]);
        for (int i = 0; (m = linnet_kind_at(families[f], i)) != NULL; i++) {
            printf("  %s%-18s%s %s\n", bold, m->name, plain, m->summary);
            if (m->paper) printf("  %18s %s%s%s\n", "", dim, m->paper, plain);
            if (f == 0) print_cost(c, "                     ", m->name);
        }
    }
    printf("\n`linnet mixers NAME` shows the keys of one.\n\npresets (--preset)\n");
    for (int i = 0; linnet_preset_name(i); i++) printf("  %s%-18s%s %s\n", bold, linnet_preset_name(i), plain, linnet_preset_summary(i));
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
    linnet_context *c = NULL;
    linnet_status s = linnet_context_create(NULL, &c);
    if (s != LINNET_OK) return say_status(c, s);
    code = EXIT_GOOD;
    if (words.count == 1) code = describe(c, words.item[0], json);
    else if (json) list_json(c);
    else list_text(c);
    linnet_context_destroy(c);
    return code;
}

const command cmd_mixers = {
    .name = "mixers",
    .summary = "the kinds of layer with what they take and their keys, and the named sizes on offer",
    .usage = "[NAME] [--json]",
    .example = "linnet mixers\nlinnet mixers gated_deltanet",
    .run = run,
};
