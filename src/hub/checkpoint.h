/* Weights in files: parameters by name, from any float dtype to the float32 master and back. */
#ifndef LNT_HUB_CHECKPOINT_H
#define LNT_HUB_CHECKPOINT_H

#include "hub/archs.h"
#include "hub/safetensors.h"
#include "model/model.h"

/* How files call tensors: prefix + the name as the architecture has it for this configuration, which may lay several of ours in one; a NULL: as we
 * have it. strict: a file with any other is refused. */
typedef struct {
    const lnt_arch *a;
    const lnt_config *k;
    const char *prefix;
    bool strict;
} lnt_naming;

/* Whether the file has a tensor of the right shape for every parameter. */
linnet_status lnt_checkpoint_check(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p);
/* Fill every parameter, after that check. */
linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, lnt_weights *w);
/* The same into an arena of the device, [lnt_param_elements(p)]. */
linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, float *arena);

/* The float32 tensors of a file with all parameters, whose data is in the host's arena `values`, or in `scratch` where several of ours lie in one;
 * names and the list live there too. */
linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const lnt_naming *n, const float *values, lnt_arena *scratch, int *count,
                                  lnt_st_tensor **tensors);

/* Write config.json, w[0], and model.safetensors, w[1], aside, on the disk: left to commit in this order, or to abandon. The folder is there. */
linnet_status lnt_model_stage(lnt_ctx *c, const linnet_model *m, const char *folder, lnt_file_writer w[2]);

#endif
