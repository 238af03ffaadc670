/* The operators by name; one validation for every call; the choice of implementation. */
#include "recurrence/recurrence.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "core/threads.h"
#include "recurrence/tensors.h"

/* Sequences up to this length run token by token in the forward pass: a chunk of C rows costs 2 C^2 (K+V) whatever it holds. */
enum { RECURRENT_LONGEST = 8 };

#define DECAY(NAME, GATE) \
    { .name = NAME, .core = "decay", .gate = GATE, .normalize = true, .state = true, .impls = lnt_decay_impls, .flops = lnt_decay_flops }
#define DELTA(NAME, GATE) \
    { .name = NAME, .core = "delta", .gate = GATE, .beta = true, .state = true, .impls = lnt_delta_impls, .flops = lnt_delta_flops }
static const lnt_recur_op operators[] = {
    DECAY("linear_attn", LNT_GATE_NONE),
    DECAY("retention", LNT_GATE_HEAD),
    DECAY("simple_gla", LNT_GATE_SCALAR),
    DELTA("delta_rule", LNT_GATE_NONE),
    DELTA("gated_delta_rule", LNT_GATE_SCALAR),
    { .name = "mesa", .core = "mesa", .gate = LNT_GATE_SCALAR, .beta = true, .state = true, .solve = true, .impls = lnt_mesa_impls,
      .flops = lnt_mesa_flops },
    { .name = "attention", .core = "attention", .gate = LNT_GATE_NONE, .cache = true, .impls = lnt_attention_impls, .flops = lnt_attention_flops },
};
#undef DECAY
#undef DELTA
enum { OPERATORS = sizeof operators / sizeof *operators };

const lnt_recur_op *lnt_recur_at(int i) { return i >= 0 && i < OPERATORS ? &operators[i] : NULL; }

const char *linnet_op_at(int i)
{
    const lnt_recur_op *op = lnt_recur_at(i);
    return op ? op->name : NULL;
}

const lnt_recur_op *lnt_recur_find(const char *name)
{
    for (int i = 0; name && i < OPERATORS; i++)
        if (strcmp(operators[i].name, name) == 0) return &operators[i];
    return NULL;
}

int64_t lnt_recur_longest(const lnt_recur_args *a)
{
    int64_t longest = 0;
    for (int64_t n = 0; n < a->sequences; n++) {
        int64_t len = a->cu_seqlens[n + 1] - a->cu_seqlens[n];
        longest = len > longest ? len : longest;
    }
    return longest;
}

/* ---- validation ---------------------------------------------------------------------------------------------------------------- */

static linnet_status check_operator(lnt_ctx *c, const lnt_recur_args *a, const lnt_recur_op **out)
{
    *out = lnt_recur_find(a->op);
    if (*out) return LINNET_OK;
    char known[256] = "";
    for (int i = 0; i < OPERATORS; i++) {
        if (i) strcat(known, ", ");
        strcat(known, operators[i].name);
    }
    lnt_fail(c, LINNET_EINVAL, "unknown operator \"%s\"", a->op ? a->op : "(null)");
    return lnt_hint(c, "Operators: %s.", known);
}

static linnet_status check_sequences(lnt_ctx *c, const lnt_recur_args *a)
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

enum { UNROLLED_MOST = 1024 };

static linnet_status check_solver(lnt_ctx *c, const lnt_recur_args *a, const lnt_recur_op *op, bool backward)
{
    bool set = !isnan(a->cg_tolerance) || a->cg_max_steps != -1 || a->cg_guess || a->cg_solver || a->cg_gradient || a->cg_steps_device;
    if (!op->solve) return set ? lnt_fail(c, LINNET_EINVAL, "%s takes no solver options", op->name) : LINNET_OK;
    if (!isnan(a->scale) && a->scale != 1) return lnt_fail(c, LINNET_EINVAL, "%s takes no scale", op->name);
    if (a->cg_tolerance < 0 || isinf(a->cg_tolerance))
        return lnt_fail(c, LINNET_EINVAL, "cg_tolerance = %g; expected a number of at least 0", a->cg_tolerance);
    if (a->cg_max_steps < -1 || a->cg_max_steps > 1 << 20)
        return lnt_fail(c, LINNET_EINVAL, "cg_max_steps = %d; expected 0 .. %d, or -1", a->cg_max_steps, 1 << 20);
    if (a->cg_guess < LINNET_CG_DIAGONAL || a->cg_guess > LINNET_CG_ZERO)
        return lnt_fail(c, LINNET_EINVAL, "unknown cg_guess %d", (int)a->cg_guess);
    if (a->cg_solver < LINNET_CG_LEVEL || a->cg_solver > LINNET_CG_FLASH)
        return lnt_fail(c, LINNET_EINVAL, "unknown cg_solver %d", (int)a->cg_solver);
    if (a->cg_gradient < LINNET_CG_IMPLICIT || a->cg_gradient > LINNET_CG_UNROLLED)
        return lnt_fail(c, LINNET_EINVAL, "unknown cg_gradient %d", (int)a->cg_gradient);
    if (a->cg_steps_device && !lnt_on_cuda(c)) return lnt_fail(c, LINNET_EINVAL, "cg_steps_device without a GPU");
    if (a->cg_gradient == LINNET_CG_IMPLICIT) return LINNET_OK;
    if (a->cg_solver == LINNET_CG_FLASH) return lnt_fail(c, LINNET_EINVAL, "the steps of cg_solver 4 (flash) round to float16: no unrolled gradient");
    if (backward && a->cg_max_steps > UNROLLED_MOST)
        return lnt_fail(c, LINNET_EINVAL, "cg_max_steps = %d; the unrolled gradient keeps every step, and takes at most %d", a->cg_max_steps,
                        UNROLLED_MOST);
    return LINNET_OK;
}

/* Every product of sizes that an implementation makes is below one of these, times the number of threads. */
static linnet_status check_sizes(lnt_ctx *c, const lnt_recur_args *a)
{
    if (a->Hq < 1 || a->Hv < 1) return lnt_fail(c, LINNET_EINVAL, "head counts Hq = %d, Hv = %d; expected at least 1", a->Hq, a->Hv);
    if (a->Hv % a->Hq) return lnt_fail(c, LINNET_EINVAL, "Hv = %d is not a multiple of Hq = %d", a->Hv, a->Hq);
    if (a->K < 1 || a->V < 1) return lnt_fail(c, LINNET_EINVAL, "head sizes K = %d, V = %d; expected at least 1", a->K, a->V);
    if (a->K > 65536 || a->V > 65536) return lnt_fail(c, LINNET_EINVAL, "head sizes K = %d, V = %d; expected at most 65536", a->K, a->V);
    if (a->chunk < 0) return lnt_fail(c, LINNET_EINVAL, "chunk = %d is negative", a->chunk);
    int64_t rows, bytes;
    if (!lnt_add(a->tokens, a->offset, &rows)) return lnt_fail(c, LINNET_EINVAL, "tokens and offset are too large");
    int64_t wide = a->K > a->V ? a->K : a->V;
    LNT_TRY(lnt_size_product(c, "tokens x heads x head size", 4, (int64_t[]){ rows, a->Hv, wide, 64 }, &bytes));
    return lnt_size_product(c, "sequences x heads x K x V", 5, (int64_t[]){ a->sequences, a->Hv, wide, wide + 1, 64 }, &bytes);
}

static linnet_status check_options(lnt_ctx *c, const lnt_recur_args *a, const lnt_recur_op *op)
{
    if (a->dtype != LINNET_F32 && a->dtype != LINNET_BF16 && a->dtype != LINNET_F64)
        return lnt_fail(c, LINNET_EINVAL, "dtype %s is not offered; expected f32, bf16 or f64", lnt_dtype_name(a->dtype));
    if (a->form < LINNET_FORM_AUTO || a->form > LINNET_FORM_PARALLEL) return lnt_fail(c, LINNET_EINVAL, "unknown form %d", (int)a->form);
    if (isinf(a->scale)) return lnt_fail(c, LINNET_EINVAL, "scale is infinite");
    if (!(a->eps >= 0) || isinf(a->eps)) return lnt_fail(c, LINNET_EINVAL, "eps = %g; expected a number of at least 0", a->eps);
    if (a->normalize && !op->normalize) return lnt_fail(c, LINNET_EINVAL, "%s takes no normalize", op->name);
    if (a->window < 0) return lnt_fail(c, LINNET_EINVAL, "window = %lld is negative", (long long)a->window);
    if (a->offset < 0) return lnt_fail(c, LINNET_EINVAL, "offset = %lld is negative", (long long)a->offset);
    if (a->window && !op->cache) return lnt_fail(c, LINNET_EINVAL, "%s takes no window", op->name);
    if (a->offset && !op->cache) return lnt_fail(c, LINNET_EINVAL, "%s takes no offset", op->name);
    if (a->offset && a->sequences != 1)
        return lnt_fail(c, LINNET_EINVAL, "offset = %lld with %lld sequences; expected one", (long long)a->offset, (long long)a->sequences);
    return LINNET_OK;
}

static linnet_status check_pointers(lnt_ctx *c, const lnt_recur_args *a, const lnt_recur_op *op, bool backward)
{
    bool some = a->tokens > 0, gate = op->gate == LNT_GATE_SCALAR, head = op->gate == LNT_GATE_HEAD;
    const struct {
        const char *name;
        const void *p;
        bool taken, needed;
    } all[] = {
        { "q", a->q, true, some },
        { "k", a->k, true, some },
        { "v", a->v, true, some },
        { "g", a->g, gate, some && gate },
        { "g_head", a->g_head, head, head },
        { "beta", a->beta, op->beta, some && op->beta },
        { "s0", a->s0, op->state, false },
        { "z0", a->z0, op->state && a->normalize, false },
        { "o", a->o, true, some && (!backward || op->cache) },
        { "sT", a->sT, op->state, false },
        { "zT", a->zT, op->state && a->normalize, false },
        { "lse", a->lse, op->cache, some && backward && op->cache },
        { "dsT", a->dsT, op->state, false },
        { "dzT", a->dzT, op->state && a->normalize, false },
        { "dg", a->dg, gate, false },
        { "dg_head", a->dg_head, head, false },
        { "dbeta", a->dbeta, op->beta, false },
        { "ds0", a->ds0, op->state, false },
        { "dz0", a->dz0, op->state && a->normalize, false },
        { "lambda", a->lambda, op->solve, some && op->solve },
        { "h0", a->h0, op->solve, false },
        { "hT", a->hT, op->solve, false },
        { "x", a->x, op->solve, some && backward && op->solve },
        { "dhT", a->dhT, op->solve, false },
        { "dlambda", a->dlambda, op->solve, false },
        { "dh0", a->dh0, op->solve, false },
        { "steps", a->steps, op->solve, false },
        { "residual", a->residual, op->solve, false },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].p && !all[i].taken)
            return lnt_fail(c, LINNET_EINVAL, "%s takes no %s%s", op->name, all[i].name, strchr(all[i].name, 'z') ? " without normalize" : "");
        if (!all[i].p && all[i].needed) return lnt_fail(c, LINNET_EINVAL, "%s %s needs %s", op->name, backward ? "backward" : "forward", all[i].name);
    }
    return LINNET_OK;
}

/* Kernels on a GPU read and write 16 bytes at once where a head's elements are made of them. */
static linnet_status check_alignment(lnt_ctx *c, const lnt_recur_args *a, const lnt_recur_op *op)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        const int behind = (int)((uintptr_t) * (void *const *)((const char *)a + lnt_recur_tensors[i].field) % 16);
        if (behind && lnt_recur_tensor_aligned(op, a, i))
            return lnt_fail(c, LINNET_EINVAL, "%s begins %d bytes behind a multiple of 16; with K = %d and V = %d a GPU expects it at one",
                            lnt_recur_tensors[i].name, behind, a->K, a->V);
    }
    return LINNET_OK;
}

/* ---- choice -------------------------------------------------------------------------------------------------------------------- */

/* The last of the list serves every form and dtype. */
static bool is_reference(const lnt_recur_impl *const *i) { return !i[1]; }

/* NULL: takes the call. */
static const char *refusal(const lnt_device *d, const lnt_recur_impl *const *i, const lnt_recur_args *a, bool backward)
{
    const lnt_recur_impl *impl = *i;
    if (impl->device != d->kind) return d->kind == LNT_DEVICE_CPU ? "it runs on a GPU" : "it runs on the CPU";
    if (d->kind == LNT_DEVICE_CUDA && impl->needs > d->capability) return "the GPU does not offer it";
    if (d->kind == LNT_DEVICE_CPU && impl->needs > (int)lnt_cpu()) return "the processor (or LINNET_CPU) does not offer it";
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

static linnet_status choose(lnt_ctx *c, const lnt_recur_op *op, const lnt_recur_args *a, bool backward, bool query, const lnt_recur_impl **out)
{
    bool tell = c->verbose_dispatch && !query;
    const char *direction = backward ? "backward" : "forward";
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
    }
    if (a->impl) return no_such_impl(c, op, a->impl);
    return lnt_fail(c, LINNET_EUNSUPPORTED, "%s %s of %s tensors with K = %d, V = %d is not offered on this device", op->name, direction,
                    lnt_dtype_name(a->dtype), a->K, a->V);
}

/* Check everything but the workspace; `a` becomes the call with scale, eps, form and chunk resolved. */
static linnet_status resolve(lnt_ctx *c, const linnet_recurrence *r, bool backward, bool query, lnt_recur_args *a, const lnt_recur_impl **impl)
{
    if (!r || r->size < offsetof(linnet_recurrence, op) + sizeof r->op || r->size > 4096)
        return lnt_fail(c, LINNET_EINVAL, "linnet_recurrence without its size; begin with LINNET_RECURRENCE_INIT");
    *a = (lnt_recur_args)LINNET_RECURRENCE_INIT;
    memcpy(a, r, r->size < sizeof *a ? r->size : sizeof *a);
    a->size = sizeof *a;
    const lnt_recur_op *op;
    LNT_TRY(check_operator(c, a, &op));
    LNT_TRY(check_options(c, a, op));
    LNT_TRY(check_solver(c, a, op, backward));
    LNT_TRY(check_sequences(c, a));
    LNT_TRY(check_sizes(c, a));
    if (!query) LNT_TRY(check_pointers(c, a, op, backward));
    if (!query && lnt_on_cuda(c)) LNT_TRY(check_alignment(c, a, op));

    if (isnan(a->scale)) a->scale = op->solve ? 1.0 : 1.0 / sqrt((double)a->K);
    if (isnan(a->cg_tolerance)) a->cg_tolerance = 1e-4;
    if (a->cg_max_steps < 0) a->cg_max_steps = 30;
    if (a->eps == 0) a->eps = 1e-10;
    int64_t longest = lnt_recur_longest(a);
    if (a->form == LINNET_FORM_AUTO) a->form = !backward && longest <= RECURRENT_LONGEST ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
    if (a->form == LINNET_FORM_PARALLEL) {
        if (longest > 65536)
            return lnt_fail(c, LINNET_EINVAL, "the parallel form of a sequence of %lld tokens; expected at most 65536", (long long)longest);
        a->form = LINNET_FORM_CHUNK;
        a->chunk = longest > 1 ? (int32_t)longest : 1;
    }
    return choose(c, op, a, backward, query, impl);
}

/* On a GPU the offsets of the sequences come first. */
static size_t offsets_bytes(const lnt_ctx *c, const lnt_recur_args *a)
{
    size_t bytes = (size_t)(a->sequences + 1) * sizeof *a->cu_seqlens;
    return lnt_on_cuda(c) ? (bytes + 255) / 256 * 256 : 0;
}

static size_t workspace_of(lnt_ctx *c, const lnt_recur_args *a, const lnt_recur_impl *impl, bool backward)
{
    return offsets_bytes(c, a) + (impl->workspace ? impl->workspace(a, backward, lnt_threads(c)) : 0);
}

/* ---- public -------------------------------------------------------------------------------------------------------------------- */

linnet_status linnet_recurrence_workspace(linnet_context *c, const linnet_recurrence *r, int backward, size_t *bytes)
{
    lnt_recur_args a;
    const lnt_recur_impl *impl;
    LNT_TRY(resolve(c, r, backward != 0, true, &a, &impl));
    *bytes = workspace_of(c, &a, impl, backward != 0);
    return LINNET_OK;
}

size_t lnt_recur_workspace(const lnt_recur_args *r, bool backward, int threads, lnt_device *device)
{
    linnet_context quiet = { .device = device, .threads = threads }; /* its error text goes nowhere: the run will tell */
    lnt_recur_args a;
    const lnt_recur_impl *impl;
    if (resolve(&quiet, r, backward, true, &a, &impl) != LINNET_OK) return 0;
    return workspace_of(&quiet, &a, impl, backward);
}

static linnet_status run(lnt_ctx *c, const linnet_recurrence *r, bool backward)
{
    lnt_recur_args a;
    const lnt_recur_impl *impl;
    LNT_TRY(resolve(c, r, backward, false, &a, &impl));
    size_t need = workspace_of(c, &a, impl, backward);
    if (need > a.workspace_size || (need && !a.workspace))
        return lnt_fail(c, LINNET_EINVAL, "workspace of %zu bytes; %s needs %zu", a.workspace ? a.workspace_size : 0, impl->name, need);
    if ((uintptr_t)a.workspace % LNT_ALIGN) return lnt_fail(c, LINNET_EINVAL, "workspace is not aligned to %d bytes", LNT_ALIGN);
    c->recurrence_ran = impl->name;
    if (!lnt_on_cuda(c)) {
        (backward ? impl->backward : impl->forward)(&a, lnt_threads(c));
        return LINNET_OK;
    }
    size_t offsets = offsets_bytes(c, &a);
    if (!a.cu_seqlens_device) {
        lnt_device_put(c, a.workspace, a.cu_seqlens, (size_t)(a.sequences + 1) * sizeof *a.cu_seqlens);
        a.cu_seqlens_device = a.workspace;
    }
    a.workspace = (char *)a.workspace + offsets;
    a.workspace_size -= offsets;
    (backward ? impl->put_backward : impl->put_forward)(&a, c->device);
    return lnt_device_check(c);
}

linnet_status linnet_recurrence_forward(linnet_context *c, const linnet_recurrence *r) { return run(c, r, false); }
linnet_status linnet_recurrence_backward(linnet_context *c, const linnet_recurrence *r) { return run(c, r, true); }
const char *linnet_recurrence_ran(const linnet_context *c) { return c && c->recurrence_ran ? c->recurrence_ran : ""; }
