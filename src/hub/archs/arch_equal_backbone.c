/* The MesaNet paper's comparison (arXiv 2506.05233, section 4 and appendix F), its small model: embeddings and projections start by fan-in, the
 * former times hidden_size^1/2, logits are capped at 30, the MLP has 3 hidden_size columns. A name for these settings: saved as linnet's type. */
#include "hub/archs.h"

static const lnt_arch_default defaults[] = {
    {"vocab_size", "50257"}, {"hidden_size", "768"}, {"num_hidden_layers", "14"}, {"tie_word_embeddings", "true"}, {"bos_token_id", "null"},
    {"eos_token_id", "null"}, {"scale_embeddings", "true"}, {"fan_in_init", "true"}, {"depth_init", "true"}, {"logit_soft_cap", "30"},
    {"hidden_ratio", "4.5"}, {"multiple_of", "1"}, /* a SwiGLU of 2/3 4.5 hidden_size */
    {0},
};

const lnt_arch lnt_arch_equal_backbone = {
    .model_type = "equal_backbone",
    .mixer = "equal_backbone",
    .attn = "attention",
    .attn_keys = "num_heads num_kv_heads qkv_bias window_size rope_theta",
    .defaults = defaults,
    .base = &lnt_arch_linnet,
};
