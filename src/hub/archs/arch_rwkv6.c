#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"norm_eps", "1e-5"}, {"norm_first", "true"}, {"hidden_ratio", "3.5"}, {"multiple_of", "32"}, {0}};

static const lnt_arch_key keys[] = {
    {"norm_first", "norm_first", NULL}, {"multiple_of", NULL, "32"}, {"use_receptance", NULL, "true"},
    {0},
};

static const lnt_arch_other others[] = {LNT_ONLY("hidden_act", "\"sqrelu\"", "the channel mix has the square of relu"), {0}};

static const lnt_arch_tensor tensors[] = {
    {"mlp.key.weight", "mlp.key.linear.weight", false}, {"mlp.receptance.weight", "mlp.receptance.linear.weight", false},
    {"mlp.", "ffn.", false}, {"mlp_norm.", "ffn_norm.", false},
    {0},
};

const lnt_arch lnt_arch_rwkv6 = {
    .model_type = "rwkv6",
    .class_name = "RWKV6ForCausalLM",
    .mixer = "rwkv6",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .norm = "layernorm",
    .mlp = "channel_mix",
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .base = &lnt_arch_fla,
};
