/* down(gelu(gate x) * up x) (arXiv 2002.05202). */
#include "model/kinds.h"

typedef struct {
    lnt_mlp_options size; /* first */
    bool tanh_gelu, mlp_bias;
} options;

static const lnt_option keys[] = {
    LNT_MLP_KEYS(4, "2/3 hidden_ratio hidden_size, rounded up"),
    LNT_SWITCH(options, tanh_gelu, false, "gelu by its formula with tanh"),
    LNT_SWITCH(options, mlp_bias, false, "biases in all three products"),
};

static lnt_buf product(lnt_program *p, const options *o, lnt_buf x, const char *name, int64_t out)
{
    return o->mlp_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t inner = lnt_mlp_width(l, 4, 2, 3);
    const lnt_buf gate = product(p, o, x, "gate_proj", inner), up = product(p, o, x, "up_proj", inner);
    const lnt_buf y = lnt_glu(p, gate, up, o->tanh_gelu ? LNT_GELU_TANH : LNT_GELU);
    return o->mlp_bias ? lnt_linear_bias(p, y, "down_proj", l->width) : lnt_back_linear(p, l, y, "down_proj");
}

const lnt_mlp lnt_mlp_gated_gelu = {.kind = {{"gated_gelu", "two branches, gelu of one times the other", "Shazeer 2020, arXiv 2002.05202", NULL},
                                             LNT_OPTIONS(options, keys), NULL},
                                    .build = build};
