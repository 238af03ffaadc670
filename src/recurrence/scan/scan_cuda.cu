/* The scan on a GPU (README.md): every number is read once and written once, which is what it costs.
 *
 * A CTA has a tile, CH channels of a sequence and as many tokens as its threads hold in registers, EACH neighbouring ones of a channel a thread. A
 * thread finds what its tokens do to whatever enters them, z -> A z + b; what those before it in the tile do is put together in shared memory, in the
 * order of time. What enters the tile comes from the tile before, as soon as that knows what entered it: CTAs begin in the order of their numbers, so
 * that what is waited for is on its way. Then a thread goes over its tokens again. The order of all sums follows from a token's place in its
 * sequence. */
#include "device/cuda.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

constexpr int THREADS = 512, CH = 32, SLOTS = THREADS / CH;
template <bool BACK> constexpr int each_of = BACK ? 8 : 12; /* 64 registers, two CTAs a multiprocessor */

struct scan_args {
    const float *log_a, *s0; /* s0: what enters; in reverse dsT */
    const void *x;           /* in reverse do; NULL: zeros */
    const void *before;      /* in reverse o */
    const float *first;      /* in reverse s0 */
    void *out;               /* o; in reverse dx; NULL: not wanted */
    float *dlog_a, *end;     /* end: sT; in reverse ds0 */
    const int64_t *cu;
    int64_t sequences, tiles;      /* of the longest sequence */
    int D, strips;
    unsigned long long *leaves;    /* [tiles,N,strips,CH] what leaves a tile, and 1 above its bits; zeros until it is known */
};

/* What leaves the tile before: bits and mark are one word. */
__device__ __forceinline__ float await_leaving(const unsigned long long *p)
{
    unsigned long long word;
    do
        word = *(const volatile unsigned long long *)p;
    while (!(word >> 32));
    return __uint_as_float((unsigned)word);
}
__device__ __forceinline__ void put_leaving(unsigned long long *p, float x)
{
    *(volatile unsigned long long *)p = 1ull << 32 | __float_as_uint(x);
}

template <typename T, bool BACK> __global__ __launch_bounds__(THREADS, 2) void scan_kernel(const __grid_constant__ scan_args p)
{
    constexpr int EACH = each_of<BACK>, TILE = SLOTS * EACH;
    __shared__ float2 maps[SLOTS][CH];
    __shared__ float entering[CH];
    await_last();
    let_next();
    const int lane = (int)threadIdx.x % CH, slot = (int)threadIdx.x / CH, strip = (int)(blockIdx.x % p.strips), channel = strip * CH + lane;
    const int64_t n = blockIdx.x / p.strips % p.sequences, tile = blockIdx.x / p.strips / p.sequences, begin = p.cu[n], end = p.cu[n + 1];
    const int64_t tiles = (end - begin + TILE - 1) / TILE, first = begin + (BACK ? tiles - 1 - tile : tile) * TILE + slot * EACH;
    if (tile && tile >= tiles) return; /* an empty sequence has a tile, which hands its state on */
    const bool real = channel < p.D;
    float g[EACH], x[EACH], before[BACK ? EACH : 1];
#pragma unroll
    for (int i = 0; i < EACH; i++) { /* tokens that do not exist do nothing */
        const int64_t at = (first + i) * p.D + channel;
        const bool there = real && first + i < end && tiles;
        g[i] = there ? p.log_a[at] : 0.f;
        x[i] = there && p.x ? to_float(((const T *)p.x)[at]) : 0.f;
        if (!BACK) continue;
        before[BACK ? i : 0] = 0.f;
        if (there && first + i > begin)
            before[BACK ? i : 0] = to_float(((const T *)p.before)[at - p.D]);
        else if (there && p.first)
            before[BACK ? i : 0] = p.first[n * p.D + channel];
    }
    float A = 1.f, b = 0.f, before_A = 1.f, before_b = 0.f;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = BACK ? EACH - 1 - j : j;
        const float e = g[i] = expf(g[i]);
        b = BACK ? e * (x[i] + b) : fmaf(e, b, x[i]);
        A *= e;
    }
    maps[slot][lane] = make_float2(A, b);
    __syncthreads();
    A = 1.f, b = 0.f;
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        const int s = BACK ? SLOTS - 1 - j : j;
        if (s == slot) before_A = A, before_b = b;
        const float2 map = maps[s][lane];
        b = fmaf(map.x, b, map.y);
        A *= map.x;
    }
    if (slot == 0) { /* A, b: of the whole tile */
        unsigned long long *leaves = p.leaves + ((tile * p.sequences + n) * p.strips + strip) * CH + lane;
        const float z = tile ? await_leaving(leaves - p.sequences * p.strips * CH) : real && p.s0 ? p.s0[n * p.D + channel] : 0.f;
        const float out = fmaf(A, z, b);
        entering[lane] = z;
        if (tile + 1 < tiles)
            put_leaving(leaves, out);
        else if (real && p.end)
            p.end[n * p.D + channel] = out;
    }
    __syncthreads();
    float h = fmaf(before_A, entering[lane], before_b);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = BACK ? EACH - 1 - j : j;
        const int64_t at = (first + i) * p.D + channel;
        const bool there = real && first + i < end && tiles;
        if (!BACK) {
            h = fmaf(g[i], h, x[i]);
            if (there && p.out) ((T *)p.out)[at] = from_float<T>(h);
        } else {
            const float lambda = x[i] + h;
            h = g[i] * lambda;
            if (there && p.out) ((T *)p.out)[at] = from_float<T>(lambda);
            if (there && p.dlog_a) p.dlog_a[at] = h * before[BACK ? i : 0];
        }
    }
}

constexpr int STEP_THREADS = 256;

/* A channel a thread, token by token. */
template <typename T> __global__ __launch_bounds__(STEP_THREADS) void step_kernel(const __grid_constant__ scan_args p)
{
    await_last();
    let_next();
    const int channel = (int)(blockIdx.x % p.strips) * STEP_THREADS + (int)threadIdx.x;
    const int64_t n = blockIdx.x / p.strips;
    if (channel >= p.D) return;
    float h = p.s0 ? p.s0[n * p.D + channel] : 0.f;
    for (int64_t t = p.cu[n]; t < p.cu[n + 1]; t++) {
        const int64_t at = t * p.D + channel;
        h = fmaf(expf(p.log_a[at]), h, to_float(((const T *)p.x)[at]));
        ((T *)p.out)[at] = from_float<T>(h);
    }
    if (p.end) p.end[n * p.D + channel] = h;
}

scan_args args_of(const lnt_scan_args *a, bool back)
{
    scan_args p = {};
    p.log_a = (const float *)a->log_a;
    p.s0 = (const float *)(back ? a->dsT : a->s0);
    p.x = back ? a->dout : a->x;
    p.before = a->o, p.first = (const float *)a->s0;
    p.out = back ? a->dx : a->o;
    p.dlog_a = (float *)a->dlog_a;
    p.end = (float *)(back ? a->ds0 : a->sT);
    p.cu = a->cu_seqlens_device, p.D = a->D;
    return p;
}

template <bool BACK> int64_t tiles_of(const lnt_scan_args *a)
{
    const int64_t tiles = lnt_div_up(a->longest, SLOTS * each_of<BACK>);
    return tiles ? tiles : 1;
}
template <bool BACK> size_t leaving_bytes(const lnt_scan_args *a)
{
    return (size_t)(tiles_of<BACK>(a) * a->sequences * lnt_div_up(a->D, CH)) * CH * sizeof(unsigned long long);
}

template <typename T, bool BACK> void run(const lnt_scan_args *a, const lnt_cuda *d)
{
    scan_args p = args_of(a, BACK);
    p.sequences = a->sequences, p.tiles = tiles_of<BACK>(a), p.strips = (int)lnt_div_up(a->D, CH);
    p.leaves = (unsigned long long *)a->workspace;
    if (!a->sequences) return;
    const unsigned ctas = (unsigned)(p.tiles * p.sequences * p.strips);
    if (p.tiles == 1) {
        lnt_launch(d, scan_kernel<T, BACK>, ctas, THREADS, p);
        return;
    }
    lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(a->workspace, 0, leaving_bytes<BACK>(a), d->stream));
    scan_kernel<T, BACK><<<ctas, THREADS, 0, d->stream>>>(p); /* behind what is no kernel nothing is gained by an early start */
}

size_t workspace(const void *args, bool back, int)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    return back ? leaving_bytes<true>(a) : leaving_bytes<false>(a);
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    LNT_BY_TYPE(a->dtype, T, run<T, false>(a, (const lnt_cuda *)d));
}

void backward(const void *args, const lnt_device *d)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    LNT_BY_TYPE(a->dtype, T, run<T, true>(a, (const lnt_cuda *)d));
}

void step(const void *args, const lnt_device *d)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    scan_args p = args_of(a, false);
    p.strips = (int)lnt_div_up(a->D, STEP_THREADS);
    if (a->sequences) LNT_BY_TYPE(a->dtype, T, lnt_launch((const lnt_cuda *)d, step_kernel<T>, (unsigned)(a->sequences * p.strips), STEP_THREADS, p));
}

const char *declines(const void *args, bool)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    return a->sequences >= ((int64_t)1 << 31) / lnt_div_up(a->D, CH) / tiles_of<true>(a) ? "too many sequences" : NULL;
}

} // namespace

extern "C" {
extern const lnt_recur_impl lnt_scan_chunk_cuda, lnt_scan_recurrent_cuda;
const lnt_recur_impl lnt_scan_chunk_cuda = {
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
const lnt_recur_impl lnt_scan_recurrent_cuda = {
    .name = "recurrent-cuda",
    .form = LINNET_FORM_RECURRENT,
    .device = LNT_DEVICE_CUDA,
    .needs = 80,
    .declines = declines,
    .workspace = NULL,
    .forward = NULL,
    .backward = NULL,
    .put_forward = step,
    .put_backward = NULL,
};
}
