/* x += mixer(norm(x)); x += mlp(norm(x)) (arXiv 2002.04745). */
#include "model/kinds.h"

typedef struct {
    bool norm_first;
} options;

static const lnt_option keys[] = {LNT_SWITCH(options, norm_first, false, "a norm of the embeddings before the first layer, as in RWKV")};

static lnt_buf build(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const options *o = lnt_block_options(b);
    if (o->norm_first && lnt_block_layer(b) == 0) x = lnt_block_norm(p, b, x, "pre_norm");
    x = lnt_add_buf(p, x, lnt_block_mixer(p, b, lnt_block_norm(p, b, x, "attn_norm")));
    if (!lnt_block_has_mlp(b)) return x;
    return lnt_add_buf(p, x, lnt_block_mlp(p, b, lnt_block_norm(p, b, x, "mlp_norm")));
}

const lnt_block lnt_block_pre_norm = {.kind = {{"pre_norm", "a norm before the mixer and one before the MLP",
                                                "Xiong et al. 2020, arXiv 2002.04745", NULL},
                                               LNT_OPTIONS(options, keys), NULL},
                                      .build = build};
