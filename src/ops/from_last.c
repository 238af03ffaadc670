/* Every row of a sequence from its last one, told apart by sines of the place (arXiv 1706.03762, section 3.5), h = cols / 2 waves:
 *
 *   y_t = x_{T-1} + s_t,  s_t = [sin(t w_i), cos(t w_i)],  w_i = 10000^(-i / (h-1)),  an odd last column 0;   dx_{T-1} = sum over t of dy_t
 *
 * A row depends on one behind it: there is no state. */
#include "ops/builder.h"

LNT_DEFINE_OP(from_last)

/* float32 [places, cols]: the sines, on a CPU. */
static size_t from_last_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const bool cpu = !s->device || s->device->kind == LNT_DEVICE_CPU;
    return backward || !cpu ? 0 : lnt_bytes((size_t)(s->tokens * lnt_in_cols(n, 0)), sizeof(float));
}

static const lnt_op from_last_op = {
    .name = "from_last", .workspace = from_last_workspace, .forward = from_last_forward, .backward = from_last_backward};

lnt_buf lnt_from_last(lnt_program *p, lnt_buf x)
{
    if (!lnt_ready(p, "from_last", 1, &x) || !lnt_row_a_token(p, "from_last", x)) return LNT_NO_BUF;
    return lnt_add_op(p, &from_last_op, NULL, 1, &x, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), lnt_program_value(p, x)->f32});
}
