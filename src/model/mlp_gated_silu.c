/* down(silu(gate x) * up x) (arXiv 2002.05202): SwiGLU whose hidden_ratio is that of each branch. */
#include "model/kinds.h"

static const lnt_option keys[] = {LNT_MLP_KEYS(2.667, "hidden_ratio hidden_size, rounded up")};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const int64_t inner = lnt_mlp_width(l, 2.667, 1, 1);
    const lnt_buf gate = lnt_linear(p, x, "gate_proj", inner), up = lnt_linear(p, x, "up_proj", inner); /* in this order, whatever the compiler */
    return lnt_back_linear(p, l, lnt_swiglu(p, gate, up), "down_proj");
}

const lnt_mlp lnt_mlp_gated_silu = {.kind = {{"gated_silu", "SwiGLU by the width of a branch", "Shazeer 2020, arXiv 2002.05202", NULL},
                                             LNT_OPTIONS(lnt_mlp_options, keys), NULL},
                                    .build = build};
