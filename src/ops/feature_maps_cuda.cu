/* Feature maps, a warp for each head of a token (equations: feature_maps_cpu.c). What is read more than once is in the first-level cache. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/feature_maps.h"
}

struct map_args {
    lnt_view x, y, dy, dx;
    bool add;
    int64_t rows; /* tokens * heads */
    int d, nu;
    float one, linear, square; /* quadratic */
};

enum { MAP_WARPS = 4 };

__device__ __forceinline__ float one_at(lnt_view v, int64_t i)
{
    float x[1];
    get<any1>(x, v, i);
    return x[0];
}
__device__ __forceinline__ void set_at(lnt_view v, int64_t i, float x, bool add)
{
    const float one[1] = {x};
    put_sum<any1>(v, i, one, add);
}

/* ---- softmax: dx = p (dp - sum p dp) ----------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(32 * MAP_WARPS) softmax_forward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (row >= a.rows) return;
    float top = -INFINITY, s = 0.0f;
    for (int j = lane; j < a.d; j += 32) top = fmaxf(top, one_at(a.x, row * a.d + j));
    top = warp_max(top);
    for (int j = lane; j < a.d; j += 32) s += expf(one_at(a.x, row * a.d + j) - top);
    const float scale = 1.0f / warp_sum(s);
    for (int j = lane; j < a.d; j += 32) set_at(a.y, row * a.d + j, expf(one_at(a.x, row * a.d + j) - top) * scale, false);
}

static __global__ void __launch_bounds__(32 * MAP_WARPS) softmax_backward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32, first = row * a.d;
    const int lane = (int)threadIdx.x % 32;
    if (row >= a.rows) return;
    float s = 0.0f;
    for (int j = lane; j < a.d; j += 32) s += one_at(a.y, first + j) * one_at(a.dy, first + j);
    s = warp_sum(s);
    for (int j = lane; j < a.d; j += 32) set_at(a.dx, first + j, one_at(a.y, first + j) * (one_at(a.dy, first + j) - s), a.add);
}

/* ---- hedgehog: max |y| is the largest of all 2d inputs. dz = p (dp - sum p dp), dy = dz_+ - dz_- ----------------------------------------- */

static __global__ void __launch_bounds__(32 * MAP_WARPS) hedgehog_forward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (row >= a.rows) return;
    float top = 0.0f, s = 0.0f;
    for (int j = lane; j < a.d; j += 32) top = fmaxf(top, fabsf(one_at(a.x, row * a.d + j)));
    top = warp_max(top);
    for (int j = lane; j < a.d; j += 32) {
        const float x = one_at(a.x, row * a.d + j);
        s += expf(x - top) + expf(-x - top);
    }
    const float scale = 1.0f / warp_sum(s);
    for (int j = lane; j < a.d; j += 32) {
        const float x = one_at(a.x, row * a.d + j);
        set_at(a.y, 2 * row * a.d + j, expf(x - top) * scale, false);
        set_at(a.y, (2 * row + 1) * a.d + j, expf(-x - top) * scale, false);
    }
}

static __global__ void __launch_bounds__(32 * MAP_WARPS) hedgehog_backward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32, first = 2 * row * a.d;
    const int lane = (int)threadIdx.x % 32;
    if (row >= a.rows) return;
    float s = 0.0f;
    for (int j = lane; j < 2 * a.d; j += 32) s += one_at(a.y, first + j) * one_at(a.dy, first + j);
    s = warp_sum(s);
    for (int j = lane; j < a.d; j += 32) {
        const float plus = one_at(a.y, first + j) * (one_at(a.dy, first + j) - s);
        const float minus = one_at(a.y, first + a.d + j) * (one_at(a.dy, first + a.d + j) - s);
        set_at(a.dx, row * a.d + j, plus - minus, a.add);
    }
}

/* ---- dpfp: p_j[i] = u[i] u[i-j], indices modulo 2d. du[i] = sum_j dp_j[i] u[i-j] + dp_j[i+j] u[i+j], dx = (du_+ - du_-) [x > 0] ---- */

/* u[i], 0 <= i < 2d, of a row. */
__device__ __forceinline__ float unfolded(const map_args &a, int64_t row, int i)
{
    const float x = one_at(a.x, row * a.d + (i < a.d ? i : i - a.d)), r = x < 0.0f ? 0.0f : x;
    return i < a.d ? r : -r;
}

static __global__ void __launch_bounds__(32 * MAP_WARPS) dpfp_forward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32;
    if (row >= a.rows) return;
    const int lane = (int)threadIdx.x % 32, n = 2 * a.d;
    for (int j = 1; j <= a.nu; j++)
        for (int i = lane; i < n; i += 32) {
            const int back = (i + n - j % n) % n;
            set_at(a.y, (row * a.nu + j - 1) * n + i, unfolded(a, row, i) * unfolded(a, row, back), false);
        }
}

__device__ __forceinline__ float dpfp_slope(const map_args &a, int64_t row, int i)
{
    const int n = 2 * a.d;
    float s = 0.0f;
    for (int j = 1; j <= a.nu; j++) {
        const int back = (i + n - j % n) % n, ahead = (i + j) % n;
        const int64_t dp = (row * a.nu + j - 1) * n;
        s += one_at(a.dy, dp + i) * unfolded(a, row, back) + one_at(a.dy, dp + ahead) * unfolded(a, row, ahead);
    }
    return s;
}

static __global__ void __launch_bounds__(32 * MAP_WARPS) dpfp_backward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32;
    if (row >= a.rows) return;
    for (int i = (int)threadIdx.x % 32; i < a.d; i += 32) {
        const bool on = one_at(a.x, row * a.d + i) > 0.0f;
        set_at(a.dx, row * a.d + i, on ? dpfp_slope(a, row, i) - dpfp_slope(a, row, a.d + i) : 0.0f, a.add);
    }
}

/* ---- quadratic (feature_maps_cpu.c): column i, or the pair l < m, of a head. dx_i = b dl_i + 2 c x_i ds_i + 2^1/2 c sum_{j != i} x_j dp_ij ---- */

static constexpr float ROOT_2 = 1.41421356f;
/* Columns in front of the squares, and of all. */
__device__ __forceinline__ int squares_of(const map_args &a) { return (a.one != 0.0f) + (a.linear != 0.0f ? a.d : 0); }
__device__ __forceinline__ int quadratic_cols_of(const map_args &a) { return squares_of(a) + a.d * (a.d + 1) / 2; }
/* The place of the pair l < m behind the squares. */
__device__ __forceinline__ int pair_of(const map_args &a, int l, int m) { return l * (2 * a.d - l - 1) / 2 + m - l - 1; }

static __global__ void __launch_bounds__(32 * MAP_WARPS) quadratic_forward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32, from = row * a.d, to = row * quadratic_cols_of(a);
    if (row >= a.rows) return;
    const int lane = (int)threadIdx.x % 32, squares = squares_of(a);
    if (a.one != 0.0f && lane == 0) set_at(a.y, to, a.one, false);
    for (int i = lane; i < a.d; i += 32) {
        const float x = one_at(a.x, from + i);
        if (a.linear != 0.0f) set_at(a.y, to + squares - a.d + i, a.linear * x, false);
        set_at(a.y, to + squares + i, a.square * x * x, false);
        for (int m = i + 1; m < a.d; m++)
            set_at(a.y, to + squares + a.d + pair_of(a, i, m), ROOT_2 * a.square * x * one_at(a.x, from + m), false);
    }
}

static __global__ void __launch_bounds__(32 * MAP_WARPS) quadratic_backward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32, from = row * a.d, to = row * quadratic_cols_of(a);
    if (row >= a.rows) return;
    const int squares = squares_of(a);
    for (int i = (int)threadIdx.x % 32; i < a.d; i += 32) {
        float pairs = 0.0f, g = 2.0f * a.square * one_at(a.x, from + i) * one_at(a.dy, to + squares + i);
        if (a.linear != 0.0f) g += a.linear * one_at(a.dy, to + squares - a.d + i);
        for (int m = 0; m < a.d; m++)
            if (m != i) pairs += one_at(a.x, from + m) * one_at(a.dy, to + squares + a.d + (m < i ? pair_of(a, m, i) : pair_of(a, i, m)));
        set_at(a.dx, from + i, g + ROOT_2 * a.square * pairs, a.add);
    }
}

/* ---- circular: dx = cos(x) ds - sin(x) dc ------------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(32 * MAP_WARPS) circular_forward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32;
    if (row >= a.rows) return;
    for (int j = (int)threadIdx.x % 32; j < a.d; j += 32) {
        float s, c;
        sincosf(one_at(a.x, row * a.d + j), &s, &c);
        set_at(a.y, 2 * row * a.d + j, s, false);
        set_at(a.y, (2 * row + 1) * a.d + j, c, false);
    }
}

static __global__ void __launch_bounds__(32 * MAP_WARPS) circular_backward(const __grid_constant__ map_args a)
{
    const int64_t row = (int64_t)blockIdx.x * MAP_WARPS + threadIdx.x / 32, s = 2 * row * a.d, c = s + a.d;
    if (row >= a.rows) return;
    for (int j = (int)threadIdx.x % 32; j < a.d; j += 32)
        set_at(a.dx, row * a.d + j, one_at(a.y, c + j) * one_at(a.dy, s + j) - one_at(a.y, s + j) * one_at(a.dy, c + j), a.add);
}

/* ---- launches -------------------------------------------------------------------------------------------------------------------------- */

static linnet_status run(const lnt_call *k, void (*kernel)(map_args), int64_t d, int64_t heads, int nu, bool backward)
{
    map_args a = {view_of(&k->in[0]), view_of(&k->out[0]), view_of(&k->d_out[0]), view_of(&k->d_in[0]), k->accumulate[0], k->in[0].rows * heads,
                  (int)d,             nu,                  0.0f,                  0.0f,                 0.0f};
    if (kernel == quadratic_forward || kernel == quadratic_backward) {
        const lnt_quadratic_attr *q = (const lnt_quadratic_attr *)k->attr;
        a.one = (float)q->one, a.linear = (float)q->linear, a.square = (float)q->square;
    }
    if (a.rows <= 0 || (backward && !a.dx.p)) return LINNET_OK;
    kernel<<<(unsigned)lnt_div_up(a.rows, MAP_WARPS), 32 * MAP_WARPS, 0, lnt_stream(k->c)>>>(a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_softmax_forward_cuda(const lnt_call *k)
{
    return run(k, softmax_forward, k->in[0].cols / k->in[0].heads, k->in[0].heads, 0, false);
}
extern "C" linnet_status lnt_softmax_backward_cuda(const lnt_call *k)
{
    return run(k, softmax_backward, k->out[0].cols / k->out[0].heads, k->out[0].heads, 0, true);
}
extern "C" linnet_status lnt_hedgehog_forward_cuda(const lnt_call *k)
{
    return run(k, hedgehog_forward, k->in[0].cols / k->in[0].heads, k->in[0].heads, 0, false);
}
extern "C" linnet_status lnt_hedgehog_backward_cuda(const lnt_call *k)
{
    return run(k, hedgehog_backward, k->out[0].cols / k->out[0].heads / 2, k->out[0].heads, 0, true);
}
extern "C" linnet_status lnt_dpfp_forward_cuda(const lnt_call *k)
{
    return run(k, dpfp_forward, k->in[0].cols / k->in[0].heads, k->in[0].heads, ((const lnt_dpfp_attr *)k->attr)->nu, false);
}
extern "C" linnet_status lnt_dpfp_backward_cuda(const lnt_call *k)
{
    return run(k, dpfp_backward, k->in[0].cols / k->in[0].heads, k->in[0].heads, ((const lnt_dpfp_attr *)k->attr)->nu, true);
}
extern "C" linnet_status lnt_quadratic_forward_cuda(const lnt_call *k)
{
    return run(k, quadratic_forward, k->in[0].cols / k->in[0].heads, k->in[0].heads, 0, false);
}
extern "C" linnet_status lnt_quadratic_backward_cuda(const lnt_call *k)
{
    return run(k, quadratic_backward, k->in[0].cols / k->in[0].heads, k->in[0].heads, 0, true);
}
extern "C" linnet_status lnt_circular_forward_cuda(const lnt_call *k)
{
    return run(k, circular_forward, k->in[0].cols / k->in[0].heads, k->in[0].heads, 0, false);
}
extern "C" linnet_status lnt_circular_backward_cuda(const lnt_call *k)
{
    return run(k, circular_backward, k->out[0].cols / k->out[0].heads / 2, k->out[0].heads, 0, true);
}
