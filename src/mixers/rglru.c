/* The recurrent layer of Hawk and Griffin (arXiv 2402.19427, figure 2 and section 2.4): u = conv(linear_x x), and with the real-gated linear
 * recurrent unit h_t = a_t h_{t-1} + sqrt(1 - a_t^2) sigmoid(i_t) u_t, log a_t = -8 softplus(recurrent_param) sigmoid(r_t), the output is
 * linear_out(h gelu(linear_y x)). r and i are made of u by maps of num_heads blocks of columns. Griffin is this layer and windowed attention. */
#include "mixers/hawk_rule.h"

typedef struct {
    int64_t num_heads, lru_width, conv1d_width;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "blocks of columns that each have their map to the gates"),
    LNT_MAYBE_INT(options, lru_width, 1, LNT_MOST_WIDTH, 0, 0, "columns of the recurrence; null: hidden_size"),
    LNT_INT(options, conv1d_width, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
};

static int64_t columns(const lnt_layer *l)
{
    const options *o = l->options;
    return o->lru_width ? o->lru_width : l->width;
}

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    return lnt_check_divides(c, l, "num_heads", ((const options *)l->options)->num_heads, "lru_width", columns(l));
}

static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    (void)head;
    o->num_heads = heads;
    o->lru_width = 0;
}

lnt_buf lnt_hawk_layer(lnt_program *p, const lnt_layer *l, lnt_buf x, int64_t D, int64_t blocks, int taps)
{
    const int64_t block = D / blocks;
    lnt_buf gate = lnt_linear_bias(p, x, "linear_y", D);
    lnt_buf u = lnt_short_conv(p, lnt_linear_bias(p, x, "linear_x", D), "conv_1d", taps, LNT_IDENTITY);
    u = lnt_with_heads(p, lnt_add_columns(p, u, "conv_1d.bias", (lnt_init){LNT_INIT_CONST, 0, 0}), (int32_t)blocks);
    lnt_push_scope(p, "rg_lru");
    lnt_buf i = lnt_group_linear(p, u, "input_gate", "input_gate.bias", block);
    lnt_buf r = lnt_group_linear(p, u, "recurrent_gate", "recurrent_gate.bias", block);
    lnt_buf lambda = lnt_row_param(p, "recurrent_param", 1, D, (lnt_init){LNT_INIT_DECAY_SOFTPLUS, 0.9, 0.999});
    lnt_pop_scope(p);
    lnt_buf h = lnt_recur(p, "rglru", (lnt_recur_in){.tensor = {{"x", lnt_with_heads(p, u, 1)}, {"r", lnt_with_heads(p, r, 1)},
                                                                {"i", lnt_with_heads(p, i, 1)}, {"lambda", lambda}},
                                                     .option = {{"first", 1}}});
    h = lnt_glu(p, gate, h, LNT_GELU_TANH);
    return lnt_add_columns(p, lnt_back_linear(p, l, h, "linear_out"), "linear_out.bias", (lnt_init){LNT_INIT_CONST, 0, 0});
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    return lnt_hawk_layer(p, l, x, columns(l), o->num_heads, (int)o->conv1d_width);
}

const lnt_mixer lnt_mixer_rglru = {
    .kind = {{"rglru", "the recurrent layer of Hawk and Griffin: a gated recurrence of channels beside a gated branch",
              "De et al. 2024, arXiv 2402.19427", "rglru"},
             LNT_OPTIONS(options, keys), check},
    .size = size,
    .build = build,
};
