#include "hub/archs.h"

static const lnt_arch_key keys[] = {
    {"expand_k", "expand_k", NULL}, {"expand_k", "exapnd_k", NULL}, /* the constructor's spelling */
    {"expand_v", "expand_v", NULL}, {"expand_v", "exapnd_v", NULL},
    {0},
};

static const lnt_arch_other others[] = {LNT_KEPT("gate_low_rank_dim", "nobody there reads it"), {0}};

const lnt_arch lnt_arch_abc = {
    .model_type = "abc",
    .class_name = "ABCForCausalLM",
    .mixer = "abc",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .keys = keys,
    .others = others,
    .base = &lnt_arch_fla,
};
