/* Trains a small model on a text, a file or a folder, and leaves a checkpoint: train_loop TEXT FOLDER. Bit for bit what
 *     linnet train TEXT --out FOLDER --preset nano --steps 60
 * does, which is a loop like this one with evaluation, a log and resuming around it. */
#include <linnet/train.h>
#include <stdio.h>

enum { STEPS = 60 };

static double schedule(void *user, int64_t step) { return (void)user, linnet_learning_rate(step, STEPS, STEPS / 5, 2e-3, 0.1); }

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: train_loop TEXT FOLDER\n"), 2;
    linnet_context *c = NULL;
    linnet_tokenizer *bytes = NULL;
    linnet_config *config = NULL;
    linnet_model *model = NULL;
    linnet_trainer *trainer = NULL;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    linnet_trainer_result did = {sizeof did, 0, 0, 0, 0, 0, 0, 0};
    int32_t *ids = NULL;
    int64_t n = 0;
    o.schedule = schedule;
    linnet_status s = linnet_context_create(NULL, &c);
    if (!s) s = linnet_tokenizer_open(c, "bytes", &bytes);
    if (!s) s = linnet_tokenizer_encode_files(c, bytes, (const char *const *)&argv[1], 1, NULL, &ids, &n);
    if (!s) s = linnet_config_create(c, "gated_deltanet", &config);
    if (!s) s = linnet_config_preset(c, config, "nano");
    if (!s) s = linnet_config_set(c, config, "vocab_size", "256");
    if (!s) s = linnet_model_create(c, config, LINNET_F32, 1, &model);
    if (!s) s = linnet_windows_create(c, ids, n - n / 10, o.length, 1, &o.windows); /* a tenth is held out */
    if (!s) s = linnet_trainer_create(c, model, &o, &trainer);
    while (!s && did.step < STEPS) {
        s = linnet_trainer_step(trainer, &did);
        if (!s && did.step % 10 == 0) printf("step %d, %.4f nats a byte, gradient norm %.3f\n", (int)did.step, did.loss, did.gradient_norm);
    }
    if (!s) s = linnet_trainer_save(trainer, argv[2]);
    if (s) fprintf(stderr, "train_loop: %s\n", c ? linnet_error_message(c) : linnet_status_name(s));
    linnet_trainer_destroy(trainer);
    linnet_windows_destroy(o.windows);
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_tokenizer_destroy(bytes);
    linnet_context_destroy(c);
    linnet_free(ids);
    return s ? 2 : 0;
}
