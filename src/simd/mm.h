/* Products of small matrices that sit in a core's cache: the inner loop of every chunk kernel. One thread, no allocation, no packing of the caller's data
 * that the caller did not ask for. Compiled for every CPU variant; only *_cpu.c files include this.
 *
 *   C[M,N] = / += / -=  A[M,K] B[K,N]
 *
 * A(i,k) is a[i*a_rs + k*a_cs] (so a transposed A costs nothing), B and C are row major with leading dimensions ldb, ldc. Any M, N, K >= 0. */
#ifndef LNT_SIMD_MM_H
#define LNT_SIMD_MM_H

#include "simd/simd.h"

typedef enum { LNT_MM_SET, LNT_MM_ADD, LNT_MM_SUB } lnt_mm_mode;

/* float32 throughout. */
void LNT_V(lnt_mm)(lnt_mm_mode mode, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c, int64_t ldc);

/* C(i,:) = scale[i*scale_stride] C(i,:) + (A B)(i,:): a decayed state takes a write. Stride 0: one factor for all rows. */
void LNT_V(lnt_mm_scaled)(const float *scale, int64_t scale_stride, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b,
                          int64_t ldb, float *c, int64_t ldc);

/* y[N,M] = x[M,N]^T. */
void LNT_V(lnt_transpose)(int M, int N, const float *x, int64_t ldx, float *y, int64_t ldy);

#endif
