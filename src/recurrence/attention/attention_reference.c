/* Softmax attention in float64, one query row at a time: the truth.
 *
 *   o_i = sum_j P_ij v_j      P_ij = exp(s q_i.k_j - L_i)      L_i = log sum_j exp(s q_i.k_j)      j <= i + offset, i + offset - j < window
 *   dV = P^T dO      dP = dO V^T      dS = s P.(dP - rowsum(P.dP))      dQ = dS K      dK = dS^T Q                       (operators.md#attention)
 *
 * The backward pass makes P anew and does not trust the o and lse handed in. */
#include "recurrence/reference.h"

/* Scratch of a thread: q, do and dq rows, a row of P and of dP over all keys, and dk, dv of one key head. */
typedef struct {
    double *q, *dout, *x, *p, *dp, *dk, *dv;
} scratch;

static size_t doubles(const lnt_recur_args *a, bool backward)
{
    size_t rows = (size_t)(a->longest + a->offset), K = (size_t)a->K, V = (size_t)a->V, widest = K > V ? K : V;
    return K + V + widest + 2 * rows + (backward ? rows * (K + V) : 0);
}

static scratch carve(const lnt_recur_args *a, double *p)
{
    size_t rows = (size_t)(a->longest + a->offset), K = (size_t)a->K, V = (size_t)a->V, widest = K > V ? K : V;
    scratch w = { .q = p, .dout = p + K, .x = p + K + V, .p = p + K + V + widest };
    w.dp = w.p + rows;
    w.dk = w.dp + rows;
    w.dv = w.dk + rows * K;
    return w;
}

static size_t workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = args;
    return (size_t)threads * doubles(a, backward) * sizeof(double);
}

/* Row `first + i` of q, head h: w->q and P over the keys [*from, i + offset], in w->p. Returns L_i. */
static double probabilities(const lnt_recur_args *a, int64_t first, int64_t i, int h, scratch *w, int64_t *from)
{
    int64_t hk = (int64_t)h * a->Hk / a->Hq, last = i + a->offset;
    *from = a->window > 0 && last - a->window + 1 > 0 ? last - a->window + 1 : 0;
    ref_get_row(w->q, a->q, a->dtype, (first + i) * a->Hq + h, a->K);
    double max = -INFINITY, sum = 0;
    for (int64_t j = *from; j <= last; j++) {
        double dot = 0;
        for (int64_t x = 0; x < a->K; x++) dot += w->q[x] * ref_get(a->k, a->dtype, ((first + j) * a->Hk + hk) * a->K + x);
        w->p[j] = a->scale * dot;
        max = fmax(max, w->p[j]);
    }
    for (int64_t j = *from; j <= last; j++) sum += w->p[j] = exp(w->p[j] - max);
    for (int64_t j = *from; j <= last; j++) w->p[j] /= sum;
    return max + log(sum);
}

static void forward_row(const lnt_recur_args *a, int64_t first, int64_t i, int h, scratch *w)
{
    int64_t from, hk = (int64_t)h * a->Hk / a->Hq;
    double lse = probabilities(a, first, i, h, w, &from);
    memset(w->x, 0, (size_t)a->V * sizeof(double));
    for (int64_t j = from; j <= i + a->offset; j++)
        for (int64_t x = 0; x < a->V; x++) w->x[x] += w->p[j] * ref_get(a->v, a->dtype, ((first + j) * a->Hk + hk) * a->V + x);
    ref_put_row(a->o, a->dtype, (first + i) * a->Hq + h, a->V, w->x);
    ref_put(a->lse, ref_f(a), (first + i) * a->Hq + h, lse);
}

/* Adds to w->dk and w->dv [rows of the sequence, K and V]. */
static void backward_row(const lnt_recur_args *a, int64_t first, int64_t i, int h, scratch *w)
{
    int64_t from, hk = (int64_t)h * a->Hk / a->Hq;
    double delta = 0;
    probabilities(a, first, i, h, w, &from);
    ref_get_row(w->dout, a->do_, a->dtype, (first + i) * a->Hq + h, a->V);
    for (int64_t j = from; j <= i + a->offset; j++) {
        double dp = 0;
        for (int64_t x = 0; x < a->V; x++) {
            dp += w->dout[x] * ref_get(a->v, a->dtype, ((first + j) * a->Hk + hk) * a->V + x);
            w->dv[j * a->V + x] += w->p[j] * w->dout[x];
        }
        w->dp[j] = dp;
        delta += w->p[j] * dp;
    }
    memset(w->x, 0, (size_t)a->K * sizeof(double));
    for (int64_t j = from; j <= i + a->offset; j++) {
        double ds = a->scale * w->p[j] * (w->dp[j] - delta);
        for (int64_t x = 0; x < a->K; x++) {
            w->x[x] += ds * ref_get(a->k, a->dtype, ((first + j) * a->Hk + hk) * a->K + x);
            w->dk[j * a->K + x] += ds * w->q[x];
        }
    }
    ref_put_row(a->dq, a->dtype, (first + i) * a->Hq + h, a->K, w->x);
}

static void forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t p = 0; p < a->sequences * a->Hq; p++) {
        scratch w = carve(a, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a, false));
        int64_t n = p / a->Hq, first = a->cu_seqlens[n];
        for (int64_t i = 0; i < a->cu_seqlens[n + 1] - first; i++) forward_row(a, first, i, (int)(p % a->Hq), &w);
    }
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    int group = a->Hq / a->Hk;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t p = 0; p < a->sequences * a->Hk; p++) {
        scratch w = carve(a, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a, true));
        int64_t n = p / a->Hk, hk = p % a->Hk, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        int64_t rows = len + a->offset;
        memset(w.dk, 0, (size_t)(rows * a->K) * sizeof(double));
        memset(w.dv, 0, (size_t)(rows * a->V) * sizeof(double));
        for (int64_t h = hk * group; h < (hk + 1) * group; h++)
            for (int64_t i = 0; i < len; i++) backward_row(a, first, i, (int)h, &w);
        for (int64_t j = 0; j < rows; j++) {
            ref_put_row(a->dk, a->dtype, (first + j) * a->Hk + hk, a->K, w.dk + j * a->K);
            ref_put_row(a->dv, a->dtype, (first + j) * a->Hk + hk, a->V, w.dv + j * a->V);
        }
    }
}

const lnt_recur_impl lnt_attention_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
