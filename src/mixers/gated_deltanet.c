/* Gated DeltaNet (arXiv 2412.06464): the delta rule on a decayed state, S~ = e^{g_t} S_{t-1}, S_t = S~ + k_t beta_t (v_t - S~^T k_t)^T,
 * g_t = -exp(A_log) softplus(a_proj x_t + dt_bias). Value heads may outnumber query-key heads (each of those then serves several states). */
#include <math.h>

#include "mixers/mixers.h"

lnt_buf lnt_mixer_gated_deltanet(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = lnt_l2norm(p, lnt_project(p, c, x, "q", c->heads, c->key_dim, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, c, x, "k", c->heads, c->key_dim, LNT_SILU), 1e-6);
    lnt_buf v = lnt_project(p, c, x, "v", c->v_heads, c->value_dim, LNT_SILU);
    lnt_buf g = lnt_decay_gate(p, lnt_linear(p, x, "a_proj", c->v_heads));
    lnt_buf beta = lnt_write_strength(p, c, x, c->v_heads);
    lnt_buf o = lnt_recur(p, "gated_delta_rule", (lnt_recur_in){.q = q, .k = k, .v = v, .g = g, .beta = beta, .scale = NAN});
    if (c->output_gate)
        o = lnt_gated_rmsnorm(p, o, lnt_linear(p, x, "g_proj", c->v_heads * c->value_dim), "o_norm", c->norm_eps, LNT_SILU);
    else
        o = lnt_rmsnorm(p, o, "o_norm", c->norm_eps);
    return lnt_out_proj(p, c, o);
}
