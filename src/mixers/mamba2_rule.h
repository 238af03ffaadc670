/* Mamba-2's layer with its options, for the mixers that have it. mamba2.c. */
#ifndef LNT_MAMBA2_RULE_H
#define LNT_MAMBA2_RULE_H

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, head_dim, state_size, n_groups, conv_kernel;
    bool use_conv_bias, use_bias, rmsnorm, norm_before_gate;
    int norm_of;
    double step_min; /* steps are at least this */
    double times[5]; /* of z, x, B, C and dt before the convolution; 0: 1 */
} lnt_mamba2_options;

linnet_status lnt_check_mamba2(lnt_ctx *c, const lnt_layer *l, const lnt_mamba2_options *o);
lnt_buf lnt_mamba2_layer(lnt_program *p, const lnt_layer *l, const lnt_mamba2_options *o, lnt_buf x);

#endif
