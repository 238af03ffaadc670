/* LFM2: convolutions between two gates, and softmax layers with norms of queries and keys. */
#include "hub/archs.h"

static const lnt_arch_layer layers[] = {{"conv", "gated_conv", NULL}, {"full_attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "65536"}, {"hidden_size", "2560"}, {"intermediate_size", "12288"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-5"},
    {"attention.num_heads", "32"}, {"attention.num_kv_heads", "8"}, {"attention.qk_norm", "true"}, {"attention.qk_norm_eps", "null"},
    {"rope_theta", "1000000"}, {"adjust_size", "true"}, {"tie_word_embeddings", "true"}, {"max_position_embeddings", "128000"},
    {"pad_token_id", "0"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"norm_eps", "norm_eps", NULL}, {"gated_conv.conv_kernel", "conv_L_cache", NULL}, {"gated_conv.use_bias", "conv_bias", NULL},
    {"attention.num_heads", "num_attention_heads", NULL}, {"attention.num_kv_heads", "num_key_value_heads", NULL},
    {"adjust_size", "block_auto_adjust_ff_dim", NULL}, {"size_multiplier", "block_ffn_dim_multiplier", NULL},
    {"multiple_of", "block_multiple_of", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("block_use_swiglu", "true", "the MLP is a SwiGLU"),
    LNT_KEPT("full_attn_idxs", "layer_types says which layers are which"),
    LNT_KEPT("block_dim", "hidden_size"), LNT_KEPT("conv_dim", "hidden_size"), LNT_KEPT("conv_dim_out", "hidden_size"),
    LNT_KEPT("block_norm_eps", "norm_eps"), LNT_KEPT("num_heads", "num_attention_heads"), LNT_KEPT("use_pos_enc", "nobody there reads it"),
    LNT_KEPT("block_mlp_init_scale", "how weights begin"), LNT_KEPT("block_out_init_scale", "how weights begin"),
    LNT_KEPT("block_use_xavier_init", "how weights begin"), LNT_KEPT("conv_use_xavier_init", "how weights begin"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.norm.", "model.embedding_norm."), LNT_RENAME(".attn_norm.", ".operator_norm."), LNT_RENAME(".mlp_norm.", ".ffn_norm."),
    LNT_RENAME(".mlp.gate_proj.", ".feed_forward.w1."), LNT_RENAME(".mlp.up_proj.", ".feed_forward.w3."),
    LNT_RENAME(".mlp.down_proj.", ".feed_forward.w2."),
    LNT_RENAME_IN("attention", ".attn.q_norm.", ".attn.q_layernorm."), LNT_RENAME_IN("attention", ".attn.k_norm.", ".attn.k_layernorm."),
    LNT_RENAME_IN("attention", ".attn.o_proj.", ".attn.out_proj."), LNT_RENAME_IN("gated_conv", ".attn.", ".conv."),
    {0},
};

/* Earlier files: block_ff_dim, tie_embedding, and full_attn_idxs in place of layer_types. */
static bool from_theirs(json_t *o)
{
    json_t *size = json_object_get(o, "block_ff_dim"), *tied = json_object_get(o, "tie_embedding"), *list = json_object_get(o, "full_attn_idxs");
    const json_int_t n = json_integer_value(json_object_get(o, "num_hidden_layers"));
    bool fine = true;
    if (size) fine &= json_object_set(o, "intermediate_size", size) == 0;
    if (tied) fine &= json_object_set(o, "tie_word_embeddings", tied) == 0;
    json_object_del(o, "block_ff_dim");
    json_object_del(o, "tie_embedding");
    if (json_object_get(o, "layer_types") || !fine) return fine;
    json_t *words = json_array();
    for (json_int_t l = 0; words && l < n && l < LNT_MAX_LAYERS; l++) {
        bool softmax = !json_is_array(list);
        for (size_t i = 0; i < json_array_size(list); i++) softmax |= json_integer_value(json_array_get(list, i)) == l;
        json_array_append_new(words, json_string(softmax ? "full_attention" : "conv"));
    }
    return json_object_set_new(o, "layer_types", words) == 0;
}

const lnt_arch lnt_arch_lfm2 = {
    .model_type = "lfm2",
    .class_name = "Lfm2ForCausalLM",
    .mixer = "gated_conv",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .from_theirs = from_theirs,
    .base = &lnt_arch_causal_lm,
};
