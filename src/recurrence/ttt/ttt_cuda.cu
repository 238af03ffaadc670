/* TTT-linear and TTT-MLP on any GPU (README.md): the order of work of ttt_cpu.c with a CTA in place of a thread. u is rate times `raw` wherever it is
 * read: products take the rates as factors of their rows. And, where bf16 meets a shape that tiles know, most of it by those. */
#include "recurrence/ttt/ttt_head.cuh"

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------------------- */

struct ttt_launch {
    lnt_ttt_args a;
    ttt_sizes s;
    float *work, *sums; /* [ctas,floats], [parts,H,all] */
    int64_t room, floats, all;
    int parts;
    bool one_by_one;
};

template <typename T, int LAYERS, int TILES> __global__ __launch_bounds__(TTT_THREADS, 1) void ttt_forward(const __grid_constant__ ttt_launch x)
{
    extern __shared__ __align__(16) float memory[];
    ttt_head<T, LAYERS, TILES> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    head.w = {};
    carve<LAYERS>(x.s, false, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < x.a.sequences * x.a.H; i += gridDim.x) {
        head.begin(i / x.a.H, (int)(i % x.a.H));
        head.forward(x.one_by_one);
    }
}

template <typename T, int LAYERS, int TILES> __global__ __launch_bounds__(TTT_THREADS, 1) void ttt_backward(const __grid_constant__ ttt_launch x)
{
    extern __shared__ __align__(16) float memory[];
    ttt_head<T, LAYERS, TILES> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    head.w = {};
    carve<LAYERS>(x.s, true, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < (int64_t)x.parts * x.a.H; i += gridDim.x) {
        float *sums = x.sums + i * x.all;
        for (int64_t j = threadIdx.x; j < x.all; j += TTT_THREADS) sums[j] = 0.0f;
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            head.sum_w[l] = sums, head.sum_b[l] = sums += head.count(l);
            sums += x.s.out[l];
        }
        head.norm.dw = sums, head.norm.db = sums + x.s.D, head.dposition = sums + 2 * x.s.D;
        const int64_t part = i / x.a.H;
        for (int64_t n = x.a.sequences * part / x.parts; n < x.a.sequences * (part + 1) / x.parts; n++) {
            head.begin(n, (int)(i % x.a.H));
            head.backward();
        }
    }
}

static __global__ void ttt_positions(float *to, const float *from, int64_t pieces, int64_t all, int64_t at, int m)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float sum = 0;
    if (i >= m) return;
    for (int64_t p = 0; p < pieces; p++) sum += from[p * all + at + i];
    to[i] = sum;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------------- */

static int64_t all_sums(const lnt_ttt_args *a, const ttt_sizes &s) { return s.numbers + 2 * s.D + a->mini_batch; }

template <int LAYERS> static ttt_arena measure(const ttt_sizes &s, bool back, int level)
{
    ttt_work<LAYERS> w = {};
    ttt_arena m = { NULL, ttt_shared_floats(level), NULL, 0, 0 };
    carve<LAYERS>(s, back, &m, &w);
    return m;
}
static ttt_arena measure(const lnt_ttt_args *a, const ttt_sizes &s, bool back, int level)
{
    return lnt_ttt_layers(a) == 2 ? measure<2>(s, back, level) : measure<1>(s, back, level);
}

struct ttt_shape {
    ttt_sizes s;
    int parts;
    int64_t pieces, ctas, floats; /* floats: of a CTA's part of the workspace, whatever the GPU's shared memory is */
};
static ttt_shape shape_of(const lnt_ttt_args *a, bool back, bool tiles)
{
    ttt_shape y = {};
    y.parts = ttt_parts(a, sizes_of(a, false, 1, false).numbers);
    y.pieces = back ? (int64_t)y.parts * a->H : a->sequences * a->H;
    y.ctas = ttt_ctas(y.pieces);
    y.s = sizes_of(a, back, y.ctas, tiles);
    for (int level = 0; level < TTT_LEVELS; level++) {
        const int64_t used = measure(a, y.s, back, level).used;
        y.floats = used > y.floats ? used : y.floats;
    }
    return y;
}

static size_t bytes_of(const lnt_ttt_args *a, bool back, bool tiles)
{
    const ttt_shape y = shape_of(a, back, tiles);
    return (size_t)(y.ctas * y.floats + (back ? (int64_t)y.parts * a->H * all_sums(a, y.s) : 0)) * sizeof(float);
}
static size_t workspace(const void *args, bool back, int threads) { return bytes_of((const lnt_ttt_args *)args, back, false); }
/* Where a CTA has too little shared memory for tiles they leave the call to the others. */
static size_t workspace_tiles(const void *args, bool back, int threads)
{
    const size_t with = bytes_of((const lnt_ttt_args *)args, back, true), without = workspace(args, back, threads);
    return with > without ? with : without;
}

template <typename T, int LAYERS, int TILES> static void put(const lnt_ttt_args *a, const lnt_cuda *d, bool back, bool one_by_one)
{
    const ttt_shape y = shape_of(a, back, TILES > 0);
    const int level = ttt_level(&d->base);
    const size_t used = (size_t)measure<LAYERS>(y.s, back, level).shared_used * sizeof(float), least = sizeof(ttt_back_room<TILES ? TILES : 64>);
    const size_t shared = TILES && back && LAYERS == 1 && used < least ? least : used;
    ttt_launch x = { *a, y.s, (float *)a->workspace, (float *)a->workspace + y.ctas * y.floats, ttt_shared_floats(level), y.floats, all_sums(a, y.s),
                     y.parts, one_by_one };
    if (!y.ctas) return;
    auto *kernel = ttt_forward<T, LAYERS, TILES>;
    if (back) kernel = ttt_backward<T, LAYERS, TILES>;
    /* beside the arena there are a few static arrays: together they may be more than a block gets unasked */
    lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<(unsigned)y.ctas, TTT_THREADS, shared, d->stream>>>(x);
    if (!back) return;
    int64_t at = 0;
    for (int l = 0; l < LAYERS; l++) {
        const int64_t count = (int64_t)y.s.in[l] * y.s.out[l];
        put_parts(d, a->dlayer[l].w, x.sums, y.parts, a->H, x.all, at, count);
        put_parts(d, a->dlayer[l].b, x.sums, y.parts, a->H, x.all, at + count, y.s.out[l]);
        at += count + y.s.out[l];
    }
    put_parts(d, a->dln_w, x.sums, y.parts, a->H, x.all, at, a->D);
    put_parts(d, a->dln_b, x.sums, y.parts, a->H, x.all, at + a->D, a->D);
    if (a->dtoken_idx)
        ttt_positions<<<1, LNT_TTT_LONGEST, 0, d->stream>>>((float *)a->dtoken_idx, x.sums, y.pieces, x.all, at + 2 * a->D, a->mini_batch);
}

static void put_call(const void *args, const lnt_device *d, bool back, bool one_by_one)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    LNT_BY_TYPE(a->dtype, T, {
        if (lnt_ttt_layers(a) == 2)
            put<T, 2, 0>(a, (const lnt_cuda *)d, back, one_by_one);
        else
            put<T, 1, 0>(a, (const lnt_cuda *)d, back, one_by_one);
    });
}
static void put_tiles(const void *args, const lnt_device *d, bool back)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    const int level = ttt_level(d);
    if (level == 0 || (level == 1 && (lnt_ttt_layers(a) == 2 || (back && a->D == 128))))
        put_call(args, d, back, false);
    else if (lnt_ttt_layers(a) == 2)
        put<bf16, 2, 64>(a, (const lnt_cuda *)d, back, false);
    else if (a->D == 64)
        put<bf16, 1, 64>(a, (const lnt_cuda *)d, back, false);
    else
        put<bf16, 1, 128>(a, (const lnt_cuda *)d, back, false);
}
static void forward_tiles(const void *args, const lnt_device *d) { put_tiles(args, d, false); }
static void backward_tiles(const void *args, const lnt_device *d) { put_tiles(args, d, true); }
static const char *tiles_decline(const void *args, bool back)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    if (lnt_ttt_layers(a) == 2 && (a->D != 64 || a->F != 256)) return "of two layers it takes 64 columns, and 256 between the layers";
    return ttt_tiles_decline(a);
}
static void forward(const void *args, const lnt_device *d) { put_call(args, d, false, false); }
static void forward_tokens(const void *args, const lnt_device *d) { put_call(args, d, false, true); }
static void backward(const void *args, const lnt_device *d) { put_call(args, d, true, false); }

extern "C" {
extern const lnt_recur_impl lnt_ttt_chunk_tiles, lnt_ttt_chunk_cuda, lnt_ttt_recurrent_cuda;
const lnt_recur_impl lnt_ttt_chunk_tiles = TTT_TILES(tiles_decline, workspace_tiles, forward_tiles, backward_tiles);
const lnt_recur_impl lnt_ttt_chunk_cuda = TTT_CUDA("chunk-cuda", LINNET_FORM_CHUNK, forward);
const lnt_recur_impl lnt_ttt_recurrent_cuda = TTT_CUDA("recurrent-cuda", LINNET_FORM_RECURRENT, forward_tokens);
}
