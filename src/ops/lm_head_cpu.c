/* Softmax cross entropy over rows of logits, and the soft cap. */
#include "ops/rows.h"

static inline vf capped(vf z, float cap) { return cap * v_tanh(z * (1.0f / cap)); }

/* One row: z is overwritten (by its capped self, or by its exponentials). */
static void row(const lnt_xent_args *a, int64_t r)
{
    float *z = a->z + r * a->ld;
    void *dz = a->dz ? (char *)a->dz + r * a->ld * (a->dz_type == LINNET_F32 ? 4 : 2) : NULL;
    const int32_t target = a->target[r];
    const float cap = (float)a->softcap;
    if (target < 0) {
        a->loss[r] = 0;
        if (dz) memset(dz, 0, (size_t)a->vocab * (a->dz_type == LINNET_F32 ? 4 : 2));
        return;
    }
    vf top = v_set(-INFINITY);
    V_EACH(i, n, a->vocab)
    {
        vf v = v_get(z, LINNET_F32, i, n);
        if (cap > 0) v_put(z, LINNET_F32, i, n, v = capped(v, cap));
        if (n == LNT_VL)
            top = v_max(v, top);
        else
            for (int64_t j = 0; j < n; j++) top[0] = v[j] > top[0] ? v[j] : top[0];
    }
    const float m = v_hmax(top), at_target = z[target];
    vf s = v_zero();
    V_EACH(i, n, a->vocab)
    {
        vf e = v_exp(v_get(z, LINNET_F32, i, n) - m);
        if (n < LNT_VL)
            for (int64_t j = n; j < LNT_VL; j++) e[j] = 0;
        s += e;
        if (dz && !(cap > 0)) v_put(z, LINNET_F32, i, n, e);
    }
    const float sum = v_sum(s), scale = a->scale / sum;
    a->loss[r] = logf(sum) + (m - at_target);
    if (!dz) return;
    V_EACH(i, n, a->vocab)
    {
        vf v = v_get(z, LINNET_F32, i, n);
        vf d = cap > 0 ? v_exp(v - m) * scale * (1.0f - v * v * (1.0f / (cap * cap))) : v * scale;
        v_put(dz, a->dz_type, i, n, d);
    }
    /* The target's own: p - 1 from the exact parts. */
    const float slope = cap > 0 ? 1.0f - at_target * at_target / (cap * cap) : 1.0f;
    v_put(dz, a->dz_type, target, 1, v_set((expf(at_target - m) * scale - a->scale) * slope));
}

void LNT_V(lnt_xent)(lnt_ctx *c, const lnt_xent_args *a)
{
    const int64_t size = rows_a_piece(a->vocab);
    PARALLEL_PIECES(c, p, pieces(a->rows, size))
        for (int64_t r = p * size; r < at_most(a->rows, (p + 1) * size); r++) row(a, r);
}

enum { PIECE = 16384 };

void LNT_V(lnt_softcap)(lnt_ctx *c, float *z, int64_t count, double cap)
{
    PARALLEL_PIECES(c, p, pieces(count, PIECE))
    {
        float *zp = z + p * PIECE;
        V_EACH(i, n, at_most(PIECE, count - p * PIECE)) v_put(zp, LINNET_F32, i, n, capped(v_get(zp, LINNET_F32, i, n), (float)cap));
    }
}

void LNT_V(lnt_softcap_back)(lnt_ctx *c, void *dz, lnt_dtype t, const float *dy, const float *y, int64_t count, double cap)
{
    const float f = cap > 0 ? (float)(1.0 / (cap * cap)) : 0.0f;
    PARALLEL_PIECES(c, p, pieces(count, PIECE))
    {
        const int64_t at = p * PIECE;
        V_EACH(i, n, at_most(PIECE, count - at))
        {
            vf v = v_get(y, LINNET_F32, at + i, n);
            v_put(dz, t, at + i, n, v_get(dy, LINNET_F32, at + i, n) * (1.0f - v * v * f));
        }
    }
}
