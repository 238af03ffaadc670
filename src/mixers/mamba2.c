/* Mamba-2 (arXiv 2405.21060), the state-space dual form: S_t = e^{dt_t A} S_{t-1} + B_t (dt_t x_t)^T, y_t = S_t^T C_t + D x_t with one decay a head,
 * A = -exp(A_log), dt_t = softplus(dt_t + dt_bias); B and C serve a group of heads. One product makes gate, x, B, C and dt, a convolution goes over
 * x, B and C, and the output is gated before its norm. */
#include "mixers/mamba2_rule.h"

#include <math.h>

typedef lnt_mamba2_options options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 64, "heads; num_heads * head_dim, the columns of x, is usually twice hidden_size"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 64, "columns of x in a head"),
    LNT_INT(options, state_size, 1, LNT_MOST_WIDTH, 128, "columns of B and C in a group"),
    LNT_INT(options, n_groups, 1, LNT_MOST_WIDTH, 1, "groups of heads that share B and C"),
    LNT_INT(options, conv_kernel, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, use_conv_bias, true, "the convolution has a bias"),
    LNT_SWITCH(options, use_bias, false, "the products into and out of the layer have biases"),
    LNT_SWITCH(options, rmsnorm, true, "a norm of the output, over the columns of a group"),
    LNT_SWITCH(options, norm_before_gate, false, "the norm first, then the gate"),
    LNT_WORD(options, norm_of, "group all", 0, "whether the norm is over the columns of each group or over all of them"),
    LNT_REAL(options, step_min, 0, 1e3, 0, "steps are at least this"),
};

linnet_status lnt_check_mamba2(lnt_ctx *c, const lnt_layer *l, const lnt_mamba2_options *o)
{
    return lnt_check_divides(c, l, "n_groups", o->n_groups, "num_heads", o->num_heads);
}

static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    o->num_heads = 2 * heads;
    o->head_dim = head;
    o->state_size = head;
    o->n_groups = 1;
}

static lnt_buf product(lnt_program *p, const options *o, lnt_buf x, const char *name, int64_t out)
{
    return o->use_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out);
}

/* The norm of each group's columns, with a weight for every column. */
static lnt_buf group_norm(lnt_program *p, const lnt_layer *l, const options *o, lnt_buf y)
{
    if (o->n_groups == 1 || o->norm_of == 1) return lnt_rmsnorm(p, lnt_with_heads(p, y, 1), "norm", l->norm_eps);
    const double n = (double)lnt_cols(p, y) / (double)o->n_groups;
    y = lnt_affine(p, lnt_l2norm(p, lnt_with_heads(p, y, (int32_t)o->n_groups), n * l->norm_eps), LNT_IDENTITY, sqrt(n), 0, false);
    return lnt_scale_columns(p, y, "norm.weight", (lnt_init){LNT_INIT_CONST, 1, 0});
}

static lnt_buf gated(lnt_program *p, const lnt_layer *l, const options *o, lnt_buf z, lnt_buf y)
{
    if (!o->rmsnorm) return lnt_swiglu(p, z, y);
    return o->norm_before_gate ? lnt_swiglu(p, z, group_norm(p, l, o, y)) : group_norm(p, l, o, lnt_swiglu(p, z, y));
}

/* A part of the first product's columns times its factor. */
static lnt_buf part(lnt_program *p, const options *o, lnt_buf all, int64_t first, int64_t cols, int which)
{
    lnt_buf x = lnt_slice(p, all, first, cols, 1);
    const double times = o->times[which];
    return times == 0 || times == 1 ? x : lnt_activation(p, x, LNT_IDENTITY, times, false);
}

/* Columns of x, B or C as they leave the convolution, which is linear: their factor may come behind it. */
static lnt_buf convolved(lnt_program *p, const options *o, lnt_buf all, lnt_buf bias, int64_t first, int64_t cols, int which)
{
    lnt_buf x = part(p, o, all, first, cols, which);
    if (bias.id) x = lnt_add_rows(p, x, lnt_slice(p, bias, first, cols, 1));
    return lnt_activation(p, x, LNT_SILU, 1, false);
}

lnt_buf lnt_mamba2_layer(lnt_program *p, const lnt_layer *l, const lnt_mamba2_options *o, lnt_buf in)
{
    const int32_t H = (int32_t)o->num_heads, G = (int32_t)o->n_groups;
    const int64_t inner = o->num_heads * o->head_dim, shared = o->n_groups * o->state_size, mixed = inner + 2 * shared;
    const lnt_init one = {LNT_INIT_CONST, 1, 0}, none = {LNT_INIT_CONST, 0, 0};
    lnt_buf all = product(p, o, in, "in_proj", inner + mixed + H);
    lnt_buf z = part(p, o, all, 0, inner, 0);
    const bool factors = o->times[1] != o->times[2] || o->times[2] != o->times[3] || (o->times[1] != 0 && o->times[1] != 1);
    const bool bias = o->use_conv_bias && !factors;
    lnt_buf xBC = (bias ? lnt_short_conv_bias : lnt_short_conv)(p, lnt_slice(p, all, inner, mixed, 1), "conv1d", (int)o->conv_kernel,
                                                                factors ? LNT_IDENTITY : LNT_SILU);
    lnt_buf x, B, C;
    if (factors) {
        lnt_buf row = o->use_conv_bias ? lnt_row_param(p, "conv1d.bias", 1, mixed, none) : LNT_NO_BUF;
        x = lnt_with_heads(p, convolved(p, o, xBC, row, 0, inner, 1), H);
        B = lnt_with_heads(p, convolved(p, o, xBC, row, inner, shared, 2), G);
        C = lnt_with_heads(p, convolved(p, o, xBC, row, inner + shared, shared, 3), G);
    } else {
        x = lnt_slice(p, xBC, 0, inner, H), B = lnt_slice(p, xBC, inner, shared, G), C = lnt_slice(p, xBC, inner + shared, shared, G);
    }
    lnt_buf dt = lnt_activation(p, lnt_slice(p, all, inner + mixed, H, H), LNT_IDENTITY, o->times[4] == 0 ? 1 : o->times[4], true);
    dt = lnt_activation(p, lnt_add_columns(p, dt, "dt_bias", (lnt_init){LNT_INIT_DT_BIAS, 1e-3, 0.1}), LNT_SOFTPLUS, 1, true);
    if (o->step_min > 0) dt = lnt_clamp(p, dt, o->step_min, INFINITY);
    lnt_buf A = lnt_activation(p, lnt_row_param(p, "A_log", 1, H, (lnt_init){LNT_INIT_A_LOG, 1, 16}), LNT_EXP, -1, true);
    lnt_buf v = lnt_mul_buf(p, x, dt);
    lnt_buf y = lnt_recur(p, "simple_gla", (lnt_recur_in){.tensor = {{"q", C}, {"k", B}, {"v", v}, {"g", lnt_scale_rows(p, dt, A)}},
                                                          .option = {{"scale", 1}}});
    lnt_buf D = lnt_repeat_heads(p, lnt_with_heads(p, lnt_row_param(p, "D", 1, H, one), H), (int)o->head_dim);
    y = lnt_add_buf(p, lnt_scale_rows(p, x, D), y);
    return o->use_bias ? lnt_linear_bias(p, gated(p, l, o, z, y), "out_proj", l->width) : lnt_back_linear(p, l, gated(p, l, o, z, y), "out_proj");
}

static linnet_status check(lnt_ctx *c, const lnt_layer *l) { return lnt_check_mamba2(c, l, l->options); }
static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x) { return lnt_mamba2_layer(p, l, l->options, x); }

const lnt_mixer lnt_mixer_mamba2 = {
    .kind = {{"mamba2", "a state-space layer: one decay a head, keys and queries shared by groups of heads", "Dao and Gu 2024, arXiv 2405.21060",
              "simple_gla"},
             LNT_OPTIONS(options, keys), check},
    .size = size,
    .build = build,
};
