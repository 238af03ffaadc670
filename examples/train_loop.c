/* Trains a small model on a text and leaves a checkpoint: train_loop TEXT FOLDER. Bit for bit what
 *     linnet train TEXT --out FOLDER --preset nano --steps 60
 * does, which is a loop like this one with evaluation, a log and resuming around it. */
#include <linnet/train.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 60, BATCH = 8, LENGTH = 256, HELD_OUT = 10 /* a tenth of the text */ };

static linnet_context *c;
static linnet_windows *windows;
static int32_t ids[BATCH * LENGTH], targets[BATCH * LENGTH];

static void check(linnet_status s)
{
    if (s == LINNET_OK) return;
    fprintf(stderr, "train_loop: %s\n", c ? linnet_error_message(c) : linnet_status_name(s));
    exit(2);
}

static int next(void *user, int64_t step, int64_t micro, linnet_micro_batch *b)
{
    (void)user, (void)micro;
    for (int i = 0; i < BATCH; i++) check(linnet_windows_get(windows, step * BATCH + i, ids + i * LENGTH, targets + i * LENGTH));
    b->ids = ids, b->targets = targets, b->tokens = BATCH * LENGTH, b->sequences = BATCH;
    return 0;
}

static double schedule(void *user, int64_t step) { return (void)user, linnet_learning_rate(step, STEPS, STEPS / 5, 2e-3, 0.1); }

int main(int argc, char **argv)
{
    FILE *f = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!f) return fprintf(stderr, "usage: train_loop TEXT FOLDER\n"), 2;
    int32_t *text = NULL; /* bytes are ids */
    int64_t n = 0;
    for (int byte; (byte = getc(f)) != EOF; text[n++] = byte)
        if ((n & (n - 1)) == 0 && !(text = (int32_t *)realloc(text, (size_t)(n ? 2 * n : 1) * sizeof *text))) return 1;
    fclose(f);

    linnet_config *config;
    linnet_model *model;
    linnet_trainer *trainer;
    linnet_trainer_result did = {sizeof did, 0, 0, 0, 0, 0, 0, 0};
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    o.batch = BATCH, o.length = LENGTH, o.next = next, o.schedule = schedule;
    check(linnet_context_create(NULL, &c));
    check(linnet_config_create(c, "gated_deltanet", &config));
    check(linnet_config_preset(c, config, "nano"));
    check(linnet_config_set(c, config, "vocab_size", "256"));
    check(linnet_model_create(c, config, LINNET_F32, 1, &model));
    check(linnet_windows_create(c, text, n - n / HELD_OUT, LENGTH, 1, &windows));
    check(linnet_trainer_create(c, model, &o, &trainer));
    while (did.step < STEPS) {
        check(linnet_trainer_step(trainer, &did));
        if (did.step % 10 == 0) printf("step %d, %.4f nats a byte, gradient norm %.3f\n", (int)did.step, did.loss, did.gradient_norm);
    }
    check(linnet_trainer_save(trainer, argv[2]));
    linnet_trainer_destroy(trainer);
    linnet_windows_destroy(windows);
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    free(text);
    return 0;
}
