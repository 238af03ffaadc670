/* Natural-log decays, float32 under every policy.
 *
 *   decay_gate  g = -exp(A_log) softplus(x + dt_bias)      Mamba-2 (arXiv 2405.21060), Gated DeltaNet (arXiv 2412.06464)
 *               of every column of a head: KDA (arXiv 2510.26692); with a lower bound g = lower sigmoid(exp(A_log) (x + dt_bias))
 *   bounded_decay  g = log(b + (1 - b) sigmoid(x))       HGRN (arXiv 2311.04823), HGRN2 (arXiv 2404.07904)
 *   decay_bounds   b_l = sum_{i=1..l} softmax(p)_i       of all layers l; softmax over the layers
 *   gamma_cap   g' = g + log(1 - (1-cap) beta^2)           MesaNet (arXiv 2506.05233): gamma <- gamma (1 - (1-cap) beta^2) */
#include "ops/gates.h"
#include "ops/builder.h"
#include "ops/row_chain.h"

LNT_DEFINE_OP(decay_gate)
LNT_DEFINE_OP(bounded_decay)
LNT_DEFINE_OP(decay_bounds)
LNT_DEFINE_OP(gamma_cap)

/* exp(A_log) of every column, then sums of dA_log and of ddt_bias, [2, cols] for each block of rows. */
static size_t decay_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const int64_t cols = lnt_in_cols(n, 0);
    return (size_t)cols * sizeof(float) + (backward ? lnt_sum_bytes(s, lnt_in_rows(n, 0, s), 2 * cols) : 0);
}

static void decay_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_decay_gate_attr *a = n->attr;
    if (a->lower < 0) lnt_format(text, size, "above %g", a->lower);
}

static bool decay_row(const lnt_node *n, lnt_row_step *s)
{
    const lnt_decay_gate_attr *a = n->attr;
    lnt_row_inputs(n, LNT_ROW_DECAY, s);
    s->number[0] = (float)a->lower, s->head = a->d;
    s->operands = 3;
    s->operand[1] = (lnt_row_operand){.from = LNT_ROW_PARAM, .spread = a->d > 1 ? LNT_ROW_HEAD : LNT_ROW_EACH};
    s->operand[2] = (lnt_row_operand){.from = LNT_ROW_PARAM + 1};
    return true;
}
static bool cap_row(const lnt_node *n, lnt_row_step *s)
{
    lnt_row_inputs(n, LNT_ROW_CAP, s);
    s->number[0] = (float)(1.0 - ((const lnt_gamma_cap_attr *)n->attr)->cap);
    return true;
}

static const lnt_op decay_gate_op = {.name = "decay_gate", .backward_needs = LNT_NEEDS_IN0, .workspace = decay_workspace,
                                     .forward = decay_gate_forward, .backward = decay_gate_backward, .describe = decay_describe,
                                     LNT_ROW_CHAIN(decay_row)};
/* Sums of dbound. */
static size_t bounded_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return backward ? lnt_sum_bytes(s, lnt_in_rows(n, 0, s), lnt_in_cols(n, 0)) : 0;
}
static const lnt_op bounded_decay_op = {.name = "bounded_decay", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1,
                                        .strided = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .workspace = bounded_workspace,
                                        .forward = bounded_decay_forward, .backward = bounded_decay_backward};
static const lnt_op decay_bounds_op = {
    .name = "decay_bounds", .backward_needs = LNT_NEEDS_IN0, .forward = decay_bounds_forward, .backward = decay_bounds_backward};
static const lnt_op gamma_cap_op = {
    .name = "gamma_cap", .backward_needs = LNT_NEEDS_IN1, .forward = gamma_cap_forward, .backward = gamma_cap_backward,
    LNT_ROW_CHAIN(cap_row)};

/* A ~ U(low, 16), step log-uniform in [0.001, 0.1]: the initialisation of the papers' code. */
static lnt_buf decay_gate(lnt_program *p, lnt_buf x, int64_t d, double lower, double low)
{
    const lnt_decay_gate_attr a = {d, lower};
    const int64_t cols = lnt_cols(p, x), heads = cols / d;
    const lnt_init draw = lower < 0 ? (lnt_init){LNT_INIT_CONST, 0, 0} : (lnt_init){LNT_INIT_A_LOG, low, 16};
    const int param[2] = {lnt_add_param(p, "A_log", 1, &heads, draw, false, false),
                          lnt_add_param(p, "dt_bias", 1, &cols, (lnt_init){LNT_INIT_DT_BIAS, 1e-3, 0.1}, false, false)};
    return lnt_add_op(p, &decay_gate_op, lnt_attr(p, &a, sizeof a), 1, &x, 2, param, (lnt_out_spec){cols, lnt_heads(p, x), true});
}

lnt_buf lnt_decay_gate(lnt_program *p, lnt_buf x) { return lnt_ready(p, "decay_gate", 1, &x) ? decay_gate(p, x, 1, 0, 0) : LNT_NO_BUF; }

lnt_buf lnt_vector_decay_gate(lnt_program *p, lnt_buf x, double lower)
{
    if (!lnt_ready(p, "decay_gate", 1, &x)) return LNT_NO_BUF;
    if (!(lower <= 0)) return lnt_program_fail(p, "decay_gate: the lower bound of a decay's logarithm is %g, expected at most 0", lower);
    return decay_gate(p, x, lnt_cols(p, x) / lnt_heads(p, x), lower, 1);
}

lnt_buf lnt_bounded_decay(lnt_program *p, lnt_buf x, lnt_buf bound)
{
    const lnt_buf in[2] = {x, bound};
    if (!lnt_ready(p, "bounded_decay", 2, in)) return LNT_NO_BUF;
    const lnt_value *b = lnt_program_value(p, bound);
    if (b->rows != 1 || !b->f32 || b->cols != lnt_cols(p, x))
        return lnt_program_fail(p, "bounded_decay: the bound has %lld columns, expected one fixed row of %lld", (long long)b->cols,
                                (long long)lnt_cols(p, x));
    return lnt_add_op(p, &bounded_decay_op, NULL, 2, in, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), true});
}

lnt_buf lnt_decay_bounds(lnt_program *p, const char *name, int layers, int64_t cols)
{
    const lnt_buf x = lnt_row_param(p, name, layers, cols, (lnt_init){LNT_INIT_CONST, 0, 0});
    if (!lnt_ready(p, "decay_bounds", 1, &x)) return LNT_NO_BUF;
    return lnt_add_op(p, &decay_bounds_op, NULL, 1, &x, 0, NULL, (lnt_out_spec){layers * cols, layers, true});
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
