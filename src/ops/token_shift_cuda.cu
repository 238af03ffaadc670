/* Token shift and lerp (equations: token_shift.c). Floor: every input read once, every output written once; dm of one row for all reads dy, a and b a
 * second time. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/token_shift.h"
}

/* ---- token shift -------------------------------------------------------------------------------------------------------------------------- */

struct shift_args {
    lnt_view x, y; /* backward: dy, dx */
    char *state;   /* NULL: none */
    int64_t stride;
    lnt_cut cut;
    int64_t cols;
    bool add;
};

enum { SHIFT_THREADS = 128, SHIFT_ROWS = 4 };

/* Rows of x one further (backward: one back) inside their sequences. */
template <class P, bool BACKWARD> __global__ void __launch_bounds__(SHIFT_THREADS) shift_kernel(const __grid_constant__ shift_args a)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * SHIFT_THREADS + threadIdx.x) * P::U;
    if (c >= a.cols) return;
#pragma unroll
    for (int i = 0; i < SHIFT_ROWS; i++) {
        const int64_t r = (int64_t)blockIdx.x * SHIFT_ROWS + i;
        if (r >= a.cut.tokens) return;
        const int64_t seq = sequence_at(a.cut, r), from = BACKWARD ? r + 1 : r - 1;
        float x[P::U] = {};
        if (BACKWARD ? from < a.cut.cu[seq + 1] : from >= a.cut.cu[seq])
            get<P>(x, a.x, from * a.cols + c);
        else if (!BACKWARD && a.state) {
            const float *s = (const float *)(a.state + seq * a.stride) + c;
#pragma unroll
            for (int u = 0; u < P::U; u++) x[u] = s[u];
        }
        put_sum<P>(a.y, r * a.cols + c, x, a.add);
    }
}

/* Each sequence's last row into its state, a thread each column; WALK: the rows of y on the way, which are few. */
template <bool WALK> __global__ void __launch_bounds__(256) advance_kernel(const __grid_constant__ shift_args a)
{
    let_next();
    await_last();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, seq = i / a.cols, c = i % a.cols;
    if (seq >= a.cut.n_seq) return;
    const int64_t begin = a.cut.cu[seq], end = a.cut.cu[seq + 1];
    float *state = (float *)(a.state + seq * a.stride) + c, x[1] = {*state};
    /* not with `r >= begin` in the condition: nvcc 13.0 takes the walk for one turn then */
    for (int64_t r = WALK || end <= begin ? begin : end - 1; r < end; r++) {
        if (WALK) put<any1>(a.y, r * a.cols + c, x);
        get<any1>(x, a.x, r * a.cols + c);
    }
    *state = x[0];
}

static void shift(const lnt_call *k, const shift_args &a, bool backward)
{
    const lnt_tensor *const both[2] = {backward ? &k->d_out[0] : &k->in[0], backward ? &k->d_in[0] : &k->out[0]};
    const int unit = unit_of(a.cols, both, 2);
    const dim3 blocks((unsigned)lnt_div_up(a.cut.tokens, SHIFT_ROWS), (unsigned)lnt_div_up(a.cols, (int64_t)SHIFT_THREADS * unit));
    if (backward)
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), shift_kernel<P, true>, blocks, SHIFT_THREADS, a)));
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), shift_kernel<P, false>, blocks, SHIFT_THREADS, a)));
}

extern "C" linnet_status lnt_token_shift_forward_cuda(const lnt_call *k)
{
    const shift_args a = {view_of(&k->in[0]), view_of(&k->out[0]), (char *)k->state, k->state_stride, cut_of(k), k->in[0].cols, false};
    const unsigned columns = (unsigned)lnt_div_up(k->n_seq * a.cols, 256);
    if (k->tokens <= 0) return LINNET_OK;
    if (a.state && k->tokens <= 4 * k->n_seq) {
        lnt_launch(lnt_cuda_of(k->c), advance_kernel<true>, columns, 256, a);
        return LINNET_OK;
    }
    shift(k, a, false);
    if (a.state) lnt_launch(lnt_cuda_of(k->c), advance_kernel<false>, columns, 256, a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_token_shift_backward_cuda(const lnt_call *k)
{
    const shift_args a = {view_of(&k->d_out[0]), view_of(&k->d_in[0]), NULL, 0, cut_of(k), k->d_in[0].cols, k->accumulate[0]};
    if (k->tokens > 0 && a.y.p) shift(k, a, true);
    return LINNET_OK;
}

/* ---- lerp ----------------------------------------------------------------------------------------------------------------------------------- */

struct lerp_map {
    static constexpr int IN = 3, OUT = 1; /* a, b, m */
    template <int U> __device__ void operator()(const float (&in)[3][U], float (&out)[1][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] + (in[1][u] - in[0][u]) * in[2][u];
    }
};

struct lerp_slope {
    static constexpr int IN = 4, OUT = 3; /* a, b, m, dy */
    template <int U> __device__ void operator()(const float (&in)[4][U], float (&out)[3][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            out[1][u] = in[3][u] * in[2][u];
            out[0][u] = in[3][u] - out[1][u];
            out[2][u] = in[3][u] * (in[1][u] - in[0][u]);
        }
    }
};

/* a + m. */
struct sum_map {
    static constexpr int IN = 2, OUT = 1; /* a, m */
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] + in[1][u];
    }
};

struct sum_slope {
    static constexpr int IN = 1, OUT = 2; /* dy */
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[2][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = out[1][u] = in[0][u];
    }
};

struct sum_row_slope {
    static constexpr int OUT = 1;
    lnt_strided dy;
    __device__ void operator()(float (&out)[1], int64_t r, int64_t c) const { get<any1>(out, dy.v, r * dy.ld + c); }
};

/* dm of one row for all. */
struct lerp_row_slope {
    static constexpr int OUT = 1;
    lnt_strided a, b, dy;
    __device__ void operator()(float (&out)[1], int64_t r, int64_t c) const
    {
        float from[1] = {}, to[1], d[1];
        if (a.v.p) get<any1>(from, a.v, r * a.ld + c);
        get<any1>(to, b.v, r * b.ld + c);
        get<any1>(d, dy.v, r * dy.ld + c);
        out[0] = d[0] * (to[0] - from[0]);
    }
};

extern "C" linnet_status lnt_lerp_forward_cuda(const lnt_call *k)
{
    const bool add[1] = {false}, row = ((const lnt_lerp_attr *)k->attr)->row;
    if (((const lnt_lerp_attr *)k->attr)->sum) {
        row_run(k->c, sum_map{}, k->out[0].rows, k->out[0].cols, {&k->in[0], &k->in[2]}, row ? 2u : 0u, {&k->out[0]}, add);
        return LINNET_OK;
    }
    row_run(k->c, lerp_map{}, k->out[0].rows, k->out[0].cols, {&k->in[0], &k->in[1], &k->in[2]}, row ? 4u : 0u, {&k->out[0]}, add);
    return LINNET_OK;
}

extern "C" linnet_status lnt_lerp_backward_cuda(const lnt_call *k)
{
    const bool row = ((const lnt_lerp_attr *)k->attr)->row, sum = ((const lnt_lerp_attr *)k->attr)->sum;
    const lnt_tensor *dy = &k->d_out[0], *dm = &k->d_in[2], none = {};
    const bool add[2] = {k->accumulate[0], k->accumulate[2]};
    if (sum)
        row_run(k->c, sum_slope{}, dy->rows, dy->cols, {dy}, 0u, {&k->d_in[0], row ? &none : dm}, add);
    else
        row_run(k->c, lerp_slope{}, dy->rows, dy->cols, {&k->in[0], &k->in[1], &k->in[2], dy}, row ? 4u : 0u,
            {&k->d_in[0], &k->d_in[1], row ? &none : dm}, k->accumulate);
    if (!row || !dm->data) return LINNET_OK;
    if (!k->accumulate[2]) lnt_device_zero(k->c, dm->data, (size_t)dm->cols * sizeof(float));
    if (sum)
        column_run(k->c, sum_row_slope{strided(dy)}, dy->rows, dy->cols, {(float *)dm->data}, (float *)k->work);
    else
        column_run(k->c, lerp_row_slope{strided(&k->in[0]), strided(&k->in[1]), strided(dy)}, dy->rows, dy->cols, {(float *)dm->data},
                   (float *)k->work);
    return LINNET_OK;
}
