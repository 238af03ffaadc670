#include "core/options.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"

lnt_given lnt_given_int(int64_t v)
{
    lnt_given g = {.kind = LNT_GIVEN_INT, .integer = v, .real = (double)v};
    snprintf(g.shown, sizeof g.shown, "%lld", (long long)v);
    return g;
}

lnt_given lnt_given_real(double v)
{
    lnt_given g = {.kind = LNT_GIVEN_REAL, .real = v};
    lnt_format(g.shown, sizeof g.shown, "%g", v);
    return g;
}

lnt_given lnt_given_word(const char *word)
{
    lnt_given g = {.kind = LNT_GIVEN_WORD};
    snprintf(g.word, sizeof g.word, "%s", strlen(word) < sizeof g.word ? word : "");
    snprintf(g.shown, sizeof g.shown, "\"%s\"", word);
    return g;
}

int lnt_word_find(const char *words, const char *word)
{
    size_t n = strlen(word);
    int i = 0;
    for (const char *p = words; n && *p; i++) {
        size_t m = strcspn(p, " ");
        if (m == n && !memcmp(p, word, n)) return i;
        p += m + (p[m] == ' ');
    }
    return -1;
}

const char *lnt_word_at(const char *words, int i, char *out, size_t size)
{
    for (; i > 0 && *words; i--) words += strcspn(words, " ") + (words[strcspn(words, " ")] == ' ');
    snprintf(out, size, "%.*s", (int)strcspn(words, " "), words);
    return out;
}

int lnt_word_distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);
    if (n > 63) return 64;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static void store(const lnt_option *o, double v, void *base)
{
    void *at = (char *)base + o->offset;
    switch (o->kind) {
    case LNT_OPTION_INT: *(int64_t *)at = (int64_t)v; break;
    case LNT_OPTION_REAL: *(double *)at = v; break;
    case LNT_OPTION_SWITCH: *(bool *)at = v != 0; break;
    case LNT_OPTION_WORD: *(int *)at = (int)v; break;
    }
}

static double load(const lnt_option *o, const void *base)
{
    const void *at = (const char *)base + o->offset;
    switch (o->kind) {
    case LNT_OPTION_INT: return (double)*(const int64_t *)at; /* capped far below 2^53 */
    case LNT_OPTION_REAL: return *(const double *)at;
    case LNT_OPTION_SWITCH: return *(const bool *)at;
    case LNT_OPTION_WORD: return *(const int *)at;
    }
    return 0;
}

void lnt_options_default(const lnt_options *t, void *base)
{
    for (int i = 0; i < t->n; i++) store(&t->row[i], t->row[i].fallback, base);
}

const lnt_option *lnt_option_find(const lnt_options *t, const char *key)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].key, key)) return &t->row[i];
    return NULL;
}

bool lnt_option_fits(const lnt_option *o, const lnt_given *v)
{
    if (v->kind == LNT_GIVEN_NULL) return o->nullable;
    switch (o->kind) {
    case LNT_OPTION_INT: return v->kind == LNT_GIVEN_INT;
    case LNT_OPTION_REAL: return v->kind == LNT_GIVEN_INT || v->kind == LNT_GIVEN_REAL;
    case LNT_OPTION_SWITCH: return v->kind == LNT_GIVEN_BOOL;
    case LNT_OPTION_WORD: return v->kind == LNT_GIVEN_WORD;
    }
    return false;
}

linnet_status lnt_fail_option(lnt_ctx *c, const char *key, const char *format, ...)
{
    char text[1024];
    if (!c) return LINNET_EINVAL;
    va_list ap;
    va_start(ap, format);
    lnt_format_list(text, sizeof text, format, ap);
    va_end(ap);
    lnt_fail(c, LINNET_EINVAL, "%s %s", key, text);
    snprintf(c->option, sizeof c->option, "%s", key);
    return LINNET_EINVAL;
}

linnet_status lnt_option_put(lnt_ctx *c, const char *where, const lnt_option *o, const lnt_given *v, void *base)
{
    static const char *const expected[] = {"an integer", "a number", "true or false", ""};
    const char *or_null = o->nullable ? " or null" : "";
    char key[80];
    snprintf(key, sizeof key, "%s%s", where, o->key);
    double value = o->null;
    bool number = o->kind == LNT_OPTION_INT || o->kind == LNT_OPTION_REAL;
    if (!lnt_option_fits(o, v) && o->kind != LNT_OPTION_WORD)
        return lnt_fail_option(c, key, "is %s, expected %s%s", v->shown, expected[o->kind], or_null);
    if (v->kind != LNT_GIVEN_NULL || !o->nullable) {
        if (number) value = v->real;
        else if (o->kind == LNT_OPTION_SWITCH) value = (double)v->integer;
        else value = v->kind == LNT_GIVEN_WORD ? lnt_word_find(o->words, v->word) : -1;
        if (number && !(value >= o->lo && value <= o->hi))
            return lnt_fail_option(c, key, "is %s, expected %.12g to %.12g%s", v->shown, o->lo, o->hi, or_null);
        if (o->kind == LNT_OPTION_WORD && value < 0)
            return lnt_fail_option(c, key, "is %s, expected %s%s", v->shown, o->words, or_null);
    }
    if (base) store(o, value, base);
    return LINNET_OK;
}

lnt_given lnt_option_get(const lnt_option *o, const void *base)
{
    double v = load(o, base);
    lnt_given g = {.integer = (int64_t)v, .real = v};
    if (o->kind == LNT_OPTION_REAL) g.integer = 0;
    static const int kinds[] = {LNT_GIVEN_INT, LNT_GIVEN_REAL, LNT_GIVEN_BOOL, LNT_GIVEN_WORD};
    g.kind = o->nullable && v == o->null ? LNT_GIVEN_NULL : (unsigned)kinds[o->kind];
    if (o->kind == LNT_OPTION_WORD) lnt_word_at(o->words, (int)v, g.word, sizeof g.word);
    return g;
}

/* ---- what is read ---------------------------------------------------------------------------------------------------------------------- */

/* The option that `only` names; *values: those with which it is read. */
static const lnt_option *decides(const lnt_options *t, const lnt_option *o, const char **values)
{
    char key[48];
    const size_t n = strcspn(o->only, " ");
    snprintf(key, sizeof key, "%.*s", (int)n, o->only);
    *values = o->only + n + (o->only[n] == ' ');
    return lnt_option_find(t, key);
}

static const char *say(const lnt_option *o, const void *base, char *text, size_t size)
{
    const lnt_given v = lnt_option_get(o, base);
    if (v.kind == LNT_GIVEN_NULL) snprintf(text, size, "null");
    else if (v.kind == LNT_GIVEN_WORD) snprintf(text, size, "%s", v.word);
    else if (v.kind == LNT_GIVEN_BOOL) snprintf(text, size, "%s", v.integer ? "true" : "false");
    else lnt_format(text, size, "%.10g", v.real);
    return text;
}

bool lnt_option_is_read(const lnt_options *t, const lnt_option *o, const void *base)
{
    const char *values;
    char is[48];
    const lnt_option *by = o->only ? decides(t, o, &values) : NULL;
    return !by || lnt_word_find(values, say(by, base, is, sizeof is)) >= 0;
}

bool lnt_option_is_idle(const lnt_options *t, const lnt_option *o, const void *base)
{
    return lnt_option_is_read(t, o, base) || load(o, base) == o->fallback;
}

linnet_status lnt_fail_unread(lnt_ctx *c, const char *where, const lnt_options *t, const lnt_option *o, const void *base)
{
    const char *values;
    char key[80], is[48], of[48], usual[48];
    union {
        int64_t integer;
        double real;
    } room;
    lnt_option alone = *o;
    alone.offset = 0;
    store(&alone, o->fallback, &room);
    const lnt_option *by = decides(t, o, &values);
    snprintf(key, sizeof key, "%s%s", where, o->key);
    return lnt_fail_option(c, key, "is %s, expected %s: it is for %s %s, and %s is %s", say(o, base, is, sizeof is),
                           say(&alone, &room, usual, sizeof usual), by->key, values, by->key, say(by, base, of, sizeof of));
}

void lnt_options_unset_unread(const lnt_options *t, void *base)
{
    for (int i = 0; i < t->n; i++)
        if (!lnt_option_is_read(t, &t->row[i], base)) store(&t->row[i], t->row[i].fallback, base);
}

void lnt_options_carry(const lnt_options *from, const void *source, const lnt_options *to, void *base)
{
    for (int i = 0; i < to->n; i++) {
        const lnt_option *o = lnt_option_find(from, to->row[i].key);
        lnt_given v = {0};
        if (!o || o->kind != to->row[i].kind) continue;
        v = lnt_option_get(o, source);
        if (lnt_option_fits(&to->row[i], &v)) lnt_option_put(NULL, "", &to->row[i], &v, base);
    }
}

bool lnt_options_put_int(const lnt_options *t, void *base, const char *key, int64_t v)
{
    const lnt_option *o = lnt_option_find(t, key);
    if (o && o->kind == LNT_OPTION_INT) store(o, (double)v, base);
    else if (o && o->kind == LNT_OPTION_REAL) store(o, (double)v, base);
    return o != NULL;
}
