#include "hub/archs.h"

static const lnt_arch_default defaults[] = {{"norm_eps", "1e-5"}, {"num_hidden_layers", "48"}, {0}};

static const lnt_arch_key keys[] = {{"residual_in_fp32", "residual_in_fp32", NULL}, {0}};

static double expand(const lnt_config *k) { return lnt_arch_number(k, "num_heads") * lnt_arch_number(k, "head_dim") / (double)k->hidden_size; }

static const lnt_arch_other others[] = {
    LNT_FOLLOWS("expand", expand, "num_heads * head_dim / hidden_size"),
    LNT_ONLY("D_has_hdim", "false", "D has an element a head"),
    LNT_ONLY("dt_limit", "[0.0,Infinity] [0,Infinity] null", "steps are not limited"),
    LNT_KEPT("A_init_range", "how weights begin"),
    LNT_KEPT("dt_min", "how weights begin"),
    LNT_KEPT("dt_max", "how weights begin"),
    LNT_KEPT("dt_init_floor", "how weights begin"),
    LNT_KEPT("conv_init", "how weights begin"),
    LNT_KEPT("rescale_prenorm_residual", "how weights begin"),
    LNT_KEPT("chunk_size", "how a kernel cuts sequences"),
    {0},
};

static const lnt_arch_tensor tensors[] = {
    {"model.embeddings.", "backbone.embeddings.", false}, {"model.layers.", "backbone.layers.", false}, {"model.norm.", "backbone.norm_f.", false},
    {".attn_norm.", ".norm.", false}, {".attn.", ".mixer.", false},
    {0},
};

const lnt_arch lnt_arch_mamba2 = {
    .model_type = "mamba2",
    .class_name = "Mamba2ForCausalLM",
    .mixer = "mamba2",
    .mlp = "none",
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .base = &lnt_arch_fla,
};
