/* A GPU on a CPU, for machines without one: included ahead of each translated .cu file (translate.py), it gives the compiler of the host what CUDA
 * C++ has beside C++. README.md says how, and what it does not see. */
#ifndef LNT_EMULATOR_H
#define LNT_EMULATOR_H

#include <cublasLt.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cufft.h>

#include <algorithm>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <vector>

#undef __device__
#undef __host__
#undef __global__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#undef __maxnreg__
#define __device__
#define __host__
#define __global__
#define __constant__
#define __shared__ EMU_SHARED /* translate.py knows it */
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __maxnreg__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900

namespace emu {

struct place {
    uint3 thread, block;
    dim3 threads, blocks;
};
extern thread_local place at;      /* of the thread that runs */
extern thread_local char *dynamic; /* shared memory whose size the launch says; addresses of shared memory count from here */

/* ---- collectives -------------------------------------------------------------------------------------------------------------------------- */

/* Every lane of `mask` hands in an argument; the last one calls `all` on those of all lanes (NULL: not there), and then every one goes on. */
void warp(unsigned mask, void *argument, void (*all)(void **arguments));
/* The same of the four warps of a warpgroup. */
void warpgroup(void *argument, void (*all)(void **arguments));
/* A barrier of a block: id 0 to 15, threads (0: all that have not ended); whether anyone said so. */
bool barrier(int id, int threads, bool wait, bool said);
/* Others go on; this one later. */
void others();

/* ---- launches ----------------------------------------------------------------------------------------------------------------------------- */

struct config {
    dim3 blocks, threads;
    size_t shared;
    cudaStream_t stream;
    int cluster = 1; /* blocks, side by side in x */
    config(dim3 b, dim3 t, size_t s = 0, cudaStream_t st = 0) : blocks(b), threads(t), shared(s), stream(st) {}
};
/* Runs the grid, or keeps it in the graph that is being recorded. */
cudaError_t put(const config &c, std::function<void()> body);
void later(std::function<void()> what); /* the same of something that is no grid */

template <typename... P, typename... A> cudaError_t launch(const config &c, void (*kernel)(P...), const A &...arguments)
{
    std::tuple<std::decay_t<P>...> kept(arguments...);
    return put(c, [=]() mutable {
        std::apply([&](auto &...a) { kernel(a...); }, kept);
    });
}

/* A kernel's address, remembered with what calls it: launches by address hand in where the parameters are. */
typedef std::function<std::function<void()>(void **)> by_address;
by_address &known(const void *kernel);
template <typename... P> const void *address(void (*kernel)(P...))
{
    by_address &k = known((const void *)kernel);
    if (!k)
        k = [=](void **a) -> std::function<void()> { /* on copies of the parameters */
            return [&]<size_t... I>(std::index_sequence<I...>) -> std::function<void()> {
                std::tuple<std::decay_t<P>...> kept(*(std::decay_t<P> *)a[I]...);
                return [=]() mutable {
                    std::apply([&](auto &...x) { kernel(x...); }, kept);
                };
            }(std::index_sequence_for<P...>());
        };
    return (const void *)kernel;
}
inline const void *address(const void *p) { return p; }

/* ---- PTX ---------------------------------------------------------------------------------------------------------------------------------- */

struct operand {
    void *to; /* NULL: read alone */
    int bytes;
    uint64_t bits;
};
template <typename T> uint64_t bits_of(const T &x)
{
    uint64_t b = 0;
    static_assert(sizeof(T) <= 8);
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) b = (uint64_t)(int64_t)x;
    else memcpy(&b, &x, sizeof x);
    return b;
}
template <typename T> operand out(const char *how, T &x) { return { &x, (int)sizeof x, *how == '+' ? bits_of(x) : 0 }; }
template <typename T> operand in(const char *, const T &x) { return { NULL, (int)sizeof x, bits_of(x) }; }
template <typename T, size_t N> operand in(const char *, const T (&x)[N]) { return { NULL, 8, (uint64_t)(uintptr_t)x }; }

struct statement;
struct ptx {
    std::vector<statement> *statements;
    explicit ptx(const char *text);
    void run(operand *o) const;
};

} // namespace emu

#define warpSize 32

/* ---- CUDA C++ ------------------------------------------------------------------------------------------------------------------------------- */

static inline void __syncthreads() { emu::barrier(0, 0, true, false); }
static inline int __syncthreads_or(int x) { return emu::barrier(0, 0, true, x != 0); }
static inline void __syncwarp(unsigned mask = ~0u) { emu::warp(mask, NULL, NULL); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) { emu::others(); }
static inline size_t __cvta_generic_to_shared(const void *p) { return (uint32_t)((const char *)p - emu::dynamic); }

namespace emu {
struct shuffle {
    uint64_t in, out;
    int from;
};
void shuffle_all(void **a);
int lane();
template <typename T> T shuffled(unsigned mask, T x, int from)
{
    shuffle s = { bits_of(x), 0, from };
    warp(mask, &s, shuffle_all);
    T y;
    memcpy(&y, &s.out, sizeof y);
    return y;
}
uint32_t ballot(unsigned mask, bool x);
uint32_t alike(unsigned mask, uint64_t x);
} // namespace emu
template <typename T> T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    return emu::shuffled(mask, x, (emu::lane() & ~(width - 1)) + (from & (width - 1)));
}
template <typename T> T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32)
{
    const int to = emu::lane() ^ with;
    return emu::shuffled(mask, x, to / width == emu::lane() / width ? to : emu::lane());
}
template <typename T> T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    return emu::shuffled(mask, x, emu::lane() % width < (int)by ? emu::lane() : emu::lane() - (int)by);
}
template <typename T> T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    return emu::shuffled(mask, x, emu::lane() % width + (int)by >= width ? emu::lane() : emu::lane() + (int)by);
}
static inline unsigned __ballot_sync(unsigned mask, int x) { return emu::ballot(mask, x != 0); }
static inline int __any_sync(unsigned mask, int x) { return emu::ballot(mask, x != 0) != 0; }
static inline int __all_sync(unsigned mask, int x) { return emu::ballot(mask, x == 0) == 0; }
template <typename T> unsigned __match_any_sync(unsigned mask, T x) { return emu::alike(mask, emu::bits_of(x)); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline float __uint_as_float(unsigned x) { float y; return memcpy(&y, &x, 4), y; }
static inline float __int_as_float(int x) { float y; return memcpy(&y, &x, 4), y; }
static inline unsigned __float_as_uint(float x) { unsigned y; return memcpy(&y, &x, 4), y; }
static inline int __float_as_int(float x) { int y; return memcpy(&y, &x, 4), y; }
/* glibc has functions of these names */
#define __expf emu_expf
#define __logf emu_logf
#define __log2f emu_log2f
static inline float __expf(float x) { return exp2f(x * 1.4426950408889634f); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline void sincospif(float x, float *s, float *c) { *s = (float)sin(M_PI * x), *c = (float)cos(M_PI * x); }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const uint64_t all = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(all >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
template <typename T> T __ldg(const T *p) { return *p; }
template <typename T> T __ldcs(const T *p) { return *p; }
template <typename T> T __ldcg(const T *p) { return *p; }
template <typename T> void __stcs(T *p, T x) { *p = x; }
template <typename T, typename U> T atomicAdd(T *p, U x)
{
    T old, sum;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do sum = old + (T)x;
    while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

/* As CUDA has them for mixed types, too. */
template <typename T> constexpr bool number = std::is_arithmetic_v<T> || (std::is_enum_v<T> && std::is_convertible_v<T, int>);
template <typename A, typename B, typename = std::enable_if_t<number<A> && number<B>>> constexpr auto min(A a, B b)
{
    using C = std::common_type_t<decltype(+a), decltype(+b)>;
    if constexpr (std::is_floating_point_v<C>) return (C)fmin((C)a, (C)b);
    else return (C)a < (C)b ? (C)a : (C)b;
}
template <typename A, typename B, typename = std::enable_if_t<number<A> && number<B>>> constexpr auto max(A a, B b)
{
    using C = std::common_type_t<decltype(+a), decltype(+b)>;
    if constexpr (std::is_floating_point_v<C>) return (C)fmax((C)a, (C)b);
    else return (C)a > (C)b ? (C)a : (C)b;
}

template <typename... P, typename... A> cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), const A &...arguments)
{
    emu::config to(c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) to.cluster = (int)c->attrs[i].val.clusterDim.x;
    return emu::launch(to, kernel, arguments...);
}
template <typename T> cudaError_t cudaFuncSetAttribute(T *, cudaFuncAttribute, int) { return cudaSuccess; }
template <typename T> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, T *, int, size_t) { return *n = 1, cudaSuccess; }

#endif
