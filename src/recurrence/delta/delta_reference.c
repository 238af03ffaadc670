/* The delta core in float64, token by token: the truth.
 *
 *   S~ = e^{g_t} S_{t-1}      u_t = beta_t (v_t - S~^T k_t)      S_t = S~ + k_t u_t^T      o_t = s S_t^T q_t          (operators.md 4) */
#include "recurrence/reference.h"

static int64_t state(const lnt_recur_args *a) { return (int64_t)a->K * a->V; }

/* error [V], x [V] */
static int64_t own(const lnt_recur_args *a, bool backward)
{
    (void)backward;
    return 2 * (int64_t)a->V;
}

static void load(const ref_head *x, bool gradient, double *S)
{
    ref_get_row(S, gradient ? x->a->dsT : x->a->s0, ref_f(x->a), ref_index(x), state(x->a));
}

static void store(const ref_head *x, bool gradient, const double *S)
{
    ref_put_row(gradient ? x->a->ds0 : x->a->sT, ref_f(x->a), ref_index(x), state(x->a), S);
}

/* error = v - e^g S^T k */
static void predict(const ref_head *x, double alpha, const double *S, double *error)
{
    for (int64_t j = 0; j < x->a->V; j++) {
        double sum = 0;
        for (int64_t k = 0; k < x->a->K; k++) sum += S[k * x->a->V + j] * x->k[k];
        error[j] = x->v[j] - alpha * sum;
    }
}

/* S <- e^g S + k beta error^T */
static void step(const ref_head *x, int64_t t)
{
    int64_t V = x->a->V;
    double alpha = ref_decay(x, t), beta = ref_strength(x, t), *error = x->own;
    predict(x, alpha, x->S, error);
    for (int64_t k = 0; k < x->a->K; k++)
        for (int64_t j = 0; j < V; j++) x->S[k * V + j] = alpha * x->S[k * V + j] + x->k[k] * beta * error[j];
}

static void read(const ref_head *x, int64_t t)
{
    const lnt_recur_args *a = x->a;
    for (int64_t j = 0; j < a->V; j++) {
        double sum = 0;
        for (int64_t k = 0; k < a->K; k++) sum += x->S[k * a->V + j] * x->q[k];
        x->own[j] = a->scale * sum;
    }
    ref_put_row(a->o, a->dtype, ref_row(x, t), a->V, x->own);
}

/*   dq = s S do          dS += s q do^T          du = dS^T k          dk = dS u
 *   dbeta = du . error   dv = beta du            dS~ = dS - k dv^T    dk -= e^g S_{t-1} dv
 *   dg = e^g <S_{t-1}, dS~>                      dS_{t-1} = e^g dS~ */
static void back(const ref_head *h, int64_t t, const double *S, const double *before)
{
    const lnt_recur_args *a = h->a;
    int64_t place = ref_place(h, t), V = a->V;
    double alpha = ref_decay(h, t), beta = ref_strength(h, t), dbeta = 0, dg = 0, *error = h->own, *x = h->own + V;
    predict(h, alpha, before, error);
    ref_get_row(x, a->do_, a->dtype, ref_row(h, t), V);
    double *du = h->v; /* v itself is no longer needed */
    memset(du, 0, (size_t)V * sizeof *du);
    for (int64_t k = 0; k < a->K; k++) {
        double dq = 0, dk = 0;
        for (int64_t j = 0; j < V; j++) {
            dq += S[k * V + j] * x[j];
            h->dS[k * V + j] += a->scale * h->q[k] * x[j];
            du[j] += h->k[k] * h->dS[k * V + j];
            dk += h->dS[k * V + j] * beta * error[j];
        }
        h->dq[place * a->K + k] += a->scale * dq;
        h->dk[place * a->K + k] += dk;
    }
    for (int64_t j = 0; j < V; j++) {
        dbeta += du[j] * error[j];
        x[j] = beta * du[j];
    }
    for (int64_t k = 0; k < a->K; k++) {
        double dk = 0;
        for (int64_t j = 0; j < V; j++) {
            h->dS[k * V + j] -= h->k[k] * x[j];
            dk += before[k * V + j] * x[j];
            dg += before[k * V + j] * h->dS[k * V + j];
            h->dS[k * V + j] *= alpha;
        }
        h->dk[place * a->K + k] -= alpha * dk;
    }
    ref_put_row(a->dv, a->dtype, ref_row(h, t), V, x);
    ref_put(a->dbeta, ref_f(a), ref_row(h, t), dbeta);
    ref_put(a->dg, ref_f(a), ref_row(h, t), alpha * dg);
}

static const ref_core core = { .state = state, .own = own, .load = load, .store = store, .step = step, .read = read, .back = back };
static size_t workspace(const lnt_recur_args *a, bool backward, int threads) { return lnt_ref_workspace(&core, a, backward, threads); }
static void forward(const lnt_recur_args *a, int threads) { lnt_ref_forward(&core, a, threads); }
static void backward(const lnt_recur_args *a, int threads) { lnt_ref_backward(&core, a, threads); }

const lnt_recur_impl lnt_delta_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
