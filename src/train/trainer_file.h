/* A trainer in a file: master weights and both moments under "weight.", "moment1." and "moment2.", in one file, so that a kill at any moment leaves
 * either the old or the new, whole. */
#ifndef LNT_TRAIN_TRAINER_FILE_H
#define LNT_TRAIN_TRAINER_FILE_H

#include "hub/safetensors.h"
#include "train/trainer.h"

/* Written aside, on the disk: left to commit or to abandon. LINNET_EINVAL, and nothing written, where a weight or a moment is not finite. */
linnet_status lnt_trainer_stage(lnt_ctx *c, const lnt_trainer *t, const char *path, int n_metadata, const char *const *metadata, lnt_file_writer *w);
/* Whether a file holds such tensors for every parameter of a program. */
linnet_status lnt_trainer_fits(lnt_ctx *c, const lnt_safetensors *s, const lnt_program *p);
/* Read them, after that check. */
linnet_status lnt_trainer_read(lnt_ctx *c, const lnt_safetensors *s, lnt_trainer *t);

#endif
