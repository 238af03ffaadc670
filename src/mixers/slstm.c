/* The sLSTM layer of xLSTM (arXiv 2405.04517, section 2.2 and figure 10): a scalar memory whose gates see the last output of their head, so that it
 * tracks states which no layer computed in parallel can, and is computed token after token,
 *   [i~ f~ z~ o~]_t = W x_t + y_{t-1} R + b,   y_t = sigmoid(o~) c_t / n_t,
 *   c_t = sigmoid(f~) c_{t-1} + e^{i~} tanh(z~),   n_t = sigmoid(f~) n_{t-1} + e^{i~}
 * W and R with a block for each head; i and f see x behind a convolution and SiLU. LayerNorm of each head's y, and no product after it: the paper's
 * block has its MLP there. xLSTM[7:1] is --pattern 7*mlstm,slstm. Forget gates begin between long and short memories, and products by fan-in. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, conv_size;
    bool use_short_conv;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "heads; each has hidden_size / num_heads units"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution of what the input and the forget gate see"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    return lnt_check_divides(c, l, "num_heads", ((const options *)l->options)->num_heads, "hidden_size", l->width);
}

/* What x brings to a gate: a map for each head, and a bias that begins from `low` to `high` over the columns. */
static lnt_buf gate(lnt_program *p, lnt_buf x, const char *name, const char *bias, double low, double high, bool f32)
{
    const double before = lnt_set_init_std(p, 0);
    lnt_buf y = lnt_group_linear(p, x, name, NULL, lnt_cols(p, x) / lnt_heads(p, x));
    lnt_set_init_std(p, before);
    if (f32) y = lnt_activation(p, y, LNT_IDENTITY, 1, true);
    return lnt_add_columns(p, y, bias, (lnt_init){LNT_INIT_SPREAD, low, high});
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t D = l->width / o->num_heads;
    lnt_buf seen = o->use_short_conv ? lnt_short_conv(p, x, "conv1d", (int)o->conv_size, LNT_SILU) : x;
    x = lnt_with_heads(p, x, (int32_t)o->num_heads), seen = lnt_with_heads(p, seen, (int32_t)o->num_heads);
    lnt_buf i = gate(p, seen, "igate", "igate.bias", 0, 0, true), f = gate(p, seen, "fgate", "fgate.bias", 5, -5, true);
    lnt_buf z = gate(p, x, "zgate", "zgate.bias", 0, 0, false), out = gate(p, x, "ogate", "ogate.bias", 0, 0, false);
    const int R = lnt_add_param(p, "recurrent_kernel", 3, (int64_t[]){o->num_heads, D, 4 * D}, (lnt_init){LNT_INIT_CONST, 0, 0}, true, false);
    lnt_buf y = lnt_recur(p, "slstm", (lnt_recur_in){.tensor = {{"wi", i}, {"wf", f}, {"wz", z}, {"wo", out},
                                                                {"R", lnt_param_value(p, R, o->num_heads * D, 1)}}});
    return lnt_with_heads(p, lnt_layernorm(p, y, "group_norm", l->norm_eps, true, false), 1);
}

const lnt_mixer lnt_mixer_slstm = {
    .kind = {{"slstm", "xLSTM's scalar memory: gates that see the last output, one token after the other", "Beck et al. 2024, arXiv 2405.04517",
              "slstm"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
