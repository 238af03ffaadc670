/* Reading arguments by their operator's description (recurrence.h). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/options.h"
#include "recurrence/recurrence.h"

/* Tests add an operator of their own with a list of theirs. */
#ifdef LINNET_EXTRA_OPERATORS
#define X(NAME) extern const lnt_recur_op lnt_recur_##NAME;
#include LINNET_EXTRA_OPERATORS
#undef X
#endif

static const lnt_recur_op *const operators[] = {
#define X(NAME) &lnt_recur_##NAME,
#include "recurrence/operators.def"
#ifdef LINNET_EXTRA_OPERATORS
#include LINNET_EXTRA_OPERATORS
#endif
#undef X
};
enum { OPERATORS = sizeof operators / sizeof *operators };

const lnt_recur_op *lnt_recur_at(int i) { return i >= 0 && i < OPERATORS ? operators[i] : NULL; }

const lnt_recur_op *lnt_recur_find(const char *name)
{
    for (int i = 0; name && i < OPERATORS; i++)
        if (strcmp(operators[i]->name, name) == 0) return operators[i];
    return NULL;
}

static const lnt_recur_op *op_of(const void *args) { return ((const lnt_recur_head *)args)->op; }
static const lnt_recur_tensor *row_of(const void *args, int i) { return &op_of(args)->tensors[i]; }

int lnt_recur_tensor_count(const lnt_recur_op *op)
{
    int n = 0;
    while (op->tensors[n].name) n++;
    return n;
}

int lnt_recur_tensor_find(const lnt_recur_op *op, const char *name)
{
    for (int i = 0; op->tensors[i].name; i++)
        if (strcmp(op->tensors[i].name, name) == 0) return i;
    return -1;
}

static bool is_letter(const char *letter, const char *text, size_t length) { return strlen(letter) == length && memcmp(letter, text, length) == 0; }

const lnt_recur_size *lnt_recur_size_find(const lnt_recur_op *op, const char *letter, size_t length)
{
    for (const lnt_recur_size *s = op->sizes; s->letter; s++)
        if (is_letter(s->letter, letter, length)) return s;
    return NULL;
}

const lnt_recur_option *lnt_recur_option_find(const lnt_recur_op *op, const char *key)
{
    for (const lnt_recur_option *o = op->options; o->key; o++)
        if (strcmp(o->key, key) == 0) return o;
    return NULL;
}

int64_t lnt_recur_size_get(const lnt_recur_size *s, const void *args)
{
    const char *at = (const char *)args + s->field;
    return s->bytes == 4 ? *(const int32_t *)at : *(const int64_t *)at;
}

void lnt_recur_size_set(const lnt_recur_size *s, void *args, int64_t value)
{
    char *at = (char *)args + s->field;
    if (s->bytes == 4)
        *(int32_t *)at = (int32_t)value;
    else
        *(int64_t *)at = value;
}

int64_t lnt_recur_letter(const lnt_recur_op *op, const void *args, const char *letter, size_t length)
{
    const lnt_recur_head *h = args;
    const char *times = memchr(letter, '*', length); /* T*key: as many rows a token as that option says */
    if (times) {
        const size_t left = (size_t)(times - letter);
        int64_t rows;
        for (const lnt_recur_option *o = op->options; o->key; o++)
            if (is_letter(o->key, times + 1, length - left - 1))
                return lnt_mul(lnt_recur_letter(op, args, letter, left), (int64_t)lnt_recur_option_get(o, args), &rows) ? rows : INT64_MAX;
        return -1;
    }
    if (length == 1 && *letter == 'T') return h->tokens;
    if (length == 1 && *letter == 'N') return h->sequences;
    const lnt_recur_size *s = lnt_recur_size_find(op, letter, length);
    if (s) return lnt_recur_size_get(s, args);
    for (const lnt_recur_option *o = op->options; o->key; o++)
        if (is_letter(o->key, letter, length)) return (int64_t)lnt_recur_option_get(o, args);
    return -1;
}

double lnt_recur_option_get(const lnt_recur_option *o, const void *args)
{
    const char *at = (const char *)args + o->field;
    if (o->kind == LNT_RECUR_REAL) return *(const double *)at;
    return o->bytes == 4 ? *(const int32_t *)at : (double)*(const int64_t *)at;
}

static void put_option(const lnt_recur_option *o, void *args, double value)
{
    char *at = (char *)args + o->field;
    if (o->kind == LNT_RECUR_REAL)
        *(double *)at = value;
    else if (o->bytes == 4)
        *(int32_t *)at = (int32_t)value;
    else
        *(int64_t *)at = (int64_t)value;
}

static int word_count(const char *words)
{
    int n = 1;
    for (; *words; words++) n += *words == ' ';
    return n;
}

static linnet_status unknown_option(lnt_ctx *c, const lnt_recur_op *op, const char *key)
{
    char known[512] = "";
    size_t n = 0;
    for (const lnt_recur_option *o = op->options; o->key; o++)
        if (n + strlen(o->key) + 3 < sizeof known) n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", o->key);
    lnt_fail(c, LINNET_EINVAL, "%s takes no option \"%s\"", op->name, key ? key : "(null)");
    return n ? lnt_hint(c, "Its options: %s.", known) : lnt_hint(c, "It takes none.");
}

linnet_status lnt_recur_option_set(lnt_ctx *c, const lnt_recur_op *op, void *args, const char *key, double value, const char *text)
{
    const lnt_recur_option *o = key ? lnt_recur_option_find(op, key) : NULL;
    if (!o) return unknown_option(c, op, key);
    if (o->kind == LNT_RECUR_WORD) {
        if (text && (value = lnt_word_find(o->words, text)) < 0)
            return lnt_fail(c, LINNET_EINVAL, "%s = \"%s\"; expected one of: %s", key, text, o->words);
        if (!(value >= 0 && value < word_count(o->words) && value == floor(value)))
            return lnt_fail(c, LINNET_EINVAL, "%s = %g; expected 0 .. %d: %s", key, value, word_count(o->words) - 1, o->words);
    } else if (text)
        return lnt_fail(c, LINNET_EINVAL, "%s = \"%s\" is not a number", key, text);
    if (o->kind == LNT_RECUR_SWITCH && value != 0 && value != 1) return lnt_fail(c, LINNET_EINVAL, "%s = %g; expected 0 or 1", key, value);
    if ((o->kind == LNT_RECUR_INT || o->kind == LNT_RECUR_REAL) && !(value >= o->least && value <= o->most))
        return lnt_fail(c, LINNET_EINVAL, "%s = %g; expected a number from %g to %g", key, value, o->least, o->most);
    if (o->kind == LNT_RECUR_INT && value != floor(value)) return lnt_fail(c, LINNET_EINVAL, "%s = %g; expected a whole number", key, value);
    put_option(o, args, value);
    return LINNET_OK;
}

const char *lnt_recur_next_letter(const char **shape, size_t *length)
{
    const char *at = *shape;
    while (*at == ' ') at++;
    *length = strcspn(at, " ");
    *shape = at + *length;
    return *length ? at : NULL;
}

/* The option at this offset of the arguments. */
static const lnt_recur_option *option_at(const void *args, size_t field)
{
    for (const lnt_recur_option *o = op_of(args)->options; o->key; o++)
        if (o->field == field) return o;
    return NULL;
}

/* Whether it is anything but 0. */
static bool is_set(const void *args, size_t field)
{
    const lnt_recur_option *o = option_at(args, field);
    return o && lnt_recur_option_get(o, args) != 0;
}

bool lnt_recur_has(const void *args, int i)
{
    const lnt_recur_tensor *t = row_of(args, i);
    return (!t->with || is_set(args, t->with)) && (!t->without || !is_set(args, t->without));
}

linnet_status lnt_recur_refuse(lnt_ctx *c, const void *args, int i)
{
    const lnt_recur_tensor *t = row_of(args, i);
    const lnt_recur_option *o = option_at(args, t->with && !is_set(args, t->with) ? t->with : t->without);
    char value[48] = "";
    if (!o) return lnt_fail(c, LINNET_EINVAL, "%s takes no tensor \"%s\" with these options", op_of(args)->name, t->name);
    const double x = lnt_recur_option_get(o, args);
    if (o->kind == LNT_RECUR_WORD) lnt_word_at(o->words, (int)x, value, sizeof value);
    else lnt_format(value, sizeof value, "%g", x);
    return lnt_fail(c, LINNET_EINVAL, "%s takes no tensor \"%s\" with %s = %s", op_of(args)->name, t->name, o->key, value);
}

lnt_dtype lnt_recur_type(const void *args, int i)
{
    const lnt_dtype dtype = ((const lnt_recur_head *)args)->dtype;
    return row_of(args, i)->wide || dtype == LINNET_F64 ? dtype : LINNET_F32;
}

int64_t lnt_recur_shape_elements(const void *args, const char *shape)
{
    const char *letter;
    size_t length;
    int64_t n = 1;
    while ((letter = lnt_recur_next_letter(&shape, &length))) n *= lnt_recur_letter(op_of(args), args, letter, length);
    return n;
}
int64_t lnt_recur_elements(const void *args, int i) { return lnt_recur_shape_elements(args, row_of(args, i)->shape); }

bool lnt_recur_aligned(const void *args, int i)
{
    const char *shape = row_of(args, i)->shape, *letter;
    const int64_t size = (int64_t)lnt_dtype_size(lnt_recur_type(args, i));
    size_t length;
    bool elements = false;
    while ((letter = lnt_recur_next_letter(&shape, &length))) {
        if (*letter == 'T' || *letter == 'N' || *letter == 'H') continue;
        if (lnt_recur_letter(op_of(args), args, letter, length) * size % 16) return false;
        elements = true;
    }
    return elements;
}

int64_t lnt_recur_longest(const void *args)
{
    const lnt_recur_head *a = args;
    int64_t longest = 0;
    for (int64_t n = 0; n < a->sequences; n++) {
        int64_t length = a->cu_seqlens[n + 1] - a->cu_seqlens[n];
        longest = length > longest ? length : longest;
    }
    return longest;
}

void lnt_recur_init(const lnt_recur_op *op, void *args)
{
    memset(args, 0, op->args_size);
    ((lnt_recur_head *)args)->op = op;
    for (const lnt_recur_option *o = op->options; o->key; o++)
        put_option(o, args, isnan(o->standard) && o->kind != LNT_RECUR_REAL ? 0 : o->standard);
    for (const lnt_recur_size *s = op->sizes; s->letter; s++)
        if (s->least == s->most) lnt_recur_size_set(s, args, s->least);
}
