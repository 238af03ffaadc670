/* AdamW and the gradient norm against float64, over a program's parameter table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "core/memory.h"
#include "core/rng.h"
#include "ops/optimizer.h"

typedef struct {
    linnet_context *c;
    lnt_program *p;
    int64_t n;
    float *master, *grad, *m, *v;
    lnt_bf16 *work;
} setting;

/* Sizes around vectors and pieces, with paddings between; some decay. Paddings are NaN. */
static setting make(int threads)
{
    static const int64_t sizes[] = {1, 15, 17, 64, 1000, 70001, 3, 33000};
    setting s = {0};
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    assert_int_equal(linnet_context_create(&o, &s.c), LINNET_OK);
    assert_int_equal(lnt_program_create(s.c, &s.p), LINNET_OK);
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        char name[] = "a";
        name[0] = (char)('a' + i);
        assert_true(lnt_add_param(s.p, name, 1, &sizes[i], (lnt_init){LNT_INIT_CONST, 0, 0}, i % 2 == 0, true) == i);
    }
    s.n = lnt_param_elements(s.p);
    float **arrays[] = {&s.master, &s.grad, &s.m, &s.v};
    for (int k = 0; k < 4; k++) {
        float *x = *arrays[k] = lnt_alloc((size_t)s.n * 4);
        lnt_rng r = lnt_rng_make(3, (uint64_t)k);
        for (int64_t i = 0; i < s.n; i++) x[i] = NAN;
        for (int q = 0; q < lnt_param_count(s.p); q++)
            for (int64_t i = 0; i < lnt_param_at(s.p, q)->count; i++)
                x[lnt_param_at(s.p, q)->offset + i] = k == 2 ? 0.0f : k == 3 ? 0.0f : (float)lnt_rng_normal(&r);
    }
    s.work = lnt_calloc((size_t)s.n * 2);
    return s;
}

static void drop(setting *s)
{
    lnt_free(s->master);
    lnt_free(s->grad);
    lnt_free(s->m);
    lnt_free(s->v);
    lnt_free(s->work);
    lnt_program_destroy(s->p);
    linnet_context_destroy(s->c);
}

static bool owned(const lnt_program *p, int64_t at, bool *decay)
{
    for (int q = 0; q < lnt_param_count(p); q++) {
        const lnt_param *x = lnt_param_at(p, q);
        if (at >= x->offset && at < x->offset + x->count) return *decay = x->decay, true;
    }
    return false;
}

static void steps(void **state)
{
    (void)state;
    enum { STEPS = 3 };
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        float *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            setting s = make(threads);
            double *w = lnt_calloc((size_t)s.n * 8), *m = lnt_calloc((size_t)s.n * 8), *v = lnt_calloc((size_t)s.n * 8),
                   *g = lnt_calloc((size_t)s.n * 8);
            float *g0 = lnt_alloc((size_t)s.n * 4);
            memcpy(g0, s.grad, (size_t)s.n * 4);
            for (int64_t i = 0; i < s.n; i++) w[i] = s.master[i];
            lnt_adamw o = {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .gradient_scale = 0.5,
                           .zero_gradients = true};
            lnt_adamw_arrays a = {s.master, s.grad, s.m, s.v, s.work};
            for (int t = 1; t <= STEPS; t++) {
                o.step = t;
                for (int64_t i = 0; i < s.n; i++) s.grad[i] = g0[i] * (float)t, g[i] = (double)s.grad[i] * 0.5;
                assert_int_equal(lnt_adamw_step(s.c, s.p, &o, &a), LINNET_OK);
                for (int64_t i = 0; i < s.n; i++) {
                    bool decay = false;
                    if (!owned(s.p, i, &decay)) continue;
                    m[i] = 0.9 * m[i] + 0.1 * g[i];
                    v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
                    double mh = m[i] / (1 - pow(0.9, t)), vh = v[i] / (1 - pow(0.95, t));
                    w[i] -= 1e-2 * (mh / (sqrt(vh) + 1e-8) + (decay ? 0.1 * w[i] : 0));
                }
            }
            for (int64_t i = 0; i < s.n; i++) {
                bool decay;
                if (!owned(s.p, i, &decay)) {
                    assert_true(isnan(s.master[i]) && isnan(s.m[i]) && isnan(s.v[i]) && isnan(s.grad[i]) && s.work[i] == 0);
                    continue;
                }
                assert_true(fabs(s.master[i] - w[i]) <= 3e-7 * (1 + fabs(w[i])));
                assert_true(fabs(s.m[i] - m[i]) <= 3e-7 * (0.1 + fabs(m[i])) && fabs(s.v[i] - v[i]) <= 1e-6 * (0.1 + v[i]));
                assert_true(s.grad[i] == 0 && s.work[i] == lnt_f32_to_bf16(s.master[i]));
            }
            if (!first) {
                first = lnt_alloc((size_t)s.n * 4);
                memcpy(first, s.master, (size_t)s.n * 4);
            }
            assert_memory_equal(first, s.master, (size_t)s.n * 4);
            lnt_free(w);
            lnt_free(m);
            lnt_free(v);
            lnt_free(g);
            lnt_free(g0);
            drop(&s);
        }
        lnt_free(first);
    }
    lnt_cpu_force(lnt_cpu_machine());
}

static void norm(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        double first = 0;
        for (int threads = 1; threads <= 3; threads++) {
            setting s = make(threads);
            double want = 0;
            for (int q = 0; q < lnt_param_count(s.p); q++)
                for (int64_t i = 0; i < lnt_param_at(s.p, q)->count; i++)
                    want += (double)s.grad[lnt_param_at(s.p, q)->offset + i] * s.grad[lnt_param_at(s.p, q)->offset + i];
            double got = lnt_gradient_norm(s.c, s.p, s.grad);
            assert_true(fabs(got - sqrt(want)) < 1e-6 * sqrt(want));
            if (threads == 1) first = got;
            assert_true(got == first);
            s.grad[lnt_param_at(s.p, 5)->offset + 12345] = NAN;
            assert_true(isnan(lnt_gradient_norm(s.c, s.p, s.grad)));
            drop(&s);
        }
    }
    lnt_cpu_force(lnt_cpu_machine());
    assert_true(lnt_clip_scale(4, 1) == 0.25 && lnt_clip_scale(0.5, 1) == 1 && lnt_clip_scale(4, 0) == 1);
}

static void refuses(void **state)
{
    (void)state;
    setting s = make(1);
    lnt_adamw o = {.learning_rate = 1, .beta1 = 0.9, .beta2 = 0.95, .step = 0};
    lnt_adamw_arrays a = {s.master, s.grad, s.m, s.v, NULL};
    assert_int_equal(lnt_adamw_step(s.c, s.p, &o, &a), LINNET_EINVAL);
    drop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps), cmocka_unit_test(norm), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
