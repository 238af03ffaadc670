#include "bench/op_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

linnet_status lnt_op_form(lnt_ctx *c, const char *text, linnet_form *form)
{
    for (*form = LINNET_FORM_AUTO; lnt_form_name(*form); (*form)++)
        if (!strcmp(text ? text : lnt_form_name(LINNET_FORM_AUTO), lnt_form_name(*form))) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "unknown form \"%s\"", text);
    return lnt_hint(c, "Forms: auto, recurrent, chunk, parallel.");
}

static linnet_status unknown(lnt_ctx *c, const lnt_recur_op *op, const char *key, const char *from)
{
    char known[512] = "";
    size_t n = 0;
    for (const lnt_recur_size *s = op->sizes; s->letter && n < sizeof known; s++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", s->letter);
    for (const lnt_recur_option *o = op->options; o->key && n < sizeof known; o++)
        n += (size_t)snprintf(known + n, sizeof known - n, ", %s", o->key);
    lnt_fail(c, LINNET_EINVAL, "%s has no size or option \"%s\"", op->name, key);
    lnt_detail(c, "Read from %s.", from);
    return lnt_hint(c, "It has: %s.", known);
}

linnet_status lnt_op_set(lnt_ctx *c, const lnt_recur_op *op, void *args, const char *key, const char *text, const char *from)
{
    const lnt_recur_size *s = lnt_recur_size_find(op, key, strlen(key));
    const lnt_recur_option *o = lnt_recur_option_find(op, key);
    char *end;
    double x = lnt_parse_real(text, &end);
    bool number = end != text && !*end && !isnan(x);
    if (!strcmp(text, "true") || !strcmp(text, "false")) number = true, x = *text == 't';
    if (!s && !o) return unknown(c, op, key, from);
    if (!number && !(o && o->kind == LNT_RECUR_WORD))
        return lnt_fail(c, LINNET_EINVAL, "%s = \"%s\" is not a number", key, text), lnt_detail(c, "Read from %s.", from);
    if (o) {
        const linnet_status status = lnt_recur_option_set(c, op, args, key, x, number ? NULL : text);
        return status == LINNET_OK ? status : lnt_detail(c, "Read from %s.", from);
    }
    if (!(x >= (double)s->least && x <= (double)s->most && x == floor(x)))
        return lnt_fail(c, LINNET_EINVAL, "%s = %s; expected %lld .. %lld", key, text, (long long)s->least, (long long)s->most),
               lnt_detail(c, "Read from %s.", from);
    lnt_recur_size_set(s, args, (int64_t)x);
    return LINNET_OK;
}

void lnt_op_sizes(const void *args, char *text, size_t size)
{
    size_t n = 0;
    *text = 0;
    for (const lnt_recur_size *s = ((const lnt_recur_head *)args)->op->sizes; s->letter && n < size; s++)
        if (s->letter[0] != 'T')
            n += (size_t)snprintf(text + n, size - n, "%s%s=%lld", n ? " " : "", s->letter, (long long)lnt_recur_size_get(s, args));
}
