#include "hub/archs.h"

static const lnt_arch_other others[] = {LNT_ONLY("output_gate_activation", "\"sigmoid\" null", "output gates have a sigmoid"), {0}};

const lnt_arch lnt_arch_kda = {
    .model_type = "kda",
    .class_name = "KDAForCausalLM",
    .mixer = "kda",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .others = others,
    .base = &lnt_arch_fla,
};
