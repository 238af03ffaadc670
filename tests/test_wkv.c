/* WKV: what is special to it. What holds for every operator is in test_recurrence and test_identities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"
#include "recurrence/problem.h"
#include "recurrence/scan/scan.h"

enum { T = 70, D = 21 };
static linnet_context *c;

static void run(lnt_wkv_args *a, linnet_form form, int64_t tokens, const float *k, const float *v, const float *w, const float *u, float *o)
{
    static int64_t cu[2];
    size_t bytes;
    cu[1] = tokens;
    lnt_recur_init(&lnt_recur_wkv, a);
    a->D = D, a->tokens = tokens, a->sequences = 1, a->cu_seqlens = cu, a->form = form;
    a->k = k, a->v = v, a->w = w, a->u = u, a->o = o;
    assert_int_equal(lnt_recur_workspace(c, a, false, &bytes), LINNET_OK);
    a->workspace = lnt_alloc(bytes + 1);
    a->workspace_size = bytes;
}

static void finish(lnt_wkv_args *a)
{
    assert_int_equal(lnt_recur_run(c, a, false), LINNET_OK);
    lnt_free(a->workspace);
}

/* The paper's equation 16, every weight written out and scaled by the largest. */
static double written_out(int64_t t, int64_t d, const float *k, const float *v, const float *w, const float *u)
{
    double most = -INFINITY, sum = 0, all = 0;
    for (int turn = 0; turn < 2; turn++)
        for (int64_t s = 0; s <= t; s++) {
            const double power = k[s * D + d] + (s == t ? u[d] : -exp(w[d]) * (double)(t - 1 - s));
            if (!turn) most = fmax(most, power);
            else sum += exp(power - most) * v[s * D + d], all += exp(power - most);
        }
    return sum / all;
}

static void exponential_mean_written_out(void **state)
{
    (void)state;
    static const double shift[] = {0, 300, -300};
    static float k[T * D], v[T * D], w[D], u[D], o[T * D], again[T * D], zero[D];
    lnt_rng g = lnt_rng_make(3, 0);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++)
        for (int i = 0; i < 4; i++) { /* as it is, large and small weights, and no decay and no bonus */
            for (int e = 0; e < T * D; e++) {
                k[e] = (float)(2 * lnt_rng_normal(&g) + (i < 3 ? shift[i] : 0));
                v[e] = (float)lnt_rng_normal(&g);
                o[e] = again[e] = NAN;
            }
            for (int d = 0; d < D; d++) w[d] = i == 3 ? -INFINITY : (float)(lnt_rng_normal(&g) - 2), u[d] = i == 3 ? 0 : (float)lnt_rng_normal(&g);
            lnt_wkv_args a;
            run(&a, (linnet_form)form, T, k, v, w, u, o);
            finish(&a);
            double error = 0, size = 0;
            for (int64_t t = 0; t < T; t++)
                for (int64_t d = 0; d < D; d++) {
                    const double want = written_out(t, d, k, v, w, u);
                    error += pow(o[t * D + d] - want, 2);
                    size += want * want;
                }
            if (!(sqrt(error / size) < 3e-6 + 2e-7 * fabs(i < 3 ? shift[i] : 0))) fail_msg("form %d, case %d: %g", form, i, sqrt(error / size));
            /* a state of zeros is none, whatever its m */
            float m[D];
            for (int d = 0; d < D; d++) m[d] = (float)(40 * lnt_rng_normal(&g));
            run(&a, (linnet_form)form, T, k, v, w, u, again);
            a.a0 = a.b0 = zero;
            a.m0 = m;
            finish(&a);
            assert_memory_equal(o, again, sizeof o);
        }
}

/* Weights of which each is far from the one before, decays from 1 to e^-80 and bonuses as large, against the reference: what carries the sums has to
 * follow them. `held`: such weights that most of a channel's are 0 beside one of them, then all go down. */
static float far_number(const char *name, lnt_rng *g, int64_t i, bool held)
{
    const double x = lnt_rng_normal(g);
    if (strcmp(name, "w") == 0) return (float)fmax(-9, fmin(4.38, -1 + 3 * x));
    if (strcmp(name, "u") == 0) return (float)fmax(-60, fmin(60, 20 * x));
    if (strcmp(name, "m0") == 0) return (float)(30 * x);
    const int64_t t = i / D;
    return (float)(held ? 4 * x + (t % 23 == 5 ? 120 : 0) - 3 * (double)t : (i % 3 ? 12 : 40) * x);
}

/* a and b over e^m are known only as well as m, which is in the thousands here: over that of the reference. */
static void over_the_same_m(lnt_problem *p, const lnt_problem *truth)
{
    static const char *const names[] = {"aT", "bT"};
    const int m = lnt_recur_tensor_find(p->op, "mT");
    for (int e = 0; e < 2; e++) {
        float *x = p->data[lnt_recur_tensor_find(p->op, names[e])];
        for (int64_t i = 0; i < lnt_recur_elements(&p->call, m); i++)
            x[i] = (float)(x[i] * exp((double)((const float *)p->data[m])[i] - ((const double *)truth->data[m])[i]));
    }
}

static void weights_far_apart(void **state)
{
    (void)state;
    static const char *const names[] = {"k", "w", "u", "m0"};
    const lnt_recur_case k = {.op = "wkv", .sequences = 4, .length = {T, 0, 1, 45}, .size = {{"D", D}}, .states = true};
    for (int held = 0; held < 2; held++) {
        lnt_problem p, truth;
        assert_int_equal(lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 4, &p), LINNET_OK);
        assert_int_equal(lnt_problem_make(c, &k, LINNET_F64, LINNET_F32, 4, &truth), LINNET_OK);
        lnt_rng g = lnt_rng_make(5, 0);
        for (size_t e = 0; e < sizeof names / sizeof *names; e++) {
            const int row = lnt_recur_tensor_find(p.op, names[e]);
            for (int64_t i = 0; i < lnt_recur_elements(&p.call, row); i++) {
                const float x = far_number(names[e], &g, i, held);
                lnt_store_element(p.data[row], LINNET_F32, i, x);
                lnt_store_element(truth.data[row], LINNET_F64, i, x);
            }
        }
        for (int backward = 0; backward < 2; backward++) {
            assert_int_equal(lnt_problem_run(c, &p, backward), LINNET_OK);
            assert_int_equal(lnt_problem_run(c, &truth, backward), LINNET_OK);
        }
        over_the_same_m(&p, &truth);
        for (int i = 0; p.op->tensors[i].name; i++) {
            if (p.op->tensors[i].role < LNT_T_OUTPUT || !p.data[i]) continue;
            const lnt_recur_error e = lnt_problem_error(&p, &truth, i);
            if (!(e.relative <= lnt_recur_allowed(p.op, LINNET_F32, i)))
                fail_msg("%s, held %d: relative error %.3g, largest %.3g at %lld", p.op->tensors[i].name, held, e.relative, e.most,
                         (long long)e.worst);
        }
        lnt_problem_free(&p);
        lnt_problem_free(&truth);
    }
}

/* Weights of 0, e^-inf, are as good as no tokens; NaN stays. */
static void no_weight_and_no_number(void **state)
{
    (void)state;
    static float k[T * D], v[T * D], w[D], u[D], o[T * D], few[T * D], want[T * D];
    static float kept_k[T * D], kept_v[T * D];
    lnt_rng g = lnt_rng_make(6, 0);
    lnt_wkv_args a;
    int64_t count = 0;
    for (int d = 0; d < D; d++) w[d] = -INFINITY, u[d] = 0;
    for (int64_t t = 0; t < T; t++) {
        const bool none = t > 0 && lnt_rng_uniform(&g) < 0.5;
        for (int64_t d = 0; d < D; d++) {
            k[t * D + d] = none ? -INFINITY : (float)(3 * lnt_rng_normal(&g));
            v[t * D + d] = (float)lnt_rng_normal(&g);
            if (!none) kept_k[count * D + d] = k[t * D + d], kept_v[count * D + d] = v[t * D + d];
        }
        count += !none;
    }
    run(&a, LINNET_FORM_CHUNK, T, k, v, w, u, o);
    finish(&a);
    run(&a, LINNET_FORM_CHUNK, count, kept_k, kept_v, w, u, few);
    finish(&a);
    for (int64_t t = 0, at = -1; t < T; t++) {
        at += k[t * D] > -INFINITY;
        memcpy(want + t * D, few + at * D, D * sizeof *want);
    }
    for (int i = 0; i < T * D; i++)
        if (!(fabsf(o[i] - want[i]) <= 2e-6f)) fail_msg("token %d, channel %d: %g, expected %g", i / D, i % D, (double)o[i], (double)want[i]);
    k[10 * D + 3] = NAN;
    run(&a, LINNET_FORM_CHUNK, T, k, v, w, u, o);
    finish(&a);
    for (int i = 0; i < T * D; i++) assert_int_equal(isnan(o[i]) != 0, i % D == 3 && i / D >= 10);
}

static int begin(void **state) { return (void)state, linnet_context_create(NULL, &c); }
static int end(void **state) { return (void)state, linnet_context_destroy(c), 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exponential_mean_written_out), cmocka_unit_test(weights_far_apart),
                                       cmocka_unit_test(no_weight_and_no_number)};
    return cmocka_run_group_tests(tests, begin, end);
}
