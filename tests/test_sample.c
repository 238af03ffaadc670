/* Drawing a token: the law that the logits give, under every cut; and that models which nearly agree nearly always draw the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate/sample.h"

enum { V = 40, DRAWS = 40000 };

static linnet_context *c;

static lnt_sampler *sampler_of(const linnet_generate_options *o)
{
    lnt_sampler *s;
    assert_int_equal(lnt_sampler_create(c, V, o, &s), LINNET_OK);
    return s;
}

static void some_logits(uint64_t stream, double spread, float *logits)
{
    lnt_rng r = lnt_rng_make(4, stream);
    for (int i = 0; i < V; i++) logits[i] = (float)(spread * lnt_rng_normal(&r));
}

/* What is left of the probabilities by temperature, top-k, top-p and min-p, written out. */
static void law_of(const linnet_generate_options *o, const float *logits, double *p)
{
    int order[V];
    double sum = 0, kept = 0;
    for (int i = 0; i < V; i++) {
        int at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    const int n = o->top_k > 0 && o->top_k < V ? (int)o->top_k : V;
    for (int i = 0; i < V; i++) p[i] = 0;
    for (int i = 0; i < n; i++) sum += exp((logits[order[i]] - logits[order[0]]) / o->temperature);
    for (int i = 0; i < n && kept < o->top_p * sum; i++) {
        const double x = exp((logits[order[i]] - logits[order[0]]) / o->temperature);
        if (x < o->min_p) break;
        kept += p[order[i]] = x;
    }
    for (int i = 0; i < V; i++) p[i] /= kept;
}

static void law(void **state)
{
    (void)state;
    static const struct {
        double temperature, top_p, min_p;
        int64_t top_k;
    } way[] = {{1, 1, 0, 0}, {0.5, 1, 0, 0}, {2, 1, 0, 7}, {1, 0.8, 0, 0}, {1, 1, 0.05, 0}, {1.3, 0.9, 0.02, 20}};
    for (size_t w = 0; w < sizeof way / sizeof *way; w++) {
        linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
        float logits[V];
        double p[V], square = 0;
        int64_t count[V] = {0}, cells = 0;
        o.temperature = way[w].temperature, o.top_p = way[w].top_p, o.min_p = way[w].min_p, o.top_k = way[w].top_k, o.seed = w;
        some_logits(w, 1.5, logits);
        law_of(&o, logits, p);
        lnt_sampler *s = sampler_of(&o);
        for (int i = 0; i < DRAWS; i++) count[lnt_sampler_draw(s, logits)]++;
        double rest = 0, rest_count = 0; /* of the rare ones together */
        for (int i = 0; i < V; i++) {
            if (p[i] == 0) assert_int_equal(count[i], 0);
            if (p[i] * DRAWS < 10) rest += p[i] * DRAWS, rest_count += (double)count[i];
            else square += pow((double)count[i] - p[i] * DRAWS, 2) / (p[i] * DRAWS), cells++;
        }
        if (rest > 5) square += pow(rest_count - rest, 2) / rest, cells++;
        /* chi-square of cells - 1 degrees: its mean and five of its deviations */
        const double most = (double)(cells - 1) + 5 * sqrt(2.0 * (double)(cells - 1));
        if (!(cells > 3 && square < most)) fail_msg("way %zu: chi-square %.1f of %lld cells, at most %.1f is due", w, square, (long long)cells, most);
        lnt_sampler_destroy(s);
    }
}

/* The next draw does not depend on the last one: pairs of draws from four ids. */
static void draws_are_independent(void **state)
{
    (void)state;
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    float logits[V];
    int64_t pair[4][4] = {{0}};
    double square = 0;
    o.temperature = 1, o.top_p = 1, o.top_k = 4;
    for (int i = 0; i < V; i++) logits[i] = i < 4 ? 0 : -30;
    lnt_sampler *s = sampler_of(&o);
    for (int i = 0, last = lnt_sampler_draw(s, logits); i < DRAWS; i++) {
        const int now = lnt_sampler_draw(s, logits);
        pair[last][now]++;
        last = now;
    }
    for (int i = 0; i < 16; i++) square += pow((double)pair[i / 4][i % 4] - DRAWS / 16.0, 2) / (DRAWS / 16.0);
    assert_true(square < 15 + 5 * sqrt(30));
    lnt_sampler_destroy(s);
}

/* Two models whose probabilities are a distance d apart differ in at most 2 d / (1 + d) of their draws; with cuts too, which reorder. */
static void near_models_draw_alike(void **state)
{
    (void)state;
    for (int w = 0; w < 6; w++) {
        linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
        float a[V], b[V], noise[V];
        double p[V], q[V], d = 0;
        int64_t same = 0;
        o.temperature = 0.9, o.top_p = w % 2 ? 0.9 : 1, o.top_k = w % 3 ? 12 : 0, o.seed = (uint64_t)w;
        some_logits(50, 1.5, a);
        some_logits(51, 0.1 * w, noise);
        for (int i = 0; i < V; i++) b[i] = a[i] + noise[i];
        law_of(&o, a, p);
        law_of(&o, b, q);
        for (int i = 0; i < V; i++) d += fabs(p[i] - q[i]) / 2;
        lnt_sampler *model = sampler_of(&o), *draft = sampler_of(&o);
        for (int i = 0; i < DRAWS; i++) {
            lnt_sampler_follow(draft, model);
            const int32_t guess = lnt_sampler_draw(draft, b);
            same += guess == lnt_sampler_draw(model, a);
        }
        const double least = 1 - 2 * d / (1 + d), share = (double)same / DRAWS;
        if (!(share > least - 5 * 0.5 / sqrt(DRAWS) && (w || same == DRAWS))) fail_msg("distance %.3f: %.3f alike, expected %.3f", d, share, least);
        lnt_sampler_destroy(model);
        lnt_sampler_destroy(draft);
    }
}

static int open_all(void **state) { return (void)state, linnet_context_create(NULL, &c); }
static int close_all(void **state) { return (void)state, linnet_context_destroy(c), 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(law), cmocka_unit_test(draws_are_independent), cmocka_unit_test(near_models_draw_alike)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
