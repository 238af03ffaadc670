/* Gated linear attention with a scalar decay for each head (arXiv 2312.06635 with one gate a head; Gated Retention of arXiv 2405.05254):
 * S_t = e^{g_t} S_{t-1} + k_t v_t^T, g_t = logsigmoid(W x_t + b) / 16. */
#include <math.h>

#include "mixers/mixers.h"

lnt_buf lnt_mixer_simple_gla(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = lnt_project(p, c, x, "q", c->heads, c->key_dim, c->short_conv ? LNT_SILU : LNT_IDENTITY);
    lnt_buf k = lnt_project(p, c, x, "k", c->kv_heads, c->key_dim, c->short_conv ? LNT_SILU : LNT_IDENTITY);
    lnt_buf v = lnt_project(p, c, x, "v", c->kv_heads, c->value_dim, c->short_conv ? LNT_SILU : LNT_IDENTITY);
    k = lnt_repeat_heads(p, k, c->heads / c->kv_heads);
    v = lnt_repeat_heads(p, v, c->heads / c->kv_heads);
    lnt_buf g = lnt_activation(p, lnt_linear_bias(p, x, "gk_proj", c->heads), LNT_LOG_SIGMOID, 1.0 / 16, true);
    lnt_buf o = lnt_recur(p, "simple_gla", (lnt_recur_in){.q = q, .k = k, .v = v, .g = g, .scale = NAN});
    if (c->output_gate) {
        lnt_buf gate = lnt_linear(p, x, "g_proj", c->heads * c->value_dim);
        o = lnt_gated_rmsnorm(p, o, gate, "g_norm_swish_gate", c->norm_eps, LNT_SILU);
    } else
        o = lnt_rmsnorm(p, o, "g_norm", c->norm_eps);
    return lnt_out_proj(p, c, o);
}
