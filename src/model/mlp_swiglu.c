/* down(silu(gate x) * up x) (arXiv 2002.05202). Two thirds of hidden_ratio, because there are three matrices where a plain MLP has two. */
#include "model/kinds.h"

static const lnt_option keys[] = {LNT_MLP_KEYS(4, "2/3 hidden_ratio hidden_size, rounded up")};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const int64_t inner = lnt_mlp_width(l, 4, 2, 3);
    const lnt_buf gate = lnt_linear(p, x, "gate_proj", inner), up = lnt_linear(p, x, "up_proj", inner); /* in this order, whatever the compiler */
    return lnt_back_linear(p, l, lnt_swiglu(p, gate, up), "down_proj");
}

const lnt_mlp lnt_mlp_swiglu = {.kind = {{"swiglu", "two branches, silu of one times the other", "Shazeer 2020, arXiv 2002.05202", NULL},
                                         LNT_OPTIONS(lnt_mlp_options, keys), NULL},
                                .build = build};
