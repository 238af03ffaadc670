/* n = norm(x); x = alpha n + beta mixer(n), then the same with the MLP: what goes on is the normed input (MiniMax-01, arXiv 2501.08313). The factors
 * are those of layers of the first mixer, of others, and of MLPs. */
#include "model/kinds.h"

typedef struct {
    double mixer_alpha, mixer_beta, other_alpha, other_beta, mlp_alpha, mlp_beta;
} options;

static const lnt_option keys[] = {
    LNT_REAL(options, mixer_alpha, -1e6, 1e6, 1, "of the normed input, in layers of the first mixer"),
    LNT_REAL(options, mixer_beta, -1e6, 1e6, 1, "of what the mixer makes, there"),
    LNT_REAL(options, other_alpha, -1e6, 1e6, 1, "of the normed input, in layers of other mixers"),
    LNT_REAL(options, other_beta, -1e6, 1e6, 1, "of what the mixer makes, there"),
    LNT_REAL(options, mlp_alpha, -1e6, 1e6, 1, "of the normed input, at MLPs"),
    LNT_REAL(options, mlp_beta, -1e6, 1e6, 1, "of what the MLP makes"),
};

static lnt_buf times(lnt_program *p, lnt_buf x, double factor) { return factor == 1 ? x : lnt_activation(p, x, LNT_IDENTITY, factor, false); }

static lnt_buf build(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const options *o = lnt_block_options(b);
    const bool first = lnt_block_first_mixer(b);
    lnt_buf n = lnt_block_norm(p, b, x, "attn_norm"), y = lnt_block_mixer(p, b, n);
    x = lnt_add_buf(p, times(p, n, first ? o->mixer_alpha : o->other_alpha), times(p, y, first ? o->mixer_beta : o->other_beta));
    if (!lnt_block_has_mlp(b)) return x;
    n = lnt_block_norm(p, b, x, "mlp_norm");
    return lnt_add_buf(p, times(p, n, o->mlp_alpha), times(p, lnt_block_mlp(p, b, n), o->mlp_beta));
}

const lnt_block lnt_block_normed_residual = {.kind = {{"normed_residual", "the normed input goes on beside what is made of it",
                                                       "MiniMax 2025, arXiv 2501.08313", NULL},
                                                      LNT_OPTIONS(options, keys), NULL},
                                             .build = build};
