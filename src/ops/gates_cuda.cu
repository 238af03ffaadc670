/* Decay gates: g = -e^A softplus(x + b);  dx = -e^A sigmoid(x + b) dg,  db = sum dx,  dA = sum g dg over the rows. A few columns a token: threads
 * of a block lie side by side over columns and rows. Floor: forward x and g, backward x, dg and dx, once. */
#include "ops/rows.cuh"

enum { GATE_THREADS = 256 };

struct gate_args {
    lnt_view x, y, dy, dx;
    const float *A, *b; /* [cols] */
    float *part;        /* [2][blocks, cols]: of dA, of db */
    bool add;
    int64_t tokens;
    int cols, rows;     /* rows of a block */
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
    x[0] = -expf(a.A[c]) * softplus_of(x[0] + a.b[c]);
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
        const float scale = -expf(a.A[c]), b = a.b[c];
#pragma unroll 2
        for (int64_t r = r0 + at; r < r1; r += side) {
            float x[1], dy[1];
            get<any1>(x, a.x, r * a.cols + c);
            get<any1>(dy, a.dy, r * a.cols + c);
            const float z = x[0] + b, scaled = scale * dy[0];
            const float d[1] = {scaled * sigmoid_of(z)};
            if (a.dx.p) put_sum<any1>(a.dx, r * a.cols + c, d, a.add);
            dA += scaled * softplus_of(z);
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

static gate_args args_of(const lnt_call *k)
{
    return {view_of(&k->in[0]), view_of(&k->out[0]), view_of(&k->d_out[0]), view_of(&k->d_in[0]), k->param[0].master, k->param[1].master,
            (float *)k->work,   k->accumulate[0],    k->tokens,             (int)k->in[0].cols,   0};
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
    for (int i = 0; i < 2; i++)
        if (k->param[i].grad) add_blocks(k->c, k->param[i].grad, a.part + i * blocks * a.cols, blocks, a.cols, a.cols, 1);
    return LINNET_OK;
}
