/* What every CUDA file includes: the house's headers as C, the device's inside, and the few helpers that all kernels share.
 * Only .cu files include this; nothing of CUDA is seen by the C files. */
#ifndef LNT_DEVICE_CUDA_CUH
#define LNT_DEVICE_CUDA_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "core/dtype.h"
#include "core/memory.h"
#include "core/status.h"
#include "device/device.h"
}

/* ---- the device ---------------------------------------------------------------------------------------------------------------- */

struct lnt_cuda {
    lnt_device base; /* first: an lnt_device * is one of these */
    int index;
    cudaStream_t stream;
    bool owns_stream;
    cublasLtHandle_t lt;
    void *lt_work;       /* scratch of products, LT_WORK bytes */
    void *bounce;        /* pinned host memory, LNT_BOUNCE bytes: what the device hands back in small pieces */
    void *gemm_picks;    /* ops/gemm_cuda.cu: cuBLASLt's choices by shape; NULL until the first product, lnt_free */
    void *fft_plans;     /* fft_cuda.cu; NULL until the first transform */
    cudaError_t failed;  /* the first failure since lnt_device_check */
    cudaEvent_t marks[2], flags[2];
    char name[256];
};
enum { LNT_LT_WORK = 32 << 20, LNT_BOUNCE = 4096 };

static inline lnt_cuda *lnt_cuda_of(const lnt_ctx *c) { return (lnt_cuda *)lnt_device_of(c); }
static inline cudaStream_t lnt_stream(const lnt_ctx *c) { return lnt_cuda_of(c)->stream; }
static inline void lnt_cuda_note(lnt_cuda *d, cudaError_t e)
{
    if (e != cudaSuccess && d->failed == cudaSuccess) d->failed = e;
}

static inline int64_t lnt_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- launches that overlap ---------------------------------------------------------------------------------------------------------
 * A kernel put by lnt_launch may begin while the one put before it is still running, as soon as all blocks of that one have called let_next or ended:
 * what a launch takes, and loads of constants, then cost nothing. So it calls
 *   await_last   before it reads what a kernel ahead may have written, and before it writes anything: from there on every kernel ahead is done.
 *                Every block calls it, or a third kernel could overtake the first; prefetches into L2 may stand before it, whatever they read;
 *   let_next     once all its blocks may share the multiprocessors with those that follow: at the beginning, unless that takes memory from itself.
 * Weights may be read before await_last: whatever writes weights never calls let_next. So may a node's state, by the one kernel of a run that writes
 * it: a run of a plan begins behind all work before it (as a graph, or with a copy to the device: lnt_plan_run), so that whatever may still be
 * running ahead of a kernel is of its own run. Kernels put by <<<>>> are ordered as ever. */

#ifdef __CUDACC__
__device__ __forceinline__ void await_last()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The 128 bytes around p into L2; nothing waits for them. */
__device__ __forceinline__ void ahead_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* 16 bytes of a kernel's own parameters (__grid_constant__), at any index. They lie in global memory, and so read many are under way at once; the
 * constant cache waits for memory at every line that is new to it, and those of a launch are. */
__device__ __forceinline__ uint4 read_parameter(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* Blocks of a cluster (Hopper). All threads of all its blocks: behind cluster_wait every block has come to its cluster_arrive, with the barriers that
 * it has made. Nothing else is released by it: that is a fence of the whole GPU, which waits for all that the block has under way. */
__device__ __forceinline__ void cluster_arrive()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/* What blocks send each other comes with a barrier (8 bytes, aligned) in the receiving block's shared memory: made by one thread, ahead of
 * cluster_arrive; for every phase one thread says how many bytes are to come; cluster_await for phase 0, 1, 0, ... of its parity. */
__device__ __forceinline__ void cluster_barrier(uint32_t barrier)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void cluster_expect(uint32_t barrier, uint32_t bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/* x to `address`, a multiple of its size, in block `rank`: addresses as this block would name its own. */
__device__ __forceinline__ void cluster_send(uint32_t address, uint32_t barrier, int rank, float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2; "
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [a], %3, [b]; }" ::"r"(address),
                 "r"(barrier), "r"(rank), "f"(x)
                 : "memory");
#endif
}
__device__ __forceinline__ void cluster_send(uint32_t address, uint32_t barrier, int rank, float4 x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2; "
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [a], {%3, %4, %5, %6}, [b]; }" ::"r"(address),
                 "r"(barrier), "r"(rank), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
#endif
}
__device__ __forceinline__ void cluster_await(uint32_t barrier, uint32_t parity)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
#endif
}

/* Clusters of `cluster` blocks (1: none), `shared` bytes of dynamic shared memory. */
template <typename... P, typename... A>
static inline void lnt_launch_with(const lnt_cuda *d, void (*kernel)(P...), dim3 blocks, int threads, size_t shared, int cluster, const A &...args)
{
    cudaLaunchAttribute attribute[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = dim3((unsigned)threads), config.dynamicSmemBytes = shared, config.stream = d->stream;
    config.attrs = attribute;
    if (d->base.capability >= 90) {
        attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[0].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
    }
    if (cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs++].val.clusterDim = {(unsigned)cluster, 1, 1};
    }
    if (shared > 32 << 10) /* more than 48 KB with what the kernel declares itself has to be asked for, on each device */
        lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    lnt_cuda_note((lnt_cuda *)d, cudaLaunchKernelEx(&config, kernel, args...));
}
template <typename... P, typename... A>
static inline void lnt_launch(const lnt_cuda *d, void (*kernel)(P...), dim3 blocks, int threads, const A &...args)
{
    lnt_launch_with(d, kernel, blocks, threads, 0, 1, args...);
}
#endif

/* ---- elements ------------------------------------------------------------------------------------------------------------------- */

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

/* N neighbouring elements as one access of up to 16 bytes: p is aligned to N elements. */
template <typename T, int N> struct alignas(sizeof(T) * N) lnt_pack {
    T x[N];
};
template <int N, typename T> __device__ __forceinline__ void load_pack(float (&out)[N], const T *p)
{
    const lnt_pack<T, N> v = *(const lnt_pack<T, N> *)p;
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = to_float(v.x[i]);
}
template <int N, typename T> __device__ __forceinline__ void store_pack(T *p, const float (&in)[N])
{
    lnt_pack<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = from_float<T>(in[i]);
    *(lnt_pack<T, N> *)p = v;
}

/* Sum (largest) over the lanes of a warp, the same bits in every lane. */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

/* Call F<T> for the type of a tensor: LNT_BY_TYPE(t, T, statement that uses T). */
#define LNT_BY_TYPE(type, T, ...)                                                                                                  \
    do {                                                                                                                           \
        if ((type) == LINNET_F32) {                                                                                                \
            using T = float;                                                                                                       \
            __VA_ARGS__;                                                                                                           \
        } else {                                                                                                                   \
            using T = bf16;                                                                                                        \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
    } while (0)

#endif
