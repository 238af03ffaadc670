/* What the row kernels share: typed vector loads and stores, row addresses, pieces of work, and a few functions of vectors.
 * Only *_cpu.c files include this. */
#ifndef LNT_OPS_ROWS_H
#define LNT_OPS_ROWS_H

#include "core/threads.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "simd/simd.h"

/* Elements i .. i+n-1 (n <= LNT_VL) of an array of f32 or bf16; the lanes beyond n read as 0 and are not written. */
static inline vf v_get(const void *p, lnt_dtype t, int64_t i, int64_t n)
{
    if (t == LINNET_F32) return n == LNT_VL ? v_load((const float *)p + i) : v_load_n((const float *)p + i, n);
    const lnt_bf16 *h = (const lnt_bf16 *)p + i;
    if (n == LNT_VL) return v_load_bf16(h);
    vf r = v_zero();
    for (int64_t j = 0; j < n; j++) r[j] = lnt_bf16_to_f32(h[j]);
    return r;
}

static inline void v_put(void *p, lnt_dtype t, int64_t i, int64_t n, vf x)
{
    if (t == LINNET_F32) {
        if (n == LNT_VL)
            v_store((float *)p + i, x);
        else
            v_store_n((float *)p + i, x, n);
        return;
    }
    lnt_bf16 *h = (lnt_bf16 *)p + i;
    if (n == LNT_VL)
        v_store_bf16(h, x);
    else
        v_store_bf16_n(h, x, n);
}

/* Store, or add to what is there. */
static inline void v_out(void *p, lnt_dtype t, int64_t i, int64_t n, vf x, bool add) { v_put(p, t, i, n, add ? v_get(p, t, i, n) + x : x); }

/* for (i, n): whole vectors of 0 .. count, then the rest. */
#define V_EACH(i, n, count) for (int64_t i = 0, n; n = (count) - i < LNT_VL ? (count) - i : LNT_VL, i < (count); i += LNT_VL)

static inline void *row_at(const lnt_tensor *x, int64_t r)
{
    return (char *)x->data + r * x->ld * (x->dtype == LINNET_F32 ? 4 : 2);
}
/* `count` columns from column `at` on of a row. */
static inline void *part_at(const lnt_tensor *x, int64_t r, int64_t at)
{
    return (char *)x->data + (r * x->ld + at) * (x->dtype == LINNET_F32 ? 4 : 2);
}

/* Rows a piece of work takes so that it has about 16384 elements: some microseconds, above the cost of handing it to a thread. */
static inline int64_t rows_a_piece(int64_t cols) { return cols >= 16384 ? 1 : 16384 / (cols > 0 ? cols : 1); }
static inline int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

/* for the rows r0 .. r1-1 of each piece, in parallel. */
#define PRAGMA(x) _Pragma(#x)
#define PARALLEL_PIECES(c, piece, count)                                                                                           \
    PRAGMA(omp parallel for schedule(dynamic, 1) num_threads(lnt_threads(c)) if ((count) > 1))                                      \
    for (int64_t piece = 0; piece < (count); piece++)

/* grad[n] += sum over blocks, in order, of work[blocks, n]. */
static inline void add_blocks(lnt_ctx *c, float *grad, const float *work, int64_t blocks, int64_t n)
{
    PARALLEL_PIECES(c, p, pieces(n, 256))
    {
        int64_t end = at_most(n, (p + 1) * 256);
        for (int64_t i = p * 256; i < end; i += LNT_VL) {
            int64_t m = at_most(LNT_VL, end - i);
            vf s = v_zero();
            for (int64_t b = 0; b < blocks; b++) s += v_get(work + b * n, LINNET_F32, i, m);
            v_out(grad, LINNET_F32, i, m, s, true);
        }
    }
}

/* ---- functions ---------------------------------------------------------------------------------------------------------------- */

/* log(1 + u) for 0 <= u <= 1: 2 artanh(z), z = u/(2+u) <= 1/3, odd series to z^15 (remainder below 2e-9 relative). */
static inline vf v_log1p_unit(vf u)
{
    vf z = u / (u + 2.0f), w = z * z;
    vf p = v_set(1.0f / 15);
    p = p * w + 1.0f / 13;
    p = p * w + 1.0f / 11;
    p = p * w + 1.0f / 9;
    p = p * w + 1.0f / 7;
    p = p * w + 1.0f / 5;
    p = p * w + 1.0f / 3;
    p = p * w + 1.0f;
    return 2.0f * z * p;
}

/* log(1 + e^x) without overflow; e^-|x| <= 1. */
static inline vf v_softplus(vf x) { return v_max(x, v_zero()) + v_log1p_unit(v_exp(-v_abs(x))); }

/* tanh: Taylor to x^9 below 1/4 (remainder 1e-8 relative), (1-e)/(1+e) with e = e^-2|x| above. */
static inline vf v_tanh(vf x)
{
    vf a = v_abs(x), s = x * x;
    vf p = v_set(62.0f / 2835);
    p = p * s - 17.0f / 315;
    p = p * s + 2.0f / 15;
    p = p * s - 1.0f / 3;
    vf small = x + x * s * p;
    vf e = v_exp(v_max(v_set(-80.0f), -2.0f * a)), big = (1.0f - e) / (1.0f + e);
    vf y = v_select(a < v_set(0.25f), small, v_select(x < v_zero(), -big, big));
    return v_select(x == x, y, x);
}

/* e^x - 1: Taylor to x^9 below 1/2 (remainder 6e-10 relative), above by the exponential, which loses less than half its accuracy there. */
static inline vf v_expm1(vf x)
{
    vf p = v_set(1.0f / 362880);
    p = p * x + 1.0f / 40320;
    p = p * x + 1.0f / 5040;
    p = p * x + 1.0f / 720;
    p = p * x + 1.0f / 120;
    p = p * x + 1.0f / 24;
    p = p * x + 1.0f / 6;
    p = p * x + 0.5f;
    p = p * x + 1.0f;
    return v_select(v_abs(x) < v_set(0.5f), p * x, v_exp(x) - 1.0f);
}

/* Phi(x), the normal distribution, and *density = e^(-x^2/2). With z = |x|/sqrt(2) and t = 1/(1 + z/2): erfc(z) = t e^(-z^2) P(t), P fitted on
 * z = 0 .. 8 by Chebyshev nodes (3e-8 relative; beyond, where Phi < 1e-28, 1e-6). */
static inline vf v_normal(vf x, vf *density)
{
    const vf z = v_abs(x), t = 1.0f / (1.0f + 0.353553391f * z), e = v_exp(-0.5f * x * x);
    vf p = v_set(0.024768129f);
    p = p * t - 0.190226287f;
    p = p * t + 0.584172368f;
    p = p * t - 0.873630762f;
    p = p * t + 0.587364852f;
    p = p * t - 0.185485855f;
    p = p * t + 0.254903048f;
    p = p * t + 0.232537583f;
    p = p * t + 0.283567637f;
    p = p * t + 0.282029301f;
    const vf tail = 0.5f * t * e * p;
    *density = e;
    return v_select(x < v_zero(), tail, 1.0f - tail);
}

/* sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): the factor of x in the tanh form of GELU.
 * Beyond 80 it is 1 either way; e^-87 to e^-104 would be subnormal numbers, each an assist of 150 cycles. */
static inline vf v_gelu_gate(vf x) { return v_sigmoid(v_min(v_set(80.0f), 1.59576912f * x * (1.0f + 0.044715f * x * x))); }

/* (The sigmoid by a reciprocal estimate and a Newton step instead of a division: tried, 5% slower; e^x covers the division's latency.) */
static inline vf v_act(vf x, lnt_act act)
{
    switch (act) {
    case LNT_SILU: return x * v_sigmoid(x);
    case LNT_SIGMOID: return v_sigmoid(x);
    case LNT_RELU: return v_select(x < v_zero(), v_zero(), x); /* NaN stays */
    case LNT_ELU1: return v_select(x > v_zero(), x + 1.0f, v_exp(x));
    case LNT_LOG_SIGMOID: return -v_softplus(-x);
    case LNT_TANH: return v_tanh(x);
    case LNT_GELU: return x * v_normal(x, &(vf){0});
    case LNT_GELU_TANH: return x * v_gelu_gate(x);
    case LNT_SQUARED_RELU: x = v_act(x, LNT_RELU); return x * x;
    case LNT_EXP: return v_exp(x);
    case LNT_SOFTPLUS: return v_softplus(x);
    case LNT_ONE_MINUS_EXP: return -v_expm1(x);
    case LNT_SQRT: return v_sqrt(x);
    case LNT_RECIPROCAL: return 1.0f / x;
    case LNT_IDENTITY: break;
    }
    return x;
}

/* The derivative; *y becomes act(x) too. */
static inline vf v_act_slope(vf x, lnt_act act, vf *y)
{
    vf s;
    switch (act) {
    case LNT_SILU:
        s = v_sigmoid(x);
        *y = x * s;
        return s + *y * (1.0f - s);
    case LNT_SIGMOID:
        s = *y = v_sigmoid(x);
        return s * (1.0f - s);
    case LNT_RELU:
        *y = v_act(x, LNT_RELU);
        return v_select(x > v_zero(), v_set(1.0f), v_zero());
    case LNT_ELU1:
        *y = v_act(x, LNT_ELU1);
        return v_select(x > v_zero(), v_set(1.0f), *y);
    case LNT_LOG_SIGMOID:
        *y = -v_softplus(-x);
        return v_sigmoid(-x);
    case LNT_TANH:
        s = *y = v_tanh(x);
        return 1.0f - s * s;
    case LNT_GELU: {
        vf density, phi = v_normal(x, &density);
        *y = x * phi;
        return phi + 0.398942280f * x * density;
    }
    case LNT_GELU_TANH: { /* beyond |x| = 20 the gate is 0 or 1: a cube that overflows may not meet its slope */
        vf near = v_max(v_min(x, v_set(20.0f)), v_set(-20.0f));
        s = v_gelu_gate(x);
        *y = x * s;
        return s + near * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * near * near);
    }
    case LNT_SQUARED_RELU:
        s = v_act(x, LNT_RELU);
        *y = s * s;
        return 2.0f * s;
    case LNT_EXP: return *y = v_exp(x);
    case LNT_SOFTPLUS:
        *y = v_softplus(x);
        return v_sigmoid(x);
    case LNT_ONE_MINUS_EXP:
        *y = -v_expm1(x);
        return -v_exp(x);
    case LNT_SQRT:
        *y = v_sqrt(x);
        return 0.5f / *y;
    case LNT_RECIPROCAL:
        s = *y = 1.0f / x;
        return -s * s;
    case LNT_IDENTITY: break;
    }
    *y = x;
    return v_set(1.0f);
}

#endif
