/* Weights in files: parameters by name, from any float dtype to the float32 master and back. */
#ifndef LNT_HUB_CHECKPOINT_H
#define LNT_HUB_CHECKPOINT_H

#include "hub/archs.h"
#include "hub/safetensors.h"
#include "model/model.h"

/* Whether the file has a tensor of the right shape for every parameter, named prefix + name, the name as the architecture has it (NULL: as we
 * have it); strict: and no other. */
linnet_status lnt_checkpoint_check(lnt_ctx *c, const lnt_safetensors *s, const lnt_arch *a, const char *prefix, const lnt_program *p, bool strict);
/* Fill every parameter, after that check. */
linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const lnt_arch *a, const char *prefix, lnt_weights *w, bool strict);
/* The same into an arena of the device, [lnt_param_elements(p)]. */
linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, const lnt_program *p, float *arena);

/* One float32 tensor for each parameter, named as above, whose data is in the host's arena `values`; names live in `scratch`. `tensors` has room for
 * lnt_param_count(p). */
linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const lnt_arch *a, const char *prefix, const float *values, lnt_arena *scratch,
                                  lnt_st_tensor *tensors);

/* Write config.json, w[0], and model.safetensors, w[1], aside, on the disk: left to commit in this order, or to abandon. The folder is there. */
linnet_status lnt_model_stage(lnt_ctx *c, const linnet_model *m, const char *folder, lnt_file_writer w[2]);

#endif
