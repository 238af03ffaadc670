#include "ops/rows.h"

/* The new values of n weights w from element i on, and at m_to and v_to those of their moments; the gradient becomes zero.
 * lr/(1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps): both bias corrections are factors that do not depend on the element. */
static inline vf updated(const lnt_adamw_args *a, int64_t i, int64_t n, vf w, float *m_to, float *v_to)
{
    vf g = v_get(a->g, LINNET_F32, i, n) * a->scale;
    vf m = v_get(a->m, a->kept, i, n) * a->b1 + g * a->one_b1, v = v_get(a->v, a->kept, i, n) * a->b2 + g * g * a->one_b2;
    v_put(m_to, LINNET_F32, 0, n, m);
    v_put(v_to, LINNET_F32, 0, n, v);
    if (a->zero) v_put(a->g, LINNET_F32, i, n, v_zero());
    return w - w * a->shrink - m * a->rate / (v_sqrt(v) * a->root + a->epsilon);
}

enum { PART = 64 };
typedef union { /* numbers that are to be rounded */
    float f[PART];
    uint32_t u[PART];
} part;

/* Without a master, or with moments in bf16: `first` is a multiple of 4, and a Philox block serves four elements. */
static void update_rounded(const lnt_adamw_args *a)
{
    const bool moments = a->kept == LINNET_BF16;
    lnt_bf16 *const m16 = a->m, *const v16 = a->v;
    for (int64_t at = 0; at < a->n; at += PART) {
        part w, m, v;
        const int64_t count = at_most(PART, a->n - at);
        V_EACH(i, n, count)
        {
            vf x = updated(a, at + i, n, a->w ? v_get(a->w, LINNET_F32, at + i, n) : v_get(a->work, LINNET_BF16, at + i, n),
                           moments ? m.f + i : (float *)a->m + at + i, moments ? v.f + i : (float *)a->v + at + i);
            v_put(a->w ? a->w + at : w.f, LINNET_F32, i, n, x);
            if (a->w && a->work) v_put(a->work, LINNET_BF16, at + i, n, x);
        }
        for (int64_t i = 0; i < count; i += 4) {
            const uint64_t block = (uint64_t)(a->first + at + i) / 4;
            const int64_t few = at_most(4, count - i);
            uint32_t words[4];
            if (!a->w) {
                lnt_philox(a->seed, a->stream, block, words);
                for (int64_t k = 0; k < few; k++) a->work[at + i + k] = lnt_round_bits(w.u[i + k], words[k]);
            }
            if (!moments) continue;
            lnt_philox(a->seed, a->moment_stream, block, words);
            for (int64_t k = 0; k < few; k++) {
                m16[at + i + k] = lnt_round_bits(m.u[i + k], words[k] << 16);
                v16[at + i + k] = lnt_round_bits(v.u[i + k], words[k]);
            }
        }
    }
}

void LNT_V(lnt_adamw)(const lnt_adamw_args *a)
{
    if (!a->w || a->kept == LINNET_BF16) {
        update_rounded(a);
        return;
    }
    V_EACH(i, n, a->n)
    {
        vf w = updated(a, i, n, v_get(a->w, LINNET_F32, i, n), (float *)a->m + i, (float *)a->v + i);
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
