/* Times of an operator, after a check against its reference. Rates of the machine are bench_machine.c's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/measure.h"
#include "bench/op_set.h"
#include "core/border.h"
#include "core/context.h"
#include "core/memory.h"
#include "recurrence/problem.h"

/* Inputs like those of a trained layer: unit keys, slow gates, write strengths in (0,1). Sizes that were not given follow from others, or are
 * usual. */
static linnet_status case_of(lnt_ctx *c, const linnet_bench_op_options *o, int64_t B, int64_t T, lnt_recur_case *k, lnt_recur_call *call)
{
    const lnt_recur_op *op = lnt_recur_find(o->op);
    lnt_recur_init(op, call);
    for (int i = 0; i < o->n_set; i++) {
        const char *equals = strchr(o->set[i], '=');
        char key[32];
        if (!equals) return lnt_fail(c, LINNET_EINVAL, "--set \"%s\"; expected key=value", o->set[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - o->set[i] < 31 ? equals - o->set[i] : 31), o->set[i]);
        LNT_TRY(lnt_op_set(c, op, call, key, equals + 1, "--set"));
    }
    for (const lnt_recur_size *s = op->sizes; s->letter; s++) {
        if (lnt_recur_size_get(s, call) || s->letter[0] == 'T') continue;
        int64_t value = s->letter[0] == 'H' && o->heads ? o->heads : s->usual;
        if (s->same_as) value = lnt_recur_letter(op, call, s->same_as, strlen(s->same_as));
        lnt_recur_size_set(s, call, value);
    }
    *k = (lnt_recur_case){ .op = o->op, .sequences = (int)B, .gate = -0.1, .beta = 1, .given = call };
    for (int64_t n = 0; n < B; n++) k->length[n] = T;
    for (const lnt_recur_size *s = op->sizes; s->letter; s++)
        if (lnt_recur_size_get(s, call)) lnt_case_set(k, s->letter, lnt_recur_size_get(s, call));
    return LINNET_OK;
}

static bool is_result(const lnt_recur_op *op, int i) { return op->tensors[i].role >= LNT_T_OUTPUT; }

/* Whether every result is within `allowed` (NULL: its budget); the largest errors of outputs and gradients. */
static linnet_status compare(lnt_ctx *c, const lnt_problem *ours, const lnt_problem *truth, const double *allowed, const char *const *ran,
                             double *forward,
                             double *backward)
{
    for (int i = 0; ours->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &ours->op->tensors[i];
        if (!ours->data[i] || !is_result(ours->op, i)) continue;
        const bool gradient = t->role == LNT_T_GRADIENT;
        const lnt_recur_error e = lnt_problem_error(ours, truth, i);
        double *record = gradient ? backward : forward;
        if (e.most > 1e-12 && e.relative > *record) *record = e.relative; /* a gradient may be 0 but for the truth's own rounding */
        if (e.most > 1e-6 && !(e.relative <= (allowed ? *allowed : lnt_recur_allowed(ours->op, ours->r.dtype, i))))
            return lnt_fail(c, LINNET_EINTERNAL, "%s by %s is wrong: relative error %.3g", t->name, ran[gradient], e.relative);
    }
    return LINNET_OK;
}

/* The largest relative errors of outputs and gradients on one short sequence, and whether each is within its budget. */
static linnet_status check(lnt_ctx *c, const linnet_bench_op_options *o, linnet_form form, linnet_bench_op_result *out)
{
    lnt_recur_case k;
    lnt_recur_call given;
    lnt_problem p = { 0 }, truth = { 0 };
    char impl[2][64];
    linnet_status s;
    LNT_TRY_GOTO(s, case_of(c, o, 1, o->T < 192 ? o->T : 192, &k, &given), out);
    LNT_TRY_GOTO(s, lnt_problem_make(c, &k, o->dtype, o->dtype, 1, &p), out);
    LNT_TRY_GOTO(s, lnt_problem_make(c, &k, LINNET_F64, o->dtype, 1, &truth), out);
    p.r.form = form;
    p.r.impl = o->impl;
    p.r.chunk = o->chunk;
    for (int b = 0; b < 2; b++) {
        LNT_TRY_GOTO(s, lnt_problem_run(c, &truth, b), out);
        LNT_TRY_GOTO(s, lnt_problem_run(c, &p, b), out);
        snprintf(impl[b], sizeof impl[b], "%s", linnet_operator_ran(c));
    }
    s = compare(c, &p, &truth, NULL, (const char *[]){ impl[0], impl[1] }, &out->forward_error, &out->backward_error);
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
    lnt_recur_call set[MOST_SETS];
    int sets, counted;  /* the row of op->counted, -1: none */
    int64_t *cu_device;
    void *workspace;
    size_t workspace_size;
    char forward_impl[64], backward_impl[64];
} bench;

/* Neither states in nor out, as in training. */
static bool used(const bench *k, int i)
{
    const lnt_recur_tensor *t = &k->op->tensors[i];
    return lnt_recur_has(&k->set[0], i) && t->role != LNT_T_REPORT && t->shape[0] != 'N';
}

static size_t bytes_of(const bench *k, int i)
{
    return (size_t)lnt_recur_elements(&k->set[0], i) * lnt_dtype_size(lnt_recur_type(&k->set[0], i));
}

static void *tensor_of(const bench *k, int set, int i) { return lnt_recur_get(&k->set[set], &k->op->tensors[i]); }

static linnet_status make_set(bench *k, lnt_recur_call *r)
{
    for (int i = 0; k->op->tensors[i].name; i++) {
        void *p;
        if (!used(k, i) && i != k->counted) continue;
        LNT_TRY(lnt_device_alloc(k->c, bytes_of(k, i), &p));
        lnt_recur_set(r, &k->op->tensors[i], p);
        if (is_result(k->op, i)) continue;
        lnt_to_device(k->c, p, k->drawn.data[i], k->drawn.bytes[i]);
        lnt_tile(k->c, p, k->drawn.bytes[i], bytes_of(k, i));
    }
    return LINNET_OK;
}

/* The call at the shape that was asked for, without tensors. */
static linnet_status shape_call(lnt_ctx *c, const linnet_bench_op_options *o, linnet_form form, int64_t *cu, lnt_recur_call *r)
{
    lnt_recur_case k;
    lnt_problem whole = { .op = lnt_recur_find(o->op) };
    lnt_recur_call given;
    LNT_TRY(case_of(c, o, o->B, o->T, &k, &given));
    for (int64_t n = 0; n < o->B; n++) cu[n + 1] = cu[n] + o->T;
    *r = given;
    lnt_recur_head *a = &r->head;
    a->dtype = o->dtype;
    a->form = form;
    a->impl = o->impl;
    a->chunk = o->chunk;
    a->tokens = cu[o->B];
    a->sequences = o->B;
    a->cu_seqlens = cu;
    for (const lnt_recur_size *s = whole.op->sizes; s->letter; s++)
        if (s->letter[0] == 'T' && !lnt_recur_size_get(s, r)) lnt_recur_size_set(s, r, a->tokens);
    return LINNET_OK;
}

static linnet_status make_bench(bench *k, linnet_form form)
{
    const linnet_bench_op_options *o = k->o;
    lnt_recur_case drawn;
    lnt_recur_call r;
    LNT_TRY(case_of(k->c, o, 1, o->B * o->T < DRAWN_TOKENS ? o->B * o->T : DRAWN_TOKENS, &drawn, &r));
    LNT_TRY(lnt_problem_make(k->c, &drawn, o->dtype, o->dtype, 2, &k->drawn));
    k->op = k->drawn.op;
    k->counted = k->op->counted ? lnt_recur_tensor_find(k->op, k->op->counted) : -1;
    LNT_TRY(shape_call(k->c, o, form, k->cu, &r));
    LNT_TRY(lnt_device_alloc(k->c, sizeof k->cu, (void **)&k->cu_device));
    lnt_to_device(k->c, k->cu_device, k->cu, sizeof k->cu);
    r.head.cu_seqlens_device = k->cu_device;
    for (int b = 0; b < 2; b++) {
        size_t need;
        LNT_TRY(lnt_recur_workspace(k->c, &r, b, &need));
        if (need > k->workspace_size) k->workspace_size = need;
    }
    LNT_TRY(lnt_device_alloc(k->c, k->workspace_size, &k->workspace));
    r.head.workspace = k->workspace;
    r.head.workspace_size = k->workspace_size;
    for (int s = 0; s < MOST_SETS; s++) k->set[s] = r;
    size_t bytes = 0;
    for (int i = 0; k->op->tensors[i].name; i++) bytes += used(k, i) ? bytes_of(k, i) : 0;
    size_t wanted = lnt_on_cuda(k->c) && bytes ? (ROUND_BYTES + bytes - 1) / bytes : 1;
    k->sets = wanted < MOST_SETS ? (int)wanted : MOST_SETS;
    for (int s = 0; s < k->sets; s++) LNT_TRY(make_set(k, &k->set[s]));
    return LINNET_OK;
}

static void free_bench(bench *k)
{
    for (int s = 0; s < k->sets; s++)
        for (int i = 0; k->op->tensors[i].name; i++) lnt_device_free(k->c, tensor_of(k, s, i));
    lnt_device_free(k->c, k->cu_device);
    lnt_device_free(k->c, k->workspace);
    lnt_problem_free(&k->drawn);
}

static linnet_status call(const bench *k, int set, bool backward) { return lnt_recur_run(k->c, &k->set[set], backward); }

static linnet_status measure(bench *k, bool backward, double *seconds)
{
    linnet_status s = LINNET_OK;
    double *times = lnt_alloc(lnt_bytes((size_t)k->o->repeats, sizeof *times)), first = 0;
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

/* Heads depend on no others: of the last sequence, the last head of the letter with the fewest and those of other letters that go with it are enough;
 * where there are no heads but channels that see no others, the last ENOUGH of them. The CPU's float32 kernels, which tests hold against float64,
 * compute them from the same inputs. */
enum { ENOUGH = 64 };
typedef struct {
    int64_t rows, first_row, heads, first, taken, inner;
    int64_t each; /* rows of a token: what stands between it and the heads */
} cut;

static bool is_apart(const bench *k, const lnt_recur_size *s)
{
    return s && (k->op->channel ? strcmp(s->letter, k->op->channel) == 0 : s->letter[0] == 'H');
}

/* Into how many parts the call may be cut: the fewest heads. */
static int64_t parts_of(const bench *k)
{
    int64_t fewest = 0;
    for (const lnt_recur_size *s = k->op->sizes; s->letter; s++) {
        const int64_t value = lnt_recur_size_get(s, &k->set[0]), parts = s->letter[0] == 'H' ? value : (value + ENOUGH - 1) / ENOUGH;
        if (is_apart(k, s) && (!fewest || parts < fewest)) fewest = parts;
    }
    return fewest ? fewest : 1;
}

/* Whether every part has its own of a tensor. */
static bool has_parts(const bench *k, int i)
{
    const char *shape = k->op->tensors[i].shape, *letter;
    size_t length;
    while ((letter = lnt_recur_next_letter(&shape, &length)))
        if (is_apart(k, lnt_recur_size_find(k->op, letter, length))) return true;
    return false;
}

static cut cut_of(const bench *k, int i)
{
    const char *shape = k->op->tensors[i].shape, *letter;
    size_t length;
    cut x = { .rows = 1, .heads = 1, .taken = 1, .inner = 1, .each = 1 };
    while ((letter = lnt_recur_next_letter(&shape, &length))) {
        const int64_t value = lnt_recur_letter(k->op, &k->set[0], letter, length);
        if (*letter == 'T') {
            x.rows = value / k->o->B;
            x.first_row = value - x.rows;
        } else if (is_apart(k, lnt_recur_size_find(k->op, letter, length))) {
            x.heads = value;
            x.taken = value / parts_of(k);
            x.first = value - x.taken;
            x.each = x.inner, x.inner = 1;
            x.rows *= x.each, x.first_row *= x.each;
        } else
            x.inner *= value;
    }
    return x;
}

/* The value of a shape's first letter. */
static int64_t rows_of(const void *args, const char *shape)
{
    size_t length;
    const char *letter = lnt_recur_next_letter(&shape, &length);
    return lnt_recur_letter(((const lnt_recur_head *)args)->op, args, letter, length);
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
    for (int i = 0; k->op->tensors[i].name; i++) {
        if (!used(k, i) || !is_result(k->op, i)) continue;
        cut x = cut_of(k, i);
        lnt_dtype t = lnt_recur_type(&k->set[0], i);
        size_t row = (size_t)(x.heads * x.inner) * lnt_dtype_size(t);
        void *host = lnt_alloc(lnt_bytes((size_t)x.rows, row));
        if (!host) return lnt_fail_memory(k->c, (size_t)x.rows * row);
        lnt_to_host(k->c, host, (char *)tensor_of(k, 0, i) + (size_t)x.first_row * row, (size_t)x.rows * row);
        x.first_row = 0;
        take_cut(ours->data[i], host, t, &x, x.rows);
        lnt_free(host);
    }
    return LINNET_OK;
}

/* The problem of that one part; tensors that are summed over all sequences or parts are left out where there are several. */
static linnet_status make_one(const bench *k, lnt_problem *p)
{
    lnt_recur_case one;
    lnt_recur_call given;
    LNT_TRY(case_of(k->c, k->o, 1, k->o->T, &one, &given));
    for (const lnt_recur_size *s = k->op->sizes; s->letter; s++)
        if (is_apart(k, s)) lnt_case_set(&one, s->letter, lnt_recur_size_get(s, &k->set[0]) / parts_of(k));
    one.inexact = true;
    return lnt_problem_make(k->c, &one, LINNET_F32, LINNET_F32, 3, p);
}

static bool takes_minutes(const bench *k) { return k->op->counted || (k->o->T > 8192 && k->op->flops(&k->set[0], 16, false) > 1e14); }

static linnet_status check_shape(bench *k, double *worst)
{
    lnt_problem ours = { 0 }, truth = { 0 };
    lnt_device *gpu = k->c->device;
    linnet_status s;
    LNT_TRY_GOTO(s, call(k, 0, false), out);
    snprintf(k->forward_impl, sizeof k->forward_impl, "%s", linnet_operator_ran(k->c));
    LNT_TRY_GOTO(s, call(k, 0, true), out);
    snprintf(k->backward_impl, sizeof k->backward_impl, "%s", linnet_operator_ran(k->c));
    if (gpu->kind == LNT_DEVICE_CPU || takes_minutes(k)) {
        *worst = NAN;
        goto out;
    }
    LNT_TRY_GOTO(s, make_one(k, &ours), out);
    LNT_TRY_GOTO(s, make_one(k, &truth), out);
    for (int i = 0; k->op->tensors[i].name; i++)
        if (used(k, i) && !is_result(k->op, i)) {
            cut x = cut_of(k, i);
            take_cut(truth.data[i], k->drawn.data[i], lnt_recur_type(&k->drawn.call, i), &x,
                     (k->op->tensors[i].shape[0] == 'T' ? rows_of(&k->drawn.call, k->op->tensors[i].shape) : 1) * x.each);
        }
    LNT_TRY_GOTO(s, take_results(k, &ours), out);
    k->c->device = lnt_device_cpu();
    s = lnt_problem_run(k->c, &truth, false);
    if (s == LINNET_OK) s = lnt_problem_run(k->c, &truth, true);
    k->c->device = gpu;
    if (s != LINNET_OK) goto out;
    for (int i = 0; k->op->tensors[i].name; i++) /* states, and what is summed over sequences or parts */
        if (ours.data[i] && (!used(k, i) || (k->o->B > 1 && k->op->tensors[i].shape[0] != 'T') ||
                             (parts_of(k) > 1 && !has_parts(k, i))))
            memcpy(ours.data[i], truth.data[i], ours.bytes[i]);
    double allowed = 0;
    for (int i = 0; k->op->tensors[i].name; i++) allowed = fmax(allowed, is_result(k->op, i) ? lnt_recur_allowed(k->op, k->o->dtype, i) : 0);
    if (k->o->dtype == LINNET_F32) allowed = 1e-4;
    s = compare(k->c, &ours, &truth, &allowed, (const char *[]){ k->forward_impl, k->backward_impl }, worst, worst);
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
    for (int i = 0; k->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &k->op->tensors[i];
        const bool result = t->role == LNT_T_OUTPUT || t->role == LNT_T_SAVED, again = t->read_back || t->role == LNT_T_SAVED;
        const bool input = t->role == LNT_T_INPUT && !(backward && t->forward_only);
        bool counts = input || (backward ? t->role == LNT_T_COTANGENT || t->role == LNT_T_GRADIENT || (result && again) : result);
        if (counts && used(k, i)) bytes += (double)bytes_of(k, i);
    }
    return bytes;
}

/* Mean of the report that the last calls made, and the FLOPs that follow from it. */
static linnet_status counted_flops(const bench *k, double *mean, double *flops)
{
    *mean = 0;
    if (k->counted < 0) return LINNET_OK;
    const int64_t n = lnt_recur_elements(&k->set[0], k->counted);
    float *x = lnt_alloc(lnt_bytes((size_t)n, sizeof *x));
    if (!x) return lnt_fail_memory(k->c, (size_t)n * sizeof *x);
    lnt_to_host(k->c, x, tensor_of(k, 0, k->counted), (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) *mean += x[i] / (double)n;
    lnt_free(x);
    *flops += k->op->counted_flops(&k->set[0], *mean);
    return LINNET_OK;
}

static linnet_status run_bench(bench *k, linnet_form form, linnet_bench_op_result *out)
{
    LNT_TRY(make_bench(k, form));
    LNT_TRY(check_shape(k, &out->shape_error));
    snprintf(out->impl, sizeof out->impl, "%s", k->forward_impl);
    snprintf(out->backward_impl, sizeof out->backward_impl, "%s", k->backward_impl);
    snprintf(out->counted, sizeof out->counted, "%s", k->op->counted ? k->op->counted : "");
    lnt_op_sizes(&k->set[0], out->sizes, sizeof out->sizes);
    /* at C = 16, whatever chunk ran (operators.md#flops) */
    double seconds, flops = k->op->flops(&k->set[0], 16, true);
    out->forward_flops = k->op->flops(&k->set[0], 16, false);
    LNT_TRY(measure(k, false, &out->forward_seconds));
    LNT_TRY(counted_flops(k, &out->forward_mean, &out->forward_flops));
    LNT_TRY(measure(k, true, &seconds));
    LNT_TRY(counted_flops(k, &out->backward_mean, &flops));
    out->both_seconds = out->forward_seconds + seconds;
    out->both_flops = out->forward_flops + flops;
    out->forward_bytes = least_bytes(k, false);
    out->both_bytes = out->forward_bytes + least_bytes(k, true);
    out->workspace = k->workspace_size;
    out->peak_memory = lnt_device_of(k->c)->peak;
    return LINNET_OK;
}

linnet_status linnet_bench_op(linnet_context *c, const linnet_bench_op_options *options, linnet_bench_op_result *out)
{
    linnet_bench_op_options o = LINNET_BENCH_OP_OPTIONS_INIT;
    LNT_TRY(lnt_options_take(c, "bench_op", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    linnet_form form = LINNET_FORM_AUTO;
    LNT_TRY(lnt_op_form(c, o.form, &form));
    if (o.B < 1 || o.B > LNT_CASE_SEQUENCES) return lnt_fail(c, LINNET_EINVAL, "batch %lld; expected 1 .. %d", (long long)o.B, LNT_CASE_SEQUENCES);
    if (o.T < 1 || o.T > 1 << 24) return lnt_fail(c, LINNET_EINVAL, "%lld tokens; expected 1 .. %d", (long long)o.T, 1 << 24);
    if (o.repeats < 1 || o.repeats > 100000) return lnt_fail(c, LINNET_EINVAL, "%d repeats; expected 1 .. 100000", o.repeats);
    if (o.heads < 0 || o.heads > 65536) return lnt_fail(c, LINNET_EINVAL, "%d heads; expected 1 .. 65536", o.heads);
    size_t unused;
    if (!lnt_recur_find(o.op)) { /* which says what is known */
        linnet_operator_call none = LINNET_OPERATOR_CALL_INIT;
        none.op = o.op;
        return linnet_operator_workspace(c, &none, 0, &unused);
    }
    /* everything else is the operator's to refuse, before any memory is sized by it */
    int64_t cu[LNT_CASE_SEQUENCES + 1] = { 0 };
    lnt_recur_call call;
    LNT_TRY(shape_call(c, &o, form, cu, &call));
    LNT_TRY(lnt_recur_check_form(c, &call, false));

    linnet_bench_op_result result = { .size = sizeof result };
    LNT_TRY(check(c, &o, form, &result));
    bench *b = lnt_calloc(sizeof *b);
    if (!b) return lnt_fail_memory(c, sizeof *b);
    *b = (bench){ .c = c, .o = &o, .op = lnt_recur_find(o.op) };
    lnt_device_of(c)->peak = 0;
    linnet_status s = run_bench(b, form, &result);
    free_bench(b);
    lnt_free(b);
    if (s == LINNET_OK) LNT_GIVE(out, result);
    return s;
}
