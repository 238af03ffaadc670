/* Conjugate gradients of a chunk on Hopper: the 64 rows of a chunk and head at once, H and K in shared memory, the rest in registers. What the
 * solve over all tokens (mesa_sm90.cu) and over the last w (mesa_window_sm90.cu) share.
 *
 *   Op(P) = e.(P H) + ((P K^T).D.beta) K + P.lambda                                                                        (operators.md#mesa)
 *
 * with D_ij = e^{G_i - G_j} for keys j <= i since the last reset, e_i = e^{G_i} before the first reset of the chunk, else 0; with a window H stands
 * for the chunks between, and the keys behind place i of the expiring chunk come to it, ((P K'^T).f) K', f_ij = e_i old_j for j > i.
 *
 * Every warpgroup has a chunk of its own and walks down its share of them; while one works out sums and vectors, another's products have the tensor
 * cores. A thread holds of two rows (r and r + 8 of its warp's 16) every fourth pair of columns, as wgmma leaves them; a row's four threads are
 * neighbours, so that a row's sums take two shuffles and no barrier. The floor and what was measured: docs/performance/mesa.md.
 *
 * The direction P lives as bf16 alone: it is what the products read, and as every use sees the same rounded P, R stays the residual of X. The part of
 * X for which there are no registers waits in shared memory, each thread its own words. */
#ifndef LNT_MESA_SM90_CUH
#define LNT_MESA_SM90_CUH

#include "device/cuda.cuh"
#include "device/mma.cuh"
#include "device/wgmma.cuh"
#include "recurrence/mesa/mesa_cuda.cuh"

namespace {

constexpr int C = LNT_MESA_C, GROUP = 128;
/* A chunk whose gates sum to more than this has no reset: e^{-G} and its products stay far inside the range of float32 and bf16. */
constexpr float SLOW_GATES = -60.f;

/* What a chunk sees before itself: all tokens; of a window the chunks between; these and the rest of one that expires. */
constexpr int WHOLE = 0, INNER = 1, BORDER = 2;

/* ALIKE, below: steps of rows that all take the same number, with the preconditioner in what they read (`prepare`); otherwise each ends at its own
 * tolerance. */

/* GROUPS warpgroups a CTA, one CTA a multiprocessor; of the K/8 groups of 8 columns of X, the last WAITING are in shared memory. */
template <int K> constexpr int GROUPS = K == 128 ? 2 : 3;
template <int K, bool WINDOW> constexpr int WAITING = WINDOW ? (K == 128 ? 13 : 6) : K == 128 ? 7 : 4;
template <int K, bool WINDOW> constexpr int HELD = K / 8 - WAITING<K, WINDOW>;

/* What a warpgroup works on: a chunk of a head, heads innermost. */
struct place {
    int64_t chunk, first;
    int h, rows;
    bool empty; /* H is 0 there */
};

/* Shared memory of a warpgroup: the tiles of this chunk and of its next, with a window of this one alone. Tiles that wgmma reads begin on 1024 bytes
 * and hold 64 columns a panel. */
template <int K, bool WINDOW> struct tiles_of {
    alignas(1024) bf16 H[2][K / 64][K][64];
    bf16 Kc[2][K / 64][C][64];
    float4 X[WAITING<K, WINDOW>][GROUP];
};
template <int K> struct tiles_of<K, true> {
    alignas(1024) bf16 H[1][K / 64][K][64]; /* G, once there is a solution */
    bf16 Kc[2][K / 64][C][64];              /* the chunk's keys, the expiring one's */
    union {
        float4 X[WAITING<K, true>][GROUP];
        bf16 V[2][K / 64][C][64];           /* the values of both, likewise */
    };
    float old[C];                           /* what stands before the expiring keys, but for e_i */
};
template <int K, bool WINDOW> struct shared_of : tiles_of<K, WINDOW> {
    alignas(16) float lambda[K], level[K]; /* level: the preconditioner; both as `spot` has it, as the keys' */
    alignas(16) float key[C];              /* slow gates: e^{-G_j} beta_j, others: beta_j */
    float nothing[16];                     /* zeros, for keys that none of a warp's rows sees */
    float G[C];
    float2 row[C];                         /* e_i, |rhs|^2 */
    float2 bounds;                         /* of the preconditioner: smallest, largest */
    int since[C];                          /* first key that a row sees; -1: all and H too */
    float gates[C], strengths[C];          /* as they came */
    place at[2];                           /* of the tiles */
};

/* What a thread carries through the steps. Number 4j + 2i + b is row i's column 8j + 2c + b. */
template <int K, int W> struct rows_of {
    int four_c, row;        /* 4c; its first row */
    uint32_t p[K / 4];      /* P as the A operand: 4 registers for 16 columns */
    float w[K / 2];         /* Op(P), then M R */
    float r[K / 2];         /* residual */
    float x[4 * HELD<K, (W > WHOLE)>];
};

/* The same x, of which the compiler knows nothing: what follows from it is worked out again rather than kept (in local memory, for want of registers,
 * and L1 has hardly any room beside so much shared memory: a spilled word comes from L2). */
template <typename T> __device__ __forceinline__ T afresh(T x)
{
    asm volatile("" : "+r"(x));
    return x;
}
/* The low and the high half of a register of two bf16 as floats. The selectors are made to depend on a number that is not negative, and not known
 * before: so P is unpacked where it is used, each time, and its 64 floats need no registers in between. */
struct unpacker {
    uint32_t low, high;
    __device__ __forceinline__ unpacker(float known)
    {
        const uint32_t nothing = __float_as_uint(known) >> 31;
        low = 0x1044 + nothing, high = 0x3244 + nothing;
    }
    __device__ __forceinline__ float2 operator()(uint32_t p) const
    {
        return make_float2(__uint_as_float(__byte_perm(p, 0, low)), __uint_as_float(__byte_perm(p, 0, high)));
    }
};
/* Likewise what a step needs of its row: read when it is needed. */
__device__ __forceinline__ float2 fetched(const float2 *p)
{
    float2 x;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(shared_address(p)) : "memory");
    return x;
}
__device__ __forceinline__ int thread() { return afresh((int)threadIdx.x) % GROUP; }
/* The rows of a thread of its chunk: this and 8 on. */
__device__ __forceinline__ int first_row(int tid) { return tid / 32 * 16 + tid % 32 / 4; }

/* The place of a column in tables that a thread reads four at a time: its columns 16j + 2c, 16j + 2c + 1, 16j + 2c + 8 and 16j + 2c + 9 are
 * neighbours at 16j + 4c. */
__device__ __forceinline__ int spot(int column) { return (column & ~15) | (column & 6) << 1 | (column & 8) >> 2 | (column & 1); }

__device__ __forceinline__ const uint32_t (&four(const uint32_t *p))[4] { return *(const uint32_t (*)[4])p; }

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Barriers of a warpgroup; any: whether x holds in one of its threads. */
__device__ __forceinline__ void group_sync(int group) { named_sync(1 + group, GROUP); }
__device__ __forceinline__ bool group_any(int group, bool x)
{
    uint32_t any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((uint32_t)x), "r"(1 + group), "n"(GROUP)
                 : "memory");
    return any != 0;
}

/* Element offset of (row, column) in a panel of 64 columns with the 128-byte swizzle. */
__device__ __forceinline__ int swizzled(int row, int column) { return row * 64 + (((column >> 3) ^ (row & 7)) << 3) + (column & 7); }

__device__ __forceinline__ place place_of(const lnt_mesa_cg &a, int item)
{
    const int4 at = a.table[item / a.Hv];
    return { item / a.Hv, at.y, item % a.Hv, at.z, a.empty && at.w == 0 };
}
/* Item `at` of the order in which warpgroups take them, turn by turn: a turn is dealt out block by block, the first group of each ahead of the second
 * one, so that where not all have as many chunks, most blocks that have one more have it alone, which takes two thirds of two side by side. */
__device__ __forceinline__ int dealt(int group, int groups, int turn) { return (turn * groups + group) * (int)gridDim.x + (int)blockIdx.x; }
__device__ __forceinline__ bool has_rows(const lnt_mesa_cg &a, int item) { return a.table[item / a.Hv].z > 0; }

/* Rows of one of `heads` keys or values, and a state [K,K] into tiles: zeros beyond the rows that are there. tid: thread(). */
template <int K> __device__ __forceinline__ void fetch_rows(int tid, bf16 (*to)[C][64], const bf16 *from, int heads, int rows)
{
    const int part = tid % (K / 8), panel = part / 8, column = part % 8 * 8;
    for (int row = tid / (K / 8); row < C; row += GROUP / (K / 8))
        cp_async_16(shared_address(&to[panel][0][0] + swizzled(row, column)), from + (int64_t)row * heads * K + part * 8, row < rows);
}
template <int K> __device__ __forceinline__ void fetch_state(int tid, bf16 (*to)[K][64], const bf16 *from)
{
    const int part = tid % (K / 8), panel = part / 8, column = part % 8 * 8;
    for (int row = tid / (K / 8); row < K; row += GROUP / (K / 8))
        cp_async_16(shared_address(&to[panel][0][0] + swizzled(row, column)), from + row * K + part * 8);
}
/* H and keys of a place into tiles, its right sides as far as L2. */
template <int K> __device__ __forceinline__ void fetch(const lnt_mesa_cg &a, const place &p, bf16 (*H)[K][64], bf16 (*Kc)[C][64])
{
    const bf16 *h = a.H + (p.chunk * a.Hv + p.h) * K * K, *k = a.k + (p.first * a.Hk + p.h / (a.Hv / a.Hk)) * K;
    const int tid = thread();
    fetch_state<K>(tid, H, h);
    fetch_rows<K>(tid, Kc, k, a.Hk, p.rows);
    cp_async_commit();
    const bf16 *q = a.rhs + ((p.first + tid / 2) * a.Hr + p.h / (a.Hv / a.Hr)) * K + tid % 2 * (K / 2);
    if (tid / 2 < p.rows) ahead_l2(q);
}

/* A thread's gate or strength of a place: those of its tokens, one after the other. */
__device__ __forceinline__ float gate_of(const lnt_mesa_cg &a, const place &p)
{
    const int row = thread() % C;
    const float *from = thread() < C ? a.g : a.beta;
    return from && row < p.rows ? from[(p.first + row) * a.Hv + p.h] : 0.f;
}
template <int K, bool WINDOW> __device__ __forceinline__ void put_gate(shared_of<K, WINDOW> &s, float x)
{
    (thread() < C ? s.gates : s.strengths)[thread() % C] = x;
}

/* G, since and key of the chunk's tokens from what put_gate left before the group's last barrier, two of them a lane; whether its gates are slow.
 * Every warp works it out, the first one writes. */
template <int K, bool WINDOW> __device__ __forceinline__ bool scan_gates(shared_of<K, WINDOW> &s, int group)
{
    const int lane = thread() % 32;
    const float2 gates = *(const float2 *)&s.gates[2 * lane], strengths = *(const float2 *)&s.strengths[2 * lane];
    float x[2], beta[2], sum = 0.f;
    int last[2], latest = -1;
    for (int i = 0; i < 2; i++) {
        const float v = i ? gates.y : gates.x;
        beta[i] = i ? strengths.y : strengths.x;
        if (lnt_gate_resets(v)) latest = 2 * lane + i;
        sum += lnt_gate_counted(v, lnt_gate_resets(v));
        x[i] = sum, last[i] = latest;
    }
    float before = sum;
    int until = latest;
    for (int o = 1; o < 32; o <<= 1) {
        const float b = __shfl_up_sync(0xffffffffu, before, o);
        const int l = __shfl_up_sync(0xffffffffu, until, o);
        if (lane >= o) before += b, until = max(until, l);
    }
    const bool slow = __shfl_sync(0xffffffffu, before, 31) > SLOW_GATES && __shfl_sync(0xffffffffu, until, 31) < 0;
    before -= sum;
    until = __shfl_up_sync(0xffffffffu, until, 1);
    if (thread() < 32)
        for (int i = 0; i < 2; i++) {
            const int row = 2 * lane + i;
            s.G[row] = before + x[i];
            s.since[row] = last[i] >= 0 || lane == 0 ? last[i] : until;
            s.key[spot(row)] = beta[i] * (slow ? __expf(-s.G[row]) : 1.f);
        }
    return group_any(group, slow);
}

/* The strengths of keys 16b .. 16b+15 that a thread needs; 0 where none of the warp's rows sees them. */
template <int K, int W> __device__ __forceinline__ float4 strengths_of(const rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s, int b)
{
    const int four_c = afresh(t.four_c);
    return *(const float4 *)(b <= afresh(t.row) >> 4 ? &s.key[16 * b + four_c] : &s.nothing[four_c]);
}

/* The products (P K^T) as they leave wgmma, times D.beta, as an A operand: of keys 16b .. 16b+15. With slow gates D's e^{G_i} is left out. ONES:
 * D.beta itself. OLD: of the expiring keys, times old_j; as slow gates. */
template <int K, bool SLOW, bool ONES = false, bool OLD = false, int W>
__device__ __forceinline__ void decayed(uint32_t (&a)[C / 4], const float (&pairs)[C / 2], const rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s,
                                        int b, float4 strengths)
{
    /* Blocks of 16 keys: all of those before the warp's rows, of its own the lower triangle, of 8 by 8 full, empty or a corner. */
    const int row = afresh(t.row), c2 = afresh(t.four_c) >> 1, warp = row >> 4, r = row & 7;
    const float f[4] = { strengths.x, strengths.y, strengths.z, strengths.w };
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int j = 2 * b + n / 2, i = n % 2;
        float x = f[n / 2 * 2], y = f[n / 2 * 2 + 1];
        if (!ONES) x *= pairs[4 * j + 2 * i], y *= pairs[4 * j + 2 * i + 1];
        if (!SLOW) {
            const float2 G = *(const float2 *)&s.G[8 * j + c2];
            const int since = s.since[row + 8 * i];
            x *= 8 * j + c2 >= since ? __expf(lnt_mesa_least(s.G[row + 8 * i] - G.x, 0.f)) : 0.f;
            y *= 8 * j + c2 + 1 >= since ? __expf(lnt_mesa_least(s.G[row + 8 * i] - G.y, 0.f)) : 0.f;
        }
        a[4 * b + n] = pack_bf16(x, y);
    }
    const uint32_t corner = (c2 <= r ? 0xffffu : 0u) | (c2 < r ? 0xffff0000u : 0u);
    if constexpr (OLD) {
        const uint32_t full = b < warp ? 0u : ~0u, lower = b <= warp ? 0u : ~0u, diagonal = full & (lower | ~corner);
        a[4 * b] &= diagonal, a[4 * b + 1] &= lower, a[4 * b + 2] &= full, a[4 * b + 3] &= diagonal;
    } else {
        const uint32_t own = b == warp ? corner : ~0u;
        a[4 * b] &= own, a[4 * b + 2] &= b == warp ? 0u : ~0u, a[4 * b + 3] &= own;
    }
}
template <int K, bool SLOW, bool ONES = false, bool OLD = false, int W>
__device__ __forceinline__ void decayed(uint32_t (&a)[C / 4], const float (&pairs)[C / 2], const rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s)
{
#pragma unroll
    for (int b = 0; b < C / 16; b++) {
        float4 f;
        if constexpr (OLD) {
            const int c2 = afresh(t.four_c) >> 1;
            const float2 low = *(const float2 *)&s.old[16 * b + c2], high = *(const float2 *)&s.old[16 * b + 8 + c2];
            f = make_float4(low.x, low.y, high.x, high.y);
        } else {
            f = strengths_of<K>(t, s, b);
        }
        decayed<K, SLOW, ONES, OLD>(a, pairs, t, s, b, f);
    }
}

/* The descriptor of what lies `bytes` further. */
__device__ __forceinline__ uint64_t further(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & ~(uint64_t)0xffffffff) | ((uint32_t)descriptor + (bytes >> 4));
}

/* w = P H, in steps of 16 of P's columns. H is symmetric: its rows are read as columns; of G (READ) they are rows. */
template <int K, bool READ = false, int W>
__device__ __forceinline__ void times_H(rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s, int buf, int first = 0, int end = K / 16)
{
    const uint64_t H = READ ? wgmma_mn_major(shared_address(s.H[buf]), K * 128) : wgmma_k_major(shared_address(s.H[buf]));
#pragma unroll
    for (int j = first; j < end; j++)
        wgmma<READ>(t.w, four(&t.p[4 * j]), further(H, READ ? j * 16 * 128 : j / 4 * K * 128 + j % 4 * 32), j > 0);
}
/* P times a tile of keys. */
template <int K, int W> __device__ __forceinline__ void pair(float (&pairs)[C / 2], const rows_of<K, W> &t, const bf16 (*tile)[C][64])
{
    const uint64_t keys = wgmma_k_major(shared_address(tile));
#pragma unroll
    for (int j = 0; j < K / 16; j++) wgmma<0>(pairs, four(&t.p[4 * j]), further(keys, j / 4 * C * 128 + j % 4 * 32), j > 0);
}
/* w (+)= A times a tile of keys or values, in steps of 16 of its rows. */
template <int K, int W>
__device__ __forceinline__ void times_rows(rows_of<K, W> &t, const uint32_t (&a)[C / 4], const bf16 (*tile)[C][64], bool add, int first = 0,
                                           int end = C / 16)
{
    const uint64_t rows = wgmma_mn_major(shared_address(tile), C * 128);
#pragma unroll
    for (int j = first; j < end; j++) wgmma<1>(t.w, four(&a[4 * j]), further(rows, j * 16 * 128), add || j > 0);
}
/* What the pairs bring: the keys again, or (READ) the values of chunk `buf`, of the window's two. */
template <int K, bool READ, bool WINDOW> __device__ __forceinline__ const bf16 (*brought(const shared_of<K, WINDOW> &s, int buf))[C][64]
{
    if constexpr (READ)
        return s.V[buf];
    else
        return s.Kc[buf];
}

/* w = e.(P H) + (P K^T.D.beta) K, of BORDER with the expiring keys, to be waited for; e is left to the caller when the gates are slow: all products
 * then add into one sum. READ: G and values for H and the second K, once the copies of the group are there.
 * A warp that puts products waits for room in front of the tensor cores: so most of P H is put between the blocks of keys. EMPTY: H is 0, and left
 * out. */
template <int K, bool SLOW, bool READ = false, bool EMPTY = false, int W>
__device__ __forceinline__ void products(rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s, int buf, int group = 0)
{
    constexpr int ALL = K / 16, AHEAD = SLOW && W != BORDER && !READ ? ALL / 4 : ALL;
    float pairs[C / 2];
    uint32_t a[C / 4];
    wgmma_fence();
    pair<K>(pairs, t, s.Kc[W == BORDER ? 1 : buf]);
    wgmma_commit();
    if constexpr (READ) {
        cp_async_wait<0>();
        fence_async();
        group_sync(group);
    }
    if constexpr (!EMPTY) {
        times_H<K, READ>(t, s, buf, 0, AHEAD);
        wgmma_commit();
    }
    float4 strengths[2]; /* of this block of keys and the next */
    if constexpr (AHEAD < ALL) strengths[0] = strengths_of<K>(t, s, 0);
    wgmma_wait<EMPTY ? 0 : 1>();
    wgmma_hold(pairs);
    if constexpr (W == BORDER) {
        uint32_t old[C / 4];
        decayed<K, true, false, true>(old, pairs, t, s);
        wgmma_fence();
        pair<K>(pairs, t, s.Kc[0]);
        wgmma_commit();
        times_rows<K>(t, old, brought<K, READ>(s, 1), true);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(pairs);
    }
    if constexpr (AHEAD < ALL) {
#pragma unroll
        for (int b = 0; b < C / 16; b++) {
            if (b + 1 < C / 16) strengths[(b + 1) % 2] = strengths_of<K>(t, s, b + 1);
            decayed<K, SLOW>(a, pairs, t, s, b, strengths[b % 2]);
            wgmma_fence();
            times_rows<K>(t, a, s.Kc[buf], !EMPTY, b, b + 1);
            if (!EMPTY && b + 1 < C / 16) times_H<K>(t, s, buf, AHEAD * (b + 1), AHEAD * (b + 2));
            wgmma_commit();
        }
    } else {
        decayed<K, SLOW>(a, pairs, t, s);
        wgmma_fence();
        if constexpr (!SLOW) {
            const float e[2] = { fetched(&s.row[t.row]).x, fetched(&s.row[t.row + 8]).x };
            wgmma_wait<0>();
            wgmma_hold(t.w);
#pragma unroll
            for (int i = 0; i < K / 2; i++) t.w[i] *= e[i / 2 % 2];
            wgmma_fence();
        }
        times_rows<K>(t, a, brought<K, READ>(s, buf), true);
        wgmma_commit();
    }
}

/* W = Op(P); P.W of the two rows. */
template <int K, bool SLOW, bool EMPTY = false, int W>
__device__ __forceinline__ void apply(rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s, int buf, float (&pw)[2])
{
    products<K, SLOW, false, EMPTY>(t, s, buf);
    /* what needs no product is read ahead of them, into some of the pairs' registers: all of lambda costs 2 % */
    constexpr int EARLY = K / 32;
    float4 early[EARLY];
#pragma unroll
    for (int j = 0; j < EARLY; j++) early[j] = *(const float4 *)&s.lambda[16 * j + t.four_c];
    const float2 row[2] = { fetched(&s.row[t.row]), fetched(&s.row[t.row + 8]) };
    const unpacker unpack(row[0].y);
    const float e[2] = { SLOW ? row[0].x : 1.f, SLOW ? row[1].x : 1.f };
    wgmma_wait<0>();
    wgmma_hold(t.w);
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        const float4 l4 = j / 2 < EARLY ? early[j / 2 < EARLY ? j / 2 : 0] : *(const float4 *)&s.lambda[16 * (j / 2) + t.four_c];
        const float2 l = j % 2 ? make_float2(l4.z, l4.w) : make_float2(l4.x, l4.y);
        for (int i = 0; i < 2; i++) {
            const float2 p = unpack(t.p[2 * j + i]);
            float &x = t.w[4 * j + 2 * i], &y = t.w[4 * j + 2 * i + 1];
            x = e[i] * x + l.x * p.x, y = e[i] * y + l.y * p.y;
            sum[i][0] += p.x * x, sum[i][1] += p.y * y;
        }
    }
    for (int i = 0; i < 2; i++) pw[i] = quad_sum(sum[i][0] + sum[i][1]);
}

/* R -= alpha W (not the first time, when there is no W), w = M R; r.w of the two rows. */
template <int K, bool FIRST = false, int W>
__device__ __forceinline__ void precondition(rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s, const float (&alpha)[2], float (&rz)[2])
{
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        const float4 m4 = *(const float4 *)&s.level[j / 2 * 16 + t.four_c];
        const float2 m = j % 2 ? make_float2(m4.z, m4.w) : make_float2(m4.x, m4.y);
        for (int n = 0; n < 4; n++) {
            float &r = t.r[4 * j + n], &w = t.w[4 * j + n];
            if (!FIRST) r -= alpha[n / 2] * w;
            w = r * (n % 2 ? m.y : m.x);
            sum[n / 2][n % 2] += r * w;
        }
    }
    for (int i = 0; i < 2; i++) rz[i] = quad_sum(sum[i][0] + sum[i][1]);
}

/* X += alpha P, P = M R + beta P (ALIKE: R + beta P). LAST: X alone. */
template <int K, bool ALIKE, bool LAST = false, int W>
__device__ __forceinline__ void advance(rows_of<K, W> &t, shared_of<K, (W > WHOLE)> &s, const float (&alpha)[2], const float (&beta)[2])
{
    const unpacker unpack(beta[0]);
    float4 *waiting = &s.X[0][thread()];
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        float x[4];
        if (j >= HELD<K, (W > WHOLE)>) *(float4 *)x = waiting[(j - HELD<K, (W > WHOLE)>)*GROUP ];
        for (int i = 0; i < 2; i++) {
            const float2 p = unpack(t.p[2 * j + i]);
            float *to = j < HELD<K, (W > WHOLE)> ? &t.x[4 * j + 2 * i] : &x[2 * i];
            to[0] += alpha[i] * p.x, to[1] += alpha[i] * p.y;
            const float *z = ALIKE ? &t.r[4 * j + 2 * i] : &t.w[4 * j + 2 * i];
            if constexpr (!LAST) t.p[2 * j + i] = pack_bf16(z[0] + beta[i] * p.x, z[1] + beta[i] * p.y);
        }
        if (j >= HELD<K, (W > WHOLE)>) waiting[(j - HELD<K, (W > WHOLE)>)*GROUP] = *(float4 *)x;
    }
}

template <int K, int W> __device__ __forceinline__ void squares(const rows_of<K, W> &t, float (&rr)[2])
{
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < K / 2; i++) sum[i % 4] += t.r[i] * t.r[i];
    rr[0] = quad_sum(sum[0] + sum[1]), rr[1] = quad_sum(sum[2] + sum[3]);
}

/* The steps. On entry t.r = rhs (with a guess: its residual), x = 0 (the guess). taken: steps of the first row, 65536 times those of the second.
 * With a tolerance of 0 all of them are taken. Late ones change no bit of X, alpha P being below half an ulp of every element; but that it stays so
 * cannot be known: alpha P does not fall from step to step, and with H and P rounded nothing bounds the P.W to come from below. Only d = 0 lasts
 * (alpha is 0 then, and nothing moves), and 30 steps leave it at 1e-34. */
template <int K, bool SLOW, int W>
__device__ __forceinline__ void solve(const lnt_mesa_cg &a, shared_of<K, (W > WHOLE)> &s, rows_of<K, W> &t, int buf, int group, int &taken)
{
    const float zero[2] = { 0.f, 0.f };
    float d[2];
    precondition<K, true>(t, s, zero, d);
#pragma unroll
    for (int j = 0; j < K / 8; j++)
        for (int i = 0; i < 2; i++) t.p[2 * j + i] = pack_bf16(t.w[4 * j + 2 * i], t.w[4 * j + 2 * i + 1]);
    const int most = lnt_mesa_course_now(a).most;
    for (int step = 0; step < most; step++) {
        if (a.tolerance2 > 0.f && !group_any(group, !(d[0] <= 0.f) || !(d[1] <= 0.f))) break; /* NaN goes on */
        float pw[2], alpha[2], beta[2], rz[2];
        apply<K, SLOW>(t, s, buf, pw);
        for (int i = 0; i < 2; i++) {
            alpha[i] = (d[i] > 0.f && pw[i] > 0.f ? __fdividef(d[i], pw[i]) : 0.f) + lnt_mesa_lost(d[i], pw[i]);
            if (alpha[i] > 0.f) taken += i ? 65536 : 1;
        }
        precondition<K>(t, s, alpha, rz);
        /* r.Mr says of most rows that they are, or are not, done. */
        const float2 bounds = fetched(&s.bounds);
        bool done[2], unknown = false;
        float goal[2];
        for (int i = 0; i < 2; i++) {
            goal[i] = a.tolerance2 * fetched(&s.row[t.row + 8 * i]).y;
            done[i] = !(alpha[i] > 0.f) || rz[i] <= goal[i] * bounds.x;
            unknown |= !done[i] && rz[i] <= goal[i] * bounds.y;
        }
        if (__any_sync(0xffffffffu, unknown)) {
            float rr[2];
            squares<K>(t, rr);
            for (int i = 0; i < 2; i++) done[i] |= rr[i] <= goal[i];
        }
        for (int i = 0; i < 2; i++) {
            beta[i] = done[i] ? 0.f : __fdividef(rz[i], d[i]);
            d[i] = done[i] ? 0.f : rz[i];
        }
        advance<K, false>(t, s, alpha, beta);
    }
}
/* X's numbers 4j .. 4j+3. */
template <int K, int W>
__device__ __forceinline__ void solution(int tid, float (&x)[4], const rows_of<K, W> &t, const shared_of<K, (W > WHOLE)> &s, int j)
{
    constexpr int held = HELD<K, (W > WHOLE)>;
    if (j >= held)
        *(float4 *)x = s.X[j < held ? 0 : j - held][tid];
    else
        for (int n = 0; n < 4; n++) x[n] = t.x[j < held ? 4 * j + n : 0];
}
/* Rows of a place [T,Hv,K], 16 bytes a thread, from a tile in shared memory. */
template <int K> __device__ __forceinline__ void leave_rows(int tid, const lnt_mesa_cg &a, const place &p, bf16 *to, const bf16 *stage)
{
    const int part = tid % (K / 8);
    for (int row = tid / (K / 8); row < p.rows; row += GROUP / (K / 8))
        *(uint4 *)(to + ((p.first + row) * a.Hv + p.h) * K + part * 8) = *(const uint4 *)(stage + part / 8 * C * 64 + swizzled(row, part % 8 * 8));
}
/* Steps and residuals of the place's rows, where they are wanted. */
template <int K, int W>
__device__ __forceinline__ void report(int tid, const lnt_mesa_cg &a, const place &p, const shared_of<K, (W > WHOLE)> &s, const rows_of<K, W> &t,
                                       int taken)
{
    if (!a.taken && !a.residual) return;
    const int free_steps = lnt_mesa_course_now(a).free_steps;
    float left[2];
    squares<K>(t, left);
    for (int i = 0; i < 2; i++) {
        if (tid % 4 || first_row(tid) + 8 * i >= p.rows) continue;
        const int64_t token = (p.first + first_row(tid) + 8 * i) * a.Hv + p.h;
        const float size = s.row[first_row(tid) + 8 * i].y;
        if (a.taken) a.taken[token] = (float)max((i ? taken >> 16 : taken & 65535) - free_steps, 0);
        if (a.residual) a.residual[token] = lnt_mesa_left(left[i], size);
    }
}

/* Lambda of a head, K/32 neighbours a lane. */
template <int K> struct lambda_of {
    float x[K / 32];
    __device__ __forceinline__ lambda_of(const lnt_mesa_cg &a, int h)
    {
#pragma unroll
        for (int i = 0; i < K / 32; i++) x[i] = a.lambda[h * K + thread() % 32 * (K / 32) + i];
    }
};

/* lambda, the preconditioner and the latter's bounds. `level` of operators.md#mesa with the diagonal of H at the chunk's start for every row: it
 * costs no product with the squared keys, and no step more.
 *
 * ALIKE: M is S^2, the nearest power of 4 times one number for all of them, which no step notices; and what the steps read is S H S, K S and
 * S^2 Lambda, which are exact, so that they are plain ones, of S R and X / S. Where M's extremes are less than 4 apart, S is 1. s.level: S,
 * s.bounds.x: whether it is not 1. Only for rows that take more steps than they need, as S^2 may take a few more. */
template <int K, bool ALIKE = false, bool WINDOW>
__device__ __forceinline__ void prepare(const lnt_mesa_cg &a, const lambda_of<K> &lambda, shared_of<K, WINDOW> &s, int buf)
{
    const int tid = thread(), first = tid % 32 * (K / 32);
    float least = INFINITY, low = INFINITY, high = 0.f;
#pragma unroll
    for (int i = 0; i < K / 32; i++) {
        least = lnt_mesa_least(least, __bfloat162float(*(&s.H[buf][(first + i) / 64][0][0] + swizzled(first + i, (first + i) % 64))));
        low = fminf(low, lambda.x[i]), high = fmaxf(high, lambda.x[i]);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        least = lnt_mesa_least(least, __shfl_xor_sync(0xffffffffu, least, o)); /* NaN: so is the preconditioner */
        low = fminf(low, __shfl_xor_sync(0xffffffffu, low, o)), high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, o));
    }
    if (least < 0.f) least = 0.f;
    const bool level = a.solver == LNT_CG_LEVEL;
    if constexpr (ALIKE) {
        const float middle = sqrtf(high + least) * sqrtf(low + least);
        bool scaled = false;
#pragma unroll
        for (int i = 0; i < K / 32; i++) {
            /* (NaN, and what is no ratio, come to 1) */
            const float n = level ? rintf(0.5f * __log2f(middle / (lambda.x[i] + least))) : 0.f;
            const bool some = fabsf(n) <= 60.f && n != 0.f;
            const float S = some ? __int_as_float((127 + (int)n) << 23) : 1.f;
            scaled |= some;
            if (tid % 32 / 8 == tid / 32) s.lambda[spot(first + i)] = S * S * lambda.x[i], s.level[spot(first + i)] = S;
        }
        scaled = __any_sync(0xffffffffu, scaled);
        if (tid < 16) s.nothing[tid] = 0.f;
        if (tid == 0) s.bounds = make_float2(scaled ? 1.f : 0.f, 0.f);
        return;
    }
    if (tid % 32 / 8 == tid / 32)
#pragma unroll
        for (int i = 0; i < K / 32; i++) {
            s.lambda[spot(first + i)] = lambda.x[i];
            s.level[spot(first + i)] = level ? __fdividef(1.f, lambda.x[i] + least) : 1.f;
        }
    if (tid < 16) s.nothing[tid] = 0.f;
    /* The bounds are of rounded numbers: a hair wider. */
    if (tid == 0) s.bounds = level ? make_float2(0.9999f / (high + least), 1.0001f / (low + least)) : make_float2(0.9999f, 1.0001f);
}

/* Once its tiles are there and t.r has a place's rows: gates, lambda and preconditioner into shared memory, X = 0. */
template <int K, bool ALIKE = false, int W>
__device__ __forceinline__ void begin(const lnt_mesa_cg &a, const lambda_of<K> &lambda, shared_of<K, (W > WHOLE)> &s, rows_of<K, W> &t, int buf)
{
    const int tid = thread();
    float size[2];
    squares<K>(t, size);
    for (int i = 0; i < 2; i++)
        if (tid % 4 == 0) {
            const int row = first_row(tid) + 8 * i;
            s.row[row] = make_float2(s.since[row] < 0 ? __expf(s.G[row]) : 0.f, size[i]);
        }
#pragma unroll
    for (int i = 0; i < 4 * HELD<K, (W > WHOLE)>; i++) t.x[i] = 0.f;
    for (int i = 0; i < WAITING<K, (W > WHOLE)>; i++) s.X[i][tid] = make_float4(0.f, 0.f, 0.f, 0.f);
    t.four_c = afresh(tid % 4 * 4), t.row = afresh(first_row(tid));
    prepare<K, ALIKE>(a, lambda, s, buf);
}

/* Of 16 chunks `step` items apart, those with gates that are not slow, a bit each: a hair more than scan_gates will find, and sums of NaN. `note`:
 * room for a number a warp. */
__device__ __forceinline__ uint32_t with_fast_gates(const lnt_mesa_cg &a, int64_t first, int step, int group, int *note)
{
    const int64_t mine = first + thread() / 8 * step;
    float sum = 0.f;
    if (mine < a.chunks * a.Hv) {
        const place p = place_of(a, (int)mine);
        for (int i = thread() % 8; i < p.rows; i += 8) {
            const float g = a.g[(p.first + i) * a.Hv + p.h];
            sum += g < 2.f * SLOW_GATES ? 2.f * SLOW_GATES : g;
        }
    }
    for (int o = 1; o < 8; o <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    const uint32_t some = __ballot_sync(0xffffffffu, !(sum >= 0.99f * SLOW_GATES));
    group_sync(group);
    if (thread() % 32 == 0) note[thread() / 32] = (int)some;
    group_sync(group);
    uint32_t found = 0;
    for (int i = 0; i < 16; i++) found |= (note[i / 4] >> (i % 4 * 8) & 1u) << i;
    return found;
}

} // namespace

#endif
