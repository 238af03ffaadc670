/* DeltaNet (arXiv 2406.06484): S_t = S_{t-1} + k_t beta_t (v_t - S_{t-1}^T k_t)^T with normalised keys. */
#include <math.h>

#include "mixers/mixers.h"

/* q or k: projection, convolution, activation, norm. The convolution carries the activation only when it is SiLU. */
static lnt_buf query_or_key(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, const char *name)
{
    bool silu = c->qk_activation == LNT_SILU;
    lnt_buf y = lnt_project(p, c, x, name, c->heads, c->key_dim, silu ? LNT_SILU : LNT_IDENTITY);
    if (!silu && c->qk_activation != LNT_IDENTITY) y = lnt_activation(p, y, c->qk_activation, 1, false);
    return c->qk_sum_norm ? lnt_sumnorm(p, y, 0) : lnt_l2norm(p, y, 1e-6);
}

/* use_beta = false (write strength 1) is refused by the configuration. */
lnt_buf lnt_mixer_delta_net(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = query_or_key(p, c, x, "q"), k = query_or_key(p, c, x, "k");
    lnt_buf v = lnt_project(p, c, x, "v", c->heads, c->value_dim, LNT_SILU);
    lnt_buf beta = lnt_write_strength(p, c, x, c->heads);
    lnt_buf o = lnt_recur(p, "delta_rule", (lnt_recur_in){.q = q, .k = k, .v = v, .beta = beta, .scale = NAN});
    if (c->output_gate)
        o = lnt_gated_rmsnorm(p, o, lnt_linear(p, x, "g_proj", c->heads * c->value_dim), "o_norm", c->norm_eps, LNT_SILU);
    else
        o = lnt_rmsnorm(p, o, "o_norm", c->norm_eps);
    return lnt_out_proj(p, c, o);
}
