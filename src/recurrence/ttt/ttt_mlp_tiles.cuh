/* TTT-MLP's whole mini-batches of 16 tokens ahead on tensor cores (outputs: ttt_mlp_segments.cuh; back: ttt_mlp_back.cuh), 64 columns and 256
 * between the layers, the weights of both in registers (ttt_tiles.cuh). A warp has 32 of the 256: of the first layer those columns, of the second
 * those rows; what is a sum over them goes through shared memory, in order, to the warp that has the token: two a warp, two columns a lane. Tiles
 * of tokens here have tokens for rows: x[n][q] of a thread is token r + 8 (q / 2), column 32 warp + 8 n + 2 c + q % 2. */
#ifndef LNT_TTT_MLP_TILES_CUH
#define LNT_TTT_MLP_TILES_CUH

#include "device/functions.cuh"
#include "recurrence/ttt/ttt_linear_tiles.cuh"

/* ---- gelu by tanh -------------------------------------------------------------------------------------------------------------------------- */

static constexpr float GELU_ROOT = 0.797884561f, GELU_CUBE = 0.044715f;
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + tanhf(GELU_ROOT * x * (1.0f + GELU_CUBE * x * x))); }
__device__ __forceinline__ float gelu_slope(float x)
{
    if (fabsf(x) > 20.0f) return x > 0 ? 1.0f : 0.0f; /* 0 times infinity beyond */
    const float t = tanhf(GELU_ROOT * x * (1.0f + GELU_CUBE * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_ROOT * (1.0f + 3 * GELU_CUBE * x * x);
}
/* gelu''(x): with y = c (x + a x^3) and t = tanh(y), s = 1 - t^2:  s y' + x/2 (s y'' - 2 t s y'^2). Beyond |x| = 20 s is 0. */
__device__ __forceinline__ float gelu_bend(float x)
{
    const float near = fabsf(x) > 20.0f ? copysignf(20.0f, x) : x, square = near * near;
    const float t = tanhf(GELU_ROOT * near * (1.0f + GELU_CUBE * square)), s = 1.0f - t * t;
    const float slope = GELU_ROOT * (1.0f + 3 * GELU_CUBE * square), bend = GELU_ROOT * 6 * GELU_CUBE * near;
    return s * slope + 0.5f * near * (s * bend - 2.0f * t * s * slope * slope);
}
/* The same by one exponential, of which they lose 1e-7 of 1: P = 1 / (1 + e^2y), so that t = 1 - 2 P and 1 - t^2 = 4 P (1 - P). */
struct gelu_terms {
    float near, square, P, rest, first; /* rest: 1 - P; first: dy/dx */
    __device__ __forceinline__ gelu_terms(float x)
    {
        constexpr float BY = 2 * (float)LNT_LOG2E * GELU_ROOT;
        near = fminf(fmaxf(x, -20.0f), 20.0f), square = near * near;
        P = fast_inverse(1.0f + fast_exp2(near * (BY + BY * GELU_CUBE * square)));
        rest = 1.0f - P, first = GELU_ROOT + 3 * GELU_ROOT * GELU_CUBE * square;
    }
    __device__ __forceinline__ float slope() const { return rest + near * (2.0f * P * rest * first); }
    /* Slope and bend: y is a cubic, for which x y'' / 2 = y' - c. */
    __device__ __forceinline__ float both(float *bend) const
    {
        const float by = near * first, half = 2.0f * P * rest;
        *bend = half * (2 * GELU_ROOT + 12 * GELU_ROOT * GELU_CUBE * square - by * first * (2.0f - 4.0f * P));
        return rest + half * by;
    }
};
__device__ __forceinline__ float gelu_both(float x, float *slope)
{
    const gelu_terms g(x);
    *slope = g.slope();
    return x * g.rest;
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------------------------- */

static constexpr int MLP_D = 64, MLP_F = 256, MLP_OWN = MLP_F / TTT_WARPS, MLP_LD = MLP_OWN + 8, MLP_SUMS = MLP_D + 8;

/* The chain's operands are in two halves: what is rounded of a state's change is there for good. Segments begin with the chain's states and hand on
 * none: theirs are rounded once, but for what the way back takes of them in halves. */
typedef bf16 ttt_mlp_rounded[TILE_TOKENS * MLP_LD];         /* a warp's [16,32] */
typedef ttt_mlp_rounded ttt_mlp_own[2];                     /* the same in two halves */
typedef bf16 ttt_mlp_rows[2][ttt_place<MLP_D>::ROWS];       /* [16,64] in two halves */
typedef float ttt_mlp_part[TILE_TOKENS * MLP_SUMS];

#define MLP_OWN_EACH(n, q) _Pragma("unroll") for (int n = 0; n < 4; n++) _Pragma("unroll") for (int q = 0; q < 4; q++)

/* What a chain and segments have alike, the chain's, and that of segments. */
struct alignas(16) ttt_mlp_rows_room {
    bf16 rows[3][3 * ttt_place<MLP_D>::ROWS]; /* k q v of this mini-batch and the next ones */
    float u2_whole[TILE_TOKENS * MLP_SUMS], part[TTT_WARPS][TILE_TOKENS * MLP_SUMS];
    float eta[3][TILE_TOKENS * TILE_ETA], rate[3][TILE_TOKENS];
};
struct alignas(16) ttt_mlp_room : ttt_mlp_rows_room {
    alignas(16) ttt_mlp_own x[TTT_WARPS], u[TTT_WARPS];                         /* its columns of X2 and u1 */
    bf16 u2[4][ttt_place<MLP_D>::ROWS];                                         /* in two halves; and times the last row's step sizes */
    float zero;
};
struct alignas(16) ttt_mlp_query_room : ttt_mlp_rows_room {
    alignas(16) ttt_mlp_rounded x[TTT_WARPS], u[TTT_WARPS];
    bf16 u2[3][ttt_place<MLP_D>::ROWS];                                         /* in two halves; and times the last row's step sizes */
    float columns[TTT_WARPS][MLP_D];                                            /* of a warp's tokens: the sums of those, whole */
    float S[TTT_WARPS][TILE_TOKENS * TILE_ETA], position[TILE_TOKENS];
};

/* What going back wants of a mini-batch. The chain ahead leaves, as a thread has them, z of the first layer and the gradient below the second, in
 * whose places segments put the slope there and what dz has of the bend; u and hat of tokens, inverses of sigma. Segments leave u of the first layer;
 * X2, then turned Y2 and dz of the queries there, in halves as operands; what du of the first layer and dX2 get of queries, where the chain back
 * puts dz of the first layer, turned; rows of u and of dz of the queries in halves, as in shared memory; what du of the second layer gets of queries,
 * where the chain puts de; sums of a warp's two dz of the queries; the upper halves of the weights; the second layer's share of dF. The chain back
 * besides: R.u. */
struct ttt_mlp_record {
    static constexpr int OWN = TILE_TOKENS * MLP_F, TOP = TILE_TOKENS * MLP_D, STATE = MLP_D * MLP_F / 2, HALVES = 2 * ttt_place<MLP_D>::ROWS;
    static constexpr int Z = 0, SLOPE = Z, H = Z + OWN, BELOW = H, U = H + OWN, HAT = U + TOP, INVERSE = HAT + TOP;
    static constexpr int U1 = INVERSE + TILE_TOKENS, X = U1 + OWN, Y = X + OWN, DZQ = Y + OWN, PRE = DZQ + OWN, PRE_X = PRE + OWN, DZ = PRE_X;
    static constexpr int ROWS = PRE_X + OWN, PRE_U = ROWS + HALVES, DE = PRE_U, SUMS = PRE_U + TOP, W2 = SUMS + TTT_WARPS * MLP_D;
    static constexpr int CHAIN = W2 + STATE; /* so many going back begins with */
    static constexpr int R = CHAIN, DF = R + TILE_TOKENS, W1 = DF + TILE_TOKENS * TILE_TOKENS, FLOATS = W1 + STATE;
};
/* 16 bytes of a thread's in what is left: past the first-level cache, which the stack wants to itself. */
__device__ __forceinline__ uint4 left_at(const float *from, int block)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"((const uint4 *)from + block * TTT_THREADS + threadIdx.x)
                 : "memory");
    return v;
}
__device__ __forceinline__ void leave_at(float *to, int block, uint4 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"((uint4 *)to + block * TTT_THREADS + threadIdx.x), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ float2 left_pair(const float *from)
{
    float2 v;
    asm volatile("ld.global.L1::no_allocate.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
    return v;
}
__device__ __forceinline__ void leave_pair(float *to, float2 v)
{
    asm volatile("st.global.L1::no_allocate.v2.f32 [%0], {%1,%2};" ::"l"(to), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void leave_tile(float *to, int block, const float (&x)[4])
{
    leave_at(to, block, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])));
}
__device__ __forceinline__ void left_tile(float (&x)[4], const float *from, int block)
{
    const uint4 v = left_at(from, block);
    x[0] = __uint_as_float(v.x), x[1] = __uint_as_float(v.y), x[2] = __uint_as_float(v.z), x[3] = __uint_as_float(v.w);
}
__device__ __forceinline__ void record_own(float *to, const float (&x)[4][4])
{
#pragma unroll
    for (int n = 0; n < 4; n++) leave_tile(to, n, x[n]);
}
__device__ __forceinline__ void recorded_own(float (&x)[4][4], const float *from)
{
#pragma unroll
    for (int n = 0; n < 4; n++) left_tile(x[n], from, n);
}
/* The upper halves of a state, as two tiles' B of a product over its columns. */
template <int M, int P> __device__ __forceinline__ void record_state(float *to, const float (&W)[M][2 * P][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int p = 0; p < P; p++) {
            const float(&l)[4] = W[m][2 * p], (&r)[4] = W[m][2 * p + 1];
            leave_at(to, m * P + p, make_uint4(pack_bf16(l[0], l[1]), pack_bf16(r[0], r[1]), pack_bf16(l[2], l[3]), pack_bf16(r[2], r[3])));
        }
}

__device__ __forceinline__ void recorded_state(uint32_t (&to)[4], const float *from, int block)
{
    const uint4 w = left_at(from, block);
    to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
}
/* The same in shared memory. */
__device__ __forceinline__ void put_tile(float4 (&to)[TTT_THREADS], const float (&x)[4]) { to[threadIdx.x] = make_float4(x[0], x[1], x[2], x[3]); }
__device__ __forceinline__ void take_tile(float (&x)[4], const float4 (&from)[TTT_THREADS])
{
    const float4 v = from[threadIdx.x];
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
/* Two operands in halves, of a warp's [16,32]. */
__device__ __forceinline__ void record_halves(float *to, int p, const ttt_halves &x)
{
    leave_at(to, 2 * p, make_uint4(x.high[0], x.high[1], x.high[2], x.high[3]));
    leave_at(to, 2 * p + 1, make_uint4(x.low[0], x.low[1], x.low[2], x.low[3]));
}
__device__ __forceinline__ ttt_halves recorded_halves(const float *from, int p)
{
    ttt_halves x;
    recorded_state(x.high, from, 2 * p);
    recorded_state(x.low, from, 2 * p + 1);
    return x;
}

/* Where a lane's address of ldmatrix is in a warp's [16,32]: [m][k] as A and, with trans, [k][n] as B; and, with trans, [k][m] as A. */
__device__ __forceinline__ int own_turned()
{
    const int lane = (int)threadIdx.x % 32;
    return (lane / 8 % 2 * 8 + lane % 8) * MLP_LD + lane / 16 * 8;
}
__device__ __forceinline__ int own_flat()
{
    const int lane = (int)threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * MLP_LD + lane / 8 % 2 * 8;
}

/* [16,32] of a warp rounded, and as two halves. */
__device__ __forceinline__ void put_own(ttt_mlp_rounded &to, const float (&x)[4][4])
{
    const int lane = (int)threadIdx.x % 32, at = lane / 4 * MLP_LD + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) *(uint32_t *)(to + at + half * 8 * MLP_LD + 8 * n) = pack_bf16(x[n][2 * half], x[n][2 * half + 1]);
}
__device__ __forceinline__ void put_own(ttt_mlp_own &to, const float (&x)[4][4])
{
    const int lane = (int)threadIdx.x % 32, at = lane / 4 * MLP_LD + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const ttt_split s = split_pair(x[n][2 * half], x[n][2 * half + 1]);
            *(uint32_t *)(to[0] + at + half * 8 * MLP_LD + 8 * n) = s.high;
            *(uint32_t *)(to[1] + at + half * 8 * MLP_LD + 8 * n) = s.low;
        }
}
/* The compiler is not to know that a state is what it was: halves of it that it keeps in registers from one product to the next push everything
 * else out of them (a stack of 1000 bytes a thread, which has no room beside so much shared memory in the first-level cache). zero: one in shared
 * memory. */
template <int M, int P> __device__ __forceinline__ void forget_halves(float (&W)[M][P][4], const float *zero)
{
    const float nothing = *(const volatile float *)zero;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int q = 0; q < 4; q++) W[m][p][q] += nothing;
}
/* Products come by turns: one waits for the one before it that adds to the same tile. Two tiles: */
__device__ __forceinline__ void mma_turned(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    mma_bf16(left, a, b[0], b[1]);
    mma_bf16(right, a, b[2], b[3]);
}
/* Two tiles of columns n and n + 1 from operands of a state's transpose: 16 of those, 16 of k. */
__device__ __forceinline__ void mma_state(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&state)[4])
{
    mma_bf16(left, a, state[0], state[2]);
    mma_bf16(right, a, state[1], state[3]);
}
/* The same of halves times halves. */
__device__ __forceinline__ void mma_states(float (&left)[4], float (&right)[4], const ttt_halves &a, const ttt_halves &state)
{
    mma_state(left, right, a.low, state.high);
    mma_state(left, right, a.high, state.low);
    mma_state(left, right, a.high, state.high);
}
/* Two tiles side by side, rounded, an A of the next product. */
__device__ __forceinline__ void round_tiles(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4])
{
    a[0] = pack_bf16(left[0], left[1]), a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]), a[3] = pack_bf16(right[2], right[3]);
}
/* 32 columns of a warp's share. */
__device__ __forceinline__ void put_share(float *part, int m, const float (&z)[4][4])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(part + (lane / 4 + 8 * half) * MLP_SUMS + 16 * m + 8 * n + lane % 4 * 2) = make_float2(z[n][2 * half], z[n][2 * half + 1]);
}
/* A warp's share of x W2 for everybody to add up. */
__device__ __forceinline__ void put_shares(const float (&x)[4][4], const float (&W2)[4][4][4], float *part)
{
    const ttt_halves a[2] = { halves_of(x[0], x[1]), halves_of(x[2], x[3]) };
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
        float z[4][4] = {};
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves w[2] = { halves_of(W2[m][2 * p], W2[m][2 * p + 1]), halves_of(W2[m + 1][2 * p], W2[m + 1][2 * p + 1]) };
#pragma unroll
            for (int term = 0; term < 3; term++)
#pragma unroll
                for (int e = 0; e < 2; e++) mma_state(z[2 * e], z[2 * e + 1], term ? a[p].high : a[p].low, term == 1 ? w[e].low : w[e].high);
        }
        put_share(part, m, z);
    }
}

/* Two columns of a token: the shares' sum. */
__device__ __forceinline__ float2 sum_shares(const ttt_mlp_rows_room &room, int i, int column)
{
    float2 z = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < TTT_WARPS; w++) {
        const float2 s = *(const float2 *)(room.part[w] + i * MLP_SUMS + column);
        z.x += s.x, z.y += s.y;
    }
    return z;
}
/* Where there are no step sizes they are ones, for all mini-batches: nothing asks again. */
template <int N> __device__ __forceinline__ void mlp_steps(float (&eta)[N][TILE_TOKENS * TILE_ETA], bool given)
{
    for (int i = (int)threadIdx.x; i < N * TILE_TOKENS * TILE_ETA && !given; i += TTT_THREADS) (&eta[0][0])[i] = 1.0f;
}
/* Sums over a warp's lanes as warp_sum has them, all at once: one after the other they wait for each other's shuffles. */
template <int N> __device__ __forceinline__ void warp_sums(float (&x)[N])
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
        for (int n = 0; n < N; n++) x[n] += __shfl_xor_sync(~0u, x[n], o);
}
/* hat of a warp's two tokens, two columns a lane, and the inverses of sigma. */
__device__ __forceinline__ void normalise_pairs(float2 (&z)[2], float (&inverse)[2])
{
    float mean[2] = { z[0].x + z[0].y, z[1].x + z[1].y }, square[2];
    warp_sums(mean);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        z[half].x -= mean[half] / MLP_D, z[half].y -= mean[half] / MLP_D;
        square[half] = z[half].x * z[half].x + z[half].y * z[half].y;
    }
    warp_sums(square);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        inverse[half] = rsqrtf(square[half] / MLP_D + 1e-6f);
        z[half].x *= inverse[half], z[half].y *= inverse[half];
    }
}
/* x less its mean and what is along hat, by the inverse of sigma: back through the norm. */
__device__ __forceinline__ void unnormalise_pairs(float2 (&x)[2], const float2 (&hat)[2], const float (&inverse)[2])
{
    float sums[4];
#pragma unroll
    for (int half = 0; half < 2; half++)
        sums[2 * half] = x[half].x + x[half].y, sums[2 * half + 1] = x[half].x * hat[half].x + x[half].y * hat[half].y;
    warp_sums(sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float mean = sums[2 * half] / MLP_D, along = sums[2 * half + 1] / MLP_D;
        x[half].x = (x[half].x - mean - along * hat[half].x) * inverse[half], x[half].y = (x[half].y - mean - along * hat[half].y) * inverse[half];
    }
}
__device__ __forceinline__ float2 pair_of(const bf16 *p)
{
    const uint32_t x = *(const uint32_t *)p;
    return make_float2(low_bf16(x), high_bf16(x));
}

/* Two columns of a token, in two halves. */
__device__ __forceinline__ void put_pair(ttt_mlp_rows &to, int i, int column, float2 x)
{
    const ttt_split s = split_pair(x.x, x.y);
    *(uint32_t *)(to[0] + i * ttt_place<MLP_D>::LD + column) = s.high, *(uint32_t *)(to[1] + i * ttt_place<MLP_D>::LD + column) = s.low;
}

/* x [16,32] += a [16,16] times a warp's rows. */
__device__ __forceinline__ void mma_own(float (&x)[4][4], const ttt_halves &a, const ttt_mlp_own &own)
{
    uint32_t high[2][4], low[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        ldmatrix_x4_trans(high[n], shared_address(own[0] + own_turned() + 16 * n));
        ldmatrix_x4_trans(low[n], shared_address(own[1] + own_turned() + 16 * n));
    }
#pragma unroll
    for (int term = 0; term < 3; term++)
#pragma unroll
        for (int n = 0; n < 2; n++) mma_turned(x[2 * n], x[2 * n + 1], term ? a.high : a.low, term == 2 ? low[n] : high[n]);
}

/* What a lane has of the last layer: two columns. */
struct ttt_mlp_top {
    float2 w, b, offset; /* of the norm, of the layer */
};
/* u of a token's two columns, where it is wanted: in two halves, and times its step size. */
__device__ __forceinline__ void mlp_put_u(ttt_mlp_room &room, const ttt_tile_steps &steps, int i, int column, float2 u)
{
    constexpr int LD = ttt_place<MLP_D>::LD;
    const float by = -steps.of_last(i) * steps.rate[i];
    const ttt_split s = split_pair(u.x, u.y), scaled = split_pair(by * u.x, by * u.y);
    *(float2 *)(room.u2_whole + i * MLP_SUMS + column) = u;
    *(uint32_t *)(room.u2[0] + i * LD + column) = s.high, *(uint32_t *)(room.u2[1] + i * LD + column) = s.low;
    *(uint32_t *)(room.u2[2] + i * LD + column) = scaled.high, *(uint32_t *)(room.u2[3] + i * LD + column) = scaled.low;
}
/* From the shares of z to u of a warp's two tokens. U: where it is recorded; record: the rest, or NULL. */
__device__ __forceinline__ void mlp_loss(ttt_mlp_room &room, const bf16 *K, const bf16 *V, const ttt_mlp_top &top, const ttt_tile_steps &steps,
                                         float *U, float *record)
{
    constexpr int LD = ttt_place<MLP_D>::LD;
    const int warp = (int)threadIdx.x / 32, column = (int)threadIdx.x % 32 * 2;
    float2 z[2], u[2];
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        z[half] = sum_shares(room, warp + TTT_WARPS * half, column);
        z[half].x += top.offset.x, z[half].y += top.offset.y;
    }
    normalise_pairs(z, inverse);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = (warp + TTT_WARPS * half) * LD + column;
        const float2 k = pair_of(K + at), v = pair_of(V + at), hat = z[half];
        u[half] = make_float2(top.w.x * (top.w.x * hat.x + top.b.x - (v.x - k.x)), top.w.y * (top.w.y * hat.y + top.b.y - (v.y - k.y)));
    }
    unnormalise_pairs(u, z, inverse);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = warp + TTT_WARPS * half;
        leave_pair(U + i * MLP_D + column, u[half]);
        if (record) {
            leave_pair(record + ttt_mlp_record::HAT + i * MLP_D + column, z[half]);
            if (column == 0) record[ttt_mlp_record::INVERSE + i] = inverse[half];
        }
        mlp_put_u(room, steps, i, column, u[half]);
    }
}
/* 16 x 16 of a state, as they are packed, become two tiles' B of a product over the state's rows. */
__device__ __forceinline__ void turn_state(uint32_t (&to)[4], const uint32_t (&from)[4])
{
#pragma unroll
    for (int q = 0; q < 4; q++) to[q] = movmatrix(from[q]);
}
/* The same of what record_state left. */
__device__ __forceinline__ void turn_recorded(uint32_t (&to)[4], const uint32_t (&from)[4])
{
    uint32_t packed[4];
    as_rows(packed, from);
    turn_state(to, packed);
}
/* h = u2 W2^T for a warp's columns. */
__device__ __forceinline__ void mlp_below(const ttt_mlp_room &room, const float (&W2)[4][4][4], float (&h)[4][4])
{
    const ttt_place<MLP_D> y;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t g[4], gl[4], high[2][4], low[2][4];
        ldmatrix_x4(g, shared_address(room.u2[0]) + y.turned() + m * 32);
        ldmatrix_x4(gl, shared_address(room.u2[1]) + y.turned() + m * 32);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const ttt_halves w = halves_of(W2[m][2 * p], W2[m][2 * p + 1]);
            turn_state(high[p], w.high);
            turn_state(low[p], w.low);
        }
#pragma unroll
        for (int term = 0; term < 3; term++)
#pragma unroll
            for (int p = 0; p < 2; p++) mma_turned(h[2 * p], h[2 * p + 1], term ? g : gl, term == 1 ? low[p] : high[p]);
    }
}
/* A warp's columns of the first layer's weights += rows^T own; its rows of the second's += own^T (rows, in two halves). */
__device__ __forceinline__ void add_first(float (&W1)[2][8][4], const bf16 *rows, const ttt_mlp_own &own)
{
    const ttt_place<MLP_D> y;
    ttt_halves u[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        ldmatrix_x4_trans(u[m].high, shared_address(own[0] + own_flat() + 16 * m));
        ldmatrix_x4_trans(u[m].low, shared_address(own[1] + own_flat() + 16 * m));
    }
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4];
        ldmatrix_x4_trans(k, shared_address(rows) + y.turned() + p * 32);
#pragma unroll
        for (int term = 0; term < 2; term++)
#pragma unroll
            for (int m = 0; m < 2; m++) mma_turned(W1[m][2 * p], W1[m][2 * p + 1], term ? u[m].high : u[m].low, k);
    }
}
__device__ __forceinline__ void add_second(float (&W2)[4][4][4], const bf16 *rows, const bf16 *rows_low, const ttt_mlp_own &own)
{
    const ttt_place<MLP_D> y;
    uint32_t high[2][4], low[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        ldmatrix_x4_trans(high[n], shared_address(own[0] + own_turned() + 16 * n));
        ldmatrix_x4_trans(low[n], shared_address(own[1] + own_turned() + 16 * n));
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        ttt_halves u;
        ldmatrix_x4_trans(u.high, shared_address(rows) + y.plain() + m * 32);
        ldmatrix_x4_trans(u.low, shared_address(rows_low) + y.plain() + m * 32);
#pragma unroll
        for (int term = 0; term < 3; term++)
#pragma unroll
            for (int n = 0; n < 2; n++) mma_turned(W2[m][2 * n], W2[m][2 * n + 1], term ? u.high : u.low, term == 2 ? low[n] : high[n]);
    }
}
/* Everything of the state but the second layer's biases in registers, and back. */
struct ttt_mlp_state {
    float W1[2][8][4], W2[4][4][4], b1[4][2];
};
template <bool OUT, typename HEAD> __device__ __forceinline__ void mlp_state(HEAD &x, ttt_mlp_state &y, float2 &offset)
{
    const ttt_place<MLP_D> at;
    const int warp = at.id / 32, first = MLP_OWN * warp;
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
            for (int q = 0; q < 4; q++) go(y.W1[m][j][q], x.w.W[0].row(8 * j + 2 * at.c + q % 2)[first + 16 * m + at.r + q / 2 * 8]);
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) go(y.W2[m][j][q], x.w.W[1].row(first + 8 * j + 2 * at.c + q % 2)[16 * m + at.r + q / 2 * 8]);
    if (!OUT || at.r == 0)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) go(y.b1[n][e], x.w.b[0][first + 8 * n + 2 * at.c + e]);
    if (!OUT || warp == 0) go(offset.x, x.w.b[1][2 * at.lane]), go(offset.y, x.w.b[1][2 * at.lane + 1]);
}
/* z of the first layer of rows of tokens, from weights in halves or rounded. */
template <bool HALVES> __device__ __forceinline__ void mlp_first(const ttt_mlp_state &y, const bf16 *rows, float (&z)[4][4])
{
    const ttt_place<MLP_D> at;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int q = 0; q < 4; q++) z[n][q] = y.b1[n][q % 2];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t k[4];
        ldmatrix_x4(k, shared_address(rows) + at.turned() + p * 32);
        if (!HALVES) {
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t w[4];
                round_tiles(w, y.W1[m][2 * p], y.W1[m][2 * p + 1]);
                mma_state(z[2 * m], z[2 * m + 1], k, w);
            }
            continue;
        }
        const ttt_halves w[2] = { halves_of(y.W1[0][2 * p], y.W1[0][2 * p + 1]), halves_of(y.W1[1][2 * p], y.W1[1][2 * p + 1]) };
#pragma unroll
        for (int term = 0; term < 2; term++)
#pragma unroll
            for (int m = 0; m < 2; m++) mma_state(z[2 * m], z[2 * m + 1], k, term ? w[m].high : w[m].low);
    }
}
/* The update, from X2 and last.u1 of the warp's columns in shared memory, u1 times its step sizes in registers too, and u2: of all but the second
 * layer's biases, and of those. */
__device__ __forceinline__ void mlp_update(const ttt_mlp_room &room, ttt_mlp_state &y, const bf16 *K, const float (&step)[4][4], float bias)
{
    const int warp = (int)threadIdx.x / 32;
    add_first(y.W1, K, room.u[warp]);
    add_second(y.W2, room.u2[2], room.u2[3], room.x[warp]);
#pragma unroll
    for (int n = 0; n < 4 && bias; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = step[n][e] + step[n][e + 2];
#pragma unroll
            for (int o = 4; o <= 16; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
            y.b1[n][e] += sum;
        }
}
__device__ __forceinline__ void mlp_update_offset(const ttt_mlp_room &room, const ttt_tile_steps &steps, float bias, float2 &offset)
{
#pragma unroll
    for (int j = 0; j < TILE_TOKENS && bias; j++) {
        const float by = steps.of_last(j) * steps.rate[j];
        const float2 u = *(const float2 *)(room.u2_whole + j * MLP_SUMS + (int)threadIdx.x % 32 * 2);
        offset.x -= by * u.x, offset.y -= by * u.y;
    }
}
/* Sums over the warps of what each has of the norm, two columns a lane: put is told of 64 of its weights and 64 of its offsets. part: for 2 x 8 x 64
 * floats, which nobody reads any more. */
template <typename F> __device__ __forceinline__ void mlp_norm_sums(float *part, float2 w, float2 b, F put)
{
    const int id = (int)threadIdx.x, at = id / 32 * MLP_D + id % 32 * 2;
    *(float2 *)(part + at) = w;
    *(float2 *)(part + TTT_WARPS * MLP_D + at) = b;
    __syncthreads();
    if (id < 2 * MLP_D) {
        float sum = 0;
        for (int i = 0; i < TTT_WARPS; i++) sum += part[(id / MLP_D * TTT_WARPS + i) * MLP_D + id % MLP_D];
        put(id, sum);
    }
    __syncthreads();
}

#endif
