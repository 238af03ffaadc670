/* The row before (RWKV, arXiv 2305.13048): y_t = x_{t-1}, dx_t = dy_{t+1} inside each sequence; its state is the last row, float32 [cols]. */
#include "ops/builder.h"
#include "ops/row_chain.h"

LNT_DEFINE_OP(token_shift)

static int64_t shift_state(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    (void)capacity, (void)dtype; /* float32 under every policy */
    return lnt_in_cols(n, 0) * (int64_t)sizeof(float);
}

static int shift_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *t)
{
    (void)capacity, (void)dtype, (void)tokens;
    t[0] = (lnt_state_tensor){.name = "input", .dtype = LINNET_F32, .ndim = 1, .dim = {lnt_in_cols(n, 0)}};
    return 1;
}

static bool shift_row(const lnt_node *n, lnt_row_step *s)
{
    lnt_row_inputs(n, LNT_ROW_BEFORE, s);
    s->operand[s->operands++] = (lnt_row_operand){.from = LNT_ROW_STATE};
    return true;
}

const lnt_op lnt_token_shift_op = {
    .name = "token_shift", .state_size = shift_state, .state_tensors = shift_tensors, .forward = token_shift_forward,
    .backward = token_shift_backward, LNT_ROW_CHAIN(shift_row)};

lnt_buf lnt_token_shift(lnt_program *p, lnt_buf x)
{
    if (!lnt_ready(p, "token_shift", 1, &x) || !lnt_row_a_token(p, "token_shift", x)) return LNT_NO_BUF;
    return lnt_add_op(p, &lnt_token_shift_op, NULL, 1, &x, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), lnt_program_value(p, x)->f32});
}
