/* What the causal language models of Transformers share: the common keys, rotary positions as releases from 5 on write them ("rope_parameters") and
 * earlier ones did (beside "rope_theta"), and the names of their tensors. */
#include "hub/archs.h"

#include <string.h>

static const lnt_arch_key keys[] = {
    {"vocab_size", "vocab_size", NULL}, {"hidden_size", "hidden_size", NULL}, {"num_hidden_layers", "num_hidden_layers", NULL},
    {"norm_eps", "rms_norm_eps", NULL}, {"initializer_range", "initializer_range", NULL}, {"tie_word_embeddings", "tie_word_embeddings", NULL},
    {"max_position_embeddings", "max_position_embeddings", NULL}, {"bos_token_id", "bos_token_id", NULL}, {"eos_token_id", "eos_token_id", NULL},
    {"pad_token_id", "pad_token_id", NULL}, {"intermediate_size", "intermediate_size", NULL},
    {"rope_theta", "rope_parameters.rope_theta", NULL}, {"rope_type", "rope_parameters.rope_type", NULL},
    {"rope_factor", "rope_parameters.factor", NULL}, {"rope_low_freq_factor", "rope_parameters.low_freq_factor", NULL},
    {"rope_high_freq_factor", "rope_parameters.high_freq_factor", NULL},
    {"rope_original_positions", "rope_parameters.original_max_position_embeddings", NULL},
    {"rope_beta_fast", "rope_parameters.beta_fast", NULL}, {"rope_beta_slow", "rope_parameters.beta_slow", NULL},
    {"rope_truncate", "rope_parameters.truncate", NULL}, {"rope_attention_factor", "rope_parameters.attention_factor", NULL},
    {"rope_mscale", "rope_parameters.mscale", NULL}, {"rope_mscale_all_dim", "rope_parameters.mscale_all_dim", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("hidden_act", "\"silu\" \"swish\"", "the MLP has silu"),
    LNT_ONLY("attention_dropout", "0 0.0", "nothing is dropped in training"),
    LNT_KEPT("pretraining_tp", "how products were divided"),
    LNT_KEPT("num_logits_to_keep", "which rows of logits are made"),
    LNT_KEPT("output_router_logits", "what a call hands out"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.embeddings.", "model.embed_tokens."), LNT_RENAME(".attn_norm.", ".input_layernorm."),
    LNT_RENAME(".mlp_norm.", ".post_attention_layernorm."),
    LNT_RENAME_IN("attention", ".attn.", ".self_attn."), LNT_RENAME_IN("sliding", ".attn.", ".self_attn."),
    {0},
};

/* Which keys of rope_parameters say something under a type: others would change nothing, and the class warns of them. */
static const char *const scaled[][2] = {
    {"linear", "factor"},
    {"llama3", "factor low_freq_factor high_freq_factor original_max_position_embeddings"},
    {"yarn", "factor original_max_position_embeddings beta_fast beta_slow truncate attention_factor mscale mscale_all_dim"},
};

static json_t *rope_of(json_t *o)
{
    json_t *rope = json_object_get(o, "rope_parameters");
    if (json_is_object(rope)) return rope;
    return json_object_set_new(o, "rope_parameters", json_object()) == 0 ? json_object_get(o, "rope_parameters") : NULL;
}

/* Earlier releases: rope_theta, partial_rotary_factor and rope_scaling {"type" or "rope_type": ..., "factor": ...} beside each other. */
static bool from_theirs(json_t *o)
{
    json_t *old = json_object_get(o, "rope_scaling"), *theta = json_object_get(o, "rope_theta"), *value;
    json_t *part = json_object_get(o, "partial_rotary_factor");
    const char *key;
    bool fine = true;
    if (json_is_object(json_object_get(o, "rope_parameters"))) {
        json_t *rope = rope_of(o);
        if (theta && !json_object_get(rope, "rope_theta")) fine &= json_object_set(rope, "rope_theta", theta) == 0;
        if (part && !json_object_get(rope, "partial_rotary_factor")) fine &= json_object_set(rope, "partial_rotary_factor", part) == 0;
    } else if (theta || json_is_object(old) || part) {
        json_t *rope = rope_of(o);
        if (!rope) return false;
        if (theta) fine &= json_object_set(rope, "rope_theta", theta) == 0;
        if (part) fine &= json_object_set(rope, "partial_rotary_factor", part) == 0;
        json_object_foreach(old, key, value) fine &= json_object_set(rope, strcmp(key, "type") ? key : "rope_type", value) == 0;
    }
    json_object_del(o, "rope_theta");
    json_object_del(o, "rope_scaling");
    json_t *rope = json_object_get(o, "rope_parameters");
    const json_t *length = json_object_get(o, "max_position_embeddings");
    if (json_is_object(rope)) {
        const char *type = json_string_value(json_object_get(rope, "rope_type"));
        json_object_del(rope, "type"); /* as some files have it beside rope_type */
        if (type && length && (!strcmp(type, "yarn") || !strcmp(type, "llama3")) && !json_object_get(rope, "original_max_position_embeddings"))
            fine &= json_object_set(rope, "original_max_position_embeddings", (json_t *)(uintptr_t)length) == 0;
    }
    return fine;
}

static bool to_theirs(json_t *o)
{
    json_t *rope = json_object_get(o, "rope_parameters"), *value;
    void *next;
    const char *key, *type = json_string_value(json_object_get(rope, "rope_type")), *words = "";
    for (size_t i = 0; type && i < sizeof scaled / sizeof *scaled; i++)
        if (!strcmp(type, scaled[i][0])) words = scaled[i][1];
    json_object_foreach_safe(rope, next, key, value) {
        const bool always = !strcmp(key, "rope_theta") || !strcmp(key, "rope_type") || !strcmp(key, "partial_rotary_factor");
        if (!always && (lnt_word_find(words, key) < 0 || json_is_null(value))) json_object_del(rope, key);
    }
    return true;
}

const lnt_arch lnt_arch_causal_lm = {
    .keys = keys, .others = others, .renames = renames, .from_theirs = from_theirs, .to_theirs = to_theirs, .base = &lnt_arch_transformers,
};
