/* The delta core in float64, token by token: the truth.
 *
 *   S~ = e^{g_t} S_{t-1}      u_t = beta_t (v_t - S~^T k_t)      S_t = S~ + k_t u_t^T      o_t = s S_t^T q_t          (operators.md 4) */
#include "recurrence/reference.h"

typedef struct {
    const lnt_recur_args *a;
    int64_t n; /* sequence */
    int h;     /* value head */
} head;

/* Scratch of a thread: states [K,V], rows [K] and [V], and dq, dk of one query-key head [len,K]. */
typedef struct {
    double *S, *dS, *starts, *inside, *q, *k, *v, *error, *x, *dq, *dk;
} scratch;

static size_t doubles(const lnt_recur_args *a, bool backward)
{
    size_t V = (size_t)a->V, K = (size_t)a->K, len = (size_t)ref_longest(a), rows = 2 * K + 3 * V, state = K * V;
    return backward ? rows + state * (2 + REF_BLOCK + (len + REF_BLOCK - 1) / REF_BLOCK) + 2 * len * K : rows + state;
}

static scratch carve(const lnt_recur_args *a, double *p, bool backward)
{
    size_t V = (size_t)a->V, K = (size_t)a->K, len = (size_t)ref_longest(a);
    scratch w = { .q = p, .k = p + K, .v = p + 2 * K, .error = p + 2 * K + V, .x = p + 2 * K + 2 * V, .S = p + 2 * K + 3 * V };
    if (!backward) return w;
    w.dS = w.S + K * V;
    w.inside = w.dS + K * V;
    w.starts = w.inside + REF_BLOCK * K * V;
    w.dq = w.starts + (len + REF_BLOCK - 1) / REF_BLOCK * K * V;
    w.dk = w.dq + len * K;
    return w;
}

static size_t workspace(const lnt_recur_args *a, bool backward, int threads)
{
    return (size_t)threads * doubles(a, backward) * sizeof(double);
}

static double decay(head x, int64_t t) { return exp(ref_get(x.a->g, ref_f(x.a), t * x.a->Hv + x.h)); }
static double strength(head x, int64_t t) { return ref_get(x.a->beta, ref_f(x.a), t * x.a->Hv + x.h); }

static void load_token(head x, int64_t t, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t hq = (int64_t)x.h * a->Hq / a->Hv;
    ref_get_row(w->q, a->q, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->k, a->k, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->v, a->v, a->dtype, t * a->Hv + x.h, a->V);
}

/* error = v - e^g S^T k */
static void predict(head x, double alpha, const double *S, scratch *w)
{
    for (int64_t j = 0; j < x.a->V; j++) {
        double sum = 0;
        for (int64_t k = 0; k < x.a->K; k++) sum += S[k * x.a->V + j] * w->k[k];
        w->error[j] = w->v[j] - alpha * sum;
    }
}

/* S <- e^g S + k beta error^T */
static void step(head x, int64_t t, scratch *w)
{
    double alpha = decay(x, t), beta = strength(x, t);
    predict(x, alpha, w->S, w);
    for (int64_t k = 0; k < x.a->K; k++)
        for (int64_t j = 0; j < x.a->V; j++) w->S[k * x.a->V + j] = alpha * w->S[k * x.a->V + j] + w->k[k] * beta * w->error[j];
}

static void forward_head(head x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t state = (x.n * a->Hv + x.h);
    ref_get_row(w->S, a->s0, ref_f(a), state, (int64_t)a->K * a->V);
    for (int64_t t = a->cu_seqlens[x.n]; t < a->cu_seqlens[x.n + 1]; t++) {
        load_token(x, t, w);
        step(x, t, w);
        for (int64_t j = 0; j < a->V; j++) {
            double sum = 0;
            for (int64_t k = 0; k < a->K; k++) sum += w->S[k * a->V + j] * w->q[k];
            w->x[j] = a->scale * sum;
        }
        ref_put_row(a->o, a->dtype, t * a->Hv + x.h, a->V, w->x);
    }
    ref_put_row(a->sT, ref_f(a), state, (int64_t)a->K * a->V, w->S);
}

/* One token backward: S = S_t, before = S_{t-1}, dS = gradient of S_t, becomes that of S_{t-1}.
 *   dq = s S do          dS += s q do^T          du = dS^T k          dk = dS u
 *   dbeta = du . error   dv = beta du            dS~ = dS - k dv^T    dk -= e^g S_{t-1} dv
 *   dg = e^g <S_{t-1}, dS~>                      dS_{t-1} = e^g dS~ */
static void backward_token(head x, int64_t t, const double *S, const double *before, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t row = t - a->cu_seqlens[x.n], V = a->V;
    double alpha = decay(x, t), beta = strength(x, t), dbeta = 0, dg = 0;
    load_token(x, t, w);
    predict(x, alpha, before, w);
    ref_get_row(w->x, a->do_, a->dtype, t * a->Hv + x.h, V);
    double *du = w->v; /* v itself is no longer needed */
    memset(du, 0, (size_t)V * sizeof *du);
    for (int64_t k = 0; k < a->K; k++) {
        double dq = 0, dk = 0;
        for (int64_t j = 0; j < V; j++) {
            dq += S[k * V + j] * w->x[j];
            w->dS[k * V + j] += a->scale * w->q[k] * w->x[j];
            du[j] += w->k[k] * w->dS[k * V + j];
            dk += w->dS[k * V + j] * beta * w->error[j];
        }
        w->dq[row * a->K + k] += a->scale * dq;
        w->dk[row * a->K + k] += dk;
    }
    for (int64_t j = 0; j < V; j++) {
        dbeta += du[j] * w->error[j];
        w->x[j] = beta * du[j];
    }
    for (int64_t k = 0; k < a->K; k++) {
        double dk = 0;
        for (int64_t j = 0; j < V; j++) {
            w->dS[k * V + j] -= w->k[k] * w->x[j];
            dk += before[k * V + j] * w->x[j];
            dg += before[k * V + j] * w->dS[k * V + j];
            w->dS[k * V + j] *= alpha;
        }
        w->dk[row * a->K + k] -= alpha * dk;
    }
    ref_put_row(a->dv, a->dtype, t * a->Hv + x.h, V, w->x);
    ref_put(a->dbeta, ref_f(a), t * a->Hv + x.h, dbeta);
    ref_put(a->dg, ref_f(a), t * a->Hv + x.h, alpha * dg);
}

static void backward_head(head x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t first = a->cu_seqlens[x.n], len = a->cu_seqlens[x.n + 1] - first, index = x.n * a->Hv + x.h;
    size_t state = (size_t)a->K * (size_t)a->V;
    ref_get_row(w->S, a->s0, ref_f(a), index, (int64_t)state);
    for (int64_t i = 0; i < len; i++) {
        if (i % REF_BLOCK == 0) memcpy(w->starts + (size_t)(i / REF_BLOCK) * state, w->S, state * sizeof(double));
        load_token(x, first + i, w);
        step(x, first + i, w);
    }
    ref_get_row(w->dS, a->dsT, ref_f(a), index, (int64_t)state);
    for (int64_t b = (len + REF_BLOCK - 1) / REF_BLOCK - 1; b >= 0; b--) {
        int64_t end = (b + 1) * REF_BLOCK < len ? (b + 1) * REF_BLOCK : len;
        const double *start = w->starts + (size_t)b * state;
        memcpy(w->S, start, state * sizeof(double));
        for (int64_t i = b * REF_BLOCK; i < end; i++) {
            load_token(x, first + i, w);
            step(x, first + i, w);
            memcpy(w->inside + (size_t)(i % REF_BLOCK) * state, w->S, state * sizeof(double));
        }
        for (int64_t i = end - 1; i >= b * REF_BLOCK; i--) {
            const double *S = w->inside + (size_t)(i % REF_BLOCK) * state;
            backward_token(x, first + i, S, i % REF_BLOCK ? S - state : start, w);
        }
    }
    ref_put_row(a->ds0, ref_f(a), index, (int64_t)state, w->dS);
}

static void forward(const lnt_recur_args *a, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hv; i++) {
        scratch w = carve(a, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a, false), false);
        forward_head((head){ a, i / a->Hv, (int)(i % a->Hv) }, &w);
    }
}

static void backward(const lnt_recur_args *a, int threads)
{
    int group = a->Hv / a->Hq;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hq; i++) {
        scratch w = carve(a, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a, true), true);
        int64_t n = i / a->Hq, hq = i % a->Hq, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        memset(w.dq, 0, (size_t)(len * a->K) * sizeof(double));
        memset(w.dk, 0, (size_t)(len * a->K) * sizeof(double));
        for (int64_t h = hq * group; h < (hq + 1) * group; h++) backward_head((head){ a, n, (int)h }, &w);
        for (int64_t t = 0; t < len; t++) {
            ref_put_row(a->dq, a->dtype, (first + t) * a->Hq + hq, a->K, w.dq + t * a->K);
            ref_put_row(a->dk, a->dtype, (first + t) * a->Hq + hq, a->K, w.dk + t * a->K);
        }
    }
}

const lnt_recur_impl lnt_delta_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
