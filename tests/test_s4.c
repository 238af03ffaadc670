/* Structured state spaces as convolutions: what S4D's recurrence computes is a convolution with the kernel k_l = 2 Re sum_m C Bbar Abar^l, and the
 * generating function of S4 (Gu, Goel, Re 2021, "Efficiently Modeling Long Sequences with Structured State Spaces", algorithm 1) of a diagonal
 * matrix is the same kernel. */
#include <complex.h>

#include "recurrence_check.h"

enum { D = 3, M = 6, T = 61 }; /* T odd: -1 is no root of unity, where S4's function has a limit */
typedef double complex number;

static const double pi = 3.14159265358979323846;

/* x = A^-1 y for a dense matrix, by elimination with the largest pivot; A and y are overwritten. */
static void solve(number A[M][M], number y[M])
{
    for (int c = 0; c < M; c++) {
        int best = c;
        for (int r = c; r < M; r++)
            if (cabs(A[r][c]) > cabs(A[best][c])) best = r;
        for (int j = 0; j < M; j++) {
            number x = A[c][j];
            A[c][j] = A[best][j], A[best][j] = x;
        }
        number x = y[c];
        y[c] = y[best], y[best] = x;
        for (int r = 0; r < M; r++) {
            if (r == c) continue;
            const number f = A[r][c] / A[c][c];
            for (int j = c; j < M; j++) A[r][j] -= f * A[c][j];
            y[r] -= f * y[c];
        }
    }
    for (int c = 0; c < M; c++) y[c] /= A[c][c];
}

/* (1 - dt A / 2)^-1 (1 + dt A / 2) h, or with `from_input` (1 - dt A / 2)^-1 dt h: the bilinear step of A = diag(L) - P P^*. */
static void step(double dt, const number *L, const number *P, number h[M], bool from_input)
{
    number A[M][M], y[M];
    for (int i = 0; i < M; i++) {
        y[i] = from_input ? dt * h[i] : h[i];
        for (int j = 0; j < M; j++) {
            const number a = (i == j ? L[i] : 0) - P[i] * conj(P[j]);
            A[i][j] = (i == j) - dt / 2 * a;
            if (!from_input) y[i] += dt / 2 * a * h[j];
        }
    }
    solve(A, y);
    memcpy(h, y, sizeof y);
}

/* The recurrence itself: K_l = C Abar^l Bbar, B = 1. */
static void dense_kernel(double dt, const number *L, const number *P, const number *C, number K[T])
{
    number h[M];
    for (int i = 0; i < M; i++) h[i] = 1;
    step(dt, L, P, h, true);
    for (int l = 0; l < T; l++) {
        K[l] = 0;
        for (int i = 0; i < M; i++) K[l] += C[i] * h[i];
        step(dt, L, P, h, false);
    }
}

/* S4's: sum_l K_l z^l = 2 / (1 + z) C~ (g - A)^-1 B with g = 2 (1 - z) / (dt (1 + z)) and C~ = C (1 - Abar^T) at the roots of unity, the inverse of a
 * diagonal matrix with one more column by Woodbury; then the discrete Fourier transform back. */
static void s4_kernel(double dt, const number *L, const number *P, const number *C, number K[T])
{
    number left[M];
    for (int i = 0; i < M; i++) { /* C Abar^T e_i */
        number h[M] = { 0 };
        h[i] = 1;
        for (int l = 0; l < T; l++) step(dt, L, P, h, false);
        left[i] = C[i];
        for (int j = 0; j < M; j++) left[i] -= C[j] * h[j];
    }
    number at[T];
    for (int r = 0; r < T; r++) {
        const number z = cexp(-2 * pi * I * r / T), g = 2 / dt * (1 - z) / (1 + z);
        number cb = 0, cp = 0, pb = 0, pp = 1;
        for (int i = 0; i < M; i++) {
            const number R = 1 / (g - L[i]);
            cb += left[i] * R, cp += left[i] * R * P[i], pb += conj(P[i]) * R, pp += conj(P[i]) * R * P[i];
        }
        at[r] = 2 / (1 + z) * (cb - cp * pb / pp);
    }
    for (int l = 0; l < T; l++) {
        K[l] = 0;
        for (int r = 0; r < T; r++) K[l] += at[r] * cexp(2 * pi * I * r * l / T) / T;
    }
}

static void draw(lnt_rng *random, double *dt, number *L, number *P, number *C)
{
    *dt = 0.02 + 0.1 * lnt_rng_uniform(random);
    for (int i = 0; i < M; i++) {
        L[i] = -0.5 - lnt_rng_uniform(random) + I * pi * (i + 0.1 * lnt_rng_normal(random));
        P[i] = 0.5 * (lnt_rng_normal(random) + I * lnt_rng_normal(random));
        C[i] = lnt_rng_normal(random) + I * lnt_rng_normal(random);
    }
}

static double difference(const number *a, const number *b)
{
    double error = 0, size = 0;
    for (int l = 0; l < T; l++) error += cabs(a[l] - b[l]) * cabs(a[l] - b[l]), size += cabs(b[l]) * cabs(b[l]);
    return sqrt(error / size);
}

static void generating_function_is_the_recurrence(void **state)
{
    (void)state;
    lnt_rng random = lnt_rng_make(3, 0);
    for (int n = 0; n < 20; n++) {
        double dt;
        number L[M], P[M], C[M], dense[T], s4[T], diagonal[T];
        draw(&random, &dt, L, P, C);
        dense_kernel(dt, L, P, C, dense);
        s4_kernel(dt, L, P, C, s4);
        assert_true(difference(s4, dense) < 1e-10);
        memset(P, 0, sizeof P);
        s4_kernel(dt, L, P, C, diagonal);
        assert_true(difference(diagonal, dense) > 1e-2); /* P matters */
    }
}

/* Every form of the operator against u * k, k written out for zoh and made by S4's function for the bilinear rule. */
static void recurrence_is_a_convolution(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int bilinear = 0; bilinear < 2; bilinear++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
            const lnt_recur_case k = { "s4d", 1, { T }, { { "D", D }, { "M", M } }, .beta = 0.1, .option = { { "discretization", bilinear } } };
            lnt_problem p;
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 11, &p));
            p.r.form = (linnet_form)form;
            OK(c, lnt_problem_run(c, &p, false));
            static float o[T * D];
            for (int d = 0; d < D; d++) {
                const double dt = tensor(&p, "dt")[d];
                number L[M], C[M], K[T], none[M] = { 0 };
                for (int m = 0; m < M; m++) {
                    L[m] = tensor(&p, "A_re")[d * M + m] + I * tensor(&p, "A_im")[d * M + m];
                    C[m] = tensor(&p, "C_re")[d * M + m] + I * tensor(&p, "C_im")[d * M + m];
                }
                if (bilinear)
                    s4_kernel(dt, L, none, C, K);
                else
                    for (int l = 0; l < T; l++) {
                        K[l] = 0;
                        for (int m = 0; m < M; m++) K[l] += C[m] * (cexp(dt * L[m]) - 1) / L[m] * cexp(l * dt * L[m]);
                    }
                for (int t = 0; t < T; t++) {
                    double sum = tensor(&p, "D") ? tensor(&p, "D")[d] * tensor(&p, "u")[t * D + d] : 0;
                    for (int l = 0; l <= t; l++) sum += 2 * creal(K[l]) * tensor(&p, "u")[(t - l) * D + d];
                    o[t * D + d] = (float)sum;
                }
            }
            close_to(bilinear ? "s4d, bilinear" : "s4d, zoh", "o", tensor(&p, "o"), o, T * D, 2e-6);
            lnt_problem_free(&p);
        }
    linnet_context_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(generating_function_is_the_recurrence), cmocka_unit_test(recurrence_is_a_convolution) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
