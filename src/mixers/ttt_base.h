/* What the layers have in common whose state is a model that learns by mini-batches of tokens (arXiv 2407.04620), as the paper's code has them. */
#ifndef LNT_TTT_BASE_H
#define LNT_TTT_BASE_H

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, mini_batch_size, conv_kernel;
    double ttt_base_lr, rope_theta;
    bool use_gate, share_qk;
} lnt_ttt_options;

/* The rows of their table; `rate` is the paper's of the inner model. */
#define LNT_TTT_KEYS(RATE)                                                                                                         \
    LNT_INT(lnt_ttt_options, num_heads, 1, LNT_MOST_WIDTH, 32, "heads; each has hidden_size / num_heads columns"),                 \
        LNT_INT(lnt_ttt_options, mini_batch_size, 1, 256, 16, "tokens whose gradients are taken at the same inner weights"),       \
        LNT_REAL(lnt_ttt_options, ttt_base_lr, 0, 1e3, RATE, "largest step size of a token, before it is divided by a head's columns"), \
        LNT_REAL(lnt_ttt_options, rope_theta, 1, 1e15, 10000, "base of the rotary positions, which begin again with each mini-batch"), \
        LNT_SWITCH(lnt_ttt_options, use_gate, false, "outputs times gelu(g_proj x) behind their norm"),                            \
        LNT_SWITCH(lnt_ttt_options, share_qk, false, "queries and keys are one projection through two convolutions"),              \
        LNT_INT(lnt_ttt_options, conv_kernel, 1, LNT_CONV_MAX, 4, "with share_qk: taps of the convolutions")

linnet_status lnt_ttt_check(lnt_ctx *c, const lnt_layer *l);
/* Columns of a head. */
int64_t lnt_ttt_head(const lnt_layer *l);
/* What the operator takes besides the weights that its model begins with, which go behind: the next row is in->tensor[LNT_TTT_GIVEN]. */
enum { LNT_TTT_GIVEN = 7 };
lnt_recur_in lnt_ttt_inputs(lnt_program *p, const lnt_layer *l, lnt_buf x);
/* Weights [heads,in,out] or (in = 1) biases of the inner model, parameters. */
lnt_buf lnt_ttt_weights(lnt_program *p, const lnt_layer *l, const char *name, int64_t in, int64_t out);
/* From the operator's output to the layer's: a norm over all heads, the gate, the projection. */
lnt_buf lnt_ttt_output(lnt_program *p, const lnt_layer *l, lnt_buf x, lnt_buf y);

#endif
