/* How fast weights come to shared memory on Hopper, when nothing is done with them: [11264, 2048] in bf16, the gates and sums of a layer of width
 * 2048, in stages of boxes as src/ops/few_rows_sm90.cu brings them, beside the rows of x that each box is multiplied by; sixteen such matrices, more
 * than L2 holds, a launch each, one behind the other in a graph. A launch costs some 2.5 us besides. docs/performance/decoding.md quotes it.
 *
 *     nvcc -O2 -std=c++17 -arch=sm_90a -o box_loads bench/box_loads.cu && ./box_loads */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                                                                  \
    do {                                                                                                                                             \
        const cudaError_t e = (call);                                                                                                                \
        if (e != cudaSuccess) {                                                                                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                                                                               \
            exit(1);                                                                                                                                 \
        }                                                                                                                                            \
    } while (0)

constexpr int N = 11264, K = 2048, X = 64, MATRICES = 16, BOX = 64, MOST_STAGES = 16;

struct way {
    const char *name;
    int rows, cols; /* of weights in a stage, in boxes of 64 columns; bulk: row by row, as they lie */
    bool bulk;
    int x;                     /* rows of x beside them */
    bool pairs;                /* blocks of two tiles share what they load of it */
    int stages, blocks, split; /* split: blocks of a tile, each a share of K */
    int memory;                /* KB of a block: two share a multiprocessor up to 112 */
};

struct load_args {
    CUtensorMap w, x;
    const char *weights;
    way by;
};

__device__ __forceinline__ uint32_t address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait_for(const uint64_t *b, int parity)
{
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(address(b)), "r"(parity)
                     : "memory");
    } while (!done);
}
__device__ __forceinline__ void make(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void load_box(void *to, const CUtensorMap *map, uint64_t *full, int x, int y, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
                     address(to)),
                 "l"(map), "r"(address(full)), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void load_box_of_two(void *to, const CUtensorMap *map, uint64_t *full, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
            address(to)),
        "l"(map), "r"(address(full)), "r"(x), "r"(y), "h"((uint16_t)3)
        : "memory");
}
/* The block that shares x is told as well: it loads half of what comes here. */
__device__ __forceinline__ void give_back(uint64_t *empty, int rank)
{
    asm volatile(
        "{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [a]; }" ::"r"(address(empty)),
        "r"(rank)
        : "memory");
}

/* One thread loads and waits; what it waits for is loaded over. */
__device__ void walk(const load_args &a, char *ring, uint64_t *full, uint64_t *empty)
{
    const way &by = a.by;
    const int w_bytes = by.rows * by.cols * 2, stage = w_bytes + by.x * by.cols * 2, mine = (int)blockIdx.x, blocks = (int)gridDim.x;
    const int each = K / by.cols / by.split, parts = N / by.rows * by.split, first = (int)((int64_t)parts * mine / blocks);
    const int count = ((int)((int64_t)parts * (mine + 1) / blocks) - first) * each;
    uint64_t once, kept;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(kept));
    int tile = first / by.split, share = first % by.split, at = tile / 2 * 5 % each, left = each, to = 0, turn = 0, asked = 0;
    const auto ask = [&]() {
        const int k = (share * each + at) * by.cols;
        char *p = ring + to * stage;
        if (by.pairs && turn) wait_for(&empty[to], (turn - 1) & 1);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(&full[to])), "r"(stage) : "memory");
        if (by.bulk)
            for (int r = 0; r < by.rows; r++)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                                 address(p + r * by.cols * 2)),
                             "l"(a.weights + ((int64_t)(tile * by.rows + r) * K + k) * 2), "r"(by.cols * 2), "r"(address(&full[to])), "l"(once)
                             : "memory");
        else
            for (int c = 0; c < by.cols; c += BOX) load_box(p + c * by.rows * 2, &a.w, &full[to], k + c, tile * by.rows, once);
        for (int c = 0; c < by.cols && by.x; c += BOX) {
            char *x = p + w_bytes + c * by.x * 2;
            if (by.pairs)
                load_box_of_two(x + mine % 2 * by.x / 2 * BOX * 2, &a.x, &full[to], k + c, mine % 2 * by.x / 2);
            else
                load_box(x, &a.x, &full[to], k + c, 0, kept);
        }
        if (++to == by.stages) to = 0, turn++;
        if (++at == each) at = 0;
        if (--left == 0) {
            left = each;
            if (++share == by.split) share = 0, tile++;
        }
        asked++;
    };
    while (asked < count && asked < by.stages) ask();
    for (int i = 0, s = 0, parity = 0; i < count; i++) {
        wait_for(&full[s], parity);
        if (by.pairs) give_back(&empty[s], 0), give_back(&empty[s], 1);
        if (++s == by.stages) s = 0, parity ^= 1;
        if (asked < count) ask();
    }
}

__global__ void __launch_bounds__(32) load_kernel(const __grid_constant__ load_args a)
{
    extern __shared__ __align__(1024) char ring[];
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES];
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.by.stages; i++) make(&full[i], 1), make(&empty[i], 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) walk(a, ring, full, empty);
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

static CUtensorMap map_of(void *p, int rows, int box)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    cudaDriverEntryPointQueryResult found;
    if (!encode) CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault, &found));
    CUtensorMap m;
    const cuuint64_t sizes[2] = {(cuuint64_t)K, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)K * 2};
    const cuuint32_t boxes[2] = {(cuuint32_t)BOX, (cuuint32_t)box}, step[2] = {1, 1};
    if (encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, sizes, stride, boxes, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) {
        fprintf(stderr, "no map of %d rows in boxes of %d\n", rows, box);
        exit(1);
    }
    return m;
}

int main()
{
    const way ways[] = {
        {"weights alone, boxes of 64 rows", 64, 64, false, 0, false, 7, 176, 1, 112},
        {"32 rows, two boxes", 32, 128, false, 0, false, 7, 176, 1, 112},
        {"16 rows, four boxes", 16, 256, false, 0, false, 7, 176, 1, 112},
        {"8 rows, eight boxes", 8, 512, false, 0, false, 7, 176, 1, 112},
        {"two whole rows, bulk", 2, 2048, true, 0, false, 7, 176, 1, 112},
        {"and 64 rows of x, a block a tile", 64, 64, false, X, false, 7, 176, 1, 112},
        {"two blocks a tile", 64, 64, false, X, false, 7, 264, 2, 112},
        {"one block a multiprocessor", 64, 64, false, X, false, 12, 132, 2, 200},
        {"two tiles share x", 64, 64, false, X, true, 7, 176, 1, 112},
        {"boxes of 128 rows, a block a tile", 128, 64, false, X, false, 4, 88, 1, 112},
        {"two blocks a tile", 128, 64, false, X, false, 4, 176, 2, 112},
        {"four blocks a tile", 128, 64, false, X, false, 4, 264, 4, 112},
        {"one block a multiprocessor", 128, 64, false, X, false, 8, 132, 4, 200},
    };
    const size_t bytes = (size_t)N * K * 2;
    char *w, *x;
    cudaStream_t stream;
    CHECK(cudaMalloc(&w, bytes * MATRICES));
    CHECK(cudaMalloc(&x, X * K * 2));
    CHECK(cudaMemset(w, 1, bytes * MATRICES));
    CHECK(cudaMemset(x, 1, X * K * 2));
    CHECK(cudaFuncSetAttribute(load_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 << 10));
    CHECK(cudaStreamCreate(&stream));
    printf("%-40s%8s%8s%8s\n", "", "blocks", "us", "TB/s");
    for (const way &by : ways) {
        cudaGraph_t graph;
        cudaGraphExec_t run;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < MATRICES; i++) {
            load_args a;
            a.weights = w + bytes * i, a.by = by;
            a.w = map_of(w + bytes * i, N, by.rows), a.x = map_of(x, X, by.pairs ? X / 2 : X);
            cudaLaunchConfig_t config = {};
            cudaLaunchAttribute cluster;
            cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim = {by.pairs ? 2u : 1u, 1, 1};
            config.gridDim = dim3((unsigned)by.blocks), config.blockDim = dim3(32), config.dynamicSmemBytes = (size_t)by.memory << 10,
            config.stream = stream;
            config.attrs = &cluster, config.numAttrs = 1;
            CHECK(cudaLaunchKernelEx(&config, load_kernel, a));
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&run, graph, 0));
        std::vector<float> times;
        for (int i = 0; i < 12; i++) {
            cudaEvent_t begin, end;
            float ms;
            CHECK(cudaEventCreate(&begin));
            CHECK(cudaEventCreate(&end));
            CHECK(cudaEventRecord(begin, stream));
            CHECK(cudaGraphLaunch(run, stream));
            CHECK(cudaEventRecord(end, stream));
            CHECK(cudaEventSynchronize(end));
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            if (i > 1) times.push_back(ms);
            CHECK(cudaEventDestroy(begin));
            CHECK(cudaEventDestroy(end));
        }
        std::sort(times.begin(), times.end());
        const double us = 1e3 * times[times.size() / 2] / MATRICES;
        printf("%-40s%8d%8.2f%8.2f\n", by.name, by.blocks, us, 1e-6 * (double)bytes / us);
        CHECK(cudaGraphExecDestroy(run));
        CHECK(cudaGraphDestroy(graph));
    }
}
