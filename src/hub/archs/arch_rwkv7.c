#include "hub/archs.h"

static const lnt_arch_default defaults[] = {
    {"norm_eps", "1e-5"}, {"norm_first", "true"}, {"multiple_of", "32"}, {"use_receptance", "false"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"norm_first", "norm_first", NULL}, {"multiple_of", NULL, "32"}, {"use_receptance", NULL, "false"},
    {0},
};

static double value_dim(const lnt_config *k) { return (double)k->hidden_size; }

static const lnt_arch_other others[] = {
    LNT_ONLY("hidden_act", "\"sqrelu\"", "the channel mix has the square of relu"),
    LNT_KEPT("use_l2warp", "a penalty on the largest logit that the class adds in training; logits are the same"),
    LNT_FOLLOWS_EACH("value_dim", value_dim, "hidden_size"),
    {0},
};

static const lnt_arch_tensor tensors[] = {
    {"mlp.key.mu", "mlp.x_k", false}, {"mlp.", "ffn.", false}, {"mlp_norm.", "ffn_norm.", false},
    {0},
};

const lnt_arch lnt_arch_rwkv7 = {
    .model_type = "rwkv7",
    .class_name = "RWKV7ForCausalLM",
    .mixer = "rwkv7",
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
