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

#ifdef LINNET_CUDA
/* The convolutions of a group in training, each alone or with the norm it is a pair with (backward ahead of it), in one call; false: they are not
 * alike, nothing was done. */
bool lnt_conv_side_cuda(const lnt_call *calls, int count, bool backward);
#endif

#endif
