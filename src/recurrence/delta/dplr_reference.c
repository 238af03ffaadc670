/* The untied delta rule in float64, token by token: the truth.
 *
 *   p_t = S_{t-1}^T a_t      S_t = diag(e^{gk_t}) S_{t-1} + b_t p_t^T + k_t v_t^T      o_t = s S_t^T q_t        (operators.md#untied)
 */
#include "recurrence/delta/delta.h"
#include "recurrence/reference.h"

static int64_t state(const lnt_recur_args *a) { return (int64_t)a->K * a->V; }

/* A token's own rows: p and one more [V], a and b and the decays alpha of S's rows [K]. */
typedef struct {
    double *p, *x, *a, *b, *alpha;
} rows;

static int64_t own(const lnt_recur_args *a, bool backward)
{
    (void)backward;
    return 2 * (int64_t)a->V + 3 * (int64_t)a->K;
}

static rows rows_of(const ref_head *x)
{
    const int64_t K = x->a->K, V = x->a->V;
    return (rows){ x->own, x->own + V, x->own + 2 * V, x->own + 2 * V + K, x->own + 2 * V + 2 * K };
}

static void load(const ref_head *x, bool gradient, double *S)
{
    ref_get_row(S, gradient ? x->a->dsT : x->a->s0, ref_f(x->a), ref_index(x), state(x->a));
}

static void store(const ref_head *x, bool gradient, const double *S)
{
    ref_put_row(gradient ? x->a->ds0 : x->a->sT, ref_f(x->a), ref_index(x), state(x->a), S);
}

/* a, b and alpha of token t, and p from the state before it. */
static rows load_rows(const ref_head *x, int64_t t, const double *before)
{
    const lnt_recur_args *a = x->a;
    const rows r = rows_of(x);
    ref_get_row(r.a, a->a, a->dtype, ref_row(x, t), a->K);
    ref_get_row(r.b, a->b, a->dtype, ref_row(x, t), a->K);
    ref_row_decays(x, t, r.alpha);
    memset(r.p, 0, (size_t)a->V * sizeof *r.p);
    for (int64_t k = 0; k < a->K; k++)
        for (int64_t j = 0; j < a->V; j++) r.p[j] += before[k * a->V + j] * r.a[k];
    return r;
}

static void step(const ref_head *x, int64_t t)
{
    const rows r = load_rows(x, t, x->S);
    const int64_t V = x->a->V;
    for (int64_t k = 0; k < x->a->K; k++)
        for (int64_t j = 0; j < V; j++) x->S[k * V + j] = r.alpha[k] * x->S[k * V + j] + r.b[k] * r.p[j] + x->k[k] * x->v[j];
}

static void read(const ref_head *x, int64_t t)
{
    const lnt_recur_args *a = x->a;
    double *o = rows_of(x).x;
    for (int64_t j = 0; j < a->V; j++) {
        double sum = 0;
        for (int64_t k = 0; k < a->K; k++) sum += x->S[k * a->V + j] * x->q[k];
        o[j] = a->scale * sum;
    }
    ref_put_row(a->o, a->dtype, ref_row(x, t), a->V, o);
}

/*   dq = s S do        dS += s q do^T       dk = dS v         dv = dS^T k        db = dS p        dp = dS^T b        da = S_{t-1} dp
 *   dgk = rowsum(alpha.S_{t-1} . dS)        dS_{t-1} = alpha.dS + a dp^T */
static void back(const ref_head *h, int64_t t, const double *S, const double *before)
{
    const lnt_recur_args *a = h->a;
    const rows r = load_rows(h, t, before);
    const int64_t place = ref_place(h, t), row = ref_row(h, t), V = a->V;
    double *dO = r.x, *v = h->v;
    ref_get_row(dO, a->do_, a->dtype, row, V);
    for (int64_t k = 0; k < a->K; k++) {
        double dq = 0, dk = 0, db = 0;
        for (int64_t j = 0; j < V; j++) {
            dq += S[k * V + j] * dO[j];
            h->dS[k * V + j] += a->scale * h->q[k] * dO[j];
            dk += h->dS[k * V + j] * v[j];
            db += h->dS[k * V + j] * r.p[j];
        }
        h->dq[place * a->K + k] += a->scale * dq;
        h->dk[place * a->K + k] += dk;
        ref_put(a->db, a->dtype, row * a->K + k, db);
    }
    double *dv = h->v, *dp = r.p; /* v and p are no longer needed */
    memset(dv, 0, (size_t)V * sizeof *dv);
    memset(dp, 0, (size_t)V * sizeof *dp);
    for (int64_t k = 0; k < a->K; k++)
        for (int64_t j = 0; j < V; j++) {
            dv[j] += h->dS[k * V + j] * h->k[k];
            dp[j] += h->dS[k * V + j] * r.b[k];
        }
    ref_put_row(a->dv, a->dtype, row, V, dv);
    for (int64_t k = 0; k < a->K; k++) {
        double da = 0, dgate = 0;
        for (int64_t j = 0; j < V; j++) {
            da += before[k * V + j] * dp[j];
            dgate += r.alpha[k] * before[k * V + j] * h->dS[k * V + j];
            h->dS[k * V + j] = r.alpha[k] * h->dS[k * V + j] + r.a[k] * dp[j];
        }
        ref_put(a->da, a->dtype, row * a->K + k, da);
        ref_put(a->dgk, ref_f(a), row * a->K + k, dgate);
    }
}

static const ref_core core = { .state = state, .own = own, .load = load, .store = store, .step = step, .read = read, .back = back };
static size_t workspace(const void *args, bool backward, int threads) { return lnt_ref_workspace(&core, args, backward, threads); }
static void forward(const void *args, int threads) { lnt_ref_forward(&core, args, threads); }
static void backward(const void *args, int threads) { lnt_ref_backward(&core, args, threads); }

const lnt_recur_impl lnt_dplr_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
