/* Scalar decays with a sign, a_i = sign_i e^{g_i} with sign_i from -1 to 1 (operators.md#decays-with-a-sign). Inside a chunk a product of decays is
 * that of their sizes times +1 or -1; the gradients of g and sign come from sums that leave a_i out, so that they are finite, and exact, where it is
 * 0. Only *_cpu.c files include this. */
#ifndef LNT_CHUNK_SIGNED_H
#define LNT_CHUNK_SIGNED_H

#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"

/* gates_i = log |a_i|; -inf where a decay is 0, which is a reset. */
static inline void signed_gates(int n, const float *g, const float *sign, int64_t stride, float *gates)
{
    for (int i = 0; i < n; i++) gates[i] = g[i * stride] + logf(fabsf(sign[i * stride]));
}

/* The factors that lnt_chunk_decay made of these gates take the signs of what they are products of. room [n]. */
static inline void signed_turn(int n, const float *sign, int64_t stride, float *mask, int64_t ld, float *from_start, float *to_end, float *room)
{
    for (int i = 0; i < n; i++) room[i] = sign[i * stride] < 0 ? -1.0f : 1.0f;
    for (int i = 1; i < n; i++) room[i] *= room[i - 1];
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        row_times(i + 1, room[i], room, mask + i * ld, mask + i * ld);
    }
    row_mul(from_start, room, n);
    row_times(n, room[n - 1], room, to_end, to_end);
}

/* What an output of the chunk, or what goes on behind it, takes from what stands before: pairs_ij, row i's from row j <= i [n,ld]; reads_i, row i's
 * from the start state; writes_j, the end's from row j; both, the end's from the start; all without decays. Then a_t's gradient is the sum over those
 * that it stands between of what the other decays leave,
 *
 *   da_t = sum_{i >= t} D_it u_it,   u_i0 = reads_i,   u_i,t+1 = a_t u_it + pairs_it,      the end being one more row, with to_end in place of D_it,
 *
 * dg_t = a_t da_t, dsign_t = e^{g_t} da_t. */
typedef struct {
    float *pairs, *reads, *writes, *gates, *room; /* [C,C], [C] */
    double both;
} signed_sums;

static inline void signed_carve(lnt_carve *c, int64_t C, bool backward, signed_sums *s)
{
    s->gates = lnt_carve_floats(c, C);
    s->room = lnt_carve_floats(c, C);
    if (!backward) return;
    s->pairs = lnt_carve_floats(c, C * C);
    s->reads = lnt_carve_floats(c, C);
    s->writes = lnt_carve_floats(c, C);
}

/* What a read-out S^T q takes: pairs are q_i.k_j by now, Y_ij what q_i.k_j was multiplied with, x_i what the start state gives q_i. */
static inline void signed_reads(signed_sums *s, int64_t n, int64_t ld, float scale, const float *Y, int64_t K, const float *q, const float *x,
                                double both)
{
    s->both = both;
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        row_times(i + 1, scale, Y + i * ld, s->pairs + i * ld, s->pairs + i * ld);
        s->reads[i] = scale * row_dot(q + i * K, x + i * K, K);
    }
}

/* mask and to_end are the chunk's, dg and dsign may be NULL; stride: of the four rows [n]. */
static inline void signed_gradient(const signed_sums *s, int n, const float *mask, int64_t ld, const float *to_end, const float *g, const float *sign,
                                   int64_t stride, float *dg, float *dsign)
{
    float *sizes = s->gates, *da = s->room;
    for (int i = 0; i < n; i++) {
        sizes[i] = g[i * stride];
        da[i] = 0.0f;
    }
    row_exp(sizes, n);
    for (int i = 0; i <= n; i++) { /* row n is the end */
        const float *D = i < n ? mask + i * ld : to_end, *pairs = i < n ? s->pairs + i * ld : s->writes;
        float u = i < n ? s->reads[i] : (float)s->both;
        for (int t = 0; t < n && t <= i; t++) {
            da[t] += D[t] * u;
            u = sign[t * stride] * sizes[t] * u + pairs[t];
        }
    }
    for (int i = 0; i < n; i++) {
        if (dg) dg[i * stride] = sign[i * stride] * sizes[i] * da[i];
        if (dsign) dsign[i * stride] = sizes[i] * da[i];
    }
}

#endif
