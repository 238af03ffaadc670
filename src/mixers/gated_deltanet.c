/* Gated DeltaNet (arXiv 2412.06464): the delta rule on a decayed state, S~ = e^{g_t} S_{t-1}, S_t = S~ + k_t beta_t (v_t - S~^T k_t)^T,
 * g_t = -exp(A_log) softplus(a_proj x_t + dt_bias). Value heads may outnumber query-key heads (each of those then serves several states). */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_v_heads, head_dim, conv_size;
    double expand_v, output_norm_eps;
    bool use_gate, use_short_conv, allow_neg_eigval;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 6, "heads of queries and keys"),
    LNT_MAYBE_INT(options, num_v_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of values, a multiple of num_heads; null: num_heads"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 256, "columns of a key"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 2, "columns of a value, as a share of head_dim"),
    LNT_SWITCH(options, use_gate, true, "outputs times silu(g_proj x) behind their norm"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, allow_neg_eigval, false, "write strengths up to 2 in place of 1: the state may turn around"),
    LNT_MAYBE_REAL(options, output_norm_eps, 0, 1, 0, "added to the mean squares of outputs; null: norm_eps"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_values(c, l, o->num_heads, o->num_v_heads, o->head_dim, o->expand_v);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t v_heads = o->num_v_heads ? o->num_v_heads : o->num_heads, conv = o->use_short_conv ? o->conv_size : 0;
    lnt_buf q = lnt_l2norm(p, lnt_project(p, x, "q", o->num_heads, o->head_dim, conv, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, x, "k", o->num_heads, o->head_dim, conv, LNT_SILU), 1e-6);
    lnt_buf v = lnt_project(p, x, "v", v_heads, llround((double)o->head_dim * o->expand_v), conv, LNT_SILU);
    lnt_buf g = lnt_decay_gate(p, lnt_linear(p, x, "a_proj", v_heads));
    lnt_buf beta = lnt_write_strength(p, x, v_heads, o->allow_neg_eigval);
    lnt_buf y = lnt_recur(p, "gated_delta_rule", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"g", g}, {"beta", beta}}});
    lnt_layer out = *l;
    if (o->output_norm_eps > 0) out.norm_eps = o->output_norm_eps;
    return lnt_out_proj(p, l, lnt_output_norm(p, &out, x, y, o->use_gate, "o_norm", "o_norm"));
}

const lnt_mixer lnt_mixer_gated_deltanet = {
    .kind = {{"gated_deltanet", "delta rule on a decaying state", "Yang et al. 2024, arXiv 2412.06464", "gated_delta_rule"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
