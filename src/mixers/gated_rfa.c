/* Random feature attention with a gate (RFA-Gate, arXiv 2103.02143): with unit q and k, features phi(x) = [sin(W x), cos(W x)] whose products are
 * those of a Gaussian kernel, and one gate g_t = sigmoid(W_g x_t + b) a head,
 *   S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T,   z_t = g_t z_{t-1} + (1 - g_t) phi(k_t),   o_t = S_t^T phi(q_t) / (z_t.phi(q_t))
 * W [features, columns] is one for all heads and starts normal, as the paper draws it; here it is trained with all else. The denominator is a mean of
 * kernel values, about e^{-1} with an error of features^-1/2: few features can bring it near zero. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_features;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 8, "heads"),
    LNT_MAYBE_INT(options, num_features, 1, 512, 0, 0, "rows of W, each a sine and a cosine; null: columns of a head"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width);
}

static lnt_buf features(lnt_program *p, const options *o, lnt_buf x, const char *name, int64_t dim)
{
    x = lnt_l2norm(p, lnt_heads_of(p, x, name, o->num_heads, dim), 1e-6);
    return lnt_circular(p, lnt_head_linear(p, x, "features", o->num_features ? o->num_features : dim, false, (lnt_init){LNT_INIT_NORMAL, 1, 0}));
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t dim = l->width / o->num_heads, m = o->num_features ? o->num_features : dim;
    lnt_buf q = features(p, o, x, "q_proj", dim), k = features(p, o, x, "k_proj", dim);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, dim);
    lnt_buf g = lnt_activation(p, lnt_linear_bias(p, x, "gk_proj", o->num_heads), LNT_LOG_SIGMOID, 1, true);
    k = lnt_mul_buf(p, k, lnt_activation(p, g, LNT_ONE_MINUS_EXP, 1, true));
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}, {"g", g}},
                             .option = {{"scale", 1.0 / (double)m}, {"normalize", 1}, {"eps", 1e-6}}};
    return lnt_out_proj(p, l, lnt_recur(p, "simple_gla", in));
}

const lnt_mixer lnt_mixer_gated_rfa = {
    .kind = {{"gated_rfa", "random feature attention: a Gaussian kernel's features, normalised, with one gate a head",
              "Peng et al. 2021, arXiv 2103.02143", "simple_gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
