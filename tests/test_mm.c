/* Small products (simd/mm.h): every variant this machine runs against a double loop, on shapes with all kinds of edges; nothing outside C is written.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu.h"
#include "simd/variant.h"

typedef enum { SET, ADD, SUB, SCALED } mode;
typedef void mm_fn(int mode, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c, int64_t ldc);
typedef void mm_scaled_fn(const float *scale, int64_t stride, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b,
                          int64_t ldb, float *c, int64_t ldc);
typedef void transpose_fn(int M, int N, const float *x, int64_t ldx, float *y, int64_t ldy);
LNT_DECLARE_VARIANTS(mm_fn, lnt_mm);
LNT_DECLARE_VARIANTS(mm_scaled_fn, lnt_mm_scaled);
LNT_DECLARE_VARIANTS(transpose_fn, lnt_transpose);

enum { PAD = 3, MOST = 140 };

static float draw(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(*s >> 8) / 8388608.0f - 1.0f;
}

static void check_product(mode how, int M, int N, int K, bool transposed)
{
    static float a[MOST * MOST], b[MOST * MOST], c[(MOST + 2) * (MOST + 2 * PAD)], before[(MOST + 2) * (MOST + 2 * PAD)], scale[MOST];
    uint32_t seed = (uint32_t)(M * 131 + N * 17 + K);
    int64_t lda = transposed ? M + 1 : K + 1, ldb = N + 2, ldc = N + 2 * PAD;
    for (int i = 0; i < MOST * MOST; i++) a[i] = draw(&seed), b[i] = draw(&seed);
    for (int i = 0; i < (M + 2) * ldc; i++) c[i] = how == SET ? NAN : draw(&seed);
    for (int i = 0; i < M; i++) scale[i] = draw(&seed);
    memcpy(before, c, sizeof c);
    float *C = c + ldc + PAD;
    int64_t rs = transposed ? 1 : lda, cs = transposed ? lda : 1;
    if (how == SCALED)
        LNT_PICK(lnt_mm_scaled)(scale, 1, M, N, K, a, rs, cs, b, ldb, C, ldc);
    else
        LNT_PICK(lnt_mm)((int)how, M, N, K, a, rs, cs, b, ldb, C, ldc);
    for (int i = -1; i <= M; i++)
        for (int j = -PAD; j < N + PAD; j++) {
            int64_t at = (i + 1) * ldc + j + PAD;
            if (i < 0 || i >= M || j < 0 || j >= N) {
                assert_memory_equal(&c[at], &before[at], 4);
                continue;
            }
            double sum = 0, size = 0, old = before[at];
            for (int k = 0; k < K; k++) {
                double t = (double)a[i * rs + k * cs] * b[k * ldb + j];
                sum += t, size += fabs(t);
            }
            double want = how == SET ? sum : how == ADD ? old + sum : how == SUB ? old - sum : scale[i] * old + sum;
            double bound = (K + 4) * 6e-8 * (size + (how == SET ? 0 : fabs(old)));
            if (!(fabs(c[at] - want) <= bound))
                fail_msg("%s mode %d M %d N %d K %d at %d,%d: %g, expected %g", lnt_cpu_name(lnt_cpu()), how, M, N, K, i, j, c[at], want);
        }
}

static void products(void **state)
{
    (void)state;
    static const int M[] = {0, 1, 2, 5, 6, 7, 8, 9, 13, 16, 17, 33, 64}, N[] = {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 50, 64, 79, 80, 100, 128},
                     K[] = {0, 1, 2, 16, 50, 128};
    for (int l = 0; l <= (int)lnt_cpu_machine(); l++) {
        lnt_cpu_force((lnt_cpu_level)l);
        for (size_t m = 0; m < sizeof M / sizeof *M; m++)
            for (size_t n = 0; n < sizeof N / sizeof *N; n++)
                for (size_t k = 0; k < sizeof K / sizeof *K; k++)
                    for (int how = SET; how <= SCALED; how++) check_product((mode)how, M[m], N[n], K[k], (m + n + k) % 2);
    }
    lnt_cpu_force(lnt_cpu_machine());
}

static void transposes(void **state)
{
    (void)state;
    static const int sizes[] = {0, 1, 4, 7, 8, 15, 16, 17, 32, 50, 128};
    static float x[130 * 130], y[132 * 132];
    uint32_t seed = 1;
    for (int i = 0; i < 130 * 130; i++) x[i] = draw(&seed);
    for (int l = 0; l <= (int)lnt_cpu_machine(); l++) {
        lnt_cpu_force((lnt_cpu_level)l);
        for (size_t m = 0; m < sizeof sizes / sizeof *sizes; m++)
            for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
                int rows = sizes[m], cols = sizes[n];
                for (int i = 0; i < 132 * 132; i++) y[i] = 7.0f;
                LNT_PICK(lnt_transpose)(rows, cols, x, cols + 1, y, rows + 2);
                for (int j = 0; j < cols; j++)
                    for (int i = 0; i < rows + 2; i++) assert_true(y[j * (rows + 2) + i] == (i < rows ? x[i * (cols + 1) + j] : 7.0f));
            }
    }
    lnt_cpu_force(lnt_cpu_machine());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(transposes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
