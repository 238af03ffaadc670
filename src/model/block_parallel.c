/* x += mixer(norm(x)) + mlp(norm(x)), side by side, as in GPT-J; one norm serves both unless each has its own. */
#include "model/kinds.h"

typedef struct {
    bool two_norms;
} options;

static const lnt_option keys[] = {LNT_SWITCH(options, two_norms, false, "the MLP has a norm of its own")};

static lnt_buf build(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const options *o = lnt_block_options(b);
    lnt_buf n = lnt_block_norm(p, b, x, "attn_norm"), y = lnt_block_mixer(p, b, n);
    if (lnt_block_has_mlp(b)) y = lnt_add_buf(p, y, lnt_block_mlp(p, b, o->two_norms ? lnt_block_norm(p, b, x, "mlp_norm") : n));
    return lnt_add_buf(p, x, y);
}

const lnt_block lnt_block_parallel = {.kind = {{"parallel", "mixer and MLP side by side", "Wang and Komatsuzaki 2021, GPT-J", NULL},
                                               LNT_OPTIONS(options, keys), NULL},
                                      .build = build};
