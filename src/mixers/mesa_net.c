/* MesaNet (arXiv 2506.05233): the read-out of the linear map that fits all tokens so far best, o_t = G_t^T (H_t + Lambda)^-1 q_t, with
 * beta = sigmoid(b_proj x), gamma = sigmoid(a_proj x), or tanh of it, Lambda = lambda_lower_bound + softplus(lambda_params). q and k have a
 * convolution and SiLU, v has neither. The paper's layer, in its own backbone, is equal_backbone with the rule mesa, which also ties gamma to beta;
 * gamma_cap does so here (ops/gates.c). */
#include "mixers/mesa_rule.h"

typedef struct {
    lnt_mesa_choice mesa; /* first */
    int64_t num_heads, head_dim, conv_size;
    double gamma_cap;
    bool use_output_gate, use_forget_gate;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "heads"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 128, "columns of a key and of a value"),
    LNT_SWITCH(options, use_output_gate, false, "outputs times silu(g_proj x) behind their norm"),
    LNT_SWITCH(options, use_forget_gate, true, "gamma = sigmoid(a_proj x); without: 1"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution of queries and keys"),
    LNT_MAYBE_REAL(options, gamma_cap, 0, 1, 0, "gamma times 1 - (1 - gamma_cap) beta^2; null: not"),
    LNT_MESA_KEYS(NULL),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->gamma_cap > 0 && !o->use_forget_gate)
        return lnt_fail(c, LINNET_EINVAL, "%sgamma_cap is %g, but there is no gamma: use_forget_gate is false", l->where, o->gamma_cap);
    if (o->mesa.allow_neg_gamma && !o->use_forget_gate)
        return lnt_fail(c, LINNET_EINVAL, "%sallow_neg_gamma is true, but there is no gamma: use_forget_gate is false", l->where);
    return lnt_check_mesa(c, l, &o->mesa);
}

linnet_status lnt_check_mesa(lnt_ctx *c, const lnt_layer *l, const lnt_mesa_choice *o)
{
    const char *with = !o->allow_neg_gamma                          ? NULL
                       : o->mesa_window                             ? "mesa_window"
                       : o->cg_solver == LNT_CG_FLASH               ? "cg_solver = flash"
                       : o->cg_solver == LNT_CG_SHERMAN_MORRISON    ? "cg_solver = sherman_morrison"
                       : o->cg_gradient == LNT_CG_UNROLLED          ? "cg_gradient = unrolled"
                                                                    : NULL;
    if (with) return lnt_fail(c, LINNET_EINVAL, "%sallow_neg_gamma is true, which does not go with %s", l->where, with);
    if (o->min_cg_step_training > o->max_cg_step_training)
        return lnt_fail(c, LINNET_EINVAL, "%smin_cg_step_training is %lld, expected at most max_cg_step_training = %lld", l->where,
                        (long long)o->min_cg_step_training, (long long)o->max_cg_step_training);
    if (o->mesa_window && o->cg_solver == LNT_CG_FLASH)
        return lnt_fail(c, LINNET_EINVAL, "%smesa_window is %lld, but cg_solver = flash goes by chunks from the first token on", l->where,
                        (long long)o->mesa_window);
    if (o->mesa_window && o->cg_solver == LNT_CG_SHERMAN_MORRISON)
        return lnt_fail(c, LINNET_EINVAL, "%smesa_window is %lld, but cg_solver = sherman_morrison would have to subtract old tokens", l->where,
                        (long long)o->mesa_window);
    if (o->mesa_window && o->cg_gradient == LNT_CG_UNROLLED)
        return lnt_fail(c, LINNET_EINVAL, "%smesa_window is %lld, but the unrolled cg_gradient knows no window", l->where, (long long)o->mesa_window);
    if (o->cg_gradient != LNT_CG_UNROLLED) return LINNET_OK;
    if (o->cg_solver == LNT_CG_FLASH)
        return lnt_fail(c, LINNET_EINVAL, "%scg_gradient is unrolled, but the steps of cg_solver = flash round to float16", l->where);
    if (o->cg_solver == LNT_CG_SHERMAN_MORRISON)
        return lnt_fail(c, LINNET_EINVAL, "%scg_gradient is unrolled, but cg_solver = sherman_morrison takes no steps", l->where);
    if (o->max_cg_step_training > 1024)
        return lnt_fail(c, LINNET_EINVAL, "%smax_cg_step_training is %lld, expected at most 1024 with cg_gradient = unrolled", l->where,
                        (long long)o->max_cg_step_training);
    return LINNET_OK;
}

lnt_buf lnt_mesa_gate(lnt_program *p, const lnt_mesa_choice *o, lnt_buf x, int64_t heads, lnt_buf *sign)
{
    lnt_buf a = lnt_linear_bias(p, x, "a_proj", heads);
    *sign = LNT_NO_BUF;
    if (!o->allow_neg_gamma) return lnt_activation(p, a, LNT_LOG_SIGMOID, 1, true);
    *sign = lnt_activation(p, a, LNT_TANH, 1, true);
    return lnt_activation(p, a, LNT_SIGMOID, 0, true);
}

lnt_buf lnt_mesa_rule(lnt_program *p, const lnt_mesa_choice *o, lnt_buf q, lnt_buf k, lnt_buf v, lnt_buf g, lnt_buf sign, lnt_buf beta)
{
    /* Lambda starts at 1, or where its lower bound leaves no room (the parity experiment: 50 over a bound of 49), at the bound and 1 */
    double lower = o->lambda_lower_bound, start = lower < 1 ? 1 : lower + 1;
    lnt_mesa_options solve = {.lambda = "lambda_params", .lower = lower, .start = start, .tolerance = o->cg_tolerance,
                              .max_steps = (int32_t)o->max_cg_step_training, .max_steps_decoding = (int32_t)o->max_cg_step_decoding,
                              .window = o->mesa_window, .sign = sign, .guess = o->cg_guess, .solver = o->cg_solver, .gradient = o->cg_gradient,
                              .min_steps = (int32_t)o->min_cg_step_training};
    return lnt_mesa(p, q, k, v, g, beta, &solve);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_buf q = lnt_l2norm(p, lnt_project(p, x, "q", o->num_heads, o->head_dim, o->conv_size, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, x, "k", o->num_heads, o->head_dim, o->conv_size, LNT_SILU), 1e-6);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, o->head_dim);
    lnt_buf beta = lnt_activation(p, lnt_linear_bias(p, x, "b_proj", o->num_heads), LNT_SIGMOID, 1, true);
    lnt_buf sign = LNT_NO_BUF;
    lnt_buf g = o->use_forget_gate ? lnt_mesa_gate(p, &o->mesa, x, o->num_heads, &sign) : lnt_activation(p, beta, LNT_SIGMOID, 0, true);
    if (o->gamma_cap > 0) g = lnt_gamma_cap(p, g, beta, o->gamma_cap);
    lnt_buf y = lnt_mesa_rule(p, &o->mesa, q, k, v, g, sign, beta);
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_output_gate, "o_norm", "o_norm"));
}

static const lnt_windowed windowed[] = {{NULL, "mesa_window"}, {0}};

const lnt_mixer lnt_mixer_mesa_net = {
    .kind = {{"mesa_net", "the optimal linear map for all tokens so far, solved for every query by conjugate gradients",
              "von Oswald et al. 2025, arXiv 2506.05233", "mesa"},
             LNT_OPTIONS(options, keys), check},
    .windowed = windowed,
    .build = build,
};
