/* A layer that mixes columns alone: down(relu(up x)^2) where others have a mixer (Nemotron-H, arXiv 2504.03624). */
#include "mixers/mixers.h"

typedef struct {
    int64_t feed_forward_size;
    bool use_bias;
} options;

static const lnt_option keys[] = {
    LNT_MAYBE_INT(options, feed_forward_size, 1, 16 * LNT_MOST_WIDTH, 0, 0, "columns inside; null: 4 hidden_size"),
    LNT_SWITCH(options, use_bias, false, "biases in both products"),
};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t inner = o->feed_forward_size ? o->feed_forward_size : 4 * l->width;
    lnt_buf y = o->use_bias ? lnt_linear_bias(p, x, "up_proj", inner) : lnt_linear(p, x, "up_proj", inner);
    y = lnt_activation(p, y, LNT_SQUARED_RELU, 1, false);
    return o->use_bias ? lnt_linear_bias(p, y, "down_proj", l->width) : lnt_back_linear(p, l, y, "down_proj");
}

const lnt_mixer lnt_mixer_feed_forward = {
    .kind = {{"feed_forward", "no mixing of tokens: relu squared between two products", "Blakeman et al. 2025, arXiv 2504.03624", NULL},
             LNT_OPTIONS(options, keys), NULL},
    .build = build,
};
