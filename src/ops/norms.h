#ifndef LNT_OPS_NORMS_H
#define LNT_OPS_NORMS_H

#include "ops/ops.h"

typedef struct {
    double eps;
    lnt_act act;  /* of the gate */
    float centre; /* weights are centre + w */
} lnt_norm_attr;

typedef struct {
    double eps;
    bool weight, bias; /* parameters, in this order */
} lnt_layernorm_attr;

/* For operators that do these on the way. */
extern const lnt_op lnt_rmsnorm_op, lnt_gated_rmsnorm_op, lnt_l2norm_op;

/* The residual stream's sum and rmsnorm by kernels of their own (sum_norm_cuda.cu); false: it is none, and nothing is done. */
bool lnt_stream_norm_forward(const lnt_call *sum, const lnt_call *norm);
bool lnt_stream_norm_backward(const lnt_call *sum, const lnt_call *norm);

#endif
