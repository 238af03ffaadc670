/* HGRN2 (arXiv 2404.07904): HGRN's bounded decays on a state of rows and columns, S_t = diag(f_t) S_{t-1} + (1 - f_t) i_t^T,
 * o_t = S_t^T q_t / sqrt(n) for heads of n columns, with a norm over the whole width behind it. */
#include "mixers/mixers.h"

typedef struct {
    int64_t expand_ratio, conv_size;
    bool use_short_conv, use_lower_bound;
} options;

enum { USUAL = 128 };

static const lnt_option keys[] = {
    LNT_MAYBE_INT(options, expand_ratio, 1, LNT_MOST_WIDTH, 0, 0, "columns of each of hidden_size / expand_ratio heads; null: 128, or hidden_size"),
    LNT_SWITCH(options, use_short_conv, false, "a causal convolution behind the projections to q, f and i"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
    LNT_SWITCH(options, use_lower_bound, true, "decays above a learned bound that rises from layer to layer"),
};

static int64_t head_of(const options *o, const lnt_layer *l) { return o->expand_ratio ? o->expand_ratio : l->width < USUAL ? l->width : USUAL; }

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    return lnt_check_divides(c, l, "expand_ratio", head_of(l->options, l), "hidden_size", l->width);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t heads = l->width / head_of(o, l), conv = o->use_short_conv ? o->conv_size : 0;
    lnt_buf q = lnt_project(p, x, "q", heads, head_of(o, l), conv, LNT_SILU);
    lnt_buf log_f = lnt_rising_decay(p, l, lnt_project(p, x, "f", 1, l->width, conv, LNT_IDENTITY), o->use_lower_bound);
    log_f = lnt_with_heads(p, log_f, (int32_t)heads);
    lnt_buf k = lnt_activation(p, log_f, LNT_ONE_MINUS_EXP, 1, false);
    lnt_buf v = lnt_project(p, x, "i", heads, head_of(o, l), conv, LNT_IDENTITY);
    lnt_buf y = lnt_recur(p, "gla", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"gk", log_f}}});
    return lnt_out_proj(p, l, lnt_rmsnorm(p, lnt_with_heads(p, y, 1), "g_norm", 1e-5)); /* whatever norm_eps is: published layers have it so */
}

const lnt_mixer lnt_mixer_hgrn2 = {
    .kind = {{"hgrn2", "gated linear attention whose keys are what decays bounded from below leave", "Qin et al. 2024, arXiv 2404.07904", "gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
