/* Matrix products against float64, for every CPU variant, transposition, type and thread count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/cpu.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"
#include "ops/gemm.h"

enum { PAD = 3 }; /* elements between rows, which nobody may touch */

typedef struct {
    int64_t M, N, K;
} shape;

static linnet_context *context(int threads)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    linnet_context *c;
    assert_int_equal(linnet_context_create(&o, &c), LINNET_OK);
    return c;
}

/* A matrix [rows, cols] with PAD elements behind each row, its values in double too. */
typedef struct {
    int64_t rows, cols, ld;
    lnt_dtype t;
    void *data;
    double *value; /* [rows, cols] */
} matrix;

static matrix make(int64_t rows, int64_t cols, lnt_dtype t, lnt_rng *r)
{
    matrix m = {rows, cols, cols + PAD, t, NULL, NULL};
    m.data = lnt_alloc((size_t)(rows * m.ld) * lnt_dtype_size(t));
    m.value = lnt_alloc((size_t)(rows * cols) * sizeof(double));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < m.ld; j++) {
            const double x = t == LINNET_I8 ? (double)(int)lnt_rng_below(r, 255) - 127 : lnt_rng_normal(r);
            lnt_store_element(m.data, t, i * m.ld + j, j < cols ? x : t == LINNET_I8 ? 100 : NAN);
            if (j < cols) m.value[i * cols + j] = lnt_load_element(m.data, t, i * m.ld + j);
        }
    return m;
}

static void release(matrix *m)
{
    lnt_free(m->data);
    lnt_free(m->value);
}

/* small: B is int8, each row with a number that it is multiplied by. */
static void check(shape s, bool ta, bool tb, bool small, lnt_dtype ab, lnt_dtype ct, float alpha, float beta)
{
    lnt_rng r = lnt_rng_make(1, (uint64_t)(s.M * 1000003 + s.N * 1009 + s.K));
    matrix a = make(ta ? s.K : s.M, ta ? s.M : s.K, ab, &r), b = make(tb ? s.N : s.K, tb ? s.K : s.N, small ? LINNET_I8 : ab, &r);
    matrix c = make(s.M, s.N, ct, &r);
    float *scale = small ? lnt_alloc((size_t)s.N * sizeof *scale) : NULL;
    for (int64_t i = 0; i < s.N * s.K && small; i++) {
        if (i % s.K == 0) scale[i / s.K] = (float)(0.02 * lnt_rng_uniform(&r));
        b.value[i] *= (double)scale[i / s.K];
    }
    double *want = lnt_alloc((size_t)(s.M * s.N) * sizeof *want), square = 0;
    for (int64_t i = 0; i < s.M; i++)
        for (int64_t j = 0; j < s.N; j++) {
            double x = 0;
            for (int64_t k = 0; k < s.K; k++)
                x += (ta ? a.value[k * s.M + i] : a.value[i * s.K + k]) * (tb ? b.value[j * s.K + k] : b.value[k * s.N + j]);
            want[i * s.N + j] = alpha * x + (beta != 0 ? c.value[i * s.N + j] : 0);
            square += want[i * s.N + j] * want[i * s.N + j];
        }
    size_t bytes = (size_t)(s.M * c.ld) * lnt_dtype_size(ct);
    void *first = lnt_alloc(bytes), *again = lnt_alloc(bytes);
    for (int threads = 1; threads <= 3; threads++) {
        linnet_context *x = context(threads);
        memcpy(again, c.data, bytes);
        if (beta == 0)
            for (int64_t i = 0; i < s.M * c.ld; i++) lnt_store_element(again, ct, i, NAN);
        lnt_gemm_args g = {.trans_a = ta, .trans_b = tb, .M = s.M, .N = s.N, .K = s.K, .alpha = alpha, .beta = beta, .ab = ab, .c = ct,
                           .a = a.data, .lda = a.ld, .b = b.data, .ldb = b.ld, .b_scale = scale, .C = again, .ldc = c.ld};
        assert_int_equal(lnt_gemm(x, &g), LINNET_OK);
        if (threads == 1)
            memcpy(first, again, bytes);
        else
            assert_memory_equal(first, again, bytes);
        linnet_context_destroy(x);
    }
    double error = 0;
    for (int64_t i = 0; i < s.M; i++)
        for (int64_t j = 0; j < c.ld; j++) {
            double got = lnt_load_element(first, ct, i * c.ld + j);
            if (j >= s.N) {
                assert_true(isnan(got));
                continue;
            }
            double d = got - want[i * s.N + j];
            assert_false(isnan(d));
            error += d * d;
        }
    double relative = square > 0 ? sqrt(error / square) : sqrt(error), limit = ct == LINNET_BF16 ? 3e-3 : 2e-6;
    if (!(relative < limit))
        fail_msg("%lldx%lldx%lld %c%c%s %s->%s %s: error %.2e, expected below %.0e", (long long)s.M, (long long)s.N, (long long)s.K, ta ? 'T' : 'N',
                 tb ? 'T' : 'N', small ? " int8" : "", lnt_dtype_name(ab), lnt_dtype_name(ct), lnt_cpu_name(lnt_cpu()), relative, limit);
    lnt_free(scale);
    lnt_free(first);
    lnt_free(again);
    lnt_free(want);
    release(&a);
    release(&b);
    release(&c);
}

static void products(void **state)
{
    (void)state;
    static const shape shapes[] = {{1, 1, 1},    {1, 100, 37},   {4, 65, 128},   {7, 50, 33},   {8, 200, 64}, {9, 33, 17},
                                   {100, 4, 60}, {65, 7, 129},   {64, 64, 64},   {100, 50, 60}, {5, 300, 1},  {3, 9, 1030},
                                   {31, 70, 2},  {130, 141, 95}, {260, 520, 40}, {33, 47, 1100}, {37, 50, 4133}};
    for (int level = LNT_CPU_BASE; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int trans = 0; trans < 5; trans++) /* the last: B transposed, int8 */
                for (int types = 0; types < 3; types++)
                    for (int beta = 0; beta < 2; beta++)
                        check(shapes[i], trans & 1, trans & 6, trans == 4, types ? LINNET_BF16 : LINNET_F32, types == 2 ? LINNET_BF16 : LINNET_F32,
                              i % 3 ? 1.0f : -0.5f, (float)beta);
    }
    lnt_cpu_force(lnt_cpu_machine());
}

/* Empty products: K = 0 gives zero (or C), M = 0 and N = 0 touch nothing. */
static void empty(void **state)
{
    (void)state;
    linnet_context *c = context(2);
    float y[6] = {NAN, NAN, 7, NAN, NAN, 7};
    lnt_gemm_args g = {.M = 2, .N = 2, .K = 0, .alpha = 1, .ab = LINNET_F32, .c = LINNET_F32, .C = y, .lda = 1, .ldb = 2, .ldc = 3};
    assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
    for (int i = 0; i < 6; i++) assert_true(y[i] == (i % 3 == 2 ? 7 : 0));
    y[0] = 5, g.beta = 1;
    assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
    assert_true(y[0] == 5);
    g.M = 0, g.K = 3, g.beta = 0;
    assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
    assert_true(y[0] == 5);
    linnet_context_destroy(c);
}

/* A NaN or an infinity of an operand arrives in the rows and columns that read it, and nowhere else. */
static void not_a_number(void **state)
{
    (void)state;
    enum { M = 40, N = 40, K = 40 };
    linnet_context *c = context(2);
    static const lnt_dtype types[] = {LINNET_F32, LINNET_BF16};
    for (int t = 0; t < 2; t++) {
        void *a = lnt_calloc(M * K * 4), *b = lnt_calloc(N * K * 4);
        float *y = lnt_calloc(M * N * 4);
        lnt_store_element(a, types[t], 5 * K + 3, NAN);
        lnt_gemm_args g = {.M = M, .N = N, .K = K, .alpha = 1, .ab = types[t], .c = LINNET_F32, .a = a, .b = b, .C = y, .lda = K, .ldb = N, .ldc = N};
        assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
        for (int i = 0; i < M * N; i++) assert_true(isnan(y[i]) == (i / N == 5));
        lnt_free(a);
        lnt_free(b);
        lnt_free(y);
    }
    linnet_context_destroy(c);
}

/* A signal's handler runs on the stack of the thread it interrupts, wherever that thread is in a product. */
static const char *stack_low, *stack_high;
static volatile sig_atomic_t handled, astray;
static pthread_t multiplying;
static atomic_bool multiplied;

static void on_signal(int number)
{
    (void)number;
    const char *here = __builtin_frame_address(0);
    handled++;
    if (here < stack_low || here >= stack_high) astray++;
}

static void *disturb(void *unused)
{
    const struct timespec pause = {.tv_nsec = 20000};
    while (!multiplied) {
        pthread_kill(multiplying, SIGUSR1);
        nanosleep(&pause, NULL);
    }
    return unused;
}

static void signals(void **state)
{
    (void)state;
    pthread_attr_t attributes;
    void *low;
    size_t size;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &low, &size), 0);
    pthread_attr_destroy(&attributes);
    stack_low = low, stack_high = stack_low + size;
    enum { N = 128, PRODUCTS = 40000 };
    static const int64_t sizes[] = {10, 16, 32, 64, N};
    linnet_context *c = context(1);
    float *a = lnt_calloc(N * N * sizeof *a), *b = lnt_calloc(N * N * sizeof *b), *y = lnt_calloc(N * N * sizeof *y);
    const struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction before;
    assert_int_equal(sigaction(SIGUSR1, &act, &before), 0);
    multiplying = pthread_self();
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, disturb, NULL), 0);
    for (int i = 0; i < PRODUCTS; i++) {
        lnt_gemm_args g = {.M = sizes[i / 8 % 5], .N = sizes[i / 40 % 5], .K = sizes[i / 200 % 5], .trans_a = i & 1, .trans_b = i & 2,
                           .alpha = 1, .beta = (float)(i / 4 % 2), .ab = LINNET_F32, .c = LINNET_F32, .a = a, .b = b, .C = y, .lda = N, .ldb = N,
                           .ldc = N};
        assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
    }
    multiplied = true;
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    assert_true(handled > 0);
    if (astray) fail_msg("%d of %d signals were handled on what was no stack", (int)astray, (int)handled);
    lnt_free(a);
    lnt_free(b);
    lnt_free(y);
    linnet_context_destroy(c);
}

/* Rows 0 .. M-1 of the product g against `one`, where each was made by itself. */
static void check_rows(linnet_context *c, lnt_gemm_args g, const matrix *one, matrix *all, bool alone)
{
    const size_t row = (size_t)one->ld * lnt_dtype_size(one->t);
    memset(all->data, 0xff, (size_t)all->rows * row);
    g.C = all->data;
    lnt_rows_alone(c, alone);
    assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
    lnt_rows_alone(c, false);
    for (int64_t i = 0; i < g.M; i++)
        if (memcmp((char *)all->data + (size_t)i * row, (char *)one->data + (size_t)i * row, (size_t)g.N * lnt_dtype_size(one->t)))
            fail_msg("%s: row %lld of %lld by %lld by %lld%s, %s into %s", lnt_cpu_name(lnt_cpu()), (long long)i, (long long)g.M, (long long)g.N,
                     (long long)g.K, alone ? ", alone" : "", lnt_dtype_name(g.ab), lnt_dtype_name(g.c));
}

static void check_alone(linnet_context *c, int64_t K, lnt_dtype in, lnt_dtype out, lnt_rng *r)
{
    enum { MOST = 70, WIDE = 133 };
    static const int64_t rows[] = {1, 2, 7, 8, 9, 64, MOST}, widths[] = {1, 5, 8, 64, WIDE};
    matrix a = make(MOST, K, in, r), b = make(WIDE, K, in, r), one = make(MOST, WIDE, out, r), all = make(MOST, WIDE, out, r);
    lnt_gemm_args g = {.trans_b = true, .K = K, .alpha = 1, .ab = in, .c = out, .b = b.data, .lda = a.ld, .ldb = b.ld, .ldc = one.ld};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        g.N = widths[w], g.M = 1;
        for (int64_t i = 0; i < MOST; i++) {
            g.a = (char *)a.data + (size_t)(i * a.ld) * lnt_dtype_size(in);
            g.C = (char *)one.data + (size_t)(i * one.ld) * lnt_dtype_size(out);
            assert_int_equal(lnt_gemm(c, &g), LINNET_OK);
        }
        g.a = a.data;
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++) {
            g.M = rows[m];
            if (g.M <= 8) check_rows(c, g, &one, &all, false);
            check_rows(c, g, &one, &all, true);
        }
    }
    g.trans_a = true, g.M = g.N = g.K = 1;
    lnt_rows_alone(c, true);
    assert_int_equal(lnt_gemm(c, &g), LINNET_EINTERNAL);
    lnt_rows_alone(c, false);
    release(&a), release(&b), release(&one), release(&all);
}

/* With rows alone a row has the bits it has by itself, however many rows stand beside it; up to 8 rows always do. */
static void rows_alone(void **state)
{
    (void)state;
    static const int64_t depths[] = {1, 17, 96, 1100};
    linnet_context *c = context(3);
    lnt_rng r = lnt_rng_make(9, 0);
    for (int level = LNT_CPU_BASE; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        for (size_t k = 0; k < sizeof depths / sizeof *depths; k++)
            for (int type = 0; type < 4; type++)
                check_alone(c, depths[k], type & 1 ? LINNET_BF16 : LINNET_F32, type & 2 ? LINNET_BF16 : LINNET_F32, &r);
    }
    lnt_cpu_force(lnt_cpu_machine());
    linnet_context_destroy(c);
}

int main(void)
{
    /* the signals first: oneDNN keeps the variant of its first product, the machine's here */
    const struct CMUnitTest tests[] = {cmocka_unit_test(signals), cmocka_unit_test(products), cmocka_unit_test(empty),
                                       cmocka_unit_test(not_a_number), cmocka_unit_test(rows_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
