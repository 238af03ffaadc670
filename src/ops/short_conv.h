#ifndef LNT_OPS_SHORT_CONV_H
#define LNT_OPS_SHORT_CONV_H

#include "ops/ops.h"

enum { LNT_CONV_MAX = 32 }; /* taps */

typedef struct {
    int size;
    lnt_act act;
    bool bias; /* parameter 1 */
} lnt_conv_attr;

extern const lnt_op lnt_conv_op;

enum { LNT_CONV_GROUP = 3 }; /* convolutions of one call: q, k, v */

#endif
