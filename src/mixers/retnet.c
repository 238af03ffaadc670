/* Retention (arXiv 2307.08621): S_t = gamma_h S_{t-1} + k_t v_t^T with gamma_h = 1 - 2^{-5-h}, rotary q and k, and a swish-gated per-head norm of the
 * output. */
#include <math.h>

#include "mixers/mixers.h"

lnt_buf lnt_mixer_retnet(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = lnt_with_heads(p, lnt_linear(p, x, "q_proj", c->heads * c->key_dim), c->heads);
    lnt_buf k = lnt_with_heads(p, lnt_linear(p, x, "k_proj", c->kv_heads * c->key_dim), c->kv_heads);
    lnt_buf v = lnt_with_heads(p, lnt_linear(p, x, "v_proj", c->kv_heads * c->value_dim), c->kv_heads);
    double *g = lnt_program_alloc(p, (size_t)c->heads * sizeof *g);
    for (int h = 0; g && h < c->heads; h++) g[h] = log1p(-exp2(-5.0 - h));
    q = lnt_rotary(p, q, c->rope_theta);
    k = lnt_repeat_heads(p, lnt_rotary(p, k, c->rope_theta), c->heads / c->kv_heads);
    v = lnt_repeat_heads(p, v, c->heads / c->kv_heads);
    lnt_buf o = lnt_recur(p, "retention", (lnt_recur_in){.q = q, .k = k, .v = v, .g_head = g, .scale = NAN});
    if (c->output_gate) {
        lnt_buf gate = lnt_linear(p, x, "g_proj", c->heads * c->value_dim);
        o = lnt_gated_rmsnorm(p, o, gate, "g_norm_swish_gate", c->norm_eps, LNT_SILU);
    } else
        o = lnt_rmsnorm(p, o, "g_norm", c->norm_eps);
    return lnt_out_proj(p, c, o);
}
