/* ReBased (arXiv 2402.10644): normalised linear attention with a learned quadratic kernel on heads of few columns d. With
 * x~ = gamma . LayerNorm(x) + beta, gamma and beta shared by queries, keys and heads, and phi(q).phi(k) = (q~.k~)^2 / d,
 *   o_t = sum_j phi(q_t).phi(k_j) v_j / (sum_j phi(q_t).phi(k_j) + eps) */
#include <math.h>

#include "mixers/mixers.h"
#include "ops/feature_maps.h"

typedef struct {
    int64_t num_heads, feature_dim;
    double eps;
    bool use_gamma, use_beta, normalize;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "heads; each has hidden_size / num_heads columns of values"),
    LNT_INT(options, feature_dim, 1, LNT_QUADRATIC_MAX, 16, "columns of a query and a key in front of the feature map"),
    LNT_REAL(options, eps, 1e-12, 1, 1e-5, "added to the sum of kernel values that outputs are divided by"),
    LNT_SWITCH(options, use_gamma, true, "a learned factor of those columns"),
    LNT_SWITCH(options, use_beta, true, "a learned number added to them"),
    LNT_SWITCH(options, normalize, true, "LayerNorm of each head's columns before that"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width);
}

/* A parameter of one head's columns as a row of all heads'. */
static lnt_buf of_heads(lnt_program *p, const options *o, const char *name, lnt_init start)
{
    return lnt_repeat_heads(p, lnt_row_param(p, name, 1, o->feature_dim, start), (int)o->num_heads);
}

static lnt_buf features(lnt_program *p, const options *o, lnt_buf x, const char *name)
{
    const lnt_init one = {LNT_INIT_CONST, 1, 0}, small = {LNT_INIT_NORMAL, lnt_init_std(p, o->feature_dim), 0};
    x = lnt_heads_of(p, x, name, o->num_heads, o->feature_dim);
    if (o->normalize) x = lnt_layernorm(p, x, name, 1e-5, false, false);
    if (o->use_gamma) x = lnt_scale_rows(p, x, of_heads(p, o, "feature_map.gamma", one));
    if (o->use_beta) x = lnt_add_rows(p, x, of_heads(p, o, "feature_map.beta", small));
    return lnt_quadratic(p, x, 0, 0, 1 / sqrt((double)o->feature_dim));
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_buf q = features(p, o, x, "q_proj"), k = features(p, o, x, "k_proj");
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, l->width / o->num_heads);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"scale", 1}, {"normalize", 1}, {"eps", o->eps}}};
    return lnt_out_proj(p, l, lnt_recur(p, "linear_attn", in));
}

const lnt_mixer lnt_mixer_rebased = {
    .kind = {{"rebased", "normalised linear attention with a learned quadratic kernel", "Aksenov et al. 2024, arXiv 2402.10644", "linear_attn"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
