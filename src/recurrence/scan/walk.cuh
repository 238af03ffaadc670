/* Channels on their own, on a GPU (README.md): one walk over the tokens for all operators whose state is a number of a channel. What a token does,
 * h -> e h + x, and what the way back makes of it, is the rule's.
 *
 * A CTA has CH channels of a sequence and goes over its tokens, TILE of them at a time, those of the next tile on their way from memory. A thread
 * has two channels and EACH tokens, its slot; it finds what they do to whatever enters them, z -> A z + b. One warp takes what enters the tile
 * through the slots, and all go over their tokens again. Where there are fewer strips of channels than multiprocessors, `turns` CTAs have the tiles
 * of a strip by turns, and what leaves a tile goes to the next CTA by way of memory. The order of all sums follows from a token's place in its
 * sequence; those over tokens have a part for each CTA, and are added in order.
 *
 * In reverse the same walk begins at a sequence's end: lam = do + z, z <- conj(e) lam. */
#ifndef LNT_SCAN_WALK_CUH
#define LNT_SCAN_WALK_CUH

#include "device/functions.cuh"
#include "recurrence/recur_cuda.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

constexpr int THREADS = 512, WARPS = THREADS / 32, CH = 32, V = 2, HALF = CH / V; /* half a warp has the strip's channels, and a slot */
constexpr int SLOTS = THREADS / HALF;

/* ---- real and complex numbers ---------------------------------------------------------------------------------------------------------- */

template <int P> struct number {
    float x[P];
};
template <int P> __device__ __forceinline__ number<P> zero_number()
{
    number<P> z;
#pragma unroll
    for (int k = 0; k < P; k++) z.x[k] = 0.f;
    return z;
}
template <int P> __device__ __forceinline__ number<P> operator+(number<P> a, number<P> b)
{
#pragma unroll
    for (int k = 0; k < P; k++) a.x[k] += b.x[k];
    return a;
}
/* a z + w */
__device__ __forceinline__ number<1> affine(number<1> a, number<1> z, number<1> w) { return { { fmaf(a.x[0], z.x[0], w.x[0]) } }; }
__device__ __forceinline__ number<2> affine(number<2> a, number<2> z, number<2> w)
{
    return { { fmaf(a.x[0], z.x[0], fmaf(-a.x[1], z.x[1], w.x[0])), fmaf(a.x[0], z.x[1], fmaf(a.x[1], z.x[0], w.x[1])) } };
}
/* A decay in two floats: the second is what rounding took from the first. */
struct fine_decay {
    number<2> high, low;
};
__device__ __forceinline__ number<2> affine(const fine_decay &a, number<2> z, number<2> w) { return affine(a.high, z, affine(a.low, z, w)); }

template <int P> __device__ __forceinline__ number<P> from_other_half(number<P> z)
{
#pragma unroll
    for (int k = 0; k < P; k++) z.x[k] = __shfl_xor_sync(~0u, z.x[k], HALF);
    return z;
}

/* ---- a call ---------------------------------------------------------------------------------------------------------------------------- */

/* Tensors of all rules; NULL: absent, or not wanted. */
struct walk_args {
    const float *enters, *first; /* s0; in reverse dsT, and s0 */
    float *leaves;               /* sT; in reverse ds0 */
    const float *log_a, *other;  /* other: signs or angles */
    const float *channel;        /* of a channel: lambda */
    const void *x, *r, *i;
    const void *dout, *before;   /* in reverse; before: o */
    void *out, *dr, *di;         /* out: o; in reverse dx */
    float *dlog_a, *dother;      /* where they are sums over tokens [D], a second kernel's */
    const int64_t *cu;
    unsigned long long *between; /* [tiles,N,strips,CH,P] what leaves a tile, and 1 above its bits; zeros until it is known */
    float *sums;                 /* [turns,N,SUMS,D] */
    int64_t sequences;
    float c;
    int D, strips, turns, starts_whole;
    bool in_pairs;               /* rows begin at pairs of elements */
};

/* Where a thread stands. */
struct place {
    int64_t begin, end, n;
    int first; /* channel */
    bool there[V];

    __device__ __forceinline__ place(const walk_args &p, int64_t sequence, int channel) : n(sequence), first(channel)
    {
        begin = p.cu[n], end = p.cu[n + 1];
#pragma unroll
        for (int c = 0; c < V; c++) there[c] = first + c < p.D;
    }
};

/* Two channels' elements as they lie, halves in one register; `at` makes a float of one. */
template <typename S> struct pair;
template <> struct alignas(8) pair<float> {
    float x[V];
    __device__ __forceinline__ float at(int c) const { return x[c]; }
    __device__ __forceinline__ void put(int c, const float *from) { x[c] = *from; }
};
template <> struct alignas(4) pair<bf16> {
    uint32_t bits;
    __device__ __forceinline__ float at(int c) const { return __uint_as_float(c ? bits & 0xffff0000u : bits << 16); }
    __device__ __forceinline__ void put(int c, const bf16 *from) { bits |= (uint32_t) * (const unsigned short *)from << 16 * c; }
};

/* Where a slot's tokens lie: token `off` of it, counted the way of time, is row t + off. */
struct rows_at {
    int64_t t, begin; /* begin: t rows of D */
};

/* The thread's channels of row k of token `off`, of ROWS rows a token; what is absent is zero. WHOLE: all tokens and channels are there, in pairs. */
template <bool WHOLE, int ROWS, typename S>
__device__ __forceinline__ pair<S> take(const S *x, const walk_args &p, const place &at, const rows_at &r, int off, int k, bool real)
{
    pair<S> v = {};
    const S *from = x + ROWS * r.begin + at.first + (ROWS * off + k) * p.D;
    real = real && x;
    if (WHOLE || p.in_pairs) {
        if (real && (WHOLE || at.there[0])) v = *(const pair<S> *)from;
    } else {
        if (real && at.there[0]) v.put(0, from);
        if (real && at.there[1]) v.put(1, from + 1);
    }
    return v;
}
template <bool WHOLE, int ROWS, typename S>
__device__ __forceinline__ void put(S *x, const walk_args &p, const place &at, const rows_at &r, int off, int k, const float (&v)[V])
{
    if (!x) return;
    S *to = x + ROWS * r.begin + at.first + (ROWS * off + k) * p.D;
    if (WHOLE || p.in_pairs) {
        if (WHOLE || at.there[0]) store_pack(to, v);
    } else {
#pragma unroll
        for (int c = 0; c < V; c++)
            if (at.there[c]) to[c] = from_float<S>(v[c]);
    }
}
/* Of a state [N,P,D]. */
template <int P> __device__ __forceinline__ void put_state(float *x, const walk_args &p, const place &at, const number<P> (&z)[V])
{
#pragma unroll
    for (int k = 0; k < P; k++)
#pragma unroll
        for (int c = 0; c < V; c++)
            if (x && at.there[c]) x[(at.n * P + k) * p.D + at.first + c] = z[c].x[k];
}

/* What leaves the tile before: bits and mark are one word. */
__device__ __forceinline__ float await_leaving(const unsigned long long *p)
{
    unsigned long long word;
    while (!((word = *(const volatile unsigned long long *)p) >> 32)) __nanosleep(20);
    return __uint_as_float((unsigned)word);
}
__device__ __forceinline__ void put_leaving(unsigned long long *p, float x)
{
    *(volatile unsigned long long *)p = 1ull << 32 | __float_as_uint(x);
}

/* ---- the walk -------------------------------------------------------------------------------------------------------------------------- */

/* A rule R over tensors of type R::T, forward or (R::BACK) in reverse:
 *   P, EACH, SUMS             floats of a number; tokens of a slot; sums over tokens of each channel, sum[SUMS][V]
 *   LASTING                   decays are the same for all tokens: of_slot[V] are those of a slot, of_warp those of a warp's two, of channel `lane`
 *   token                     what of a token is fetched, by fetch<WHOLE>(token, p, at, rows, off, real, first); first: the sequence's first
 *   kept                      what of an opened token the way back needs beside e and x
 *   begin(p, at, memory)      what holds for a thread's channels; by all threads of a CTA, or memory NULL
 *   open(token, c, whole, e, x, kept)   of channel c; `whole`: the sequence's first token, where that is written whole
 *   decay(e, c)               e, or LASTING's of channel c; over a slot and no longer, quick(e, c)
 *   emit<WHOLE>(p, at, rows, off, token, kept, whole, before, lam, z)   the way back's results
 *   finish(p, k, channel, sum)   where sum k of a channel goes */
template <typename R> struct walk_shape {
    static constexpr int TILE = SLOTS * R::EACH;
    using num = number<R::P>;
    struct shared {
        num A[WARPS][CH], b[WARPS][CH], enters[WARPS][CH];
        float sums[R::SUMS ? SLOTS : 1][R::SUMS ? R::SUMS : 1][CH];
    };
};

/* Whether token i of a slot can be the sequence's first: of a whole tile, that is one of them. */
template <typename R, bool WHOLE> __device__ __forceinline__ bool maybe_first(int i) { return !WHOLE || i == (R::BACK ? R::EACH - 1 : 0); }

template <typename R> __device__ __forceinline__ rows_at rows_of(const walk_args &p, const place &at, int64_t step)
{
    const int64_t t = R::BACK ? at.end - 1 - step : at.begin + step;
    return { t, t * p.D };
}
template <typename R> constexpr int way = R::BACK ? -1 : 1;

template <typename R, bool WHOLE>
__device__ __forceinline__ void fetch(typename R::token (&to)[R::EACH], const walk_args &p, const place &at, int64_t step)
{
    const rows_at r = rows_of<R>(p, at, step);
#pragma unroll
    for (int i = 0; i < R::EACH; i++)
        R::template fetch<WHOLE>(to[i], p, at, r, way<R> * i, WHOLE || step + i < at.end - at.begin,
                                 maybe_first<R, WHOLE>(i) && r.t + way<R> * i == at.begin);
}

/* The opened tokens of a slot. */
template <typename R> struct slot {
    using num = number<R::P>;
    num e[R::EACH][V], x[R::EACH][V];
    num first_A[V], first_b[V]; /* what the warp's first slot does */
    typename R::kept kept[R::EACH][V];

    template <bool WHOLE>
    __device__ __forceinline__ void open(const R &rule, const typename R::token (&token)[R::EACH], const walk_args &p, const place &at, int64_t step)
    {
        const int64_t t = rows_of<R>(p, at, step).t;
#pragma unroll
        for (int i = 0; i < R::EACH; i++)
#pragma unroll
            for (int c = 0; c < V; c++) {
                const bool whole = maybe_first<R, WHOLE>(i) && p.starts_whole && t + way<R> * i == at.begin;
                rule.open(token[i], c, whole, e[i][c], x[i][c], kept[i][c]);
            }
    }
    /* What token i makes of z; lam: what the way back has in between. */
    __device__ __forceinline__ num pass(const R &rule, int i, int c, num z, num &lam) const
    {
        if constexpr (R::BACK) {
            lam = x[i][c] + z;
            return affine(rule.quick(e[i][c], c), lam, zero_number<R::P>());
        } else
            return affine(rule.quick(e[i][c], c), z, x[i][c]);
    }
    /* What the slot does to what enters it, and with the warp's other one into w. */
    __device__ __forceinline__ void put_maps(const R &rule, typename walk_shape<R>::shared &w, int warp, int lane)
    {
#pragma unroll
        for (int c = 0; c < V; c++) {
            num A = e[0][c], b = zero_number<R::P>(), lam, &to = w.b[warp][lane % HALF * V + c];
#pragma unroll
            for (int i = 0; i < R::EACH; i++) {
                b = pass(rule, i, c, b, lam);
                if (!R::LASTING && i) A = affine(e[i][c], A, zero_number<R::P>());
            }
            first_b[c] = from_other_half(b);
            if constexpr (R::LASTING) {
                const num both = affine(rule.of_slot[c], b, first_b[c]);
                if (lane < HALF) to = both;
            } else {
                first_A[c] = from_other_half(A);
                const num both = affine(first_A[c], b, first_b[c]), both_A = affine(first_A[c], A, zero_number<R::P>());
                if (lane < HALF) to = both, w.A[warp][lane % HALF * V + c] = both_A;
            }
        }
    }
    /* What enters the slot, from what enters the warp's first. */
    __device__ __forceinline__ num entering(const R &rule, int c, bool second, num z) const
    {
        if (!second) return z;
        if constexpr (R::LASTING)
            return affine(rule.of_slot[c], z, first_b[c]);
        else
            return affine(first_A[c], z, first_b[c]);
    }
};

/* What enters the warps, from what enters the tile; lane: channel of the strip. */
template <typename R>
__device__ __forceinline__ number<R::P> through_tile(typename walk_shape<R>::shared &w, const R &rule, int lane, number<R::P> z)
{
    number<R::P> A[WARPS], b[WARPS];
#pragma unroll
    for (int k = 0; k < WARPS; k++) A[k] = w.A[k][lane], b[k] = w.b[k][lane];
#pragma unroll
    for (int k = 0; k < WARPS; k++) {
        w.enters[k][lane] = z;
        if constexpr (R::LASTING)
            z = affine(rule.of_warp, z, b[k]);
        else
            z = affine(A[k], z, b[k]);
    }
    return z;
}

/* Over the tokens of a slot again, from what enters it. */
template <typename R, bool WHOLE>
__device__ __forceinline__ void over(R &rule, const slot<R> &s, const typename R::token (&token)[R::EACH], const walk_args &p, const place &at,
                                     int64_t step, number<R::P> (&z)[V])
{
    const int64_t length = at.end - at.begin;
    const rows_at r = rows_of<R>(p, at, step);
#pragma unroll
    for (int i = 0; i < R::EACH; i++) {
        number<R::P> lam[V], before[V];
        const bool first = maybe_first<R, WHOLE>(i) && r.t + way<R> * i == at.begin;
#pragma unroll
        for (int c = 0; c < V; c++) z[c] = s.pass(rule, i, c, z[c], lam[c]);
        if (!WHOLE && step + i >= length) continue;
        if constexpr (R::BACK) {
#pragma unroll
            for (int k = 0; k < R::P; k++)
#pragma unroll
                for (int c = 0; c < V; c++) {
                    before[c].x[k] = token[i].before[k].at(c);
                    if (first) before[c].x[k] = p.first && at.there[c] ? p.first[(at.n * R::P + k) * p.D + at.first + c] : 0.f;
                }
            rule.template emit<WHOLE>(p, at, r, -i, token[i], s.kept[i], first && p.starts_whole, before, lam, z);
        } else {
#pragma unroll
            for (int k = 0; k < R::P; k++) {
                const float v[V] = { z[0].x[k], z[1].x[k] };
                put<WHOLE, R::P>((typename R::T *)p.out, p, at, r, i, k, v);
            }
        }
        if ((!WHOLE || i + 1 == R::EACH) && step + i + 1 == length) put_state(p.leaves, p, at, z);
    }
}

/* What the sums over tokens come to in this CTA. */
template <typename R>
__device__ __forceinline__ void put_sums(typename walk_shape<R>::shared &w, const R &rule, const walk_args &p, int64_t part, int strip)
{
    const int tid = (int)threadIdx.x, k = tid / CH, channel = strip * CH + tid % CH;
#pragma unroll
    for (int j = 0; j < R::SUMS; j++)
#pragma unroll
        for (int c = 0; c < V; c++) w.sums[tid / HALF][j][tid % HALF * V + c] = rule.sum[j][c];
    __syncthreads();
    if (k >= R::SUMS || channel >= p.D) return;
    float sum = 0.f;
    for (int s = 0; s < SLOTS; s++) sum += w.sums[s][k][tid % CH];
    p.sums[(part * R::SUMS + k) * p.D + channel] = sum;
}

template <typename R> __global__ __launch_bounds__(THREADS, 1) void walk_kernel(const __grid_constant__ walk_args p)
{
    constexpr int EACH = R::EACH, TILE = walk_shape<R>::TILE;
    extern __shared__ __align__(16) unsigned char memory[];
    typename walk_shape<R>::shared &w = *(typename walk_shape<R>::shared *)memory;
    await_last();
    let_next();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, turn = (int)(blockIdx.x % p.turns);
    const int64_t block = blockIdx.x / p.turns, hop = (int64_t)p.turns * TILE;
    const int strip = (int)(block % p.strips), channel = strip * CH + lane; /* of the first warp: what goes from tile to tile */
    const place at(p, block / p.strips, strip * CH + lane % HALF * V);
    const int64_t tiles = (at.end - at.begin + TILE - 1) / TILE, row = at.n * R::P;
    number<R::P> z = zero_number<R::P>();
    if (turn == 0 && warp == 0 && channel < p.D)
#pragma unroll
        for (int k = 0; k < R::P; k++) {
            if (p.enters) z.x[k] = p.enters[(row + k) * p.D + channel];
            if (!tiles && p.leaves) p.leaves[(row + k) * p.D + channel] = z.x[k]; /* an empty sequence hands its state on */
        }
    R rule;
    rule.begin(p, at, memory);
    typename R::token next[EACH], token[EACH];
    int64_t step = turn * TILE + (int64_t)threadIdx.x / HALF * EACH;
    const int64_t whole_tiles = p.in_pairs && (strip + 1) * CH <= p.D ? (at.end - at.begin) / TILE : 0;
    if (turn < tiles) turn < whole_tiles ? fetch<R, true>(next, p, at, step) : fetch<R, false>(next, p, at, step);
    for (int64_t tile = turn; tile < tiles; tile += p.turns, step += hop) {
        const bool whole = tile < whole_tiles;
        slot<R> s;
#pragma unroll
        for (int i = 0; i < EACH; i++) token[i] = next[i];
        if (tile + p.turns < whole_tiles)
            fetch<R, true>(next, p, at, step + hop);
        else if (tile + p.turns < tiles)
            fetch<R, false>(next, p, at, step + hop);
        whole ? s.template open<true>(rule, token, p, at, step) : s.template open<false>(rule, token, p, at, step);
        s.put_maps(rule, w, warp, lane);
        __syncthreads();
        if (warp == 0) {
            const int64_t others = p.sequences * p.strips * CH * R::P;
            unsigned long long *leaves = p.between + tile * others + (block * CH + lane) * R::P;
            if (p.turns > 1 && tile)
#pragma unroll
                for (int k = 0; k < R::P; k++) z.x[k] = await_leaving(leaves - others + k);
            z = through_tile<R>(w, rule, lane, z);
            if (p.turns > 1 && tile + 1 < tiles)
#pragma unroll
                for (int k = 0; k < R::P; k++) put_leaving(leaves + k, z.x[k]);
        }
        __syncthreads();
        number<R::P> h[V];
#pragma unroll
        for (int c = 0; c < V; c++) h[c] = s.entering(rule, c, lane >= HALF, w.enters[warp][lane % HALF * V + c]);
        whole ? over<R, true>(rule, s, token, p, at, step, h) : over<R, false>(rule, s, token, p, at, step, h);
    }
    if constexpr (R::SUMS > 0) put_sums<R>(w, rule, p, turn * p.sequences + at.n, strip);
}

constexpr int SMALL_THREADS = 128;

/* Sums of all CTAs, in their order. */
template <typename R> __global__ __launch_bounds__(SMALL_THREADS) void sums_kernel(const __grid_constant__ walk_args p)
{
    await_last();
    let_next();
    const int i = (int)(blockIdx.x * SMALL_THREADS + threadIdx.x), k = i / p.D, channel = i % p.D;
    if (k >= R::SUMS) return;
    float sum = 0.f;
    for (int64_t part = 0; part < p.turns * p.sequences; part++) sum += p.sums[(part * R::SUMS + k) * p.D + channel];
    R::finish(p, k, channel, sum);
}

/* Two channels a thread, token by token. */
template <typename R> __global__ __launch_bounds__(SMALL_THREADS) void step_kernel(const __grid_constant__ walk_args p)
{
    await_last();
    let_next();
    const int64_t i = (int64_t)blockIdx.x * SMALL_THREADS + threadIdx.x, pairs = (p.D + V - 1) / V;
    if (i >= pairs * p.sequences) return;
    const place at(p, i / pairs, (int)(i % pairs) * V);
    number<R::P> z[V];
#pragma unroll
    for (int c = 0; c < V; c++)
#pragma unroll
        for (int k = 0; k < R::P; k++) z[c].x[k] = p.enters && at.there[c] ? p.enters[(at.n * R::P + k) * p.D + at.first + c] : 0.f;
    R rule;
    rule.begin(p, at, NULL);
    for (int64_t t = at.begin; t < at.end; t++) {
        const rows_at r = { t, t * p.D };
        typename R::token token;
        typename R::kept kept;
        R::template fetch<false>(token, p, at, r, 0, true, t == at.begin);
#pragma unroll
        for (int c = 0; c < V; c++) {
            number<R::P> e, x;
            rule.open(token, c, p.starts_whole && t == at.begin, e, x, kept);
            z[c] = affine(rule.decay(e, c), z[c], x);
        }
#pragma unroll
        for (int k = 0; k < R::P; k++) {
            const float v[V] = { z[0].x[k], z[1].x[k] };
            put<false, R::P>((typename R::T *)p.out, p, at, r, 0, k, v);
        }
    }
    put_state(p.leaves, p, at, z);
}

/* ---- calls ----------------------------------------------------------------------------------------------------------------------------- */

/* What all rules' calls have in common. */
template <typename A> walk_args walk_args_of(const A *a, bool back)
{
    walk_args p = {};
    p.enters = (const float *)(back ? a->dsT : a->s0), p.first = (const float *)a->s0, p.leaves = (float *)(back ? a->ds0 : a->sT);
    p.dout = a->dout, p.before = a->o, p.out = back ? a->dx : a->o;
    p.cu = a->cu_seqlens_device, p.sequences = a->sequences, p.D = a->D, p.strips = (int)lnt_div_up(a->D, CH), p.turns = 1;
    /* rows of parts of complex numbers may begin anywhere: lnt_recur_aligned */
    p.in_pairs = a->D % 8 == 0 && ((uintptr_t)a->x | (uintptr_t)a->o | (uintptr_t)a->dout | (uintptr_t)a->dx) % (V * sizeof(float)) == 0;
    return p;
}

template <typename R, typename A> int64_t tiles_of(const A *a)
{
    const int64_t tiles = lnt_div_up(a->longest, walk_shape<R>::TILE);
    return tiles ? tiles : 1;
}
/* CTAs that have a strip's tiles by turns; no more than `most` in all. */
template <typename R, typename A> int turns_of(const A *a, int64_t most)
{
    const int64_t strips = lnt_div_up(a->D, CH) * a->sequences, turns = strips ? most / strips : 1, tiles = tiles_of<R>(a);
    return (int)(turns < 1 ? 1 : turns < tiles ? turns : tiles);
}
template <typename R, typename A> size_t between_bytes(const A *a)
{
    return (size_t)(tiles_of<R>(a) * a->sequences * lnt_div_up(a->D, CH)) * CH * R::P * sizeof(unsigned long long);
}

constexpr int MOST_CTAS = 256; /* more than any GPU's multiprocessors */
template <typename R, typename A> size_t walk_bytes(const A *a)
{
    return between_bytes<R>(a) + (size_t)(turns_of<R>(a, MOST_CTAS) * a->sequences * a->D) * R::SUMS * sizeof(float);
}

template <typename R, typename A> void walk(const A *a, walk_args p, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    const size_t shared = sizeof(typename walk_shape<R>::shared), between = between_bytes<R>(a);
    p.turns = turns_of<R>(a, d->base.multiprocessors < MOST_CTAS ? d->base.multiprocessors : MOST_CTAS);
    p.between = (unsigned long long *)a->workspace, p.sums = (float *)((char *)a->workspace + between);
    const unsigned ctas = (unsigned)(p.turns * p.sequences * p.strips);
    if (ctas && p.turns == 1)
        lnt_launch_with(d, walk_kernel<R>, ctas, THREADS, shared, 1, p);
    else if (ctas) {
        lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(a->workspace, 0, between, d->stream));
        walk_kernel<R><<<ctas, THREADS, shared, d->stream>>>(p); /* behind what is no kernel nothing is gained by an early start */
    }
    if constexpr (R::SUMS > 0) lnt_launch(d, sums_kernel<R>, (unsigned)lnt_div_up((int64_t)R::SUMS * a->D, SMALL_THREADS), SMALL_THREADS, p);
}
template <typename R, typename A> void walk_step(const A *a, const walk_args &p, const lnt_device *d)
{
    const int64_t pairs = lnt_div_up(a->D, V) * a->sequences;
    if (pairs) lnt_launch((const lnt_cuda *)d, step_kernel<R>, (unsigned)lnt_div_up(pairs, SMALL_THREADS), SMALL_THREADS, p);
}

template <typename A> const char *walk_declines(const void *args, bool)
{
    const A *a = (const A *)args;
    return a->sequences >= ((int64_t)1 << 31) / MOST_CTAS / lnt_div_up(a->D, CH) ? "too many sequences" : NULL;
}

} // namespace

#endif
