/* Multi-head Hyena (arXiv 2310.18780): [q, k, v] = short_filter(in_proj x), and in each head a filter h over the outer products of k and v,
 *   y_t = q_t^T (h * k v^T + D k v^T)_t = D (q_t.k_t) v_t + sum_l h_l (q_t.k_{t-l}) v_{t-l}
 * Memory grows with the text until filter_length. */
#include "mixers/implicit_filter_rule.h"

typedef struct {
    int64_t num_heads, short_filter_order;
    LNT_FILTER_FIELDS
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 8, "heads, each with a filter; each has hidden_size / num_heads columns"),
    LNT_INT(options, short_filter_order, 0, 32, 3, "taps of the short convolution behind in_proj; 0: none"),
    LNT_FILTER_KEYS(options),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    LNT_TRY(lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width));
    return lnt_check_filter(c, l, LNT_FILTER_OF(o));
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t D = l->width;
    const int32_t heads = (int32_t)o->num_heads;
    lnt_buf all = lnt_linear_bias(p, x, "in_proj", 3 * D);
    if (o->short_filter_order) {
        all = lnt_short_conv(p, all, "short_filter", (int)o->short_filter_order, LNT_IDENTITY);
        all = lnt_add_columns(p, all, "short_filter.bias", (lnt_init){LNT_INIT_CONST, 0, 0});
    }
    lnt_push_scope(p, "filter_fn");
    lnt_buf h = lnt_implicit_filters(p, LNT_FILTER_OF(o), heads), skip = lnt_row_param(p, "bias", 1, heads, (lnt_init){LNT_INIT_NORMAL, 1, 0});
    lnt_pop_scope(p);
    lnt_buf y = lnt_recur(p, "multihead_long_conv",
                          (lnt_recur_in){.tensor = {{"q", lnt_slice(p, all, 0, D, heads)}, {"k", lnt_slice(p, all, D, D, heads)},
                                                    {"v", lnt_slice(p, all, 2 * D, D, heads)}, {"h", h}, {"D", skip}}});
    return lnt_linear_bias(p, y, "out_proj", D);
}

const lnt_mixer lnt_mixer_mh_hyena = {
    .kind = {{"mh_hyena", "Hyena in heads: one filter a head over outer products of keys and values; memory grows with the text",
              "Massaroli et al. 2023, arXiv 2310.18780", "multihead_long_conv"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
