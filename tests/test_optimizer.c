/* The optimizer against float64, over a program's parameter table: masters with and without working copy, and weights kept in bf16 alone. */
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
#include "ops/kernels.h"
#include "ops/optimizer.h"

typedef struct {
    linnet_context *c;
    lnt_program *p;
    lnt_weights *w;
    lnt_optimizer *o;
    int64_t n;
    float *g0; /* [n] the gradient of step 1; 0 in paddings */
    uint64_t seed;
} setting;

/* Sizes around vectors and pieces, with paddings between; every second decays, every third is not read by products. */
static setting make_kept(int threads, lnt_dtype dtype, lnt_dtype kept, lnt_dtype moments)
{
    static const int64_t sizes[] = {1, 15, 17, 64, 1000, 70001, 3, 33000};
    setting s = {.seed = 5};
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    assert_int_equal(linnet_context_create(&o, &s.c), LINNET_OK);
    assert_int_equal(lnt_program_create(s.c, &s.p), LINNET_OK);
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        char name[] = "a";
        name[0] = (char)('a' + i);
        assert_true(lnt_add_param(s.p, name, 1, &sizes[i], (lnt_init){LNT_INIT_NORMAL, 1, 0}, i % 2 == 0, i % 3 != 1) == i);
    }
    assert_int_equal(lnt_weights_create(s.c, s.p, dtype, kept, &s.w), LINNET_OK);
    assert_int_equal(lnt_weights_init(s.w, 3), LINNET_OK);
    assert_int_equal(lnt_weights_need_grad(s.w), LINNET_OK);
    assert_int_equal(lnt_optimizer_create(s.c, s.w, moments, &s.o), LINNET_OK);
    s.n = lnt_param_elements(s.p);
    s.g0 = lnt_calloc((size_t)s.n * 4);
    lnt_rng r = lnt_rng_make(3, 1);
    for (int q = 0; q < lnt_param_count(s.p); q++)
        for (int64_t i = 0; i < lnt_param_at(s.p, q)->count; i++) s.g0[lnt_param_at(s.p, q)->offset + i] = (float)lnt_rng_normal(&r);
    return s;
}

static setting make(int threads, lnt_dtype dtype, lnt_dtype kept) { return make_kept(threads, dtype, kept, LINNET_F32); }

static void drop(setting *s)
{
    lnt_optimizer_destroy(s->o);
    lnt_weights_destroy(s->w);
    lnt_free(s->g0);
    lnt_program_destroy(s->p);
    linnet_context_destroy(s->c);
}

static const lnt_param *owner(const lnt_program *p, int64_t at)
{
    for (int q = 0; q < lnt_param_count(p); q++) {
        const lnt_param *x = lnt_param_at(p, q);
        if (at >= x->offset && at < x->offset + x->count) return x;
    }
    return NULL;
}

static double norm_of(const setting *s, double factor)
{
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++) sum += (double)s->g0[i] * s->g0[i];
    return factor * sqrt(sum);
}

static lnt_adamw hyper_of(const setting *s)
{
    return (lnt_adamw){.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .seed = s->seed,
                       .clip = norm_of(s, 0.5)};
}

/* What a run of a plan would leave. */
static void give_gradients(setting *s, float factor)
{
    for (int64_t i = 0; i < s->n; i++) s->w->grad[i] = s->g0[i] * factor;
    s->w->grad_empty = false;
}

enum { STEPS = 3 };

/* Run STEPS steps with gradients g0, 2 g0, 3 g0, all clipped to half the norm of g0. */
static void run(setting *s)
{
    lnt_adamw h = hyper_of(s);
    for (int t = 1; t <= STEPS; t++) {
        h.step = t;
        give_gradients(s, (float)t);
        assert_int_equal(lnt_optimizer_step(s->o, &h), LINNET_OK);
        lnt_step_sums sums;
        lnt_optimizer_read(s->o, &sums);
        assert_true(fabs(sums.norm - norm_of(s, t)) <= 1e-6 * norm_of(s, t));
        assert_true(fabs(sums.scale - 0.5 / t) <= 1e-6);
    }
}

/* The same in float64; w on entry the first weights. */
static void truth(const setting *s, double *w, double *m, double *v)
{
    for (int t = 1; t <= STEPS; t++)
        for (int64_t i = 0; i < s->n; i++) {
            const lnt_param *q = owner(s->p, i);
            double g = s->g0[i] * 0.5;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.95 * v[i] + 0.05 * g * g;
            double mh = m[i] / (1 - pow(0.9, t)), vh = v[i] / (1 - pow(0.95, t));
            if (q) w[i] -= 1e-2 * (mh / (sqrt(vh) + 1e-8) + (q->decay ? 0.1 * w[i] : 0));
        }
}

static void steps(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        float *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            setting s = make(threads, LINNET_BF16, LINNET_F32);
            double *x[3]; /* w, m, v */
            for (int i = 0; i < 3; i++) x[i] = lnt_calloc((size_t)s.n * 8);
            for (int64_t i = 0; i < s.n; i++) x[0][i] = s.w->master[i];
            run(&s);
            truth(&s, x[0], x[1], x[2]);
            const float *m = s.o->m, *v = s.o->v;
            for (int64_t i = 0; i < s.n; i++) {
                const lnt_param *q = owner(s.p, i);
                assert_true(fabs(s.w->master[i] - x[0][i]) <= 3e-7 * (1 + fabs(x[0][i])));
                assert_true(fabs(m[i] - x[1][i]) <= 3e-7 * (0.1 + fabs(x[1][i])) && fabs(v[i] - x[2][i]) <= 1e-6 * (0.1 + x[2][i]));
                const bool anything = q && i >= lnt_param_plain_end(s.p);
                assert_true(s.w->grad_empty && (s.w->grad[i] == 0 || anything));
                if (q && q->product) assert_int_equal(((lnt_bf16 *)s.w->work)[i - s.w->work_begin], lnt_f32_to_bf16(s.w->master[i]));
                if (!q) assert_true(s.w->master[i] == 0 && m[i] == 0 && v[i] == 0);
            }
            if (!first) {
                first = lnt_alloc((size_t)s.n * 4);
                memcpy(first, s.w->master, (size_t)s.n * 4);
            }
            assert_memory_equal(first, s.w->master, (size_t)s.n * 4);
            for (int i = 0; i < 3; i++) lnt_free(x[i]);
            drop(&s);
        }
        lnt_free(first);
    }
    lnt_cpu_force(lnt_cpu_machine());
}

/* Without masters: each rounding goes to one of the two neighbours, on the average to where float32 would have gone; the same for any number of
 * threads, another for another seed; and a step from values read back is the step that would have followed. */
static void without_masters(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        float *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            setting s = make(threads, LINNET_BF16, LINNET_BF16);
            assert_true(s.w->masters == lnt_param_plain_end(s.p) && s.w->masters < s.n);
            float *before = lnt_alloc((size_t)s.n * 4), *after = lnt_alloc((size_t)s.n * 4);
            double *x[3], bias = 0, ulps = 0, count = 0;
            for (int i = 0; i < 3; i++) x[i] = lnt_calloc((size_t)s.n * 8);
            assert_int_equal(lnt_weights_get(s.w, before), LINNET_OK);
            for (int64_t i = 0; i < s.n; i++) x[0][i] = before[i];
            run(&s);
            truth(&s, x[0], x[1], x[2]);
            assert_int_equal(lnt_weights_get(s.w, after), LINNET_OK);
            for (int64_t i = 0; i < s.n; i++) {
                if (i < s.w->masters) {
                    assert_true(fabs(after[i] - x[0][i]) <= 3e-7 * (1 + fabs(x[0][i])));
                    continue;
                }
                if (!owner(s.p, i)) assert_true(after[i] == 0);
                double ulp = ldexp(1, ilogb(fabs(x[0][i]) + 0.02) - 7); /* the largest step between neighbours on the way */
                assert_true(fabs(after[i] - x[0][i]) <= (STEPS + 0.1) * ulp);
                if (owner(s.p, i)) bias += (after[i] - x[0][i]) / ulp, ulps += fabs(after[i] - x[0][i]) / ulp, count++;
            }
            assert_true(ulps / count > 0.1);          /* it does round */
            assert_true(fabs(bias / count) < 0.01);   /* a hundred thousand of them: six standard deviations */
            if (!first) {
                first = lnt_alloc((size_t)s.n * 4);
                memcpy(first, after, (size_t)s.n * 4);
            }
            assert_memory_equal(first, after, (size_t)s.n * 4);
            lnt_adamw h = hyper_of(&s);
            float *next[3];
            for (int k = 0; k < 3; k++) { /* step 4, step 4 from what was read back, step 4 of another seed */
                setting copy = make(threads, LINNET_BF16, LINNET_BF16);
                for (int q = 0; q < lnt_param_count(s.p); q++) {
                    const lnt_param *p = lnt_param_at(s.p, q);
                    assert_int_equal(lnt_weights_put(copy.w, p, 0, after + p->offset, p->count), LINNET_OK);
                }
                memcpy(copy.o->m, s.o->m, (size_t)s.n * 4);
                memcpy(copy.o->v, s.o->v, (size_t)s.n * 4);
                h.step = STEPS + 1;
                h.seed = k == 2 ? 6 : 5;
                setting *run_on = k == 1 ? &s : &copy;
                give_gradients(run_on, 1);
                assert_int_equal(lnt_optimizer_step(run_on->o, &h), LINNET_OK);
                next[k] = lnt_alloc((size_t)s.n * 4);
                assert_int_equal(lnt_weights_get(run_on->w, next[k]), LINNET_OK);
                drop(&copy);
            }
            assert_memory_equal(next[0], next[1], (size_t)s.n * 4);
            assert_memory_not_equal(next[0], next[2], (size_t)s.n * 4);
            for (int i = 0; i < 3; i++) lnt_free(x[i]), lnt_free(next[i]);
            lnt_free(before);
            lnt_free(after);
            drop(&s);
        }
        lnt_free(first);
    }
    lnt_cpu_force(lnt_cpu_machine());
}

/* Moments in bf16, with masters and without: each is, on the average, where float32 would have it, m's roundings say nothing of v's, and a weight is
 * a few roundings of its moments away; paddings stay zero; the same bits for any number of threads, others for another seed. */
static void moments_in_bf16(void **state)
{
    (void)state;
    enum { M, V, SIDES };
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++)
        for (int half = 0; half < 2; half++) {
            lnt_cpu_force((lnt_cpu_level)level);
            float *first = NULL;
            for (int run_of = 0; run_of < 4; run_of++) { /* one, two, three threads, and another seed */
                setting s = make_kept(run_of % 3 + 1, LINNET_BF16, half ? LINNET_BF16 : LINNET_F32, LINNET_BF16);
                double *x[3], bias[SIDES] = {0}, size[SIDES] = {0}, both = 0, count = 0;
                float *got = lnt_alloc((size_t)s.n * 12);
                for (int i = 0; i < 3; i++) x[i] = lnt_calloc((size_t)s.n * 8);
                assert_int_equal(lnt_weights_get(s.w, got), LINNET_OK);
                for (int64_t i = 0; i < s.n; i++) x[0][i] = got[i];
                s.seed = run_of == 3 ? 6 : 5;
                run(&s);
                truth(&s, x[0], x[1], x[2]);
                assert_int_equal(lnt_weights_get(s.w, got), LINNET_OK);
                assert_int_equal(lnt_floats_to_host(s.c, got + s.n, s.o->m, LINNET_BF16, s.n), LINNET_OK);
                assert_int_equal(lnt_floats_to_host(s.c, got + 2 * s.n, s.o->v, LINNET_BF16, s.n), LINNET_OK);
                for (int64_t i = 0; i < s.n; i++) {
                    double off[SIDES];
                    for (int k = 0; k < SIDES; k++) {
                        const double y = got[(1 + k) * s.n + i], ulp = ldexp(1, ilogb(fabs(x[1 + k][i]) + 1e-30) - 7);
                        off[k] = (y - x[1 + k][i]) / ulp;
                        assert_true(fabs(off[k]) <= STEPS + 0.1);
                        if (!owner(s.p, i)) assert_true(y == 0);
                        bias[k] += off[k], size[k] += fabs(off[k]);
                    }
                    both += off[M] * off[V], count += owner(s.p, i) != NULL;
                    const double ulp = half && i >= s.w->masters ? ldexp(1, ilogb(fabs(x[0][i]) + 0.02) - 7) : 0; /* the weight's own roundings */
                    assert_true(fabs(got[i] - x[0][i]) <= 2e-3 + (STEPS + 0.1) * ulp); /* of steps of 0.01 */
                }
                for (int k = 0; k < SIDES; k++) assert_true(size[k] / count > 0.1 && fabs(bias[k] / count) < 0.01);
                assert_true(fabs(both / count) < 0.01);
                if (!first) first = got;
                else if (run_of < 3) assert_memory_equal(first, got, (size_t)s.n * 12);
                else assert_memory_not_equal(first, got, (size_t)s.n * 12);
                for (int i = 0; i < 3; i++) lnt_free(x[i]);
                if (got != first) lnt_free(got);
                drop(&s);
            }
            lnt_free(first);
        }
    lnt_cpu_force(lnt_cpu_machine());
}

static void rounding_of_edges(void **state)
{
    (void)state;
    const struct {
        uint32_t x, word;
        lnt_bf16 want;
    } cases[] = {
        {0x3f800000u, 0xffffffffu, 0x3f80}, /* what is a bf16 stays */
        {0x3f800001u, 0xfffe0000u, 0x3f80}, {0x3f800001u, 0xffff0000u, 0x3f81},
        {0x3f80ffffu, 0x00000000u, 0x3f80}, {0x3f80ffffu, 0x00010000u, 0x3f81},
        {0xbf808000u, 0x7fff0000u, 0xbf80}, {0xbf808000u, 0x80000000u, 0xbf81}, /* away from zero for either sign */
        {0x7f800000u, 0xffffffffu, 0x7f80}, {0xff800000u, 0xffffffffu, 0xff80},
        {0x7f800001u, 0xffffffffu, 0x7fc0}, {0x7fffffffu, 0xffffffffu, 0x7fff},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_int_equal(lnt_round_bits(cases[i].x, cases[i].word), cases[i].want);
}

static void sums(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        double first = 0;
        for (int threads = 1; threads <= 3; threads++) {
            setting s = make(threads, LINNET_F32, LINNET_F32);
            lnt_adamw h = {.learning_rate = 0, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .step = 1};
            lnt_step_sums got;
            give_gradients(&s, 1);
            assert_int_equal(lnt_optimizer_step(s.o, &h), LINNET_OK);
            lnt_optimizer_add_losses(s.o, (const float[]){1, 2, 4}, 3);
            lnt_optimizer_add_losses(s.o, (const float[]){0.5f}, 1);
            lnt_optimizer_read(s.o, &got);
            assert_true(fabs(got.norm - norm_of(&s, 1)) < 1e-6 * got.norm && got.scale == 1 && got.nats == 7.5);
            if (threads == 1) first = got.norm;
            assert_true(got.norm == first);
            give_gradients(&s, 1);
            s.w->grad[lnt_param_at(s.p, 5)->offset + 12345] = NAN;
            h.clip = 1;
            assert_int_equal(lnt_optimizer_step(s.o, &h), LINNET_OK);
            lnt_optimizer_read(s.o, &got);
            assert_true(isnan(got.norm) && got.nats == 0);
            drop(&s);
        }
    }
    lnt_cpu_force(lnt_cpu_machine());
}

/* Weights, their working copies and moments, one behind the other. */
static float *all_of(const setting *s)
{
    float *x = lnt_alloc((size_t)s->n * 12);
    assert_int_equal(lnt_weights_get(s->w, x), LINNET_OK);
    assert_int_equal(lnt_floats_to_host(s->c, x + s->n, s->o->m, s->o->kept, s->n), LINNET_OK);
    assert_int_equal(lnt_floats_to_host(s->c, x + 2 * s->n, s->o->v, s->o->kept, s->n), LINNET_OK);
    return x;
}

/* One element that is not finite, or whose square is not, or such a loss, and nothing changes; the next step is as if that one had not been. */
static void what_is_not_finite_updates_nothing(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    enum { BAD = sizeof bad / sizeof *bad };
    for (int way = 0; way < 4; way++) {
        const lnt_dtype dtype = way % 2 ? LINNET_BF16 : LINNET_F32, moments = way / 2 ? LINNET_BF16 : LINNET_F32;
        setting s = make_kept(2, dtype, dtype, moments), twin = make_kept(2, dtype, dtype, moments);
        lnt_adamw h = hyper_of(&s);
        lnt_step_sums got;
        run(&s);
        run(&twin);
        for (int i = 0; i <= BAD; i++) {
            float *before = all_of(&s);
            h.step = STEPS + 1;
            give_gradients(&s, 1);
            if (i < BAD) s.w->grad[lnt_param_at(s.p, 5)->offset + 12345 + i] = bad[i];
            else lnt_optimizer_add_losses(s.o, (const float[]){1, INFINITY}, 2);
            assert_int_equal(lnt_optimizer_step(s.o, &h), LINNET_OK);
            lnt_optimizer_read(s.o, &got);
            assert_true(i < BAD ? !isfinite(got.norm) && got.nats == 0 : isfinite(got.norm) && isinf(got.nats));
            float *after = all_of(&s);
            assert_memory_equal(before, after, (size_t)s.n * 12);
            for (int64_t k = 0; k < lnt_param_plain_end(s.p); k++) assert_true(s.w->grad[k] == 0);
            lnt_free(before);
            lnt_free(after);
        }
        setting *both[] = {&s, &twin};
        float *x[2];
        for (int i = 0; i < 2; i++) {
            give_gradients(both[i], 1);
            assert_int_equal(lnt_optimizer_step(both[i]->o, &h), LINNET_OK);
            lnt_optimizer_read(both[i]->o, &got);
            assert_true(isfinite(got.norm) && got.nats == 0);
            x[i] = all_of(both[i]);
        }
        assert_memory_equal(x[0], x[1], (size_t)s.n * 12);
        lnt_free(x[0]);
        lnt_free(x[1]);
        drop(&s);
        drop(&twin);
    }
}

static void refuses(void **state)
{
    (void)state;
    setting s = make(1, LINNET_F32, LINNET_F32);
    lnt_adamw h = {.learning_rate = 1, .beta1 = 0.9, .beta2 = 0.95, .step = 0};
    assert_int_equal(lnt_optimizer_step(s.o, &h), LINNET_EINVAL);
    h.step = 1;
    assert_int_equal(lnt_optimizer_step(s.o, &h), LINNET_EINTERNAL); /* no gradients yet */
    lnt_weights *w;
    assert_int_equal(lnt_weights_create(s.c, s.p, LINNET_F32, LINNET_BF16, &w), LINNET_EINVAL);
    assert_null(w);
    drop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps), cmocka_unit_test(without_masters), cmocka_unit_test(moments_in_bf16),
                                       cmocka_unit_test(rounding_of_edges), cmocka_unit_test(sums),
                                       cmocka_unit_test(what_is_not_finite_updates_nothing), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
