/* linnet's own type: any mixers, blocks, norms and MLPs, each with its options under its label,
 *   {"model_type": "linnet", ..., "mixers": {"retnet": {"mixer": "retnet", "num_heads": 4, ...}, ...}, "layer_mixers": ["retnet", ...],
 *    "block": {"kind": "pre_norm"}, "norm": {"kind": "rmsnorm"}, "mlp": {"kind": "swiglu", ...}}
 * It reads what a mixer's name as model type says with keys beside each other, too. */
#include "hub/archs.h"

static const lnt_arch_other others[] = {
    LNT_DROPPED("feature_map", "null", "simple_gla had it; nobody publishes another value"),
    LNT_DROPPED("use_beta", "true", "delta_net had it, and no layer without a write strength"),
    {0},
};

const lnt_arch lnt_arch_linnet = {
    .model_type = "linnet",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .others = others,
    .base = &lnt_arch_transformers,
};
