/* Bamba: Mamba-2 with a few softmax layers, which attn_layer_indices lists. */
#include "hub/archs.h"

#include <stdlib.h>
#include <string.h>

static const lnt_arch_layer layers[] = {{"mamba", "mamba2", NULL}, {"attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "128000"}, {"hidden_size", "4096"}, {"intermediate_size", "14336"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-5"},
    {"mamba2.num_heads", "128"}, {"mamba2.head_dim", "64"}, {"mamba2.state_size", "256"}, {"mamba2.norm_of", "\"all\""},
    {"attention.num_heads", "32"}, {"attention.num_kv_heads", "8"},  {"max_position_embeddings", "262144"},
    {"pad_token_id", "0"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"attention.rotary_factor", "rotary_share", NULL}, {"mlp_bias", "mlp_bias", NULL},
    {0},
};

#define SHARE "rope_parameters.partial_rotary_factor"

static const lnt_arch_other others[] = {
    LNT_KEPT(SHARE, "take_share reads it"),
    LNT_KEPT("partial_rotary_factor", "take_share reads it"),
    LNT_KEPT("attn_rotary_emb", "nobody there reads it"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.norm.", "model.final_layernorm."), LNT_RENAME(".mlp_norm.", ".pre_ff_layernorm."), LNT_RENAME(".mlp.", ".feed_forward."),
    {0},
};

/* Releases 5.0 to 5.14 turn whole heads by the position, whatever the file says. */
static bool turns_whole_heads(const json_t *o)
{
    const char *release = json_string_value(json_object_get(o, "transformers_version"));
    return release && !strncmp(release, "5.", 2) && strtol(release + 2, NULL, 10) <= 14;
}

/* Half of each head, or the share that the file says, in rope_parameters or beside. */
static bool take_share(json_t *o)
{
    const json_t *share = json_object_get(json_object_get(o, "rope_parameters"), "partial_rotary_factor");
    if (!share) share = json_object_get(o, "partial_rotary_factor");
    return json_object_set_new(o, "rotary_share", json_real(turns_whole_heads(o) ? 1 : share ? json_number_value(share) : 0.5)) == 0;
}

static bool from_theirs(json_t *o)
{
    if (!take_share(o)) return false;
    const json_t *list = json_object_get(o, "attn_layer_indices");
    const json_int_t n = json_integer_value(json_object_get(o, "num_hidden_layers"));
    json_t *words = json_array();
    for (json_int_t l = 0; words && l < n && l < LNT_MAX_LAYERS; l++) {
        bool softmax = false;
        for (size_t i = 0; i < json_array_size(list); i++) softmax |= json_integer_value(json_array_get(list, i)) == l;
        json_array_append_new(words, json_string(softmax ? "attention" : "mamba"));
    }
    json_object_del(o, "attn_layer_indices");
    return json_object_set_new(o, "layer_types", words) == 0;
}

static bool to_theirs(json_t *o)
{
    json_t *rope = json_object_get(o, "rope_parameters"), *share = json_object_get(o, "rotary_share"); /* NULL: no layer has positions */
    if (share && !rope && json_object_set_new(o, "rope_parameters", rope = json_object()) != 0) return false;
    if (share && json_object_set(rope, "partial_rotary_factor", share) != 0) return false;
    json_object_del(o, "rotary_share");
    const json_t *words = json_object_get(o, "layer_types");
    json_t *list = json_array();
    for (size_t l = 0; list && l < json_array_size(words); l++)
        if (json_string_value(json_array_get(words, l))[0] == 'a') json_array_append_new(list, json_integer((json_int_t)l));
    json_object_del(o, "layer_types");
    return json_object_set_new(o, "attn_layer_indices", list) == 0;
}

/* A file keeps its words while they mean the same; with another share it is no longer one of a release that reads none. */
static void keeping(json_t *o, json_t *kept)
{
    json_t *rope = json_object_get(o, "rope_parameters");
    const json_t *share = json_object_get(rope, "partial_rotary_factor");
    const bool whole = turns_whole_heads(kept);
    if (whole && json_number_value(share) == 1) {
        if (json_object_get(kept, SHARE)) json_object_del(rope, "partial_rotary_factor");
        return;
    }
    if (whole) json_object_del(kept, "transformers_version");
    if (json_number_value(json_object_get(kept, "partial_rotary_factor")) != json_number_value(share)) json_object_del(kept, "partial_rotary_factor");
}

const lnt_arch lnt_arch_bamba = {
    .model_type = "bamba",
    .class_name = "BambaForCausalLM",
    .mixer = "mamba2",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .keeping = keeping,
    .base = &lnt_arch_mamba_layers,
};
