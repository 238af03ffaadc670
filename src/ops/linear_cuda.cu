/* Biases of linear maps. */
#include "ops/rows.cuh"

struct bias_args {
    lnt_view x;
    float *bias, *part; /* [cols]; [blocks, cols] */
    int64_t rows;
    int cols, each;     /* rows of a block */
};

static __global__ void __launch_bounds__(256) bias_kernel(const __grid_constant__ bias_args a)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= a.rows * a.cols) return;
    const float b[1] = {a.bias[i % a.cols]};
    put_sum<any1>(a.x, i, b, true);
}

extern "C" void lnt_bias_add_cuda(lnt_ctx *c, const lnt_tensor *x, const float *bias)
{
    const bias_args a = {view_of(x), (float *)bias, NULL, x->rows, (int)x->cols, 0};
    const int64_t blocks = lnt_div_up(x->rows * x->cols, 256);
    if (blocks > 0) bias_kernel<<<(unsigned)blocks, 256, 0, lnt_stream(c)>>>(a);
}

/* A block has 64 columns (blockIdx.y) of some rows, four rows side by side. */
static __global__ void __launch_bounds__(256) column_sums_kernel(const __grid_constant__ bias_args a)
{
    __shared__ float share[4][64];
    const int c = (int)blockIdx.y * 64 + (int)threadIdx.x % 64, at = (int)threadIdx.x / 64;
    const int64_t r0 = (int64_t)blockIdx.x * a.each, r1 = min(a.rows, r0 + a.each);
    float s = 0.0f;
    if (c < a.cols) {
#pragma unroll 4
        for (int64_t r = r0 + at; r < r1; r += 4) {
            float x[1];
            get<any1>(x, a.x, r * a.cols + c);
            s += x[0];
        }
    }
    share[at][threadIdx.x % 64] = s;
    __syncthreads();
    if (at || c >= a.cols) return;
    for (int i = 1; i < 4; i++) s += share[i][threadIdx.x];
    a.part[(int64_t)blockIdx.x * a.cols + c] = s;
}

extern "C" void lnt_column_sums_cuda(lnt_ctx *c, const lnt_tensor *dy, float *sums, float *work)
{
    if (dy->rows <= 0) return;
    const int each = (int)lnt_div_up(dy->rows, lnt_cuda_sum_blocks(dy->rows));
    const int64_t blocks = lnt_div_up(dy->rows, each);
    const bias_args a = {view_of(dy), NULL, work, dy->rows, (int)dy->cols, each};
    column_sums_kernel<<<dim3((unsigned)blocks, (unsigned)lnt_div_up(dy->cols, 64)), 256, 0, lnt_stream(c)>>>(a);
    add_blocks(c, sums, work, blocks, dy->cols, dy->cols, 1);
}
