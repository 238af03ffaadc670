/* tasks/mesa_*: the spectrum against known matrices and another method, the layers' inputs as the program computes them, losses against eval's,
 * and what fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/rng.h"
#include "tasks/mesa_numbers.h"
#include "tasks/spectrum.h"

static linnet_context *c;

/* ---- spectrum ---- */

/* a <- Q a Q^T for a random reflection Q; a [n,n] symmetric. */
static void reflect(int64_t n, double *a, lnt_rng *r)
{
    double v[160], size = 0;
    for (int64_t i = 0; i < n; i++) v[i] = lnt_rng_normal(r), size += v[i] * v[i];
    for (int side = 0; side < 2; side++)
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = side ? j * n : j, step = side ? 1 : n;
            double dot = 0;
            for (int64_t i = 0; i < n; i++) dot += v[i] * a[at + i * step];
            for (int64_t i = 0; i < n; i++) a[at + i * step] -= 2 * dot / size * v[i];
        }
}

static void check_spectrum(int64_t n, double *a, double low, double high)
{
    double *work = malloc((size_t)(3 * n) * sizeof *work), l = NAN, h = NAN;
    lnt_extreme_eigenvalues(n, a, work, &l, &h);
    const double slack = 1e-13 * fmax(fabs(low), fabs(high));
    if (!(fabs(l - low) <= slack && fabs(h - high) <= slack))
        fail_msg("%lld: %.16g .. %.16g, expected %.16g .. %.16g", (long long)n, l, h, low, high);
    free(work);
}

static void known_spectra(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 5, 16, 48, 128};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        lnt_rng r = lnt_rng_make(3, (uint64_t)n);
        double *a = calloc((size_t)(n * n), sizeof *a);
        for (int64_t i = 0; i < n; i++) { /* second differences: 2 - 2 cos(pi i / (n + 1)) */
            a[i * n + i] = 2;
            if (i) a[i * n + i - 1] = a[(i - 1) * n + i] = -1;
        }
        for (int i = 0; i < 3; i++) reflect(n, a, &r);
        check_spectrum(n, a, 2 - 2 * cos(M_PI / (double)(n + 1)), 2 - 2 * cos(M_PI * (double)n / (double)(n + 1)));
        memset(a, 0, (size_t)(n * n) * sizeof *a); /* condition 5000, one large direction */
        for (int64_t i = 0; i < n; i++) a[i * n + i] = i ? 0.25 + (double)i / (double)n : 1250;
        if (n > 1) a[n * n - 1] = 0.25;
        for (int i = 0; i < 3; i++) reflect(n, a, &r);
        check_spectrum(n, a, n > 1 ? 0.25 : 1250, 1250);
        memset(a, 0, (size_t)(n * n) * sizeof *a); /* nothing to reflect */
        for (int64_t i = 0; i < n; i++) a[i * n + i] = 3;
        check_spectrum(n, a, 3, 3);
        free(a);
    }
}

/* ---- a small model ---- */

enum { VOCAB = 61, LENGTH = 40, WINDOWS = 3, IDS = WINDOWS * LENGTH + 7, HEADS = 2, K = 12 };

static linnet_model *small_model(const char *type, linnet_dtype dtype)
{
    static const char *const set[][2] = {{"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"vocab_size", "61"}, {"intermediate_size", "40"},
                                         {"num_heads", "2"}, {"head_dim", "12"}, {"initializer_range", "0.2"}};
    linnet_config *k;
    linnet_model *m;
    assert_int_equal(linnet_config_create(c, type, &k), LINNET_OK);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) assert_int_equal(linnet_config_set(c, k, set[i][0], set[i][1]), LINNET_OK);
    if (!strcmp(type, "equal_backbone")) { /* trained for any number of steps, which must not limit what is tried */
        assert_int_equal(linnet_config_set(c, k, "rule", "mesa"), LINNET_OK);
        assert_int_equal(linnet_config_set(c, k, "cg_gradient", "unrolled"), LINNET_OK);
        assert_int_equal(linnet_config_set(c, k, "min_cg_step_training", "20"), LINNET_OK);
    }
    if (linnet_model_create(c, k, dtype, 5, &m) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    linnet_config_destroy(k);
    /* gates and Lambdas as trained ones, not all the same */
    lnt_rng r = lnt_rng_make(8, 0);
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        float *w = m->w->master + q->offset;
        for (int64_t j = 0; j < q->count; j++) {
            if (strstr(q->name, "a_proj.bias")) w[j] = j % 2 ? 6 : 0;
            if (strstr(q->name, "lambda_params")) w[j] = (float)(lnt_rng_normal(&r) - 1);
        }
    }
    lnt_weights_changed(m->w);
    return m;
}

static void draw(int32_t *ids)
{
    lnt_rng r = lnt_rng_make(21, 0);
    for (int i = 0; i < IDS; i++) ids[i] = (int32_t)lnt_rng_below(&r, VOCAB);
}

/* Cyclic Jacobi rotations: another way to the same ends. */
static double condition_by_rotations(double a[K][K])
{
    for (int sweep = 0; sweep < 30; sweep++)
        for (int p = 0; p < K; p++)
            for (int q = p + 1; q < K; q++) {
                if (fabs(a[p][q]) < 1e-300) continue;
                double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]), t = copysign(1, theta) / (fabs(theta) + sqrt(theta * theta + 1));
                double cosine = 1 / sqrt(t * t + 1), sine = t * cosine;
                for (int i = 0; i < K; i++) {
                    double x = a[i][p], y = a[i][q];
                    a[i][p] = cosine * x - sine * y;
                    a[i][q] = sine * x + cosine * y;
                }
                for (int i = 0; i < K; i++) {
                    double x = a[p][i], y = a[q][i];
                    a[p][i] = cosine * x - sine * y;
                    a[q][i] = sine * x + cosine * y;
                }
            }
    double low = INFINITY, high = 0;
    for (int i = 0; i < K; i++) low = fmin(low, a[i][i]), high = fmax(high, a[i][i]);
    return high / low;
}

/* x with a x = b, by elimination; a is symmetric and positive. */
static void solve(double a[K][K], const double *b, double *x)
{
    double m[K][K];
    memcpy(m, a, sizeof m);
    memcpy(x, b, K * sizeof *x);
    for (int p = 0; p < K; p++)
        for (int i = p + 1; i < K; i++) {
            const double f = m[i][p] / m[p][p];
            for (int j = p; j < K; j++) m[i][j] -= f * m[p][j];
            x[i] -= f * x[p];
        }
    for (int p = K; p-- > 0;) {
        for (int j = p + 1; j < K; j++) x[p] -= m[p][j] * x[j];
        x[p] /= m[p][p];
    }
}

/* Between G^T x for two x; G [K,V] by rows of keys. */
static double cosine_of(const double *G, int V, const double *x, const double *y)
{
    double xx = 0, yy = 0, xy = 0;
    for (int j = 0; j < V; j++) {
        double a = 0, b = 0;
        for (int i = 0; i < K; i++) a += G[i * V + j] * x[i], b += G[i * V + j] * y[i];
        xx += a * a, yy += b * b, xy += a * b;
    }
    return xy / sqrt(xx * yy);
}

/* The program's own q, k, v, g and beta of every window, from a plan that keeps them, give the condition numbers, cosines and means again. */
static void check_inside(const lnt_mesa_numbers *z)
{
    lnt_plan *plan;
    lnt_buf kept[2][5];
    for (int l = 0; l < 2; l++) memcpy(kept[l], z->node[l]->in, sizeof kept[l]);
    lnt_plan_options o = {.tokens = WINDOWS * LENGTH, .n_seq = WINDOWS, .dtype = z->m->dtype, .n_outputs = 1, .outputs = {z->m->logits},
                          .n_kept = 10, .kept = &kept[0][0]};
    assert_int_equal(lnt_plan_create(c, z->m->p, &o, &plan), LINNET_OK);
    lnt_batch b = {.tokens = WINDOWS * LENGTH, .n_seq = WINDOWS, .n_inputs = 1, .inputs = {{z->m->ids, z->ids}}};
    assert_int_equal(lnt_plan_run(plan, z->m->w, &b), LINNET_OK);
    for (int x = 0; x < 2 * HEADS; x++) {
        const int l = x / HEADS, h = x % HEADS;
        const lnt_tensor values = lnt_plan_output(plan, kept[l][2]);
        const float *q = lnt_plan_output(plan, kept[l][0]).data, *k = lnt_plan_output(plan, kept[l][1]).data, *v = values.data;
        const float *g = lnt_plan_output(plan, kept[l][3]).data, *beta = lnt_plan_output(plan, kept[l][4]).data;
        const int V = (int)(values.cols / HEADS);
        const int64_t end = (int64_t)(x + 1) * z->n_bins - 1, from = z->bin[z->n_bins - 1]; /* the last bin */
        double means[2] = {0}, logs = 0, cosine = 0, *G = malloc((size_t)(K * V) * sizeof *G);
        for (int w = 0; w < WINDOWS; w++) {
            double H[K][K] = {{0}}, A[K][K], start[K], x_q[K], q_t[K];
            memset(G, 0, (size_t)(K * V) * sizeof *G);
            for (int t = w * LENGTH; t < (w + 1) * LENGTH; t++) {
                means[0] += beta[t * HEADS + h] / (double)(WINDOWS * LENGTH);
                means[1] += exp((double)g[t * HEADS + h]) / (double)(WINDOWS * LENGTH);
                const float *key = k + (t * HEADS + h) * K;
                for (int i = 0; i < K; i++)
                    for (int j = 0; j < K; j++)
                        H[i][j] = exp((double)g[t * HEADS + h]) * H[i][j] + (double)beta[t * HEADS + h] * key[i] * key[j];
                for (int i = 0; i < K; i++)
                    for (int j = 0; j < V; j++)
                        G[i * V + j] = exp((double)g[t * HEADS + h]) * G[i * V + j] +
                                       (double)beta[t * HEADS + h] * key[i] * v[(t * HEADS + h) * V + j];
                if (t - w * LENGTH < from) continue;
                memcpy(A, H, sizeof A);
                for (int i = 0; i < K; i++) {
                    A[i][i] += z->lambda[x * K + i];
                    q_t[i] = q[(t * HEADS + h) * K + i];
                    start[i] = q_t[i] / A[i][i];
                }
                solve(A, q_t, x_q);
                cosine += cosine_of(G, V, start, x_q) / (double)(WINDOWS * (LENGTH - from));
            }
            for (int i = 0; i < K; i++) H[i][i] += z->lambda[x * K + i];
            logs += log(condition_by_rotations(H)) / WINDOWS;
        }
        free(G);
        assert_true(fabs(z->beta[x] - means[0]) < 1e-6 && fabs(z->gamma[x] - means[1]) < 1e-6);
        assert_true(fabs(log(z->high[end] / z->low[end]) - logs) < 1e-5); /* windows run one by one or together: float32 apart */
        assert_true(fabs(z->cosine[end] - cosine) < 1e-5 && cosine < 0.9999);
        const double first = WINDOWS * z->cosine[(int64_t)x * z->n_bins]; /* one token, one direction: 1 or -1 in each window */
        assert_true(fabs(first - round(first)) < 1e-5 && fabs(fmod(round(first), 2)) == WINDOWS % 2);
        assert_true(means[1] > (h ? 0.9 : 0.1) && means[1] < (h ? 1 : 0.9) && logs > 0.1);
    }
    lnt_plan_destroy(plan);
}

/* Eval's loss of a model built with the setting in its configuration. */
static double eval_loss(linnet_model *m, const char *tolerance, const char *steps, const int32_t *ids, int64_t n)
{
    linnet_config *k;
    linnet_model *other;
    lnt_scorer *scorer;
    lnt_score score = {0};
    assert_int_equal(lnt_config_copy(c, m->config, &k), LINNET_OK);
    assert_int_equal(linnet_config_set(c, k, "min_cg_step_training", "null"), LINNET_OK);
    assert_int_equal(linnet_config_set(c, k, "cg_tolerance", tolerance), LINNET_OK);
    assert_int_equal(linnet_config_set(c, k, "max_cg_step_training", steps), LINNET_OK);
    assert_int_equal(linnet_model_create(c, k, m->dtype, 99, &other), LINNET_OK);
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        assert_int_equal(lnt_weights_put(other->w, q, 0, m->w->master + q->offset, q->count), LINNET_OK);
    }
    assert_int_equal(lnt_scorer_create(c, other, LENGTH, WINDOWS, &scorer), LINNET_OK);
    assert_int_equal(lnt_scorer_run(scorer, ids, n, NULL, NULL, &score), LINNET_OK);
    lnt_scorer_destroy(scorer);
    linnet_model_destroy(other);
    linnet_config_destroy(k);
    return score.nats / (double)score.tokens;
}

static void numbers_of_a_model(void **state)
{
    (void)state;
    static const char *const types[] = {"mesa_net", "equal_backbone"};
    static const int64_t budgets[] = {0, 2, 12};
    static const double tolerances[] = {1e-1, 1e-5};
    int32_t ids[IDS];
    draw(ids);
    for (int t = 0; t < 4; t++) {
        linnet_model *m = small_model(types[t % 2], t / 2 ? LINNET_BF16 : LINNET_F32);
        float *before = malloc((size_t)m->w->elements * 4);
        memcpy(before, m->w->master, (size_t)m->w->elements * 4);
        lnt_mesa_ask o = {0};
        o.budgets = budgets;
        o.n_budgets = 3;
        o.tolerances = tolerances;
        o.n_tolerances = 2;
        lnt_mesa_numbers z;
        assert_int_equal(lnt_mesa_open(c, m, &o, &z), LINNET_OK);
        assert_int_equal(lnt_mesa_set_text(c, &z, ids, IDS, LENGTH), LINNET_OK);
        assert_int_equal(lnt_mesa_measure(c, &z, NULL, NULL), LINNET_OK);
        assert_int_equal(z.layers, 2);
        assert_int_equal(z.heads, HEADS);
        assert_int_equal(z.windows, WINDOWS);
        assert_int_equal(z.n_settings, 6);
        assert_int_equal(z.bin[z.n_bins], LENGTH);
        for (int b = 0; b < z.n_bins; b++) assert_true(z.bin[b] < z.bin[b + 1]);
        for (int x = 0; x < 2 * HEADS; x++) { /* H_1 = beta k k^T with beta < 1 and |k| <= 1 */
            double least = INFINITY, most = 0;
            for (int i = 0; i < K; i++) least = fmin(least, z.lambda[x * K + i]), most = fmax(most, z.lambda[x * K + i]);
            assert_true(least > 0.25 && z.low[x * z.n_bins] > least * (1 - 1e-9) && z.high[x * z.n_bins] < (most + 1) * (1 + 1e-3));
        }
        if (!(t / 2)) check_inside(&z);
        static const char *const how[][2] = {{"1e-4", "30"}, {"0", "0"}, {"0", "2"}, {"0", "12"}, {"0.1", "300"}, {"1e-5", "300"}};
        for (int i = 0; i < 6; i++) {
            double loss = eval_loss(m, how[i][0], how[i][1], ids, WINDOWS * LENGTH + 1), mean = 0;
            if (!(fabs(z.settings[i].nats - loss) < 1e-7))
                fail_msg("%s, setting %d: %.9f, eval says %.9f", types[t % 2], i, z.settings[i].nats, loss);
            for (int p = 0; p < LENGTH; p++) mean += z.settings[i].position[p] / LENGTH;
            assert_true(fabs(mean - z.settings[i].nats) < 1e-9);
        }
        assert_true(fabs(z.settings[1].nats - z.settings[0].nats) > 1e-4); /* the number of steps reaches the layers */
        assert_true(fabs(z.settings[5].nats - z.settings[0].nats) < 1e-3);
        for (int s = 0; s < z.n_solvers; s++) {
            assert_true(lnt_mesa_mean_steps(&z, s, 0) < lnt_mesa_mean_steps(&z, s, 1));
            assert_true(lnt_mesa_mean_steps(&z, s, 1) < K + 8);
            for (int64_t i = lnt_mesa_row(&z, s, 0, 0); i < lnt_mesa_row(&z, s, 1, 2 * HEADS - 1) + z.n_bins; i++)
                assert_true(z.steps[i] <= z.most[i] && z.most[i] <= LNT_MESA_MOST_STEPS && z.unfinished[i] == 0);
        }
        assert_memory_equal(before, m->w->master, (size_t)m->w->elements * 4);
        free(before);
        lnt_mesa_close(&z);
        linnet_model_destroy(m);
    }
}

/* ---- refusals and failures ---- */

static void refusals(void **state)
{
    (void)state;
    lnt_mesa_ask o = {0};
    int32_t ids[IDS];
    draw(ids);
    lnt_mesa_numbers z;
    linnet_model *m = small_model("mesa_net", LINNET_F32), *other = small_model("gated_deltanet", LINNET_F32);
    assert_int_equal(lnt_mesa_open(c, other, &o, &z), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "no mesa layer"));
    lnt_mesa_close(&z);
    o.solver = "flash";
    assert_int_equal(lnt_mesa_open(c, m, &o, &z), LINNET_EINVAL);
    lnt_mesa_close(&z);
    o.solver = NULL;
    o.budgets = (int64_t[]){-1};
    o.n_budgets = 1;
    assert_int_equal(lnt_mesa_open(c, m, &o, &z), LINNET_EINVAL);
    lnt_mesa_close(&z);
    o.budgets = NULL;
    o.tolerances = (double[]){0};
    o.n_tolerances = 1;
    assert_int_equal(lnt_mesa_open(c, m, &o, &z), LINNET_EINVAL);
    lnt_mesa_close(&z);
    o.tolerances = NULL;
    assert_int_equal(lnt_mesa_open(c, m, &o, &z), LINNET_OK);
    assert_int_equal(lnt_mesa_set_text(c, &z, ids, 1, LENGTH), LINNET_EINVAL);
    ids[2] = VOCAB;
    assert_int_equal(lnt_mesa_set_text(c, &z, ids, IDS, LENGTH), LINNET_EINVAL);
    lnt_mesa_close(&z);
    linnet_model_destroy(m);
    linnet_model_destroy(other);
}

/* Where memory runs out anywhere, the status says so and no file is left. */
static void out_of_memory(void **state)
{
    (void)state;
    char folder[64], path[128];
    snprintf(folder, sizeof folder, "/tmp/linnet-test-mesa-%ld", (long)getpid());
    mkdir(folder, 0777);
    int32_t ids[IDS];
    draw(ids);
    linnet_model *m = small_model("mesa_net", LINNET_F32);
    lnt_mesa_ask o = {0};
    o.budgets = (int64_t[]){3};
    o.n_budgets = 1;
    o.tolerances = (double[]){1e-2};
    o.n_tolerances = 1;
    snprintf(path, sizeof path, "%s/mesa.svg", folder);
    int64_t n = 1;
    for (bool done = false; !done; n += 1 + n / 40) {
        lnt_mesa_numbers z;
        lnt_alloc_fail_at(n);
        linnet_status s = lnt_mesa_open(c, m, &o, &z);
        if (s == LINNET_OK) s = lnt_mesa_set_text(c, &z, ids, 2 * 9 + 1, 9);
        if (s == LINNET_OK) s = lnt_mesa_measure(c, &z, NULL, NULL);
        if (s == LINNET_OK) s = lnt_mesa_page(c, &z, path);
        done = lnt_alloc_count() < n;
        lnt_alloc_fail_at(0);
        if (done) assert_int_equal(s, LINNET_OK);
        else if (s != LINNET_OK) assert_int_equal(s, LINNET_ENOMEM);
        assert_int_equal(access(path, F_OK) == 0, s == LINNET_OK);
        unlink(path);
        lnt_mesa_close(&z);
    }
    assert_true(n > 50);
    assert_int_equal(rmdir(folder), 0); /* nothing half-written beside it either */
    linnet_model_destroy(m);
}

int main(void)
{
    if (linnet_context_create(NULL, &c) != LINNET_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_spectra), cmocka_unit_test(numbers_of_a_model), cmocka_unit_test(refusals),
                                       cmocka_unit_test(out_of_memory)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    linnet_context_destroy(c);
    return failed;
}
