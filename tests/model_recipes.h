/* Small models of every mixer and hybrid, for the tests of whole models. */
#ifndef MODEL_RECIPES_H
#define MODEL_RECIPES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "model/model.h"

enum { VOCAB = 61, TOKENS = 75, MOST_SETTINGS = 10 };

typedef struct {
    const char *name, *type;
    const char *set[MOST_SETTINGS][2];
} recipe;

/* A head's output may be near zero (a first token whose q and k are orthogonal; exactly zero after relu), and there RMSNorm bends within
 * sqrt(norm_eps): differences need larger epsilons than models use. */
static const recipe recipes[] = {
    {"attention, grouped heads, qk-norm, bias",
     "transformer",
     {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"qk_norm", "true"}, {"qkv_bias", "true"}}},
    /* all experts of a token, so that no choice jumps; choices: test_experts.c */
    {"gated attention, heads of their own size, a part of them turned by scaled angles, experts and one for all tokens",
     "transformer",
     {{"num_heads", "2"}, {"attention_head_dim", "24"}, {"attention_gate", "true"}, {"rotary_factor", "0.5"}, {"rope_type", "yarn"},
      {"rope_factor", "4"}, {"qk_norm", "true"}, {"norm", "centred_rmsnorm"},
      {"mlp", "{\"kind\":\"moe\",\"num_experts\":2,\"expert_size\":9,\"shared_expert_size\":7,\"shared_expert_gate\":true}"}}},
    {"attention with norms behind, sigmoid experts in every other layer; convolutions between gates; by turns",
     "gated_conv",
     {{"num_hidden_layers", "4"}, {"pattern", "gated_conv,attention"}, {"attention.num_heads", "2"}, {"attention.qk_norm", "true"},
      {"attention.qk_norm_of", "all"}, {"attention.centred_qk_norm", "true"}, {"block", "post_norm_others"},
      {"mlp", "{\"kind\":\"moe\",\"num_experts\":2,\"router\":\"sigmoid\",\"norm_topk_prob\":false,\"expert_period\":2}"}}},
    {"mamba with norms inside, and maps without a mixer, by turns, what goes on is normed",
     "mamba",
     {{"state_size", "5"}, {"dt_rank", "3"}, {"inner_norm", "weighted"}, {"pattern", "mamba,feed_forward"}, {"block", "normed_residual"},
      {"norm_eps", "1e-3"}}},
    {"attention, window", "transformer", {{"num_heads", "2"}, {"window_size", "9"}, {"tie_word_embeddings", "true"}}},
    {"linear attention, elu, normalised", "linear_attn", {{"num_heads", "2"}, {"feature_map", "elu"}, {"norm_feature_map", "true"}}},
    {"linear attention, learned product map", "linear_attn", {{"num_heads", "2"}, {"feature_map", "elementwise_product"}, {"expand_v", "2"}}},
    {"linear attention, hedgehog, grouped heads", "linear_attn",
     {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"feature_map", "hedgehog"}, {"tie_feature_map_qk", "true"}, {"norm_k", "true"}}},
    {"linear attention, dpfp, sums", "linear_attn", {{"num_heads", "2"}, {"feature_map", "dpfp"}, {"norm_eps", "1"}}},
    {"linear attention, t2r", "linear_attn", {{"num_heads", "2"}, {"feature_map", "t2r"}, {"norm_eps", "1"}}},
    {"abc", "abc", {{"num_heads", "2"}, {"num_slots", "7"}}},
    {"abc without positions, convolution, clamped, and a window, by turns",
     "abc",
     {{"num_heads", "2"}, {"num_slots", "null"}, {"use_rope", "false"}, {"use_short_conv", "true"}, {"clamp_min", "-1.5"}, {"clamp_max", "2"},
      {"pattern", "abc,attention:7"}}},
    {"based", "based", {{"num_heads", "2"}, {"feature_dim", "5"}}},
    {"based and a window, by turns", "based", {{"num_heads", "2"}, {"pattern", "based,attention:7"}}},
    {"rebased", "rebased", {{"num_heads", "2"}, {"feature_dim", "6"}, {"eps", "0.1"}}},
    {"rebased without norm", "rebased", {{"num_heads", "4"}, {"feature_dim", "3"}, {"normalize", "false"}, {"eps", "0.1"}}},
    {"lightning attention", "lightning_attn", {{"num_heads", "2"}, {"num_hidden_layers", "3"}}},
    {"lightning attention, linear slopes, own head size, and a window, by turns",
     "lightning_attn",
     {{"num_heads", "4"}, {"head_dim", "5"}, {"slopes", "linear"}, {"pattern", "lightning_attn,attention:7"}}},
    {"gated retention", "gated_retention", {{"num_heads", "2"}, {"gate_logit_normalizer", "2"}, {"expand_v", "1.5"}}},
    {"gated rfa", "gated_rfa", {{"num_heads", "2"}, {"num_features", "128"}}},
    {"gated rfa and a window, by turns",
     "gated_rfa",
     {{"num_hidden_layers", "3"}, {"num_heads", "4"}, {"num_features", "70"}, {"pattern", "gated_rfa,attention:7"}}},
    {"metala", "metala", {{"num_heads", "2"}, {"gate_logit_normalizer", "2"}}},
    {"metala without augmentation", "metala", {{"num_heads", "4"}, {"expand_k", "1"}, {"conv_size", "3"}, {"use_self_augmentation", "false"}}},
    {"decaying fast weights", "dfw", {{"num_heads", "2"}, {"expand_v", "1.5"}}},
    {"decaying fast weights, gated, and a window, by turns",
     "decaying_fast_weight",
     {{"num_heads", "4"}, {"expand_k", "0.5"}, {"use_output_gate", "true"}, {"pattern", "dfw,attention:7"}}},
    {"retnet", "retnet", {{"num_heads", "2"}}},
    {"retnet, grouped heads", "retnet", {{"num_heads", "4"}, {"num_kv_heads", "2"}}},
    {"simple gla", "simple_gla", {{"num_heads", "2"}}},
    {"simple gla, grouped heads, convolution", "simple_gla", {{"num_heads", "4"}, {"num_kv_heads", "1"}, {"use_short_conv", "true"}}},
    {"rwkv6", "rwkv6", {{"num_heads", "2"}, {"proj_low_rank_dim", "5"}, {"gate_low_rank_dim", "7"}}},
    {"rwkv6 and a window, by turns, no bias of norms", "rwkv6", {{"num_heads", "2"}, {"norm_bias", "false"}, {"pattern", "rwkv6,attention:7"}}},
    {"gla, grouped heads, convolution, clamped",
     "gla",
     {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"expand_k", "1"}, {"use_short_conv", "true"}, {"clamp_min", "-0.12"}}},
    {"gla, fast decay, no output gate",
     "gla",
     {{"num_heads", "2"}, {"gate_logit_normalizer", "2"}, {"gate_low_rank_dim", "5"}, {"use_output_gate", "false"}, {"expand_v", "2"}}},
    {"rwkv7", "rwkv7",
     {{"head_dim", "16"}, {"decay_low_rank_dim", "5"}, {"gate_low_rank_dim", "7"}, {"a_low_rank_dim", "6"}, {"v_low_rank_dim", "3"}}},
    {"rwkv7, ranks by width, unfused norm", "rwkv7",
     {{"num_hidden_layers", "3"}, {"head_dim", "null"}, {"num_heads", "2"}, {"decay_low_rank_dim", "null"}, {"gate_low_rank_dim", "null"},
      {"a_low_rank_dim", "null"}, {"v_low_rank_dim", "null"}, {"fuse_norm", "false"}}},
    {"a window and rwkv7, by turns", "rwkv7", {{"num_hidden_layers", "4"}, {"head_dim", "16"}, {"pattern", "attention:7,rwkv7"}}},
    {"hgrn", "hgrn", {{"num_hidden_layers", "3"}}},
    {"hgrn, wide, convolution, no bounds", "hgrn", {{"expand_ratio", "1.5"}, {"use_short_conv", "true"}, {"use_lower_bound", "false"}}},
    {"hgrn and a window, by turns", "hgrn", {{"num_hidden_layers", "3"}, {"pattern", "hgrn,attention:7"}, {"num_heads", "2"}}},
    {"a window and hgrn, by turns", "hgrn", {{"num_hidden_layers", "3"}, {"pattern", "attention:7,hgrn"}, {"num_heads", "2"}}},
    {"gsa", "gsa", {{"num_heads", "2"}, {"num_slots", "7"}}},
    {"gsa, grouped heads, fast decay",
     "gsa",
     {{"num_heads", "4"}, {"num_kv_heads", "2"}, {"num_slots", "null"}, {"gate_logit_normalizer", "1"}, {"expand_k", "0.5"}}},
    {"gsa with convolution, and a window, by turns",
     "gsa",
     {{"num_heads", "2"}, {"num_slots", "5"}, {"use_short_conv", "true"}, {"expand_v", "2"}, {"pattern", "gsa,attention:7"}}},
    {"mamba", "mamba", {{"state_size", "5"}, {"dt_rank", "3"}}},
    {"mamba, negative eigenvalues", "mamba", {{"state_size", "5"}, {"dt_rank", "3"}, {"allow_neg_eigval", "true"}}},
    {"lru", "lru", {{"state_size", "11"}}},
    {"lru without gate, and a window, by turns", "lru", {{"use_glu", "false"}, {"r_min", "0.5"}, {"pattern", "lru,attention:7"}, {"num_heads", "2"}}},
    {"rglru", "rglru", {{"num_heads", "2"}}},
    {"griffin: rglru, rglru and a window, by turns",
     "rglru",
     {{"num_hidden_layers", "3"}, {"num_heads", "2"}, {"lru_width", "40"}, {"conv1d_width", "3"}, {"pattern", "rglru,rglru,attention:7"}}},
    {"recurrent gemma",
     "recurrent_gemma",
     {{"num_hidden_layers", "3"}, {"num_heads", "2"}, {"lru_width", "40"}, {"embedding_multiplier", "5.65625"}, {"pattern", "rglru,attention:7"}}},
    {"rwkv-4", "rwkv", {{"attention_hidden_size", "40"}}},
    {"rwkv-4 and a window, by turns", "rwkv", {{"pattern", "rwkv4,attention:7"}, {"num_heads", "2"}, {"mix_is_own", "false"}}},
    {"s4d", "s4d", {{"state_size", "6"}}},
    {"s4d, bilinear, without gate, and a window, by turns",
     "s4d",
     {{"state_size", "10"}, {"discretization", "bilinear"}, {"use_glu", "false"}, {"pattern", "s4d,attention:7"}, {"num_heads", "2"}}},
    {"longhorn", "longhorn", {{"state_size", "5"}, {"dt_rank", "3"}}},
    {"longhorn, exact, and a window, by turns",
     "longhorn",
     {{"state_size", "6"}, {"dt_rank", "2"}, {"form", "exact"}, {"num_heads", "4"}, {"pattern", "longhorn,attention:7"}}},
    {"samba: mamba with an MLP, and a window, by turns",
     "samba",
     {{"state_size", "3"}, {"dt_rank", "2"}, {"channels", "41"}, {"pattern", "mamba,attention:7"}, {"num_heads", "2"}}},
    {"mamba, biases of products, none of the convolution, and a window, by turns",
     "mamba",
     {{"state_size", "16"}, {"dt_rank", "2"}, {"expand", "1"}, {"use_bias", "true"}, {"use_conv_bias", "false"}, {"pattern", "mamba,attention:7"},
      {"num_heads", "2"}}},
    {"mlstm", "mlstm", {{"num_heads", "2"}, {"eps", "0"}}},
    {"slstm", "slstm", {{"num_heads", "2"}}},
    {"slstm without convolution, and mlstm, by turns",
     "slstm",
     {{"num_hidden_layers", "3"}, {"num_heads", "4"}, {"use_short_conv", "false"}, {"pattern", "slstm,2*mlstm"}}},
    {"mlstm, wide keys, gates not capped, and a window, by turns",
     "mlstm",
     {{"num_heads", "4"}, {"qk_dim_factor", "1.25"}, {"v_dim_factor", "0.5"}, {"gate_soft_cap", "null"}, {"pattern", "mlstm,attention:7"}}},
    {"delta net", "delta_net", {{"num_heads", "2"}}},
    {"delta net, negative eigenvalues, gate, elu keys",
     "delta_net",
     {{"num_heads", "2"}, {"allow_neg_eigval", "true"}, {"use_gate", "true"}, {"qk_activation", "elu"}, {"qk_norm", "sum"}}},
    {"gated delta net, grouped values", "gated_deltanet", {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "12"}, {"expand_v", "1.5"}}},
    {"gated delta net h1",
     "gated_deltanet",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"attn", "{\"layers\":[1],\"num_heads\":2,\"window_size\":7}"}}},
    {"kda, grouped values, lower bound, negative eigenvalues",
     "kda",
     {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "12"}, {"expand_v", "1.5"}, {"lower_bound", "-2"}, {"safe_gate", "true"},
      {"allow_neg_eigval", "true"}}},
    {"kda without convolution, gla and a window, by turns",
     "kda",
     {{"num_heads", "2"}, {"head_dim", "12"}, {"use_short_conv", "false"}, {"num_hidden_layers", "3"}, {"pattern", "kda,gla,attention:7"},
      {"norm_eps", "1"}}},
    {"gated delta product, grouped values, forgetting",
     "gated_deltaproduct",
     {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "12"}, {"expand_v", "1.5"}, {"num_householder", "2"}, {"use_forget_gate", "true"}}},
    {"gated delta product of three, negative eigenvalues, no decay, output gate and convolution, and a window, by turns",
     "gated_deltaproduct",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"num_householder", "3"}, {"allow_neg_eigval", "true"}, {"use_output_gate", "false"},
      {"use_short_conv", "false"}, {"pattern", "gated_deltaproduct,attention:7"}}},
    {"comba, grouped values", "comba", {{"num_heads", "2"}, {"num_v_heads", "4"}, {"head_dim", "12"}, {"expand_v", "1.5"}}},
    {"comba without correction and output gate, and a window, by turns",
     "comba",
     {{"num_heads", "2"}, {"head_dim", "12"}, {"use_output_correction", "false"}, {"use_output_gate", "false"}, {"pattern", "comba,attention:7"}}},
    {"comba without inner decay and convolution",
     "comba",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"use_inner_decay", "false"}, {"use_short_conv", "false"}, {"correction_factor", "0.02"}}},
    {"equal backbone, gated delta", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "gated_deltanet"}, {"gamma_cap", "0.9975"}}},
    {"equal backbone, gla", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "gla"}}},
    {"equal backbone, delta", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "delta_net"}}},
    {"equal backbone, attention", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "attention"}}},
    {"equal backbone, mlstm", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "mlstm"}}},
    {"equal backbone, hawk", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "hawk"}}},
    {"mesa net", "mesa_net", {{"num_heads", "2"}, {"head_dim", "12"}, {"cg_tolerance", "1e-7"}}},
    {"mesa net, recursive", "mesa_net", {{"num_heads", "2"}, {"head_dim", "12"}, {"cg_solver", "sherman_morrison"}, {"use_forget_gate", "false"}}},
    {"mesa net, window", "mesa_net", {{"num_heads", "2"}, {"head_dim", "12"}, {"cg_tolerance", "1e-7"}, {"mesa_window", "20"}}},
    {"mesa net, gammas of both signs",
     "mesa_net",
     {{"num_heads", "2"}, {"head_dim", "12"}, {"cg_tolerance", "1e-7"}, {"allow_neg_gamma", "true"}, {"lambda_lower_bound", "9"},
      {"gamma_cap", "0.99"}}},
    {"mesa net, window, output gate",
     "mesa_net",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"cg_tolerance", "1e-7"}, {"use_output_gate", "true"}, {"pattern", "mesa_net,attention:7"}}},
    {"mesa net and gated delta net, by turns",
     "mesa_net",
     {{"num_heads", "2"}, {"head_dim", "12"}, {"cg_tolerance", "1e-7"}, {"gamma_cap", "0.99"}, {"pattern", "mesa_net,gated_deltanet"}}},
    {"equal backbone, mesa", "equal_backbone", {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "mesa"}, {"cg_tolerance", "1e-7"}}},
    {"equal backbone, mesa and window",
     "equal_backbone",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"cg_tolerance", "1e-7"}, {"pattern", "mesa,attention:7"}}},
    {"equal backbone, mesa and gated delta, by turns",
     "equal_backbone",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"cg_tolerance", "1e-7"}, {"pattern", "mesa,gated_deltanet"}}},
    {"equal backbone, hawk and mesa, by turns",
     "equal_backbone",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"cg_tolerance", "1e-7"}, {"pattern", "hawk,mesa"}}},
    {"equal backbone, mesa, three steps differentiated",
     "equal_backbone",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"rule", "mesa"}, {"cg_tolerance", "0"}, {"max_cg_step_training", "3"},
      {"max_cg_step_decoding", "3"}, {"cg_gradient", "unrolled"}}},
    {"sandwich, layer norm, gelu", "retnet", {{"num_heads", "2"}, {"block", "sandwich"}, {"norm", "layernorm"}, {"mlp", "gelu"}}},
    {"parallel, group norm, gated gelu",
     "gated_deltanet",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"block", "parallel"}, {"norm", "groupnorm"}, {"mlp", "gated_gelu"}, {"tanh_gelu", "true"}}},
    {"channel mix, norm of the embeddings",
     "simple_gla",
     {{"num_heads", "2"}, {"mlp", "channel_mix"}, {"norm", "layernorm"}, {"norm_first", "true"}}},
    {"squared relu, two norms side by side, hybrid",
     "delta_net",
     {{"num_heads", "2"}, {"mlp", "squared_relu"}, {"block", "parallel"}, {"two_norms", "true"}, {"pattern", "delta_net,retnet"}}},
    {"ttt linear", "ttt_linear", {{"num_heads", "2"}, {"mini_batch_size", "8"}}},
    {"ttt linear, shared projection, gate, and a window, by turns",
     "ttt_linear",
     {{"num_heads", "2"}, {"share_qk", "true"}, {"use_gate", "true"}, {"pattern", "ttt_linear,attention:7"}}},
    {"ttt mlp", "ttt_mlp", {{"num_heads", "2"}}},
    {"titans", "titans", {{"num_heads", "2"}, {"head_dim", "12"}}},
    {"titans, norm in the loss, no gate and convolution, and a window, by turns",
     "titans",
     {{"num_heads", "2"}, {"head_dim", "16"}, {"mini_batch_size", "5"}, {"inner", "ln"}, {"use_gate", "false"}, {"use_short_conv", "false"},
      {"pattern", "titans,attention:7"}}},
    {"hyena", "hyena", {{"filter_length", "400"}, {"filter_order", "8"}, {"emb_dim", "5"}, {"num_inner_mlps", "1"}, {"sine_frequency", "1"}}},
    {"hyena of order 3, its filters shorter than texts, without a short convolution",
     "hyena",
     {{"order", "3"}, {"filter_length", "40"}, {"filter_order", "8"}, {"emb_dim", "3"}, {"num_inner_mlps", "0"}, {"short_filter_order", "0"},
      {"sine_frequency", "1"}}},
    {"hyena of two heads",
     "mh_hyena",
     {{"num_heads", "2"}, {"filter_length", "400"}, {"filter_order", "8"}, {"emb_dim", "5"}, {"sine_frequency", "1"}}},
    {"hyena of four heads, its filters shorter than texts, and a recurrence, by turns",
     "mh_hyena",
     {{"num_heads", "4"}, {"filter_length", "50"}, {"filter_order", "8"}, {"sine_frequency", "1"}, {"pattern", "mh_hyena,rglru"}}},
    {"delta net, a residual stream of the activations' type", "delta_net", {{"num_heads", "2"}, {"residual_in_fp32", "false"}}},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static inline linnet_config *config_of(linnet_context *c, const recipe *r)
{
    linnet_config *k;
    if (linnet_config_create(c, r->type, &k) != LINNET_OK) fail_msg("%s: %s", r->name, linnet_error_message(c));
    const char *const common[][2] = {{"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"vocab_size", "61"}, {"initializer_range", "0.2"},
                                     {"norm_eps", "1e-2"}};
    lnt_config_put_int(k, "intermediate_size", 40); /* where there is an MLP */
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        if (linnet_config_set(c, k, common[i][0], common[i][1]) != LINNET_OK) fail_msg("%s: %s", r->name, linnet_error_message(c));
    for (int i = 0; i < MOST_SETTINGS && r->set[i][0]; i++) {
        const bool pattern = strcmp(r->set[i][0], "pattern") == 0; /* last: it is laid over the layers there are */
        if ((pattern ? linnet_config_pattern(c, k, r->set[i][1]) : linnet_config_set(c, k, r->set[i][0], r->set[i][1])) != LINNET_OK)
            fail_msg("%s: %s", r->name, linnet_error_message(c));
    }
    return k;
}

static inline linnet_model *model_of(linnet_context *c, const recipe *r, linnet_dtype dtype)
{
    linnet_model *m;
    linnet_config *k = config_of(c, r);
    if (linnet_model_create(c, k, dtype, 5, &m) != LINNET_OK) fail_msg("%s: %s", r->name, linnet_error_message(c));
    linnet_config_destroy(k);
    return m;
}

static inline void draw_ids(int32_t *ids, int n)
{
    lnt_rng r = lnt_rng_make(11, 0);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)lnt_rng_below(&r, VOCAB);
}

static inline double relative_rms(const float *a, const float *b, int64_t n)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), size += (double)b[i] * b[i];
    return sqrt(error / (size > 0 ? size : 1));
}

#endif
