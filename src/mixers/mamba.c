/* Mamba (arXiv 2312.00752), the selective state space: h_t = e^{dt_t A} h_{t-1} + dt_t x_t B_t, y_t = h_t.C_t + D x_t, a state of state_size numbers
 * a channel, A = -exp(A_log). With allow_neg_eigval the decay is 2 e^{dt_t A} - 1. Step sizes dt_t of a channel, and B_t and C_t of all channels, are
 * made of the convolved x; the output is gated. */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t state_size, expand, channels, conv_kernel, dt_rank;
    bool use_bias, use_conv_bias, allow_neg_eigval;
    int inner_norm;
    double inner_norm_eps;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, state_size, 1, 4096, 16, "numbers of a channel's state"),
    LNT_INT(options, expand, 1, 64, 2, "channels, as a multiple of hidden_size"),
    LNT_MAYBE_INT(options, channels, 1, 64 * LNT_MOST_WIDTH, 0, 0, "channels; null: expand * hidden_size"),
    LNT_INT(options, conv_kernel, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_INT(options, dt_rank, 1, LNT_MOST_WIDTH, 128, "columns through which step sizes go, usually hidden_size / 16"),
    LNT_SWITCH(options, use_bias, false, "the products into and out of the layer have biases"),
    LNT_SWITCH(options, use_conv_bias, true, "the convolution has a bias"),
    LNT_WORD(options, inner_norm, "none plain weighted", 0, "an RMSNorm of B, C and what step sizes are made of, without weights or with"),
    LNT_MAYBE_REAL(options, inner_norm_eps, 0, 1, 0, "added to its mean squares; null: norm_eps"),
    LNT_SWITCH(options, allow_neg_eigval, false, "decays 2 e^{dt A} - 1, down to -1: the state may turn around"),
};

static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    o->dt_rank = (heads * head + 15) / 16;
}

static lnt_buf product(lnt_program *p, const options *o, lnt_buf x, const char *name, int64_t out)
{
    return o->use_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out);
}

/* softplus(dt_proj(x) + bias), float32; the paper's code starts the map uniform in its rank^-1/2 and steps between 0.001 and 0.1. */
static lnt_buf step_sizes(lnt_program *p, lnt_buf x, int64_t rank, int64_t channels)
{
    const double most = 1 / sqrt((double)rank);
    lnt_add_param(p, "dt_proj.weight", 2, (int64_t[]){channels, rank}, (lnt_init){LNT_INIT_UNIFORM, -most, most}, true, true);
    lnt_buf dt = lnt_activation(p, lnt_linear(p, x, "dt_proj", channels), LNT_IDENTITY, 1, true);
    return lnt_activation(p, lnt_add_columns(p, dt, "dt_proj.bias", (lnt_init){LNT_INIT_DT_BIAS, 1e-3, 0.1}), LNT_SOFTPLUS, 1, true);
}

/* Falcon-Mamba (arXiv 2410.05355), Jamba (arXiv 2403.19887). */
static lnt_buf normed(lnt_program *p, const lnt_layer *l, const options *o, lnt_buf x, const char *name)
{
    const double eps = o->inner_norm_eps > 0 ? o->inner_norm_eps : l->norm_eps;
    return o->inner_norm == 0 ? x : o->inner_norm == 1 ? lnt_plain_rmsnorm(p, x, eps) : lnt_rmsnorm(p, x, name, eps);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf in)
{
    const options *o = l->options;
    const int64_t channels = o->channels ? o->channels : o->expand * l->width, M = o->state_size;
    const lnt_init one = {LNT_INIT_CONST, 1, 0};
    lnt_buf all = product(p, o, in, "in_proj", 2 * channels);
    lnt_buf x = lnt_slice(p, all, 0, channels, 1);
    x = (o->use_conv_bias ? lnt_short_conv_bias : lnt_short_conv)(p, x, "conv1d", (int)o->conv_kernel, LNT_SILU);
    lnt_buf made = lnt_linear(p, x, "x_proj", o->dt_rank + 2 * M);
    lnt_buf dt = step_sizes(p, normed(p, l, o, lnt_slice(p, made, 0, o->dt_rank, 1), "dt_layernorm"), o->dt_rank, channels);
    lnt_buf B = normed(p, l, o, lnt_slice(p, made, o->dt_rank, M, 1), "b_layernorm");
    lnt_buf C = normed(p, l, o, lnt_slice(p, made, o->dt_rank + M, M, 1), "c_layernorm");
    const int A_log = lnt_add_param(p, "A_log", 2, (int64_t[]){channels, M}, (lnt_init){LNT_INIT_LOG_PLACE, 0, 0}, false, false);
    lnt_buf A = lnt_activation(p, lnt_param_value(p, A_log, channels, 1), LNT_EXP, -1, true);
    lnt_buf D = lnt_row_param(p, "D", 1, channels, one);
    lnt_buf y = lnt_recur(p, "selective_scan",
                          (lnt_recur_in){.tensor = {{"u", x}, {"delta", dt}, {"A", A}, {"B", B}, {"C", C}, {"D", D}},
                                          .option = {{"signed", o->allow_neg_eigval}}});
    y = lnt_swiglu(p, lnt_slice(p, all, channels, channels, 1), y);
    return o->use_bias ? lnt_linear_bias(p, y, "out_proj", l->width) : lnt_back_linear(p, l, y, "out_proj");
}

const lnt_mixer lnt_mixer_mamba = {
    .kind = {{"mamba", "a selective state space: a small state for each channel, steps and read-outs made of the input",
              "Gu and Dao 2023, arXiv 2312.00752", "selective_scan"},
             LNT_OPTIONS(options, keys), NULL},
    .size = size,
    .build = build,
};
