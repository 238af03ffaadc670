#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"num_hidden_layers", "21"}, {0}};

static const lnt_arch_other others[] = {LNT_ONLY("output_gate_activation", "\"sigmoid\" null", "output gates have a sigmoid"), {0}};

const lnt_arch lnt_arch_comba = {
    .model_type = "comba",
    .class_name = "CombaForCausalLM",
    .mixer = "comba",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .others = others,
    .base = &lnt_arch_fla,
};
