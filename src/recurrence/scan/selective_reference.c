/* The selective scan in float64, channel by channel and token by token: the truth; longhorn too. For each of M numbers of a channel's state,
 *
 *   a_t = e^{delta_t A}      h_t = a_t h_{t-1} + delta_t u_t B_t      o_t = sum C_t h_t + D u_t                  (operators.md#selective-scan)
 *   lam_t = do_t C_t + a_{t+1} lam_{t+1}, seeded with dsT;   dB_t = sum over channels lam_t delta_t u_t,   dC_t = sum over channels do_t h_t
 *   du_t = delta_t sum lam_t B_t + D do_t,   ddelta_t = sum (a_t lam_t h_{t-1} A + lam_t u_t B_t),   dA = sum over tokens delta_t a_t lam_t h_{t-1}
 * where a sum that names nothing is over the M. With a sign a_t = 2 e^{delta_t A} - 1, whose slope in delta_t A is a_t + 1 in place of a_t. longhorn
 * (operators.md#longhorn) has a_t = 1 - Delta_t B_t^2 and Delta_t = delta_t / (1 + delta_t B_t.B_t) in place of delta_t, so that
 *   dDelta_t = sum lam_t (u_t B_t - h_{t-1} B_t^2),   ddelta_t = dDelta_t (Delta_t / delta_t)^2,
 *   d(B_t.B_t) = -sum over channels dDelta_t Delta_t^2,
 *   dB_t = sum over channels lam_t Delta_t (u_t - 2 h_{t-1} B_t) + 2 B_t d(B_t.B_t). */
#include "recurrence/reference.h"
#include "recurrence/scan/scan.h"

static lnt_dtype small(const lnt_selective_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }
static double A_of(const lnt_selective_args *a, int64_t d, int64_t m) { return ref_get(a->A, small(a), d * a->M + m); }

static double B_of(const lnt_selective_args *a, int64_t t, int64_t m) { return ref_get(a->B, a->dtype, t * a->M + m); }
static bool longhorn(const lnt_selective_args *a) { return a->op->kind == LNT_LONGHORN; }

/* What divides longhorn's strength: 1 + delta_t B_t.B_t. */
static double divisor(const lnt_selective_args *a, int64_t t, int64_t d)
{
    double sum = 0;
    for (int64_t m = 0; longhorn(a) && m < a->M; m++) sum += B_of(a, t, m) * B_of(a, t, m);
    return 1 + ref_get(a->delta, small(a), t * a->D + d) * sum;
}
static double step_of(const lnt_selective_args *a, int64_t t, int64_t d) { return ref_get(a->delta, small(a), t * a->D + d) / divisor(a, t, d); }

static double decay(const lnt_selective_args *a, int64_t t, int64_t d, int64_t m, double step)
{
    if (longhorn(a)) return 1 - step * B_of(a, t, m) * B_of(a, t, m);
    return a->has_sign ? 2 * exp(step * A_of(a, d, m)) - 1 : exp(step * A_of(a, d, m));
}

/* h over token t. */
static void step(const lnt_selective_args *a, int64_t t, int64_t d, double *h)
{
    const double delta = step_of(a, t, d), u = ref_get(a->u, a->dtype, t * a->D + d);
    for (int64_t m = 0; m < a->M; m++) h[m] = decay(a, t, d, m, delta) * h[m] + delta * u * B_of(a, t, m);
}

static double *scratch(const lnt_selective_args *a, int64_t each) { return (double *)a->workspace + omp_get_thread_num() * each; }

static void forward(const void *args, int threads)
{
    const lnt_selective_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->D; p++) {
        const int64_t n = p / a->D, d = p % a->D;
        double *h = scratch(a, a->M);
        ref_get_row(h, a->s0, small(a), p, a->M);
        for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++) {
            double o = ref_get(a->skip, small(a), d) * ref_get(a->u, a->dtype, t * a->D + d);
            step(a, t, d, h);
            for (int64_t m = 0; m < a->M; m++) o += ref_get(a->C, a->dtype, t * a->M + m) * h[m];
            ref_put(a->o, a->dtype, t * a->D + d, o);
        }
        ref_put_row(a->sT, small(a), p, a->M, h);
    }
}

/* What all channels, or all tokens, add to: doubles. */
typedef struct {
    double *dB, *dC, *dA, *dskip; /* [T,M] [T,M] [D,M] [D] */
    double *h, *lambda;           /* [longest + 1, M], [M] */
} sums;

static void back(const lnt_selective_args *a, int64_t t, int64_t d, const double *h, const sums *s)
{
    const lnt_dtype f = small(a);
    const double delta = step_of(a, t, d), u = ref_get(a->u, a->dtype, t * a->D + d);
    const double dy = ref_get(a->dout, a->dtype, t * a->D + d);
    double through_b = 0, through_a = 0;
    for (int64_t m = 0; m < a->M; m++) {
        const double A = longhorn(a) ? -B_of(a, t, m) * B_of(a, t, m) : A_of(a, d, m), e = decay(a, t, d, m, delta), b = B_of(a, t, m);
        const double lambda = s->lambda[m] + dy * ref_get(a->C, a->dtype, t * a->M + m);
        const double carried = (longhorn(a) ? 1 : a->has_sign ? e + 1 : e) * lambda * h[m]; /* gradient of delta A */
        s->dC[t * a->M + m] += dy * h[a->M + m];
        s->dB[t * a->M + m] += lambda * delta * u;
        if (longhorn(a))
            s->dB[t * a->M + m] -= 2 * b * carried * delta;
        else
            s->dA[d * a->M + m] += carried * delta;
        through_b += lambda * b;
        through_a += carried * A;
        s->lambda[m] = e * lambda;
    }
    const double dstep = through_a + u * through_b, divide = divisor(a, t, d);
    for (int64_t m = 0; longhorn(a) && m < a->M; m++) s->dB[t * a->M + m] -= 2 * B_of(a, t, m) * dstep * delta * delta;
    s->dskip[d] += dy * u;
    ref_put(a->du, a->dtype, t * a->D + d, delta * through_b + ref_get(a->skip, f, d) * dy);
    ref_put(a->ddelta, f, t * a->D + d, dstep / (divide * divide));
}

/* One thread: channels add to dB and dC, sequences to dA and dD. */
static void backward(const void *args, int threads)
{
    const lnt_selective_args *a = args;
    const int64_t T = a->tokens, D = a->D, M = a->M;
    double *w = a->workspace;
    const sums s = { .dB = w, .dC = w + T * M, .dA = w + 2 * T * M, .dskip = w + 2 * T * M + D * M, .lambda = w + 2 * T * M + D * M + D,
                     .h = w + 2 * T * M + D * M + D + M };
    (void)threads;
    memset(w, 0, (size_t)(2 * T * M + D * M + D) * sizeof *w);
    for (int64_t p = 0; p < a->sequences * D; p++) {
        const int64_t n = p / D, d = p % D, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        ref_get_row(s.h, a->s0, small(a), p, M);
        for (int64_t i = 0; i < len; i++) {
            memcpy(s.h + (i + 1) * M, s.h + i * M, (size_t)M * sizeof *w);
            step(a, first + i, d, s.h + (i + 1) * M);
        }
        ref_get_row(s.lambda, a->dsT, small(a), p, M);
        for (int64_t i = len - 1; i >= 0; i--) back(a, first + i, d, s.h + i * M, &s);
        ref_put_row(a->ds0, small(a), p, M, s.lambda);
    }
    ref_put_row(a->dB, a->dtype, 0, T * M, s.dB);
    ref_put_row(a->dC, a->dtype, 0, T * M, s.dC);
    if (!longhorn(a)) ref_put_row(a->dA, small(a), 0, D * M, s.dA);
    ref_put_row(a->dskip, small(a), 0, D, s.dskip);
}

static size_t workspace(const void *args, bool backward_, int threads)
{
    const lnt_selective_args *a = args;
    const int64_t M = a->M, back_ = 2 * a->tokens * M + a->D * (M + 1) + M + (a->longest + 1) * M;
    return (size_t)(backward_ ? back_ : threads * M) * sizeof(double);
}

const lnt_recur_impl lnt_selective_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
