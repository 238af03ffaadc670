/* Weights in files: parameters by name, from any float dtype to the float32 master and back. */
#ifndef LNT_HUB_CHECKPOINT_H
#define LNT_HUB_CHECKPOINT_H

#include "hub/safetensors.h"
#include "model/model.h"

/* Fill every parameter from tensors named prefix + name. Missing tensors and wrong shapes are refused; with `strict`, so are tensors nobody asked
 * for. */
linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, lnt_weights *w, bool strict);
/* The same into an arena of the device, [lnt_param_elements(p)]. */
linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, const lnt_program *p, float *arena);

/* One float32 tensor for each parameter, named prefix + name, whose data is in the host's arena `values`; names live in `scratch`. `tensors` has room
 * for lnt_param_count(p). */
linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const char *prefix, const float *values, lnt_arena *scratch,
                                  lnt_st_tensor *tensors);

#endif
