/* The Mesa layer in its two published forms, against the whole model written down once more in float64 with a direct solve: the paper's (arXiv
 * 2506.05233, sections 3 and 4, appendix F), and flash-linear-attention's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "model/model.h"

enum { D = 24, LAYERS = 2, H = 3, K = 10, VOCAB = 37, T = 33, FF = 3 * D, TAPS = 4 };

static linnet_context *c;

typedef struct {
    const char *type;
    double embedding_scale, gamma_cap, soft_cap; /* gamma_cap 1, soft_cap 0: none */
    const char *head;
} form;

static const form paper = {"equal_backbone", 4.898979485566356 /* sqrt(D) */, 0.9975, 30, "model.embeddings.weight"};
static const form flash = {"mesa_net", 1, 1, 0, "lm_head.weight"};
static const form flash_capped = {"mesa_net", 1, 0.9, 0, "lm_head.weight"};

static linnet_model *model_of(const form *f, double cap)
{
    static const char *const set[][2] = {{"hidden_size", "24"}, {"num_hidden_layers", "2"}, {"num_heads", "3"}, {"head_dim", "10"},
                                         {"vocab_size", "37"}, {"cg_tolerance", "1e-7"}, {"max_cg_step_training", "100"}};
    linnet_config *k;
    linnet_model *m;
    assert_int_equal(linnet_config_create(c, f->type, &k), LINNET_OK);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) assert_int_equal(linnet_config_set(c, k, set[i][0], set[i][1]), LINNET_OK);
    if (f == &paper) assert_int_equal(linnet_config_set(c, k, "rule", "mesa"), LINNET_OK); /* all else is the model type's own */
    else assert_int_equal(linnet_config_set(c, k, "intermediate_size", "72"), LINNET_OK);
    if (cap < 1) assert_int_equal(linnet_config_set(c, k, "gamma_cap", "0.9"), LINNET_OK);
    if (linnet_model_create(c, k, LINNET_F32, 4, &m) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    linnet_config_destroy(k);
    return m;
}

/* ---- the model in float64 ---- */

static const float *weight(const linnet_model *m, int layer, const char *name)
{
    char full[128];
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    const lnt_param *q = lnt_param_find(m->p, full);
    if (!q) fail_msg("no parameter %s", full);
    return m->w->master + q->offset;
}

/* y[T,out] = x[T,in] W^T + b */
static void linear(const float *W, const float *b, int in, int out, const double *x, double *y)
{
    for (int t = 0; t < T; t++)
        for (int o = 0; o < out; o++) {
            double sum = b ? b[o] : 0;
            for (int i = 0; i < in; i++) sum += x[t * in + i] * W[o * in + i];
            y[t * out + o] = sum;
        }
}

static void rmsnorm(const float *w, int n, int rows, const double *x, double *y)
{
    for (int r = 0; r < rows; r++) {
        double square = 0;
        for (int i = 0; i < n; i++) square += x[r * n + i] * x[r * n + i];
        for (int i = 0; i < n; i++) y[r * n + i] = x[r * n + i] / sqrt(square / n + 1e-6) * w[i];
    }
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Convolution over the last four rows, SiLU, L2 norm of every head. */
static void convolved(const float *w, double *x)
{
    double y[T * H * K];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < H * K; i++) {
            double sum = 0;
            for (int j = 0; j < TAPS; j++)
                if (t - TAPS + 1 + j >= 0) sum += w[i * TAPS + j] * x[(t - TAPS + 1 + j) * H * K + i];
            y[t * H * K + i] = sum * sigmoid(sum);
        }
    for (int r = 0; r < T * H; r++) {
        double square = 0;
        for (int i = 0; i < K; i++) square += y[r * K + i] * y[r * K + i];
        for (int i = 0; i < K; i++) x[r * K + i] = y[r * K + i] / sqrt(square + 1e-6);
    }
}

/* x = A^-1 x for a symmetric positive matrix, by elimination. */
static void solve(double A[K][K], double *x)
{
    for (int i = 0; i < K; i++)
        for (int r = i + 1; r < K; r++) {
            double f = A[r][i] / A[i][i];
            for (int j = i; j < K; j++) A[r][j] -= f * A[i][j];
            x[r] -= f * x[i];
        }
    for (int i = K - 1; i >= 0; i--) {
        for (int j = i + 1; j < K; j++) x[i] -= A[i][j] * x[j];
        x[i] /= A[i][i];
    }
}

/* o_t = G_t^T (H_t + Lambda)^-1 q_t of one head; gamma_t = sigmoid(a) (1 - (1 - cap) beta^2). */
static void mesa_head(const form *f, int h, const double *q, const double *k, const double *v, const double *a, const double *b, const float *p,
                      double *o)
{
    double Hs[K][K] = {{0}}, G[K][K] = {{0}};
    for (int t = 0; t < T; t++) {
        const double beta = sigmoid(b[t * H + h]), gamma = sigmoid(a[t * H + h]) * (1 - (1 - f->gamma_cap) * beta * beta);
        const int at = (t * H + h) * K;
        double A[K][K], x[K];
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) {
                Hs[i][j] = gamma * Hs[i][j] + beta * k[at + i] * k[at + j];
                G[i][j] = gamma * G[i][j] + beta * k[at + i] * v[at + j];
                A[i][j] = Hs[i][j] + (i == j ? 0.25 + log1p(exp((double)p[h * K + i])) : 0);
            }
        memcpy(x, q + at, sizeof x);
        solve(A, x);
        for (int j = 0; j < K; j++) {
            o[at + j] = 0;
            for (int i = 0; i < K; i++) o[at + j] += G[i][j] * x[i];
        }
    }
}

static void truth(const form *f, const linnet_model *m, const int64_t *ids, double *logits)
{
    static double x[T * D], n[T * D], q[T * H * K], k[T * H * K], v[T * H * K], o[T * H * K], a[T * H], b[T * H], y[T * D], up[T * FF], gate[T * FF];
    const float *E = weight(m, -1, "model.embeddings.weight");
    for (int i = 0; i < T * D; i++) x[i] = f->embedding_scale * E[ids[i / D] * D + i % D];
    for (int l = 0; l < LAYERS; l++) {
        rmsnorm(weight(m, l, "attn_norm.weight"), D, T, x, n);
        linear(weight(m, l, "attn.q_proj.weight"), NULL, D, H * K, n, q);
        linear(weight(m, l, "attn.k_proj.weight"), NULL, D, H * K, n, k);
        linear(weight(m, l, "attn.v_proj.weight"), NULL, D, H * K, n, v);
        linear(weight(m, l, "attn.a_proj.weight"), weight(m, l, "attn.a_proj.bias"), D, H, n, a);
        linear(weight(m, l, "attn.b_proj.weight"), weight(m, l, "attn.b_proj.bias"), D, H, n, b);
        convolved(weight(m, l, "attn.q_conv1d.weight"), q);
        convolved(weight(m, l, "attn.k_conv1d.weight"), k);
        for (int h = 0; h < H; h++) mesa_head(f, h, q, k, v, a, b, weight(m, l, "attn.lambda_params"), o);
        rmsnorm(weight(m, l, "attn.o_norm.weight"), K, T * H, o, v);
        linear(weight(m, l, "attn.o_proj.weight"), NULL, H * K, D, v, y);
        for (int i = 0; i < T * D; i++) x[i] += y[i];
        rmsnorm(weight(m, l, "mlp_norm.weight"), D, T, x, n);
        linear(weight(m, l, "mlp.gate_proj.weight"), NULL, D, FF, n, gate);
        linear(weight(m, l, "mlp.up_proj.weight"), NULL, D, FF, n, up);
        for (int i = 0; i < T * FF; i++) up[i] *= gate[i] * sigmoid(gate[i]);
        linear(weight(m, l, "mlp.down_proj.weight"), NULL, FF, D, up, y);
        for (int i = 0; i < T * D; i++) x[i] += y[i];
    }
    rmsnorm(weight(m, -1, "model.norm.weight"), D, T, x, n);
    linear(weight(m, -1, f->head), NULL, D, VOCAB, n, logits);
    for (int i = 0; f->soft_cap > 0 && i < T * VOCAB; i++) logits[i] = f->soft_cap * tanh(logits[i] / f->soft_cap);
}

/* ---- tests ---- */

static void check_form(const form *f)
{
    linnet_model *m = model_of(f, f == &flash_capped ? 0.9 : 1);
    int64_t ids[T];
    float got[T * VOCAB];
    static double expected[T * VOCAB];
    lnt_rng r = lnt_rng_make(2, 0);
    for (int t = 0; t < T; t++) ids[t] = (int64_t)lnt_rng_below(&r, VOCAB);
    for (int i = 0; i < lnt_param_count(m->p); i++) { /* every gate its own, norms and Lambda uneven, logits of the size that a cap bends */
        const lnt_param *q = lnt_param_at(m->p, i);
        float *w = m->w->master + q->offset;
        double size = strstr(q->name, "bias") || strstr(q->name, "lambda") ? 1 : strstr(q->name, "norm") ? 0.3 : strstr(q->name, "conv1d") ? 0.4 : 0;
        for (int64_t j = 0; j < q->count; j++) w[j] += (float)(size * lnt_rng_normal(&r));
        for (int64_t j = 0; strstr(q->name, "model.norm") && j < q->count; j++) w[j] *= 10;
        for (int64_t j = 0; f != &paper && strstr(q->name, "proj") && j < q->count; j++) w[j] *= 10;
    }
    if (linnet_model_logits(c, m, ids, 1, T, got) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    truth(f, m, ids, expected);
    double error = 0, size = 0, most = 0;
    for (int i = 0; i < T * VOCAB; i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        size += expected[i] * expected[i];
        most = fmax(most, fabs(expected[i]));
    }
    if (!(sqrt(error / size) < 1e-5)) fail_msg("%s: relative error %g", f->type, sqrt(error / size));
    if (f == &paper) assert_true(most > 15 && most < 30);
    linnet_model_destroy(m);
}

static void paper_form(void **state) { (void)state, check_form(&paper); }
static void flash_form(void **state) { (void)state, check_form(&flash); }
static void flash_form_with_the_cap(void **state) { (void)state, check_form(&flash_capped); }

static double variance(const linnet_model *m, int layer, const char *name, int64_t n)
{
    const float *w = weight(m, layer, name);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)w[i] * w[i];
    return sum / (double)n;
}

/* What a fresh model of the paper's form begins with. */
static void paper_form_at_the_start(void **state)
{
    (void)state;
    linnet_model *m = model_of(&paper, 1);
    for (int l = 0; l < LAYERS; l++) {
        const float *p = weight(m, l, "attn.lambda_params");
        for (int i = 0; i < H * K; i++) assert_true(fabs(0.25 + log1p(exp((double)p[i])) - 1) < 1e-6); /* Lambda is 1 */
        assert_true(fabs(variance(m, l, "attn.q_proj.weight", H * K * D) * D - 1) < 0.2); /* N(0, 1/fan-in) */
        assert_true(fabs(variance(m, l, "attn.o_proj.weight", H * K * D) * H * K - 2.0 / LAYERS) < 0.2);
        assert_true(fabs(variance(m, l, "mlp.down_proj.weight", FF * D) * FF - 2.0 / LAYERS) < 0.2);
    }
    assert_true(fabs(variance(m, -1, "model.embeddings.weight", VOCAB * D) * D - 1) < 0.2); /* times sqrt(D) at look-up: the stream has variance 1 */
    assert_false(lnt_param_find(m->p, "model.embeddings.weight")->decay);
    assert_true(lnt_param_find(m->p, "model.layers.0.attn.q_proj.weight")->decay);
    assert_null(lnt_param_find(m->p, "lm_head.weight"));
    linnet_model_destroy(m);
}

int main(void)
{
    if (linnet_context_create(NULL, &c) != LINNET_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(paper_form), cmocka_unit_test(flash_form), cmocka_unit_test(flash_form_with_the_cap),
                                       cmocka_unit_test(paper_form_at_the_start)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    linnet_context_destroy(c);
    return failed;
}
