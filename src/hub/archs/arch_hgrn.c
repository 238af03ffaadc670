#include "hub/archs.h"

const lnt_arch lnt_arch_hgrn = {
    .model_type = "hgrn",
    .class_name = "HGRNForCausalLM",
    .mixer = "hgrn",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .base = &lnt_arch_fla,
};
