/* Linear attention (arXiv 2006.16236): S_t = S_{t-1} + phi(k_t) v_t^T, o_t = S_t^T phi(q_t), optionally divided by phi(q_t) . sum phi(k). The feature
 * map phi acts on each head; a learned one has its own weights for q and k unless tied. */
#include <math.h>

#include "mixers/mixers.h"

enum { PRODUCT, HEDGEHOG, T2R, DPFP, ELU, RELU, IDENTITY }; /* the words of feature_map */

typedef struct {
    int64_t num_heads, num_kv_heads;
    double expand_k, expand_v;
    int feature_map;
    bool tie_feature_map_qk, norm_q, norm_k, norm_feature_map;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "query heads"),
    LNT_MAYBE_INT(options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys and values; null: num_heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all values, as a share of hidden_size"),
    LNT_WORD(options, feature_map, "elementwise_product hedgehog t2r dpfp elu relu identity", PRODUCT,
             "phi: (Ax+a).(Bx+b), softmax([2Lx,-2Lx]) and relu(Lx) are learned; dpfp, elu(x)+1, relu(x) and x are not"),
    LNT_SWITCH(options, tie_feature_map_qk, false, "one learned feature map for queries and keys"),
    LNT_SWITCH(options, norm_q, false, "queries divided by their sum after the feature map"),
    LNT_SWITCH(options, norm_k, false, "keys divided by their sum after the feature map"),
    LNT_SWITCH(options, norm_feature_map, false, "outputs divided by phi(q) . sum of phi(k)"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_expanded(c, l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
}

static lnt_buf feature_map(lnt_program *p, int map, int64_t d, lnt_buf x, const char *scope)
{
    lnt_init normal = {LNT_INIT_NORMAL, lnt_init_std(p, d), 0};
    lnt_push_scope(p, "%s", scope);
    switch (map) {
    case IDENTITY: break;
    case ELU: x = lnt_activation(p, x, LNT_ELU1, 1, false); break;
    case RELU: x = lnt_activation(p, x, LNT_RELU, 1, false); break;
    case PRODUCT: x = lnt_mul_buf(p, lnt_head_linear(p, x, "layer1", d, true, normal), lnt_head_linear(p, x, "layer2", d, true, normal)); break;
    case HEDGEHOG: /* starts as softmax([2x, -2x]) */
        x = lnt_head_linear(p, x, "layer", d, true, (lnt_init){LNT_INIT_IDENTITY, 0, 0});
        x = lnt_hedgehog(p, lnt_activation(p, x, LNT_IDENTITY, 2, false));
        break;
    case T2R: x = lnt_activation(p, lnt_head_linear(p, x, "layer", d, false, normal), LNT_RELU, 1, false); break;
    case DPFP: x = lnt_dpfp(p, x, 4); break;
    }
    lnt_pop_scope(p);
    return x;
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
    lnt_buf q = lnt_heads_of(p, x, "q_proj", n.heads, n.key);
    lnt_buf k = lnt_heads_of(p, x, "k_proj", n.kv_heads, n.key);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", n.kv_heads, n.value);
    q = feature_map(p, o->feature_map, n.key, q, "feature_map_q");
    k = feature_map(p, o->feature_map, n.key, k, o->tie_feature_map_qk ? "feature_map_q" : "feature_map_k");
    if (o->norm_q) q = lnt_sumnorm(p, q, 1e-4);
    if (o->norm_k) k = lnt_sumnorm(p, k, 1e-4);
    k = lnt_repeat_heads(p, k, (int)(n.heads / n.kv_heads));
    v = lnt_repeat_heads(p, v, (int)(n.heads / n.kv_heads));
    /* the read-out scale is of the mapped key size: hedgehog and dpfp widen it */
    lnt_buf y = lnt_recur(p, "linear_attn", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"normalize", o->norm_feature_map}}});
    return lnt_out_proj(p, l, lnt_rmsnorm(p, y, "norm", l->norm_eps));
}

const lnt_mixer lnt_mixer_linear_attn = {
    .kind = {{"linear_attn", "linear attention with a feature map", "Katharopoulos et al. 2020, arXiv 2006.16236", "linear_attn"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
