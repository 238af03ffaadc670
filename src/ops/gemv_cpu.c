/* Products with few rows (decoding: 1..8 tokens; projections onto a few heads), and the conversions around mixed products. */
#include "ops/rows.h"

/* As v_get, and int8. */
static inline vf get(const void *p, lnt_dtype t, int64_t i, int64_t n)
{
    if (t != LINNET_I8) return v_get(p, t, i, n);
    const int8_t *b = (const int8_t *)p + i;
    if (n == LNT_VL) return v_load_i8(b);
    vf r = v_zero();
    for (int64_t j = 0; j < n; j++) r[j] = b[j];
    return r;
}

static inline int64_t size_of(lnt_dtype t) { return t == LINNET_F32 ? 4 : t == LINNET_I8 ? 1 : 2; }

/* R rows of x against W rows of w at once: R*W accumulators, every weight is read once. A sum has the same bits for every R and W. */
INLINE void rows_block(const lnt_gemv_args *g, int64_t n, const int R, const int W)
{
    vf acc[16];
    for (int i = 0; i < R * W; i++) acc[i] = v_zero();
    const int64_t bytes = size_of(g->w_type);
    V_EACH(k, m, g->K)
    {
        vf w[4];
        for (int j = 0; j < W; j++) w[j] = get((const char *)g->w + (n + j) * g->ldw * bytes, g->w_type, k, m);
        for (int r = 0; r < R; r++) {
            vf x = m == LNT_VL ? v_load(g->x + r * g->K + k) : v_load_n(g->x + r * g->K + k, m);
            for (int j = 0; j < W; j++) acc[r * W + j] = v_fma(x, w[j], acc[r * W + j]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < W; j++) {
            float s = g->alpha * v_sum(acc[r * W + j]) * (g->w_scale ? g->w_scale[n + j] : 1.0f);
            int64_t at = r * g->y_rs + (n + j) * g->y_cs;
            if (g->y_type == LINNET_F32) {
                float *y = (float *)g->y + at;
                *y = g->add ? *y + s : s;
            } else {
                lnt_bf16 *y = (lnt_bf16 *)g->y + at;
                *y = lnt_f32_to_bf16(g->add ? lnt_bf16_to_f32(*y) + s : s);
            }
        }
}

#define ROWS(R, W)                                                                                                                 \
    case R:                                                                                                                        \
        for (; n + W <= n1; n += W) rows_block(g, n, R, W);                                                                        \
        for (; n < n1; n++) rows_block(g, n, R, 1);                                                                                \
        break

void LNT_V(lnt_gemv)(const lnt_gemv_args *g, int64_t n0, int64_t n1)
{
    int64_t n = n0;
    switch (g->R) {
        ROWS(1, 4);
        ROWS(2, 4);
        ROWS(3, 4);
        ROWS(4, 4);
        ROWS(5, 2);
        ROWS(6, 2);
        ROWS(7, 2);
        ROWS(8, 2);
    }
}

void LNT_V(lnt_widen)(float *dst, const void *src, lnt_dtype t, int64_t rows, int64_t cols, int64_t ld, const float *scale)
{
    for (int64_t r = 0; r < rows; r++) {
        const void *s = (const char *)src + r * ld * size_of(t);
        if (scale) V_EACH(i, n, cols) v_put(dst + r * cols, LINNET_F32, i, n, scale[r] * get(s, t, i, n));
        else V_EACH(i, n, cols) v_put(dst + r * cols, LINNET_F32, i, n, get(s, t, i, n));
    }
}

void LNT_V(lnt_narrow)(void *dst, lnt_dtype t, int64_t ldd, const float *src, int64_t rows, int64_t cols, bool add)
{
    for (int64_t r = 0; r < rows; r++) {
        void *d = (char *)dst + r * ldd * (t == LINNET_F32 ? 4 : 2);
        V_EACH(i, n, cols) v_out(d, t, i, n, v_get(src + r * cols, LINNET_F32, i, n), add);
    }
}
