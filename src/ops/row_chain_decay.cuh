/* A rule with a decay a head and keys that all heads share (operators.md#decay), Mamba-2's, with what stands around it, of one token. q, k and x are
 * columns of one convolution c, rounded as all results in between are:
 *
 *   d = softplus(n_0 dt + b) n_1      S' = e^{d A} S + k (d x)^T      o = s S'^T q      z' = act(z) (D x + o)
 *   y = z' w (mean z'^2 + eps)^-1/2
 *
 * Two kernels. In the first a block has K x 32 of a head's state in registers from before the kernels ahead have ended, and makes z' and its sum of
 * squares; q and k every block makes for itself, a column a thread. The last warp has the 32 columns of x. The second has the norm, and moves up the
 * rows of the convolution's state that all blocks of the first read. Floor: the state read once and written once. Three kernels, the functions
 * ahead, the rule, sum, gate and norm in clusters, took 6.8 us (H200, one sequence, 64 heads of 64, K = 128). */
#ifndef LNT_OPS_ROW_CHAIN_DECAY_CUH
#define LNT_OPS_ROW_CHAIN_DECAY_CUH

#include "device/block_clock.cuh"
#include "ops/rows.cuh"

namespace row_chain {

enum { DECAY_COLUMNS = 32, DECAY_WARPS = 8, DECAY_THREADS = 32 * (DECAY_WARPS + 1), DECAY_NORM_THREADS = 256, DECAY_NORM_COLUMNS = 2 };

/* Strides in elements. */
struct decay_around {
    const bf16 *c, *dt, *z; /* the convolution's input; [heads]; [heads, V] */
    const float *taps, *bias, *dt_bias, *A, *D, *w;
    float *window; /* three rows of `window_cols` a sequence */
    float *state, *squares;
    bf16 *y;
    int64_t c_row, dt_row, z_row, y_row, window_row, state_row;
    int window_cols, q, k, x; /* first columns of the convolution */
    int V, cols;
    float n0, n1, scale, eps, more; /* more: what w lacks of the factor */
};

/* A column of the convolution: what is there early, and what it is. */
struct decay_column {
    float4 taps;
    float before[3], bias;
    __device__ __forceinline__ void load(const decay_around &a, int64_t row, int c)
    {
        const float *from = a.window + row * a.window_row + c;
        taps = ((const float4 *)a.taps)[c], bias = a.bias[c];
#pragma unroll
        for (int j = 0; j < 3; j++) before[j] = from[(int64_t)j * a.window_cols];
    }
    __device__ __forceinline__ float get(float now) const
    {
        float y[1] = {taps.x * before[0] + taps.y * before[1] + taps.z * before[2] + taps.w * now + bias};
        act_all(y, LNT_SILU);
        return __bfloat162float(__float2bfloat16_rn(y[0]));
    }
};
__device__ __forceinline__ void decay_move_up(const decay_around &a, int64_t row, int c, float second, float third, float now)
{
    float *to = a.window + row * a.window_row + c;
    to[0] = second, to[a.window_cols] = third, to[2 * (int64_t)a.window_cols] = now;
}

template <int K> __global__ void __launch_bounds__(DECAY_THREADS, 2) decay_rule_kernel(const __grid_constant__ decay_around a)
{
    constexpr int ROWS = K / 32;
    block_clock clock(CLOCK_DECAY, 32 * DECAY_WARPS);
    __shared__ __align__(16) float q[K], k[K], v[DECAY_COLUMNS];
    __shared__ float4 sums[DECAY_WARPS][8];
    __shared__ float less; /* e^{d A} - 1, which keeps a small gate's accuracy over many tokens */
    const int blocks = a.V / DECAY_COLUMNS, head = (int)blockIdx.x / blocks, e = (int)blockIdx.x % blocks * DECAY_COLUMNS;
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32, mine = head * a.V + e + lane;
    const int64_t row = blockIdx.y;
    const bool last = warp == DECAY_WARPS, there = last || t < 2 * K; /* has a column of the convolution */
    const int c = last ? a.x + mine : t < K ? a.k + t : a.q + t - K;
    float *state = a.state + row * a.state_row + ((int64_t)head * K + warp * 4 + lane / 8) * a.V + e + lane % 8 * 4;
    float S[ROWS][4], now = 0.0f, x = 0.0f;
    decay_column column;
    if (there) column.load(a, row, c);
    if (!last)
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_pack<4>(S[r], state + (int64_t)r * 32 * a.V);
    const float dt_bias = a.dt_bias[head], A = a.A[head], D = a.D[mine];
    let_next(); /* the next product's weights queue up behind the state */
    await_last(), clock.goes_on();
    if (there) now = to_float(a.c[row * a.c_row + c]);
    const float dt = to_float(a.dt[row * a.dt_row + head]), z = to_float(a.z[row * a.z_row + mine]);
    if (there) x = column.get(now);
    if (last) {
        float d[1] = {a.n0 * dt + dt_bias};
        act_all(d, LNT_SOFTPLUS);
        d[0] *= a.n1;
        decay_move_up(a, row, c, column.before[1], column.before[2], now);
        v[lane] = to_float(from_float<bf16>(x * d[0]));
        if (lane == 0) less = expm1f(d[0] * A);
    } else if (there)
        (t < K ? k[t] : q[t - K]) = x;
    __syncthreads();
    if (!last) {
        float y[4], sum[4] = {};
        const float by = less;
        load_pack<4>(y, &v[lane % 8 * 4]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int d = warp * 4 + lane / 8 + 32 * r;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                S[r][j] = fmaf(k[d], y[j], fmaf(by, S[r][j], S[r][j]));
                sum[j] += q[d] * S[r][j];
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 8);
            sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 16);
        }
        if (lane < 8) sums[warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    __syncthreads();
    if (!last) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) store_pack<4>(state + (int64_t)r * 32 * a.V, S[r]);
        return;
    }
    float o = 0.0f, gate[1] = {z};
#pragma unroll
    for (int w = 0; w < DECAY_WARPS; w++) o += ((const float *)sums[w])[lane];
    const float sum = to_float(from_float<bf16>(to_float(from_float<bf16>(x * D)) + to_float(from_float<bf16>(a.scale * o))));
    act_all(gate, LNT_SILU);
    const bf16 y = from_float<bf16>(gate[0] * sum);
    a.y[row * a.y_row + mine] = y;
    const float square = warp_sum(to_float(y) * to_float(y));
    if (lane == 0) a.squares[row * gridDim.x + blockIdx.x] = square;
}

/* `tiles` sums of squares a row. */
template <int K> __global__ void __launch_bounds__(DECAY_NORM_THREADS) decay_norm_kernel(const __grid_constant__ decay_around a, int tiles)
{
    block_clock clock(CLOCK_DECAY_NORM);
    const int i = (int)(blockIdx.x * DECAY_NORM_THREADS + threadIdx.x), at = min(i * DECAY_NORM_COLUMNS, a.cols - DECAY_NORM_COLUMNS);
    const int c = i < K ? a.k + i : a.q + i - K;
    const int64_t row = blockIdx.y;
    const float2 w = *(const float2 *)(a.w + at);
    const float mean = 1.0f / (float)a.cols;
    float second = 0.0f, third = 0.0f, s = 0.0f;
    if (i < 2 * K) {
        const float *from = a.window + row * a.window_row + c;
        second = from[a.window_cols], third = from[2 * (int64_t)a.window_cols];
    }
    let_next();
    await_last(), clock.goes_on();
    const uint32_t y = *(const uint32_t *)(a.y + row * a.y_row + at);
    const float now = i < 2 * K ? to_float(a.c[row * a.c_row + c]) : 0.0f;
#pragma unroll 4
    for (int n = (int)threadIdx.x % 32; n < tiles; n += 32) s += a.squares[row * tiles + n];
    const float r = rsqrtf(fmaf(warp_sum(s), mean, a.eps));
    if (i * DECAY_NORM_COLUMNS < a.cols)
        *(uint32_t *)(a.y + row * a.y_row + at) = two_halves(low_half(y) * (r * (w.x + a.more)), high_half(y) * (r * (w.y + a.more)));
    if (i < 2 * K) decay_move_up(a, row, c, second, third, now);
}

} // namespace row_chain

#endif
