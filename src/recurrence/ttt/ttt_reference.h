/* What the float64 references of the ttt core share: the loss of a row and its derivatives. Only they include this. */
#ifndef LNT_TTT_REFERENCE_H
#define LNT_TTT_REFERENCE_H

#include "recurrence/reference.h"
#include "recurrence/ttt/ttt.h"

/* One head of one sequence at work, and what its mini-batch is about. w, b: of the head's norm. */
typedef struct {
    const lnt_ttt_args *a;
    int64_t n, h, D, m;
    double w[4096], b[4096];
    double *dw, *db; /* sums over rows [D] */
} ttt_norm;

/* z^ = (z - mean) / sigma and sigma = sqrt(var + 1e-6). */
static inline double ttt_normalise(int64_t D, const double *z, double *hat)
{
    double mean = 0, var = 0;
    for (int64_t i = 0; i < D; i++) mean += z[i] / (double)D;
    for (int64_t i = 0; i < D; i++) var += (z[i] - mean) * (z[i] - mean) / (double)D;
    const double sigma = sqrt(var + 1e-6);
    for (int64_t i = 0; i < D; i++) hat[i] = (z[i] - mean) / sigma;
    return sigma;
}

/* out = (d - mean(d) - z^ mean(d z^)) / sigma, from the gradient of z^ to that of z; out may be d. */
static inline void ttt_project(int64_t D, const double *d, const double *hat, double sigma, double *out)
{
    double mean = 0, along = 0;
    for (int64_t i = 0; i < D; i++) mean += d[i] / (double)D, along += d[i] * hat[i] / (double)D;
    for (int64_t i = 0; i < D; i++) out[i] = (d[i] - mean - hat[i] * along) / sigma;
}

/* u = dl/dz of l = |LN(z) - (v - k)|^2 / 2, or of |z - v|^2 / 2. */
static inline void ttt_loss(const ttt_norm *x, const double *z, const double *k, const double *v, double *u)
{
    double hat[4096];
    if (x->a->inner == LNT_TTT_PLAIN) {
        for (int64_t i = 0; i < x->D; i++) u[i] = z[i] - v[i];
        return;
    }
    const double sigma = ttt_normalise(x->D, z, hat);
    for (int64_t i = 0; i < x->D; i++) u[i] = x->w[i] * (x->w[i] * hat[i] + x->b[i] - (v[i] - k[i]));
    ttt_project(x->D, u, hat, sigma, u);
}

/* From the gradient of u to that of z, which is written, and of k and v, which it is added to. */
static inline void ttt_loss_back(const ttt_norm *x, const double *z, const double *k, const double *v, const double *u, const double *du, double *dz,
                                 double *dk, double *dv)
{
    const int64_t D = x->D;
    double hat[4096], dhat[4096], dg[4096], mean_hat_g = 0, mean_hat_du = 0, dsigma = 0;
    if (x->a->inner == LNT_TTT_PLAIN) {
        for (int64_t i = 0; i < D; i++) dz[i] = du[i], dv[i] -= du[i];
        return;
    }
    const double sigma = ttt_normalise(D, z, hat);
    for (int64_t i = 0; i < D; i++) {
        const double g = x->w[i] * (x->w[i] * hat[i] + x->b[i] - (v[i] - k[i]));
        mean_hat_g += hat[i] * g / (double)D;
        mean_hat_du += hat[i] * du[i] / (double)D;
        dsigma -= u[i] * du[i] / sigma;
    }
    ttt_project(D, du, hat, sigma, dg); /* of g: the projection is symmetric */
    for (int64_t i = 0; i < D; i++) {
        const double error = x->w[i] * hat[i] + x->b[i] - (v[i] - k[i]), g = x->w[i] * error, de = x->w[i] * dg[i];
        dhat[i] = -(mean_hat_g * du[i] + mean_hat_du * g) / sigma + x->w[i] * de;
        x->dw[i] += error * dg[i] + hat[i] * de;
        x->db[i] += de;
        dk[i] += de;
        dv[i] -= de;
    }
    ttt_project(D, dhat, hat, sigma, dz);
    for (int64_t i = 0; i < D; i++) dz[i] += dsigma * hat[i] / (double)D;
}

static inline void ttt_norm_in(ttt_norm *x)
{
    ref_get_row(x->w, x->a->ln_w, lnt_ttt_small(x->a), x->h, x->D);
    ref_get_row(x->b, x->a->ln_b, lnt_ttt_small(x->a), x->h, x->D);
}

/* dst [count] = the sum of two, either of which may be absent. */
static inline void ttt_sum_in(const lnt_ttt_args *a, double *dst, const void *x, int64_t at_x, const void *y, int64_t at_y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dst[i] = ref_get(x, lnt_ttt_small(a), at_x * count + i) + ref_get(y, lnt_ttt_small(a), at_y * count + i);
}

static inline int64_t ttt_open(const lnt_ttt_args *a, const void *n, int64_t at) { return lnt_ttt_count(a, ref_get(n, lnt_ttt_small(a), at)); }

#endif
