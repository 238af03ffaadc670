/* The selective scan on a GPU (README.md), token by token. A channel's M numbers lie in G lanes, four each, a warp has 32 / G channels, a CTA four
 * warps; B, C and the channels' rows come through shared memory, TB tokens at a time. Exponentials decide: one a number forward, two in reverse;
 * those of TOGETHER tokens are made side by side, for there are few warps to wait for each other.
 *
 * Forward again on the way back keeps the state at the start of every tile; back, a tile's states are made again, and stay in shared memory with
 * their decays. What a CTA's channels add to dB and dC is one of as many parts as there are CTAs to a sequence; those are added in order, and so are
 * the sequences' of dA and dD. */
#include "recurrence/decay/decay_vector.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

constexpr int WARPS = 4, THREADS = 32 * WARPS, EACH = 4; /* EACH: numbers of a state in a lane */
constexpr int WIDEST = 32 * EACH, TOGETHER = 8, BACK_TOGETHER = 4; /* tokens side by side */
constexpr float LOG2E = 1.44269504088896341f;

struct selective_args {
    const void *u, *B, *C, *dout; /* dout NULL: zeros */
    const float *delta, *A, *skip, *s0, *dsT;
    void *o, *du;                 /* o NULL: not wanted */
    float *ddelta, *sT, *ds0;
    float *kept;                  /* [T / TB + N,D,G,EACH]; NULL: not wanted */
    float *dB, *dC, *dA, *dskip;  /* parts: [strips,T,M] twice, [N,D,M], [N,D]; NULL: not wanted */
    const int64_t *cu;
    int64_t T;
    int D, M, strips;
};

/* Lanes of a channel and what follows from their number; TB tokens of a tile. */
template <int LANES> struct shape {
    static constexpr int G = LANES, TB = LANES <= 8 ? 16 : 8, OF_WARP = 32 / G, CH = WARPS * OF_WARP, MP = EACH * G;
    static constexpr int ROWS_EACH = TB * MP / THREADS, CHANNELS_EACH = (TB * CH + THREADS - 1) / THREADS;
};

/* Where a thread stands. */
template <int LANES> struct place {
    int g, of_cta, first, channel, m;
    int64_t n, begin, end, tiles;
    bool real;

    __device__ __forceinline__ explicit place(const selective_args &p)
    {
        using s = shape<LANES>;
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        g = lane % s::G, of_cta = warp * s::OF_WARP + lane / s::G, first = (int)(blockIdx.x % p.strips) * s::CH, channel = first + of_cta;
        m = g * EACH;
        n = blockIdx.x / p.strips, begin = p.cu[n], end = p.cu[n + 1], tiles = (end - begin + s::TB - 1) / s::TB;
        real = channel < p.D;
    }
    /* x [N,D,M] or, of all sequences, [D,M] */
    __device__ __forceinline__ void read(const selective_args &p, float (&to)[EACH], const float *x, int64_t sequence) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) to[i] = x && real && m + i < p.M ? x[(sequence * p.D + channel) * p.M + m + i] : 0.f;
    }
    __device__ __forceinline__ void write(const selective_args &p, float *x, const float (&from)[EACH]) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (x && real && m + i < p.M) x[(n * p.D + channel) * p.M + m + i] = from[i];
    }
    /* of the tile's start; as many floats as lanes hold */
    __device__ __forceinline__ float4 *kept(const selective_args &p, int64_t tile) const
    {
        using s = shape<LANES>;
        return (float4 *)p.kept + ((begin / s::TB + n + tile) * p.D + channel) * s::G + g;
    }
};

template <int LANES> struct tile_rows {
    using s = shape<LANES>;
    float B[s::TB][s::MP], C[s::TB][s::MP], u[s::TB][s::CH], delta[s::TB][s::CH], dy[s::TB][s::CH];
};

/* Tokens t .. t + TB - 1, from memory to registers and on; those from the sequence's end on change nothing. */
template <typename T, int LANES> struct fetched {
    using s = shape<LANES>;
    float B[s::ROWS_EACH], C[s::ROWS_EACH], u[s::CHANNELS_EACH], delta[s::CHANNELS_EACH], dy[s::CHANNELS_EACH];

    __device__ __forceinline__ void fetch(const selective_args &p, const place<LANES> &at, int64_t t, bool back)
    {
#pragma unroll
        for (int k = 0; k < s::ROWS_EACH; k++) {
            const int i = k * THREADS + (int)threadIdx.x, j = i / s::MP, m = i % s::MP;
            const bool real = t + j < at.end && m < p.M;
            B[k] = real ? to_float(((const T *)p.B)[(t + j) * p.M + m]) : 0.f;
            C[k] = real ? to_float(((const T *)p.C)[(t + j) * p.M + m]) : 0.f;
        }
#pragma unroll
        for (int k = 0; k < s::CHANNELS_EACH; k++) {
            const int i = k * THREADS + (int)threadIdx.x, j = i / s::CH, c = at.first + i % s::CH;
            const bool real = j < s::TB && t + j < at.end && c < p.D;
            const int64_t of = (t + j) * p.D + c;
            u[k] = real ? to_float(((const T *)p.u)[of]) : 0.f;
            delta[k] = real ? p.delta[of] : 0.f;
            dy[k] = back && real && p.dout ? to_float(((const T *)p.dout)[of]) : 0.f;
        }
    }
    __device__ __forceinline__ void put(tile_rows<LANES> &x) const
    {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < s::ROWS_EACH; k++) {
            const int i = k * THREADS + (int)threadIdx.x;
            x.B[i / s::MP][i % s::MP] = B[k], x.C[i / s::MP][i % s::MP] = C[k];
        }
#pragma unroll
        for (int k = 0; k < s::CHANNELS_EACH; k++) {
            const int i = k * THREADS + (int)threadIdx.x;
            if (i < s::TB * s::CH) x.u[i / s::CH][i % s::CH] = u[k], x.delta[i / s::CH][i % s::CH] = delta[k], x.dy[i / s::CH][i % s::CH] = dy[k];
        }
        __syncthreads();
    }
};

__device__ __forceinline__ void four(float (&to)[EACH], const float *from)
{
    const float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
/* 2^x; what is below float32's normal range is 0. */
__device__ __forceinline__ float exp2_of(float x)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
}

/* v[0 .. N-1] each summed over the lanes whose numbers differ in the bits O, O / 2 .. LAST: a lane is left with N over their number of the sums (one,
 * if that is less), the higher ones where the higher bits are set. */
template <int N, int O, int LAST, int SIZE> __device__ __forceinline__ void fold(float (&v)[SIZE])
{
    if constexpr (O >= LAST && N > 1) {
        const bool up = threadIdx.x & O;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = up ? v[i + N / 2] : v[i], send = up ? v[i] : v[i + N / 2];
            v[i] = keep + __shfl_xor_sync(~0u, send, O);
        }
        fold<N / 2, O / 2, LAST>(v);
    } else if constexpr (O >= LAST) {
        v[0] += __shfl_xor_sync(~0u, v[0], O);
        fold<1, O / 2, LAST>(v);
    }
}

/* Sums over a channel's lanes, of N tokens: which of them lane g is left with, and how many. */
template <int G, int N> struct of_channel {
    static constexpr int LEFT = N > G ? N / G : 1;
    static __device__ __forceinline__ int first(int g) { return g * N / G; }
    static __device__ __forceinline__ bool mine(int g) { return N >= G || g % (N < G ? G / N : 1) == 0; } /* nobody else's too */
    static __device__ __forceinline__ void sum(float (&v)[N]) { fold<N, G / 2, 1>(v); }
};

template <typename T, int LANES> __global__ __launch_bounds__(THREADS) void forward_kernel(const __grid_constant__ selective_args p)
{
    using s = shape<LANES>;
    __shared__ __align__(16) tile_rows<LANES> x;
    __shared__ float out[s::TB][s::CH];
    await_last();
    let_next();
    const place<LANES> at(p);
    float rate[EACH], h[EACH];
    at.read(p, rate, p.A, 0);
    at.read(p, h, p.s0, at.n);
#pragma unroll
    for (int i = 0; i < EACH; i++) rate[i] *= LOG2E;
    const float skip = at.real && p.skip ? p.skip[at.channel] : 0.f;
    fetched<T, LANES> next;
    if (at.tiles) next.fetch(p, at, at.begin, false);
    for (int64_t k = 0; k < at.tiles; k++) {
        const int64_t t = at.begin + k * s::TB;
        const int count = (int)(at.end - t < s::TB ? at.end - t : s::TB);
        next.put(x);
        if (k + 1 < at.tiles) next.fetch(p, at, t + s::TB, false);
        if (p.kept && at.real) *at.kept(p, k) = make_float4(h[0], h[1], h[2], h[3]);
        for (int j0 = 0; j0 < count; j0 += TOGETHER) { /* tokens of the tile that do not exist change nothing */
            float e[TOGETHER][EACH], input[TOGETHER][EACH], o[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const float delta = x.delta[j0 + j][at.of_cta], of_u = delta * x.u[j0 + j][at.of_cta];
                four(input[j], &x.B[j0 + j][at.m]);
#pragma unroll
                for (int i = 0; i < EACH; i++) e[j][i] = exp2_of(delta * rate[i]), input[j][i] *= of_u;
            }
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                float C[EACH];
                four(C, &x.C[j0 + j][at.m]);
                o[j] = 0.f;
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    h[i] = fmaf(e[j][i], h[i], input[j][i]);
                    o[j] = fmaf(h[i], C[i], o[j]);
                }
            }
            if (!p.o) continue;
            using sums = of_channel<s::G, TOGETHER>;
            sums::sum(o);
#pragma unroll
            for (int i = 0; i < sums::LEFT && sums::mine(at.g); i++) {
                const int j = j0 + sums::first(at.g) + i;
                out[j][at.of_cta] = fmaf(skip, x.u[j][at.of_cta], o[i]);
            }
        }
        if (!p.o) continue;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < count * s::CH; i += THREADS) {
            const int c = at.first + i % s::CH;
            if (c < p.D) ((T *)p.o)[(t + i / s::CH) * p.D + c] = from_float<T>(out[i / s::CH][i % s::CH]);
        }
    }
    at.write(p, p.sT, h);
}

template <int LANES> struct back_shared {
    using s = shape<LANES>;
    tile_rows<LANES> x;
    float4 h[s::TB][THREADS], decay[s::TB][THREADS]; /* each thread's own */
    float du[s::TB][s::CH], ddelta[s::TB][s::CH], sums[WARPS][s::TB][2 * s::MP];
};

/* What of a tile is gathered from the whole CTA. */
template <typename T, int LANES>
__device__ __forceinline__ void put_back(const selective_args &p, const place<LANES> &at, const back_shared<LANES> &w, int64_t t, int count)
{
    using s = shape<LANES>;
    for (int i = (int)threadIdx.x; i < count * s::CH; i += THREADS) {
        const int j = i / s::CH, c = at.first + i % s::CH;
        if (c >= p.D) continue;
        if (p.du) ((T *)p.du)[(t + j) * p.D + c] = from_float<T>(w.du[j][i % s::CH]);
        if (p.ddelta) p.ddelta[(t + j) * p.D + c] = w.ddelta[j][i % s::CH];
    }
    for (int i = (int)threadIdx.x; i < count * 2 * s::MP; i += THREADS) {
        const int j = i / (2 * s::MP), e = i % (2 * s::MP), m = e % s::MP;
        float *to = e < s::MP ? p.dB : p.dC;
        if (!to || m >= p.M) continue;
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < WARPS; k++) sum += w.sums[k][j][e];
        to[((int64_t)(blockIdx.x % p.strips) * p.T + t + j) * p.M + m] = sum;
    }
}

template <typename T, int LANES> __global__ __launch_bounds__(THREADS) void backward_kernel(const __grid_constant__ selective_args p)
{
    using s = shape<LANES>;
    extern __shared__ __align__(16) unsigned char memory[];
    back_shared<LANES> &w = *(back_shared<LANES> *)memory;
    await_last();
    let_next();
    const place<LANES> at(p);
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    float A[EACH], rate[EACH], carry[EACH], dA[EACH] = {}, dskip = 0.f;
    at.read(p, A, p.A, 0);
#pragma unroll
    for (int i = 0; i < EACH; i++) rate[i] = A[i] * LOG2E;
    at.read(p, carry, p.dsT, at.n);
    const float skip = at.real && p.skip ? p.skip[at.channel] : 0.f;
    fetched<T, LANES> rows;
    for (int64_t k = at.tiles - 1; k >= 0; k--) {
        const int64_t t = at.begin + k * s::TB;
        const int count = (int)(at.end - t < s::TB ? at.end - t : s::TB);
        rows.fetch(p, at, t, true);
        rows.put(w.x);
        float4 h = at.real ? *at.kept(p, k) : make_float4(0.f, 0.f, 0.f, 0.f);
        const int rounds = (count + BACK_TOGETHER - 1) / BACK_TOGETHER;
        for (int r = 0; r < rounds; r++) {
#pragma unroll
            for (int j = r * BACK_TOGETHER; j < (r + 1) * BACK_TOGETHER; j++) {
                const float delta = w.x.delta[j][at.of_cta], input = delta * w.x.u[j][at.of_cta];
                const float4 B = *(const float4 *)&w.x.B[j][at.m];
                const float4 e = make_float4(exp2_of(delta * rate[0]), exp2_of(delta * rate[1]), exp2_of(delta * rate[2]), exp2_of(delta * rate[3]));
                w.h[j][tid] = h, w.decay[j][tid] = e;
                h = make_float4(fmaf(e.x, h.x, input * B.x), fmaf(e.y, h.y, input * B.y), fmaf(e.z, h.z, input * B.z), fmaf(e.w, h.w, input * B.w));
            }
        }
        float after[EACH] = { h.x, h.y, h.z, h.w };
        for (int r = rounds - 1; r >= 0; r--) {
            float through_b[BACK_TOGETHER], through_a[BACK_TOGETHER];
#pragma unroll
            for (int k4 = BACK_TOGETHER - 1; k4 >= 0; k4--) {
                const int j = r * BACK_TOGETHER + k4;
                const float delta = w.x.delta[j][at.of_cta], u = w.x.u[j][at.of_cta], dy = w.x.dy[j][at.of_cta], input = delta * u;
                float B[EACH], C[EACH], before[EACH], e[EACH], v[2 * EACH];
                four(B, &w.x.B[j][at.m]);
                four(C, &w.x.C[j][at.m]);
                four(before, &w.h[j][tid].x);
                four(e, &w.decay[j][tid].x);
                through_b[k4] = through_a[k4] = 0.f;
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const float lambda = fmaf(dy, C[i], carry[i]);
                    carry[i] = e[i] * lambda;
                    const float carried = carry[i] * before[i];
                    dA[i] = fmaf(carried, delta, dA[i]);
                    v[i] = lambda * input, v[EACH + i] = dy * after[i];
                    through_b[k4] = fmaf(lambda, B[i], through_b[k4]);
                    through_a[k4] = fmaf(carried, A[i], through_a[k4]);
                    after[i] = before[i];
                }
                dskip = fmaf(dy, u, dskip);
                fold<2 * EACH, 16, s::G>(v); /* over the warp's channels */
                constexpr int LEFT = 2 * EACH / s::OF_WARP;
#pragma unroll
                for (int i = 0; i < LEFT; i++) {
                    const int which = lane / s::G * LEFT + i;
                    w.sums[warp][j][which / EACH * s::MP + at.m + which % EACH] = v[i];
                }
            }
            using sums = of_channel<s::G, BACK_TOGETHER>;
            sums::sum(through_b);
            sums::sum(through_a);
#pragma unroll
            for (int i = 0; i < sums::LEFT && sums::mine(at.g); i++) {
                const int j = r * BACK_TOGETHER + sums::first(at.g) + i;
                const float delta = w.x.delta[j][at.of_cta], u = w.x.u[j][at.of_cta], dy = w.x.dy[j][at.of_cta];
                w.du[j][at.of_cta] = fmaf(delta, through_b[i], skip * dy), w.ddelta[j][at.of_cta] = fmaf(u, through_b[i], through_a[i]);
            }
        }
        __syncthreads();
        put_back<T>(p, at, w, t, count);
    }
    at.write(p, p.ds0, carry);
    at.write(p, p.dA, dA);
    if (p.dskip && at.real && at.g == 0) p.dskip[at.n * p.D + at.channel] = dskip;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------------- */

int lanes_of(const lnt_selective_args *a) { return a->M <= 16 ? 4 : a->M <= 32 ? 8 : a->M <= 64 ? 16 : 32; }
int64_t strips_of(const lnt_selective_args *a) { return lnt_div_up(a->D, WARPS * 32 / lanes_of(a)); }
int64_t tile_of(const lnt_selective_args *a) { return lanes_of(a) <= 8 ? 16 : 8; }

/* In the workspace. */
size_t carve(const lnt_selective_args *a, selective_args *p)
{
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t rows = strips_of(a) * a->tokens * a->M, slots = a->tokens / tile_of(a) + a->sequences;
    p->kept = m.take<float>(slots * a->D * lanes_of(a) * EACH);
    p->dB = m.take<float>(rows), p->dC = m.take<float>(rows);
    p->dA = m.take<float>(a->sequences * a->D * a->M);
    p->dskip = m.take<float>(a->sequences * a->D);
    return m.used;
}

selective_args args_of(const lnt_selective_args *a)
{
    selective_args p = {};
    p.u = a->u, p.B = a->B, p.C = a->C;
    p.delta = (const float *)a->delta, p.A = (const float *)a->A, p.skip = (const float *)a->skip, p.s0 = (const float *)a->s0;
    p.cu = a->cu_seqlens_device, p.T = a->tokens, p.D = a->D, p.M = a->M, p.strips = (int)strips_of(a);
    return p;
}

template <typename T, int LANES> void put(const selective_args &p, int64_t sequences, bool back, const lnt_cuda *d)
{
    const unsigned ctas = (unsigned)(sequences * p.strips);
    if (!ctas) return;
    if (back)
        lnt_launch_with(d, backward_kernel<T, LANES>, ctas, THREADS, sizeof(back_shared<LANES>), 1, p);
    else
        lnt_launch(d, forward_kernel<T, LANES>, ctas, THREADS, p);
}
void put_kernel(const lnt_selective_args *a, const selective_args &p, bool back, const lnt_device *device)
{
    const int lanes = lanes_of(a);
    LNT_BY_TYPE(a->dtype, T,
                (lanes == 4    ? put<T, 4>
                 : lanes == 8  ? put<T, 8>
                 : lanes == 16 ? put<T, 16>
                               : put<T, 32>)(p, a->sequences, back, (const lnt_cuda *)device));
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_selective_args *a = (const lnt_selective_args *)args;
    selective_args p = args_of(a);
    p.o = a->o, p.sT = (float *)a->sT;
    put_kernel(a, p, false, d);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_selective_args *a = (const lnt_selective_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    const int wide = a->dtype == LINNET_BF16;
    selective_args p = args_of(a);
    carve(a, &p);
    put_kernel(a, p, false, device);
    p.dout = a->dout, p.dsT = (const float *)a->dsT;
    p.du = a->du, p.ddelta = (float *)a->ddelta, p.ds0 = (float *)a->ds0;
    put_kernel(a, p, true, device);
    lnt_vector_sum_heads(a->dB, wide, p.dB, p.strips, 1, 1, 1, a->tokens * a->M, d);
    lnt_vector_sum_heads(a->dC, wide, p.dC, p.strips, 1, 1, 1, a->tokens * a->M, d);
    lnt_vector_sum_heads(a->dA, 0, p.dA, a->sequences, 1, 1, 1, (int64_t)a->D * a->M, d);
    lnt_vector_sum_heads(a->dskip, 0, p.dskip, a->sequences, 1, 1, 1, a->D, d);
}

size_t workspace(const void *args, bool back, int)
{
    lnt_selective_args a = *(const lnt_selective_args *)args;
    selective_args p;
    a.workspace = NULL;
    return back ? carve(&a, &p) : 0;
}

const char *declines(const void *args, bool)
{
    const lnt_selective_args *a = (const lnt_selective_args *)args;
    if (a->M > WIDEST) return "at most 128 numbers of a channel's state are offered";
    return a->sequences >= ((int64_t)1 << 31) / strips_of(a) ? "too many sequences" : NULL;
}

} // namespace

extern "C" {
extern const lnt_recur_impl lnt_selective_chunk_cuda, lnt_selective_recurrent_cuda;
const lnt_recur_impl lnt_selective_chunk_cuda = {
    .name = "chunk-cuda",
    .form = LINNET_FORM_CHUNK,
    .device = LNT_DEVICE_CUDA,
    .needs = 80,
    .declines = declines,
    .workspace = workspace,
    .forward = NULL,
    .backward = NULL,
    .put_forward = forward,
    .put_backward = backward,
};
const lnt_recur_impl lnt_selective_recurrent_cuda = {
    .name = "recurrent-cuda",
    .form = LINNET_FORM_RECURRENT,
    .device = LNT_DEVICE_CUDA,
    .needs = 80,
    .declines = declines,
    .workspace = NULL,
    .forward = NULL,
    .backward = NULL,
    .put_forward = forward,
    .put_backward = NULL,
};
}
