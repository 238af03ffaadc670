/* Nemotron-H: layers of one thing each, Mamba-2, attention without positions, or a feed-forward map. */
#include "hub/archs.h"

#include <string.h>

static const lnt_arch_layer layers[] = {
    {"mamba", "mamba2", NULL}, {"attention", "attention", NULL}, {"mlp", "feed_forward", NULL},
    {0},
};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "131072"}, {"hidden_size", "4096"}, {"num_hidden_layers", "52"}, {"mamba2.num_heads", "128"}, {"mamba2.head_dim", "64"},
    {"mamba2.state_size", "128"}, {"mamba2.n_groups", "8"}, {"attention.num_heads", "32"}, {"attention.num_kv_heads", "8"},
    {"attention.attention_head_dim", "128"}, {"attention.attention_rope", "false"},
    {"feed_forward.feed_forward_size", "21504"}, {"mamba2.step_min", "1e-3"},
    {"pad_token_id", "0"}, {"max_position_embeddings", "4096"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"mamba2.num_heads", "mamba_num_heads", NULL}, {"mamba2.head_dim", "mamba_head_dim", NULL}, {"mamba2.state_size", "ssm_state_size", NULL},
    {"mamba2.n_groups", "n_groups", NULL}, {"mamba2.conv_kernel", "conv_kernel", NULL}, {"mamba2.use_conv_bias", "use_conv_bias", NULL},
    {"mamba2.use_bias", "mamba_proj_bias", NULL}, {"mamba2.step_min", "time_step_min", NULL}, {"attention.num_heads", "num_attention_heads", NULL},
    {"attention.num_kv_heads", "num_key_value_heads", NULL}, {"attention.attention_head_dim", "head_dim", NULL},
    {"attention.qkv_bias", "attention_bias", NULL}, {"attention.o_bias", "attention_bias", NULL},
    {"feed_forward.feed_forward_size", "intermediate_size", NULL}, {"feed_forward.use_bias", "mlp_bias", NULL},
    {"rope_theta", NULL, NULL}, {"rope_type", NULL, NULL}, {"rope_factor", NULL, NULL}, {"rope_low_freq_factor", NULL, NULL},
    {"rope_high_freq_factor", NULL, NULL}, {"rope_original_positions", NULL, NULL}, {"rope_beta_fast", NULL, NULL},
    {"rope_beta_slow", NULL, NULL}, {"rope_truncate", NULL, NULL}, {"rope_attention_factor", NULL, NULL}, {"rope_mscale", NULL, NULL},
    {"rope_mscale_all_dim", NULL, NULL},
    {0},
};

#define NO_EXPERTS(key) LNT_KEPT(key, "no layer has experts")
static const lnt_arch_other others[] = {
    LNT_ONLY("mamba_hidden_act", "\"silu\"", "the convolution is followed by silu"),
    LNT_ONLY("mlp_hidden_act", "\"relu2\"", "feed-forward maps have relu squared"),
    LNT_ONLY("hidden_dropout", "0 0.0", "nothing is dropped in training"),
    LNT_ONLY("sliding_window", "null", "softmax layers see everything"),
    LNT_ONLY("use_bias", "false", "mamba_proj_bias says it"),
    LNT_ONLY("num_nextn_predict_layers", "0", "layers that guess further tokens are not offered"),
    LNT_KEPT("mtp_layers_block_type", "there are no layers that guess further tokens"),
    LNT_KEPT("expand", "mamba_num_heads and mamba_head_dim say it"),
    LNT_KEPT("mamba_ssm_cache_dtype", "states are float32"),
    NO_EXPERTS("moe_intermediate_size"), NO_EXPERTS("moe_latent_size"), NO_EXPERTS("moe_shared_expert_intermediate_size"),
    NO_EXPERTS("moe_shared_expert_overlap"), NO_EXPERTS("n_group"), NO_EXPERTS("n_routed_experts"), NO_EXPERTS("n_shared_experts"),
    NO_EXPERTS("norm_topk_prob"), NO_EXPERTS("num_experts_per_tok"), NO_EXPERTS("routed_scaling_factor"), NO_EXPERTS("topk_group"),
    {0},
};

/* Releases around 5.10 called it so; published files and releases behind them have our base's name. */
static const lnt_arch_tensor tensors[] = {{"model.embeddings.", "backbone.embedding.", true}, {0}};

/* The layers under layers_block_type, or earlier as the letters of hybrid_override_pattern. */
static bool from_theirs(json_t *o)
{
    const char *letters = json_string_value(json_object_get(o, "hybrid_override_pattern"));
    json_t *words = json_object_get(o, "layers_block_type");
    if (words) json_incref(words);
    else words = json_array();
    for (; letters && *letters && !json_object_get(o, "layers_block_type"); letters++)
        json_array_append_new(words, json_string(*letters == 'M' ? "mamba" : *letters == '*' ? "attention" : *letters == '-' ? "mlp" : "moe"));
    json_object_del(o, "layers_block_type");
    json_object_del(o, "hybrid_override_pattern");
    if (!json_array_size(words)) return json_decref(words), true;
    if (json_object_set_new(o, "num_hidden_layers", json_integer((json_int_t)json_array_size(words))) != 0) return json_decref(words), false;
    return json_object_set_new(o, "layer_types", words) == 0;
}

static bool to_theirs(json_t *o)
{
    json_t *words = json_incref(json_object_get(o, "layer_types"));
    json_object_del(o, "layer_types");
    return json_object_set_new(o, "layers_block_type", words) == 0;
}

const lnt_arch lnt_arch_nemotron_h = {
    .model_type = "nemotron_h",
    .class_name = "NemotronHForCausalLM",
    .mixer = "mamba2",
    .mlp = "none",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .no_null = "head_dim",
    .base = &lnt_arch_backbone,
};
