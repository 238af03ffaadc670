/* Products of few rows on a GPU (ops/few_rows.h) against float64: 1 to 64 rows, columns that fill no stage, rows of weights that fill no tile and
 * tiles that blocks have several of, several maps in a call, biases, activations, sums, SwiGLU, and a norm that two calls share. "test_few_rows_cuda
 * NAME": only what contains NAME. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/rng.h"
#include "device/device.h"
#include "gpu_context.h"
#include "ops/few_rows.h"
#include "ops/ops.h"

enum { GUARD = 64 };

/* A tensor [rows, ld] of which `cols` columns are its own: the rest, and what lies behind it, nobody may write. */
typedef struct {
    lnt_dtype type;
    int64_t rows, cols, ld;
    unsigned char *begin, *now;
    void *device;
} matrix;

static size_t bytes_of(const matrix *m) { return (size_t)(m->rows * m->ld) * lnt_dtype_size(m->type) + GUARD; }
static matrix make(linnet_context *c, lnt_dtype type, int64_t rows, int64_t cols, int64_t pad, lnt_rng *r)
{
    matrix m = {type, rows, cols, cols + pad, NULL, NULL, NULL};
    m.begin = lnt_alloc(bytes_of(&m)), m.now = lnt_alloc(bytes_of(&m));
    memset(m.begin, 0x5a, bytes_of(&m));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) lnt_store_element(m.begin, type, i * m.ld + j, r ? lnt_rng_normal(r) : NAN);
    if (lnt_device_alloc(c, bytes_of(&m), &m.device) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    lnt_to_device(c, m.device, m.begin, bytes_of(&m));
    return m;
}
static double at(const matrix *m, int64_t i, int64_t j) { return lnt_load_element(m->begin, m->type, i * m->ld + j); }
static double got(const matrix *m, int64_t i, int64_t j) { return lnt_load_element(m->now, m->type, i * m->ld + j); }
static void receive(linnet_context *c, matrix *m) { lnt_to_host(c, m->now, m->device, bytes_of(m)); }
static void done(linnet_context *c, matrix *m)
{
    if (!m->begin) return;
    lnt_device_free(c, m->device);
    lnt_free(m->begin);
    lnt_free(m->now);
}

static double half(double x)
{
    unsigned char b[2];
    lnt_store_element(b, LINNET_BF16, 0, x);
    return lnt_load_element(b, LINNET_BF16, 0);
}
static double act_of(int act, double x) { return act == LNT_SILU ? x / (1 + exp(-x)) : act == LNT_TANH ? tanh(x) : x; }

/* Relative error of m, whose element (i, j) should be want[i cols + j]. */
static void compare(const matrix *m, const double *want, double limit, const char *who)
{
    double error = 0, square = 0;
    for (int64_t i = 0; i < m->rows * m->ld; i++)
        if (i % m->ld >= m->cols && lnt_load_element(m->now, m->type, i) != lnt_load_element(m->begin, m->type, i))
            fail_msg("%s: written between rows", who);
    if (memcmp(m->now + bytes_of(m) - GUARD, m->begin + bytes_of(m) - GUARD, GUARD)) fail_msg("%s: written behind", who);
    for (int64_t i = 0; i < m->rows; i++)
        for (int64_t j = 0; j < m->cols; j++) {
            const double w = want[i * m->cols + j], d = got(m, i, j) - w;
            error += d * d, square += w * w;
        }
    if (!(sqrt(error) <= limit * sqrt(square))) fail_msg("%s: relative error %.2e, expected at most %.0e", who, sqrt(error / square), limit);
}

static double dot(const matrix *x, int64_t r, const matrix *w, int64_t n)
{
    double s = 0;
    for (int64_t k = 0; k < x->cols; k++) s += at(x, r, k) * at(w, n, k);
    return s;
}

static double limit_of(lnt_dtype t) { return t == LINNET_F32 ? 3e-6 : 4e-3; }

/* ---- several maps ------------------------------------------------------------------------------------------------------------------ */

static void check_maps(linnet_context *c, int R, int64_t K, int64_t many)
{
    static const struct {
        int64_t pad;
        lnt_dtype type;
        float alpha, scale;
        int act;
        bool bias, add;
    } kind[] = {{0, LINNET_BF16, 1, 1, LNT_IDENTITY, false, false},
                {8, LINNET_F32, 0.5f, 1, LNT_IDENTITY, false, false},
                {16, LINNET_BF16, 1, 2, LNT_SILU, true, false},
                {8, LINNET_F32, 1, 1, LNT_IDENTITY, false, true},
                {0, LINNET_F32, 1, 1, LNT_TANH, false, false}};
    enum { PARTS = sizeof kind / sizeof *kind };
    const int64_t N[PARTS] = {many, 20, 48, 16, 4};
    lnt_rng r = lnt_rng_make(5, (uint64_t)(K * 100 + R));
    matrix x = make(c, LINNET_BF16, R, K, 8, &r), w[PARTS], y[PARTS], bias[PARTS] = {{0}};
    lnt_few_rows f = {.R = R, .K = K, .x = x.device, .ldx = x.ld, .parts = PARTS, .weights = true};
    for (int i = 0; i < PARTS; i++) {
        w[i] = make(c, LINNET_BF16, N[i], K, 8, &r);
        y[i] = make(c, kind[i].type, R, N[i], kind[i].pad, kind[i].add ? &r : NULL);
        if (kind[i].bias) bias[i] = make(c, LINNET_F32, 1, N[i], 0, &r);
        f.part[i] = (lnt_few_part){.w = w[i].device,
                                   .bias = bias[i].device,
                                   .N = N[i],
                                   .ldw = w[i].ld,
                                   .y = y[i].device,
                                   .ldy = y[i].ld,
                                   .step = 1,
                                   .type = kind[i].type,
                                   .alpha = kind[i].alpha,
                                   .scale = kind[i].scale,
                                   .act = kind[i].act,
                                   .add = kind[i].add};
    }
    if (!lnt_few_rows_cuda(c, &f)) fail_msg("maps of %d rows and %d columns are not taken", R, (int)K);
    for (int i = 0; i < PARTS; i++) {
        char who[120];
        double *want = lnt_calloc((size_t)(R * N[i]) * sizeof *want);
        snprintf(who, sizeof who, "map %d of %d rows, %d columns, %d", i, R, (int)K, (int)N[i]);
        for (int64_t m = 0; m < R; m++)
            for (int64_t n = 0; n < N[i]; n++) {
                double s = kind[i].alpha * dot(&x, m, &w[i], n);
                if (kind[i].bias) s = half(s) + at(&bias[i], 0, n);
                if (kind[i].act != LNT_IDENTITY) s = kind[i].scale * act_of(kind[i].act, half(s));
                want[m * N[i] + n] = s + (kind[i].add ? at(&y[i], m, n) : 0);
            }
        receive(c, &y[i]);
        compare(&y[i], want, kind[i].act != LNT_IDENTITY ? 4e-3 : limit_of(kind[i].type), who);
        lnt_free(want);
        done(c, &w[i]), done(c, &y[i]), done(c, &bias[i]);
    }
    done(c, &x);
}

static const int ROWS[] = {1, 2, 3, 5, 8, 9, 16, 17, 40, 64};

static void maps(void **state)
{
    (void)state;
    linnet_context *c = wanted("maps") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        check_maps(c, ROWS[i], 64, 40);
        check_maps(c, ROWS[i], 320, 4600); /* on an H200 more tiles than blocks */
        check_maps(c, ROWS[i], 2048, 300);
        check_maps(c, ROWS[i], 4672, 72); /* not all of its last stage's columns */
    }
    linnet_context_destroy(c);
}

/* ---- a sum with its norm, and SwiGLU behind it ------------------------------------------------------------------------------------- */

static void check_norm(linnet_context *c, int R, int64_t K, int64_t N, int64_t inner, bool folded)
{
    lnt_rng r = lnt_rng_make(6, (uint64_t)(K * 100 + R));
    matrix x = make(c, LINNET_BF16, R, K, 0, &r), o = make(c, LINNET_BF16, N, K, 0, &r), stream = make(c, LINNET_F32, R, N, 4, &r),
           z = make(c, LINNET_F32, R, N, 8, NULL), weight = make(c, LINNET_F32, 1, N, 0, &r), zw = make(c, LINNET_BF16, R, N, 8, folded ? NULL : &r),
           squares = make(c, LINNET_F32, R, LNT_FEW_TILES, 0, NULL), gate = make(c, LINNET_BF16, inner, N, 0, &r),
           up = make(c, LINNET_BF16, inner, N, 8, &r), y = make(c, LINNET_BF16, R, inner, 8, NULL),
           maps = make(c, LINNET_F32, R, inner + 20, 4, NULL);
    lnt_few_sum sum = {.x = stream.device,
                       .z = z.device,
                       .w = weight.device,
                       .zw = zw.device,
                       .squares = squares.device,
                       .ldx = stream.ld,
                       .ldz = z.ld,
                       .ldzw = zw.ld};
    lnt_few_rows first = {.R = R, .K = K, .x = x.device, .ldx = x.ld, .parts = 1, .weights = true, .sum = &sum},
                 second = {.R = R, .K = N, .x = zw.device, .ldx = zw.ld, .parts = 2, .weights = true, .swiglu = true, .norm = folded ? &sum : NULL};
    const float alpha = 1.0f / 16;
    char who[120];
    second.mean = 1.0f / (float)N, second.eps = 1e-5f;
    first.part[0] =
        (lnt_few_part){.w = o.device, .N = N, .ldw = o.ld, .step = 1, .type = LINNET_BF16, .alpha = alpha, .scale = 1, .act = LNT_IDENTITY};
    for (int i = 0; i < 2; i++)
        second.part[i] = (lnt_few_part){.w = i ? up.device : gate.device,
                                        .N = inner,
                                        .ldw = i ? up.ld : gate.ld,
                                        .y = i ? NULL : y.device,
                                        .ldy = y.ld,
                                        .step = 1,
                                        .type = LINNET_BF16,
                                        .alpha = 1,
                                        .scale = 1,
                                        .act = LNT_IDENTITY};
    snprintf(who, sizeof who, "%s %d rows, %d and %d columns", folded ? "a sum and SwiGLU behind its norm," : "SwiGLU,", R, (int)K, (int)N);
    if (folded && !lnt_few_rows_cuda(c, &first)) fail_msg("%s: not taken", who);
    if (!lnt_few_rows_cuda(c, &second)) fail_msg("%s: not taken", who);
    lnt_few_rows third = second; /* maps: 20 rows of one and all of the other, side by side */
    third.swiglu = false;
    for (int i = 0; i < 2; i++) third.part[i].y = (float *)maps.device + (i ? 20 : 0), third.part[i].ldy = maps.ld, third.part[i].type = LINNET_F32;
    third.part[0].N = 20;
    if (!lnt_few_rows_cuda(c, &third)) fail_msg("%s: maps are not taken", who);
    receive(c, &z), receive(c, &zw), receive(c, &y), receive(c, &maps);
    double *want_z = lnt_calloc((size_t)(R * N) * sizeof *want_z), *want = lnt_calloc((size_t)(R * inner) * sizeof *want),
           *want_maps = lnt_calloc((size_t)(R * (inner + 20)) * sizeof *want_maps);
    for (int64_t m = 0; m < R; m++) {
        double square = 0, root = 1;
        for (int64_t n = 0; n < N && folded; n++) {
            want_z[m * N + n] = at(&stream, m, n) + half(alpha * dot(&x, m, &o, n));
            square += got(&z, m, n) * got(&z, m, n);
        }
        if (folded) root = 1 / sqrt(square * second.mean + second.eps);
        for (int64_t n = 0; n < inner; n++) {
            double g = 0, u = 0;
            for (int64_t k = 0; k < N; k++) g += got(&zw, m, k) * at(&gate, n, k), u += got(&zw, m, k) * at(&up, n, k);
            want[m * inner + n] = act_of(LNT_SILU, half(root * g)) * half(root * u);
            if (n < 20) want_maps[m * (inner + 20) + n] = root * g;
            want_maps[m * (inner + 20) + 20 + n] = root * u;
        }
    }
    if (folded) compare(&z, want_z, 1e-3, who);
    for (int64_t i = 0; folded && i < R * N; i++) want_z[i] = got(&z, i / N, i % N) * at(&weight, 0, i % N);
    if (folded) compare(&zw, want_z, 4e-3, who);
    compare(&y, want, 6e-3, who);
    compare(&maps, want_maps, 1e-5, who);
    lnt_free(want_z), lnt_free(want), lnt_free(want_maps);
    matrix *all[] = {&x, &o, &stream, &z, &weight, &zw, &squares, &gate, &up, &y, &maps};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) done(c, all[i]);
}

static void norm(void **state)
{
    (void)state;
    linnet_context *c = wanted("norm") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
        for (int folded = 0; folded < 2; folded++) {
            check_norm(c, ROWS[i], 4160, 512, 88, folded);
            check_norm(c, ROWS[i], 576, 2048, 2200, folded);
        }
    linnet_context_destroy(c);
}

/* What a sanitizer gets through. */
static void small(void **state)
{
    (void)state;
    linnet_context *c = wanted("small") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (int R = 1; R <= 3; R += 2) {
        check_maps(c, R, 4672, 24);
        check_norm(c, R, 4160, 320, 1600, true);
        check_maps(c, R, 7232, 24);           /* of one row two blocks a tile */
        check_norm(c, R, 7232, 64, 40, true); /* so in the emulator, whose GPU has four multiprocessors */
    }
    for (int R = 20; R <= 60; R += 20) { /* there too, several blocks a tile: the sum; SwiGLU and the maps */
        check_norm(c, R, 2112, 192, 40, true);
        check_norm(c, R, 320, 1600, 40, true);
    }
    check_norm(c, 25, 3200, 64, 40, true); /* a block without results of its own; sums of squares of more than 32 tiles */
    check_norm(c, 21, 64, 3200, 24, true);
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(maps), cmocka_unit_test(norm), cmocka_unit_test(small)};
    if (argc > 1) only = argv[1];
    return exit_status(cmocka_run_group_tests(tests, NULL, NULL));
}
