/* The slstm core in float64, token by token: the truth (operators.md#slstm). Backward differentiates the formulas with m as they are written. */
#include <math.h>
#include <omp.h>

#include "recurrence/slstm/slstm.h"

static double get(const void *p, lnt_dtype t, int64_t i) { return p ? lnt_load_element(p, t, i) : 0; }
static void put(void *p, lnt_dtype t, int64_t i, double value)
{
    if (p) lnt_store_element(p, t, i, value);
}

/* Doubles of a thread: y, the gates [4,D] or their gradients; backward dy dc dn dm [D] too. */
static size_t doubles(const lnt_slstm_args *a) { return (size_t)a->D * 9; }
/* And dR of every sequence, head by head. */
static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_slstm_args *a = args;
    return ((size_t)threads * doubles(a) + (back ? (size_t)a->H * (size_t)a->D * (size_t)a->E : 0)) * sizeof(double);
}

/* c, n and m [D] of the sequence's head are in `cell`; y before the token in y; pre becomes the gates' values. */
static void step(const lnt_slstm_args *a, int64_t u, int64_t h, double *y, double *cell, double *pre)
{
    const lnt_dtype f = lnt_slstm_small(a);
    const int64_t D = a->D, at = (u * a->H + h) * D;
    for (int64_t j = 0; j < 4 * D; j++) {
        const void *w[4] = { a->wi, a->wf, a->wz, a->wo };
        pre[j] = get(w[j / D], j / D < 2 ? f : a->dtype, at + j % D);
        for (int64_t k = 0; k < D; k++) pre[j] += y[k] * get(a->R, f, (h * D + k) * a->E + j);
    }
    for (int64_t j = 0; j < D; j++) {
        double *c = &cell[j], *n = &cell[D + j], *m = &cell[2 * D + j];
        const double i = pre[j], forget = -log1p(exp(-fabs(pre[D + j]))) + fmin(pre[D + j], 0), through = forget + *m;
        const double next = *n != 0 && through > i ? through : i; /* n = 0: nothing was written yet */
        const double decay = *n != 0 ? exp(through - next) : 0, write = exp(i - next), z = tanh(pre[2 * D + j]);
        const double out = 1 / (1 + exp(-pre[3 * D + j]));
        *c = decay * *c + write * z;
        *n = decay * *n + write;
        *m = next;
        y[j] = out * *c / *n;
        const double kept[8] = { decay, write, z, out, 1 / (1 + exp(pre[D + j])), *c, *n, y[j] };
        for (int64_t g = 0; g < 4; g++) {
            put(a->gates, f, (u * a->H + h) * a->E + g * D + j, kept[g]);
            put(a->cells, f, (u * a->H + h) * a->E + g * D + j, kept[4 + g]);
        }
        put(a->o, a->dtype, at + j, y[j]);
    }
}

static void forward(const void *args, int threads)
{
    const lnt_slstm_args *a = args;
    const lnt_dtype f = lnt_slstm_small(a);
    const int64_t D = a->D;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t p = 0; p < a->sequences * a->H; p++) {
        double *y = (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a), *cell = y + D, *pre = cell + 3 * D;
        const int64_t n = p / a->H, h = p % a->H;
        for (int64_t j = 0; j < D; j++) {
            y[j] = get(a->y0, f, p * D + j);
            cell[j] = get(a->c0, f, p * D + j);
            cell[D + j] = get(a->n0, f, p * D + j);
            cell[2 * D + j] = get(a->m0, f, p * D + j);
        }
        for (int64_t u = a->cu_seqlens[n]; u < a->cu_seqlens[n + 1]; u++) step(a, u, h, y, cell, pre);
        for (int64_t j = 0; j < D; j++) {
            put(a->yT, f, p * D + j, y[j]);
            put(a->cT, f, p * D + j, cell[j]);
            put(a->nT, f, p * D + j, cell[D + j]);
            put(a->mT, f, p * D + j, cell[2 * D + j]);
        }
    }
}

/* Row `which` of the cells of token u, or of the state before the first. */
static double cell_of(const lnt_slstm_args *a, int64_t n, int64_t u, int64_t h, int which, int64_t j)
{
    const void *first[4] = { NULL, a->c0, a->n0, a->y0 };
    if (u < a->cu_seqlens[n]) return get(first[which], lnt_slstm_small(a), (n * a->H + h) * a->D + j);
    return get(a->cells, lnt_slstm_small(a), (u * a->H + h) * a->E + which * a->D + j);
}

/* carry: the gradients of y, c, n and m behind token u [4,D], which become those before it; pre: of the gates. */
static void back_token(const lnt_slstm_args *a, int64_t n, int64_t u, int64_t h, double *carry, double *pre, double *dR)
{
    const lnt_dtype f = lnt_slstm_small(a);
    const int64_t D = a->D, at = (u * a->H + h) * D;
    for (int64_t j = 0; j < D; j++) {
        const double decay = get(a->gates, f, at * 4 + j), write = get(a->gates, f, at * 4 + D + j), z = get(a->gates, f, at * 4 + 2 * D + j);
        const double out = get(a->gates, f, at * 4 + 3 * D + j), c = cell_of(a, n, u, h, 1, j), norm = cell_of(a, n, u, h, 2, j);
        const double dy = carry[j] + get(a->dout, a->dtype, at + j);
        const double dc = carry[D + j] + dy * out / norm, dn = carry[2 * D + j] - dy * out * c / (norm * norm);
        double to_f = decay * (dc * cell_of(a, n, u - 1, h, 1, j) + dn * cell_of(a, n, u - 1, h, 2, j)), to_i = write * (dc * z + dn);
        const double to_m = carry[3 * D + j] - to_f - to_i; /* m falls out of both exponents, and is one of them */
        const bool taken = write == 1;
        to_i += taken ? to_m : 0;
        to_f += taken ? 0 : to_m;
        carry[D + j] = decay * dc;
        carry[2 * D + j] = decay * dn;
        carry[3 * D + j] = to_f;
        pre[j] = to_i;
        pre[D + j] = to_f * cell_of(a, n, u, h, 0, j);
        pre[2 * D + j] = dc * write * (1 - z * z);
        pre[3 * D + j] = dy * c / norm * out * (1 - out);
        put(a->dwi, f, at + j, pre[j]);
        put(a->dwf, f, at + j, pre[D + j]);
        put(a->dwz, a->dtype, at + j, pre[2 * D + j]);
        put(a->dwo, a->dtype, at + j, pre[3 * D + j]);
    }
    for (int64_t k = 0; k < D; k++) {
        const double y = cell_of(a, n, u - 1, h, 3, k);
        carry[k] = 0;
        for (int64_t j = 0; j < 4 * D; j++) {
            carry[k] += get(a->R, f, (h * D + k) * a->E + j) * pre[j];
            dR[k * a->E + j] += y * pre[j];
        }
    }
}

static void backward(const void *args, int threads)
{
    const lnt_slstm_args *a = args;
    const lnt_dtype f = lnt_slstm_small(a);
    const int64_t D = a->D, square = D * a->E;
    double *all = (double *)a->workspace + (size_t)threads * doubles(a);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t h = 0; h < a->H; h++) {
        double *carry = (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a), *pre = carry + 4 * D, *dR = all + h * square;
        for (int64_t i = 0; i < square; i++) dR[i] = 0;
        for (int64_t n = 0; n < a->sequences; n++) {
            const int64_t state = (n * a->H + h) * D;
            for (int64_t j = 0; j < D; j++) {
                carry[j] = get(a->dyT, f, state + j);
                carry[D + j] = get(a->dcT, f, state + j);
                carry[2 * D + j] = get(a->dnT, f, state + j);
                carry[3 * D + j] = get(a->dmT, f, state + j);
            }
            for (int64_t u = a->cu_seqlens[n + 1] - 1; u >= a->cu_seqlens[n]; u--) back_token(a, n, u, h, carry, pre, dR);
            for (int64_t j = 0; j < D; j++) {
                put(a->dy0, f, state + j, carry[j]);
                put(a->dc0, f, state + j, carry[D + j]);
                put(a->dn0, f, state + j, carry[2 * D + j]);
                put(a->dm0, f, state + j, carry[3 * D + j]);
            }
        }
        for (int64_t i = 0; i < square; i++) put(a->dR, f, h * square + i, dR[i]);
    }
}

const lnt_recur_impl lnt_slstm_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
