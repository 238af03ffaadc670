/* What Hyena's filters are made of (equations: implicit_filter.c): a thread an element; rows are few and the same in every call. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/implicit_filter.h"
}

enum { FILTER_THREADS = 256 };

struct filter_args {
    float *y;
    const float *x;
    int64_t rows, cols, ld_x, ld_y;
    float slow, step, shift;
    bool add;
};

static __global__ void __launch_bounds__(FILTER_THREADS) features_kernel(const __grid_constant__ filter_args a)
{
    let_next();
    await_last();
    const int64_t at = (int64_t)blockIdx.x * FILTER_THREADS + threadIdx.x, i = at / a.cols, c = at % a.cols, m = (a.cols - 1) / 2;
    if (i >= a.rows) return;
    float y;
    if (c == 0)
        y = (float)((double)i / (double)(a.rows > 1 ? a.rows - 1 : 1));
    else {
        const int64_t j = (c - 1) % m;
        const double f = 1e-4 + (m > 1 ? (double)j * ((double)(m - 1) - 1e-4) / (double)(m - 1) : 0.0);
        const double w = f * (2 * 3.14159265358979323846 * (double)i / (double)a.rows);
        y = (float)(c <= m ? cos(w) : -sin(w));
    }
    a.y[i * a.ld_y + c] = y;
}

static __global__ void __launch_bounds__(FILTER_THREADS) window_kernel(const __grid_constant__ filter_args a)
{
    let_next();
    await_last();
    const int64_t at = (int64_t)blockIdx.x * FILTER_THREADS + threadIdx.x, i = at / a.cols, c = at % a.cols;
    if (i >= a.rows) return;
    const float t = (float)((double)i / (double)(a.rows > 1 ? a.rows - 1 : 1));
    const float y = a.x[i * a.ld_x + c] * (expf(-t * (a.slow + (float)c * a.step)) + a.shift);
    float *to = a.y + i * a.ld_y + c;
    *to = a.add ? *to + y : y;
}

static unsigned filter_blocks(const filter_args &a) { return (unsigned)lnt_div_up(a.rows * a.cols, FILTER_THREADS); }

extern "C" linnet_status lnt_place_features_forward_cuda(const lnt_call *k)
{
    filter_args a = {};
    a.y = (float *)k->out[0].data, a.rows = k->out[0].rows, a.cols = k->out[0].cols, a.ld_y = k->out[0].ld;
    lnt_launch(lnt_cuda_of(k->c), features_kernel, filter_blocks(a), FILTER_THREADS, a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_place_features_backward_cuda(const lnt_call *k) { return (void)k, LINNET_OK; } /* nothing was read */

static void window(const lnt_call *k, const lnt_tensor *x, const lnt_tensor *y, bool add)
{
    const lnt_decay_window_attr *w = (const lnt_decay_window_attr *)k->attr;
    filter_args a = {};
    a.y = (float *)y->data, a.x = (const float *)x->data, a.rows = y->rows, a.cols = y->cols, a.ld_x = x->ld, a.ld_y = y->ld;
    a.slow = (float)w->slow, a.step = (float)(y->cols > 1 ? (w->fast - w->slow) / (double)(y->cols - 1) : 0), a.shift = (float)w->shift, a.add = add;
    lnt_launch(lnt_cuda_of(k->c), window_kernel, filter_blocks(a), FILTER_THREADS, a);
}

extern "C" linnet_status lnt_decay_window_forward_cuda(const lnt_call *k)
{
    window(k, &k->in[0], &k->out[0], false);
    return LINNET_OK;
}

extern "C" linnet_status lnt_decay_window_backward_cuda(const lnt_call *k)
{
    if (k->d_in[0].data) window(k, &k->d_out[0], &k->d_in[0], k->accumulate[0]);
    return LINNET_OK;
}
