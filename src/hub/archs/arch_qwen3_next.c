/* Qwen3-Next: as its family, with queries, keys, values and gates in one product, key head by key head, and mixtures of experts. */
#include "hub/archs.h"

static const lnt_arch_layer layers[] = {{"linear_attention", "gated_deltanet", NULL}, {"full_attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "151936"}, {"hidden_size", "2048"}, {"intermediate_size", "5632"}, {"num_hidden_layers", "48"}, {"num_experts", "512"},
    {"num_experts_per_tok", "10"}, {"expert_size", "512"}, {"shared_expert_size", "512"}, {"shared_expert_gate", "true"},
    {"router_aux_loss_coef", "0.001"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"num_experts", "num_experts", NULL}, {"num_experts_per_tok", "num_experts_per_tok", NULL}, {"expert_size", "moe_intermediate_size", NULL},
    {"shared_expert_size", "shared_expert_intermediate_size", NULL}, {"norm_topk_prob", "norm_topk_prob", NULL},
    {"expert_period", "decoder_sparse_step", NULL}, {"expert_offset", "expert_offset", NULL},
    {"router_aux_loss_coef", "router_aux_loss_coef", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("mlp_only_layers", "[]", "every decoder_sparse_step-th layer has experts"),
    {0},
};

/* Layer l has experts where l + 1 is a multiple of decoder_sparse_step. */
static bool from_theirs(json_t *o)
{
    const json_t *step = json_object_get(o, "decoder_sparse_step");
    return !step || json_object_set_new(o, "expert_offset", json_integer(json_integer_value(step) - 1)) == 0;
}

static bool to_theirs(json_t *o)
{
    const bool last = json_integer_value(json_object_get(o, "expert_offset")) + 1 == json_integer_value(json_object_get(o, "decoder_sparse_step"));
    json_object_del(o, "expert_offset");
    return last;
}

static double key_heads(const lnt_config *k) { return lnt_arch_number(k, "num_heads"); }

static double experts(const lnt_config *k)
{
    return (double)lnt_option_get(lnt_option_find(&k->mlp.kind->options, "num_experts"), k->mlp.options).integer;
}

static const lnt_arch_rows rows[] = {
    {".linear_attn.in_proj_qkvz.weight",
     ".attn.q_proj.weight .attn.k_proj.weight .attn.v_proj.weight .attn.g_proj.weight", key_heads, "gated_deltanet"},
    {".linear_attn.in_proj_ba.weight", ".attn.b_proj.weight .attn.a_proj.weight", key_heads, "gated_deltanet"},
    {".mlp.experts.%d.gate_proj.weight", ".mlp.experts.gate_proj.weight", experts, NULL},
    {".mlp.experts.%d.up_proj.weight", ".mlp.experts.up_proj.weight", experts, NULL},
    {".mlp.experts.%d.down_proj.weight", ".mlp.experts.down_proj.weight", experts, NULL},
    {0},
};

const lnt_arch lnt_arch_qwen3_next = {
    .model_type = "qwen3_next",
    .class_name = "Qwen3NextForCausalLM",
    .mixer = "gated_deltanet",
    .norm = "centred_rmsnorm",
    .mlp = "moe",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .rows = rows,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .base = &lnt_arch_qwen_linear,
};
