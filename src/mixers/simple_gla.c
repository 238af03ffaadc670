/* Gated linear attention with a scalar decay for each head (arXiv 2312.06635 with one gate a head; Gated Retention of arXiv 2405.05254):
 * S_t = e^{g_t} S_{t-1} + k_t v_t^T, g_t = logsigmoid(W x_t + b) / 16. */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_kv_heads, conv_size;
    double expand_k, expand_v;
    bool use_short_conv, use_output_gate;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "query heads"),
    LNT_MAYBE_INT(options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys and values; null: num_heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution and silu behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, use_output_gate, true, "outputs times silu(g_proj x) behind their norm"),
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
    lnt_buf q = lnt_project(p, x, "q", n.heads, n.key, conv, act);
    lnt_buf k = lnt_project(p, x, "k", n.kv_heads, n.key, conv, act);
    lnt_buf v = lnt_project(p, x, "v", n.kv_heads, n.value, conv, act);
    k = lnt_repeat_heads(p, k, (int)(n.heads / n.kv_heads));
    v = lnt_repeat_heads(p, v, (int)(n.heads / n.kv_heads));
    lnt_buf g = lnt_activation(p, lnt_linear_bias(p, x, "gk_proj", n.heads), LNT_LOG_SIGMOID, 1.0 / 16, true);
    lnt_buf y = lnt_recur(p, "simple_gla", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"g", g}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_output_gate, "g_norm_swish_gate", "g_norm"));
}

const lnt_mixer lnt_mixer_simple_gla = {
    .kind = {{"simple_gla", "gated linear attention with one data-dependent decay a head",
              "Yang et al. 2024, arXiv 2312.06635; Sun et al. 2024, arXiv 2405.05254", "simple_gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
