/* What cuBLASLt's tiles take of a training step's products when a card does nothing else, at its power limit: each product over and over, its first
 * choice by turns with the rest of its list of eight and with the tiles and clusters named below. docs/performance/training_speed.md quotes it, and
 * says why a step chooses otherwise. A minute on an H200.
 *
 *     nvcc -O2 -std=c++17 -arch=sm_90a -o product_tiles bench/product_tiles.cu -lcublasLt && ./product_tiles */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                                                                  \
    do {                                                                                                                                             \
        const int e = (int)(call);                                                                                                                   \
        if (e) {                                                                                                                                     \
            fprintf(stderr, "%s: error %d\n", #call, e);                                                                                             \
            exit(1);                                                                                                                                 \
        }                                                                                                                                            \
    } while (0)

/* C [M,N] = A [M,K] B [K,N] by rows, as src/ops/gemm_cuda.cu calls it; transposed: A lies as [K,M], B as [N,K]; dW in float32, all else in bf16. */
struct product {
    const char *name;
    int M, N, K, a_transposed, b_transposed, a_width; /* columns of a row of A, or of C where that is wider than N */
    int times;                                        /* in a step of 24 layers */
};
constexpr int TOKENS = 16384, WIDTH = 2048, MLP = 5632, QKV = 6160, QKV_ROW = 6208, VOCABULARY = 32000, BLOCK = 8192;
constexpr product PRODUCTS[] = {
    {"q, k, v, beta", TOKENS, QKV, WIDTH, 0, 1, WIDTH, 24},
    {"o", TOKENS, WIDTH, WIDTH, 0, 1, WIDTH, 24},
    {"gate, up", TOKENS, 2 * MLP, WIDTH, 0, 1, WIDTH, 24},
    {"down", TOKENS, WIDTH, MLP, 0, 1, MLP, 24},
    {"logits", BLOCK, VOCABULARY, WIDTH, 0, 1, WIDTH, 2},
    {"dx of q, k, v, beta", TOKENS, WIDTH, QKV, 0, 0, QKV_ROW, 24},
    {"dx of o", TOKENS, WIDTH, WIDTH, 0, 0, WIDTH, 24},
    {"dx of gate, up", TOKENS, WIDTH, 2 * MLP, 0, 0, 2 * MLP, 24},
    {"dx of down", TOKENS, MLP, WIDTH, 0, 0, WIDTH, 24},
    {"dx of logits", BLOCK, WIDTH, VOCABULARY, 0, 0, VOCABULARY, 2},
    {"dW of q, k, v, beta", QKV, WIDTH, TOKENS, 1, 0, QKV_ROW, 24},
    {"dW of o", WIDTH, WIDTH, TOKENS, 1, 0, WIDTH, 24},
    {"dW of gate, up", 2 * MLP, WIDTH, TOKENS, 1, 0, 2 * MLP, 24},
    {"dW of down", WIDTH, MLP, TOKENS, 1, 0, WIDTH, 24},
    {"dW of logits", VOCABULARY, WIDTH, BLOCK, 1, 0, VOCABULARY, 2},
};

struct tile {
    int id;
    const char *name;
};
constexpr tile TILES[] = {{CUBLASLT_MATMUL_TILE_128x128, "128x128"}, {CUBLASLT_MATMUL_TILE_128x160, "128x160"},
                          {CUBLASLT_MATMUL_TILE_160x128, "160x128"}, {CUBLASLT_MATMUL_TILE_176x128, "176x128"},
                          {CUBLASLT_MATMUL_TILE_64x256, "64x256"},   {CUBLASLT_MATMUL_TILE_128x192, "128x192"},
                          {CUBLASLT_MATMUL_TILE_192x128, "192x128"}, {CUBLASLT_MATMUL_TILE_128x256, "128x256"},
                          {CUBLASLT_MATMUL_TILE_256x128, "256x128"}, {CUBLASLT_MATMUL_TILE_192x192, "192x192"}};
constexpr size_t WORK = 32u << 20;

/* Normal numbers: a product of zeros draws less. */
__global__ void fill(__nv_bfloat16 *p, size_t n, uint64_t seed, float deviation)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed) * 0x9e3779b97f4a7c15u; /* splitmix64 */
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        const float u = ((float)(uint32_t)z + 1.0f) * 0x1p-32f, v = (float)(z >> 32) * 0x1p-32f;
        p[i] = __float2bfloat16(deviation * sqrtf(-2 * logf(u)) * cospif(2 * v));
    }
}

__global__ void differ(const uint32_t *a, const uint32_t *b, size_t n, unsigned long long *count)
{
    unsigned long long own = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) own += a[i] != b[i];
    if (own) atomicAdd(count, own);
}

struct bench {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* by columns: its A is our B */
    void *pa, *pb, *pc, *work;
    cudaEvent_t begin, end;
    double flops;

    cublasStatus_t call(const cublasLtMatmulAlgo_t &algo, void *out) const
    {
        const float one = 1, zero = 0;
        return cublasLtMatmul(lt, desc, &one, pb, a, pa, b, &zero, out, c, out, c, &algo, work, WORK, 0);
    }
    /* Seconds a call, over about so many. */
    double time(const cublasLtMatmulAlgo_t &algo, double seconds) const
    {
        const int calls = std::max(2, (int)(seconds * 650e12 / flops));
        float ms;
        if (call(algo, pc)) return INFINITY;
        CHECK(cudaEventRecord(begin));
        for (int i = 0; i < calls; i++) CHECK(call(algo, pc));
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        return ms * 1e-3 / calls;
    }
};

struct config {
    int tile, cluster, schedule;
};
static config config_of(const cublasLtMatmulAlgo_t &algo)
{
    config c = {};
    uint16_t cluster = 0;
    size_t got;
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &c.tile, sizeof c.tile, &got));
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &c.schedule, sizeof c.schedule, &got));
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster, &got));
    c.cluster = cluster;
    return c;
}

/* Its list, then what else can be made of the first of it: tiles, clusters of one and of two, schedules. */
static std::vector<cublasLtMatmulAlgo_t> choices(const bench &b)
{
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t found[8], checked;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int n = 0;
    CHECK(cublasLtMatmulPreferenceCreate(&want));
    CHECK(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORK, sizeof WORK));
    CHECK(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    CHECK(cublasLtMatmulAlgoGetHeuristic(b.lt, b.desc, b.a, b.b, b.c, b.c, want, 8, found, &n));
    std::vector<cublasLtMatmulAlgo_t> all;
    for (int i = 0; i < n; i++) all.push_back(found[i].algo);
    for (const tile &t : TILES)
        for (const uint16_t cluster : {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1})
            for (int schedule = 0; schedule < 4; schedule++) {
                cublasLtMatmulAlgo_t x = found[0].algo;
                const bool set = !cublasLtMatmulAlgoConfigSetAttribute(&x, CUBLASLT_ALGO_CONFIG_TILE_ID, &t.id, sizeof t.id) &&
                                 !cublasLtMatmulAlgoConfigSetAttribute(&x, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster) &&
                                 !cublasLtMatmulAlgoConfigSetAttribute(&x, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &schedule, sizeof schedule);
                if (set && !cublasLtMatmulAlgoCheck(b.lt, b.desc, b.a, b.b, b.c, b.c, &x, &checked) && checked.workspaceSize <= WORK)
                    all.push_back(x);
            }
    CHECK(cublasLtMatmulPreferenceDestroy(want));
    return all;
}

static void describe(bench &b, const product &p)
{
    const cublasOperation_t ours_b = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, ours_a = p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    CHECK(cublasLtMatmulDescCreate(&b.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(b.desc, CUBLASLT_MATMUL_DESC_TRANSA, &ours_b, sizeof ours_b));
    CHECK(cublasLtMatmulDescSetAttribute(b.desc, CUBLASLT_MATMUL_DESC_TRANSB, &ours_a, sizeof ours_a));
    CHECK(cublasLtMatrixLayoutCreate(&b.a, CUDA_R_16BF, p.b_transposed ? p.K : p.N, p.b_transposed ? p.N : p.K, p.b_transposed ? p.K : p.N));
    CHECK(cublasLtMatrixLayoutCreate(&b.b, CUDA_R_16BF, p.a_transposed ? p.M : p.K, p.a_transposed ? p.K : p.M, p.a_width));
    CHECK(cublasLtMatrixLayoutCreate(&b.c, p.a_transposed ? CUDA_R_32F : CUDA_R_16BF, p.N, p.M, p.N == QKV ? QKV_ROW : p.N));
    b.flops = 2.0 * p.M * p.N * p.K;
}

int main()
{
    constexpr size_t MOST = (size_t)BLOCK * VOCABULARY;
    constexpr double LONG = 0.03, SHORT = 0.012;
    bench b = {};
    unsigned long long *count, other;
    void *second;
    double first_total = 0, best_total = 0;
    CHECK(cublasLtCreate(&b.lt));
    CHECK(cudaMalloc(&b.pa, MOST * 2));
    CHECK(cudaMalloc(&b.pb, MOST * 2));
    CHECK(cudaMalloc(&b.pc, MOST * 4));
    CHECK(cudaMalloc(&second, MOST * 4));
    CHECK(cudaMalloc(&b.work, WORK));
    CHECK(cudaMalloc(&count, sizeof *count));
    CHECK(cudaEventCreate(&b.begin));
    CHECK(cudaEventCreate(&b.end));
    fill<<<1024, 256>>>((__nv_bfloat16 *)b.pa, MOST, 1, 1);
    fill<<<1024, 256>>>((__nv_bfloat16 *)b.pb, MOST, 1u << 30, 0.02f);
    printf("%-20s %18s %6s %8s   others: tile, cluster, schedule, time by the first's\n", "product", "M x N x K", "first", "TFLOP/s");
    for (const product &p : PRODUCTS) {
        describe(b, p);
        const std::vector<cublasLtMatmulAlgo_t> all = choices(b);
        const size_t bytes = (size_t)p.M * (p.N == QKV ? QKV_ROW : p.N) * (p.a_transposed ? 4 : 2);
        std::vector<std::pair<double, int>> order;
        b.time(all[0], 0.3);
        for (int i = 1; i < (int)all.size(); i++) order.push_back({b.time(all[i], SHORT), i});
        std::sort(order.begin(), order.end());
        char sizes[32];
        snprintf(sizes, sizeof sizes, "%dx%dx%d", p.M, p.N, p.K);
        double first = b.time(all[0], LONG), best = first;
        printf("%-20s %18s %6d %8.0f  ", p.name, sizes, config_of(all[0]).tile, b.flops / first * 1e-12);
        for (int i = 0; i < 4 && i < (int)order.size(); i++) {
            const cublasLtMatmulAlgo_t &x = all[order[i].second];
            double own = 0, beside = 0;
            for (int turn = 0; turn < 3; turn++) own += b.time(x, LONG) / 3, beside += b.time(all[0], LONG) / 3;
            CHECK(cudaMemset(b.pc, 0, bytes));
            CHECK(cudaMemset(second, 0, bytes));
            CHECK(cudaMemset(count, 0, sizeof *count));
            CHECK(b.call(all[0], b.pc));
            CHECK(b.call(x, second));
            differ<<<1024, 256>>>((const uint32_t *)b.pc, (const uint32_t *)second, bytes / 4, count);
            CHECK(cudaMemcpy(&other, count, sizeof other, cudaMemcpyDeviceToHost));
            const config c = config_of(x);
            const tile *named = std::find_if(std::begin(TILES), std::end(TILES), [&](const tile &t) { return t.id == c.tile; });
            printf(" %s/%d/%d %.3f%s", named == std::end(TILES) ? "other" : named->name, c.cluster, c.schedule, own / beside,
                   other ? " (other bits)" : "");
            best = std::min(best, own / beside * first);
        }
        printf("\n");
        fflush(stdout);
        first_total += p.times * first, best_total += p.times * best;
    }
    printf("a step's products: %.1f ms, %.1f by the fastest of each\n", first_total * 1e3, best_total * 1e3);
    return 0;
}
