/* Jamba: Mamba with norms inside and softmax layers without positions, every so many; every so many MLPs are mixtures of experts. */
#include "hub/archs.h"

static const lnt_arch_layer layers[] = {{"mamba", "mamba", NULL}, {"attention", "attention", NULL}, {0}};

static const lnt_arch_default defaults[] = {
    {"vocab_size", "65536"}, {"hidden_size", "4096"}, {"intermediate_size", "14336"}, {"num_hidden_layers", "32"}, {"norm_eps", "1e-6"},
    {"mamba.dt_rank", "256"}, {"mamba.inner_norm", "\"weighted\""}, {"attention.num_heads", "32"}, {"attention.num_kv_heads", "8"},
    {"attention.attention_rope", "false"}, {"num_experts", "16"}, {"num_experts_per_tok", "2"}, {"norm_topk_prob", "false"},
    {"expert_period", "2"}, {"expert_offset", "1"}, {"router_aux_loss_coef", "0.001"}, {"max_position_embeddings", "262144"},
    {"pad_token_id", "0"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"mamba.state_size", "mamba_d_state", NULL}, {"mamba.conv_kernel", "mamba_d_conv", NULL}, {"mamba.expand", "mamba_expand", NULL},
    {"mamba.dt_rank", "mamba_dt_rank", NULL}, {"mamba.use_conv_bias", "mamba_conv_bias", NULL}, {"mamba.use_bias", "mamba_proj_bias", NULL},
    {"attention.num_heads", "num_attention_heads", NULL}, {"attention.num_kv_heads", "num_key_value_heads", NULL},
    {"num_experts", "num_experts", NULL}, {"num_experts_per_tok", "num_experts_per_tok", NULL}, {"expert_period", "expert_layer_period", NULL},
    {"expert_offset", "expert_layer_offset", NULL}, {"router_aux_loss_coef", "router_aux_loss_coef", NULL},
    {"rope_theta", NULL, NULL}, {"rope_type", NULL, NULL}, {"rope_factor", NULL, NULL}, {"rope_low_freq_factor", NULL, NULL},
    {"rope_high_freq_factor", NULL, NULL}, {"rope_original_positions", NULL, NULL}, {"rope_beta_fast", NULL, NULL},
    {"rope_beta_slow", NULL, NULL}, {"rope_truncate", NULL, NULL}, {"rope_attention_factor", NULL, NULL}, {"rope_mscale", NULL, NULL},
    {"rope_mscale_all_dim", NULL, NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("sliding_window", "null", "softmax layers see everything"),
    LNT_KEPT("use_mamba_kernels", "which kernel computes the layer"),
    {0},
};

static double experts(const lnt_config *k)
{
    return (double)lnt_option_get(lnt_option_find(&k->mlp.kind->options, "num_experts"), k->mlp.options).integer;
}

static const lnt_arch_rows rows[] = {
    {".feed_forward.experts.%d.gate_proj.weight", ".mlp.experts.gate_proj.weight", experts, NULL},
    {".feed_forward.experts.%d.up_proj.weight", ".mlp.experts.up_proj.weight", experts, NULL},
    {".feed_forward.experts.%d.down_proj.weight", ".mlp.experts.down_proj.weight", experts, NULL},
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.norm.", "model.final_layernorm."), LNT_RENAME(".mlp_norm.", ".pre_ff_layernorm."),
    LNT_RENAME(".mlp.gate.", ".feed_forward.router."), LNT_RENAME(".mlp.", ".feed_forward."), LNT_RENAME_IN("mamba", ".attn.", ".mamba."),
    {0},
};

/* Layer l is a softmax layer where l mod attn_layer_period is attn_layer_offset; mamba_dt_rank "auto". */
static bool from_theirs(json_t *o)
{
    const json_t *period = json_object_get(o, "attn_layer_period"), *offset = json_object_get(o, "attn_layer_offset");
    const json_int_t every = period ? json_integer_value(period) : 8, at = offset ? json_integer_value(offset) : 4;
    const json_int_t n = json_integer_value(json_object_get(o, "num_hidden_layers")), width = json_integer_value(json_object_get(o, "hidden_size"));
    json_t *words = json_array();
    if (every < 1) return json_decref(words), false;
    for (json_int_t l = 0; words && l < n && l < LNT_MAX_LAYERS; l++)
        json_array_append_new(words, json_string(l % every == at ? "attention" : "mamba"));
    json_object_del(o, "attn_layer_period");
    json_object_del(o, "attn_layer_offset");
    if (json_is_string(json_object_get(o, "mamba_dt_rank"))) json_object_set_new(o, "mamba_dt_rank", json_integer((width + 15) / 16));
    return json_object_set_new(o, "layer_types", words) == 0;
}

static bool is_softmax(const json_t *words, size_t l) { return json_string_value(json_array_get(words, l))[0] == 'a'; }

/* The period between the first two softmax layers; of one alone the number of layers, of none one that they do not reach. */
static bool to_theirs(json_t *o)
{
    json_t *words = json_object_get(o, "layer_types");
    const size_t n = json_array_size(words);
    size_t first = 0, next;
    bool fine = true;
    while (first < n && !is_softmax(words, first)) first++;
    for (next = first + 1; next < n && !is_softmax(words, next);) next++;
    const size_t every = next < n ? next - first : first < n ? n : n + 1;
    for (size_t l = 0; l < n; l++) fine &= is_softmax(words, l) == (l % every == first);
    if (first >= every) fine = false;
    json_object_del(o, "layer_types");
    fine &= json_object_set_new(o, "attn_layer_period", json_integer((json_int_t)every)) == 0;
    return fine && json_object_set_new(o, "attn_layer_offset", json_integer((json_int_t)first)) == 0;
}

const lnt_arch lnt_arch_jamba = {
    .model_type = "jamba",
    .class_name = "JambaForCausalLM",
    .mixer = "mamba",
    .mlp = "moe",
    .spelled = true,
    .layers = layers,
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .renames = renames,
    .rows = rows,
    .from_theirs = from_theirs,
    .to_theirs = to_theirs,
    .base = &lnt_arch_causal_lm,
};
