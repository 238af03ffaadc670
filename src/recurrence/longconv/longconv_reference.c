/* The truth of the long convolutions: every pair of a token and a lag, in float64. Equations: operators.md#longconv. */
#include <string.h>

#include "core/dtype.h"
#include "recurrence/longconv/longconv.h"
#include "recurrence/reference.h"

/* Row p of a sequence, of `cols` elements a row: a row of its state where p < 0, a zero where there is none. */
typedef struct {
    const void *rows, *past;
    lnt_dtype type;
    int64_t first, n, R, cols;
} inputs;

static double input(const inputs *x, int64_t p, int64_t i)
{
    if (p >= 0) return ref_get(x->rows, x->type, (x->first + p) * x->cols + i);
    return p >= -x->R ? ref_get(x->past, x->type, (x->n * x->R + x->R + p) * x->cols + i) : 0.0;
}

/* The state behind the sequence's len rows, element i; it may be where the initial one is. */
static void hand_on(const inputs *x, int64_t len, void *state, int64_t i)
{
    for (int64_t r = 0; state && r < x->R; r++) ref_put(state, x->type, (x->n * x->R + r) * x->cols + i, input(x, len - x->R + r, i));
}

/* A gradient of row p, which goes where the row came from. */
static void put_gradient(const inputs *x, void *rows, void *past, int64_t p, int64_t i, double value)
{
    if (p >= 0)
        ref_put(rows, x->type, (x->first + p) * x->cols + i, value);
    else
        ref_put(past, x->type, (x->n * x->R + x->R + p) * x->cols + i, value);
}

/* What the cotangent of the final state says of row p of a sequence of len rows. */
static double handed_back(const inputs *x, const void *state, int64_t len, int64_t p, int64_t i)
{
    const int64_t r = p - (len - x->R);
    return r >= 0 ? ref_get(state, x->type, (x->n * x->R + r) * x->cols + i) : 0.0;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- a filter a channel -------------------------------------------------------------------------------------------------------------------- */

static inputs channel_inputs(const lnt_longconv_args *a, int64_t n)
{
    return (inputs){ a->u, a->s0, a->dtype, a->cu_seqlens[n], n, a->R, a->D };
}

static void forward(const void *args, int threads)
{
    const lnt_longconv_args *a = args;
    const lnt_dtype f = lnt_longconv_small(a->dtype);
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < a->sequences * a->D; i++) {
        const int64_t n = i / a->D, d = i % a->D, len = a->cu_seqlens[n + 1] - a->cu_seqlens[n];
        const inputs x = channel_inputs(a, n);
        for (int64_t t = 0; t < len; t++) {
            double sum = ref_get(a->skip, f, d) * input(&x, t, d);
            for (int64_t l = 0; l < least(a->L, t + a->R + 1); l++) sum += ref_get(a->h, f, l * a->D + d) * input(&x, t - l, d);
            ref_put(a->o, a->dtype, (x.first + t) * a->D + d, sum);
        }
        hand_on(&x, len, a->sT, d);
    }
}

/* du_j = D do_j + sum_l h_l do_{j+l}, dh_l = sum_t do_t u_{t-l}, dD = sum_t do_t u_t. */
static void backward(const void *args, int threads)
{
    const lnt_longconv_args *a = args;
    const lnt_dtype f = lnt_longconv_small(a->dtype);
#pragma omp parallel for num_threads(threads)
    for (int64_t d = 0; d < a->D; d++) {
        const double skip = ref_get(a->skip, f, d);
        for (int64_t l = 0; a->dh && l < a->L; l++) {
            double sum = 0;
            for (int64_t n = 0; n < a->sequences; n++) {
                const inputs x = channel_inputs(a, n);
                for (int64_t t = 0; t < a->cu_seqlens[n + 1] - x.first; t++)
                    sum += ref_get(a->dout, a->dtype, (x.first + t) * a->D + d) * input(&x, t - l, d);
            }
            ref_put(a->dh, f, l * a->D + d, sum);
        }
        double dskip = 0;
        for (int64_t t = 0; t < a->tokens; t++) dskip += ref_get(a->dout, a->dtype, t * a->D + d) * ref_get(a->u, a->dtype, t * a->D + d);
        ref_put(a->dskip, f, d, dskip);
        for (int64_t n = 0; n < a->sequences; n++) {
            const inputs x = channel_inputs(a, n);
            const int64_t len = a->cu_seqlens[n + 1] - x.first;
            for (int64_t p = -a->R; p < len; p++) {
                double sum = handed_back(&x, a->dsT, len, p, d);
                if (p >= 0) sum += skip * ref_get(a->dout, a->dtype, (x.first + p) * a->D + d);
                for (int64_t t = p > 0 ? p : 0; t < least(len, p + a->L); t++)
                    sum += ref_get(a->h, f, (t - p) * a->D + d) * ref_get(a->dout, a->dtype, (x.first + t) * a->D + d);
                put_gradient(&x, a->du, a->ds0, p, d, sum);
            }
        }
    }
}

extern const lnt_recur_impl lnt_longconv_reference;
const lnt_recur_impl lnt_longconv_reference = { .name = "reference", .form = LINNET_FORM_RECURRENT, .forward = forward, .backward = backward };

/* ---- a filter a head ------------------------------------------------------------------------------------------------------------------------ */

static inputs head_inputs(const lnt_heads_conv_args *a, int64_t n, bool values)
{
    return (inputs){ values ? a->v : a->k, values ? a->v0 : a->k0, a->dtype, a->cu_seqlens[n], n, a->R, (int64_t)a->H * (values ? a->V : a->K) };
}

/* h_l, and D with lag 0. */
static double weight(const lnt_heads_conv_args *a, int64_t l, int64_t h)
{
    const lnt_dtype f = lnt_longconv_small(a->dtype);
    return ref_get(a->h, f, l * a->H + h) + (l == 0 ? ref_get(a->skip, f, h) : 0.0);
}

/* q_t.k_p, and do_t.v_p. */
static double score(const lnt_heads_conv_args *a, const inputs *k, int64_t t, int64_t p, int64_t h)
{
    double sum = 0;
    for (int64_t i = h * a->K; i < (h + 1) * a->K; i++) sum += ref_get(a->q, a->dtype, (k->first + t) * k->cols + i) * input(k, p, i);
    return sum;
}
static double answer(const lnt_heads_conv_args *a, const inputs *v, int64_t t, int64_t p, int64_t h)
{
    double sum = 0;
    for (int64_t i = h * a->V; i < (h + 1) * a->V; i++) sum += ref_get(a->dout, a->dtype, (v->first + t) * v->cols + i) * input(v, p, i);
    return sum;
}

static void heads_forward(const void *args, int threads)
{
    const lnt_heads_conv_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < a->sequences * a->H; i++) {
        const int64_t n = i / a->H, h = i % a->H, len = a->cu_seqlens[n + 1] - a->cu_seqlens[n];
        const inputs k = head_inputs(a, n, false), v = head_inputs(a, n, true);
        for (int64_t t = 0; t < len; t++) {
            double *w = (double *)a->workspace + i * a->L; /* this token's weights */
            const int64_t lags = least(a->L, t + a->R + 1);
            for (int64_t l = 0; l < lags; l++) w[l] = weight(a, l, h) * score(a, &k, t, t - l, h);
            for (int64_t j = h * a->V; j < (h + 1) * a->V; j++) {
                double sum = 0;
                for (int64_t l = 0; l < lags; l++) sum += w[l] * input(&v, t - l, j);
                ref_put(a->o, a->dtype, (v.first + t) * v.cols + j, sum);
            }
        }
        for (int64_t j = h * a->K; j < (h + 1) * a->K; j++) hand_on(&k, len, a->kT, j);
        for (int64_t j = h * a->V; j < (h + 1) * a->V; j++) hand_on(&v, len, a->vT, j);
    }
}

/* A thread's dk and dv over the rows of the state and the sequence behind it, dq of a token, and dw over all sequences. */
typedef struct {
    double *dk, *dv, *dq, *dw;
} sums;

static int64_t rows_of_sums(const lnt_heads_conv_args *a) { return a->R + a->longest; }
static int64_t size_of_sums(const lnt_heads_conv_args *a) { return rows_of_sums(a) * (a->K + a->V) + a->K + a->L; }
static sums carve(const lnt_heads_conv_args *a, double *p)
{
    sums d = { .dk = p, .dv = p + rows_of_sums(a) * a->K };
    d.dq = d.dv + rows_of_sums(a) * a->V;
    d.dw = d.dq + a->K;
    return d;
}

/* With s = q_t.k_p, c = do_t.v_p, w = h_{t-p}: dq_t += w c k_p, dk_p += w c q_t, dv_p += w s do_t, dw += s c. */
static void heads_backward_one(const lnt_heads_conv_args *a, int64_t n, int64_t h, sums d)
{
    const inputs k = head_inputs(a, n, false), v = head_inputs(a, n, true);
    const int64_t len = a->cu_seqlens[n + 1] - k.first, K = a->K, V = a->V, R = a->R;
    for (int64_t p = -R; p < len; p++) {
        for (int64_t i = 0; i < K; i++) d.dk[(R + p) * K + i] = handed_back(&k, a->dkT, len, p, h * K + i);
        for (int64_t j = 0; j < V; j++) d.dv[(R + p) * V + j] = handed_back(&v, a->dvT, len, p, h * V + j);
    }
    for (int64_t t = 0; t < len; t++) {
        const int64_t q = (k.first + t) * k.cols + h * K, out = (v.first + t) * v.cols + h * V;
        memset(d.dq, 0, (size_t)K * sizeof *d.dq);
        for (int64_t l = 0; l < least(a->L, t + R + 1); l++) {
            const int64_t p = t - l;
            const double s = score(a, &k, t, p, h), c = answer(a, &v, t, p, h), w = weight(a, l, h);
            d.dw[l] += s * c;
            for (int64_t i = 0; i < K; i++) {
                d.dq[i] += w * c * input(&k, p, h * K + i);
                d.dk[(R + p) * K + i] += w * c * ref_get(a->q, a->dtype, q + i);
            }
            for (int64_t j = 0; j < V; j++) d.dv[(R + p) * V + j] += w * s * ref_get(a->dout, a->dtype, out + j);
        }
        for (int64_t i = 0; i < K; i++) ref_put(a->dq, a->dtype, q + i, d.dq[i]);
    }
    for (int64_t p = -R; p < len; p++) {
        for (int64_t i = 0; i < K; i++) put_gradient(&k, a->dk, a->dk0, p, h * K + i, d.dk[(R + p) * K + i]);
        for (int64_t j = 0; j < V; j++) put_gradient(&v, a->dv, a->dv0, p, h * V + j, d.dv[(R + p) * V + j]);
    }
}

static void heads_backward(const void *args, int threads)
{
    const lnt_heads_conv_args *a = args;
    const lnt_dtype f = lnt_longconv_small(a->dtype);
#pragma omp parallel for num_threads(threads)
    for (int64_t h = 0; h < a->H; h++) {
        const sums d = carve(a, (double *)a->workspace + omp_get_thread_num() * size_of_sums(a));
        memset(d.dw, 0, (size_t)a->L * sizeof *d.dw);
        for (int64_t n = 0; n < a->sequences; n++) heads_backward_one(a, n, h, d);
        for (int64_t l = 0; l < a->L; l++) ref_put(a->dh, f, l * a->H + h, d.dw[l]);
        ref_put(a->dskip, f, h, d.dw[0]);
    }
}

static size_t heads_workspace(const void *args, bool back, int threads)
{
    const lnt_heads_conv_args *a = args;
    return (size_t)(back ? threads * size_of_sums(a) : a->sequences * a->H * a->L) * sizeof(double);
}

extern const lnt_recur_impl lnt_heads_conv_reference;
const lnt_recur_impl lnt_heads_conv_reference = { .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = heads_workspace,
                                                  .forward = heads_forward, .backward = heads_backward };
