/* The operators of ops/ in float64, element by element, forward and backward: the truth that test_ops.c compares with.
 * Every function works on one `ref`; gradients are ADDED to d_in and d_param. */
#ifndef TESTS_REFERENCE_OPS_H
#define TESTS_REFERENCE_OPS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

typedef struct {
    int64_t T, heads;          /* heads of input 0 */
    int64_t in_cols[3], out_cols;
    bool row;                  /* the last input is one row for all */
    int64_t n_seq;
    const int64_t *cu, *position; /* position NULL: zeros */
    const int32_t *id;         /* embedding, loss */
    double *in[3], *param[2];
    double *state;             /* conv: [n_seq, size-1, cols], NULL: zeros */
    double *out, *d_out;       /* [T, out_cols] */
    double *d_in[3], *d_param[2];
    double *middle, *d_middle, *d_middle_all; /* pairs, [T, in_cols[0]]: the value between; the gradient others bring it (NULL: none); all of it */
    /* attributes */
    lnt_act act;
    double scale, offset, eps, base, cap, low, high;
    int64_t size, nu, vocab, rest;
} ref;

typedef void ref_function(ref *r);

static inline double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static inline double ref_softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }

static inline double ref_act(double x, lnt_act a)
{
    switch (a) {
    case LNT_SILU: return x * ref_sigmoid(x);
    case LNT_SIGMOID: return ref_sigmoid(x);
    case LNT_RELU: return x > 0 ? x : 0;
    case LNT_ELU1: return x > 0 ? x + 1 : exp(x);
    case LNT_LOG_SIGMOID: return -ref_softplus(-x);
    case LNT_TANH: return tanh(x);
    case LNT_GELU: return x * erfc(-x / sqrt(2)) / 2;
    case LNT_GELU_TANH: return x * ref_sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    case LNT_SQUARED_RELU: return x > 0 ? x * x : 0;
    case LNT_EXP: return exp(x);
    case LNT_SOFTPLUS: return ref_softplus(x);
    case LNT_ONE_MINUS_EXP: return -expm1(x);
    case LNT_SQRT: return sqrt(x);
    case LNT_RECIPROCAL: return 1 / x;
    case LNT_IDENTITY: break;
    }
    return x;
}

static inline double ref_slope(double x, lnt_act a)
{
    double s = ref_sigmoid(x), t = tanh(x);
    switch (a) {
    case LNT_SILU: return s * (1 + x * (1 - s));
    case LNT_SIGMOID: return s * (1 - s);
    case LNT_RELU: return x > 0;
    case LNT_ELU1: return x > 0 ? 1 : exp(x);
    case LNT_LOG_SIGMOID: return 1 - s;
    case LNT_TANH: return 1 - t * t;
    case LNT_GELU: return erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case LNT_GELU_TANH: {
        double c = 2 * sqrt(2 / M_PI), g = ref_sigmoid(c * (x + 0.044715 * x * x * x)), rest = g * (1 - g);
        return g + (rest > 0 ? x * rest * c * (1 + 3 * 0.044715 * x * x) : 0);
    }
    case LNT_SQUARED_RELU: return x > 0 ? 2 * x : 0;
    case LNT_EXP: return exp(x);
    case LNT_SOFTPLUS: return s;
    case LNT_ONE_MINUS_EXP: return -exp(x);
    case LNT_SQRT: return 0.5 / sqrt(x);
    case LNT_RECIPROCAL: return -1 / (x * x);
    case LNT_IDENTITY: break;
    }
    return 1;
}

/* ---- linear: in_cols[0] split in `heads` when param 0 is smaller --------------------------------------------------------------------- */

static void ref_linear(ref *r, int64_t heads, int backward)
{
    int64_t in = r->in_cols[0] / heads, out = r->out_cols / heads;
    for (int64_t t = 0; t < r->T * heads; t++)
        for (int64_t o = 0; o < out; o++) {
            double s = r->param[1] ? r->param[1][o] : 0, d = r->d_out ? r->d_out[t * out + o] : 0;
            for (int64_t i = 0; i < in; i++) {
                s += r->in[0][t * in + i] * r->param[0][o * in + i];
                if (backward) {
                    r->d_in[0][t * in + i] += d * r->param[0][o * in + i];
                    r->d_param[0][o * in + i] += d * r->in[0][t * in + i];
                }
            }
            if (!backward) r->out[t * out + o] = s;
            if (backward && r->param[1]) r->d_param[1][o] += d;
        }
}
static void ref_linear_forward(ref *r) { ref_linear(r, 1, 0); }
static void ref_linear_backward(ref *r) { ref_linear(r, 1, 1); }
static void ref_head_linear_forward(ref *r) { ref_linear(r, r->heads, 0); }
static void ref_head_linear_backward(ref *r) { ref_linear(r, r->heads, 1); }

/* A map for each head, side by side in param 0 [out, heads*in]. */
static void ref_group_linear(ref *r, int backward)
{
    const int64_t all = r->in_cols[0], in = all / r->heads, out = r->out_cols / r->heads;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t o = 0; o < r->out_cols; o++) {
            const int64_t x = t * all + o / out * in, w = o % out * all + o / out * in, y = t * r->out_cols + o;
            if (!backward) r->out[y] = r->param[1] ? r->param[1][o] : 0;
            if (backward && r->param[1]) r->d_param[1][o] += r->d_out[y];
            for (int64_t i = 0; i < in; i++) {
                if (!backward) {
                    r->out[y] += r->in[0][x + i] * r->param[0][w + i];
                    continue;
                }
                r->d_in[0][x + i] += r->d_out[y] * r->param[0][w + i];
                r->d_param[0][w + i] += r->d_out[y] * r->in[0][x + i];
            }
        }
}
static void ref_group_linear_forward(ref *r) { ref_group_linear(r, 0); }
static void ref_group_linear_backward(ref *r) { ref_group_linear(r, 1); }

static void ref_embedding_forward(ref *r)
{
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t i = 0; i < r->out_cols; i++) r->out[t * r->out_cols + i] = r->scale * r->param[0][r->id[t] * r->out_cols + i];
}
static void ref_embedding_backward(ref *r)
{
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t i = 0; i < r->out_cols; i++) r->d_param[0][r->id[t] * r->out_cols + i] += r->scale * r->d_out[t * r->out_cols + i];
}

/* ---- norms: y = x r w act(gate) --------------------------------------------------------------------------------------------------------- */

typedef enum { REF_RMS, REF_L2, REF_SUM } ref_norm_kind;

static void ref_norm(ref *r, ref_norm_kind kind, int backward)
{
    int64_t d = r->in_cols[0] / r->heads;
    for (int64_t i = 0; i < r->T * r->heads; i++) {
        const double *x = r->in[0] + i * d, *gate = r->in[1] ? r->in[1] + i * d : NULL, *dy = backward ? r->d_out + i * d : NULL;
        double s = 0, ux = 0;
        for (int64_t j = 0; j < d; j++) s += kind == REF_SUM ? x[j] : x[j] * x[j];
        double n = kind == REF_SUM ? 1 / (s + r->eps) : 1 / sqrt((kind == REF_RMS ? s / (double)d : s) + r->eps);
        for (int64_t j = 0; j < d; j++) {
            double w = r->param[0] ? r->offset + r->param[0][j] : 1, a = gate ? ref_act(gate[j], r->act) : 1;
            if (!backward) {
                r->out[i * d + j] = x[j] * n * w * a;
                continue;
            }
            ux += dy[j] * w * a * x[j];
            if (r->param[0]) r->d_param[0][j] += dy[j] * a * x[j] * n;
            if (gate) r->d_in[1][i * d + j] += dy[j] * x[j] * n * w * ref_slope(gate[j], r->act);
        }
        for (int64_t j = 0; backward && j < d; j++) {
            double w = r->param[0] ? r->offset + r->param[0][j] : 1, a = gate ? ref_act(gate[j], r->act) : 1, u = dy[j] * w * a;
            /* dn/dx_j: -n^3 x_j / d, -n^3 x_j, -n^2 */
            double dn = kind == REF_SUM ? -n * n : -n * n * n * x[j] / (kind == REF_RMS ? (double)d : 1);
            r->d_in[0][i * d + j] += u * n + ux * dn;
        }
    }
}
static void ref_rmsnorm_forward(ref *r) { ref_norm(r, REF_RMS, 0); }
static void ref_rmsnorm_backward(ref *r) { ref_norm(r, REF_RMS, 1); }
static void ref_l2norm_forward(ref *r) { ref_norm(r, REF_L2, 0); }
static void ref_l2norm_backward(ref *r) { ref_norm(r, REF_L2, 1); }
static void ref_sumnorm_forward(ref *r) { ref_norm(r, REF_SUM, 0); }
static void ref_sumnorm_backward(ref *r) { ref_norm(r, REF_SUM, 1); }

/* A sum and the norm of it, both of which are read. */
static void ref_sum_norm(ref *r, int backward)
{
    ref norm = *r;
    const int64_t n = r->T * r->in_cols[0];
    norm.in[0] = r->middle, norm.in[1] = NULL, norm.d_in[0] = r->d_middle_all;
    for (int64_t i = 0; i < n && !backward; i++) r->middle[i] = r->in[0][i] + r->in[1][i];
    for (int64_t i = 0; i < n && backward; i++) r->d_middle_all[i] = r->d_middle ? r->d_middle[i] : 0;
    ref_norm(&norm, REF_RMS, backward);
    for (int64_t i = 0; i < n && backward; i++) r->d_in[0][i] += r->d_middle_all[i], r->d_in[1][i] += r->d_middle_all[i];
}
static void ref_sum_norm_forward(ref *r) { ref_sum_norm(r, 0); }
static void ref_sum_norm_backward(ref *r) { ref_sum_norm(r, 1); }

static void ref_layernorm(ref *r, int backward)
{
    const int64_t d = r->in_cols[0] / r->heads;
    for (int64_t i = 0; i < r->T * r->heads; i++) {
        const double *x = r->in[0] + i * d, *dy = backward ? r->d_out + i * d : NULL;
        const int64_t c = i % r->heads * d;
        double mean = 0, var = 0, su = 0, sz = 0;
        for (int64_t j = 0; j < d; j++) mean += x[j] / (double)d;
        for (int64_t j = 0; j < d; j++) var += (x[j] - mean) * (x[j] - mean) / (double)d;
        const double n = 1 / sqrt(var + r->eps);
        for (int64_t j = 0; j < d; j++) {
            const double z = (x[j] - mean) * n, w = r->param[0] ? r->param[0][c + j] : 1;
            if (!backward) {
                r->out[i * d + j] = z * w + (r->param[1] ? r->param[1][c + j] : 0);
                continue;
            }
            su += dy[j] * w / (double)d, sz += dy[j] * w * z / (double)d;
            if (r->param[0]) r->d_param[0][c + j] += dy[j] * z;
            if (r->param[1]) r->d_param[1][c + j] += dy[j];
        }
        for (int64_t j = 0; backward && j < d; j++)
            r->d_in[0][i * d + j] += n * (dy[j] * (r->param[0] ? r->param[0][c + j] : 1) - su - (x[j] - mean) * n * sz);
    }
}
static void ref_layernorm_forward(ref *r) { ref_layernorm(r, 0); }
static void ref_layernorm_backward(ref *r) { ref_layernorm(r, 1); }

/* ---- token shift, rows from the last, lerp ----------------------------------------------------------------------------------------------- */

static void ref_shift(ref *r, int backward)
{
    const int64_t C = r->in_cols[0];
    for (int64_t n = 0; n < r->n_seq; n++)
        for (int64_t t = r->cu[n]; t < r->cu[n + 1]; t++)
            for (int64_t c = 0; c < C; c++) {
                if (!backward)
                    r->out[t * C + c] = t > r->cu[n] ? r->in[0][(t - 1) * C + c] : r->state ? r->state[n * C + c] : 0;
                else if (t > r->cu[n])
                    r->d_in[0][(t - 1) * C + c] += r->d_out[t * C + c];
            }
}
static void ref_shift_forward(ref *r) { ref_shift(r, 0); }
static void ref_shift_backward(ref *r) { ref_shift(r, 1); }

static void ref_last(ref *r, int backward)
{
    const int64_t C = r->in_cols[0], half = C / 2;
    for (int64_t n = 0; n < r->n_seq; n++)
        for (int64_t t = r->cu[n], last = r->cu[n + 1] - 1; t <= last; t++)
            for (int64_t c = 0; c < C; c++) {
                const double i = (double)(c < half ? c : c - half), turn = half > 1 ? pow(10000, -i / (double)(half - 1)) : 1;
                const double angle = (double)(t - r->cu[n]) * turn;
                const double wave = c < half ? sin(angle) : c < 2 * half ? cos(angle) : 0;
                if (!backward) r->out[t * C + c] = r->in[0][last * C + c] + wave;
                else r->d_in[0][last * C + c] += r->d_out[t * C + c];
            }
}
static void ref_last_forward(ref *r) { ref_last(r, 0); }
static void ref_last_backward(ref *r) { ref_last(r, 1); }

static void ref_lerp(ref *r, int backward)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        const int64_t at = r->row ? i % r->out_cols : i, x = i / r->out_cols * r->in_cols[0] + i % r->in_cols[0];
        const double a = r->in[0][x], b = r->in[1][x], m = r->in[2][at];
        if (!backward) {
            r->out[i] = a + (b - a) * m;
            continue;
        }
        r->d_in[0][x] += r->d_out[i] * (1 - m);
        r->d_in[1][x] += r->d_out[i] * m;
        r->d_in[2][at] += r->d_out[i] * (b - a);
    }
}
static void ref_lerp_forward(ref *r) { ref_lerp(r, 0); }
static void ref_lerp_backward(ref *r) { ref_lerp(r, 1); }

/* a + m, m one row for all. */
static void ref_added(ref *r, int backward)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        const int64_t at = i % r->out_cols;
        if (!backward) r->out[i] = r->in[0][i] + r->in[2][at];
        else r->d_in[0][i] += r->d_out[i], r->d_in[2][at] += r->d_out[i];
    }
}
static void ref_added_forward(ref *r) { ref_added(r, 0); }
static void ref_added_backward(ref *r) { ref_added(r, 1); }

/* ---- short convolution -------------------------------------------------------------------------------------------------------------------- */

static void ref_conv(ref *r, int backward)
{
    int64_t C = r->in_cols[0], W = r->size;
    for (int64_t n = 0; n < r->n_seq; n++)
        for (int64_t t = r->cu[n]; t < r->cu[n + 1]; t++)
            for (int64_t c = 0; c < C; c++) {
                double z = r->param[1] ? r->param[1][c] : 0;
                for (int64_t j = 0; j < W; j++) {
                    int64_t from = t - W + 1 + j, old = from - r->cu[n] + W - 1;
                    if (from >= r->cu[n])
                        z += r->param[0][c * W + j] * r->in[0][from * C + c];
                    else if (r->state)
                        z += r->param[0][c * W + j] * r->state[(n * (W - 1) + old) * C + c];
                }
                if (!backward) {
                    r->out[t * C + c] = ref_act(z, r->act);
                    continue;
                }
                double d = r->d_out[t * C + c] * ref_slope(z, r->act);
                if (r->param[1]) r->d_param[1][c] += d;
                for (int64_t j = 0; j < W; j++) {
                    int64_t from = t - W + 1 + j;
                    if (from < r->cu[n]) continue;
                    r->d_in[0][from * C + c] += d * r->param[0][c * W + j];
                    r->d_param[0][c * W + j] += d * r->in[0][from * C + c];
                }
            }
}
static void ref_conv_forward(ref *r) { ref_conv(r, 0); }
static void ref_conv_backward(ref *r) { ref_conv(r, 1); }

/* A convolution and the L2 norm of its heads. */
static void ref_conv_norm(ref *r, int backward)
{
    ref conv = *r, norm = *r;
    norm.in[0] = r->middle, norm.param[0] = NULL, norm.d_in[0] = conv.d_out = r->d_middle_all;
    conv.out = r->middle;
    if (!backward) ref_conv(&conv, 0);
    for (int64_t i = 0; i < r->T * r->in_cols[0] && backward; i++) r->d_middle_all[i] = 0;
    ref_norm(&norm, REF_L2, backward);
    if (backward) ref_conv(&conv, 1);
}
static void ref_conv_norm_forward(ref *r) { ref_conv_norm(r, 0); }
static void ref_conv_norm_backward(ref *r) { ref_conv_norm(r, 1); }

/* ---- element by element ------------------------------------------------------------------------------------------------------------------- */

static void ref_activation_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->out[i] = r->scale * ref_act(r->in[0][i], r->act) + r->offset;
}
static void ref_activation_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->d_in[0][i] += r->scale * r->d_out[i] * ref_slope(r->in[0][i], r->act);
}

static void ref_add_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->out[i] = r->in[0][i] + r->in[1][i];
}
static void ref_add_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->d_in[0][i] += r->d_out[i], r->d_in[1][i] += r->d_out[i];
}

/* b's element that meets element i of a. */
static int64_t ref_partner(const ref *r, int64_t i)
{
    int64_t d = r->in_cols[0] / r->in_cols[1]; /* 1, or the head's columns */
    return i / d;
}
static void ref_mul_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->out[i] = r->in[0][i] * r->in[1][ref_partner(r, i)];
}
static void ref_mul_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        r->d_in[0][i] += r->d_out[i] * r->in[1][ref_partner(r, i)];
        r->d_in[1][ref_partner(r, i)] += r->d_out[i] * r->in[0][i];
    }
}

static void ref_glu_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->out[i] = ref_act(r->in[0][i], r->act) * r->in[1][i];
}
static void ref_glu_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        r->d_in[0][i] += r->d_out[i] * r->in[1][i] * ref_slope(r->in[0][i], r->act);
        r->d_in[1][i] += r->d_out[i] * ref_act(r->in[0][i], r->act);
    }
}

static void ref_clamp_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->out[i] = fmin(fmax(r->in[0][i], r->low), r->high);
}
static void ref_clamp_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->d_in[0][i] += r->in[0][i] < r->low || r->in[0][i] > r->high ? 0 : r->d_out[i];
}

static void ref_head_dot(ref *r, int backward)
{
    const int64_t d = r->in_cols[0] / r->heads;
    for (int64_t i = 0; i < r->T * r->in_cols[0]; i++) {
        if (!backward)
            r->out[i / d] = (i % d ? r->out[i / d] : 0) + r->in[0][i] * r->in[1][i];
        else
            r->d_in[0][i] += r->d_out[i / d] * r->in[1][i], r->d_in[1][i] += r->d_out[i / d] * r->in[0][i];
    }
}
static void ref_head_dot_forward(ref *r) { ref_head_dot(r, 0); }
static void ref_head_dot_backward(ref *r) { ref_head_dot(r, 1); }

static void ref_decay_gate_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        int64_t c = i % r->out_cols;
        r->out[i] = -exp(r->param[0][c]) * ref_softplus(r->in[0][i] + r->param[1][c]);
    }
}
static void ref_decay_gate_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        int64_t c = i % r->out_cols;
        double z = r->in[0][i] + r->param[1][c], e = -exp(r->param[0][c]) * r->d_out[i];
        r->d_in[0][i] += e * ref_sigmoid(z);
        r->d_param[1][c] += e * ref_sigmoid(z);
        r->d_param[0][c] += e * ref_softplus(z);
    }
}

/* size: columns that share an A_log; low < 0: the lower bound. */
static void ref_vector_gate(ref *r, int backward)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        const int64_t c = i % r->out_cols, h = c / r->size;
        const double e = exp(r->param[0][h]), z = r->in[0][i] + r->param[1][c], s = ref_sigmoid(r->low < 0 ? e * z : z);
        if (!backward) {
            r->out[i] = r->low < 0 ? r->low * s : -e * ref_softplus(z);
            continue;
        }
        const double dx = r->d_out[i] * (r->low < 0 ? r->low * s * (1 - s) * e : -e * s);
        r->d_in[0][i] += dx;
        r->d_param[1][c] += dx;
        r->d_param[0][h] += r->low < 0 ? dx * z : -e * ref_softplus(z) * r->d_out[i];
    }
}
static void ref_vector_gate_forward(ref *r) { ref_vector_gate(r, 0); }
static void ref_vector_gate_backward(ref *r) { ref_vector_gate(r, 1); }

static void ref_bounded(ref *r, int backward)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        const double b = r->in[1][i % r->out_cols], s = ref_sigmoid(r->in[0][i]), f = b + (1 - b) * s;
        if (!backward) {
            r->out[i] = log(f);
            continue;
        }
        r->d_in[0][i] += r->d_out[i] * (1 - b) * s * (1 - s) / f;
        r->d_in[1][i % r->out_cols] += r->d_out[i] * (1 - s) / f;
    }
}
static void ref_bounded_forward(ref *r) { ref_bounded(r, 0); }
static void ref_bounded_backward(ref *r) { ref_bounded(r, 1); }

/* b_l = s_1 + .. + s_l: of ds_j, j > 0, every db_l with l >= j. */
static void ref_bounds(ref *r, int backward)
{
    const int64_t L = r->heads, C = r->in_cols[0] / L;
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, b = 0;
        for (int64_t l = 0; l < L; l++) sum += exp(r->in[0][l * C + c]);
        for (int64_t l = 0; l < L; l++) {
            const double s = exp(r->in[0][l * C + c]) / sum;
            if (!backward) {
                r->out[l * C + c] = b += l ? s : 0;
                continue;
            }
            for (int64_t j = 1; j < L; j++) {
                double ds = 0;
                for (int64_t m = j; m < L; m++) ds += r->d_out[m * C + c];
                r->d_in[0][l * C + c] += ds * exp(r->in[0][j * C + c]) / sum * ((l == j) - s);
            }
        }
    }
}
static void ref_bounds_forward(ref *r) { ref_bounds(r, 0); }
static void ref_bounds_backward(ref *r) { ref_bounds(r, 1); }

static void ref_gamma_cap_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) r->out[i] = r->in[0][i] + log(1 - (1 - r->cap) * r->in[1][i] * r->in[1][i]);
}
static void ref_gamma_cap_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->out_cols; i++) {
        double b = r->in[1][i], e = 1 - r->cap;
        r->d_in[0][i] += r->d_out[i];
        r->d_in[1][i] += r->d_out[i] * -2 * e * b / (1 - e * b * b);
    }
}

/* ---- rotary -------------------------------------------------------------------------------------------------------------------------------- */

/* With `rest` columns of a head that stay, the others times `scale`, and above the first pair slower angles: theta_i / (1 + i). */
static void ref_rotary(ref *r, int backward)
{
    const int64_t C = r->in_cols[0], all = C / r->heads, d = all - r->rest, half = d / 2;
    const double scale = r->rest ? r->scale : 1;
    for (int64_t n = 0; n < r->n_seq; n++)
        for (int64_t t = r->cu[n]; t < r->cu[n + 1]; t++)
            for (int64_t h = 0; h < r->heads; h++) {
                for (int64_t i = 0; i < half; i++) {
                    const int64_t at = t - r->cu[n] + (r->position ? r->position[n] : 0);
                    double pos = (double)(r->size ? at % r->size : at),
                           angle = pos * pow(r->base, -2.0 * (double)i / (double)d) / (r->rest ? (double)(1 + i) : 1);
                    double c = scale * cos(angle), s = scale * sin(angle);
                    int64_t a = t * C + h * all + i, b = a + half;
                    if (!backward) {
                        r->out[a] = r->in[0][a] * c - r->in[0][b] * s;
                        r->out[b] = r->in[0][a] * s + r->in[0][b] * c;
                    } else {
                        r->d_in[0][a] += r->d_out[a] * c + r->d_out[b] * s;
                        r->d_in[0][b] += r->d_out[b] * c - r->d_out[a] * s;
                    }
                }
                for (int64_t at = t * C + h * all + d; at < t * C + (h + 1) * all; at++)
                    if (!backward) r->out[at] = r->in[0][at];
                    else r->d_in[0][at] += r->d_out[at];
            }
}
static void ref_rotary_forward(ref *r) { ref_rotary(r, 0); }
static void ref_rotary_backward(ref *r) { ref_rotary(r, 1); }

/* ---- feature maps -------------------------------------------------------------------------------------------------------------------------- */

static void ref_softmax(ref *r, int backward)
{
    const int64_t d = r->in_cols[0] / r->heads;
    for (int64_t i = 0; i < r->T * r->heads; i++) {
        double sum = 0, mean = 0;
        for (int64_t j = 0; j < d; j++) sum += exp(r->in[0][i * d + j]);
        for (int64_t j = 0; j < d; j++) {
            if (!backward) r->out[i * d + j] = exp(r->in[0][i * d + j]) / sum;
            else mean += exp(r->in[0][i * d + j]) / sum * r->d_out[i * d + j];
        }
        for (int64_t j = 0; backward && j < d; j++) r->d_in[0][i * d + j] += exp(r->in[0][i * d + j]) / sum * (r->d_out[i * d + j] - mean);
    }
}
static void ref_softmax_forward(ref *r) { ref_softmax(r, 0); }
static void ref_softmax_backward(ref *r) { ref_softmax(r, 1); }

static void ref_hedgehog(ref *r, int backward)
{
    int64_t d = r->in_cols[0] / r->heads;
    for (int64_t i = 0; i < r->T * r->heads; i++) {
        const double *x = r->in[0] + i * d;
        double sum = 0, mean = 0;
        for (int64_t j = 0; j < d; j++) sum += exp(x[j]) + exp(-x[j]);
        for (int64_t j = 0; j < d; j++) {
            double plus = exp(x[j]) / sum, minus = exp(-x[j]) / sum;
            if (!backward)
                r->out[2 * i * d + j] = plus, r->out[2 * i * d + d + j] = minus;
            else
                mean += plus * r->d_out[2 * i * d + j] + minus * r->d_out[2 * i * d + d + j];
        }
        for (int64_t j = 0; backward && j < d; j++)
            r->d_in[0][i * d + j] += exp(x[j]) / sum * (r->d_out[2 * i * d + j] - mean) - exp(-x[j]) / sum * (r->d_out[2 * i * d + d + j] - mean);
    }
}
static void ref_hedgehog_forward(ref *r) { ref_hedgehog(r, 0); }
static void ref_hedgehog_backward(ref *r) { ref_hedgehog(r, 1); }

/* u = [relu(x), -relu(x)], element i. */
static double ref_dpfp_u(const double *x, int64_t d, int64_t i)
{
    double v = x[i % d] > 0 ? x[i % d] : 0;
    return i < d ? v : -v;
}
static void ref_dpfp(ref *r, int backward)
{
    int64_t d = r->in_cols[0] / r->heads, D = 2 * d;
    for (int64_t i = 0; i < r->T * r->heads; i++)
        for (int64_t j = 1; j <= r->nu; j++)
            for (int64_t l = 0; l < D; l++) {
                const double *x = r->in[0] + i * d;
                int64_t from = ((l - j) % D + D) % D, at = (i * r->nu + j - 1) * D + l;
                double a = ref_dpfp_u(x, d, l), b = ref_dpfp_u(x, d, from);
                if (!backward) {
                    r->out[at] = a * b;
                    continue;
                }
                if (x[l % d] > 0) r->d_in[0][i * d + l % d] += r->d_out[at] * b * (l < d ? 1 : -1);
                if (x[from % d] > 0) r->d_in[0][i * d + from % d] += r->d_out[at] * a * (from < d ? 1 : -1);
            }
}
static void ref_dpfp_forward(ref *r) { ref_dpfp(r, 0); }
static void ref_dpfp_backward(ref *r) { ref_dpfp(r, 1); }

/* one = eps, linear = scale, square = cap of the case. */
static void ref_quadratic(ref *r, int backward)
{
    const int64_t d = r->in_cols[0] / r->heads, front = (r->eps != 0) + (r->scale != 0 ? d : 0), cols = front + d * (d + 1) / 2;
    for (int64_t i = 0; i < r->T * r->heads; i++) {
        const double *x = r->in[0] + i * d;
        double *y = backward ? r->d_out + i * cols : r->out + i * cols, *dx = r->d_in[0] + i * d;
        int64_t at = front + d;
        if (!backward && r->eps != 0) y[0] = r->eps;
        for (int64_t l = 0; l < d; l++) {
            double *linear = y + (r->eps != 0) + l;
            if (backward) dx[l] += (r->scale != 0 ? r->scale * *linear : 0) + 2 * r->cap * x[l] * y[front + l];
            else y[front + l] = r->cap * x[l] * x[l];
            if (!backward && r->scale != 0) *linear = r->scale * x[l];
            for (int64_t m = l + 1; m < d; m++, at++) {
                if (!backward) y[at] = sqrt(2) * r->cap * x[l] * x[m];
                else dx[l] += sqrt(2) * r->cap * x[m] * y[at], dx[m] += sqrt(2) * r->cap * x[l] * y[at];
            }
        }
    }
}
static void ref_quadratic_forward(ref *r) { ref_quadratic(r, 0); }
static void ref_quadratic_backward(ref *r) { ref_quadratic(r, 1); }

static void ref_circular(ref *r, int backward)
{
    const int64_t d = r->in_cols[0] / r->heads;
    for (int64_t i = 0; i < r->T * r->heads; i++)
        for (int64_t j = 0; j < d; j++) {
            const double x = r->in[0][i * d + j];
            if (backward) r->d_in[0][i * d + j] += cos(x) * r->d_out[2 * i * d + j] - sin(x) * r->d_out[(2 * i + 1) * d + j];
            else r->out[2 * i * d + j] = sin(x), r->out[(2 * i + 1) * d + j] = cos(x);
        }
}
static void ref_circular_forward(ref *r) { ref_circular(r, 0); }
static void ref_circular_backward(ref *r) { ref_circular(r, 1); }

/* ---- output head --------------------------------------------------------------------------------------------------------------------------- */

static double ref_logit(const ref *r, int64_t t, int64_t v)
{
    double z = 0;
    for (int64_t i = 0; i < r->in_cols[0]; i++) z += r->in[0][t * r->in_cols[0] + i] * r->param[0][v * r->in_cols[0] + i];
    return r->cap > 0 ? r->cap * tanh(z / r->cap) : z;
}

static void ref_logit_gradient(ref *r, int64_t t, int64_t v, double z, double dz)
{
    if (r->cap > 0) dz *= 1 - z / r->cap * (z / r->cap);
    for (int64_t i = 0; i < r->in_cols[0]; i++) {
        r->d_in[0][t * r->in_cols[0] + i] += dz * r->param[0][v * r->in_cols[0] + i];
        r->d_param[0][v * r->in_cols[0] + i] += dz * r->in[0][t * r->in_cols[0] + i];
    }
}

static void ref_loss(ref *r, int backward)
{
    for (int64_t t = 0; t < r->T; t++) {
        double sum = 0;
        if (!backward) r->out[t] = 0;
        if (r->id[t] < 0) continue;
        for (int64_t v = 0; v < r->vocab; v++) sum += exp(ref_logit(r, t, v));
        if (!backward) {
            r->out[t] = log(sum) - ref_logit(r, t, r->id[t]);
            continue;
        }
        for (int64_t v = 0; v < r->vocab; v++) {
            double z = ref_logit(r, t, v);
            ref_logit_gradient(r, t, v, z, r->d_out[t] * (exp(z) / sum - (v == r->id[t])));
        }
    }
}
static void ref_loss_forward(ref *r) { ref_loss(r, 0); }
static void ref_loss_backward(ref *r) { ref_loss(r, 1); }

static void ref_logits_forward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->vocab; i++) r->out[i] = ref_logit(r, i / r->vocab, i % r->vocab);
}
static void ref_logits_backward(ref *r)
{
    for (int64_t i = 0; i < r->T * r->vocab; i++)
        ref_logit_gradient(r, i / r->vocab, i % r->vocab, ref_logit(r, i / r->vocab, i % r->vocab), r->d_out[i]);
}

#endif
