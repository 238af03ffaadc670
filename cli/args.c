#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"
#include "term.h"

typedef struct block {
    struct block *next;
    char bytes[];
} block;
static block *blocks;

void *args_alloc(size_t bytes)
{
    block *b = malloc(sizeof *b + bytes);
    if (!b) exit(say_error(NULL, NULL, "out of memory"));
    b->next = blocks;
    blocks = b;
    return b->bytes;
}

void args_release(void)
{
    for (block *next; blocks; blocks = next) {
        next = blocks->next;
        free(blocks);
    }
}

void arg_list_add(arg_list *l, const char *item)
{
    if (l->count == l->room) {
        l->room = 2 * l->room + 8;
        const char **grown = args_alloc((size_t)l->room * sizeof *grown);
        if (l->count) memcpy(grown, l->item, (size_t)l->count * sizeof *grown);
        l->item = grown;
    }
    l->item[l->count++] = item;
}

const char *args_command(int argc, char **argv)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) exit(say_error(NULL, NULL, "out of memory"));
    fputs("linnet", f);
    for (int i = 0; i < argc; i++) {
        fputc(' ', f);
        say_quoted(f, argv[i]);
    }
    if (fclose(f) != 0) exit(say_error(NULL, NULL, "out of memory"));
    char *kept = strcpy(args_alloc(n + 1), text);
    free(text);
    return kept;
}

/* ---- suggestions ------------------------------------------------------------------------------------------------------------ */

enum { WORD = 64 };

/* Damerau-Levenshtein distance (adjacent swaps count one) of words shorter than WORD. */
static int distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b);
    int d[3][WORD]; /* the last three rows of the table */
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best) best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return d[n % 3][m];
}

const char *args_nearest(const char *word, const char *const *candidates, int n)
{
    const char *nearest = NULL;
    int least = WORD;
    if (strlen(word) >= WORD || strlen(word) < 2) return NULL;
    for (int i = 0; i < n; i++) {
        if (strlen(candidates[i]) >= WORD) continue;
        bool begins = strncmp(candidates[i], word, strlen(word)) == 0;
        int d = begins ? 1 : distance(word, candidates[i]);
        if (d < least) least = d, nearest = candidates[i];
    }
    return least <= 1 + (int)strlen(word) / 4 ? nearest : NULL; /* one slip, and one more for every four letters */
}

/* ---- help ------------------------------------------------------------------------------------------------------------------- */

static bool takes_value(const arg *a)
{
    return a->kind != ARG_SWITCH;
}

/* The default of a flag as text, "" when there is none to show. */
static const char *default_text(const arg *a, char text[WORD])
{
    text[0] = 0;
    if (a->fallback) return a->fallback;
    switch (a->kind) {
    case ARG_INT: snprintf(text, WORD, "%d", *(int *)a->to); break;
    case ARG_I64: snprintf(text, WORD, "%" PRId64, *(int64_t *)a->to); break;
    case ARG_U64: snprintf(text, WORD, "%" PRIu64, *(uint64_t *)a->to); break;
    case ARG_REAL: snprintf(text, WORD, "%g", *(double *)a->to); break;
    case ARG_TEXT: return *(const char **)a->to ? *(const char **)a->to : "";
    case ARG_DTYPE:
    case ARG_DTYPE64:
    case ARG_DTYPE8: return linnet_dtype_name(*(int32_t *)a->to);
    default: break;
    }
    return text;
}

/* Print words filled to `width` columns, each line after the first behind `indent` blanks; `at` is where the first begins. */
static void print_filled(const char *text, int at, int indent, int width)
{
    int column = at;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > at && column + 1 + n > width) {
            printf("\n%*s", indent, "");
            column = at = indent;
        }
        column += printf("%s%.*s", column > at ? " " : "", n, text);
        text += n;
        while (*text == ' ') text++;
    }
    putchar('\n');
}

static void print_flag(const char *name, const char *value, const char *help, const char *fallback, int width)
{
    enum { INDENT = 26 };
    char text[1024];
    int at = printf("  --%s%s", name, *value ? " " : "");
    while (*value) { /* alternatives that do not fit go on below */
        const int n = (int)strcspn(value, "|"), all = n + (value[n] == '|');
        if (at + all > width) at = printf("\n    ") - 1;
        at += printf("%.*s", all, value);
        value += all;
    }
    if (at > INDENT - 2) {
        putchar('\n');
        at = 0;
    }
    printf("%*s", INDENT - at, "");
    snprintf(text, sizeof text, *fallback ? "%s [%s]" : "%s", help, fallback);
    print_filled(text, INDENT, INDENT, width);
}

static void print_help(const command *self, const arg *table)
{
    int width = term_width(stdout) - 1;
    if (width > 100) width = 100; /* longer lines read badly */
    if (width < 50) width = 50;
    const char *bold = term_colours(stdout) ? "\033[1m" : "", *plain = *bold ? "\033[0m" : "";
    printf("%slinnet %s%s: %s\n\n%susage%s  linnet %s %s\n", bold, self->name, plain, self->summary, bold, plain, self->name, self->usage);
    if (self->about) {
        putchar('\n');
        for (const char *line = self->about; *line;) { /* each line of the text is a paragraph */
            char paragraph[1024];
            int n = (int)strcspn(line, "\n");
            snprintf(paragraph, sizeof paragraph, "%.*s", n, line);
            print_filled(paragraph, 0, 0, width);
            line += n + (line[n] == '\n');
        }
    }
    for (const arg *a = table; a->kind != ARG_END; a++) {
        char text[WORD];
        if (a->kind == ARG_HEADING) printf("\n%s%s%s\n", bold, a->name, plain);
        else print_flag(a->name, a->value ? a->value : "", a->help, default_text(a, text), width);
    }
    print_flag("help", "", "show this text; --help=json: the same for a program", "", width);
    printf("\n%sexample%s\n", bold, plain);
    for (const char *line = self->example; *line;) {
        int n = (int)strcspn(line, "\n");
        printf("  %.*s\n", n, line);
        line += n + (line[n] == '\n');
    }
}

/* Equal when there are none. */
static void limits(const arg *a, double *least, double *most)
{
    *least = a->min;
    *most = a->max;
    if (!a->range) return;
    char structure[WORD];
    const char *dot = strchr(a->range, '.');
    snprintf(structure, sizeof structure, "%.*s", (int)(dot - a->range), a->range);
    if (linnet_option_range(structure, dot + 1, least, most) != LINNET_OK) abort(); /* a mistake in the table; every table is tested */
    if (a->min > *least) *least = a->min;
}

/* The same as one JSON object. */
static void print_json(const command *self, const arg *table)
{
    static const char *const kinds[] = { [ARG_SWITCH] = "switch", [ARG_SWITCH_WORD] = "switch word", [ARG_INT] = "integer", [ARG_I64] = "integer",
                                         [ARG_U64] = "integer", [ARG_REAL] = "number", [ARG_TEXT] = "text", [ARG_DTYPE] = "dtype",
                                         [ARG_DTYPE64] = "dtype", [ARG_DTYPE8] = "dtype",
                                         [ARG_BYTES] = "bytes", [ARG_LIST] = "list", [ARG_KEY] = "integer",
                                         [ARG_KEY_REAL] = "number", [ARG_KEY_WORD] = "text", [ARG_KEY_TEXT] = "text" };
    const char *heading = "";
    json_line j;
    line_open(&j, stdout);
    line_text(&j, "command", self->name);
    line_text(&j, "summary", self->summary);
    line_text(&j, "usage", self->usage);
    line_text(&j, "about", self->about);
    line_text(&j, "example", self->example);
    line_list(&j, "flags");
    for (const arg *a = table; a->kind != ARG_END; a++) {
        char text[WORD];
        double least, most;
        if (a->kind == ARG_HEADING) heading = a->name;
        if (a->kind == ARG_HEADING) continue;
        limits(a, &least, &most);
        line_item(&j);
        line_text(&j, "flag", a->name);
        line_text(&j, "heading", heading);
        line_text(&j, "kind", kinds[a->kind]);
        line_text(&j, "value", a->value);
        line_text(&j, "help", a->help);
        line_text(&j, "default", default_text(a, text));
        if (least != most) line_real(&j, "least", least);
        if (least != most && most < ARG_NO_LIMIT) line_real(&j, "most", most);
        line_item_end(&j);
    }
    line_list_end(&j);
    line_close(&j);
}

/* ---- parsing ---------------------------------------------------------------------------------------------------------------- */

static int help_hint(const command *self, const char *detail, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int help_hint(const command *self, const char *detail, const char *format, ...)
{
    char message[1024], hint[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(hint, sizeof hint, "Run `linnet %s --help` for usage and flags.", self->name);
    return say_error(detail, hint, "%s", message);
}

static const char *range_text(const arg *a, const char *value, char text[2 * WORD])
{
    const char *kind = a->kind == ARG_REAL || a->kind == ARG_KEY_REAL ? "a number" : "a whole number";
    double least, most;
    limits(a, &least, &most);
    if (a->kind == ARG_U64) snprintf(text, 2 * WORD, "%s from 0 to %" PRIu64, kind, UINT64_MAX);
    else if (least == most) snprintf(text, 2 * WORD, "%s", kind);
    else if (most >= ARG_NO_LIMIT && !(strtod(value, NULL) > most)) snprintf(text, 2 * WORD, "%s of at least %g", kind, least);
    else snprintf(text, 2 * WORD, "%s from %.16g to %.16g", kind, least, most);
    return text;
}

static int bad_value(const arg *a, const char *value, const char *expected)
{
    return say_error(NULL, NULL, "--%s is \"%s\", expected %s", a->name, value, expected);
}

static bool in_range(const arg *a, double n)
{
    double least, most;
    limits(a, &least, &most);
    return least == most || (n >= least && n <= most);
}

static int take_number(const arg *a, const char *value)
{
    char text[2 * WORD], *end = NULL;
    bool good;
    errno = 0;
    if (a->kind == ARG_REAL || a->kind == ARG_KEY_REAL) {
        double n = strtod(value, &end);
        good = isfinite(n) && in_range(a, n);
        if (good && end != value && !*end && a->kind == ARG_REAL) *(double *)a->to = n;
    } else if (a->kind == ARG_U64) {
        uint64_t n = strtoull(value, &end, 10);
        good = !errno && !strchr(value, '-');
        if (good && end != value && !*end) *(uint64_t *)a->to = n;
    } else {
        int64_t n = strtoll(value, &end, 10);
        good = !errno && in_range(a, (double)n) && (a->kind != ARG_INT || n == (int)n);
        if (good && end != value && !*end) {
            if (a->kind == ARG_INT) *(int *)a->to = (int)n;
            else if (a->kind == ARG_I64) *(int64_t *)a->to = n;
        }
    }
    return good && end != value && !*end ? 0 : bad_value(a, value, range_text(a, value, text));
}

static int take_dtype(const arg *a, const char *value)
{
    linnet_dtype t;
    const bool read = linnet_dtype_parse(NULL, value, &t) == LINNET_OK;
    if (read && (t == LINNET_F32 || t == LINNET_BF16 || (t == LINNET_F64 && a->kind == ARG_DTYPE64) || (t == LINNET_I8 && a->kind == ARG_DTYPE8))) {
        *(int32_t *)a->to = t;
        return 0;
    }
    if (a->kind == ARG_DTYPE8) return bad_value(a, value, "float32 (f32), bf16 (bfloat16) or int8");
    return bad_value(a, value, a->kind == ARG_DTYPE64 ? "f64, f32 or bf16" : "float32 (f32) or bf16 (bfloat16)");
}

/* "5GB", "500 MB", "1GiB", "4096": bytes. Whole numbers only. */
static int take_bytes(const arg *a, const char *text)
{
    static const struct {
        const char *unit;
        int64_t factor;
    } units[] = {{"", 1}, {"b", 1}, {"kb", 1000}, {"mb", 1000000}, {"gb", 1000000000}, {"tb", 1000000000000},
                 {"kib", 1LL << 10}, {"mib", 1LL << 20}, {"gib", 1LL << 30}, {"tib", 1LL << 40}};
    char *end = NULL, unit[8];
    const long long n = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : -1;
    while (n >= 0 && *end == ' ') end++;
    if (n >= 0 && strlen(end) < sizeof unit) {
        for (size_t i = 0; i <= strlen(end); i++) unit[i] = (char)tolower((unsigned char)end[i]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            if (strcmp(unit, units[i].unit) != 0 || n > 1000000000000000LL / units[i].factor) continue;
            *(int64_t *)a->to = n * units[i].factor;
            return 0;
        }
    }
    return bad_value(a, text, "a size such as 5GB or 500MB, at most 1000 TB, 0 for one file");
}

/* The place of a word among "blocks|cheap", from 1; 0: it is none of them. */
static int word_place(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (int place = 1; *words; place++) {
        size_t n = strcspn(words, "|");
        if (n == length && strncmp(words, word, n) == 0) return place;
        words += n + (words[n] == '|');
    }
    return 0;
}

static int take_text(const arg *a, const char *value)
{
    if (!*value && !strstr(a->value, "TEXT")) return bad_value(a, value, a->value);
    if (a->kind == ARG_TEXT) *(const char **)a->to = value;
    return 0;
}

static arg_list made; /* the pairs of flags that stand for a key */

static int take(const arg *a, const char *value)
{
    switch (a->kind) {
    case ARG_INT:
    case ARG_I64:
    case ARG_U64:
    case ARG_REAL: return take_number(a, value);
    case ARG_TEXT: return take_text(a, value);
    case ARG_DTYPE:
    case ARG_DTYPE64:
    case ARG_DTYPE8: return take_dtype(a, value);
    case ARG_BYTES: return take_bytes(a, value);
    case ARG_LIST:
        if (strstr(a->value, "=") && (!strchr(value, '=') || value[0] == '=')) return bad_value(a, value, a->value);
        arg_list_add(a->to, value);
        return 0;
    case ARG_SWITCH_WORD: {
        int place = word_place(a->key, value);
        if (place) *(int *)a->to = place;
        return place ? 0 : bad_value(a, value, a->key);
    }
    case ARG_KEY:
    case ARG_KEY_REAL:
    case ARG_KEY_WORD:
    case ARG_KEY_TEXT: {
        int code = a->kind == ARG_KEY_TEXT ? take_text(a, value)
                   : a->kind == ARG_KEY_WORD && word_place(a->value, value) ? 0
                   : a->kind == ARG_KEY_WORD ? bad_value(a, value, a->value) : take_number(a, value);
        size_t size = strlen(a->key) + strlen(value) + 2;
        char *pair = args_alloc(size);
        snprintf(pair, size, "%s=%s", a->key, value);
        if (!code) arg_list_add(a->to, pair), arg_list_add(&made, pair);
        return code;
    }
    default: return 0;
    }
}

static int unknown_flag(const command *self, const arg *table, const char *flag, size_t length)
{
    char word[WORD], hint[WORD * 2] = "";
    const char *names[WORD] = { "help" };
    int n = 1;
    snprintf(word, sizeof word, "%.*s", (int)length, flag);
    for (const arg *a = table; a->kind != ARG_END && n < WORD; a++)
        if (a->kind != ARG_HEADING) names[n++] = a->name;
    const char *nearest = args_nearest(word, names, n);
    if (nearest) snprintf(hint, sizeof hint, "Did you mean --%s?", nearest);
    return help_hint(self, hint, "linnet %s has no flag --%s", self->name, word);
}

static arg_list given, options, flags; /* `flags` has the name of each of `options` */

const arg_list *args_given(void) { return &given; }

const char *args_flag(const char *option)
{
    for (int i = 0; i < options.count; i++)
        if (strcmp(options.item[i], option) == 0) return flags.item[i];
    return NULL;
}

void args_refused(const char *pair)
{
    const size_t n = strcspn(pair, "=");
    for (int i = 0; i < made.count; i++)
        if (made.item[i] == pair) return;
    for (int i = options.count - 1; i >= 0; i--) {
        if (strncmp(options.item[i], pair, n) != 0 || options.item[i][n]) continue;
        options.item[i] = options.item[--options.count];
        flags.item[i] = flags.item[--flags.count];
    }
}

static const char *underscored(const char *flag)
{
    char *name = strcpy(args_alloc(strlen(flag) + 1), flag);
    for (char *p = name; *p; p++)
        if (*p == '-') *p = '_';
    return name;
}

static void name_flags(const arg *table)
{
    given.count = options.count = flags.count = made.count = 0;
    for (; table->kind != ARG_END; table++) {
        if (table->kind == ARG_HEADING) continue;
        arg_list_add(&options, underscored(table->name));
        arg_list_add(&flags, table->name);
    }
}

/* A flag for a key of another name stands for it where it was given: the key may have come from --set or a file. */
static void take_given(const arg *a)
{
    const char *option = a->key && a->kind != ARG_SWITCH_WORD ? a->key : underscored(a->name);
    arg_list_add(&given, option);
    arg_list_add(&options, option);
    arg_list_add(&flags, a->name);
}

bool args_only_check;

int args_parse(const command *self, const arg *table, int argc, char **argv, arg_list *words, int least, int most)
{
    for (int i = 1; i < argc && !args_only_check; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(self, table);
            return EXIT_GOOD;
        } else if (strcmp(argv[i], "--help=json") == 0) {
            print_json(self, table);
            return EXIT_GOOD;
        } else if (strncmp(argv[i], "--help=", 7) == 0) {
            return bad_value(&(arg){ .name = "help" }, argv[i] + 7, "json, or no value");
        } else if (strcmp(argv[i], "--") == 0)
            break;
    name_flags(table);
    bool flags_over = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!flags_over && strcmp(word, "--") == 0) {
            flags_over = true;
            continue;
        }
        if (flags_over || word[0] != '-' || !word[1]) { /* "-" alone is standard input */
            arg_list_add(words, word);
            continue;
        }
        if (word[1] != '-') return help_hint(self, "Flags begin with two dashes.", "unknown flag %s", word);
        size_t length = strcspn(word + 2, "=");
        const arg *a = table;
        while (a->kind != ARG_END && (a->kind == ARG_HEADING || strncmp(a->name, word + 2, length) != 0 || a->name[length])) a++;
        if (a->kind == ARG_END) return unknown_flag(self, table, word + 2, length);
        const char *value = word[2 + length] ? word + 3 + length : NULL;
        take_given(a);
        if (!takes_value(a)) {
            if (value) return help_hint(self, NULL, "--%s takes no value", a->name);
            *(int *)a->to = 1;
            continue;
        }
        if (a->kind == ARG_SWITCH_WORD && !value && (i + 1 >= argc || !word_place(a->key, argv[i + 1]))) {
            *(int *)a->to = 1;
            continue;
        }
        if (!value && i + 1 >= argc) return help_hint(self, NULL, "--%s needs a value (%s)", a->name, a->value);
        int code = take(a, value ? value : argv[++i]);
        if (code) return code;
    }
    if (words->count < least) return help_hint(self, NULL, "too few arguments, expected: linnet %s %s", self->name, self->usage);
    if (most >= 0 && words->count > most)
        return help_hint(self, NULL, "unexpected argument \"%s\", expected: linnet %s %s", words->item[most], self->name, self->usage);
    return -1;
}

int args_run_part(const command *self, const command *parts, size_t n, const char *what, int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < n; i++)
        if (strcmp(argv[1], strchr(parts[i].name, ' ') + 1) == 0) return parts[i].run(&parts[i], argc - 1, argv + 1);
    const arg none[] = { { .kind = ARG_END } };
    arg_list words = { 0 };
    int code = args_parse(self, none, argc, argv, &words, 1, -1);
    if (code >= 0) return code;
    char hint[256] = "There are";
    for (size_t i = 0, at = strlen(hint); i < n && at < sizeof hint; i++)
        at += (size_t)snprintf(hint + at, sizeof hint - at, "%s `%s`%s", i == 0 ? "" : i + 1 == n ? " and" : ",", parts[i].name,
                               i + 1 == n ? "." : "");
    return say_error(NULL, hint, "there is no %s \"%s\"", what, argv[1]);
}
