/* Natural-log decays, float32 under every policy.
 *
 *   decay_gate  g = -exp(A_log) softplus(x + dt_bias)      Mamba-2 (arXiv 2405.21060), Gated DeltaNet (arXiv 2412.06464)
 *   gamma_cap   g' = g + log(1 - (1-cap) beta^2)           MesaNet (arXiv 2506.05233): gamma <- gamma (1 - (1-cap) beta^2) */
#include "ops/gates.h"
#include "ops/builder.h"

LNT_DEFINE_OP(decay_gate)
LNT_DEFINE_OP(gamma_cap)

/* Sums of dA_log and of ddt_bias, [2, cols] for each block of rows. */
static size_t decay_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return backward ? lnt_sum_bytes(s, s->tokens, 2 * lnt_in_cols(n, 0)) : 0;
}

static const lnt_op decay_gate_op = {.name = "decay_gate", .backward_needs = LNT_NEEDS_IN0, .workspace = decay_workspace,
                                     .forward = decay_gate_forward, .backward = decay_gate_backward};
static const lnt_op gamma_cap_op = {
    .name = "gamma_cap", .backward_needs = LNT_NEEDS_IN1, .forward = gamma_cap_forward, .backward = gamma_cap_backward};

lnt_buf lnt_decay_gate(lnt_program *p, lnt_buf x)
{
    if (!lnt_ready(p, "decay_gate", 1, &x)) return LNT_NO_BUF;
    const int64_t cols = lnt_cols(p, x);
    /* A ~ U(0, 16), step log-uniform in [0.001, 0.1]: the initialisation of both papers' code. */
    const int param[2] = {lnt_add_param(p, "A_log", 1, &cols, (lnt_init){LNT_INIT_A_LOG, 0, 16}, false, false),
                          lnt_add_param(p, "dt_bias", 1, &cols, (lnt_init){LNT_INIT_DT_BIAS, 1e-3, 0.1}, false, false)};
    return lnt_add_op(p, &decay_gate_op, NULL, 1, &x, 2, param, (lnt_out_spec){cols, lnt_heads(p, x), true});
}

lnt_buf lnt_gamma_cap(lnt_program *p, lnt_buf g, lnt_buf beta, double cap)
{
    const lnt_buf in[2] = {g, beta};
    if (!lnt_ready(p, "gamma_cap", 2, in)) return LNT_NO_BUF;
    const lnt_gamma_cap_attr a = {cap};
    if (!(cap > 0 && cap <= 1)) return lnt_program_fail(p, "gamma_cap: cap is %g, expected above 0 and at most 1", cap);
    if (lnt_cols(p, g) != lnt_cols(p, beta))
        return lnt_program_fail(p, "gamma_cap: g has %lld columns and beta %lld", (long long)lnt_cols(p, g), (long long)lnt_cols(p, beta));
    return lnt_add_op(p, &gamma_cap_op, lnt_attr(p, &a, sizeof a), 2, in, 0, NULL, (lnt_out_spec){lnt_cols(p, g), lnt_heads(p, g), true});
}
