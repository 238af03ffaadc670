/* The scan on a GPU (README.md): every number is read once and written once, which is what it costs.
 *
 * A CTA has CH channels of a sequence and goes over its tokens in tiles; a thread has EACH neighbouring tokens of a channel in registers, and those
 * of the next tile on the way. It finds what its tokens do to whatever enters them, z -> A z + b; these are put together in shared memory in the
 * order of time; then it goes over its tokens again, from what enters. Pieces of EACH tokens begin at a sequence's start, so that CH changes no
 * bit. */
#include "device/cuda.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

constexpr int THREADS = 256, EACH = 16, WIDEST = 32; /* channels of a CTA: WIDEST, or fewer where there are few CTAs */

struct scan_args {
    const float *log_a, *s0; /* s0: what enters; in reverse dsT */
    const void *x;           /* in reverse do; NULL: zeros */
    const void *before;      /* in reverse o */
    const float *first;      /* in reverse s0 */
    void *out;               /* o; in reverse dx; NULL: not wanted */
    float *dlog_a, *end;     /* end: sT; in reverse ds0 */
    const int64_t *cu;
    int D, strips;
};

/* A thread's tokens of a tile; those that do not exist do nothing. */
template <typename T> struct tokens {
    float g[EACH], x[EACH], before[EACH];

    __device__ __forceinline__ void fetch(const scan_args &p, int64_t first, int64_t begin, int64_t end, int64_t n, int channel, bool back)
    {
        const bool real = channel < p.D;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int64_t at = (first + i) * p.D + channel;
            const bool there = real && first + i < end;
            g[i] = there ? p.log_a[at] : 0.f;
            x[i] = there && p.x ? to_float(((const T *)p.x)[at]) : 0.f;
            if (!back) continue;
            before[i] = 0.f;
            if (there && first + i > begin)
                before[i] = to_float(((const T *)p.before)[at - p.D]);
            else if (there && p.first)
                before[i] = p.first[n * p.D + channel];
        }
    }
};

template <typename T, int CH, bool BACK> __global__ __launch_bounds__(THREADS) void scan_kernel(const __grid_constant__ scan_args p)
{
    constexpr int SLOTS = THREADS / CH, TILE = SLOTS * EACH;
    __shared__ float2 maps[2][SLOTS][CH]; /* two tiles by turns: one barrier each */
    await_last();
    let_next();
    const int lane = (int)threadIdx.x % CH, slot = (int)threadIdx.x / CH, channel = (int)(blockIdx.x % p.strips) * CH + lane;
    const int64_t n = blockIdx.x / p.strips, begin = p.cu[n], end = p.cu[n + 1], tiles = (end - begin + TILE - 1) / TILE;
    const bool real = channel < p.D;
    float carry = real && p.s0 ? p.s0[n * p.D + channel] : 0.f;
    tokens<T> next;
    auto first_of = [&](int64_t k) { return begin + (BACK ? tiles - 1 - k : k) * TILE + slot * EACH; };
    if (tiles) next.fetch(p, first_of(0), begin, end, n, channel, BACK);
    for (int64_t k = 0; k < tiles; k++) {
        tokens<T> now = next;
        const int64_t first = first_of(k);
        if (k + 1 < tiles) next.fetch(p, first_of(k + 1), begin, end, n, channel, BACK);
        float A = 1.f, b = 0.f;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = BACK ? EACH - 1 - j : j;
            const float e = now.g[i] = expf(now.g[i]);
            b = BACK ? e * (now.x[i] + b) : fmaf(e, b, now.x[i]);
            A *= e;
        }
        maps[k % 2][slot][lane] = make_float2(A, b);
        __syncthreads();
        float z = carry, h = 0.f; /* h: what enters this thread's tokens */
#pragma unroll
        for (int j = 0; j < SLOTS; j++) {
            const int s = BACK ? SLOTS - 1 - j : j;
            if (s == slot) h = z;
            const float2 map = maps[k % 2][s][lane];
            z = fmaf(map.x, z, map.y);
        }
        carry = z;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = BACK ? EACH - 1 - j : j;
            const int64_t at = (first + i) * p.D + channel;
            const bool there = real && first + i < end;
            if (!BACK) {
                h = fmaf(now.g[i], h, now.x[i]);
                if (there && p.out) ((T *)p.out)[at] = from_float<T>(h);
            } else {
                const float lambda = now.x[i] + h;
                h = now.g[i] * lambda;
                if (there && p.out) ((T *)p.out)[at] = from_float<T>(lambda);
                if (there && p.dlog_a) p.dlog_a[at] = h * now.before[i];
            }
        }
    }
    if (slot == 0 && real && p.end) p.end[n * p.D + channel] = carry;
}

/* A channel a thread, token by token. */
template <typename T> __global__ __launch_bounds__(THREADS) void step_kernel(const __grid_constant__ scan_args p)
{
    await_last();
    let_next();
    const int channel = (int)(blockIdx.x % p.strips) * THREADS + (int)threadIdx.x;
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

template <typename T, int CH, bool BACK> void launch(scan_args p, int64_t sequences, const lnt_cuda *d)
{
    p.strips = (int)lnt_div_up(p.D, CH);
    if (sequences) lnt_launch(d, scan_kernel<T, CH, BACK>, (unsigned)(sequences * p.strips), THREADS, p);
}

template <typename T, bool BACK> void run(const lnt_scan_args *a, const lnt_cuda *d)
{
    const scan_args p = args_of(a, BACK);
    const int64_t ctas = a->sequences * lnt_div_up(a->D, WIDEST), few = d->base.multiprocessors / 2;
    if (ctas >= few || a->longest <= THREADS / WIDEST * EACH)
        launch<T, WIDEST, BACK>(p, a->sequences, d);
    else if (2 * ctas >= few)
        launch<T, WIDEST / 2, BACK>(p, a->sequences, d);
    else
        launch<T, WIDEST / 4, BACK>(p, a->sequences, d);
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
    p.strips = (int)lnt_div_up(a->D, THREADS);
    if (a->sequences) LNT_BY_TYPE(a->dtype, T, lnt_launch((const lnt_cuda *)d, step_kernel<T>, (unsigned)(a->sequences * p.strips), THREADS, p));
}

const char *declines(const void *args, bool)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    return a->sequences >= ((int64_t)1 << 31) / lnt_div_up(a->D, WIDEST / 4) ? "too many sequences" : NULL;
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
    .workspace = NULL,
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
