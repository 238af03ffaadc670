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
    float *parameters;    /* [PARAMETERS,D,M] */
    float *kept;          /* the states in front of the tiles, [T / TILE + N,D,MODES,2] */
    float *seeds;         /* what comes back to a sequence's last whole chunk, [N,D,MODES,2] */
    float *sums, *dskips; /* [N,SUMS_OF_NUMBER,D,M], [N,D] */
    const int64_t *cu;
    int D, M, strips, bilinear;
};

/* The walks on Hopper, whose copy engine brings rows and takes them away; `keep`: for the way back. False: nothing was put. */
bool lnt_s4d_walk_sm90(const tiles_args &p, int64_t rows, unsigned ctas, bool keep, const lnt_cuda *d);
bool lnt_s4d_back_sm90(const tiles_args &p, int64_t rows, unsigned ctas, const lnt_cuda *d);

namespace {

constexpr int CHUNK = 32, CHUNKS = 16, TILE = CHUNK * CHUNKS, MODES = 32;
constexpr int PITCH = CHUNK + 8;       /* bf16 of a row of tokens: 16 bytes of eight rows lie in 32 banks */
constexpr int NUMBERS = 2 * MODES + 8; /* the same of a state's real and imaginary parts */
constexpr int SUMS = MODES + 4;        /* complex numbers of a row: eight bytes of four rows and four columns lie in 32 banks */

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

/* A warp's channel of a sequence; a lane has a number of its state. */
struct standing {
    int lane, channel;
    int64_t n, begin, end;
    bool there, real; /* the channel, the number */

    __device__ __forceinline__ standing(const tiles_args &p, int of_cta, int channels)
    {
        lane = (int)threadIdx.x % 32, channel = (int)(blockIdx.x % p.strips) * channels + of_cta;
        n = blockIdx.x / p.strips, begin = p.cu[n], end = p.cu[n + 1];
        there = channel < p.D, real = there && lane < p.M;
    }
    /* one of PARAMETERS and the next */
    __device__ __forceinline__ number parameter(const tiles_args &p, int which) const
    {
        const int64_t all = (int64_t)p.D * p.M, at = (int64_t)channel * p.M + lane;
        return real ? number{ p.parameters[which * all + at], p.parameters[(which + 1) * all + at] } : number{};
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
    __device__ __forceinline__ number *kept(const tiles_args &p, int64_t tile) const
    {
        return (number *)p.kept + ((begin / TILE + n + tile) * p.D + channel) * MODES + lane;
    }
    __device__ __forceinline__ number *seed(const tiles_args &p) const { return (number *)p.seeds + (n * p.D + channel) * MODES + lane; }
    /* one of SUMS_OF_NUMBER and the next */
    __device__ __forceinline__ float *sum(const tiles_args &p, int which) const
    {
        return p.sums + ((n * SUMS_OF_NUMBER + which) * p.D + channel) * (int64_t)p.M + lane;
    }
};

/* The lane, as if nothing were known of it: addresses that follow from it are made where they are used, and do not wait on the stack. */
__device__ __forceinline__ int lane_here()
{
    int lane = (int)threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    return lane;
}

/* ---- rows of memory and rows of tokens --------------------------------------------------------------------------------------------------- */

using channel_tile = bf16[CHUNKS][PITCH];

/* 8 HALVES channels' tiles. A channel lies four banks behind the one before, eight channels eight banks more. */
template <int HALVES> struct channel_tiles {
    static constexpr int APART = CHUNKS * PITCH + 8;
    bf16 x[HALVES * (8 * APART + 16)];

    __device__ __forceinline__ channel_tile &of(int channel) { return *(channel_tile *)&x[channel * APART + channel / 8 * 16]; }
};

/* A chunk of 8 HALVES channels between memory and tiles, all by one warp: nobody else has to be waited for. */
template <int HALVES> struct chunk_stage {
    uint4 x[CHUNK * HALVES];

    /* eight tokens' 16 bytes lie in 32 banks */
    __device__ __forceinline__ uint4 &at(int token, int half) { return x[HALVES * token + (HALVES == 2 ? half ^ token % 8 / 4 : 0)]; }
    /* Rows t .. of x [.,D], whose columns `columns` are there, on their way; what is not there is zero. */
    __device__ __forceinline__ void fetch(const bf16 *from, int64_t t, int64_t end, int D, int columns)
    {
        const int lane = lane_here(), half = lane % HALVES;
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
            const int token = (lane + 32 * i) / HALVES;
            const bool real = t + token < end && 8 * half < columns;
            cp_async_16(shared_address(&at(token, half)), real ? from + (t + token) * D + 8 * half : from, real);
        }
    }
    __device__ __forceinline__ void turn_in(channel_tiles<HALVES> &to, int chunk)
    {
        const int lane = lane_here(), r = lane / 4, c = lane % 4;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            uint32_t x[4]; /* of channel r, tokens 8 i + 2 c and the next */
            ldmatrix_x4_trans(x, shared_address(&at(lane, half)));
#pragma unroll
            for (int i = 0; i < 4; i++) *(uint32_t *)&to.of(8 * half + r)[chunk][8 * i + 2 * c] = x[i];
        }
    }
};

/* A chunk's row of the tiles to rows t .. of x [.,D]. */
template <int HALVES>
__device__ __forceinline__ void turn_out(bf16 *to, channel_tiles<HALVES> &from, int chunk, int64_t t, int64_t end, int D, int columns)
{
    const int lane = lane_here(), r = lane / 4, c = lane % 4;
    const int of = lane / 8, row = lane % 8;
    uint32_t x[4];
    if constexpr (HALVES == 1) {
        ldmatrix_x4_trans(x, shared_address(&from.of(row)[chunk][8 * of])); /* of token 8 i + r, channels 2 c and the next */
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (t + 8 * i + r < end) *(uint32_t *)(to + (t + 8 * i + r) * D + 2 * c) = x[i];
    } else
#pragma unroll
        for (int q = 0; q < CHUNK / 16; q++) { /* of token 16 q + 8 i + r, channels 4 c and three more */
            ldmatrix_x4_trans(x, shared_address(&from.of(row / 2 * 4 + of % 2 * 2 + row % 2)[chunk][16 * q + of / 2 * 8]));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t token = t + 16 * q + 8 * i + r;
                if (token < end && 4 * c < columns) *(uint2 *)(to + token * D + 4 * c) = { x[2 * i], x[2 * i + 1] };
            }
        }
}

/* The left side of a product: 16 columns, from 16 k on, of 16 rows. */
template <int COLUMNS> __device__ __forceinline__ void left(uint32_t (&a)[4], const bf16 (&rows)[CHUNKS][COLUMNS], int k)
{
    const int lane = lane_here();
    ldmatrix_x4(a, shared_address(&rows[lane % 16][16 * k + lane / 16 * 8]));
}

/* An 8x8 matrix as a register of each lane has it (row r, columns 2 c and the next), transposed. */
__device__ __forceinline__ uint32_t movmatrix(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Sums of tokens, to rows of them. */
__device__ __forceinline__ void put_tokens(channel_tile &to, const float (&d)[CHUNK / 8][4])
{
    const int lane = lane_here(), r = lane / 4, c = lane % 4;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
        *(uint32_t *)&to[r][8 * n + 2 * c] = pack_bf16(d[n][0], d[n][1]), *(uint32_t *)&to[r + 8][8 * n + 2 * c] = pack_bf16(d[n][2], d[n][3]);
}

} // namespace

#endif
