/* S4D on tensor cores, bf16 (README.md): what both directions share. CHUNK tokens of a channel are a row of 16; CHUNKS such rows make a tile. */
#ifndef LNT_S4D_TILES_CUH
#define LNT_S4D_TILES_CUH

#include "device/mma.cuh"
#include "recurrence/decay/decay_vector.cuh"
#include "recurrence/scan/fold.cuh"
#include "recurrence/scan/s4d_gradients.cuh"

/* What the kernels of both directions take. */
struct tiles_args {
    const bf16 *u, *dout; /* dout NULL: zeros */
    const float *dt, *A_re, *A_im, *C_re, *C_im, *skip, *s0, *dsT;
    bf16 *o, *du;
    float *sT, *ds0;      /* o, du, sT, ds0 NULL: not wanted */
    float *parameters;    /* [PARAMETERS,D,M], of the way back */
    float *sums, *dskips; /* [N,SUMS_OF_NUMBER,D,M], [N,D] */
    const int64_t *cu;
    int D, M, strips, bilinear;
    int behind_walk; /* the sums, of du's walk */
};

/* The kernels on Hopper, whose copy engine brings rows and takes them away; `back`: in reverse. False: nothing was put. */
bool lnt_s4d_walk_sm90(const tiles_args &p, int64_t rows, unsigned ctas, bool back, const lnt_cuda *d);
bool lnt_s4d_sums_sm90(const tiles_args &p, int64_t rows, unsigned ctas, const lnt_cuda *d);

namespace {

constexpr int CHUNK = 32, CHUNKS = 16, TILE = CHUNK * CHUNKS, MODES = 32;
constexpr int WARPS = 16, THREADS = 32 * WARPS; /* a warp a channel; of every tile it brings one chunk of all channels */
static_assert(WARPS == CHUNKS);
constexpr int PITCH = CHUNK + 8; /* bf16 of a row of tokens: 16 bytes of eight rows lie in 32 banks */

/* Tiles at once. While a warp makes tile k, others may be as far as the beginning of tile k + 1, or still with the end of tile k - 1: a warp brings
 * its part of tile k + 1 ahead of tile k, and takes away its part of tile k - 2. */
constexpr int SLOTS = 3;

/* Of each number of a state: Abar, twice C Bbar, Abar^CHUNK. */
enum { A_RE, A_IM, K_RE, K_IM, FAR_RE, FAR_IM, PARAMETERS };

struct number {
    float re, im;
};
/* a z + x */
__device__ __forceinline__ number turned(number a, number z, number x = {})
{
    return { fmaf(a.re, z.re, fmaf(-a.im, z.im, x.re)), fmaf(a.re, z.im, fmaf(a.im, z.re, x.im)) };
}
__device__ __forceinline__ number conjugate(number x) { return { x.re, -x.im }; }
/* x + f z */
__device__ __forceinline__ number added(number x, float f, number z) { return { fmaf(f, z.re, x.re), fmaf(f, z.im, x.im) }; }

/* Of a number of a state, in double as everywhere. */
struct channel_parameters {
    number A, K, far;

    channel_parameters() = default;
    __device__ __forceinline__ channel_parameters(const tiles_args &p, int64_t i)
    {
        const s4d_step s = discretize(p.bilinear, p.dt[i / p.M], { p.A_re[i], p.A_im[i] });
        const complex64 C = 2. * (complex64{ p.C_re[i], p.C_im[i] } * s.B);
        complex64 power = s.A;
        for (int n = 1; n < CHUNK; n *= 2) power = power * power;
        A = { (float)s.A.re, (float)s.A.im }, K = { (float)C.re, (float)C.im }, far = { (float)power.re, (float)power.im };
    }
};

/* A warp's channel of a sequence; a lane has a number of its state. */
struct standing {
    int lane, channel;
    int64_t n, begin, end;
    bool there, real; /* the channel, the number */

    __device__ __forceinline__ standing(const tiles_args &p)
    {
        lane = (int)threadIdx.x % 32, channel = (int)(blockIdx.x % p.strips) * WARPS + (int)threadIdx.x / 32;
        n = blockIdx.x / p.strips, begin = p.cu[n], end = p.cu[n + 1];
        there = channel < p.D, real = there && lane < p.M;
    }
    __device__ __forceinline__ channel_parameters new_parameters(const tiles_args &p) const
    {
        return real ? channel_parameters(p, (int64_t)channel * p.M + lane) : channel_parameters{};
    }
    __device__ __forceinline__ channel_parameters parameters(const tiles_args &p) const
    {
        const int64_t all = (int64_t)p.D * p.M, at = (int64_t)channel * p.M + lane;
        if (!real) return {};
        const auto two = [&](int which) { return number{ p.parameters[which * all + at], p.parameters[(which + 1) * all + at] }; };
        channel_parameters x;
        x.A = two(A_RE), x.K = two(K_RE), x.far = two(FAR_RE);
        return x;
    }
    /* x [N,2,D,M] */
    __device__ __forceinline__ int64_t part(const tiles_args &p, int i) const { return ((2 * n + i) * p.D + channel) * p.M + lane; }
    __device__ __forceinline__ number state(const tiles_args &p, const float *x) const
    {
        return real && x ? number{ x[part(p, 0)], x[part(p, 1)] } : number{};
    }
    __device__ __forceinline__ void put_state(const tiles_args &p, float *x, number h) const
    {
        if (real && x) x[part(p, 0)] = h.re, x[part(p, 1)] = h.im;
    }
    /* one of SUMS_OF_NUMBER and the next */
    __device__ __forceinline__ float *sum(const tiles_args &p, int which) const
    {
        return p.sums + ((n * SUMS_OF_NUMBER + which) * p.D + channel) * (int64_t)p.M + lane;
    }
};

/* The lane, as if nothing were known of it: addresses that follow from it are made where they are used, and do not wait on the stack. */
__device__ __forceinline__ int lane_here()
{
    unsigned lane = threadIdx.x;
    asm volatile("" : "+r"(lane));
    return (int)(lane % 32);
}

/* The warp, as one number of all its lanes: what follows from it is made once, and the copy engine takes it as it is. */
__device__ __forceinline__ int warp_here() { return __shfl_sync(~0u, (int)threadIdx.x / 32, 0); }

/* ---- rows of memory and rows of tokens --------------------------------------------------------------------------------------------------- */

using channel_tile = bf16[CHUNKS][PITCH];

/* The tile's row of a chunk: as columns of a product, 2 c and 2 c + 1 of two tiles are chunks 4 c and the next three. */
__device__ __forceinline__ int row_of(int chunk) { return chunk / 2 % 2 * 8 + chunk / 4 * 2 + chunk % 2; }

/* Four such matrices to shared memory, TRANS: transposed; lane 8 i + j has the address of row j of matrix i. */
template <bool TRANS> __device__ __forceinline__ void put_matrices(uint32_t row, const uint32_t (&x)[4])
{
    if constexpr (TRANS)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
}
/* The eight numbers of row j of matrix i to row(i, j). HOPPER: at once. */
template <bool HOPPER, bool TRANS, typename F> __device__ __forceinline__ void put_matrices(const F &row, const uint32_t (&x)[4])
{
    const int lane = lane_here();
    if constexpr (HOPPER) {
        put_matrices<TRANS>(shared_address(row(lane / 8, lane % 8)), x);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) ((uint32_t *)row(i, lane / 4))[lane % 4] = TRANS ? movmatrix(x[i]) : x[i];
    }
}

/* Tiles of the CTA's channels. A channel lies four banks behind the one before, eight channels eight banks more. */
struct channel_tiles {
    static constexpr int APART = CHUNKS * PITCH + 8;
    bf16 x[WARPS * APART + 2 * 16];

    __device__ __forceinline__ channel_tile &of(int channel) { return *(channel_tile *)&x[channel * APART + channel / 8 * 16]; }
};

/* A chunk of the CTA's channels between memory and tiles, all by one warp: nobody else has to be waited for. REVERSED: the last token first in the
 * tile. */
struct chunk_stage {
    uint4 x[2 * CHUNK];

    /* eight tokens' 16 bytes lie in 32 banks */
    __device__ __forceinline__ uint4 &at(int token, int half) { return x[2 * token + (half ^ token % 8 / 4)]; }
    /* Rows t .. of x [.,D], whose columns `columns` are there, on their way; what is not there, or not from `begin` to `end`, is zero. */
    __device__ __forceinline__ void fetch(const bf16 *from, int64_t t, int64_t begin, int64_t end, int D, int columns)
    {
        const int lane = lane_here(), half = lane % 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t token = t + lane / 2 + 16 * i;
            const bool real = token >= begin && token < end && 8 * half < columns;
            cp_async_16(shared_address(&at(lane / 2 + 16 * i, half)), real ? from + token * D + 8 * half : from, real);
        }
    }
    template <bool REVERSED> __device__ __forceinline__ void turn_in(channel_tiles &to, int chunk)
    {
        const int lane = lane_here();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[4]; /* of channel r, tokens 8 i + 2 c and the next */
            ldmatrix_x4_trans(x, shared_address(&at(REVERSED ? CHUNK - 1 - lane : lane, half)));
            put_matrices<false, false>([&](int i, int j) { return &to.of(8 * half + j)[row_of(chunk)][8 * i]; }, x);
        }
    }
};

/* A chunk's row of the tiles to f(token, four channels' number, their 8 bytes). */
template <bool REVERSED, typename F> __device__ __forceinline__ void turn_out(channel_tiles &from, int chunk, const F &f)
{
    const int lane = lane_here(), r = lane / 4, c = lane % 4, of = lane / 8, row = lane % 8;
#pragma unroll
    for (int q = 0; q < CHUNK / 16; q++) { /* of place 16 q + 8 i + r, channels 4 c and three more */
        uint32_t x[4];
        ldmatrix_x4_trans(x, shared_address(&from.of(row / 2 * 4 + of % 2 * 2 + row % 2)[row_of(chunk)][16 * q + of / 2 * 8]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int token = 16 * q + 8 * i + r;
            f(REVERSED ? CHUNK - 1 - token : token, c, uint2{ x[2 * i], x[2 * i + 1] });
        }
    }
}

/* The right side of a product whose columns are the rows, of which 2 n and 2 n + 1 are those of columns 8 n. */
__device__ __forceinline__ void right_of_tokens(uint32_t (&b)[4], const channel_tile &rows, int k)
{
    const int lane = lane_here();
    ldmatrix_x4(b, shared_address(&rows[lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]));
}

/* All of a tile, as the right sides of products. */
using tokens_of_tile = uint32_t[CHUNK / 16][4];

/* Its outputs, tokens (rows) by chunks, as they come out of products; to rows of tokens. */
using outputs_of_tile = float[CHUNK / 16][2][4];

__device__ __forceinline__ void packed_outputs(uint32_t (&x)[4], const outputs_of_tile &d, int m)
{
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = pack_bf16(d[m][i / 2][i % 2 * 2], d[m][i / 2][i % 2 * 2 + 1]);
}
__device__ __forceinline__ void put_tokens(channel_tile &to, const outputs_of_tile &d)
{
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        uint32_t x[4];
        packed_outputs(x, d, m);
        put_matrices<false, true>([&](int i, int j) { return &to[i / 2 * 8 + j][16 * m + i % 2 * 8]; }, x);
    }
}

/* ---- the matrix of tokens to states --------------------------------------------------------------------------------------------------------- */

constexpr int WORDS = CHUNK / 2 + 4; /* pairs of tokens of a row: eight rows of four lie in 32 banks */

/* first Abar^(CHUNK-1-j) of number `lane` and token j, while it is made: real, imaginary parts in pairs of tokens. */
using powers_making = uint32_t[2][MODES * WORDS + 16];

__device__ __forceinline__ void make_powers(powers_making &w, number a, number power)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < CHUNK / 8; g++) {
        uint32_t re[4], im[4];
#pragma unroll
        for (int s = 3; s >= 0; s--) {
            const number next = turned(a, power);
            re[s] = pack_bf16(next.re, power.re), im[s] = pack_bf16(next.im, power.im);
            power = turned(a, next);
        }
        const int at = lane * WORDS + CHUNK / 2 - 4 - 4 * g;
        *(uint4 *)&w[0][at] = { re[0], re[1], re[2], re[3] };
        *(uint4 *)&w[1][at] = { im[0], im[1], im[2], im[3] };
    }
}
/* The left side of a product, 16 rows (numbers 8 m .., their real and then their imaginary parts) by 16 tokens; TO: 16 tokens by 16 such columns. */
template <bool TO> __device__ __forceinline__ void take_powers(uint32_t (&a)[4], const powers_making &w, int m, int k)
{
    const int lane = (int)threadIdx.x % 32, low = lane / 8 % 2, high = lane / 16;
    const uint32_t at = shared_address(&w[TO ? high : low][(8 * m + lane % 8) * WORDS + 8 * k + (TO ? low : high) * 4]);
    if constexpr (TO)
        ldmatrix_x4_trans(a, at);
    else
        ldmatrix_x4(a, at);
}
/* x's way into `w`, eight numbers' sums of each chunk: four of a lane that follow each other, 4 c and the next. */
__device__ __forceinline__ void sums_of_chunks(number (&s)[4], const uint32_t (&w)[CHUNK / 16][4], const tokens_of_tile &x)
{
    float d[2][4] = {};
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int n = 0; n < 2; n++) mma_bf16(d[n], w[k], x[k][2 * n], x[k][2 * n + 1]);
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = { d[i / 2][i % 2], d[i / 2][2 + i % 2] };
}
__device__ __forceinline__ number from_lane(number x, int lane) { return { __shfl_sync(~0u, x.re, lane), __shfl_sync(~0u, x.im, lane) }; }

/* What stands in front of a lane's four chunks and, in lanes of c = 0, behind the last: v is what a lane makes of its chunks, that of c = 0 from the
 * state h in front of the tile. With f for what four chunks do to what enters them (`four`; f^2: `eight`), in front stand h, v_0, v_1 + f v_0 and
 * v_2 + f v_1 + f^2 v_0, and behind v_3 + f v_2 + f^2 (v_1 + f v_0). */
__device__ __forceinline__ number in_front_of_lane(number v, number four, number eight)
{
    const int lane = (int)threadIdx.x % 32, c = lane % 4, back = (lane & ~3) | ((lane + 3) & 3);
    const number one = from_lane(v, back), two = turned(four, from_lane(one, back), one), y = c == 1 ? one : two;
    const number three = turned(eight, from_lane(y, lane ^ 2), y);
    return c == 1 || c == 2 ? y : three;
}

} // namespace

#endif
