#include "mixers/ttt_base.h"

linnet_status lnt_ttt_check(lnt_ctx *c, const lnt_layer *l)
{
    const lnt_ttt_options *o = l->options;
    LNT_TRY(lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width));
    return lnt_check_even(c, l, "hidden_size / num_heads", l->width / o->num_heads);
}

int64_t lnt_ttt_head(const lnt_layer *l) { return l->width / ((const lnt_ttt_options *)l->options)->num_heads; }

/* Of q and k that share a projection: a convolution with a bias. */
static lnt_buf convolved(lnt_program *p, lnt_buf x, const char *name, const char *bias, int64_t taps)
{
    return lnt_add_columns(p, lnt_short_conv(p, x, name, (int)taps, LNT_IDENTITY), bias, (lnt_init){LNT_INIT_CONST, 0, 0});
}

lnt_recur_in lnt_ttt_inputs(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const lnt_ttt_options *o = l->options;
    const int64_t H = o->num_heads, D = lnt_ttt_head(l), m = o->mini_batch_size;
    const lnt_init one = {LNT_INIT_CONST, 1, 0}, none = {LNT_INIT_CONST, 0, 0};
    lnt_buf q = lnt_linear(p, x, "q_proj", l->width), k = q;
    if (o->share_qk) {
        k = convolved(p, q, "conv_k", "conv_k.bias", o->conv_kernel);
        q = convolved(p, q, "conv_q", "conv_q.bias", o->conv_kernel);
    } else
        k = lnt_linear(p, x, "k_proj", l->width);
    q = lnt_rotary_within(p, lnt_with_heads(p, q, (int32_t)H), o->rope_theta, m);
    k = lnt_rotary_within(p, lnt_with_heads(p, k, (int32_t)H), o->rope_theta, m);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", H, D);
    lnt_buf rate = lnt_activation(p, lnt_linear_bias(p, x, "learnable_ttt_lr", H), LNT_SIGMOID, o->ttt_base_lr / (double)D, true);
    lnt_buf idx = lnt_param_value(p, lnt_add_param(p, "learnable_token_idx", 1, &m, none, false, false), m, 1);
    const int64_t norm[] = {H, D};
    lnt_buf w = lnt_param_value(p, lnt_add_param(p, "ttt_norm_weight", 2, norm, one, false, false), H, 1);
    lnt_buf b = lnt_param_value(p, lnt_add_param(p, "ttt_norm_bias", 2, norm, none, false, false), H, 1);
    return (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"rate", rate}, {"token_idx", idx}, {"ln_w", w}, {"ln_b", b}},
                          .option = {{"mini_batch", (double)m}}};
}

lnt_buf lnt_ttt_weights(lnt_program *p, const lnt_layer *l, const char *name, int64_t in, int64_t out)
{
    const int64_t H = ((const lnt_ttt_options *)l->options)->num_heads, dim[] = {H, in, out};
    const lnt_init init = {in > 1 ? LNT_INIT_NORMAL : LNT_INIT_CONST, in > 1 ? lnt_init_std(p, in) : 0, 0};
    return lnt_param_value(p, lnt_add_param(p, name, 3, dim, init, false, false), H * in, 1);
}

lnt_buf lnt_ttt_output(lnt_program *p, const lnt_layer *l, lnt_buf x, lnt_buf y)
{
    const lnt_ttt_options *o = l->options;
    y = lnt_layernorm(p, lnt_with_heads(p, y, 1), "post_norm", l->norm_eps, true, true);
    if (o->use_gate) y = lnt_glu(p, lnt_linear(p, x, "g_proj", l->width), y, LNT_GELU_TANH);
    return lnt_out_proj(p, l, y);
}
