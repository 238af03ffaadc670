/* Rows from the last one of their sequence (from_last.c). Angles in double, reduced to turns before they become float32. Floor: y written once; dy
 * read and dx written once. */
#include "ops/rows.cuh"

struct last_args {
    lnt_view x, y; /* backward: dy, dx */
    lnt_cut cut;
    int64_t cols;
    bool add;
};

enum { LAST_THREADS = 128 };

/* A block is a row. */
__global__ void __launch_bounds__(LAST_THREADS) from_last_kernel(const __grid_constant__ last_args a)
{
    let_next();
    await_last();
    const int64_t r = blockIdx.x, seq = sequence_at(a.cut, r), last = a.cut.cu[seq + 1] - 1, half = a.cols / 2;
    const double place = (double)(r - a.cut.cu[seq]), step = half > 1 ? -13.287712379549449 / (double)(half - 1) : 0.0; /* log2(10000) */
    for (int64_t c = threadIdx.x; c < a.cols; c += LAST_THREADS) {
        const double wave = exp2((double)(c < half ? c : c - half) * step), turns = place * wave * 0.15915494309189535; /* 1 / (2 pi) */
        float s, o, x[1];
        sincospif(2.0f * (float)(turns - rint(turns)), &s, &o);
        get<any1>(x, a.x, last * a.cols + c);
        x[0] += c < half ? s : c < 2 * half ? o : 0.0f;
        put<any1>(a.y, r * a.cols + c, x);
    }
}

/* A thread is a column of a sequence, of which there are many short ones: the sum in the order of its rows. */
__global__ void __launch_bounds__(LAST_THREADS) to_last_kernel(const __grid_constant__ last_args a)
{
    let_next();
    await_last();
    const int64_t i = (int64_t)blockIdx.x * LAST_THREADS + threadIdx.x, seq = i / a.cols, c = i % a.cols;
    if (seq >= a.cut.n_seq) return;
    const int64_t begin = a.cut.cu[seq], end = a.cut.cu[seq + 1];
    float sum[1] = {0.0f}, x[1];
    const float none[1] = {0.0f};
    for (int64_t r = begin; r < end; r++) {
        get<any1>(x, a.x, r * a.cols + c);
        sum[0] += x[0];
        if (r + 1 == end) put_sum<any1>(a.y, r * a.cols + c, sum, a.add);
        else if (!a.add) put<any1>(a.y, r * a.cols + c, none);
    }
}

extern "C" linnet_status lnt_from_last_forward_cuda(const lnt_call *k)
{
    const last_args a = {view_of(&k->in[0]), view_of(&k->out[0]), cut_of(k), k->in[0].cols, false};
    if (k->tokens > 0) lnt_launch(lnt_cuda_of(k->c), from_last_kernel, (unsigned)k->tokens, LAST_THREADS, a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_from_last_backward_cuda(const lnt_call *k)
{
    const last_args a = {view_of(&k->d_out[0]), view_of(&k->d_in[0]), cut_of(k), k->d_in[0].cols, k->accumulate[0]};
    if (k->tokens > 0 && a.y.p) lnt_launch(lnt_cuda_of(k->c), to_last_kernel, (unsigned)lnt_div_up(k->n_seq * a.cols, LAST_THREADS), LAST_THREADS, a);
    return LINNET_OK;
}
