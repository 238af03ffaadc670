/* Reflections to tridiagonal form (Golub and Van Loan, Matrix Computations, 8.3), then bisection with Sturm counts (8.4): backward stable, so that
 * errors are of the size of rounding of the largest eigenvalue. 2 n^3 FLOPs. */
#include "tasks/spectrum.h"

#include <math.h>
#include <stddef.h>

/* diagonal d [n] and off-diagonal e [n-1] of an orthogonally similar matrix. v [n]. */
static void tridiagonal(int64_t n, double *a, double *d, double *e, double *v)
{
    for (int64_t k = 0; k + 2 < n; k++) {
        /* v reflects x = a[k][k+1..] onto its first axis: x becomes (e_k, 0, ...) */
        const int64_t m = n - k - 1;
        double *x = a + k * n + k + 1, size = 0;
        for (int64_t i = 0; i < m; i++) size += x[i] * x[i];
        size = sqrt(size);
        d[k] = a[k * n + k];
        e[k] = x[0] > 0 ? -size : size;
        double first = x[0] - e[k], square = size * size - x[0] * x[0] + first * first; /* |v|^2 */
        if (!(square > 0)) continue;
        for (int64_t i = 0; i < m; i++) v[i] = x[i];
        v[0] = first;
        /* B - v w^T - w v^T for the block B below: w = s B v - (s^2 / 2 v.B v) v, s = 2 / |v|^2; w takes x's place */
        const double s = 2 / square;
        double *B = a + (k + 1) * n + k + 1, *w = x, vBv = 0;
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t j = 0; j < m; j++) sum += B[i * n + j] * v[j];
            w[i] = s * sum;
            vBv += v[i] * sum;
        }
        for (int64_t i = 0; i < m; i++) w[i] -= s * s / 2 * vBv * v[i];
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < m; j++) B[i * n + j] -= v[i] * w[j] + w[i] * v[j];
    }
    if (n > 1) {
        d[n - 2] = a[(n - 2) * n + n - 2];
        e[n - 2] = a[(n - 2) * n + n - 1];
    }
    d[n - 1] = a[n * n - 1];
}

/* How many eigenvalues are below x: the negative pivots of the factorisation of T - x. */
static int64_t below(int64_t n, const double *d, const double *e, double x, double tiny)
{
    int64_t count = 0;
    double q = d[0] - x;
    for (int64_t i = 0;; i++) {
        if (fabs(q) < tiny) q = -tiny;
        count += q < 0;
        if (i == n - 1) return count;
        q = d[i + 1] - x - e[i] * e[i] / q;
    }
}

void lnt_extreme_eigenvalues(int64_t n, double *a, double *work, double *low, double *high)
{
    double *d = work, *e = work + n, from = INFINITY, to = -INFINITY;
    tridiagonal(n, a, d, e, work + 2 * n);
    for (int64_t i = 0; i < n; i++) { /* Gershgorin */
        double radius = (i > 0 ? fabs(e[i - 1]) : 0) + (i + 1 < n ? fabs(e[i]) : 0);
        from = fmin(from, d[i] - radius);
        to = fmax(to, d[i] + radius);
    }
    const double size = fmax(fabs(from), fabs(to)), tiny = size > 0 ? size * 1e-30 : 1e-300;
    const int64_t least[2] = {1, n}; /* the smallest x that has so many eigenvalues below it */
    double *out[2] = {low, high};
    for (int k = 0; k < 2; k++) {
        double l = from - size * 1e-15, h = to + size * 1e-15;
        for (int i = 0; i < 80 && h - l > 1e-16 * size; i++) {
            double x = l + (h - l) / 2;
            if (below(n, d, e, x, tiny) >= least[k]) h = x;
            else l = x;
        }
        *out[k] = l + (h - l) / 2;
    }
}
