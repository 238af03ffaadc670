#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"num_hidden_layers", "21"}, {0}};

static const lnt_arch_key keys[] = {{"num_v_heads", NULL, "null"}, {0}};

const lnt_arch lnt_arch_gated_deltaproduct = {
    .model_type = "gated_deltaproduct",
    .class_name = "GatedDeltaProductForCausalLM",
    .mixer = "gated_deltaproduct",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .keys = keys,
    .base = &lnt_arch_fla,
};
