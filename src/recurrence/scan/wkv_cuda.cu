/* WKV on a GPU (README.md): a thread a channel of a segment. A segment takes whatever enters it to
 *
 *   (a, b) = e^{m' - n r - m} (a', b') + (a, b) of it alone, over e^m, m the larger of m' - n r and its own            n tokens, r = e^w a token
 *
 * so the sums of segments that begin with nothing come first, side by side; one thread a channel goes over them; then each segment is walked from
 * what enters it. In reverse, what leaves a segment is linear in the gradients that enter it:
 *
 *   da' = F da + A      db' = F db + B      dm' = P dm + Q da + R db + M
 *
 * and the same three kernels come again, the last with sums for dw and du of each segment. Where segments begin follows from the sequence alone, so
 * that nothing depends on its company. In reverse a segment keeps the states of every BATCH tokens, and makes those between again. */
#include "device/functions.cuh"
#include "recurrence/recur_cuda.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

constexpr int THREADS = 128, SEGMENT = 128, BATCH = 8, ROWS = 8, COLUMNS = 32; /* ROWS, COLUMNS: of a CTA that adds up */
enum { SUMS = 3, MAPS = 7, PARTS = 2 };

struct wkv_call {
    const int64_t *cu;
    int64_t N;
    int D, blocks;  /* blocks: CTAs that share the channels */
    bool whole;     /* a sequence is one segment, forwards */
    const void *k, *v, *dout;
    const float *w, *u, *a0, *b0, *m0, *daT, *dbT, *dmT;
    void *o, *dk, *dv;
    float *aT, *bT, *mT, *dw, *du, *da0, *db0, *dm0;
    float *states;  /* [slots,SUMS,D] what a segment makes of nothing, then what enters it */
    float *maps;    /* [slots,MAPS,D] F A B P Q R M, then da db dm of what enters from behind */
    float *parts;   /* [slots,PARTS,D] sums for dw and du */
    int64_t slots;
};

/* A segment: its tokens, its place among its sequence's. Segment i of sequence n has slot cu[n] / SEGMENT + n + i: no two meet. */
struct segment {
    int64_t n, slot, first, end;
    bool begins, ends; /* the sequence's first and last one; an empty sequence's only one is both */
};
__device__ __forceinline__ int64_t segments_of(int64_t length) { return length > SEGMENT ? (length + SEGMENT - 1) / SEGMENT : 1; }
__device__ __forceinline__ bool segment_at(const wkv_call &p, int64_t slot, segment &s)
{
    s.slot = slot;
    if (p.whole) {
        s.n = slot, s.first = p.cu[slot], s.end = p.cu[slot + 1], s.begins = s.ends = true;
        return true;
    }
    int64_t n = 0, above = p.N;
    while (above - n > 1) {
        const int64_t half = (n + above) / 2;
        (p.cu[half] / SEGMENT + half <= slot ? n : above) = half;
    }
    const int64_t begin = p.cu[n], end = p.cu[n + 1], i = slot - begin / SEGMENT - n;
    s.n = n, s.first = begin + i * SEGMENT, s.end = min(end, s.first + SEGMENT);
    s.begins = i == 0, s.ends = i == segments_of(end - begin) - 1;
    return i < segments_of(end - begin);
}

struct sums {
    float a, b, m;
};
/* What the old sums and the new term are multiplied by: the larger by 1. */
struct factors {
    float one, two;
};
__device__ __forceinline__ factors factors_of(float older, float newer)
{
    const float away = newer - older, e = exp2f(-fabsf(away) * (float)LNT_LOG2E);
    return away > 0.f ? factors{ e, 1.f } : factors{ 1.f, e };
}
__device__ __forceinline__ void join(sums &s, float older, sums of)
{
    const factors f = factors_of(older, of.m);
    s.a = fmaf(f.one, s.a, f.two * of.a);
    s.b = fmaf(f.one, s.b, f.two * of.b);
    s.m = older >= of.m ? older : of.m;
}
/* Over a token: its value under e^k. */
__device__ __forceinline__ void move_on(sums &s, float k, float v, float rate) { join(s, s.m - rate, { v, 1.f, k }); }

constexpr float NONE = -INFINITY; /* m of no sums */
__device__ __forceinline__ float entry(const float *x, int64_t at) { return x ? x[at] : 0.f; }
__device__ __forceinline__ sums initial(const wkv_call &p, int64_t n, int c)
{
    sums s = { entry(p.a0, n * p.D + c), entry(p.b0, n * p.D + c), entry(p.m0, n * p.D + c) };
    if (s.b == 0.f) s.m = NONE;
    return s;
}
__device__ __forceinline__ sums entering(const wkv_call &p, const segment &s, int c)
{
    if (!p.states || (s.begins && s.ends)) return initial(p, s.n, c); /* else the last segment may have written there */
    const float *x = p.states + s.slot * SUMS * p.D + c;
    return { x[0], x[p.D], x[2 * p.D] };
}

/* BATCH tokens of a channel from t on; none behind `end`. */
template <typename T> __device__ __forceinline__ void fetch(float (&x)[BATCH], const void *from, int64_t t, int64_t end, int D, int c)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++) x[i] = from && t + i < end ? to_float(((const T *)from)[(t + i) * D + c]) : 0.f;
}

/* ---- forwards ------------------------------------------------------------------------------------------------------------------------------ */

/* ALONE: each segment from nothing, for its sums; otherwise from what enters it, for o and the sums at the end. */
template <typename T, bool ALONE> __global__ __launch_bounds__(THREADS) void wkv_forwards(const __grid_constant__ wkv_call p)
{
    await_last();
    let_next();
    const int c = (int)(blockIdx.x % p.blocks) * THREADS + (int)threadIdx.x;
    segment at;
    if (!segment_at(p, blockIdx.x / p.blocks, at) || c >= p.D) return;
    if (ALONE && at.ends) return; /* nobody asks */
    const float rate = expf(p.w[c]), bonus = p.u[c];
    sums s = { 0.f, 0.f, NONE };
    if (!ALONE) s = entering(p, at, c);
    float k[BATCH], v[BATCH], next_k[BATCH], next_v[BATCH];
    fetch<T>(next_k, p.k, at.first, at.end, p.D, c);
    fetch<T>(next_v, p.v, at.first, at.end, p.D, c);
    for (int64_t t = at.first; t < at.end; t += BATCH) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) k[i] = next_k[i], v[i] = next_v[i];
        fetch<T>(next_k, p.k, t + BATCH, at.end, p.D, c);
        fetch<T>(next_v, p.v, t + BATCH, at.end, p.D, c);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (t + i >= at.end) break;
            if (!ALONE) {
                const factors e = factors_of(s.m, k[i] + bonus);
                const float o = fmaf(e.one, s.a, e.two * v[i]) / fmaf(e.one, s.b, e.two);
                ((T *)p.o)[(t + i) * p.D + c] = from_float<T>(o);
            }
            move_on(s, k[i], v[i], rate);
        }
    }
    if (ALONE) {
        float *to = p.states + at.slot * SUMS * p.D + c;
        to[0] = s.a, to[p.D] = s.b, to[2 * p.D] = s.m;
    } else if (at.ends) {
        const int64_t to = at.n * p.D + c;
        if (p.aT) p.aT[to] = s.a;
        if (p.bT) p.bT[to] = s.b;
        if (p.mT) p.mT[to] = s.b == 0.f ? 0.f : s.m;
    }
}

/* What enters each segment, in the place of what it makes of nothing. */
__global__ __launch_bounds__(THREADS) void wkv_between(const __grid_constant__ wkv_call p)
{
    await_last();
    let_next();
    const int c = (int)(blockIdx.x % p.blocks) * THREADS + (int)threadIdx.x;
    const int64_t n = blockIdx.x / p.blocks, begin = p.cu[n], count = segments_of(p.cu[n + 1] - begin), first = begin / SEGMENT + n;
    if (c >= p.D) return;
    const float over = SEGMENT * expf(p.w[c]);
    sums s = initial(p, n, c);
    for (int64_t i = 0; i + 1 < count; i++) {
        float *x = p.states + (first + i) * SUMS * p.D + c;
        const sums of = { x[0], x[p.D], x[2 * p.D] };
        x[0] = s.a, x[p.D] = s.b, x[2 * p.D] = s.m;
        join(s, s.m - over, of);
    }
    if (count < 2) return;
    float *to = p.states + (first + count - 1) * SUMS * p.D + c;
    to[0] = s.a, to[p.D] = s.b, to[2 * p.D] = s.m;
}

/* ---- backwards ----------------------------------------------------------------------------------------------------------------------------- */

/* The equations of wkv_reference.c. ALONE: from gradients of zero, and what becomes of others; otherwise from those that enter, for dk, dv and sums.
 * Long: a token's factors serve all of it. */
template <typename T, bool ALONE> __global__ __launch_bounds__(THREADS) void wkv_backwards(const __grid_constant__ wkv_call p)
{
    await_last();
    let_next();
    const int c = (int)(blockIdx.x % p.blocks) * THREADS + (int)threadIdx.x;
    segment at;
    const bool there = segment_at(p, blockIdx.x / p.blocks, at);
    if (c >= p.D) return;
    float *parts = p.parts + at.slot * PARTS * p.D + c;
    if (!there) {
        if (!ALONE) parts[0] = parts[p.D] = 0.f;
        return;
    }
    if (ALONE && at.begins) return; /* what leaves it is the last kernel's */
    const float rate = expf(p.w[c]), bonus = p.u[c];
    sums starts[SEGMENT / BATCH]; /* in local memory: touched once in BATCH tokens */
    sums s = entering(p, at, c);
    float k[BATCH], v[BATCH], dout[BATCH];
    const int batches = (int)((at.end - at.first + BATCH - 1) / BATCH);
#pragma unroll 1
    for (int b = 0; b < batches; b++) {
        starts[b] = s;
        if (b + 1 == batches) break;
        fetch<T>(k, p.k, at.first + b * BATCH, at.end, p.D, c);
        fetch<T>(v, p.v, at.first + b * BATCH, at.end, p.D, c);
#pragma unroll
        for (int i = 0; i < BATCH; i++) move_on(s, k[i], v[i], rate);
    }
    float da = 0.f, db = 0.f, dm = 0.f, F = 1.f, P = 1.f, Q = 0.f, R = 0.f, sum_w = 0.f, sum_u = 0.f;
    float *map = p.maps + at.slot * MAPS * p.D + c;
    if (!ALONE && at.ends)
        da = entry(p.daT, at.n * p.D + c), db = entry(p.dbT, at.n * p.D + c), dm = entry(p.dmT, at.n * p.D + c);
    else if (!ALONE)
        da = map[0], db = map[p.D], dm = map[2 * p.D];
#pragma unroll 1
    for (int b = batches - 1; b >= 0; b--) {
        const int64_t t = at.first + b * BATCH;
        fetch<T>(k, p.k, t, at.end, p.D, c);
        fetch<T>(v, p.v, t, at.end, p.D, c);
        fetch<T>(dout, p.dout, t, at.end, p.D, c);
        sums of[BATCH];
        of[0] = starts[b];
#pragma unroll
        for (int i = 1; i < BATCH; i++) {
            of[i] = of[i - 1];
            move_on(of[i], k[i - 1], v[i - 1], rate);
        }
#pragma unroll
        for (int i = BATCH - 1; i >= 0; i--) {
            if (t + i >= at.end) continue;
            const sums &x = of[i];
            const float older = x.m - rate;
            const factors e = factors_of(x.m, k[i] + bonus), f = factors_of(older, k[i]);
            const float share = 1.f / fmaf(e.one, x.b, e.two), o = fmaf(e.one, x.a, e.two * v[i]) * share, r = dout[i] * share;
            const float g1 = f.one * fmaf(x.a, da, x.b * db), g2 = f.two * fmaf(v[i], da, db), rest = dm - g1 - g2;
            const bool is_older = older >= k[i];
            const float carried = g1 + (is_older ? rest : 0.f), read = e.two * (v[i] - o) * r;
            if (ALONE) {
                Q = is_older ? fmaf(-f.two * v[i], F, Q) : f.one * x.a * F;
                R = is_older ? fmaf(-f.two, F, R) : f.one * x.b * F;
                P = is_older ? P : 0.f;
                F *= f.one;
            } else {
                const int64_t to = (t + i) * p.D + c;
                if (p.dk) ((T *)p.dk)[to] = from_float<T>(g2 + (is_older ? 0.f : rest) + read);
                if (p.dv) ((T *)p.dv)[to] = from_float<T>(fmaf(f.two, da, e.two * r));
                sum_w += carried, sum_u += read;
            }
            da = fmaf(f.one, da, e.one * r);
            db = fmaf(f.one, db, -e.one * o * r);
            dm = fmaf(e.one * fmaf(-o, x.b, x.a), r, carried);
        }
    }
    if (ALONE) {
        const float all[MAPS] = { F, da, db, P, Q, R, dm };
#pragma unroll
        for (int j = 0; j < MAPS; j++) map[j * p.D] = all[j];
        return;
    }
    parts[0] = sum_w, parts[p.D] = sum_u;
    if (!at.begins) return;
    const int64_t to = at.n * p.D + c;
    if (p.da0) p.da0[to] = da;
    if (p.db0) p.db0[to] = db;
    if (p.dm0) p.dm0[to] = dm;
}

/* What enters each segment from behind, in the place of its map; the last one's is the caller's. */
__global__ __launch_bounds__(THREADS) void wkv_between_back(const __grid_constant__ wkv_call p)
{
    await_last();
    let_next();
    const int c = (int)(blockIdx.x % p.blocks) * THREADS + (int)threadIdx.x;
    const int64_t n = blockIdx.x / p.blocks, begin = p.cu[n], count = segments_of(p.cu[n + 1] - begin), first = begin / SEGMENT + n;
    if (c >= p.D) return;
    float da = entry(p.daT, n * p.D + c), db = entry(p.dbT, n * p.D + c), dm = entry(p.dmT, n * p.D + c);
    for (int64_t i = count - 1; i > 0; i--) {
        float *map = p.maps + (first + i) * MAPS * p.D + c, x[MAPS];
#pragma unroll
        for (int j = 0; j < MAPS; j++) x[j] = map[j * p.D];
        map[0] = da, map[p.D] = db, map[2 * p.D] = dm;
        dm = fmaf(x[3], dm, fmaf(x[4], da, fmaf(x[5], db, x[6])));
        da = fmaf(x[0], da, x[1]);
        db = fmaf(x[0], db, x[2]);
    }
    if (count < 2) return;
    float *map = p.maps + first * MAPS * p.D + c;
    map[0] = da, map[p.D] = db, map[2 * p.D] = dm;
}

/* dw and du: the segments' parts, ROWS runs of slots side by side. */
__global__ __launch_bounds__(ROWS *COLUMNS) void wkv_sums(const __grid_constant__ wkv_call p)
{
    __shared__ float run[PARTS][ROWS][COLUMNS];
    await_last();
    let_next();
    const int column = (int)threadIdx.x % COLUMNS, row = (int)threadIdx.x / COLUMNS, c = (int)blockIdx.x * COLUMNS + column;
    const int64_t each = (p.slots + ROWS - 1) / ROWS, end = min(p.slots, (row + 1) * each);
    float sum[PARTS] = {};
    for (int64_t s = row * each; s < end && c < p.D; s++)
#pragma unroll
        for (int j = 0; j < PARTS; j++) sum[j] += p.parts[(s * PARTS + j) * p.D + c];
#pragma unroll
    for (int j = 0; j < PARTS; j++) run[j][row][column] = sum[j];
    __syncthreads();
    if (row || c >= p.D) return;
    for (int r = 1; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < PARTS; j++) sum[j] += run[j][r][column];
    if (p.dw) p.dw[c] = -expf(p.w[c]) * sum[0];
    if (p.du) p.du[c] = sum[1];
}

/* ---- calls --------------------------------------------------------------------------------------------------------------------------------- */

int64_t slots_of(const lnt_wkv_args *a) { return a->tokens / SEGMENT + a->sequences; }
bool cut(const lnt_wkv_args *a) { return a->longest > SEGMENT; }

wkv_call call_of(const lnt_wkv_args *a, bool whole, bool back)
{
    wkv_call p = {};
    p.cu = a->cu_seqlens_device, p.N = a->sequences, p.D = a->D, p.blocks = (int)lnt_div_up(a->D, THREADS), p.whole = whole;
    p.k = a->k, p.v = a->v, p.dout = a->dout, p.o = a->o, p.dk = a->dk, p.dv = a->dv;
    p.w = (const float *)a->w, p.u = (const float *)a->u;
    p.a0 = (const float *)a->a0, p.b0 = (const float *)a->b0, p.m0 = (const float *)a->m0;
    p.daT = (const float *)a->daT, p.dbT = (const float *)a->dbT, p.dmT = (const float *)a->dmT;
    p.aT = (float *)a->aT, p.bT = (float *)a->bT, p.mT = (float *)a->mT;
    p.dw = (float *)a->dw, p.du = (float *)a->du, p.da0 = (float *)a->da0, p.db0 = (float *)a->db0, p.dm0 = (float *)a->dm0;
    p.slots = whole ? a->sequences : slots_of(a);
    float *at = (float *)a->workspace;
    const int64_t each = p.slots * a->D;
    if (cut(a)) p.states = at, at += SUMS * each;
    if (back && cut(a)) p.maps = at, at += MAPS * each;
    if (back) p.parts = at;
    return p;
}

template <typename T> void put_forwards(const wkv_call &p, bool cut, const lnt_cuda *d)
{
    const unsigned segments = (unsigned)(p.slots * p.blocks), sequences = (unsigned)(p.N * p.blocks);
    if (cut) {
        lnt_launch(d, wkv_forwards<T, true>, segments, THREADS, p);
        lnt_launch(d, wkv_between, sequences, THREADS, p);
    }
    if (p.o && segments) lnt_launch(d, wkv_forwards<T, false>, segments, THREADS, p);
}
template <typename T> void put_backwards(wkv_call p, bool cut, const lnt_cuda *d)
{
    const unsigned segments = (unsigned)(p.slots * p.blocks), sequences = (unsigned)(p.N * p.blocks);
    p.o = NULL;
    put_forwards<T>(p, cut, d);
    if (cut) {
        lnt_launch(d, wkv_backwards<T, true>, segments, THREADS, p);
        lnt_launch(d, wkv_between_back, sequences, THREADS, p);
    }
    if (segments) lnt_launch(d, wkv_backwards<T, false>, segments, THREADS, p);
    lnt_launch(d, wkv_sums, (unsigned)lnt_div_up(p.D, COLUMNS), ROWS * COLUMNS, p);
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_wkv_args *a = (const lnt_wkv_args *)args;
    LNT_BY_TYPE(a->dtype, T, put_forwards<T>(call_of(a, false, false), cut(a), (const lnt_cuda *)d));
}
void backward(const void *args, const lnt_device *d)
{
    const lnt_wkv_args *a = (const lnt_wkv_args *)args;
    LNT_BY_TYPE(a->dtype, T, put_backwards<T>(call_of(a, false, true), cut(a), (const lnt_cuda *)d));
}
void step(const void *args, const lnt_device *d)
{
    const lnt_wkv_args *a = (const lnt_wkv_args *)args;
    wkv_call p = call_of(a, true, false);
    p.states = NULL;
    LNT_BY_TYPE(a->dtype, T, put_forwards<T>(p, false, (const lnt_cuda *)d));
}

size_t workspace(const void *args, bool back, int)
{
    const lnt_wkv_args *a = (const lnt_wkv_args *)args;
    const int64_t rows = (cut(a) ? SUMS + (back ? MAPS : 0) : 0) + (back ? PARTS : 0);
    return (size_t)(rows * slots_of(a) * a->D) * sizeof(float);
}

const char *declines(const void *args, bool)
{
    const lnt_wkv_args *a = (const lnt_wkv_args *)args;
    return slots_of(a) * lnt_div_up(a->D, THREADS) >= (int64_t)1 << 31 ? "too many tokens" : NULL;
}

} // namespace

LNT_CUDA_FORMS(lnt_wkv, chunk, declines, workspace, forward, backward, NULL, step)
