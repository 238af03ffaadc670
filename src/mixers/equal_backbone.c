/* The layer of the MesaNet paper's comparison (arXiv 2506.05233, table 3 and appendices D, F.2): q, k, v of the same size for every rule; q and k
 * convolved (window 4), SiLU, L2 norm; sigmoid gates for forgetting and writing, one number a head; no read-out scale; RMSNorm of each head's output.
 * Only the recurrence changes.
 *
 * The softmax rows use rotary positions on the plain projections and the scale K^-1/2 instead: the paper does not say how its attention knows
 * positions, and unit-norm q and k without a temperature would leave its softmax nearly uniform. */
#include <math.h>
#include <string.h>

#include "mixers/mixers.h"

static lnt_buf softmax_rule(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = lnt_rotary(p, lnt_with_heads(p, lnt_linear(p, x, "q_proj", c->heads * c->key_dim), c->heads), c->rope_theta);
    lnt_buf k = lnt_rotary(p, lnt_with_heads(p, lnt_linear(p, x, "k_proj", c->heads * c->key_dim), c->heads), c->rope_theta);
    lnt_buf v = lnt_with_heads(p, lnt_linear(p, x, "v_proj", c->heads * c->value_dim), c->heads);
    return lnt_recur(p, "attention", (lnt_recur_in){.q = q, .k = k, .v = v, .scale = NAN, .window = c->window});
}

/* log gamma = logsigmoid(a_proj x), with the cap of appendix F when it is set; mesa has the paper's unless another is (1: none). */
static lnt_buf forget_gate(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, lnt_buf beta)
{
    lnt_buf g = lnt_activation(p, lnt_linear_bias(p, x, "a_proj", c->heads), LNT_LOG_SIGMOID, 1, true);
    double cap = c->gamma_cap > 0 ? c->gamma_cap : !strcmp(c->rule, "mesa") ? 0.9975 : 0;
    return cap > 0 && beta.id ? lnt_gamma_cap(p, g, beta, cap) : g;
}

static lnt_buf linear_rule(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_mixer_config conv = *c;
    conv.short_conv = true;
    lnt_buf q = lnt_l2norm(p, lnt_project(p, &conv, x, "q", c->heads, c->key_dim, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, &conv, x, "k", c->heads, c->key_dim, LNT_SILU), 1e-6);
    lnt_buf v = lnt_with_heads(p, lnt_linear(p, x, "v_proj", c->heads * c->value_dim), c->heads);
    bool mesa = !strcmp(c->rule, "mesa");
    bool writes = mesa || !strcmp(c->rule, "gla") || !strcmp(c->rule, "delta_net") || !strcmp(c->rule, "gated_deltanet");
    bool forgets = mesa || !strcmp(c->rule, "gla") || !strcmp(c->rule, "simple_gla") || !strcmp(c->rule, "gated_deltanet");
    bool delta = !strcmp(c->rule, "delta_net") || !strcmp(c->rule, "gated_deltanet");
    lnt_buf beta = writes ? lnt_activation(p, lnt_linear_bias(p, x, "b_proj", c->heads), LNT_SIGMOID, 1, true) : LNT_NO_BUF;
    lnt_buf g = forgets ? forget_gate(p, c, x, beta) : LNT_NO_BUF;
    if (mesa) return lnt_mesa_rule(p, c, q, k, v, g, beta);
    if (!delta && writes) v = lnt_mul_buf(p, v, beta);
    const char *op = delta ? (forgets ? "gated_delta_rule" : "delta_rule") : forgets ? "simple_gla" : "linear_attn";
    return lnt_recur(p, op, (lnt_recur_in){.q = q, .k = k, .v = v, .g = g, .beta = delta ? beta : LNT_NO_BUF, .scale = 1});
}

lnt_buf lnt_mixer_equal_backbone(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf o = strcmp(c->rule, "attention") ? linear_rule(p, c, x) : softmax_rule(p, c, x);
    return lnt_out_proj(p, c, lnt_rmsnorm(p, o, "o_norm", c->norm_eps));
}
