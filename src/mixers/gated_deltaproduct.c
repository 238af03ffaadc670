/* DeltaProduct, with a decay or without (arXiv 2502.10297): n delta rules a token, each with a key, a value and a write strength of its own, so that
 * the state's transition is a product of n generalised Householder matrices. With S_{t,0} = e^{g_t} S_{t-1}, g_t as in Gated DeltaNet:
 *   S_{t,j} = S_{t,j-1} + k_{t,j} beta_{t,j} (v_{t,j} - S_{t,j-1}^T k_{t,j})^T,  j = 1 .. n,   S_t = S_{t,n},   o_t = S_t^T q_t K^{-1/2}
 * Projections and convolutions make the n writes of a token side by side. Value heads may outnumber query-key heads. */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_v_heads, head_dim, conv_size, num_householder;
    double expand_v;
    bool use_output_gate, use_short_conv, use_forget_gate, allow_neg_eigval;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 6, "heads of queries and keys"),
    LNT_MAYBE_INT(options, num_v_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of values, a multiple of num_heads; null: num_heads"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 256, "columns of a key"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 2, "columns of a value, as a share of head_dim"),
    LNT_INT(options, num_householder, 1, 64, 1, "writes of a token"),
    LNT_SWITCH(options, use_forget_gate, false, "the state decays before a token's first write"),
    LNT_SWITCH(options, use_output_gate, true, "outputs times silu(g_proj x) behind their norm"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, allow_neg_eigval, false, "write strengths up to 2 in place of 1: the state may turn around"),
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
    const int32_t n = (int32_t)o->num_householder;
    lnt_buf q = lnt_l2norm(p, lnt_project(p, x, "q", o->num_heads, o->head_dim, conv, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, x, "k", n * o->num_heads, o->head_dim, conv, LNT_SILU), 1e-6);
    lnt_buf v = lnt_project(p, x, "v", n * v_heads, llround((double)o->head_dim * o->expand_v), conv, LNT_SILU);
    lnt_buf g = o->use_forget_gate ? lnt_decay_gate(p, lnt_linear(p, x, "a_proj", v_heads)) : LNT_NO_BUF;
    lnt_buf beta = lnt_write_strength(p, x, n * v_heads, o->allow_neg_eigval);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", lnt_split_rows(p, k, n)}, {"v", lnt_split_rows(p, v, n)}, {"g", g},
                                        {"beta", lnt_split_rows(p, beta, n)}}};
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, lnt_recur(p, "gated_delta_product", in), o->use_output_gate, "o_norm", "o_norm"));
}

const lnt_mixer lnt_mixer_gated_deltaproduct = {
    .kind = {{"gated_deltaproduct", "several delta rules a token: a transition of several reflections", "Siems et al. 2025, arXiv 2502.10297",
              "gated_delta_product"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
