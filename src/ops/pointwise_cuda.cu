/* Element by element, and rows against one number each. Floor: every input read once, every output written once. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/gates.h"
#include "ops/pointwise.h"
}

static int64_t elements(const lnt_call *k) { return k->out[0].rows * k->out[0].cols; }

/* Of operators whose inputs, and their gradients, may be slices: from end to end where none is. */
template <size_t N> static bool end_to_end(const lnt_tensor *const (&t)[N])
{
    for (const lnt_tensor *x : t)
        if (x->data && x->ld != x->cols) return false;
    return true;
}
template <class F>
static linnet_status slices_run(const lnt_call *k, const F &f, const lnt_tensor *const (&in)[F::IN], const lnt_tensor *const (&out)[F::OUT],
                                const bool *add)
{
    const bool none[F::OUT] = {};
    if (end_to_end(in) && end_to_end(out))
        point_run(k->c, f, elements(k), in, out, add);
    else
        row_run(k->c, f, k->out[0].rows, k->out[0].cols, in, 0, out, add ? add : none);
    return LINNET_OK;
}
template <class F> static linnet_status two_forward(const lnt_call *k, const F &f)
{
    return slices_run(k, f, {&k->in[0], &k->in[1]}, {&k->out[0]}, NULL);
}
template <class F> static linnet_status two_backward(const lnt_call *k, const F &f)
{
    return slices_run(k, f, {&k->in[0], &k->in[1], &k->d_out[0]}, {&k->d_in[0], &k->d_in[1]}, k->accumulate);
}

/* ---- activation: y = scale act(x) + offset,  dx = scale act'(x) dy --------------------------------------------------------------------------- */

struct activation_map {
    static constexpr int IN = 1, OUT = 1;
    int act;
    float scale, offset;
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[1][U], int64_t = 0) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u];
        act_all(out[0], act);
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = offset != 0.0f ? out[0][u] * scale + offset : out[0][u] * scale;
    }
};

struct activation_slope {
    static constexpr int IN = 2, OUT = 1; /* x, dy */
    int act;
    float scale;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t = 0) const
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
    return slices_run(k, activation_map{a->act, (float)a->scale, (float)a->offset}, {&k->in[0]}, {&k->out[0]}, NULL);
}

extern "C" linnet_status lnt_activation_backward_cuda(const lnt_call *k)
{
    const lnt_activation_attr *a = (const lnt_activation_attr *)k->attr;
    if (!k->d_in[0].data) return LINNET_OK;
    return slices_run(k, activation_slope{a->act, (float)a->scale}, {&k->in[0], &k->d_out[0]}, {&k->d_in[0]}, k->accumulate);
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

/* ---- glu: y = act(g) u,  dg = dy u act'(g),  du = dy act(g); SiLU, the usual one, by itself -------------------------------------------------- */

template <int ACT> struct glu_map {
    static constexpr int IN = 2, OUT = 1;
    int act;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t = 0) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u];
        act_all(out[0], ACT < 0 ? act : ACT);
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] *= in[1][u];
    }
};

template <int ACT> struct glu_slope {
    static constexpr int IN = 3, OUT = 2; /* g, u, dy */
    int act;
    template <int U> __device__ void operator()(const float (&in)[3][U], float (&out)[2][U], int64_t = 0) const
    {
        float y[U];
#pragma unroll
        for (int u = 0; u < U; u++) y[u] = in[0][u];
        slope_all(y, out[0], ACT < 0 ? act : ACT);
#pragma unroll
        for (int u = 0; u < U; u++) {
            out[0][u] = in[2][u] * in[1][u] * out[0][u];
            out[1][u] = in[2][u] * y[u];
        }
    }
};

extern "C" linnet_status lnt_glu_forward_cuda(const lnt_call *k)
{
    const int act = ((const lnt_glu_attr *)k->attr)->act;
    return act == LNT_SILU ? two_forward(k, glu_map<LNT_SILU>{act}) : two_forward(k, glu_map<-1>{act});
}

extern "C" linnet_status lnt_glu_backward_cuda(const lnt_call *k)
{
    const int act = ((const lnt_glu_attr *)k->attr)->act;
    return act == LNT_SILU ? two_backward(k, glu_slope<LNT_SILU>{act}) : two_backward(k, glu_slope<-1>{act});
}

/* ---- clamp: NaN stays; dx = dy inside, the ends included ------------------------------------------------------------------------------------ */

struct clamp_map {
    static constexpr int IN = 1, OUT = 1;
    float low, high;
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] < low ? low : in[0][u] > high ? high : in[0][u];
    }
};

struct clamp_slope {
    static constexpr int IN = 2, OUT = 1; /* x, dy */
    float low, high;
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] < low || in[0][u] > high ? 0.0f : in[1][u];
    }
};

extern "C" linnet_status lnt_clamp_forward_cuda(const lnt_call *k)
{
    const lnt_clamp_attr *a = (const lnt_clamp_attr *)k->attr;
    point_run(k->c, clamp_map{(float)a->low, (float)a->high}, elements(k), {&k->in[0]}, {&k->out[0]}, NULL);
    return LINNET_OK;
}

extern "C" linnet_status lnt_clamp_backward_cuda(const lnt_call *k)
{
    const lnt_clamp_attr *a = (const lnt_clamp_attr *)k->attr;
    if (!k->d_in[0].data) return LINNET_OK;
    point_run(k->c, clamp_slope{(float)a->low, (float)a->high}, elements(k), {&k->in[0], &k->d_out[0]}, {&k->d_in[0]}, k->accumulate);
    return LINNET_OK;
}

/* ---- columns: the copy of a slice --------------------------------------------------------------------------------------------------------- */

struct copy_map {
    static constexpr int IN = 1, OUT = 1;
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[1][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u];
    }
};

extern "C" linnet_status lnt_columns_forward_cuda(const lnt_call *k)
{
    const bool add[1] = {false};
    row_run(k->c, copy_map{}, k->in[0].rows, k->in[0].cols, {&k->in[0]}, 0, {&k->out[0]}, add);
    return LINNET_OK;
}

extern "C" linnet_status lnt_columns_backward_cuda(const lnt_call *k)
{
    if (k->d_in[0].data) row_run(k->c, copy_map{}, k->d_in[0].rows, k->d_in[0].cols, {&k->d_out[0]}, 0, {&k->d_in[0]}, k->accumulate);
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
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t = 0) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] * in[1][u];
    }
};

struct mul_slope {
    static constexpr int IN = 3, OUT = 2; /* a, b, dy */
    template <int U> __device__ void operator()(const float (&in)[3][U], float (&out)[2][U], int64_t = 0) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            out[0][u] = in[2][u] * in[1][u];
            out[1][u] = in[2][u] * in[0][u];
        }
    }
};

/* Rows of [rows, d], heads of tokens, against b [rows], `lanes` of a warp each, a power of two. Forward: y = a b. Backward (dy): da and db; db's sum
 * goes over the lanes' columns in order. A group of lanes has SCALE_ROWS rows. */
enum { SCALE_ROWS = 4 };
struct scale_args {
    lnt_view a, b, y, dy, da, db;
    int64_t ld_a, ld_da; /* of tokens */
    bool add_a, add_b;
    int64_t rows;
    int heads, d, lanes;
};

template <class P, bool BACKWARD> __global__ void __launch_bounds__(256) scale_kernel(const __grid_constant__ scale_args k)
{
    let_next();
    await_last();
    const int groups = 256 / k.lanes, lane = (int)threadIdx.x % k.lanes;
    int64_t row[SCALE_ROWS], at[SCALE_ROWS], at_da[SCALE_ROWS]; /* of a and of da */
    float b[SCALE_ROWS][1] = {}, s[SCALE_ROWS] = {};
#pragma unroll
    for (int i = 0; i < SCALE_ROWS; i++) {
        row[i] = (int64_t)blockIdx.x * groups * SCALE_ROWS + threadIdx.x / k.lanes + i * groups;
        const int64_t token = row[i] / k.heads, head = row[i] - token * k.heads;
        at[i] = token * k.ld_a + head * k.d, at_da[i] = token * k.ld_da + head * k.d;
        if (row[i] < k.rows) get<any1>(b[i], k.b, row[i]);
    }
    for (int j = lane * P::U; j < k.d; j += k.lanes * P::U) {
        lnt_raw<P> a[SCALE_ROWS], dy[SCALE_ROWS], old[SCALE_ROWS]; /* all rows are on their way before the first is used */
#pragma unroll
        for (int i = 0; i < SCALE_ROWS; i++) {
            if (row[i] >= k.rows) continue;
            a[i] = fetch<P>(k.a, at[i] + j);
            if constexpr (BACKWARD) dy[i] = fetch<P>(k.dy, row[i] * k.d + j);
            if (BACKWARD && k.da.p && k.add_a) old[i] = fetch<P>(k.da, at_da[i] + j);
        }
#pragma unroll
        for (int i = 0; i < SCALE_ROWS; i++) {
            if (row[i] >= k.rows) continue;
            float x[P::U], d[P::U];
            widen<P>(x, a[i], k.a.f32);
            if constexpr (BACKWARD) {
                widen<P>(d, dy[i], k.dy.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) s[i] += d[u] * x[u], d[u] *= b[i][0];
                if (!k.da.p) continue;
                if (k.add_a) {
                    widen<P>(x, old[i], k.da.f32);
#pragma unroll
                    for (int u = 0; u < P::U; u++) d[u] += x[u];
                }
                put<P>(k.da, at_da[i] + j, d);
            } else {
#pragma unroll
                for (int u = 0; u < P::U; u++) x[u] *= b[i][0];
                put<P>(k.y, row[i] * k.d + j, x);
            }
        }
    }
    if constexpr (BACKWARD)
#pragma unroll
        for (int i = 0; i < SCALE_ROWS; i++) { /* no branch around the sum */
            for (int o = k.lanes / 2; o; o >>= 1) s[i] += __shfl_xor_sync(0xffffffffu, s[i], o);
            const float sum[1] = {s[i]};
            if (k.db.p && row[i] < k.rows && lane == 0) put_sum<any1>(k.db, row[i], sum, k.add_b);
        }
}

static linnet_status mul_heads(const lnt_call *k, bool backward)
{
    const lnt_tensor *a = &k->in[0];
    const int64_t rows = k->in[0].rows * a->heads;
    if (rows <= 0) return LINNET_OK;
    scale_args s = {view_of(a), view_of(&k->in[1]), view_of(&k->out[0]), view_of(&k->d_out[0]), view_of(&k->d_in[0]), view_of(&k->d_in[1]), a->ld,
                    k->d_in[0].data ? k->d_in[0].ld : 0, k->accumulate[0], k->accumulate[1], rows, a->heads, (int)(a->cols / a->heads), 32};
    const lnt_tensor *const forward[2] = {a, &k->out[0]}, *const back[3] = {a, &k->d_out[0], &k->d_in[0]};
    const int64_t sizes = (s.d | s.ld_a | s.ld_da) & 7; /* a multiple of a unit if all of them are */
    const int unit = backward ? unit_of(sizes ? sizes : 8, back, 3) : unit_of(sizes ? sizes : 8, forward, 2);
    while (s.lanes > 1 && s.lanes / 2 * unit >= s.d) s.lanes /= 2;
    const unsigned blocks = (unsigned)lnt_div_up(rows, 256 / s.lanes * SCALE_ROWS);
    if (backward)
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), scale_kernel<P, true>, blocks, 256, s)));
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), scale_kernel<P, false>, blocks, 256, s)));
    return LINNET_OK;
}

extern "C" linnet_status lnt_mul_forward_cuda(const lnt_call *k)
{
    return k->in[1].cols != k->in[0].cols ? mul_heads(k, false) : two_forward(k, mul_map{});
}

extern "C" linnet_status lnt_mul_backward_cuda(const lnt_call *k)
{
    return k->in[1].cols != k->in[0].cols ? mul_heads(k, true) : two_backward(k, mul_slope{});
}

/* ---- head_dot: y = sum over a head's columns of a b, a warp each;  da = dy b,  db = dy a ---------------------------------------------------- */

struct dot_args {
    lnt_view a, b, y, da, db; /* y: or its gradient */
    bool add_a, add_b;
    int64_t rows;
    int d;
};

template <class P, bool BACKWARD> __global__ void __launch_bounds__(256) dot_kernel(const __grid_constant__ dot_args k)
{
    let_next();
    await_last();
    const int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= k.rows) return;
    float y[1] = {}, s = 0.0f;
    if (BACKWARD) get<any1>(y, k.y, row);
#pragma unroll 4
    for (int j = (int)(threadIdx.x % 32) * P::U; j < k.d; j += 32 * P::U) {
        float a[P::U], b[P::U];
        get<P>(a, k.a, row * k.d + j);
        get<P>(b, k.b, row * k.d + j);
#pragma unroll
        for (int u = 0; u < P::U; u++) {
            if (!BACKWARD) s += a[u] * b[u];
            a[u] *= y[0], b[u] *= y[0];
        }
        if (BACKWARD && k.da.p) put_sum<P>(k.da, row * k.d + j, b, k.add_a);
        if (BACKWARD && k.db.p) put_sum<P>(k.db, row * k.d + j, a, k.add_b);
    }
    if (BACKWARD) return;
    y[0] = warp_sum(s);
    if (threadIdx.x % 32 == 0) put<any1>(k.y, row, y);
}

static linnet_status head_dot(const lnt_call *k, bool backward)
{
    const lnt_tensor *a = &k->in[0], *const all[4] = {a, &k->in[1], &k->d_in[0], &k->d_in[1]};
    const dot_args s = {view_of(a), view_of(&k->in[1]), view_of(backward ? &k->d_out[0] : &k->out[0]), view_of(&k->d_in[0]), view_of(&k->d_in[1]),
                        k->accumulate[0], k->accumulate[1], a->rows * a->heads, (int)(a->cols / a->heads)};
    if (s.rows <= 0) return LINNET_OK;
    const int unit = unit_of(s.d, all, backward ? 4 : 2);
    const unsigned blocks = (unsigned)lnt_div_up(s.rows, 8);
    if (backward)
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), dot_kernel<P, true>, blocks, 256, s)));
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), dot_kernel<P, false>, blocks, 256, s)));
    return LINNET_OK;
}

extern "C" linnet_status lnt_head_dot_forward_cuda(const lnt_call *k) { return head_dot(k, false); }
extern "C" linnet_status lnt_head_dot_backward_cuda(const lnt_call *k) { return head_dot(k, true); }

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
    if (k->in[0].rows <= 0) return LINNET_OK;
    const int unit = unit_of(d, both, 2);
    const repeat_args a = {view_of(x), view_of(y), false, y->rows * y->cols / unit, (int)(d / unit), y->heads / x->heads};
    LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), repeat_kernel<P>, (unsigned)lnt_div_up(a.n, 256), 256, a)));
    return LINNET_OK;
}

extern "C" linnet_status lnt_repeat_heads_backward_cuda(const lnt_call *k)
{
    const lnt_tensor *dx = &k->d_in[0], *dy = &k->d_out[0], *const both[2] = {dx, dy};
    if (!dx->data || k->in[0].rows <= 0) return LINNET_OK;
    const int64_t d = dx->cols / dx->heads;
    const int unit = unit_of(d, both, 2);
    const repeat_args a = {view_of(dx), view_of(dy), k->accumulate[0], dx->rows * dx->cols / unit, (int)(d / unit), dy->heads / dx->heads};
    LNT_BY_UNIT(unit, P, (gather_kernel<P><<<(unsigned)lnt_div_up(a.n, 256), 256, 0, lnt_stream(k->c)>>>(a)));
    return LINNET_OK;
}
