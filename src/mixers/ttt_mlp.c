/* TTT-MLP (arXiv 2407.04620): TTT-Linear with two layers for a model, f(x) = LN(gelu(x W1 + b1) W2 + b2) + x, and four times a head's columns between
 * them. */
#include "mixers/ttt_base.h"

static const lnt_option keys[] = {LNT_TTT_KEYS(0.1)};

enum { BETWEEN = 4 };

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const int64_t D = lnt_ttt_head(l), F = BETWEEN * D;
    static const char *const parameter[] = {"W1", "b1", "W2", "b2"}, *const tensor[] = {"w1", "b1", "w2", "b2"};
    lnt_recur_in in = lnt_ttt_inputs(p, l, x);
    for (int i = 0; i < 4; i++) {
        in.tensor[LNT_TTT_GIVEN + i].name = tensor[i];
        in.tensor[LNT_TTT_GIVEN + i].value = lnt_ttt_weights(p, l, parameter[i], i % 2 ? 1 : i ? F : D, i < 2 ? F : D);
    }
    return lnt_ttt_output(p, l, x, lnt_recur(p, "ttt_mlp", in));
}

const lnt_mixer lnt_mixer_ttt_mlp = {
    .kind = {{"ttt_mlp", "a model of two layers for a state, which learns by gradient descent while it reads", "Sun et al. 2024, arXiv 2407.04620",
              "ttt_mlp"},
             LNT_OPTIONS(lnt_ttt_options, keys), lnt_ttt_check},
    .build = build,
};
