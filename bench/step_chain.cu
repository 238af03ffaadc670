/* What a kernel costs a decoding step beside its bytes, on Hopper: 24 layers of four products of one row ([6160, 2048], [2048, 2048], two of [5632, 2048] as
 * one, [2048, 5632]), one behind the other in a graph, each in the shape of src/ops/few_stream_sm90.cu: blocks of half a multiprocessor's shared memory,
 * stages of 16 KB of weights brought by one thread, x read when the kernel ahead is done. What is multiplied is made up; every way has to end with the
 * same numbers. docs/performance/decoding.md quotes it.
 *
 *     nvcc -O3 -std=c++17 -arch=sm_90a -o step_chain bench/step_chain.cu && ./step_chain */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                                                                \
    do {                                                                                                                           \
        const cudaError_t e = (call);                                                                                              \
        if (e != cudaSuccess) {                                                                                                    \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                                                             \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32, STAGES = 6, STAGE = 16384, ROWS = 16;
constexpr int LAYERS = 24, VECTOR = 1 << 14, X = 2048, COUNTER = 64; /* numbers of a result, that are read of it; words from counter to counter */

/* How a step is put. */
struct way {
    const char *name;
    bool flags;          /* a kernel waits for a counter of the blocks ahead that are done, not for the end of that kernel */
    int under_way;       /* stages that a block asks for before the first is there ... */
    bool first_turn;     /* ... in the first turn of its ring alone ... */
    int alone;           /* ... where there is one block a multiprocessor */
    bool at_once;        /* the next kernel may begin as soon as this one has */
    bool even;           /* where no block has more than two tiles, as few blocks as have two */
};

struct product {
    const char *w;
    int stages, tiles;   /* of a tile; tiles */
    const float *x;
    float *y;
    unsigned *ahead, *mine, *seen; /* counters: the last kernel's blocks that are done, this one's, this one's that know of the last one's */
    unsigned expected, blocks;
    int under_way;
    bool first_turn, at_once;
};

__device__ __forceinline__ uint32_t address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait_for(uint64_t *b, int parity)
{
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra L; }" ::"r"(address(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void let_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/* One thread. */
__device__ __forceinline__ void bring(const product &a, char *ring, uint64_t *full, uint64_t *empty)
{
    bool ahead = !a.at_once;
    if (a.at_once) let_next();
    for (int tile = (int)blockIdx.x, stage = 0, turn = 0; tile < a.tiles; tile += (int)gridDim.x)
        for (int k = 0; k < a.stages; k++) {
            if (turn) {
                if (ahead) let_next();
                ahead = false;
                wait_for(&empty[stage], (turn - 1) & 1);
            }
            const int before = stage >= a.under_way ? stage - a.under_way : stage + STAGES - a.under_way;
            if (turn ? !a.first_turn : before < stage) wait_for(&full[before], (before < stage ? turn : turn - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(&full[stage])), "r"(STAGE) : "memory");
            asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
                         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], p; }" ::"r"(
                             address(ring + stage * STAGE)),
                         "l"(a.w + ((size_t)tile * a.stages + k) * STAGE), "r"(STAGE), "r"(address(&full[stage]))
                         : "memory");
            if (++stage == STAGES) stage = 0, turn++;
        }
    if (ahead) let_next();
}

template <bool FLAGS> __device__ __forceinline__ void await_last(const product &a)
{
    if (!FLAGS || !a.ahead) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        return;
    }
    if (threadIdx.x == 0) {
        unsigned done;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(done) : "l"(a.ahead) : "memory");
        while (done < a.expected);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
    if (threadIdx.x == 0 && atomicInc(a.seen, a.blocks - 1) == a.blocks - 1) *a.ahead = 0; /* for the next step: all know */
}

template <bool FLAGS> __global__ void __launch_bounds__(THREADS, 2) product_kernel(const product a)
{
    extern __shared__ __align__(1024) char ring[];
    __shared__ float share[2][WARPS][ROWS];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address(&full[i])));
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(&empty[i])), "n"(WARPS));
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring(a, ring, full, empty);
        return;
    }
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    await_last<FLAGS>(a);
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = __ldcg(a.x + threadIdx.x * 8 + i);
    for (int tile = (int)blockIdx.x, stage = 0, parity = 0, turn = 0; tile < a.tiles; tile += (int)gridDim.x, turn ^= 1) {
        float s = 0;
        for (int k = 0; k < a.stages; k++) {
            wait_for(&full[stage], parity);
            const uint4 *w = (const uint4 *)(ring + stage * STAGE + warp * (STAGE / WARPS));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4 v = w[i * 32 + lane];
                s += x[2 * i] * (float)(v.x ^ v.z) * 1e-12f + x[2 * i + 1] * (float)(v.y ^ v.w) * 1e-12f;
            }
            __syncwarp();
            if (lane == 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address(&empty[stage])) : "memory");
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        s += __shfl_xor_sync(0xffffffffu, s, 16);
        if (lane < ROWS) share[turn][warp][lane] = s;
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
        if (threadIdx.x >= ROWS) continue;
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += share[turn][w][threadIdx.x];
        a.y[tile * ROWS + threadIdx.x] = sum * 0.01f + 0.5f;
    }
    if (!FLAGS) return;
    __syncwarp(); /* the first warp wrote y */
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.mine) : "memory");
}

static const struct {
    int stages, tiles;
} products[] = {{4, 385}, {4, 128}, {4, 704}, {11, 128}};
constexpr int EACH = sizeof products / sizeof *products, KERNELS = LAYERS * EACH;

struct memory {
    char *w;
    float *y;      /* [KERNELS + 1][VECTOR] */
    unsigned *c;   /* [KERNELS][COUNTER], what a kernel's blocks know 32 words behind */
    size_t bytes;  /* of w */
};

static cudaGraphExec_t record(cudaStream_t stream, const memory &m, const way &z, int multiprocessors)
{
    const int shared = STAGES * STAGE;
    auto *kernel = z.flags ? product_kernel<true> : product_kernel<false>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    size_t at = 0;
    unsigned last = 0;
    for (int i = 0; i < KERNELS; i++) {
        const int stages = products[i % EACH].stages, tiles = products[i % EACH].tiles;
        int blocks = std::min(tiles, tiles > multiprocessors ? 2 * multiprocessors : multiprocessors);
        const int turns = (tiles + blocks - 1) / blocks;
        if (z.even && turns == 2) blocks = (tiles + turns - 1) / turns;
        const bool alone = blocks <= multiprocessors;
        unsigned *ahead = i ? m.c + (i - 1) * COUNTER : NULL;
        const product a = {m.w + at, stages, tiles, m.y + (size_t)i * VECTOR, m.y + (size_t)(i + 1) * VECTOR, ahead, m.c + i * COUNTER,
                           i ? ahead + COUNTER / 2 : NULL, last, (unsigned)blocks, z.under_way, z.first_turn || (z.alone && alone), z.at_once};
        at += (size_t)stages * tiles * STAGE;
        last = (unsigned)blocks;
        cudaLaunchAttribute early;
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = (unsigned)blocks, config.blockDim = THREADS, config.dynamicSmemBytes = shared, config.stream = stream;
        config.attrs = &early, config.numAttrs = 1;
        CHECK(cudaLaunchKernelEx(&config, kernel, a));
    }
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return ready;
}

int main()
{
    static const way ways[] = {
        {"as it was until 58fde34", false, 2, false, 0, false, false}, {"counters of blocks", true, 2, false, 0, false, false},
        {"one stage under way", false, 1, false, 0, false, false},      {"six stages under way", false, 6, false, 0, false, false},
        {"two in the first turn", false, 2, true, 0, false, false},     {"next at once", false, 2, false, 0, true, false},
        {"and two in the first turn", false, 2, true, 0, true, false},  {"two in the first turn, one block", false, 2, false, 1, false, false},
        {"even", false, 2, false, 0, false, true},                      {"even, first turn of one block", false, 2, false, 1, false, true},
    };
    constexpr int WAYS = sizeof ways / sizeof *ways, ROUNDS = 3, STEPS = 21;
    int multiprocessors;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    memory m = {};
    for (const auto &p : products) m.bytes += (size_t)p.stages * p.tiles * STAGE * LAYERS;
    CHECK(cudaMalloc(&m.w, m.bytes));
    CHECK(cudaMalloc(&m.y, (size_t)(KERNELS + 1) * VECTOR * sizeof *m.y));
    CHECK(cudaMalloc(&m.c, KERNELS * COUNTER * sizeof *m.c));
    CHECK(cudaMemset(m.c, 0, KERNELS * COUNTER * sizeof *m.c));
    std::vector<uint32_t> some(1 << 20);
    for (auto &v : some) v = (uint32_t)rand() * 2654435761u;
    for (size_t at = 0; at < m.bytes; at += some.size() * 4)
        CHECK(cudaMemcpy(m.w + at, some.data(), std::min(some.size() * 4, m.bytes - at), cudaMemcpyHostToDevice));
    const std::vector<float> x(VECTOR, 0.3f);
    CHECK(cudaMemcpy(m.y, x.data(), VECTOR * sizeof(float), cudaMemcpyHostToDevice));
    cudaStream_t stream;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    cudaGraphExec_t step[WAYS];
    for (int v = 0; v < WAYS; v++) step[v] = record(stream, m, ways[v], multiprocessors);
    std::vector<float> right, got(X);
    printf("%.1f MB of weights a step, %d kernels\n", (double)m.bytes / 1e6, KERNELS);
    for (int round = 0; round < ROUNDS; round++)
        for (int v = 0; v < WAYS; v++) {
            std::vector<float> us(STEPS);
            for (float &t : us) {
                CHECK(cudaMemsetAsync(m.y + VECTOR, 0, (size_t)KERNELS * VECTOR * sizeof *m.y, stream)); /* who reads too early finds zeros */
                CHECK(cudaMemsetAsync(m.c + (KERNELS - 1) * COUNTER, 0, COUNTER * sizeof *m.c, stream)); /* nobody reads the last one's */
                CHECK(cudaEventRecord(begin, stream));
                CHECK(cudaGraphLaunch(step[v], stream));
                CHECK(cudaEventRecord(end, stream));
                CHECK(cudaStreamSynchronize(stream));
                CHECK(cudaEventElapsedTime(&t, begin, end));
                t *= 1e3f;
            }
            std::sort(us.begin(), us.end());
            CHECK(cudaMemcpy(got.data(), m.y + (size_t)KERNELS * VECTOR, X * sizeof(float), cudaMemcpyDeviceToHost));
            if (right.empty()) right = got;
            printf("%-34s %7.1f us, %.2f TB/s%s\n", ways[v].name, us[STEPS / 2], (double)m.bytes / us[STEPS / 2] / 1e6, got == right ? "" : ", ANOTHER RESULT");
        }
    return 0;
}
