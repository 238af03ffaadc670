/* Mamba whose B, C and step sizes are normalised, without weights (arXiv 2410.05355). */
#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"vocab_size", "50280"}, {"hidden_size", "768"}, {"num_hidden_layers", "32"}, {"dt_rank", "48"},
                                            {"initializer_range", "0.1"}, {"bos_token_id", "0"}, {"eos_token_id", "0"},
                                            {"pad_token_id", "0"}, {"tie_word_embeddings", "true"}, {"inner_norm", "\"plain\""},
                                            {"inner_norm_eps", "1e-6"}, {0}};

static const lnt_arch_key keys[] = {
    {"state_size", "state_size", NULL}, {"expand", "expand", NULL}, {"conv_kernel", "conv_kernel", NULL}, {"use_bias", "use_bias", NULL},
    {"use_conv_bias", "use_conv_bias", NULL}, {"dt_rank", "time_step_rank", NULL}, {"channels", "intermediate_size", NULL},
    {"inner_norm_eps", "mixer_rms_eps", NULL}, {"allow_neg_eigval", NULL, "false"},
    {0},
};

const lnt_arch lnt_arch_falcon_mamba = {
    .model_type = "falcon_mamba",
    .class_name = "FalconMambaForCausalLM",
    .mixer = "mamba",
    .mlp = "none",
    .spelled = true,
    .defaults = defaults,
    .keys = keys,
    .base = &lnt_arch_expanded,
};
