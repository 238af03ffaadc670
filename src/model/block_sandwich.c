/* x += norm(mixer(norm(x))); x += norm(mlp(norm(x))) (arXiv 2105.13290): what joins the residual stream has the norm's size. */
#include "model/kinds.h"

static lnt_buf build(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    lnt_buf y = lnt_block_mixer(p, b, lnt_block_norm(p, b, x, "attn_norm"));
    x = lnt_add_buf(p, x, lnt_block_norm(p, b, y, "attn_post_norm"));
    if (!lnt_block_has_mlp(b)) return x;
    y = lnt_block_mlp(p, b, lnt_block_norm(p, b, x, "mlp_norm"));
    return lnt_add_buf(p, x, lnt_block_norm(p, b, y, "mlp_post_norm"));
}

const lnt_block lnt_block_sandwich = {.kind.about = {"sandwich", "norms before and behind the mixer and the MLP",
                                                    "Ding et al. 2021, arXiv 2105.13290", NULL},
                                      .build = build};
