/* The algebra that chunked cores share: decay masks, the unit-triangular solve, gate gradients. Equations: operators.md#gates, #chunks.
 *
 * A chunk is n <= C consecutive tokens of one head. Everything is float32 and dense; one thread; no allocation. Only *_cpu.c files include this. */
#ifndef LNT_RECURRENCE_CHUNK_H
#define LNT_RECURRENCE_CHUNK_H

#include "simd/mm.h"

/* Scratch handed out front to back in pieces of 64 bytes. With base = NULL it only measures. */
typedef struct {
    char *base;
    size_t used;
} lnt_carve;

static inline void *lnt_carve_bytes(lnt_carve *w, size_t bytes)
{
    void *p = w->base ? w->base + w->used : NULL;
    w->used += (bytes + 63) / 64 * 64;
    return p;
}
static inline float *lnt_carve_floats(lnt_carve *w, int64_t n) { return lnt_carve_bytes(w, (size_t)n * sizeof(float)); }

/* The factors of a scalar gate inside a chunk, from g_i = g[i*stride] (NULL: no gate), G = inclusive sums of g:
 *   mask[i,j] = e^{G_i - G_j} for j <= i, 0 above      from_start[i] = e^{G_i}      to_end[i] = e^{G_last - G_i}
 * The state's own decay over the chunk is from_start[n-1]. Exponents are sums of the gates between i and j, built row by row, never differences of
 * cumulative sums: no cancellation, and g = -inf is an exact 0 for every pair that it separates. (On tiles, which round them, products of two
 * exponentials where no sum is beyond 40.) */
void LNT_V(lnt_chunk_decay)(int n, const float *g, int64_t stride, float *mask, int64_t ld, float *from_start, float *to_end);

/* (I + A) X = B, or (I + A)^T X = B, in place of B[n,ldb], `cols` right-hand sides. Reads a[n,lda] strictly below the diagonal only. Substitution
 * inside blocks of 16 rows (8 where there are 16 registers), whose rows stay in registers; products between blocks. */
void LNT_V(lnt_chunk_solve)(bool transposed, int n, int cols, const float *a, int64_t lda, float *b, int64_t ldb);

/* dg from dG, the gradient with respect to the inclusive sums (operators.md#gate-gradients): dg_i = last + sum_{l >= i} dG_l + pairs_i, and 0 where
 * e^g is. Returns their sum. pairs == NULL: they are in dG; g == NULL: no token's gate is 0; dg == NULL: not wanted. */
double LNT_V(lnt_chunk_gate_grad)(int n, double last, const float *dG, const float *pairs, const float *g, float *dg, int64_t stride);

#endif
