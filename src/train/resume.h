/* Everything a run needs to go on bit for bit, in one file: master weights, both moments, counters, hyper-parameters. One file, replaced atomically,
 * so that a kill at any moment leaves either the old or the new state, whole. model.safetensors beside it is for others to load. */
#ifndef LNT_TRAIN_RESUME_H
#define LNT_TRAIN_RESUME_H

#include "train/trainer.h"

typedef struct {
    int64_t step, steps, tokens, samples; /* samples: sequences drawn so far */
    double seconds;                       /* of training, earlier sessions included */
    uint64_t fingerprint;                 /* of the training ids */
} lnt_run_position;

linnet_status lnt_resume_save(lnt_ctx *c, const char *folder, const lnt_trainer *t, const linnet_train_options *o, const lnt_run_position *at);
/* Counters and hyper-parameters only (before the model exists); hyper-parameters in `o` are replaced by the file's. */
linnet_status lnt_resume_read_options(lnt_ctx *c, const char *folder, linnet_train_options *o, lnt_run_position *at);
linnet_status lnt_resume_read_weights(lnt_ctx *c, const char *folder, lnt_trainer *t);

#endif
