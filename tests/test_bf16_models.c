/* Goldens in bf16, against the float32 logits that other libraries made: within 3e-2 (relative rms), where each token takes the experts that
 * it takes in float32. Which those are is a comparison of scores, and rounding turns close ones round: such a token is computed by other
 * weights, however well. So the choice of float32 is laid down here; what follows from it (the chosen experts' weights, of bf16 scores) is
 * not. */
#include "model_recipes.h"

#include <stdio.h>
#include <stdlib.h>

#include "golden_files.h"
#include "hub/safetensors.h"
#include "ops/experts.h"

enum { ROUTERS = 16 };

static linnet_context *c;

typedef struct {
    int n;
    const lnt_node *node[ROUTERS];
    lnt_buf scores[ROUTERS], weights[ROUTERS];
    int64_t experts[ROUTERS];
} routers;

static routers routers_of(const linnet_model *m)
{
    routers r = {0};
    for (int i = 0; i < lnt_node_count(m->p); i++) {
        const lnt_node *n = lnt_node_at(m->p, i);
        if (strcmp(n->op->name, "route") != 0) continue;
        assert_true(r.n < ROUTERS);
        r.node[r.n] = n;
        r.scores[r.n] = n->in[0];
        r.weights[r.n] = n->out[0];
        r.experts[r.n++] = lnt_cols(m->p, n->out[0]);
    }
    return r;
}

/* The weights of the experts that stand in w (those that are not 0), from scores. */
static void weigh(const lnt_route_attr *a, const lnt_tensor *scores, int64_t t, int64_t E, float *w)
{
    double s[64], sum = 0, own = 0;
    assert_true(E <= 64);
    for (int64_t e = 0; e < E; e++) {
        const double z = lnt_load_element(scores->data, scores->dtype, t * E + e);
        s[e] = a->sigmoid ? 1 / (1 + exp(-z)) : exp(z);
        sum += s[e];
        own += w[e] != 0 ? s[e] : 0;
    }
    for (int64_t e = 0; e < E; e++)
        if (w[e] != 0) w[e] = (float)(a->scale * s[e] / (a->renormalise ? own : a->sigmoid ? 1 : sum));
}

static lnt_plan *plan_of(linnet_model *m, int64_t T, const routers *r, bool laid)
{
    lnt_plan *plan;
    const lnt_plan_options o = {.tokens = T, .n_seq = 1, .dtype = m->dtype, .n_outputs = 1, .outputs = {m->logits}, .n_kept = r->n,
                                .kept = laid ? r->scores : r->weights, .n_given = laid ? r->n : 0, .given = r->weights};
    if (lnt_plan_create(c, m->p, &o, &plan) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    return plan;
}

/* Logits in one pass, and the weights that each router gave, [T, experts]. */
static void run_free(linnet_model *m, const int32_t *ids, int64_t T, float **weights, float *logits)
{
    const routers r = routers_of(m);
    const lnt_batch b = {.tokens = T, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, ids}}};
    lnt_plan *plan = plan_of(m, T, &r, false);
    assert_int_equal(lnt_plan_run(plan, m->w, &b), LINNET_OK);
    for (int i = 0; i < r.n; i++) memcpy(weights[i], lnt_plan_output(plan, r.weights[i]).data, (size_t)(T * r.experts[i]) * sizeof(float));
    memcpy(logits, lnt_plan_output(plan, m->logits).data, (size_t)(T * m->config->vocab_size) * sizeof(float));
    lnt_plan_destroy(plan);
}

/* Logits in one pass with the experts that stand in weights[], which become those of this model's scores: a router's follow from the choices of those
 * before it, so that all are right after as many runs as there are routers. */
static void run_laid(linnet_model *m, const int32_t *ids, int64_t T, float **weights, float *logits)
{
    const routers r = routers_of(m);
    const lnt_batch b = {.tokens = T, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, ids}}};
    lnt_plan *plan = plan_of(m, T, &r, true);
    for (int turn = 0; turn <= r.n; turn++) {
        for (int i = 0; i < r.n; i++) memcpy(lnt_plan_output(plan, r.weights[i]).data, weights[i], (size_t)(T * r.experts[i]) * sizeof(float));
        assert_int_equal(lnt_plan_run(plan, m->w, &b), LINNET_OK);
        for (int i = 0; i < r.n; i++) {
            const lnt_tensor x = lnt_plan_output(plan, r.scores[i]);
            for (int64_t t = 0; t < T; t++) weigh(r.node[i]->attr, &x, t, r.experts[i], weights[i] + t * r.experts[i]);
        }
    }
    memcpy(logits, lnt_plan_output(plan, m->logits).data, (size_t)(T * m->config->vocab_size) * sizeof(float));
    lnt_plan_destroy(plan);
}

static int64_t tokens_elsewhere(const routers *r, int64_t T, float **a, float **b)
{
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++) {
        bool other = false;
        for (int i = 0; i < r->n; i++)
            for (int64_t e = t * r->experts[i]; e < (t + 1) * r->experts[i]; e++) other |= (a[i][e] != 0) != (b[i][e] != 0);
        n += other;
    }
    return n;
}

static void check(const char *folder)
{
    char path[512];
    lnt_safetensors *g;
    linnet_model *m[2];
    float *weights[2][ROUTERS] = {0};
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    assert_int_equal(lnt_safetensors_open(c, path, &g), LINNET_OK);
    const lnt_st_tensor *all = lnt_safetensors_find(g, "input_ids"), *want = lnt_safetensors_find(g, "logits");
    const int64_t T = all->dim[1], V = want->dim[2], good = golden_tokens(folder, T) * V;
    int32_t *ids = malloc((size_t)T * sizeof *ids);
    float *logits = malloc((size_t)(T * V) * sizeof(float)), *expected = malloc((size_t)(T * V) * sizeof(float));
    for (int64_t i = 0; i < T; i++) ids[i] = (int32_t)lnt_load_element(all->data, all->dtype, i);
    memcpy(expected, want->data, (size_t)(T * V) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        if (linnet_model_load(c, folder, i ? LINNET_BF16 : LINNET_F32, &m[i]) != LINNET_OK) fail_msg("%s: %s", folder, linnet_error_message(c));
        const routers r = routers_of(m[i]);
        for (int j = 0; j < r.n; j++) weights[i][j] = malloc((size_t)(T * r.experts[j]) * sizeof(float));
        run_free(m[i], ids, T, weights[i], logits);
    }
    const routers r = routers_of(m[1]);
    const double own = relative_rms(logits, expected, good);
    const int64_t elsewhere = tokens_elsewhere(&r, T, weights[0], weights[1]);
    run_laid(m[1], ids, T, weights[0], logits);
    const double e = relative_rms(logits, expected, good);
    if (r.n)
        print_message("%s: %.2e with the experts of float32, %.2e with its own, which are others for %lld of %lld tokens\n", folder, e, own,
                      (long long)elsewhere, (long long)T);
    if (!(e < 3e-2)) fail_msg("%s: logits in bf16 differ by %.2e", folder, e);
    if (!elsewhere) assert_true(fabs(e - own) < 1e-4);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < r.n; j++) free(weights[i][j]);
        linnet_model_destroy(m[i]);
    }
    free(ids);
    free(logits);
    free(expected);
    lnt_safetensors_close(g);
}

static void check_all(const char *goldens, const char *library)
{
    char folder[400];
    golden_model model[GOLDEN_MODELS];
    const int n = golden_models_of(model, goldens, library, NULL);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        snprintf(folder, sizeof folder, "%s/%s/%.255s", goldens, library, model[i].name);
        check(folder);
    }
}

static void goldens_of_the_tree(void **state)
{
    (void)state;
    check_all(GOLDENS, "fla");
}

static void all_goldens(void **state)
{
    (void)state;
    NEEDS_FULL_GOLDENS;
    check_all(FULL_GOLDENS, "fla");
    check_all(FULL_GOLDENS, "hf");
}

static int begin(void **state) { return (void)state, linnet_context_create(NULL, &c); }
static int end(void **state) { return (void)state, linnet_context_destroy(c), 0; }

/* ---- the residual stream in bf16 ---- */

/* The gradient of the model under `dtype`, its stream float32 or not, as copies of all parameters' behind one another; the caller's. */
static float *gradient_of(const recipe *r, linnet_dtype dtype, const char *in_fp32, int64_t *n)
{
    static const int64_t cu[] = {0, 40, 40, TOKENS};
    int32_t ids[TOKENS + 1];
    recipe mine = *r;
    int at = 0;
    while (mine.set[at][0] && strcmp(mine.set[at][0], "residual_in_fp32") != 0) at++;
    assert_true(at < MOST_SETTINGS);
    mine.set[at][0] = "residual_in_fp32", mine.set[at][1] = in_fp32;
    draw_ids(ids, TOKENS + 1);
    linnet_model *m = model_of(c, &mine, dtype);
    assert_int_equal(lnt_weights_need_grad(m->w), LINNET_OK);
    lnt_plan *plan;
    const lnt_plan_options o = {.tokens = TOKENS, .n_seq = 3, .dtype = dtype, .training = true, .n_outputs = 1, .outputs = {m->loss}};
    const lnt_batch b = {.tokens = TOKENS, .n_seq = 3, .cu = cu, .n_inputs = 2, .inputs = {{m->ids, ids}, {m->targets, ids + 1}}, .loss_scale = 1};
    if (lnt_plan_create(c, m->p, &o, &plan) != LINNET_OK || lnt_plan_run(plan, m->w, &b) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    *n = m->w->elements;
    float *grad = malloc((size_t)*n * sizeof *grad);
    assert_non_null(grad);
    memcpy(grad, m->w->grad, (size_t)*n * sizeof *grad);
    lnt_plan_destroy(plan);
    linnet_model_destroy(m);
    return grad;
}

/* It rounds sums once more, and gradients of the stream, which then share memory with those of what joins it: none may be read behind the time that
 * more comes to it. */
static void a_stream_in_bf16_is_near(void **state)
{
    (void)state;
    for (int i = 0; i < RECIPES; i++) {
        const recipe *r = &recipes[i];
        int64_t n;
        if (strcmp(r->type, "delta_net") != 0 && strcmp(r->type, "gla") != 0 && strcmp(r->type, "transformer") != 0) continue;
        float *exact = gradient_of(r, LINNET_F32, "true", &n), *kept = gradient_of(r, LINNET_BF16, "true", &n),
              *rounded = gradient_of(r, LINNET_BF16, "false", &n);
        const double error = relative_rms(rounded, exact, n), of_kept = relative_rms(kept, exact, n);
        if (!(error < 2 * of_kept)) fail_msg("%s: %g, with the stream in float32 %g", r->name, error, of_kept);
        free(exact);
        free(kept);
        free(rounded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_of_the_tree), cmocka_unit_test(all_goldens), cmocka_unit_test(a_stream_in_bf16_is_near),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
