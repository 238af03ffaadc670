/* Mixtures of experts against the formula written out in float64, forward and every gradient, by central differences: chosen by softmax and sigmoid,
 * renormalised or not, gated or not, with experts that nobody takes, with ties, with the gradient that evens loads out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "ops/ops.h"
#include "program/plan.h"

enum { T = 9, D = 6, E = 5, F = 4, V = 7 };

typedef struct {
    int64_t k;
    bool sigmoid, renormalise, gated, tie, empty;
    double scale, balance;
} setting;

/* The parameters by name, float64. */
typedef struct {
    double x[V * D], gate[E * D], g[E * F * D], u[E * F * D], d[E * D * F], head[V * D];
} weights;

static linnet_context *c;

static double silu(double v) { return v / (1 + exp(-v)); }

static void choose(const setting *s, const double *score, int *chosen)
{
    for (int j = 0; j < s->k; j++) {
        int best = -1;
        for (int e = 0; e < E; e++) {
            bool taken = false;
            for (int i = 0; i < j; i++) taken |= chosen[i] == e;
            if (!taken && (best < 0 || score[e] > score[best])) best = e;
        }
        chosen[j] = best;
    }
}

static void scores(const setting *s, const weights *w, int id, double *score)
{
    double sum = 0;
    for (int e = 0; e < E; e++) {
        double z = 0;
        for (int i = 0; i < D; i++) z += w->gate[e * D + i] * w->x[id * D + i];
        score[e] = s->sigmoid ? 1 / (1 + exp(-z)) : exp(z);
        sum += score[e];
    }
    for (int e = 0; e < E && !s->sigmoid; e++) score[e] /= sum;
}

/* Cross entropy of a token behind the mixture. */
static double token_loss(const setting *s, const weights *w, int id, int target)
{
    double score[E], y[D] = {0}, sum = 0, top = 0, right = 0;
    int chosen[E];
    scores(s, w, id, score);
    choose(s, score, chosen);
    for (int j = 0; j < s->k; j++) sum += score[chosen[j]];
    for (int j = 0; j < s->k; j++) {
        const int e = chosen[j];
        for (int f = 0; f < F; f++) {
            double a = 0, b = 0;
            for (int i = 0; i < D; i++) {
                a += w->g[(e * F + f) * D + i] * w->x[id * D + i];
                b += w->u[(e * F + f) * D + i] * w->x[id * D + i];
            }
            const double h = s->gated ? silu(a) * b : b > 0 ? b * b : 0;
            for (int i = 0; i < D; i++) y[i] += s->scale * score[e] / (s->renormalise ? sum : 1) * w->d[(e * D + i) * F + f] * h;
        }
    }
    for (int v = 0; v < V; v++) {
        double z = 0;
        for (int i = 0; i < D; i++) z += w->head[v * D + i] * y[i];
        top += exp(z);
        if (v == target) right = z;
    }
    return log(top) - right;
}

/* The mean loss, and E sum f P with the shares of choices as they were in `at`. */
static double whole_loss(const setting *s, const weights *w, const weights *at, const int32_t *ids)
{
    double sum = 0, share[E] = {0}, mean[E] = {0}, score[E];
    int chosen[E];
    for (int t = 0; t < T; t++) {
        sum += token_loss(s, w, ids[t], ids[t + 1]) / T;
        scores(s, at, ids[t], score);
        choose(s, score, chosen);
        for (int j = 0; j < s->k; j++) share[chosen[j]] += 1.0 / T;
        scores(s, w, ids[t], score);
        for (int e = 0; e < E; e++) mean[e] += score[e] / T;
    }
    for (int e = 0; e < E; e++) sum += s->balance * E * share[e] * mean[e];
    return sum;
}

/* Tokens that take each expert, and those that take 1 and not 3. */
static int takers(const setting *s, const weights *w, const int32_t *ids, int count[E])
{
    double score[E];
    int chosen[E], alone = 0;
    memset(count, 0, E * sizeof *count);
    for (int t = 0; t < T; t++) {
        bool has[E] = {0};
        scores(s, w, ids[t], score);
        choose(s, score, chosen);
        for (int j = 0; j < s->k; j++) count[chosen[j]]++, has[chosen[j]] = true;
        alone += has[1] && !has[3];
    }
    return alone;
}

static void check(const setting *s)
{
    static const struct {
        const char *name;
        size_t at, n;
    } part[] = {{"emb.weight", offsetof(weights, x), V * D}, {"gate.weight", offsetof(weights, gate), E * D},
                {"experts.gate_proj.weight", offsetof(weights, g), E * F * D}, {"experts.up_proj.weight", offsetof(weights, u), E * F * D},
                {"experts.down_proj.weight", offsetof(weights, d), E * D * F}, {"head.weight", offsetof(weights, head), V * D}};
    lnt_program *p;
    lnt_weights *store;
    lnt_plan *plan;
    weights w;
    int32_t ids[T + 1];
    lnt_rng r = lnt_rng_make(7, 0);
    const lnt_init one = {LNT_INIT_NORMAL, 1, 0};
    for (size_t i = 0; i < sizeof w / sizeof(double); i++) ((double *)&w)[i] = (double)(float)(2 * lnt_rng_uniform(&r) - 1);
    for (int v = 0; v < V && (s->tie || s->empty); v++) w.x[v * D] = 1;
    if (s->tie) { /* every token's last choice is between experts 1 and 3, whose scores are equal: the first is taken */
        w.gate[D] = 4;
        if (s->k == 2) w.gate[0] = 9;
        memcpy(w.gate + 3 * D, w.gate + D, D * sizeof(double));
    }
    if (s->empty) w.gate[4 * D] = -9; /* nobody takes the last expert, */
    for (int t = 0; t <= T; t++) ids[t] = (int32_t)lnt_rng_below(&r, V);
    int count[E];
    const int alone = takers(s, &w, ids, count);
    assert_true(!s->tie || (alone == T && count[3] == 0));
    assert_true(!s->empty || (count[4] == 0 && count[0] + count[1] + count[2] + count[3] == T * s->k));
    assert_int_equal(lnt_program_create(c, &p), LINNET_OK);
    lnt_buf in = lnt_external(p, "ids"), targets = lnt_external(p, "targets");
    lnt_buf x = lnt_activation(p, lnt_embedding(p, in, "emb", V, D, 1, one, false), LNT_IDENTITY, 1, false);
    lnt_buf route = lnt_route(p, lnt_linear(p, x, "gate", E), s->k, s->sigmoid, s->renormalise, s->scale, s->balance);
    lnt_buf y = lnt_experts(p, x, route, "experts", s->k, F, s->gated ? LNT_SILU : LNT_SQUARED_RELU, s->gated);
    lnt_buf loss = lnt_lm_loss(p, y, targets, "head.weight", V, 0, one);
    assert_int_equal(lnt_program_finish(p), LINNET_OK);
    assert_int_equal(lnt_weights_create(c, p, LINNET_F32, LINNET_F32, &store), LINNET_OK);
    assert_int_equal(lnt_weights_need_grad(store), LINNET_OK);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        const lnt_param *q = lnt_param_find(p, part[i].name);
        for (size_t j = 0; q && j < part[i].n; j++) store->master[q->offset + (int64_t)j] = (float)((double *)((char *)&w + part[i].at))[j];
    }
    lnt_plan_options o = {.tokens = T, .n_seq = 1, .dtype = LINNET_F32, .training = true, .n_outputs = 1, .outputs = {loss}};
    assert_int_equal(lnt_plan_create(c, p, &o, &plan), LINNET_OK);
    lnt_batch b = {.tokens = T, .n_seq = 1, .n_inputs = 2, .inputs = {{in, ids}, {targets, ids + 1}}, .loss_scale = 1.0 / T};
    assert_int_equal(lnt_plan_run(plan, store, &b), LINNET_OK);
    for (int t = 0; t < T; t++)
        assert_true(fabs(((const float *)lnt_plan_output(plan, loss).data)[t] - token_loss(s, &w, ids[t], ids[t + 1])) < 1e-5);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        const lnt_param *q = lnt_param_find(p, part[i].name);
        for (size_t j = 0; q && j < part[i].n; j++) {
            weights a = w, z = w;
            ((double *)((char *)&a + part[i].at))[j] += 1e-6;
            ((double *)((char *)&z + part[i].at))[j] -= 1e-6;
            const double want = (whole_loss(s, &a, &w, ids) - whole_loss(s, &z, &w, ids)) / 2e-6, have = store->grad[q->offset + (int64_t)j];
            /* which is then not a bit of the loss but for its score */
            if (s->empty && i > 1 && i < 5 && j / (part[i].n / E) == 4) assert_true(have == 0);
            const bool jumps = s->tie && (i < 2); /* where a tie breaks there is no derivative */
            if (!jumps && !(fabs(want - have) < 2e-6 + 1e-4 * fabs(want)))
                fail_msg("%s[%zu]: gradient %g, difference %g", part[i].name, j, have, want);
        }
    }
    lnt_plan_destroy(plan);
    lnt_weights_destroy(store);
    lnt_program_destroy(p);
}

static void against_the_formula(void **state)
{
    (void)state;
    static const setting all[] = {
        {.k = 2, .renormalise = true, .gated = true, .scale = 1},
        {.k = 1, .gated = true, .scale = 1.5},
        {.k = 3, .sigmoid = true, .renormalise = true, .scale = 2.5},
        {.k = 2, .sigmoid = true, .gated = true, .scale = 1},
        {.k = 2, .renormalise = true, .gated = true, .scale = 1, .balance = 0.3},
        {.k = 1, .gated = true, .scale = 1, .balance = 1},
        {.k = 2, .renormalise = true, .gated = true, .scale = 1, .tie = true},
        {.k = 1, .gated = true, .scale = 1, .tie = true},
        {.k = 2, .sigmoid = true, .renormalise = true, .scale = 1, .tie = true},
        {.k = 2, .renormalise = true, .gated = true, .scale = 1, .balance = 0.3, .empty = true},
        {.k = 1, .sigmoid = true, .scale = 1, .empty = true},
        {.k = E, .gated = true, .scale = 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check(&all[i]);
}

int main(void)
{
    assert_int_equal(linnet_context_create(NULL, &c), LINNET_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_the_formula)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    linnet_context_destroy(c);
    return failed;
}
