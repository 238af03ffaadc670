/* From sums over tokens to the gradients of S4D's parameters, in double: what all its ways back end with. */
#ifndef LNT_S4D_GRADIENTS_CUH
#define LNT_S4D_GRADIENTS_CUH

#include "recurrence/scan/s4d_steps.cuh"

namespace {

/* Of each number of a state: sums over a sequence's tokens of (gradient of h_t) conj(h_{t-1}), and of do_t conj(h_t). */
enum { SUM_A_RE, SUM_A_IM, SUM_K_RE, SUM_K_IM, SUMS_OF_NUMBER };

struct s4d_totals {
    const float *sums, *dskips; /* [N,SUMS_OF_NUMBER,D,M], [N,D]: added up in order */
    const float *dt, *A_re, *A_im, *C_re, *C_im;
    float *ddt, *dA_re, *dA_im, *dC_re, *dC_im, *dskip; /* NULL: not wanted */
    int64_t sequences;
    int D, M, bilinear;
};

constexpr int SMALL_THREADS = 128;

/* A warp a channel: from those of Abar and of K = C Bbar, K's being half of what is written with. */
__global__ __launch_bounds__(SMALL_THREADS) void gradients_kernel(const __grid_constant__ s4d_totals p)
{
    await_last();
    let_next();
    const int64_t d = (int64_t)blockIdx.x * (SMALL_THREADS / 32) + threadIdx.x / 32, all = (int64_t)p.D * p.M;
    const int lane = (int)threadIdx.x % 32;
    if (d >= p.D) return;
    double ddt = 0, dskip = 0;
    for (int m = lane; m < p.M; m += 32) {
        const int64_t i = d * p.M + m;
        double sum[SUMS_OF_NUMBER] = {};
        for (int64_t n = 0; n < p.sequences; n++)
#pragma unroll
            for (int k = 0; k < SUMS_OF_NUMBER; k++) sum[k] += p.sums[(n * SUMS_OF_NUMBER + k) * all + i];
        const s4d_step s = discretize(p.bilinear, p.dt[d], { p.A_re[i], p.A_im[i] });
        const complex64 dA = { sum[SUM_A_RE], sum[SUM_A_IM] }, dK = { 2 * sum[SUM_K_RE], 2 * sum[SUM_K_IM] }, C = { p.C_re[i], p.C_im[i] };
        const complex64 of_A = conjugate(s.A_by_A) * dA + conjugate(C * s.B_by_A) * dK, of_C = conjugate(s.B) * dK;
        ddt += (conjugate(s.A_by_dt) * dA + conjugate(C * s.B_by_dt) * dK).re;
        if (p.dA_re) p.dA_re[i] = (float)of_A.re;
        if (p.dA_im) p.dA_im[i] = (float)of_A.im;
        if (p.dC_re) p.dC_re[i] = (float)of_C.re;
        if (p.dC_im) p.dC_im[i] = (float)of_C.im;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) ddt += __shfl_xor_sync(~0u, ddt, o);
    if (lane) return;
    for (int64_t n = 0; n < p.sequences; n++) dskip += p.dskips[n * p.D + d];
    if (p.ddt) p.ddt[d] = (float)ddt;
    if (p.dskip) p.dskip[d] = (float)dskip;
}

inline void put_gradients(const lnt_s4d_args *a, const float *sums, const float *dskips, const lnt_cuda *d)
{
    s4d_totals p = {};
    p.sums = sums, p.dskips = dskips, p.dt = (const float *)a->dt;
    p.A_re = (const float *)a->A_re, p.A_im = (const float *)a->A_im, p.C_re = (const float *)a->C_re, p.C_im = (const float *)a->C_im;
    p.ddt = (float *)a->ddt, p.dA_re = (float *)a->dA_re, p.dA_im = (float *)a->dA_im, p.dC_re = (float *)a->dC_re, p.dC_im = (float *)a->dC_im;
    p.dskip = (float *)a->dskip, p.sequences = a->sequences, p.D = a->D, p.M = a->M, p.bilinear = a->discretization == LNT_S4D_BILINEAR;
    lnt_launch(d, gradients_kernel, (unsigned)lnt_div_up(a->D, SMALL_THREADS / 32), SMALL_THREADS, p);
}

} // namespace

#endif
