/* Kimi delta attention (arXiv 2510.26692): the delta rule on a state that decays column by column of the keys, S~ = diag(e^{g_t}) S_{t-1},
 * S_t = S~ + k_t beta_t (v_t - S~^T k_t)^T, with g_t = -exp(A_log) softplus(f_proj x_t + dt_bias), or above lower_bound, and a sigmoid-gated norm of
 * each head's output. Decays and output gates come through as many columns as a value has. Value heads may outnumber query-key heads. */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_v_heads, head_dim, conv_size;
    double expand_v, lower_bound;
    bool use_short_conv, allow_neg_eigval, safe_gate;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "heads of queries and keys"),
    LNT_MAYBE_INT(options, num_v_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of values and decays, a multiple of num_heads; null: num_heads"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 128, "columns of a key"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of a value, as a share of head_dim"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, allow_neg_eigval, false, "write strengths up to 2 in place of 1: the state may turn around"),
    LNT_SWITCH(options, safe_gate, false, "decays with a lower bound: lower_bound sigmoid(exp(A_log) (f_proj x + dt_bias))"),
    LNT_MAYBE_REAL(options, lower_bound, -1e3, -1e-6, 0, "a decay's logarithm is above this, e.g. -5; goes with safe_gate"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->safe_gate && !(o->lower_bound < 0))
        return lnt_fail(c, LINNET_EINVAL, "%slower_bound is null, expected a number below 0 with safe_gate = true", l->where);
    if (!o->safe_gate && o->lower_bound < 0)
        return lnt_fail(c, LINNET_EINVAL, "%slower_bound is %g, expected null with safe_gate = false", l->where, o->lower_bound);
    return lnt_check_values(c, l, o->num_heads, o->num_v_heads, o->head_dim, o->expand_v);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t v_heads = o->num_v_heads ? o->num_v_heads : o->num_heads, conv = o->use_short_conv ? o->conv_size : 0;
    const int64_t value = llround((double)o->head_dim * o->expand_v);
    lnt_buf q = lnt_l2norm(p, lnt_project(p, x, "q", o->num_heads, o->head_dim, conv, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, x, "k", o->num_heads, o->head_dim, conv, LNT_SILU), 1e-6);
    lnt_buf v = lnt_project(p, x, "v", v_heads, value, conv, LNT_SILU);
    lnt_buf f = lnt_with_heads(p, lnt_low_rank(p, x, "f_proj", value, v_heads * o->head_dim, false), (int32_t)v_heads);
    lnt_buf g = lnt_vector_decay_gate(p, f, o->lower_bound);
    lnt_buf beta = lnt_write_strength(p, x, v_heads, o->allow_neg_eigval);
    lnt_buf y = lnt_recur(p, "kda", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"gk", g}, {"beta", beta}}});
    lnt_buf gate = lnt_low_rank(p, x, "g_proj", value, v_heads * value, true);
    return lnt_out_proj(p, l, lnt_gated_rmsnorm(p, y, gate, "o_norm", l->norm_eps, LNT_SIGMOID));
}

const lnt_mixer lnt_mixer_kda = {
    .kind = {{"kda", "Kimi delta attention: the delta rule with a decay for each column of the keys", "Kimi Team 2025, arXiv 2510.26692", "kda"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
