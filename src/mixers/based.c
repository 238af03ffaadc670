/* Based's linear attention (arXiv 2402.18668): the feature map of the exponential's Taylor series of degree 2, on heads of few columns d,
 *   phi(q).phi(k) = 1 + z + z^2 / 2,  z = q.k / sqrt(d)          o_t = sum_j phi(q_t).phi(k_j) v_j / sum_j phi(q_t).phi(k_j)
 * and no such product is below 1/2, so that the division is safe. The products x_i x_j and x_j x_i are one column, 153 for 16. Based has windows of
 * softmax attention between such layers: --pattern based,attention:64. */
#include <math.h>

#include "mixers/mixers.h"
#include "ops/feature_maps.h"

typedef struct {
    int64_t num_heads, feature_dim;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "heads; each has hidden_size / num_heads columns of values"),
    LNT_INT(options, feature_dim, 1, LNT_QUADRATIC_MAX, 16, "columns of a query and a key in front of the feature map"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width);
}

static lnt_buf features(lnt_program *p, const options *o, lnt_buf x, const char *name)
{
    const double d = (double)o->feature_dim;
    return lnt_quadratic(p, lnt_heads_of(p, x, name, o->num_heads, o->feature_dim), 1, pow(d, -0.25), sqrt(0.5 / d));
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_buf q = features(p, o, x, "q_proj"), k = features(p, o, x, "k_proj");
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, l->width / o->num_heads);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"scale", 1}, {"normalize", 1}, {"eps", 1e-12}}};
    return lnt_out_proj(p, l, lnt_recur(p, "linear_attn", in));
}

const lnt_mixer lnt_mixer_based = {
    .kind = {{"based", "normalised linear attention with the exponential's Taylor series of degree 2 as feature map",
              "Arora et al. 2024, arXiv 2402.18668", "linear_attn"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
