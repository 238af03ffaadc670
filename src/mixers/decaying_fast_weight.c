/* Decaying fast weights (arXiv 2210.04243): a decay for each row and for each column of the state,
 *   S_t = diag(a_t) S_{t-1} diag(b_t) + k_t v_t^T,   a_t = sigmoid(W_a x_t + c_a),   b_t = sigmoid(W_b x_t + c_b)
 * with o_t = S_t^T q_t / sqrt(key columns).
 * The biases start at 4 and the maps small, so that a layer begins with decays of 0.98. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads;
    double expand_k, expand_v;
    bool use_output_gate;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_SWITCH(options, use_output_gate, false, "outputs times silu(g_proj x) behind their norm"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, 0, o->expand_k, o->expand_v);
}

static lnt_buf decay(lnt_program *p, lnt_buf x, const char *map, const char *bias, int64_t heads, int64_t dim)
{
    x = lnt_activation(p, lnt_linear(p, x, map, heads * dim), LNT_IDENTITY, 1, true);
    x = lnt_add_columns(p, x, bias, (lnt_init){LNT_INIT_CONST, 4, 0});
    return lnt_with_heads(p, lnt_activation(p, x, LNT_LOG_SIGMOID, 1, true), (int32_t)heads);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v);
    lnt_buf q = lnt_heads_of(p, x, "q_proj", n.heads, n.key), k = lnt_heads_of(p, x, "k_proj", n.heads, n.key);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", n.heads, n.value);
    lnt_buf gk = decay(p, x, "gk_proj", "gk_proj.bias", n.heads, n.key), gv = decay(p, x, "gv_proj", "gv_proj.bias", n.heads, n.value);
    lnt_buf y = lnt_recur(p, "gla_kv", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"gk", gk}, {"gv", gv}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_output_gate, "g_norm", "g_norm"));
}

const lnt_mixer lnt_mixer_decaying_fast_weight = {
    .kind = {{"decaying_fast_weight", "a state that forgets by rows and by columns (alias dfw)", "Mao 2022, arXiv 2210.04243", "gla_kv"},
             LNT_OPTIONS(options, keys), check},
    .alias = "dfw",
    .build = build,
};
