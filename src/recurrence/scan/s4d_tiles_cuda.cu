/* S4D on tensor cores, bf16 (README.md): CHUNK tokens at a time as products of matrices that are the same for all chunks of a channel.
 *
 *   o of a chunk       = Toeplitz(k) u + 2 Re(K Abar^(1 .. CHUNK) h),  k_l = 2 Re(sum K Abar^l),  h: the state in front of the chunk
 *   h behind the chunk = Abar^CHUNK h + sum_j Abar^(CHUNK - 1 - j) u_j
 *
 * A warp has a channel, a CTA WARPS neighbours, from a sequence's first token to its last. The matrices are made once and stay in registers, as the
 * right sides of products whose rows are CHUNKS chunks; between those only the chain of h goes one by one, a lane a number. Rows of memory become
 * rows of tokens by ldmatrix, while a tile before them is worked on: of every tile a warp brings one chunk of all channels. Operands are rounded to
 * bf16, sums and the chain are float32. The way back (s4d_tiles_back.cuh) begins with the same walk, which then leaves the states in front of the
 * tiles. */
#include "recurrence/recur_cuda.cuh"
#include "recurrence/scan/s4d_tiles.cuh"
#include "recurrence/scan/s4d_tiles_back.cuh"

namespace {

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

constexpr int WARPS = 16, THREADS = 32 * WARPS;
static_assert(WARPS == CHUNKS, "of every tile a warp brings one chunk");

/* ---- the matrices of a channel ----------------------------------------------------------------------------------------------------------- */

constexpr int WORDS = CHUNK / 2 + 4; /* pairs of tokens of a row: eight rows of four lie in 32 banks */

/* While they are made: pairs of neighbours in the order in which they are summed over. */
struct making {
    uint32_t in[2][MODES * WORDS + 16]; /* real, imaginary parts [MODES][tokens] */
    uint32_t out[CHUNK][MODES + 4];     /* [tokens][(re, -im) of a number] */
    float k[CHUNK];
};

/* Right sides of products [.][16] [16][8], of a lane. */
struct matrices {
    uint32_t in[CHUNK / 16][MODES / 4][2]; /* tokens to numbers: real and imaginary part of one are neighbours */
    uint32_t out[MODES / 8][CHUNK / 8][2]; /* numbers to tokens */
    uint32_t within[CHUNK / 8][2];         /* tokens to tokens 8 e later */

    __device__ __forceinline__ void make(making &w, number a, number K, float skip);
};

__device__ __forceinline__ void matrices::make(making &w, number a, number K, float skip)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    number power = { 1.f, 0.f }, q = K;
    float lags[CHUNK];
#pragma unroll
    for (int g = 0; g < CHUNK / 8; g++) {
        uint32_t re[4], im[4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int l = 8 * g + 2 * s;
            const number next = turned(a, power), after = turned(K, next);
            re[3 - s] = pack_bf16(next.re, power.re), im[3 - s] = pack_bf16(next.im, power.im);
            power = turned(a, next);
            lags[l] = q.re, lags[l + 1] = after.re;
            w.out[l][lane] = pack_bf16(after.re, -after.im);
            q = turned(K, power);
            w.out[l + 1][lane] = pack_bf16(q.re, -q.im);
        }
        const int at = lane * WORDS + CHUNK / 2 - 4 - 4 * g;
        *(uint4 *)&w.in[0][at] = { re[0], re[1], re[2], re[3] };
        *(uint4 *)&w.in[1][at] = { im[0], im[1], im[2], im[3] };
    }
    fold<32, 16, 1>(lags);
    w.k[lane] = lags[0] + (lane == 0 ? skip : 0.f);
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

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------- */

struct fore_shared {
    chunk_stage<2> stage[2][CHUNKS];
    union {
        making matrices[WARPS];
        struct {
            channel_tiles<2> u[2], o[2];
            number sums[WARPS][CHUNKS][SUMS];
            bf16 states[WARPS][CHUNKS][NUMBERS];
        };
    };
};

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
/* States in front of the chunks, the first `whole` of which the chain passes; unless WANTED the last alone. Sums are read some steps ahead. */
template <bool WANTED>
__device__ __forceinline__ void chain(bf16 (&to)[CHUNKS][NUMBERS], const number (&sums)[CHUNKS][SUMS], number &h, number far, int whole)
{
    constexpr int AHEAD = 8;
    const int lane = (int)threadIdx.x % 32;
    uint32_t *out = (uint32_t *)&to[0][0] + lane;
    const auto step = [&](int i, number sum) {
        if (WANTED) out[i * (NUMBERS / 2)] = pack_bf16(h.re, h.im);
        if (i < whole) h = turned(far, h, sum);
    };
    if (whole < CHUNKS) {
#pragma unroll 1
        for (int i = 0; i < CHUNKS; i++) step(i, sums[i][lane]);
        return;
    }
    whole = CHUNKS;
    number x[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x[i] = sums[i][lane];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        step(i, x[i % AHEAD]);
        if (i + AHEAD < CHUNKS) x[i % AHEAD] = sums[i + AHEAD][lane];
    }
}
__device__ __forceinline__ void chunk_outputs(channel_tile &to, const uint32_t (&u)[CHUNK / 16][4], const bf16 (&states)[CHUNKS][NUMBERS],
                                              const matrices &w)
{
    float d[CHUNK / 8][4] = {};
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int n = 2 * k; n < CHUNK / 8; n++) mma_bf16(d[n], u[k], w.within[n - 2 * k][0], w.within[n - 2 * k][1]);
#pragma unroll
    for (int k = 0; k < MODES / 8; k++) {
        uint32_t h[4];
        left(h, states, k);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) mma_bf16(d[n], h, w.out[k][n][0], w.out[k][n][1]);
    }
    put_tokens(to, d);
}

/* KEEP: for the way back, states and no outputs, and then what is behind the last whole chunk. */
template <bool KEEP> __global__ __launch_bounds__(THREADS, 1) void tiles_forward(const __grid_constant__ tiles_args p)
{
    extern __shared__ __align__(16) unsigned char memory[];
    fore_shared &w = *(fore_shared *)memory;
    await_last();
    let_next();
    const int warp = (int)threadIdx.x / 32, first = (int)(blockIdx.x % p.strips) * WARPS;
    const standing at(p, warp, WARPS);
    const int64_t begin = at.begin, end = at.end, tiles = (end - begin + TILE - 1) / TILE;
    /* of every tile a warp brings and takes one chunk of all channels */
    const auto fetch = [&](int64_t k) {
        w.stage[k % 2][warp].fetch(p.u + first, begin + k * TILE + warp * CHUNK, end, p.D, p.D - first);
        cp_async_commit();
    };
    fetch(0), fetch(1); /* a tile that is not there: zeros */

    const number a = at.parameter(p, A_RE), far = at.parameter(p, FAR_RE), K = at.parameter(p, K_RE);
    number h = at.state(p, p.s0);
    matrices m;
    m.make(w.matrices[warp], a, K, at.there && p.skip ? p.skip[at.channel] : 0.f);
    __syncthreads();
    const auto bring = [&](int64_t k) {
        cp_async_wait<1>();
        __syncwarp();
        w.stage[k % 2][warp].turn_in(w.u[k % 2], warp);
        __syncwarp();
        fetch(k + 2);
    };
    const auto take = [&](int64_t k) {
        if (p.o) turn_out(p.o + first, w.o[k % 2], warp, begin + k * TILE + warp * CHUNK, end, p.D, p.D - first);
    };
    bring(0);
    for (int64_t k = 0; k < tiles; k++) {
        const int64_t t = begin + k * TILE;
        const channel_tile &u = w.u[k % 2].of(warp);
        __syncthreads(); /* one a tile: what a tile wrote is read, and its place used again, behind the next tile's */
        bring(k + 1);
        if (!KEEP && k) take(k - 1);
        if (KEEP && at.there) *at.kept(p, k) = h;
        uint32_t rows[CHUNK / 16][4];
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++) left(rows[i], u, i);
        chunk_sums(w.sums[warp], rows, m);
        __syncwarp();
        const int whole = end - t < TILE ? (int)(end - t) / CHUNK : CHUNKS;
        chain<!KEEP>(w.states[warp], w.sums[warp], h, far, whole);
        __syncwarp();
        if (!KEEP) chunk_outputs(w.o[k % 2].of(warp), rows, w.states[warp], m);
        if (!KEEP && whole < CHUNKS && p.sT) /* what is left of the sequence, token by token */
            for (int i = 0; i < (int)(end - t) % CHUNK; i++) h = turned(a, h, { to_float(u[whole][i]), 0.f });
    }
    if (KEEP) {
        rest_back(p, at, a, K, h);
        return;
    }
    __syncthreads();
    if (tiles) take(tiles - 1);
    at.put_state(p, p.sT, h);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------- */

size_t carve(const lnt_s4d_args *a, bool back, tiles_args *p)
{
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t numbers = (int64_t)a->D * a->M;
    p->parameters = m.take<float>(PARAMETERS * numbers);
    if (!back) return m.used;
    p->kept = m.take<float>((a->tokens / TILE + a->sequences) * a->D * 2 * MODES);
    p->seeds = m.take<float>(a->sequences * a->D * 2 * MODES);
    p->sums = m.take<float>(a->sequences * SUMS_OF_NUMBER * numbers);
    p->dskips = m.take<float>(a->sequences * a->D);
    return m.used;
}

tiles_args args_of(const lnt_s4d_args *a, bool back)
{
    tiles_args p = {};
    p.u = (const bf16 *)a->u, p.dt = (const float *)a->dt, p.skip = (const float *)a->skip, p.s0 = (const float *)a->s0;
    p.A_re = (const float *)a->A_re, p.A_im = (const float *)a->A_im, p.C_re = (const float *)a->C_re, p.C_im = (const float *)a->C_im;
    p.cu = a->cu_seqlens_device, p.D = a->D, p.M = a->M;
    p.bilinear = a->discretization == LNT_S4D_BILINEAR;
    carve(a, back, &p);
    return p;
}

void put_parameters(const tiles_args &p, const lnt_cuda *d)
{
    lnt_launch(d, tile_parameters, (unsigned)lnt_div_up((int64_t)p.D * p.M, SMALL_THREADS), SMALL_THREADS, p);
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    tiles_args p = args_of(a, false);
    p.o = (bf16 *)a->o, p.sT = (float *)a->sT, p.strips = (int)lnt_div_up(a->D, WARPS);
    const unsigned ctas = (unsigned)(a->sequences * p.strips);
    if (!ctas) return;
    put_parameters(p, d);
    lnt_launch_with(d, tiles_forward<false>, ctas, THREADS, sizeof(fore_shared), 1, p);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    tiles_args p = args_of(a, true);
    p.dout = (const bf16 *)a->dout, p.dsT = (const float *)a->dsT, p.du = (bf16 *)a->du, p.ds0 = (float *)a->ds0;
    if (a->sequences) {
        put_parameters(p, d);
        p.strips = (int)lnt_div_up(a->D, WARPS);
        lnt_launch_with(d, tiles_forward<true>, (unsigned)(a->sequences * p.strips), THREADS, sizeof(fore_shared), 1, p);
        p.strips = a->D / BACK_CHANNELS;
        lnt_launch_with(d, tiles_backward, (unsigned)(a->sequences * p.strips), BACK_THREADS, sizeof(back_shared), 1, p);
    }
    put_gradients(a, p.sums, p.dskips, d);
}

size_t workspace(const void *args, bool back, int)
{
    lnt_s4d_args a = *(const lnt_s4d_args *)args;
    tiles_args p = {};
    a.workspace = NULL;
    return carve(&a, back, &p);
}

/* Of a block's memory; 0: the GPU does not tell. */
int room()
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess ? most : 0;
}

const char *declines(const void *args, bool back)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    if (a->dtype != LINNET_BF16) return "products of tiles are offered for bf16";
    if (a->M > MODES || a->D % BACK_CHANNELS) return "products of tiles take up to 32 numbers of a state and a multiple of 8 channels";
    if (room() < (int)(back ? sizeof(back_shared) : sizeof(fore_shared))) return "the GPU has too little shared memory"; /* 163 KB on sm_80 */
    return a->sequences >= ((int64_t)1 << 31) / (a->D / BACK_CHANNELS) ? "too many sequences" : NULL;
}

} // namespace

LNT_CUDA_FORM(lnt_s4d_chunk_tiles, "chunk-tiles", CHUNK, 80, declines, workspace, forward, backward)
