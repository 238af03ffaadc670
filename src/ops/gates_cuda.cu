/* Decay gates (equations: gates.c, gates_cpu.c). A few columns a token: threads of a block lie side by side over columns and rows. Floor: forward x
 * and g, backward x, dg and dx, once. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/gates.h"
}

enum { GATE_THREADS = 256 };

struct gate_args {
    lnt_view x, y, dy, dx;
    const float *A, *b; /* [cols] */
    float *part;        /* [2][blocks, cols]: of dA, of db */
    bool add;
    int64_t tokens;
    int cols, rows;     /* rows of a block */
    int d;              /* columns that share an A */
    float lower;        /* 0: none */
};

static __global__ void __launch_bounds__(GATE_THREADS) gate_forward(const __grid_constant__ gate_args a)
{
    let_next();
    await_last();
    const int64_t i = (int64_t)blockIdx.x * GATE_THREADS + threadIdx.x;
    if (i >= a.tokens * a.cols) return;
    float x[1];
    const int c = (int)(i % a.cols);
    get<any1>(x, a.x, i);
    const float e = expf(a.A[c / a.d]), z = x[0] + a.b[c];
    x[0] = a.lower < 0.0f ? a.lower * sigmoid_of(e * z) : -e * softplus_of(z);
    put<any1>(a.y, i, x);
}

/* A block has the columns of blockIdx.y and some rows; side by side lie as many rows as fit. Their sums are added in order. */
static __global__ void __launch_bounds__(GATE_THREADS) gate_backward(const __grid_constant__ gate_args a)
{
    __shared__ float2 share[GATE_THREADS];
    const int width = min(a.cols, GATE_THREADS), side = GATE_THREADS / width;
    const int at = (int)threadIdx.x / width, c = (int)blockIdx.y * width + (int)threadIdx.x % width;
    const int64_t r0 = (int64_t)blockIdx.x * a.rows, r1 = min(a.tokens, r0 + a.rows);
    float dA = 0.0f, db = 0.0f;
    if (at < side && c < a.cols) {
        const float e = expf(a.A[c / a.d]), b = a.b[c];
#pragma unroll 2
        for (int64_t r = r0 + at; r < r1; r += side) {
            float x[1], dy[1];
            get<any1>(x, a.x, r * a.cols + c);
            get<any1>(dy, a.dy, r * a.cols + c);
            const float z = x[0] + b, scaled = -e * dy[0], t = expf(-fabsf(e * z)); /* t / (1 + t)^2 = s (1 - s) */
            const float d[1] = {a.lower < 0.0f ? -scaled * t / ((1.0f + t) * (1.0f + t)) * a.lower : scaled * sigmoid_of(z)};
            if (a.dx.p) put_sum<any1>(a.dx, r * a.cols + c, d, a.add);
            dA += a.lower < 0.0f ? d[0] * z : scaled * softplus_of(z);
            db += d[0];
        }
    }
    share[threadIdx.x] = make_float2(dA, db);
    __syncthreads();
    if (at || c >= a.cols) return;
    for (int s = 1; s < side; s++) dA += share[threadIdx.x + s * width].x, db += share[threadIdx.x + s * width].y;
    a.part[(int64_t)blockIdx.x * a.cols + c] = dA;
    a.part[((int64_t)gridDim.x + blockIdx.x) * a.cols + c] = db;
}

/* grad[h] += the sum over head h's d columns of every block's part, a warp each. */
static __global__ void __launch_bounds__(256) head_sums_kernel(float *grad, const float *part, int64_t blocks, int cols, int d)
{
    const int h = (int)blockIdx.x * 8 + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (h >= cols / d) return;
    float s = 0.0f;
    for (int64_t b = 0; b < blocks; b++)
        for (int j = lane; j < d; j += 32) s += part[b * cols + h * d + j];
    s = warp_sum(s);
    if (lane == 0) grad[h] += s;
}

static gate_args args_of(const lnt_call *k)
{
    const lnt_decay_gate_attr *attr = (const lnt_decay_gate_attr *)k->attr;
    return {view_of(&k->in[0]), view_of(&k->out[0]), view_of(&k->d_out[0]), view_of(&k->d_in[0]), k->param[0].master, k->param[1].master,
            (float *)k->work + k->in[0].cols, k->accumulate[0], k->in[0].rows, (int)k->in[0].cols, 0, (int)attr->d, (float)attr->lower};
}

extern "C" linnet_status lnt_decay_gate_forward_cuda(const lnt_call *k)
{
    const gate_args a = args_of(k);
    if (a.tokens > 0) lnt_launch(lnt_cuda_of(k->c), gate_forward, (unsigned)lnt_div_up(a.tokens * a.cols, GATE_THREADS), GATE_THREADS, a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_decay_gate_backward_cuda(const lnt_call *k)
{
    gate_args a = args_of(k);
    if (a.tokens <= 0) return LINNET_OK;
    const int64_t most = lnt_cuda_sum_blocks(a.tokens);
    a.rows = (int)lnt_div_up(a.tokens, most);
    const int64_t blocks = lnt_div_up(a.tokens, a.rows);
    const dim3 grid((unsigned)blocks, (unsigned)lnt_div_up(a.cols, GATE_THREADS));
    gate_backward<<<grid, GATE_THREADS, 0, lnt_stream(k->c)>>>(a);
    if (k->param[1].grad) add_blocks(k->c, k->param[1].grad, a.part + blocks * a.cols, blocks, a.cols, a.cols, 1);
    if (k->param[0].grad && a.d == 1) add_blocks(k->c, k->param[0].grad, a.part, blocks, a.cols, a.cols, 1);
    if (k->param[0].grad && a.d > 1)
        head_sums_kernel<<<(unsigned)lnt_div_up(a.cols / a.d, 8), 256, 0, lnt_stream(k->c)>>>(k->param[0].grad, a.part, blocks, a.cols, a.d);
    return LINNET_OK;
}

/* ---- bounded decay: with s = sigmoid(x), f = b + (1 - b) s:  g = log f,  dx = (1 - b) s (1 - s) / f dg,  db = sum (1 - s) / f dg ------------- */

static constexpr float LEAST = 1.17549435e-38f; /* of f: the smallest normal number */

struct bounded_map {
    static constexpr int IN = 2, OUT = 1; /* x, b */
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float x = in[0][u], b = in[1][u], rest = 1.0f - b, f = fmaxf(b + rest * sigmoid_of(x), LEAST), w = rest * sigmoid_of(-x);
            out[0][u] = x != x ? x : b != b ? b : w < 0.5f ? log1pf(-w) : logf(f); /* the largest of NaN and a number hides it */
        }
    }
};

/* dg (1 - s) / f, of which both gradients are made. */
__device__ __forceinline__ float bounded_part(float x, float b, float dy)
{
    return dy * sigmoid_of(-x) / fmaxf(b + (1.0f - b) * sigmoid_of(x), LEAST);
}

struct bounded_slope {
    static constexpr int IN = 3, OUT = 1; /* x, b, dg */
    template <int U> __device__ void operator()(const float (&in)[3][U], float (&out)[1][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = bounded_part(in[0][u], in[1][u], in[2][u]) * (1.0f - in[1][u]) * sigmoid_of(in[0][u]);
    }
};

struct bound_slope {
    static constexpr int OUT = 1;
    lnt_strided x, b, dy;
    template <class P> __device__ void row(float (&out)[1][P::U], int64_t r, int64_t c) const
    {
        float v[P::U], low[P::U];
        get<P>(v, x.v, r * x.ld + c);
        get<P>(low, b.v, c);
        get<P>(out[0], dy.v, r * dy.ld + c);
#pragma unroll
        for (int u = 0; u < P::U; u++) out[0][u] = bounded_part(v[u], low[u], out[0][u]);
    }
};

extern "C" linnet_status lnt_bounded_decay_forward_cuda(const lnt_call *k)
{
    const bool add[1] = {false};
    row_run(k->c, bounded_map{}, k->out[0].rows, k->out[0].cols, {&k->in[0], &k->in[1]}, 2u, {&k->out[0]}, add);
    return LINNET_OK;
}

extern "C" linnet_status lnt_bounded_decay_backward_cuda(const lnt_call *k)
{
    const lnt_tensor *dy = &k->d_out[0], *db = &k->d_in[1];
    if (k->d_in[0].data) row_run(k->c, bounded_slope{}, dy->rows, dy->cols, {&k->in[0], &k->in[1], dy}, 2u, {&k->d_in[0]}, k->accumulate);
    if (!db->data) return LINNET_OK;
    if (!k->accumulate[1]) lnt_device_zero(k->c, db->data, (size_t)db->cols * sizeof(float));
    column_run(k->c, bound_slope{strided(&k->in[0]), strided(&k->in[1]), strided(dy)}, dy->rows, dy->cols, 1,
               {&k->in[0], &k->in[1], dy}, {(float *)db->data}, (float *)k->work);
    return LINNET_OK;
}

/* ---- decay bounds, a thread each column: with s = softmax over the layers, b_l = s_1 + .. + s_l ------------------------------------------------ */

struct bounds_args {
    const float *p, *db; /* [layers, cols] */
    float *b, *dp;
    int layers;
    int64_t cols;
    bool add;
};

template <bool BACKWARD> __global__ void __launch_bounds__(128) bounds_kernel(const __grid_constant__ bounds_args a)
{
    const int64_t c = (int64_t)blockIdx.x * 128 + threadIdx.x;
    if (c >= a.cols) return;
    float top = a.p[c], sum = 0.0f, run = 0.0f;
    [[maybe_unused]] float mean = 0.0f;
    for (int l = 1; l < a.layers; l++) top = fmaxf(top, a.p[l * a.cols + c]);
    for (int l = 0; l < a.layers; l++) sum += expf(a.p[l * a.cols + c] - top);
    if constexpr (BACKWARD) {
        for (int l = a.layers - 1; l > 0; l--) {
            run += a.db[l * a.cols + c];
            mean += expf(a.p[l * a.cols + c] - top) / sum * run;
        }
        run = 0.0f;
        for (int l = a.layers - 1; l >= 0; l--) {
            run = l ? run + a.db[l * a.cols + c] : 0.0f;
            const float d = expf(a.p[l * a.cols + c] - top) / sum * (run - mean);
            a.dp[l * a.cols + c] = a.add ? a.dp[l * a.cols + c] + d : d;
        }
    } else {
        for (int l = 0; l < a.layers; l++) a.b[l * a.cols + c] = run += l ? expf(a.p[l * a.cols + c] - top) / sum : 0.0f;
    }
}

static bounds_args bounds_of(const lnt_call *k)
{
    const lnt_tensor *p = &k->in[0];
    return {(const float *)p->data, (const float *)k->d_out[0].data, (float *)k->out[0].data, (float *)k->d_in[0].data, p->heads, p->cols / p->heads,
            k->accumulate[0]};
}

extern "C" linnet_status lnt_decay_bounds_forward_cuda(const lnt_call *k)
{
    const bounds_args a = bounds_of(k);
    bounds_kernel<false><<<(unsigned)lnt_div_up(a.cols, 128), 128, 0, lnt_stream(k->c)>>>(a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_decay_bounds_backward_cuda(const lnt_call *k)
{
    const bounds_args a = bounds_of(k);
    if (a.dp) bounds_kernel<true><<<(unsigned)lnt_div_up(a.cols, 128), 128, 0, lnt_stream(k->c)>>>(a);
    return LINNET_OK;
}
