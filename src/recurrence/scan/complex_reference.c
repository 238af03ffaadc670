/* Complex scans in float64, token by token: the truth.
 *
 *   h_t = a_t h_{t-1} + x_t        a_t = e^{log_a_t + i angle_t}        o_t = h_t                                 (operators.md#complex-scan)
 *   lam_t = do_t + conj(a_{t+1}) lam_{t+1}, seeded with dsT;   dx = lam;   with c_t = conj(a_t) lam_t conj(h_{t-1})
 *   dlog_a_t = Re c_t,   dangle_t = Im c_t,   ds0 = conj(a_1) lam_1
 * where the gradient of a complex number is those of its parts. lru's decays are one for all tokens; their gradients are sums. */
#include <complex.h>

#include "recurrence/reference.h"
#include "recurrence/scan/scan.h"

static lnt_dtype small(const lnt_complex_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

/* Channel d of row r of [.,2,D]. */
static double complex number(const lnt_complex_args *a, const void *p, lnt_dtype t, int64_t r, int64_t d)
{
    return ref_get(p, t, 2 * r * a->D + d) + I * ref_get(p, t, (2 * r + 1) * a->D + d);
}
static void put_number(const lnt_complex_args *a, void *p, lnt_dtype t, int64_t r, int64_t d, double complex x)
{
    ref_put(p, t, 2 * r * a->D + d, creal(x));
    ref_put(p, t, (2 * r + 1) * a->D + d, cimag(x));
}
static int64_t place(const lnt_complex_args *a, int64_t t, int64_t d) { return a->op->kind == LNT_LRU ? d : t * a->D + d; }
static double complex decay(const lnt_complex_args *a, int64_t t, int64_t d)
{
    const double angle = ref_get(a->angle, small(a), place(a, t, d));
    return exp(ref_get(a->log_a, small(a), place(a, t, d))) * (cos(angle) + I * sin(angle));
}

static void forward(const void *args, int threads)
{
    const lnt_complex_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->D; p++) {
        const int64_t n = p / a->D, d = p % a->D;
        double complex h = number(a, a->s0, small(a), n, d);
        for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++) {
            h = decay(a, t, d) * h + number(a, a->x, a->dtype, t, d);
            put_number(a, a->o, a->dtype, t, d, h);
        }
        put_number(a, a->sT, small(a), n, d, h);
    }
}

static void backward(const void *args, int threads)
{
    const lnt_complex_args *a = args;
    const bool constant = a->op->kind == LNT_LRU;
#pragma omp parallel for num_threads(threads)
    for (int64_t d = 0; d < a->D; d++) {
        double complex sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) {
            const int64_t first = a->cu_seqlens[n];
            double complex carry = number(a, a->dsT, small(a), n, d);
            for (int64_t t = a->cu_seqlens[n + 1] - 1; t >= first; t--) {
                const double complex before = t > first ? number(a, a->o, a->dtype, t - 1, d) : number(a, a->s0, small(a), n, d);
                const double complex lambda = number(a, a->dout, a->dtype, t, d) + carry;
                carry = conj(decay(a, t, d)) * lambda;
                const double complex c = carry * conj(before);
                put_number(a, a->dx, a->dtype, t, d, lambda);
                sum += c;
                if (constant) continue;
                ref_put(a->dlog_a, small(a), t * a->D + d, creal(c));
                ref_put(a->dangle, small(a), t * a->D + d, cimag(c));
            }
            put_number(a, a->ds0, small(a), n, d, carry);
        }
        if (!constant) continue;
        ref_put(a->dlog_a, small(a), d, creal(sum));
        ref_put(a->dangle, small(a), d, cimag(sum));
    }
}

const lnt_recur_impl lnt_complex_reference = { .name = "reference", .form = LINNET_FORM_RECURRENT, .forward = forward, .backward = backward };
