/* Functions of chains, and the chains that layers have, for the kernels that go through them (row_chain_cuda.cu, where the rest is said). */
#ifndef LNT_OPS_ROW_CHAIN_CUH
#define LNT_OPS_ROW_CHAIN_CUH

#include "device/mma.cuh"
#include "ops/row_chain_decay.cuh"
#include "ops/row_chain_rule.cuh"
#include "ops/rows.cuh"

#include <utility>

extern "C" {
#include "ops/row_chain_table.h"
}

namespace row_chain {

constexpr int U = LNT_CHAIN_UNIT;
constexpr int ALL_WARPS = LNT_CHAIN_CLUSTER * LNT_CHAIN_MOST_THREADS / 32; /* of a row that takes sums over warps */

/* What a block has besides operands and results. */
struct chain_share {
    float part[2][2][ALL_WARPS]; /* of sums, by turns; of a variance means, too */
    lnt_chain_op op[LNT_CHAIN_NODES];
    lnt_chain_load load[LNT_CHAIN_LOADS];
};

/* Where a thread is. */
struct chain_place {
    chain_share *share; /* of a known chain, `part` alone */
    char *planes;
    int row, col;
    int64_t seq;
    int first; /* column of the block */
    int some;  /* threads of the block that go through the functions; 0: all */
};

__device__ __forceinline__ bool has(const chain_place &p, int first, int end) { return p.col >= first && p.col < end; }

/* i / n by n's inverse (row_chain_table.h). */
__device__ __forceinline__ int quotient(int i, uint32_t inverse) { return (int)((uint64_t)(uint32_t)i * inverse >> 32); }

/* N entries of the kernel's parameters to shared memory, by all threads: through their address in global memory, many reads at once. */
template <typename E> __device__ __forceinline__ void copy_table(E *to, const E *from, int n)
{
    constexpr int ONCE = 4;
    const int pieces = n * (int)(sizeof(E) / 16), step = (int)blockDim.x;
    static_assert(sizeof(E) % 16 == 0, "entries are copied 16 bytes at a time");
    for (int i = (int)threadIdx.x; i < pieces; i += ONCE * step) {
        uint4 v[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j++) v[j] = read_parameter((const uint4 *)from + min(i + j * step, pieces - 1));
#pragma unroll
        for (int j = 0; j < ONCE; j++)
            if (i + j * step < pieces) ((uint4 *)to)[i + j * step] = v[j];
    }
}

template <bool ONE> __device__ __forceinline__ const char *source(const lnt_chain_load &l, const chain_place &p)
{
    int c = p.col - l.first;
    const int turns = quotient(c, l.inverse);
    c = ONE ? turns : c - turns * l.period;
    return l.data + (l.by_sequence ? p.seq : (int64_t)p.row) * l.row + (int64_t)c * l.size;
}

/* Loads begin .. units - 1 are copied, not waited for; of single numbers, units .. end - 1, some come at once. */
__device__ __forceinline__ void bring(const chain_place &p, int begin, int units, int end)
{
    constexpr int ONCE = 4;
#pragma unroll 1
    for (int i = begin; i < units; i += ONCE) {
        const char *from[ONCE];
        uint32_t to[ONCE];
        int bytes[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const lnt_chain_load &l = p.share->load[min(i + j, units - 1)];
            from[j] = source<false>(l, p);
            to[j] = shared_address(p.planes + l.at + (int)threadIdx.x * max(8, (int)l.bytes));
            bytes[j] = i + j < units && has(p, l.first, l.end) ? l.bytes : 0;
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            if (bytes[j] == 4) cp_async<4>(to[j], from[j]);
            if (bytes[j] == 8) cp_async<8>(to[j], from[j]);
#pragma unroll 1
            for (int b = 0; b + 16 <= bytes[j]; b += 16) cp_async_16(to[j] + b, from[j] + b);
        }
    }
#pragma unroll 1
    for (int i = units; i < end; i += ONCE) {
        float x[ONCE] = {};
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const lnt_chain_load &l = p.share->load[min(i + j, end - 1)];
            if (has(p, l.first, l.end)) x[j] = l.size == 4 ? *(const float *)source<true>(l, p) : to_float(*(const bf16 *)source<true>(l, p));
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++)
            if (i + j < end) *(float *)(p.planes + p.share->load[i + j].at + (int)threadIdx.x * 8) = x[j];
    }
}

__device__ __forceinline__ int form_of(lnt_chain_operand o) { return (int)(o & 3); }
__device__ __forceinline__ const char *place_of(lnt_chain_operand o, const chain_place &p) { return p.planes + (o & ~3u); }

/* What a thread has of an operand, as it lies there; of one that is absent, of anything. */
__device__ __forceinline__ uint2 words_of(lnt_chain_operand o, const chain_place &p)
{
    return *(const uint2 *)(place_of(o, p) + (int)threadIdx.x * 8);
}
__device__ __forceinline__ void widen(float (&x)[U], uint2 v, lnt_chain_operand o)
{
    const bool halves = form_of(o) == LNT_CHAIN_HALVES;
    x[0] = halves ? low_half(v.x) : __uint_as_float(v.x);
    x[1] = halves ? high_half(v.x) : __uint_as_float(form_of(o) == LNT_CHAIN_ONE ? v.x : v.y);
}
__device__ __forceinline__ void read(float (&x)[U], lnt_chain_operand o, const chain_place &p) { widen(x, words_of(o, p), o); }

/* x == which, in a way that the compiler makes no table of jumps of: those lie in constant memory, which nobody has read before. */
template <bool KNOWN> __device__ __forceinline__ bool is(int x, int which)
{
    if (!KNOWN) asm volatile("" : "+r"(x));
    return x == which;
}

/* Functions that take many instructions: called, so that there is one of each, unless it is known which is wanted. */
static __device__ __noinline__ float2 two_acts(float2 q, int act)
{
    float x[U] = {q.x, q.y};
    if (is<false>(act, LNT_SILU)) act_all(x, LNT_SILU);
    else if (is<false>(act, LNT_SIGMOID)) act_all(x, LNT_SIGMOID);
    else if (is<false>(act, LNT_TANH)) act_all(x, LNT_TANH);
    else if (is<false>(act, LNT_SOFTPLUS)) act_all(x, LNT_SOFTPLUS);
    else if (is<false>(act, LNT_EXP)) act_all(x, LNT_EXP);
    else act_all(x, act);
    return make_float2(x[0], x[1]);
}
template <bool KNOWN> __device__ __forceinline__ void acts(float (&x)[U], int act)
{
    if (act == LNT_IDENTITY) return;
    if (KNOWN) return act_all(x, act);
    const float2 y = two_acts(make_float2(x[0], x[1]), act);
    x[0] = y.x, x[1] = y.y;
}
static __device__ __noinline__ float log_one_plus(float x) { return log1pf(x); }

/* Two neighbours in global memory, rounded to their type. */
__device__ __forceinline__ void store(char *to, const float (&x)[U], bool f32)
{
    if (f32)
        *(float2 *)to = make_float2(x[0], x[1]);
    else
        *(uint32_t *)to = two_halves(x[0], x[1]);
}

__device__ __forceinline__ float as_half(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

/* A result, rounded as it is stored where others read it. */
__device__ __forceinline__ void put(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U])
{
    if (!h.f32) {
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = as_half(x[u]);
    }
    const int c = p.col - h.first;
    if (!h.out || !has(p, h.first, h.end)) return;
    char *to = h.out + p.row * h.out_row;
    if (h.stretch == 1) return store(to + (int64_t)c * (h.f32 ? 4 : 2), x, h.f32);
    const int one = quotient(c, o.by_stretch);
    if (c != one * h.stretch) return;
    if (h.f32)
        ((float *)to)[one] = x[0];
    else
        ((bf16 *)to)[one] = __float2bfloat16_rn(x[0]);
}

/* What warps have of their columns to all of a block or a cluster: N numbers of each, warp (p.col - origin) / LNT_CHAIN_WARP, `origin` the first
 * one's column; behind it those of all are there. */
template <bool CLUSTER, int N>
__device__ __forceinline__ void share_parts(float (&part)[2][ALL_WARPS], const chain_place &p, int origin, const float (&x)[N])
{
    const int lane = (int)threadIdx.x % 32, warp = (p.col - origin) / LNT_CHAIN_WARP;
    if (CLUSTER) {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (lane < (int)gridDim.x) cluster_write(shared_address(&part[n][warp]), lane, x[n]);
        cluster_arrive();
        cluster_wait();
    } else {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (lane == 0) part[n][warp] = x[n];
        if (p.some)
            asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(p.some) : "memory");
        else
            __syncthreads();
    }
}

/* Warps first .. end - 1 of those parts are of a thread's head, whose columns are begin .. last - 1. */
struct head_warps {
    int origin, begin, last, first, end;
    template <bool CLUSTER> static __device__ __forceinline__ head_warps of(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p)
    {
        head_warps w;
        w.origin = CLUSTER ? 0 : p.first;
        w.begin = h.first + quotient(max(p.col - h.first, 0), o.by_columns) * o.columns, w.last = min(w.begin + o.columns, h.end);
        w.first = (w.begin - w.origin) / LNT_CHAIN_WARP, w.end = (w.last - w.origin + LNT_CHAIN_WARP - 1) / LNT_CHAIN_WARP;
        return w;
    }
    /* Columns of the head that warp i has. */
    __device__ __forceinline__ float columns(int i) const
    {
        const int c = origin + i * LNT_CHAIN_WARP;
        return (float)(min(last, c + LNT_CHAIN_WARP) - max(begin, c));
    }
};

/* The sum over a head of what its threads have; `turn` counts those over warps. */
template <bool CLUSTER>
__device__ __forceinline__ float head_sum(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float s, int &turn)
{
    if (!has(p, h.first, h.end)) s = 0.0f;
    if (h.count) {
#pragma unroll 1
        for (int w = h.count / 2; w; w >>= 1) s += __shfl_xor_sync(0xffffffffu, s, w);
        return s;
    }
    float(&part)[2][ALL_WARPS] = p.share->part[turn++ & 1];
    const head_warps w = head_warps::of<CLUSTER>(h, o, p);
    const float mine[1] = {warp_sum(s)};
    share_parts<CLUSTER>(part, p, w.origin, mine);
    s = 0.0f;
    for (int i = w.first + (int)threadIdx.x % 32; i < w.end; i += 32) s += part[0][i];
    return warp_sum(s);
}

/* x less the mean of its head; the sum of its squares then. Over warps by their means and the sums of squares about them, which go to the others at
 * once: of a cluster, whose barrier is most of what a norm takes, one in place of two. */
template <bool CLUSTER>
__device__ __forceinline__ float centre(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U], int &turn)
{
    float mean, squares = 0.0f, s = 0.0f;
    if (h.count) {
        mean = head_sum<CLUSTER>(h, o, p, x[0] + x[1], turn) / (float)o.columns;
#pragma unroll
        for (int u = 0; u < U; u++) x[u] -= mean, squares += x[u] * x[u];
        return head_sum<CLUSTER>(h, o, p, squares, turn);
    }
    const bool there = has(p, h.first, h.end);
    const int lane = (int)threadIdx.x % 32;
    const head_warps w = head_warps::of<CLUSTER>(h, o, p);
    float(&part)[2][ALL_WARPS] = p.share->part[turn++ & 1];
    float mine[2] = {warp_sum(there ? x[0] + x[1] : 0.0f) / fmaxf(w.columns((p.col - w.origin) / LNT_CHAIN_WARP), 1.0f), 0.0f};
#pragma unroll
    for (int u = 0; u < U; u++) squares += (x[u] - mine[0]) * (x[u] - mine[0]);
    mine[1] = warp_sum(there ? squares : 0.0f);
    share_parts<CLUSTER>(part, p, w.origin, mine);
    for (int i = w.first + lane; i < w.end; i += 32) s += w.columns(i) * part[0][i];
    mean = warp_sum(s) / (float)o.columns;
    s = 0.0f;
    for (int i = w.first + lane; i < w.end; i += 32) s += part[1][i] + w.columns(i) * (part[0][i] - mean) * (part[0][i] - mean);
#pragma unroll
    for (int u = 0; u < U; u++) x[u] -= mean;
    return warp_sum(s);
}

/* y: weights, z: a gate or what is added, where there are any. */
template <bool CLUSTER, bool KNOWN>
__device__ __forceinline__ void norm(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U], const float (&y)[U],
                                     float (&z)[U], int &turn)
{
    const bool layer = h.kind == LNT_ROW_LAYER, squares = h.kind == LNT_ROW_RMS || h.kind == LNT_ROW_L2;
    float s = 0.0f, r = 1.0f, by = 1.0f / (float)o.columns;
    if (layer)
        s = centre<CLUSTER>(h, o, p, x, turn);
    else {
#pragma unroll
        for (int u = 0; u < U; u++) s += squares ? x[u] * x[u] : x[u];
        s = head_sum<CLUSTER>(h, o, p, s, turn);
    }
    if (h.kind == LNT_ROW_SUM)
        r = 1.0f / (s + o.number[0]);
    else
        r = 1.0f / sqrtf((layer ? s / (float)o.columns : h.kind == LNT_ROW_RMS ? s * by : s) + o.number[0]);
    const bool weights = form_of(h.operand[1]);
    if (form_of(h.operand[2]) && !layer) acts<KNOWN>(z, h.act);
#pragma unroll
    for (int u = 0; u < U; u++) {
        x[u] *= layer || !weights ? r : r * (y[u] + o.number[1]);
        if (layer && weights) x[u] *= y[u];
        if (form_of(h.operand[2])) x[u] = layer ? x[u] + z[u] : x[u] * z[u];
    }
}

/* The three rows of the state, before and x; they move up. */
__device__ __forceinline__ void shift(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, const float (&second)[U],
                                      const float (&third)[U], const float (&x)[U])
{
    if (!has(p, h.first, h.end)) return;
    char *state = (char *)(o.state + p.seq * o.state_stride + (p.col - h.first));
    store(state, second, true);
    store(state + 4 * (int64_t)o.state_cols, third, true);
    store(state + 8 * (int64_t)o.state_cols, x, true);
}
/* Of four taps; y and z: the first two rows of the state. */
__device__ __forceinline__ void convolve(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U], const float (&y)[U],
                                         const float (&z)[U])
{
    float last[U];
    read(last, h.operand[3], p);
    shift(h, o, p, z, last, x);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const float4 w = *(const float4 *)(place_of(o.more[0], p) + ((int)threadIdx.x * U + u) * 16);
        x[u] = w.x * y[u] + w.y * z[u] + w.z * last[u] + w.w * x[u];
    }
    if (form_of(o.more[1])) {
        read(last, o.more[1], p);
#pragma unroll
        for (int u = 0; u < U; u++) x[u] += last[u];
    }
    acts<false>(x, h.act);
}

template <bool KNOWN> __device__ __forceinline__ void decay(const lnt_chain_op &o, float (&x)[U], const float (&y)[U], const float (&z)[U])
{
    const float lower = o.number[0];
    float e[U], w[U];
#pragma unroll
    for (int u = 0; u < U; u++) e[u] = y[u];
    acts<KNOWN>(e, LNT_EXP);
#pragma unroll
    for (int u = 0; u < U; u++) w[u] = lower < 0.0f ? e[u] * (x[u] + z[u]) : x[u] + z[u];
    if (lower < 0.0f)
        acts<KNOWN>(w, LNT_SIGMOID);
    else
        acts<KNOWN>(w, LNT_SOFTPLUS);
#pragma unroll
    for (int u = 0; u < U; u++) x[u] = lower < 0.0f ? lower * w[u] : -e[u] * w[u];
}

/* Several side by side, of which nobody here reads any. */
__device__ __forceinline__ void lerps(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, const float (&x)[U], const float (&y)[U])
{
    if (!has(p, h.first, h.end)) return;
    char *to = h.out + p.row * h.out_row + (int64_t)(p.col - h.first) * (h.f32 ? 4 : 2);
    const int64_t step = (int64_t)(h.end - h.first) * (h.f32 ? 4 : 2);
#pragma unroll 1
    for (int i = 0; i < h.count; i++, to += step) {
        float z[U];
        read(z, i < 2 ? o.head.operand[2 + i] : o.more[i - 2], p);
#pragma unroll
        for (int u = 0; u < U; u++) z[u] = x[u] + (y[u] - x[u]) * z[u];
        store(to, z, h.f32);
    }
}

#define EACH(expression) _Pragma("unroll") for (int u = 0; u < U; u++) x[u] = (expression)

/* x becomes the function's result; all but CONV and several of LERP. */
template <bool CLUSTER, bool KNOWN>
__device__ __forceinline__ void apply(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U], const float (&y)[U],
                                      float (&z)[U], int &turn)
{
    if (is<KNOWN>(h.kind, LNT_ROW_MUL)) EACH(x[u] * y[u]);
    else if (is<KNOWN>(h.kind, LNT_ROW_ADD)) EACH(x[u] + y[u]);
    else if (is<KNOWN>(h.kind, LNT_ROW_ACTIVATION)) {
        acts<KNOWN>(x, h.act);
        EACH(o.number[1] != 0.0f ? x[u] * o.number[0] + o.number[1] : x[u] * o.number[0]);
    } else if (is<KNOWN>(h.kind, LNT_ROW_LERP)) {
        EACH(x[u] + (y[u] - x[u]) * z[u]);
    } else if (h.kind >= LNT_ROW_RMS && h.kind <= LNT_ROW_LAYER) {
        norm<CLUSTER, KNOWN>(h, o, p, x, y, z, turn);
    } else if (is<KNOWN>(h.kind, LNT_ROW_GLU)) {
        acts<KNOWN>(x, h.act);
        EACH(x[u] * y[u]);
    } else if (is<KNOWN>(h.kind, LNT_ROW_BEFORE)) {
        if (has(p, h.first, h.end)) store((char *)(o.state + p.seq * o.state_stride + (p.col - h.first)), x, true);
        EACH(y[u]);
    } else if (is<KNOWN>(h.kind, LNT_ROW_DOT)) {
        float s = 0.0f;
#pragma unroll
        for (int u = 0; u < U; u++) s += x[u] * y[u];
        s = head_sum<CLUSTER>(h, o, p, s, turn);
        EACH(s);
    } else if (is<KNOWN>(h.kind, LNT_ROW_DECAY)) {
        decay<KNOWN>(o, x, y, z);
    } else if (is<KNOWN>(h.kind, LNT_ROW_CLAMP)) {
        EACH(x[u] < o.number[0] ? o.number[0] : x[u] > o.number[1] ? o.number[1] : x[u]);
    } else
        EACH(x[u] + log_one_plus(-o.number[0] * y[u] * y[u]));
}

template <bool CLUSTER> __device__ __forceinline__ void run(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, int &turn)
{
    const uint2 first = words_of(h.operand[0], p), second = words_of(h.operand[1], p), third = words_of(h.operand[2], p);
    float x[U], y[U], z[U];
    widen(x, first, h.operand[0]);
    widen(y, second, h.operand[1]);
    widen(z, third, h.operand[2]);
    if (h.kind == LNT_ROW_LERP && h.count > 1) return lerps(h, o, p, x, y);
    if (h.kind == LNT_ROW_CONV)
        convolve(h, o, p, x, y, z);
    else
        apply<CLUSTER, false>(h, o, p, x, y, z, turn);
    put(h, o, p, x);
    *(float2 *)(p.planes + h.at + (int)threadIdx.x * 8) = make_float2(x[0], x[1]);
}

/* ---- known chains --------------------------------------------------------------------------------------------------------------------- */

/* Going by a table, a function takes some 300 ns, most of it not its own. Chains of which layers have many are known to the compiler, which makes
 * straight code of each, operands and results in registers. */
struct known_operand {
    int8_t form;  /* lnt_chain_form, or TAPS: two floats of four neighbours each */
    int8_t maker; /* the function that makes it; -1: a load */
    bool early;
};
enum { TAPS = 4, KNOWN_OPS = 14 };
constexpr known_operand HALVES = {LNT_CHAIN_HALVES, -1, false}, LATER = {LNT_CHAIN_FLOATS, -1, false}, ONE = {LNT_CHAIN_ONE, -1, false};
constexpr known_operand FLOATS = {LNT_CHAIN_FLOATS, -1, true}, FOUR = {TAPS, -1, true}, ONCE = {LNT_CHAIN_ONE, -1, true};
constexpr known_operand made(int8_t maker) { return {LNT_CHAIN_FLOATS, maker, false}; }

/* Of a result: others read it; one for a head; float32; float32 where the function that reads it is its pair (program.h), as heads' sizes have it. */
enum { KEPT = 0, OUT = 1, SINGLE = 2, F32 = 4, PAIRED = 8 };
struct known_op {
    int8_t kind, act, count, result; /* count: of LERP */
    known_operand operand[LNT_ROW_OPERANDS];
};
struct known_chain {
    int ops;
    known_op op[KNOWN_OPS];
};

/* bf16: RWKV-7's norm with its lerps, and with one, what is ahead of its recurrence and behind it, that with it, and that of the first layer;
 * Mamba-2's; KDA's and Mesa's ahead, and KDA's with what is behind; Mamba-2's about its recurrence, with one group. */
constexpr known_chain KNOWN[] = {
    {4, {{LNT_ROW_ADD, 0, 0, OUT, {HALVES, HALVES}},
         {LNT_ROW_LAYER, 0, 0, KEPT, {made(0), FLOATS, FLOATS}},
         {LNT_ROW_BEFORE, 0, 0, KEPT, {made(1), FLOATS}},
         {LNT_ROW_LERP, 0, 6, OUT, {made(1), made(2), FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS}}}},
    {4, {{LNT_ROW_ADD, 0, 0, OUT, {HALVES, HALVES}},
         {LNT_ROW_LAYER, 0, 0, KEPT, {made(0), FLOATS, FLOATS}},
         {LNT_ROW_BEFORE, 0, 0, KEPT, {made(1), FLOATS}},
         {LNT_ROW_LERP, 0, 1, OUT, {made(1), made(2), FLOATS}}}},
    {10, {{LNT_ROW_LERP, 0, 1, OUT, {HALVES, HALVES, HALVES}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, FLOATS}},
          {LNT_ROW_L2, 0, 0, KEPT, {made(1)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, HALVES}},
          {LNT_ROW_LERP, 0, 1, OUT, {HALVES, made(3), FLOATS}},
          {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, OUT, {made(2)}},
          {LNT_ROW_MUL, 0, 0, OUT, {made(2), HALVES}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, FLOATS}},
          {LNT_ROW_DOT, 0, 0, SINGLE | F32, {made(7), made(4)}},
          {LNT_ROW_MUL, 0, 0, OUT, {made(0), made(8)}}}},
    {3, {{LNT_ROW_LAYER, 0, 0, KEPT, {HALVES, FLOATS, FLOATS}},
         {LNT_ROW_ADD, 0, 0, KEPT, {made(0), HALVES}},
         {LNT_ROW_MUL, 0, 0, OUT, {made(1), HALVES}}}},
    {14, {{LNT_ROW_LERP, 0, 1, KEPT, {HALVES, HALVES, HALVES}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, FLOATS}},
          {LNT_ROW_L2, 0, 0, KEPT, {made(1)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, HALVES}},
          {LNT_ROW_LERP, 0, 1, KEPT, {HALVES, made(3), FLOATS}},
          {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, KEPT, {made(2)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {made(2), HALVES}},
          {LNT_ROW_UNTIED, 0, 0, KEPT, {HALVES, made(4), made(0), made(5), made(6), LATER}},
          {LNT_ROW_LAYER, 0, 0, KEPT, {made(7), FLOATS, FLOATS}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, FLOATS}},
          {LNT_ROW_DOT, 0, 0, SINGLE | F32, {made(9), made(4)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {made(0), made(10)}},
          {LNT_ROW_ADD, 0, 0, KEPT, {made(8), made(11)}},
          {LNT_ROW_MUL, 0, 0, OUT, {made(12), HALVES}}}},
    {13, {{LNT_ROW_MUL, 0, 0, KEPT, {HALVES, FLOATS}},
          {LNT_ROW_L2, 0, 0, KEPT, {made(0)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, HALVES}},
          {LNT_ROW_LERP, 0, 1, KEPT, {HALVES, made(2), FLOATS}},
          {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, KEPT, {made(1)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {made(1), HALVES}},
          {LNT_ROW_UNTIED, 0, 0, KEPT, {HALVES, made(3), HALVES, made(4), made(5), LATER}},
          {LNT_ROW_LAYER, 0, 0, KEPT, {made(6), FLOATS, FLOATS}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, FLOATS}},
          {LNT_ROW_DOT, 0, 0, SINGLE | F32, {made(8), made(3)}},
          {LNT_ROW_MUL, 0, 0, KEPT, {HALVES, made(9)}},
          {LNT_ROW_ADD, 0, 0, KEPT, {made(7), made(10)}},
          {LNT_ROW_MUL, 0, 0, OUT, {made(11), HALVES}}}},
    {9, {{LNT_ROW_CONV, LNT_SILU, 0, KEPT, {HALVES, FLOATS, FLOATS, FLOATS, FOUR, FLOATS}},
         {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, SINGLE | F32, {ONE}},
         {LNT_ROW_ADD, 0, 0, SINGLE | F32, {made(1), ONCE}},
         {LNT_ROW_ACTIVATION, LNT_SOFTPLUS, 0, SINGLE | F32, {made(2)}},
         {LNT_ROW_MUL, 0, 0, OUT, {made(0), made(3)}},
         {LNT_ROW_MUL, 0, 0, OUT | SINGLE | F32, {made(3), ONE}},
         {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, OUT, {made(0)}},
         {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, OUT, {made(0)}},
         {LNT_ROW_MUL, 0, 0, OUT, {made(0), LATER}}}},
    {3, {{LNT_ROW_ADD, 0, 0, KEPT, {HALVES, HALVES}},
         {LNT_ROW_GLU, LNT_SILU, 0, KEPT, {HALVES, made(0)}},
         {LNT_ROW_RMS, 0, 0, OUT, {made(1), FLOATS}}}},
    {6, {{LNT_ROW_CONV, LNT_SILU, 0, PAIRED, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_L2, 0, 0, OUT, {made(0)}},
         {LNT_ROW_CONV, LNT_SILU, 0, PAIRED, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_L2, 0, 0, OUT, {made(2)}},
         {LNT_ROW_CONV, LNT_SILU, 0, OUT, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_DECAY, 0, 0, OUT | F32, {HALVES, ONCE, FLOATS}}}},
    {4, {{LNT_ROW_CONV, LNT_SILU, 0, PAIRED, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_L2, 0, 0, OUT, {made(0)}},
         {LNT_ROW_CONV, LNT_SILU, 0, PAIRED, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_L2, 0, 0, OUT, {made(2)}}}},
    {8, {{LNT_ROW_CONV, LNT_SILU, 0, PAIRED, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_L2, 0, 0, KEPT, {made(0)}},
         {LNT_ROW_CONV, LNT_SILU, 0, PAIRED, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_L2, 0, 0, KEPT, {made(2)}},
         {LNT_ROW_CONV, LNT_SILU, 0, KEPT, {HALVES, FLOATS, FLOATS, FLOATS, FOUR}},
         {LNT_ROW_DECAY, 0, 0, KEPT | F32, {HALVES, ONCE, FLOATS}},
         {LNT_ROW_TIED, 0, 0, KEPT, {made(1), made(3), made(4), made(5), ONE}},
         {LNT_ROW_RMS, LNT_SIGMOID, 0, OUT, {made(6), FLOATS, HALVES}}}},
    {8, {{LNT_ROW_CONV, LNT_SILU, 0, OUT, {HALVES, FLOATS, FLOATS, FLOATS, FOUR, FLOATS}},
         {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, SINGLE | F32, {ONE}},
         {LNT_ROW_ADD, 0, 0, SINGLE | F32, {made(1), ONCE}},
         {LNT_ROW_ACTIVATION, LNT_SOFTPLUS, 0, SINGLE | F32, {made(2)}},
         {LNT_ROW_MUL, 0, 0, OUT, {made(0), made(3)}},
         {LNT_ROW_MUL, 0, 0, OUT | SINGLE | F32, {made(3), ONE}},
         {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, OUT, {made(0)}},
         {LNT_ROW_ACTIVATION, LNT_IDENTITY, 0, OUT, {made(0)}}}},
    {4, {{LNT_ROW_MUL, 0, 0, KEPT, {HALVES, LATER}},
         {LNT_ROW_ADD, 0, 0, KEPT, {made(0), HALVES}},
         {LNT_ROW_GLU, LNT_SILU, 0, KEPT, {HALVES, made(1)}},
         {LNT_ROW_RMS, 0, 0, OUT, {made(2), FLOATS}}}},
};
/* Those of row_chain_maps.cuh, RWKV-7's, that of its first layer and KDA's, and of row_chain_decay.cuh. */
constexpr int CHAINS = sizeof KNOWN / sizeof KNOWN[0], UNTIED_MAPS = 4, UNTIED_FIRST = 5, TIED_MAPS = CHAINS - 3, DECAY_AHEAD = CHAINS - 2,
              DECAY_BEHIND = CHAINS - 1;

__host__ __device__ constexpr bool is_load(const known_operand &x) { return x.form != LNT_CHAIN_ABSENT && x.maker < 0; }
__host__ __device__ constexpr bool sums(int kind) { return kind >= LNT_ROW_DOT && kind <= LNT_ROW_LAYER; }

/* volatile: all loads are put before the first is waited for, where the compiler would have them stand beside their uses. */
__device__ __forceinline__ uint32_t load_word(const char *p)
{
    uint32_t v;
    asm volatile("ld.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint2 load_two(const char *p)
{
    uint2 v;
    asm volatile("ld.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float4 load_four(const char *p)
{
    float4 v;
    asm volatile("ld.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

/* What a load brings a thread; those whose columns are others have something that exists. */
struct known_words {
    uint2 v;
    float4 taps[U];
    __device__ __forceinline__ void fetch(const lnt_chain_load &l, int form, const chain_place &p)
    {
        const bool one = form == LNT_CHAIN_ONE;
        const int c = has(p, l.first, l.end) ? p.col - l.first : 0, turns = quotient(c, l.inverse);
        const char *from = l.data + (l.by_sequence ? p.seq : (int64_t)p.row) * l.row + (int64_t)(one ? turns : c - turns * l.period) * l.size;
        if (form == TAPS)
            taps[0] = load_four(from), taps[1] = load_four(from + 16);
        else if (form == LNT_CHAIN_FLOATS)
            v = load_two(from);
        else if (form == LNT_CHAIN_HALVES)
            v.x = load_word(from);
        else { /* a float, or a half of the word that has it */
            const uint32_t half = (uint32_t)((uintptr_t)from & 2), w = load_word(from - half);
            v.x = l.size == 4 ? w : half ? w & 0xffff0000u : w << 16;
        }
    }
};

/* The rule among a chain's functions, -1: none; and whether function i takes what the rule has read. */
__host__ __device__ constexpr int rule_of(const known_chain &k)
{
    for (int i = 0; i < k.ops; i++)
        if (k.op[i].kind == LNT_ROW_UNTIED || k.op[i].kind == LNT_ROW_TIED) return i;
    return -1;
}
__host__ __device__ constexpr bool is_behind(const known_chain &k, int i)
{
    const int rule = rule_of(k);
    for (int j = 0; j < LNT_ROW_OPERANDS && i > rule; j++) {
        const known_operand x = k.op[i].operand[j];
        if (x.form != LNT_CHAIN_ABSENT && x.maker >= rule && (x.maker == rule || is_behind(k, x.maker))) return true;
    }
    return false;
}

/* Which load operand j of function i is, in the order of functions and operands. */
__host__ __device__ constexpr int load_of(const known_chain &k, int i, int j)
{
    int n = 0;
    for (int m = 0; m <= i; m++)
        for (int l = 0; l < (m < i ? (int)LNT_ROW_OPERANDS : j); l++) n += is_load(k.op[m].operand[l]);
    return n;
}

/* f(0), f(1) .. f(N - 1), each by a constant. */
template <class F, int... I> __device__ __forceinline__ void by_constants(const F &f, std::integer_sequence<int, I...>)
{
    (f(std::integral_constant<int, I>()), ...);
}
template <int N, class F> __device__ __forceinline__ void each(const F &f) { by_constants(f, std::make_integer_sequence<int, N>()); }

/* What a thread of a known chain has in registers. */
template <int WHICH> struct known_row {
    static constexpr known_chain K = KNOWN[WHICH];
    known_words words[load_of(K, K.ops - 1, LNT_ROW_OPERANDS)];
    float made[K.ops][U];

    template <bool LATE> __device__ __forceinline__ void fetch(const lnt_chain &a, const chain_place &p)
    {
        each<K.ops>([&](auto i) {
            each<LNT_ROW_OPERANDS>([&](auto j) {
                constexpr known_operand x = K.op[i.value].operand[j.value];
                constexpr int load = load_of(K, i.value, j.value);
                if constexpr (is_load(x) && x.early != LATE) words[load].fetch(a.load[load], x.form, p);
            });
        });
    }
    template <int I, int J> __device__ __forceinline__ void value(float (&x)[U]) const
    {
        constexpr known_operand o = K.op[I].operand[J];
        if constexpr (is_load(o))
            widen(x, words[load_of(K, I, J)].v, (lnt_chain_operand)o.form);
        else if constexpr (o.form != LNT_CHAIN_ABSENT)
            x[0] = made[o.maker][0], x[1] = made[o.maker][1];
    }
    template <int I, bool CLUSTER> __device__ __forceinline__ void run(const lnt_chain &a, const chain_place &p, int &turn)
    {
        constexpr known_op f = K.op[I];
        const lnt_chain_op &o = a.op[I];
        const int warp = p.col - (int)threadIdx.x % 32 * U; /* its first column */
        lnt_chain_head h = {};
        h.kind = f.kind, h.act = f.act, h.count = sums(f.kind) ? o.head.count : f.count;
        h.f32 = f.result & PAIRED ? o.head.f32 : (f.result & F32) != 0;
        h.first = o.head.first, h.end = o.head.end, h.stretch = f.result & SINGLE ? o.head.stretch : 1;
        h.out = f.result & OUT ? o.head.out : NULL, h.out_row = o.head.out_row;
        h.operand[1] = (lnt_chain_operand)f.operand[1].form, h.operand[2] = (lnt_chain_operand)f.operand[2].form;
        made[I][0] = made[I][1] = 0.0f;
        if (!(sums(f.kind) && !h.count) && !(warp < h.end && warp + LNT_CHAIN_WARP > h.first)) return;
        float x[U], y[U] = {}, z[U] = {};
        value<I, 0>(x), value<I, 1>(y), value<I, 2>(z);
        if constexpr (f.kind == LNT_ROW_LERP && f.count > 1) { /* of which nobody here reads any */
            if (!has(p, h.first, h.end)) return;
            each<f.count>([&](auto m) {
                value<I, 2 + m.value>(z);
#pragma unroll
                for (int u = 0; u < U; u++) z[u] = x[u] + (y[u] - x[u]) * z[u];
                const int64_t c = (int64_t)m.value * (h.end - h.first) + p.col - h.first;
                store(h.out + p.row * h.out_row + c * (h.f32 ? 4 : 2), z, h.f32);
            });
            return;
        } else if constexpr (f.kind == LNT_ROW_CONV) {
            float other[U];
            value<I, 3>(other);
            shift(h, o, p, z, other, x);
#pragma unroll
            for (int u = 0; u < U; u++) {
                const float4 w = words[load_of(K, I, 4)].taps[u];
                x[u] = w.x * y[u] + w.y * z[u] + w.z * other[u] + w.w * x[u];
            }
            if constexpr (f.operand[5].form != LNT_CHAIN_ABSENT) {
                value<I, 5>(other);
#pragma unroll
                for (int u = 0; u < U; u++) x[u] += other[u];
            }
            acts<true>(x, f.act);
        } else
            apply<CLUSTER, true>(h, o, p, x, y, z, turn);
        put(h, o, p, x);
        made[I][0] = x[0], made[I][1] = x[1];
    }
};

} // namespace row_chain

#endif
