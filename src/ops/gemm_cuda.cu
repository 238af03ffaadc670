/* Products on a GPU. cuBLASLt multiplies column-major matrices: a row-major C is its C transposed, so that the operands change places.
 *
 * Up to 16 rows against weights (decoding; or many rows against the weights of a few heads) are memory-bound: kernels of our own stream the longer
 * operand once. Floor: its bytes over the bandwidth. */
#include "device/cuda.cuh"

extern "C" {
#include "ops/gemm.h"
}

/* ---- few rows ----------------------------------------------------------------------------------------------------------------------------- */

/* y(r, n) = alpha sum_k x[r,k] w[n,k] (+ y): R rows of x against N of w; y(r, n) is y[r rs + n cs]. */
struct few_args {
    const void *x, *w;
    void *y;
    int R;
    int64_t N, K, ldx, ldw, rs, cs;
    float alpha;
    bool add, y_f32;
};

__device__ __forceinline__ void put_product(const few_args &a, int r, int64_t n, float s)
{
    const int64_t i = r * a.rs + n * a.cs;
    s *= a.alpha;
    if (a.y_f32) {
        float *y = (float *)a.y + i;
        *y = a.add ? *y + s : s;
    } else {
        bf16 *y = (bf16 *)a.y + i;
        *y = __float2bfloat16_rn(a.add ? __bfloat162float(*y) + s : s);
    }
}

__device__ __forceinline__ void mma_16x8x16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* 16 bytes that are read once. volatile: loads stay before the products that follow them, all on their way at once. */
__device__ __forceinline__ uint4 load_once(const bf16 *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* bf16 on the matrix unit: a block has 16 rows of w, its warps take turns of STEP along K, and their sums are added in order. The unit multiplies
 * w [16 rows, 16 k] by x^T [16 k, 8 rows]; a sum over k does not care for its order, so that a lane's eight neighbours of k, one 16-byte load, serve
 * as its share of two such tiles. Up to 8 TILES rows of x. Where there is nothing to load, a place that exists is loaded and x counts as zero. */
enum { FEW_STEP = 64, FEW_MOST = 16 };

template <int TILES, int WARPS, int AHEAD> __global__ void __launch_bounds__(32 * WARPS) few_mma_kernel(const __grid_constant__ few_args a)
{
    __shared__ float share[WARPS][8 * TILES][16]; /* [warp][row of x][row of w] */
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, lane = (int)threadIdx.x % 4;
    const int64_t n0 = (int64_t)blockIdx.x * 16;
    const bf16 *w0 = (const bf16 *)a.w + min(n0 + group, a.N - 1) * a.ldw, *w1 = (const bf16 *)a.w + min(n0 + group + 8, a.N - 1) * a.ldw;
    const bf16 *row[TILES];
    bool has[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) has[t] = 8 * t + group < a.R, row[t] = (const bf16 *)a.x + (has[t] ? 8 * t + group : 0) * a.ldx;
    float c[TILES][4] = {};
    for (int64_t base = warp * FEW_STEP; base < a.K; base += WARPS * FEW_STEP * AHEAD) {
        uint4 top[AHEAD][2], low[AHEAD][2], x[AHEAD][2][TILES];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int64_t k = base + i * (WARPS * FEW_STEP) + h * (FEW_STEP / 2) + 8 * lane, at = min(k, a.K - 8);
                top[i][h] = load_once(w0 + at);
                low[i][h] = load_once(w1 + at);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const uint4 v = *(const uint4 *)(row[t] + at);
                    const uint32_t keep = 0u - (uint32_t)(k < a.K && has[t]); /* a choice becomes a branch, and the loads wait */
                    x[i][h][t] = make_uint4(v.x & keep, v.y & keep, v.z & keep, v.w & keep);
                }
            }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const uint4 p = top[i][h], q = low[i][h], b = x[i][h][t];
                    mma_16x8x16(c[t], p.x, q.x, p.y, q.y, b.x, b.y);
                    mma_16x8x16(c[t], p.z, q.z, p.w, q.w, b.z, b.w);
                }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) share[warp][8 * t + 2 * lane + (e & 1)][group + 8 * (e >> 1)] = c[t][e];
    __syncthreads();
    const int r = (int)threadIdx.x / 16, n = (int)threadIdx.x % 16;
    if (r >= 8 * TILES || r >= a.R || n0 + n >= a.N) return;
    float s = share[0][r][n];
#pragma unroll
    for (int v = 1; v < WARPS; v++) s += share[v][r][n];
    put_product(a, r, n0 + n, s);
}

/* Any type and alignment: a warp has two rows of w, lanes side by side along K; up to ROWS <= 8 rows of x. */
template <typename T, int V, int ROWS> __global__ void __launch_bounds__(128) few_kernel(const __grid_constant__ few_args a)
{
    const int64_t n = ((int64_t)blockIdx.x * 4 + threadIdx.x / 32) * 2;
    if (n >= a.N) return;
    const bool two = n + 1 < a.N;
    const T *w0 = (const T *)a.w + n * a.ldw, *w1 = two ? w0 + a.ldw : w0, *x = (const T *)a.x;
    float s[ROWS][2] = {};
#pragma unroll 4
    for (int64_t k = threadIdx.x % 32 * V; k < a.K; k += 32 * V) {
        float p[V], q[V], v[V];
        load_pack<V>(p, w0 + k);
        load_pack<V>(q, w1 + k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            load_pack<V>(v, x + (r < a.R ? r : 0) * a.ldx + k);
#pragma unroll
            for (int i = 0; i < V; i++) s[r][0] += p[i] * v[i], s[r][1] += q[i] * v[i];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float s0 = warp_sum(s[r][0]), s1 = warp_sum(s[r][1]);
        if (threadIdx.x % 32 || r >= a.R) continue;
        put_product(a, r, n, s0);
        if (two) put_product(a, r, n + 1, s1);
    }
}

template <typename T, int V> static void few_run(const few_args &a, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)lnt_div_up(a.N, 8);
    if (a.R == 1)
        few_kernel<T, V, 1><<<blocks, 128, 0, stream>>>(a);
    else if (a.R == 2)
        few_kernel<T, V, 2><<<blocks, 128, 0, stream>>>(a);
    else if (a.R <= 4)
        few_kernel<T, V, 4><<<blocks, 128, 0, stream>>>(a);
    else
        few_kernel<T, V, 8><<<blocks, 128, 0, stream>>>(a);
}

/* Few blocks (weights of some thousand rows) have twice the warps, and all of a warp's loads on their way at once. */
template <int TILES> static void few_mma_run(const few_args &a, int multiprocessors, cudaStream_t stream)
{
    const int64_t blocks = lnt_div_up(a.N, 16);
    if (blocks <= multiprocessors && a.K > 2 * 16 * FEW_STEP && TILES == 1)
        few_mma_kernel<TILES, 16, TILES == 1 ? 3 : 2><<<(unsigned)blocks, 512, 0, stream>>>(a);
    else if (blocks <= multiprocessors)
        few_mma_kernel<TILES, 16, 2><<<(unsigned)blocks, 512, 0, stream>>>(a);
    else
        few_mma_kernel<TILES, 8, 2><<<(unsigned)blocks, 256, 0, stream>>>(a);
}

/* Rows and columns of C change roles when B is the short operand. False: not a product of few rows. */
static bool few_rows(lnt_ctx *c, const lnt_gemm_args *g)
{
    const bool few_is_a = g->M <= g->N;
    const few_args a = {few_is_a ? g->a : g->b,     few_is_a ? g->b : g->a, g->C, (int)(few_is_a ? g->M : g->N), few_is_a ? g->N : g->M, g->K,
                        few_is_a ? g->lda : g->ldb, few_is_a ? g->ldb : g->lda,   few_is_a ? g->ldc : 1,         few_is_a ? 1 : g->ldc,
                        g->alpha,                   g->beta != 0,           g->c == LINNET_F32};
    const int64_t step = g->ab == LINNET_F32 ? 4 : 8;
    const bool aligned = (((uintptr_t)a.x | (uintptr_t)a.w) % 16 | (uint64_t)(a.ldx | a.ldw | a.K) % (uint64_t)step) == 0;
    const bool unit = g->ab == LINNET_BF16 && aligned;
    cudaStream_t stream = lnt_stream(c);
    if (a.R > (unit ? FEW_MOST : 8)) return false;
    const int multiprocessors = lnt_device_of(c)->multiprocessors;
    if (unit && a.R <= 8)
        few_mma_run<1>(a, multiprocessors, stream);
    else if (unit)
        few_mma_run<2>(a, multiprocessors, stream);
    else if (g->ab == LINNET_BF16)
        few_run<bf16, 1>(a, stream);
    else if (aligned)
        few_run<float, 4>(a, stream);
    else
        few_run<float, 1>(a, stream);
    return true;
}

/* ---- cuBLASLt -------------------------------------------------------------------------------------------------------------------------------
 * Its choice of an algorithm is kept for each shape: a fixed table, made with the first product, a slot found by hashing and overwritten when its
 * neighbours are taken. Parts of K are only ever added through the workspace, in a fixed order: the same bits every time. */

struct pick_key {
    int64_t M, N, K, lda, ldb, ldc;
    int32_t trans_a, trans_b, ab, c, add, align_a, align_b, align_c;
};
struct gemm_pick {
    pick_key key;
    bool used;
    cublasLtMatmulAlgo_t algo;
};
enum { PICKS = 512, NEIGHBOURS = 8 };

/* The alignment that can be promised, at most 16 bytes. */
static int32_t alignment(const void *p)
{
    const uintptr_t low = (uintptr_t)p & 15;
    return low ? (int32_t)(low & -low) : 16;
}

static pick_key key_of(const lnt_gemm_args *g)
{
    return {g->M, g->N, g->K, g->lda, g->ldb, g->ldc, g->trans_a, g->trans_b, g->ab, g->c, g->beta != 0, alignment(g->a), alignment(g->b),
            alignment(g->C)};
}

static gemm_pick *slot_of(lnt_cuda *d, const pick_key &key)
{
    if (!d->gemm_picks && !(d->gemm_picks = lnt_calloc(PICKS * sizeof(gemm_pick)))) return NULL;
    static_assert(sizeof(pick_key) == 80, "keys are compared byte by byte");
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof key; i++) hash = (hash ^ ((const unsigned char *)&key)[i]) * 1099511628211u;
    gemm_pick *table = (gemm_pick *)d->gemm_picks, *home = table + hash % PICKS;
    for (int i = 0; i < NEIGHBOURS; i++) {
        gemm_pick *p = table + (hash + (uint64_t)i) % PICKS;
        if (!p->used || !memcmp(&p->key, &key, sizeof key)) return p;
    }
    home->used = false;
    return home;
}

/* What a product is to cuBLASLt: on the stack, so that a call allocates nothing. */
struct lt_product {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* its A is our B */
};

static cublasStatus_t describe(const lnt_gemm_args *g, lt_product *p)
{
    const cudaDataType_t ab = g->ab == LINNET_F32 ? CUDA_R_32F : CUDA_R_16BF, c = g->c == LINNET_F32 ? CUDA_R_32F : CUDA_R_16BF;
    const cublasOperation_t op_a = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    if (!s) s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (!s) s = cublasLtMatrixLayoutInit(&p->a, ab, (uint64_t)(g->trans_b ? g->K : g->N), (uint64_t)(g->trans_b ? g->N : g->K), g->ldb);
    if (!s) s = cublasLtMatrixLayoutInit(&p->b, ab, (uint64_t)(g->trans_a ? g->M : g->K), (uint64_t)(g->trans_a ? g->K : g->M), g->lda);
    if (!s) s = cublasLtMatrixLayoutInit(&p->c, c, (uint64_t)g->N, (uint64_t)g->M, g->ldc);
    return s;
}

static cublasStatus_t choose(lnt_cuda *d, lt_product *p, const pick_key &key, gemm_pick *pick)
{
    cublasLtMatmulPreferenceOpaque_t want;
    const size_t work = LNT_LT_WORK;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align[3] = {(uint32_t)key.align_b, (uint32_t)key.align_a, (uint32_t)key.align_c};
    cublasStatus_t s = cublasLtMatmulPreferenceInit(&want);
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } set[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work},
               {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0], 4},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1], 4},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2], 4},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], 4}};
    for (const auto &one : set)
        if (!s) s = cublasLtMatmulPreferenceSetAttribute(&want, one.name, one.value, one.size);
    if (s) return s;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    s = cublasLtMatmulAlgoGetHeuristic(d->lt, &p->desc, &p->a, &p->b, &p->c, &p->c, &want, 1, &found, &n);
    if (s || n < 1) return s ? s : CUBLAS_STATUS_NOT_SUPPORTED;
    pick->key = key, pick->algo = found.algo, pick->used = true;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t multiply(lnt_cuda *d, const lnt_gemm_args *g, gemm_pick *pick, const pick_key &key)
{
    lt_product p;
    cublasStatus_t s = describe(g, &p);
    if (!s && !pick->used) s = choose(d, &p, key, pick);
    if (s) return s;
    return cublasLtMatmul(d->lt, &p.desc, &g->alpha, g->b, &p.a, g->a, &p.b, &g->beta, g->C, &p.c, g->C, &p.c, &pick->algo, d->lt_work, LNT_LT_WORK,
                          d->stream);
}

extern "C" linnet_status lnt_gemm_cuda(lnt_ctx *c, const lnt_gemm_args *g)
{
    lnt_cuda *d = lnt_cuda_of(c);
    if (g->M <= 0 || g->N <= 0) return LINNET_OK;
    if (g->K <= 0) { /* the product is zero */
        const size_t size = g->c == LINNET_F32 ? 4 : 2;
        if (g->beta == 0) lnt_cuda_note(d, cudaMemset2DAsync(g->C, (size_t)g->ldc * size, 0, (size_t)g->N * size, (size_t)g->M, d->stream));
        return LINNET_OK;
    }
    if (!g->trans_a && g->trans_b && (g->M <= FEW_MOST || g->N <= FEW_MOST) && few_rows(c, g)) return LINNET_OK;
    const pick_key key = key_of(g);
    gemm_pick *pick = slot_of(d, key);
    if (!pick) return lnt_fail_memory(c, PICKS * sizeof *pick);
    const cublasStatus_t s = multiply(d, g, pick, key);
    if (s == CUBLAS_STATUS_SUCCESS) return LINNET_OK;
    return lnt_fail(c, LINNET_EINTERNAL, "cuBLASLt refused a product of [%lld,%lld] and [%lld,%lld]: %s", (long long)g->M, (long long)g->K,
                    (long long)g->K, (long long)g->N, cublasLtGetStatusString(s));
}
