/* TTT-MLP's outputs in segments (ttt_segments.cuh): a chain over the keys alone, and what it leaves read by the queries. */
#ifndef LNT_TTT_MLP_SEGMENTS_CUH
#define LNT_TTT_MLP_SEGMENTS_CUH

#include "recurrence/ttt/ttt_mlp_tiles.cuh"

/* What the chain leaves of a mini-batch: X2 and u1 as a thread has them, u2 of tokens; and of a segment. */
struct ttt_mlp_left {
    static constexpr int X = 0, U1 = X + TILE_TOKENS * MLP_F, U2 = U1 + TILE_TOKENS * MLP_F, FLOATS = U2 + TILE_TOKENS * MLP_D;
    static constexpr int BIAS = 2 * MLP_D * MLP_F, OFFSET = BIAS + 8 * TTT_THREADS, STATE = OFFSET + 2 * TTT_THREADS;
};
/* As it is in a thread's registers, and again. */
__device__ __forceinline__ void mlp_keep_state(float *to, const ttt_mlp_state &y, float2 offset)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float(&a)[4] = y.W1[j / 8][j % 8], (&b)[4] = y.W2[j / 4][j % 4];
        ((float4 *)to)[j * TTT_THREADS + threadIdx.x] = make_float4(a[0], a[1], a[2], a[3]);
        ((float4 *)to)[(16 + j) * TTT_THREADS + threadIdx.x] = make_float4(b[0], b[1], b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) ((float2 *)(to + ttt_mlp_left::BIAS))[n * TTT_THREADS + threadIdx.x] = make_float2(y.b1[n][0], y.b1[n][1]);
    ((float2 *)(to + ttt_mlp_left::OFFSET))[threadIdx.x] = offset;
}
__device__ __forceinline__ void mlp_kept_state(const float *from, ttt_mlp_state &y, float2 &offset)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float4 a = ((const float4 *)from)[j * TTT_THREADS + threadIdx.x], b = ((const float4 *)from)[(16 + j) * TTT_THREADS + threadIdx.x];
        float(&A)[4] = y.W1[j / 8][j % 8], (&B)[4] = y.W2[j / 4][j % 4];
        A[0] = a.x, A[1] = a.y, A[2] = a.z, A[3] = a.w, B[0] = b.x, B[1] = b.y, B[2] = b.z, B[3] = b.w;
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 b = ((const float2 *)(from + ttt_mlp_left::BIAS))[n * TTT_THREADS + threadIdx.x];
        y.b1[n][0] = b.x, y.b1[n][1] = b.y;
    }
    offset = ((const float2 *)(from + ttt_mlp_left::OFFSET))[threadIdx.x];
}

/* A run's mini-batches from token t on, keys alone. Long: what a mini-batch makes lives in registers from one step of it to
 * the next. */
template <typename HEAD> __device__ __noinline__ void ttt_mlp_chain_ahead(HEAD &x, int64_t t, int64_t count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    ttt_mlp_room &room = *(ttt_mlp_room *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS;
    const ttt_segments &s = *x.segments;
    const int64_t slot = ttt_slot(x.n, t), record_step = s.H * s.record, state_step = s.H * s.state;
    float *record = s.record_of(x.n, t, g.h), *state = s.state_of(false, slot, g.h);
    unsigned *const flag = s.flag(false, slot, g.h);
    const int warp = y.id / 32, flag_step = s.H;
    ttt_mlp_state w;
    ttt_mlp_top top;
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], g.a.eta != NULL };
    mlp_state<false>(x, w, top.offset);
    top.w = *(const float2 *)(x.norm.w + 2 * y.lane), top.b = *(const float2 *)(x.norm.b + 2 * y.lane);
    const auto fetch = [&](int64_t to, int64_t ahead) {
        fetch_rows<MLP_D, 2>(room.rows[to], { g.a.k, g.a.v }, t + ahead * TILE_TOKENS, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], t + ahead * TILE_TOKENS);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, 0);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    if (y.id == 0) room.zero = 0.0f;
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) rate = fetch(1, 1);
    for (int64_t i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int64_t next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const V = K + ROWS;
        steps.eta = room.eta[now], steps.rate = room.rate[now];
        if (i % SEGMENT == 0) mlp_keep_state(state, w, top.offset), state += state_step;
        float z[4][4], slope[4][4], h[4][4] = {};
        mlp_first(w, K, z);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) z[n][q] = gelu_both(z[n][q], &slope[n][q]);
        record_own(record + ttt_mlp_left::X, z);
        put_own(room.x[warp], z);
        put_shares(z, w.W2, room.part[warp], NULL, NULL);
        forget_halves(w.W2, &room.zero);
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        __syncthreads();
        if (y.id == 0 && i && i % SEGMENT == 0) ttt_publish(flag + (i / SEGMENT - 1) * flag_step);
        if (i + 2 < count) rate = fetch(then, 2);
        mlp_loss(room, K, V, top, steps, record + ttt_mlp_left::U2, NULL);
        __syncthreads();
        mlp_below(room, w.W2, h);
        const float last[2] = { -steps.of_last(y.r) * steps.rate[y.r], -steps.of_last(y.r + 8) * steps.rate[y.r + 8] };
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) h[n][q] *= slope[n][q]; /* u of the first layer */
        record_own(record + ttt_mlp_left::U1, h);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) h[n][q] *= last[q / 2];
        put_own(room.u[warp], h);
        __syncwarp();
        mlp_update(room, w, K, h, steps, g.a.bias, top.offset);
        __syncwarp();
        now = next;
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag + (count - 1) / SEGMENT * flag_step);
    mlp_state<true>(x, w, top.offset);
    __syncthreads();
}

/* A segment's outputs. Long: as the chain. */
static __device__ __noinline__ void ttt_mlp_tiles_queries(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    ttt_mlp_room &room = *(ttt_mlp_room *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS;
    const int count = x.count, warp = y.id / 32, column = 2 * y.lane;
    const int64_t record_step = s.H * s.record;
    int64_t t = x.t;
    const float *record = s.record_of(x.n, t, g.h);
    ttt_mlp_state w;
    ttt_mlp_top top;
    tile_positions(x.a, room.position);
    mlp_kept_state(s.state_of(false, x.slot, g.h), w, top.offset);
    top.w = *(const float2 *)(weights_of(x.a.ln_w, g.h, MLP_D) + column), top.b = *(const float2 *)(weights_of(x.a.ln_b, g.h, MLP_D) + column);
    const auto fetch = [&](int to, int64_t from) {
        fetch_rows<MLP_D, 2>(room.rows[to], { g.a.k, g.a.q }, from, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], from);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) rate = fetch(1, t + TILE_TOKENS);
    ttt_tile_steps steps = { NULL, NULL, { room.position[y.r], room.position[y.r + 8] }, room.position[TILE_TOKENS - 1], g.a.eta != NULL };
    ttt_tile_steps rows = steps; /* of the warp's two tokens */
    rows.position[0] = room.position[warp], rows.position[1] = room.position[warp + TTT_WARPS];
    for (int i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const Q = K + ROWS;
        steps.eta = rows.eta = room.eta[now], steps.rate = rows.rate = room.rate[now];
        float zq[4][4], h[4][4];
        recorded_own(h, record + ttt_mlp_left::X);
        put_own(room.x[warp], h);
        recorded_own(h, record + ttt_mlp_left::U1);
        put_own(room.u[warp], h);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int token = warp + TTT_WARPS * half;
            mlp_put_u(room, steps, token, column, *(const float2 *)(record + ttt_mlp_left::U2 + token * MLP_D + column));
        }
        mlp_first(w, Q, zq);
        __syncwarp();
        mlp_queries(room, w, K, Q, steps, g.a.bias, zq, NULL);
        const float last[2] = { -steps.of_last(y.r) * steps.rate[y.r], -steps.of_last(y.r + 8) * steps.rate[y.r + 8] };
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) h[n][q] *= last[q / 2];
        __syncwarp();
        put_own(room.u[warp], h);
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        __syncthreads();
        if (i + 2 < count) rate = fetch(then, t + 2 * TILE_TOKENS);
        mlp_out<false>(g, room, Q, t, top, rows, NULL);
        mlp_update(room, w, K, h, steps, g.a.bias, top.offset);
        __syncthreads();
        now = next;
    }
}

#endif
