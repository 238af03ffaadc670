/* Models of Longhorn's layer (arXiv 2407.14207), both forms, written down again in float64: the exact state is what solves the regression that the
 * paper begins with, by elimination, not a delta rule's. Held to it: each token's loss, and every gradient, to central differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"
#include "model/model.h"

enum { WIDTH = 8, CHANNELS = 2 * WIDTH, M = 5, RANK = 3, HEADS = 4, VOCAB = 13, T = 21, TAPS = 4, MADE = RANK + 2 * M };

static linnet_context *c;

static linnet_model *model_of(bool exact)
{
    static const char *const set[][2] = { { "hidden_size", "8" }, { "num_hidden_layers", "1" }, { "vocab_size", "13" }, { "mlp", "none" },
                                          { "state_size", "5" }, { "dt_rank", "3" }, { "num_heads", "4" }, { "initializer_range", "0.5" } };
    linnet_config *k;
    linnet_model *m;
    assert_int_equal(linnet_config_create(c, "longhorn", &k), LINNET_OK);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        if (linnet_config_set(c, k, set[i][0], set[i][1]) != LINNET_OK) fail_msg("%s: %s", set[i][0], linnet_error_message(c));
    assert_int_equal(linnet_config_set(c, k, "form", exact ? "exact" : "diagonal"), LINNET_OK);
    if (linnet_model_create(c, k, LINNET_F32, 4, &m) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    linnet_config_destroy(k);
    return m;
}

/* ---- the model in float64, over weights w that lie as the model's do ---- */

static const double *weight(const linnet_model *m, const double *w, const char *name)
{
    const lnt_param *q = lnt_param_find(m->p, name);
    if (!q) fail_msg("no parameter %s", name);
    return w + q->offset;
}

/* y[out] = W x + b */
static void linear(const double *W, const double *b, int in, int out, const double *x, double *y)
{
    for (int o = 0; o < out; o++) {
        y[o] = b ? b[o] : 0;
        for (int i = 0; i < in; i++) y[o] += W[o * in + i] * x[i];
    }
}

static void rmsnorm(const double *w, const double *x, double *y)
{
    double square = 0;
    for (int i = 0; i < WIDTH; i++) square += x[i] * x[i];
    for (int i = 0; i < WIDTH; i++) y[i] = x[i] / sqrt(square / WIDTH + 1e-6) * w[i];
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* s becomes argmin_S |S - s|^2 + beta (S.k - x)^2: where (I + beta k k^T) S = s + beta x k. */
static void solve_regression(double beta, const double *k, double x, double *s)
{
    double A[M][M];
    for (int i = 0; i < M; i++) {
        s[i] += beta * x * k[i];
        for (int j = 0; j < M; j++) A[i][j] = (i == j) + beta * k[i] * k[j];
    }
    for (int i = 0; i < M; i++) /* positive definite: no pivots */
        for (int r = i + 1; r < M; r++) {
            const double f = A[r][i] / A[i][i];
            for (int j = i; j < M; j++) A[r][j] -= f * A[i][j];
            s[r] -= f * s[i];
        }
    for (int i = M - 1; i >= 0; i--) {
        for (int j = i + 1; j < M; j++) s[i] -= A[i][j] * s[j];
        s[i] /= A[i][i];
    }
}

/* The same without products of different numbers of k: s_m becomes (1 - Delta k_m^2) s_m + Delta x k_m. */
static void step_diagonal(double beta, const double *k, double x, double *s)
{
    double square = 0;
    for (int i = 0; i < M; i++) square += k[i] * k[i];
    const double Delta = beta / (1 + beta * square);
    for (int i = 0; i < M; i++) s[i] += Delta * (x * k[i] - k[i] * k[i] * s[i]);
}

/* Cross entropies of all tokens; their sum. */
static double losses(const linnet_model *m, const double *w, const int32_t *ids, bool exact, double *each)
{
    const double *E = weight(m, w, "model.embeddings.weight"), *taps = weight(m, w, "model.layers.0.attn.conv1d.weight");
    const double *tap_bias = weight(m, w, "model.layers.0.attn.conv1d.bias"), *D = weight(m, w, "model.layers.0.attn.D");
    double in[T][2 * CHANNELS], state[CHANNELS][M] = { { 0 } }, sum = 0;
    for (int t = 0; t < T; t++) {
        const double *k, *q;
        double n[WIDTH], x[CHANNELS], made[MADE], beta[CHANNELS], y[CHANNELS], out[WIDTH], logit[VOCAB], all = 0;
        rmsnorm(weight(m, w, "model.layers.0.attn_norm.weight"), E + ids[t] * WIDTH, n);
        linear(weight(m, w, "model.layers.0.attn.in_proj.weight"), NULL, WIDTH, 2 * CHANNELS, n, in[t]);
        for (int d = 0; d < CHANNELS; d++) {
            double convolved = tap_bias[d];
            for (int j = 0; j < TAPS && j <= t; j++) convolved += taps[d * TAPS + TAPS - 1 - j] * in[t - j][d];
            x[d] = convolved * sigmoid(convolved);
        }
        linear(weight(m, w, "model.layers.0.attn.x_proj.weight"), NULL, CHANNELS, MADE, x, made);
        linear(weight(m, w, "model.layers.0.attn.dt_proj.weight"), weight(m, w, "model.layers.0.attn.dt_proj.bias"), RANK, exact ? HEADS : CHANNELS,
               made, beta);
        k = made + RANK, q = k + M;
        for (int d = 0; d < CHANNELS; d++) {
            const double gate = in[t][CHANNELS + d];
            (exact ? solve_regression : step_diagonal)(sigmoid(beta[exact ? d / (CHANNELS / HEADS) : d]), k, x[d], state[d]);
            y[d] = D[d] * x[d];
            for (int i = 0; i < M; i++) y[d] += q[i] * state[d][i];
            y[d] *= gate * sigmoid(gate);
        }
        linear(weight(m, w, "model.layers.0.attn.out_proj.weight"), NULL, CHANNELS, WIDTH, y, out);
        for (int i = 0; i < WIDTH; i++) out[i] += E[ids[t] * WIDTH + i];
        rmsnorm(weight(m, w, "model.norm.weight"), out, n);
        linear(weight(m, w, "lm_head.weight"), NULL, WIDTH, VOCAB, n, logit);
        for (int v = 0; v < VOCAB; v++) all += exp(logit[v]);
        each[t] = log(all) - logit[ids[t + 1]];
        sum += each[t];
    }
    return sum;
}

/* ---- tests ---- */

/* Every gradient of parameter q against differences of the truth. */
static void check_gradient(const linnet_model *m, const lnt_param *q, double *w, const int32_t *ids, bool exact)
{
    double error = 0, size = 0, unused[T];
    for (int64_t j = 0; j < q->count; j++) {
        double *x = w + q->offset + j, kept = *x, side[2];
        for (int s = 0; s < 2; s++) {
            *x = kept + (s ? -1e-5 : 1e-5);
            side[s] = losses(m, w, ids, exact, unused);
        }
        *x = kept;
        const double expected = (side[0] - side[1]) / 2e-5, wrong = m->w->grad[q->offset + j] - expected;
        error += wrong * wrong, size += expected * expected;
    }
    assert_true(size > 0);
    if (!(sqrt(error / size) < 1e-5)) fail_msg("%s: relative error %g of the gradient", q->name, sqrt(error / size));
}

static void check(bool exact)
{
    linnet_model *m = model_of(exact);
    lnt_plan *plan;
    int32_t ids[T + 1];
    double each[T];
    lnt_rng r = lnt_rng_make(2, 0);
    for (int t = 0; t <= T; t++) ids[t] = (int32_t)lnt_rng_below(&r, VOCAB);
    assert_int_equal(lnt_weights_need_grad(m->w), LINNET_OK);
    double *w = lnt_alloc((size_t)m->w->elements * sizeof *w);
    for (int i = 0; i < lnt_param_count(m->p); i++) { /* what begins as ones or zeros is uneven */
        const lnt_param *q = lnt_param_at(m->p, i);
        const bool even = strstr(q->name, "norm") || strstr(q->name, "bias") || strstr(q->name, ".D");
        for (int64_t j = q->offset; j < q->offset + q->count; j++) w[j] = m->w->master[j] += (float)(even ? 0.3 * lnt_rng_normal(&r) : 0);
    }
    lnt_plan_options o = { .tokens = T, .n_seq = 1, .dtype = LINNET_F32, .training = true, .n_outputs = 1, .outputs = { m->loss } };
    assert_int_equal(lnt_plan_create(c, m->p, &o, &plan), LINNET_OK);
    lnt_batch b = { .tokens = T, .n_seq = 1, .n_inputs = 2, .inputs = { { m->ids, ids }, { m->targets, ids + 1 } }, .loss_scale = 1 };
    if (lnt_plan_run(plan, m->w, &b) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    losses(m, w, ids, exact, each);
    const float *loss = lnt_plan_output(plan, m->loss).data;
    for (int t = 0; t < T; t++)
        if (!(fabs(loss[t] - each[t]) < 5e-6 * each[t])) fail_msg("token %d: loss %.8g, by the formula %.8g", t, (double)loss[t], each[t]);
    for (int i = 0; i < lnt_param_count(m->p); i++) check_gradient(m, lnt_param_at(m->p, i), w, ids, exact);
    lnt_free(w);
    lnt_plan_destroy(plan);
    linnet_model_destroy(m);
}

static void diagonal_form(void **state) { (void)state, check(false); }
static void exact_form_solves_the_regression(void **state) { (void)state, check(true); }

static int begin(void **state) { return (void)state, linnet_context_create(NULL, &c); }
static int end(void **state) { return (void)state, linnet_context_destroy(c), 0; }

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(diagonal_form), cmocka_unit_test(exact_form_solves_the_regression) };
    return cmocka_run_group_tests(tests, begin, end);
}
