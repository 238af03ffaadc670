/* Mesa's Lambda and its number of steps on a GPU. */
#include "device/functions.cuh"
extern "C" {
#include "recurrence/mesa/mesa_node.h"
}

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) lambda_kernel(float *lambda, const float *p, float lower, int64_t n, lnt_steps_draw draw)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i == 0 && draw.steps) *draw.steps = draw.min + (int32_t)ceil(*draw.chance * (draw.max - draw.min + 1)) - 1;
    if (i < n) lambda[i] = lower + softplus_of(p[i]);
}
__global__ void __launch_bounds__(THREADS) lambda_gradient_kernel(float *dp, const float *p, const float *dlambda, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) dp[i] += dlambda[i] / (1 + expf(-p[i]));
}

extern "C" void lnt_lambda_cuda(lnt_ctx *c, float *lambda, const float *p, float lower, int64_t n, lnt_steps_draw draw)
{
    lambda_kernel<<<(unsigned)lnt_div_up(n, THREADS), THREADS, 0, lnt_stream(c)>>>(lambda, p, lower, n, draw);
}
extern "C" void lnt_lambda_gradient_cuda(lnt_ctx *c, float *dp, const float *p, const float *dlambda, int64_t n)
{
    lambda_gradient_kernel<<<(unsigned)lnt_div_up(n, THREADS), THREADS, 0, lnt_stream(c)>>>(dp, p, dlambda, n);
}
