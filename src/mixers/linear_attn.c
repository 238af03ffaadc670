/* Linear attention (arXiv 2006.16236): S_t = S_{t-1} + phi(k_t) v_t^T, o_t = S_t^T phi(q_t), optionally divided by phi(q_t) . sum phi(k). The feature
 * map phi acts on each head; a learned one has its own weights for q and k unless tied. */
#include <math.h>

#include "mixers/mixers.h"

static lnt_buf feature_map(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, const char *scope)
{
    int64_t d = c->key_dim;
    lnt_init normal = {LNT_INIT_NORMAL, lnt_init_std(p, d), 0};
    lnt_push_scope(p, "%s", scope);
    switch (c->feature_map) {
    case LNT_MAP_IDENTITY: break;
    case LNT_MAP_ELU: x = lnt_activation(p, x, LNT_ELU1, 1, false); break;
    case LNT_MAP_RELU: x = lnt_activation(p, x, LNT_RELU, 1, false); break;
    case LNT_MAP_ELEMENTWISE_PRODUCT:
        x = lnt_mul_buf(p, lnt_head_linear(p, x, "layer1", d, true, normal), lnt_head_linear(p, x, "layer2", d, true, normal));
        break;
    case LNT_MAP_HEDGEHOG: /* starts as softmax([2x, -2x]) */
        x = lnt_head_linear(p, x, "layer", d, true, (lnt_init){LNT_INIT_IDENTITY, 0, 0});
        x = lnt_hedgehog(p, lnt_activation(p, x, LNT_IDENTITY, 2, false));
        break;
    case LNT_MAP_T2R: x = lnt_activation(p, lnt_head_linear(p, x, "layer", d, false, normal), LNT_RELU, 1, false); break;
    case LNT_MAP_DPFP: x = lnt_dpfp(p, x, 4); break;
    }
    lnt_pop_scope(p);
    return x;
}

lnt_buf lnt_mixer_linear_attn(lnt_program *p, const lnt_mixer_config *c, lnt_buf x)
{
    lnt_buf q = lnt_with_heads(p, lnt_linear(p, x, "q_proj", c->heads * c->key_dim), c->heads);
    lnt_buf k = lnt_with_heads(p, lnt_linear(p, x, "k_proj", c->kv_heads * c->key_dim), c->kv_heads);
    lnt_buf v = lnt_with_heads(p, lnt_linear(p, x, "v_proj", c->kv_heads * c->value_dim), c->kv_heads);
    k = lnt_repeat_heads(p, k, c->heads / c->kv_heads);
    v = lnt_repeat_heads(p, v, c->heads / c->kv_heads);
    q = feature_map(p, c, q, "feature_map_q");
    k = feature_map(p, c, k, c->tie_feature_map ? "feature_map_q" : "feature_map_k");
    if (c->norm_q) q = lnt_sumnorm(p, q, 1e-4);
    if (c->norm_k) k = lnt_sumnorm(p, k, 1e-4);
    /* the read-out scale is of the mapped key size: hedgehog and dpfp widen it */
    lnt_buf o = lnt_recur(p, "linear_attn", (lnt_recur_in){.q = q, .k = k, .v = v, .scale = NAN, .normalize = c->normalize, .eps = 1e-10});
    return lnt_out_proj(p, c, lnt_rmsnorm(p, o, "norm", c->norm_eps));
}
