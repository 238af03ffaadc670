/* Hyena (arXiv 2302.10866): [x_0, .., x_N-1, v] = short_filter(in_proj x), then, from the last of the gates x_i to the first but one,
 *   v = h * (x_i . v) + D (x_i . v),   and y = out_proj(x_0 . v)
 * with a filter h of its own for each of the N-1 convolutions and each channel. Products go with the gates, nothing depends on the state but through
 * them, and what a token sees are filter_length inputs: memory grows with the text until then. */
#include "mixers/implicit_filter_rule.h"

typedef struct {
    int64_t order, short_filter_order;
    LNT_FILTER_FIELDS
} options;

static const lnt_option keys[] = {
    LNT_INT(options, order, 2, 8, 2, "gates; one less convolutions"),
    LNT_INT(options, short_filter_order, 0, 32, 3, "taps of the short convolution behind in_proj; 0: none"),
    LNT_FILTER_KEYS(options),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l) { return lnt_check_filter(c, l, LNT_FILTER_OF((const options *)l->options)); }

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t D = l->width, N = o->order;
    lnt_buf all = lnt_linear_bias(p, x, "in_proj", (N + 1) * D);
    if (o->short_filter_order) {
        all = lnt_short_conv(p, all, "short_filter", (int)o->short_filter_order, LNT_IDENTITY);
        all = lnt_add_columns(p, all, "short_filter.bias", (lnt_init){LNT_INIT_CONST, 0, 0});
    }
    lnt_push_scope(p, "filter_fn");
    lnt_buf h = lnt_implicit_filters(p, LNT_FILTER_OF(o), (N - 1) * D);
    lnt_buf skip = lnt_row_param(p, "bias", 1, (N - 1) * D, (lnt_init){LNT_INIT_NORMAL, 1, 0});
    lnt_pop_scope(p);
    lnt_buf v = lnt_slice(p, all, N * D, D, 1);
    for (int64_t i = N - 1, n = 0; i >= 1; i--, n++) {
        v = lnt_mul_buf(p, lnt_slice(p, all, i * D, D, 1), v);
        lnt_buf filter = lnt_slice(p, h, n * D, D, 1), own = lnt_slice(p, skip, n * D, D, 1);
        v = lnt_recur(p, "long_conv", (lnt_recur_in){.tensor = {{"u", v}, {"h", filter}, {"D", own}}});
    }
    return lnt_linear_bias(p, lnt_mul_buf(p, lnt_slice(p, all, 0, D, 1), v), "out_proj", D);
}

const lnt_mixer lnt_mixer_hyena = {
    .kind = {{"hyena", "long convolutions between gates, their filters made by a network; memory grows with the text",
              "Poli et al. 2023, arXiv 2302.10866", "long_conv"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
