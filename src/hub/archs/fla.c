/* What the model types of flash-linear-attention share: blocks of RMSNorm, mixer, RMSNorm and SwiGLU under our names, and these keys. */
#include "hub/archs.h"

static const lnt_arch_key keys[] = {
    {"logit_soft_cap", NULL, "null"}, {"scale_embeddings", NULL, "false"}, {"fan_in_init", NULL, "false"}, {"depth_init", NULL, "false"},
    {"multiple_of", NULL, "256"}, {"norm_first", NULL, "false"},
    {"mlp_bias", NULL, "false"}, {"mix_is_own", NULL, "false"},
    {"gate_multiplier", NULL, "1"}, {"down_multiplier", NULL, "1"}, {"inner_norm", NULL, "\"none\""}, {"inner_norm_eps", NULL, "null"},
    {"norm_of", NULL, "\"group\""}, {"step_min", NULL, "0"}, {"adjust_size", NULL, "false"}, {"size_multiplier", NULL, "1"},
    {"residual_multiplier", NULL, "1"},
    {"embedding_multiplier", NULL, "1"}, {"logit_multiplier", NULL, "1"}, {"logit_divisor", NULL, "1"}, {"readout", NULL, "\"token\""},
    {"residual_in_fp32", NULL, "true"},
    {0},
};

static const lnt_arch_other others[] = {
    LNT_ONLY("hidden_act", "\"swish\" \"silu\"", "the SwiGLU has silu"),
    LNT_ONLY("output_gate_activation", "\"swish\" \"silu\" null", "output gates have silu"),
    LNT_ONLY("attnres_block_size", "null", "attention over the outputs of earlier blocks is not offered"),
    LNT_ONLY("elementwise_affine", "true null", "norms have weights"),
    LNT_ONLY("use_l2warp", "false null", "a penalty of the training loss is not offered"),
    LNT_ONLY("norm_bias", "false null", "norms have no biases"),
    LNT_ONLY("conv_bias", "false null", "convolutions have no biases"),
    LNT_ONLY("rope_scaling", "null", "positions are not scaled"),
    LNT_KEPT("attn_mode", "which kernel computes the layer"),
    LNT_KEPT("fuse_norm", "whether one kernel computes the norm"),
    LNT_KEPT("fuse_swiglu", "whether one kernel computes the MLP"),
    LNT_KEPT("fuse_cross_entropy", "whether one kernel computes the loss"),
    LNT_KEPT("fuse_linear_cross_entropy", "whether one kernel computes head and loss"),
    {0},
};

const lnt_arch lnt_arch_fla = {.keys = keys, .others = others, .base = &lnt_arch_transformers};
