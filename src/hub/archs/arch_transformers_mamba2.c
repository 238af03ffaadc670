#include "hub/archs.h"

static const lnt_arch_default defaults[] = {
    {"vocab_size", "32768"}, {"hidden_size", "4096"}, {"num_hidden_layers", "64"}, {"initializer_range", "0.1"}, {"num_heads", "128"},
    {"head_dim", "64"}, {"state_size", "128"}, {"n_groups", "8"}, {"bos_token_id", "0"}, {"eos_token_id", "2"}, {"pad_token_id", "1"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"num_heads", "num_heads", NULL}, {"head_dim", "head_dim", NULL}, {"state_size", "state_size", NULL}, {"n_groups", "n_groups", NULL},
    {"conv_kernel", "conv_kernel", NULL}, {"use_bias", "use_bias", NULL}, {"use_conv_bias", "use_conv_bias", NULL}, {"rmsnorm", "rms_norm", NULL},
    {0},
};

static double expand(const lnt_config *k) { return lnt_arch_number(k, "num_heads") * lnt_arch_number(k, "head_dim") / (double)k->hidden_size; }

static const lnt_arch_other others[] = {
    LNT_FOLLOWS("expand", expand, "num_heads * head_dim / hidden_size"),
    LNT_KEPT("time_step_rank", "nobody there reads it"),
    LNT_KEPT("intermediate_size", "nobody there reads it"),
    {0},
};

const lnt_arch lnt_arch_transformers_mamba2 = {
    .model_type = "mamba2",
    .name = "transformers_mamba2",
    .told_by = "layer_norm_epsilon time_step_rank time_step_limit",
    .class_name = "Mamba2ForCausalLM",
    .mixer = "mamba2",
    .mlp = "none",
    .spelled = true,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .base = &lnt_arch_backbone,
};
