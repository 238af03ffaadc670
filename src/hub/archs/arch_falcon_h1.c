/* Falcon-H1: Mamba-2 and attention side by side in every layer, with multipliers everywhere. */
#include "hub/archs.h"

static const lnt_arch_default defaults[] = {
    {"vocab_size", "128000"}, {"hidden_size", "4096"}, {"intermediate_size", "14336"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-5"},
    {"num_heads", "32"}, {"num_kv_heads", "8"}, {"mamba_heads", "128"}, {"mamba_head_dim", "8"}, {"mamba_state_size", "256"},
    {"max_position_embeddings", "8192"}, {"pad_token_id", "0"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"num_heads", "num_attention_heads", NULL}, {"num_kv_heads", "num_key_value_heads", NULL}, {"attention_head_dim", "head_dim", NULL},
    {"qkv_bias", "attention_bias", NULL}, {"o_bias", "attention_bias", NULL}, {"mlp_bias", "mlp_bias", NULL},
    {"key_multiplier", "key_multiplier", NULL}, {"embedding_multiplier", "embedding_multiplier", NULL},
    {"logit_multiplier", "lm_head_multiplier", NULL}, {"ssm_in_multiplier", "ssm_in_multiplier", NULL},
    {"ssm_out_multiplier", "ssm_out_multiplier", NULL}, {"attention_in_multiplier", "attention_in_multiplier", NULL},
    {"attention_out_multiplier", "attention_out_multiplier", NULL}, {"gate_multiplier", "mlp_multipliers.0", NULL},
    {"down_multiplier", "mlp_multipliers.1", NULL}, {"gate_factor", "ssm_multipliers.0", NULL}, {"x_factor", "ssm_multipliers.1", NULL},
    {"b_factor", "ssm_multipliers.2", NULL}, {"c_factor", "ssm_multipliers.3", NULL}, {"step_factor", "ssm_multipliers.4", NULL},
    {"mamba_heads", "mamba_n_heads", NULL}, {"mamba_head_dim", "mamba_d_head", NULL}, {"mamba_state_size", "mamba_d_state", NULL},
    {"mamba_groups", "mamba_n_groups", NULL}, {"mamba_conv_kernel", "mamba_d_conv", NULL}, {"mamba_conv_bias", "mamba_conv_bias", NULL},
    {"mamba_bias", "mamba_proj_bias", NULL}, {"mamba_norm", "mamba_rms_norm", NULL},
    {"mamba_norm_before_gate", "mamba_norm_before_gate", NULL},
    {0},
};

static double inner(const lnt_config *k) { return lnt_arch_number(k, "mamba_heads") * lnt_arch_number(k, "mamba_head_dim"); }

static const lnt_arch_other others[] = {
    LNT_FOLLOWS("mamba_d_ssm", inner, "mamba_n_heads * mamba_d_head"),
    LNT_KEPT("mamba_expand", "mamba_n_heads and mamba_d_head say it"),
    LNT_KEPT("mamba_chunk_size", "how a kernel cuts sequences"),
    LNT_KEPT("mamba_use_mlp", "nobody there reads it"),
    LNT_KEPT("time_step_min", "how weights begin"),
    LNT_KEPT("time_step_max", "how weights begin"),
    LNT_ONLY("projectors_bias", "false", "the last products of the layer have no biases of their own"),
    LNT_ONLY("time_step_limit", "[0.0,Infinity] [0,Infinity] [0.0,{\"__float__\":\"Infinity\"}] null", "steps are not limited"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.norm.", "model.final_layernorm."), LNT_RENAME(".mlp_norm.", ".pre_ff_layernorm."), LNT_RENAME(".mlp.", ".feed_forward."),
    LNT_RENAME(".attn.ssm.", ".mamba."), LNT_RENAME(".attn.softmax.", ".self_attn."),
    {0},
};

/* Lists of multipliers as objects whose keys are the places. */
static bool by_place(json_t *o, const char *key)
{
    const json_t *list = json_object_get(o, key);
    json_t *places = json_object();
    char at[8] = "0";
    if (!json_is_array(list) || json_array_size(list) > 9) return json_decref(places), !list;
    for (size_t i = 0; i < json_array_size(list); i++) {
        at[0] = (char)('0' + i);
        json_object_set(places, at, json_array_get(list, i));
    }
    return json_object_set_new(o, key, places) == 0;
}

static bool as_list(json_t *o, const char *key)
{
    const json_t *places = json_object_get(o, key), *value;
    json_t *list = json_array();
    char at[8] = "0";
    for (; (value = json_object_get(places, at)) != NULL; at[0]++) json_array_append(list, (json_t *)(uintptr_t)value);
    return json_object_set_new(o, key, list) == 0;
}

static bool from_theirs(json_t *o) { return by_place(o, "mlp_multipliers") && by_place(o, "ssm_multipliers"); }

static bool to_theirs(json_t *o) { return as_list(o, "mlp_multipliers") && as_list(o, "ssm_multipliers"); }

const lnt_arch lnt_arch_falcon_h1 = {
    .model_type = "falcon_h1",
    .class_name = "FalconH1ForCausalLM",
    .mixer = "hybrid_heads",
    .spelled = true,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .no_null = "head_dim",
    .base = &lnt_arch_causal_lm,
};
