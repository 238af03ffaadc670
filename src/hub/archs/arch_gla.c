#include "hub/archs.h"

/* The layer has them, the configuration does not pass them on. */
static const lnt_arch_key keys[] = {{"gate_low_rank_dim", NULL, "16"}, {"gate_logit_normalizer", NULL, "16"}, {0}};

static const lnt_arch_other others[] = {
    LNT_ONLY("feature_map", "null", "nobody publishes another"),
    LNT_KEPT("use_gk", "nobody there reads it"),
    LNT_KEPT("use_gv", "nobody there reads it"),
    LNT_DROPPED("fuse_norm", NULL, "whether one kernel computes the norm; it decides the weight's name, and ours is that of the default"),
    {0},
};

static const lnt_arch_tensor tensors[] = {{"g_norm_swish_gate.weight", "g_norm.weight", true}, {0}};

const lnt_arch lnt_arch_gla = {
    .model_type = "gla",
    .class_name = "GLAForCausalLM",
    .mixer = "gla",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .base = &lnt_arch_fla,
};
