/* Olmo-Hybrid: Gated DeltaNet layers with norms in front, softmax layers with norms behind and over all queries and all keys. */
#include "hub/archs.h"

static const lnt_arch_layer layers[] = {{"linear_attention", "gated_deltanet", NULL}, {"full_attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "100352"}, {"hidden_size", "3840"}, {"intermediate_size", "11008"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-6"},
    {"gated_deltanet.num_heads", "30"}, {"gated_deltanet.num_v_heads", "30"}, {"gated_deltanet.head_dim", "96"}, {"gated_deltanet.expand_v", "2"},
    {"gated_deltanet.allow_neg_eigval", "true"}, {"gated_deltanet.output_norm_eps", "1e-5"},
    {"attention.num_heads", "30"}, {"attention.qk_norm", "true"}, {"attention.qk_norm_eps", "null"},
    {"attention.qk_norm_of", "\"all\""}, {"bos_token_id", "null"}, {"eos_token_id", "100257"}, {"pad_token_id", "100277"},
    {"max_position_embeddings", "65536"}, {"rope_theta", "null"},
    {0},
};

static const lnt_arch_key keys[] = {{"gated_deltanet.allow_neg_eigval", "linear_allow_neg_eigval", NULL}, {0}};

static const lnt_arch_other others[] = {
    LNT_KEPT("linear_a_log_max", "how weights begin"),     LNT_KEPT("linear_a_log_min", "how weights begin"),
    LNT_KEPT("linear_dt_init_floor", "how weights begin"), LNT_KEPT("linear_dt_max", "how weights begin"),
    LNT_KEPT("linear_dt_min", "how weights begin"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME_IN("gated_deltanet", ".attn_norm.", ".attention_layer_norm."),
    LNT_RENAME_IN("gated_deltanet", ".mlp_norm.", ".feedforward_layer_norm."),
    LNT_RENAME_IN("gated_deltanet", ".attn.", ".linear_attn."),
    LNT_RENAME_IN("attention", ".attn_post_norm.", ".feedforward_layer_norm."),
    LNT_RENAME_IN("attention", ".mlp_post_norm.", ".post_feedforward_layernorm."),
    {0},
};

const lnt_arch lnt_arch_olmo_hybrid = {
    .model_type = "olmo_hybrid",
    .class_name = "OlmoHybridForCausalLM",
    .mixer = "gated_deltanet",
    .block = "post_norm_others",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .one_of = ".q_conv1d.weight .k_conv1d.weight .v_conv1d.weight",
    .base = &lnt_arch_linear_layers,
};
