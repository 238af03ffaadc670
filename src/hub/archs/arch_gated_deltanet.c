#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"num_hidden_layers", "21"}, {0}};

const lnt_arch lnt_arch_gated_deltanet = {
    .model_type = "gated_deltanet",
    .class_name = "GatedDeltaNetForCausalLM",
    .mixer = "gated_deltanet",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .base = &lnt_arch_fla,
};
