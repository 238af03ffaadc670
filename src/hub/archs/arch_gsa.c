#include "hub/archs.h"

static const lnt_arch_key keys[] = {
    {"expand_k", "expand_k", NULL}, {"expand_k", "exapnd_k", NULL}, /* the constructor's spelling */
    {"expand_v", "expand_v", "1"}, {"expand_v", "exapnd_v", "1"}, /* its norm is as wide as the model */
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("use_norm", "true", "outputs have a norm"),
    LNT_KEPT("use_output_gate", "nobody there reads it"),
    LNT_KEPT("clamp_min", "nobody there reads it"),
    LNT_KEPT("clamp_max", "nobody there reads it"),
    {0},
};

const lnt_arch lnt_arch_gsa = {
    .model_type = "gsa",
    .class_name = "GSAForCausalLM",
    .mixer = "gsa",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .keys = keys,
    .others = others,
    .base = &lnt_arch_fla,
};
