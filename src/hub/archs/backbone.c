/* What the state-space models of Transformers share: layers of a norm and a mixer, under "backbone". */
#include "hub/archs.h"

#include <string.h>

#define BEGINS(key) LNT_KEPT(key, "how weights begin")

static const lnt_arch_default defaults[] = {{"norm_eps", "1e-5"}, {0}};

static const lnt_arch_key keys[] = {{"norm_eps", "layer_norm_epsilon", NULL}, {"residual_in_fp32", "residual_in_fp32", NULL}, {0}};

static const lnt_arch_other others[] = {
    BEGINS("rescale_prenorm_residual"), BEGINS("time_step_floor"), BEGINS("time_step_init_scheme"), BEGINS("time_step_max"),
    BEGINS("time_step_min"), BEGINS("time_step_scale"),
    LNT_KEPT("use_mambapy", "which kernel computes the layer"),
    LNT_KEPT("use_falcon_mambapy", "which kernel computes the layer"),
    LNT_KEPT("use_associative_scan", "which kernel computes the layer"),
    LNT_KEPT("use_mamba_kernels", "which kernel computes the layer"),
    LNT_KEPT("chunk_size", "how a kernel cuts sequences"),
    LNT_ONLY("time_step_limit", "[0.0,Infinity] [0,Infinity] [0.0,{\"__float__\":\"Infinity\"}] null", "steps are not limited"),
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME("model.embeddings.", "backbone.embeddings."), LNT_RENAME("model.layers.", "backbone.layers."),
    LNT_RENAME("model.norm.", "backbone.norm_f."), LNT_RENAME(".attn_norm.", ".norm."), LNT_RENAME(".attn.", ".mixer."),
    {0},
};

/* time_step_rank "auto". */
static bool from_theirs(json_t *o)
{
    const char *rank = json_string_value(json_object_get(o, "time_step_rank"));
    const json_t *width = json_object_get(o, "hidden_size");
    if (!rank || strcmp(rank, "auto") != 0) return true;
    return json_object_set_new(o, "time_step_rank", json_integer((json_integer_value(width) + 15) / 16)) == 0;
}

const lnt_arch lnt_arch_backbone = {
    .defaults = defaults, .keys = keys, .others = others, .renames = renames, .from_theirs = from_theirs, .base = &lnt_arch_causal_lm,
};
