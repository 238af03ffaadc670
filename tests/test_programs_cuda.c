/* Programs and the optimizer on a GPU against the same on the CPU: a training run through a plan; steps of a few sequences, whose nodes are done in
 * groups; updates of weights of every kind. "test_programs_cuda NAME": only what contains NAME, of plans, experts, groups and optimizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/rng.h"
#include "device/device.h"
#include "gpu_context.h"
#include "ops/builder.h"
#include "ops/optimizer.h"
#include "program/plan.h"

#define OK(c, call)                                                                                                                \
    do {                                                                                                                           \
        if ((call) != LINNET_OK) fail_msg("%s: %s", #call, linnet_error_message(c));                                               \
    } while (0)

/* ---- a program through a plan, on both devices ----------------------------------------------------------------------------- */

enum { WIDTH = 128, VOCAB = 203, TOKENS = 90 };

static const lnt_init normal = {LNT_INIT_NORMAL, 1, 0};

static lnt_buf small_program(lnt_program *p, lnt_buf ids, lnt_buf targets)
{
    lnt_buf x = lnt_embedding(p, ids, "e", VOCAB, WIDTH, 1, normal, false), y = x;
    for (int layer = 0; layer < 2; layer++) {
        lnt_push_scope(p, "%d", layer);
        lnt_buf h = lnt_rmsnorm(p, y, "norm", 1e-6);
        lnt_buf q = lnt_rotary(p, lnt_l2norm(p, lnt_short_conv(p, lnt_linear(p, h, "q", WIDTH), "conv", 4, LNT_SILU), 1e-6), 10000);
        lnt_buf g = lnt_linear(p, h, "g", WIDTH);
        lnt_buf o = lnt_gated_rmsnorm(p, q, g, "out", 1e-5, LNT_SILU);
        y = lnt_add_buf(p, y, lnt_linear(p, lnt_swiglu(p, g, lnt_mul_buf(p, o, h)), "o", WIDTH));
        lnt_pop_scope(p);
    }
    return lnt_lm_loss(p, lnt_rmsnorm(p, y, "norm", 1e-6), targets, "e.weight", VOCAB, 0, normal);
}

/* Maps of one input that are one call, three times 128 columns with 8 behind them and twice 256, and others that are not; three convolutions side by
 * side, two of them with the norm of their heads, of 16 or 128 columns; a sum of scaled columns, and a norm behind a gate, as pairs. */
static lnt_buf normed_convolution(lnt_program *p, lnt_buf x, const char *name, const char *conv, int heads)
{
    const lnt_buf y = lnt_short_conv(p, lnt_linear(p, x, name, WIDTH), conv, 4, LNT_SILU);
    return lnt_with_heads(p, lnt_l2norm(p, lnt_with_heads(p, y, heads), 1e-6), 8);
}
static lnt_buf joined_program(lnt_program *p, lnt_buf ids, lnt_buf targets)
{
    lnt_buf y = lnt_embedding(p, ids, "e", VOCAB, WIDTH, 1, normal, false);
    for (int layer = 0; layer < 2; layer++) {
        lnt_push_scope(p, "%d", layer);
        lnt_buf h = lnt_rmsnorm(p, y, "norm", 1e-6);
        lnt_buf q = normed_convolution(p, h, "q", "q_conv", layer ? 1 : 8), k = normed_convolution(p, h, "k", "k_conv", layer ? 1 : 8);
        lnt_buf v = lnt_short_conv(p, lnt_linear(p, h, "v", WIDTH), "v_conv", 4, LNT_SILU);
        lnt_buf b = lnt_activation(p, lnt_linear(p, h, "b", 8), LNT_SIGMOID, 1, true), z = lnt_linear(p, h, "z", WIDTH + 8);
        lnt_buf D = lnt_row_param(p, "D", 1, WIDTH, normal), sum = lnt_add_buf(p, lnt_scale_rows(p, v, D), lnt_mul_buf(p, lnt_add_buf(p, q, k), b));
        lnt_buf o = lnt_rmsnorm(p, lnt_swiglu(p, lnt_slice(p, z, 8, WIDTH, 1), sum), "out", 1e-5);
        h = lnt_rmsnorm(p, y = lnt_add_buf(p, y, lnt_linear(p, o, "o", WIDTH)), "mlp_norm", 1e-6);
        lnt_buf gate = lnt_linear(p, h, "gate", 2 * WIDTH), up = lnt_linear(p, h, "up", 2 * WIDTH);
        y = lnt_add_buf(p, y, lnt_linear(p, lnt_swiglu(p, gate, up), "down", WIDTH));
        lnt_pop_scope(p);
    }
    return lnt_lm_loss(p, lnt_rmsnorm(p, y, "norm", 1e-6), targets, "e.weight", VOCAB, 0, normal);
}

/* Lerps as pairs, between rows and those before them, six side by side and one, and to a product; columns in units of 8, 4 and 1. */
static lnt_buf shifted_program(lnt_program *p, lnt_buf ids, lnt_buf targets)
{
    static const int64_t cols[] = {136, 132, 37};
    lnt_buf y = lnt_embedding(p, ids, "e", VOCAB, WIDTH, 1, normal, false);
    for (int layer = 0; layer < 3; layer++) {
        lnt_push_scope(p, "%d", layer);
        lnt_buf x = lnt_linear(p, lnt_rmsnorm(p, y, "norm", 1e-6), "x", cols[layer]), mu[6];
        for (int i = 0; i < 6; i++) mu[i] = lnt_row_param(p, (const char *[]){"a", "b", "c", "d", "e", "f"}[i], 1, cols[layer], normal);
        x = lnt_lerps(p, x, lnt_token_shift(p, x), 6, mu);
        x = lnt_rmsnorm(p, lnt_linear(p, x, "down", cols[layer]), "inner", 1e-6);
        x = lnt_lerp_param(p, x, lnt_token_shift(p, x), "mu", normal);
        const lnt_buf by = lnt_linear(p, x, "by", cols[layer]);
        x = lnt_lerp_param(p, x, lnt_mul_buf(p, x, by), "k", normal);
        y = lnt_add_buf(p, y, lnt_linear(p, x, "o", WIDTH));
        lnt_pop_scope(p);
    }
    return lnt_lm_loss(p, lnt_rmsnorm(p, y, "norm", 1e-6), targets, "e.weight", VOCAB, 0, normal);
}

/* Mixtures of experts, of few tokens each and of none; inner columns that are whole units of 8 and that are not. */
static lnt_buf mixtures(lnt_program *p, lnt_buf ids, lnt_buf targets, int few)
{
    static const struct {
        int experts, inner;
        bool gated, sigmoid;
        double balance;
    } mixture[] = {{6, 72, true, false, 0.1}, {40, 13, true, true, 0}, {3, 100, false, false, 1}};
    lnt_buf x = lnt_embedding(p, ids, "e", VOCAB, WIDTH, 1, normal, false);
    for (int i = 0; i < 3; i++) {
        const int k = few ? few : mixture[i].experts;
        lnt_push_scope(p, "%d", i);
        lnt_buf h = lnt_rmsnorm(p, x, "norm", 1e-6);
        lnt_buf route = lnt_route(p, lnt_linear(p, h, "gate", mixture[i].experts), k, mixture[i].sigmoid, i != 2, 1.5, mixture[i].balance);
        x = lnt_add_buf(p, x, lnt_experts(p, h, route, "experts", k, mixture[i].inner, mixture[i].gated ? LNT_SILU : LNT_SQUARED_RELU,
                                          mixture[i].gated));
        lnt_pop_scope(p);
    }
    return lnt_lm_loss(p, lnt_rmsnorm(p, x, "norm", 1e-6), targets, "e.weight", VOCAB, 0, normal);
}
static lnt_buf few_experts(lnt_program *p, lnt_buf ids, lnt_buf targets) { return mixtures(p, ids, targets, 2); }
static lnt_buf all_experts(lnt_program *p, lnt_buf ids, lnt_buf targets) { return mixtures(p, ids, targets, 0); }

typedef lnt_buf program_of(lnt_program *p, lnt_buf ids, lnt_buf targets);

/* Loss of every token and all gradients of one training run. */
static float *train_once(linnet_context *c, program_of *build, lnt_dtype dtype, int64_t *count)
{
    lnt_program *p;
    OK(c, lnt_program_create(c, &p));
    const lnt_buf ids = lnt_external(p, "ids"), targets = lnt_external(p, "targets"), loss = build(p, ids, targets);
    OK(c, lnt_program_finish(p));
    lnt_weights *w;
    OK(c, lnt_weights_create(c, p, dtype, LINNET_F32, &w));
    OK(c, lnt_weights_init(w, 5)); /* drawn on the host: the same on both devices */
    OK(c, lnt_weights_need_grad(w));
    lnt_weights_zero_grad(w);
    lnt_plan *plan;
    const lnt_plan_options o = {.tokens = TOKENS, .n_seq = 3, .dtype = dtype, .training = true, .n_outputs = 1, .outputs = {loss}};
    OK(c, lnt_plan_create(c, p, &o, &plan));
    int32_t id[TOKENS], target[TOKENS];
    lnt_rng r = lnt_rng_make(1, 2);
    for (int t = 0; t < TOKENS; t++) id[t] = (int32_t)lnt_rng_below(&r, VOCAB), target[t] = t % 9 ? (int32_t)lnt_rng_below(&r, VOCAB) : -1;
    const int64_t cu[4] = {0, 1, 50, TOKENS};
    const lnt_batch b = {.tokens = TOKENS, .n_seq = 3, .cu = cu, .n_inputs = 2, .inputs = {{ids, id}, {targets, target}}, .loss_scale = 1.0 / TOKENS};
    OK(c, lnt_plan_run(plan, w, &b));
    *count = TOKENS + w->elements;
    float *all = lnt_alloc((size_t)*count * 4);
    lnt_to_host(c, all, lnt_plan_output(plan, loss).data, TOKENS * 4);
    lnt_to_host(c, all + TOKENS, w->grad, (size_t)w->elements * 4);
    lnt_plan_destroy(plan);
    lnt_weights_destroy(w);
    lnt_program_destroy(p);
    return all;
}

static double distance(const float *a, const float *b, int64_t n)
{
    double error = 0, square = 0;
    for (int64_t i = 0; i < n; i++) error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), square += (double)b[i] * b[i];
    return sqrt(error / square);
}

/* float32 agrees with the CPU; bf16 is no further from the CPU's float32 than the CPU's own bf16 is, and a half. */
static void compare_plans(linnet_context *gpu, linnet_context *cpu, program_of *build)
{
    float *all[2][2];
    int64_t n;
    for (int h = 0; h < 2; h++) {
        all[h][0] = train_once(cpu, build, h ? LINNET_BF16 : LINNET_F32, &n);
        all[h][1] = train_once(gpu, build, h ? LINNET_BF16 : LINNET_F32, &n);
    }
    for (int part = 0; part < 2; part++) { /* losses, gradients */
        const int64_t at = part ? TOKENS : 0, m = part ? n - TOKENS : TOKENS;
        const double same = distance(all[0][1] + at, all[0][0] + at, m), own = distance(all[1][0] + at, all[0][0] + at, m),
                     half = distance(all[1][1] + at, all[0][0] + at, m);
        print_message("%s: float32 %.2g; bf16 from float32: GPU %.2g, CPU %.2g\n", part ? "gradients" : "losses", same, half, own);
        assert_true(same < 1e-5);
        assert_true(half < 1.5 * own);
    }
    for (int i = 0; i < 4; i++) lnt_free(all[i / 2][i % 2]);
}

static void plans(void **state)
{
    (void)state;
    linnet_context *gpu = wanted("plans") ? make_cuda_context() : NULL, *cpu;
    if (!gpu) skip();
    OK(cpu, linnet_context_create(NULL, &cpu));
    compare_plans(gpu, cpu, small_program);
    compare_plans(gpu, cpu, joined_program);
    compare_plans(gpu, cpu, shifted_program);
    linnet_context_destroy(gpu);
    linnet_context_destroy(cpu);
}

/* Where experts are chosen, bf16 may choose others: that is compared with all of them, the choice in float32; and two runs have the same bits. */
static void experts(void **state)
{
    (void)state;
    linnet_context *gpu = wanted("experts") ? make_cuda_context() : NULL, *cpu;
    if (!gpu) skip();
    OK(cpu, linnet_context_create(NULL, &cpu));
    compare_plans(gpu, cpu, all_experts);
    int64_t n;
    float *few[3];
    for (int i = 0; i < 3; i++) few[i] = train_once(i ? gpu : cpu, few_experts, LINNET_F32, &n);
    const double losses = distance(few[1], few[0], TOKENS), gradients = distance(few[1] + TOKENS, few[0] + TOKENS, n - TOKENS);
    print_message("2 of the experts: losses %.2g, gradients %.2g\n", losses, gradients);
    assert_true(losses < 1e-5 && gradients < 1e-5);
    assert_memory_equal(few[1], few[2], (size_t)n * sizeof(float));
    for (int i = 0; i < 3; i++) lnt_free(few[i]);
    linnet_context_destroy(gpu);
    linnet_context_destroy(cpu);
}

/* ---- steps of a few sequences, where nodes are done in groups: a sum and its norm with four maps, one with a bias, and what is made of their
 * results, convolutions with and without norm, gate and up with SwiGLU: 4480 rows, enough for blocks that stay on an H200's multiprocessors. ---- */

enum { STEP_WIDTH = 192, STEP_INNER = 2240, STEPS = 3 };

static lnt_buf step_program(lnt_program *p, lnt_buf ids, lnt_buf *strength)
{
    const lnt_init init = {LNT_INIT_NORMAL, 1, 0};
    lnt_buf e = lnt_embedding(p, ids, "e", VOCAB, STEP_WIDTH, 1, init, false);
    lnt_buf x = lnt_add_buf(p, e, lnt_linear(p, lnt_rmsnorm(p, e, "first_norm", 1e-6), "first", STEP_WIDTH));
    lnt_buf h = lnt_rmsnorm(p, x, "norm", 1e-6), qk[2];
    for (int i = 0; i < 2; i++) {
        lnt_buf y = lnt_short_conv(p, lnt_linear(p, h, i ? "k" : "q", 128), i ? "k_conv" : "q_conv", 4, LNT_SILU);
        qk[i] = lnt_l2norm(p, lnt_with_heads(p, y, 2), 1e-6);
    }
    lnt_buf v = lnt_short_conv(p, lnt_linear(p, h, "v", STEP_WIDTH), "v_conv", 4, LNT_SILU);
    lnt_add_param(p, "b.bias", 1, &(int64_t){4}, init, false, false); /* found by the maps, which would start at 0 */
    lnt_add_param(p, "v_out.bias", 1, &(int64_t){STEP_WIDTH}, init, false, false);
    *strength = lnt_activation(p, lnt_linear_bias(p, h, "b", 4), LNT_SIGMOID, 2, true);
    x = lnt_add_buf(p, x, lnt_linear(p, lnt_mul_buf(p, qk[0], qk[1]), "o", STEP_WIDTH));
    x = lnt_add_buf(p, x, lnt_linear_bias(p, v, "v_out", STEP_WIDTH));
    h = lnt_rmsnorm(p, x, "mlp_norm", 1e-6);
    const lnt_buf gate = lnt_linear(p, h, "gate", STEP_INNER), up = lnt_linear(p, h, "up", STEP_INNER);
    lnt_buf y = lnt_swiglu(p, gate, up);
    return lnt_add_buf(p, x, lnt_linear(p, y, "down", STEP_WIDTH));
}

/* The last step's results of n sequences, [n, STEP_WIDTH] and [n, 4]. */
static float *step_once(linnet_context *c, lnt_dtype dtype, int64_t n, bool apart)
{
    lnt_program *p;
    lnt_buf strength;
    OK(c, lnt_program_create(c, &p));
    const lnt_buf ids = lnt_external(p, "ids"), x = step_program(p, ids, &strength);
    OK(c, lnt_program_finish(p));
    lnt_weights *w;
    OK(c, lnt_weights_create(c, p, dtype, LINNET_F32, &w));
    OK(c, lnt_weights_init(w, 5));
    lnt_state *state;
    OK(c, lnt_state_create(c, p, dtype, n, STEPS, &state));
    lnt_plan *plan;
    const lnt_plan_options o = {.tokens = n, .n_seq = n, .dtype = dtype, .has_state = true, .state_capacity = STEPS, .alone = apart, .n_outputs = 2,
                                .outputs = {x, strength}};
    OK(c, lnt_plan_create(c, p, &o, &plan));
    lnt_rng r = lnt_rng_make(1, 2);
    for (int s = 0; s < STEPS; s++) { /* the last is replayed */
        int32_t id[64];
        for (int64_t i = 0; i < n; i++) id[i] = (int32_t)lnt_rng_below(&r, VOCAB);
        const lnt_batch b = {.tokens = n, .n_seq = n, .n_inputs = 1, .inputs = {{ids, id}}, .state = state};
        OK(c, lnt_plan_run(plan, w, &b));
    }
    float *all = lnt_alloc((size_t)n * (STEP_WIDTH + 4) * 4);
    lnt_to_host(c, all, lnt_plan_output(plan, x).data, (size_t)n * STEP_WIDTH * 4);
    lnt_to_host(c, all + n * STEP_WIDTH, lnt_plan_output(plan, strength).data, (size_t)n * 4 * 4);
    lnt_plan_destroy(plan);
    lnt_state_destroy(state);
    lnt_weights_destroy(w);
    lnt_program_destroy(p);
    return all;
}

/* Groups give what single nodes give, and both what the CPU gives; twice the same bits. */
static void groups(void **state)
{
    (void)state;
    linnet_context *gpu = wanted("groups") ? make_cuda_context() : NULL, *cpu;
    if (!gpu) skip();
    OK(cpu, linnet_context_create(NULL, &cpu));
    const int64_t sizes[] = {1, 2, 5, 8, 9, 16, 17, 33, 64};
    double most[3] = {0, 0, 0};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        const int64_t n = sizes[i], count = n * (STEP_WIDTH + 4);
        float *exact = step_once(cpu, LINNET_F32, n, false), *half = step_once(cpu, LINNET_BF16, n, false), *ours[2][3];
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < 3; k++) ours[h][k] = step_once(gpu, h ? LINNET_BF16 : LINNET_F32, n, k == 1);
        const double own = distance(half, exact, count);
        for (int k = 0; k < 2; k++) {
            most[0] = fmax(most[0], distance(ours[0][k], exact, count));
            most[1 + k] = fmax(most[1 + k], distance(ours[1][k], exact, count) / own);
        }
        for (int h = 0; h < 2; h++) assert_memory_equal(ours[h][0], ours[h][2], (size_t)count * 4);
        for (int k = 0; k < 6; k++) lnt_free(ours[k / 3][k % 3]);
        lnt_free(exact);
        lnt_free(half);
    }
    print_message("steps: float32 %.2g; bf16 from float32, in CPU's: groups %.2g, single nodes %.2g\n", most[0], most[1], most[2]);
    assert_true(most[0] < 1e-5);
    assert_true(most[1] < 1.5 && most[2] < 1.5);
    linnet_context_destroy(gpu);
    linnet_context_destroy(cpu);
}

/* ---- the optimizer, on both devices ----------------------------------------------------------------------------------------------- */

/* Sizes around units and pieces, with paddings between; every second decays, every third is not read by products. Weights, moments, then the norm of
 * three steps, all of them clipped. */
static float *optimize(linnet_context *c, lnt_dtype kept, lnt_dtype moments, int64_t *count, int64_t *masters)
{
    static const int64_t sizes[] = {1, 15, 17, 64, 1000, 70001, 3, 33000};
    enum { N = sizeof sizes / sizeof *sizes, UPDATES = 3 };
    static const char *const names[N] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    lnt_program *p;
    lnt_weights *w;
    lnt_optimizer *o;
    OK(c, lnt_program_create(c, &p));
    for (int i = 0; i < N; i++) lnt_add_param(p, names[i], 1, &sizes[i], normal, i % 2 == 0, i % 3 != 1);
    OK(c, lnt_weights_create(c, p, LINNET_BF16, kept, &w));
    OK(c, lnt_weights_init(w, 3));
    OK(c, lnt_weights_need_grad(w));
    OK(c, lnt_optimizer_create(c, w, moments, &o));
    const int64_t n = w->elements;
    *count = n, *masters = w->masters;
    float *all = lnt_calloc((size_t)(3 * n + UPDATES) * 4), *g = lnt_calloc((size_t)n * 4);
    lnt_adamw h = {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .seed = 5, .clip = 1};
    lnt_rng r = lnt_rng_make(3, 1);
    for (h.step = 1; h.step <= UPDATES; h.step++) {
        for (int q = 0; q < N; q++)
            for (int64_t i = 0; i < sizes[q]; i++) g[lnt_param_at(p, q)->offset + i] = (float)lnt_rng_normal(&r);
        lnt_to_device(c, w->grad, g, (size_t)n * 4);
        w->grad_empty = false; /* as a run leaves it */
        OK(c, lnt_optimizer_step(o, &h));
        lnt_step_sums sums;
        lnt_optimizer_read(o, &sums);
        all[3 * n + h.step - 1] = (float)sums.norm;
        lnt_to_host(c, g, w->grad, (size_t)n * 4);
        for (int64_t i = 0; i < lnt_param_plain_end(p); i++) assert_true(g[i] == 0);
        memset(g, 0, (size_t)n * 4);
    }
    for (int i = 0; i < 2; i++) { /* a gradient or a loss that is not finite leaves everything as it is */
        lnt_step_sums sums;
        lnt_weights_zero_grad(w);
        g[lnt_param_at(p, 5)->offset + 12345] = i ? 0 : NAN;
        lnt_to_device(c, w->grad, g, (size_t)n * 4);
        lnt_to_device(c, &o->sums->nats, &(double){i ? INFINITY : 0}, sizeof(double));
        w->grad_empty = false;
        OK(c, lnt_optimizer_step(o, &h));
        lnt_optimizer_read(o, &sums);
        assert_true(i ? isinf(sums.nats) : isnan(sums.norm));
        lnt_to_host(c, g, w->grad, (size_t)n * 4);
        for (int64_t k = 0; k < lnt_param_plain_end(p); k++) assert_true(g[k] == 0);
    }
    OK(c, lnt_weights_get(w, all));
    OK(c, lnt_floats_to_host(c, all + n, o->m, moments, n));
    OK(c, lnt_floats_to_host(c, all + 2 * n, o->v, moments, n));
    lnt_free(g);
    lnt_optimizer_destroy(o);
    lnt_weights_destroy(w);
    lnt_program_destroy(p);
    return all;
}

/* What is kept in bf16 is rounded by the same bits on both, but from a value that may differ in its last: seldom to the other neighbour. Moments that
 * went there move a weight by a rounding of theirs. */
static void optimizer(void **state)
{
    (void)state;
    linnet_context *gpu = wanted("optimizer") ? make_cuda_context() : NULL, *cpu;
    if (!gpu) skip();
    OK(cpu, linnet_context_create(NULL, &cpu));
    for (int way = 0; way < 4; way++) {
        const lnt_dtype kept = way % 2 ? LINNET_BF16 : LINNET_F32, moments = way / 2 ? LINNET_BF16 : LINNET_F32;
        int64_t n, masters, count = 0, other = 0, far = 0;
        float *b = optimize(cpu, kept, moments, &n, &masters), *a = optimize(gpu, kept, moments, &n, &masters);
        for (int64_t i = 0; i < 3 * n + 3; i++) {
            const bool rounded = i < n ? i >= masters : i < 3 * n && moments == LINNET_BF16;
            const double off = fabs((double)a[i] - b[i]) / (1e-2 + fabs(b[i]));
            if (rounded) count++, other += a[i] != b[i];
            else if (i < n && moments == LINNET_BF16) far += off > 1e-6;
            if (!(off <= (rounded ? 0x1p-6 : i < n && moments == LINNET_BF16 ? 1e-2 : 1e-6)))
                fail_msg("element %lld: %g, %g on the CPU", (long long)i, a[i], b[i]);
        }
        assert_true(other <= count / 1000 && far <= masters / 100);
        lnt_free(a);
        lnt_free(b);
    }
    linnet_context_destroy(gpu);
    linnet_context_destroy(cpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans), cmocka_unit_test(experts), cmocka_unit_test(groups), cmocka_unit_test(optimizer)};
    if (argc > 1) only = argv[1];
    return exit_status(cmocka_run_group_tests(tests, NULL, NULL));
}
