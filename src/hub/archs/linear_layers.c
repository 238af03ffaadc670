/* Transformers' models of Gated DeltaNet layers ("linear_attention") and softmax layers ("full_attention"), by turns. */
#include "hub/archs.h"

static const lnt_arch_key keys[] = {
    {"gated_deltanet.num_heads", "linear_num_key_heads", NULL}, {"gated_deltanet.num_v_heads", "linear_num_value_heads", NULL},
    {"gated_deltanet.head_dim", "linear_key_head_dim", NULL}, {"gated_deltanet.expand_v", "linear_expand_v", NULL},
    {"gated_deltanet.conv_size", "linear_conv_kernel_dim", NULL}, {"attention.num_heads", "num_attention_heads", NULL},
    {"attention.num_kv_heads", "num_key_value_heads", NULL}, {"attention.attention_head_dim", "head_dim", NULL},
    {"attention.qkv_bias", "attention_bias", NULL}, {"attention.o_bias", "attention_bias", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_KEPT("full_attention_interval", "layer_types says which layers are which"),
    {0},
};

/* Values of linear_value_head_dim columns are linear_expand_v times those of keys; where layer_types is missing every full_attention_interval-th
 * layer is a softmax layer. */
static bool from_theirs(json_t *o)
{
    const json_t *key = json_object_get(o, "linear_key_head_dim"), *value = json_object_get(o, "linear_value_head_dim");
    const json_t *interval = json_object_get(o, "full_attention_interval");
    const json_int_t layers = json_integer_value(json_object_get(o, "num_hidden_layers")), every = interval ? json_integer_value(interval) : 4;
    if (key && value && json_number_value(key) > 0) {
        const double share = json_number_value(value) / json_number_value(key);
        if (json_object_set_new(o, "linear_expand_v", json_real(share)) != 0) return false;
    }
    json_object_del(o, "linear_value_head_dim");
    if (json_object_get(o, "layer_types") || every < 1) return every >= 1;
    json_t *words = json_array();
    for (json_int_t l = 0; words && l < layers && l < LNT_MAX_LAYERS; l++)
        json_array_append_new(words, json_string((l + 1) % every ? "linear_attention" : "full_attention"));
    return json_object_set_new(o, "layer_types", words) == 0;
}

static bool to_theirs(json_t *o)
{
    const double key = json_number_value(json_object_get(o, "linear_key_head_dim")), share = json_number_value(json_object_get(o, "linear_expand_v"));
    const json_int_t value = (json_int_t)(key * share + 0.5);
    json_object_del(o, "linear_expand_v");
    return json_object_set_new(o, "linear_value_head_dim", json_integer(value)) == 0;
}

const lnt_arch lnt_arch_linear_layers = {
    .keys = keys, .others = others, .from_theirs = from_theirs, .to_theirs = to_theirs, .no_null = "head_dim",
    .base = &lnt_arch_causal_lm,
};
