/* Matrix products of any size on the device, through oneDNN on the CPU: our own threads over tiles whose cut does not depend on the thread count,
 * oneDNN single-threaded inside a tile (its own threading loses on small products and changes the bits with the thread count).
 *
 *   C[M,N] = alpha op(A) op(B) + beta C,   op = identity or transpose, row major, leading dimensions in elements.
 *
 * A and B share a dtype (f32 or bf16); C is f32 or bf16; sums in float32. beta is 0 or 1.
 *
 * Where the context says so (lnt_rows_alone), the bits of a row of C depend on that row of A, on B and on K alone: A as it is times B transposed, on
 * the CPU. Up to 8 rows they do so anyway, and have the same bits.
 *
 * With b_scale, which goes with B transposed, on the CPU, B is int8 and its row n stands for b_scale[n] times as much; A may have either type. */
#ifndef LNT_OPS_GEMM_H
#define LNT_OPS_GEMM_H

#include "core/dtype.h"
#include "core/status.h"

typedef struct {
    bool trans_a, trans_b;
    bool weights; /* B is weights, which nothing that runs just before the product writes: they may be read early */
    int64_t M, N, K;
    float alpha, beta;
    lnt_dtype ab, c;
    const void *a, *b;
    const float *b_scale;
    void *C;
    int64_t lda, ldb, ldc;
} lnt_gemm_args;

/* LINNET_EINTERNAL when oneDNN refuses. The first call on a new shape may build a primitive; later ones allocate nothing. */
linnet_status lnt_gemm(lnt_ctx *c, const lnt_gemm_args *g);
/* The same by cuBLASLt; what lnt_gemm calls on a GPU. */
linnet_status lnt_gemm_cuda(lnt_ctx *c, const lnt_gemm_args *g);

#endif
