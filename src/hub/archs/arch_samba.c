/* Samba (arXiv 2406.07522): Mamba and sliding-window attention by turns (`--pattern mamba,attention:2048`), each with an MLP. Its key
 * intermediate_size is Mamba's; the MLP's size follows from hidden_ratio. */
#include "hub/archs.h"

static double channels(const lnt_config *k)
{
    const double own = lnt_arch_number(k, "channels");
    return own > 0 ? own : lnt_arch_number(k, "expand") * (double)k->hidden_size;
}

/* The usual number of channels is what a layer without one of its own has. */
static bool from_theirs(json_t *o)
{
    const json_int_t expand = json_integer_value(json_object_get(o, "expand")), width = json_integer_value(json_object_get(o, "hidden_size"));
    const json_t *own = json_object_get(o, "intermediate_size");
    if (!own || expand < 1 || width < 1 || json_integer_value(own) != expand * width) return true;
    return json_object_set_new(o, "intermediate_size", json_null()) == 0;
}

static const lnt_arch_default defaults[] = {{"norm_eps", "1e-5"}, {"num_hidden_layers", "18"}, {0}};

static const lnt_arch_key keys[] = {
    {"intermediate_size", NULL, "null"}, {"channels", "intermediate_size", NULL}, {"dt_rank", "time_step_rank", NULL},
    {"allow_neg_eigval", NULL, "false"}, {"residual_in_fp32", "residual_in_fp32", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_FOLLOWS("intermediate_size", channels, "channels, or expand * hidden_size"),
    LNT_KEPT("time_step_min", "how weights begin"),
    LNT_KEPT("time_step_max", "how weights begin"),
    LNT_KEPT("time_step_scale", "how weights begin"),
    LNT_KEPT("time_step_init_scheme", "how weights begin"),
    LNT_KEPT("time_step_floor", "how weights begin"),
    LNT_KEPT("rescale_prenorm_residual", "how weights begin"),
    {0},
};

static const lnt_arch_tensor tensors[] = {
    {"model.embeddings.", "backbone.embeddings.", false}, {"model.layers.", "backbone.layers.", false}, {"model.norm.", "backbone.norm_f.", false},
    {".attn_norm.", ".mixer_norm.", false}, {".attn.", ".mixer.", false},
    {0},
};

const lnt_arch lnt_arch_samba = {
    .model_type = "samba",
    .class_name = "SambaForCausalLM",
    .mixer = "mamba",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .from_theirs = from_theirs,
    .base = &lnt_arch_fla,
};
