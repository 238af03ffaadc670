#include "hub/archs.h"

static const lnt_arch_other others[] = {
    LNT_ONLY("use_beta", "true", "there is no layer without a write strength"),
    LNT_KEPT("use_output_norm", "nobody there reads it"),
    {0},
};

const lnt_arch lnt_arch_delta_net = {
    .model_type = "delta_net",
    .class_name = "DeltaNetForCausalLM",
    .mixer = "delta_net",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .others = others,
    .base = &lnt_arch_fla,
};
