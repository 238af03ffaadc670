/* Element by element, and rows against one number each. Floor: every input read once, every output written once. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/gates.h"
#include "ops/pointwise.h"
}

static int64_t elements(const lnt_call *k) { return k->tokens * k->out[0].cols; }

/* ---- activation: y = scale act(x),  dx = scale act'(x) dy ------------------------------------------------------------------------------ */

struct activation_map {
    static constexpr int IN = 1, OUT = 1;
    int act;
    float scale;
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u];
        act_all(out[0], act);
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] *= scale;
    }
};

struct activation_slope {
    static constexpr int IN = 2, OUT = 1; /* x, dy */
    int act;
    float scale;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
        float x[U];
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = in[0][u];
        slope_all(x, out[0], act);
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] *= in[1][u] * scale;
    }
};

extern "C" linnet_status lnt_activation_forward_cuda(const lnt_call *k)
{
    const lnt_activation_attr *a = (const lnt_activation_attr *)k->attr;
    point_run(k->c, activation_map{a->act, (float)a->scale}, elements(k), {&k->in[0]}, {&k->out[0]}, NULL);
    return LINNET_OK;
}

extern "C" linnet_status lnt_activation_backward_cuda(const lnt_call *k)
{
    const lnt_activation_attr *a = (const lnt_activation_attr *)k->attr;
    if (!k->d_in[0].data) return LINNET_OK;
    point_run(k->c, activation_slope{a->act, (float)a->scale}, elements(k), {&k->in[0], &k->d_out[0]}, {&k->d_in[0]}, k->accumulate);
    return LINNET_OK;
}

/* ---- add ---------------------------------------------------------------------------------------------------------------------------------- */

struct add_map {
    static constexpr int IN = 2, OUT = 1;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] + in[1][u];
    }
};

struct add_slope {
    static constexpr int IN = 1, OUT = 2;
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[2][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = out[1][u] = in[0][u];
    }
};

extern "C" linnet_status lnt_add_forward_cuda(const lnt_call *k)
{
    point_run(k->c, add_map{}, elements(k), {&k->in[0], &k->in[1]}, {&k->out[0]}, NULL);
    return LINNET_OK;
}

extern "C" linnet_status lnt_add_backward_cuda(const lnt_call *k)
{
    point_run(k->c, add_slope{}, elements(k), {&k->d_out[0]}, {&k->d_in[0], &k->d_in[1]}, k->accumulate);
    return LINNET_OK;
}

/* ---- swiglu: y = silu(g) u,  dg = dy u silu'(g),  du = dy silu(g) --------------------------------------------------------------------------- */

struct swiglu_map {
    static constexpr int IN = 2, OUT = 1;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] * sigmoid_of(in[0][u]) * in[1][u];
    }
};

struct swiglu_slope {
    static constexpr int IN = 3, OUT = 2; /* g, u, dy */
    template <int U> __device__ void operator()(const float (&in)[3][U], float (&out)[2][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float s = sigmoid_of(in[0][u]), y = in[0][u] * s;
            out[0][u] = in[2][u] * in[1][u] * (s + y * (1.0f - s));
            out[1][u] = in[2][u] * y;
        }
    }
};

extern "C" linnet_status lnt_swiglu_forward_cuda(const lnt_call *k)
{
    point_run(k->c, swiglu_map{}, elements(k), {&k->in[0], &k->in[1]}, {&k->out[0]}, NULL);
    return LINNET_OK;
}

extern "C" linnet_status lnt_swiglu_backward_cuda(const lnt_call *k)
{
    point_run(k->c, swiglu_slope{}, elements(k), {&k->in[0], &k->in[1], &k->d_out[0]}, {&k->d_in[0], &k->d_in[1]}, k->accumulate);
    return LINNET_OK;
}

/* ---- gamma_cap: with e = 1 - cap,  g' = g + log(1 - e beta^2),  dg = dg',  dbeta = -2 e beta / (1 - e beta^2) dg' ------------------------------ */

struct gamma_cap_map {
    static constexpr int IN = 2, OUT = 1; /* g, beta */
    float e;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] + log1pf(-e * in[1][u] * in[1][u]);
    }
};

struct gamma_cap_slope {
    static constexpr int IN = 2, OUT = 2; /* beta, dg' */
    float e;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[2][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            out[0][u] = in[1][u];
            out[1][u] = in[1][u] * (-2.0f * e) * in[0][u] / (1.0f - e * in[0][u] * in[0][u]);
        }
    }
};

extern "C" linnet_status lnt_gamma_cap_forward_cuda(const lnt_call *k)
{
    const float e = (float)(1.0 - ((const lnt_gamma_cap_attr *)k->attr)->cap);
    point_run(k->c, gamma_cap_map{e}, elements(k), {&k->in[0], &k->in[1]}, {&k->out[0]}, NULL);
    return LINNET_OK;
}

extern "C" linnet_status lnt_gamma_cap_backward_cuda(const lnt_call *k)
{
    const float e = (float)(1.0 - ((const lnt_gamma_cap_attr *)k->attr)->cap);
    point_run(k->c, gamma_cap_slope{e}, elements(k), {&k->in[1], &k->d_out[0]}, {&k->d_in[0], &k->d_in[1]}, k->accumulate);
    return LINNET_OK;
}

/* ---- mul: y = a b,  da = dy b,  db = dy a (summed over the head's columns when b has one column a head) --------------------- */

struct mul_map {
    static constexpr int IN = 2, OUT = 1;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] * in[1][u];
    }
};

struct mul_slope {
    static constexpr int IN = 3, OUT = 2; /* a, b, dy */
    template <int U> __device__ void operator()(const float (&in)[3][U], float (&out)[2][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            out[0][u] = in[2][u] * in[1][u];
            out[1][u] = in[2][u] * in[0][u];
        }
    }
};

/* Rows of [rows, d] against b [rows], a warp each. Forward: y = a b. Backward (dy): da and db; db's sum goes over the lanes' columns in order. */
struct scale_args {
    lnt_view a, b, y, dy, da, db;
    bool add_a, add_b;
    int64_t rows;
    int d;
};

template <class P, bool BACKWARD> __global__ void __launch_bounds__(256) scale_kernel(const __grid_constant__ scale_args k)
{
    let_next();
    await_last();
    const int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= k.rows) return;
    float b[1], s = 0.0f;
    get<any1>(b, k.b, row);
#pragma unroll 4
    for (int j = (int)(threadIdx.x % 32) * P::U; j < k.d; j += 32 * P::U) {
        float x[P::U], dy[P::U];
        get<P>(x, k.a, row * k.d + j);
        if constexpr (BACKWARD) {
            get<P>(dy, k.dy, row * k.d + j);
#pragma unroll
            for (int u = 0; u < P::U; u++) s += dy[u] * x[u], dy[u] *= b[0];
            if (k.da.p) put_sum<P>(k.da, row * k.d + j, dy, k.add_a);
        } else {
#pragma unroll
            for (int u = 0; u < P::U; u++) x[u] *= b[0];
            put<P>(k.y, row * k.d + j, x);
        }
    }
    if constexpr (BACKWARD) {
        const float sum[1] = {warp_sum(s)};
        if (k.db.p && threadIdx.x % 32 == 0) put_sum<any1>(k.db, row, sum, k.add_b);
    }
}

static linnet_status mul_heads(const lnt_call *k, bool backward)
{
    const lnt_tensor *a = &k->in[0];
    const int64_t rows = k->tokens * a->heads;
    if (rows <= 0) return LINNET_OK;
    scale_args s = {view_of(a), view_of(&k->in[1]), view_of(&k->out[0]), view_of(&k->d_out[0]), view_of(&k->d_in[0]), view_of(&k->d_in[1]),
                    k->accumulate[0], k->accumulate[1], rows, (int)(a->cols / a->heads)};
    const lnt_tensor *const forward[2] = {a, &k->out[0]}, *const back[3] = {a, &k->d_out[0], &k->d_in[0]};
    const int unit = backward ? unit_of(s.d, back, 3) : unit_of(s.d, forward, 2);
    const unsigned blocks = (unsigned)lnt_div_up(rows, 8);
    if (backward)
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), scale_kernel<P, true>, blocks, 256, s)));
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), scale_kernel<P, false>, blocks, 256, s)));
    return LINNET_OK;
}

extern "C" linnet_status lnt_mul_forward_cuda(const lnt_call *k)
{
    if (k->in[1].cols != k->in[0].cols) return mul_heads(k, false);
    point_run(k->c, mul_map{}, elements(k), {&k->in[0], &k->in[1]}, {&k->out[0]}, NULL);
    return LINNET_OK;
}

extern "C" linnet_status lnt_mul_backward_cuda(const lnt_call *k)
{
    if (k->in[1].cols != k->in[0].cols) return mul_heads(k, true);
    point_run(k->c, mul_slope{}, elements(k), {&k->in[0], &k->in[1], &k->d_out[0]}, {&k->d_in[0], &k->d_in[1]}, k->accumulate);
    return LINNET_OK;
}

/* ---- repeat_heads: head h of y is head h / group of x; dx of a head is the sum over its copies, in their order ------------ */

struct repeat_args {
    lnt_view x, y; /* few heads, many heads */
    bool add;
    int64_t n;     /* units of what is written */
    int units, group;
};

template <class P> __global__ void __launch_bounds__(256) repeat_kernel(const __grid_constant__ repeat_args a)
{
    let_next();
    await_last();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= a.n) return;
    float x[P::U];
    const int64_t head = i / a.units;
    get<P>(x, a.x, (head / a.group * a.units + i % a.units) * P::U);
    put<P>(a.y, i * P::U, x);
}

template <class P> __global__ void __launch_bounds__(256) gather_kernel(const __grid_constant__ repeat_args a)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= a.n) return;
    float s[P::U] = {};
#pragma unroll 4
    for (int g = 0; g < a.group; g++) {
        float y[P::U];
        get<P>(y, a.y, ((i / a.units * a.group + g) * a.units + i % a.units) * P::U);
#pragma unroll
        for (int u = 0; u < P::U; u++) s[u] += y[u];
    }
    put_sum<P>(a.x, i * P::U, s, a.add);
}

extern "C" linnet_status lnt_repeat_heads_forward_cuda(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0], *const both[2] = {x, y};
    const int64_t d = x->cols / x->heads;
    if (k->tokens <= 0) return LINNET_OK;
    const int unit = unit_of(d, both, 2);
    const repeat_args a = {view_of(x), view_of(y), false, k->tokens * y->cols / unit, (int)(d / unit), y->heads / x->heads};
    LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), repeat_kernel<P>, (unsigned)lnt_div_up(a.n, 256), 256, a)));
    return LINNET_OK;
}

extern "C" linnet_status lnt_repeat_heads_backward_cuda(const lnt_call *k)
{
    const lnt_tensor *dx = &k->d_in[0], *dy = &k->d_out[0], *const both[2] = {dx, dy};
    if (!dx->data || k->tokens <= 0) return LINNET_OK;
    const int64_t d = dx->cols / dx->heads;
    const int unit = unit_of(d, both, 2);
    const repeat_args a = {view_of(dx), view_of(dy), k->accumulate[0], k->tokens * dx->cols / unit, (int)(d / unit), dy->heads / dx->heads};
    LNT_BY_UNIT(unit, P, (gather_kernel<P><<<(unsigned)lnt_div_up(a.n, 256), 256, 0, lnt_stream(k->c)>>>(a)));
    return LINNET_OK;
}
