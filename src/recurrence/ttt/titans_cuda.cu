/* Titans with a matrix for a memory on any GPU (README.md): the order of work of titans_cpu.c with a CTA in place of a thread. A mini-batch's
 * gradients are taken at M as it is in front of it, and have no copy of their own but where a call begins in the middle of one, or goes token by
 * token. */
#include "recurrence/ttt/titans_head.cuh"

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------------------- */

struct titans_launch {
    lnt_ttt_args a;
    titans_sizes s;
    ttt_segments segments;
    int chains; /* of segments: CTAs that have chains first */
    float *work, *sums; /* [ctas,floats], [parts,H,all] */
    int64_t room, floats, all;
    int parts;
    bool one_by_one;
};

template <typename T> __global__ __launch_bounds__(TTT_THREADS, 1) void titans_forward(const __grid_constant__ titans_launch x)
{
    extern __shared__ __align__(16) float memory[];
    titans_head<T> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    carve(x.s, false, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < x.a.sequences * x.a.H; i += gridDim.x) {
        head.begin(i / x.a.H, (int)(i % x.a.H));
        head.forward(x.one_by_one);
    }
}

/* Where a piece's sums are, zeros now. */
template <typename HEAD> static __device__ __forceinline__ void begin_sums(HEAD &head, float *sums, int64_t all)
{
    head.sum = sums;
    head.norm.dw = sums + head.square(), head.norm.db = head.norm.dw + head.s.D;
    for (int64_t j = threadIdx.x; j < all; j += TTT_THREADS) sums[j] = 0.0f;
}

template <typename T> __global__ __launch_bounds__(TTT_THREADS, 1) void titans_backward(const __grid_constant__ titans_launch x)
{
    extern __shared__ __align__(16) float memory[];
    titans_head<T> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    carve(x.s, true, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < (int64_t)x.parts * x.a.H; i += gridDim.x) {
        const int64_t part = i / x.a.H;
        begin_sums(head, x.sums + i * x.all, x.all);
        for (int64_t n = x.a.sequences * part / x.parts; n < x.a.sequences * (part + 1) / x.parts; n++) {
            head.begin(n, (int)(i % x.a.H));
            head.backward();
        }
    }
}

/* By segments (ttt_segments.cuh): the first CTAs go over a run's chain each; they and the others then take what is left of segments. */
template <int D, int STEP> __global__ __launch_bounds__(TTT_THREADS, 1) void titans_by_segments(const __grid_constant__ titans_launch x)
{
    extern __shared__ __align__(16) float memory[];
    constexpr bool BACK = STEP == STEP_BACK;
    const int64_t who = ttt_next(x.segments.counters(BACK)), H = x.segments.H;
    if (who < x.chains) {
        titans_head<bf16, D> head(x.a, x.s);
        ttt_arena arena = { memory, x.room, x.work + who * x.floats, 0, 0 };
        carve(x.s, BACK, &arena, &head.w);
        head.segments = &x.segments;
        for (int64_t i = who; i < (BACK ? x.parts : x.a.sequences) * H; i += x.chains) {
            const int h = x.segments.h0 + (int)(i % H);
            if (!BACK) {
                head.begin(i / H, h);
                if (STEP == STEP_FORWARD)
                    head.forward(false);
                else
                    ttt_segments_ahead(head);
                continue;
            }
            begin_sums(head, x.sums + (i / H * x.a.H + h) * x.all, x.all);
            for (int64_t n = x.a.sequences * (i / H) / x.parts; n < x.a.sequences * (i / H + 1) / x.parts; n++) {
                head.begin(n, h);
                head.segments_back();
            }
        }
    }
    each_segment<BACK>(x.a, x.segments, [&](const ttt_segment &at) {
        if constexpr (BACK)
            titans_tiles_back<D>(x.segments, at);
        else
            titans_tiles_queries<D, STEP == STEP_AHEAD>(x.segments, at);
    });
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
template <int D> static int64_t segments_of(const lnt_ttt_args *a, bool back, ttt_segments *s)
{
    using is = titans_record<D>;
    return ttt_segments_of(a, back, is::STATE, back ? is::FLOATS : is::AHEAD, is::SUMS, 2 * D * D, s);
}
/* Where a CTA has too little shared memory for tiles they leave the call to the others. */
static size_t workspace_tiles(const void *args, bool back, int threads)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    ttt_segments s;
    const int64_t segments = a->D == 64 ? segments_of<64>(a, back, &s) : segments_of<128>(a, back, &s);
    const size_t with = bytes_of(a, back, true) + (back ? bytes_of(a, false, true) : 0) + (size_t)segments * sizeof(float); /* ahead goes first */
    const size_t without = workspace(args, back, threads);
    return with > without ? with : without;
}

static void put_sums(const lnt_ttt_args *a, const lnt_cuda *d, const titans_shape &y, const float *sums)
{
    const int64_t square = (int64_t)a->D * a->D;
    put_parts(d, a->dlayer[0].w, sums, y.parts, a->H, y.all, 0, square);
    put_parts(d, a->dln_w, sums, y.parts, a->H, y.all, square, a->D);
    put_parts(d, a->dln_b, sums, y.parts, a->H, y.all, square + a->D, a->D);
}

template <typename T> static void put(const lnt_ttt_args *a, const lnt_cuda *d, bool back, bool one_by_one)
{
    const titans_shape y = shape_of(a, back, false);
    const int level = ttt_level(&d->base);
    const size_t shared = (size_t)measure(y.s, back, level).shared_used * sizeof(float);
    const titans_launch x = { *a, y.s, {}, 0, (float *)a->workspace, (float *)a->workspace + y.ctas * y.floats, ttt_shared_floats(level), y.floats,
                              y.all, y.parts, one_by_one };
    if (!y.ctas) return;
    auto *kernel = back ? titans_backward<T> : titans_forward<T>;
    /* beside the arena there are a few static arrays: together they may be more than a block gets unasked */
    lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<(unsigned)y.ctas, TTT_THREADS, shared, d->stream>>>(x);
    if (back) put_sums(a, d, y, x.sums);
}

template <int D, int STEP> static void put_step(const lnt_cuda *d, titans_launch x, const titans_shape &y)
{
    constexpr size_t rooms[] = { sizeof(titans_query_room<D>), sizeof(titans_query_room<D>), sizeof(titans_back_room<D>) };
    const size_t used = (size_t)measure(y.s, STEP == STEP_BACK, ttt_level(&d->base)).shared_used * sizeof(float);
    const size_t shared = used < rooms[STEP] ? rooms[STEP] : used;
    const int64_t pieces = (STEP == STEP_BACK ? y.parts : x.a.sequences) * x.segments.H, ctas = d->base.multiprocessors;
    auto *kernel = titans_by_segments<D, STEP>;
    x.s = y.s, x.chains = (int)ttt_ctas(pieces < ctas ? pieces : ctas), x.floats = y.floats;
    lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<(unsigned)ctas, TTT_THREADS, shared, d->stream>>>(x);
}
template <int D> static void put_segments(const lnt_ttt_args *a, const lnt_cuda *d, bool back)
{
    const titans_shape ahead = shape_of(a, false, true), y = shape_of(a, back, true);
    const int64_t work = y.ctas * y.floats + (back ? ahead.ctas * ahead.floats : 0);
    titans_launch x = { *a, y.s, {}, 0, (float *)a->workspace, (float *)a->workspace + work, ttt_shared_floats(ttt_level(&d->base)), y.floats, y.all,
                        y.parts, false };
    if (!y.ctas) return;
    segments_of<D>(a, back, &x.segments);
    const int most = x.segments.H;
    const size_t clear = ttt_segments_at(x.sums + (back ? y.parts * a->H * x.all : 0), back, a->sequences, &x.segments);
    for (int h0 = 0; h0 < a->H; h0 += most) {
        x.segments.h0 = h0, x.segments.H = a->H - h0 < most ? a->H - h0 : most;
        lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(x.segments.summed, 0, clear, d->stream));
        titans_steps<D><<<(unsigned)(x.segments.slots * x.segments.H), TTT_THREADS, 0, d->stream>>>(*a, x.segments);
        if (!back) {
            put_step<D, STEP_FORWARD>(d, x, ahead);
            continue;
        }
        put_step<D, STEP_AHEAD>(d, x, ahead);
        put_step<D, STEP_BACK>(d, x, y);
        ttt_add_segments<<<(unsigned)lnt_div_up(x.segments.H * x.segments.sums, 128), 128, 0, d->stream>>>(x.sums, x.all, D * D, x.segments);
    }
    if (back) put_sums(a, d, y, x.sums);
}

static void put_call(const void *args, const lnt_device *d, bool back, bool one_by_one)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    LNT_BY_TYPE(a->dtype, T, put<T>(a, (const lnt_cuda *)d, back, one_by_one));
}
static void put_tiles(const void *args, const lnt_device *d, bool back)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    const int level = ttt_level(d);
    if (level == 0 || (level == 1 && back && a->D == 128))
        put_call(args, d, back, false);
    else if (a->D == 64)
        put_segments<64>(a, (const lnt_cuda *)d, back);
    else
        put_segments<128>(a, (const lnt_cuda *)d, back);
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
