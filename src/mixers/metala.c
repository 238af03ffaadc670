/* MetaLA (arXiv 2411.10741): gated linear attention without a key projection, on inputs behind a short convolution x' = silu(conv(x)),
 *   S_t = diag(a_t) S_{t-1} + (1 - a_t) v_t^T,   a_t = sigmoid(W_a x'_t)^{1/16},   o_t = S_t^T q_t / sqrt(key columns)
 * and self-augmentation, the token's own key and value once more, o_t += sigmoid((q_t . (w . (1 - a_t))) v_t), w a row a head;
 * y = W_o (LayerNorm(o) . silu(W_g x')), the norm of each head and without weights. The norm does not see a constant: tanh(./2) / 2 is added, which
 * is the sigmoid without its 1/2, in which bf16 would lose a small o. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, conv_size;
    double expand_k, expand_v, gate_logit_normalizer;
    bool use_self_augmentation;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 0.5, "columns of all queries and decays, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_REAL(options, gate_logit_normalizer, 1, 1e6, 16, "a decay's logarithm is logsigmoid divided by this"),
    LNT_SWITCH(options, use_self_augmentation, true, "the token's own key and value once more in its output"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, 0, o->expand_k, o->expand_v);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v);
    x = lnt_short_conv(p, x, "conv1d", (int)o->conv_size, LNT_SILU);
    lnt_buf q = lnt_heads_of(p, x, "q_proj", n.heads, n.key);
    lnt_buf g = lnt_activation(p, lnt_heads_of(p, x, "k_gate", n.heads, n.key), LNT_LOG_SIGMOID, 1 / o->gate_logit_normalizer, true);
    lnt_buf k = lnt_activation(p, g, LNT_ONE_MINUS_EXP, 1, false);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", n.heads, n.value);
    lnt_buf y = lnt_recur(p, "gla", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"gk", g}}});
    if (o->use_self_augmentation) {
        lnt_buf own = lnt_head_dot(p, q, lnt_scale_columns(p, k, "aug_balance", (lnt_init){LNT_INIT_NORMAL, lnt_init_std(p, n.key), 0}));
        y = lnt_add_buf(p, y, lnt_activation(p, lnt_mul_buf(p, v, lnt_activation(p, own, LNT_IDENTITY, 0.5, true)), LNT_TANH, 0.5, false));
    }
    y = lnt_layernorm(p, y, "group_norm", 1e-5, false, false);
    return lnt_back_linear(p, l, lnt_glu(p, lnt_linear_bias(p, x, "g_proj", lnt_cols(p, y)), y, LNT_SILU), "out_proj");
}

const lnt_mixer lnt_mixer_metala = {
    .kind = {{"metala", "gated linear attention without keys, whose tokens see themselves once more", "Chou et al. 2024, arXiv 2411.10741", "gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
