/* Granite 4: Mamba-2 and softmax layers with multipliers, those of its models that have no mixtures of experts. */
#include "hub/archs.h"

#include <string.h>

static const lnt_arch_layer layers[] = {{"mamba", "mamba2", NULL}, {"attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "32000"}, {"hidden_size", "4096"}, {"intermediate_size", "1024"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-6"},
    {"mamba2.num_heads", "128"}, {"mamba2.head_dim", "64"}, {"mamba2.state_size", "256"}, {"mamba2.norm_of", "\"all\""},
    {"attention.num_heads", "32"}, {"attention.attention_scale", "1"}, {"attention.attention_rope", "false"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"intermediate_size", "shared_intermediate_size", NULL}, {"embedding_multiplier", "embedding_multiplier", NULL},
    {"residual_multiplier", "residual_multiplier", NULL}, {"logit_divisor", "logits_scaling", NULL},
    {"attention.attention_scale", "attention_multiplier", NULL}, {"attention.attention_rope", "attention_rope", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("num_local_experts", "0", "mixtures of experts are not offered for this type"),
    LNT_KEPT("num_experts_per_tok", "there are no experts"),
    LNT_KEPT("intermediate_size", "the size of experts, and there are none"),
    LNT_KEPT("router_aux_loss_coef", "there are no experts"),
    {0},
};

static const lnt_arch_rows rows[] = {
    {".shared_mlp.input_linear.weight", ".mlp.gate_proj.weight .mlp.up_proj.weight", NULL, NULL},
    {0},
};

static const lnt_arch_rename renames[] = {LNT_RENAME(".mlp.down_proj.", ".shared_mlp.output_linear."), {0}};

/* Positions turn where position_embedding_type is "rope". */
static bool from_theirs(json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "position_embedding_type"));
    const bool rope = type && !strcmp(type, "rope");
    json_object_del(o, "position_embedding_type");
    return json_object_set_new(o, "attention_rope", json_boolean(rope)) == 0;
}

static bool to_theirs(json_t *o)
{
    const bool rope = json_is_true(json_object_get(o, "attention_rope"));
    json_object_del(o, "attention_rope");
    if (json_object_set_new(o, "num_local_experts", json_integer(0)) != 0) return false;
    return json_object_set_new(o, "position_embedding_type", rope ? json_string("rope") : json_null()) == 0;
}

const lnt_arch lnt_arch_granitemoehybrid = {
    .model_type = "granitemoehybrid",
    .class_name = "GraniteMoeHybridForCausalLM",
    .mixer = "mamba2",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .rows = rows,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .base = &lnt_arch_mamba_layers,
};
