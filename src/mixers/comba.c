/* Comba (arXiv 2506.02475): a feedback key p reads the state before it decays, and what it read is erased where the token writes; the query is
 * corrected by what is fed back. With scalars sigma(decay) and D of each head of keys, g_t = -exp(A_log) softplus(a_proj x_t + dt_bias) and unit rows
 * ^ = l2norm:
 *   p_t = sigma(decay) k_t,   q~_t = q_t - D p_t
 *   S_t = e^{g_t} S_{t-1} + k^_t beta_t (v_t - S_{t-1}^T p^_t)^T,   o_t = S_t^T q~^_t K^{-1/2}
 * which is the untied delta rule with a = -beta p^, b = k^, values beta v, and one decay for all rows of the state. Value heads may outnumber
 * query-key heads. */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_v_heads, head_dim, conv_size;
    double expand_v, correction_factor;
    bool use_output_gate, use_short_conv, use_output_correction, use_inner_decay;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 6, "heads of queries and keys"),
    LNT_MAYBE_INT(options, num_v_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of values and decays, a multiple of num_heads; null: num_heads"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 256, "columns of a key"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 2, "columns of a value, as a share of head_dim"),
    LNT_SWITCH(options, use_output_gate, true, "outputs times sigmoid(g_proj x) behind their norm"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, use_output_correction, true, "queries less D times the feedback key"),
    LNT_REAL(options, correction_factor, -1e6, 1e6, 1, "what D starts at"),
    LNT_SWITCH(options, use_inner_decay, true, "the feedback key is sigmoid(decay) times the key"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_values(c, l, o->num_heads, o->num_v_heads, o->head_dim, o->expand_v);
}

/* x times the activation of a parameter of each head. */
static lnt_buf head_scaled(lnt_program *p, lnt_buf x, const char *name, double start, lnt_act act)
{
    const int32_t heads = (int32_t)lnt_heads(p, x);
    if (lnt_program_failed(p)) return LNT_NO_BUF; /* x has no heads */
    lnt_buf m = lnt_row_param(p, name, 1, heads, (lnt_init){LNT_INIT_CONST, start, 0});
    if (act != LNT_IDENTITY) m = lnt_activation(p, m, act, 1, true);
    return lnt_scale_rows(p, x, lnt_repeat_heads(p, lnt_with_heads(p, m, heads), (int)(lnt_cols(p, x) / heads)));
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t v_heads = o->num_v_heads ? o->num_v_heads : o->num_heads, conv = o->use_short_conv ? o->conv_size : 0;
    const int64_t value = llround((double)o->head_dim * o->expand_v);
    const int32_t states = (int32_t)v_heads;
    const int group = (int)(v_heads / o->num_heads);
    lnt_buf q = lnt_project(p, x, "q", o->num_heads, o->head_dim, conv, LNT_SILU);
    lnt_buf k = lnt_project(p, x, "k", o->num_heads, o->head_dim, conv, LNT_SILU);
    lnt_buf v = lnt_project(p, x, "v", v_heads, value, conv, LNT_SILU);
    lnt_buf g = lnt_repeat_heads(p, lnt_with_heads(p, lnt_decay_gate(p, lnt_linear(p, x, "a_proj", v_heads)), states), (int)o->head_dim);
    lnt_buf beta = lnt_write_strength(p, x, v_heads, false);
    lnt_buf feedback = o->use_inner_decay ? head_scaled(p, k, "decay", 1, LNT_SIGMOID) : k;
    if (o->use_output_correction)
        q = lnt_add_buf(p, q, lnt_activation(p, head_scaled(p, feedback, "D", o->correction_factor, LNT_IDENTITY), LNT_IDENTITY, -1, false));
    k = lnt_l2norm(p, k, 1e-6);
    lnt_buf a = lnt_repeat_heads(p, o->use_inner_decay ? lnt_l2norm(p, feedback, 1e-6) : k, group);
    a = lnt_mul_buf(p, a, lnt_activation(p, beta, LNT_IDENTITY, -1, true));
    const lnt_recur_in in = {.tensor = {{"q", lnt_l2norm(p, q, 1e-6)}, {"k", k}, {"v", lnt_mul_buf(p, v, beta)}, {"a", a},
                                        {"b", lnt_repeat_heads(p, k, group)}, {"gk", lnt_with_heads(p, g, states)}}};
    lnt_buf y = lnt_recur(p, "dplr", in);
    if (!o->use_output_gate) return lnt_out_proj(p, l, lnt_rmsnorm(p, y, "o_norm", l->norm_eps));
    return lnt_out_proj(p, l, lnt_gated_rmsnorm(p, y, lnt_linear(p, x, "g_proj", v_heads * value), "o_norm", l->norm_eps, LNT_SIGMOID));
}

const lnt_mixer lnt_mixer_comba = {
    .kind = {{"comba", "a decaying state with feedback: what a key of its own reads is erased", "Hu et al. 2025, arXiv 2506.02475", "dplr"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
