/* Softmax attention (arXiv 1706.03762) as in today's transformers: rotary positions, grouped key-value heads, optional window, optional per-head
 * RMSNorm of q and k (its epsilon is 1e-5 whatever norm_eps is). */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_kv_heads, window_size;
    bool qkv_bias, qk_norm;
    double rope_theta;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 32, "query heads; each has hidden_size / num_heads columns"),
    LNT_MAYBE_INT(options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys and values; null: num_heads"),
    LNT_SWITCH(options, qkv_bias, false, "biases in the projections to queries, keys and values"),
    LNT_SWITCH(options, qk_norm, false, "an RMSNorm over each head of queries and keys"),
    LNT_MAYBE_INT(options, window_size, 1, LNT_MOST_TOKENS, 0, 0, "tokens seen, the current one among them; null: all"),
    LNT_REAL(options, rope_theta, 1, 1e15, 10000, "base of the rotary positions"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    LNT_TRY(lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width));
    LNT_TRY(lnt_check_even(c, l, "hidden_size / num_heads", l->width / o->num_heads));
    return o->num_kv_heads ? lnt_check_divides(c, l, "num_kv_heads", o->num_kv_heads, "num_heads", o->num_heads) : LINNET_OK;
}

static lnt_buf qkv(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name, int64_t heads)
{
    const options *o = l->options;
    int64_t out = heads * (l->width / o->num_heads);
    return lnt_with_heads(p, o->qkv_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out), (int32_t)heads);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    int64_t groups = o->num_kv_heads ? o->num_kv_heads : o->num_heads;
    lnt_buf q = qkv(p, l, x, "q_proj", o->num_heads), k = qkv(p, l, x, "k_proj", groups), v = qkv(p, l, x, "v_proj", groups);
    if (o->qk_norm) {
        q = lnt_rmsnorm(p, q, "q_norm", 1e-5);
        k = lnt_rmsnorm(p, k, "k_norm", 1e-5);
    }
    q = lnt_rotary(p, q, o->rope_theta);
    k = lnt_rotary(p, k, o->rope_theta);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"window", (double)o->window_size}}};
    return lnt_out_proj(p, l, lnt_recur(p, "attention", in));
}

const lnt_mixer lnt_mixer_attention = {
    .kind = {{"attention", "softmax attention: rotary, grouped heads, optional window and qk-norm",
              "Vaswani et al. 2017, arXiv 1706.03762; Transformer++ as in Llama", "attention"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
