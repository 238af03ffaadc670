/* TTT-MLP's way back in segments (ttt_segments.cuh), the gradients of both layers' weights in registers as ttt_mlp_tiles.cuh has the weights: a warp
 * has 32 of the 256 columns between the layers. A chain over the keys alone: what it gets of queries segments ahead have left (ttt_mlp_segments.cuh),
 * and gradients of rows and step sizes are made of what it leaves (ttt_mlp_rows_back.cuh). What is a sum over those columns goes through shared
 * memory to the warps that have its tokens: two a warp, two columns a lane. Sums cancel in products with the weights' gradients and in dA: there both
 * sides are in two halves. */
#ifndef LNT_TTT_MLP_BACK_CUH
#define LNT_TTT_MLP_BACK_CUH

#include "recurrence/ttt/ttt_mlp_segments.cuh"

/* A thread's line of what is fetched of a mini-batch while its neighbour's loss is made: that is too short for memory, so it is brought into L2 a
 * mini-batch before. */
struct alignas(16) ttt_mlp_line {
    const char *at; /* the last one brought; NULL: the thread has none */
    int64_t step;
};
struct alignas(16) ttt_mlp_chain_room {
    bf16 rows[2][3 * ttt_place<MLP_D>::ROWS];                   /* k q v, of this mini-batch and the next */
    ttt_mlp_rows u, dzq[2], dz;                                 /* of the second layer; the first two as records have them */
    ttt_mlp_part du[TTT_WARPS];                                 /* shares; before, in a warp's own, u of the first layer as it is in registers */
    float sums[TTT_WARPS][3][TILE_TOKENS], columns[TTT_WARPS][MLP_D]; /* shares of R.u of either layer, of du.u of the first; of dz's columns */
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS];
    /* a thread's own: what comes of queries to dX2 and du of the first layer, then, over barriers, dX2 and what comes to dz of the first layer
     * besides; the first layer's gradient */
    float4 dx[4][TTT_THREADS], below[4][TTT_THREADS], W1[16][TTT_THREADS];
    /* two columns a lane: the norm; gradients of the second layer's biases, in every warp, and of the norm, of a warp's tokens alone */
    float2 w[32], b[32], b2[TTT_THREADS], norm_w[TTT_THREADS], norm_b[TTT_THREADS];
    ttt_mlp_line line[TTT_THREADS];
    /* the first warp's: flags of segments ahead, and from which one on they are done; here, as registers are short */
    const unsigned *done;
    int ready;
};

/* ---- operands -------------------------------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ ttt_halves turned_halves(const ttt_halves &x)
{
    ttt_halves y;
    turn_state(y.high, x.high);
    turn_state(y.low, x.low);
    return y;
}
/* Turned as an A, for products over tokens, and back again: the two in the middle change places. dz of the first layer is kept so, in registers and
 * in records: in the other order it was put into this one wherever it was wanted, 80 moves a mini-batch. */
__device__ __forceinline__ ttt_halves rows_of(const ttt_halves &z)
{
    ttt_halves a;
    as_rows(a.high, z.high), as_rows(a.low, z.low);
    return a;
}
/* Pairs of tiles of the first layer's gradient += rows^T z: a of z, turned, k of rows. */
__device__ __forceinline__ void add_pair(float (&left)[4], float (&right)[4], const ttt_halves &a, const uint32_t (&k)[4])
{
    mma_halves(left, a, k[0], k[1]);
    mma_halves(right, a, k[2], k[3]);
}
__device__ __forceinline__ void add_first_turned(float (&W1)[2][8][4], const bf16 *rows, const ttt_halves (&z)[2])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4];
        ldmatrix_x4_trans(k, shared_address(rows) + y.turned() + p * 32);
#pragma unroll
        for (int m = 0; m < 2; m++) add_pair(W1[m][2 * p], W1[m][2 * p + 1], z[m], k);
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
/* += sums over the tokens of a warp's columns, by products with ones; own: turned as an A. */
__device__ __forceinline__ void add_columns(float (&to)[4][2], const ttt_halves (&own)[2])
{
    const uint32_t one = pack_bf16(1.0f, 1.0f), ones[4] = { one, one, one, one };
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float x[4] = { to[n][0], to[n][1], to[n][0], to[n][1] };
        mma_bf16(x, ones, own[n / 2].low[n % 2], own[n / 2].low[n % 2 + 2]);
        mma_bf16(x, ones, own[n / 2].high[n % 2], own[n / 2].high[n % 2 + 2]);
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

/* A thread's [16,32] of a record on its way to it; u of the first layer to where its warp's share of du will be. */
__device__ __forceinline__ void fetch_own(float4 (&to)[4][TTT_THREADS], const float *from)
{
#pragma unroll
    for (int n = 0; n < 4; n++) cp_async_16(shared_address(&to[n][threadIdx.x]), from + 4 * (n * TTT_THREADS + threadIdx.x));
}
__device__ __forceinline__ float4 *place_of_u(ttt_mlp_chain_room &room, int n)
{
    return (float4 *)room.du[threadIdx.x / 32] + n * 32 + threadIdx.x % 32;
}
__device__ __forceinline__ void fetch_u(ttt_mlp_chain_room &room, const float *from)
{
#pragma unroll
    for (int n = 0; n < 4; n++) cp_async_16(shared_address(place_of_u(room, n)), from + 4 * (n * TTT_THREADS + threadIdx.x));
}

/* ---- the chain -------------------------------------------------------------------------------------------------------------------------------- */

/* What a thread keeps from mini-batch to mini-batch. */
struct ttt_mlp_back {
    float W2[4][4][4], b1[4][2]; /* gradients of the state, as ttt_mlp_chain_ahead has it */
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
        to.hat[half] = left_pair(record + ttt_mlp_record::HAT + at);
        to.u[half] = left_pair(record + ttt_mlp_record::U + at);
        to.pre[half] = left_pair(record + ttt_mlp_record::PRE_U + at);
        to.inverse[half] = record[ttt_mlp_record::INVERSE + j];
    }
    to.sum = left_pair(record + ttt_mlp_record::SUMS + warp * MLP_D + column);
}

/* All that a mini-batch has to do with the first layer's gradient, two tiles at a time: it gets what the keys of the mini-batch behind have (z,
 * turned), is kept where a segment begins (or NULL), makes du, and gets what the queries have (zq). */
__device__ __forceinline__ void mlp_chain_state(ttt_mlp_chain_room &room, const bf16 *behind, const ttt_halves (&z)[2], float *keep, const bf16 *K,
                                                const bf16 *Q, const ttt_halves (&zq)[2], float (&du)[4][4])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t b[4], k[4], q[4];
        ldmatrix_x4_trans(b, shared_address(behind) + y.turned() + p * 32);
        ldmatrix_x4(k, shared_address(K) + y.turned() + p * 32);
        ldmatrix_x4_trans(q, shared_address(Q) + y.turned() + p * 32);
        float W[2][2][4]; /* both side by side, so that none waits for its products alone */
        ttt_halves w[2];
#pragma unroll
        for (int m = 0; m < 2; m++) take_tile(W[m][0], room.W1[8 * m + 2 * p]), take_tile(W[m][1], room.W1[8 * m + 2 * p + 1]);
#pragma unroll
        for (int m = 0; m < 2; m++) add_pair(W[m][0], W[m][1], z[m], b);
#pragma unroll
        for (int m = 0; m < 2 && keep; m++) leave_tile(keep, 8 * m + 2 * p, W[m][0]), leave_tile(keep, 8 * m + 2 * p + 1, W[m][1]);
#pragma unroll
        for (int m = 0; m < 2; m++) w[m] = halves_of(W[m][0], W[m][1]);
#pragma unroll
        for (int m = 0; m < 2; m++) mma_state(du[2 * m], du[2 * m + 1], k, w[m].low);
#pragma unroll
        for (int m = 0; m < 2; m++) add_pair(W[m][0], W[m][1], zq[m], q);
#pragma unroll
        for (int m = 0; m < 2; m++) mma_state(du[2 * m], du[2 * m + 1], k, w[m].high);
#pragma unroll
        for (int m = 0; m < 2; m++) put_tile(room.W1[8 * m + 2 * p], W[m][0]), put_tile(room.W1[8 * m + 2 * p + 1], W[m][1]);
    }
}
/* What the first mini-batch's keys have. */
__device__ __forceinline__ void mlp_chain_keys(ttt_mlp_chain_room &room, const bf16 *K, const ttt_halves (&z)[2])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, shared_address(K) + y.turned() + p * 32);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const int at = 8 * m + 2 * p;
            float W[2][4];
            take_tile(W[0], room.W1[at]), take_tile(W[1], room.W1[at + 1]);
            add_pair(W[0], W[1], z[m], b);
            put_tile(room.W1[at], W[0]), put_tile(room.W1[at + 1], W[1]);
        }
    }
}

/* From du of the first layer to R.u and du.u of it: du becomes dh. */
__device__ __forceinline__ void mlp_chain_first(ttt_mlp_chain_room &room, const float *record, const ttt_tile_steps &steps, float (&du)[4][4])
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    float u[4][4], below[4][4], sums[2] = {}, along[2] = {};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float4 v = *place_of_u(room, n);
        u[n][0] = v.x, u[n][1] = v.y, u[n][2] = v.z, u[n][3] = v.w;
        take_tile(below[n], room.below[n]);
    }
    const float last[2] = { -steps.of_last(y.r), -steps.of_last(y.r + 8) }, rate[2] = { steps.rate[y.r], steps.rate[y.r + 8] };
    MLP_OWN_EACH(n, q)
    {
        sums[q / 2] += du[n][q] * u[n][q];
        du[n][q] = du[n][q] * last[q / 2] + below[n][q];
        along[q / 2] += du[n][q] * u[n][q];
        du[n][q] *= rate[q / 2];
    }
    recorded_own(below, record + ttt_mlp_record::BELOW);
    recorded_own(u, record + ttt_mlp_record::SLOPE);
    put_sums(room.sums[warp][1], sums[0], sums[1]);
    put_sums(room.sums[warp][2], along[0], along[1]);
    MLP_OWN_EACH(n, q) below[n][q] *= du[n][q], du[n][q] *= u[n][q];
#pragma unroll
    for (int n = 0; n < 4; n++) put_tile(room.below[n], below[n]);
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
    __syncwarp(); /* the warp has its u of the first layer */
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
            mma_turned(z[0], z[1], dh[p].low, w);
            mma_turned(z[0], z[1], dh[p].high, w);
        }
        put_share(room.du[warp], m, z);
    }
    float dx[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++) take_tile(dx[n], room.dx[n]);
    MLP_OWN_EACH(n, q)
    {
        const int e = n % 2 * 2 + q / 2;
        const uint32_t high = X[n / 2].high[e], low = X[n / 2].low[e];
        sums[q / 2] += (q % 2 ? high_bf16(high) + high_bf16(low) : low_bf16(high) + low_bf16(low)) * G[n][q];
        dx[n][q] += by[q / 2] * G[n][q];
    }
#pragma unroll
    for (int n = 0; n < 4; n++) put_tile(room.dx[n], dx[n]);
    put_sums(room.sums[warp][0], sums[0], sums[1]);
}

/* A warp's tokens: the shares of du of the second layer added up, with what comes of the queries, and back through the loss. */
template <typename HEAD>
__device__ __forceinline__ void mlp_chain_loss(const HEAD &x, ttt_mlp_chain_room &room, const bf16 *K, const bf16 *V, float *record, int64_t t,
                                               const ttt_tile_steps &steps, const ttt_mlp_tokens &left)
{
    constexpr int LD = ttt_place<MLP_D>::LD;
    const int id = (int)threadIdx.x, warp = id / 32, lane = id % 32, column = lane * 2;
    const float2 w = room.w[lane], b = room.b[lane], b2 = room.b2[id];
    float2 columns = left.sum, norm_w = room.norm_w[id], norm_b = room.norm_b[id], du[2], e[2], de[2], dz[2];
    float last[2], shares[2], sums[12];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = warp + TTT_WARPS * half;
        const float2 hat = left.hat[half], u = left.u[half], pre = left.pre[half];
        const float2 k = pair_of(K + j * LD + column), v = pair_of(V + j * LD + column);
        const float rate = steps.rate[j];
        float2 all = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int from = 0; from < TTT_WARPS; from++) {
            const float2 s = *(const float2 *)(room.du[from] + j * MLP_SUMS + column);
            all.x += s.x, all.y += s.y;
        }
        shares[half] = lane < 3 * TTT_WARPS ? room.sums[lane % TTT_WARPS][lane / TTT_WARPS][j] : 0.0f;
        last[half] = steps.of_last(j);
        all.x += rate * (pre.x - last[half] * b2.x), all.y += rate * (pre.y - last[half] * b2.y);
        const float2 loss = make_float2(w.x * hat.x + b.x - (v.x - k.x), w.y * hat.y + b.y - (v.y - k.y));
        sums[6 * half] = b2.x * u.x + b2.y * u.y, sums[6 * half + 1] = pre.x * u.x + pre.y * u.y;
        sums[6 * half + 2] = all.x + all.y, sums[6 * half + 3] = all.x * hat.x + all.y * hat.y;
        sums[6 * half + 4] = hat.x * w.x * loss.x + hat.y * w.y * loss.y, sums[6 * half + 5] = u.x * all.x + u.y * all.y;
        du[half] = all, e[half] = loss;
    }
    warp_sums(sums);
#pragma unroll
    for (int o = 1; o < TTT_WARPS; o *= 2)
#pragma unroll
        for (int half = 0; half < 2; half++) shares[half] += __shfl_xor_sync(~0u, shares[half], o);
    float2 dhat[2];
    float back[4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = warp + TTT_WARPS * half;
        const float2 hat = left.hat[half];
        const float inverse = left.inverse[half], mean = sums[6 * half + 2] / MLP_D, part = sums[6 * half + 3] / MLP_D;
        const float first = __shfl_sync(~0u, shares[half], TTT_WARPS), along = __shfl_sync(~0u, shares[half], 2 * TTT_WARPS);
        const float second = shares[half] + sums[6 * half]; /* in lane 0 */
        if (lane == 0) {
            record[ttt_mlp_record::R + j] = first + second;
            if (x.a.drate) ((float *)x.a.drate)[(t + j) * x.a.H + x.h] = along + sums[6 * half + 1] - last[half] * second;
        }
        const float g_part = sums[6 * half + 4] / MLP_D * inverse, du_part = part * inverse;
        const float2 dg = make_float2((du[half].x - mean - part * hat.x) * inverse, (du[half].y - mean - part * hat.y) * inverse);
        de[half] = make_float2(w.x * dg.x, w.y * dg.y);
        dhat[half] = make_float2(w.x * de[half].x - g_part * du[half].x - du_part * w.x * e[half].x,
                                 w.y * de[half].y - g_part * du[half].y - du_part * w.y * e[half].y);
        back[2 * half] = dhat[half].x + dhat[half].y, back[2 * half + 1] = dhat[half].x * hat.x + dhat[half].y * hat.y;
        norm_w.x += e[half].x * dg.x + hat.x * de[half].x, norm_w.y += e[half].y * dg.y + hat.y * de[half].y;
        norm_b.x += de[half].x, norm_b.y += de[half].y;
    }
    warp_sums(back);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = warp + TTT_WARPS * half;
        const float2 hat = left.hat[half];
        const float inverse = left.inverse[half], mean = back[2 * half] / MLP_D, part = back[2 * half + 1] / MLP_D;
        const float sigma = -sums[6 * half + 5] * inverse / MLP_D;
        dz[half] = make_float2((dhat[half].x - mean - part * hat.x) * inverse + sigma * hat.x,
                               (dhat[half].y - mean - part * hat.y) * inverse + sigma * hat.y);
        columns.x += dz[half].x, columns.y += dz[half].y;
        put_pair(room.dz, j, column, dz[half]);
        leave_pair(record + ttt_mlp_record::DE + j * MLP_D + column, de[half]);
    }
    room.norm_w[id] = norm_w, room.norm_b[id] = norm_b;
    *(float2 *)(room.columns[warp] + column) = columns;
}

/* What the weights' gradients in front of the mini-batch are made of besides, on its way while the loss is made. */
struct ttt_mlp_under {
    uint32_t W2[8][4];
    float slope[4][4];
    ttt_halves X[2];
};
__device__ __forceinline__ void recorded_under(ttt_mlp_under &to, const float *record)
{
#pragma unroll
    for (int i = 0; i < 8; i++) recorded_state(to.W2[i], record + ttt_mlp_record::W2, i);
    recorded_own(to.slope, record + ttt_mlp_record::SLOPE);
#pragma unroll
    for (int p = 0; p < 2; p++) to.X[p] = recorded_halves(record + ttt_mlp_record::X, p);
}

/* A warp's columns between the layers, from dz of the second layer: dz of the first, turned, and all but its product with the keys of the weights'
 * gradients in front of the mini-batch. */
__device__ __forceinline__ void mlp_chain_below(ttt_mlp_chain_room &room, float *record, const ttt_mlp_under &left, bool bias, ttt_mlp_back &d,
                                                ttt_halves (&z)[2])
{
    const ttt_place<MLP_D> y;
    float dx[4][4], below[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++) take_tile(dx[n], room.dx[n]);
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t a[4], turned[4];
        ldmatrix_x4(a, shared_address(room.dz[0]) + y.turned() + m * 32);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            turn_recorded(turned, left.W2[2 * m + p]);
            mma_turned(dx[2 * p], dx[2 * p + 1], a, turned);
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++) take_tile(below[n], room.below[n]);
    MLP_OWN_EACH(n, q) dx[n][q] = dx[n][q] * left.slope[n][q] + below[n][q]; /* dz of the first layer */
#pragma unroll
    for (int p = 0; p < 2; p++) {
        z[p] = rows_of(turned_halves(halves_of(dx[2 * p], dx[2 * p + 1])));
        record_halves(record + ttt_mlp_record::DZ, p, z[p]);
    }
    if (bias) add_columns(d.b1, z);
    add_second_turned(d.W2, room.dz, { turned_halves(left.X[0]), turned_halves(left.X[1]) });
    if (!bias) return;
    float2 b2 = room.b2[y.id];
#pragma unroll
    for (int w = 0; w < TTT_WARPS; w++) {
        const float2 s = *(const float2 *)(room.columns[w] + 2 * y.lane);
        b2.x += s.x, b2.y += s.y;
    }
    room.b2[y.id] = b2;
}

/* The state's gradients to registers and shared memory, and back. */
template <bool OUT, typename HEAD> __device__ __forceinline__ void mlp_back_state(HEAD &x, ttt_mlp_chain_room &room, ttt_mlp_back &d)
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
        for (int j = 0; j < 8; j++) {
            float W[4];
            if (OUT) take_tile(W, room.W1[8 * m + j]);
#pragma unroll
            for (int q = 0; q < 4; q++) go(W[q], x.w.dW[0].row(8 * j + 2 * y.c + q % 2)[first + 16 * m + y.r + q / 2 * 8]);
            if (!OUT) put_tile(room.W1[8 * m + j], W);
        }
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
    if (!OUT || warp == 0) go(room.b2[y.id].x, x.w.db[1][2 * y.lane]), go(room.b2[y.id].y, x.w.db[1][2 * y.lane + 1]);
}

/* Lines of the mini-batch that begins with token t: rows of u and dz of a record, of k, q and v, and step sizes. */
__device__ __forceinline__ void first_line(ttt_mlp_line &line, const ttt_tile_call &g, const float *record, int64_t record_step, int64_t t)
{
    constexpr int LINES = ttt_mlp_record::HALVES / 32, FLOATS[5] = { MLP_D / 2, MLP_D / 2, MLP_D / 2, TILE_TOKENS, 1 };
    const int id = (int)threadIdx.x, j = id - LINES, which = j / TILE_TOKENS;
    const int64_t row = (t + j % TILE_TOKENS) * g.a.H + g.h, rows = (int64_t)TILE_TOKENS * g.a.H * (int64_t)sizeof(float);
    const void *const from[5] = { g.a.k, g.a.q, g.a.v, g.a.eta, g.a.rate };
    line.at = NULL, line.step = 0;
    if (j < 0) line.at = (const char *)(record + ttt_mlp_record::ROWS + 32 * id), line.step = record_step * (int64_t)sizeof(float);
#pragma unroll
    for (int n = 0; n < 5; n++)
        if (j >= 0 && which == n && from[n]) line.at = (const char *)((const float *)from[n] + row * FLOATS[n]), line.step = rows * FLOATS[n];
}
__device__ __forceinline__ void next_line(ttt_mlp_line &line)
{
    if (!line.at) return;
    line.at -= line.step;
    ahead_l2(line.at);
}

/* A run's mini-batches back from the one that begins with token t, keys alone: x.w's dW and db from behind them become those in front. Long: as the
 * one ahead. */
template <typename HEAD> __device__ __noinline__ void ttt_mlp_chain_back(HEAD &x, int64_t t, int count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    ttt_mlp_chain_room &room = *(ttt_mlp_chain_room *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS, EACH = (int)sizeof(ttt_mlp_rows) / 16;
    const ttt_segments &s = *x.segments;
    const int64_t slot = ttt_slot(x.n, t - (int64_t)(count - 1) * TILE_TOKENS), record_step = s.H * s.record, state_step = s.H * s.state;
    float *record = s.record_of(x.n, t, g.h), *const state = s.state_of(true, slot, g.h);
    unsigned *const flag = s.flag(true, slot, g.h);
    const int flag_step = s.H;
    ttt_mlp_back d = {};
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], true };
    if (y.id < 32) room.w[y.id] = *(const float2 *)(x.norm.w + 2 * y.id), room.b[y.id] = *(const float2 *)(x.norm.b + 2 * y.id);
    room.norm_w[y.id] = room.norm_b[y.id] = make_float2(0.0f, 0.0f);
    mlp_back_state<false>(x, room, d);
    const auto await_segment = [&](int last) { /* the first warp */
        const int ready = ttt_await_row(room.done, s.H, last);
        if (threadIdx.x == 0) room.ready = ready;
    };
    if (y.id == 0) room.done = s.done(slot, g.h), room.ready = 0;
    __syncwarp();
    if (s.both_ends && y.id < 32) await_segment((count - 1) / SEGMENT);
    __syncthreads();
    const auto fetch = [&](int to, int back) { /* so many mini-batches in front of this one */
        const float *from = record - back * record_step + ttt_mlp_record::ROWS;
        fetch_rows<MLP_D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.v }, t - back * TILE_TOKENS, g.a.H, g.h);
#pragma unroll 1
        for (int j = y.id; j < ttt_mlp_record::HALVES / 4; j += TTT_THREADS)
            cp_async_16(shared_address(room.u[0]) + 16 * j + (to && j >= EACH ? 16 * EACH : 0), from + 4 * j);
        const float rate = fetch_steps(g, room.eta[to], t - back * TILE_TOKENS);
        cp_async_commit();
        return rate;
    };
    mlp_steps(room.eta, g.a.eta != NULL);
    float rate = fetch(0, 0);
    first_line(room.line[y.id], g, record, record_step, t);
    if (count > 1) next_line(room.line[y.id]);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    ttt_halves z[2] = {}; /* dz of the first layer, turned, from here to where the next mini-batch adds its product with the keys to W1 */
    const bf16 *behind = room.rows[0];
    for (int i = count - 1, now = 0; i >= 0; i--, now ^= 1, t -= TILE_TOKENS, record -= record_step) { /* from the run's first on */
        const bf16 *const K = room.rows[now], *const Q = K + ROWS, *const V = Q + ROWS;
        if (threadIdx.x < 32 && i && i % SEGMENT == 0 && i / SEGMENT - 1 < room.ready) await_segment(i / SEGMENT - 1);
        steps.eta = room.eta[now], steps.rate = room.rate[now];
        {
            float du[4][4];
            fetch_u(room, record + ttt_mlp_record::U1);
            fetch_own(room.below, record + ttt_mlp_record::PRE);
            fetch_own(room.dx, record + ttt_mlp_record::PRE_X);
            cp_async_commit();
            const ttt_halves zq[2] = { recorded_halves(record + ttt_mlp_record::DZQ, 0), recorded_halves(record + ttt_mlp_record::DZQ, 1) };
            MLP_OWN_EACH(n, q) du[n][q] = d.b1[n][q % 2];
            mlp_chain_state(room, behind, z, i + 1 == count || i % SEGMENT == SEGMENT - 1 ? state + i / SEGMENT * state_step : NULL, K, Q,
                            zq, du);
            if (g.a.bias != 0) add_columns(d.b1, zq);
            cp_async_wait<0>();
            mlp_chain_first(room, record, steps, du);
            const ttt_halves dh[2] = { halves_of(du[0], du[1]), halves_of(du[2], du[3]) };
            mlp_chain_second(room, record, d, steps, dh);
            const ttt_halves turned[2] = { turned_halves(dh[0]), turned_halves(dh[1]) };
            add_second_turned(d.W2, room.u, turned);
        }
        /* two warps share a scheduler: one's products go beside the other's shuffles */
        const ttt_halves Y[2] = { recorded_halves(record + ttt_mlp_record::Y, 0), recorded_halves(record + ttt_mlp_record::Y, 1) };
        const auto queries = [&] { add_second_turned(d.W2, room.dzq[now], Y); };
        ttt_mlp_tokens left;
        recorded_tokens(left, record);
        __syncthreads();
        if (y.id == 0 && i + 1 < count && i % SEGMENT == SEGMENT - 1) ttt_publish(flag + (i / SEGMENT + 1) * flag_step);
        if (i) { /* nobody reads what was there any more */
            rate = fetch(now ^ 1, 1);
            if (i > 1) next_line(room.line[y.id]);
            const float *const next = record - record_step;
#pragma unroll 1 /* addresses that are made ahead of time have no registers */
            for (int j = y.id; j < ttt_mlp_record::CHAIN / 32; j += TTT_THREADS) ahead_l2(next + j * 32);
        }
        if (y.id < TTT_THREADS / 2) queries();
        mlp_chain_loss(g, room, K, V, record, t, steps, left);
        if (y.id >= TTT_THREADS / 2) queries();
        ttt_mlp_under under;
        recorded_under(under, record);
        cp_async_wait<0>(); /* behind the barrier it is there for everybody */
        if (i && y.id < TILE_TOKENS) room.rate[now ^ 1][y.id] = rate;
        __syncthreads();
        mlp_chain_below(room, record, under, g.a.bias != 0, d, z);
        behind = K;
    }
    mlp_chain_keys(room, behind, z);
    __syncthreads();
    if (y.id == 0) ttt_publish(flag);
    mlp_back_state<true>(x, room, d);
    mlp_norm_sums(room.du[0], room.norm_w[y.id], room.norm_b[y.id],
                  [&](int i, float sum) { (i < MLP_D ? x.norm.dw : x.norm.db)[i % MLP_D] += sum; });
}

#endif
