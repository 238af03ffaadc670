#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"num_hidden_layers", "32"}, {"hidden_size", "4096"}, {"intermediate_size", "14336"},
                                            {"norm_eps", "1e-6"}, {"num_kv_heads", "8"}, {"window_size", "4096"}, {0}};

static const lnt_arch_key keys[] = {
    {"num_heads", "num_attention_heads", NULL}, {"num_kv_heads", "num_key_value_heads", NULL}, {"attention_head_dim", "head_dim", NULL},
    {"window_size", "sliding_window", NULL},
    {0},
};

const lnt_arch lnt_arch_mistral = {
    .model_type = "mistral",
    .class_name = "MistralForCausalLM",
    .mixer = "attention",
    .spelled = true,
    .defaults = defaults,
    .keys = keys,
    .base = &lnt_arch_causal_lm,
};
