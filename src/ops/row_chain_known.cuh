/* The chains that layers have, as the compiler knows them, and what a thread of one has in registers. */
#ifndef LNT_OPS_ROW_CHAIN_KNOWN_CUH
#define LNT_OPS_ROW_CHAIN_KNOWN_CUH

#include "ops/row_chain.cuh"

#include <utility>

namespace row_chain {

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
    template <int HEAD> __device__ __forceinline__ void fetch(const lnt_chain_load &l, int form, const chain_place &p)
    {
        const bool one = form == LNT_CHAIN_ONE;
        int c = HEAD || has(p, l.first, l.end) ? p.col - (HEAD ? 0 : l.first) : 0;
        if (one || !HEAD) {
            const int turns = quotient(c, l.inverse);
            c = one ? turns : c - turns * l.period;
        } else if (HEAD != WHOLE && l.period)
            c -= p.first;
        const int size = form == TAPS ? 16 : form == LNT_CHAIN_FLOATS ? 4 : form == LNT_CHAIN_HALVES ? 2 : (int)l.size;
        const char *from = l.data + (HEAD <= 0 && l.by_sequence ? p.seq : (int64_t)p.row) * l.row + (int64_t)c * size;
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

/* No operand of a chain is made in its kernel; row_chain_maps.cuh has those of which some are. */
struct no_maps {
    static __host__ __device__ constexpr bool makes(int, int) { return false; }
};
/* When function i runs, where a chain has a rule: ahead of the MAPS, behind them, or behind the rule. */
enum { AHEAD, MAPPED, BEHIND };
template <class MAPS> __host__ __device__ constexpr int turn_of(const known_chain &k, int i)
{
    int turn = is_behind(k, i) ? (int)BEHIND : (int)AHEAD;
    for (int j = 0; j < LNT_ROW_OPERANDS && turn == AHEAD; j++) {
        const known_operand x = k.op[i].operand[j];
        if (x.form == LNT_CHAIN_ABSENT) continue;
        if (x.maker < 0 ? MAPS::makes(i, j) : turn_of<MAPS>(k, x.maker) == MAPPED) turn = MAPPED;
    }
    return turn;
}

/* What a thread of a known chain has in registers. */
template <int WHICH, int HEAD = 0> struct known_row {
    static constexpr known_chain K = KNOWN[WHICH];
    known_words words[load_of(K, K.ops - 1, LNT_ROW_OPERANDS)];
    float made[K.ops][U];

    /* All that comes early or late but what MAPS makes. */
    template <bool LATE, class MAPS = no_maps> __device__ __forceinline__ void fetch(const lnt_chain &a, const chain_place &p)
    {
        each<K.ops>([&](auto i) {
            each<LNT_ROW_OPERANDS>([&](auto j) {
                constexpr known_operand x = K.op[i.value].operand[j.value];
                constexpr int load = load_of(K, i.value, j.value);
                if constexpr (is_load(x) && x.early != LATE && !MAPS::makes(i.value, j.value))
                    words[load].template fetch<HEAD>(a.load[load], x.form, p);
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
        h.first = HEAD ? 0 : o.head.first, h.end = o.head.end, h.stretch = f.result & SINGLE ? o.head.stretch : 1;
        h.out = f.result & OUT ? o.head.out : NULL, h.out_row = o.head.out_row;
        h.operand[1] = (lnt_chain_operand)f.operand[1].form, h.operand[2] = (lnt_chain_operand)f.operand[2].form;
        made[I][0] = made[I][1] = 0.0f;
        if (!HEAD && !(sums(f.kind) && !h.count) && !(warp < h.end && warp + LNT_CHAIN_WARP > h.first)) return;
        float x[U], y[U] = {}, z[U] = {};
        value<I, 0>(x), value<I, 1>(y), value<I, 2>(z);
        if constexpr (f.kind == LNT_ROW_LERP && f.count > 1) { /* of which nobody here reads any */
            if (!has<HEAD>(p, h.first, h.end)) return;
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
            shift<HEAD>(h, o, p, z, other, x);
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
            apply<CLUSTER, true, HEAD>(h, o, p, x, y, z, turn);
        put<HEAD>(h, o, p, x);
        made[I][0] = x[0], made[I][1] = x[1];
    }
};

} // namespace row_chain

#endif
