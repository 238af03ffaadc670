/* The delta core in float64, token by token: the truth.
 *
 *   S~ = diag(e^{g_t + gk_t}) S_{t-1}      u_t = beta_t (v_t - S~^T k_t)      S_t = S~ + k_t u_t^T      o_t = s S_t^T q_t    (operators.md#delta)
 *
 * where a gate that the operator does not have is 0. A token of several writes is as many steps t of this, of which the first decays and the last is
 * read. */
#include "recurrence/reference.h"

static int64_t state(const lnt_recur_args *a) { return (int64_t)a->K * a->V; }

/* error [V], x [V], alpha [K]: the decays of S's rows */
static int64_t own(const lnt_recur_args *a, bool backward)
{
    (void)backward;
    return 2 * (int64_t)a->V + a->K;
}
static double *alphas(const ref_head *x) { return x->own + 2 * x->a->V; }

static void load(const ref_head *x, bool gradient, double *S)
{
    ref_get_row(S, gradient ? x->a->dsT : x->a->s0, ref_f(x->a), ref_index(x), state(x->a));
}

static void store(const ref_head *x, bool gradient, const double *S)
{
    ref_put_row(gradient ? x->a->ds0 : x->a->sT, ref_f(x->a), ref_index(x), state(x->a), S);
}

static bool decays(const ref_head *x, int64_t t) { return t % lnt_recur_writes(x->a) == 0; }
static bool is_read(const ref_head *x, int64_t t) { return decays(x, t + 1); }
static int64_t token(const ref_head *x, int64_t t) { return t / lnt_recur_writes(x->a); }

/* alpha, and error = v - (alpha.S)^T k, of token t */
static void predict(const ref_head *x, int64_t t, const double *S, double *error)
{
    double *alpha = alphas(x);
    if (decays(x, t)) ref_row_decays(x, token(x, t), alpha);
    for (int64_t k = 0; !decays(x, t) && k < x->a->K; k++) alpha[k] = 1;
    for (int64_t j = 0; j < x->a->V; j++) {
        double sum = 0;
        for (int64_t k = 0; k < x->a->K; k++) sum += alpha[k] * S[k * x->a->V + j] * x->k[k];
        error[j] = x->v[j] - sum;
    }
}

/* S <- alpha.S + k beta error^T */
static void step(const ref_head *x, int64_t t)
{
    int64_t V = x->a->V;
    double beta = ref_strength(x, t), *error = x->own;
    predict(x, t, x->S, error);
    for (int64_t k = 0; k < x->a->K; k++)
        for (int64_t j = 0; j < V; j++) x->S[k * V + j] = alphas(x)[k] * x->S[k * V + j] + x->k[k] * beta * error[j];
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
 *   dbeta = du . error   dv = beta du            dS~ = dS - k dv^T    dk -= alpha.(S_{t-1} dv)
 *   dgk = rowsum(alpha.S_{t-1} . dS~), dg its sum          dS_{t-1} = alpha.dS~ */
static void back(const ref_head *h, int64_t t, const double *S, const double *before)
{
    const lnt_recur_args *a = h->a;
    const int64_t place = t - a->cu_seqlens[h->n] * lnt_recur_writes(a), V = a->V;
    double beta = ref_strength(h, t), dbeta = 0, dg = 0, *error = h->own, *x = h->own + V;
    predict(h, t, before, error);
    ref_get_row(x, is_read(h, t) ? a->do_ : NULL, a->dtype, ref_row(h, token(h, t)), V);
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
        h->dq[ref_place(h, token(h, t)) * a->K + k] += a->scale * dq;
        h->dk[place * a->K + k] += dk;
    }
    for (int64_t j = 0; j < V; j++) {
        dbeta += du[j] * error[j];
        x[j] = beta * du[j];
    }
    for (int64_t k = 0; k < a->K; k++) {
        double dk = 0, drow = 0, alpha = alphas(h)[k];
        for (int64_t j = 0; j < V; j++) {
            h->dS[k * V + j] = alpha * (h->dS[k * V + j] - h->k[k] * x[j]);
            dk += before[k * V + j] * x[j];
            drow += before[k * V + j] * h->dS[k * V + j];
        }
        h->dk[place * a->K + k] -= alpha * dk;
        ref_put(a->dgk, ref_f(a), ref_row(h, t) * a->K + k, drow);
        dg += drow;
    }
    ref_put_row(a->dv, a->dtype, ref_row(h, t), V, x);
    ref_put(a->dbeta, ref_f(a), ref_row(h, t), dbeta);
    if (decays(h, t)) ref_put(a->dg, ref_f(a), ref_row(h, token(h, t)), dg);
}

static const ref_core core = { .state = state, .own = own, .load = load, .store = store, .step = step, .read = read, .back = back };
static size_t workspace(const void *args, bool backward, int threads) { return lnt_ref_workspace(&core, args, backward, threads); }
static void forward(const void *args, int threads) { lnt_ref_forward(&core, args, threads); }
static void backward(const void *args, int threads) { lnt_ref_backward(&core, args, threads); }

const lnt_recur_impl lnt_delta_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
