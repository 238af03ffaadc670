/* RWKV-4. What mixes tokens is stored as [1, 1, width]. */
#include "hub/archs.h"

static const lnt_arch_default defaults[] = {
    {"vocab_size", "50277"}, {"hidden_size", "4096"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-5"}, {"norm_first", "true"},
    {"hidden_ratio", "4"}, {"multiple_of", "1"}, {"mix_is_own", "true"}, {"max_position_embeddings", "1024"},
    {"bos_token_id", "0"}, {"eos_token_id", "0"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"norm_eps", "layer_norm_epsilon", NULL}, {"max_position_embeddings", "context_length", NULL},
    {"attention_hidden_size", "attention_hidden_size", NULL}, {"hidden_ratio", NULL, "4"}, {"multiple_of", NULL, "1"},
    {"norm_first", NULL, "true"}, {"mix_is_own", NULL, "true"}, {"use_receptance", NULL, "true"},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_KEPT("rescale_every", "how often the residual stream is halved, with what is added to it, so that float16 can hold it"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("lm_head.", "head."), LNT_RENAME("model.embeddings.", "rwkv.embeddings."), LNT_RENAME("model.norm.", "rwkv.ln_out."),
    LNT_RENAME("model.layers.", "rwkv.blocks."), LNT_RENAME(".pre_norm.", ".pre_ln."), LNT_RENAME(".attn_norm.", ".ln1."),
    LNT_RENAME(".mlp_norm.", ".ln2."), {".attn.time_mix_", ".attention.time_mix_", NULL, 2, NULL}, LNT_RENAME(".attn.", ".attention."),
    {".mlp.key.mu", ".feed_forward.time_mix_key", NULL, 2, NULL}, {".mlp.receptance.mu", ".feed_forward.time_mix_receptance", NULL, 2, NULL},
    LNT_RENAME(".mlp.", ".feed_forward."),
    {0},
};

/* As many channels as columns is our null, and the file's too. */
static bool from_theirs(json_t *o)
{
    const json_t *channels = json_object_get(o, "attention_hidden_size"), *width = json_object_get(o, "hidden_size");
    if (!channels || !width || json_integer_value(channels) != json_integer_value(width)) return true;
    return json_object_set_new(o, "attention_hidden_size", json_null()) == 0;
}

static bool to_theirs(json_t *o)
{
    json_t *channels = json_object_get(o, "attention_hidden_size"), *width = json_object_get(o, "hidden_size");
    return !json_is_null(channels) || json_object_set(o, "attention_hidden_size", width) == 0;
}

const lnt_arch lnt_arch_rwkv = {
    .model_type = "rwkv",
    .class_name = "RwkvForCausalLM",
    .mixer = "rwkv4",
    .norm = "layernorm",
    .mlp = "channel_mix",
    .spelled = true,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .base = &lnt_arch_causal_lm,
};
