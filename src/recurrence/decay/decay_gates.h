/* The gradient of scalar gates inside a chunk (operators.md#gate-gradients), by sums in which nothing is taken away again:
 *
 *   dg_t = <S',dS'> + sum_{i >= t} (reads_i - writes_i) + sum_{i >= t > j} M_ij          M = P . (dO V^T)
 *
 * where reads_i is q_i times what the start state gives dq_i, and writes_j k_j times what dS' gives dk_j, of which <S',dS'> has all. Rows of Q.dQ and
 * K.dK have the pairs on one side of a gate, too, each once, and their rounding would stay: in one chunk of 1500 tokens it was 1e-4 of dg_head
 * (decay.md). Only *_cpu.c files include this. */
#ifndef LNT_DECAY_GATES_H
#define LNT_DECAY_GATES_H

#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/chunk/chunk_triangle.h"

/* Rows of a chunk [C]: reads - writes; the pairs that stand around a row's gate; k.dk. */
typedef struct {
    float *dG, *pairs, *kdk;
} lnt_gates;

static inline void gates_carve(lnt_carve *c, int64_t C, lnt_gates *g)
{
    g->dG = lnt_carve_floats(c, C);
    g->pairs = lnt_carve_floats(c, C);
    g->kdk = lnt_carve_floats(c, C);
}

/* Rows of a chunk, in float32 or, as a left operand has them, in bf16. */
typedef struct {
    const float *x;
    const lnt_bf16 *x16;
    int64_t ld;
} lnt_gate_rows;
static inline float gate_row_dot(const lnt_gate_rows *r, int64_t i, const float *y, int64_t n)
{
    return r->x ? row_dot(r->x + i * r->ld, y, n) : row_dot16(r->x16 + i * r->ld, y, n);
}

/* Reads, from x = dO S^T, and pairs, from P, 0 above its diagonal, and Y = dO V^T [n,ld]. */
static inline void gates_read(lnt_blocks b, int64_t n, int64_t K, const float *P, const float *Y, int64_t ld, const float *read,
                              const lnt_gate_rows *q, const float *x, lnt_gates *g)
{
    memset(g->kdk, 0, (size_t)n * sizeof(float));
    for (int64_t i = n - 1; i >= 0; i--) {
        rows_awake(i);
        row_add_times(block_end(b, i, n), 1.0f, P + i * ld, Y + i * ld, g->kdk); /* kdk_j = sum_{l >= i} M_lj */
        g->pairs[i] = row_sum(g->kdk, i);
        g->dG[i] = read[i] * gate_row_dot(q, i, x + i * K, K);
    }
}

/* Writes, from what dS' gives dk but for factors `out` (NULL: none); their sum. */
static inline double gates_write(int64_t n, int64_t K, const lnt_gate_rows *k, const float *dk, const float *out, lnt_gates *g)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        rows_awake(j);
        const float writes = (out ? out[j] : 1.0f) * gate_row_dot(k, j, dk + j * K, K);
        g->dG[j] -= writes;
        g->kdk[j] += writes;
        sum += writes;
    }
    return sum;
}

#endif
