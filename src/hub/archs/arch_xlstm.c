/* Transformers' xLSTM (NX-AI's 7B, arXiv 2503.13427): mLSTM layers alone. */
#include "hub/archs.h"

static const lnt_arch_default defaults[] = {
    {"vocab_size", "50304"}, {"hidden_size", "4096"}, {"num_hidden_layers", "32"}, {"tie_word_embeddings", "false"}, {"bos_token_id", "0"},
    {"eos_token_id", "2"}, {"pad_token_id", "1"}, {"norm_eps", "1e-6"}, {"logit_soft_cap", "30"}, {"hidden_ratio", "2.667"}, {"multiple_of", "64"},
    {0},
};

static const lnt_arch_key keys[] = {
    {"logit_soft_cap", "output_logit_soft_cap", NULL}, {"hidden_ratio", "ffn_proj_factor", NULL},
    {"multiple_of", "ffn_round_up_to_multiple_of", NULL}, {"intermediate_size", NULL, "null"},
    {"tie_word_embeddings", "tie_word_embeddings", "false"},
    {"scale_embeddings", NULL, "false"}, {"fan_in_init", NULL, "false"}, {"depth_init", NULL, "false"}, {"norm_first", NULL, "false"},
    {"embedding_multiplier", NULL, "1"}, {"logit_multiplier", NULL, "1"}, {"logit_divisor", NULL, "1"}, {"residual_multiplier", NULL, "1"},
    {"readout", NULL, "\"token\""},
    {0},
};

static double width(const lnt_config *k) { return (double)k->hidden_size; }
static double layers(const lnt_config *k) { return k->num_hidden_layers; }

static const lnt_arch_other others[] = {
    LNT_FOLLOWS("embedding_dim", width, "hidden_size"),
    LNT_FOLLOWS("num_blocks", layers, "num_hidden_layers"),
    LNT_ONLY("use_bias", "false", "products and norms have no biases, but for the two gates"),
    LNT_ONLY("add_out_norm", "true", "the last layer's output has a norm"),
    LNT_ONLY("weight_mode", "\"single\"", "the products of a layer are tensors of their own"),
    LNT_KEPT("intermediate_size", "the class takes ffn_proj_factor"),
    LNT_KEPT("norm_reduction_force_float32", "sums of norms are float32"),
    LNT_KEPT("inference_state_dtype", "states are float32"),
    LNT_KEPT("autocast_kernel_dtype", "the policy's dtype decides"),
    LNT_KEPT("chunkwise_kernel", "which kernel computes the layer"),
    LNT_KEPT("sequence_kernel", "which kernel computes the layer"),
    LNT_KEPT("step_kernel", "which kernel computes the layer"),
    LNT_KEPT("mode", "which kernel computes the layer"),
    LNT_KEPT("chunk_size", "how a kernel cuts sequences"),
    LNT_KEPT("max_inference_chunksize", "how long prompts are cut"),
    LNT_KEPT("return_last_states", "whether a kernel hands out its states"),
    {0},
};

static const lnt_arch_tensor tensors[] = {
    {"model.embeddings.", "backbone.embeddings.", false}, {"model.layers.", "backbone.blocks.", false}, {"model.norm.", "backbone.out_norm.", false},
    {".attn_norm.", ".norm_mlstm.", false}, {".mlp_norm.", ".norm_ffn.", false}, {".attn.", ".mlstm_layer.", false},
    {".mlp.gate_proj.", ".ffn.proj_up_gate.", false}, {".mlp.up_proj.", ".ffn.proj_up.", false}, {".mlp.down_proj.", ".ffn.proj_down.", false},
    {".mlstm_layer.q.", ".mlstm_layer.query.", true}, {".mlstm_layer.k.", ".mlstm_layer.key.", true},
    {".mlstm_layer.v.", ".mlstm_layer.value.", true},
    {0},
};

const lnt_arch lnt_arch_xlstm = {
    .model_type = "xlstm",
    .class_name = "xLSTMForCausalLM",
    .mixer = "mlstm",
    .mlp = "gated_silu",
    .defaults = defaults,
    .keys = keys,
    .others = others,
    .tensors = tensors,
    .base = &lnt_arch_transformers,
};
