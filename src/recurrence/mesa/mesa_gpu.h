/* What the program's node asks of the Mesa core on a GPU beside its operators. */
#ifndef LNT_MESA_GPU_H
#define LNT_MESA_GPU_H

#include "recurrence/mesa/mesa_args.h"

/* Lambda = lower + softplus(p), p [Hv,K] on the device. */
typedef struct {
    const float *p;
    float lower;
} lnt_mesa_lambda;

/* A call of few tokens a sequence, token by token, whose states s0 = sT and h0 = hT of sequence n lie `stride` floats behind those of sequence n-1,
 * with the Lambda `made` for that of `a`. K and V are at most LNT_MESA_WIDEST. */
enum { LNT_MESA_WIDEST = 256, LNT_MESA_FEW = 8 };
void lnt_mesa_step_states(const lnt_mesa_args *a, lnt_mesa_lambda made, int64_t stride, lnt_device *d);

#endif
