/* TTT-MLP's whole mini-batches of 16 tokens back on tensor cores, the gradients of both layers' weights in registers as ttt_mlp_tiles.cuh has the
 * weights: a warp has 32 of the 256 columns between the layers. What was computed ahead comes from records; what is a sum over those columns goes
 * through shared memory to the warps that have its tokens: two a warp, two columns a lane. Sums cancel in products with the weights' gradients and in
 * dA: there both sides are in two halves. */
#ifndef LNT_TTT_MLP_BACK_CUH
#define LNT_TTT_MLP_BACK_CUH

#include "recurrence/ttt/ttt_mlp_tiles.cuh"

typedef bf16 ttt_mlp_own[2][TILE_TOKENS * MLP_LD];          /* a warp's [16,32] in two halves */
typedef bf16 ttt_mlp_rows[2][ttt_place<MLP_D>::ROWS];       /* [16,64] in two halves */
typedef float ttt_mlp_part[TILE_TOKENS * MLP_SUMS];

struct alignas(16) ttt_mlp_back_room {
    bf16 rows[2][4 * ttt_place<MLP_D>::ROWS];                   /* k q v dout, of this mini-batch and the next */
    ttt_mlp_own x[TTT_WARPS], y[TTT_WARPS], z[TTT_WARPS];       /* X2; Y2, later dh; dz of the queries' first layer, later of the keys' */
    ttt_mlp_rows u, dzq, dz;                                    /* of the second layer */
    float dzq_whole[TILE_TOKENS * MLP_SUMS], dz_whole[TILE_TOKENS * MLP_SUMS];
    ttt_mlp_part du[TTT_WARPS], dk[TTT_WARPS];                  /* shares of du, later of dq; of dk */
    float dA[TTT_WARPS][TILE_TOKENS * TILE_ETA], S[TILE_TOKENS * TILE_ETA], dF[TILE_TOKENS * TILE_ETA];
    float sums[TTT_WARPS][3][TILE_TOKENS], R[TILE_TOKENS];      /* shares of R.u of either layer, of du.u of the first; R.u */
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS], position[TILE_TOKENS], zero;
    float4 slope[4][TTT_THREADS]; /* gelu' of the keys, a thread's own: registers are short */
};

__device__ __forceinline__ void recorded_state(uint32_t (&to)[4], const float *from, int block)
{
    const uint4 w = ((const uint4 *)from)[block * TTT_THREADS + threadIdx.x];
    to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
}
#define MLP_OWN_EACH(n, q) _Pragma("unroll") for (int n = 0; n < 4; n++) _Pragma("unroll") for (int q = 0; q < 4; q++)

/* gelu with slope and bend from one tanh. */
__device__ __forceinline__ float gelu_all(float x, float *slope, float *bend)
{
    const float near = fminf(fmaxf(x, -20.0f), 20.0f), square = near * near, y = GELU_ROOT * near * (1.0f + GELU_CUBE * square);
    const float t = 1.0f - 2.0f * __fdividef(1.0f, 1.0f + __expf(2.0f * fminf(y, 40.0f))), s = 1.0f - t * t;
    const float first = GELU_ROOT * (1.0f + 3 * GELU_CUBE * square), second = GELU_ROOT * 6 * GELU_CUBE * near;
    *slope = 0.5f * (1.0f + t) + 0.5f * near * s * first;
    *bend = s * first + 0.5f * near * (s * second - 2.0f * t * s * first * first);
    return 0.5f * x * (1.0f + t);
}

/* Two halves of two columns as rows, and whole. */
__device__ __forceinline__ void put_pair(ttt_mlp_rows &to, int i, int column, float2 x)
{
    const ttt_split s = split_pair(x.x, x.y);
    *(uint32_t *)(to[0] + i * ttt_place<MLP_D>::LD + column) = s.high, *(uint32_t *)(to[1] + i * ttt_place<MLP_D>::LD + column) = s.low;
}

/* What a thread keeps from mini-batch to mini-batch. */
struct ttt_mlp_back {
    float W1[2][8][4], W2[4][4][4], b1[4][2];     /* gradients of the state, as ttt_mlp_tiles_ahead has it */
    float2 b2, norm_w, norm_b;                    /* two columns a lane: of the state; of the norm, of a warp's tokens alone */
    float position[2];                            /* of a warp's tokens, in lane 0 */
};
/* What a mini-batch has in registers over a barrier: dX2, what comes to dz of the first layer besides; of its tokens de. */
struct ttt_mlp_between {
    float dx[4][4], below[4][4];
    float2 de[2];
};

/* A warp's tokens: from dout to dz of the queries' second layer. Of u: halves. */
__device__ __forceinline__ void mlp_back_top(ttt_mlp_back_room &room, const bf16 *dO, const float *record, const ttt_mlp_top &top, ttt_mlp_back &d)
{
    const int warp = (int)threadIdx.x / 32, column = (int)threadIdx.x % 32 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = warp + TTT_WARPS * half;
        const float2 o = pair_of(dO + i * ttt_place<MLP_D>::LD + column);
        const float2 hat = *(const float2 *)(record + ttt_mlp_record::QUERY_HAT + i * MLP_D + column);
        const float2 u = *(const float2 *)(record + ttt_mlp_record::U + i * MLP_D + column);
        const float inverse = record[ttt_mlp_record::INVERSE + TILE_TOKENS + i];
        d.norm_w.x += o.x * hat.x, d.norm_w.y += o.y * hat.y, d.norm_b.x += o.x, d.norm_b.y += o.y;
        float2 z = make_float2(o.x * top.w.x, o.y * top.w.y);
        const float mean = warp_sum(z.x + z.y) / MLP_D, along = warp_sum(z.x * hat.x + z.y * hat.y) / MLP_D;
        z.x = (z.x - mean - along * hat.x) * inverse, z.y = (z.y - mean - along * hat.y) * inverse;
        put_pair(room.dzq, i, column, z);
        put_pair(room.u, i, column, u);
        *(float2 *)(room.dzq_whole + i * MLP_SUMS + column) = z;
    }
}

/* dA of the second layer, from that dS of rows i, columns j, and turned; dF's share. dy: dz of the queries times W2^T. */
__device__ __forceinline__ void mlp_back_second(ttt_mlp_back_room &room, const float *record, const ttt_tile_steps &steps, const float (&position)[4],
                                                float (&dS)[2][4], float (&dSt)[2][4], float (&dy)[4][4])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t a[4], al[4], g[4], gl[4], w[4], t[4];
        ldmatrix_x4(a, shared_address(room.dzq[0]) + y.turned() + p * 32);
        ldmatrix_x4(al, shared_address(room.dzq[1]) + y.turned() + p * 32);
        ldmatrix_x4(g, shared_address(room.u[0]) + y.turned() + p * 32);
        ldmatrix_x4(gl, shared_address(room.u[1]) + y.turned() + p * 32);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(dS[n], al, g[n], g[n + 2]);
            mma_bf16(dS[n], a, gl[n], gl[n + 2]);
            mma_bf16(dS[n], a, g[n], g[n + 2]);
            mma_bf16(dSt[n], g, a[n], a[n + 2]);
            recorded_state(w, record + ttt_mlp_record::W2, 2 * p + n);
            turn_state(t, w);
            mma_turned(dy[2 * n], dy[2 * n + 1], a, t);
        }
    }
    TTT_SLICE(n, q)
    {
        const int row = y.r + q / 2 * 8, j = y.token(n, q);
        const float dA = j > row ? 0.0f : -dS[n][q] * steps.rate[j];
        if (y.id < 32) room.dF[row * TILE_ETA + j] = dA * record[ttt_mlp_record::S + row * TILE_TOKENS + j];
        dS[n][q] = dA * steps.of(q / 2, row, j);
        dSt[n][q] = row > j ? 0.0f : -dSt[n][q] * steps.rate[row] * position[2 * n + q % 2] * steps.own(j, row);
    }
}

/* Sums of a thread's rows over a warp's columns. */
__device__ __forceinline__ void put_sums(float (&to)[TILE_TOKENS], float low, float high)
{
    const int lane = (int)threadIdx.x % 32;
    low = sum_tokens(low), high = sum_tokens(high); /* over the same four lanes */
    if (lane % 4 == 0) to[lane / 4] = low, to[lane / 4 + 8] = high;
}

/* G = u dW2^T: dX2 and R.u of the second layer take their shares. by: the last row's step sizes with the rates, less. */
__device__ __forceinline__ void mlp_back_from_second(ttt_mlp_back_room &room, const ttt_mlp_back &d, const float (&by)[2], float (&dx)[4][4])
{
    const ttt_place<MLP_D> y;
    float G[4][4] = {}, sums[2] = {};
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t g[4], gl[4], high[4], low[4];
        ldmatrix_x4(g, shared_address(room.u[0]) + y.turned() + m * 32);
        ldmatrix_x4(gl, shared_address(room.u[1]) + y.turned() + m * 32);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves w = halves_of(d.W2[m][2 * p], d.W2[m][2 * p + 1]);
            turn_state(high, w.high);
            turn_state(low, w.low);
            mma_turned(G[2 * p], G[2 * p + 1], gl, high);
            mma_turned(G[2 * p], G[2 * p + 1], g, low);
            mma_turned(G[2 * p], G[2 * p + 1], g, high);
        }
    }
    const ttt_mlp_own &X = room.x[y.id / 32];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (y.r + 8 * half) * MLP_LD + 8 * n + 2 * y.c;
            const float2 high = pair_of(X[0] + at), low = pair_of(X[1] + at);
            sums[half] += (high.x + low.x) * G[n][2 * half] + (high.y + low.y) * G[n][2 * half + 1];
        }
    MLP_OWN_EACH(n, q) dx[n][q] += by[q / 2] * G[n][q];
    put_sums(room.sums[y.id / 32][0], sums[0], sums[1]);
}

/* du of the first layer but for its rate, R.u and du.u of it; u: u1. S of either order by the first warp, and everybody's own. */
__device__ __forceinline__ void mlp_back_first(ttt_mlp_back_room &room, const bf16 *K, const bf16 *Q, const ttt_mlp_back &d,
                                               const ttt_tile_steps &steps, const float (&position)[4], const float (&u)[4][4], float bias,
                                               float (&du)[4][4])
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    float St[2][4] = {}, sums[2] = {}, along[2] = {};
    const float last[2] = { -steps.of_last(y.r), -steps.of_last(y.r + 8) };
    MLP_OWN_EACH(n, q) du[n][q] = d.b1[n][q % 2];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4], q[4];
        ldmatrix_x4(k, shared_address(K) + y.turned() + p * 32);
        ldmatrix_x4(q, shared_address(Q) + y.turned() + p * 32);
        mma_bf16(St[0], k, q[0], q[2]);
        mma_bf16(St[1], k, q[1], q[3]);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const ttt_halves w = halves_of(d.W1[m][2 * p], d.W1[m][2 * p + 1]);
            mma_state(du[2 * m], du[2 * m + 1], k, w.low);
            mma_state(du[2 * m], du[2 * m + 1], k, w.high);
        }
    }
    MLP_OWN_EACH(n, q)
    {
        sums[q / 2] += du[n][q] * u[n][q];
        du[n][q] *= last[q / 2];
    }
    put_sums(room.sums[warp][1], sums[0], sums[1]);
    TTT_SLICE(n, q)
    {
        const int j = y.r + q / 2 * 8, i = y.token(n, q);
        const float S = St[n][q] + bias;
        if (y.id < 32) room.S[i * TILE_ETA + j] = S;
        St[n][q] = j > i ? 0.0f : -S * position[2 * n + q % 2] * steps.own(i, j);
    }
    mma_own(du, halves_of(St[0], St[1]), room.z[warp]);
    MLP_OWN_EACH(n, q) along[q / 2] += du[n][q] * u[n][q];
    put_sums(room.sums[warp][2], along[0], along[1]);
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
/* Shares of dk,  by.(u1 dW1^T). */
__device__ __forceinline__ void mlp_back_keys(ttt_mlp_back_room &room, const ttt_mlp_back &d, const float (&u)[4][4], const float (&by)[2])
{
    const ttt_halves us[2] = { halves_of(u[0], u[1]), halves_of(u[2], u[3]) };
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float k[2][4] = {};
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves w = halves_of(d.W1[p][2 * m], d.W1[p][2 * m + 1]);
            uint32_t high[4], low[4];
            turn_state(high, w.high);
            turn_state(low, w.low);
            mma_turned(k[0], k[1], us[p].low, high);
            mma_turned(k[0], k[1], us[p].high, low);
            mma_turned(k[0], k[1], us[p].high, high);
        }
        TTT_SLICE(n, q) k[n][q] *= by[q / 2];
        put_share(room.dk[threadIdx.x / 32], m, k);
    }
}
/* Shares of du of the second layer,  by.(X2 dW2) + dh W2. */
__device__ __forceinline__ void mlp_back_shares(ttt_mlp_back_room &room, const float *record, const ttt_mlp_back &d, const float (&dh)[4][4],
                                                const float (&by)[2])
{
    const int warp = (int)threadIdx.x / 32;
    const ttt_halves hs[2] = { halves_of(dh[0], dh[1]), halves_of(dh[2], dh[3]) };
    ttt_halves X[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        ldmatrix_x4(X[p].high, shared_address(room.x[warp][0] + own_turned() + 16 * p));
        ldmatrix_x4(X[p].low, shared_address(room.x[warp][1] + own_turned() + 16 * p));
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float z[2][4] = {};
#pragma unroll
        for (int p = 0; p < 2; p++) mma_states(z[0], z[1], X[p], halves_of(d.W2[m][2 * p], d.W2[m][2 * p + 1]));
        TTT_SLICE(n, q) z[n][q] *= by[q / 2];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            uint32_t w[4];
            recorded_state(w, record + ttt_mlp_record::W2, 2 * m + p);
            mma_state(z[0], z[1], hs[p].low, w);
            mma_state(z[0], z[1], hs[p].high, w);
        }
        put_share(room.du[warp], m, z);
    }
}

/* += sums over the tokens of a warp's columns, by products with ones. */
__device__ __forceinline__ void add_columns(float (&to)[4][2], const ttt_mlp_own &own)
{
    const uint32_t one = pack_bf16(1.0f, 1.0f);
    const ttt_halves ones = { { one, one, one, one }, { 0, 0, 0, 0 } };
    float x[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++) x[n][0] = x[n][2] = to[n][0], x[n][1] = x[n][3] = to[n][1];
    mma_own(x, ones, own);
#pragma unroll
    for (int n = 0; n < 4; n++) to[n][0] = x[n][0], to[n][1] = x[n][1];
}

/* A warp's columns between the layers, up to the shares of du of the second. */
__device__ __forceinline__ void mlp_back_own(ttt_mlp_back_room &room, const bf16 *K, const bf16 *Q, const float *record, const ttt_tile_steps &steps,
                                             const float (&position)[4], float bias, ttt_mlp_back &d, ttt_mlp_between &b)
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    const float rate[2] = { steps.rate[y.r], steps.rate[y.r + 8] };
    const float by[2] = { -steps.of_last(y.r) * rate[0], -steps.of_last(y.r + 8) * rate[1] };
    float dS[2][4] = {}, dSt[2][4] = {}, dy[4][4] = {}, X[4][4], u[4][4], du[4][4];
    recorded_own(X, record + ttt_mlp_record::Z);
    recorded_own(u, record + ttt_mlp_record::H);
    MLP_OWN_EACH(n, q)
    {
        float bend, slope;
        X[n][q] = gelu_all(X[n][q], &slope, &bend);
        b.below[n][q] = u[n][q] * bend;
        u[n][q] *= slope;
        ((float *)&room.slope[n][y.id])[q] = slope;
    }
    put_own(room.x[warp], X);
    __syncwarp();
    mlp_back_second(room, record, steps, position, dS, dSt, dy);
    mma_own(dy, halves_of(dS[0], dS[1]), room.x[warp]);
    recorded_own(X, record + ttt_mlp_record::QUERY);
    MLP_OWN_EACH(n, q)
    {
        float slope;
        X[n][q] = gelu_both(X[n][q], &slope);
        dy[n][q] *= slope; /* dz of the queries' first layer */
    }
    put_own(room.y[warp], X);
    put_own(room.z[warp], dy);
    float dA[2][4] = {};
#pragma unroll
    for (int p = 0; p < 2; p++) mma_states(dA[0], dA[1], halves_of(dy[2 * p], dy[2 * p + 1]), halves_of(u[2 * p], u[2 * p + 1]));
    TTT_SLICE(n, q) room.dA[warp][(y.r + q / 2 * 8) * TILE_ETA + y.token(n, q)] = dA[n][q];
    __syncwarp();
    MLP_OWN_EACH(n, q) b.dx[n][q] = 0.0f;
    mma_own(b.dx, halves_of(dSt[0], dSt[1]), room.y[warp]);
    mlp_back_from_second(room, d, by, b.dx);
    forget_halves(d.W2, &room.zero);
    mlp_back_keys(room, d, u, by);
    forget_halves(d.W1, &room.zero);
    mlp_back_first(room, K, Q, d, steps, position, u, bias, du);
    if (bias != 0) add_columns(d.b1, room.z[warp]);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float4 slope = room.slope[n][y.id];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            du[n][q] *= rate[q / 2];
            b.below[n][q] *= du[n][q];
            du[n][q] *= q == 0 ? slope.x : q == 1 ? slope.y : q == 2 ? slope.z : slope.w; /* dh */
        }
    }
    mlp_back_shares(room, record, d, du, by);
    add_first(d.W1, Q, room.z[warp]);
    add_second(d.W2, room.dzq[0], room.dzq[1], room.y[warp]);
    __syncwarp();
    put_own(room.y[warp], du);
    __syncwarp();
    add_second(d.W2, room.u[0], room.u[1], room.y[warp]);
}

/* A warp's tokens: the shares of du of the second layer added up, with what comes of the queries, and back through the loss. */
template <typename HEAD>
__device__ __forceinline__ void mlp_back_loss(const HEAD &x, ttt_mlp_back_room &room, const bf16 *K, const bf16 *V, const float *record, int64_t t,
                                              const ttt_mlp_top &top, const ttt_tile_steps &steps, ttt_mlp_back &d, ttt_mlp_between &b)
{
    constexpr int LD = ttt_place<MLP_D>::LD;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, column = lane * 2, mine = lane % TILE_TOKENS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = warp + TTT_WARPS * half;
        const float2 hat = *(const float2 *)(record + ttt_mlp_record::HAT + j * MLP_D + column);
        const float2 u = *(const float2 *)(record + ttt_mlp_record::U + j * MLP_D + column);
        const float inverse = record[ttt_mlp_record::INVERSE + j], last = steps.of_last(j), rate = steps.rate[j];
        /* lane i: of A's row i, column j */
        const float A = j > mine ? 0.0f : record[ttt_mlp_record::S + mine * TILE_TOKENS + j] * room.position[mine] * steps.own(mine, j);
        const float2 k = pair_of(K + j * LD + column), v = pair_of(V + j * LD + column);
        float2 du = make_float2(-last * d.b2.x, -last * d.b2.y), pre = make_float2(0.0f, 0.0f), sum = pre;
#pragma unroll
        for (int i = 0; i < TILE_TOKENS; i++) {
            const float a = __shfl_sync(~0u, A, i);
            const float2 z = *(const float2 *)(room.dzq_whole + i * MLP_SUMS + column);
            pre.x -= a * z.x, pre.y -= a * z.y;
        }
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) {
            const float2 s = *(const float2 *)(room.du[w] + j * MLP_SUMS + column);
            sum.x += s.x, sum.y += s.y;
        }
        float second = 0, first = 0, along_u = 0;
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) second += room.sums[w][0][j], first += room.sums[w][1][j], along_u += room.sums[w][2][j];
        second += warp_sum(d.b2.x * u.x + d.b2.y * u.y);
        along_u += warp_sum(pre.x * u.x + pre.y * u.y) - last * second;
        if (lane == 0) {
            room.R[j] = first + second;
            if (x.a.drate) ((float *)x.a.drate)[(t + j) * x.a.H + x.h] = along_u;
        }
        du.x = sum.x + rate * (du.x + pre.x), du.y = sum.y + rate * (du.y + pre.y);
        const float2 e = make_float2(top.w.x * hat.x + top.b.x - (v.x - k.x), top.w.y * hat.y + top.b.y - (v.y - k.y));
        const float mean = warp_sum(du.x + du.y) / MLP_D, part = warp_sum(du.x * hat.x + du.y * hat.y) / MLP_D;
        const float g_part = warp_sum(hat.x * top.w.x * e.x + hat.y * top.w.y * e.y) / MLP_D * inverse;
        const float sigma_part = -warp_sum(u.x * du.x + u.y * du.y) * inverse / MLP_D, du_part = part * inverse;
        const float2 dg = make_float2((du.x - mean - part * hat.x) * inverse, (du.y - mean - part * hat.y) * inverse);
        const float2 de = b.de[half] = make_float2(top.w.x * dg.x, top.w.y * dg.y);
        const float2 dhat = make_float2(top.w.x * de.x - g_part * du.x - du_part * top.w.x * e.x,
                                        top.w.y * de.y - g_part * du.y - du_part * top.w.y * e.y);
        const float dhat_mean = warp_sum(dhat.x + dhat.y) / MLP_D, dhat_part = warp_sum(dhat.x * hat.x + dhat.y * hat.y) / MLP_D;
        const float2 dz = make_float2((dhat.x - dhat_mean - dhat_part * hat.x) * inverse + sigma_part * hat.x,
                                      (dhat.y - dhat_mean - dhat_part * hat.y) * inverse + sigma_part * hat.y);
        d.norm_w.x += e.x * dg.x + hat.x * de.x, d.norm_w.y += e.y * dg.y + hat.y * de.y;
        d.norm_b.x += de.x, d.norm_b.y += de.y;
        put_pair(room.dz, j, column, dz);
        *(float2 *)(room.dz_whole + j * MLP_SUMS + column) = dz;
    }
}

/* A warp's columns between the layers, from dz of the second layer: the weights' gradients in front of the mini-batch, shares of dq and dk. */
__device__ __forceinline__ void mlp_back_below(ttt_mlp_back_room &room, const bf16 *K, const float *record, bool bias, ttt_mlp_back &d,
                                               ttt_mlp_between &b)
{
    const ttt_place<MLP_D> y;
    const int warp = y.id / 32;
    uint32_t zq[2][4];
#pragma unroll
    for (int p = 0; p < 2; p++) ldmatrix_x4(zq[p], shared_address(room.z[warp][0] + own_turned() + 16 * p));
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t a[4], w[4], turned[4];
        ldmatrix_x4(a, shared_address(room.dz[0]) + y.turned() + m * 32);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            recorded_state(w, record + ttt_mlp_record::W2, 2 * m + p);
            turn_state(turned, w);
            mma_turned(b.dx[2 * p], b.dx[2 * p + 1], a, turned);
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++) { /* dz of the first layer */
        const float4 slope = room.slope[n][y.id];
#pragma unroll
        for (int q = 0; q < 4; q++) b.dx[n][q] = b.dx[n][q] * (q == 0 ? slope.x : q == 1 ? slope.y : q == 2 ? slope.z : slope.w) + b.below[n][q];
    }
    __syncwarp();
    put_own(room.z[warp], b.dx);
    const ttt_halves z[2] = { halves_of(b.dx[0], b.dx[1]), halves_of(b.dx[2], b.dx[3]) };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float dq[2][4] = {}, dk[2][4] = {};
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t w[4], turned[4];
            recorded_state(w, record + ttt_mlp_record::W1, 4 * m + j);
            turn_state(turned, w);
            mma_turned(dq[0], dq[1], zq[m], turned);
            mma_turned(dk[0], dk[1], z[m].high, turned);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = (y.r + 8 * half) * MLP_SUMS + 16 * j + 8 * n + 2 * y.c;
                *(float2 *)(room.du[warp] + at) = make_float2(dq[n][2 * half], dq[n][2 * half + 1]);
                float2 *to = (float2 *)(room.dk[warp] + at);
                *to = make_float2(to->x + dk[n][2 * half], to->y + dk[n][2 * half + 1]);
            }
    }
    __syncwarp();
    add_first(d.W1, K, room.z[warp]);
    add_second(d.W2, room.dz[0], room.dz[1], room.x[warp]);
    if (!bias) return;
    add_columns(d.b1, room.z[warp]);
    const int column = y.lane * 2;
#pragma unroll
    for (int j = 0; j < TILE_TOKENS; j++) {
        const float2 s = *(const float2 *)(room.dz_whole + j * MLP_SUMS + column), q = *(const float2 *)(room.dzq_whole + j * MLP_SUMS + column);
        d.b2.x += s.x + q.x, d.b2.y += s.y + q.y;
    }
}

/* A warp's tokens: dq, dk, dv and the step sizes' gradients. Lanes 0 to 15 have dA of row i, the others of column i. */
template <typename HEAD>
__device__ __forceinline__ void mlp_back_rows(const HEAD &x, const ttt_mlp_back_room &room, const bf16 *rows, int64_t t, const ttt_tile_steps &steps,
                                              ttt_mlp_back &d, const ttt_mlp_between &b)
{
    constexpr int LD = ttt_place<MLP_D>::LD, ROWS = ttt_place<MLP_D>::ROWS;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, column = lane * 2, mine = lane % TILE_TOKENS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = warp + TTT_WARPS * half;
        const int i = lane < TILE_TOKENS ? r : mine, j = lane < TILE_TOKENS ? mine : r, at = i * TILE_ETA + j;
        float dA = 0;
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) dA += room.dA[w][at];
        dA = j > i ? 0.0f : -dA * steps.rate[j];
        const float own = steps.own(i, j), by = j > i ? 0.0f : dA * room.position[i] * own;
        float dF = j > i ? 0.0f : room.dF[at] + dA * room.S[at] - (i == TILE_TOKENS - 1 ? steps.rate[j] * room.R[j] : 0.0f);
        if (x.a.deta && lane < TILE_TOKENS) ((float *)x.a.deta)[((t + i) * x.a.H + x.h) * TILE_TOKENS + j] = dF * room.position[i];
        dF *= own;
#pragma unroll
        for (int o = 1; o < TILE_TOKENS; o *= 2) dF += __shfl_xor_sync(~0u, dF, o);
        d.position[half] += dF;
        float2 q = pair_of(rows + 3 * ROWS + r * LD + column), k = b.de[half];
#pragma unroll
        for (int w = 0; w < TTT_WARPS; w++) {
            const float2 dq = *(const float2 *)(room.du[w] + r * MLP_SUMS + column), dk = *(const float2 *)(room.dk[w] + r * MLP_SUMS + column);
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
        if (x.a.dv) *(uint32_t *)((bf16 *)x.a.dv + to) = pack_bf16(-b.de[half].x, -b.de[half].y);
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

/* Mini-batches back from the one that begins with token t, whose record is `record`: x.w's dW and db from behind them become those in front. */
template <typename HEAD> __device__ __noinline__ void ttt_mlp_tiles_back(HEAD &x, int64_t t, int64_t count, const float *record)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    ttt_mlp_back_room &room = *(ttt_mlp_back_room *)memory;
    const ttt_place<MLP_D> y;
    constexpr int ROWS = ttt_place<MLP_D>::ROWS;
    const int warp = y.id / 32;
    ttt_mlp_back d = {};
    ttt_mlp_between b;
    ttt_mlp_top top;
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], g.a.eta != NULL };
    float position[4]; /* of the tokens of a slice */
#pragma unroll
    for (int e = 0; e < 4; e++) position[e] = x.w.position[y.token(e)];
    top.w = *(const float2 *)(x.norm.w + 2 * y.lane), top.b = *(const float2 *)(x.norm.b + 2 * y.lane);
    mlp_back_state<false>(x, d);
    if (y.id == 0) room.zero = 0.0f;
    if (y.id < TILE_TOKENS) room.position[y.id] = x.w.position[y.id];
    fetch_rows<MLP_D, 4>(room.rows[0], { g.a.k, g.a.q, g.a.v, g.a.dout }, t, g.a.H, g.h);
    float rate = fetch_steps(g, room.eta[0], t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int64_t i = 0; i < count; i++, t -= TILE_TOKENS, record -= ttt_mlp_record::FLOATS) {
        const bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS, *const dO = V + ROWS;
        steps.eta = room.eta[i & 1], steps.rate = room.rate[i & 1];
        mlp_back_top(room, dO, record, top, d);
        __syncthreads();
        if (i + 1 < count) { /* nobody reads the other rows any more */
            fetch_rows<MLP_D, 4>(room.rows[~i & 1], { g.a.k, g.a.q, g.a.v, g.a.dout }, t - TILE_TOKENS, g.a.H, g.h);
            rate = fetch_steps(g, room.eta[~i & 1], t - TILE_TOKENS);
            cp_async_commit();
            const char *next = (const char *)(record - ttt_mlp_record::FLOATS);
            for (int j = y.id; j < (int)(ttt_mlp_record::FLOATS * sizeof(float) / 128); j += TTT_THREADS) ahead_l2(next + j * 128);
        }
        mlp_back_own(room, K, Q, record, steps, position, g.a.bias, d, b);
        __syncthreads();
        mlp_back_loss(g, room, K, V, record, t, top, steps, d, b);
        __syncthreads();
        mlp_back_below(room, K, record, g.a.bias != 0, d, b);
        cp_async_wait<0>();
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[~i & 1][y.id] = rate;
        __syncthreads();
        mlp_back_rows(g, room, K, t, steps, d, b);
    }
    mlp_back_state<true>(x, d);
    __syncthreads();
    float *const sums = room.dA[0]; /* of the warps, for the norm: [2][8][64], nobody reads it any more */
    *(float2 *)(sums + warp * MLP_D + 2 * y.lane) = d.norm_w;
    *(float2 *)(sums + (TTT_WARPS + warp) * MLP_D + 2 * y.lane) = d.norm_b;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp + TTT_WARPS * half;
        if (y.lane == 0) x.dposition[row] += room.position[row] > 0 ? d.position[half] : 0.0f;
    }
    __syncthreads();
    if (y.id < 2 * MLP_D) {
        float sum = 0;
        for (int w = 0; w < TTT_WARPS; w++) sum += sums[(y.id / MLP_D * TTT_WARPS + w) * MLP_D + y.id % MLP_D];
        (y.id < MLP_D ? x.norm.dw : x.norm.db)[y.id % MLP_D] += sum;
    }
    __syncthreads();
}

#endif
