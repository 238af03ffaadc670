#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"hidden_ratio", "2"}, {0}};

static const lnt_arch_other others[] = {
    LNT_ONLY("feature_map", "null", "nobody publishes another"),
    LNT_ONLY("gate_fn", "\"swish\" \"silu\"", "output gates have silu"),
    LNT_ONLY("clamp_min", "null", "decays are constant"),
    LNT_KEPT("use_short_conv", "the class never builds a convolution"),
    LNT_KEPT("conv_size", "the class never builds a convolution"),
    LNT_DROPPED("fuse_norm", NULL, "whether one kernel computes the norm; it decides the weight's name, and ours is that of the default"),
    {0},
};

static const lnt_arch_tensor tensors[] = {{"g_norm_swish_gate.weight", "g_norm.weight", true}, {0}};

const lnt_arch lnt_arch_retnet = {
    .model_type = "retnet",
    .class_name = "RetNetForCausalLM",
    .mixer = "retnet",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .others = others,
    .tensors = tensors,
    .base = &lnt_arch_fla,
};
