/* The decay core in float64, token by token: the truth.
 *
 *   S_t = e^{g_t} S_{t-1} + k_t v_t^T          o_t = s S_t^T q_t                                   (operators.md 2)
 *
 * With `normalize` the state has one more value column, whose v is 1 (that column is z), and o_t = num / (den + eps). W = V or V+1 columns. */
#include "recurrence/reference.h"

typedef struct {
    const lnt_recur_args *a;
    int64_t n;   /* sequence */
    int h, W;    /* value head, columns of the state */
} head;

/* Scratch of a thread: states [K,W], rows [K] and [W], and dq, dk of one query-key head [len,K]. */
typedef struct {
    double *S, *dS, *starts, *inside, *q, *k, *v, *num, *dnum, *dq, *dk;
} scratch;

static size_t doubles(const lnt_recur_args *a, bool backward)
{
    size_t W = (size_t)a->V + (a->normalize != 0), K = (size_t)a->K, len = (size_t)ref_longest(a);
    size_t rows = 2 * K + 3 * W, state = K * W;
    return backward ? rows + state * (2 + REF_BLOCK + (len + REF_BLOCK - 1) / REF_BLOCK) + 2 * len * K : rows + state;
}

static scratch carve(const lnt_recur_args *a, double *p, bool backward)
{
    size_t W = (size_t)a->V + (a->normalize != 0), K = (size_t)a->K, len = (size_t)ref_longest(a);
    scratch w = { .q = p, .k = p + K, .v = p + 2 * K, .num = p + 2 * K + W, .dnum = p + 2 * K + 2 * W, .S = p + 2 * K + 3 * W };
    if (!backward) return w;
    w.dS = w.S + K * W;
    w.inside = w.dS + K * W;
    w.starts = w.inside + REF_BLOCK * K * W;
    w.dq = w.starts + (len + REF_BLOCK - 1) / REF_BLOCK * K * W;
    w.dk = w.dq + len * K;
    return w;
}

static size_t workspace(const lnt_recur_args *a, bool backward, int threads)
{
    return ((size_t)threads * doubles(a, backward) + (backward ? (size_t)a->sequences * (size_t)a->Hv : 0)) * sizeof(double);
}

static void load_state(head x, const void *s, const void *z, double *S)
{
    int64_t i = x.n * x.a->Hv + x.h;
    for (int64_t k = 0; k < x.a->K; k++) {
        for (int64_t j = 0; j < x.a->V; j++) S[k * x.W + j] = ref_get(s, ref_f(x.a), (i * x.a->K + k) * x.a->V + j);
        if (x.W > x.a->V) S[k * x.W + x.a->V] = ref_get(z, ref_f(x.a), i * x.a->K + k);
    }
}

static void store_state(head x, void *s, void *z, const double *S)
{
    int64_t i = x.n * x.a->Hv + x.h;
    for (int64_t k = 0; k < x.a->K; k++) {
        for (int64_t j = 0; j < x.a->V; j++) ref_put(s, ref_f(x.a), (i * x.a->K + k) * x.a->V + j, S[k * x.W + j]);
        if (x.W > x.a->V) ref_put(z, ref_f(x.a), i * x.a->K + k, S[k * x.W + x.a->V]);
    }
}

static double decay(head x, int64_t t)
{
    const lnt_recur_args *a = x.a;
    return exp(a->g ? ref_get(a->g, ref_f(a), t * a->Hv + x.h) : ref_get(a->g_head, ref_f(a), x.h));
}

static void load_token(head x, int64_t t, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t hq = (int64_t)x.h * a->Hq / a->Hv;
    ref_get_row(w->q, a->q, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->k, a->k, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->v, a->v, a->dtype, t * a->Hv + x.h, a->V);
    if (x.W > a->V) w->v[a->V] = 1.0;
}

/* S <- e^g S + k v^T */
static void step(head x, int64_t t, scratch *w)
{
    double alpha = decay(x, t);
    for (int64_t k = 0; k < x.a->K; k++)
        for (int64_t j = 0; j < x.W; j++) w->S[k * x.W + j] = alpha * w->S[k * x.W + j] + w->k[k] * w->v[j];
}

/* num = s S^T q, then num[0..V) becomes o and num[V] the denominator. */
static void read_out(head x, const double *S, scratch *w)
{
    for (int64_t j = 0; j < x.W; j++) {
        double sum = 0;
        for (int64_t k = 0; k < x.a->K; k++) sum += S[k * x.W + j] * w->q[k];
        w->num[j] = x.a->scale * sum;
    }
    if (x.W == x.a->V) return;
    w->num[x.a->V] += x.a->eps;
    for (int64_t j = 0; j < x.a->V; j++) w->num[j] /= w->num[x.a->V];
}

static void forward_head(head x, scratch *w)
{
    load_state(x, x.a->s0, x.a->z0, w->S);
    for (int64_t t = x.a->cu_seqlens[x.n]; t < x.a->cu_seqlens[x.n + 1]; t++) {
        load_token(x, t, w);
        step(x, t, w);
        read_out(x, w->S, w);
        ref_put_row(x.a->o, x.a->dtype, t * x.a->Hv + x.h, x.a->V, w->num);
    }
    store_state(x, x.a->sT, x.a->zT, w->S);
}

/* One token backward: S = S_t, before = S_{t-1}, dS = gradient of S_t, becomes that of S_{t-1}. Returns dg_t.
 *   dnum = do / den, dden = -(do . o) / den                    dq = s S dnum      dS += s q dnum^T
 *   dk = dS v, dv = dS^T k      dg = e^g <S_{t-1}, dS>         dS_{t-1} = e^g dS */
static double backward_token(head x, int64_t t, const double *S, const double *before, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t row = t - a->cu_seqlens[x.n];
    load_token(x, t, w);
    ref_get_row(w->dnum, a->do_, a->dtype, t * a->Hv + x.h, a->V);
    if (x.W > a->V) {
        read_out(x, S, w);
        double den = w->num[a->V], dot = 0;
        for (int64_t j = 0; j < a->V; j++) {
            dot += w->dnum[j] * w->num[j];
            w->dnum[j] /= den;
        }
        w->dnum[a->V] = -dot / den;
    }
    double alpha = decay(x, t), dg = 0;
    memset(w->num, 0, (size_t)x.W * sizeof *w->num); /* dv */
    for (int64_t k = 0; k < a->K; k++) {
        double dq = 0, dk = 0;
        for (int64_t j = 0; j < x.W; j++) {
            double *dS = &w->dS[k * x.W + j];
            dq += S[k * x.W + j] * w->dnum[j];
            *dS += a->scale * w->q[k] * w->dnum[j];
            dk += *dS * w->v[j];
            w->num[j] += *dS * w->k[k];
            dg += before[k * x.W + j] * *dS;
            *dS *= alpha;
        }
        w->dq[row * a->K + k] += a->scale * dq;
        w->dk[row * a->K + k] += dk;
    }
    ref_put_row(a->dv, a->dtype, t * a->Hv + x.h, a->V, w->num);
    return alpha * dg;
}

/* Returns the sum of dg over the sequence. */
static double backward_head(head x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t first = a->cu_seqlens[x.n], len = a->cu_seqlens[x.n + 1] - first;
    size_t state = (size_t)a->K * (size_t)x.W;
    load_state(x, a->s0, a->z0, w->S);
    for (int64_t i = 0; i < len; i++) {
        if (i % REF_BLOCK == 0) memcpy(w->starts + (size_t)(i / REF_BLOCK) * state, w->S, state * sizeof(double));
        load_token(x, first + i, w);
        step(x, first + i, w);
    }
    load_state(x, a->dsT, a->dzT, w->dS);
    double sum = 0;
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
            double dg = backward_token(x, first + i, S, i % REF_BLOCK ? S - state : start, w);
            ref_put(a->dg, ref_f(a), (first + i) * a->Hv + x.h, dg);
            sum += dg;
        }
    }
    store_state(x, a->ds0, a->dz0, w->dS);
    return sum;
}

static void forward(const lnt_recur_args *a, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hv; i++) {
        scratch w = carve(a, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a, false), false);
        forward_head((head){ a, i / a->Hv, (int)(i % a->Hv), a->V + (a->normalize != 0) }, &w);
    }
}

static void backward(const lnt_recur_args *a, int threads)
{
    double *sums = a->workspace, *scratches = sums + a->sequences * a->Hv; /* sums [N,Hv] */
    int group = a->Hv / a->Hq;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hq; i++) {
        scratch w = carve(a, scratches + (size_t)omp_get_thread_num() * doubles(a, true), true);
        int64_t n = i / a->Hq, hq = i % a->Hq, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        memset(w.dq, 0, (size_t)(len * a->K) * sizeof(double));
        memset(w.dk, 0, (size_t)(len * a->K) * sizeof(double));
        for (int64_t h = hq * group; h < (hq + 1) * group; h++)
            sums[n * a->Hv + h] = backward_head((head){ a, n, (int)h, a->V + (a->normalize != 0) }, &w);
        for (int64_t t = 0; t < len; t++) {
            ref_put_row(a->dq, a->dtype, (first + t) * a->Hq + hq, a->K, w.dq + t * a->K);
            ref_put_row(a->dk, a->dtype, (first + t) * a->Hq + hq, a->K, w.dk + t * a->K);
        }
    }
    for (int64_t h = 0; h < a->Hv; h++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += sums[n * a->Hv + h];
        ref_put(a->dg_head, ref_f(a), h, sum);
    }
}

const lnt_recur_impl lnt_decay_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
