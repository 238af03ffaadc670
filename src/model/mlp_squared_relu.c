/* down(relu(up x)^2) (arXiv 2109.08668). */
#include "model/kinds.h"

static const lnt_option keys[] = {LNT_MLP_KEYS(4, "hidden_ratio hidden_size, rounded up")};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    lnt_buf y = lnt_linear(p, x, "up_proj", lnt_mlp_width(l, 4, 1, 1));
    return lnt_back_linear(p, l, lnt_activation(p, y, LNT_SQUARED_RELU, 1, false), "down_proj");
}

const lnt_mlp lnt_mlp_squared_relu = {.kind = {{"squared_relu", "one branch with relu squared", "So et al. 2021, arXiv 2109.08668", NULL},
                                               LNT_OPTIONS(lnt_mlp_options, keys), NULL},
                                      .build = build};
