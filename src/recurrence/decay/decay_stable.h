/* mLSTM on the machinery of scalar gates (operators.md#mlstm). States are kept times e^{-m}, m_t = max(f_t + m_{t-1}, i_t): a token decays them
 * by g_t = f_t + m_{t-1} - m_t, is written with e^{i_t - m_t}, and the 1 below which the denominator of the read-out does not fall is e^{-m_t}.
 * Whatever m is, the outputs are the same as long as these three are made of the same m. So m is rounded to float32 first, and they are made of what
 * it became: nothing drifts, however many tokens follow. Only decay_cpu.c and decay_step_cpu.c include this. */
#ifndef LNT_DECAY_STABLE_H
#define LNT_DECAY_STABLE_H

#include <float.h>

#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay_gates.h"

/* Of the rows of a chunk [C]: gates g, write strengths, floors; whether m is i there (1) or comes from the row before (0). Backward: m in front of
 * every chunk, and what S_0 has faded to there; dg [C]; pull [C], what the outputs give m through eps; m_grad, the gradient of m behind the rows at
 * hand when the states times e^m are not to move; moved, <S_0,dS_0> added up row by row, in room [K]. */
typedef struct {
    float m; /* behind the last row */
    float *gates, *write, *floor, *taken, *starts, *fades, *dgates, *pull, *room;
    double m_grad, moved;
} lnt_stable;

static inline void stable_carve(lnt_carve *c, int64_t C, int64_t K, int64_t chunks, bool backward, lnt_stable *s)
{
    s->gates = lnt_carve_floats(c, C);
    s->write = lnt_carve_floats(c, C);
    s->floor = lnt_carve_floats(c, C);
    s->taken = lnt_carve_floats(c, C);
    if (!backward) return;
    s->starts = lnt_carve_floats(c, chunks);
    s->fades = lnt_carve_floats(c, chunks);
    s->dgates = lnt_carve_floats(c, C);
    s->pull = lnt_carve_floats(c, C);
    s->room = lnt_carve_floats(c, K);
}

/* The gate of a token; *m, before it, becomes that behind it. No write to no state leaves m = 0. */
static inline float stable_gate(float f, float i, float *m, bool *taken)
{
    const float through = f + *m, before = *m;
    *taken = !(through > i);
    *m = *taken ? i : through;
    if (*m == -INFINITY) *m = 0;
    return (float)((double)f + before - *m);
}

/* What |scale n.q| is raised to; above 0, so that 0 / floor is 0 where e^{-m} is too small for a float. */
static inline float stable_floor(float exponential) { return exponential < FLT_MIN ? FLT_MIN : exponential; }
static inline float stable_denominator(float den, float floor, double eps) { return (fabsf(den) <= floor ? floor : fabsf(den)) + (float)eps; }

/* The rows of a chunk, and how they change D, unless it is NULL, and e^{b_n-b}. */
static inline void stable_rows(lnt_stable *s, int n, const float *f, const float *i, int64_t stride)
{
    for (int r = 0; r < n; r++) {
        rows_awake(r);
        bool taken;
        s->gates[r] = stable_gate(f[r * stride], i[r * stride], &s->m, &taken);
        s->taken[r] = taken;
        s->write[r] = i[r * stride] - s->m;
        s->floor[r] = -s->m;
    }
    row_exp(s->write, n);
    row_exp(s->floor, n);
    for (int r = 0; r < n; r++) s->floor[r] = stable_floor(s->floor[r]);
}
static inline void stable_writes(const lnt_stable *s, int64_t n, float *D, int64_t ld, float *out)
{
    for (int64_t r = 0; r < n && D; r++) {
        rows_awake(r);
        row_mul(D + r * ld, s->write, r + 1);
    }
    row_mul(out, s->write, n);
}

/* The gradient of a denominator from that of max(|den|, floor) + eps: the floor has none that is not m's. */
static inline float stable_reads(float den, float floor, float d) { return fabsf(den) <= floor ? 0.0f : copysignf(1.0f, den) * d; }

/* <S,dS> + <n,dn>: where m rises and the states stay, the states times e^m rise. */
static inline double stable_moved(const lnt_recur_args *a, const float *S, const float *dS, const float *z, const float *dz)
{
    return (double)row_dot(S, dS, (int64_t)a->K * a->V) + row_dot(z, dz, a->K);
}

/* A chunk's part of <S_0,dS_0>, sum_i fade read_i q_i.(S_0 do_i), S_0 transposed. Tiles round each of dS_0's terms, of which a hundredth may be left
 * (decay.md); these are in float32. Chunks that S_0 reaches with less than 2^-16 add nothing. */
static inline void stable_starts(lnt_stable *s, float fade, int64_t n, int64_t K, int64_t V, const float *read, const float *q, const float *S,
                                 const float *dO)
{
    if (fade < 0x1p-16f) return;
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        memset(s->room, 0, (size_t)K * sizeof(float));
        for (int64_t j = 0; j < V; j++) row_add(s->room, dO[i * V + j], S + j * K, K);
        s->moved += (double)(fade * read[i]) * row_dot(q + i * K, s->room, K);
    }
}

/* df and di of a token, dg and k.dk as long as m stands still, and what m has by now, which the outputs pull at: it goes to i if m is that, else to f
 * and on to the token before. */
static inline void stable_share(bool taken, float pull, double *m_grad, double *df, double *di)
{
    *m_grad += pull;
    *(taken ? di : df) += *m_grad;
    if (taken) *m_grad = 0;
}

/* Those of a chunk, `last` = <S',dS'> + <n',dn'>. */
static inline void stable_gradient(const lnt_head *x, lnt_rows c, double last, const lnt_gates *g, lnt_stable *s)
{
    const lnt_recur_args *a = x->a;
    const int64_t at = c.first * a->Hv + x->h;
    if (c.row + c.n == x->len) s->m_grad -= last; /* the states behind the last token fall where m rises */
    LNT_V(lnt_chunk_gate_grad)(c.n, last, g->dG, g->pairs, s->gates, s->dgates, 1);
    for (int64_t r = c.n - 1; r >= 0; r--) {
        double df = s->dgates[r], di = g->kdk[r];
        stable_share(s->taken[r] != 0, s->pull[r], &s->m_grad, &df, &di);
        if (a->di) ((float *)a->di)[at + r * a->Hv] = (float)di;
        if (a->dg) ((float *)a->dg)[at + r * a->Hv] = (float)df;
    }
}

#endif
