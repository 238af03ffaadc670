/* Token shift (token_shift.c). Floor: every input read once, every output written once. */
#include "ops/rows.cuh"

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
