/* Times of an operator, after a check against its reference, and what the machine could do at most. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/threads.h"
#include "device/device.h"
#include "ops/gemm.h"
#include "recurrence/problem.h"

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------------- */

enum { SIZE = 2048, ROUNDS = 5 };

/* The best of some rounds: a ceiling is what was reached once. */
static linnet_status product_rate(lnt_ctx *c, lnt_dtype dtype, double *rate)
{
    size_t bytes = (size_t)SIZE * SIZE * 4;
    void *m[3] = { 0 };
    linnet_status s = LINNET_OK;
    double best = INFINITY;
    for (int i = 0; i < 3; i++) LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes, &m[i]), out);
    for (int i = 0; i < 3; i++) lnt_device_zero(c, m[i], bytes);
    lnt_gemm_args g = { .M = SIZE, .N = SIZE, .K = SIZE, .alpha = 1, .ab = dtype, .c = LINNET_F32 };
    g.a = m[0], g.b = m[1], g.C = m[2];
    g.lda = g.ldb = g.ldc = SIZE;
    for (int i = 0; i <= ROUNDS; i++) { /* the first builds the primitive */
        double start = lnt_now();
        LNT_TRY_GOTO(s, lnt_gemm(c, &g), out);
        lnt_device_wait(c);
        double t = lnt_now() - start;
        if (i && t < best) best = t;
    }
    *rate = 2.0 * SIZE * SIZE * SIZE / best;
out:
    for (int i = 0; i < 3; i++) lnt_device_free(c, m[i]);
    return s;
}

static linnet_status copy_rate(lnt_ctx *c, double *rate)
{
    enum { BYTES = 1 << 28, PIECE = 1 << 20 }; /* far beyond a cache that one process gets */
    char *x = lnt_alloc(BYTES), *y = lnt_alloc(BYTES);
    linnet_status s = x && y ? LINNET_OK : lnt_fail_memory(c, 2 * (size_t)BYTES);
    double best = INFINITY;
    for (int i = 0; s == LINNET_OK && i <= ROUNDS; i++) {
        double start = lnt_now();
#pragma omp parallel for num_threads(lnt_threads(c)) schedule(static)
        for (int p = 0; p < BYTES / PIECE; p++) {
            if (i == 0)
                memset(x + (size_t)p * PIECE, 1, PIECE);
            else
                memcpy(y + (size_t)p * PIECE, x + (size_t)p * PIECE, PIECE);
        }
        double t = lnt_now() - start;
        if (i > 1 && t < best) best = t; /* round 1 touches y for the first time */
    }
    lnt_free(x);
    lnt_free(y);
    *rate = 2.0 * BYTES / best;
    return s;
}

linnet_status linnet_bench_machine(linnet_context *c, linnet_machine_rates *out)
{
    linnet_machine_rates r = { 0 };
    LNT_TRY(product_rate(c, LINNET_F32, &r.f32_flops));
    LNT_TRY(product_rate(c, LINNET_BF16, &r.bf16_flops));
    LNT_TRY(copy_rate(c, &r.copy_bytes));
    *out = r;
    return LINNET_OK;
}

/* ---- an operator ------------------------------------------------------------------------------------------------------------------- */

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

/* Seconds of a forward (or backward) run; buffers are made by the first one. */
static linnet_status timed(lnt_ctx *c, const lnt_problem *p, bool backward, double *seconds)
{
    double start = lnt_now();
    LNT_TRY((backward ? linnet_recurrence_backward : linnet_recurrence_forward)(c, &p->r));
    *seconds = lnt_now() - start;
    return LINNET_OK;
}

static linnet_status measure(lnt_ctx *c, const linnet_bench_op_options *o, linnet_form form, linnet_bench_op_result *out)
{
    lnt_recur_case k = case_of(o, o->B, o->T);
    lnt_problem p = { 0 };
    linnet_status s;
    double *seconds = lnt_calloc(2 * (size_t)o->repeats * sizeof *seconds), *both = seconds + o->repeats;
    if (!seconds) return lnt_fail_memory(c, 2 * (size_t)o->repeats * sizeof *seconds);
    LNT_TRY_GOTO(s, lnt_problem_make(c, &k, o->dtype, o->dtype, 2, &p), out);
    options_into(o, form, &p.r);
    LNT_TRY_GOTO(s, lnt_problem_run(c, &p, false), out);
    snprintf(out->impl, sizeof out->impl, "%s", linnet_recurrence_ran(c));
    for (int i = 0; i < o->repeats; i++) LNT_TRY_GOTO(s, timed(c, &p, false, &seconds[i]), out);
    out->workspace = p.r.workspace_size;
    LNT_TRY_GOTO(s, lnt_problem_run(c, &p, true), out);
    for (int i = 0; i < o->repeats; i++) {
        double t;
        LNT_TRY_GOTO(s, timed(c, &p, true, &t), out);
        both[i] = t;
    }
    if (p.r.workspace_size > out->workspace) out->workspace = p.r.workspace_size;
    out->forward_seconds = median(seconds, o->repeats);
    out->both_seconds = out->forward_seconds + median(both, o->repeats);
    double each = (double)p.r.tokens * p.r.Hv; /* at C = 16, whatever chunk ran (operators.md 13) */
    out->forward_flops = p.op->flops(&p.r, 16, false) * each;
    out->both_flops = out->forward_flops + p.op->flops(&p.r, 16, true) * each;
out:
    lnt_problem_free(&p);
    lnt_free(seconds);
    return s;
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
    size_t unused;
    LNT_TRY(linnet_recurrence_workspace(c, &r, 0, &unused));

    linnet_bench_op_result result = { 0 };
    LNT_TRY(check(c, &o, form, &result));
    LNT_TRY(measure(c, &o, form, &result));
    *out = result;
    return LINNET_OK;
}
