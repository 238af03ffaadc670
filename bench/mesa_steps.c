/* How many conjugate-gradient steps Mesa's systems need, by preconditioner and first guess (docs/performance/mesa.md has the table):
 *
 *     cc -O3 -march=native -o mesa_steps bench/mesa_steps.c -lm && ./mesa_steps
 *
 * (H_t + Lambda) x = q in float64 for rows of a chunk of 64 tokens: K = 128, unit keys, beta uniform in (0,1), one decay gamma = 1 - 1/memory,
 * Lambda = 0.25 + softplus of a normal. Keys are spread, or have a cosine of 0.71, 0.97 or 0.999 to one direction ("screaming"); chunks begin at token
 * 64 or at three times the memory. What is printed is the mean over the rows of applications of the operator until |r| <= tolerance |q|, with what the
 * method costs besides in units of an application at C = 16, 2K^2 + 64K FLOPs.
 *
 *   plain      X = q / diag, plain steps: the paper's
 *   jacobi     preconditioned by diag(H_t + Lambda), X = 0
 *   factor     preconditioned by the Cholesky factor of e^{b_mid} H_c + Lambda, made once a chunk; as a change of variables, so that a step costs the
 *              same: K^3 FLOPs a chunk, 3 K^2 a row
 *   warm       jacobi, X = x of the token before (solved exactly), its residual costs an application; queries as below
 *   warm alpha the same times the number that leaves the smallest residual
 *   level      preconditioned by Lambda + min(diag(H_t)), X = 0 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 128, C = 64, EVERY = 4, MOST = 400 };
typedef double matrix[K][K];

static uint64_t seed = 88172645463325252u;
static double uniform(void)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (double)(seed >> 11) * 0x1p-53;
}
static double normal(void) { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }
static double dot(const double *x, const double *y)
{
    double sum = 0;
    for (int i = 0; i < K; i++) sum += x[i] * y[i];
    return sum;
}
static void unit(double *x)
{
    double size = sqrt(dot(x, x));
    for (int i = 0; i < K; i++) x[i] /= size;
}
static void apply(matrix A, const double *x, double *y)
{
    for (int i = 0; i < K; i++) y[i] = dot(A[i], x);
}
static void factor(matrix A, matrix L)
{
    for (int i = 0; i < K; i++)
        for (int j = 0; j <= i; j++) {
            double sum = A[i][j];
            for (int m = 0; m < j; m++) sum -= L[i][m] * L[j][m];
            L[i][j] = i == j ? sqrt(sum) : sum / L[j][j];
        }
}
static void solve(matrix L, const double *b, double *x)
{
    for (int i = 0; i < K; i++) {
        x[i] = b[i];
        for (int j = 0; j < i; j++) x[i] -= L[i][j] * x[j];
        x[i] /= L[i][i];
    }
    for (int i = K - 1; i >= 0; i--) {
        for (int j = i + 1; j < K; j++) x[i] -= L[j][i] * x[j];
        x[i] /= L[i][i];
    }
}

/* z = M^-1 r: 0 nothing, 1 the diagonal of A, 2 the factor, 3 a diagonal of its own. */
static double diagonal[K];
static void precondition(int kind, matrix A, matrix M, const double *r, double *z)
{
    if (kind == 2)
        solve(M, r, z);
    else
        for (int i = 0; i < K; i++) z[i] = kind == 3 ? r[i] / diagonal[i] : kind ? r[i] / A[i][i] : r[i];
}

/* Applications until each of the tolerances; `x` is the first guess, `free_start` when it is 0. */
static void run(int kind, matrix A, matrix M, const double *q, double *x, int free_start, const double *tolerance, int n, double *count)
{
    double r[K], z[K], p[K], w[K], size = sqrt(dot(q, q));
    int taken = !free_start, at = 0;
    apply(A, x, w);
    for (int i = 0; i < K; i++) r[i] = q[i] - w[i];
    precondition(kind, A, M, r, z);
    memcpy(p, z, sizeof p);
    double d = dot(r, z);
    for (;;) {
        double now = sqrt(dot(r, r));
        while (at < n && (now <= tolerance[at] * size || taken == MOST)) count[at++] += taken;
        if (at == n) return;
        apply(A, p, w);
        double a = d / dot(p, w), before = d;
        for (int i = 0; i < K; i++) x[i] += a * p[i], r[i] -= a * w[i];
        precondition(kind, A, M, r, z);
        d = dot(r, z);
        for (int i = 0; i < K; i++) p[i] = z[i] + d / before * p[i];
        taken++;
    }
}

/* Largest over smallest eigenvalue. */
static double condition(matrix A, matrix L)
{
    double x[K], y[K], most = 0, least = 0;
    for (int i = 0; i < K; i++) x[i] = normal();
    memcpy(y, x, sizeof y);
    for (int i = 0; i < 200; i++) {
        double w[K];
        unit(x);
        apply(A, x, w);
        most = dot(x, w);
        memcpy(x, w, sizeof x);
        unit(y);
        solve(L, y, w);
        least = dot(y, w);
        memcpy(y, w, sizeof y);
    }
    return most * least;
}

static void draw_key(double *k, const double *along, double aligned)
{
    for (int i = 0; i < K; i++) k[i] = (1 - aligned) * normal() / sqrt(K) + aligned * along[i];
    unit(k);
}

static matrix H, A, start, L, M;

static void one(double memory, double aligned, int late, double correlation)
{
    static const double tolerance[] = { 1e-2, 1e-4, 1e-6 };
    double along[K], k[K], q[K], lambda[K], gamma = 1 - 1 / memory, count[6][3] = { { 0 } }, worst = 0;
    int64_t first = late ? (int64_t)(3 * memory) : 64;
    for (int i = 0; i < K; i++) along[i] = normal(), lambda[i] = 0.25 + log1p(exp(normal())), q[i] = normal();
    unit(along);
    unit(q);
    memset(H, 0, sizeof H);
    int rows = 0;
    for (int64_t t = 0; t < first + C; t++) {
        if (t == first) memcpy(start, H, sizeof H);
        double beta = uniform(), exact[K], x[K];
        draw_key(k, along, aligned);
        if (t >= first) { /* the token before, by its own matrix */
            memcpy(A, H, sizeof A);
            for (int i = 0; i < K; i++) A[i][i] += lambda[i];
            factor(A, L);
            solve(L, q, exact);
        }
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) H[i][j] = gamma * H[i][j] + beta * k[i] * k[j];
        for (int i = 0; i < K; i++) q[i] = correlation * q[i] + sqrt(1 - correlation * correlation) * normal() / sqrt(K);
        unit(q);
        if (t < first || (t - first) % EVERY) continue;
        memcpy(A, H, sizeof A);
        for (int i = 0; i < K; i++) A[i][i] += lambda[i];
        factor(A, L);
        double c = condition(A, L);
        worst = c > worst ? c : worst;
        double middle = pow(gamma, C / 2);
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) L[i][j] = middle * start[i][j] + (i == j ? lambda[i] : 0);
        factor(L, M);
        for (int i = 0; i < K; i++) x[i] = q[i] / A[i][i];
        run(0, A, M, q, x, 0, tolerance, 3, count[0]);
        memset(x, 0, sizeof x);
        run(1, A, M, q, x, 1, tolerance, 3, count[1]);
        memset(x, 0, sizeof x);
        run(2, A, M, q, x, 1, tolerance, 3, count[2]);
        memcpy(x, exact, sizeof x);
        run(1, A, M, q, x, 0, tolerance, 3, count[3]);
        double w[K], best;
        apply(A, exact, w);
        best = dot(w, q) / dot(w, w);
        for (int i = 0; i < K; i++) x[i] = best * exact[i];
        run(1, A, M, q, x, 0, tolerance, 3, count[4]);
        double least = INFINITY;
        for (int i = 0; i < K; i++) least = fmin(least, H[i][i]);
        for (int i = 0; i < K; i++) diagonal[i] = lambda[i] + least;
        memset(x, 0, sizeof x);
        run(3, A, M, q, x, 1, tolerance, 3, count[5]);
        rows++;
    }
    double unit_cost = 2.0 * K * K + 64 * K, extra = (1.0 * K * K * K / C + 3.0 * K * K) / unit_cost;
    printf("| %s | %s | %.1f | %.0f |", aligned > 0.9 ? "one direction" : aligned > 0.5 ? "aligned" : aligned > 0 ? "half" : "spread", late ? "late" : "early", correlation, worst);
    for (int m = 0; m < 6; m++) {
        for (int i = 0; i < 3; i++) printf("%s%.1f", i ? " / " : " ", count[m][i] / rows + (m == 2 ? extra : 0));
        printf(" |");
    }
    printf("\n");
}

int main(void)
{
    static const double aligned[] = { 0, 0.5, 0.8, 0.95 }, memory[] = { 10, 100, 1000, 4500 };
    printf("| keys | chunk | query correlation | condition | plain | jacobi | factor | warm | warm alpha | level |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|\n");
    for (int a = 0; a < 4; a++)
        for (int late = 0; late < 2; late++)
            for (int m = 0; m < (late ? 4 : 2); m++) one(memory[m], aligned[a], late, 0); /* at token 64 a longer memory is one of 100 */
    for (int a = 0; a < 4; a += 3)
        for (int m = 1; m < 4; m++) one(memory[m], aligned[a], 1, 0.9);
    return 0;
}
