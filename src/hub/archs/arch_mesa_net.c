/* The class knows one solver, whose rounding its weights have learned with; the keys that choose another are linnet's, and it passes over them. */
#include "hub/archs.h"

static const lnt_arch_default absent[] = {{"cg_solver", "\"flash\""}, {"cg_guess", "\"zero\""}, {0}};
static const lnt_arch_key keys[] = {{"gamma_cap", "gamma_cap", "null"}, {"mesa_window", NULL, "null"}, {"use_forget_gate", NULL, "true"},
                                    {"allow_neg_gamma", NULL, "false"}, {0}};
static const lnt_arch_other others[] = {LNT_KEPT("use_short_conv", "the class always builds the convolutions of queries and keys"), {0}};

const lnt_arch lnt_arch_mesa_net = {
    .model_type = "mesa_net",
    .class_name = "MesaNetForCausalLM",
    .mixer = "mesa_net",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .absent = absent,
    .keys = keys,
    .others = others,
    .base = &lnt_arch_fla,
};
