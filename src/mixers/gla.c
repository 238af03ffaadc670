/* Gated linear attention (arXiv 2312.06635): a decay for every column of the keys, S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t, with
 * g_t = logsigmoid(W_1 W_0 x_t + b) / gate_logit_normalizer through few columns (section 4.4), and a swish-gated norm of each head's output. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_kv_heads, conv_size, gate_low_rank_dim;
    double expand_k, expand_v, gate_logit_normalizer, clamp_min;
    bool use_short_conv, use_output_gate;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "query heads"),
    LNT_MAYBE_INT(options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys, values and decays; null: num_heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 0.5, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_SWITCH(options, use_short_conv, false, "a causal convolution and silu behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, use_output_gate, true, "outputs times silu(g_proj x) behind their norm"),
    LNT_INT(options, gate_low_rank_dim, 1, LNT_MOST_WIDTH, 16, "columns between the two maps that make the decays"),
    LNT_REAL(options, gate_logit_normalizer, 1, 1e6, 16, "a decay's logarithm is logsigmoid divided by this"),
    LNT_MAYBE_REAL(options, clamp_min, -1e6, -1e-6, 0, "a decay's logarithm is at least this; null: any"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
    const int64_t conv = o->use_short_conv ? o->conv_size : 0;
    const lnt_act act = conv ? LNT_SILU : LNT_IDENTITY;
    const int group = (int)(n.heads / n.kv_heads);
    lnt_buf q = lnt_project(p, x, "q", n.heads, n.key, conv, act);
    lnt_buf k = lnt_repeat_heads(p, lnt_project(p, x, "k", n.kv_heads, n.key, conv, act), group);
    lnt_buf v = lnt_repeat_heads(p, lnt_project(p, x, "v", n.kv_heads, n.value, conv, act), group);
    lnt_buf g = lnt_with_heads(p, lnt_low_rank(p, x, "gk_proj", o->gate_low_rank_dim, n.kv_heads * n.key, true), (int32_t)n.kv_heads);
    g = lnt_activation(p, g, LNT_LOG_SIGMOID, 1 / o->gate_logit_normalizer, true);
    if (o->clamp_min < 0) g = lnt_clamp(p, g, o->clamp_min, 0);
    g = lnt_repeat_heads(p, g, group);
    lnt_buf y = lnt_recur(p, "gla", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"gk", g}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_output_gate, "g_norm_swish_gate", "g_norm"));
}

const lnt_mixer lnt_mixer_gla = {
    .kind = {{"gla", "gated linear attention with a data-dependent decay for each column of the keys", "Yang et al. 2024, arXiv 2312.06635", "gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
