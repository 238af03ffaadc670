#ifndef LNT_OPS_POINTWISE_H
#define LNT_OPS_POINTWISE_H

#include "ops/ops.h"

typedef struct {
    lnt_act act;
    double scale;
} lnt_activation_attr;

extern const lnt_op lnt_sum_op; /* lnt_add_buf's */

#endif
