/* The way back of TTT-MLP's segments: the gradients of rows and step sizes, from what the chain has left (ttt_mlp_back.cuh). */
#ifndef LNT_TTT_MLP_ROWS_BACK_CUH
#define LNT_TTT_MLP_ROWS_BACK_CUH

#include "recurrence/ttt/ttt_mlp_back.cuh"

struct alignas(16) ttt_mlp_back_room {
    bf16 rows[2][3 * ttt_place<MLP_D>::ROWS];                   /* k q dout */
    ttt_mlp_part dq[TTT_WARPS], dk[TTT_WARPS];                  /* shares */
    float dA[TTT_WARPS][TILE_TOKENS * TILE_ETA], S[TILE_TOKENS * TILE_ETA];
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS], position[TILE_TOKENS];
};

/* A warp's columns between the layers: dA of the first layer and shares of dq and dk; S of the first layer by the first warp. */
__device__ __forceinline__ void mlp_back_own(ttt_mlp_back_room &room, const bf16 *K, const bf16 *Q, const float *record, const ttt_tile_steps &steps,
                                             float bias, float (&W1)[2][8][4])
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    const float by[2] = { -steps.of_last(y.r) * steps.rate[y.r], -steps.of_last(y.r + 8) * steps.rate[y.r + 8] };
    const ttt_halves zq[2] = { recorded_halves(record + ttt_mlp_record::DZQ, 0), recorded_halves(record + ttt_mlp_record::DZQ, 1) };
    const ttt_halves z[2] = { recorded_halves(record + ttt_mlp_record::DZ, 0), recorded_halves(record + ttt_mlp_record::DZ, 1) };
    ttt_halves u[2];
    uint32_t zqa[2][4], za[2][4];
    {
        float u1[4][4], dA[2][4] = {};
        recorded_own(u1, record + ttt_mlp_record::U1);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves a = turned_halves(rows_of(zq[p]));
            u[p] = halves_of(u1[2 * p], u1[2 * p + 1]);
            mma_states(dA[0], dA[1], a, u[p]);
            turn_state(za[p], rows_of(z[p]).high);
#pragma unroll
            for (int q = 0; q < 4; q++) zqa[p][q] = a.high[q];
        }
        TTT_SLICE(n, q) room.dA[warp][(y.r + q / 2 * 8) * TILE_ETA + y.token(n, q)] = dA[n][q];
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float dq[2][4] = {}, dk[2][4] = {};
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves w = turned_halves(halves_of(W1[p][2 * m], W1[p][2 * m + 1]));
            mma_turned(dk[0], dk[1], u[p].low, w.high);
            mma_turned(dk[0], dk[1], u[p].high, w.low);
            mma_turned(dk[0], dk[1], u[p].high, w.high);
        }
        TTT_SLICE(n, q) dk[n][q] *= by[q / 2];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            uint32_t w[4], turned[4];
            recorded_state(w, record + ttt_mlp_record::W1, 4 * p + m);
            turn_recorded(turned, w);
            mma_turned(dq[0], dq[1], zqa[p], turned);
            mma_turned(dk[0], dk[1], za[p], turned);
        }
        put_share(room.dq[warp], m, dq);
        put_share(room.dk[warp], m, dk);
    }
    if (warp == 0) {
        float S[2][4] = {};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t k[4], q[4];
            ldmatrix_x4(k, shared_address(K) + y.turned() + p * 32);
            ldmatrix_x4(q, shared_address(Q) + y.turned() + p * 32);
            mma_bf16(S[0], q, k[0], k[2]);
            mma_bf16(S[1], q, k[1], k[3]);
        }
        TTT_SLICE(n, q) room.S[(y.r + q / 2 * 8) * TILE_ETA + y.token(n, q)] = S[n][q] + bias;
    }
    add_first_turned(W1, Q, zq);
    add_first_turned(W1, K, z);
}

/* A warp's tokens: dq, dk, dv and the step sizes' gradients. Lanes 0 to 15 have dA of row i, the others of column i. */
template <typename HEAD>
__device__ __forceinline__ void mlp_back_rows(const HEAD &x, const ttt_mlp_back_room &room, const bf16 *rows, const float *record, int64_t t,
                                              const ttt_tile_steps &steps, float (&dposition)[2])
{
    constexpr int LD = ttt_place<MLP_D>::LD, ROWS = ttt_place<MLP_D>::ROWS;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, column = lane * 2, mine = lane % TILE_TOKENS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = warp + TTT_WARPS * half;
        const int i = lane < TILE_TOKENS ? r : mine, j = lane < TILE_TOKENS ? mine : r, at = i * TILE_ETA + j;
        const float2 de = left_pair(record + ttt_mlp_record::DE + r * MLP_D + column);
        float dA = 0, dF = record[ttt_mlp_record::DF + i * TILE_TOKENS + j];
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) dA += room.dA[w][at];
        dA = j > i ? 0.0f : -dA * steps.rate[j];
        const float own = steps.own(i, j), by = j > i ? 0.0f : dA * room.position[i] * own;
        dF = j > i ? 0.0f : dF + dA * room.S[at] - (i == TILE_TOKENS - 1 ? steps.rate[j] * record[ttt_mlp_record::R + j] : 0.0f);
        if (x.a.deta && lane < TILE_TOKENS) ((float *)x.a.deta)[((t + i) * x.a.H + x.h) * TILE_TOKENS + j] = dF * room.position[i];
        dF *= own;
#pragma unroll
        for (int o = 1; o < TILE_TOKENS; o *= 2) dF += __shfl_xor_sync(~0u, dF, o);
        dposition[half] += dF;
        float2 q = pair_of(rows + 2 * ROWS + r * LD + column), k = de;
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) {
            const float2 dq = *(const float2 *)(room.dq[w] + r * MLP_SUMS + column), dk = *(const float2 *)(room.dk[w] + r * MLP_SUMS + column);
            q.x += dq.x, q.y += dq.y, k.x += dk.x, k.y += dk.y;
        }
#pragma unroll
        for (int l = 0; l < TILE_TOKENS; l++) {
            const float to_q = __shfl_sync(~0u, by, l), to_k = __shfl_sync(~0u, by, TILE_TOKENS + l);
            const float2 key = pair_of(rows + l * LD + column), query = pair_of(rows + ROWS + l * LD + column);
            q.x += to_q * key.x, q.y += to_q * key.y, k.x += to_k * query.x, k.y += to_k * query.y;
        }
        const int64_t to = ((t + r) * x.a.H + x.h) * MLP_D + column;
        if (x.a.dq) *(uint32_t *)((bf16 *)x.a.dq + to) = pack_bf16(q.x, q.y);
        if (x.a.dk) *(uint32_t *)((bf16 *)x.a.dk + to) = pack_bf16(k.x, k.y);
        if (x.a.dv) *(uint32_t *)((bf16 *)x.a.dv + to) = pack_bf16(-de.x, -de.y);
    }
}

/* A segment back: the gradients of its rows and step sizes, from what the chain has left. */
static __device__ __noinline__ void ttt_mlp_tiles_back(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    ttt_mlp_back_room &room = *(ttt_mlp_back_room *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS;
    int64_t t = x.t + (x.count - 1) * TILE_TOKENS;
    const float *record = s.record_of(x.n, t, g.h);
    const int64_t record_step = s.H * s.record;
    float W1[2][8][4], dposition[2] = {};
    tile_positions(x.a, room.position);
#pragma unroll
    for (int j = 0; j < 16; j++) left_tile(W1[j / 8][j % 8], s.state_of(true, x.slot, g.h), j);
    const auto fetch = [&](int to, int64_t from) {
        fetch_rows<MLP_D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.dout }, from, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], from);
        cp_async_commit();
        return rate;
    };
    mlp_steps(room.eta, g.a.eta != NULL);
    float rate = fetch(0, t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    ttt_tile_steps steps = { NULL, NULL, { room.position[y.r], room.position[y.r + 8] }, room.position[TILE_TOKENS - 1], true };
    for (int i = 0; i < x.count; i++, t -= TILE_TOKENS, record -= record_step) {
        const bf16 *const K = room.rows[i & 1], *const Q = K + ROWS;
        steps.eta = room.eta[i & 1], steps.rate = room.rate[i & 1];
        if (i + 1 < x.count) rate = fetch(~i & 1, t - TILE_TOKENS);
        mlp_back_own(room, K, Q, record, steps, g.a.bias, W1);
        cp_async_wait<0>();
        if (i + 1 < x.count && y.id < TILE_TOKENS) room.rate[~i & 1][y.id] = rate;
        __syncthreads();
        mlp_back_rows(g, room, K, record, t, steps, dposition);
        __syncthreads();
    }
    float *const sums = s.sums_of(true, x.slot, g.h) + 2 * MLP_D;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = y.id / 32 + TTT_WARPS * half;
        if (y.lane == 0) sums[row] = room.position[row] > 0 ? dposition[half] : 0.0f;
    }
}

#endif
