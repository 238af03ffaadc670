/* The residual stream of a stack of blocks under bf16: z = x + y, n = z r w with r = (mean z^2 + eps)^-1/2, and back
 *
 *   u = dn w,  dz += u r - z r^3 mean(u z),  dw = sum over rows of dn z r,
 *
 * where dz is that of x, too, and rounded to bf16 that of y. x, z and dz are float32, or bf16 as y and n are (residual_in_fp32). What is not such a
 * stream goes by norms_cuda.cu. Floor: forward 12 bytes a number, or 8; back 16, dx lying where dz does, or 8, where dy does, too.
 *
 * A thread has 8 columns of a row; a block goes from row to row, with w and the sums of dw in registers and the next rows on their way. All about
 * types is known when a kernel is compiled: at the clock of a training step (1.5 GHz) it was instructions, not bytes, that a bf16 row took by
 * norms_cuda.cu's kernels, 547 of a warp back and 456 forward for these columns (counted for sm_90a). */
#include "ops/rows.cuh"

extern "C" {
#include "core/threads.h"
#include "ops/norms.h"
}

namespace {

enum { U = 8, LEAST = 512, MOST = 512 * U, FEW_ROWS = 64, PER_SM = 1024 /* threads forward; half of that back */ };

struct stream_args {
    const char *x, *y, *dn;
    char *z, *n, *dz, *dx, *dy; /* dx, dy NULL: not wanted, or dz's */
    const float *w;        /* [d] */
    float *part;           /* [blocks, d], NULL: dw is not wanted */
    int64_t rows;
    int d;
    float centre, mean, eps; /* what is added to w; 1/d */
};

/* Eight neighbours as they lie in memory. */
template <bool F32> struct eight {
    uint4 q[F32 ? 2 : 1];
    __device__ __forceinline__ void load(const char *p, int64_t i)
    {
        const uint4 *from = (const uint4 *)(p + i * (F32 ? 4 : 2));
        q[0] = from[0];
        if constexpr (F32) q[1] = from[1];
    }
    __device__ __forceinline__ void store(char *p, int64_t i) const
    {
        uint4 *to = (uint4 *)(p + i * (F32 ? 4 : 2));
        to[0] = q[0];
        if constexpr (F32) to[1] = q[1];
    }
    __device__ __forceinline__ float get(int j) const
    {
        const uint32_t *w = (const uint32_t *)q;
        if constexpr (F32) return __uint_as_float(w[j]);
        return j % 2 ? high_half(w[j / 2]) : low_half(w[j / 2]);
    }
    __device__ __forceinline__ void round(const float (&v)[U])
    {
        uint32_t *w = (uint32_t *)q;
#pragma unroll
        for (int j = 0; j < U; j++)
            if constexpr (F32)
                w[j] = __float_as_uint(v[j]);
            else if (j % 2 == 0)
                w[j / 2] = two_halves(v[j], v[j + 1]);
    }
};

/* Sums of N numbers over a block, the same bits in all its threads. Shared memory takes turns: one barrier a call is enough. */
template <int N> __device__ __forceinline__ void block_sums(float (&s)[N], int turn)
{
    struct alignas(N * 4) sums {
        float v[N];
    };
    __shared__ sums part[2][MOST / U / 32];
    const int warps = (int)blockDim.x / 32;
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < N; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], o);
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int i = 0; i < N; i++) part[turn][threadIdx.x / 32].v[i] = s[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = 0.0f;
#pragma unroll 4
    for (int w = 0; w < warps; w++) {
        const sums one = part[turn][w];
#pragma unroll
        for (int i = 0; i < N; i++) s[i] += one.v[i];
    }
}

__device__ __forceinline__ void weights_of(const stream_args &a, int c, float (&w)[U])
{
    get_weights(w, a.w + c);
#pragma unroll
    for (int j = 0; j < U; j++) w[j] += a.centre;
}

template <bool F32> __global__ void __launch_bounds__(MOST / U, 2) forward_rows(const __grid_constant__ stream_args a)
{
    const int c = (int)threadIdx.x * U;
    float w[U];
    let_next();
    weights_of(a, c, w);
    await_last();
    eight<F32> x;
    eight<false> y;
    int turn = 0;
    int64_t at = (int64_t)blockIdx.x * a.d + c;
    const int64_t step = (int64_t)gridDim.x * a.d;
    if ((int64_t)blockIdx.x < a.rows) x.load(a.x, at), y.load(a.y, at);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, at += step, turn ^= 1) {
        float v[U], s[1] = {};
#pragma unroll
        for (int j = 0; j < U; j++) v[j] = x.get(j) + y.get(j);
        eight<F32> z;
        z.round(v);
        if (row + gridDim.x < a.rows) x.load(a.x, at + step), y.load(a.y, at + step);
        z.store(a.z, at);
#pragma unroll
        for (int j = 0; j < U; j++) v[j] = z.get(j), s[0] += v[j] * v[j];
        block_sums(s, turn);
        const float r = rsqrtf(s[0] * a.mean + a.eps);
#pragma unroll
        for (int j = 0; j < U; j++) v[j] *= r * w[j];
        eight<false> n;
        n.round(v);
        n.store(a.n, at);
    }
}

template <bool F32> struct back_row {
    eight<F32> z, dz;
    eight<false> dn;
    __device__ __forceinline__ void load(const stream_args &a, int64_t at)
    {
        z.load(a.z, at);
        dn.load(a.dn, at);
        dz.load(a.dz, at);
    }
};

/* TOGETHER rows at a time have one barrier. */
template <bool F32, int TOGETHER> __global__ void __launch_bounds__(MOST / U, 1) backward_rows(const __grid_constant__ stream_args a)
{
    let_next();
    await_last();
    const int c = (int)threadIdx.x * U;
    const int64_t step = (int64_t)gridDim.x * TOGETHER * a.d;
    float w[U], dw[U] = {};
    weights_of(a, c, w);
    back_row<F32> next[TOGETHER] = {};
    int turn = 0;
    int64_t first = (int64_t)blockIdx.x * TOGETHER, at = first * a.d + c;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        if (first + i < a.rows) next[i].load(a, at + i * a.d);
    for (; first < a.rows; first += (int64_t)gridDim.x * TOGETHER, at += step, turn ^= 1) {
        back_row<F32> now[TOGETHER];
        float s[2 * TOGETHER] = {};
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            now[i] = next[i];
            if (first + (int64_t)gridDim.x * TOGETHER + i < a.rows) next[i].load(a, at + step + i * a.d);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
#pragma unroll
            for (int j = 0; j < U; j++) {
                const float z = now[i].z.get(j);
                s[2 * i] += z * z;
                s[2 * i + 1] += now[i].dn.get(j) * w[j] * z;
            }
        block_sums(s, turn);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            if (first + i >= a.rows) break;
            const float r = rsqrtf(s[2 * i] * a.mean + a.eps), back = r * r * r * a.mean * s[2 * i + 1];
            float v[U];
#pragma unroll
            for (int j = 0; j < U; j++) {
                const float z = now[i].z.get(j), dn = now[i].dn.get(j);
                dw[j] += dn * (z * r);
                v[j] = dn * w[j] * r - z * back + now[i].dz.get(j);
            }
            eight<F32> dz;
            dz.round(v);
            dz.store(a.dz, at + i * a.d);
            if (a.dx) dz.store(a.dx, at + i * a.d);
            if (a.dy) {
                eight<false> dy;
                if constexpr (F32)
                    dy.round(v);
                else
                    dy = dz;
                dy.store(a.dy, at + i * a.d);
            }
        }
    }
    if (!a.part) return;
    float4 *part = (float4 *)(a.part + (int64_t)blockIdx.x * a.d + c);
    part[0] = make_float4(dw[0], dw[1], dw[2], dw[3]);
    part[1] = make_float4(dw[4], dw[5], dw[6], dw[7]);
}

/* Whole rows that lie well, of one head; a tensor that is not there does. */
bool lies_well(const lnt_tensor *t, lnt_dtype type)
{
    return !t->data || (t->dtype == type && t->ld == t->cols && (uintptr_t)t->data % 16 == 0);
}

bool is_stream(const lnt_call *sum, const lnt_call *norm, stream_args *a)
{
    const lnt_norm_attr *attr = (const lnt_norm_attr *)norm->attr;
    const lnt_tensor *z = &norm->in[0];
    const lnt_dtype type = z->dtype;
    if (z->heads != 1 || z->cols % (32 * U) || z->cols < LEAST || z->cols > MOST || (uintptr_t)norm->param[0].master % 16) return false;
    if (!lies_well(z, type) || !lies_well(&sum->in[0], type) || !lies_well(&sum->in[1], LINNET_BF16)) return false;
    if (!lies_well(&norm->out[0], LINNET_BF16)) return false;
    *a = {};
    a->x = (const char *)sum->in[0].data, a->y = (const char *)sum->in[1].data, a->z = (char *)z->data, a->n = (char *)norm->out[0].data;
    a->w = norm->param[0].master;
    a->rows = z->rows, a->d = (int)z->cols;
    a->centre = attr->centre, a->mean = 1.0f / (float)z->cols, a->eps = (float)attr->eps;
    return true;
}

} // namespace

extern "C" bool lnt_stream_norm_forward(const lnt_call *sum, const lnt_call *norm)
{
    stream_args a;
    const lnt_cuda *d = lnt_cuda_of(norm->c);
    if (norm->in[0].rows <= FEW_ROWS || lnt_rows_are_alone(norm->c) || !is_stream(sum, norm, &a) || !a.x || !a.y || !a.n) return false;
    const int64_t threads = a.d / U, most = d->base.multiprocessors * (PER_SM / threads);
    const auto kernel = norm->in[0].dtype == LINNET_F32 ? forward_rows<true> : forward_rows<false>;
    lnt_launch(d, kernel, (unsigned)(a.rows < most ? a.rows : most), (int)threads, a);
    return true;
}

extern "C" bool lnt_stream_norm_backward(const lnt_call *sum, const lnt_call *norm)
{
    stream_args a;
    const lnt_cuda *d = lnt_cuda_of(norm->c);
    const bool f32 = norm->in[0].dtype == LINNET_F32;
    const lnt_tensor *dz = &norm->d_in[0], *dx = &sum->d_in[0], *dy = &sum->d_in[1];
    const lnt_dtype type = norm->in[0].dtype;
    if (norm->in[0].rows <= FEW_ROWS || !is_stream(sum, norm, &a) || !norm->accumulate[0]) return false;
    if (!dz->data || !norm->d_out[0].data || !lies_well(dz, type) || !lies_well(&norm->d_out[0], LINNET_BF16)) return false;
    if ((dx->data && (sum->accumulate[0] || !lies_well(dx, type))) || (dy->data && (sum->accumulate[1] || !lies_well(dy, LINNET_BF16)))) return false;
    a.dn = (const char *)norm->d_out[0].data, a.dz = (char *)dz->data, a.dx = (char *)dx->data, a.dy = (char *)dy->data;
    float *grad = norm->param[0].grad;
    a.part = grad ? (float *)norm->work : NULL;
    const int64_t threads = a.d / U, room = lnt_cuda_sum_blocks(a.rows), all = d->base.multiprocessors * (PER_SM / 2 / threads);
    const int64_t blocks = all < room ? all : room;
    if (f32)
        lnt_launch(d, backward_rows<true, 1>, (unsigned)blocks, (int)threads, a);
    else
        lnt_launch(d, backward_rows<false, 2>, (unsigned)blocks, (int)threads, a);
    if (grad) add_blocks(norm->c, grad, a.part, blocks, a.d, a.d, 1);
    return true;
}
