/* Grouped key-value heads for cores whose k and v have as many heads as q: head h of the result is head h / group of x ("... h d -> ... (h g) d").
 * Why there is a copy: docs/performance/decay.md. */
#include "ops/builder.h"

LNT_DEFINE_OP(repeat_heads)

static const lnt_op repeat_heads_op = {.name = "repeat_heads", .forward = repeat_heads_forward, .backward = repeat_heads_backward};

lnt_buf lnt_repeat_heads(lnt_program *p, lnt_buf x, int group)
{
    if (!lnt_ready(p, "repeat_heads", 1, &x)) return LNT_NO_BUF;
    if (group < 1) return lnt_program_fail(p, "repeat_heads: a group of %d heads, expected at least 1", group);
    if (group == 1) return x;
    return lnt_add_op(p, &repeat_heads_op, NULL, 1, &x, 0, NULL,
                      (lnt_out_spec){lnt_cols(p, x) * group, lnt_heads(p, x) * group, lnt_program_value(p, x)->f32});
}
