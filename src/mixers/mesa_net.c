/* MesaNet (arXiv 2506.05233): the read-out of the linear map that fits all tokens so far best, o_t = G_t^T (H_t + Lambda)^-1 q_t, with
 * beta = sigmoid(b_proj x), gamma = sigmoid(a_proj x), Lambda = lambda_lower_bound + softplus(lambda_params). q and k have a convolution and SiLU, v
 * has neither. This is flash-linear-attention's layer; the paper's, in its own backbone, is equal_backbone with the rule mesa, which also ties gamma
 * to beta; gamma_cap does so here (ops/gates.c). */
#include "mixers/mixers.h"

lnt_buf lnt_mesa_rule(lnt_program *p, const lnt_mixer_config *c, lnt_buf q, lnt_buf k, lnt_buf v, lnt_buf g, lnt_buf beta)
{
    /* Lambda starts at 1, or where its lower bound leaves no room (the parity experiment: 50 over a bound of 49), at the bound and 1 */
    double lower = c->lambda_lower_bound, start = lower < 1 ? 1 : lower + 1;
    lnt_mesa_options solve = {.lambda = "lambda_params", .lower = lower, .start = start, .tolerance = c->cg_tolerance, .max_steps = c->cg_steps,
                              .max_steps_decoding = c->cg_steps_decoding, .guess = c->cg_guess, .solver = c->cg_solver, .gradient = c->cg_gradient,
                              .min_steps = c->cg_steps_min};
    return lnt_recur(p, "mesa", (lnt_recur_in){.q = q, .k = k, .v = v, .g = g, .beta = beta, .scale = 1, .mesa = &solve});
}

lnt_buf lnt_mixer_mesa_net(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_mixer_config conv = *c;
    conv.short_conv = true;
    lnt_buf q = lnt_l2norm(p, lnt_project(p, &conv, x, "q", c->heads, c->key_dim, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, &conv, x, "k", c->heads, c->key_dim, LNT_SILU), 1e-6);
    lnt_buf v = lnt_with_heads(p, lnt_linear(p, x, "v_proj", c->heads * c->value_dim), c->heads);
    lnt_buf beta = lnt_activation(p, lnt_linear_bias(p, x, "b_proj", c->heads), LNT_SIGMOID, 1, true);
    lnt_buf g = lnt_activation(p, lnt_linear_bias(p, x, "a_proj", c->heads), LNT_LOG_SIGMOID, 1, true);
    if (c->gamma_cap > 0) g = lnt_gamma_cap(p, g, beta, c->gamma_cap);
    lnt_buf o = lnt_mesa_rule(p, c, q, k, v, g, beta);
    if (c->output_gate)
        o = lnt_gated_rmsnorm(p, o, lnt_linear(p, x, "g_proj", c->heads * c->value_dim), "o_norm", c->norm_eps, LNT_SILU);
    else
        o = lnt_rmsnorm(p, o, "o_norm", c->norm_eps);
    return lnt_out_proj(p, c, o);
}
