#include "ops/rows.h"

/* The new values of n weights w from element i on; moments are written, the gradient becomes zero.
 * lr/(1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps): both bias corrections are factors that do not depend on the element. */
static inline vf updated(const lnt_adamw_args *a, int64_t i, int64_t n, vf w)
{
    vf g = v_get(a->g, LINNET_F32, i, n) * a->scale;
    vf m = v_get(a->m, LINNET_F32, i, n) * a->b1 + g * a->one_b1, v = v_get(a->v, LINNET_F32, i, n) * a->b2 + g * g * a->one_b2;
    v_put(a->m, LINNET_F32, i, n, m);
    v_put(a->v, LINNET_F32, i, n, v);
    if (a->zero) v_put(a->g, LINNET_F32, i, n, v_zero());
    return w - w * a->shrink - m * a->rate / (v_sqrt(v) * a->root + a->epsilon);
}

/* Without a master: `first` is a multiple of 4, and a Philox block serves four elements. */
static void update_rounded(const lnt_adamw_args *a)
{
    enum { PART = 64 };
    for (int64_t at = 0; at < a->n; at += PART) {
        union {
            float f[PART];
            uint32_t u[PART];
        } w;
        const int64_t count = at_most(PART, a->n - at);
        V_EACH(i, n, count) v_put(w.f, LINNET_F32, i, n, updated(a, at + i, n, v_get(a->work, LINNET_BF16, at + i, n)));
        for (int64_t i = 0; i < count; i += 4) {
            uint32_t words[4];
            lnt_philox(a->seed, a->stream, (uint64_t)(a->first + at + i) / 4, words);
            for (int64_t k = 0; k < at_most(4, count - i); k++) a->work[at + i + k] = lnt_round_bits(w.u[i + k], words[k]);
        }
    }
}

void LNT_V(lnt_adamw)(const lnt_adamw_args *a)
{
    if (!a->w) {
        update_rounded(a);
        return;
    }
    V_EACH(i, n, a->n)
    {
        vf w = updated(a, i, n, v_get(a->w, LINNET_F32, i, n));
        v_put(a->w, LINNET_F32, i, n, w);
        if (a->work) v_put(a->work, LINNET_BF16, i, n, w);
    }
}

double LNT_V(lnt_square_sum)(const float *x, int64_t count)
{
    enum { SHORT = 2048 }; /* squares added in float32 before they go to double */
    double total = 0;
    for (int64_t at = 0; at < count; at += SHORT) {
        vf s = v_zero();
        V_EACH(i, n, at_most(SHORT, count - at))
        {
            vf v = v_get(x + at, LINNET_F32, i, n);
            s += v * v;
        }
        total += (double)v_sum(s);
    }
    return total;
}
