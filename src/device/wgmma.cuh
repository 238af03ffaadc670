/* Hopper's own instructions: products of a warpgroup (wgmma), barriers in shared memory (mbarrier), bulk and tensor copies (TMA), setmaxnreg.
 * For *_sm90.cu files (sm_90a). PTX ISA 9.0, sections 9.7.9.27 (bulk copies), 9.7.13.15 (mbarrier), 9.7.15 (wgmma).
 *
 * Tiles in shared memory. All here use the 128-byte swizzle: a panel is rows of 128 bytes (64 bf16), begins on a 1024-byte boundary, and byte b of
 * row r lies at b ^ ((r % 8) << 4). A tensor copy with a box 64 bf16 wide and CU_TENSOR_MAP_SWIZZLE_128B writes exactly that; a tile of 128 columns
 * is two such panels one after the other. An operand is read
 *   K-major:  rows of the panel are the operand's rows (M or N), the 128 bytes are 64 steps of the product's K; 16 steps further is +32 bytes;
 *   MN-major: rows of the panel are steps of K, the 128 bytes are 64 of its M or N; 16 steps further is +2048 bytes. Operands wider than 64 go on
 *             in the next panel, `panel` bytes on. */
#ifndef LNT_DEVICE_WGMMA_CUH
#define LNT_DEVICE_WGMMA_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include "device/mma.cuh"

/* ---- tensor maps (host) --------------------------------------------------------------------------------------------------------- */

/* cuTensorMapEncodeTiled through the runtime, so that nothing links with libcuda. NULL when the driver lacks it. */
static inline PFN_cuTensorMapEncodeTiled_v12000 lnt_tensor_map_encoder(void)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) != cudaSuccess) f = NULL;
        return (PFN_cuTensorMapEncodeTiled_v12000)f;
    }();
    return encode;
}

/* A map of a bf16 tensor of `rank` dimensions, the innermost (contiguous) first: size[d] elements, stride[d] bytes from one of dimension d+1 to the
 * next (rank-1 of them, multiples of 16), box[d] elements a copy; box[0] is at most 64 (128 bytes). What lies outside reads as zero.
 * `base` is aligned to 16. False: the driver refused. */
static inline bool lnt_tensor_map(CUtensorMap *map, const void *base, int rank, const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                                  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B)
{
    const cuuint32_t step[5] = { 1, 1, 1, 1, 1 };
    PFN_cuTensorMapEncodeTiled_v12000 encode = lnt_tensor_map_encoder();
    if (!encode) return false;
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)base, (const cuuint64_t *)size, (const cuuint64_t *)stride,
                  (const cuuint32_t *)box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A row-major bf16 matrix [rows, cols] with `ld` elements from a row to the next, read in boxes of box_rows rows by 64 columns. */
static inline bool lnt_matrix_map(CUtensorMap *map, const void *base, int64_t rows, int64_t cols, int64_t ld, int box_rows)
{
    const uint64_t size[2] = { (uint64_t)cols, (uint64_t)rows }, stride[1] = { (uint64_t)ld * 2 };
    const uint32_t box[2] = { 64, (uint32_t)box_rows };
    return lnt_tensor_map(map, base, 2, size, stride, box);
}

/* Device code below; the sm_80 pass of a file that includes this sees nothing of it. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* ---- barriers in shared memory -------------------------------------------------------------------------------------------------- */

/* `count` arrivals complete a phase. Initialise in one thread, then mbarrier_init_fence, then __syncthreads. */
__device__ __forceinline__ void mbarrier_init(uint64_t *b, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/* Where a barrier's address is at hand, the _at forms save what shared_address takes, several instructions each time. */
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t address)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *b) { mbarrier_arrive_at(shared_address(b)); }
/* One arrival, and `bytes` more that copies must bring before the phase completes. */
__device__ __forceinline__ void mbarrier_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait_at(uint32_t address, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(address), "r"(parity)
                 : "memory");
    return done != 0;
}
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t *b, uint32_t parity) { return mbarrier_try_wait_at(shared_address(b), parity); }
/* Until the phase of that parity is complete: 0 for the first phase, 1 for the second, ... A fresh barrier counts its phase before the
 * first (parity 1) as complete, so a producer begins with parity 1 on "empty" barriers. */
__device__ __forceinline__ void mbarrier_wait(uint64_t *b, uint32_t parity)
{
    while (!mbarrier_try_wait(b, parity)) {}
}
__device__ __forceinline__ void mbarrier_wait_at(uint32_t address, uint32_t parity)
{
    while (!mbarrier_try_wait_at(address, parity)) {}
}

/* Barrier `id` (1..15) among `threads` threads; arrive does not wait. */
__device__ __forceinline__ void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

/* ---- copies by the copy engine -------------------------------------------------------------------------------------------------- */

/* Ordinary writes to shared memory become visible to the copy engine and the tensor cores: each writing thread, then a barrier. */
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* What the thread knows to be in memory is so to the copies that it puts next. What a copy brought is so to the thread that waited for it. */
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/* Plain rows of bytes; both sides aligned to 16, bytes a multiple of 16. */
__device__ __forceinline__ void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(dst)), "l"(src),
                 "r"(bytes), "r"(shared_address(b))
                 : "memory");
}
/* From shared memory to memory, and added to float32 there, each as a group of its thread's: both sides aligned to 16, bytes a multiple of 16. */
__device__ __forceinline__ void bulk_store(void *dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(shared_address(src)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_add(float *dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst), "r"(shared_address(src)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until the thread's groups have been read, and until they have arrived. */
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/* Boxes of a tensor map; x is the innermost coordinate, in elements. */
__device__ __forceinline__ void tensor_load(void *dst, const CUtensorMap *m, uint64_t *b, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(dst)),
                 "l"(m), "r"(shared_address(b)), "r"(x), "r"(y)
                 : "memory");
}
/* A box to memory: what lies outside is not written. The thread's stores so far become a group; until shared memory of all groups has been read. */
__device__ __forceinline__ void tensor_store(const CUtensorMap *m, const void *src, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(m), "r"(x), "r"(y), "r"(shared_address(src))
                 : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/* Boxes that are read once: they leave L2 first, so that what is read again stays. */
__device__ __forceinline__ uint64_t read_once()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void tensor_load(void *dst, const CUtensorMap *m, uint64_t *b, int x, int y, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
                     shared_address(dst)),
                 "l"(m), "r"(shared_address(b)), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void tensor_load(void *dst, const CUtensorMap *m, uint64_t *b, int x, int y, int z, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(dst)),
                 "l"(m), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap *m) { asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory"); }

/* ---- registers of a warpgroup --------------------------------------------------------------------------------------------------- */

template <int N> __device__ __forceinline__ void registers_raise() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void registers_lower() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

/* ---- products of a warpgroup ---------------------------------------------------------------------------------------------------- */

/* Before the first product, and whenever registers it uses were written by other instructions. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most `pending` committed groups are still running. */
template <int pending> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

/* Keeps the compiler from moving reads or writes of accumulators across this place, where a product may still be running. */
template <int N> __device__ __forceinline__ void wgmma_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Descriptors. `p`: shared address of the operand's first element, 1024-byte aligned plus a multiple of 32 (K-major) or of 1024 (MN-major).
 * Bits: address / 16; 16: leading offset / 16; 32: stride offset / 16; 62: 1 = swizzle of 128 bytes. */
__device__ __forceinline__ uint64_t wgmma_k_major(uint32_t p)
{
    return ((uint64_t)(p & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
__device__ __forceinline__ uint64_t wgmma_mn_major(uint32_t p, uint32_t panel)
{
    return ((uint64_t)(p & 0x3ffff) >> 4) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
/* The same, `bytes` on. */
__device__ __forceinline__ uint64_t wgmma_on(uint64_t d, uint32_t bytes)
{
    return (d & 0xffffffff00000000u) | ((uint32_t)d + (bytes >> 4));
}

/* D[64,N] (+)= A[64,16] B[16,N], bf16 operands, float32 accumulators; `add` false overwrites D.
 * Thread t of the warpgroup holds of D the rows r = 16 (t/32) + (t%32)/4 and r+8: d[4j], d[4j+1] are columns 8j + 2(t%4) and the next of row r,
 * d[4j+2], d[4j+3] of row r+8. A in registers: a[0] = row r, steps 2(t%4) and the next; a[1] = row r+8; a[2], a[3] = the same 8 steps on. Hence
 * accumulators 8j .. 8j+7, rounded pairwise, are the A of steps 16j .. 16j+15. TA, TB: 1 when that operand is MN-major. */
#define LNT_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LNT_F16(d, i) LNT_F4(d, i), LNT_F4(d, i + 4), LNT_F4(d, i + 8), LNT_F4(d, i + 12)
#define LNT_F32(d, i) LNT_F16(d, i), LNT_F16(d, i + 16)
#define LNT_P0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define LNT_P1 LNT_P0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LNT_P2                                                                                                                     \
    LNT_P1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60," \
           "%61,%62,%63"
#define LNT_P3                                                                                                                     \
    LNT_P2 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92," \
           "%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117," \
           "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define LNT_WGMMA_SS(N, LIST, A, B, ADD, TA, TB, ...)                                                                              \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                                 \
                 "k16.f32.bf16.bf16 {" LIST "}, " A ", " B ", p, 1, 1, " TA ", " TB "; }"                                         \
                 : __VA_ARGS__                                                                                                     \
                 : "l"(a), "l"(b), "r"((int)add), "n"(tA), "n"(tB))
#define LNT_WGMMA_RS(N, LIST, A, B, ADD, TB, ...)                                                                                  \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                                 \
                 "k16.f32.bf16.bf16 {" LIST "}, {" A "}, " B ", p, 1, 1, " TB "; }"                                               \
                 : __VA_ARGS__                                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(tB))

template <int TA, int TB, int L> __device__ __forceinline__ void wgmma(float (&d)[L], uint64_t a, uint64_t b, bool add)
{
    static_assert(L == 16 || L == 32 || L == 64 || L == 128, "N is 32, 64, 128 or 256");
    constexpr int tA = TA, tB = TB;
    if constexpr (L == 16) LNT_WGMMA_SS(32, LNT_P0, "%16", "%17", "%18", "%19", "%20", LNT_F16(d, 0));
    if constexpr (L == 32) LNT_WGMMA_SS(64, LNT_P1, "%32", "%33", "%34", "%35", "%36", LNT_F32(d, 0));
    if constexpr (L == 64) LNT_WGMMA_SS(128, LNT_P2, "%64", "%65", "%66", "%67", "%68", LNT_F32(d, 0), LNT_F32(d, 32));
    if constexpr (L == 128)
        LNT_WGMMA_SS(256, LNT_P3, "%128", "%129", "%130", "%131", "%132", LNT_F32(d, 0), LNT_F32(d, 32), LNT_F32(d, 64), LNT_F32(d, 96));
}
template <int TB, int L> __device__ __forceinline__ void wgmma(float (&d)[L], const uint32_t (&a)[4], uint64_t b, bool add)
{
    static_assert(L == 16 || L == 32 || L == 64 || L == 128, "N is 32, 64, 128 or 256");
    constexpr int tB = TB;
    if constexpr (L == 16) LNT_WGMMA_RS(32, LNT_P0, "%16,%17,%18,%19", "%20", "%21", "%22", LNT_F16(d, 0));
    if constexpr (L == 32) LNT_WGMMA_RS(64, LNT_P1, "%32,%33,%34,%35", "%36", "%37", "%38", LNT_F32(d, 0));
    if constexpr (L == 64) LNT_WGMMA_RS(128, LNT_P2, "%64,%65,%66,%67", "%68", "%69", "%70", LNT_F32(d, 0), LNT_F32(d, 32));
    if constexpr (L == 128)
        LNT_WGMMA_RS(256, LNT_P3, "%128,%129,%130,%131", "%132", "%133", "%134", LNT_F32(d, 0), LNT_F32(d, 32), LNT_F32(d, 64), LNT_F32(d, 96));
}
#undef LNT_F4
#undef LNT_F16
#undef LNT_F32
#undef LNT_P0
#undef LNT_P1
#undef LNT_P2
#undef LNT_P3
#undef LNT_WGMMA_SS
#undef LNT_WGMMA_RS

/* The A of 16 steps to shared memory as rows of 16 bytes: lane i has the address of row i % 8 of matrix i / 8, the matrices as ldmatrix's. */
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&a)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
}

/* The A operand of steps 16j .. 16j+15 out of accumulators. */
template <int L> __device__ __forceinline__ void wgmma_operand(uint32_t (&a)[4], const float (&d)[L], int j)
{
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pack_bf16(d[8 * j + 2 * i], d[8 * j + 2 * i + 1]);
}

#endif
#endif
