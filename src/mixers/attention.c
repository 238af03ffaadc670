/* Softmax attention (arXiv 1706.03762) as in today's transformers: rotary positions, grouped key-value heads, optional window, optional per-head
 * RMSNorm of q and k (its epsilon is 1e-5 whatever norm_eps is). */
#include <math.h>

#include "mixers/mixers.h"

static lnt_buf qkv(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, const char *name, int32_t heads)
{
    int64_t out = heads * c->key_dim;
    return lnt_with_heads(p, c->qkv_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out), heads);
}

lnt_buf lnt_mixer_attention(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = qkv(p, c, x, "q_proj", c->heads), k = qkv(p, c, x, "k_proj", c->kv_heads), v = qkv(p, c, x, "v_proj", c->kv_heads);
    if (c->qk_norm) {
        q = lnt_rmsnorm(p, q, "q_norm", 1e-5);
        k = lnt_rmsnorm(p, k, "k_norm", 1e-5);
    }
    q = lnt_rotary(p, q, c->rope_theta);
    k = lnt_rotary(p, k, c->rope_theta);
    return lnt_out_proj(p, c, lnt_recur(p, "attention", (lnt_recur_in){.q = q, .k = k, .v = v, .scale = NAN, .window = c->window}));
}
