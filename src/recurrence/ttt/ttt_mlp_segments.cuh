/* TTT-MLP ahead in segments (ttt_segments.cuh): a chain over the keys alone, and what it leaves read by the queries: their outputs or, on the way
 * back, what the chain there gets of them (ttt_mlp_back.cuh). */
#ifndef LNT_TTT_MLP_SEGMENTS_CUH
#define LNT_TTT_MLP_SEGMENTS_CUH

#include "recurrence/ttt/ttt_mlp_tiles.cuh"

/* What the chain leaves of a mini-batch for outputs: X2 and u1 as a thread has them, u2 of tokens; and of a segment. */
struct ttt_mlp_left {
    static constexpr int X = 0, U1 = X + TILE_TOKENS * MLP_F, U2 = U1 + TILE_TOKENS * MLP_F, FLOATS = U2 + TILE_TOKENS * MLP_D;
    static constexpr int BIAS = 2 * MLP_D * MLP_F, OFFSET = BIAS + 8 * TTT_THREADS, STATE = OFFSET + 2 * TTT_THREADS;
};
/* As it is in a thread's registers, and again. */
__device__ __forceinline__ void mlp_keep_state(float *to, const ttt_mlp_state &y, float2 offset)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        leave_tile(to, j, y.W1[j / 8][j % 8]);
        leave_tile(to, 16 + j, y.W2[j / 4][j % 4]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) ((float2 *)(to + ttt_mlp_left::BIAS))[n * TTT_THREADS + threadIdx.x] = make_float2(y.b1[n][0], y.b1[n][1]);
    ((float2 *)(to + ttt_mlp_left::OFFSET))[threadIdx.x] = offset;
}
__device__ __forceinline__ void mlp_kept_state(const float *from, ttt_mlp_state &y, float2 &offset)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        left_tile(y.W1[j / 8][j % 8], from, j);
        left_tile(y.W2[j / 4][j % 4], from, 16 + j);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 b = ((const float2 *)(from + ttt_mlp_left::BIAS))[n * TTT_THREADS + threadIdx.x];
        y.b1[n][0] = b.x, y.b1[n][1] = b.y;
    }
    offset = ((const float2 *)(from + ttt_mlp_left::OFFSET))[threadIdx.x];
}

/* A run's mini-batches from token t on, keys alone. BACK: what is left is ttt_mlp_record's. Long: what a mini-batch makes lives in registers from one
 * step of it to the next. */
template <bool BACK, typename HEAD> __device__ __noinline__ void ttt_mlp_chain_ahead(HEAD &x, int64_t t, int64_t count)
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
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], true };
    mlp_state<false>(x, w, top.offset);
    top.w = *(const float2 *)(x.norm.w + 2 * y.lane), top.b = *(const float2 *)(x.norm.b + 2 * y.lane);
    const auto fetch = [&](int64_t to, int64_t ahead) {
        fetch_rows<MLP_D, 2>(room.rows[to], { g.a.k, g.a.v }, t + ahead * TILE_TOKENS, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], t + ahead * TILE_TOKENS);
        cp_async_commit();
        return rate;
    };
    mlp_steps(room.eta, g.a.eta != NULL);
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
        mlp_first<true>(w, K, z);
        if (BACK) record_own(record + ttt_mlp_record::Z, z);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) z[n][q] = gelu_both(z[n][q], &slope[n][q]);
        if (!BACK) record_own(record + ttt_mlp_left::X, z);
        put_own(room.x[warp], z);
        put_shares(z, w.W2, room.part[warp]);
        forget_halves(w.W2, &room.zero);
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        __syncthreads();
        if (y.id == 0 && i && i % SEGMENT == 0) ttt_publish(flag + (i / SEGMENT - 1) * flag_step);
        if (i + 2 < count) rate = fetch(then, 2);
        mlp_loss(room, K, V, top, steps, record + (BACK ? ttt_mlp_record::U : ttt_mlp_left::U2), BACK ? record : NULL);
        __syncthreads();
        mlp_below(room, w.W2, h);
        if (BACK) record_own(record + ttt_mlp_record::H, h);
        const float last[2] = { -steps.of_last(y.r) * steps.rate[y.r], -steps.of_last(y.r + 8) * steps.rate[y.r + 8] };
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) h[n][q] *= slope[n][q]; /* u of the first layer */
        if (!BACK) record_own(record + ttt_mlp_left::U1, h);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) h[n][q] *= last[q / 2];
        put_own(room.u[warp], h);
        __syncwarp();
        mlp_update(room, w, K, h, g.a.bias);
        mlp_update_offset(room, steps, g.a.bias, top.offset);
        __syncwarp();
        now = next;
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag + (count - 1) / SEGMENT * flag_step);
    mlp_state<true>(x, w, top.offset);
    __syncthreads();
}

/* ---- operands of segments, rounded --------------------------------------------------------------------------------------------------------- */

/* x [16,32] += a [16,16] times a warp's rows, both rounded. */
__device__ __forceinline__ void mma_rounded(float (&x)[4][4], const float (&left)[4], const float (&right)[4], const ttt_mlp_rounded &own)
{
    uint32_t a[4], b[4];
    round_tiles(a, left, right);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        ldmatrix_x4_trans(b, shared_address(own + own_turned() + 16 * n));
        mma_turned(x[2 * n], x[2 * n + 1], a, b);
    }
}
/* A warp's share of x W2 for everybody to add up, and of x X2^T. */
__device__ __forceinline__ void put_rounded_shares(const float (&x)[4][4], const float (&W2)[4][4][4], float *part, const ttt_mlp_rounded &X2,
                                                   float *S)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t a[2][4], w[4];
#pragma unroll
    for (int p = 0; p < 2; p++) round_tiles(a[p], x[2 * p], x[2 * p + 1]);
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
        float z[4][4] = {};
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                round_tiles(w, W2[m + e][2 * p], W2[m + e][2 * p + 1]);
                mma_state(z[2 * e], z[2 * e + 1], a[p], w);
            }
        put_share(part, m, z);
    }
    float z[2][4] = {};
#pragma unroll
    for (int p = 0; p < 2; p++) {
        ldmatrix_x4(w, shared_address(X2 + own_turned() + 16 * p));
        mma_state(z[0], z[1], a[p], w);
    }
    TTT_SLICE(n, q) S[(lane / 4 + q / 2 * 8) * TILE_ETA + 8 * n + lane % 4 * 2 + q % 2] = z[n][q];
}
/* u of a warp's two tokens, two columns a lane, where it is wanted: in halves or not at all, times its step size, and the two's sum. */
template <bool HALVES>
__device__ __forceinline__ void mlp_put_us(ttt_mlp_query_room &room, const ttt_tile_steps &steps, int column, const float2 (&u)[2])
{
    const int warp = (int)threadIdx.x / 32;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = warp + TTT_WARPS * half, at = i * ttt_place<MLP_D>::LD + column;
        const float by = -steps.of_last(i) * steps.rate[i];
        const float2 scaled = make_float2(by * u[half].x, by * u[half].y);
        *(float2 *)(room.u2_whole + i * MLP_SUMS + column) = u[half];
        if (HALVES) {
            const ttt_split s = split_pair(u[half].x, u[half].y);
            *(uint32_t *)(room.u2[0] + at) = s.high, *(uint32_t *)(room.u2[1] + at) = s.low;
        }
        *(uint32_t *)(room.u2[2] + at) = pack_bf16(scaled.x, scaled.y);
        sum.x += scaled.x, sum.y += scaled.y;
    }
    *(float2 *)(room.columns[warp] + column) = sum;
}
/* A warp's columns of the first layer's weights += rows^T own and, where biases learn, of those += own's sums over the tokens, by products with ones:
 * turned, own is as well an A as it is a B. Its rows of the second's += own^T rows. */
__device__ __forceinline__ void add_first(float (&W1)[2][8][4], float (&b1)[4][2], const bf16 *rows, const ttt_mlp_rounded &own, float bias)
{
    const ttt_place<MLP_D> y;
    const uint32_t one = pack_bf16(1.0f, 1.0f), ones[4] = { one, one, one, one };
    uint32_t u[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++) ldmatrix_x4_trans(u[m], shared_address(own + own_flat() + 16 * m));
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4];
        ldmatrix_x4_trans(k, shared_address(rows) + y.turned() + p * 32);
#pragma unroll
        for (int m = 0; m < 2; m++) mma_turned(W1[m][2 * p], W1[m][2 * p + 1], u[m], k);
    }
#pragma unroll
    for (int n = 0; n < 4 && bias; n++) {
        float x[4] = { b1[n][0], b1[n][1], b1[n][0], b1[n][1] };
        mma_bf16(x, ones, u[n / 2][n % 2], u[n / 2][n % 2 + 2]);
        b1[n][0] = x[0], b1[n][1] = x[1];
    }
}
__device__ __forceinline__ void add_second(float (&W2)[4][4][4], const bf16 *rows, const ttt_mlp_rounded &own)
{
    const ttt_place<MLP_D> y;
    uint32_t x[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) ldmatrix_x4_trans(x[n], shared_address(own + own_turned() + 16 * n));
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t u[4];
        ldmatrix_x4_trans(u, shared_address(rows) + y.plain() + m * 32);
#pragma unroll
        for (int n = 0; n < 2; n++) mma_turned(W2[m][2 * n], W2[m][2 * n + 1], u, x[n]);
    }
}
/* A warp's two tokens from the shares: hat and the inverses of sigma and, lane j of token j, S. */
__device__ __forceinline__ void mlp_out(const ttt_mlp_query_room &room, float bias, const ttt_mlp_top &top, const ttt_tile_steps &steps,
                                        float2 (&z)[2], float (&inverse)[2], float (&S)[2])
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, column = lane * 2, mine = lane % TILE_TOKENS;
    float A[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = warp + TTT_WARPS * half;
        z[half] = sum_shares(room, i, column);
        S[half] = bias;
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) S[half] += room.S[w][i * TILE_ETA + mine];
        A[half] = S[half] * (mine > i ? 0.0f : steps.position[half] * steps.own(i, mine)) * steps.rate[mine];
        z[half].x += top.offset.x, z[half].y += top.offset.y;
    }
#pragma unroll
    for (int j = 0; j < TILE_TOKENS; j++) {
        const float2 u = *(const float2 *)(room.u2_whole + j * MLP_SUMS + column);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float by = __shfl_sync(~0u, A[half], j);
            z[half].x -= by * u.x, z[half].y -= by * u.y;
        }
    }
    normalise_pairs(z, inverse);
}

/* The update, from X2, last.u1 and u2 in shared memory: of all but the second layer's biases, and of those. */
__device__ __forceinline__ void mlp_update(const ttt_mlp_query_room &room, ttt_mlp_state &y, const bf16 *K, float bias)
{
    const int warp = (int)threadIdx.x / 32;
    add_first(y.W1, y.b1, K, room.u[warp], bias);
    add_second(y.W2, room.u2[2], room.x[warp]);
}
__device__ __forceinline__ void mlp_update_offset(const ttt_mlp_query_room &room, float bias, float2 &offset)
{
#pragma unroll
    for (int w = 0; w < TTT_WARPS && bias; w++) {
        const float2 s = *(const float2 *)(room.columns[w] + (int)threadIdx.x % 32 * 2);
        offset.x += s.x, offset.y += s.y;
    }
}
/* Queries' second layer from z of the first, less what keys up to each have changed there (u1 in shared memory): shares for mlp_out. zq becomes Y2;
 * slopes: where gelu' there is left, or NULL. */
__device__ __forceinline__ void mlp_queries(ttt_mlp_query_room &room, const ttt_mlp_state &y, const bf16 *K, const bf16 *Q,
                                            const ttt_tile_steps &steps, float bias, float (&zq)[4][4], float *slopes)
{
    const ttt_place<MLP_D> at;
    const int warp = at.id / 32;
    float A[2][4] = {};
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4], q[4];
        ldmatrix_x4(k, shared_address(K) + at.turned() + p * 32);
        ldmatrix_x4(q, shared_address(Q) + at.turned() + p * 32);
        mma_bf16(A[0], q, k[0], k[2]);
        mma_bf16(A[1], q, k[1], k[3]);
    }
    TTT_SLICE(n, q)
    {
        const int row = at.r + q / 2 * 8, j = at.token(n, q);
        A[n][q] = -(A[n][q] + bias) * steps.of(q / 2, row, j) * steps.rate[j];
    }
    mma_rounded(zq, A[0], A[1], room.u[warp]);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float slope[4];
#pragma unroll
        for (int q = 0; q < 4; q++) zq[n][q] = gelu_both(zq[n][q], &slope[q]);
        if (slopes) leave_tile(slopes, n, slope);
    }
    put_rounded_shares(zq, y.W2, room.part[warp], room.x[warp], room.S[warp]);
}

/* ---- segments ---------------------------------------------------------------------------------------------------------------------------------- */

/* What segments ahead of the way back have besides. */
struct alignas(16) ttt_mlp_ahead_room : ttt_mlp_query_room {
    alignas(16) ttt_mlp_own y[TTT_WARPS]; /* Y2, then dz of the queries' first layer */
    ttt_mlp_rows dzq;                   /* of the second */
    float S2[TILE_TOKENS * TILE_ETA];
};
template <bool BACK> struct ttt_mlp_room_of {
    using type = ttt_mlp_query_room;
};
template <> struct ttt_mlp_room_of<true> {
    using type = ttt_mlp_ahead_room;
};

/* X2 and u1 of the keys from what the chain has left; going back, what its chain wants of them. */
template <bool BACK> __device__ __forceinline__ void mlp_left_own(float *record, float (&X)[4][4], float (&u)[4][4])
{
    if (!BACK) {
        recorded_own(X, record + ttt_mlp_left::X);
        recorded_own(u, record + ttt_mlp_left::U1);
        return;
    }
    recorded_own(X, record + ttt_mlp_record::Z);
    recorded_own(u, record + ttt_mlp_record::H);
    float slope[4][4], below[4][4];
    MLP_OWN_EACH(n, q)
    {
        const gelu_terms g(X[n][q]);
        X[n][q] *= g.rest;
        float bend;
        slope[n][q] = g.both(&bend);
        below[n][q] = u[n][q] * bend;
        u[n][q] *= slope[n][q];
    }
    record_own(record + ttt_mlp_record::SLOPE, slope);
    record_own(record + ttt_mlp_record::BELOW, below);
    record_own(record + ttt_mlp_record::U1, u);
#pragma unroll
    for (int p = 0; p < 2; p++) record_halves(record + ttt_mlp_record::X, p, halves_of(X[2 * p], X[2 * p + 1]));
}

/* dA of the second layer, from that dS of rows i, columns j, and turned; dF's share. dy: dz of the queries times W2^T. */
__device__ __forceinline__ void mlp_back_second(const ttt_mlp_ahead_room &room, float *record, const ttt_tile_steps &steps, float (&dS)[2][4],
                                                float (&dSt)[2][4], float (&dy)[4][4])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t a[4], al[4], g[4], gl[4], w[4], t[4];
        ldmatrix_x4(a, shared_address(room.dzq[0]) + y.turned() + p * 32);
        ldmatrix_x4(al, shared_address(room.dzq[1]) + y.turned() + p * 32);
        ldmatrix_x4(g, shared_address(room.u2[0]) + y.turned() + p * 32);
        ldmatrix_x4(gl, shared_address(room.u2[1]) + y.turned() + p * 32);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(dS[n], al, g[n], g[n + 2]);
            mma_bf16(dS[n], a, gl[n], gl[n + 2]);
            mma_bf16(dS[n], a, g[n], g[n + 2]);
            mma_bf16(dSt[n], g, a[n], a[n + 2]);
            recorded_state(w, record + ttt_mlp_record::W2, 2 * p + n);
            turn_recorded(t, w);
            mma_turned(dy[2 * n], dy[2 * n + 1], a, t);
        }
    }
    TTT_SLICE(n, q)
    {
        const int row = y.r + q / 2 * 8, j = y.token(n, q);
        dS[n][q] = j > row ? 0.0f : -dS[n][q] * steps.rate[j];
        dSt[n][q] = row > j ? 0.0f : -dSt[n][q] * steps.rate[row] * room.position[j] * steps.own(j, row);
    }
    if (y.id < 32) TTT_SLICE(n, q)
    {
        const int row = y.r + q / 2 * 8, j = y.token(n, q);
        record[ttt_mlp_record::DF + row * TILE_TOKENS + j] = dS[n][q] * room.S2[row * TILE_ETA + j];
    }
    TTT_SLICE(n, q) dS[n][q] *= steps.of(q / 2, y.r + q / 2 * 8, y.token(n, q));
}

/* What is in a warp's columns, turned, into a record: at own_turned() as a B, at own_flat() as an A. */
__device__ __forceinline__ void record_turned(float *to, const ttt_mlp_own &own, int at)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        ttt_halves x;
        ldmatrix_x4_trans(x.high, shared_address(own[0] + at + 16 * n));
        ldmatrix_x4_trans(x.low, shared_address(own[1] + at + 16 * n));
        record_halves(to, n, x);
    }
}

/* From dz of the queries' second layer to all that the chain back gets of them. */
__device__ __forceinline__ void mlp_queries_back(ttt_mlp_ahead_room &room, const bf16 *K, const bf16 *Q, const ttt_tile_steps &steps, float bias,
                                                 float *record)
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    float dS[2][4] = {}, dSt[2][4] = {}, dy[4][4] = {}, x[4][4] = {}, St[2][4] = {}, At[2][4], slope[4][4];
    mlp_back_second(room, record, steps, dS, dSt, dy);
    recorded_own(slope, record + ttt_mlp_record::DZQ);
    mma_rounded(dy, dS[0], dS[1], room.x[warp]);
    mma_rounded(x, dSt[0], dSt[1], room.y[warp][0]);
    record_own(record + ttt_mlp_record::PRE_X, x);
    record_turned(record + ttt_mlp_record::Y, room.y[warp], own_turned());
    MLP_OWN_EACH(n, q) dy[n][q] *= slope[n][q];
    __syncwarp();
    put_own(room.y[warp], dy); /* dz of the first layer */
    __syncwarp();
    record_turned(record + ttt_mlp_record::DZQ, room.y[warp], own_flat());
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4], q[4];
        ldmatrix_x4(k, shared_address(K) + y.turned() + p * 32);
        ldmatrix_x4(q, shared_address(Q) + y.turned() + p * 32);
        mma_bf16(St[0], k, q[0], q[2]);
        mma_bf16(St[1], k, q[1], q[3]);
    }
    TTT_SLICE(n, q)
    {
        const int j = y.r + q / 2 * 8, i = y.token(n, q);
        const float by = j > i ? 0.0f : -room.position[i] * steps.own(i, j);
        St[n][q] = (St[n][q] + bias) * by;
        At[n][q] = room.S2[i * TILE_ETA + j] * by;
    }
    MLP_OWN_EACH(n, q) x[n][q] = 0.0f;
    mma_own(x, halves_of(St[0], St[1]), room.y[warp]);
    record_own(record + ttt_mlp_record::PRE, x);
    /* du of the second layer: eight columns a warp, of all tokens */
    uint32_t high[2], low[2];
    float pre[4] = {};
    const int at = y.lane % TILE_TOKENS * ttt_place<MLP_D>::LD + 8 * warp;
    ldmatrix_x2_trans(high, shared_address(room.dzq[0] + at));
    ldmatrix_x2_trans(low, shared_address(room.dzq[1] + at));
    const ttt_halves A = halves_of(At[0], At[1]);
    mma_halves(pre, A, high[0], high[1]);
    mma_bf16(pre, A.high, low[0], low[1]);
#pragma unroll
    for (int half = 0; half < 2; half++)
        leave_pair(record + ttt_mlp_record::PRE_U + (y.r + 8 * half) * MLP_D + 8 * warp + 2 * y.c, make_float2(pre[2 * half], pre[2 * half + 1]));
    constexpr int EACH = (int)sizeof(ttt_mlp_rows) / 16;
    for (int i = y.id, block = 0; i < 2 * EACH; i += TTT_THREADS, block++)
        leave_at(record + ttt_mlp_record::ROWS, block, i < EACH ? ((const uint4 *)room.u2[0])[i] : ((const uint4 *)room.dzq[0])[i - EACH]);
}

/* A segment's queries: its outputs or, BACK, what comes back of them. Long: as the chain. */
template <bool BACK> __device__ __noinline__ void ttt_mlp_tiles_queries(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    typename ttt_mlp_room_of<BACK>::type &room = *(typename ttt_mlp_room_of<BACK>::type *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS;
    const int count = x.count, warp = y.id / 32, column = 2 * y.lane;
    const int64_t record_step = s.H * s.record;
    int64_t t = x.t;
    float *record = s.record_of(x.n, t, g.h);
    ttt_mlp_state w;
    ttt_mlp_top top;
    float2 norm_w = make_float2(0.0f, 0.0f), norm_b = norm_w;
    tile_positions(x.a, room.position);
    mlp_kept_state(s.state_of(false, x.slot, g.h), w, top.offset);
    top.w = *(const float2 *)(weights_of(x.a.ln_w, g.h, MLP_D) + column), top.b = *(const float2 *)(weights_of(x.a.ln_b, g.h, MLP_D) + column);
    const auto fetch = [&](int to, int64_t from) {
        if constexpr (BACK)
            fetch_rows<MLP_D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.dout }, from, g.a.H, g.h);
        else
            fetch_rows<MLP_D, 2>(room.rows[to], { g.a.k, g.a.q }, from, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], from);
        cp_async_commit();
        return rate;
    };
    mlp_steps(room.eta, g.a.eta != NULL);
    float rate = fetch(0, t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) rate = fetch(1, t + TILE_TOKENS);
    ttt_tile_steps steps = { NULL, NULL, { room.position[y.r], room.position[y.r + 8] }, room.position[TILE_TOKENS - 1], true };
    ttt_tile_steps rows = steps; /* of the warp's two tokens */
    rows.position[0] = room.position[warp], rows.position[1] = room.position[warp + TTT_WARPS];
    for (int i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const Q = K + ROWS, *const dO = Q + ROWS;
        steps.eta = rows.eta = room.eta[now], steps.rate = rows.rate = room.rate[now];
        float zq[4][4], h[4][4];
        if (i + 1 < count) ahead_l2(record + record_step + 32 * y.id); /* 32 of 36 KB that the chain has left of the next */
        mlp_left_own<BACK>(record, zq, h);
        put_own(room.x[warp], zq);
        put_own(room.u[warp], h);
        const float *const U = record + (BACK ? ttt_mlp_record::U : ttt_mlp_left::U2) + warp * MLP_D + column;
        mlp_put_us<BACK>(room, steps, column, { left_pair(U), left_pair(U + TTT_WARPS * MLP_D) });
        if (BACK) record_state<2, 4>(record + ttt_mlp_record::W1, w.W1);
        mlp_first<false>(w, Q, zq);
        __syncwarp();
        mlp_queries(room, w, K, Q, steps, g.a.bias, zq, BACK ? record + ttt_mlp_record::DZQ : NULL);
        if (BACK) record_state<4, 2>(record + ttt_mlp_record::W2, w.W2);
        const float last[2] = { -steps.of_last(y.r) * steps.rate[y.r], -steps.of_last(y.r + 8) * steps.rate[y.r + 8] };
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 4; q++) h[n][q] *= last[q / 2];
        __syncwarp();
        put_own(room.u[warp], h);
        if constexpr (BACK) put_own(room.y[warp], zq);
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        __syncthreads();
        if (i + 2 < count) rate = fetch(then, t + 2 * TILE_TOKENS);
        float2 z[2], d[2];
        float inverse[2], S[2];
        /* two warps share a scheduler: one's products go beside the other's shuffles */
        if (warp < TTT_WARPS / 2) mlp_update(room, w, K, g.a.bias);
        mlp_out(room, g.a.bias, top, rows, z, inverse, S);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int token = warp + TTT_WARPS * half;
            if constexpr (BACK) {
                const float2 o = pair_of(dO + token * ttt_place<MLP_D>::LD + column);
                norm_w.x += o.x * z[half].x, norm_w.y += o.y * z[half].y, norm_b.x += o.x, norm_b.y += o.y;
                d[half] = make_float2(o.x * top.w.x, o.y * top.w.y);
            } else {
                const float2 q = pair_of(Q + token * ttt_place<MLP_D>::LD + column);
                *(uint32_t *)((bf16 *)g.a.o + ((t + token) * g.a.H + g.h) * MLP_D + column) =
                    pack_bf16(z[half].x * top.w.x + top.b.x + q.x, z[half].y * top.w.y + top.b.y + q.y);
            }
        }
        if constexpr (BACK) {
            unnormalise_pairs(d, z, inverse); /* dz of the queries */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int token = warp + TTT_WARPS * half;
                put_pair(room.dzq, token, column, d[half]);
                if (y.lane < TILE_TOKENS) room.S2[token * TILE_ETA + y.lane] = S[half];
            }
            leave_pair(record + ttt_mlp_record::SUMS + warp * MLP_D + column, make_float2(d[0].x + d[1].x, d[0].y + d[1].y));
        }
        mlp_update_offset(room, g.a.bias, top.offset);
        if (warp >= TTT_WARPS / 2) mlp_update(room, w, K, g.a.bias);
        if constexpr (BACK) {
            __syncthreads();
            mlp_queries_back(room, K, Q, steps, g.a.bias, record);
        }
        __syncthreads();
        now = next;
    }
    if constexpr (BACK) mlp_norm_sums(room.part[0], norm_w, norm_b, [&](int i, float sum) { s.sums_of(false, x.slot, g.h)[i] = sum; });
}

#endif
