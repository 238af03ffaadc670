/* MiniMax-01: lightning attention and softmax layers by turns, mixtures of experts, residuals of the normed input. */
#include "hub/archs.h"

static const lnt_arch_layer layers[] = {{"linear_attention", "lightning_attn", NULL}, {"full_attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "32000"}, {"hidden_size", "4096"}, {"intermediate_size", "14336"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-5"},
    {"num_heads", "32"}, {"attention.num_kv_heads", "8"}, {"num_experts", "8"}, {"num_experts_per_tok", "2"}, {"rope_theta", "1000000"},
    {"router_aux_loss_coef", "0.001"}, {"max_position_embeddings", "131072"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"lightning_attn.num_heads", "num_attention_heads", NULL}, {"attention.num_heads", "num_attention_heads", NULL},
    {"lightning_attn.head_dim", "head_dim", NULL}, {"attention.attention_head_dim", "head_dim", NULL},
    {"attention.num_kv_heads", "num_key_value_heads", NULL}, {"attention.window_size", "sliding_window", NULL},
    {"num_experts", "num_local_experts", NULL}, {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"router_aux_loss_coef", "router_aux_loss_coef", NULL}, {"mixer_alpha", "linear_attn_alpha_factor", NULL},
    {"mixer_beta", "linear_attn_beta_factor", NULL}, {"other_alpha", "full_attn_alpha_factor", NULL},
    {"other_beta", "full_attn_beta_factor", NULL}, {"mlp_alpha", "mlp_alpha_factor", NULL}, {"mlp_beta", "mlp_beta_factor", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("router_jitter_noise", "0 0.0", "routers have no noise in training"),
    LNT_KEPT("block_size", "how a kernel cuts sequences"),
    {0},
};

static double heads(const lnt_config *k) { return lnt_arch_number(k, "num_heads"); }

static double experts(const lnt_config *k)
{
    return (double)lnt_option_get(lnt_option_find(&k->mlp.kind->options, "num_experts"), k->mlp.options).integer;
}

static const lnt_arch_rows rows[] = {
    {".self_attn.qkv_proj.weight", ".attn.q_proj.weight .attn.k_proj.weight .attn.v_proj.weight", heads, "lightning_attn"},
    {".block_sparse_moe.experts.%d.w1.weight", ".mlp.experts.gate_proj.weight", experts, NULL},
    {".block_sparse_moe.experts.%d.w3.weight", ".mlp.experts.up_proj.weight", experts, NULL},
    {".block_sparse_moe.experts.%d.w2.weight", ".mlp.experts.down_proj.weight", experts, NULL},
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME(".mlp.gate.", ".block_sparse_moe.gate."), LNT_RENAME_IN("lightning_attn", ".attn.g_proj.", ".self_attn.output_gate."),
    LNT_RENAME_IN("lightning_attn", ".attn.o_proj.", ".self_attn.out_proj."), LNT_RENAME_IN("lightning_attn", ".attn.", ".self_attn."),
    {0},
};

/* What the class makes of the number of heads and layers when it is built. */
static const char *const ignored[] = {".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay", NULL};

const lnt_arch lnt_arch_minimax = {
    .model_type = "minimax",
    .class_name = "MiniMaxForCausalLM",
    .mixer = "lightning_attn",
    .block = "normed_residual",
    .mlp = "moe",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .rows = rows,
    .ignored = ignored,
    .base = &lnt_arch_causal_lm,
};
