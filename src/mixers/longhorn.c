/* Longhorn (arXiv 2407.14207): the state is what solves an online regression in closed form, argmin |S - S_{t-1}|^2 + beta |S^T k - x|^2. In the form
 * `diagonal` of the paper's models the products of different numbers of k are left out, S_t = (1 - Delta k^2) S_{t-1} + Delta x k a channel, Delta =
 * beta / (1 + beta k.k); `exact` keeps them, which is a delta rule of strength Delta, one for each of num_heads groups of channels. The rest is
 * Mamba's layer: the step becomes a strength beta = sigmoid, B and C a key and a query. */
#include "mixers/mixers.h"

enum { DIAGONAL, EXACT };

typedef struct {
    int64_t state_size, expand, conv_kernel, dt_rank, num_heads;
    int form;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, state_size, 1, 4096, 16, "numbers of a channel's state"),
    LNT_INT(options, expand, 1, 64, 2, "channels, as a multiple of hidden_size"),
    LNT_INT(options, conv_kernel, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_INT(options, dt_rank, 1, LNT_MOST_WIDTH, 128, "columns through which write strengths go, usually hidden_size / 16"),
    LNT_WORD(options, form, "diagonal exact", DIAGONAL, "the paper's models, or the solution itself"),
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "exact: groups of channels that share a write strength"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return o->form == EXACT ? lnt_check_divides(c, l, "num_heads", o->num_heads, "expand * hidden_size", o->expand * l->width) : LINNET_OK;
}

static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    o->dt_rank = (heads * head + 15) / 16;
    o->num_heads = 2 * heads;
}

/* sigmoid(dt_proj(x)), float32. */
static lnt_buf strengths(lnt_program *p, lnt_buf x, int64_t columns)
{
    return lnt_activation(p, lnt_linear_bias(p, x, "dt_proj", columns), LNT_SIGMOID, 1, true);
}

/* S -> S + k Delta (x - S^T k)^T, Delta = beta / (1 + beta k.k), then S^T q. */
static lnt_buf exact(lnt_program *p, const options *o, lnt_buf x, lnt_buf beta, lnt_buf k, lnt_buf q, int64_t channels)
{
    lnt_buf divisor = lnt_affine(p, lnt_mul_buf(p, beta, lnt_head_dot(p, k, k)), LNT_IDENTITY, 1, 1, true);
    lnt_buf Delta = lnt_mul_buf(p, beta, lnt_activation(p, divisor, LNT_RECIPROCAL, 1, true));
    lnt_buf y = lnt_recur(p, "delta_rule", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", lnt_with_heads(p, x, (int32_t)o->num_heads)},
                                                                     {"beta", lnt_with_heads(p, Delta, (int32_t)o->num_heads)}},
                                                          .option = {{"scale", 1}}});
    const lnt_init one = {LNT_INIT_CONST, 1, 0};
    return lnt_add_buf(p, lnt_with_heads(p, y, 1), lnt_scale_rows(p, x, lnt_row_param(p, "D", 1, channels, one)));
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf in)
{
    const options *o = l->options;
    const int64_t channels = o->expand * l->width, M = o->state_size;
    lnt_buf all = lnt_linear(p, in, "in_proj", 2 * channels);
    lnt_buf x = lnt_short_conv_bias(p, lnt_slice(p, all, 0, channels, 1), "conv1d", (int)o->conv_kernel, LNT_SILU);
    lnt_buf made = lnt_linear(p, x, "x_proj", o->dt_rank + 2 * M);
    lnt_buf beta = strengths(p, lnt_slice(p, made, 0, o->dt_rank, 1), o->form == EXACT ? o->num_heads : channels);
    lnt_buf k = lnt_slice(p, made, o->dt_rank, M, 1), q = lnt_slice(p, made, o->dt_rank + M, M, 1), y;
    if (o->form == EXACT)
        y = exact(p, o, x, beta, k, q, channels);
    else
        y = lnt_recur(p, "longhorn", (lnt_recur_in){.tensor = {{"x", x}, {"beta", beta}, {"k", k}, {"q", q},
                                                               {"D", lnt_row_param(p, "D", 1, channels, (lnt_init){LNT_INIT_CONST, 1, 0})}}});
    return lnt_back_linear(p, l, lnt_swiglu(p, lnt_slice(p, all, channels, channels, 1), y), "out_proj");
}

const lnt_mixer lnt_mixer_longhorn = {
    .kind = {{"longhorn", "a state space that solves an online regression in closed form", "Liu et al. 2024, arXiv 2407.14207",
              "longhorn or delta_rule"},
             LNT_OPTIONS(options, keys), check},
    .size = size,
    .build = build,
};
