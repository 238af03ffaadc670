/* Titans with a matrix for a memory on any GPU (README.md): the order of work of titans_cpu.c with a CTA in place of a thread. A mini-batch's
 * gradients are taken at M as it is in front of it, and have no copy of their own but where a call begins in the middle of one, or goes token by
 * token. */
#include "recurrence/ttt/titans_head.cuh"

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------------------- */

struct titans_launch {
    lnt_ttt_args a;
    titans_sizes s;
    float *work, *sums; /* [ctas,floats], [parts,H,all] */
    int64_t room, floats, all;
    int parts;
    bool one_by_one;
};

template <typename T, int TILES> __global__ __launch_bounds__(TTT_THREADS, 1) void titans_forward(const __grid_constant__ titans_launch x)
{
    extern __shared__ __align__(16) float memory[];
    titans_head<T, TILES> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    carve(x.s, false, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < x.a.sequences * x.a.H; i += gridDim.x) {
        head.begin(i / x.a.H, (int)(i % x.a.H));
        head.forward(x.one_by_one);
    }
}

template <typename T, int TILES> __global__ __launch_bounds__(TTT_THREADS, 1) void titans_backward(const __grid_constant__ titans_launch x)
{
    extern __shared__ __align__(16) float memory[];
    titans_head<T, TILES> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    carve(x.s, true, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < (int64_t)x.parts * x.a.H; i += gridDim.x) {
        const int64_t part = i / x.a.H;
        head.sum = x.sums + i * x.all;
        head.norm.dw = head.sum + head.square(), head.norm.db = head.norm.dw + x.s.D;
        for (int64_t j = threadIdx.x; j < x.all; j += TTT_THREADS) head.sum[j] = 0.0f;
        for (int64_t n = x.a.sequences * part / x.parts; n < x.a.sequences * (part + 1) / x.parts; n++) {
            head.begin(n, (int)(i % x.a.H));
            head.backward();
        }
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------------- */

struct titans_shape {
    titans_sizes s;
    int parts;
    int64_t ctas, floats, all; /* floats: of a CTA's part of the workspace, whatever the GPU's shared memory is */
};
static ttt_arena measure(const titans_sizes &s, bool back, int level)
{
    titans_work w = {};
    ttt_arena m = { NULL, ttt_shared_floats(level), NULL, 0, 0 };
    carve(s, back, &m, &w);
    return m;
}
static titans_shape shape_of(const lnt_ttt_args *a, bool back, bool tiles)
{
    const int64_t square = (int64_t)a->D * a->D;
    titans_shape y = {};
    y.parts = ttt_parts(a, square);
    y.ctas = ttt_ctas(back ? (int64_t)y.parts * a->H : a->sequences * a->H);
    y.s = sizes_of(a, back, y.ctas, tiles);
    y.all = square + 2 * a->D;
    for (int level = 0; level < TTT_LEVELS; level++) {
        const int64_t used = measure(y.s, back, level).used;
        y.floats = used > y.floats ? used : y.floats;
    }
    return y;
}

static size_t bytes_of(const lnt_ttt_args *a, bool back, bool tiles)
{
    const titans_shape y = shape_of(a, back, tiles);
    return (size_t)(y.ctas * y.floats + (back ? (int64_t)y.parts * a->H * y.all : 0)) * sizeof(float);
}
static size_t workspace(const void *args, bool back, int threads) { return bytes_of((const lnt_ttt_args *)args, back, false); }
/* Where a CTA has too little shared memory for tiles they leave the call to the others. */
static size_t workspace_tiles(const void *args, bool back, int threads)
{
    const size_t with = bytes_of((const lnt_ttt_args *)args, back, true), without = workspace(args, back, threads);
    return with > without ? with : without;
}

template <typename T, int TILES> static void put(const lnt_ttt_args *a, const lnt_cuda *d, bool back, bool one_by_one)
{
    const titans_shape y = shape_of(a, back, TILES > 0);
    const int level = ttt_level(&d->base);
    const size_t used = (size_t)measure(y.s, back, level).shared_used * sizeof(float), least = sizeof(titans_back_room<TILES ? TILES : 64>);
    const size_t shared = TILES && back && used < least ? least : used;
    const titans_launch x = { *a, y.s, (float *)a->workspace, (float *)a->workspace + y.ctas * y.floats, ttt_shared_floats(level), y.floats, y.all,
                              y.parts, one_by_one };
    if (!y.ctas) return;
    auto *kernel = back ? titans_backward<T, TILES> : titans_forward<T, TILES>;
    /* beside the arena there are a few static arrays: together they may be more than a block gets unasked */
    lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<(unsigned)y.ctas, TTT_THREADS, shared, d->stream>>>(x);
    if (!back) return;
    const int64_t square = (int64_t)a->D * a->D;
    put_parts(d, a->dlayer[0].w, x.sums, y.parts, a->H, y.all, 0, square);
    put_parts(d, a->dln_w, x.sums, y.parts, a->H, y.all, square, a->D);
    put_parts(d, a->dln_b, x.sums, y.parts, a->H, y.all, square + a->D, a->D);
}

static void put_call(const void *args, const lnt_device *d, bool back, bool one_by_one)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    LNT_BY_TYPE(a->dtype, T, put<T, 0>(a, (const lnt_cuda *)d, back, one_by_one));
}
static void put_tiles(const void *args, const lnt_device *d, bool back)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    const int level = ttt_level(d);
    if (level == 0 || (level == 1 && back && a->D == 128))
        put_call(args, d, back, false);
    else if (a->D == 64)
        put<bf16, 64>(a, (const lnt_cuda *)d, back, false);
    else
        put<bf16, 128>(a, (const lnt_cuda *)d, back, false);
}
static void forward_tiles(const void *args, const lnt_device *d) { put_tiles(args, d, false); }
static void backward_tiles(const void *args, const lnt_device *d) { put_tiles(args, d, true); }
static const char *tiles_decline(const void *args, bool back) { return ttt_tiles_decline((const lnt_ttt_args *)args); }
static void forward(const void *args, const lnt_device *d) { put_call(args, d, false, false); }
static void forward_tokens(const void *args, const lnt_device *d) { put_call(args, d, false, true); }
static void backward(const void *args, const lnt_device *d) { put_call(args, d, true, false); }

extern "C" {
extern const lnt_recur_impl lnt_titans_chunk_tiles, lnt_titans_chunk_cuda, lnt_titans_recurrent_cuda;
const lnt_recur_impl lnt_titans_chunk_tiles = TTT_TILES(tiles_decline, workspace_tiles, forward_tiles, backward_tiles);
const lnt_recur_impl lnt_titans_chunk_cuda = TTT_CUDA("chunk-cuda", LINNET_FORM_CHUNK, forward);
const lnt_recur_impl lnt_titans_recurrent_cuda = TTT_CUDA("recurrent-cuda", LINNET_FORM_RECURRENT, forward_tokens);
}
