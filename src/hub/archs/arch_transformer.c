#include "hub/archs.h"

/* What our layer can do beside the class's. */
static const lnt_arch_key keys[] = {
    {"attention_head_dim", NULL, "null"}, {"o_bias", NULL, "false"}, {"qk_norm_of", NULL, "\"head\""}, {"centred_qk_norm", NULL, "false"},
    {"qk_norm_eps", NULL, "1e-5"}, {"attention_gate", NULL, "false"}, {"attention_scale", NULL, "null"}, {"key_multiplier", NULL, "1"},
    {"rotary_factor", NULL, "1"},
    {"attention_rope", NULL, "true"}, {"rope_type", NULL, "\"default\""}, {"rope_factor", NULL, "1"}, {"rope_low_freq_factor", NULL, "1"},
    {"rope_high_freq_factor", NULL, "4"}, {"rope_original_positions", NULL, "8192"}, {"rope_beta_fast", NULL, "32"},
    {"rope_beta_slow", NULL, "1"}, {"rope_truncate", NULL, "true"}, {"rope_attention_factor", NULL, "null"}, {"rope_mscale", NULL, "null"},
    {"rope_mscale_all_dim", NULL, "null"},
    {0},
};

const lnt_arch lnt_arch_transformer = {
    .model_type = "transformer",
    .class_name = "TransformerForCausalLM",
    .mixer = "attention",
    .keys = keys,
    .base = &lnt_arch_fla,
};
