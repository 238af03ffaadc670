/* What Qwen3-Next and Qwen3.5 share: norms with weights around 1 but for the outputs' of Gated DeltaNet, one convolution over queries, keys and
 * values, and softmax layers whose products to queries make a gate too, head by head. */
#include "hub/archs.h"

#include <string.h>

static const lnt_arch_default defaults[] = {
    {"norm_eps", "1e-6"}, {"max_position_embeddings", "32768"}, {"gated_deltanet.num_heads", "16"}, {"gated_deltanet.num_v_heads", "32"},
    {"gated_deltanet.head_dim", "128"}, {"gated_deltanet.expand_v", "1"}, {"attention.num_heads", "16"}, {"attention.num_kv_heads", "2"},
    {"attention.attention_head_dim", "256"}, {"attention.qk_norm", "true"}, {"attention.centred_qk_norm", "true"},
    {"attention.qk_norm_eps", "null"}, {"attention.attention_gate", "true"}, {"attention.rotary_factor", "0.25"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"attention.rotary_factor", "rope_parameters.partial_rotary_factor", NULL}, {"attention.rotary_factor", "partial_rotary_factor", NULL},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_KEPT("rope_parameters.mrope_section", "the three kinds of position are one in a text"),
    LNT_KEPT("rope_parameters.mrope_interleaved", "the three kinds of position are one in a text"),
    LNT_KEPT("mamba_ssm_dtype", "states are float32"),
    LNT_KEPT("mtp_num_hidden_layers", "layers that guess further tokens are not read"),
    {0},
};

static double heads(const lnt_config *k)
{
    for (int i = 0; i < k->n_mixers; i++)
        if (!strcmp(k->mixers[i].label, "attention"))
            return (double)lnt_option_get(lnt_option_find(&k->mixers[i].kind->options, "num_heads"), k->mixers[i].options).integer;
    return 0;
}

static const lnt_arch_rows rows[] = {
    {".linear_attn.conv1d.weight", ".attn.q_conv1d.weight .attn.k_conv1d.weight .attn.v_conv1d.weight", NULL, "gated_deltanet"},
    {".self_attn.q_proj.weight", ".attn.q_proj.weight .attn.g_proj.weight", heads, "attention"},
    {".self_attn.q_proj.bias", ".attn.q_proj.bias .attn.g_proj.bias", heads, "attention"},
    {0},
};

static const lnt_arch_rename renames[] = {
    LNT_RENAME_IN("gated_deltanet", ".attn.o_proj.", ".linear_attn.out_proj."),
    LNT_RENAME_IN("gated_deltanet", ".attn.o_norm.", ".linear_attn.norm."),
    LNT_RENAME_IN("gated_deltanet", ".attn.", ".linear_attn."),
    {0},
};

static const char *const ignored[] = {"mtp.", NULL};

const lnt_arch lnt_arch_qwen_linear = {
    .defaults = defaults, .keys = keys, .others = others, .renames = renames, .rows = rows, .ignored = ignored, .base = &lnt_arch_linear_layers,
};
