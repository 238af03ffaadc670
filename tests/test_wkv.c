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

static int begin(void **state) { return (void)state, linnet_context_create(NULL, &c); }
static int end(void **state) { return (void)state, linnet_context_destroy(c), 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exponential_mean_written_out)};
    return cmocka_run_group_tests(tests, begin, end);
}
