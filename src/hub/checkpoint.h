/* Weights in files: parameters by name, from any float dtype to the float32 master and back. */
#ifndef LNT_HUB_CHECKPOINT_H
#define LNT_HUB_CHECKPOINT_H

#include "hub/safetensors.h"
#include "model/model.h"

/* Fill every parameter from tensors named prefix + name. Missing tensors and wrong shapes are refused; with `strict`, so are tensors nobody asked
 * for. */
linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, const lnt_program *p, float *arena, bool strict);

/* Append one float32 tensor for each parameter, named prefix + name, whose data is a host copy of the arena (owned by `scratch`). `tensors` has room
 * for lnt_param_count(p) more. */
linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const char *prefix, const float *arena, lnt_arena *scratch, void **host,
                                  lnt_st_tensor *tensors);

#endif
