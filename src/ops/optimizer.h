/* AdamW (Loshchilov and Hutter, arXiv 1711.05101) over the arenas of a program's parameters, and the global gradient norm.
 *
 *   g <- gradient_scale g,  m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2
 *   w <- w - lr (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + epsilon) + weight_decay w)      weight_decay for parameters marked `decay`
 *
 * All arrays are device memory of lnt_param_elements(p) elements; the paddings between parameters are never touched. */
#ifndef LNT_OPS_OPTIMIZER_H
#define LNT_OPS_OPTIMIZER_H

#include "program/program.h"

typedef struct {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double gradient_scale; /* clipping: lnt_clip_scale; also what undoes a loss scale */
    int64_t step;          /* 1 for the first update */
    bool zero_gradients;   /* leave zeros in grad, ready to be added to */
} lnt_adamw;

typedef struct {
    float *master, *grad, *m, *v;
    lnt_bf16 *work; /* refreshed from the new master; NULL: none */
} lnt_adamw_arrays;

linnet_status lnt_adamw_step(lnt_ctx *c, const lnt_program *p, const lnt_adamw *o, const lnt_adamw_arrays *a);

/* sqrt of the sum of squares of every parameter's gradient. NaN and infinity travel. */
double lnt_gradient_norm(lnt_ctx *c, const lnt_program *p, const float *grad);
/* The factor that brings `norm` down to `limit` (<= 0: no limit). */
double lnt_clip_scale(double norm, double limit);

#endif
