/* Random feature attention with a gate (RFA-Gate, arXiv 2103.02143): with unit q and k, features phi(x) = [sin(W x), cos(W x)] whose products are
 * those of a Gaussian kernel, and one gate g_t = sigmoid(W_g x_t + b) a head,
 *   S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T,   z_t = g_t z_{t-1} + (1 - g_t) phi(k_t),   o_t = S_t^T phi(q_t) / max(|z_t.phi(q_t)|, floor)
 * W [features, columns] is one for all heads and starts normal, as the paper draws it; here it is trained with all else. A mean of the kernel itself
 * would be about e^{-1} and never below e^{-2}; of few features it comes near zero and changes sign, and training drives it there: without a floor
 * 300 steps of preset nano end at 2.97 nats a byte, with one at 1.77. mLSTM's recurrence has a floor, and is this with strengths g and 1 - g. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_features;
    double denominator_floor;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 8, "heads"),
    LNT_MAYBE_INT(options, num_features, 1, 512, 0, 0, "rows of W, each a sine and a cosine; null: columns of a head"),
    LNT_REAL(options, denominator_floor, 1e-12, 1, 0.1, "what the size of the denominator is raised to"),
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
    lnt_buf g = lnt_linear_bias(p, x, "gk_proj", o->num_heads);
    lnt_buf keep = lnt_activation(p, g, LNT_LOG_SIGMOID, 1, true);
    lnt_buf write = lnt_activation(p, lnt_activation(p, g, LNT_IDENTITY, -1, true), LNT_LOG_SIGMOID, 1, true);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}, {"f", keep}, {"i", write}},
                             .option = {{"scale", 1 / (o->denominator_floor * (double)m)}}};
    return lnt_out_proj(p, l, lnt_recur(p, "mlstm", in));
}

const lnt_mixer lnt_mixer_gated_rfa = {
    .kind = {{"gated_rfa", "random feature attention: a Gaussian kernel's features, normalised, with one gate a head",
              "Peng et al. 2021, arXiv 2103.02143", "mlstm"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
