/* Everything a run needs to go on bit for bit, in one file: master weights, both moments, settings, counters. One file, replaced atomically, so that
 * a kill at any moment leaves either the old or the new state, whole. model.safetensors beside it is for others to load. */
#ifndef LNT_TRAIN_RESUME_H
#define LNT_TRAIN_RESUME_H

#include "core/file.h"
#include "train/settings.h"
#include "train/trainer.h"

/* Write train_state.safetensors of r->o.out aside, on the disk: left to commit or to abandon. LINNET_EINVAL, and nothing written, where a weight or a
 * moment is not finite. */
linnet_status lnt_resume_stage(lnt_ctx *c, const lnt_trainer *t, const lnt_run_settings *r, lnt_file_writer *w);
/* The settings, before the model exists: those of the file replace r's, as lnt_settings_read has it. */
linnet_status lnt_resume_read_settings(lnt_ctx *c, lnt_run_settings *r);
/* Whether what a run left fits a configuration, before memory is taken for it. */
linnet_status lnt_resume_check(lnt_ctx *c, const char *folder, const lnt_config *k, lnt_dtype dtype);
linnet_status lnt_resume_read_weights(lnt_ctx *c, const char *folder, lnt_trainer *t);

#endif
