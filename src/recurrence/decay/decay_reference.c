/* The decay core in float64, token by token: the truth.
 *
 *   S_t = e^{g_t} S_{t-1} + k_t v_t^T          o_t = s S_t^T q_t                                   (operators.md 2)
 *
 * With `normalize` the state has one more value column, whose v is 1 (that column is z), and o_t = num / (den + eps). W = V or V+1 columns. */
#include "recurrence/reference.h"

static int64_t width(const lnt_recur_args *a) { return a->V + (a->normalize != 0); }
static int64_t state(const lnt_recur_args *a) { return a->K * width(a); }

/* num [W], dnum [W] */
static int64_t own(const lnt_recur_args *a, bool backward)
{
    (void)backward;
    return 2 * width(a);
}

static void load(const ref_head *x, bool gradient, double *S)
{
    const lnt_recur_args *a = x->a;
    const void *s = gradient ? a->dsT : a->s0, *z = gradient ? a->dzT : a->z0;
    int64_t W = width(a), i = ref_index(x);
    for (int64_t k = 0; k < a->K; k++) {
        ref_get_row(S + k * W, s, ref_f(a), i * a->K + k, a->V);
        if (W > a->V) S[k * W + a->V] = ref_get(z, ref_f(a), i * a->K + k);
    }
}

static void store(const ref_head *x, bool gradient, const double *S)
{
    const lnt_recur_args *a = x->a;
    void *s = gradient ? a->ds0 : a->sT, *z = gradient ? a->dz0 : a->zT;
    int64_t W = width(a), i = ref_index(x);
    for (int64_t k = 0; k < a->K; k++) {
        ref_put_row(s, ref_f(a), i * a->K + k, a->V, S + k * W);
        if (W > a->V) ref_put(z, ref_f(a), i * a->K + k, S[k * W + a->V]);
    }
}

/* S <- e^g S + k v^T */
static void step(const ref_head *x, int64_t t)
{
    int64_t W = width(x->a);
    double alpha = ref_decay(x, t);
    x->v[x->a->V] = 1;
    for (int64_t k = 0; k < x->a->K; k++)
        for (int64_t j = 0; j < W; j++) x->S[k * W + j] = alpha * x->S[k * W + j] + x->k[k] * x->v[j];
}

/* num = s S^T q, then num[0..V) becomes o and num[V] the denominator. */
static void read_out(const ref_head *x, const double *S, double *num)
{
    const lnt_recur_args *a = x->a;
    int64_t W = width(a);
    for (int64_t j = 0; j < W; j++) {
        double sum = 0;
        for (int64_t k = 0; k < a->K; k++) sum += S[k * W + j] * x->q[k];
        num[j] = a->scale * sum;
    }
    if (W == a->V) return;
    num[a->V] += a->eps;
    for (int64_t j = 0; j < a->V; j++) num[j] /= num[a->V];
}

static void read(const ref_head *x, int64_t t)
{
    read_out(x, x->S, x->own);
    ref_put_row(x->a->o, x->a->dtype, ref_row(x, t), x->a->V, x->own);
}

/*   dnum = do / den, dden = -(do . o) / den                    dq = s S dnum      dS += s q dnum^T
 *   dk = dS v, dv = dS^T k      dg = e^g <S_{t-1}, dS>         dS_{t-1} = e^g dS */
static void back(const ref_head *x, int64_t t, const double *S, const double *before)
{
    const lnt_recur_args *a = x->a;
    int64_t W = width(a), place = ref_place(x, t);
    double *num = x->own, *dnum = x->own + W;
    x->v[a->V] = 1;
    ref_get_row(dnum, a->do_, a->dtype, ref_row(x, t), a->V);
    if (W > a->V) {
        read_out(x, S, num);
        double den = num[a->V], dot = ref_dot(a->V, dnum, num);
        for (int64_t j = 0; j < a->V; j++) dnum[j] /= den;
        dnum[a->V] = -dot / den;
    }
    double alpha = ref_decay(x, t), dg = 0;
    memset(num, 0, (size_t)W * sizeof *num); /* dv */
    for (int64_t k = 0; k < a->K; k++) {
        double dq = 0, dk = 0;
        for (int64_t j = 0; j < W; j++) {
            double *dS = &x->dS[k * W + j];
            dq += S[k * W + j] * dnum[j];
            *dS += a->scale * x->q[k] * dnum[j];
            dk += *dS * x->v[j];
            num[j] += *dS * x->k[k];
            dg += before[k * W + j] * *dS;
            *dS *= alpha;
        }
        x->dq[place * a->K + k] += a->scale * dq;
        x->dk[place * a->K + k] += dk;
    }
    ref_put_row(a->dv, a->dtype, ref_row(x, t), a->V, num);
    ref_put(a->dg, ref_f(a), ref_row(x, t), alpha * dg);
    *x->sums += alpha * dg;
}

static int64_t sums(const lnt_recur_args *a) { return a != NULL; }
static void *sum_out(const lnt_recur_args *a) { return a->dg_head; }

static const ref_core core = { state, own, sums, sum_out, load, store, step, read, back };
static size_t workspace(const lnt_recur_args *a, bool backward, int threads) { return lnt_ref_workspace(&core, a, backward, threads); }
static void forward(const lnt_recur_args *a, int threads) { lnt_ref_forward(&core, a, threads); }
static void backward(const lnt_recur_args *a, int threads) { lnt_ref_backward(&core, a, threads); }

const lnt_recur_impl lnt_decay_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
