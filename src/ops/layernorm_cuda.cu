/* LayerNorm and GroupNorm (equations: norms.c, norms_cpu.c): with z = (x - m) r and u = dy w,
 *
 *   y = z w + b,   dx = r (u - mean u - z mean(u z)),   dw += dy z,  db += dy
 *
 * A row of d columns (a head) belongs to a team, a warp or, beyond WARP_MOST columns, a block, which reads it again from the first-level cache for
 * each sum. dw and db are sums over rows of other blocks: a second kernel with m and r of every row. Floor: forward x and y once; backward x, dy
 * and dx once, the second kernel reads x and dy again. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/norms.h"
}

enum { WARP_MOST = 1024, BLOCK = 256 };

struct layer_args {
    lnt_view x, y, dy, dx;
    const float *w, *b; /* [heads d], NULL: none */
    float2 *moments;    /* backward: [rows], mean and inverse */
    int64_t rows;       /* of d columns */
    int d, heads;
    float eps;
    bool add;
};

/* The sums of two numbers over a team, the same bits in all its threads. */
template <bool WIDE> __device__ __forceinline__ float2 team_sum(float a, float b)
{
    a = warp_sum(a), b = warp_sum(b);
    if constexpr (WIDE) {
        __shared__ float2 part[BLOCK / 32];
        __syncthreads(); /* the sums before have been read */
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(a, b);
        __syncthreads();
        a = b = 0.0f;
        for (int w = 0; w < BLOCK / 32; w++) a += part[w].x, b += part[w].y;
    }
    return make_float2(a, b);
}

template <class P, bool WIDE, bool BACKWARD> __global__ void __launch_bounds__(BLOCK) layer_kernel(const __grid_constant__ layer_args a)
{
    constexpr int TEAM = WIDE ? BLOCK : 32;
    let_next();
    await_last();
    const int64_t row = WIDE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32, at = row * a.d;
    const int first = (int)threadIdx.x % TEAM * P::U, step = TEAM * P::U;
    if (row >= a.rows) return; /* whole teams */
    const int c0 = (int)(row % a.heads) * a.d;
    float x[P::U], u[P::U], w[P::U], s = 0.0f, t = 0.0f;
    for (int j = first; j < a.d; j += step) {
        get<P>(x, a.x, at + j);
#pragma unroll
        for (int i = 0; i < P::U; i++) s += x[i];
    }
    const float mean = team_sum<WIDE>(s, 0.0f).x / (float)a.d;
    s = 0.0f;
    for (int j = first; j < a.d; j += step) {
        get<P>(x, a.x, at + j);
#pragma unroll
        for (int i = 0; i < P::U; i++) s += (x[i] - mean) * (x[i] - mean);
    }
    const float r = 1.0f / sqrtf(team_sum<WIDE>(s, 0.0f).x / (float)a.d + a.eps);
    s = 0.0f;
    for (int j = first; j < a.d; j += step) { /* forward: the result; backward: the sums of u and u z */
        get<P>(x, a.x, at + j);
        if (a.w) get_weights(w, a.w + c0 + j);
        if constexpr (BACKWARD) get<P>(u, a.dy, at + j);
#pragma unroll
        for (int i = 0; i < P::U; i++) {
            x[i] = (x[i] - mean) * r;
            if (BACKWARD) {
                if (a.w) u[i] *= w[i];
                s += u[i], t += u[i] * x[i];
            } else if (a.w) {
                x[i] *= w[i];
            }
        }
        if constexpr (!BACKWARD) {
            if (a.b) {
                get_weights(w, a.b + c0 + j);
#pragma unroll
                for (int i = 0; i < P::U; i++) x[i] += w[i];
            }
            put<P>(a.y, at + j, x);
        }
    }
    if constexpr (BACKWARD) {
        if (first == 0 && a.moments) a.moments[row] = make_float2(mean, r);
        if (!a.dx.p) return;
        const float2 sums = team_sum<WIDE>(s, t);
        for (int j = first; j < a.d; j += step) {
            get<P>(x, a.x, at + j);
            get<P>(u, a.dy, at + j);
            if (a.w) get_weights(w, a.w + c0 + j);
#pragma unroll
            for (int i = 0; i < P::U; i++) {
                const float z = (x[i] - mean) * r;
                u[i] = r * ((a.w ? u[i] * w[i] : u[i]) - sums.x / (float)a.d - z * (sums.y / (float)a.d));
            }
            put_sum<P>(a.dx, at + j, u, a.add);
        }
    }
}

struct layer_columns {
    static constexpr int OUT = 2; /* dw, db */
    lnt_view x, dy;
    const float2 *moments;
    int64_t cols;
    int d, heads;
    template <class P> __device__ void row(float (&out)[2][P::U], int64_t r, int64_t c) const
    {
        const float2 m = moments[r * heads + c / d]; /* a unit has columns of one head */
        get<P>(out[0], x, r * cols + c);
        get<P>(out[1], dy, r * cols + c);
#pragma unroll
        for (int u = 0; u < P::U; u++) out[0][u] = out[1][u] * (out[0][u] - m.x) * m.y;
    }
};

static layer_args args_of(const lnt_call *k)
{
    const lnt_layernorm_attr *attr = (const lnt_layernorm_attr *)k->attr;
    const lnt_tensor *x = &k->in[0];
    layer_args a = {};
    a.x = view_of(x), a.y = view_of(&k->out[0]), a.dy = view_of(&k->d_out[0]), a.dx = view_of(&k->d_in[0]);
    a.w = attr->weight ? k->param[0].master : NULL, a.b = attr->bias ? k->param[attr->weight].master : NULL;
    a.heads = x->heads, a.d = (int)(x->cols / x->heads), a.rows = x->rows * x->heads, a.eps = (float)attr->eps, a.add = k->accumulate[0];
    return a;
}

template <bool BACKWARD> static void run(const lnt_call *k, const layer_args &a, const lnt_tensor *const *tensors, int n)
{
    const int unit = ((uintptr_t)a.w | (uintptr_t)a.b) % 16 ? 1 : unit_of(a.d, tensors, n);
    if (a.d > WARP_MOST)
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), layer_kernel<P, true, BACKWARD>, (unsigned)a.rows, BLOCK, a)));
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), layer_kernel<P, false, BACKWARD>, (unsigned)lnt_div_up(a.rows, BLOCK / 32), BLOCK, a)));
}

extern "C" linnet_status lnt_layernorm_forward_cuda(const lnt_call *k)
{
    const lnt_tensor *const tensors[2] = {&k->in[0], &k->out[0]};
    const layer_args a = args_of(k);
    if (a.rows > 0) run<false>(k, a, tensors, 2);
    return LINNET_OK;
}

extern "C" linnet_status lnt_layernorm_backward_cuda(const lnt_call *k)
{
    const lnt_layernorm_attr *attr = (const lnt_layernorm_attr *)k->attr;
    const lnt_tensor *const tensors[3] = {&k->in[0], &k->d_out[0], &k->d_in[0]};
    float *const grad[2] = {attr->weight ? k->param[0].grad : NULL, attr->bias ? k->param[attr->weight].grad : NULL};
    layer_args a = args_of(k);
    if (a.rows <= 0) return LINNET_OK;
    if (grad[0] || grad[1]) a.moments = (float2 *)k->work;
    if (a.dx.p || a.moments) run<true>(k, a, tensors, 3);
    if (a.moments)
        column_run(k->c, layer_columns{a.x, a.dy, a.moments, k->in[0].cols, a.d, a.heads}, k->in[0].rows, k->in[0].cols, a.heads,
                   {&k->in[0], &k->d_out[0]}, grad, (float *)(a.moments + a.rows));
    return LINNET_OK;
}
