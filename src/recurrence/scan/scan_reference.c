/* The scan in float64, token by token: the truth.
 *
 *   h_t = a_t h_{t-1} + x_t        a_t = sign_t e^{log_a_t}        o_t = h_t                                          (operators.md#scan)
 *   lam_t = do_t + a_{t+1} lam_{t+1}, seeded with dsT;   dx = lam,   dlog_a_t = a_t lam_t h_{t-1},   dsign_t = e^{log_a_t} lam_t h_{t-1},
 *   ds0 = a_1 lam_1 */
#include "recurrence/reference.h"
#include "recurrence/scan/scan.h"

static double decay(const lnt_scan_args *a, int64_t i)
{
    const double size = exp(ref_get(a->log_a, lnt_scan_small(a), i));
    return a->sign ? size * ref_get(a->sign, lnt_scan_small(a), i) : size;
}

static void forward(const void *args, int threads)
{
    const lnt_scan_args *a = args;
    const lnt_dtype f = lnt_scan_small(a);
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->D; p++) {
        const int64_t n = p / a->D, d = p % a->D;
        double h = ref_get(a->s0, f, p);
        for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++) {
            h = decay(a, t * a->D + d) * h + ref_get(a->x, a->dtype, t * a->D + d);
            ref_put(a->o, a->dtype, t * a->D + d, h);
        }
        ref_put(a->sT, f, p, h);
    }
}

static void backward(const void *args, int threads)
{
    const lnt_scan_args *a = args;
    const lnt_dtype f = lnt_scan_small(a);
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->D; p++) {
        const int64_t n = p / a->D, d = p % a->D, first = a->cu_seqlens[n];
        double carry = ref_get(a->dsT, f, p); /* of the state behind token t */
        for (int64_t t = a->cu_seqlens[n + 1] - 1; t >= first; t--) {
            const int64_t i = t * a->D + d;
            const double before = t > first ? ref_get(a->o, a->dtype, i - a->D) : ref_get(a->s0, f, p);
            const double lambda = ref_get(a->dout, a->dtype, i) + carry;
            carry = decay(a, i) * lambda;
            ref_put(a->dsign, f, i, exp(ref_get(a->log_a, f, i)) * lambda * before);
            ref_put(a->dx, a->dtype, i, lambda);
            ref_put(a->dlog_a, f, i, carry * before);
        }
        ref_put(a->ds0, f, p, carry);
    }
}

const lnt_recur_impl lnt_scan_reference = { .name = "reference", .form = LINNET_FORM_RECURRENT, .forward = forward, .backward = backward };
