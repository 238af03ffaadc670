/* The inner machine of training: gradients of a micro-batch, an AdamW step. Beneath the public trainer (linnet/train.h), the
 * synthetic tasks and the benchmark. */
#ifndef LNT_TRAIN_TRAINER_H
#define LNT_TRAIN_TRAINER_H

#include "linnet/train.h"
#include "model/model.h"
#include "ops/optimizer.h"

typedef struct linnet_trainer {
    lnt_ctx *c;
    linnet_model *m;
    lnt_plan *plan;
    lnt_optimizer *optimizer;
    lnt_adamw hyper;          /* learning_rate and step are set by each update; clip is 1 until set otherwise */
    int64_t step;             /* updates made */
    int64_t tokens;           /* most of a micro-batch */
    /* of the public calls alone (trainer_calls.c) */
    linnet_trainer_options o;
    int64_t seen, predictions; /* since the last update */
    int32_t *targets;          /* [tokens] those of a batch that leaves them to us */
    int32_t *ids;              /* [tokens] of windows; NULL: there are none */
} lnt_trainer;

linnet_status lnt_trainer_create(lnt_ctx *c, linnet_model *m, int64_t batch, int64_t length, lnt_recompute recompute, lnt_dtype moments,
                                 lnt_trainer **out);
void lnt_trainer_destroy(lnt_trainer *t);

/* Add the gradients of scale * (sum of the losses) over a micro-batch, and the losses to the step's sum; targets < 0 are ignored. cu NULL: n_seq
 * equal sequences. */
linnet_status lnt_trainer_micro(lnt_trainer *t, const int32_t *ids, const int32_t *targets, int64_t tokens, int64_t n_seq, const int64_t *cu,
                                double scale);
/* Clip, AdamW, zero the gradients, and only then wait for the device: sums->nats is the summed loss of the micro-batches since the last update.
 * LINNET_EINVAL when it or the gradient's norm is not finite: then nothing was updated. */
linnet_status lnt_trainer_update(lnt_trainer *t, double learning_rate, lnt_step_sums *sums);

/* Of windows.c. */
int64_t lnt_windows_length(const linnet_windows *w);

#endif
