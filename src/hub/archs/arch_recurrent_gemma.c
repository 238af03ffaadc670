/* RecurrentGemma, Griffin's models (arXiv 2402.19427, arXiv 2404.07839): RG-LRU and windowed attention by turns. */
#include "hub/archs.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"

static const lnt_arch_layer layers[] = {{"recurrent", "rglru", NULL}, {"attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "256000"}, {"hidden_size", "2560"}, {"num_hidden_layers", "26"}, {"intermediate_size", "3840"}, {"norm_eps", "1e-6"},
    {"num_heads", "10"}, {"attention.window_size", "2048"}, {"attention.rotary_factor", "0.5"}, {"attention.o_bias", "true"},
    {"logit_soft_cap", "30"}, {"tie_word_embeddings", "true"}, {"tanh_gelu", "true"}, {"mlp_bias", "true"}, {"embedding_multiplier", "50.5"},
    {"pad_token_id", "0"}, {"eos_token_id", "1"}, {"bos_token_id", "2"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"attention.num_heads", "num_attention_heads", NULL}, {"rglru.num_heads", "num_attention_heads", NULL},
    {"attention.num_kv_heads", "num_key_value_heads", NULL}, {"attention.attention_head_dim", "head_dim", NULL},
    {"attention.window_size", "attention_window_size", NULL}, {"attention.qkv_bias", "attention_bias", NULL},
    {"attention.rotary_factor", "rope_parameters.partial_rotary_factor", NULL}, {"attention.o_bias", NULL, "true"},
    {"rglru.lru_width", "lru_width", NULL}, {"rglru.conv1d_width", "conv1d_width", NULL}, {"logit_soft_cap", "logits_soft_cap", NULL},
    {"tanh_gelu", NULL, "true"}, {"mlp_bias", NULL, "true"}, {"embedding_multiplier", "normalizer", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("hidden_activation", "\"gelu_pytorch_tanh\"", "the MLP has gelu by its formula with tanh"),
    LNT_KEPT("w_init_variance_scale", "how weights begin"),
    LNT_KEPT("final_w_init_variance_scale", "how weights begin"),
    {0},
};

static double heads(const lnt_config *k)
{
    for (int i = 0; i < k->n_mixers; i++) {
        const lnt_option *o = lnt_option_find(&k->mixers[i].kind->options, "num_heads");
        if (o && !strcmp(k->mixers[i].label, "rglru")) return (double)lnt_option_get(o, k->mixers[i].options).integer;
    }
    return 1;
}

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.norm.", "model.final_norm."), LNT_RENAME(".attn_norm.", ".temporal_pre_norm."), LNT_RENAME(".mlp_norm.", ".channel_pre_norm."),
    {".rg_lru.input_gate.weight", ".rg_lru.input_gate_weight", NULL, 0, heads},
    {".rg_lru.recurrent_gate.weight", ".rg_lru.recurrent_gate_weight", NULL, 0, heads},
    LNT_RENAME(".rg_lru.input_gate.bias", ".rg_lru.input_gate_bias"), LNT_RENAME(".rg_lru.recurrent_gate.bias", ".rg_lru.recurrent_gate_bias"),
    LNT_RENAME(".attn.", ".temporal_block."), LNT_RENAME(".mlp.", ".mlp_block."),
    {0},
};

static const char *const ignored[] = {".normalizer", NULL};

/* What the class multiplies embeddings by: the root of the width, in bf16. */
static double normalizer(json_int_t width) { return (double)lnt_bf16_to_f32(lnt_f32_to_bf16((float)sqrt((double)width))); }

/* block_types by turns; intermediate_size counts both branches; positions turn half of a head unless the file says otherwise. */
static bool from_theirs(json_t *o)
{
    static const char *const usual[] = {"recurrent", "recurrent", "attention"};
    json_t *types = json_object_get(o, "block_types"), *words = json_array(), *part = json_object_get(o, "partial_rotary_factor");
    const json_t *inner = json_object_get(o, "intermediate_size"), *width = json_object_get(o, "hidden_size");
    const json_t *columns = json_object_get(o, "lru_width");
    const json_int_t n = json_integer_value(json_object_get(o, "num_hidden_layers"));
    const size_t turn = json_array_size(types);
    bool fine = words != NULL;
    for (json_int_t l = 0; fine && l < n && l < LNT_MAX_LAYERS; l++)
        fine = json_array_append_new(words, json_string(turn ? json_string_value(json_array_get(types, (size_t)l % turn)) : usual[l % 3])) == 0;
    json_object_del(o, "block_types");
    if (fine && json_is_integer(inner)) fine = json_object_set_new(o, "intermediate_size", json_integer(json_integer_value(inner) / 2)) == 0;
    if (fine && columns && width && json_equal(columns, width)) fine = json_object_set_new(o, "lru_width", json_null()) == 0;
    if (fine && width) fine = json_object_set_new(o, "normalizer", json_real(normalizer(json_integer_value(width)))) == 0;
    json_t *rope = json_object_get(o, "rope_parameters");
    if (fine && part && json_is_object(rope) && !json_object_get(rope, "partial_rotary_factor"))
        fine = json_object_set(rope, "partial_rotary_factor", part) == 0;
    if (fine && json_is_object(rope)) json_object_del(o, "partial_rotary_factor");
    if (n > 0) return json_object_set_new(o, "layer_types", words) == 0 && fine;
    json_decref(words);
    return fine;
}

static bool to_theirs(json_t *o)
{
    json_t *inner = json_object_get(o, "intermediate_size"), *width = json_object_get(o, "hidden_size");
    json_t *share = json_object_get(json_object_get(o, "rope_parameters"), "partial_rotary_factor"); /* NULL: no layer has positions */
    const double factor = json_number_value(json_object_get(o, "normalizer"));
    if (!json_is_integer(inner) || factor != normalizer(json_integer_value(width))) return false;
    bool fine = json_object_set_new(o, "intermediate_size", json_integer(2 * json_integer_value(inner))) == 0;
    if (json_is_null(json_object_get(o, "lru_width"))) fine &= json_object_set(o, "lru_width", width) == 0;
    fine &= json_object_set(o, "block_types", json_object_get(o, "layer_types")) == 0;
    if (share) fine &= json_object_set(o, "partial_rotary_factor", share) == 0; /* where earlier releases have it */
    json_object_del(o, "layer_types");
    json_object_del(o, "normalizer");
    return fine;
}

const lnt_arch lnt_arch_recurrent_gemma = {
    .model_type = "recurrent_gemma",
    .class_name = "RecurrentGemmaForCausalLM",
    .mixer = "rglru",
    .norm = "centred_rmsnorm",
    .mlp = "gated_gelu",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .ignored = ignored,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .no_null = "head_dim",
    .base = &lnt_arch_causal_lm,
};
