/* Gated slot attention (arXiv 2409.07146): softmax attention over M slots that forget. With gates f_t = logsigmoid(W_f x_t) / gate_logit_normalizer
 * of the slots, w_t = 1 - e^{f_t}, and phi of q and k,
 *   Kt = Kt-1 diag(e^{f_t}) + k_t w_t^T,   p_t = softmax(Kt^T q_t),   Vt = diag(e^{f_t}) Vt-1 + w_t v_t^T,   o_t = Vt^T p_t
 * two recurrences, gates of the columns and then of the rows, with a softmax between; y = W_o RMSNorm(silu(o)) over the whole width. */
#include "mixers/mixers.h"
#include "ops/feature_maps.h"

enum { SWISH, RELU, T2R }; /* the words of feature_map */

typedef struct {
    int64_t num_heads, num_kv_heads, num_slots, conv_size;
    double expand_k, expand_v, gate_logit_normalizer;
    int feature_map;
    bool use_short_conv;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "query heads"),
    LNT_MAYBE_INT(options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys, values and gates; null: num_heads"),
    LNT_MAYBE_INT(options, num_slots, 1, LNT_FEATURE_MAX, 64, 0, "slots of a head; null: columns of a key"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_REAL(options, gate_logit_normalizer, 1, 1e6, 8, "a decay's logarithm is logsigmoid divided by this"),
    LNT_WORD(options, feature_map, "swish relu t2r", SWISH, "of queries and keys: silu(x), relu(x), relu(Lx) with one learned L"),
    LNT_SWITCH(options, use_short_conv, false, "a causal convolution and silu behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
}

static lnt_buf phi(lnt_program *p, int map, int64_t d, lnt_buf x)
{
    if (map != T2R) return lnt_activation(p, x, map == RELU ? LNT_RELU : LNT_SILU, 1, false);
    x = lnt_head_linear(p, x, "feature_map.layer", d, false, (lnt_init){LNT_INIT_NORMAL, lnt_init_std(p, d), 0});
    return lnt_activation(p, x, LNT_RELU, 1, false);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
    const int64_t conv = o->use_short_conv ? o->conv_size : 0, slots = o->num_slots ? o->num_slots : n.key;
    const lnt_act act = conv ? LNT_SILU : LNT_IDENTITY;
    const int group = (int)(n.heads / n.kv_heads);
    lnt_buf q = phi(p, o->feature_map, n.key, lnt_project(p, x, "q", n.heads, n.key, conv, act));
    lnt_buf k = phi(p, o->feature_map, n.key, lnt_project(p, x, "k", n.kv_heads, n.key, conv, act));
    lnt_buf v = lnt_activation(p, lnt_project(p, x, "v", n.kv_heads, n.value, conv, act), LNT_SILU, 1, false);
    lnt_buf f = lnt_activation(p, lnt_heads_of(p, x, "f_proj", n.kv_heads, slots), LNT_LOG_SIGMOID, 1 / o->gate_logit_normalizer, true);
    lnt_buf w = lnt_repeat_heads(p, lnt_activation(p, f, LNT_ONE_MINUS_EXP, 1, false), group);
    f = lnt_repeat_heads(p, f, group);
    k = lnt_repeat_heads(p, k, group);
    v = lnt_repeat_heads(p, v, group);
    const lnt_recur_in scores = {.tensor = {{"q", q}, {"k", k}, {"v", w}, {"gv", f}}, .option = {{"scale", 1}}};
    lnt_buf slot = lnt_softmax(p, lnt_recur(p, "gla_v", scores));
    const lnt_recur_in read = {.tensor = {{"q", slot}, {"k", w}, {"v", v}, {"gk", f}}, .option = {{"scale", 1}}};
    lnt_buf y = lnt_activation(p, lnt_recur(p, "gla", read), LNT_SILU, 1, false);
    return lnt_out_proj(p, l, lnt_rmsnorm(p, lnt_with_heads(p, y, 1), "g_norm", 1e-5)); /* whatever norm_eps is: published layers have it so */
}

const lnt_mixer lnt_mixer_gsa = {
    .kind = {{"gsa", "softmax attention over a few slots that keys and values are written to, with a gate for each slot",
              "Zhang et al. 2024, arXiv 2409.07146", "gla_v, gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
