#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"norm_eps", "1e-5"}, {"num_hidden_layers", "48"}, {0}};

static const lnt_arch_key keys[] = {
    {"channels", NULL, "null"}, {"allow_neg_eigval", NULL, "false"}, {"residual_in_fp32", "residual_in_fp32", NULL}, {0},
};

static double channels(const lnt_config *k) { return lnt_arch_number(k, "expand") * (double)k->hidden_size; }

static const lnt_arch_other others[] = {
    LNT_FOLLOWS("intermediate_size", channels, "expand * hidden_size"),
    LNT_KEPT("dt_min", "how weights begin"),
    LNT_KEPT("dt_max", "how weights begin"),
    LNT_KEPT("dt_scale", "how weights begin"),
    LNT_KEPT("dt_init_scheme", "how weights begin"),
    LNT_KEPT("dt_init_floor", "how weights begin"),
    LNT_KEPT("rescale_prenorm_residual", "how weights begin"),
    {0},
};

static const lnt_arch_tensor tensors[] = {
    {"model.embeddings.", "backbone.embeddings.", false}, {"model.layers.", "backbone.layers.", false}, {"model.norm.", "backbone.norm_f.", false},
    {".attn_norm.", ".norm.", false}, {".attn.", ".mixer.", false},
    {0},
};

const lnt_arch lnt_arch_mamba = {
    .model_type = "mamba",
    .class_name = "MambaForCausalLM",
    .mixer = "mamba",
    .mlp = "none",
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .base = &lnt_arch_fla,
};
