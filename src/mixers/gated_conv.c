/* A convolution between two gates, without a state beyond its taps (LFM2, arXiv 2511.23404): y = W_o (C . conv(B . x)), [B, C, x] = W_i in. */
#include "mixers/mixers.h"

typedef struct {
    int64_t conv_kernel;
    bool use_bias;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, conv_kernel, 1, LNT_CONV_MAX, 3, "taps of the convolution"),
    LNT_SWITCH(options, use_bias, false, "biases in the products and the convolution"),
};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf in)
{
    const options *o = l->options;
    lnt_buf all = o->use_bias ? lnt_linear_bias(p, in, "in_proj", 3 * l->width) : lnt_linear(p, in, "in_proj", 3 * l->width);
    lnt_buf B = lnt_slice(p, all, 0, l->width, 1), C = lnt_slice(p, all, l->width, l->width, 1), x = lnt_slice(p, all, 2 * l->width, l->width, 1);
    lnt_buf y = lnt_short_conv(p, lnt_mul_buf(p, B, x), "conv", (int)o->conv_kernel, LNT_IDENTITY);
    if (o->use_bias) y = lnt_add_columns(p, y, "conv.bias", (lnt_init){LNT_INIT_CONST, 0, 0});
    y = lnt_mul_buf(p, C, y);
    return o->use_bias ? lnt_linear_bias(p, y, "out_proj", l->width) : lnt_back_linear(p, l, y, "out_proj");
}

const lnt_mixer lnt_mixer_gated_conv = {
    .kind = {{"gated_conv", "a short convolution between two gates", "Liquid AI 2025, arXiv 2511.23404", NULL},
             LNT_OPTIONS(options, keys), NULL},
    .build = build,
};
