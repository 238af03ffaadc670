#ifndef LNT_OPS_NORMS_H
#define LNT_OPS_NORMS_H

#include "ops/ops.h"

typedef struct {
    double eps;
    lnt_act act; /* of the gate */
} lnt_norm_attr;

#endif
