#include "hub/archs.h"

static double heads(const lnt_config *k)
{
    const double head = lnt_arch_number(k, "expand_ratio");
    return (double)k->hidden_size / (head > 0 ? head : k->hidden_size < 128 ? (double)k->hidden_size : 128);
}

static const lnt_arch_default absent[] = {{"expand_ratio", "128"}, {0}};

static const lnt_arch_other others[] = {LNT_FOLLOWS("num_heads", heads, "hidden_size / expand_ratio"), {0}};

const lnt_arch lnt_arch_hgrn2 = {
    .model_type = "hgrn2",
    .class_name = "HGRN2ForCausalLM",
    .mixer = "hgrn2",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .absent = absent,
    .others = others,
    .base = &lnt_arch_fla,
};
