/* The text model of Qwen3.5. */
#include "hub/archs.h"

static const lnt_arch_layer layers[] = {{"linear_attention", "gated_deltanet", NULL}, {"full_attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "248320"}, {"hidden_size", "4096"}, {"intermediate_size", "12288"}, {"num_hidden_layers", "32"}, {"attention.num_kv_heads", "4"},
    {0},
};

static const lnt_arch_rows rows[] = {
    {".linear_attn.in_proj_qkv.weight", ".attn.q_proj.weight .attn.k_proj.weight .attn.v_proj.weight", NULL, "gated_deltanet"},
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME_IN("gated_deltanet", ".attn.a_proj.", ".attn.in_proj_a."), LNT_RENAME_IN("gated_deltanet", ".attn.b_proj.", ".attn.in_proj_b."),
    LNT_RENAME_IN("gated_deltanet", ".attn.g_proj.", ".attn.in_proj_z."),
    {0},
};

const lnt_arch lnt_arch_qwen3_5_text = {
    .model_type = "qwen3_5_text",
    .class_name = "Qwen3_5ForCausalLM",
    .mixer = "gated_deltanet",
    .norm = "centred_rmsnorm",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .renames = renames,
    .rows = rows,
    .base = &lnt_arch_qwen_linear,
};
