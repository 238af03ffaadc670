#ifndef LNT_OPS_POINTWISE_H
#define LNT_OPS_POINTWISE_H

#include "ops/ops.h"

typedef struct {
    lnt_act act;
    double scale, offset;
} lnt_activation_attr;

typedef struct {
    lnt_act act;
} lnt_glu_attr;

typedef struct {
    double low, high;
} lnt_clamp_attr;

/* For operators that do these on the way; lnt_sum_op is lnt_add_buf's. */
extern const lnt_op lnt_activation_op, lnt_glu_op, lnt_sum_op;

#endif
