/* NaN is seen: no operator of a whole model makes numbers of it, and a plan that is asked says where the first one came from. */
#include "core/threads.h"
#include "device/device.h"
#include "generate/sample.h"
#include "model_recipes.h"

static linnet_context *make_context(void)
{
    linnet_context *c;
    assert_int_equal(linnet_context_create(&(linnet_context_options){.size = sizeof(linnet_context_options), .threads = 2}, &c), LINNET_OK);
    return c;
}

static void spoil(linnet_context *c, const linnet_model *m, const lnt_param *q, float with)
{
    float *x = lnt_alloc((size_t)q->count * sizeof *x);
    for (int64_t i = 0; i < q->count; i++) x[i] = with;
    if (lnt_weights_put(m->w, q, 0, x, q->count) != LINNET_OK) fail_msg("%s: %s", q->name, linnet_error_message(c));
    lnt_free(x);
}

static void restore(linnet_model *m) { assert_int_equal(lnt_weights_init(m->w, 5), LINNET_OK); }

/* A run over TOKENS ids in one sequence. */
static linnet_status run_model(linnet_context *c, linnet_model *m, bool finite, lnt_plan **plan)
{
    int32_t ids[TOKENS], targets[TOKENS];
    draw_ids(ids, TOKENS);
    draw_ids(targets, TOKENS);
    lnt_plan_options o = {.tokens = TOKENS, .n_seq = 1, .dtype = m->dtype, .finite = finite, .n_outputs = 2, .outputs = {m->logits, m->loss}};
    assert_int_equal(lnt_plan_create(c, m->p, &o, plan), LINNET_OK);
    lnt_batch b = {.tokens = TOKENS, .n_seq = 1, .n_inputs = 2, .inputs = {{m->ids, ids}, {m->targets, targets}}};
    return lnt_plan_run(*plan, m->w, &b);
}

/* Rows first.. are NaN in every element. */
static void check_all(const lnt_plan *plan, lnt_buf b, int64_t first, const char *who, const char *what)
{
    const lnt_tensor t = lnt_plan_output(plan, b);
    const float *x = t.data;
    for (int64_t i = first * t.cols; i < t.rows * t.cols; i++)
        if (!isnan(x[i])) fail_msg("%s with %s: element %lld is %g", who, what, (long long)i, x[i]);
}

/* Whether the first token's logits have the same bits with another value of the parameter: a decay that acts behind the read-out, say. */
static bool first_token_apart(linnet_context *c, linnet_model *m, const lnt_param *q)
{
    float first[2][VOCAB];
    for (int i = 0; i < 2; i++) {
        lnt_plan *plan;
        if (i) spoil(c, m, q, 0.3f);
        assert_int_equal(run_model(c, m, false, &plan), LINNET_OK);
        memcpy(first[i], lnt_plan_output(plan, m->logits).data, sizeof first[i]);
        lnt_plan_destroy(plan);
        restore(m);
    }
    return memcmp(first[0], first[1], sizeof first[0]) == 0;
}

/* Every parameter of every mixer in turn: a model that holds NaN gives nothing else, whatever stands between, but for a first token that does not
 * depend on it. A parameter that no output depends on would be found here, too. */
static void test_parameters(void **state)
{
    linnet_context *c = make_context();
    (void)state;
    for (int r = 0; r < RECIPES; r++) {
        linnet_model *m = model_of(c, &recipes[r], LINNET_F32);
        for (int i = 0; i < lnt_param_count(m->p); i++) {
            const lnt_param *q = lnt_param_at(m->p, i);
            lnt_plan *plan;
            spoil(c, m, q, NAN);
            assert_int_equal(run_model(c, m, false, &plan), LINNET_OK);
            const bool seen = isnan(*(const float *)lnt_plan_output(plan, m->logits).data);
            check_all(plan, m->loss, !seen, recipes[r].name, q->name);
            check_all(plan, m->logits, !seen, recipes[r].name, q->name);
            lnt_plan_destroy(plan);
            restore(m);
            if (!seen && !first_token_apart(c, m, q)) fail_msg("%s with %s: the first token hides a NaN", recipes[r].name, q->name);
        }
        linnet_model_destroy(m);
    }
    linnet_context_destroy(c);
}

/* One id whose embedding is NaN makes everything of its token NaN: q, k, v, gates, write strengths. No token before its chunk is (all cores; before
 * itself: attention and mesa), every token is that sees it. */
static void test_causality(void **state)
{
    enum { AT = 66, CHUNK = 64, SPOILED = VOCAB - 1 };
    linnet_context *c = make_context();
    (void)state;
    for (int r = 0; r < RECIPES; r++) {
        linnet_model *m = model_of(c, &recipes[r], LINNET_F32);
        lnt_plan_options o = {.tokens = TOKENS, .n_seq = 1, .dtype = m->dtype, .n_outputs = 1, .outputs = {m->hidden}};
        const lnt_param *q = lnt_param_find(m->p, "model.embeddings.weight");
        assert_non_null(q);
        float bad[64];
        for (int i = 0; i < 64; i++) bad[i] = NAN;
        const int64_t width = q->count / VOCAB;
        assert_int_equal(lnt_weights_put(m->w, q, SPOILED * width, bad, width), LINNET_OK);
        lnt_plan *plan;
        assert_int_equal(lnt_plan_create(c, m->p, &o, &plan), LINNET_OK);
        int32_t ids[TOKENS];
        draw_ids(ids, TOKENS);
        for (int t = 0; t < TOKENS; t++) ids[t] = t == AT ? SPOILED : ids[t] % SPOILED;
        lnt_batch b = {.tokens = TOKENS, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, ids}}};
        assert_int_equal(lnt_plan_run(plan, m->w, &b), LINNET_OK);
        const lnt_tensor h = lnt_plan_output(plan, m->hidden);
        const float *x = h.data;
        const bool strict = !strcmp(recipes[r].type, "transformer");
        /* where a token writes several times, chunks have as many writes: fewer tokens, and begin elsewhere */
        const bool shorter = !strcmp(recipes[r].type, "gated_deltaproduct");
        const int first = strict ? AT : shorter ? AT - CHUNK / 2 : CHUNK;
        for (int t = 0; t < TOKENS; t++)
            for (int64_t i = 0; i < width; i++) {
                const bool nan = isnan(x[t * width + i]);
                if (t < first && nan) fail_msg("%s: NaN at token %d reaches token %d", recipes[r].name, AT, t);
                if (t >= AT && !nan) fail_msg("%s: token %d does not show the NaN of token %d", recipes[r].name, t, AT);
            }
        lnt_plan_destroy(plan);
        linnet_model_destroy(m);
    }
    linnet_context_destroy(c);
}

/* The plan that looks names layer, operator and parameter; the same plan of a sound model gives the bits of one that does not look. */
static void test_origin(void **state)
{
    linnet_context *c = make_context();
    (void)state;
    for (int r = 0; r < RECIPES; r++) {
        linnet_model *m = model_of(c, &recipes[r], LINNET_F32);
        lnt_plan *plain, *looking;
        assert_int_equal(run_model(c, m, false, &plain), LINNET_OK);
        if (run_model(c, m, true, &looking) != LINNET_OK) fail_msg("%s: %s", recipes[r].name, linnet_error_message(c));
        const lnt_tensor a = lnt_plan_output(plain, m->logits), b = lnt_plan_output(looking, m->logits);
        assert_memory_equal(a.data, b.data, (size_t)(a.rows * a.cols) * 4);
        lnt_plan_destroy(plain);
        lnt_plan_destroy(looking);

        const lnt_param *q = NULL;
        for (int i = 0; i < lnt_param_count(m->p) && !q; i++) /* the first matrix of the mixer */
            if (lnt_param_at(m->p, i)->product && strstr(lnt_param_at(m->p, i)->name, "layers.1.attn.")) q = lnt_param_at(m->p, i);
        assert_non_null(q);
        spoil(c, m, q, INFINITY);
        assert_int_equal(run_model(c, m, true, &looking), LINNET_EINVAL);
        const char *message = linnet_error_message(c), *detail = linnet_error_detail(c);
        if (!strstr(message, "in layer 1 by the operator linear") || !strstr(detail, q->name) || !strstr(detail, "inf"))
            fail_msg("%s: %s (%s)", recipes[r].name, message, detail);
        lnt_plan_destroy(looking);
        linnet_model_destroy(m);
    }
    linnet_context_destroy(c);
}

/* Logits from which nothing can be drawn, at every place and by every way to draw; under the sanitizer the list of top-k and top-p is guarded. */
static void test_sampler(void **state)
{
    enum { V = 7 };
    linnet_context *c = make_context();
    (void)state;
    const struct {
        int64_t top_k;
        double top_p, temperature;
    } ways[] = {{0, 1, 1}, {3, 1, 1}, {0, 0.9, 1}, {2, 0.5, 0.7}, {0, 1, 0}, {100, 1e-9, 1}};
    const float bad[] = {NAN, INFINITY};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
        o.top_k = ways[w].top_k, o.top_p = ways[w].top_p, o.temperature = ways[w].temperature;
        lnt_sampler *s;
        assert_int_equal(lnt_sampler_create(c, V, &o, &s), LINNET_OK);
        for (int kind = 0; kind < 2; kind++)
            for (int at = 0; at < V; at++) {
                float logits[V] = {1, 2, 3, 4, 3, 2, 1};
                logits[at] = bad[kind];
                assert_int_equal(lnt_sampler_draw(s, logits), -1);
                assert_int_equal(lnt_largest(logits, V), -1);
                for (int i = 0; i < V; i++) logits[i] = bad[kind];
                assert_int_equal(lnt_sampler_draw(s, logits), -1);
            }
        float masked[V];
        for (int i = 0; i < V; i++) masked[i] = i == 5 ? 0 : -INFINITY; /* what is ruled out is no mistake, unless everything is */
        assert_int_equal(lnt_sampler_draw(s, masked), 5);
        masked[5] = -INFINITY;
        assert_int_equal(lnt_sampler_draw(s, masked), -1);
        lnt_sampler_destroy(s);
    }
    linnet_context_destroy(c);
}

/* Little work is for one thread, and no workspace is measured for fewer threads than a run may use. */
static void test_share(void **state)
{
    linnet_context *c = make_context();
    (void)state;
    assert_int_equal(lnt_threads(c), 2);
    lnt_threads_for(c, 1e3, 1e3);
    assert_int_equal(lnt_threads(c), 1);
    assert_int_equal(linnet_threads(c), 2);
    lnt_threads_for(c, 1e9, 0);
    assert_int_equal(lnt_threads(c), 2);
    lnt_threads_for(c, 0, 1e8);
    assert_int_equal(lnt_threads(c), 2);
    lnt_threads_one(c);
    assert_int_equal(lnt_threads(c), 1);
    lnt_threads_all(c);
    assert_int_equal(lnt_threads(c), 2);
    linnet_context_destroy(c);
}

/* Runs of which one thread takes `one` and all take `all` seconds: the faster way is found, what the search costs is bounded, and a machine that
 * becomes idle is noticed. */
static void test_pace(void **state)
{
    (void)state;
    lnt_pace p = {0};
    double spent = 0;
    for (int i = 0; i < 1000; i++) { /* a busy machine: all threads take thirty times as long */
        const double s = lnt_pace_alone(&p) ? 1 : 30;
        lnt_pace_took(&p, s, 0);
        spent += s;
    }
    assert_true(spent < 1.1 * 1000);
    int alone = 0;
    for (int i = 0; i < 2000; i++) { /* it is idle again */
        const bool one = lnt_pace_alone(&p);
        lnt_pace_took(&p, one ? 1 : 0.5, 0);
        alone += i >= 1000 && one;
    }
    assert_true(alone < 50);
    p = (lnt_pace){0};
    for (int i = 0; i < 1000; i++) lnt_pace_took(&p, lnt_pace_alone(&p) ? 1 : 0.9, 0); /* no matter: whatever it takes, not from one to the other */
    assert_false(p.alone);
    p = (lnt_pace){0};
    for (int i = 0; i < 1000; i++) { /* long runs of threads that work: one alone is never tried */
        assert_false(lnt_pace_alone(&p));
        lnt_pace_took(&p, 1, 0.9);
    }
    for (int i = alone = 0; i < 1000; i++) { /* until others take their processors */
        const bool one = lnt_pace_alone(&p);
        lnt_pace_took(&p, one ? 3 : 30, one ? 0.25 : 0.1);
        alone += one;
    }
    assert_true(alone > 950);
    for (int i = alone = 0; i < 1000; i++) { /* and give them back */
        const bool one = lnt_pace_alone(&p);
        lnt_pace_took(&p, one ? 3 : 1, one ? 0.25 : 0.9);
        alone += one;
    }
    assert_true(alone < 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parameters), cmocka_unit_test(test_causality), cmocka_unit_test(test_origin),
                                       cmocka_unit_test(test_sampler), cmocka_unit_test(test_share), cmocka_unit_test(test_pace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
