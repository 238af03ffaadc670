/* Rotary positions (arXiv 2104.09864), pairs (i, i + d/2) of each head:
 *
 *   (y1, y2) = (x1 c - x2 s, x1 s + x2 c),  c + i s = e^{i pos theta_i},  theta_i = base^(-2i/d)
 *
 * The position is absolute in its sequence, or modulo a period; backward turns the other way. theta may be scaled (arXiv 2309.00071), and turn the
 * first columns of a head alone, the others staying as they are. */
#include "ops/rotary.h"

#include <math.h>

#include "ops/builder.h"

LNT_DEFINE_OP(rotary)

static void rotary_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_rotary_attr *a = n->attr;
    const int at = a->rest ? lnt_format(text, size, "%lld of %lld columns", (long long)(2 * a->half), (long long)(2 * a->half + a->rest)) : 0;
    if (a->scale != 1) lnt_format(text + at, size - (size_t)at, "%sscale %g", at ? ", " : "", a->scale);
}

static const lnt_op rotary_op = {
    .name = "rotary", .position = true, .forward = rotary_forward, .backward = rotary_backward, .describe = rotary_describe};

static lnt_buf rotary(lnt_program *p, lnt_buf x, int64_t half, const double *theta, double scale, int64_t period)
{
    if (!lnt_ready(p, "rotary", 1, &x) || !lnt_row_a_token(p, "rotary", x)) return LNT_NO_BUF;
    const int64_t cols = lnt_cols(p, x), d = cols / lnt_heads(p, x);
    if (half < 1 || 2 * half > d || d > LNT_ROTARY_MAX)
        return lnt_program_fail(p, "rotary: %lld pairs in a head of %lld columns, expected an even number of columns up to %d", (long long)half,
                                (long long)d, LNT_ROTARY_MAX);
    lnt_rotary_attr *a = lnt_program_alloc(p, sizeof *a);
    double *tables = lnt_program_alloc(p, lnt_bytes(lnt_bytes((size_t)half, 3), sizeof *tables));
    if (!a || !tables) return LNT_NO_BUF;
    *a = (lnt_rotary_attr){half, d - 2 * half, period, scale, true, tables, tables + half, tables + 2 * half};
    for (int64_t i = 0; i < half; i++) {
        a->theta[i] = theta[i];
        a->co[i] = cos(theta[i]);
        a->si[i] = sin(theta[i]);
        a->even &= i == 0 ? theta[0] == 1 : fabs(theta[i] - pow(theta[1], (double)i)) <= 1e-12 * theta[i];
    }
    return lnt_add_op(p, &rotary_op, a, 1, &x, 0, NULL, (lnt_out_spec){cols, lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

lnt_buf lnt_rotary_by(lnt_program *p, lnt_buf x, int64_t half, const double *theta, double scale) { return rotary(p, x, half, theta, scale, 0); }

lnt_buf lnt_rotary_within(lnt_program *p, lnt_buf x, double base, int64_t period)
{
    double theta[LNT_ROTARY_MAX / 2];
    if (!lnt_ready(p, "rotary", 1, &x)) return LNT_NO_BUF;
    const int64_t d = lnt_cols(p, x) / lnt_heads(p, x);
    if (d % 2 || d > LNT_ROTARY_MAX)
        return lnt_program_fail(p, "rotary: a head has %lld columns, expected an even number up to %d", (long long)d, LNT_ROTARY_MAX);
    if (!(base > 0)) return lnt_program_fail(p, "rotary: base is %g, expected above 0", base);
    for (int64_t i = 0; i < d / 2; i++) theta[i] = pow(base, -2.0 * (double)i / (double)d);
    return rotary(p, x, d / 2, theta, 1, period);
}

lnt_buf lnt_rotary(lnt_program *p, lnt_buf x, double base) { return lnt_rotary_within(p, x, base, 0); }
