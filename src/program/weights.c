#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/threads.h"
#include "device/device.h"
#include "program/plan.h"

linnet_status lnt_weights_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, lnt_dtype kept, lnt_weights **out)
{
    *out = NULL;
    if (kept == LINNET_I8 && lnt_on_cuda(c)) {
        lnt_fail(c, LINNET_EINVAL, "weights are int8, which have no kernels for a GPU");
        return lnt_hint(c, "Keep them as float32 or bf16, or use --device cpu.");
    }
    if (kept != LINNET_F32 && kept != LINNET_I8 && kept != dtype) {
        lnt_fail(c, LINNET_EINVAL, "weights kept as %s under dtype %s", lnt_dtype_name(kept), lnt_dtype_name(dtype));
        return lnt_hint(c, "Weights without a float32 master need --dtype bf16.");
    }
    lnt_weights *w = lnt_calloc(sizeof *w);
    if (!w) return lnt_fail_memory(c, sizeof *w);
    *w = (lnt_weights){.c = c, .program = p, .dtype = dtype, .elements = lnt_param_elements(p), .work_begin = lnt_param_work_begin(p)};
    w->masters = kept == LINNET_F32 ? w->elements : lnt_param_plain_end(p);
    const size_t work_bytes = lnt_bytes((size_t)((kept == LINNET_I8 ? w->masters : w->elements) - w->work_begin), lnt_dtype_size(dtype));
    linnet_status s;
    LNT_TRY_GOTO(s, lnt_device_alloc(c, lnt_bytes((size_t)w->masters, 4), (void **)&w->master), fail);
    lnt_device_zero(c, w->master, (size_t)w->masters * 4);
    w->work = w->master + w->work_begin;
    if (dtype != LINNET_F32) {
        w->work = NULL;
        LNT_TRY_GOTO(s, lnt_device_alloc(c, work_bytes, &w->work), fail);
        lnt_device_zero(c, w->work, work_bytes);
    }
    if (kept == LINNET_I8) {
        LNT_TRY_GOTO(s, lnt_device_alloc(c, (size_t)(w->elements - w->masters), (void **)&w->small), fail);
        LNT_TRY_GOTO(s, lnt_device_alloc(c, lnt_bytes((size_t)lnt_param_rows(p), sizeof *w->scale), (void **)&w->scale), fail);
        lnt_device_zero(c, w->small, (size_t)(w->elements - w->masters));
        lnt_device_zero(c, w->scale, (size_t)lnt_param_rows(p) * sizeof *w->scale);
    }
    lnt_weights_changed(w);
    *out = w;
    return LINNET_OK;
fail:
    lnt_weights_destroy(w);
    return s;
}

void lnt_weights_destroy(lnt_weights *w)
{
    if (!w) return;
    if (w->dtype != LINNET_F32 && !w->of) lnt_device_free(w->c, w->work);
    if (!w->of) {
        lnt_device_free(w->c, w->master);
        lnt_device_free(w->c, w->small);
        lnt_device_free(w->c, w->scale);
    }
    lnt_device_free(w->c, w->grad);
    lnt_free(w);
}

linnet_status lnt_weights_share(lnt_ctx *c, const lnt_program *p, const lnt_weights *w, lnt_weights **out)
{
    lnt_weights *mine = *out = lnt_alloc(sizeof *mine);
    if (!mine) return lnt_fail_memory(c, sizeof *mine);
    *mine = *w;
    mine->c = c, mine->program = p, mine->grad = NULL, mine->grad_empty = false, mine->of = w->of ? w->of : w;
    return LINNET_OK;
}

void lnt_weights_changed(lnt_weights *w)
{
    static _Atomic uint64_t last;
    w->version = ++last;
}

linnet_status lnt_weights_need_grad(lnt_weights *w)
{
    if (w->small) return lnt_fail(w->c, LINNET_EINVAL, "weights kept as int8 are not trained");
    if (!w->grad) LNT_TRY(lnt_device_alloc(w->c, lnt_bytes((size_t)w->elements, 4), (void **)&w->grad));
    lnt_weights_zero_grad(w);
    return LINNET_OK;
}

void lnt_weights_zero_grad(lnt_weights *w)
{
    lnt_device_zero(w->c, w->grad, (size_t)w->elements * 4);
    w->grad_empty = true;
}

lnt_param_view lnt_weights_view(const lnt_weights *w, const lnt_param *q)
{
    const bool worked = q->product && w->dtype != LINNET_F32;
    lnt_param_view v = {.work_dtype = worked ? w->dtype : LINNET_F32, .count = q->count, .grad = w->grad ? w->grad + q->offset : NULL};
    v.master = q->offset < w->masters ? w->master + q->offset : NULL;
    if (w->small && !v.master) {
        v.work = w->small + (q->offset - w->masters);
        v.work_dtype = LINNET_I8;
        v.scale = w->scale + q->row;
        return v;
    }
    v.work = worked ? (const void *)((const lnt_bf16 *)w->work + (q->offset - w->work_begin)) : v.master;
    return v;
}

static int64_t row_of(const lnt_param *q) { return q->dim[q->ndim - 1]; }

/* A row's largest number is 127 times its scale. What is not finite makes the scale NaN, and with it all that the row is multiplied with. */
static void round_row(int8_t *out, float *scale, const float *x, int64_t n)
{
    float most = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(x[i]));
        finite &= isfinite(x[i]) != 0;
    }
    *scale = finite ? most / 127 : NAN;
    const float to = finite && *scale > 0 ? 1 / *scale : 0;
    for (int64_t i = 0; i < n; i++) out[i] = isfinite(to) && to > 0 ? (int8_t)fmaxf(-127, fminf(127, rintf(x[i] * to))) : 0;
}

static linnet_status put_small(lnt_weights *w, const lnt_param *q, int64_t first, const float *values, int64_t n)
{
    const int64_t row = row_of(q);
    if (first % row || n % row)
        return lnt_fail(w->c, LINNET_EINVAL, "elements %lld to %lld of \"%s\", expected whole rows of %lld, as it is kept in int8", (long long)first,
                        (long long)(first + n), q->name, (long long)row);
    int8_t *to = w->small + (q->offset - w->masters) + first;
    float *scale = w->scale + q->row + first / row;
#pragma omp parallel for num_threads(lnt_threads(w->c)) schedule(static) if (n > 1 << 16)
    for (int64_t r = 0; r < n / row; r++) round_row(to + r * row, scale + r, values + r * row, row);
    return LINNET_OK;
}

linnet_status lnt_weights_put(lnt_weights *w, const lnt_param *q, int64_t first, const float *values, int64_t n)
{
    const lnt_param_view v = lnt_weights_view(w, q);
    lnt_weights_changed(w);
    if (v.scale) return put_small(w, q, first, values, n);
    if (v.master) lnt_to_device(w->c, w->master + q->offset + first, values, (size_t)n * 4);
    if (v.work == v.master) return LINNET_OK;
    return lnt_floats_to_device(w->c, (lnt_bf16 *)w->work + (q->offset - w->work_begin) + first, LINNET_BF16, values, n);
}

/* n elements of the working copy that stands for masters, from element `at` of the arena. */
static linnet_status widen(const lnt_weights *w, int64_t at, float *values, int64_t n)
{
    return lnt_floats_to_host(w->c, values, (const lnt_bf16 *)w->work + (at - w->work_begin), LINNET_BF16, n);
}

linnet_status lnt_weights_take(const lnt_weights *w, const lnt_param *q, int64_t first, float *values, int64_t n)
{
    const int64_t at = q->offset + first;
    if (w->small && q->offset >= w->masters) {
        for (int64_t i = 0; i < n; i++) values[i] = w->scale[q->row + (first + i) / row_of(q)] * (float)w->small[at + i - w->masters];
        return LINNET_OK;
    }
    if (q->offset >= w->masters) return widen(w, at, values, n);
    lnt_to_host(w->c, values, w->master + at, (size_t)n * 4);
    return LINNET_OK;
}

linnet_status lnt_weights_get(const lnt_weights *w, float *values)
{
    lnt_to_host(w->c, values, w->master, (size_t)w->masters * 4);
    if (w->small) {
        for (int i = 0; i < lnt_param_count(w->program); i++) {
            const lnt_param *q = lnt_param_at(w->program, i);
            if (q->offset >= w->masters) LNT_TRY(lnt_weights_take(w, q, 0, values + q->offset, q->count));
        }
        return LINNET_OK;
    }
    return w->masters == w->elements ? LINNET_OK : widen(w, w->masters, values + w->masters, w->elements - w->masters);
}

/* Element i of a parameter: its draw takes Philox block i of the stream, so elements may be drawn in any order. The same numbers as lnt_rng_normal
 * and lnt_rng_uniform from position 4 i, with the block made once. */
static double draw(const lnt_param *q, uint64_t seed, uint64_t stream, int64_t i)
{
    if (q->init.kind == LNT_INIT_CONST) return q->init.a;
    uint32_t x[4];
    lnt_philox(seed, stream, (uint64_t)i, x);
    const double u = (double)(((uint64_t)x[0] << 32 | x[1]) >> 11) * 0x1p-53, v = (double)(((uint64_t)x[2] << 32 | x[3]) >> 11) * 0x1p-53;
    switch (q->init.kind) {
    case LNT_INIT_CONST: break;
    case LNT_INIT_NORMAL: return q->init.a * (sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v));
    case LNT_INIT_UNIFORM: return q->init.a + (q->init.b - q->init.a) * u;
    case LNT_INIT_IDENTITY: {
        int64_t n = q->dim[q->ndim - 1];
        return i / n % q->dim[q->ndim - 2] == i % n;
    }
    case LNT_INIT_A_LOG: { /* U(0,16) includes numbers whose logarithm is far below any decay that matters; 1e-4 keeps it finite */
        double a = q->init.a + (q->init.b - q->init.a) * u;
        return log(a > 1e-4 ? a : 1e-4);
    }
    case LNT_INIT_SPREAD: {
        int64_t n = q->dim[q->ndim - 1];
        return n > 1 ? q->init.a + (q->init.b - q->init.a) * (double)(i % n) / (double)(n - 1) : q->init.a;
    }
    case LNT_INIT_LOG_PLACE: return log(1.0 + (double)(i % q->dim[q->ndim - 1]));
    case LNT_INIT_PLACE: return q->init.a * (double)(i % q->dim[q->ndim - 1]);
    case LNT_INIT_DECAY_SOFTPLUS:
    case LNT_INIT_DECAY_LOG: {
        const double a = q->init.a * q->init.a, b = q->init.b * q->init.b, rate = -0.5 * log(a + (b - a) * u);
        return q->init.kind == LNT_INIT_DECAY_LOG ? log(rate) : rate + log(-expm1(-rate));
    }
    case LNT_INIT_DT_BIAS: { /* softplus^-1(dt) = dt + log(-expm1(-dt)) */
        double dt = exp(log(q->init.a) + (log(q->init.b) - log(q->init.a)) * u);
        if (dt < 1e-4) dt = 1e-4;
        return dt + log(-expm1(-dt));
    }
    }
    return 0;
}

linnet_status lnt_weights_init(lnt_weights *w, uint64_t seed)
{
    int64_t most = 0;
    for (int i = 0; i < lnt_param_count(w->program); i++)
        most = lnt_param_at(w->program, i)->count > most ? lnt_param_at(w->program, i)->count : most;
    float *host = lnt_alloc(lnt_bytes((size_t)most, 4));
    if (!host) return lnt_fail_memory(w->c, lnt_bytes((size_t)most, 4));
    linnet_status s = LINNET_OK;
    for (int i = 0; s == LINNET_OK && i < lnt_param_count(w->program); i++) {
        const lnt_param *q = lnt_param_at(w->program, i);
        uint64_t stream = lnt_stream_of(q->name);
#pragma omp parallel for num_threads(lnt_threads(w->c)) schedule(static)
        for (int64_t e = 0; e < q->count; e++) host[e] = (float)draw(q, seed, stream, e);
        s = lnt_weights_put(w, q, 0, host, q->count);
    }
    lnt_free(host);
    return s;
}
