/* Maps of low rank whose results a chain with a rule reads (KDA's decays and gates, RWKV-7's and its learning rates and shares of the first values):
 * a block has its head's rows of their weights, on their way to shared memory before the kernels ahead have ended. A kernel between took 2.5 us, of
 * which its bytes, 1 MB, are a tenth.
 *
 *   y_m[n] = scale_m act_m(x_m . w_m[n] + b_m[n]), n the K columns of a head, x_m of up to 128 numbers
 *
 * A warp has 16 rows of a map a turn. What lane has what is as in few_rows_cuda.cu: 16 bytes of w, that a lane copies for itself alone, are its share
 * of two operands of tensor cores. In registers (KDA, heads of 128: 230 a thread) a block found no place beside one of the product ahead. */
#ifndef LNT_OPS_ROW_CHAIN_MAPS_CUH
#define LNT_OPS_ROW_CHAIN_MAPS_CUH

#include "ops/few_rows.cuh"
#include "ops/row_chain_known.cuh"

namespace row_chain {

enum { MAPS_MOST = 4, MAP_COLUMNS = 32, MAP_WARPS = LNT_RULE_THREADS / 32 };

/* A map whose result is operand `operand` of function `op`, and of function `other` (-1: of that alone); its rank is at most MAP_COLUMNS steps. */
struct known_map {
    int op, operand, other, steps, act;
    bool f32;
};
struct known_maps {
    int count;
    known_map map[MAPS_MOST];
};
/* Of chain `which` with heads of K columns; count 0: it has none. */
__host__ __device__ constexpr known_maps maps_of(int which, int K)
{
    const int rule = rule_of(KNOWN[which]);
    if (which == TIED_MAPS)
        return {2, {{rule - 1, 0, -1, K / MAP_COLUMNS, LNT_IDENTITY, false}, {rule + 1, 2, -1, K / MAP_COLUMNS, LNT_IDENTITY, false}}};
    const int later = which == UNTIED_MAPS; /* values that are shares of the first layer's */
    known_maps all = {3 + later,
                      {{rule, 5, -1, 2, LNT_SIGMOID, true}, {2 + later, 1, 5 + later, 2, LNT_SIGMOID, false},
                       {12 + later, 1, -1, 4, LNT_IDENTITY, false}}};
    if (later) all.map[3] = {0, 2, -1, 1, LNT_SIGMOID, false};
    return all;
}

struct chain_maps {
    few_part p[MAPS_MOST];
};

template <int WHICH, int K> struct rule_maps {
    static constexpr int COUNT = maps_of(WHICH, K).count, TILES = K / 16, TURNS = (COUNT * TILES + MAP_WARPS - 1) / MAP_WARPS, STEPS_MOST = 4;
    static __host__ __device__ constexpr int steps_of(int turn) /* of the largest map that a warp has then */
    {
        const known_maps all = maps_of(WHICH, K);
        int most = 0;
        for (int u = turn * MAP_WARPS; u < (turn + 1) * MAP_WARPS && u / TILES < all.count; u++)
            most = all.map[u / TILES].steps > most ? all.map[u / TILES].steps : most;
        return most;
    }
    static __host__ __device__ constexpr int slots_before(int turn)
    {
        int n = 0;
        for (int i = 0; i < turn; i++) n += 2 * steps_of(i);
        return n;
    }
    /* Whether one of them makes operand j of function i. */
    static __host__ __device__ constexpr bool makes(int i, int j)
    {
        const known_maps all = maps_of(WHICH, K);
        for (int m = 0; m < all.count; m++)
            if ((all.map[m].op == i && all.map[m].operand == j) || (all.map[m].other == i && j == 1)) return true;
        return false;
    }
    static constexpr size_t BYTES = (size_t)slots_before(TURNS) * LNT_RULE_THREADS * 16; /* of dynamic shared memory */

    float bias[TURNS][2];

    /* The map that this warp has at a turn, and a lane's first row of it, of two 8 apart. */
    static __device__ __forceinline__ int map_at(int turn)
    {
        return TILES == MAP_WARPS ? turn : ((int)threadIdx.x / 32 + turn * MAP_WARPS) / TILES;
    }
    static __device__ __forceinline__ int row_at(int turn)
    {
        return ((int)threadIdx.x / 32 + turn * MAP_WARPS) % TILES * 16 + (int)threadIdx.x % 32 / 4;
    }
    static __device__ __forceinline__ uint32_t slot(const char *slots, int turn, int half, int step)
    {
        return shared_address(slots + ((slots_before(turn) + 2 * step + half) * LNT_RULE_THREADS + (int)threadIdx.x) * 16);
    }

    __device__ __forceinline__ void load(const chain_maps &a, int first, const char *slots)
    {
        each<TURNS>([&](auto turn) {
            constexpr int STEPS = steps_of(turn.value);
            const few_part &p = a.p[min(map_at(turn.value), COUNT - 1)];
            const int n = first + row_at(turn.value), k = (int)threadIdx.x % 4 * 8;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                bias[turn.value][h] = p.bias ? p.bias[n + 8 * h] : 0.0f;
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const bool real = k + s * MAP_COLUMNS < p.K; /* else zeros */
                    cp_async_16(slot(slots, turn.value, h, s), p.w + (n + 8 * h) * p.ldw + (real ? k + s * MAP_COLUMNS : 0), real);
                }
            }
        });
        cp_async_commit();
    }
    /* x of all maps to `rows`, by the last warps. `token`: row of x. */
    static __device__ __forceinline__ void share(const chain_maps &a, int token, uint4 (*rows)[STEPS_MOST * 4])
    {
        constexpr int PIECES = STEPS_MOST * 4;
        const int i = LNT_RULE_THREADS - 1 - (int)threadIdx.x, map = i / PIECES, at = i % PIECES;
        if (map >= COUNT) return;
        const few_part &p = a.p[map];
        rows[map][at] = at * 8 < p.K ? *(const uint4 *)(p.x + token * p.ldx + at * 8) : make_uint4(0, 0, 0, 0);
    }
    /* To y [count][K], by all warps, behind a barrier; all are there behind another. */
    __device__ __forceinline__ void make(const chain_maps &a, const char *slots, const uint4 (*rows)[STEPS_MOST * 4], float (*y)[K]) const
    {
        float d[TURNS][4] = {};
        cp_async_wait<0>();
        each<TURNS>([&](auto turn) {
            constexpr int STEPS = steps_of(turn.value);
            const int map = min(map_at(turn.value), COUNT - 1);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const uint4 u = load_slot(slot(slots, turn.value, 0, s)), v = load_slot(slot(slots, turn.value, 1, s));
                uint4 x = make_uint4(0, 0, 0, 0);
                if ((int)threadIdx.x % 32 < 4) x = rows[map][s * 4 + (int)threadIdx.x % 4];
                few_mma(d[turn.value], u.x, v.x, u.y, v.y, x.x, x.y);
                few_mma(d[turn.value], u.z, v.z, u.w, v.w, x.z, x.w);
            }
        });
        if (threadIdx.x % 4) return;
        each<TURNS>([&](auto turn) {
            const int map = map_at(turn.value);
            if (map >= COUNT) return;
            const few_part &p = a.p[map];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float r = p.alpha * d[turn.value][2 * h];
                if (p.bias) r = as_half(r) + bias[turn.value][h];
                if (p.act == LNT_SIGMOID) r = p.scale * sigmoid_of(as_half(r));
                y[map][row_at(turn.value) + 8 * h] = p.f32 ? r : as_half(r);
            }
        });
    }
    static __device__ __forceinline__ uint4 load_slot(uint32_t address)
    {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
        return v;
    }
    /* What they made, as if it were loaded, of columns c and c + 1. */
    static __device__ __forceinline__ void put(known_row<WHICH, K> &row, const float (*y)[K], int c)
    {
        each<COUNT>([&](auto m) {
            constexpr known_map MAP = maps_of(WHICH, K).map[m.value];
            uint2 v;
            v.x = MAP.f32 ? __float_as_uint(y[m.value][c]) : two_halves(y[m.value][c], y[m.value][c + 1]), v.y = __float_as_uint(y[m.value][c + 1]);
            row.words[load_of(KNOWN[WHICH], MAP.op, MAP.operand)].v = v;
            if constexpr (MAP.other >= 0) row.words[load_of(KNOWN[WHICH], MAP.other, 1)].v = v;
        });
    }
};

} // namespace row_chain

#endif
