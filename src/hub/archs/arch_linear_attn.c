#include "hub/archs.h"

const lnt_arch lnt_arch_linear_attn = {
    .model_type = "linear_attn",
    .class_name = "LinearAttentionForCausalLM",
    .mixer = "linear_attn",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .base = &lnt_arch_fla,
};
