#include "hub/config_keys.h"

#include <string.h>

const lnt_model_type lnt_model_types[LNT_MODEL_TYPES] = {
    {"linear_attn", "linear_attn", "LinearAttentionForCausalLM"},
    {"retnet", "retnet", "RetNetForCausalLM"},
    {"simple_gla", "simple_gla", NULL}, /* a layer there, without a model class */
    {"delta_net", "delta_net", "DeltaNetForCausalLM"},
    {"gated_deltanet", "gated_deltanet", "GatedDeltaNetForCausalLM"},
    {"transformer", "attention", "TransformerForCausalLM"},
    {"equal_backbone", NULL, NULL},
    {"mesa_net", "mesa_net", "MesaNetForCausalLM"},
};
enum { LINEAR = 1, RETNET = 2, SIMPLE_GLA = 4, DELTA = 8, GATED_DELTA = 16, ATTENTION = 32, EQUAL = 64, MESA = 128, ALL = 255 };

#define AT(field) offsetof(lnt_config, field)
#define INTEGER(key, types, lo, hi, fallback) {#key, types, LNT_KEY_INT, AT(key), lo, hi, NULL, NULL, fallback}
#define MAYBE_INTEGER(key, types, lo, hi, null_as, fallback) {#key, types, LNT_KEY_INT, AT(key), lo, hi, NULL, null_as, fallback}
#define REAL(key, types, lo, hi, fallback) {#key, types, LNT_KEY_REAL, AT(key), lo, hi, NULL, NULL, fallback}
#define MAYBE_REAL(key, types, lo, hi, fallback) {#key, types, LNT_KEY_REAL, AT(key), lo, hi, NULL, "0", fallback}
#define SWITCH(key, types, fallback) {#key, types, LNT_KEY_BOOL, AT(key), 0, 0, NULL, NULL, fallback}
#define WORD(key, types, words, fallback) {#key, types, LNT_KEY_WORD, AT(key), 0, 0, words, NULL, fallback}

/* Sizes are capped so that products of two of them stay far inside 63 bits; the caps are beyond any published model. */
#define MAX_WIDTH 65536
#define MAX_VOCABULARY 16777216
#define MAX_TOKENS 2147483647.0

/* Where two rows share a field, the one of the model type at hand decides the default, else the last. */
const lnt_config_key lnt_config_keys[] = {
    INTEGER(vocab_size, ALL, 1, MAX_VOCABULARY, "32000"),
    INTEGER(hidden_size, ALL, 1, MAX_WIDTH, "2048"),
    INTEGER(num_hidden_layers, ALL, 1, LNT_MAX_LAYERS, "24"),
    MAYBE_INTEGER(intermediate_size, ALL, 1, 16 * MAX_WIDTH, "0", "0"),
    MAYBE_REAL(hidden_ratio, ALL & ~EQUAL, 1.0 / 64, 64, "4"),
    REAL(norm_eps, ALL, 0, 1, "1e-6"),
    REAL(initializer_range, ALL, 0, 10, "0.02"),
    SWITCH(tie_word_embeddings, ALL, "false"),
    INTEGER(max_position_embeddings, ALL, 1, MAX_TOKENS, "2048"),
    MAYBE_INTEGER(bos_token_id, ALL, 0, MAX_VOCABULARY - 1, "-1", "1"),
    MAYBE_INTEGER(eos_token_id, ALL, 0, MAX_VOCABULARY - 1, "-1", "2"),
    MAYBE_INTEGER(pad_token_id, ALL, 0, MAX_VOCABULARY - 1, "-1", "-1"),

    INTEGER(num_heads, ALL, 1, MAX_WIDTH, "4"),
    MAYBE_INTEGER(num_kv_heads, LINEAR | RETNET | SIMPLE_GLA | ATTENTION, 1, MAX_WIDTH, "0", "0"),
    MAYBE_INTEGER(num_v_heads, GATED_DELTA, 1, MAX_WIDTH, "0", "0"),
    INTEGER(head_dim, GATED_DELTA | EQUAL | MESA, 1, MAX_WIDTH, "128"),
    REAL(expand_k, LINEAR | RETNET | SIMPLE_GLA | DELTA, 1.0 / MAX_WIDTH, 64, "1"),
    REAL(expand_v, LINEAR | RETNET | SIMPLE_GLA | DELTA | GATED_DELTA, 1.0 / MAX_WIDTH, 64, "1"),
    SWITCH(use_output_gate, RETNET | MESA, "true"),
    SWITCH(use_gate, DELTA | GATED_DELTA, "true"),
    SWITCH(use_beta, DELTA, "true"),
    SWITCH(use_short_conv, SIMPLE_GLA | DELTA | GATED_DELTA, "true"),
    SWITCH(allow_neg_eigval, DELTA | GATED_DELTA, "false"),
    INTEGER(conv_size, SIMPLE_GLA | DELTA | GATED_DELTA | EQUAL | MESA, 1, 64, "4"),
    {"qk_norm", ATTENTION, LNT_KEY_BOOL_AS_WORD, AT(qk_norm), 0, 0, NULL, NULL, "false"},
    WORD(qk_norm, DELTA, "l2 sum", "l2"),
    WORD(qk_activation, DELTA, "silu relu elu identity", "silu"),
    {"feature_map", RETNET | SIMPLE_GLA, LNT_KEY_WORD, AT(feature_map), 0, 0, "", "", ""}, /* null alone: nobody publishes another */
    WORD(feature_map, LINEAR, "elementwise_product hedgehog t2r dpfp elu relu identity", "elementwise_product"),
    SWITCH(tie_feature_map_qk, LINEAR, "false"),
    SWITCH(norm_q, LINEAR, "false"),
    SWITCH(norm_k, LINEAR, "false"),
    SWITCH(norm_feature_map, LINEAR, "false"),
    SWITCH(qkv_bias, ATTENTION, "false"),
    MAYBE_INTEGER(window_size, ATTENTION | EQUAL, 1, MAX_TOKENS, "0", "0"),
    REAL(rope_theta, ATTENTION | EQUAL, 1, 1e15, "10000"),

    WORD(rule, EQUAL, "attention linear_attn simple_gla gla delta_net gated_deltanet mesa", "gated_deltanet"),
    MAYBE_REAL(logit_soft_cap, EQUAL, 0, 1e6, "30"),
    MAYBE_REAL(gamma_cap, EQUAL | MESA, 0, 1, "0"),

    REAL(lambda_lower_bound, EQUAL | MESA, 1e-6, 1e6, "0.25"),
    INTEGER(max_cg_step_training, EQUAL | MESA, 0, 65536, "30"),
    INTEGER(max_cg_step_decoding, EQUAL | MESA, 0, 65536, "30"),
    MAYBE_INTEGER(min_cg_step_training, EQUAL | MESA, 0, 65536, "-1", "-1"),
    REAL(cg_tolerance, EQUAL | MESA, 0, 1, "1e-4"),
    WORD(cg_solver, EQUAL | MESA, "level jacobi plain absolute flash", "level"),
    WORD(cg_guess, EQUAL | MESA, "diagonal zero", "diagonal"),
    WORD(cg_gradient, EQUAL | MESA, "implicit unrolled", "implicit"),
};
const int lnt_config_key_count = sizeof lnt_config_keys / sizeof *lnt_config_keys;

const lnt_config_default lnt_config_defaults_of_type[] = {
    {"retnet", "num_heads", "8"},
    {"retnet", "expand_v", "2"},
    {"retnet", "hidden_ratio", "2"},
    {"delta_net", "num_heads", "16"},
    {"delta_net", "use_gate", "false"},
    {"gated_deltanet", "num_heads", "6"},
    {"gated_deltanet", "head_dim", "256"},
    {"gated_deltanet", "expand_v", "2"},
    {"gated_deltanet", "num_hidden_layers", "21"},
    {"transformer", "num_heads", "32"},
    {"mesa_net", "num_heads", "16"},
    {"mesa_net", "use_output_gate", "false"},
    /* The small model of the MesaNet paper (arXiv 2506.05233, appendix F). */
    {"equal_backbone", "vocab_size", "50257"},
    {"equal_backbone", "hidden_size", "768"},
    {"equal_backbone", "num_hidden_layers", "14"},
    {"equal_backbone", "num_heads", "6"},
    {"equal_backbone", "tie_word_embeddings", "true"},
    {"equal_backbone", "bos_token_id", "-1"},
    {"equal_backbone", "eos_token_id", "-1"},
};
const int lnt_config_default_count = sizeof lnt_config_defaults_of_type / sizeof *lnt_config_defaults_of_type;

const lnt_config_fixed *lnt_config_fixed_key(const char *key)
{
    static const lnt_config_fixed fixed[] = {
        {"hidden_act", "\"swish\" \"silu\""},
        {"attnres_block_size", "null"},
        {"elementwise_affine", "true null"},
        {"use_l2warp", "false null"}, /* a penalty of the training loss */
        {"norm_bias", "false null"},
        {"conv_bias", "false null"},
        {"gate_fn", "\"swish\" \"silu\""},
        {"gate_logit_normalizer", "16"},
        {"clamp_min", "null"},
        {"rope_scaling", "null"},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (strcmp(fixed[i].key, key) == 0) return &fixed[i];
    return NULL;
}

bool lnt_config_kept_key(const char *key)
{
    static const char *const kept[] = {
        /* implementation switches of flash-linear-attention; nobody there reads use_output_norm (delta_net), use_short_conv (mesa_net) and
           conv_size (retnet) */
        "attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_cache", "use_output_norm", "use_short_conv",
        "conv_size",
        /* what Transformers writes into every config.json */
        "_name_or_path", "add_cross_attention", "architectures", "auto_map", "chunk_size_feed_forward", "cross_attention_hidden_size",
        "decoder_start_token_id", "dtype", "finetuning_task", "id2label", "is_decoder", "is_encoder_decoder", "label2id", "num_labels",
        "output_attentions", "output_hidden_states", "prefix", "problem_type", "pruned_heads", "return_dict", "sep_token_id",
        "task_specific_params", "tf_legacy_loss",
        "tie_encoder_decoder", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_bfloat16",
        /* its generation settings of old */
        "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values",
        "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strcmp(kept[i], key) == 0) return true;
    return false;
}

unsigned lnt_model_type_bit(const char *model_type)
{
    for (int i = 0; i < LNT_MODEL_TYPES; i++)
        if (strcmp(lnt_model_types[i].model_type, model_type) == 0) return 1u << i;
    return 0;
}

unsigned lnt_mixer_bit(const char *mixer)
{
    for (int i = 0; i < LNT_MODEL_TYPES; i++)
        if (lnt_model_types[i].mixer && strcmp(lnt_model_types[i].mixer, mixer) == 0) return 1u << i;
    return 0;
}

bool lnt_word_in(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; n && (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == 0)) return true;
    return false;
}
