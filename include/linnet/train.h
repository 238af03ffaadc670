/* Training under a loop of the caller's own: what `linnet train` is made of.
 *
 *     linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
 *     o.batch = 8, o.length = 256, o.next = my_data, o.schedule = my_learning_rate;
 *     linnet_trainer_create(c, model, &o, &t);
 *     while (step < steps) linnet_trainer_step(t, &result);
 *
 * linnet_trainer_step asks `next` for micro-batches, or takes the `windows` of a text, adds up their gradients, calls `before_update`, and updates.
 * A loop that would rather not be called back does the same by linnet_trainer_micro and linnet_trainer_update; between them gradients and parameters
 * may be read and written by name.
 *
 * Results have the same bits for any number of threads. linnet_model_training_memory says beforehand what a trainer takes. A trainer uses its model's
 * context and belongs to that thread; one trainer at a time to a model, which must outlive it. linnet.h has the conventions. Since 0.1. */
#ifndef LINNET_TRAIN_H
#define LINNET_TRAIN_H

#include "linnet/linnet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- parameters -------------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *name;    /* "model.layers.0.attn.q_proj.weight", as linnet_model_describe has it; the model's */
    int64_t elements;    /* row major */
    int64_t shape[4];    /* [rank] */
    int32_t rank;
    int32_t kept;        /* linnet_dtype: F32, or BF16 without a float32 master */
    int32_t weight_decay; /* 1: it applies */
} linnet_parameter_info;

/* 0 without a model. */
LINNET_API int64_t linnet_parameter_count(const linnet_model *m);
/* The i-th parameter, 0 .. count-1. */
LINNET_API linnet_status linnet_parameter_at(linnet_context *c, const linnet_model *m, int64_t i, linnet_parameter_info *out);
/* By name; LINNET_EINVAL when there is none such. */
LINNET_API linnet_status linnet_parameter_find(linnet_context *c, const linnet_model *m, const char *name, linnet_parameter_info *out);
/* values[n]: elements first .. first+n-1, float32 on the host. Written, they are rounded to how the parameter is kept; they must be finite. */
LINNET_API linnet_status linnet_parameter_read(linnet_context *c, const linnet_model *m, const char *name, int64_t first, int64_t n, float *values);
LINNET_API linnet_status linnet_parameter_write(linnet_context *c, linnet_model *m, const char *name, int64_t first, int64_t n,
                                                const float *values);

/* ---- data ---------------------------------------------------------------------------------------------------------------------- */

/* Tokens to learn from; arrays stay the caller's and are read before the call returns. */
typedef struct {
    size_t size;
    const int32_t *ids;        /* [tokens] in [0, vocabulary) */
    const int32_t *targets;    /* [tokens] what each is to predict, negative: nothing. NULL: the id behind it; the last of a sequence nothing */
    const uint8_t *mask;       /* [tokens] 0: this prediction does not count. NULL: all do */
    int64_t tokens;            /* 1 .. batch * length of the trainer */
    int64_t sequences;         /* one behind another, each from a state of zeros */
    const int64_t *cu_seqlens; /* [sequences+1] where each begins, and `tokens`; NULL: all are equally long */
    double scale;              /* gradients are those of scale * (sum of the losses); 0: 1 / (batch * length * accumulate) */
} linnet_micro_batch;
#define LINNET_MICRO_BATCH_INIT { sizeof(linnet_micro_batch), NULL, NULL, NULL, 0, 1, NULL, 0 }

/* Windows of a text in the order of `linnet train`: every epoch cuts ids[n] into windows of `length` at a random phase and visits them in a random
 * order; window i is a function of (seed, i). LINNET_EINVAL unless n > length. The ids stay the caller's and are read until it is destroyed. */
typedef struct linnet_windows linnet_windows;
LINNET_API linnet_status linnet_windows_create(linnet_context *c, const int32_t *ids, int64_t n, int64_t length, uint64_t seed, linnet_windows **out);
/* ids[length] of window i >= 0, and targets[length], the ids that follow each. */
LINNET_API linnet_status linnet_windows_get(linnet_windows *w, int64_t i, int32_t *ids, int32_t *targets);
LINNET_API void linnet_windows_destroy(linnet_windows *w);

/* A linear rise to `peak` over `warmup` steps, then a cosine to peak * floor at `steps`; step counts from 0. steps = 0: no fall. */
LINNET_API double linnet_learning_rate(int64_t step, int64_t steps, int64_t warmup, double peak, double floor);

/* ---- the trainer --------------------------------------------------------------------------------------------------------------- */

typedef struct linnet_trainer linnet_trainer;

typedef struct {
    size_t size;
    int64_t batch, length; /* a micro-batch has at most batch * length tokens, usually in `batch` sequences */
    int64_t accumulate;    /* micro-batches that linnet_trainer_step makes an update of */
    int32_t recompute;     /* LINNET_RECOMPUTE_...; the bits are the same */
    double learning_rate;  /* where `schedule` is NULL */
    double beta1, beta2, epsilon, weight_decay; /* AdamW (arXiv 1711.05101) */
    double clip;           /* largest norm of all gradients together; 0: no limit */
    uint64_t seed;         /* of stochastic rounding and of solvers with a random number of steps */
    void *user;            /* handed to each of these; NULL where one is not wanted */
    /* Fill the micro-batch (it begins as LINNET_MICRO_BATCH_INIT): the micro-th, from 0, of the step-th update. Non-zero: there is none, and
     * linnet_trainer_step ends with LINNET_EINTERRUPTED, what it had added up dropped. */
    int (*next)(void *user, int64_t step, int64_t micro, linnet_micro_batch *out);
    double (*schedule)(void *user, int64_t step);
    /* The gradients of a step are whole and not yet clipped: read and write them. Non-zero: no update, as above. */
    int (*before_update)(void *user, linnet_trainer *t, int64_t step);
    /* Where `next` is NULL: `batch` windows a micro-batch, of the trainer's length, in the order of `linnet train`. They outlive the trainer. */
    linnet_windows *windows;
    int32_t moments;       /* linnet_dtype of AdamW's moments: F32; BF16: half of their memory, rounded stochastically */
} linnet_trainer_options;
#define LINNET_TRAINER_OPTIONS_INIT                                                                              \
    { sizeof(linnet_trainer_options), 8, 256, 1, LINNET_RECOMPUTE_NONE, 2e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1, NULL, \
      NULL, NULL, NULL, NULL, LINNET_F32 }

/* What an update leaves behind. */
typedef struct {
    size_t size;
    int64_t step;          /* updates made, this one included */
    int64_t tokens, predictions; /* of its micro-batches; those that counted */
    double nats;           /* sum of their losses */
    double loss;           /* nats a prediction, 0 without one */
    double gradient_norm;  /* before clipping */
    double learning_rate;
} linnet_trainer_result;

/* Takes memory for gradients, moments and activations; moments are zero, weights the model's. */
LINNET_API linnet_status linnet_trainer_create(linnet_context *c, linnet_model *m, const linnet_trainer_options *o, linnet_trainer **out);
LINNET_API void linnet_trainer_destroy(linnet_trainer *t);

/* One update by the callbacks; `next` or `windows` must be there. On an error gradients are dropped, weights and moments as before the call. */
LINNET_API linnet_status linnet_trainer_step(linnet_trainer *t, linnet_trainer_result *out);

/* Add the gradients of a micro-batch to those that are there. LINNET_EINVAL, and nothing added, where the batch is not what it must be. */
LINNET_API linnet_status linnet_trainer_micro(linnet_trainer *t, const linnet_micro_batch *b);
/* Clip, AdamW, gradients to zero; learning_rate as linnet_trainer_options has it. LINNET_EINVAL, and no update made, where no micro-batch has brought
 * gradients since the last, or when loss or gradient norm is not finite: then weights and moments are as they were. */
LINNET_API linnet_status linnet_trainer_update(linnet_trainer *t, double learning_rate, linnet_trainer_result *out);
/* Forget the gradients and losses since the last update. */
LINNET_API linnet_status linnet_trainer_drop(linnet_trainer *t);

/* Gradients by the parameter's name, float32 on the host, as linnet_parameter_read and _write; zeros before the first micro-batch. */
LINNET_API linnet_status linnet_gradient_read(linnet_trainer *t, const char *name, int64_t first, int64_t n, float *values);
LINNET_API linnet_status linnet_gradient_write(linnet_trainer *t, const char *name, int64_t first, int64_t n, const float *values);

/* Write config.json and model.safetensors, as linnet_model_save does, and, last, trainer.safetensors (weights, moments, number of updates): each is
 * replaced whole or not at all, the first when all are on the disk, and linnet_trainer_load reads trainer.safetensors alone. A folder with a run of
 * `linnet train` is refused. Loaded into a trainer of a model of the same shape, training goes on bit for bit; gradients that wait for their update
 * are not kept. */
LINNET_API linnet_status linnet_trainer_save(linnet_trainer *t, const char *folder);
LINNET_API linnet_status linnet_trainer_load(linnet_trainer *t, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
