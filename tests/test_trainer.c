/* The public trainer: the command's own bits, gradients and parameters by name, callbacks, files, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "hub/safetensors.h"
#include "linnet/train.h"
#include "one_file.h"
#include "one_run.h"

enum { BATCH = 2, LENGTH = 32, TOKENS = BATCH * LENGTH, STEPS = 4 };

#define OK(call) \
    do { \
        if ((call) != LINNET_OK) fail_msg("%s: %s", #call, linnet_error_message(ctx)); \
    } while (0)
#define SAYS(status, words, call) \
    do { \
        assert_int_equal((call), status); \
        if (!strstr(linnet_error_message(ctx), words)) fail_msg("%s says \"%s\"", #call, linnet_error_message(ctx)); \
    } while (0)

static int32_t text[8000];
static int64_t n_text;

static int open_all(void **state)
{
    (void)state;
    size_t n;
    assert_int_equal(open_folder("text"), LINNET_OK);
    char *bytes = get_file(put_text(folder), &n);
    for (n_text = 0; n_text < (int64_t)n; n_text++) text[n_text] = (unsigned char)bytes[n_text];
    free(bytes);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    remove_folder(folder);
    linnet_context_destroy(ctx);
    return 0;
}

/* ---- a model with its trainer ---- */

typedef struct {
    linnet_model *m;
    linnet_trainer *t;
    linnet_windows *windows;
    int32_t ids[TOKENS], targets[TOKENS];
    int batches_left, calls;
    int64_t per_update;
} run;

static int next(void *user, int64_t step, int64_t micro, linnet_micro_batch *b)
{
    run *r = user;
    if (r->batches_left-- <= 0) return 1;
    for (int i = 0; i < BATCH; i++)
        OK(linnet_windows_get(r->windows, (step * r->per_update + micro) * BATCH + i, r->ids + i * LENGTH, r->targets + i * LENGTH));
    b->ids = r->ids, b->targets = r->targets, b->tokens = TOKENS, b->sequences = BATCH;
    return 0;
}

static double schedule(void *user, int64_t step) { return (void)user, linnet_learning_rate(step, STEPS, 1, 2e-3, 0.1); }

static linnet_trainer_options options(run *r)
{
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    o.batch = BATCH, o.length = LENGTH, o.user = r, o.next = next, o.schedule = schedule;
    return o;
}

static void open_run(run *r, const char *type, int accumulate)
{
    *r = (run){.batches_left = 1000, .per_update = accumulate};
    linnet_config *k = small_config(ctx, type);
    linnet_trainer_options o = options(r);
    o.accumulate = accumulate;
    OK(linnet_model_create(ctx, k, LINNET_F32, 1, &r->m));
    OK(linnet_trainer_create(ctx, r->m, &o, &r->t));
    OK(linnet_windows_create(ctx, text, n_text - n_text / 10, LENGTH, 1, &r->windows));
    linnet_config_destroy(k);
}

static void close_run(run *r)
{
    linnet_trainer_destroy(r->t);
    linnet_windows_destroy(r->windows);
    linnet_model_destroy(r->m);
}

static void steps(run *r, int n)
{
    linnet_trainer_result did = {.size = sizeof did};
    for (int i = 0; i < n; i++) OK(linnet_trainer_step(r->t, &did));
}

/* The weights as `linnet_model_save` writes them. */
static void same_weights(const char *a, const char *b)
{
    char path[2][300];
    size_t n[2];
    snprintf(path[0], sizeof path[0], "%s/model.safetensors", a);
    snprintf(path[1], sizeof path[1], "%s/model.safetensors", b);
    char *data[2] = {get_file(path[0], &n[0]), get_file(path[1], &n[1])};
    assert_int_equal(n[0], n[1]);
    if (memcmp(data[0], data[1], n[0])) fail_msg("%s and %s differ", path[0], path[1]);
    free(data[0]);
    free(data[1]);
}

static const char *below(const char *name)
{
    static char path[4][300];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%.64s/%s", folder, name);
    return path[i];
}

static void read_all(run *r, const char *name, float *values, int64_t n) { OK(linnet_gradient_read(r->t, name, 0, n, values)); }

/* ---- tests ---- */

static void the_bits_of_a_run(void **state)
{
    (void)state;
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        const char *texts[1] = {below("text")}, *command = below(accumulate == 1 ? "command1" : "command2"), *loop = below("loop");
        linnet_train_options o = small_run(texts, command);
        linnet_config *k = small_config(ctx, "gated_deltanet");
        o.accumulate = accumulate;
        OK(linnet_train(ctx, k, LINNET_F32, &o));
        run r;
        open_run(&r, "gated_deltanet", accumulate);
        steps(&r, STEPS);
        OK(linnet_trainer_save(r.t, loop));
        same_weights(command, loop);
        close_run(&r);
        linnet_config_destroy(k);
        SAYS(LINNET_EINVAL, "holds a run", (open_run(&r, "gated_deltanet", 1), linnet_trainer_save(r.t, command)));
        close_run(&r);
    }
}

/* Windows in place of a callback: the same. */
static void windows_are_data(void **state)
{
    (void)state;
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        run called, taken;
        linnet_trainer *odd;
        open_run(&called, "gla", accumulate);
        open_run(&taken, "gla", accumulate);
        linnet_trainer_destroy(taken.t);
        linnet_trainer_options o = options(&taken);
        o.accumulate = accumulate, o.next = NULL, o.windows = taken.windows;
        OK(linnet_trainer_create(ctx, taken.m, &o, &taken.t));
        steps(&called, STEPS);
        steps(&taken, STEPS);
        OK(linnet_model_save(ctx, called.m, below("called")));
        OK(linnet_model_save(ctx, taken.m, below("taken")));
        same_weights(below("called"), below("taken"));
        linnet_trainer_destroy(taken.t);
        taken.t = NULL;
        o.length = LENGTH - 1;
        SAYS(LINNET_EINVAL, "windows of 32 tokens for a trainer of length 31", linnet_trainer_create(ctx, taken.m, &o, &odd));
        close_run(&called);
        close_run(&taken);
    }
}

/* Every parameter's gradient against a difference quotient of the loss along the gradient itself. */
static void gradients_by_name(void **state)
{
    (void)state;
    run r;
    open_run(&r, "retnet", 1);
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    linnet_parameter_info q = {.size = sizeof q};
    next(&r, 0, 0, &b);
    b.scale = 1.0 / TOKENS;
    const int64_t n = linnet_parameter_count(r.m);
    assert_true(n > 10);
    for (int64_t i = 0; i < n; i++) {
        OK(linnet_parameter_at(ctx, r.m, i, &q));
        const size_t bytes = (size_t)q.elements * sizeof(float);
        float *w = malloc(bytes), *g = malloc(bytes), *moved = malloc(bytes);
        OK(linnet_trainer_micro(r.t, &b));
        OK(linnet_parameter_read(ctx, r.m, q.name, 0, q.elements, w));
        read_all(&r, q.name, g, q.elements);
        double square = 0, side[2];
        for (int64_t j = 0; j < q.elements; j++) square += (double)g[j] * g[j];
        assert_true(square > 0);
        const double h = 4e-3 / sqrt(square); /* along the gradient the loss changes by h |g|^2 either way */
        for (int s = 0; s < 2; s++) {
            for (int64_t j = 0; j < q.elements; j++) moved[j] = (float)(w[j] + (s ? -1 : 1) * h * g[j]);
            OK(linnet_parameter_write(ctx, r.m, q.name, 0, q.elements, moved));
            OK(linnet_trainer_drop(r.t));
            OK(linnet_trainer_micro(r.t, &b));
            linnet_trainer_result did = {.size = sizeof did};
            OK(linnet_trainer_update(r.t, 0, &did)); /* which changes nothing and tells the loss */
            assert_int_equal(did.predictions, TOKENS);
            side[s] = did.nats / TOKENS;
        }
        OK(linnet_parameter_write(ctx, r.m, q.name, 0, q.elements, w));
        const double slope = (side[0] - side[1]) / (2 * h);
        if (fabs(slope - square) > 0.02 * square) fail_msg("%s: |gradient|^2 = %g, difference quotient %g", q.name, square, slope);
        read_all(&r, q.name, g, q.elements);
        for (int64_t j = 0; j < q.elements; j++) assert_true(g[j] == 0); /* after an update */
        free(w);
        free(g);
        free(moved);
    }
    close_run(&r);
}

/* A mask, targets of -1, targets left to the trainer: the same predictions, the same gradients. Two micro-batches add up. */
static void masks_and_sums(void **state)
{
    (void)state;
    enum { N = 256 * 32 };
    static float want[N], got[N];
    const char *name = "model.embeddings.weight";
    const int64_t cu[] = {0, 5, 5, TOKENS};
    uint8_t mask[TOKENS];
    run r;
    open_run(&r, "delta_net", 1);
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    next(&r, 0, 0, &b);
    for (int i = 0; i < TOKENS; i++) mask[i] = i % 3 != 0;
    b.sequences = 3, b.cu_seqlens = cu;
    for (int i = 0; i < TOKENS; i++) r.targets[i] = i == 4 || i == TOKENS - 1 || !mask[i] ? -1 : r.ids[i + 1];
    OK(linnet_trainer_micro(r.t, &b));
    read_all(&r, name, want, N);
    linnet_trainer_result did = {.size = sizeof did};
    OK(linnet_trainer_update(r.t, 0, &did));
    const int64_t predictions = did.predictions;
    const double nats = did.nats;
    b.targets = NULL, b.mask = mask;
    OK(linnet_trainer_micro(r.t, &b));
    read_all(&r, name, got, N);
    assert_memory_equal(got, want, sizeof want);
    OK(linnet_trainer_micro(r.t, &b));
    read_all(&r, name, got, N);
    float largest = 0;
    for (int i = 0; i < N; i++) largest = fmaxf(largest, fabsf(want[i]));
    for (int i = 0; i < N; i++) assert_true(fabsf(got[i] - 2 * want[i]) <= 1e-6f * largest);
    OK(linnet_trainer_update(r.t, 0, &did));
    assert_int_equal(did.predictions, 2 * predictions);
    assert_true(fabs(did.nats - 2 * nats) < 1e-9 * nats);
    assert_int_equal(did.tokens, 2 * TOKENS);
    close_run(&r);
}

/* A gradient written is the gradient that is used: with all others zero, only its parameter moves but for weight decay; clipping sees it too. */
static int keep_one(void *user, linnet_trainer *t, int64_t step)
{
    run *r = user;
    (void)step;
    r->calls++;
    for (int64_t i = 0; i < linnet_parameter_count(r->m); i++) {
        linnet_parameter_info q = {.size = sizeof q};
        OK(linnet_parameter_at(ctx, r->m, i, &q));
        float *g = calloc((size_t)q.elements, sizeof *g);
        if (!strcmp(q.name, "model.norm.weight")) g[7] = 3;
        OK(linnet_gradient_write(t, q.name, 0, q.elements, g));
        free(g);
    }
    return 0;
}

static void a_hook_before_the_update(void **state)
{
    (void)state;
    run r;
    open_run(&r, "gated_deltanet", 1);
    linnet_trainer_destroy(r.t);
    linnet_trainer_options o = options(&r);
    o.before_update = keep_one, o.weight_decay = 0;
    OK(linnet_trainer_create(ctx, r.m, &o, &r.t));
    float before[32], after[32], other[2][64];
    OK(linnet_parameter_read(ctx, r.m, "model.norm.weight", 0, 32, before));
    OK(linnet_parameter_read(ctx, r.m, "model.embeddings.weight", 100, 64, other[0]));
    linnet_trainer_result did = {.size = sizeof did};
    OK(linnet_trainer_step(r.t, &did));
    OK(linnet_parameter_read(ctx, r.m, "model.norm.weight", 0, 32, after));
    OK(linnet_parameter_read(ctx, r.m, "model.embeddings.weight", 100, 64, other[1]));
    assert_int_equal(r.calls, 1);
    assert_true(fabs(did.gradient_norm - 3) < 1e-6);
    assert_memory_equal(other[0], other[1], sizeof other[0]);
    for (int i = 0; i < 32; i++) assert_true((before[i] != after[i]) == (i == 7));
    assert_true(fabs(before[7] - after[7] - did.learning_rate) < 1e-5); /* AdamW's first step is the learning rate */
    close_run(&r);
}

static int refuse(void *user, linnet_trainer *t, int64_t step) { return (void)user, (void)t, (void)step, 1; }

/* Data that ends, an update that is not wanted, numbers that are not finite: nothing has changed. */
static void what_ends_early(void **state)
{
    (void)state;
    run r;
    float before[64], after[64];
    const char *name = "model.embeddings.weight";
    linnet_trainer_result did = {.size = sizeof did};
    open_run(&r, "gated_deltanet", 2);
    steps(&r, 1);
    OK(linnet_parameter_read(ctx, r.m, name, 0, 64, before));
    r.batches_left = 1;
    SAYS(LINNET_EINTERRUPTED, "no micro-batch 1 for step 1", linnet_trainer_step(r.t, &did));
    r.batches_left = 1000;
    read_all(&r, name, after, 64);
    for (int i = 0; i < 64; i++) assert_true(after[i] == 0);
    linnet_trainer_destroy(r.t);
    linnet_trainer_options o = options(&r);
    o.before_update = refuse;
    OK(linnet_trainer_create(ctx, r.m, &o, &r.t));
    SAYS(LINNET_EINTERRUPTED, "not wanted", linnet_trainer_step(r.t, &did));
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    next(&r, 0, 0, &b);
    OK(linnet_trainer_micro(r.t, &b));
    const float nan = NAN;
    OK(linnet_gradient_write(r.t, name, 5, 1, &nan));
    SAYS(LINNET_EINVAL, "gradient's norm of step 1 is nan", linnet_trainer_update(r.t, 1e-3, &did));
    OK(linnet_parameter_read(ctx, r.m, name, 0, 64, after));
    assert_memory_equal(before, after, sizeof before);
    for (int i = 0; i < 3; i++) SAYS(LINNET_EINVAL, "an update without gradients", linnet_trainer_update(r.t, 1e-3, &did));
    OK(linnet_trainer_micro(r.t, &b));
    SAYS(LINNET_EINVAL, "learning_rate is 1e+300", linnet_trainer_update(r.t, 1e300, &did));
    OK(linnet_trainer_update(r.t, 1e-3, &did)); /* what was refused was none */
    assert_int_equal(did.step, 1);
    close_run(&r);
}

static void saved_and_loaded(void **state)
{
    (void)state;
    run r, again;
    const char *half = below("half"), *whole = below("whole"), *resumed = below("resumed");
    open_run(&r, "gated_deltanet", 1);
    steps(&r, 2);
    OK(linnet_trainer_save(r.t, half));
    steps(&r, 2);
    OK(linnet_trainer_save(r.t, whole));
    open_run(&again, "gated_deltanet", 1);
    OK(linnet_trainer_load(again.t, half));
    steps(&again, 2);
    OK(linnet_trainer_save(again.t, resumed));
    same_weights(whole, resumed);
    close_run(&again);
    open_run(&again, "delta_net", 1); /* another shape: refused before a weight is touched */
    float before[64], after[64];
    OK(linnet_parameter_read(ctx, again.m, "model.embeddings.weight", 0, 64, before));
    assert_int_equal(linnet_trainer_load(again.t, half), LINNET_EFORMAT);
    OK(linnet_parameter_read(ctx, again.m, "model.embeddings.weight", 0, 64, after));
    assert_memory_equal(before, after, sizeof before);
    close_run(&again);
    static const char *const steps_said[] = {"-1", "", "2x", "9223372036854775807", "99999999999999999999"};
    for (size_t i = 0; i < sizeof steps_said / sizeof *steps_said; i++) {
        lnt_safetensors *s;
        char path[300];
        snprintf(path, sizeof path, "%s/trainer.safetensors", half);
        const char *pairs[] = {"format", "linnet trainer 1", "step", steps_said[i]};
        OK(lnt_safetensors_open(ctx, path, &s));
        OK(lnt_safetensors_write(ctx, path, s->n, s->tensors, 2, pairs));
        lnt_safetensors_close(s);
        SAYS(LINNET_EFORMAT, "expected a count", linnet_trainer_load(r.t, half));
    }
    assert_int_equal(linnet_trainer_load(r.t, below("nowhere")), LINNET_EIO);
    close_run(&r);
}

#define REFUSED(words, change) \
    do { \
        linnet_micro_batch b = good; \
        change; \
        SAYS(LINNET_EINVAL, words, linnet_trainer_micro(r.t, &b)); \
    } while (0)

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    run r;
    float values[4] = {1, 2, 3, NAN};
    int32_t wrong[TOKENS] = {256};
    const int64_t falling[] = {0, 40, 30}, late[] = {1, 40, TOKENS};
    linnet_micro_batch good = LINNET_MICRO_BATCH_INIT;
    linnet_parameter_info q = {.size = sizeof q};
    linnet_trainer_result did = {.size = sizeof did}, unsized = {.size = 0};
    open_run(&r, "gated_deltanet", 1);
    next(&r, 0, 0, &good);
    REFUSED("ids is NULL", b.ids = NULL);
    REFUSED("tokens is 0", b.tokens = 0);
    REFUSED("65 tokens, expected 1 to 64", b.tokens = TOKENS + 1);
    REFUSED("64 tokens in 3 equal sequences", b.sequences = 3);
    REFUSED("falls from 40 to 30", b.cu_seqlens = falling);
    REFUSED("expected 0 to 64", b.cu_seqlens = late);
    REFUSED("token id 256", b.ids = wrong);
    REFUSED("target 256", b.targets = wrong);
    REFUSED("scale is nan", b.scale = NAN);
    REFUSED("structure of options", b.size = 0);
    SAYS(LINNET_EINVAL, "no parameter \"lm.head\"", linnet_parameter_find(ctx, r.m, "lm.head", &q));
    SAYS(LINNET_EINVAL, "which has 32", linnet_parameter_read(ctx, r.m, "model.norm.weight", 30, 3, values));
    SAYS(LINNET_EINVAL, "which has 32", linnet_gradient_read(r.t, "model.norm.weight", -1, 3, values));
    SAYS(LINNET_EINVAL, "which has 32", linnet_gradient_write(r.t, "model.norm.weight", INT64_MAX, 3, values));
    SAYS(LINNET_EINVAL, "is nan, expected a finite number", linnet_parameter_write(ctx, r.m, "model.norm.weight", 0, 4, values));
    SAYS(LINNET_EINVAL, "NULL", linnet_parameter_write(ctx, r.m, "model.norm.weight", 0, 4, NULL));
    SAYS(LINNET_EINVAL, "parameter 1000", linnet_parameter_at(ctx, r.m, 1000, &q));
    SAYS(LINNET_EINVAL, "learning_rate is -1", linnet_trainer_update(r.t, -1, &did));
    SAYS(LINNET_EINVAL, "says it has 0 bytes", linnet_trainer_step(r.t, &unsized));
    SAYS(LINNET_EINVAL, "NULL", linnet_trainer_save(r.t, NULL));
    linnet_trainer_options o = options(&r);
    linnet_trainer *t;
    o.batch = 0;
    SAYS(LINNET_EINVAL, "batch is 0", linnet_trainer_create(ctx, r.m, &o, &t));
    o = options(&r), o.next = NULL;
    OK(linnet_trainer_create(ctx, r.m, &o, &t));
    SAYS(LINNET_EINVAL, "next", linnet_trainer_step(t, &did));
    linnet_trainer_destroy(t);
    linnet_windows *w;
    SAYS(LINNET_EINVAL, "32 tokens, expected at least 33", linnet_windows_create(ctx, text, LENGTH, LENGTH, 1, &w));
    SAYS(LINNET_EINVAL, "windows of 0", linnet_windows_create(ctx, text, LENGTH, 0, 1, &w));
    SAYS(LINNET_EINVAL, "window -1", linnet_windows_get(r.windows, -1, wrong, wrong));
    assert_int_equal(linnet_trainer_step(NULL, &did), LINNET_EINVAL);
    assert_int_equal(linnet_trainer_load(NULL, "x"), LINNET_EINVAL);
    assert_int_equal(linnet_windows_get(NULL, 0, wrong, wrong), LINNET_EINVAL);
    assert_int_equal(linnet_parameter_count(NULL), 0);
    close_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_a_run), cmocka_unit_test(windows_are_data),
          cmocka_unit_test(gradients_by_name), cmocka_unit_test(masks_and_sums),
        cmocka_unit_test(a_hook_before_the_update), cmocka_unit_test(what_ends_early), cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
