/* Functions of chains, for the kernels that go through them (row_chain_cuda.cu, where the rest is said). */
#ifndef LNT_OPS_ROW_CHAIN_CUH
#define LNT_OPS_ROW_CHAIN_CUH

#include "device/mma.cuh"
#include "ops/row_chain_decay.cuh"
#include "ops/row_chain_rule.cuh"
#include "ops/rows.cuh"

extern "C" {
#include "ops/row_chain_table.h"
}

namespace row_chain {

constexpr int U = LNT_CHAIN_UNIT;
constexpr int ALL_WARPS = LNT_CHAIN_CLUSTER * LNT_CHAIN_MOST_THREADS / 32; /* of a row that takes sums over warps */

/* What a block has besides operands and results. */
struct chain_sums {
    float part[2][2][ALL_WARPS]; /* by turns; of a variance means, too */
    uint64_t there[2];           /* of a cluster: its blocks' parts */
};
struct chain_share {
    chain_sums sums;
    lnt_chain_op op[LNT_CHAIN_NODES];
    lnt_chain_load load[LNT_CHAIN_LOADS];
};

/* Where a thread is. */
struct chain_place {
    chain_share *share; /* of a known chain, `sums` alone */
    char *planes;
    int row, col;
    int64_t seq;
    int first; /* column of the block */
    int some;  /* threads of the block that go through the functions; 0: all */
};

/* What is known of a chain's columns where it is compiled, HEAD: 0, nothing; else all functions have all of them, and all threads have some: a head
 * is a block's, HEAD columns, or, WHOLE, the row. */
constexpr int WHOLE = -1;

template <int HEAD = 0> __device__ __forceinline__ bool has(const chain_place &p, int first, int end)
{
    return HEAD || (p.col >= first && p.col < end);
}

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
template <int HEAD = 0> __device__ __forceinline__ void put(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U])
{
    if (!h.f32) {
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = as_half(x[u]);
    }
    const int c = p.col - h.first;
    if (!h.out || !has<HEAD>(p, h.first, h.end)) return;
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
 * one's column; behind it those of all are there. `turn` counts. */
template <bool CLUSTER, int N>
__device__ __forceinline__ const float (&share_parts(const chain_place &p, int origin, const float (&x)[N], int &turn))[2][ALL_WARPS]
{
    const int lane = (int)threadIdx.x % 32, warp = (p.col - origin) / LNT_CHAIN_WARP;
    float(&part)[2][ALL_WARPS] = p.share->sums.part[turn & 1];
    if (CLUSTER) {
        const uint32_t there = shared_address(&p.share->sums.there[turn & 1]);
        if (threadIdx.x == 0) cluster_expect(there, N * (uint32_t)sizeof(float) * gridDim.x * (blockDim.x / 32));
#pragma unroll
        for (int n = 0; n < N; n++)
            if (lane < (int)gridDim.x) cluster_send(shared_address(&part[n][warp]), there, lane, x[n]);
        cluster_await(there, (uint32_t)(turn >> 1) & 1);
    } else {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (lane == 0) part[n][warp] = x[n];
        if (p.some)
            asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(p.some) : "memory");
        else
            __syncthreads();
    }
    turn++;
    return part;
}
/* Ahead of them, in a cluster; behind it and a cluster_wait others may send. */
__device__ __forceinline__ void open_cluster(const chain_place &p)
{
    if (threadIdx.x == 0) cluster_barrier(shared_address(&p.share->sums.there[0])), cluster_barrier(shared_address(&p.share->sums.there[1]));
    __syncwarp();
    cluster_arrive();
}

/* Warps first .. end - 1 of those parts are of a thread's head, whose columns are begin .. last - 1. */
template <bool CLUSTER, int HEAD> struct head_warps {
    int origin, begin, last, first, end;
    __device__ __forceinline__ head_warps(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p)
    {
        origin = CLUSTER ? 0 : p.first;
        if (HEAD) {
            begin = first = 0, end = HEAD > 0 ? HEAD / LNT_CHAIN_WARP : (int)(gridDim.x * blockDim.x) / 32, last = end * LNT_CHAIN_WARP;
            return;
        }
        /* behind the function's columns: its last head, which the lanes ahead have, so that a warp's lanes share the sums below */
        const int c = min(max(p.col, h.first), h.end - 1) - h.first;
        begin = h.first + quotient(c, o.by_columns) * o.columns, last = min(begin + o.columns, h.end);
        first = (begin - origin) / LNT_CHAIN_WARP, end = (last - origin + LNT_CHAIN_WARP - 1) / LNT_CHAIN_WARP;
    }
    /* Columns of the head that warp i has. */
    __device__ __forceinline__ float columns(int i) const
    {
        const int c = origin + i * LNT_CHAIN_WARP;
        return HEAD ? (float)LNT_CHAIN_WARP : (float)(min(last, c + LNT_CHAIN_WARP) - max(begin, c));
    }
    /* The sum of what f says of all warps: f(i). */
    template <class F> __device__ __forceinline__ float sum(const F &f) const
    {
        float s = 0.0f;
        if constexpr (HEAD > 0) {
#pragma unroll
            for (int i = 0; i < HEAD / LNT_CHAIN_WARP; i++) s += f(i);
            return s;
        } else {
#pragma unroll 1
            for (int i = first + (int)threadIdx.x % 32; i < end; i += 32) s += f(i);
            return warp_sum(s);
        }
    }
};

/* The sum over a head of what its threads have; `turn` counts those over warps. */
template <bool CLUSTER, int HEAD>
__device__ __forceinline__ float head_sum(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float s, int &turn)
{
    if (!has<HEAD>(p, h.first, h.end)) s = 0.0f;
    if (HEAD == LNT_CHAIN_WARP) return warp_sum(s);
    if (!HEAD && h.count) {
#pragma unroll 1
        for (int w = h.count / 2; w; w >>= 1) s += __shfl_xor_sync(0xffffffffu, s, w);
        return s;
    }
    const head_warps<CLUSTER, HEAD> w(h, o, p);
    const float mine[1] = {warp_sum(s)};
    const auto &part = share_parts<CLUSTER>(p, w.origin, mine, turn);
    return w.sum([&](int i) { return part[0][i]; });
}

/* x less the mean of its head, of `by` columns' inverse; the sum of its squares then. Over warps by their means and the sums of squares about them,
 * which go to the others at once: of a cluster, whose barrier is most of what a norm takes, one in place of two. */
template <bool CLUSTER, int HEAD>
__device__ __forceinline__ float centre(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U], float by, int &turn)
{
    float mean, squares = 0.0f;
    if (HEAD == LNT_CHAIN_WARP || (!HEAD && h.count)) {
        mean = head_sum<CLUSTER, HEAD>(h, o, p, x[0] + x[1], turn) * by;
#pragma unroll
        for (int u = 0; u < U; u++) x[u] -= mean, squares += x[u] * x[u];
        return head_sum<CLUSTER, HEAD>(h, o, p, squares, turn);
    }
    const bool there = has<HEAD>(p, h.first, h.end);
    const head_warps<CLUSTER, HEAD> w(h, o, p);
    float mine[2] = {warp_sum(there ? x[0] + x[1] : 0.0f) / fmaxf(w.columns((p.col - w.origin) / LNT_CHAIN_WARP), 1.0f), 0.0f};
#pragma unroll
    for (int u = 0; u < U; u++) squares += (x[u] - mine[0]) * (x[u] - mine[0]);
    mine[1] = warp_sum(there ? squares : 0.0f);
    const auto &part = share_parts<CLUSTER>(p, w.origin, mine, turn);
    mean = w.sum([&](int i) { return w.columns(i) * part[0][i]; }) * by;
#pragma unroll
    for (int u = 0; u < U; u++) x[u] -= mean;
    return w.sum([&](int i) { return part[1][i] + w.columns(i) * (part[0][i] - mean) * (part[0][i] - mean); });
}

/* y: weights, z: a gate or what is added, where there are any. */
template <bool CLUSTER, bool KNOWN, int HEAD>
__device__ __forceinline__ void norm(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, float (&x)[U], const float (&y)[U],
                                     float (&z)[U], int &turn)
{
    const bool layer = h.kind == LNT_ROW_LAYER, squares = h.kind == LNT_ROW_RMS || h.kind == LNT_ROW_L2;
    const float by = 1.0f / (HEAD > 0 ? (float)HEAD : (float)o.columns);
    float s = 0.0f, r = 1.0f;
    if (layer)
        s = centre<CLUSTER, HEAD>(h, o, p, x, by, turn);
    else {
#pragma unroll
        for (int u = 0; u < U; u++) s += squares ? x[u] * x[u] : x[u];
        s = head_sum<CLUSTER, HEAD>(h, o, p, s, turn);
    }
    if (h.kind == LNT_ROW_SUM)
        r = 1.0f / (s + o.number[0]);
    else
        r = rsqrtf((layer || h.kind == LNT_ROW_RMS ? s * by : s) + o.number[0]);
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
template <int HEAD = 0>
__device__ __forceinline__ void shift(const lnt_chain_head &h, const lnt_chain_op &o, const chain_place &p, const float (&second)[U],
                                      const float (&third)[U], const float (&x)[U])
{
    if (!has<HEAD>(p, h.first, h.end)) return;
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
template <bool CLUSTER, bool KNOWN, int HEAD = 0>
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
        norm<CLUSTER, KNOWN, HEAD>(h, o, p, x, y, z, turn);
    } else if (is<KNOWN>(h.kind, LNT_ROW_GLU)) {
        acts<KNOWN>(x, h.act);
        EACH(x[u] * y[u]);
    } else if (is<KNOWN>(h.kind, LNT_ROW_BEFORE)) {
        if (has<HEAD>(p, h.first, h.end)) store((char *)(o.state + p.seq * o.state_stride + (p.col - h.first)), x, true);
        EACH(y[u]);
    } else if (is<KNOWN>(h.kind, LNT_ROW_DOT)) {
        float s = 0.0f;
#pragma unroll
        for (int u = 0; u < U; u++) s += x[u] * y[u];
        s = head_sum<CLUSTER, HEAD>(h, o, p, s, turn);
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

} // namespace row_chain

#endif
