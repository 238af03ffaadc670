/* What Transformers' hybrids of Mamba-2 and softmax attention share. */
#include "hub/archs.h"

#include <string.h>

static const lnt_arch_key keys[] = {
    {"mamba2.num_heads", "mamba_n_heads", NULL}, {"mamba2.head_dim", "mamba_d_head", NULL}, {"mamba2.state_size", "mamba_d_state", NULL},
    {"mamba2.n_groups", "mamba_n_groups", NULL}, {"mamba2.conv_kernel", "mamba_d_conv", NULL},
    {"mamba2.use_conv_bias", "mamba_conv_bias", NULL}, {"mamba2.use_bias", "mamba_proj_bias", NULL},
    {"attention.num_heads", "num_attention_heads", NULL}, {"attention.num_kv_heads", "num_key_value_heads", NULL},
    {"attention.qkv_bias", "attention_bias", NULL}, {"attention.o_bias", "attention_bias", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_KEPT("mamba_chunk_size", "how a kernel cuts sequences"),
    LNT_KEPT("mamba_expand", "mamba_n_heads and mamba_d_head say it"),
    LNT_KEPT("time_step_min", "how weights begin"),
    LNT_KEPT("time_step_max", "how weights begin"),
    LNT_KEPT("z_loss_coefficient", "a term of the class's loss in training; logits are the same"),
    LNT_KEPT("use_mamba_kernels", "which kernel computes the layer"),
    LNT_ONLY("time_step_limit", "[0.0,Infinity] [0,Infinity] [0.0,{\"__float__\":\"Infinity\"}] null", "steps are not limited"),
    {0},
};

static const lnt_arch_rename renames[] = {LNT_RENAME_IN("mamba2", ".attn.", ".mamba."), {0}};

/* mamba_d_head "auto". */
static bool from_theirs(json_t *o)
{
    const char *head = json_string_value(json_object_get(o, "mamba_d_head"));
    const json_int_t width = json_integer_value(json_object_get(o, "hidden_size")), heads = json_integer_value(json_object_get(o, "mamba_n_heads"));
    const json_t *expand = json_object_get(o, "mamba_expand");
    if (!head || strcmp(head, "auto") != 0) return true;
    if (heads < 1) return false;
    return json_object_set_new(o, "mamba_d_head", json_integer((expand ? json_integer_value(expand) : 2) * width / heads)) == 0;
}

const lnt_arch lnt_arch_mamba_layers = {
    .keys = keys, .others = others, .renames = renames, .from_theirs = from_theirs, .base = &lnt_arch_causal_lm,
};
