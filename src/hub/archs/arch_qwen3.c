/* Layers of full attention, and where use_sliding_window is set, from max_window_layers on ones with a window. */
#include "hub/archs.h"

#include <string.h>

static const lnt_arch_layer layers[] = {{"full_attention", "attention", NULL}, {"sliding_attention", "attention", "sliding"}, {0}};

static const lnt_arch_default defaults[] = {
    {"num_hidden_layers", "32"}, {"hidden_size", "4096"}, {"intermediate_size", "22016"}, {"norm_eps", "1e-6"},
    {"num_kv_heads", "32"}, {"attention_head_dim", "128"}, {"qk_norm", "true"}, {"qk_norm_eps", "null"}, {"sliding.window_size", "4096"},
    {"max_position_embeddings", "32768"},
    {"vocab_size", "151936"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"num_heads", "num_attention_heads", NULL}, {"num_kv_heads", "num_key_value_heads", NULL}, {"attention_head_dim", "head_dim", NULL},
    {"qkv_bias", "attention_bias", NULL}, {"o_bias", "attention_bias", NULL}, {"sliding.window_size", "sliding_window", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_KEPT("max_window_layers", "layer_types says which layers have a window"),
    {0},
};

/* Without use_sliding_window nobody reads sliding_window; a file of earlier releases has no layer_types. */
static bool from_theirs(json_t *o)
{
    const bool use = json_is_true(json_object_get(o, "use_sliding_window"));
    const json_int_t layers_ = json_integer_value(json_object_get(o, "num_hidden_layers"));
    const json_t *first = json_object_get(o, "max_window_layers");
    if (!use) json_object_del(o, "sliding_window");
    json_object_del(o, "use_sliding_window");
    if (json_object_get(o, "layer_types")) return true;
    json_t *words = json_array();
    for (json_int_t l = 0; words && l < layers_ && l < LNT_MAX_LAYERS; l++)
        json_array_append_new(words, json_string(use && l >= (first ? json_integer_value(first) : 28) ? "sliding_attention" : "full_attention"));
    return json_object_set_new(o, "layer_types", words) == 0;
}

static bool to_theirs(json_t *o)
{
    const bool use = json_object_get(o, "sliding_window") != NULL;
    if (!use && json_object_set_new(o, "sliding_window", json_null()) != 0) return false;
    return json_object_set_new(o, "use_sliding_window", json_boolean(use)) == 0;
}

const lnt_arch lnt_arch_qwen3 = {
    .model_type = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .mixer = "attention",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .no_null = "head_dim",
    .base = &lnt_arch_causal_lm,
};
