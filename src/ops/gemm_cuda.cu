/* Products on a GPU. cuBLASLt multiplies column-major matrices: a row-major C is its C transposed, so that the operands change places.
 *
 * Few rows against weights (decoding; or many rows against the weights of a few heads) are memory-bound: kernels of our own stream the longer operand
 * once, those of bf16 in few_rows_cuda.cu and few_rows_sm90.cu. Floor: its bytes over the bandwidth. */
#include "device/cuda.cuh"

extern "C" {
#include "core/threads.h"
#include "ops/few_rows.h"
#include "ops/gemm.h"
}

/* ---- few rows ----------------------------------------------------------------------------------------------------------------------------- */

enum { FEW_MOST = 8 };

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

/* Any type and alignment: a warp has two rows of w, lanes side by side along K; up to ROWS <= 8 rows of x. */
template <typename T, int V, int ROWS> __global__ void __launch_bounds__(128) few_kernel(const __grid_constant__ few_args a)
{
    let_next();
    await_last();
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

template <typename T, int V> static void few_run(const few_args &a, const lnt_cuda *d)
{
    const unsigned blocks = (unsigned)lnt_div_up(a.N, 8);
    if (a.R == 1)
        lnt_launch(d, few_kernel<T, V, 1>, blocks, 128, a);
    else if (a.R == 2)
        lnt_launch(d, few_kernel<T, V, 2>, blocks, 128, a);
    else if (a.R <= 4)
        lnt_launch(d, few_kernel<T, V, 4>, blocks, 128, a);
    else
        lnt_launch(d, few_kernel<T, V, 8>, blocks, 128, a);
}

/* Up to 64 rows of bf16: one part of a product of its own file. Rows and columns of C change roles when B is the short operand. */
static bool few_halves(lnt_ctx *c, const lnt_gemm_args *g, bool few_is_a)
{
    lnt_few_rows f = {};
    if ((few_is_a ? g->M : g->N) > LNT_FEW_ROWS) return false;
    f.R = (int)(few_is_a ? g->M : g->N), f.K = g->K, f.x = few_is_a ? g->a : g->b, f.ldx = few_is_a ? g->lda : g->ldb, f.parts = 1;
    f.part[0] = {few_is_a ? g->b : g->a, NULL, few_is_a ? g->N : g->M, few_is_a ? g->ldb : g->lda, g->C, few_is_a ? g->ldc : 1, few_is_a ? 1 : g->ldc,
                 g->c, g->alpha, 1.0f, 0, g->beta != 0, NULL, 0, 0};
    f.weights = few_is_a && g->weights;
    return lnt_few_rows_cuda(c, &f);
}

/* False: not a product of few rows. */
static bool few_rows(lnt_ctx *c, const lnt_gemm_args *g, bool few_is_a)
{
    if (g->ab == LINNET_BF16 && few_halves(c, g, few_is_a)) return true;
    const few_args a = {few_is_a ? g->a : g->b,     few_is_a ? g->b : g->a, g->C, (int)(few_is_a ? g->M : g->N), few_is_a ? g->N : g->M, g->K,
                        few_is_a ? g->lda : g->ldb, few_is_a ? g->ldb : g->lda,   few_is_a ? g->ldc : 1,         few_is_a ? 1 : g->ldc,
                        g->alpha,                   g->beta != 0,           g->c == LINNET_F32};
    const bool aligned = (((uintptr_t)a.x | (uintptr_t)a.w) % 16 | (uint64_t)(a.ldx | a.ldw | a.K) % 4) == 0;
    const lnt_cuda *d = lnt_cuda_of(c);
    if (a.R > FEW_MOST) return false;
    if (g->ab == LINNET_BF16)
        few_run<bf16, 1>(a, d);
    else if (aligned)
        few_run<float, 4>(a, d);
    else
        few_run<float, 1>(a, d);
    return true;
}

/* Every row of A as if alone: some of them at once, however many there are, by kernels whose choice and sums do not depend on their number. */
static linnet_status rows_alone(lnt_ctx *c, const lnt_gemm_args *g)
{
    if (g->trans_a || !g->trans_b)
        return lnt_fail(c, LINNET_EINTERNAL, "a product of transposed operands where every row is to be as if alone");
    lnt_gemm_args some = *g;
    for (int64_t r = 0; r < g->M; r += some.M) {
        const int64_t rest = g->M - r;
        some.a = (const char *)g->a + r * g->lda * (g->ab == LINNET_F32 ? 4 : 2);
        some.C = (char *)g->C + r * g->ldc * (g->c == LINNET_F32 ? 4 : 2);
        some.M = rest < LNT_FEW_ROWS ? rest : (int64_t)LNT_FEW_ROWS;
        if (g->ab == LINNET_BF16 && few_halves(c, &some, true)) continue;
        some.M = rest < FEW_MOST ? rest : (int64_t)FEW_MOST;
        few_rows(c, &some, true);
    }
    return LINNET_OK;
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
    if (lnt_rows_are_alone(c)) return rows_alone(c, g);
    if (!g->trans_a && g->trans_b && (g->M <= LNT_FEW_ROWS || g->N <= LNT_FEW_ROWS) && few_rows(c, g, g->M <= g->N)) return LINNET_OK;
    const pick_key key = key_of(g);
    gemm_pick *pick = slot_of(d, key);
    if (!pick) return lnt_fail_memory(c, PICKS * sizeof *pick);
    const cublasStatus_t s = multiply(d, g, pick, key);
    if (s == CUBLAS_STATUS_SUCCESS) return LINNET_OK;
    return lnt_fail(c, LINNET_EINTERNAL, "cuBLASLt refused a product of [%lld,%lld] and [%lld,%lld]: %s", (long long)g->M, (long long)g->K,
                    (long long)g->K, (long long)g->N, cublasLtGetStatusString(s));
}
