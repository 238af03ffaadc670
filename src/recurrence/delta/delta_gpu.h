/* What the program's node asks of the delta core on a GPU beside its operators: a step of one token a sequence, done together with the
 * convolutions and norms around it (delta_layer_sm90.cu). */
#ifndef LNT_DELTA_GPU_H
#define LNT_DELTA_GPU_H

#include "program/program.h"
#include "recurrence/recur_args.h"

typedef struct {
    const lnt_call *conv[3], *l2norm[2]; /* of q, k and v */
    const lnt_call *rmsnorm;             /* of the heads of o, with a gate or without; NULL: none */
    bool keeps_o;                        /* o itself is read by others */
} lnt_delta_layer;

/* Whether these heads fit. */
bool lnt_delta_layer_fits(int32_t K, int32_t V);
/* One token for each sequence, states in place (a->s0 == a->sT, and those of the convolutions); q, k, v of `a` are not there. False: nothing was
 * done, something does not fit. */
bool lnt_delta_layer_sm90(const lnt_delta_layer *layer, const lnt_recur_args *a, const lnt_device *d);

#endif
