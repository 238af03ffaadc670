/* Attention with bounded memory (ABC, arXiv 2110.02488), with weights of the tokens learned by slot: softmax attention over M slots, each a weighted
 * mean of all keys and of all values so far. With e_t = exp(clamp(W_s x_t)) and z_t = e_1 + .. + e_t of the slots,
 *   Kt = sum_j k_j e_j^T,   p_t = softmax(Kt^T q_t / (z_t sqrt(key columns))),   Vt = sum_j e_j v_j^T,   o_t = Vt^T (p_t / z_t)
 * so that the slots are those of a softmax over time: weights e_j / z_t. (Carried as such they would decay by z_{t-1} / z_t, a gate for each slot;
 * undecayed sums need none, and the clamp keeps them in range.) y = W_o (RMSNorm(o) . silu(W_g x)). */
#include "mixers/mixers.h"
#include "ops/feature_maps.h"

static const double ROPE_THETA = 10000;

/* e^CLAMP squared, times a million tokens, is a float. */
#define CLAMP 37.0

typedef struct {
    int64_t num_heads, num_slots, conv_size;
    double expand_k, expand_v, clamp_min, clamp_max;
    bool use_rope, use_short_conv;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "heads"),
    LNT_MAYBE_INT(options, num_slots, 1, LNT_FEATURE_MAX, 64, 0, "slots of a head; null: columns of a key"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 0.5, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_REAL(options, clamp_min, -CLAMP, 0, -32, "logarithms of a token's weights are at least this"),
    LNT_REAL(options, clamp_max, 0, CLAMP, 32, "and at most this"),
    LNT_SWITCH(options, use_rope, true, "rotary positions of queries and keys"),
    LNT_SWITCH(options, use_short_conv, false, "a causal convolution and silu behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    LNT_TRY(lnt_check_expanded(c, l, o->num_heads, 0, o->expand_k, o->expand_v));
    if (!o->use_rope) return LINNET_OK;
    return lnt_check_even(c, l, "hidden_size * expand_k / num_heads", lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v).key);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v);
    const int64_t conv = o->use_short_conv ? o->conv_size : 0;
    const lnt_act act = conv ? LNT_SILU : LNT_IDENTITY;
    lnt_buf q = lnt_project(p, x, "q", n.heads, n.key, conv, act);
    lnt_buf k = lnt_project(p, x, "k", n.heads, n.key, conv, act);
    lnt_buf v = lnt_project(p, x, "v", n.heads, n.value, conv, act);
    if (o->use_rope) q = lnt_rotary(p, q, ROPE_THETA), k = lnt_rotary(p, k, ROPE_THETA);
    lnt_buf s = lnt_clamp(p, lnt_heads_of(p, x, "s_proj", n.heads, o->num_slots ? o->num_slots : n.key), o->clamp_min, o->clamp_max);
    lnt_buf e = lnt_activation(p, s, LNT_EXP, 1, false);
    lnt_buf one = lnt_affine(p, lnt_slice(p, e, 0, 1, 1), LNT_IDENTITY, 0, 1, false); /* of every token: z is linear attention with it */
    const lnt_recur_in sum = {.tensor = {{"q", one}, {"k", one}, {"v", e}}, .option = {{"scale", 1}}};
    lnt_buf share = lnt_activation(p, lnt_recur(p, "linear_attn", sum), LNT_RECIPROCAL, 1, false); /* 1 / z */
    lnt_buf scores = lnt_recur(p, "linear_attn", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", e}}});
    lnt_buf slot = lnt_mul_buf(p, lnt_softmax(p, lnt_mul_buf(p, scores, share)), share);
    lnt_buf y = lnt_recur(p, "linear_attn", (lnt_recur_in){.tensor = {{"q", slot}, {"k", e}, {"v", v}}, .option = {{"scale", 1}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, true, "g_norm", "g_norm"));
}

const lnt_mixer lnt_mixer_abc = {
    .kind = {{"abc", "softmax attention over a few slots, each a weighted mean of all keys and values so far",
              "Peng et al. 2022, arXiv 2110.02488", "linear_attn"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
