/* Layers of the first mixer have their norms in front, x += mixer(norm(x)); x += mlp(norm(x)), those of others behind, x += norm(mixer(x));
 * x += norm(mlp(x)), as in Olmo-Hybrid. */
#include "model/kinds.h"

/* The residual stream in the policy's type, as a norm would give it. */
static lnt_buf plain(lnt_program *p, lnt_buf x) { return lnt_activation(p, x, LNT_IDENTITY, 1, false); }

static lnt_buf build(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const bool behind = !lnt_block_first_mixer(b);
    lnt_buf y = lnt_block_mixer(p, b, behind ? plain(p, x) : lnt_block_norm(p, b, x, "attn_norm"));
    x = lnt_add_buf(p, x, behind ? lnt_block_norm(p, b, y, "attn_post_norm") : y);
    if (!lnt_block_has_mlp(b)) return x;
    y = lnt_block_mlp(p, b, behind ? plain(p, x) : lnt_block_norm(p, b, x, "mlp_norm"));
    return lnt_add_buf(p, x, behind ? lnt_block_norm(p, b, y, "mlp_post_norm") : y);
}

const lnt_block lnt_block_post_norm_others = {.kind.about = {"post_norm_others", "norms in front of the first mixer's layers, behind others",
                                                            "Ai2 2026, Olmo Hybrid", NULL},
                                              .build = build};
