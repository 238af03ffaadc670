/* The public call (linnet/recurrence.h): from names to an operator's arguments, and a description as JSON. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "recurrence/problem.h"
#include "recurrence/recurrence.h"

const char *linnet_operator_at(int i)
{
    const lnt_recur_op *op = lnt_recur_at(i);
    return op ? op->name : NULL;
}

const char *linnet_operator_ran(const linnet_context *c) { return c && c->recurrence_ran ? c->recurrence_ran : ""; }

/* ---- names ------------------------------------------------------------------------------------------------------------------------------- */

/* Text that grows to its end and counts what did not fit. */
typedef struct {
    char *text;
    size_t size, length;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = lnt_format_list(w->length < w->size ? w->text + w->length : NULL, w->length < w->size ? w->size - w->length : 0, format, list);
    va_end(list);
    if (n > 0) w->length += (size_t)n;
}

static linnet_status unknown_operator(lnt_ctx *c, const char *name)
{
    char known[1000] = "";
    writer w = { known, sizeof known, 0 };
    for (int i = 0; lnt_recur_at(i); i++) put(&w, "%s%s", i ? ", " : "", lnt_recur_at(i)->name);
    lnt_fail(c, LINNET_EINVAL, "unknown operator \"%s\"", name ? name : "(null)");
    return lnt_hint(c, "Operators: %s.", known);
}

static linnet_status unknown_tensor(lnt_ctx *c, const lnt_recur_op *op, const char *name)
{
    char known[1000] = "";
    writer w = { known, sizeof known, 0 };
    for (int i = 0; op->tensors[i].name; i++) put(&w, "%s%s", i ? ", " : "", op->tensors[i].name);
    lnt_fail(c, LINNET_EINVAL, "%s takes no tensor \"%s\"", op->name, name ? name : "(null)");
    return lnt_hint(c, "Its tensors: %s.", known);
}

static linnet_status unknown_size(lnt_ctx *c, const lnt_recur_op *op, const char *letter)
{
    char known[200] = "";
    writer w = { known, sizeof known, 0 };
    for (const lnt_recur_size *s = op->sizes; s->letter; s++) put(&w, "%s%s", w.length ? ", " : "", s->letter);
    lnt_fail(c, LINNET_EINVAL, "%s has no size \"%s\"", op->name, letter ? letter : "(null)");
    return lnt_hint(c, "Its sizes, beside tokens and sequences: %s.", known);
}

/* Sizes that were not given (0: none is that small) take the value of another letter. */
static linnet_status take_sizes(lnt_ctx *c, const linnet_operator_call *call, const lnt_recur_op *op, void *args)
{
    bool given[32] = { false };
    for (int i = 0; i < call->n_sizes; i++) {
        const linnet_operator_size *x = &call->sizes[i];
        const lnt_recur_size *s = x->letter ? lnt_recur_size_find(op, x->letter, strlen(x->letter)) : NULL;
        if (!s) return unknown_size(c, op, x->letter);
        if (x->value < s->least || x->value > s->most)
            return lnt_fail(c, LINNET_EINVAL, "%s = %lld; expected %lld .. %lld", s->letter, (long long)x->value, (long long)s->least,
                            (long long)s->most);
        lnt_recur_size_set(s, args, x->value);
        given[s - op->sizes] = true;
    }
    for (const lnt_recur_size *s = op->sizes; s->letter; s++) {
        if (given[s - op->sizes]) continue;
        if (s->least == s->most) continue; /* there is no other */
        if (!s->same_as) return lnt_fail(c, LINNET_EINVAL, "%s needs the size %s", op->name, s->letter);
        lnt_recur_size_set(s, args, lnt_recur_letter(op, args, s->same_as, strlen(s->same_as)));
    }
    return LINNET_OK;
}

/* Callers tend to keep the description's order: the search goes on behind the last hit. */
static linnet_status take_tensors(lnt_ctx *c, const linnet_operator_call *call, const lnt_recur_op *op, void *args)
{
    const int rows = lnt_recur_tensor_count(op);
    for (int i = 0, at = 0; i < call->n_tensors; i++) {
        const linnet_operator_tensor *x = &call->tensors[i];
        int tried = 0;
        if (!x->name) return unknown_tensor(c, op, x->name);
        while (tried < rows && strcmp(op->tensors[at].name, x->name) != 0) {
            at = at + 1 < rows ? at + 1 : 0;
            tried++;
        }
        if (tried == rows) return unknown_tensor(c, op, x->name);
        lnt_recur_set(args, &op->tensors[at], x->data);
    }
    return LINNET_OK;
}

static linnet_status unpack(lnt_ctx *c, const linnet_operator_call *given, lnt_recur_call *out)
{
    linnet_operator_call call = LINNET_OPERATOR_CALL_INIT;
    if (!given || given->size < offsetof(linnet_operator_call, op) + sizeof given->op || given->size > 4096)
        return lnt_fail(c, LINNET_EINVAL, "linnet_operator_call without its size; begin with LINNET_OPERATOR_CALL_INIT");
    memcpy(&call, given, given->size < sizeof call ? given->size : sizeof call);
    const lnt_recur_op *op = lnt_recur_find(call.op);
    if (!op) return unknown_operator(c, call.op);
    if (call.n_sizes < 0 || call.n_tensors < 0 || call.n_options < 0 || (call.n_sizes && !call.sizes) || (call.n_tensors && !call.tensors) ||
        (call.n_options && !call.options))
        return lnt_fail(c, LINNET_EINVAL, "%d sizes, %d tensors, %d options; expected lists of so many", call.n_sizes, call.n_tensors,
                        call.n_options);
    lnt_recur_init(op, out);
    lnt_recur_head *a = &out->head;
    a->dtype = (lnt_dtype)call.dtype;
    a->form = (linnet_form)call.form;
    a->impl = call.impl;
    a->chunk = call.chunk;
    a->tokens = call.tokens;
    a->sequences = call.sequences;
    a->cu_seqlens = call.cu_seqlens;
    a->cu_seqlens_device = call.cu_seqlens_device;
    a->workspace = call.workspace;
    a->workspace_size = call.workspace_size;
    LNT_TRY(take_sizes(c, &call, op, out));
    for (int i = 0; i < call.n_options; i++)
        LNT_TRY(lnt_recur_option_set(c, op, out, call.options[i].key, call.options[i].value, call.options[i].text));
    return take_tensors(c, &call, op, out);
}

/* ---- public -------------------------------------------------------------------------------------------------------------------- */

linnet_status linnet_operator_workspace(linnet_context *c, const linnet_operator_call *call, int backward, size_t *bytes)
{
    if (!c) return LINNET_EINVAL;
    if (!bytes) return lnt_fail(c, LINNET_EINVAL, "no place for the number of bytes");
    lnt_recur_call args;
    LNT_TRY(unpack(c, call, &args));
    return lnt_recur_workspace(c, &args, backward != 0, bytes);
}

static linnet_status run(linnet_context *c, const linnet_operator_call *call, bool backward)
{
    if (!c) return LINNET_EINVAL;
    lnt_recur_call args;
    LNT_TRY(unpack(c, call, &args));
    return lnt_recur_run(c, &args, backward);
}

linnet_status linnet_operator_forward(linnet_context *c, const linnet_operator_call *call) { return run(c, call, false); }
linnet_status linnet_operator_backward(linnet_context *c, const linnet_operator_call *call) { return run(c, call, true); }

/* ---- JSON ------------------------------------------------------------------------------------------------------------------------------------ */

static void put_text(writer *w, const char *key, const char *text)
{
    if (!text) {
        put(w, ", \"%s\": null", key);
        return;
    }
    put(w, ", \"%s\": \"", key);
    for (; *text; text++) put(w, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    put(w, "\"");
}

static void put_number(writer *w, const char *key, double x)
{
    if (isfinite(x))
        put(w, ", \"%s\": %.17g", key, x);
    else
        put(w, ", \"%s\": null", key);
}

static void put_sizes(writer *w, const lnt_recur_op *op)
{
    put(w, ", \"sizes\": [");
    for (const lnt_recur_size *s = op->sizes; s->letter; s++) {
        put(w, "%s{\"letter\": \"%s\", \"least\": %lld, \"most\": %lld, \"usual\": %lld", s == op->sizes ? "" : ", ", s->letter, (long long)s->least,
            (long long)s->most, (long long)s->usual);
        put_text(w, "same_as", s->same_as);
        put_text(w, "help", s->help);
        put(w, "}");
    }
    put(w, "]");
}

static void put_tensors(writer *w, const lnt_recur_op *op)
{
    static const char *const roles[] = { "input", "state", "cotangent", "output", "saved", "gradient", "report" };
    static const char *const values[] = {
        [LNT_VALUES_ANY] = "any",           [LNT_VALUES_UNIT] = "unit",         [LNT_VALUES_DECAY] = "decay", [LNT_VALUES_STRENGTH] = "strength",
        [LNT_VALUES_POSITIVE] = "positive", [LNT_VALUES_NEGATIVE] = "negative", [LNT_VALUES_SIGN] = "sign",   [LNT_VALUES_SYMMETRIC] = "symmetric",
        [LNT_VALUES_COUNT] = "count",       [LNT_VALUES_STEP] = "step",         [LNT_VALUES_WEIGHT] = "weight",
    };
    put(w, ", \"tensors\": [");
    for (int i = 0; op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &op->tensors[i];
        const char *with = NULL, *without = NULL;
        for (const lnt_recur_option *o = op->options; o->key; o++) {
            if (t->with && o->field == t->with) with = o->key;
            if (t->without && o->field == t->without) without = o->key;
        }
        put(w, "%s{\"name\": \"%s\", \"shape\": \"%s\", \"role\": \"%s\", \"values\": \"%s\", \"wide\": %s, \"read_back\": %s", i ? ", " : "",
            t->name,
            t->shape, roles[t->role], values[t->values], t->wide ? "true" : "false", t->read_back ? "true" : "false");
        put_text(w, "with", with);
        put_text(w, "without", without);
        if (t->role >= LNT_T_OUTPUT)
            put(w, ", \"allowed\": {\"f32\": %g, \"bf16\": %g}", lnt_recur_allowed(op, LINNET_F32, i), lnt_recur_allowed(op, LINNET_BF16, i));
        put_text(w, "absent", t->role == LNT_T_STATE || t->role == LNT_T_COTANGENT ? "zeros" : t->absent);
        put_text(w, "help", t->help);
        put(w, "}");
    }
    put(w, "]");
}

static void put_options(writer *w, const lnt_recur_op *op)
{
    static const char *const kinds[] = { "real", "int", "switch", "word" };
    put(w, ", \"options\": [");
    for (const lnt_recur_option *o = op->options; o->key; o++) {
        put(w, "%s{\"key\": \"%s\", \"kind\": \"%s\"", o == op->options ? "" : ", ", o->key, kinds[o->kind]);
        put_number(w, "least", o->least);
        put_number(w, "most", o->most);
        put_number(w, "standard", o->standard);
        put_text(w, "words", o->words);
        put_text(w, "help", o->help);
        put(w, "}");
    }
    put(w, "]");
}

size_t linnet_operator_describe(const char *name, char *text, size_t size)
{
    const lnt_recur_op *op = lnt_recur_find(name);
    if (!op) return 0;
    writer w = { text, text ? size : 0, 0 };
    put(&w, "{\"name\": \"%s\", \"core\": \"%s\"", op->name, op->core);
    put_text(&w, "equation", op->equation);
    put_sizes(&w, op);
    put_tensors(&w, op);
    put_options(&w, op);
    put(&w, ", \"implementations\": [");
    for (int i = 0; op->impls[i]; i++) put(&w, "%s\"%s\"", i ? ", " : "", op->impls[i]->name);
    put(&w, "]}");
    return w.length;
}
