/* TTT-MLP's way back in segments (ttt_segments.cuh), the gradients of both layers' weights in registers as ttt_mlp_tiles.cuh has the weights: a warp
 * has 32 of the 256 columns between the layers. A chain over the keys alone: what it gets of queries segments ahead have left (ttt_mlp_segments.cuh),
 * and gradients of rows and step sizes are made of what it leaves. What is a sum over those columns goes through shared memory to the warps that have
 * its tokens: two a warp, two columns a lane. Sums cancel in products with the weights' gradients and in dA: there both sides are in two halves. */
#ifndef LNT_TTT_MLP_BACK_CUH
#define LNT_TTT_MLP_BACK_CUH

#include "recurrence/ttt/ttt_mlp_segments.cuh"

struct alignas(16) ttt_mlp_chain_room {
    bf16 rows[2][3 * ttt_place<MLP_D>::ROWS];                   /* k q v, of this mini-batch and the next */
    ttt_mlp_rows u, dzq, dz;                                    /* of the second layer; the first two as records have them */
    ttt_mlp_part du[TTT_WARPS];                                 /* shares */
    float sums[TTT_WARPS][3][TILE_TOKENS], columns[TTT_WARPS][MLP_D]; /* shares of R.u of either layer, of du.u of the first; of dz's columns */
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS];
    float4 dx[4][TTT_THREADS], below[4][TTT_THREADS]; /* a thread's own, over barriers: dX2, what comes to dz of the first layer besides */
};
struct alignas(16) ttt_mlp_back_room {
    bf16 rows[2][3 * ttt_place<MLP_D>::ROWS];                   /* k q dout */
    ttt_mlp_part dq[TTT_WARPS], dk[TTT_WARPS];                  /* shares */
    float dA[TTT_WARPS][TILE_TOKENS * TILE_ETA], S[TILE_TOKENS * TILE_ETA];
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS], position[TILE_TOKENS];
};

/* ---- operands -------------------------------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ ttt_halves turned_halves(const ttt_halves &x)
{
    ttt_halves y;
    turn_state(y.high, x.high);
    turn_state(y.low, x.low);
    return y;
}
/* W1's gradient += rows^T own, own turned: an A where the two in the middle change places. */
__device__ __forceinline__ void add_first_turned(float (&W1)[2][8][4], const bf16 *rows, const ttt_halves (&own)[2])
{
    const ttt_place<MLP_D> y;
    ttt_halves a[2];
#pragma unroll
    for (int m = 0; m < 2; m++) as_rows(a[m].high, own[m].high), as_rows(a[m].low, own[m].low);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4];
        ldmatrix_x4_trans(k, shared_address(rows) + y.turned() + p * 32);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_halves(W1[m][2 * p], a[m], k[0], k[1]);
            mma_halves(W1[m][2 * p + 1], a[m], k[2], k[3]);
        }
    }
}
/* W2's += own^T rows, own turned. */
__device__ __forceinline__ void add_second_turned(float (&W2)[4][4][4], const ttt_mlp_rows &rows, const ttt_halves (&own)[2])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        ttt_halves u;
        ldmatrix_x4_trans(u.high, shared_address(rows[0]) + y.plain() + m * 32);
        ldmatrix_x4_trans(u.low, shared_address(rows[1]) + y.plain() + m * 32);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                mma_halves(W2[m][2 * n + e], u, own[n].high[2 * e], own[n].high[2 * e + 1]);
                mma_bf16(W2[m][2 * n + e], u.high, own[n].low[2 * e], own[n].low[2 * e + 1]);
            }
    }
}
/* += sums over the tokens of a warp's columns, by products with ones. */
__device__ __forceinline__ void add_columns(float (&to)[4][2], const ttt_halves (&own)[2])
{
    const uint32_t one = pack_bf16(1.0f, 1.0f), ones[4] = { one, one, one, one };
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float x[4] = { to[n][0], to[n][1], to[n][0], to[n][1] };
        mma_bf16(x, ones, own[n / 2].low[n % 2 * 2], own[n / 2].low[n % 2 * 2 + 1]);
        mma_bf16(x, ones, own[n / 2].high[n % 2 * 2], own[n / 2].high[n % 2 * 2 + 1]);
        to[n][0] = x[0], to[n][1] = x[1];
    }
}
/* Sums of a thread's rows over a warp's columns. */
__device__ __forceinline__ void put_sums(float (&to)[TILE_TOKENS], float low, float high)
{
    const int lane = (int)threadIdx.x % 32;
    low = sum_tokens(low), high = sum_tokens(high); /* over the same four lanes */
    if (lane % 4 == 0) to[lane / 4] = low, to[lane / 4 + 8] = high;
}

/* A share of 16 tokens, columns 16 m .. 16 m + 15. */
__device__ __forceinline__ void put_share(float *part, int m, const float (&x)[2][4])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(part + (y.r + 8 * half) * MLP_SUMS + 16 * m + 8 * n + 2 * y.c) = make_float2(x[n][2 * half], x[n][2 * half + 1]);
}

/* A thread's of N, without a loop. */
template <int N, typename F> __device__ __forceinline__ void each_of(F f)
{
#pragma unroll
    for (int i = 0; i < N; i += TTT_THREADS)
        if (i + TTT_THREADS <= N || i + (int)threadIdx.x < N) f(i + (int)threadIdx.x);
}

/* ---- the chain -------------------------------------------------------------------------------------------------------------------------------- */

/* What a thread keeps from mini-batch to mini-batch. */
struct ttt_mlp_back {
    float W1[2][8][4], W2[4][4][4], b1[4][2];     /* gradients of the state, as ttt_mlp_chain_ahead has it */
    float2 b2, norm_w, norm_b;                    /* two columns a lane: of the state; of the norm, of a warp's tokens alone */
};
/* What a lane's tokens have been left. */
struct ttt_mlp_tokens {
    float2 hat[2], u[2], pre[2], sum;
    float inverse[2];
};
__device__ __forceinline__ void recorded_tokens(ttt_mlp_tokens &to, const float *record)
{
    const int warp = (int)threadIdx.x / 32, column = (int)threadIdx.x % 32 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = warp + TTT_WARPS * half, at = j * MLP_D + column;
        to.hat[half] = *(const float2 *)(record + ttt_mlp_record::HAT + at);
        to.u[half] = *(const float2 *)(record + ttt_mlp_record::U + at);
        to.pre[half] = *(const float2 *)(record + ttt_mlp_record::PRE_U + at);
        to.inverse[half] = record[ttt_mlp_record::INVERSE + j];
    }
    to.sum = *(const float2 *)(record + ttt_mlp_record::SUMS + warp * MLP_D + column);
}

/* du of the first layer, R.u and du.u of it: du becomes dh. */
__device__ __forceinline__ void mlp_chain_first(ttt_mlp_chain_room &room, const bf16 *K, const float *record, const ttt_mlp_back &d,
                                                const ttt_tile_steps &steps, float (&du)[4][4])
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    float u[4][4], below[4][4], sums[2] = {}, along[2] = {};
    const float last[2] = { -steps.of_last(y.r), -steps.of_last(y.r + 8) }, rate[2] = { steps.rate[y.r], steps.rate[y.r + 8] };
    MLP_OWN_EACH(n, q) du[n][q] = d.b1[n][q % 2];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4];
        ldmatrix_x4(k, shared_address(K) + y.turned() + p * 32);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const ttt_halves w = halves_of(d.W1[m][2 * p], d.W1[m][2 * p + 1]);
            mma_state(du[2 * m], du[2 * m + 1], k, w.low);
            mma_state(du[2 * m], du[2 * m + 1], k, w.high);
        }
    }
    recorded_own(u, record + ttt_mlp_record::U1);
    recorded_own(below, record + ttt_mlp_record::PRE);
    MLP_OWN_EACH(n, q)
    {
        sums[q / 2] += du[n][q] * u[n][q];
        du[n][q] = du[n][q] * last[q / 2] + below[n][q];
        along[q / 2] += du[n][q] * u[n][q];
        du[n][q] *= rate[q / 2];
    }
    put_sums(room.sums[warp][1], sums[0], sums[1]);
    put_sums(room.sums[warp][2], along[0], along[1]);
    recorded_own(below, record + ttt_mlp_record::BELOW);
    recorded_own(u, record + ttt_mlp_record::SLOPE);
    MLP_OWN_EACH(n, q) below[n][q] *= du[n][q], du[n][q] *= u[n][q];
    record_own((float *)room.below, below);
}

/* Both products with the second layer's gradient: shares of du there,  by.(X2 dW2) + dh W2,  and  G = u dW2^T,  of which dX2 and R.u take theirs. by:
 * the last row's step sizes with the rates, less. */
__device__ __forceinline__ void mlp_chain_second(ttt_mlp_chain_room &room, const float *record, const ttt_mlp_back &d, const ttt_tile_steps &steps,
                                                 const ttt_halves (&dh)[2])
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    const float by[2] = { -steps.of_last(y.r) * steps.rate[y.r], -steps.of_last(y.r + 8) * steps.rate[y.r + 8] };
    const ttt_halves X[2] = { recorded_halves(record + ttt_mlp_record::X, 0), recorded_halves(record + ttt_mlp_record::X, 1) };
    float G[4][4] = {}, sums[2] = {};
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t g[4], gl[4], w[4];
        float z[2][4] = {};
        ldmatrix_x4(g, shared_address(room.u[0]) + y.turned() + m * 32);
        ldmatrix_x4(gl, shared_address(room.u[1]) + y.turned() + m * 32);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves plain = halves_of(d.W2[m][2 * p], d.W2[m][2 * p + 1]), turned = turned_halves(plain);
            mma_states(z[0], z[1], X[p], plain);
            mma_turned(G[2 * p], G[2 * p + 1], gl, turned.high);
            mma_turned(G[2 * p], G[2 * p + 1], g, turned.low);
            mma_turned(G[2 * p], G[2 * p + 1], g, turned.high);
        }
        TTT_SLICE(n, q) z[n][q] *= by[q / 2];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            recorded_state(w, record + ttt_mlp_record::W2, 2 * m + p);
            mma_state(z[0], z[1], dh[p].low, w);
            mma_state(z[0], z[1], dh[p].high, w);
        }
        put_share(room.du[warp], m, z);
    }
    float dx[4][4];
    recorded_own(dx, record + ttt_mlp_record::PRE_X);
    MLP_OWN_EACH(n, q)
    {
        const int e = n % 2 * 2 + q / 2;
        const uint32_t high = X[n / 2].high[e], low = X[n / 2].low[e];
        sums[q / 2] += (q % 2 ? high_bf16(high) + high_bf16(low) : low_bf16(high) + low_bf16(low)) * G[n][q];
        dx[n][q] += by[q / 2] * G[n][q];
    }
    record_own((float *)room.dx, dx);
    put_sums(room.sums[warp][0], sums[0], sums[1]);
}

/* A warp's tokens: the shares of du of the second layer added up, with what comes of the queries, and back through the loss. */
template <typename HEAD>
__device__ __forceinline__ void mlp_chain_loss(const HEAD &x, ttt_mlp_chain_room &room, const bf16 *K, const bf16 *V, float *record, int64_t t,
                                               const ttt_mlp_top &top, const ttt_tile_steps &steps, const ttt_mlp_tokens &left, ttt_mlp_back &d)
{
    constexpr int LD = ttt_place<MLP_D>::LD;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, column = lane * 2;
    float2 columns = left.sum;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = warp + TTT_WARPS * half;
        const float2 hat = left.hat[half], u = left.u[half], pre = left.pre[half];
        const float inverse = left.inverse[half], last = steps.of_last(j), rate = steps.rate[j];
        const float2 k = pair_of(K + j * LD + column), v = pair_of(V + j * LD + column);
        float2 du = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) {
            const float2 s = *(const float2 *)(room.du[w] + j * MLP_SUMS + column);
            du.x += s.x, du.y += s.y;
        }
        float sum = lane < 3 * TTT_WARPS ? room.sums[lane % TTT_WARPS][lane / TTT_WARPS][j] : 0.0f;
#pragma unroll
        for (int o = 1; o < TTT_WARPS; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
        const float first = __shfl_sync(~0u, sum, TTT_WARPS), along = __shfl_sync(~0u, sum, 2 * TTT_WARPS);
        const float second = sum + warp_sum(d.b2.x * u.x + d.b2.y * u.y), with = warp_sum(pre.x * u.x + pre.y * u.y); /* in lane 0 */
        if (lane == 0) {
            record[ttt_mlp_record::R + j] = first + second;
            if (x.a.drate) ((float *)x.a.drate)[(t + j) * x.a.H + x.h] = along + with - last * second;
        }
        du.x += rate * (pre.x - last * d.b2.x), du.y += rate * (pre.y - last * d.b2.y);
        const float2 e = make_float2(top.w.x * hat.x + top.b.x - (v.x - k.x), top.w.y * hat.y + top.b.y - (v.y - k.y));
        const float mean = warp_sum(du.x + du.y) / MLP_D, part = warp_sum(du.x * hat.x + du.y * hat.y) / MLP_D;
        const float g_part = warp_sum(hat.x * top.w.x * e.x + hat.y * top.w.y * e.y) / MLP_D * inverse;
        const float sigma_part = -warp_sum(u.x * du.x + u.y * du.y) * inverse / MLP_D, du_part = part * inverse;
        const float2 dg = make_float2((du.x - mean - part * hat.x) * inverse, (du.y - mean - part * hat.y) * inverse);
        const float2 de = make_float2(top.w.x * dg.x, top.w.y * dg.y);
        const float2 dhat = make_float2(top.w.x * de.x - g_part * du.x - du_part * top.w.x * e.x,
                                        top.w.y * de.y - g_part * du.y - du_part * top.w.y * e.y);
        const float dhat_mean = warp_sum(dhat.x + dhat.y) / MLP_D, dhat_part = warp_sum(dhat.x * hat.x + dhat.y * hat.y) / MLP_D;
        const float2 dz = make_float2((dhat.x - dhat_mean - dhat_part * hat.x) * inverse + sigma_part * hat.x,
                                      (dhat.y - dhat_mean - dhat_part * hat.y) * inverse + sigma_part * hat.y);
        d.norm_w.x += e.x * dg.x + hat.x * de.x, d.norm_w.y += e.y * dg.y + hat.y * de.y;
        d.norm_b.x += de.x, d.norm_b.y += de.y;
        columns.x += dz.x, columns.y += dz.y;
        put_pair(room.dz, j, column, dz);
        *(float2 *)(record + ttt_mlp_record::DE + j * MLP_D + column) = de;
    }
    *(float2 *)(room.columns[warp] + column) = columns;
}

/* A warp's columns between the layers, from dz of the second layer: the weights' gradients in front of the mini-batch. */
__device__ __forceinline__ void mlp_chain_below(ttt_mlp_chain_room &room, const bf16 *K, float *record, bool bias, ttt_mlp_back &d)
{
    const ttt_place<MLP_D> y;
    float dx[4][4], slope[4][4], below[4][4];
    recorded_own(dx, (const float *)room.dx);
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t a[4], w[4], turned[4];
        ldmatrix_x4(a, shared_address(room.dz[0]) + y.turned() + m * 32);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            recorded_state(w, record + ttt_mlp_record::W2, 2 * m + p);
            turn_state(turned, w);
            mma_turned(dx[2 * p], dx[2 * p + 1], a, turned);
        }
    }
    recorded_own(slope, record + ttt_mlp_record::SLOPE);
    recorded_own(below, (const float *)room.below);
    MLP_OWN_EACH(n, q) dx[n][q] = dx[n][q] * slope[n][q] + below[n][q]; /* dz of the first layer */
    {
        const ttt_halves z[2] = { turned_halves(halves_of(dx[0], dx[1])), turned_halves(halves_of(dx[2], dx[3])) };
#pragma unroll
        for (int p = 0; p < 2; p++) record_halves(record + ttt_mlp_record::DZ, p, z[p]);
        add_first_turned(d.W1, K, z);
        if (bias) add_columns(d.b1, z);
    }
    const ttt_halves X[2] = { turned_halves(recorded_halves(record + ttt_mlp_record::X, 0)),
                              turned_halves(recorded_halves(record + ttt_mlp_record::X, 1)) };
    add_second_turned(d.W2, room.dz, X);
    if (!bias) return;
#pragma unroll
    for (int w = 0; w < TTT_WARPS; w++) {
        const float2 s = *(const float2 *)(room.columns[w] + 2 * y.lane);
        d.b2.x += s.x, d.b2.y += s.y;
    }
}

/* The state's gradients to registers and back. */
template <bool OUT, typename HEAD> __device__ __forceinline__ void mlp_back_state(HEAD &x, ttt_mlp_back &d)
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32, first = MLP_OWN * warp;
    const auto go = [](float &a, float &b) {
        if (OUT)
            b = a;
        else
            a = b;
    };
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) go(d.W1[m][j][q], x.w.dW[0].row(8 * j + 2 * y.c + q % 2)[first + 16 * m + y.r + q / 2 * 8]);
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) go(d.W2[m][j][q], x.w.dW[1].row(first + 8 * j + 2 * y.c + q % 2)[16 * m + y.r + q / 2 * 8]);
    if (!OUT || y.r == 0)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) go(d.b1[n][e], x.w.db[0][first + 8 * n + 2 * y.c + e]);
    if (!OUT || warp == 0) go(d.b2.x, x.w.db[1][2 * y.lane]), go(d.b2.y, x.w.db[1][2 * y.lane + 1]);
}

/* The first layer's for a segment. */
__device__ __forceinline__ void mlp_keep_first(float *to, const float (&W1)[2][8][4])
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float(&a)[4] = W1[j / 8][j % 8];
        ((float4 *)to)[j * TTT_THREADS + threadIdx.x] = make_float4(a[0], a[1], a[2], a[3]);
    }
}
__device__ __forceinline__ void mlp_kept_first(const float *from, float (&W1)[2][8][4])
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float4 a = ((const float4 *)from)[j * TTT_THREADS + threadIdx.x];
        float(&A)[4] = W1[j / 8][j % 8];
        A[0] = a.x, A[1] = a.y, A[2] = a.z, A[3] = a.w;
    }
}

/* A run's mini-batches back from the one that begins with token t, keys alone: x.w's dW and db from behind them become those in front. Long: as the
 * one ahead. */
template <typename HEAD> __device__ __noinline__ void ttt_mlp_chain_back(HEAD &x, int64_t t, int64_t count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    ttt_mlp_chain_room &room = *(ttt_mlp_chain_room *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS;
    const ttt_segments &s = *x.segments;
    const int64_t slot = ttt_slot(x.n, t - (count - 1) * TILE_TOKENS), record_step = s.H * s.record, state_step = s.H * s.state;
    float *record = s.record_of(x.n, t, g.h), *const state = s.state_of(true, slot, g.h);
    unsigned *const flag = s.flag(true, slot, g.h);
    const int flag_step = s.H;
    ttt_mlp_back d = {};
    ttt_mlp_top top;
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], g.a.eta != NULL };
    top.w = *(const float2 *)(x.norm.w + 2 * y.lane), top.b = *(const float2 *)(x.norm.b + 2 * y.lane);
    mlp_back_state<false>(x, d);
    const auto fetch = [&](int64_t to, int64_t back) { /* so many mini-batches in front of this one */
        const float *from = record - back * record_step + ttt_mlp_record::ROWS;
        fetch_rows<MLP_D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.v }, t - back * TILE_TOKENS, g.a.H, g.h);
        each_of<ttt_mlp_record::HALVES / 4>([&](int j) { cp_async_16(shared_address(room.u[0]) + 16 * j, from + 4 * j); });
        const float rate = fetch_steps(g, room.eta[to], t - back * TILE_TOKENS);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, 0);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    for (int64_t i = count - 1, now = 0; i >= 0; i--, now ^= 1, t -= TILE_TOKENS, record -= record_step) { /* from the run's first on */
        const bf16 *const K = room.rows[now], *const Q = K + ROWS, *const V = Q + ROWS;
        steps.eta = room.eta[now], steps.rate = room.rate[now];
        if (i + 1 == count || i % SEGMENT == SEGMENT - 1) mlp_keep_first(state + i / SEGMENT * state_step, d.W1);
        {
            float du[4][4];
            mlp_chain_first(room, K, record, d, steps, du);
            const ttt_halves dh[2] = { halves_of(du[0], du[1]), halves_of(du[2], du[3]) };
            mlp_chain_second(room, record, d, steps, dh);
            const ttt_halves turned[2] = { turned_halves(dh[0]), turned_halves(dh[1]) };
            add_second_turned(d.W2, room.u, turned);
        }
        add_second_turned(d.W2, room.dzq, { recorded_halves(record + ttt_mlp_record::Y, 0), recorded_halves(record + ttt_mlp_record::Y, 1) });
        {
            const ttt_halves z[2] = { recorded_halves(record + ttt_mlp_record::DZQ, 0), recorded_halves(record + ttt_mlp_record::DZQ, 1) };
            add_first_turned(d.W1, Q, z);
            if (g.a.bias != 0) add_columns(d.b1, z);
        }
        __syncthreads();
        ttt_mlp_tokens left;
        recorded_tokens(left, record);
        if (y.id == 0 && i + 1 < count && i % SEGMENT == SEGMENT - 1) ttt_publish(flag + (i / SEGMENT + 1) * flag_step);
        if (i) { /* nobody reads what was there any more */
            rate = fetch(now ^ 1, 1);
            const char *const next = (const char *)(record - record_step);
            each_of<ttt_mlp_record::CHAIN / 32>([&](int j) { ahead_l2(next + j * 128); });
        }
        mlp_chain_loss(g, room, K, V, record, t, top, steps, left, d);
        cp_async_wait<0>(); /* behind the barrier it is there for everybody */
        if (i && y.id < TILE_TOKENS) room.rate[now ^ 1][y.id] = rate;
        __syncthreads();
        mlp_chain_below(room, K, record, g.a.bias != 0, d);
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag);
    mlp_back_state<true>(x, d);
    mlp_norm_sums(room.du[0], d.norm_w, d.norm_b,
                  [&](int i, float sum) { (i < MLP_D ? x.norm.dw : x.norm.db)[i % MLP_D] += sum; });
}

/* ---- segments ------------------------------------------------------------------------------------------------------------------------------- */

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
            const ttt_halves a = turned_halves(zq[p]);
            u[p] = halves_of(u1[2 * p], u1[2 * p + 1]);
            mma_states(dA[0], dA[1], a, u[p]);
            turn_state(za[p], z[p].high);
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
            turn_state(turned, w);
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
        const float2 de = *(const float2 *)(record + ttt_mlp_record::DE + r * MLP_D + column);
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
    mlp_kept_first(s.state_of(true, x.slot, g.h), W1);
    const auto fetch = [&](int to, int64_t from) {
        fetch_rows<MLP_D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.dout }, from, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], from);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    ttt_tile_steps steps = { NULL, NULL, { room.position[y.r], room.position[y.r + 8] }, room.position[TILE_TOKENS - 1], g.a.eta != NULL };
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
