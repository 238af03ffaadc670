/* Softmax attention on any GPU: blocks of 32 queries against blocks of 32 keys, plain float32 arithmetic from shared memory. float32 and bf16
 * tensors, head sizes up to 256. The truth on the GPU, and what runs where no faster kernel takes the call.
 *
 *   o_i = sum_j P_ij v_j     P_ij = e^{s q_i.k_j - L_i}     dS = s P.(dO V^T - delta)     delta_i = o_i.do_i     (operators.md#attention)
 *
 * Backward has a pass for dk and dv, which walks down the queries of every head that reads a key head, and one for dq, which walks down the keys:
 * every sum has one owner and one order. */
#include "recurrence/recur_cuda.cuh"

extern "C" {
#include "recurrence/attention/attention_gpu.h"
#include "recurrence/recur_args.h"
}

namespace {

constexpr int B = 32, THREADS = 256, ROWS = 4; /* a warp has 4 rows of a block of queries, a lane one key */
constexpr int PARTS = 8;                       /* columns of an accumulator a lane holds at most: 256 / 32 */

struct problem {
    const void *q, *k, *v, *o, *d_o;
    float *lse;
    const int64_t *cu;
    int64_t offset, window;
    int Hk, Hq, K, V;
    float scale;
    const float *delta; /* [T,Hq] */
    void *out, *dk, *dv;
};

/* Which keys a block of queries sees, as positions of the sequence (its cache in front). */
struct sequence {
    int64_t first, length, key_first; /* rows of q; row of k */
};
__device__ __forceinline__ sequence sequence_of(const problem &a, int64_t n)
{
    return {a.cu[n], a.cu[n + 1] - a.cu[n], a.cu[n]};
}
__device__ __forceinline__ bool sees(const problem &a, int64_t i, int64_t j) /* positions of query and key */
{
    return j <= i && (a.window == 0 || i - j < a.window);
}
__device__ __forceinline__ int64_t first_key(const problem &a, int64_t i) { return a.window > 0 && i - a.window + 1 > 0 ? i - a.window + 1 : 0; }

/* rows [B, width] of head h from row `row` on, float32, `stride` floats apart; rows from `last` on are zero. */
template <typename T>
__device__ __forceinline__ void rows_in(float *dst, int stride, const void *src, int64_t row, int64_t last, int heads, int h, int width)
{
    for (int i = (int)threadIdx.x; i < B * width; i += THREADS) {
        const int r = i / width, c = i % width;
        dst[r * stride + c] = row + r < last ? to_float(((const T *)src)[((row + r) * heads + h) * width + c]) : 0.f;
    }
}

/* x[r] = row 4 warp + r of a . row `lane` of b. */
__device__ __forceinline__ void dots(float (&x)[ROWS], const float *a, int a_stride, const float *b, int b_stride, int width)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int r = 0; r < ROWS; r++) x[r] = 0.f;
    for (int c = 0; c < width; c++) {
        const float y = b[lane * b_stride + c];
        for (int r = 0; r < ROWS; r++) x[r] += a[(ROWS * warp + r) * a_stride + c] * y;
    }
}

/* acc[r][p] += sum_j w[4 warp + r][j] x[j][lane + 32 p]; w is [B][B+1]. */
__device__ __forceinline__ void gather(float (&acc)[ROWS][PARTS], const float *w, const float *x, int stride, int width)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int j = 0; j < B; j++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (lane + 32 * p < width) {
                const float y = x[j * stride + lane + 32 * p];
                for (int r = 0; r < ROWS; r++) acc[r][p] += w[(ROWS * warp + r) * (B + 1) + j] * y;
            }
}

template <typename T>
__device__ __forceinline__ void rows_out(void *dst, const float (&acc)[ROWS][PARTS], const float (&factor)[ROWS], int64_t row, int64_t last,
                                         int heads,
                                         int h, int width)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (row + ROWS * warp + r < last && lane + 32 * p < width)
                ((T *)dst)[((row + ROWS * warp + r) * heads + h) * width + lane + 32 * p] = from_float<T>(acc[r][p] * factor[r]);
}

/* Strides that spread a column over the banks. */
__host__ __device__ __forceinline__ int padded(int width) { return width | 1; }

template <typename T> __global__ void __launch_bounds__(THREADS) forward_kernel(const __grid_constant__ problem a)
{
    extern __shared__ float shared[];
    const sequence n = sequence_of(a, blockIdx.z);
    const int64_t i0 = (int64_t)blockIdx.x * B;
    if (i0 >= n.length) return;
    const int h = (int)blockIdx.y, hk = h / (a.Hq / a.Hk), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int Ks = padded(a.K), Vs = padded(a.V);
    float *q = shared, *k = q + B * Ks, *v = k + B * Ks, *w = v + B * Vs;
    rows_in<T>(q, Ks, a.q, n.first + i0, n.first + n.length, a.Hq, h, a.K);
    float acc[ROWS][PARTS] = {}, most[ROWS], sum[ROWS], x[ROWS], factor[ROWS];
    for (int r = 0; r < ROWS; r++) most[r] = -INFINITY, sum[r] = 0.f;
    const int64_t keys = a.offset + n.length, last = i0 + B - 1 + a.offset < keys - 1 ? i0 + B - 1 + a.offset : keys - 1;
    for (int64_t j0 = first_key(a, i0 + a.offset) / B * B; j0 <= last; j0 += B) {
        __syncthreads();
        rows_in<T>(k, Ks, a.k, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.K);
        rows_in<T>(v, Vs, a.v, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.V);
        __syncthreads();
        dots(x, q, Ks, k, Ks, a.K);
        for (int r = 0; r < ROWS; r++) {
            const bool seen = sees(a, i0 + ROWS * warp + r + a.offset, j0 + lane) && j0 + lane < keys;
            const float score = seen ? x[r] * a.scale : -INFINITY, top = fmaxf(most[r], warp_max(score));
            const float p = seen ? expf(score - top) : 0.f, fade = most[r] == -INFINITY ? 0.f : expf(most[r] - top);
            sum[r] = sum[r] * fade + warp_sum(p);
            most[r] = top;
            w[(ROWS * warp + r) * (B + 1) + lane] = p;
#pragma unroll
            for (int c = 0; c < PARTS; c++) acc[r][c] *= fade;
        }
        __syncwarp();
        gather(acc, w, v, Vs, a.V);
    }
    for (int r = 0; r < ROWS; r++) factor[r] = 1.f / sum[r];
    rows_out<T>(a.out, acc, factor, n.first + i0, n.first + n.length, a.Hq, h, a.V);
    for (int r = 0; r < ROWS; r++)
        if (a.lse && lane == 0 && i0 + ROWS * warp + r < n.length)
            a.lse[(n.first + i0 + ROWS * warp + r) * a.Hq + h] = most[r] + logf(sum[r]);
}

/* delta[t,h] = o.do: a warp a row. */
template <typename T> __global__ void delta_kernel(const T *o, const T *d_o, float *delta, int64_t rows, int V)
{
    const int64_t row = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.f;
    for (int c = (int)threadIdx.x % 32; c < V; c += 32) sum += to_float(o[row * V + c]) * to_float(d_o[row * V + c]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[row] = sum;
}

/* Scores and their gradients of a block, into p and ds: [queries][keys], or [keys][queries] when T(ransposed). */
template <bool TRANSPOSED>
__device__ __forceinline__ void block_gradient(const problem &a, const sequence &n, int h, int64_t i0, int64_t j0, const float (&score)[ROWS],
                                               const float (&dp)[ROWS], float *p, float *ds)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int r = 0; r < ROWS; r++) {
        const int64_t i = i0 + (TRANSPOSED ? lane : ROWS * warp + r), j = j0 + (TRANSPOSED ? ROWS * warp + r : lane);
        const bool seen = i < n.length && j < a.offset + n.length && sees(a, i + a.offset, j);
        float P = 0.f, D = 0.f;
        if (seen) {
            const int64_t at = (n.first + i) * a.Hq + h;
            P = expf(score[r] * a.scale - a.lse[at]);
            D = P * (dp[r] - a.delta[at]) * a.scale;
        }
        if (p) p[(ROWS * warp + r) * (B + 1) + lane] = P;
        ds[(ROWS * warp + r) * (B + 1) + lane] = D;
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) query_gradient_kernel(const __grid_constant__ problem a)
{
    extern __shared__ float shared[];
    const sequence n = sequence_of(a, blockIdx.z);
    const int64_t i0 = (int64_t)blockIdx.x * B;
    if (i0 >= n.length) return;
    const int h = (int)blockIdx.y, hk = h / (a.Hq / a.Hk), Ks = padded(a.K), Vs = padded(a.V);
    float *q = shared, *k = q + B * Ks, *d = k + B * Ks, *v = d + B * Vs, *ds = v + B * Vs;
    rows_in<T>(q, Ks, a.q, n.first + i0, n.first + n.length, a.Hq, h, a.K);
    rows_in<T>(d, Vs, a.d_o, n.first + i0, n.first + n.length, a.Hq, h, a.V);
    float acc[ROWS][PARTS] = {}, x[ROWS], y[ROWS], one[ROWS] = {1.f, 1.f, 1.f, 1.f};
    const int64_t keys = a.offset + n.length, last = i0 + B - 1 + a.offset < keys - 1 ? i0 + B - 1 + a.offset : keys - 1;
    for (int64_t j0 = first_key(a, i0 + a.offset) / B * B; j0 <= last; j0 += B) {
        __syncthreads();
        rows_in<T>(k, Ks, a.k, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.K);
        rows_in<T>(v, Vs, a.v, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.V);
        __syncthreads();
        dots(x, q, Ks, k, Ks, a.K);
        dots(y, d, Vs, v, Vs, a.V);
        block_gradient<false>(a, n, h, i0, j0, x, y, nullptr, ds);
        __syncwarp();
        gather(acc, ds, k, Ks, a.K);
    }
    rows_out<T>(a.out, acc, one, n.first + i0, n.first + n.length, a.Hq, h, a.K);
}

template <typename T> __global__ void __launch_bounds__(THREADS) key_gradient_kernel(const __grid_constant__ problem a)
{
    extern __shared__ float shared[];
    const sequence n = sequence_of(a, blockIdx.z);
    const int64_t j0 = (int64_t)blockIdx.x * B, keys = a.offset + n.length;
    if (j0 >= keys) return;
    const int hk = (int)blockIdx.y, group = a.Hq / a.Hk, Ks = padded(a.K), Vs = padded(a.V);
    float *k = shared, *q = k + B * Ks, *v = q + B * Ks, *d = v + B * Vs, *p = d + B * Vs, *ds = p + B * (B + 1);
    rows_in<T>(k, Ks, a.k, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.K);
    rows_in<T>(v, Vs, a.v, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.V);
    float dk[ROWS][PARTS] = {}, dv[ROWS][PARTS] = {}, x[ROWS], y[ROWS], one[ROWS] = {1.f, 1.f, 1.f, 1.f};
    const int64_t from = j0 - a.offset > 0 ? (j0 - a.offset) / B * B : 0;
    /* The last query that sees the block's last key. */
    const int64_t until = a.window > 0 && j0 + B - 1 + a.window - a.offset < n.length ? j0 + B - 1 + a.window - a.offset : n.length;
    for (int h = hk * group; h < (hk + 1) * group; h++)
        for (int64_t i0 = from; i0 < until; i0 += B) {
            __syncthreads();
            rows_in<T>(q, Ks, a.q, n.first + i0, n.first + n.length, a.Hq, h, a.K);
            rows_in<T>(d, Vs, a.d_o, n.first + i0, n.first + n.length, a.Hq, h, a.V);
            __syncthreads();
            dots(x, k, Ks, q, Ks, a.K);
            dots(y, v, Vs, d, Vs, a.V);
            block_gradient<true>(a, n, h, i0, j0, x, y, p, ds);
            __syncwarp();
            gather(dk, ds, q, Ks, a.K);
            gather(dv, p, d, Vs, a.V);
        }
    if (a.dk) rows_out<T>(a.dk, dk, one, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.K);
    if (a.dv) rows_out<T>(a.dv, dv, one, n.key_first + j0, n.key_first + keys, a.Hk, hk, a.V);
}

/* ---- launching -------------------------------------------------------------------------------------------------------------------------- */

problem problem_of(const lnt_recur_args *a)
{
    return {.q = a->q, .k = a->k, .v = a->v, .o = a->o, .d_o = a->do_, .lse = (float *)a->lse, .cu = a->cu_seqlens_device, .offset = a->offset,
            .window = a->window, .Hk = a->Hk, .Hq = a->Hq, .K = a->K, .V = a->V, .scale = (float)a->scale, .delta = nullptr, .out = a->o,
            .dk = a->dk, .dv = a->dv};
}

template <typename Kernel> void launch(Kernel *kernel, const problem &a, int64_t rows, int heads, int64_t sequences, int floats, cudaStream_t stream)
{
    const size_t bytes = (size_t)floats * sizeof(float);
    if (rows == 0 || sequences == 0) return;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    kernel<<<dim3((unsigned)lnt_div_up(rows, B), (unsigned)heads, (unsigned)sequences), THREADS, bytes, stream>>>(a);
}

/* Floats of shared memory that a block has. */
struct forms {
    int forward, keys, queries;
};
forms forms_of(const lnt_recur_args *a)
{
    const int Ks = padded(a->K), Vs = padded(a->V);
    return {B * (2 * Ks + Vs + B + 1), 2 * B * (Ks + Vs + B + 1), B * (2 * Ks + 2 * Vs + B + 1)};
}

template <typename T> void forward(const lnt_recur_args *a, cudaStream_t stream)
{
    launch(forward_kernel<T>, problem_of(a), a->longest, a->Hq, a->sequences, forms_of(a).forward, stream);
}

template <typename T> void backward(const lnt_recur_args *a, cudaStream_t stream)
{
    problem p = problem_of(a);
    const forms of = forms_of(a);
    const int64_t rows = a->tokens * a->Hq, longest = a->longest;
    p.delta = (const float *)a->workspace;
    if (!a->do_) { /* no gradient came in */
        const size_t size = sizeof(T), keys = (size_t)(a->tokens + a->offset) * a->Hk;
        if (a->dq) cudaMemsetAsync(a->dq, 0, (size_t)rows * a->K * size, stream);
        if (a->dk) cudaMemsetAsync(a->dk, 0, keys * a->K * size, stream);
        if (a->dv) cudaMemsetAsync(a->dv, 0, keys * a->V * size, stream);
        return;
    }
    if (rows) delta_kernel<T><<<(unsigned)lnt_div_up(rows, 8), 256, 0, stream>>>((const T *)a->o, (const T *)a->do_, (float *)a->workspace, rows,
                                                                                 a->V);
    if (a->dk || a->dv)
        launch(key_gradient_kernel<T>, p, longest + a->offset, a->Hk, a->sequences, of.keys, stream);
    p.out = a->dq;
    if (a->dq) launch(query_gradient_kernel<T>, p, longest, a->Hq, a->sequences, of.queries, stream);
}

const char *declines(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const forms of = forms_of(a);
    const int floats = !backward ? of.forward : of.keys > of.queries ? of.keys : of.queries;
    if (a->K > 256 || a->V > 256) return "a head has more than 256 columns";
    if (a->sequences > 65535) return "more than 65535 sequences";
    if (floats * (int)sizeof(float) > lnt_block_room()) return "the GPU has too little shared memory"; /* 99 KB on sm_86 and sm_89 */
    return nullptr;
}

size_t workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    (void)threads;
    return backward ? (size_t)a->tokens * a->Hq * sizeof(float) : 0;
}

void put_forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    LNT_BY_TYPE(a->dtype, T, forward<T>(a, (cudaStream_t)d->stream));
}

void put_backward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    LNT_BY_TYPE(a->dtype, T, backward<T>(a, (cudaStream_t)d->stream));
}

} // namespace

extern "C" {
/* One set of kernels for long and short calls; decoding in a program has its own (attention_step_cuda.cu). */
extern const lnt_recur_impl lnt_attention_block_cuda, lnt_attention_row_cuda;
const lnt_recur_impl lnt_attention_block_cuda = {.name = "block-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80,
                                                 .declines = declines, .workspace = workspace, .forward = nullptr, .backward = nullptr,
                                                 .put_forward = put_forward, .put_backward = put_backward};
const lnt_recur_impl lnt_attention_row_cuda = {.name = "row-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80,
                                               .declines = declines, .workspace = workspace, .forward = nullptr, .backward = nullptr,
                                               .put_forward = put_forward, .put_backward = put_backward};
}
