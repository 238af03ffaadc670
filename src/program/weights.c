#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/threads.h"
#include "device/device.h"
#include "program/plan.h"
#include "simd/convert.h"

linnet_status lnt_weights_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, lnt_weights **out)
{
    *out = NULL;
    lnt_weights *w = lnt_calloc(sizeof *w);
    if (!w) return lnt_fail_memory(c, sizeof *w);
    *w = (lnt_weights){.c = c, .program = p, .dtype = dtype, .elements = lnt_param_elements(p)};
    linnet_status s;
    LNT_TRY_GOTO(s, lnt_device_alloc(c, (size_t)w->elements * 4, (void **)&w->master), fail);
    lnt_device_zero(c, w->master, (size_t)w->elements * 4);
    w->work = w->master;
    if (dtype != LINNET_F32) {
        w->work = NULL;
        LNT_TRY_GOTO(s, lnt_device_alloc(c, (size_t)w->elements * lnt_dtype_size(dtype), &w->work), fail);
        lnt_device_zero(c, w->work, (size_t)w->elements * lnt_dtype_size(dtype));
    }
    *out = w;
    return LINNET_OK;
fail:
    lnt_weights_destroy(w);
    return s;
}

void lnt_weights_destroy(lnt_weights *w)
{
    if (!w) return;
    if (w->work != w->master) lnt_device_free(w->c, w->work);
    lnt_device_free(w->c, w->master);
    lnt_device_free(w->c, w->grad);
    lnt_free(w);
}

linnet_status lnt_weights_need_grad(lnt_weights *w)
{
    if (!w->grad) LNT_TRY(lnt_device_alloc(w->c, (size_t)w->elements * 4, (void **)&w->grad));
    lnt_weights_zero_grad(w);
    return LINNET_OK;
}

void lnt_weights_zero_grad(lnt_weights *w) { lnt_device_zero(w->c, w->grad, (size_t)w->elements * 4); }

linnet_status lnt_weights_refresh(lnt_weights *w)
{
    if (w->work != w->master) lnt_f32_to_bf16_many(w->c, w->work, w->master, w->elements);
    return LINNET_OK;
}

/* Element i of a parameter: its draw takes Philox block i of the stream, so elements may be drawn in any order. */
static double draw(const lnt_param *q, uint64_t seed, uint64_t stream, int64_t i)
{
    lnt_rng r = {seed, stream, (uint64_t)i * 4};
    switch (q->init.kind) {
    case LNT_INIT_CONST: return q->init.a;
    case LNT_INIT_NORMAL: return q->init.a * lnt_rng_normal(&r);
    case LNT_INIT_UNIFORM: return q->init.a + (q->init.b - q->init.a) * lnt_rng_uniform(&r);
    case LNT_INIT_IDENTITY: {
        int64_t n = q->dim[q->ndim - 1];
        return i / n % q->dim[q->ndim - 2] == i % n;
    }
    case LNT_INIT_A_LOG: { /* U(0,16) includes numbers whose logarithm is far below any decay that matters; 1e-4 keeps it finite */
        double a = q->init.a + (q->init.b - q->init.a) * lnt_rng_uniform(&r);
        return log(a > 1e-4 ? a : 1e-4);
    }
    case LNT_INIT_DT_BIAS: { /* softplus^-1(dt) = dt + log(-expm1(-dt)) */
        double dt = exp(log(q->init.a) + (log(q->init.b) - log(q->init.a)) * lnt_rng_uniform(&r));
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
    float *host = lnt_alloc((size_t)most * 4);
    if (!host) return lnt_fail_memory(w->c, (size_t)most * 4);
    for (int i = 0; i < lnt_param_count(w->program); i++) {
        const lnt_param *q = lnt_param_at(w->program, i);
        uint64_t stream = lnt_stream_of(q->name);
#pragma omp parallel for num_threads(lnt_threads(w->c)) schedule(static)
        for (int64_t e = 0; e < q->count; e++) host[e] = (float)draw(q, seed, stream, e);
        lnt_to_device(w->c, w->master + q->offset, host, (size_t)q->count * 4);
    }
    lnt_free(host);
    return lnt_weights_refresh(w);
}
