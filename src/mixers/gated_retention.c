/* Gated retention (YOCO, arXiv 2405.05254, section 3.1): retention whose decay is one number a token and head,
 *   S_t = gamma_t S_{t-1} + k_t v_t^T,   gamma_t = sigmoid(W_gamma x_t)^{1/16},   o_t = S_t^T q_t / sqrt(key columns)
 * with rotary q and k and a swish-gated norm of each head's output. */
#include "mixers/mixers.h"

static const double ROPE_THETA = 10000;

typedef struct {
    int64_t num_heads;
    double expand_k, expand_v, gate_logit_normalizer;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 8, "heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_REAL(options, gate_logit_normalizer, 1, 1e6, 16, "a decay's logarithm is logsigmoid divided by this"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    LNT_TRY(lnt_check_expanded(c, l, o->num_heads, 0, o->expand_k, o->expand_v));
    return lnt_check_even(c, l, "hidden_size * expand_k / num_heads", lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v).key);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v);
    lnt_buf q = lnt_rotary(p, lnt_heads_of(p, x, "q_proj", n.heads, n.key), ROPE_THETA);
    lnt_buf k = lnt_rotary(p, lnt_heads_of(p, x, "k_proj", n.heads, n.key), ROPE_THETA);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", n.heads, n.value);
    lnt_buf g = lnt_activation(p, lnt_linear(p, x, "gt_proj", n.heads), LNT_LOG_SIGMOID, 1 / o->gate_logit_normalizer, true);
    lnt_buf y = lnt_recur(p, "simple_gla", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"g", g}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, true, "g_norm", "g_norm"));
}

const lnt_mixer lnt_mixer_gated_retention = {
    .kind = {{"gated_retention", "retention with a data-dependent decay a head, rotary q and k", "Sun et al. 2024, arXiv 2405.05254", "simple_gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
