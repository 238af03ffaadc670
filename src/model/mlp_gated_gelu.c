/* down(gelu(gate x) * up x) (arXiv 2002.05202). */
#include "model/kinds.h"

typedef struct {
    lnt_mlp_options size; /* first */
    bool tanh_gelu;
} options;

static const lnt_option keys[] = {
    LNT_MLP_KEYS(4, "2/3 hidden_ratio hidden_size, rounded up"),
    LNT_SWITCH(options, tanh_gelu, false, "gelu by its formula with tanh"),
};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t inner = lnt_mlp_width(l, 4, 2, 3);
    const lnt_buf gate = lnt_linear(p, x, "gate_proj", inner), up = lnt_linear(p, x, "up_proj", inner);
    return lnt_back_linear(p, l, lnt_glu(p, gate, up, o->tanh_gelu ? LNT_GELU_TANH : LNT_GELU), "down_proj");
}

const lnt_mlp lnt_mlp_gated_gelu = {.kind = {{"gated_gelu", "two branches, gelu of one times the other", "Shazeer 2020, arXiv 2002.05202", NULL},
                                             LNT_OPTIONS(options, keys), NULL},
                                    .build = build};
