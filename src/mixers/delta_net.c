/* DeltaNet (arXiv 2406.06484): S_t = S_{t-1} + k_t beta_t (v_t - S_{t-1}^T k_t)^T with normalised keys. */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, conv_size;
    double expand_k, expand_v;
    bool use_gate, use_short_conv, allow_neg_eigval;
    int qk_norm, qk_activation;
} options;

static const lnt_act activations[] = {LNT_SILU, LNT_RELU, LNT_ELU1, LNT_IDENTITY}; /* the words of qk_activation */

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_SWITCH(options, use_gate, false, "outputs times silu(g_proj x) behind their norm"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, allow_neg_eigval, false, "write strengths up to 2 in place of 1: the state may turn around"),
    LNT_WORD(options, qk_norm, "l2 sum", 0, "queries and keys divided by their length or by their sum"),
    LNT_WORD(options, qk_activation, "silu relu elu identity", 0, "of queries and keys, before the norm; elu: elu(x)+1"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, 0, o->expand_k, o->expand_v);
}

/* q or k: projection, convolution, activation, norm. The convolution carries the activation only when it is SiLU. */
static lnt_buf query_or_key(lnt_program *p, const options *o, lnt_buf x, const char *name, int64_t dim)
{
    const lnt_act act = activations[o->qk_activation];
    const bool silu = act == LNT_SILU;
    lnt_buf y = lnt_project(p, x, name, o->num_heads, dim, o->use_short_conv ? o->conv_size : 0, silu ? LNT_SILU : LNT_IDENTITY);
    if (!silu && act != LNT_IDENTITY) y = lnt_activation(p, y, act, 1, false);
    return o->qk_norm ? lnt_sumnorm(p, y, 0) : lnt_l2norm(p, y, 1e-6);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v);
    lnt_buf q = query_or_key(p, o, x, "q", n.key), k = query_or_key(p, o, x, "k", n.key);
    lnt_buf v = lnt_project(p, x, "v", n.heads, n.value, o->use_short_conv ? o->conv_size : 0, LNT_SILU);
    lnt_buf beta = lnt_write_strength(p, x, n.heads, o->allow_neg_eigval);
    lnt_buf y = lnt_recur(p, "delta_rule", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"beta", beta}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_gate, "o_norm", "o_norm"));
}

const lnt_mixer lnt_mixer_delta_net = {
    .kind = {{"delta_net", "delta rule: each write first erases what its key held",
              "Schlag et al. 2021, arXiv 2102.11174; Yang et al. 2024, arXiv 2406.06484", "delta_rule"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
