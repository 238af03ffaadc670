/* S4D in float64, channel by channel and token by token: the truth.
 *
 *   h_t = Abar h_{t-1} + u_t     o_t = 2 Re(sum K h_t) + D u_t     K = C Bbar                                               (operators.md#s4d)
 *   zoh: Abar = e^{dt A}, Bbar = (Abar - 1) / A;     bilinear, z = dt A / 2: Abar = (1 + z) / (1 - z), Bbar = dt / (1 - z)
 *   lam_t = 2 conj(K) do_t + conj(Abar) lam_{t+1}, seeded with dsT;     du_t = Re(sum lam_t) + D do_t,     dD = sum over tokens do_t u_t
 *   dK = 2 sum over tokens do_t conj(h_t),   dAbar = sum over tokens lam_t conj(h_{t-1})
 * and from those, the gradient of z being conj(f'(z)) times that of f(z), by the derivatives of `discretize`. */
#include <complex.h>

#include "recurrence/reference.h"
#include "recurrence/scan/s4d_steps.h"

static lnt_dtype small(const lnt_s4d_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

static lnt_s4d_step step_of(const lnt_s4d_args *a, int64_t d, int64_t m)
{
    const int64_t i = d * a->M + m;
    return lnt_s4d_discretize(a->discretization, ref_get(a->dt, small(a), d), ref_get(a->A_re, small(a), i) + I * ref_get(a->A_im, small(a), i));
}
static double complex C_of(const lnt_s4d_args *a, int64_t d, int64_t m)
{
    return ref_get(a->C_re, small(a), d * a->M + m) + I * ref_get(a->C_im, small(a), d * a->M + m);
}
static int64_t part_of(const lnt_s4d_args *a, int64_t n, int p, int64_t d) { return ((2 * n + p) * a->D + d) * a->M; }
static void load(const lnt_s4d_args *a, const void *state, int64_t n, int64_t d, double complex *h)
{
    for (int64_t m = 0; m < a->M; m++)
        h[m] = ref_get(state, small(a), part_of(a, n, 0, d) + m) + I * ref_get(state, small(a), part_of(a, n, 1, d) + m);
}
static void store(const lnt_s4d_args *a, void *state, int64_t n, int64_t d, const double complex *h)
{
    for (int64_t m = 0; m < a->M; m++) {
        ref_put(state, small(a), part_of(a, n, 0, d) + m, creal(h[m]));
        ref_put(state, small(a), part_of(a, n, 1, d) + m, cimag(h[m]));
    }
}

/* A thread's scratch: Abar, K, and states. */
static double complex *scratch(const lnt_s4d_args *a, int64_t each)
{
    return (double complex *)a->workspace + omp_get_thread_num() * each * a->M;
}
static void dynamics(const lnt_s4d_args *a, int64_t d, double complex *w)
{
    for (int64_t m = 0; m < a->M; m++) {
        const lnt_s4d_step s = step_of(a, d, m);
        w[m] = s.A;
        w[a->M + m] = C_of(a, d, m) * s.B;
    }
}

static void forward(const void *args, int threads)
{
    const lnt_s4d_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->D; p++) {
        const int64_t n = p / a->D, d = p % a->D, M = a->M;
        double complex *w = scratch(a, 3), *h = w + 2 * M;
        dynamics(a, d, w);
        load(a, a->s0, n, d, h);
        for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++) {
            const double u = ref_get(a->u, a->dtype, t * a->D + d);
            double o = ref_get(a->skip, small(a), d) * u;
            for (int64_t m = 0; m < M; m++) {
                h[m] = w[m] * h[m] + u;
                o += 2 * creal(w[M + m] * h[m]);
            }
            ref_put(a->o, a->dtype, t * a->D + d, o);
        }
        store(a, a->sT, n, d, h);
    }
}

static void backward(const void *args, int threads)
{
    const lnt_s4d_args *a = args;
    const int64_t M = a->M, each = 5 + a->longest;
#pragma omp parallel for num_threads(threads)
    for (int64_t d = 0; d < a->D; d++) {
        double complex *w = scratch(a, each + 1), *dA = w + 2 * M, *dK = dA + M, *lambda = dK + M, *h = lambda + M;
        double dskip = 0, ddt = 0;
        dynamics(a, d, w);
        memset(dA, 0, (size_t)(2 * M) * sizeof *dA);
        for (int64_t n = 0; n < a->sequences; n++) {
            const int64_t first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
            load(a, a->s0, n, d, h);
            for (int64_t i = 0; i < len; i++)
                for (int64_t m = 0; m < M; m++) h[(i + 1) * M + m] = w[m] * h[i * M + m] + ref_get(a->u, a->dtype, (first + i) * a->D + d);
            load(a, a->dsT, n, d, lambda);
            for (int64_t i = len - 1; i >= 0; i--) {
                const int64_t at = (first + i) * a->D + d;
                const double dy = ref_get(a->dout, a->dtype, at);
                double du = ref_get(a->skip, small(a), d) * dy;
                for (int64_t m = 0; m < M; m++) {
                    lambda[m] += 2 * conj(w[M + m]) * dy;
                    du += creal(lambda[m]);
                    dK[m] += 2 * dy * conj(h[(i + 1) * M + m]);
                    dA[m] += lambda[m] * conj(h[i * M + m]);
                    lambda[m] *= conj(w[m]);
                }
                dskip += dy * ref_get(a->u, a->dtype, at);
                ref_put(a->du, a->dtype, at, du);
            }
            store(a, a->ds0, n, d, lambda);
        }
        for (int64_t m = 0; m < M; m++) {
            const lnt_s4d_gradient g = lnt_s4d_backward(step_of(a, d, m), C_of(a, d, m), dA[m], dK[m]);
            ddt += g.dt;
            ref_put(a->dA_re, small(a), d * M + m, creal(g.A));
            ref_put(a->dA_im, small(a), d * M + m, cimag(g.A));
            ref_put(a->dC_re, small(a), d * M + m, creal(g.C));
            ref_put(a->dC_im, small(a), d * M + m, cimag(g.C));
        }
        ref_put(a->ddt, small(a), d, ddt);
        ref_put(a->dskip, small(a), d, dskip);
    }
}

static size_t workspace(const void *args, bool backward_, int threads)
{
    const lnt_s4d_args *a = args;
    return (size_t)(threads * a->M * (backward_ ? 6 + a->longest : 3)) * sizeof(double complex);
}

const lnt_recur_impl lnt_s4d_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
