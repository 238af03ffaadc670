/* Whole small models on a GPU against the same on the CPU: logits, gradients, states, generation, evaluation, training, files, and other people's
 * logits. Without a GPU everything is skipped. "test_model_cuda NAME": that test alone. */
#include "model_recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "hub/safetensors.h"
#include "program/schedule.h"
#include "golden_files.h"
#include "linnet/task.h"

static linnet_context *cpu, *gpu; /* gpu NULL: there is none */

#define OK(c, call)                                                                                                                 \
    do {                                                                                                                            \
        if ((call) != LINNET_OK) fail_msg("%s: %s (%s)", #call, linnet_error_message(c), linnet_error_detail(c));                    \
    } while (0)
#define NEEDS_GPU                                                                                                                   \
    if (!gpu) skip()

static float *to_host(linnet_context *c, const void *device, int64_t n)
{
    float *host = malloc((size_t)n * 4 + 1);
    lnt_to_host(c, host, device, (size_t)n * 4);
    OK(c, lnt_device_check(c));
    return host;
}

static void same_weights(const recipe *r, const linnet_model *a, const linnet_model *b)
{
    float *x = to_host(cpu, a->w->master, a->w->elements), *y = to_host(gpu, b->w->master, b->w->elements);
    for (int i = 0; i < lnt_param_count(a->p); i++) {
        const lnt_param *q = lnt_param_at(a->p, i);
        if (memcmp(x + q->offset, y + q->offset, (size_t)q->count * 4)) fail_msg("%s: %s is drawn otherwise on the GPU", r->name, q->name);
    }
    free(x);
    free(y);
}

/* Whether the GPU has every recurrence of the model; where not, that is said. */
static bool offered(const char *name, linnet_model *m)
{
    const int64_t id = 1;
    float *logits = malloc((size_t)m->config->vocab_size * sizeof *logits);
    const linnet_status s = linnet_model_logits(gpu, m, &id, 1, 1, logits);
    if (s == LINNET_EUNSUPPORTED) print_message("  %s: %s\n", name, linnet_error_message(gpu));
    free(logits);
    return s != LINNET_EUNSUPPORTED;
}

static bool recipe_offered(const recipe *r)
{
    linnet_model *m = model_of(gpu, r, LINNET_F32);
    const bool can = offered(r->name, m);
    linnet_model_destroy(m);
    return can;
}

/* ---- forward --------------------------------------------------------------------------------------------------------------------------- */

static void logits_agree(void **state)
{
    (void)state;
    NEEDS_GPU;
    static float exact[TOKENS * VOCAB], rounded[TOKENS * VOCAB], ours[TOKENS * VOCAB], again[TOKENS * VOCAB];
    int32_t ids[TOKENS];
    int64_t wide[TOKENS];
    double most[2] = {0, 0};
    draw_ids(ids, TOKENS);
    for (int i = 0; i < TOKENS; i++) wide[i] = ids[i];
    for (int i = 0; i < RECIPES; i++) {
        if (!recipe_offered(&recipes[i])) continue;
        for (int b = 0; b < 2; b++) {
            linnet_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
            linnet_model *there = model_of(cpu, &recipes[i], dtype), *here = model_of(gpu, &recipes[i], dtype);
            same_weights(&recipes[i], there, here);
            OK(cpu, linnet_model_logits(cpu, there, wide, 3, TOKENS / 3, b ? rounded : exact));
            OK(gpu, linnet_model_logits(gpu, here, wide, 3, TOKENS / 3, ours));
            OK(gpu, linnet_model_logits(gpu, here, wide, 3, TOKENS / 3, again));
            double e = relative_rms(ours, exact, TOKENS * VOCAB);
            /* bf16: 2e-2, or what the CPU's bf16 does to this model */
            double allowed = b ? fmax(2e-2, 1.5 * relative_rms(rounded, exact, TOKENS * VOCAB)) : 1e-5;
            if (!(e < allowed)) fail_msg("%s, %s: logits differ by %g, allowed %g", recipes[i].name, linnet_dtype_name(dtype), e, allowed);
            if (memcmp(ours, again, sizeof ours)) fail_msg("%s, %s: two runs, other bits", recipes[i].name, linnet_dtype_name(dtype));
            most[b] = fmax(most[b], e);
            linnet_model_destroy(there);
            linnet_model_destroy(here);
        }
    }
    print_message("largest difference of logits: float32 %.2g, bf16 %.2g\n", most[0], most[1]);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------- */

static const int64_t ragged[] = {0, 40, 40, 75}; /* one sequence is empty */

static float *gradients_of(linnet_context *c, linnet_model *m, bool recompute, int runs)
{
    int32_t ids[TOKENS + 1], targets[TOKENS];
    draw_ids(ids, TOKENS + 1);
    memcpy(targets, ids + 1, sizeof targets);
    targets[3] = -1;
    lnt_plan *plan;
    lnt_plan_options o = {
        .tokens = TOKENS, .n_seq = 3, .dtype = m->dtype, .training = true, .recompute = recompute, .n_outputs = 1, .outputs = {m->loss}};
    OK(c, lnt_weights_need_grad(m->w));
    OK(c, lnt_plan_create(c, m->p, &o, &plan));
    for (int i = 0; i < runs; i++) {
        lnt_weights_zero_grad(m->w);
        lnt_batch b = {
            .tokens = TOKENS, .n_seq = 3, .cu = ragged, .n_inputs = 2, .inputs = {{m->ids, ids}, {m->targets, targets}}, .loss_scale = 1};
        OK(c, lnt_plan_run(plan, m->w, &b));
    }
    lnt_plan_destroy(plan);
    return to_host(c, m->w->grad, m->w->elements);
}

static void gradients_agree(void **state)
{
    (void)state;
    NEEDS_GPU;
    double most = 0;
    for (int i = 0; i < RECIPES; i++) {
        if (!recipe_offered(&recipes[i])) continue;
        linnet_model *there = model_of(cpu, &recipes[i], LINNET_F32), *here = model_of(gpu, &recipes[i], LINNET_F32);
        int64_t n = there->w->elements;
        float *want = gradients_of(cpu, there, false, 1), *have = gradients_of(gpu, here, false, 1);
        float *replayed = gradients_of(gpu, here, false, 4), *recomputed = gradients_of(gpu, here, true, 1);
        if (memcmp(have, replayed, (size_t)n * 4)) fail_msg("%s: the fourth run gives other bits", recipes[i].name);
        if (memcmp(have, recomputed, (size_t)n * 4)) fail_msg("%s: recomputation changes bits", recipes[i].name);
        double all = 0;
        for (int64_t e = 0; e < n; e++) all += (double)want[e] * want[e];
        for (int k = 0; k < lnt_param_count(there->p); k++) {
            const lnt_param *q = lnt_param_at(there->p, k);
            double wrong = 0, size = 0;
            for (int64_t e = q->offset; e < q->offset + q->count; e++)
                wrong += ((double)have[e] - want[e]) * ((double)have[e] - want[e]), size += (double)want[e] * want[e];
            most = fmax(most, sqrt(wrong / (size > 0 ? size : 1)));
            /* the second term: a gradient that is a difference of large ones, far below the others */
            if (!(sqrt(wrong) <= 1e-4 * sqrt(size) + 1e-7 * sqrt(all)))
                fail_msg("%s: gradient of %s differs by %g of %g", recipes[i].name, q->name, sqrt(wrong), sqrt(size));
        }
        free(want), free(have), free(replayed), free(recomputed);
        linnet_model_destroy(there);
        linnet_model_destroy(here);
    }
    print_message("largest difference of a parameter's gradient: %.2g\n", most);
}

static void bf16_learns(void **state)
{
    (void)state;
    NEEDS_GPU;
    for (int i = 0; i < RECIPES; i++) {
        if (!recipe_offered(&recipes[i])) continue;
        linnet_model *there = model_of(cpu, &recipes[i], LINNET_BF16), *here = model_of(gpu, &recipes[i], LINNET_BF16);
        float *want = gradients_of(cpu, there, false, 1), *have = gradients_of(gpu, here, false, 1), *again = gradients_of(gpu, here, true, 1);
        double e = relative_rms(have, want, there->w->elements);
        /* the two devices round at other places; each is within about this of float32 (tests of the CPU allow logits 4e-2) */
        if (!(e < 8e-2)) fail_msg("%s: bf16 gradients differ by %g", recipes[i].name, e);
        if (memcmp(have, again, (size_t)there->w->elements * 4)) fail_msg("%s: recomputation changes bits under bf16", recipes[i].name);
        free(want), free(have), free(again);
        linnet_model_destroy(there);
        linnet_model_destroy(here);
    }
}

/* ---- states ---------------------------------------------------------------------------------------------------------------------------- */

enum { SEQUENCES = 3, EACH = TOKENS / SEQUENCES };

/* Feed tokens [from, to) of every sequence; logits [SEQUENCES, EACH, VOCAB]. */
static void feed(linnet_model *m, lnt_plan *plan, lnt_state *s, const int32_t *ids, int from, int to, float *logits)
{
    int32_t now[TOKENS];
    int n = to - from;
    for (int q = 0; q < SEQUENCES; q++) memcpy(now + q * n, ids + q * EACH + from, (size_t)n * 4);
    lnt_batch b = {.tokens = SEQUENCES * n, .n_seq = SEQUENCES, .n_inputs = 1, .inputs = {{m->ids, now}}, .state = s};
    OK(gpu, lnt_plan_run(plan, m->w, &b));
    float *rows = to_host(gpu, lnt_plan_output(plan, m->logits).data, SEQUENCES * n * VOCAB);
    for (int q = 0; q < SEQUENCES; q++) memcpy(logits + (q * EACH + from) * VOCAB, rows + q * n * VOCAB, (size_t)(n * VOCAB) * 4);
    free(rows);
}

static void states_carry_everything(void **state)
{
    (void)state;
    NEEDS_GPU;
    static float whole[TOKENS * VOCAB], pieces[TOKENS * VOCAB];
    int32_t ids[TOKENS];
    int64_t wide[TOKENS];
    draw_ids(ids, TOKENS);
    for (int i = 0; i < TOKENS; i++) wide[i] = ids[i];
    for (int i = 0; i < RECIPES; i++)
        for (int b = 0; b < 2 && recipe_offered(&recipes[i]); b++) {
            linnet_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
            linnet_model *m = model_of(gpu, &recipes[i], dtype);
            double allowed = b ? 4e-2 : 1e-5;
            lnt_state *s;
            lnt_plan *step, *prefill;
            lnt_plan_options o = {.tokens = SEQUENCES, .n_seq = SEQUENCES, .dtype = dtype, .has_state = true, .state_capacity = EACH, .n_outputs = 1};
            o.outputs[0] = m->logits;
            OK(gpu, linnet_model_logits(gpu, m, wide, SEQUENCES, EACH, whole));
            OK(gpu, lnt_state_create(gpu, m->p, dtype, SEQUENCES, EACH, &s));
            OK(gpu, lnt_plan_create(gpu, m->p, &o, &step));
            o.tokens = TOKENS;
            OK(gpu, lnt_plan_create(gpu, m->p, &o, &prefill));
            for (int t = 0; t < EACH; t++) feed(m, step, s, ids, t, t + 1, pieces);
            double e = relative_rms(pieces, whole, TOKENS * VOCAB);
            if (!(e < allowed)) fail_msg("%s, %s: token by token differs by %g", recipes[i].name, linnet_dtype_name(dtype), e);
            lnt_state_reset(s);
            feed(m, prefill, s, ids, 0, 14, pieces);
            feed(m, prefill, s, ids, 14, 19, pieces);
            for (int t = 19; t < EACH; t++) feed(m, step, s, ids, t, t + 1, pieces);
            e = relative_rms(pieces, whole, TOKENS * VOCAB);
            if (!(e < allowed)) fail_msg("%s, %s: in pieces differs by %g", recipes[i].name, linnet_dtype_name(dtype), e);
            lnt_plan_destroy(step);
            lnt_plan_destroy(prefill);
            lnt_state_destroy(s);
            linnet_model_destroy(m);
        }
}

/* ---- a delta layer's step in one call ---------------------------------------------------------------------------------------------------- */

/* Heads that the kernel knows: of 64 and 128 columns, grouped, values of other sizes, with and without a gate. */
static const recipe layers[] = {
    {"delta net, heads of 64", "delta_net", {{"hidden_size", "128"}, {"num_heads", "2"}, {"allow_neg_eigval", "true"}}},
    {"delta net, heads of 128, gate", "delta_net", {{"hidden_size", "256"}, {"num_heads", "2"}, {"use_gate", "true"}}},
    {"gated delta net, values of 96", "gated_deltanet", {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "64"}, {"expand_v", "1.5"}}},
    {"gated delta net, values of 64, no gate",
     "gated_deltanet",
     {{"num_heads", "1"}, {"num_v_heads", "4"}, {"head_dim", "128"}, {"expand_v", "0.5"}, {"use_gate", "false"}}},
    {"gated delta net, values of 256", "gated_deltanet", {{"num_heads", "1"}, {"num_v_heads", "1"}, {"head_dim", "128"}, {"expand_v", "2"}}},
    {"gated delta net, values of 40", "gated_deltanet", {{"num_heads", "2"}, {"num_v_heads", "2"}, {"head_dim", "64"}, {"expand_v", "0.625"}}},
    {"gated delta net, four of 128 a group", "gated_deltanet", {{"num_heads", "1"}, {"num_v_heads", "4"}, {"head_dim", "128"}, {"expand_v", "1"}}},
    {"gated delta net, values of 32", "gated_deltanet", {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "64"}, {"expand_v", "0.5"}}},
};
enum { LAYERS = sizeof layers / sizeof layers[0], LAYER_STEPS = 6 };

static lnt_plan_options layer_options(const linnet_model *m, int n)
{
    return (lnt_plan_options){.tokens = n, .n_seq = n, .dtype = m->dtype, .has_state = true, .state_capacity = LAYER_STEPS, .n_outputs = 1,
                              .outputs = {m->logits}};
}

/* Convolutions go into their layer's call, on a GPU that has the kernel. */
static void are_in_one_call(linnet_model *m, const recipe *r, int n)
{
    const lnt_plan_options o = layer_options(m, n);
    const lnt_shape shape = {.tokens = n, .n_seq = n, .has_state = true, .dtype = m->dtype, .threads = 1, .device = lnt_device_of(gpu)};
    lnt_schedule s;
    int found = 0;
    OK(gpu, lnt_schedule_make(gpu, m->p, &o, &shape, &s));
    for (int i = 0; i < s.n_steps; i++) found += s.steps[i].head == 5 && s.steps[i].group == 7 && s.steps[i + 5].inner;
    lnt_schedule_free(&s);
    if (shape.device->capability / 10 == 9 && found != 2) fail_msg("%s: %d of 2 layers in one call", r->name, found);
}

/* Logits [LAYER_STEPS, n, VOCAB], then states: token by token, told where sequences end (nothing is recorded) or not; parts: the L2 norms are looked
 * at, so that they are steps of their own. */
static float *layer_steps(linnet_model *m, int n, bool recorded, bool parts, size_t *size)
{
    lnt_plan *plan;
    lnt_state *s;
    lnt_buf norms[8];
    int32_t ids[64 * LAYER_STEPS];
    int64_t cu[65];
    lnt_plan_options o = layer_options(m, n);
    o.kept = norms;
    for (int i = 0; parts && i < lnt_node_count(m->p); i++)
        if (!strcmp(lnt_node_at(m->p, i)->op->name, "l2norm")) norms[o.n_kept++] = lnt_node_at(m->p, i)->out[0];
    OK(gpu, lnt_plan_create(gpu, m->p, &o, &plan));
    OK(gpu, lnt_state_create(gpu, m->p, m->dtype, n, LAYER_STEPS, &s));
    draw_ids(ids, n * LAYER_STEPS);
    for (int i = 0; i <= n; i++) cu[i] = i;
    const size_t logits = (size_t)n * VOCAB * 4;
    char *all = malloc(*size = LAYER_STEPS * logits + s->bytes);
    for (int t = 0; t < LAYER_STEPS; t++) {
        const lnt_batch b = {.tokens = n, .n_seq = n, .cu = recorded ? NULL : cu, .n_inputs = 1, .inputs = {{m->ids, ids + t * n}}, .state = s};
        OK(gpu, lnt_plan_run(plan, m->w, &b));
        lnt_to_host(gpu, all + (size_t)t * logits, lnt_plan_output(plan, m->logits).data, logits);
    }
    lnt_to_host(gpu, all + LAYER_STEPS * logits, s->data, s->bytes);
    OK(gpu, lnt_device_check(gpu));
    lnt_plan_destroy(plan);
    lnt_state_destroy(s);
    return (float *)all;
}

static void same_layers(int n)
{
    double most[2] = {0, 0};
    for (int i = 0; i < LAYERS; i++)
        for (int b = 0; b < 2; b++) {
            linnet_model *m = model_of(gpu, &layers[i], b ? LINNET_BF16 : LINNET_F32);
            const char *name = linnet_dtype_name(m->dtype);
            size_t size;
            are_in_one_call(m, &layers[i], n);
            float *parts = layer_steps(m, n, false, true, &size), *whole = layer_steps(m, n, false, false, &size);
            float *recorded = layer_steps(m, n, true, false, &size);
            const double e = relative_rms(whole, parts, (int64_t)(size / 4));
            if (memcmp(whole, recorded, size)) fail_msg("%s, %s, %d sequences: recorded runs give other bits", layers[i].name, name, n);
            /* float32: a product and a sum may be one operation in one kernel and two in another; bf16 shows no trace of that */
            if (!(e < (b ? 2e-3 : 1e-6))) fail_msg("%s, %s, %d sequences: %g from the parts one by one", layers[i].name, name, n, e);
            most[b] = fmax(most[b], e);
            free(parts), free(whole), free(recorded);
            linnet_model_destroy(m);
        }
    print_message("a layer's step in one call, from its parts: float32 %.2g, bf16 %.2g\n", most[0], most[1]);
}

static void layers_of_one(void **state)
{
    (void)state;
    NEEDS_GPU;
    same_layers(1);
}
static void layers_of_few(void **state)
{
    (void)state;
    NEEDS_GPU;
    same_layers(3);
}
static void layers_of_many(void **state)
{
    (void)state;
    NEEDS_GPU;
    same_layers(64);
}

/* ---- what one does with a model ---------------------------------------------------------------------------------------------------------- */

static linnet_model *bytes_model(linnet_context *c)
{
    linnet_config *k;
    linnet_model *m;
    OK(c, linnet_config_create(c, "gated_deltanet", &k));
    OK(c, linnet_config_preset(c, k, "nano"));
    OK(c, linnet_config_set(c, k, "vocab_size", "256"));
    OK(c, linnet_model_create(c, k, LINNET_F32, 3, &m));
    linnet_config_destroy(k);
    return m;
}

typedef struct {
    int n;
    int64_t id[64];
} written;
static int note(void *user, int64_t id, const char *bytes, size_t n)
{
    (void)bytes, (void)n;
    written *w = user;
    w->id[w->n++] = id;
    return 0;
}

static void generation_and_evaluation_agree(void **state)
{
    (void)state;
    NEEDS_GPU;
    static const char prompt[] = "/* The delta rule writes what a key does not hold yet. */ static int";
    linnet_context *const both[2] = {cpu, gpu};
    written text[3] = {{0}};
    linnet_eval_result score[2] = {{.size = sizeof *score}, {.size = sizeof *score}};
    char path[] = "/tmp/linnet-cuda-text-XXXXXX";
    const char *source = path;
    FILE *text_file = fdopen(mkstemp(path), "w");
    assert_non_null(text_file);
    for (int i = 0; i < 300; i++) fprintf(text_file, "%d times %d is %d\n", i, i + 7, i * (i + 7));
    assert_int_equal(fclose(text_file), 0);
    for (int i = 0; i < 3; i++) { /* the third: drawn with a temperature, on the GPU */
        linnet_context *c = both[i > 0];
        linnet_model *m = bytes_model(c);
        linnet_tokenizer *t;
        OK(c, linnet_tokenizer_open(c, "bytes", &t));
        linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
        linnet_generate_result r = { .size = sizeof r };
        o.prompt = prompt;
        o.prompt_bytes = sizeof prompt - 1;
        o.max_tokens = 40;
        o.temperature = i == 2 ? 1 : 0;
        o.token = note;
        o.user = &text[i];
        OK(c, linnet_generate(c, m, t, &o, &r));
        assert_int_equal(text[i].n, 40);
        linnet_eval_options e = LINNET_EVAL_OPTIONS_INIT;
        e.texts = &source;
        e.n_texts = 1;
        e.length = 128;
        e.max_tokens = 3000;
        if (i < 2) OK(c, linnet_eval(c, m, t, &e, &score[i]));
        linnet_tokenizer_destroy(t);
        linnet_model_destroy(m);
    }
    assert_int_equal(remove(path), 0);
    assert_memory_equal(text[0].id, text[1].id, 40 * sizeof text[0].id[0]);
    assert_true(memcmp(text[1].id, text[2].id, 40 * sizeof text[0].id[0]) != 0);
    assert_int_equal(score[0].tokens, score[1].tokens);
    if (!(fabs(score[0].nats_per_token - score[1].nats_per_token) < 1e-5 * score[0].nats_per_token))
        fail_msg("loss %.9g on the CPU, %.9g on the GPU", score[0].nats_per_token, score[1].nats_per_token);
}

static void take_loss(void *user, const char *json, const char *text)
{
    (void)text;
    const char *loss = strstr(json, "\"loss\": ");
    assert_non_null(loss);
    *(double *)user = strtod(loss + 8, NULL);
}

static void a_task_learns_alike(void **state)
{
    (void)state;
    NEEDS_GPU;
    static const char *const set[] = {"vocabulary=32", "length=24", "pairs=2", "steps=20", "batch=16", "test_examples=32"};
    linnet_context *const both[2] = {cpu, gpu};
    double loss[2] = {NAN, NAN};
    const recipe *model = recipes;
    while (strcmp(model->name, "equal backbone, gated delta")) model++;
    for (int i = 0; i < 2; i++) {
        linnet_config *k = config_of(both[i], model);
        linnet_task_options o = LINNET_TASK_OPTIONS_INIT;
        linnet_task_callbacks back = LINNET_TASK_CALLBACKS_INIT;
        o.config = k;
        o.set = set;
        o.n_set = 6;
        back.user = &loss[i];
        back.result = take_loss;
        OK(both[i], linnet_task_run(both[i], "mqar", &o, &back));
        linnet_config_destroy(k);
    }
    if (!(fabs(loss[0] - loss[1]) < 1e-3 * loss[0])) fail_msg("after 20 steps the loss is %g on the CPU, %g on the GPU", loss[0], loss[1]);
}

static void folders_cross_over(void **state)
{
    (void)state;
    NEEDS_GPU;
    char folder[] = "/tmp/linnet-cuda-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    linnet_model *here = model_of(gpu, &recipes[3], LINNET_F32), *there, *back;
    OK(gpu, linnet_model_save(gpu, here, folder));
    OK(cpu, linnet_model_load(cpu, folder, LINNET_F32, &there));
    same_weights(&recipes[3], there, here);
    OK(gpu, linnet_model_load(gpu, folder, LINNET_F32, &back));
    same_weights(&recipes[3], there, back);
    linnet_model_destroy(here);
    linnet_model_destroy(there);
    linnet_model_destroy(back);
    static const char *const files[] = {"model.safetensors", "config.json"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* ---- other people's models ---------------------------------------------------------------------------------------------------------------- */

static void check_golden(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    lnt_safetensors *g;
    linnet_model *m;
    OK(cpu, lnt_safetensors_open(cpu, path, &g));
    OK(gpu, linnet_model_load(gpu, folder, LINNET_F32, &m));
    if (!offered(folder, m)) {
        linnet_model_destroy(m);
        lnt_safetensors_close(g);
        return;
    }
    const lnt_st_tensor *ids = lnt_safetensors_find(g, "input_ids"), *want = lnt_safetensors_find(g, "logits");
    int64_t T = ids->dim[1], V = want->dim[2], *copy = malloc((size_t)T * 8);
    float *logits = malloc((size_t)(T * V) * 4), *expected = malloc((size_t)(T * V) * 4);
    memcpy(copy, ids->data, (size_t)T * 8);
    memcpy(expected, want->data, (size_t)(T * V) * 4);
    OK(gpu, linnet_model_logits(gpu, m, copy, 1, T, logits));
    double e = relative_rms(logits, expected, T * V);
    if (!(e < 1e-5)) fail_msg("%s: logits differ by %g", folder, e);
    free(copy), free(logits), free(expected);
    linnet_model_destroy(m);
    lnt_safetensors_close(g);
}

static void logits_of_flash_linear_attention(void **state)
{
    (void)state;
    NEEDS_GPU;
    char folder[400];
    golden_model model[GOLDEN_MODELS];
    const int n = golden_models(model, GOLDENS, "mesa_net"); /* which rounds to float16 */
    assert_true(n >= 7);
    for (int i = 0; i < n; i++) {
        snprintf(folder, sizeof folder, "%s/fla/%.255s", GOLDENS, model[i].name);
        check_golden(folder);
    }
}

static int open_contexts(void **state)
{
    (void)state;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    OK(cpu, linnet_context_create(&o, &cpu));
    o.device = "cuda";
    if (linnet_context_create(&o, &gpu) == LINNET_OK) return 0;
    print_message("skipped: %s\n", linnet_error_message(gpu));
    linnet_context_destroy(gpu);
    gpu = NULL;
    return 0;
}

static int close_contexts(void **state)
{
    (void)state;
    linnet_context_destroy(cpu);
    linnet_context_destroy(gpu);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_agree),
        cmocka_unit_test(gradients_agree),
        cmocka_unit_test(bf16_learns),
        cmocka_unit_test(states_carry_everything),
        cmocka_unit_test(layers_of_one),
        cmocka_unit_test(layers_of_few),
        cmocka_unit_test(layers_of_many),
        cmocka_unit_test(generation_and_evaluation_agree),
        cmocka_unit_test(a_task_learns_alike),
        cmocka_unit_test(folders_cross_over),
        cmocka_unit_test(logits_of_flash_linear_attention),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
