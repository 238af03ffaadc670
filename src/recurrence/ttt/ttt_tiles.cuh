/* Mini-batches of 16 tokens with a state [D,D] in the registers of a CTA's warps, bf16 (README.md): what the tile forms of the ttt core share.
 *
 * A warp has 16 columns of a state, all rows: as tiles of mma.cuh it holds the state's transpose, 16 columns by 8 rows a tile, whose neighbours pack
 * into an operand as they are. So products with rows of tokens give transposes too: x[t][q] of a thread is column first + 8 (q / 2) of token
 * 8 t + 2 c + q % 2 ("a slice"), and a slice packs into the operand of the state's update. Nothing of a state leaves its registers.
 * What is no number of bf16 (states, gradients u, coefficients) is two of them in products: a term loses 2^-16.
 *
 * With D = 64 a state has columns for four warps: the other four do the same work again and keep it to themselves. */
#ifndef LNT_TTT_TILES_CUH
#define LNT_TTT_TILES_CUH

#include "recurrence/ttt/ttt_cuda.cuh"

static constexpr int TILE_TOKENS = 16, TILE_ETA = 20; /* rows of step sizes, apart in banks */

#define TTT_SLICE(t, q)                                                                                                            \
    _Pragma("unroll") for (int t = 0; t < 2; t++) _Pragma("unroll") for (int q = 0; q < 4; q++)

struct ttt_halves {
    uint32_t high[4], low[4];
};
/* Two tiles side by side, an A of the next product. */
__device__ __forceinline__ ttt_halves halves_of(const float (&left)[4], const float (&right)[4])
{
    ttt_halves y;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const ttt_split s = split_pair(q < 2 ? left[2 * q] : right[2 * q - 4], q < 2 ? left[2 * q + 1] : right[2 * q - 3]);
        y.high[q] = s.high, y.low[q] = s.low;
    }
    return y;
}
__device__ __forceinline__ void mma_halves(float (&acc)[4], const ttt_halves &a, uint32_t b0, uint32_t b1)
{
    mma_bf16(acc, a.low, b0, b1);
    mma_bf16(acc, a.high, b0, b1);
}
/* acc [.,16] += A B, B [16 k][16 n] from the tiles of its transpose: x[t][q] has n = r + 8 (q / 2), k = 8 t + 2 c + q % 2. */
__device__ __forceinline__ void mma_square(float (&acc)[2][4], const ttt_halves &a, const float (&x)[2][4])
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const ttt_split b0 = split_pair(x[0][2 * n], x[0][2 * n + 1]), b1 = split_pair(x[1][2 * n], x[1][2 * n + 1]);
        mma_halves(acc[n], a, b0.high, b1.high);
        mma_bf16(acc[n], a.high, b0.low, b1.low);
    }
}

/* A thread's place. */
template <int D> struct ttt_place {
    static constexpr int WARPS = D / 16, LD = D + 8, ROWS = TILE_TOKENS * LD; /* rows of bf16 in shared memory */
    int id, lane, warp, r, c, first;
    bool mine;
    __device__ __forceinline__ ttt_place()
    {
        id = (int)threadIdx.x, lane = id % 32, warp = id / 32 % WARPS, r = lane >> 2, c = lane & 3, first = 16 * warp + r;
        mine = id / 32 < WARPS;
    }
    /* Tokens and columns of a slice. */
    __device__ __forceinline__ int token(int e) const { return 8 * (e / 2) + 2 * c + e % 2; }
    __device__ __forceinline__ int token(int t, int q) const { return token(2 * t + q % 2); }
    __device__ __forceinline__ int column(int q) const { return first + 8 * (q / 2); }
    __device__ __forceinline__ int at(int t, int q) const { return token(t, q) * LD + column(q); }
    /* Of ldmatrix: [n][k] as B, and with trans [k][n] as B or, plainly, [m][k] as A. Bytes. */
    __device__ __forceinline__ uint32_t plain() const { return (uint32_t)(((lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 8) * 2); }
    __device__ __forceinline__ uint32_t turned() const { return (uint32_t)(((lane / 8 % 2 * 8 + lane % 8) * LD + lane / 16 * 8) * 2); }
};

/* Of 2 HALF values each lane of a pair, o apart, keeps one half and adds what the other has of it; and back, where both get both. Not a loop over o
 * and HALF: the compiler leaves that one standing, and its array in local memory. */
template <int HALF, int ALL> __device__ __forceinline__ void fold_values(float (&v)[ALL], int lane, int o)
{
    const bool upper = lane & o;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        const float give = upper ? v[k] : v[k + HALF], keep = upper ? v[k + HALF] : v[k];
        v[k] = keep + __shfl_xor_sync(~0u, give, o);
    }
}
template <int HALF, int ALL> __device__ __forceinline__ void unfold_values(float (&v)[ALL], int lane, int o)
{
    const bool upper = lane & o;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        const float other = __shfl_xor_sync(~0u, v[k], o), mine = v[k];
        v[k] = upper ? other : mine, v[k + HALF] = upper ? mine : other;
    }
}
/* Sums over the columns of tokens, x[n][e] of token(e), the same bits in every thread; sums: tile_sums(N) floats of their own. Has a barrier. The
 * eight lanes with a token's columns share out their values while they add them, one adds what the warps have of its own, and all get all again. */
__host__ __device__ constexpr int tile_sums(int n) { return (n + 1) / 2 * TTT_WARPS * 32; }
template <int D, int N> __device__ __forceinline__ void sum_columns(const ttt_place<D> &y, float (&x)[N][4], float *sums)
{
    constexpr int OWN = (N + 1) / 2, ALL = 8 * OWN;
    float v[ALL];
#pragma unroll
    for (int k = 0; k < ALL; k++) v[k] = k < 4 * N ? x[k / 4 < N ? k / 4 : 0][k % 4] : 0.0f;
    fold_values<4 * OWN>(v, y.lane, 16);
    fold_values<2 * OWN>(v, y.lane, 8);
    fold_values<OWN>(v, y.lane, 4);
    if (y.mine)
#pragma unroll
        for (int k = 0; k < OWN; k++) sums[(k * ttt_place<D>::WARPS + y.warp) * 32 + y.lane] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        float s[ttt_place<D>::WARPS];
#pragma unroll
        for (int w = 0; w < ttt_place<D>::WARPS; w++) s[w] = sums[(k * ttt_place<D>::WARPS + w) * 32 + y.lane];
        v[k] = (s[0] + s[1]) + (s[2] + s[3]);
        if constexpr (D == 128) v[k] += (s[4] + s[5]) + (s[6] + s[7]);
    }
    unfold_values<OWN>(v, y.lane, 4);
    unfold_values<2 * OWN>(v, y.lane, 8);
    unfold_values<4 * OWN>(v, y.lane, 16);
#pragma unroll
    for (int k = 0; k < 4 * N; k++) x[k / 4][k % 4] = v[k];
}
/* Over the tokens of one of a thread's columns. */
__device__ __forceinline__ float sum_tokens(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* A call and a head of it in registers: the walk's own copy is two loads away each time. */
struct ttt_tile_call {
    struct {
        const void *q, *k, *v, *eta, *rate, *theta, *alpha, *dout;
        void *o, *dq, *dk, *dv, *deta, *drate, *dtheta, *dalpha;
        int H;
        float bias;
    } a;
    int h;
    template <typename HEAD> __device__ __forceinline__ ttt_tile_call(const HEAD &x)
        : a{ x.a.q, x.a.k, x.a.v, x.a.eta, x.a.rate, x.a.theta, x.a.alpha, x.a.dout, x.a.o, x.a.dq, x.a.dk, x.a.dv, x.a.deta, x.a.drate, x.a.dtheta,
             x.a.dalpha, x.a.H, (float)x.a.bias },
          h(x.h)
    {
    }
};

/* Rows of a head of x [T,H,D] on their way into shared memory, [N][16][LD]; absent ones are zeros. 16 bytes of each a thread. */
template <int D, int N>
__device__ __forceinline__ void fetch_rows(bf16 *to, const void *const (&from)[N], int64_t t, int H, int h)
{
    constexpr int EACH = D / 8;
    static_assert(TILE_TOKENS * EACH <= TTT_THREADS);
    const int row = (int)threadIdx.x / EACH, column = (int)threadIdx.x % EACH * 8;
    if (TILE_TOKENS * EACH < TTT_THREADS && row >= TILE_TOKENS) return;
    const int64_t at = ((t + row) * H + h) * D + column;
    const uint32_t place = shared_address(to + row * ttt_place<D>::LD + column);
#pragma unroll
    for (int n = 0; n < N; n++) cp_async_16(place + n * ttt_place<D>::ROWS * (int)sizeof(bf16), (const bf16 *)from[n] + at, from[n] != NULL);
}
/* And back. */
template <int D> __device__ __forceinline__ void put_rows(void *to, const bf16 *from, int64_t t, int H, int h)
{
    constexpr int EACH = D / 8;
    const int row = (int)threadIdx.x / EACH, column = (int)threadIdx.x % EACH * 8;
    if (TILE_TOKENS * EACH < TTT_THREADS && row >= TILE_TOKENS) return;
    *(uint4 *)((bf16 *)to + ((t + row) * H + h) * D + column) = *(const uint4 *)(from + row * ttt_place<D>::LD + column);
}

/* A warp's columns of a state from a matrix and to it. */
template <int D> __device__ __forceinline__ void take_state(const ttt_place<D> &y, float (&W)[D / 8][4], ttt_matrix from)
{
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) W[j][q] = from.row(8 * j + 2 * y.c + q % 2)[y.column(q)];
}
template <int D> __device__ __forceinline__ void give_state(const ttt_place<D> &y, ttt_matrix to, const float (&W)[D / 8][4])
{
    if (!y.mine) return;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) to.row(8 * j + 2 * y.c + q % 2)[y.column(q)] = W[j][q];
}
/* W += x^T u, x rows in shared memory, u a slice. */
template <int D> __device__ __forceinline__ void add_outer(const ttt_place<D> &y, float (&W)[D / 8][4], const bf16 *x, const ttt_halves &u)
{
    const uint32_t from = shared_address(x) + y.turned();
#pragma unroll
    for (int p = 0; p < D / 16; p++) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, from + p * 32);
        mma_halves(W[2 * p], u, b[0], b[1]);
        mma_halves(W[2 * p + 1], u, b[2], b[3]);
    }
}
/* z += W^T x of the warp's columns, x rows in shared memory; what the halves of W make is added up by itself. */
template <int D> __device__ __forceinline__ void add_read(const ttt_place<D> &y, float (&z)[2][4], const float (&W)[D / 8][4], const bf16 *x)
{
    const uint32_t from = shared_address(x) + y.plain();
    float low[2][4] = {};
#pragma unroll
    for (int p = 0; p < D / 16; p++) {
        uint32_t b[4];
        ldmatrix_x4(b, from + p * 32);
        const ttt_halves w = halves_of(W[2 * p], W[2 * p + 1]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(z[n], w.high, b[2 * n], b[2 * n + 1]);
            mma_bf16(low[n], w.low, b[2 * n], b[2 * n + 1]);
        }
    }
    TTT_SLICE(n, q) z[n][q] += low[n][q];
}
/* B fragments read plainly are an A in another order. */
__device__ __forceinline__ void as_rows(uint32_t (&a)[4], const uint32_t (&b)[4]) { a[0] = b[0], a[1] = b[2], a[2] = b[1], a[3] = b[3]; }
/* The upper half of an operand made of a state, as rows [columns][LD] of bf16. */
template <int D> __device__ __forceinline__ void put_plane(const ttt_place<D> &y, bf16 *plane, int p, const uint32_t (&high)[4])
{
    if (!y.mine) return;
    bf16 *to = plane + y.first * y.LD + 16 * p + 2 * y.c;
    *(uint32_t *)to = high[0], *(uint32_t *)(to + 8 * y.LD) = high[1];
    *(uint32_t *)(to + 8) = high[2], *(uint32_t *)(to + 8 * y.LD + 8) = high[3];
}
/* A slice, rounded, as rows of tokens. */
template <int D> __device__ __forceinline__ void put_slice(const ttt_place<D> &y, bf16 *rows, const float (&x)[2][4])
{
    if (!y.mine) return;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int q = 0; q < 4; q++) rows[y.at(t, q)] = from_float<bf16>(x[t][q]);
}
/* The same in two halves. */
template <int D> __device__ __forceinline__ void put_slices(const ttt_place<D> &y, bf16 *high, bf16 *low, const float (&x)[2][4])
{
    if (!y.mine) return;
    TTT_SLICE(t, q)
    {
        const bf16 h = from_float<bf16>(x[t][q]);
        high[y.at(t, q)] = h;
        low[y.at(t, q)] = from_float<bf16>(x[t][q] - to_float(h));
    }
}
/* Slices in a record, [t][thread] of four. */
template <int D> __device__ __forceinline__ void record_slice(const ttt_place<D> &y, float *to, const float (&x)[2][4])
{
    if (y.mine)
#pragma unroll
        for (int t = 0; t < 2; t++) ((float4 *)to)[t * 2 * D + y.id] = make_float4(x[t][0], x[t][1], x[t][2], x[t][3]);
}
template <int D> __device__ __forceinline__ void recorded_slice(const ttt_place<D> &y, float (&x)[2][4], const float *from)
{
#pragma unroll
    for (int t = 0; t < 2; t++) {
        const float4 v = ((const float4 *)from)[t * 2 * D + y.id % (2 * D)];
        x[t][0] = v.x, x[t][1] = v.y, x[t][2] = v.z, x[t][3] = v.w;
    }
}

/* A norm's weights and offsets of a thread's columns. */
struct ttt_tile_norm {
    float w[2], b[2];
    __device__ __forceinline__ float of(int q) const { return w[q / 2]; }
};

/* ---- records ----------------------------------------------------------------------------------------------------------------------------------- */

static inline const char *ttt_tiles_decline(const lnt_ttt_args *a)
{
    if (a->dtype != LINNET_BF16) return "it computes in bf16";
    if (a->mini_batch != TILE_TOKENS) return "it takes mini-batches of 16 tokens";
    if (a->inner != LNT_TTT_LN) return "it takes inner = ln";
    return a->D == 64 || a->D == 128 ? NULL : "it takes 64 or 128 columns";
}
#define TTT_TILES(DECLINES, WORKSPACE, FORWARD, BACKWARD)                                                                          \
    {                                                                                                                              \
        .name = "chunk-tiles", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = DECLINES,            \
        .workspace = WORKSPACE, .forward = NULL, .backward = NULL, .put_forward = FORWARD, .put_backward = BACKWARD,               \
    }

#endif
