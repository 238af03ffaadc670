/* The optimizer on a GPU: three launches a step, one more for each micro-batch's losses, no wait.
 *
 * Floor: the update reads gradient, moments and weights and writes them back: 30 bytes an element with a float32 master and a bf16 copy, 24 with bf16
 * weights alone, 8 less with moments in bf16 (4 more where the gradient has to become zero); the norm reads the gradients once, 4 bytes. */
#include "device/cuda.cuh"

extern "C" {
#include "ops/kernels.h"
#include "ops/optimizer.h"
}

static constexpr int THREADS = 256, FINISH = 1024;

/* Sum over the threads of a block in a fixed order; the result is in thread 0. */
template <int N> __device__ double block_sum(double x)
{
    __shared__ double part[N / 32];
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x == 0)
        for (int i = 0; i < N / 32; i++) sum += part[i];
    return sum;
}

/* One block: micro-batches have some ten thousand losses. */
__global__ void __launch_bounds__(FINISH) losses_kernel(lnt_step_sums *sums, const float *loss, int64_t n)
{
    double x = 0;
    for (int64_t i = threadIdx.x; i < n; i += FINISH) x += (double)loss[i];
    x = block_sum<FINISH>(x);
    if (threadIdx.x == 0) sums->nats += x;
}

/* parts[i] = sum of squares of piece i: float32 over a thread's 128 elements, float64 from there on. */
__global__ void __launch_bounds__(THREADS) squares_kernel(double *parts, const lnt_piece *pieces, const float *grad)
{
    const lnt_piece p = pieces[blockIdx.x];
    const float *g = grad + p.at;
    float s[4] = {0, 0, 0, 0};
    for (int i = 4 * (int)threadIdx.x; i < p.n; i += 4 * THREADS) { /* what follows a piece's end up to four elements is padding: zero */
        float x[4];
        load_pack<4>(x, g + i);
#pragma unroll
        for (int k = 0; k < 4; k++) s[k] += x[k] * x[k];
    }
    const double x = block_sum<THREADS>(((double)s[0] + s[1]) + ((double)s[2] + s[3]));
    if (threadIdx.x == 0) parts[blockIdx.x] = x;
}

__global__ void __launch_bounds__(FINISH) norm_kernel(lnt_step_sums *sums, const double *parts, int64_t n, double clip)
{
    double x = 0;
    for (int64_t i = threadIdx.x; i < n; i += FINISH) x += parts[i];
    x = block_sum<FINISH>(x);
    if (threadIdx.x) return;
    x = sqrt(x);
    sums->norm = x;
    sums->scale = clip > 0 && x > clip ? clip / x : 1.0;
}

template <typename M> struct arenas {
    float *w, *g;
    M *m, *v;
    lnt_bf16 *work; /* of element 0, which is before the first there is */
    const lnt_step_sums *sums;
    const lnt_piece *pieces;
};

/* Rounded by the upper halves of the words. */
__device__ void store_rounded(lnt_bf16 *to, const float *x, const uint32_t *words)
{
    lnt_pack<lnt_bf16, 4> r;
#pragma unroll
    for (int k = 0; k < 4; k++) r.x[k] = lnt_round_bits(__float_as_uint(x[k]), words[k]);
    *(lnt_pack<lnt_bf16, 4> *)to = r;
}

/* M: how moments are kept. */
template <typename M> __global__ void __launch_bounds__(THREADS) adamw_kernel(const arenas<M> x, const lnt_adamw_args a)
{
    const lnt_piece p = x.pieces[blockIdx.x];
    const float scale = (float)x.sums->scale, shrink = p.decay ? a.shrink : 0.0f;
    const float zero[4] = {0, 0, 0, 0};
    if (!isfinite(x.sums->norm) || !isfinite(x.sums->nats)) {
        for (int i = 4 * (int)threadIdx.x; p.zero && i < p.n; i += 4 * THREADS) store_pack<4>(x.g + p.at + i, zero);
        return;
    }
    for (int i = 4 * (int)threadIdx.x; i < p.n; i += 4 * THREADS) {
        const int64_t e = p.at + i;
        float w[4], g[4], m[4], v[4];
        if (p.master) load_pack<4>(w, x.w + e);
        else load_pack<4>(w, (const bf16 *)x.work + e);
        load_pack<4>(g, x.g + e);
        load_pack<4>(m, x.m + e);
        load_pack<4>(v, x.v + e);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float s = g[k] * scale;
            m[k] = m[k] * a.b1 + s * a.one_b1;
            v[k] = v[k] * a.b2 + s * s * a.one_b2;
            w[k] = w[k] - w[k] * shrink - m[k] * a.rate / (sqrtf(v[k]) * a.root + a.epsilon);
        }
        uint32_t words[4];
        if constexpr (sizeof(M) == 2) {
            lnt_philox(a.seed, a.moment_stream, (uint64_t)e / 4, words);
            store_rounded((lnt_bf16 *)x.v + e, v, words);
#pragma unroll
            for (int k = 0; k < 4; k++) words[k] <<= 16;
            store_rounded((lnt_bf16 *)x.m + e, m, words);
        } else {
            store_pack<4>(x.m + e, m);
            store_pack<4>(x.v + e, v);
        }
        if (p.zero) store_pack<4>(x.g + e, zero);
        if (p.master) store_pack<4>(x.w + e, w);
        if (p.master && p.work) store_pack<4>((bf16 *)x.work + e, w);
        if (!p.master) {
            lnt_philox(a.seed, a.stream, (uint64_t)e / 4, words);
            store_rounded(x.work + e, w, words);
        }
    }
}

extern "C" void lnt_optimizer_add_losses_cuda(lnt_optimizer *o, const float *loss, int64_t n)
{
    losses_kernel<<<1, FINISH, 0, lnt_stream(o->c)>>>(o->sums, loss, n);
}

extern "C" void lnt_optimizer_norm_cuda(lnt_optimizer *o, double clip)
{
    const cudaStream_t stream = lnt_stream(o->c);
    squares_kernel<<<(unsigned)o->n_pieces, THREADS, 0, stream>>>(o->parts, o->pieces, o->w->grad);
    norm_kernel<<<1, FINISH, 0, stream>>>(o->sums, o->parts, o->n_pieces, clip);
}

template <typename M> static void update(lnt_optimizer *o, const lnt_adamw_args *common)
{
    const lnt_weights *w = o->w;
    const arenas<M> x = {.w = w->master, .g = w->grad, .m = (M *)o->m, .v = (M *)o->v, .work = (lnt_bf16 *)w->work - w->work_begin, .sums = o->sums,
                         .pieces = o->pieces};
    adamw_kernel<M><<<(unsigned)o->n_pieces, THREADS, 0, lnt_stream(o->c)>>>(x, *common);
}

extern "C" void lnt_optimizer_update_cuda(lnt_optimizer *o, const lnt_adamw_args *common)
{
    if (o->kept == LINNET_BF16) update<bf16>(o, common);
    else update<float>(o, common);
}
