/* Rotary positions (arXiv 2104.09864), pairs (i, i + d/2) of each head:
 *
 *   (y1, y2) = (x1 c - x2 s, x1 s + x2 c),  c + i s = e^{i pos theta_i},  theta_i = base^(-2i/d)
 *
 * The position is absolute in its sequence; backward turns the other way. */
#include "ops/rotary.h"

#include <math.h>

#include "ops/builder.h"

LNT_DEFINE_OP(rotary)

static const lnt_op rotary_op = {.name = "rotary", .position = true, .forward = rotary_forward, .backward = rotary_backward};

lnt_buf lnt_rotary(lnt_program *p, lnt_buf x, double base)
{
    if (!lnt_ready(p, "rotary", 1, &x) || !lnt_row_a_token(p, "rotary", x)) return LNT_NO_BUF;
    const int64_t cols = lnt_cols(p, x), d = cols / lnt_heads(p, x);
    if (d % 2 || d > LNT_ROTARY_MAX)
        return lnt_program_fail(p, "rotary: a head has %lld columns, expected an even number up to %d", (long long)d, LNT_ROTARY_MAX);
    if (!(base > 0)) return lnt_program_fail(p, "rotary: base is %g, expected above 0", base);
    lnt_rotary_attr *a = lnt_program_alloc(p, sizeof *a);
    double *tables = lnt_program_alloc(p, (size_t)(3 * d / 2) * sizeof *tables);
    if (!a || !tables) return LNT_NO_BUF;
    *a = (lnt_rotary_attr){d / 2, tables, tables + d / 2, tables + d};
    for (int64_t i = 0; i < a->half; i++) {
        a->theta[i] = pow(base, -2.0 * (double)i / (double)d);
        a->co[i] = cos(a->theta[i]);
        a->si[i] = sin(a->theta[i]);
    }
    return lnt_add_op(p, &rotary_op, a, 1, &x, 0, NULL, (lnt_out_spec){cols, lnt_heads(p, x), lnt_program_value(p, x)->f32});
}
