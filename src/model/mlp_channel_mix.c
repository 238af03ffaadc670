/* RWKV's channel mix (arXiv 2404.05892, equations 20 to 22; arXiv 2503.14456 without the receptance): with x' the token before,
 *   value(relu(key(x + (x' - x) mu_k))^2) * sigmoid(receptance(x + (x' - x) mu_r)). */
#include "model/kinds.h"

typedef struct {
    lnt_mlp_options size; /* first */
    bool use_receptance, mix_is_own;
} options;

static const lnt_option keys[] = {
    LNT_MLP_KEYS_OF(4, "3.5, without a receptance 4", "hidden_ratio hidden_size, rounded up"),
    LNT_SWITCH(options, use_receptance, true, "outputs times sigmoid(receptance), as in RWKV-6"),
    LNT_SWITCH(options, mix_is_own, false, "mu is the share of the token itself, as in RWKV-4, not that of the one before"),
};

/* What the key and the receptance see, side by side. */
static lnt_buf mix(lnt_program *p, const options *o, lnt_buf x)
{
    const lnt_init half = {LNT_INIT_CONST, 0.5, 0};
    lnt_buf before = lnt_token_shift(p, x), mu[2] = {lnt_row_param(p, "key.mu", 1, lnt_cols(p, x), half)};
    if (o->use_receptance) mu[1] = lnt_row_param(p, "receptance.mu", 1, lnt_cols(p, x), half);
    const int count = 1 + o->use_receptance;
    return o->mix_is_own ? lnt_lerps(p, before, x, count, mu) : lnt_lerps(p, x, before, count, mu);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_buf seen = mix(p, o, x);
    lnt_buf k = lnt_linear(p, lnt_slice(p, seen, 0, l->width, 1), "key", lnt_mlp_width(l, o->use_receptance ? 3.5 : 4, 1, 1));
    lnt_buf y = lnt_back_linear(p, l, lnt_activation(p, k, LNT_SQUARED_RELU, 1, false), "value");
    if (!o->use_receptance) return y;
    lnt_buf r = lnt_linear(p, lnt_slice(p, seen, l->width, l->width, 1), "receptance", l->width);
    return lnt_glu(p, r, y, LNT_SIGMOID);
}

const lnt_mlp lnt_mlp_channel_mix = {.kind = {{"channel_mix", "RWKV's: relu squared of a mix with the token before, and a gate",
                                               "Peng et al. 2024, arXiv 2404.05892", NULL},
                                              LNT_OPTIONS(options, keys), NULL},
                                     .build = build};
