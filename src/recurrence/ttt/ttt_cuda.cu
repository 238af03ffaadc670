/* TTT-linear and TTT-MLP on any GPU (README.md): the order of work of ttt_cpu.c with a CTA in place of a thread. u is rate times `raw` wherever it is
 * read: products take the rates as factors of their rows. And, where bf16 meets a shape that tiles know, most of it by those. */
#include "recurrence/ttt/ttt_head.cuh"

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------------------- */

struct ttt_launch {
    lnt_ttt_args a;
    ttt_sizes s;
    ttt_segments segments;
    int chains; /* of segments: CTAs that have chains first */
    float *work, *sums; /* [ctas,floats], [parts,H,all] */
    int64_t room, floats, all;
    int parts;
    bool one_by_one;
};

template <typename T, int LAYERS> __global__ __launch_bounds__(TTT_THREADS, 1) void ttt_forward(const __grid_constant__ ttt_launch x)
{
    extern __shared__ __align__(16) float memory[];
    ttt_head<T, LAYERS> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    head.w = {};
    carve<LAYERS>(x.s, false, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < x.a.sequences * x.a.H; i += gridDim.x) {
        head.begin(i / x.a.H, (int)(i % x.a.H));
        head.forward(x.one_by_one);
    }
}

template <typename T, int LAYERS> __global__ __launch_bounds__(TTT_THREADS, 1) void ttt_backward(const __grid_constant__ ttt_launch x)
{
    extern __shared__ __align__(16) float memory[];
    ttt_head<T, LAYERS> head(x.a, x.s);
    ttt_arena arena = { memory, x.room, x.work + blockIdx.x * x.floats, 0, 0 };
    head.w = {};
    carve<LAYERS>(x.s, true, &arena, &head.w);
    for (int64_t i = blockIdx.x; i < (int64_t)x.parts * x.a.H; i += gridDim.x) {
        head.begin_sums(x.sums + i * x.all, x.all);
        const int64_t part = i / x.a.H;
        for (int64_t n = x.a.sequences * part / x.parts; n < x.a.sequences * (part + 1) / x.parts; n++) {
            head.begin(n, (int)(i % x.a.H));
            head.backward();
        }
    }
}

/* By segments (ttt_segments.cuh): the first CTAs go over a run's chain each; they and the others then take what is left of segments. By both ends the
 * chains' CTAs leave ahead of the way back, and that begins in their place. */
template <int LAYERS, int D, int STEP> __global__ __launch_bounds__(TTT_THREADS, 1) void ttt_by_segments(const __grid_constant__ ttt_launch x)
{
    extern __shared__ __align__(16) float memory[];
    constexpr bool BACK = STEP == STEP_BACK;
    const bool both_ends = LAYERS == 2 && STEP != STEP_FORWARD && x.segments.both_ends;
    if (STEP == STEP_AHEAD && both_ends) let_next();
    const int64_t who = ttt_next(x.segments.counters(BACK)), H = x.segments.H;
    if (who < x.chains) {
        ttt_head<bf16, LAYERS, D> head(x.a, x.s);
        ttt_arena arena = { memory, x.room, x.work + who * x.floats, 0, 0 };
        head.w = {};
        head.segments = &x.segments;
        carve<LAYERS>(x.s, BACK, &arena, &head.w);
        for (int64_t i = who; i < (BACK ? x.parts : x.a.sequences) * H; i += x.chains) {
            const int h = x.segments.h0 + (int)(i % H);
            if constexpr (!BACK) {
                head.begin(i / H, h);
                if constexpr (STEP == STEP_FORWARD)
                    head.forward(false);
                else
                    ttt_segments_ahead(head);
                if (both_ends && threadIdx.x == 0) ttt_publish(x.segments.ended(h));
            } else {
                if (both_ends) ttt_await(x.segments.ended(h));
                head.begin_sums(x.sums + (i / H * x.a.H + h) * x.all, x.all);
                for (int64_t n = x.a.sequences * (i / H) / x.parts; n < x.a.sequences * (i / H + 1) / x.parts; n++) {
                    head.begin(n, h);
                    head.segments_back();
                }
            }
        }
    }
    const auto rest = [&](const ttt_segment &at) {
        if constexpr (LAYERS == 2 && BACK)
            ttt_mlp_tiles_back(x.segments, at);
        else if constexpr (LAYERS == 2)
            ttt_mlp_tiles_queries<STEP == STEP_AHEAD>(x.segments, at);
        else if constexpr (BACK)
            ttt_tiles_back<D>(x.segments, at);
        else
            ttt_tiles_queries<D, STEP == STEP_AHEAD>(x.segments, at);
    };
    if (STEP == STEP_AHEAD && both_ends)
        each_of_both_ends(x.a, x.segments, who < x.chains ? (int)who : -1, rest);
    else
        each_segment<BACK>(x.a, x.segments, rest);
    if (BACK && both_ends) await_last(); /* or what follows could overtake the kernel ahead */
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

/* Of two layers' tiles no more than their room, for the sake of the first-level cache: registers are short, and the stack is read there. */
static int64_t shared_room(const ttt_sizes &s, int level)
{
    const int64_t all = ttt_shared_floats(level);
    return s.in[1] && s.room && s.room < all ? s.room : all;
}
template <int LAYERS> static ttt_arena measure(const ttt_sizes &s, bool back, int level)
{
    ttt_work<LAYERS> w = {};
    ttt_arena m = { NULL, shared_room(s, level), NULL, 0, 0 };
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

template <int LAYERS, int D> static int64_t segments_of(const lnt_ttt_args *a, bool back, ttt_segments *s)
{
    using is = ttt_record<D>;
    if (LAYERS == 2)
        return ttt_segments_of(a, back, ttt_mlp_left::STATE, back ? ttt_mlp_record::FLOATS : ttt_mlp_left::FLOATS, is::SUMS,
                               2 * MLP_D * MLP_F + MLP_D + MLP_F, s, 8);
    return ttt_segments_of(a, back, is::STATE, back ? is::FLOATS : is::AHEAD, is::SUMS, (D + 1) * D, s);
}
/* Where a CTA has too little shared memory for tiles they leave the call to the others. */
static size_t workspace_tiles(const void *args, bool back, int threads)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    size_t with = bytes_of(a, back, true);
    ttt_segments s;
    if (back) with += bytes_of(a, false, true); /* which goes first */
    with += (size_t)(lnt_ttt_layers(a) == 2 ? segments_of<2, 64>(a, back, &s)
                     : a->D == 64           ? segments_of<1, 64>(a, back, &s)
                                            : segments_of<1, 128>(a, back, &s)) *
            sizeof(float);
    const size_t without = workspace(args, back, threads);
    return with > without ? with : without;
}

static void put_sums(const lnt_ttt_args *a, const lnt_cuda *d, const ttt_shape &y, const float *sums)
{
    const int64_t all = all_sums(a, y.s);
    int64_t at = 0;
    for (int l = 0; l < lnt_ttt_layers(a); l++) {
        const int64_t count = (int64_t)y.s.in[l] * y.s.out[l];
        put_parts(d, a->dlayer[l].w, sums, y.parts, a->H, all, at, count);
        put_parts(d, a->dlayer[l].b, sums, y.parts, a->H, all, at + count, y.s.out[l]);
        at += count + y.s.out[l];
    }
    put_parts(d, a->dln_w, sums, y.parts, a->H, all, at, a->D);
    put_parts(d, a->dln_b, sums, y.parts, a->H, all, at + a->D, a->D);
    if (a->dtoken_idx)
        ttt_positions<<<1, LNT_TTT_LONGEST, 0, d->stream>>>((float *)a->dtoken_idx, sums, y.pieces, all, at + 2 * a->D, a->mini_batch);
}

/* Dynamic shared memory of a kernel. Beside it there are a few static arrays: together they may be more than a block gets unasked; with `little` the
 * first-level cache has the rest (per cent of what a multiprocessor has: 228 KB where a block may have 227, 6 KB for those arrays and the system). */
template <typename K> static void set_shared(const lnt_cuda *d, K *kernel, size_t shared, bool little)
{
    lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    const int share = (int)((shared + 6144) * 100 / (d->base.block_shared + 1024) + 1);
    if (little) lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, share < 100 ? share : 100));
}
template <typename T, int LAYERS> static void put(const lnt_ttt_args *a, const lnt_cuda *d, bool back, bool one_by_one)
{
    const ttt_shape y = shape_of(a, back, false);
    const int level = ttt_level(&d->base);
    const size_t shared = (size_t)measure<LAYERS>(y.s, back, level).shared_used * sizeof(float);
    const ttt_launch x = { *a, y.s, {}, 0, (float *)a->workspace, (float *)a->workspace + y.ctas * y.floats, shared_room(y.s, level), y.floats,
                           all_sums(a, y.s), y.parts, one_by_one };
    if (!y.ctas) return;
    auto *kernel = back ? ttt_backward<T, LAYERS> : ttt_forward<T, LAYERS>;
    set_shared(d, kernel, shared, false);
    kernel<<<(unsigned)y.ctas, TTT_THREADS, shared, d->stream>>>(x);
    if (back) put_sums(a, d, y, x.sums);
}

template <int LAYERS, int D, int STEP> static void put_step(const lnt_cuda *d, ttt_launch x, const ttt_shape &y)
{
    constexpr size_t chain = sizeof(ttt_mlp_room), queries = sizeof(ttt_mlp_query_room), ahead = sizeof(ttt_mlp_ahead_room);
    constexpr size_t rooms[2][3] = { { sizeof(ttt_query_room<D>), sizeof(ttt_query_room<D>), sizeof(ttt_back_room<D>) },
                                     { chain < queries ? queries : chain, chain < ahead ? ahead : chain, sizeof(ttt_mlp_back_room) } };
    constexpr size_t room = rooms[LAYERS - 1][STEP];
    const int level = ttt_level(&d->base);
    const size_t used = (size_t)measure<LAYERS>(y.s, STEP == STEP_BACK, level).shared_used * sizeof(float);
    const size_t shared = used < room ? room : used;
    const int64_t pieces = (STEP == STEP_BACK ? y.parts : x.a.sequences) * x.segments.H, ctas = d->base.multiprocessors;
    auto *kernel = ttt_by_segments<LAYERS, D, STEP>;
    x.s = y.s, x.room = shared_room(y.s, level), x.chains = (int)ttt_ctas(pieces < ctas ? pieces : ctas), x.floats = y.floats;
    set_shared(d, kernel, shared, LAYERS == 2);
    if (STEP == STEP_BACK && x.segments.both_ends)
        lnt_launch_with(d, kernel, (unsigned)ctas, TTT_THREADS, shared, 1, x);
    else
        kernel<<<(unsigned)ctas, TTT_THREADS, shared, d->stream>>>(x);
}
template <int LAYERS, int D> static void put_segments(const lnt_ttt_args *a, const lnt_cuda *d, bool back)
{
    const ttt_shape ahead = shape_of(a, false, true), y = shape_of(a, back, true);
    const int64_t work = y.ctas * y.floats + (back ? ahead.ctas * ahead.floats : 0);
    ttt_launch x = { *a, y.s, {}, 0, (float *)a->workspace, (float *)a->workspace + work, 0, y.floats, all_sums(a, y.s), y.parts, false };
    if (!y.ctas) return;
    segments_of<LAYERS, D>(a, back, &x.segments);
    const int most = x.segments.H;
    const size_t clear = ttt_segments_at(x.sums + (back ? y.parts * a->H * x.all : 0), back, a->sequences, &x.segments);
    for (int h0 = 0; h0 < a->H; h0 += most) {
        x.segments.h0 = h0, x.segments.H = a->H - h0 < most ? a->H - h0 : most;
        /* one chain a head, and as many multiprocessors again for segments */
        x.segments.both_ends = LAYERS == 2 && back && a->sequences == 1 && 2 * x.segments.H <= d->base.multiprocessors;
        x.work = (float *)a->workspace;
        lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(x.segments.summed, 0, clear, d->stream));
        if (!back) {
            put_step<LAYERS, D, STEP_FORWARD>(d, x, ahead);
            continue;
        }
        put_step<LAYERS, D, STEP_AHEAD>(d, x, ahead);
        x.work += ahead.ctas * ahead.floats; /* both may be running */
        put_step<LAYERS, D, STEP_BACK>(d, x, y);
        ttt_add_segments<<<(unsigned)lnt_div_up(x.segments.H * x.segments.sums, 128), 128, 0, d->stream>>>(x.sums, x.all, y.s.numbers, x.segments);
    }
    if (back) put_sums(a, d, y, x.sums);
}

static void put_call(const void *args, const lnt_device *d, bool back, bool one_by_one)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    LNT_BY_TYPE(a->dtype, T, {
        if (lnt_ttt_layers(a) == 2)
            put<T, 2>(a, (const lnt_cuda *)d, back, one_by_one);
        else
            put<T, 1>(a, (const lnt_cuda *)d, back, one_by_one);
    });
}
static void put_tiles(const void *args, const lnt_device *d, bool back)
{
    const lnt_ttt_args *a = (const lnt_ttt_args *)args;
    const int level = ttt_level(d);
    if (level == 0 || (level == 1 && (lnt_ttt_layers(a) == 2 || (back && a->D == 128))))
        put_call(args, d, back, false);
    else if (lnt_ttt_layers(a) == 2)
        put_segments<2, 64>(a, (const lnt_cuda *)d, back);
    else if (a->D == 64)
        put_segments<1, 64>(a, (const lnt_cuda *)d, back);
    else
        put_segments<1, 128>(a, (const lnt_cuda *)d, back);
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
