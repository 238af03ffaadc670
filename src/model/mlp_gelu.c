/* down(gelu(up x)) (arXiv 1606.08415). */
#include "model/kinds.h"

typedef struct {
    lnt_mlp_options size; /* first */
    bool tanh_gelu;
} options;

static const lnt_option keys[] = {
    LNT_MLP_KEYS(4, "hidden_ratio hidden_size, rounded up"),
    LNT_SWITCH(options, tanh_gelu, false, "gelu by its formula with tanh"),
};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_buf y = lnt_linear(p, x, "up_proj", lnt_mlp_width(l, 4, 1, 1));
    return lnt_back_linear(p, l, lnt_activation(p, y, o->tanh_gelu ? LNT_GELU_TANH : LNT_GELU, 1, false), "down_proj");
}

const lnt_mlp lnt_mlp_gelu = {.kind = {{"gelu", "one branch with gelu", "Hendrycks and Gimpel 2016, arXiv 1606.08415", NULL},
                                       LNT_OPTIONS(options, keys), NULL},
                              .build = build};
