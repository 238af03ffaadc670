/* Times of an operator, after a check against its reference. Rates of the machine are bench_machine.c's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/measure.h"
#include "core/context.h"
#include "core/memory.h"
#include "recurrence/problem.h"

static linnet_status read_form(lnt_ctx *c, const char *text, linnet_form *form)
{
    static const char *const names[] = { "auto", "recurrent", "chunk", "parallel" };
    for (int i = 0; i < 4; i++)
        if (!strcmp(text ? text : "auto", names[i])) {
            *form = (linnet_form)i;
            return LINNET_OK;
        }
    lnt_fail(c, LINNET_EINVAL, "unknown form \"%s\"", text);
    return lnt_hint(c, "Forms: auto, recurrent, chunk, parallel.");
}

static void options_into(const linnet_bench_op_options *o, linnet_form form, linnet_recurrence *r)
{
    r->form = form;
    r->impl = o->impl;
    r->chunk = o->chunk;
    const lnt_recur_op *op = lnt_recur_find(o->op);
    if (op && op->solve && o->cg_unrolled) r->cg_gradient = LINNET_CG_UNROLLED;
}

/* Inputs like those of a trained layer: unit keys, slow gates, write strengths in (0,1). */
static lnt_recur_case case_of(const linnet_bench_op_options *o, int64_t B, int64_t T)
{
    lnt_recur_case k = {
        .op = o->op, .sequences = (int)B, .Hq = o->Hq, .Hv = o->Hv, .K = o->K, .V = o->V, .gate = -0.1, .beta = 1, .window = o->window
    };
    for (int64_t n = 0; n < B; n++) k.length[n] = T;
    return k;
}

/* The largest relative errors of outputs and gradients on one short sequence, and whether each is within its budget. */
static linnet_status check(lnt_ctx *c, const linnet_bench_op_options *o, linnet_form form, linnet_bench_op_result *out)
{
    lnt_recur_case k = case_of(o, 1, o->T < 192 ? o->T : 192);
    lnt_problem p = { 0 }, truth = { 0 };
    linnet_status s;
    LNT_TRY_GOTO(s, lnt_problem_make(c, &k, o->dtype, o->dtype, 1, &p), out);
    LNT_TRY_GOTO(s, lnt_problem_make(c, &k, LINNET_F64, o->dtype, 1, &truth), out);
    options_into(o, form, &p.r);
    truth.r.cg_gradient = p.r.cg_gradient;
    for (int b = 0; b < 2; b++) {
        LNT_TRY_GOTO(s, lnt_problem_run(c, &truth, b), out);
        LNT_TRY_GOTO(s, lnt_problem_run(c, &p, b), out);
    }
    lnt_recur_budget budget = lnt_recur_budget_of(p.op, o->dtype);
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        const lnt_recur_tensor *t = &lnt_recur_tensors[i];
        if (!p.data[i] || t->role < LNT_T_OUTPUT) continue;
        lnt_recur_error e = lnt_problem_error(&p, &truth, i);
        bool gradient = t->role == LNT_T_GRADIENT, gate = gradient && (!strncmp(t->name, "dg", 2) || !strcmp(t->name, "dbeta"));
        double *record = gradient ? &out->backward_error : &out->forward_error;
        if (e.relative > *record) *record = e.relative;
        if (e.most > 1e-6 && !(e.relative <= (gate ? budget.gate : gradient ? budget.gradient : budget.output))) {
            s = lnt_fail(c, LINNET_EINTERNAL, "%s by %s is wrong: relative error %.3g", t->name, linnet_recurrence_ran(c), e.relative);
            goto out;
        }
    }
out:
    lnt_problem_free(&p);
    lnt_problem_free(&truth);
    return s;
}

/* ---- the shape that was asked for -------------------------------------------------------------------------------------------------- */

/* Inputs are drawn for some tokens and repeated along the token axis: drawing them all would take longer than everything else. Repeated calls go
 * round several sets of tensors, so many that none finds its inputs in the second level cache of a GPU (60 MB on an H200); on the CPU, one. */
enum { DRAWN_TOKENS = 256, MOST_SETS = 16 };
static const size_t ROUND_BYTES = 256u << 20;
/* On a GPU each time is the mean of calls put one behind the other for about so long: the clock of its events ticks in half microseconds. */
static const double BATCH_SECONDS = 3e-3;

typedef struct {
    lnt_ctx *c;
    const linnet_bench_op_options *o;
    const lnt_recur_op *op;
    lnt_problem drawn;  /* host */
    int64_t cu[LNT_CASE_SEQUENCES + 1];
    linnet_recurrence set[MOST_SETS];
    int sets;
    int64_t *cu_device;
    void *workspace;
    size_t workspace_size;
    char forward_impl[64], backward_impl[64];
} bench;

/* Neither states in nor out, as in training. */
static bool used(const bench *k, int i)
{
    const lnt_recur_tensor *t = &lnt_recur_tensors[i];
    return lnt_recur_tensor_taken(k->op, &k->set[0], i) && t->role != LNT_T_REPORT && !strchr(k->op->cache ? t->attention : t->state, 'N');
}

/* Of the reports, the steps of a solve: FLOPs follow from them. */
static bool is_steps(const bench *k, int i) { return k->op->solve && lnt_recur_tensors[i].field == offsetof(linnet_recurrence, steps); }

static bool along_tokens(const bench *k, int i)
{
    const lnt_recur_tensor *t = &lnt_recur_tensors[i];
    return strchr(k->op->cache ? t->attention : t->state, 'T') != NULL;
}

static size_t bytes_of(const bench *k, int i)
{
    return (size_t)lnt_recur_tensor_count(k->op, &k->set[0], i) * lnt_dtype_size(lnt_recur_tensor_type(&k->set[0], i));
}

static void *tensor_of(const linnet_recurrence *r, int i) { return *(void *const *)((const char *)r + lnt_recur_tensors[i].field); }

static linnet_status make_set(bench *k, linnet_recurrence *r)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        void *p;
        if (!used(k, i) && !is_steps(k, i)) continue;
        LNT_TRY(lnt_device_alloc(k->c, bytes_of(k, i), &p));
        lnt_recur_tensor_set(r, i, p);
        if (lnt_recur_tensors[i].role >= LNT_T_OUTPUT) continue;
        lnt_to_device(k->c, p, k->drawn.data[i], k->drawn.bytes[i]);
        lnt_tile(k->c, p, k->drawn.bytes[i], bytes_of(k, i));
    }
    return LINNET_OK;
}

static linnet_status make_bench(bench *k, linnet_form form)
{
    const linnet_bench_op_options *o = k->o;
    lnt_recur_case drawn = case_of(o, 1, o->B * o->T < DRAWN_TOKENS ? o->B * o->T : DRAWN_TOKENS);
    LNT_TRY(lnt_problem_make(k->c, &drawn, o->dtype, o->dtype, 2, &k->drawn));
    k->op = k->drawn.op;
    for (int64_t n = 0; n < o->B; n++) k->cu[n + 1] = k->cu[n] + o->T;
    LNT_TRY(lnt_device_alloc(k->c, sizeof k->cu, (void **)&k->cu_device));
    lnt_to_device(k->c, k->cu_device, k->cu, sizeof k->cu);
    linnet_recurrence r = k->drawn.r;
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) lnt_recur_tensor_set(&r, i, NULL);
    r.tokens = k->cu[o->B];
    r.sequences = o->B;
    r.cu_seqlens = k->cu;
    r.cu_seqlens_device = k->cu_device;
    options_into(o, form, &r);
    if (k->op->solve) { /* timed as a layer runs it; checked at the problem's tolerance */
        r.cg_tolerance = o->cg_tolerance;
        r.cg_max_steps = o->cg_steps;
    }
    for (int b = 0; b < 2; b++) {
        size_t need;
        LNT_TRY(linnet_recurrence_workspace(k->c, &r, b, &need));
        if (need > k->workspace_size) k->workspace_size = need;
    }
    LNT_TRY(lnt_device_alloc(k->c, k->workspace_size, &k->workspace));
    r.workspace = k->workspace;
    r.workspace_size = k->workspace_size;
    for (int s = 0; s < MOST_SETS; s++) k->set[s] = r;
    size_t bytes = 0;
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) bytes += used(k, i) ? bytes_of(k, i) : 0;
    size_t wanted = lnt_on_cuda(k->c) && bytes ? (ROUND_BYTES + bytes - 1) / bytes : 1;
    k->sets = wanted < MOST_SETS ? (int)wanted : MOST_SETS;
    for (int s = 0; s < k->sets; s++) LNT_TRY(make_set(k, &k->set[s]));
    return LINNET_OK;
}

static void free_bench(bench *k)
{
    for (int s = 0; s < k->sets; s++)
        for (int i = 0; i < LNT_RECUR_TENSORS; i++) lnt_device_free(k->c, tensor_of(&k->set[s], i));
    lnt_device_free(k->c, k->cu_device);
    lnt_device_free(k->c, k->workspace);
    lnt_problem_free(&k->drawn);
}

static linnet_status call(const bench *k, int set, bool backward)
{
    return (backward ? linnet_recurrence_backward : linnet_recurrence_forward)(k->c, &k->set[set]);
}

static linnet_status measure(bench *k, bool backward, double *seconds)
{
    linnet_status s = LINNET_OK;
    double *times = lnt_alloc((size_t)k->o->repeats * sizeof *times), first = 0;
    int64_t calls = 1, at = 0;
    if (!times) return lnt_fail_memory(k->c, (size_t)k->o->repeats * sizeof *times);
    for (int i = 0; i < k->sets + 1; i++) { /* the first call loads the code; every set has its results then */
        lnt_watch_begin(k->c);
        LNT_TRY_GOTO(s, call(k, i % k->sets, backward), out);
        first = lnt_watch_end(k->c);
    }
    if (lnt_on_cuda(k->c) && first < BATCH_SECONDS) calls = (int64_t)(BATCH_SECONDS / first) + 1;
    for (int i = 0; i < k->o->repeats; i++) {
        lnt_watch_begin(k->c);
        for (int64_t n = 0; n < calls; n++) LNT_TRY_GOTO(s, call(k, (int)(at++ % k->sets), backward), out);
        times[i] = lnt_watch_end(k->c) / (double)calls;
    }
    s = lnt_device_check(k->c);
    *seconds = lnt_median(times, k->o->repeats);
out:
    lnt_free(times);
    return s;
}

/* ---- a check of that very shape on a GPU, where it may choose another kernel than a short sequence does --------------------------- */

/* Heads depend on no others: of the last sequence, the last query-key head and the value heads that share it are enough. The CPU's float32 kernels,
 * which tests hold against float64, compute them from the same inputs. */
typedef struct {
    int64_t rows, first_row, heads, first, taken, inner;
} cut;

static cut cut_of(const bench *k, int i)
{
    const linnet_recurrence *r = &k->set[0];
    const char *shape = k->op->cache ? lnt_recur_tensors[i].attention : lnt_recur_tensors[i].state;
    cut x = { .rows = 1, .heads = 1, .taken = 1, .inner = 1 };
    int64_t group = r->Hv / r->Hq;
    for (; *shape; shape++) {
        if (*shape == 'T') x.rows = k->o->T, x.first_row = (k->o->B - 1) * k->o->T;
        if (*shape == 'q') x.heads = r->Hq, x.first = r->Hq - 1;
        if (*shape == 'h') x.heads = r->Hv, x.first = r->Hv - group, x.taken = group;
        if (*shape == 'K') x.inner *= r->K;
        if (*shape == 'V') x.inner *= r->V;
    }
    return x;
}

/* dst [rows, taken, inner] float32 from rows [first_row, ...) of src [.., heads, inner], which has `present` rows, repeated. */
static void take_cut(float *dst, const void *src, lnt_dtype t, const cut *x, int64_t present)
{
    int64_t width = x->taken * x->inner;
    for (int64_t r = 0; r < x->rows; r++) {
        int64_t from = (((x->first_row + r) % present) * x->heads + x->first) * x->inner;
        for (int64_t j = 0; j < width; j++) dst[r * width + j] = (float)lnt_load_element(src, t, from + j);
    }
}

static linnet_status take_results(const bench *k, lnt_problem *ours)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        if (!used(k, i) || lnt_recur_tensors[i].role < LNT_T_OUTPUT) continue;
        cut x = cut_of(k, i);
        lnt_dtype t = lnt_recur_tensor_type(&k->set[0], i);
        size_t row = (size_t)(x.heads * x.inner) * lnt_dtype_size(t);
        void *host = lnt_alloc((size_t)x.rows * row);
        if (!host) return lnt_fail_memory(k->c, (size_t)x.rows * row);
        lnt_to_host(k->c, host, (char *)tensor_of(&k->set[0], i) + (size_t)x.first_row * row, (size_t)x.rows * row);
        x.first_row = 0;
        take_cut(ours->data[i], host, t, &x, x.rows);
        lnt_free(host);
    }
    return LINNET_OK;
}

static linnet_status compare_shape(const bench *k, const lnt_problem *ours, const lnt_problem *truth, double *worst)
{
    lnt_recur_budget b = k->o->dtype == LINNET_F32 ? (lnt_recur_budget){ 1e-4, 1e-4, 1e-4 } : lnt_recur_budget_of(k->op, k->o->dtype);
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        const lnt_recur_tensor *t = &lnt_recur_tensors[i];
        if (!used(k, i) || t->role < LNT_T_OUTPUT || (k->o->B > 1 && !along_tokens(k, i))) continue; /* the latter is summed over all sequences */
        lnt_recur_error e = lnt_problem_error(ours, truth, i);
        bool gradient = t->role == LNT_T_GRADIENT, gate = gradient && (!strncmp(t->name, "dg", 2) || !strcmp(t->name, "dbeta"));
        if (e.relative > *worst) *worst = e.relative;
        if (e.most > 1e-6 && !(e.relative <= (gate ? b.gate : gradient ? b.gradient : b.output)))
            return lnt_fail(k->c, LINNET_EINTERNAL, "%s by %s is wrong at this shape: relative error %.3g", t->name,
                            gradient ? k->backward_impl : k->forward_impl, e.relative);
    }
    return LINNET_OK;
}

static linnet_status check_shape(bench *k, double *worst)
{
    lnt_recur_case one = case_of(k->o, 1, k->o->T);
    one.Hq = 1;
    one.Hv = k->o->Hv / k->o->Hq;
    lnt_problem ours = { 0 }, truth = { 0 };
    lnt_device *gpu = k->c->device;
    linnet_status s;
    LNT_TRY_GOTO(s, call(k, 0, false), out);
    snprintf(k->forward_impl, sizeof k->forward_impl, "%s", linnet_recurrence_ran(k->c));
    LNT_TRY_GOTO(s, call(k, 0, true), out);
    snprintf(k->backward_impl, sizeof k->backward_impl, "%s", linnet_recurrence_ran(k->c));
    if (gpu->kind == LNT_DEVICE_CPU || (k->op->cache && k->o->T > 8192) || k->op->solve) { /* minutes on a CPU */
        *worst = NAN;
        goto out;
    }
    LNT_TRY_GOTO(s, lnt_problem_make(k->c, &one, LINNET_F32, LINNET_F32, 3, &ours), out);
    LNT_TRY_GOTO(s, lnt_problem_make(k->c, &one, LINNET_F32, LINNET_F32, 3, &truth), out);
    for (int i = 0; i < LNT_RECUR_TENSORS; i++)
        if (used(k, i) && lnt_recur_tensors[i].role < LNT_T_OUTPUT) {
            cut x = cut_of(k, i);
            take_cut(truth.data[i], k->drawn.data[i], lnt_recur_tensor_type(&k->drawn.r, i), &x, along_tokens(k, i) ? k->drawn.r.tokens : 1);
        }
    LNT_TRY_GOTO(s, take_results(k, &ours), out);
    k->c->device = lnt_device_cpu();
    s = lnt_problem_run(k->c, &truth, false);
    if (s == LINNET_OK) s = lnt_problem_run(k->c, &truth, true);
    k->c->device = gpu;
    if (s == LINNET_OK) s = compare_shape(k, &ours, &truth, worst);
out:
    lnt_problem_free(&ours);
    lnt_problem_free(&truth);
    return s;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------------------- */

/* Bytes that the calls cannot avoid: inputs read, results written, once. */
static double least_bytes(const bench *k, bool backward)
{
    double bytes = 0;
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        lnt_tensor_role role = lnt_recur_tensors[i].role;
        bool result = role == LNT_T_OUTPUT || role == LNT_T_SAVED; /* which the backward pass of an operator with a cache reads again */
        bool counts = role == LNT_T_INPUT || (backward ? role == LNT_T_COTANGENT || role == LNT_T_GRADIENT || (result && k->op->cache) : result);
        if (counts && used(k, i)) bytes += (double)bytes_of(k, i);
    }
    return bytes;
}

/* Mean of the steps that the last calls reported. */
static linnet_status mean_steps(const bench *k, double *mean)
{
    int64_t n = k->set[0].tokens * k->set[0].Hv;
    *mean = 0;
    if (!k->op->solve) return LINNET_OK;
    float *steps = lnt_alloc((size_t)n * sizeof *steps);
    if (!steps) return lnt_fail_memory(k->c, (size_t)n * sizeof *steps);
    lnt_to_host(k->c, steps, k->set[0].steps, (size_t)n * sizeof *steps);
    for (int64_t i = 0; i < n; i++) *mean += steps[i] / (double)n;
    lnt_free(steps);
    return LINNET_OK;
}

/* FLOPs of a token's conjugate-gradient steps at C = 16; the residual of the guess costs what a step does (operators.md 6). */
static double solver_flops(const bench *k, double steps)
{
    double K = k->set[0].K;
    return k->op->solve ? (steps + 1) * (2 * K * K + 4 * 16 * K) : 0;
}

static linnet_status run_bench(bench *k, linnet_form form, linnet_bench_op_result *out)
{
    LNT_TRY(make_bench(k, form));
    LNT_TRY(check_shape(k, &out->shape_error));
    snprintf(out->impl, sizeof out->impl, "%s", k->forward_impl);
    snprintf(out->backward_impl, sizeof out->backward_impl, "%s", k->backward_impl);
    double backward;
    LNT_TRY(measure(k, false, &out->forward_seconds));
    LNT_TRY(mean_steps(k, &out->steps));
    LNT_TRY(measure(k, true, &backward));
    LNT_TRY(mean_steps(k, &out->backward_steps));
    out->both_seconds = out->forward_seconds + backward;
    const linnet_recurrence *r = &k->set[0];
    double each = (double)r->tokens * r->Hv; /* at C = 16, whatever chunk ran (operators.md 13) */
    out->forward_flops = (k->op->flops(r, 16, false) + solver_flops(k, out->steps)) * each;
    out->both_flops = out->forward_flops + (k->op->flops(r, 16, true) + solver_flops(k, out->backward_steps)) * each;
    out->forward_bytes = least_bytes(k, false);
    out->both_bytes = out->forward_bytes + least_bytes(k, true);
    out->workspace = k->workspace_size;
    out->peak_memory = lnt_device_of(k->c)->peak;
    return LINNET_OK;
}

linnet_status linnet_bench_op(linnet_context *c, const linnet_bench_op_options *options, linnet_bench_op_result *out)
{
    linnet_bench_op_options o = LINNET_BENCH_OP_OPTIONS_INIT;
    if (!options || options->size < offsetof(linnet_bench_op_options, dtype)) return lnt_fail(c, LINNET_EINVAL, "options without their size");
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    linnet_form form = LINNET_FORM_AUTO;
    LNT_TRY(read_form(c, o.form, &form));
    if (o.B < 1 || o.B > LNT_CASE_SEQUENCES) return lnt_fail(c, LINNET_EINVAL, "batch %lld; expected 1 .. %d", (long long)o.B, LNT_CASE_SEQUENCES);
    if (o.T < 1 || o.T > 1 << 24) return lnt_fail(c, LINNET_EINVAL, "%lld tokens; expected 1 .. %d", (long long)o.T, 1 << 24);
    if (o.repeats < 1 || o.repeats > 100000) return lnt_fail(c, LINNET_EINVAL, "%d repeats; expected 1 .. 100000", o.repeats);
    /* everything else is the operator's to refuse, before any memory is sized by it */
    lnt_recur_case k = case_of(&o, o.B, o.T);
    int64_t cu[LNT_CASE_SEQUENCES + 1] = { 0 };
    for (int n = 0; n < k.sequences; n++) cu[n + 1] = cu[n] + o.T;
    linnet_recurrence r = LINNET_RECURRENCE_INIT;
    r.op = o.op;
    r.dtype = o.dtype;
    r.tokens = cu[k.sequences];
    r.sequences = k.sequences;
    r.cu_seqlens = cu;
    r.Hq = o.Hq;
    r.Hv = o.Hv;
    r.K = o.K;
    r.V = o.V;
    r.window = o.window;
    options_into(&o, form, &r);
    const lnt_recur_op *op = lnt_recur_find(o.op);
    if (op && op->solve) {
        r.cg_tolerance = o.cg_tolerance;
        r.cg_max_steps = o.cg_steps;
    }
    size_t unused;
    LNT_TRY(linnet_recurrence_workspace(c, &r, 0, &unused));

    linnet_bench_op_result result = { 0 };
    LNT_TRY(check(c, &o, form, &result));
    bench *b = lnt_calloc(sizeof *b);
    if (!b) return lnt_fail_memory(c, sizeof *b);
    *b = (bench){ .c = c, .o = &o };
    lnt_device_of(c)->peak = 0;
    linnet_status s = run_bench(b, form, &result);
    free_bench(b);
    lnt_free(b);
    if (s == LINNET_OK) *out = result;
    return s;
}
