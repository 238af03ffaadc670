/* Training on a GPU: the losses of small models of every mixer beside those of the CPU; repeated, replayed from a graph, recomputed: the same bits; a
 * checkpoint goes from one device to the other. Without a GPU every test is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "gpu_context.h"
#include "train/resume.h"

enum { VOCAB = 61, BATCH = 3, LENGTH = 75, TOKENS = BATCH * LENGTH, STEPS = 20, MOST_SETTINGS = 8 };

typedef struct {
    const char *name, *type;
    const char *set[MOST_SETTINGS][2];
} recipe;

static const recipe recipes[] = {
    {"attention, grouped heads", "transformer", {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"qk_norm", "true"}, {"qkv_bias", "true"}}},
    {"attention, window, tied", "transformer", {{"num_heads", "2"}, {"window_size", "9"}, {"tie_word_embeddings", "true"}}},
    {"linear attention, elu, normalised", "linear_attn", {{"num_heads", "2"}, {"feature_map", "elu"}, {"norm_feature_map", "true"}}},
    {"linear attention, hedgehog", "linear_attn", {{"num_heads", "2"}, {"feature_map", "hedgehog"}}},
    {"retnet", "retnet", {{"num_heads", "2"}}},
    {"simple gla, grouped heads, convolution", "simple_gla", {{"num_heads", "4"}, {"num_kv_heads", "1"}, {"use_short_conv", "true"}}},
    {"delta net", "delta_net", {{"num_heads", "2"}}},
    {"mamba2", "mamba2", {{"num_heads", "4"}, {"head_dim", "32"}, {"state_size", "16"}}},
    {"gated delta net, grouped values", "gated_deltanet", {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "12"}, {"expand_v", "1.5"}}},
    {"gated delta net, heads of 64", "gated_deltanet", {{"num_heads", "2"}, {"head_dim", "64"}, {"expand_v", "1"}}},
    {"equal backbone, gated delta", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "gated_deltanet"}, {"gamma_cap", "0.9975"}}},
    {"mesa, steps drawn and differentiated", "equal_backbone",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "mesa"}, {"cg_gradient", "unrolled"}, {"cg_tolerance", "0"}, {"min_cg_step_training", "0"},
      {"max_cg_step_training", "6"}}},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0], DRAWN = RECIPES - 1 };

/* "test_train_cuda NAME": only models whose name contains NAME. */
static bool chosen(const recipe *r) { return wanted(r->name); }

static linnet_context *cpu, *gpu; /* gpu NULL: there is none */

static int open_contexts(void **state)
{
    (void)state;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    if (linnet_context_create(&o, &cpu) != LINNET_OK) return -1;
    gpu = make_cuda_context();
    return 0;
}

static int close_contexts(void **state)
{
    (void)state;
    linnet_context_destroy(cpu);
    linnet_context_destroy(gpu);
    return 0;
}

#define NEED_GPU()                                                                                                                 \
    do {                                                                                                                           \
        if (!gpu) skip();                                                                                                          \
    } while (0)
#define OK(c, call)                                                                                                                \
    do {                                                                                                                           \
        if ((call) != LINNET_OK) fail_msg("%s: %s", #call, linnet_error_message(c));                                               \
    } while (0)

/* ---- a run ------------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    linnet_dtype dtype, kept;
    lnt_recompute recompute;
    bool step_by_step; /* no graph */
    bool ragged;       /* other sequences at every step */
    bool twice;        /* an update after two runs of the same tokens, each with half the loss */
    linnet_dtype moments;
} setting;

typedef struct {
    linnet_context *c;
    linnet_model *m;
    lnt_trainer *t;
} machine;

static machine open_machine(linnet_context *c, const recipe *r, const setting *s)
{
    machine x = {.c = c};
    linnet_config *k;
    OK(c, linnet_config_create(c, r->type, &k));
    const char *const common[][2] = {{"hidden_size", "64"}, {"num_hidden_layers", "2"}, {"vocab_size", "61"}, {"intermediate_size", "96"}};
    const size_t settings = sizeof common / sizeof common[0] - !strcmp(r->type, "mamba2"); /* which has no MLPs */
    for (size_t i = 0; i < settings; i++) OK(c, linnet_config_set(c, k, common[i][0], common[i][1]));
    for (int i = 0; i < MOST_SETTINGS && r->set[i][0]; i++) OK(c, linnet_config_set(c, k, r->set[i][0], r->set[i][1]));
    OK(c, linnet_model_create_kept(c, k, s->dtype, s->kept, 5, &x.m));
    linnet_config_destroy(k);
    OK(c, lnt_trainer_create(c, x.m, BATCH, LENGTH, s->recompute, s->moments, &x.t));
    x.t->hyper.seed = 5;
    if (s->step_by_step) lnt_plan_profile_reset(x.t->plan);
    return x;
}

static void close_machine(machine *x)
{
    lnt_trainer_destroy(x->t);
    linnet_model_destroy(x->m);
}

/* Step `step` of a run: ids whose next is mostly a function of the one before, so that there is something to learn. */
static double one_step(machine *x, int step, const setting *s)
{
    int32_t ids[TOKENS + 1], targets[TOKENS];
    int64_t cu[6] = {0, 1 + step % 7, 1 + step % 7, 100, TOKENS - step, TOKENS}; /* one is empty */
    lnt_rng r = lnt_rng_make(11, (uint64_t)step);
    for (int i = 0; i <= TOKENS; i++) ids[i] = i % 5 ? (ids[i - 1] * 7 + 3) % VOCAB : (int32_t)lnt_rng_below(&r, VOCAB);
    memcpy(targets, ids + 1, sizeof targets);
    targets[3] = -1;
    lnt_step_sums sums;
    for (int i = 0; i <= s->twice; i++)
        OK(x->c, lnt_trainer_micro(x->t, ids, targets, TOKENS, s->ragged ? 5 : BATCH, s->ragged ? cu : NULL, 1.0 / TOKENS / (1 + s->twice)));
    OK(x->c, lnt_trainer_update(x->t, 1e-3 * fmin(1, (step + 1) / 5.0), &sums));
    assert_true(isfinite(sums.nats) && isfinite(sums.norm) && sums.norm > 0);
    return sums.nats / (TOKENS - 1) / (1 + s->twice);
}

typedef struct {
    double loss[STEPS];
    float *weights; /* [n] */
    int64_t n;
} curve;

static curve run(linnet_context *c, const recipe *r, setting s)
{
    machine x = open_machine(c, r, &s);
    curve k = {.n = x.m->w->elements};
    k.weights = malloc((size_t)k.n * 4);
    for (int i = 0; i < STEPS; i++) k.loss[i] = one_step(&x, i, &s);
    if (lnt_on_cuda(c)) assert_true(lnt_plan_recorded(x.t->plan) == !(s.step_by_step || s.ragged));
    OK(c, lnt_weights_get(x.m->w, k.weights));
    close_machine(&x);
    return k;
}

static void drop(curve *k) { free(k->weights); }

static void check_close(const char *name, const curve *a, const curve *b, double tolerance)
{
    double most = 0;
    for (int i = 0; i < STEPS; i++) {
        double off = fabs(a->loss[i] - b->loss[i]) / fabs(b->loss[i]);
        if (!(off <= tolerance)) fail_msg("%s: loss of step %d is %.8g, expected %.8g (off by %.2g)", name, i + 1, a->loss[i], b->loss[i], off);
        if (off > most) most = off;
    }
    if (!(b->loss[STEPS - 1] < b->loss[0])) fail_msg("%s learned nothing: %g to %g", name, b->loss[0], b->loss[STEPS - 1]);
    print_message("%s: %.4f to %.4f, off by %.2g at most\n", name, b->loss[0], b->loss[STEPS - 1], most);
}

static void check_same(const char *name, const char *what, const curve *a, const curve *b)
{
    if (memcmp(a->loss, b->loss, sizeof a->loss)) fail_msg("%s: %s changes the bits of the loss", name, what);
    if (memcmp(a->weights, b->weights, (size_t)a->n * 4)) fail_msg("%s: %s changes the bits of the weights", name, what);
}

/* ---- tests -------------------------------------------------------------------------------------------------------------------------- */

static void float32_follows_the_cpu(void **state)
{
    (void)state;
    NEED_GPU();
    for (int i = 0; i < RECIPES; i++)
        for (int ragged = 0; chosen(&recipes[i]) && ragged < 2; ragged++) {
            setting s = {.ragged = ragged};
            curve a = run(gpu, &recipes[i], s), b = run(cpu, &recipes[i], s);
            check_close(recipes[i].name, &a, &b, 1e-4);
            drop(&a);
            drop(&b);
        }
}

/* bf16 against float32 and not against the CPU's bf16, so that the CPU's roundings count for nothing. */
static void bf16_follows_float32(void **state)
{
    (void)state;
    NEED_GPU();
    for (int i = 0; i < RECIPES; i++) {
        if (!chosen(&recipes[i])) continue;
        curve truth = run(cpu, &recipes[i], (setting){0});
        for (int kept = 0; kept < 2; kept++) {
            curve a = run(gpu, &recipes[i], (setting){.dtype = LINNET_BF16, .kept = kept ? LINNET_BF16 : LINNET_F32,
                                                      .moments = kept ? LINNET_BF16 : LINNET_F32});
            check_close(recipes[i].name, &a, &truth, 2e-2);
            drop(&a);
        }
        drop(&truth);
    }
}

static void bits_repeat(void **state)
{
    (void)state;
    NEED_GPU();
    for (int i = 0; i < RECIPES; i++)
        for (int mode = 0; chosen(&recipes[i]) && mode < 4; mode++) { /* float32, bf16, bf16 weights, moments alone in bf16 */
            setting s = {.dtype = mode ? LINNET_BF16 : LINNET_F32, .kept = mode == 2 ? LINNET_BF16 : LINNET_F32,
                         .moments = mode == 3 ? LINNET_BF16 : LINNET_F32};
            curve first = run(gpu, &recipes[i], s), again = run(gpu, &recipes[i], s);
            check_same(recipes[i].name, "running twice", &first, &again);
            drop(&again);
            s.step_by_step = true;
            again = run(gpu, &recipes[i], s);
            check_same(recipes[i].name, "a graph", &first, &again);
            drop(&again);
            s.twice = true; /* the first run stores gradients, the second adds: two graphs */
            again = run(gpu, &recipes[i], s);
            s.step_by_step = false;
            curve twice = run(gpu, &recipes[i], s);
            check_same(recipes[i].name, "graphs of two runs", &twice, &again);
            check_close(recipes[i].name, &twice, &first, mode ? 2e-2 : 1e-4);
            drop(&again);
            drop(&twice);
            s.twice = false;
            for (s.recompute = LNT_RECOMPUTE_BLOCKS; s.recompute <= LNT_RECOMPUTE_CHEAP; s.recompute++) {
                again = run(gpu, &recipes[i], s);
                check_same(recipes[i].name, "recomputation", &first, &again);
                drop(&again);
            }
            drop(&first);
        }
}

/* Some steps on one device, a checkpoint, and on both devices the steps that follow. */
static void checkpoints_change_devices(void **state)
{
    (void)state;
    NEED_GPU();
    char folder[] = "/tmp/linnet-train-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    static const int some[] = {5, DRAWN};
    for (int mode = 0; mode < 4; mode++)
        for (int from_gpu = 0; chosen(&recipes[some[mode / 2]]) && from_gpu < 2; from_gpu++) {
            const setting s = {.dtype = mode % 2 ? LINNET_BF16 : LINNET_F32, .kept = mode % 2 ? LINNET_BF16 : LINNET_F32,
                               .moments = mode % 2 ? LINNET_BF16 : LINNET_F32};
            const recipe *r = &recipes[some[mode / 2]];
            linnet_context *c = from_gpu ? gpu : cpu, *d = from_gpu ? cpu : gpu;
            machine one = open_machine(c, r, &s), two = open_machine(d, r, &s);
            lnt_run_settings kept = {.o = LINNET_TRAIN_OPTIONS_INIT, .dtype = s.dtype, .at = {.step = 5, .steps = 10, .tokens = 5 * TOKENS}}, back;
            lnt_file_writer state_file;
            kept.o.out = folder;
            kept.o.steps = kept.at.steps;
            kept.o.batch = BATCH, kept.o.length = LENGTH;
            kept.at.samples = kept.at.step * kept.o.batch;
            back = kept;
            back.at = (lnt_run_position){0};
            for (int i = 0; i < 5; i++) one_step(&one, i, &s);
            OK(c, lnt_resume_stage(c, one.t, &kept, &state_file));
            OK(c, lnt_file_commit(c, &state_file));
            OK(d, lnt_resume_read_settings(d, &back));
            OK(d, lnt_resume_read_weights(d, folder, two.t));
            assert_true(back.at.step == 5 && back.at.tokens == 5 * TOKENS);
            two.t->step = back.at.step;
            const size_t bytes = (size_t)one.m->w->elements * 4;
            float *a = malloc(bytes), *b = malloc(bytes);
            OK(c, lnt_weights_get(one.m->w, a));
            OK(d, lnt_weights_get(two.m->w, b));
            assert_memory_equal(a, b, bytes);
            for (int v = 0; v < 2; v++) {
                const lnt_optimizer *x = one.t->optimizer, *y = two.t->optimizer;
                OK(c, lnt_floats_to_host(c, a, v ? x->v : x->m, s.moments, one.m->w->elements));
                OK(d, lnt_floats_to_host(d, b, v ? y->v : y->m, s.moments, one.m->w->elements));
                assert_memory_equal(a, b, bytes);
            }
            for (int i = 5; i < 10; i++) {
                double x = one_step(&one, i, &s), y = one_step(&two, i, &s);
                assert_true(fabs(x - y) <= (mode % 2 ? 1e-2 : 1e-4) * x);
            }
            free(a);
            free(b);
            close_machine(&one);
            close_machine(&two);
        }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) only = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(float32_follows_the_cpu), cmocka_unit_test(bf16_follows_float32),
                                       cmocka_unit_test(bits_repeat), cmocka_unit_test(checkpoints_change_devices)};
    return exit_status(cmocka_run_group_tests(tests, open_contexts, close_contexts));
}
