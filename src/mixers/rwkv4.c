/* RWKV-4's time mix (Peng et al. 2023, arXiv 2305.13048, section 3): with x' the token before x, k, v and r are made of m x + (1 - m) x', and
 *   y = W_o (sigmoid(r) . wkv(k, v)),
 * where wkv is a mean of the values so far with weights e^k that decay by a rate of each channel, the current token's with a bonus. Its block (model
 * type rwkv) has LayerNorm, one more of the embeddings, and the channel mix. */
#include "mixers/mixers.h"

typedef struct {
    int64_t attention_hidden_size;
} options;

static const lnt_option keys[] = {
    LNT_MAYBE_INT(options, attention_hidden_size, 1, LNT_MOST_WIDTH, 0, 0, "channels of the recurrence; null: hidden_size"),
};

static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    (void)heads, (void)head;
    o->attention_hidden_size = 0;
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t D = o->attention_hidden_size ? o->attention_hidden_size : l->width;
    const lnt_init half = {LNT_INIT_CONST, 0.5, 0};
    const int64_t width = lnt_cols(p, x);
    const lnt_buf mu[3] = {lnt_row_param(p, "time_mix_key", 1, width, half), lnt_row_param(p, "time_mix_value", 1, width, half),
                           lnt_row_param(p, "time_mix_receptance", 1, width, half)};
    lnt_buf seen = lnt_lerps(p, lnt_token_shift(p, x), x, 3, mu);
    lnt_buf k = lnt_linear(p, lnt_slice(p, seen, 0, width, 1), "key", D);
    lnt_buf v = lnt_linear(p, lnt_slice(p, seen, width, width, 1), "value", D);
    lnt_buf r = lnt_linear(p, lnt_slice(p, seen, 2 * width, width, 1), "receptance", D);
    /* the paper's code: decays from e^{-e^-5} = 0.993 to 1e-9 a token, and a bonus of 0.3 */
    lnt_buf w = lnt_row_param(p, "time_decay", 1, D, (lnt_init){LNT_INIT_SPREAD, -5, 3});
    lnt_buf u = lnt_row_param(p, "time_first", 1, D, (lnt_init){LNT_INIT_CONST, -1.2039728, 0});
    lnt_buf y = lnt_recur(p, "wkv", (lnt_recur_in){.tensor = {{"k", k}, {"v", v}, {"w", w}, {"u", u}}});
    return lnt_back_linear(p, l, lnt_glu(p, r, y, LNT_SIGMOID), "output");
}

const lnt_mixer lnt_mixer_rwkv4 = {
    .kind = {{"rwkv4", "a mean of values with exponential weights that decay by channel, inputs mixed with the token before",
              "Peng et al. 2023, arXiv 2305.13048", "wkv"},
             LNT_OPTIONS(options, keys), NULL},
    .size = size,
    .build = build,
};
