#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"num_hidden_layers", "21"}, {0}};

static const lnt_arch_key keys[] = {{"output_norm_eps", NULL, "null"}, {0}}; /* beside what the class can say */

const lnt_arch lnt_arch_gated_deltanet = {
    .model_type = "gated_deltanet",
    .class_name = "GatedDeltaNetForCausalLM",
    .mixer = "gated_deltanet",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .keys = keys,
    .base = &lnt_arch_fla,
};
