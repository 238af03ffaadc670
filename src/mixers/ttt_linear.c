/* TTT-Linear (arXiv 2407.04620): the state is a linear model f(x) = LN(x W + b) + x that learns to make v of k by gradient descent over mini-batches
 * of tokens, with steps max(1/i + idx_i, 0) base_lr sigmoid(lr x_t) / columns, and the output of token t is f(q_t) by the weights behind it. What W
 * and b begin with is learned outside. */
#include "mixers/ttt_base.h"

static const lnt_option keys[] = {LNT_TTT_KEYS(1)};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const int64_t D = lnt_ttt_head(l);
    lnt_recur_in in = lnt_ttt_inputs(p, l, x);
    in.tensor[LNT_TTT_GIVEN].name = "w", in.tensor[LNT_TTT_GIVEN].value = lnt_ttt_weights(p, l, "W1", D, D);
    in.tensor[LNT_TTT_GIVEN + 1].name = "b", in.tensor[LNT_TTT_GIVEN + 1].value = lnt_ttt_weights(p, l, "b1", 1, D);
    return lnt_ttt_output(p, l, x, lnt_recur(p, "ttt_linear", in));
}

const lnt_mixer lnt_mixer_ttt_linear = {
    .kind = {{"ttt_linear", "a linear model for a state, which learns by gradient descent while it reads", "Sun et al. 2024, arXiv 2407.04620",
              "ttt_linear"},
             LNT_OPTIONS(lnt_ttt_options, keys), lnt_ttt_check},
    .build = build,
};
