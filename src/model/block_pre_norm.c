/* x += mixer(norm(x)); x += mlp(norm(x)) (arXiv 2002.04745). */
#include "model/kinds.h"

typedef struct {
    bool norm_first;
    double residual_multiplier;
} options;

static const lnt_option keys[] = {
    LNT_SWITCH(options, norm_first, false, "a norm of the embeddings before the first layer, as in RWKV"),
    LNT_REAL(options, residual_multiplier, -1e6, 1e6, 1, "what mixer and MLP make, times this"),
};

static lnt_buf times(lnt_program *p, lnt_buf x, double factor) { return factor == 1 ? x : lnt_activation(p, x, LNT_IDENTITY, factor, false); }

static lnt_buf build(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const options *o = lnt_block_options(b);
    if (o->norm_first && lnt_block_layer(b) == 0) x = lnt_block_norm(p, b, x, "pre_norm");
    x = lnt_add_buf(p, x, times(p, lnt_block_mixer(p, b, lnt_block_norm(p, b, x, "attn_norm")), o->residual_multiplier));
    if (!lnt_block_has_mlp(b)) return x;
    return lnt_add_buf(p, x, times(p, lnt_block_mlp(p, b, lnt_block_norm(p, b, x, "mlp_norm")), o->residual_multiplier));
}

const lnt_block lnt_block_pre_norm = {.kind = {{"pre_norm", "a norm before the mixer and one before the MLP",
                                                "Xiong et al. 2020, arXiv 2002.04745", NULL},
                                               LNT_OPTIONS(options, keys), NULL},
                                      .build = build};
