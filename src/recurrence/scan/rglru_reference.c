/* RG-LRU in float64, token by token: the truth.
 *
 *   log a_t = -c softplus(lambda) sigmoid(r_t)     h_t = a_t h_{t-1} + m_t sigmoid(i_t) x_t     m_t = sqrt(1 - a_t^2)     o_t = h_t
 *                                                                                                                       (operators.md#rg-lru)
 *   lam_t = do_t + a_{t+1} lam_{t+1}, seeded with dsT;   ds0 = a_1 lam_1
 *   dx_t = lam_t m_t sigmoid(i_t),   di_t = lam_t m_t x_t sigmoid'(i_t)
 *   dlog a_t = a_t lam_t h_{t-1} + lam_t sigmoid(i_t) x_t (-2 a_t^2) min(1 / (2 m_t), 1000)
 *   dr_t = -c softplus(lambda) sigmoid'(r_t) dlog a_t,   dlambda = -c sigmoid(lambda) sum over tokens sigmoid(r_t) dlog a_t
 * The slope of the square root is cut at 1000. With `first` a_1 = 0 and m_1 = 1, whatever r_1 is. */
#include "recurrence/reference.h"
#include "recurrence/scan/scan.h"

static lnt_dtype small(const lnt_rglru_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }

/* A token of a channel. */
typedef struct {
    double a, m, log_a, input, recur; /* the latter two are the gates */
} gates;

static gates gates_at(const lnt_rglru_args *a, int64_t t, int64_t d, bool first)
{
    gates g = { .input = sigmoid(ref_get(a->i, a->dtype, t * a->D + d)), .recur = sigmoid(ref_get(a->r, a->dtype, t * a->D + d)) };
    g.log_a = -a->c * softplus(ref_get(a->lambda, small(a), d)) * g.recur;
    g.a = first ? 0 : exp(g.log_a);
    g.m = first ? 1 : sqrt(-expm1(2 * g.log_a));
    return g;
}

static void forward(const void *args, int threads)
{
    const lnt_rglru_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->D; p++) {
        const int64_t n = p / a->D, d = p % a->D, begin = a->cu_seqlens[n];
        double h = ref_get(a->s0, small(a), p);
        for (int64_t t = begin; t < a->cu_seqlens[n + 1]; t++) {
            const gates g = gates_at(a, t, d, a->first && t == begin);
            h = g.a * h + g.m * g.input * ref_get(a->x, a->dtype, t * a->D + d);
            ref_put(a->o, a->dtype, t * a->D + d, h);
        }
        ref_put(a->sT, small(a), p, h);
    }
}

static void backward(const void *args, int threads)
{
    const lnt_rglru_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t d = 0; d < a->D; d++) {
        const double lambda_d = ref_get(a->lambda, small(a), d), rate = -a->c * softplus(lambda_d);
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) {
            const int64_t begin = a->cu_seqlens[n], p = n * a->D + d;
            double carry = ref_get(a->dsT, small(a), p);
            for (int64_t t = a->cu_seqlens[n + 1] - 1; t >= begin; t--) {
                const int64_t at = t * a->D + d;
                const bool first = a->first && t == begin;
                const gates g = gates_at(a, t, d, first);
                const double before = t > begin ? ref_get(a->o, a->dtype, at - a->D) : ref_get(a->s0, small(a), p);
                const double x = ref_get(a->x, a->dtype, at), lam = ref_get(a->dout, a->dtype, at) + carry;
                carry = g.a * lam;
                ref_put(a->dx, a->dtype, at, lam * g.m * g.input);
                ref_put(a->di, a->dtype, at, lam * g.m * x * g.input * (1 - g.input));
                const double dlog = first ? 0 : carry * before - 2 * g.a * g.a * fmin(0.5 / g.m, 1000) * lam * g.input * x;
                ref_put(a->dr, a->dtype, at, rate * g.recur * (1 - g.recur) * dlog);
                sum += g.recur * dlog;
            }
            ref_put(a->ds0, small(a), p, carry);
        }
        ref_put(a->dlambda, small(a), d, -a->c * sigmoid(lambda_d) * sum);
    }
}

const lnt_recur_impl lnt_rglru_reference = { .name = "reference", .form = LINNET_FORM_RECURRENT, .forward = forward, .backward = backward };
