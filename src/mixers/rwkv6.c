/* RWKV-6's time mix, "Finch" (arXiv 2404.05892, equations 14 to 19). With x' the token before x and lerp(m) = x + (x' - x) m, five mixes come from
 * one low-rank map, m_i = B_i tanh(A_i lerp(mu)) + x_bias_i, and each projection sees its own:
 *   r, k, v, g = W_r lerp(m_r), ..   log decay w = -exp(W_2 tanh(W_1 lerp(m_w)) + b)
 *   o_t = (S_{t-1} + (bonus . k_t) v_t^T)^T r_t,  S_t = diag(e^{w_t}) S_{t-1} + k_t v_t^T,  y = W_o (GroupNorm(o) . silu(g))
 * Its block (model type rwkv6) has LayerNorm, one more of the embeddings, and the channel mix. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, proj_low_rank_dim, gate_low_rank_dim;
    double expand_k, expand_v;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 0.5, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_INT(options, proj_low_rank_dim, 1, LNT_MOST_WIDTH, 32, "rank of each of the five mixes with the token before"),
    LNT_INT(options, gate_low_rank_dim, 1, LNT_MOST_WIDTH, 64, "rank of the decay's projection"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, 0, o->expand_k, o->expand_v);
}

/* What the five projections see of a token and the one before. In the order in which x_proj.2 and x_bias hold them. */
enum { R, W, K, V, G, MIXES };

static void mix(lnt_program *p, const options *o, lnt_buf x, lnt_buf seen[MIXES])
{
    const int64_t width = lnt_cols(p, x), biases[2] = {MIXES, width};
    const lnt_init half = {LNT_INIT_CONST, 0.5, 0};
    lnt_buf before = lnt_token_shift(p, x);
    lnt_buf m = lnt_linear(p, lnt_lerp_param(p, x, before, "x_proj.0.mu", half), "x_proj.0.linear", MIXES * o->proj_low_rank_dim);
    m = lnt_with_heads(p, lnt_activation(p, m, LNT_TANH, 1, false), MIXES);
    lnt_add_param(p, "x_bias", 2, biases, half, false, false); /* the map below finds it: half a token of each, not none, to start with */
    m = lnt_group_linear(p, m, "x_proj.2", "x_bias", width);
    lnt_buf all = lnt_lerp(p, x, before, lnt_with_heads(p, m, 1));
    for (int i = 0; i < MIXES; i++) seen[i] = lnt_slice(p, all, i * width, width, 1);
}

/* The paper's code starts the decays' biases between -6 and -1: decays of 0.998 to 0.69 a token. */
static lnt_buf decay(lnt_program *p, const options *o, lnt_buf x, int64_t cols)
{
    lnt_buf w = lnt_activation(p, lnt_linear(p, x, "w_proj.linear.lora.0", o->gate_low_rank_dim), LNT_TANH, 1, false);
    lnt_add_param(p, "w_proj.linear.lora.2.bias", 1, &cols, (lnt_init){LNT_INIT_UNIFORM, -6, -1}, false, false);
    w = lnt_linear_bias(p, w, "w_proj.linear.lora.2", cols);
    return lnt_with_heads(p, lnt_activation(p, w, LNT_EXP, -1, true), (int32_t)o->num_heads);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v);
    const int64_t heads[2] = {n.heads, n.key};
    lnt_buf seen[MIXES];
    mix(p, o, x, seen);
    lnt_buf r = lnt_heads_of(p, seen[R], "r_proj.linear", n.heads, n.key);
    lnt_buf w = decay(p, o, seen[W], n.heads * n.key);
    lnt_buf k = lnt_heads_of(p, seen[K], "k_proj.linear", n.heads, n.key);
    lnt_buf v = lnt_heads_of(p, seen[V], "v_proj.linear", n.heads, n.value);
    lnt_buf g = lnt_heads_of(p, seen[G], "g_proj.linear", n.heads, n.value);
    lnt_buf u = lnt_param_value(p, lnt_add_param(p, "bonus", 2, heads, (lnt_init){LNT_INIT_CONST, 0.5, 0}, false, false), n.heads, 1);
    lnt_buf y = lnt_recur(p, "rwkv6", (lnt_recur_in){.tensor = {{"q", r}, {"k", k}, {"v", v}, {"gk", w}, {"bonus", u}}, .option = {{"scale", 1}}});
    return lnt_out_proj(p, l, lnt_glu(p, g, lnt_layernorm(p, y, "g_norm", l->norm_eps, true, true), LNT_SILU));
}

const lnt_mixer lnt_mixer_rwkv6 = {
    .kind = {{"rwkv6", "a decay for each row of the state, a bonus for the current token, inputs mixed with the token before",
              "Peng et al. 2024, arXiv 2404.05892", "rwkv6"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
