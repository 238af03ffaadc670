/* What several mixers share. */
#include <math.h>
#include <stdio.h>

#include "mixers/mixers.h"

linnet_status lnt_check_divides(lnt_ctx *c, const lnt_layer *l, const char *by, int64_t b, const char *what, int64_t w)
{
    if (b > 0 && w % b == 0) return LINNET_OK;
    int64_t less = b < w ? b : w, more = b;
    while (less > 1 && w % less) less--;
    while (more < w && w % more) more++;
    lnt_fail(c, LINNET_EINVAL, "%s%s is %lld, expected a divisor of %s = %lld", l->where, by, (long long)b, what, (long long)w);
    if (less < 1) return LINNET_EINVAL;
    return more > w ? lnt_hint(c, "The nearest divisor is %lld.", (long long)less)
                    : lnt_hint(c, "The nearest divisors are %lld and %lld.", (long long)less, (long long)more);
}

linnet_status lnt_check_values(lnt_ctx *c, const lnt_layer *l, int64_t num_heads, int64_t num_v_heads, int64_t head_dim, double expand_v)
{
    const double value = (double)head_dim * expand_v;
    if (value < 1 || value != (double)(int64_t)value)
        return lnt_fail(c, LINNET_EINVAL, "%shead_dim * expand_v is %g, expected a whole value size", l->where, value);
    return num_v_heads ? lnt_check_divides(c, l, "num_heads", num_heads, "num_v_heads", num_v_heads) : LINNET_OK;
}

linnet_status lnt_check_even(lnt_ctx *c, const lnt_layer *l, const char *what, int64_t head)
{
    if (head % 2 == 0) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "%s%s is %lld, expected an even head size", l->where, what, (long long)head); /* rotation works on pairs */
}

void lnt_mixer_size(const lnt_mixer *m, void *options, int64_t heads, int64_t head)
{
    const lnt_options *t = &m->kind.options;
    if (m->size) {
        m->size(options, heads, head);
        return;
    }
    lnt_options_put_int(t, options, "num_heads", heads);
    lnt_options_put_int(t, options, "num_kv_heads", 0);
    if (!lnt_options_put_int(t, options, "head_dim", head)) return;
    /* q, k, v, gate and output then have width^2 parameters each */
    lnt_options_put_int(t, options, "num_v_heads", 0);
    lnt_options_put_int(t, options, "expand_v", 1);
}

lnt_buf lnt_back_linear(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name)
{
    if (!l->depth_init) return lnt_linear(p, x, name, l->width);
    double before = lnt_set_init_std(p, sqrt(2.0 / l->layers / (double)lnt_cols(p, x)));
    lnt_buf y = lnt_linear(p, x, name, l->width);
    lnt_set_init_std(p, before);
    return y;
}

lnt_buf lnt_out_proj(lnt_program *p, const lnt_layer *l, lnt_buf o) { return lnt_back_linear(p, l, o, "o_proj"); }

lnt_buf lnt_heads_of(lnt_program *p, lnt_buf x, const char *name, int64_t heads, int64_t dim)
{
    return lnt_with_heads(p, lnt_linear(p, x, name, heads * dim), (int32_t)heads);
}

lnt_buf lnt_project(lnt_program *p, lnt_buf x, const char *name, int64_t heads, int64_t dim, int64_t conv_size, lnt_act act)
{
    char proj[16], conv[16];
    snprintf(proj, sizeof proj, "%s_proj", name);
    snprintf(conv, sizeof conv, "%s_conv1d", name);
    lnt_buf y = lnt_linear(p, x, proj, heads * dim);
    if (conv_size > 0)
        y = lnt_short_conv(p, y, conv, (int)conv_size, act);
    else if (act != LNT_IDENTITY)
        y = lnt_activation(p, y, act, 1, false);
    return lnt_with_heads(p, y, (int32_t)heads);
}

lnt_buf lnt_low_rank(lnt_program *p, lnt_buf x, const char *name, int64_t rank, int64_t out, bool bias)
{
    lnt_push_scope(p, "%s", name);
    x = lnt_linear(p, x, "0", rank);
    x = bias ? lnt_linear_bias(p, x, "1", out) : lnt_linear(p, x, "1", out);
    lnt_pop_scope(p);
    return x;
}

lnt_buf lnt_write_strength(lnt_program *p, lnt_buf x, int64_t heads, bool negative)
{
    return lnt_activation(p, lnt_linear(p, x, "b_proj", heads), LNT_SIGMOID, negative ? 2 : 1, true);
}

lnt_buf lnt_rising_decay(lnt_program *p, const lnt_layer *l, lnt_buf f, bool bounded)
{
    static const char name[] = "lower_bounds";
    const int64_t cols = lnt_cols(p, f);
    lnt_buf bounds = lnt_kept(p, name);
    if (bounded && !bounds.id) {
        const int scopes = lnt_set_scopes(p, 1);
        bounds = lnt_decay_bounds(p, name, l->layers, cols);
        lnt_set_scopes(p, scopes);
        lnt_keep(p, name, bounds);
    }
    if (!bounded || l->index == 0) return lnt_activation(p, f, LNT_LOG_SIGMOID, 1, true);
    if (lnt_cols(p, bounds) != l->layers * cols)
        return lnt_program_fail(p, "decays of %lld columns, and %s has %lld", (long long)cols, name, (long long)(lnt_cols(p, bounds) / l->layers));
    return lnt_bounded_decay(p, f, lnt_slice(p, bounds, l->index * cols, cols, 1));
}

lnt_buf lnt_output_norm(lnt_program *p, const lnt_layer *l, lnt_buf x, lnt_buf o, bool gated, const char *gated_name, const char *plain_name)
{
    if (!gated) return lnt_rmsnorm(p, o, plain_name, l->norm_eps);
    lnt_buf gate = lnt_linear(p, x, "g_proj", lnt_cols(p, o));
    return lnt_gated_rmsnorm(p, o, gate, gated_name, l->norm_eps, LNT_SILU);
}

lnt_buf lnt_gelu_out(lnt_program *p, const lnt_layer *l, lnt_buf y, bool gated)
{
    y = lnt_activation(p, y, LNT_GELU, 1, false);
    lnt_buf o = lnt_out_proj(p, l, y);
    return gated ? lnt_glu(p, lnt_linear(p, y, "g_proj", l->width), o, LNT_SIGMOID) : o;
}

lnt_expanded lnt_expand(const lnt_layer *l, int64_t heads, int64_t kv_heads, double expand_k, double expand_v)
{
    return (lnt_expanded){heads, kv_heads ? kv_heads : heads, (int64_t)llround((double)l->width * expand_k) / heads,
                          (int64_t)llround((double)l->width * expand_v) / heads};
}

linnet_status lnt_check_expanded(lnt_ctx *c, const lnt_layer *l, int64_t heads, int64_t kv_heads, double expand_k, double expand_v)
{
    int64_t key_width = (int64_t)((double)l->width * expand_k), value_width = (int64_t)((double)l->width * expand_v);
    if (key_width < 1 || value_width < 1)
        return lnt_fail(c, LINNET_EINVAL, "%sexpand_k = %g and expand_v = %g of hidden_size = %lld leave no key or value", l->where, expand_k,
                        expand_v, (long long)l->width);
    LNT_TRY(lnt_check_divides(c, l, "num_heads", heads, "hidden_size * expand_k", key_width));
    LNT_TRY(lnt_check_divides(c, l, "num_heads", heads, "hidden_size * expand_v", value_width));
    return kv_heads ? lnt_check_divides(c, l, "num_kv_heads", kv_heads, "num_heads", heads) : LINNET_OK;
}
