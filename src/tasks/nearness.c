#include "tasks/nearness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "hub/normalize.h"

/* Words of a text as numbers: the same word is the same number in both texts of a comparison. */
typedef struct {
    lnt_bytemap map;
    lnt_arena arena;
} dictionary;

typedef struct {
    int32_t *id;
    int64_t n;
} words;

static void close_dictionary(dictionary *d)
{
    lnt_bytemap_free(&d->map);
    lnt_arena_free(&d->arena);
}

/* What stands between white space. */
static linnet_status split(lnt_ctx *c, dictionary *d, const char *text, words *out)
{
    const size_t most = lnt_bytes(lnt_bytes_plus(strlen(text) / 2, 1), sizeof *out->id);
    *out = (words){.id = lnt_arena_alloc(&d->arena, most)};
    if (!out->id) return lnt_fail_memory(c, most);
    while (*text) {
        size_t n = lnt_space_at(text);
        if (n) {
            text += n;
            continue;
        }
        while (text[n] && !lnt_space_at(text + n)) n++;
        bool fresh;
        int64_t *id = lnt_bytemap_put(&d->map, text, n, &fresh);
        if (!id) return lnt_fail_memory(c, n);
        if (fresh) *id = (int64_t)d->map.n;
        out->id[out->n++] = (int32_t)*id;
        text += n;
    }
    return LINNET_OK;
}

static double f1(double same, double n, double m)
{
    return same > 0 ? 2 * same / (n + m) : 0; /* of same / n and same / m */
}

/* ---- words of answers --------------------------------------------------------------------------------------------------------------------- */

static bool is_punctuation(char x) { return x > ' ' && x < 127 && !((x >= '0' && x <= '9') || (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z')); }

/* Small letters, without ASCII's punctuation. */
static char *plain_words(lnt_arena *arena, const char *text)
{
    lnt_text out = {.arena = arena};
    lnt_text_put(&out, "");
    for (size_t n; *text; text += n) {
        uint8_t small[4];
        const int32_t u = lnt_utf8_first((const uint8_t *)text, strlen(text) < 4 ? strlen(text) : 4, &n);
        if (is_punctuation(*text)) continue;
        if (u < 0) lnt_text_add(&out, text, n);
        else lnt_text_add(&out, (const char *)small, (size_t)utf8proc_encode_char(utf8proc_tolower(u), small));
    }
    return out.text;
}

/* a, an, the as words of their own become blanks. */
static void blank_articles(char *text)
{
    static const char *const articles[] = {"the", "an", "a"};
    const size_t length = strlen(text);
    bool before = false; /* what stands before is part of a word */
    for (size_t at = 0, n; at < length; at += n) {
        const int32_t u = lnt_utf8_first((const uint8_t *)text + at, length - at, &n);
        const bool word = lnt_is_word(u);
        for (int i = 0; i < 3 && word && !before; i++) {
            const size_t m = strlen(articles[i]);
            size_t next;
            if (strncmp(text + at, articles[i], m) != 0) continue;
            if (at + m < length && lnt_is_word(lnt_utf8_first((const uint8_t *)text + at + m, length - at - m, &next))) continue;
            memset(text + at, ' ', m);
            n = m;
            break;
        }
        before = word;
    }
}

static int by_value(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

linnet_status lnt_word_f1(lnt_ctx *c, const char *text, const char *reference, double *out)
{
    dictionary d = {.arena = {0}};
    words w[2];
    linnet_status s = LINNET_OK;
    for (int i = 0; i < 2 && s == LINNET_OK; i++) {
        char *plain = plain_words(&d.arena, i ? reference : text);
        if (plain) blank_articles(plain);
        s = plain ? split(c, &d, plain, &w[i]) : lnt_fail_memory(c, strlen(text));
        if (s == LINNET_OK && w[i].n) qsort(w[i].id, (size_t)w[i].n, sizeof *w[i].id, by_value);
    }
    int64_t same = 0;
    for (int64_t i = 0, j = 0; s == LINNET_OK && i < w[0].n && j < w[1].n;) {
        const int32_t x = w[0].id[i], y = w[1].id[j];
        same += x == y;
        i += x <= y;
        j += y <= x;
    }
    if (s == LINNET_OK) *out = f1((double)same, (double)w[0].n, (double)w[1].n);
    close_dictionary(&d);
    return s;
}

/* ---- common subsequences ------------------------------------------------------------------------------------------------------------------- */

static linnet_status common(lnt_ctx *c, const int32_t *a, int64_t n, const int32_t *b, int64_t m, double *out)
{
    int32_t *row = lnt_calloc(lnt_bytes(lnt_bytes_plus((size_t)m, 1), sizeof *row)); /* of a's beginning and every beginning of b */
    if (!row) return lnt_fail_memory(c, lnt_bytes((size_t)m, sizeof *row));
    for (int64_t i = 0; i < n; i++) {
        int32_t corner = 0; /* of the row before, one to the left */
        for (int64_t j = 0; j < m; j++) {
            const int32_t above = row[j + 1];
            row[j + 1] = a[i] == b[j] ? corner + 1 : above > row[j] ? above : row[j];
            corner = above;
        }
    }
    *out = row[m];
    lnt_free(row);
    return LINNET_OK;
}

linnet_status lnt_rouge_l(lnt_ctx *c, const char *text, const char *reference, double *out)
{
    dictionary d = {.arena = {0}};
    words w[2];
    double same = 0;
    linnet_status s = LINNET_OK;
    for (int i = 0; i < 2 && s == LINNET_OK; i++) {
        char *plain = lnt_arena_strdup(&d.arena, i ? reference : text);
        for (char *p = plain; p && *p; p++) {
            if (*p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
            else if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9'))) *p = ' ';
        }
        s = plain ? split(c, &d, plain, &w[i]) : lnt_fail_memory(c, strlen(text));
    }
    if (s == LINNET_OK) s = common(c, w[0].id, w[0].n, w[1].id, w[1].n, &same);
    if (s == LINNET_OK) *out = f1(same, (double)w[0].n, (double)w[1].n);
    close_dictionary(&d);
    return s;
}

static linnet_status points_of(lnt_ctx *c, lnt_arena *arena, const char *text, words *out)
{
    const size_t bytes = strlen(text);
    *out = (words){.id = lnt_arena_alloc(arena, lnt_bytes(lnt_bytes_plus(bytes, 1), sizeof *out->id))};
    if (!out->id) return lnt_fail_memory(c, lnt_bytes(bytes, sizeof *out->id));
    for (size_t at = 0, n; at < bytes; at += n) {
        const int32_t u = lnt_utf8_first((const uint8_t *)text + at, bytes - at, &n);
        out->id[out->n++] = u < 0 ? -(int32_t)(uint8_t)text[at] : u;
    }
    return LINNET_OK;
}

linnet_status lnt_edit_similarity(lnt_ctx *c, const char *text, const char *reference, double *out)
{
    lnt_arena arena = {0};
    words w[2];
    double same = 0;
    if (strcmp(text, reference) == 0) {
        *out = 1;
        return LINNET_OK;
    }
    linnet_status s = points_of(c, &arena, text, &w[0]);
    if (s == LINNET_OK) s = points_of(c, &arena, reference, &w[1]);
    if (s == LINNET_OK) s = common(c, w[0].id, w[0].n, w[1].id, w[1].n, &same);
    if (s == LINNET_OK) *out = nearbyint(100 * f1(same, (double)w[0].n, (double)w[1].n)) / 100;
    lnt_arena_free(&arena);
    return s;
}

/* ---- BLEU ------------------------------------------------------------------------------------------------------------------------------------ */

static bool is_digit(char x) { return x >= '0' && x <= '9'; }
static bool is_stop(char x) { return x == '.' || x == ','; }

/* Signs that 13a sets apart: ASCII's but for ' , - . and, here, letters and digits. */
static bool set_apart(char x)
{
    return (x >= '{' && x <= '~') || (x >= '[' && x <= '`') || (x >= ' ' && x <= '&') || (x >= '(' && x <= '+') || (x >= ':' && x <= '@') || x == '/';
}

static bool is_pair(int pass, char x, char y)
{
    return pass == 0 ? !is_digit(x) && is_stop(y) : pass == 1 ? is_stop(x) && !is_digit(y) : is_digit(x) && y == '-';
}

char *lnt_tokens_13a(lnt_arena *arena, const char *text)
{
    static const char *const entities[][2] = {{"<skipped>", ""}, {"-\n", ""},  {"\n", " "},  {"&quot;", "\""},
                                              {"&amp;", "&"},    {"&lt;", "<"}, {"&gt;", ">"}};
    char *line = lnt_arena_printf(arena, " %s ", text);
    for (int i = 0; line && i < 7; i++) line = lnt_text_replaced(arena, line, entities[i][0], entities[i][1]);
    for (int pass = -1; line && pass < 3; pass++) { /* signs; then pairs of neighbours, left to right */
        lnt_text out = {.arena = arena};
        lnt_text_put(&out, "");
        for (const char *p = line; *p; p++) {
            if (pass < 0) {
                if (set_apart(*p)) lnt_text_put(&out, " ");
                lnt_text_add(&out, p, 1);
                if (set_apart(*p)) lnt_text_put(&out, " ");
                continue;
            }
            const bool pair = p[1] && is_pair(pass, *p, p[1]);
            if (pair && pass == 1) lnt_text_put(&out, " ");
            lnt_text_add(&out, p, 1);
            if (!pair) continue;
            lnt_text_put(&out, " ");
            lnt_text_add(&out, ++p, 1);
            if (pass != 1) lnt_text_put(&out, " ");
        }
        line = out.text;
    }
    return line;
}

linnet_status lnt_bleu_add(lnt_ctx *c, lnt_bleu *b, const char *text, const char *reference)
{
    dictionary d = {.arena = {0}};
    words w[2];
    lnt_bytemap runs = {0};
    linnet_status s = LINNET_OK;
    for (int i = 0; i < 2 && s == LINNET_OK; i++) {
        const char *line = lnt_tokens_13a(&d.arena, i ? reference : text);
        s = line ? split(c, &d, line, &w[i]) : lnt_fail_memory(c, strlen(text));
    }
    for (int n = 1; n <= 4 && s == LINNET_OK; n++) {
        const size_t bytes = (size_t)n * sizeof *w[0].id;
        bool fresh;
        for (int64_t i = 0; i + n <= w[1].n && s == LINNET_OK; i++) {
            int64_t *count = lnt_bytemap_put(&runs, w[1].id + i, bytes, &fresh);
            if (count) *count = fresh ? 1 : *count + 1;
            else s = lnt_fail_memory(c, bytes);
        }
        for (int64_t i = 0; i + n <= w[0].n && s == LINNET_OK; i++) {
            int64_t *count = lnt_bytemap_find(&runs, w[0].id + i, bytes);
            b->all[n - 1]++;
            if (!count || !*count) continue;
            b->right[n - 1]++;
            --*count;
        }
    }
    if (s == LINNET_OK) {
        b->length += (double)w[0].n;
        b->reference += (double)w[1].n;
    }
    lnt_bytemap_free(&runs);
    close_dictionary(&d);
    return s;
}

double lnt_bleu_score(const lnt_bleu *b)
{
    double sum = 0, halved = 1;
    if (!b->right[0]) return 0; /* no word, then no run of words either */
    for (int n = 0; n < 4; n++) {
        if (!b->all[n]) return 0;
        if (!b->right[n]) halved *= 2;
        sum += log(b->right[n] ? b->right[n] / b->all[n] : 1 / (halved * b->all[n]));
    }
    const double brevity = b->length < b->reference ? exp(1 - b->reference / b->length) : 1;
    return 100 * brevity * exp(sum / 4);
}

/* ---- windows --------------------------------------------------------------------------------------------------------------------------------- */

bool lnt_is_global(const int64_t *window, const double *score, int n, double full)
{
    bool global = true;
    for (int i = 0; i < n; i++) {
        if (i) global = global && score[i] > score[i - 1];
        if (window[i] <= 64) global = global && score[i] <= full;
    }
    return global;
}
