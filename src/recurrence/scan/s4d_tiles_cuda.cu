/* S4D on tensor cores, bf16 (README.md): CHUNK tokens at a time as products of matrices that are the same for all chunks of a channel.
 *
 *   o of a chunk       = Toeplitz(k) u + 2 Re(K Abar^(1 .. CHUNK) h),  k_l = 2 Re(sum K Abar^l),  h: the state in front of the chunk
 *   h behind the chunk = Abar^CHUNK h + sum_j Abar^(CHUNK - 1 - j) u_j
 *
 * A warp has a channel, a CTA WARPS neighbours, from a sequence's first token to its last. The matrices are made once and stay in registers, as the
 * right sides of products whose rows are CHUNKS chunks; between those only the chain of h goes one by one, a lane a number. What comes from memory is
 * turned on its way, eight tokens of eight channels a thread, while a tile before it is worked on. Operands are rounded to bf16, sums and the chain
 * are float32. */
#include "device/mma.cuh"
#include "recurrence/recur_cuda.cuh"
#include "recurrence/scan/fold.cuh"
#include "recurrence/scan/s4d_steps.cuh"

namespace {

constexpr int CHUNK = 64, CHUNKS = 16, TILE = CHUNK * CHUNKS, WARPS = 8, MODES = 32, THREADS = 32 * WARPS;
constexpr int PITCH = CHUNK + 8;     /* bf16 of a row: 16 bytes of eight rows lie in 32 banks */
constexpr int WORDS = CHUNK / 2 + 4; /* the same of pairs */
constexpr int SUMS = MODES + 4;      /* complex numbers of a row: eight bytes of four rows and four columns lie in 32 banks */

/* Of each number of a state: Abar, twice C Bbar, Abar^CHUNK. */
enum { A_RE, A_IM, K_RE, K_IM, FAR_RE, FAR_IM, PARAMETERS };

struct tiles_args {
    const bf16 *u;
    const float *dt, *A_re, *A_im, *C_re, *C_im, *skip, *s0;
    bf16 *o;
    float *sT;         /* o, sT NULL: not wanted */
    float *parameters; /* [PARAMETERS,D,M] */
    const int64_t *cu;
    int D, M, strips, bilinear;
};

constexpr int SMALL_THREADS = 128;

__global__ __launch_bounds__(SMALL_THREADS) void tile_parameters(const __grid_constant__ tiles_args p)
{
    await_last();
    let_next();
    const int64_t i = (int64_t)blockIdx.x * SMALL_THREADS + threadIdx.x, all = (int64_t)p.D * p.M;
    if (i >= all) return;
    const s4d_step s = discretize(p.bilinear, p.dt[i / p.M], { p.A_re[i], p.A_im[i] });
    const complex64 K = 2. * (complex64{ p.C_re[i], p.C_im[i] } * s.B);
    complex64 far = s.A;
    for (int n = 1; n < CHUNK; n *= 2) far = far * far;
    const double value[PARAMETERS] = { s.A.re, s.A.im, K.re, K.im, far.re, far.im };
#pragma unroll
    for (int k = 0; k < PARAMETERS; k++) p.parameters[k * all + i] = (float)value[k];
}

struct number {
    float re, im;
};
/* a z + x */
__device__ __forceinline__ number turned(number a, number z, number x = {})
{
    return { fmaf(a.re, z.re, fmaf(-a.im, z.im, x.re)), fmaf(a.re, z.im, fmaf(a.im, z.re, x.im)) };
}

/* ---- the matrices of a channel ----------------------------------------------------------------------------------------------------------- */

/* While they are made: pairs of neighbours in the order in which they are summed over. */
struct making {
    uint32_t in[2][MODES * WORDS + 16]; /* real, imaginary parts [MODES][tokens] */
    uint32_t out[CHUNK][WORDS];         /* [tokens][(re, -im) of a number] */
    float k[CHUNK];
};

/* Right sides of products [.][16] [16][8], of a lane. */
struct matrices {
    uint32_t in[CHUNK / 16][MODES / 4][2];      /* tokens to numbers: real and imaginary part of one are neighbours */
    uint32_t out[MODES / 8][CHUNK / 8][2];      /* numbers to tokens */
    uint32_t within[CHUNK / 8][2];              /* tokens to tokens 8 e later */

    __device__ __forceinline__ void make(making &w, number a, number K, float skip);
};

__device__ __forceinline__ void matrices::make(making &w, number a, number K, float skip)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    number power = { 1.f, 0.f }, q = K;
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float k[32];
#pragma unroll
        for (int g = 0; g < 4; g++) {
            uint32_t re[4], im[4];
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const int l = 8 * g + 2 * s;
                const number next = turned(a, power);
                re[3 - s] = pack_bf16(next.re, power.re), im[3 - s] = pack_bf16(next.im, power.im);
                power = turned(a, next);
                const number after = turned(K, next);
                k[l] = q.re, k[l + 1] = after.re;
                w.out[32 * half + l][lane] = pack_bf16(after.re, -after.im);
                q = turned(K, power);
                w.out[32 * half + l + 1][lane] = pack_bf16(q.re, -q.im);
            }
            const int at = lane * WORDS + 28 - 4 * (4 * half + g);
            *(uint4 *)&w.in[0][at] = { re[0], re[1], re[2], re[3] };
            *(uint4 *)&w.in[1][at] = { im[0], im[1], im[2], im[3] };
        }
        fold<32, 16, 1>(k);
        w.k[32 * half + lane] = k[0] + (half == 0 && lane == 0 ? skip : 0.f);
    }
    __syncwarp();
    const auto lag = [&](int l) { return l < 0 ? 0.f : w.k[l]; };
#pragma unroll
    for (int e = 0; e < CHUNK / 8; e++) {
        const int l = 8 * e + r - 2 * c;
        within[e][0] = pack_bf16(lag(l), lag(l - 1)), within[e][1] = pack_bf16(lag(l - 8), lag(l - 9));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
            for (int n = 0; n < MODES / 4; n++) in[k][n][i] = w.in[r % 2][(4 * n + r / 2) * WORDS + 8 * k + 4 * i + c];
#pragma unroll
        for (int k = 0; k < MODES / 8; k++)
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) out[k][n][i] = w.out[8 * n + r][8 * k + 4 * i + c];
    }
}

/* ---- rows of memory and rows of tokens --------------------------------------------------------------------------------------------------- */

using channel_tile = bf16[CHUNKS][PITCH];
constexpr int BLOCKS = TILE / 8; /* of eight tokens: a thread's, of half a CTA */

/* Each second channel of two rows: low halves, high halves. */
__device__ __forceinline__ uint32_t lows(uint32_t x, uint32_t y) { return (x & 0xffffu) | y << 16; }
__device__ __forceinline__ uint32_t highs(uint32_t x, uint32_t y) { return x >> 16 | (y & 0xffff0000u); }

/* Rows t + 8 block .. of x [.,D], 16 bytes of each, on their way to shared memory; what is not there is zero. */
__device__ __forceinline__ void fetch_block(uint4 (&stage)[TILE], const bf16 *x, int64_t t, int64_t end, int D, int block)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t row = t + 8 * block + i;
        const bool real = row < end;
        cp_async_16(shared_address(&stage[8 * block + (i ^ block % 8)]), x + (real ? row * D : 0), real);
    }
    cp_async_commit();
}
__device__ __forceinline__ void turn_in(channel_tile *to, const uint4 (&stage)[TILE], int block)
{
    uint32_t x[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 v = stage[8 * block + (i ^ block % 8)];
        x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bf16 *low = &to[2 * i][block / 8][8 * (block % 8)], *high = &to[2 * i + 1][block / 8][8 * (block % 8)];
        *(uint4 *)low = { lows(x[0][i], x[1][i]), lows(x[2][i], x[3][i]), lows(x[4][i], x[5][i]), lows(x[6][i], x[7][i]) };
        *(uint4 *)high = { highs(x[0][i], x[1][i]), highs(x[2][i], x[3][i]), highs(x[4][i], x[5][i]), highs(x[6][i], x[7][i]) };
    }
}
__device__ __forceinline__ void turn_out(bf16 *x, const channel_tile *from, int64_t t, int64_t end, int D, int block)
{
    uint32_t y[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 v = *(const uint4 *)&from[i][block / 8][8 * (block % 8)];
        y[i][0] = v.x, y[i][1] = v.y, y[i][2] = v.z, y[i][3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t row = t + 8 * block + 2 * i;
        if (row < end) *(uint4 *)(x + row * D) = { lows(y[0][i], y[1][i]), lows(y[2][i], y[3][i]), lows(y[4][i], y[5][i]), lows(y[6][i], y[7][i]) };
        if (row + 1 < end)
            *(uint4 *)(x + (row + 1) * D) = { highs(y[0][i], y[1][i]), highs(y[2][i], y[3][i]), highs(y[4][i], y[5][i]), highs(y[6][i], y[7][i]) };
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------- */

struct fore_shared {
    uint4 stage[TILE];
    union {
        making matrices[WARPS];
        struct {
            channel_tile u[2][WARPS], o[2][WARPS];
            number sums[WARPS][CHUNKS][SUMS];
            bf16 states[WARPS][CHUNKS][PITCH];
        };
    };
};

/* The left side of a product: 16 columns, from 16 k on, of the tile's rows. */
__device__ __forceinline__ void left(uint32_t (&a)[4], const bf16 (&rows)[CHUNKS][PITCH], int k)
{
    const int lane = (int)threadIdx.x % 32;
    ldmatrix_x4(a, shared_address(&rows[lane % 16][16 * k + lane / 16 * 8]));
}

/* What the tokens of each chunk add to the state. */
__device__ __forceinline__ void chunk_sums(number (&to)[CHUNKS][SUMS], const uint32_t (&u)[CHUNK / 16][4], const matrices &w)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int n = 0; n < MODES / 4; n++) {
        float d[4] = {};
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) mma_bf16(d, u[k], w.in[k][n][0], w.in[k][n][1]);
        to[r][4 * n + c] = { d[0], d[1] }, to[r + 8][4 * n + c] = { d[2], d[3] };
    }
}
/* States in front of the chunks, the first `whole` of which the chain passes. */
__device__ __forceinline__ void chain(bf16 (&to)[CHUNKS][PITCH], const number (&sums)[CHUNKS][SUMS], number &h, number far, int whole)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t *out = (uint32_t *)&to[0][0] + lane;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        out[i * (PITCH / 2)] = pack_bf16(h.re, h.im);
        if (i < whole) h = turned(far, h, sums[i][lane]);
    }
}
__device__ __forceinline__ void chunk_outputs(channel_tile &to, const uint32_t (&u)[CHUNK / 16][4], const bf16 (&states)[CHUNKS][PITCH],
                                              const matrices &w)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    uint32_t h[MODES / 8][4];
#pragma unroll
    for (int k = 0; k < MODES / 8; k++) left(h[k], states, k);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        float d[4] = {};
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++)
            if (2 * k <= n) mma_bf16(d, u[k], w.within[n - 2 * k >= 0 ? n - 2 * k : 0][0], w.within[n - 2 * k >= 0 ? n - 2 * k : 0][1]);
#pragma unroll
        for (int k = 0; k < MODES / 8; k++) mma_bf16(d, h[k], w.out[k][n][0], w.out[k][n][1]);
        *(uint32_t *)&to[r][8 * n + 2 * c] = pack_bf16(d[0], d[1]), *(uint32_t *)&to[r + 8][8 * n + 2 * c] = pack_bf16(d[2], d[3]);
    }
}

__global__ __launch_bounds__(THREADS, 1) void tiles_forward(const __grid_constant__ tiles_args p)
{
    extern __shared__ __align__(16) unsigned char memory[];
    fore_shared &w = *(fore_shared *)memory;
    await_last();
    let_next();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int first = (int)(blockIdx.x % p.strips) * WARPS, channel = first + warp;
    const int64_t n = blockIdx.x / p.strips, begin = p.cu[n], end = p.cu[n + 1], tiles = (end - begin + TILE - 1) / TILE;
    /* half the CTA turns what comes, and the other half what goes */
    const bool brings = threadIdx.x < BLOCKS;
    const int block = (int)threadIdx.x % BLOCKS;
    if (brings) fetch_block(w.stage, p.u + first, begin, end, p.D, block);

    const int64_t all = (int64_t)p.D * p.M, at = (int64_t)channel * p.M + lane;
    const bool real = lane < p.M;
    const auto parameter = [&](int k) { return real ? number{ p.parameters[k * all + at], p.parameters[(k + 1) * all + at] } : number{}; };
    const auto state = [&](int part) { return ((2 * n + part) * p.D + channel) * p.M + lane; };
    const number a = parameter(A_RE), far = parameter(FAR_RE);
    number h = real && p.s0 ? number{ p.s0[state(0)], p.s0[state(1)] } : number{};
    matrices m;
    m.make(w.matrices[warp], a, parameter(K_RE), p.skip ? p.skip[channel] : 0.f);
    __syncthreads();
    const auto bring = [&](int64_t k) {
        cp_async_wait<0>();
        turn_in(w.u[k % 2], w.stage, block);
        if (k + 1 < tiles) fetch_block(w.stage, p.u + first, begin + (k + 1) * TILE, end, p.D, block);
    };
    if (brings && tiles) bring(0);
    for (int64_t k = 0; k < tiles; k++) {
        const int64_t t = begin + k * TILE;
        const channel_tile &u = w.u[k % 2][warp];
        __syncthreads(); /* one a tile: what a tile wrote is read, and its place used again, behind the next tile's */
        if (brings && k + 1 < tiles) bring(k + 1);
        if (!brings && k && p.o) turn_out(p.o + first, w.o[(k - 1) % 2], t - TILE, end, p.D, block);
        uint32_t rows[CHUNK / 16][4];
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++) left(rows[i], u, i);
        chunk_sums(w.sums[warp], rows, m);
        __syncwarp();
        const int whole = end - t < TILE ? (int)(end - t) / CHUNK : CHUNKS;
        chain(w.states[warp], w.sums[warp], h, far, whole);
        __syncwarp();
        chunk_outputs(w.o[k % 2][warp], rows, w.states[warp], m);
        if (whole < CHUNKS && p.sT) /* what is left of the sequence, token by token */
            for (int i = 0; i < (int)(end - t) % CHUNK; i++) h = turned(a, h, { to_float(u[whole][i]), 0.f });
    }
    __syncthreads();
    if (!brings && tiles && p.o) turn_out(p.o + first, w.o[(tiles - 1) % 2], begin + (tiles - 1) * TILE, end, p.D, block);
    if (p.sT && real) p.sT[state(0)] = h.re, p.sT[state(1)] = h.im;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------- */

tiles_args args_of(const lnt_s4d_args *a)
{
    tiles_args p = {};
    p.u = (const bf16 *)a->u, p.dt = (const float *)a->dt, p.skip = (const float *)a->skip, p.s0 = (const float *)a->s0;
    p.A_re = (const float *)a->A_re, p.A_im = (const float *)a->A_im, p.C_re = (const float *)a->C_re, p.C_im = (const float *)a->C_im;
    p.cu = a->cu_seqlens_device, p.D = a->D, p.M = a->M, p.strips = a->D / WARPS;
    p.bilinear = a->discretization == LNT_S4D_BILINEAR;
    p.parameters = (float *)a->workspace;
    return p;
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    tiles_args p = args_of(a);
    p.o = (bf16 *)a->o, p.sT = (float *)a->sT;
    const unsigned ctas = (unsigned)(a->sequences * p.strips);
    if (!ctas) return;
    lnt_launch(d, tile_parameters, (unsigned)lnt_div_up((int64_t)a->D * a->M, SMALL_THREADS), SMALL_THREADS, p);
    lnt_launch_with(d, tiles_forward, ctas, THREADS, sizeof(fore_shared), 1, p);
}

size_t workspace(const void *args, bool, int)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    return (size_t)(PARAMETERS * sizeof(float)) * a->D * a->M;
}

/* Of a block's memory; 0: the GPU does not tell. */
int room()
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess ? most : 0;
}

const char *declines(const void *args, bool)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    if (a->dtype != LINNET_BF16) return "products of tiles are offered for bf16";
    if (a->M > MODES || a->D % WARPS) return "products of tiles take up to 32 numbers of a state and a multiple of 8 channels";
    if (room() < (int)sizeof(fore_shared)) return "the GPU has too little shared memory"; /* 99 KB on sm_86 and sm_89 */
    return a->sequences >= ((int64_t)1 << 31) / (a->D / WARPS) ? "too many sequences" : NULL;
}

} // namespace

LNT_CUDA_FORM(lnt_s4d_chunk_tiles, "chunk-tiles", CHUNK, 80, declines, workspace, forward, NULL)
