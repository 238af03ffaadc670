/* One validation for every call, by the operator's description; the choice of implementation; running it. */
#include "recurrence/recurrence.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/threads.h"

/* Sequences up to this length run token by token in the forward pass: a chunk of C rows costs 2 C^2 (K+V) whatever it holds. */
enum { RECURRENT_LONGEST = 8 };
enum { PARALLEL_LONGEST = 65536 };

const char *lnt_form_name(linnet_form form)
{
    static const char *const names[] = { "auto", "recurrent", "chunk", "parallel" };
    return form >= LINNET_FORM_AUTO && form <= LINNET_FORM_PARALLEL ? names[form] : NULL;
}

/* ---- validation ---------------------------------------------------------------------------------------------------------------- */

static linnet_status check_sequences(lnt_ctx *c, const lnt_recur_head *a)
{
    if (a->tokens < 0) return lnt_fail(c, LINNET_EINVAL, "tokens = %lld is negative", (long long)a->tokens);
    if (a->sequences < 0) return lnt_fail(c, LINNET_EINVAL, "sequences = %lld is negative", (long long)a->sequences);
    if (!a->cu_seqlens) return lnt_fail(c, LINNET_EINVAL, "cu_seqlens is missing");
    if (a->cu_seqlens[0] != 0) return lnt_fail(c, LINNET_EINVAL, "cu_seqlens begins with %lld, expected 0", (long long)a->cu_seqlens[0]);
    for (int64_t n = 0; n < a->sequences; n++)
        if (a->cu_seqlens[n + 1] < a->cu_seqlens[n])
            return lnt_fail(c, LINNET_EINVAL, "cu_seqlens falls from %lld to %lld at sequence %lld", (long long)a->cu_seqlens[n],
                            (long long)a->cu_seqlens[n + 1], (long long)n);
    if (a->cu_seqlens[a->sequences] != a->tokens)
        return lnt_fail(c, LINNET_EINVAL, "cu_seqlens ends with %lld, expected the number of tokens %lld", (long long)a->cu_seqlens[a->sequences],
                        (long long)a->tokens);
    return LINNET_OK;
}

static linnet_status check_head(lnt_ctx *c, const lnt_recur_head *a)
{
    if (a->dtype != LINNET_F32 && a->dtype != LINNET_BF16 && a->dtype != LINNET_F64)
        return lnt_fail(c, LINNET_EINVAL, "dtype %d is not offered; expected %d (f32), %d (bf16) or %d (f64)", (int)a->dtype, LINNET_F32, LINNET_BF16,
                        LINNET_F64);
    if (a->form < LINNET_FORM_AUTO || a->form > LINNET_FORM_PARALLEL) return lnt_fail(c, LINNET_EINVAL, "unknown form %d", (int)a->form);
    if (a->chunk < 0 || a->chunk > LNT_MOST_CHUNK) return lnt_fail(c, LINNET_EINVAL, "chunk = %d; expected 0 .. %d", a->chunk, LNT_MOST_CHUNK);
    return check_sequences(c, a);
}

static linnet_status check_sizes(lnt_ctx *c, const lnt_recur_op *op, const void *args)
{
    for (const lnt_recur_size *s = op->sizes; s->letter; s++) {
        const int64_t value = lnt_recur_size_get(s, args);
        if (value < s->least || value > s->most)
            return lnt_fail(c, LINNET_EINVAL, "%s = %lld; expected %lld .. %lld", s->letter, (long long)value, (long long)s->least,
                            (long long)s->most);
    }
    for (int i = 0; op->tensors[i].name; i++) {
        const char *shape = op->tensors[i].shape, *letter;
        int64_t bytes = 64; /* of an element, with room for what is made of it */
        size_t length;
        while ((letter = lnt_recur_next_letter(&shape, &length)))
            if (!lnt_mul(bytes, lnt_recur_letter(op, args, letter, length), &bytes))
                return lnt_fail(c, LINNET_EINVAL, "%s of shape [%s] is too large", op->tensors[i].name, op->tensors[i].shape);
    }
    return LINNET_OK;
}

/* Options set by lnt_recur_option_set were checked there; a node or a test may have written the fields. */
static linnet_status check_options(lnt_ctx *c, const lnt_recur_op *op, void *args)
{
    for (const lnt_recur_option *o = op->options; o->key; o++) {
        const double value = lnt_recur_option_get(o, args);
        if (!isnan(o->standard) || !isnan(value)) LNT_TRY(lnt_recur_option_set(c, op, args, o->key, value, NULL));
    }
    return LINNET_OK;
}

static bool is_required(const lnt_recur_tensor *t, bool backward)
{
    if (t->role == LNT_T_INPUT) return !t->absent && !(backward && t->forward_only);
    if (t->role == LNT_T_OUTPUT) return backward ? t->read_back : t->shape[0] != 'N';
    return t->role == LNT_T_SAVED && backward;
}

static linnet_status check_tensors(lnt_ctx *c, const lnt_recur_op *op, const void *args, bool backward)
{
    for (int i = 0; op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &op->tensors[i];
        const bool given = lnt_recur_get(args, t) != NULL, has = lnt_recur_has(args, i);
        if (given && !has) return lnt_recur_refuse(c, args, i);
        if (!given && has && is_required(t, backward) && lnt_recur_elements(args, i) > 0)
            return lnt_fail(c, LINNET_EINVAL, "%s %s needs %s", op->name, backward ? "backward" : "forward", t->name);
    }
    return LINNET_OK;
}

/* Kernels on a GPU read and write 16 bytes at once where elements are made of them. */
static linnet_status check_alignment(lnt_ctx *c, const lnt_recur_op *op, const void *args)
{
    for (int i = 0; op->tensors[i].name; i++) {
        const int behind = (int)((uintptr_t)lnt_recur_get(args, &op->tensors[i]) % 16);
        if (behind && lnt_recur_aligned(args, i))
            return lnt_fail(c, LINNET_EINVAL, "%s begins %d bytes behind a multiple of 16; with sizes that are whole 16 bytes a GPU expects it at one"
                            ,
                            op->tensors[i].name, behind);
    }
    return LINNET_OK;
}

/* ---- choice -------------------------------------------------------------------------------------------------------------------- */

/* The last of the list serves every form and dtype. */
static bool is_reference(const lnt_recur_impl *const *i) { return !i[1]; }

/* NULL: the machine runs it. */
static const char *lacking(const lnt_device *d, const lnt_recur_impl *impl)
{
    if (impl->device != d->kind) return d->kind == LNT_DEVICE_CPU ? "it runs on a GPU" : "it runs on the CPU";
    if (d->kind == LNT_DEVICE_CUDA && impl->needs > d->capability) return "the GPU does not offer it";
    if (d->kind == LNT_DEVICE_CPU && impl->needs > (int)lnt_cpu()) return "the processor (or LINNET_CPU) does not offer it";
    return NULL;
}

/* NULL: takes the call. */
static const char *refusal(const lnt_device *d, const lnt_recur_impl *const *i, const lnt_recur_head *a, bool backward)
{
    const lnt_recur_impl *impl = *i;
    const char *why = lacking(d, impl);
    if (why) return why;
    if (is_reference(i)) return NULL;
    if (a->dtype == LINNET_F64) return "float64 is the reference's";
    if (backward && !impl->backward && !impl->put_backward) return "it has no backward pass";
    if (!a->impl && impl->form != a->form) return a->form == LINNET_FORM_CHUNK ? "the chunk form was asked for" : "the recurrent form was asked for";
    return impl->declines ? impl->declines(a, backward) : NULL;
}

static linnet_status no_such_impl(lnt_ctx *c, const lnt_recur_op *op, const char *name)
{
    char known[512] = "";
    for (int i = 0; op->impls[i]; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", op->impls[i]->name);
    }
    lnt_fail(c, LINNET_EINVAL, "%s has no implementation \"%s\"", op->name, name);
    return lnt_hint(c, "Implementations: %s.", known);
}

static bool runs_on(const lnt_recur_op *op, lnt_device_kind kind)
{
    for (int i = 0; op->impls[i]; i++)
        if (op->impls[i]->device == kind) return true;
    return false;
}

/* Something here takes the call in its form. */
static bool is_taken(const lnt_ctx *c, const lnt_recur_head *a, bool backward)
{
    for (const lnt_recur_impl *const *i = a->op->impls; *i; i++)
        if (!refusal(c->device, i, a, backward)) return true;
    return false;
}

static linnet_status choose(lnt_ctx *c, const lnt_recur_head *a, bool backward, bool query, const lnt_recur_impl **out)
{
    const lnt_recur_op *op = a->op;
    bool tell = c->verbose_dispatch && !query;
    const char *direction = backward ? "backward" : "forward", *least = NULL; /* why the most general one of the form does not take it */
    for (const lnt_recur_impl *const *i = op->impls; *i; i++) {
        if (a->impl && strcmp(a->impl, (*i)->name) != 0) continue;
        const char *why = refusal(c->device, i, a, backward);
        if (!why) {
            if (tell) lnt_log(c, "dispatch: %s %s takes %s", op->name, direction, (*i)->name);
            *out = *i;
            return LINNET_OK;
        }
        if (a->impl) return lnt_fail(c, LINNET_EUNSUPPORTED, "%s %s cannot run as %s: %s", op->name, direction, (*i)->name, why);
        if (tell) lnt_log(c, "dispatch: %s %s refuses %s: %s", op->name, direction, (*i)->name, why);
        if (!lacking(c->device, *i) && (*i)->form == a->form) least = why;
    }
    if (a->impl) return no_such_impl(c, op, a->impl);
    if (!runs_on(op, c->device->kind)) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "%s has no implementation for a GPU", op->name);
        return lnt_hint(c, "Use --device cpu.");
    }
    lnt_fail(c, LINNET_EUNSUPPORTED, "%s %s of %s tensors of these sizes is not offered on this device%s%s", op->name, direction,
             lnt_dtype_name(a->dtype), least ? ": " : "", least ? least : "");
    return lnt_hint(c, "Use --device cpu.");
}

static const lnt_recur_impl *last_of(const lnt_recur_op *op)
{
    int i = 0;
    while (op->impls[i + 1]) i++;
    return op->impls[i];
}

/* Check everything but the workspace; `call` becomes the call with options, form and chunk resolved. */
static linnet_status resolve(lnt_ctx *c, const void *args, bool backward, bool query, lnt_recur_call *call, const lnt_recur_impl **impl)
{
    const lnt_recur_op *op = ((const lnt_recur_head *)args)->op;
    memcpy(call, args, op->args_size);
    lnt_recur_head *a = &call->head;
    LNT_TRY(check_head(c, a));
    LNT_TRY(check_sizes(c, op, a));
    LNT_TRY(check_options(c, op, a));
    if (op->fill) op->fill(a);
    if (op->check) LNT_TRY(op->check(c, a, backward));
    if (!query) LNT_TRY(check_tensors(c, op, a, backward));
    if (!query && lnt_on_cuda(c)) LNT_TRY(check_alignment(c, op, a));

    const int64_t longest = a->longest = lnt_recur_longest(a);
    const bool any = a->form == LINNET_FORM_AUTO && a->dtype != LINNET_F64 && !a->impl;
    if (a->form == LINNET_FORM_AUTO) a->form = !backward && longest <= RECURRENT_LONGEST ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
    if (a->form == LINNET_FORM_PARALLEL) {
        if (longest > PARALLEL_LONGEST)
            return lnt_fail(c, LINNET_EINVAL, "the parallel form of a sequence of %lld tokens; expected at most %d", (long long)longest,
                            PARALLEL_LONGEST);
        a->form = LINNET_FORM_CHUNK;
        a->chunk = longest > 1 ? (int32_t)longest : 1;
    }
    /* a GPU has no reference that would take a short call which its steps decline (K is too large, a window) */
    if (any && a->form == LINNET_FORM_RECURRENT && !is_taken(c, a, backward)) a->form = LINNET_FORM_CHUNK;
    LNT_TRY(choose(c, a, backward, query, impl));
    if (!any || *impl != last_of(op) || a->form == LINNET_FORM_RECURRENT) return LINNET_OK;
    a->form = LINNET_FORM_RECURRENT; /* what has no chunks goes token by token, before the reference is asked */
    return choose(c, a, backward, query, impl);
}

/* On a GPU the offsets of the sequences come first. */
static size_t offsets_bytes(const lnt_ctx *c, const lnt_recur_head *a)
{
    size_t bytes = (size_t)(a->sequences + 1) * sizeof *a->cu_seqlens;
    return lnt_on_cuda(c) ? (bytes + 255) / 256 * 256 : 0;
}

/* Then what is zeros whatever the caller says. */
static size_t zeros_bytes(const lnt_recur_head *a)
{
    if (!a->op->zeros.shape) return 0;
    const int64_t n = lnt_recur_shape_elements(a, a->op->zeros.shape);
    return (lnt_bytes((size_t)n, a->dtype == LINNET_F64 ? 8 : 4) + 255) / 256 * 256;
}

static size_t workspace_of(lnt_ctx *c, const lnt_recur_head *a, const lnt_recur_impl *impl, bool backward)
{
    return offsets_bytes(c, a) + zeros_bytes(a) + (impl->workspace ? impl->workspace(a, backward, lnt_threads(c)) : 0);
}

linnet_status lnt_recur_check_form(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_recur_head *asked = args;
    const lnt_recur_op *op = asked->op;
    lnt_recur_call call;
    const lnt_recur_impl *impl;
    LNT_TRY(resolve(c, args, backward, true, &call, &impl));
    const bool reference = impl == last_of(op);
    if (asked->form == LINNET_FORM_AUTO || (asked->impl ? reference || impl->form == call.head.form : !reference)) return LINNET_OK;
    const char *name = lnt_form_name(asked->form), *why = NULL;
    if (asked->impl)
        return lnt_fail(c, LINNET_EINVAL, "implementation \"%s\" is of the form %s, but form is \"%s\"", impl->name, lnt_form_name(impl->form), name);
    if (asked->dtype == LINNET_F64 || !op->impls[1]) return LINNET_OK; /* there is nothing else */
    for (const lnt_recur_impl *const *i = op->impls; !is_reference(i) && !why; i++)
        if ((*i)->form == call.head.form && !lacking(c->device, *i)) why = refusal(c->device, i, &call.head, backward);
    lnt_fail(c, LINNET_EUNSUPPORTED, "%s %s cannot take the form %s: %s", op->name, backward ? "backward" : "forward", name,
             why ? why : "no implementation here has it");
    return lnt_hint(c, "Form auto takes what there is; implementation \"%s\" takes every call.", impl->name);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------- */

linnet_status lnt_recur_workspace(lnt_ctx *c, const void *args, bool backward, size_t *bytes)
{
    lnt_recur_call call;
    const lnt_recur_impl *impl;
    LNT_TRY(resolve(c, args, backward, true, &call, &impl));
    *bytes = workspace_of(c, &call.head, impl, backward);
    return LINNET_OK;
}

size_t lnt_recur_workspace_quiet(const void *args, bool backward, int threads, lnt_device *device)
{
    linnet_context quiet = { .device = device, .threads = threads }; /* its error text goes nowhere: the run will tell */
    size_t bytes;
    return lnt_recur_workspace(&quiet, args, backward, &bytes) == LINNET_OK ? bytes : 0;
}

linnet_status lnt_recur_run(lnt_ctx *c, const void *args, bool backward)
{
    lnt_recur_call call;
    const lnt_recur_impl *impl;
    LNT_TRY(resolve(c, args, backward, false, &call, &impl));
    lnt_recur_head *a = &call.head;
    size_t need = workspace_of(c, a, impl, backward);
    if (need > a->workspace_size || (need && !a->workspace))
        return lnt_fail(c, LINNET_EINVAL, "workspace of %zu bytes; %s needs %zu", a->workspace ? a->workspace_size : 0, impl->name, need);
    if ((uintptr_t)a->workspace % LNT_ALIGN) return lnt_fail(c, LINNET_EINVAL, "workspace is not aligned to %d bytes", LNT_ALIGN);
    c->recurrence_ran = impl->name;
    const size_t offsets = offsets_bytes(c, a), zeros = zeros_bytes(a);
    void *none = a->workspace ? (char *)a->workspace + offsets : NULL;
    if (lnt_on_cuda(c) && !a->cu_seqlens_device) {
        lnt_device_put(c, a->workspace, a->cu_seqlens, (size_t)(a->sequences + 1) * sizeof *a->cu_seqlens);
        a->cu_seqlens_device = a->workspace;
    }
    if (zeros) {
        lnt_device_zero(c, none, zeros);
        memcpy((char *)a + a->op->zeros.field, &none, sizeof none);
    }
    if (offsets + zeros) a->workspace = (char *)none + zeros;
    a->workspace_size -= offsets + zeros;
    if (!lnt_on_cuda(c)) {
        (backward ? impl->backward : impl->forward)(a, lnt_threads(c));
        return LINNET_OK;
    }
    (backward ? impl->put_backward : impl->put_forward)(a, c->device);
    return lnt_device_check(c);
}
