/* HGRN (arXiv 2311.04823): an elementwise recurrence whose decay lies above a bound that rises from layer to layer,
 * h_t = f_t h_{t-1} + (1 - f_t) silu(i_proj x_t), f_t = b + (1 - b) sigmoid(f_proj x_t), y_t = o_proj (RMSNorm(h_t) silu(g_proj x_t)). */
#include "mixers/mixers.h"

typedef struct {
    double expand_ratio;
    int64_t conv_size;
    bool use_short_conv, use_lower_bound;
} options;

static const lnt_option keys[] = {
    LNT_REAL(options, expand_ratio, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of the state, as a share of hidden_size"),
    LNT_SWITCH(options, use_short_conv, false, "a causal convolution behind the projections to i and f"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, use_lower_bound, true, "decays above a learned bound that rises from layer to layer"),
};

static int64_t columns(const lnt_layer *l) { return (int64_t)((double)l->width * ((const options *)l->options)->expand_ratio); }

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (columns(l) < 1)
        return lnt_fail(c, LINNET_EINVAL, "%sexpand_ratio = %g of hidden_size = %lld leaves no column", l->where, o->expand_ratio,
                        (long long)l->width);
    if (o->use_lower_bound && columns(l) != l->width) /* the bounds are as wide as the model */
        return lnt_fail(c, LINNET_EINVAL, "%sexpand_ratio is %g, expected 1 with use_lower_bound = true", l->where, o->expand_ratio);
    return LINNET_OK;
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t conv = o->use_short_conv ? o->conv_size : 0;
    lnt_buf i = lnt_project(p, x, "i", 1, columns(l), conv, LNT_IDENTITY);
    lnt_buf log_f = lnt_rising_decay(p, l, lnt_project(p, x, "f", 1, columns(l), conv, LNT_IDENTITY), o->use_lower_bound);
    lnt_buf write = lnt_swiglu(p, i, lnt_activation(p, log_f, LNT_ONE_MINUS_EXP, 1, false));
    lnt_buf h = lnt_recur(p, "scan", (lnt_recur_in){.tensor = {{"log_a", log_f}, {"x", write}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, h, true, "g_norm", "g_norm"));
}

const lnt_mixer lnt_mixer_hgrn = {
    .kind = {{"hgrn", "a gated recurrence of channels, with decays bounded from below", "Qin et al. 2023, arXiv 2311.04823", "scan"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
