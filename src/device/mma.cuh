/* Tensor cores as every GPU since sm_80 has them: 8x8 matrices from shared memory to registers, the product of bf16 fragments with float32 sums, and
 * copies from global to shared memory that no register passes. Thin wrappers; which lane holds what is PTX's, written down here once.
 *
 * Letters: l = lane, r = l / 4, c = l % 4. One register holds two neighbouring bf16, the first in the low half.
 *   A [16 rows][16]   a0: row r, columns 2c 2c+1    a1: row r+8    a2: row r, columns 2c+8 2c+9    a3: row r+8, the same
 *   B [16][8 columns] b0: rows 2c 2c+1, column r    b1: rows 2c+8 2c+9
 *   D [16][8]         d0 d1: row r, columns 2c 2c+1    d2 d3: row r+8
 * So two D tiles side by side, packed, are an A of the next product (a0 a1 of the left, a2 a3 of the right), and the D of a transposed result [n][k]
 * is its B. */
#ifndef LNT_DEVICE_MMA_CUH
#define LNT_DEVICE_MMA_CUH

#include "device/cuda.cuh"

/* The address that ld/st.shared, ldmatrix and cp.async take. */
__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Two floats, rounded to nearest even, as one register: `low` in the low half. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&x;
}
__device__ __forceinline__ float low_bf16(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_bf16(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

/* ldmatrix: n matrices [8][8] of bf16; lane i hands in the address (16 bytes, aligned) of row i % 8 of matrix i / 8 (lanes beyond 8n are ignored).
 * Lane l gets, of matrix m in x[m], row r's columns 2c and 2c+1; `trans`: column r's rows 2c and 2c+1.
 * Row-major memory [m][k] read plainly gives A, [n][k] read plainly gives B; [k][n] with trans gives B, [k][m] with trans gives A. */
__device__ __forceinline__ void ldmatrix_x1(uint32_t (&x)[1], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x[0]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&x)[2], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t (&x)[1], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(x[0]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&x)[2], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* An 8x8 matrix of bf16 as a register of each lane has it (row r, columns 2c and 2c+1), transposed. */
__device__ __forceinline__ uint32_t movmatrix(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* d += A B, [16][8] += [16][16] [16][8]. */
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The B of 16 float32 numbers, a column: its first column has them as bf16, its second what is left of them, the others zeros, so that D's first two
 * columns add up to the product. Letters r and c are the lane's. */
__device__ __forceinline__ void column_as_two(uint32_t (&b)[2], const float *column, int r, int c)
{
    b[0] = b[1] = 0;
    if (r >= 2) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 y = *(const float2 *)(column + i * 8 + 2 * c);
        b[i] = pack_bf16(y.x, y.y);
        if (r) b[i] = pack_bf16(y.x - low_bf16(b[i]), y.y - high_bf16(b[i]));
    }
}

/* 16 bytes from global memory at `src` to shared memory at `dst`, both aligned to 16, past L1; zeros, and src unread, when `real` is false. */
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void *src, bool real = true)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(real ? 16 : 0) : "memory");
}
/* 4 or 8 bytes, aligned to as many. */
template <int BYTES> __device__ __forceinline__ void cp_async(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES) : "memory");
}
/* Copies so far become a group; wait until at most N of this thread's groups are under way. Other threads' copies need a barrier besides. */
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#endif
