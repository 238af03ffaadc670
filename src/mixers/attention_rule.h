/* Softmax attention with its options, for the mixers that have it. attention.c. */
#ifndef LNT_ATTENTION_RULE_H
#define LNT_ATTENTION_RULE_H

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, num_kv_heads, attention_head_dim, window_size;
    bool qkv_bias, o_bias, qk_norm, centred_qk_norm, attention_gate, attention_rope;
    int qk_norm_of;
    double qk_norm_eps, attention_scale, key_multiplier;
    double rope_theta, rotary_factor;
    int rope_type;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_beta_fast, rope_beta_slow, rope_attention_factor, rope_mscale,
        rope_mscale_all_dim;
    int64_t rope_original_positions;
    bool rope_truncate;
} lnt_attention_options;

/* Rows for a structure that has its lnt_attention_options first; num_heads with a default of its own. */
#define LNT_ATTENTION_KEYS(heads)                                                                                                              \
    LNT_INT(lnt_attention_options, num_heads, 1, LNT_MOST_WIDTH, heads, "query heads"),                                                        \
    LNT_MAYBE_INT(lnt_attention_options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys and values; null: num_heads"),                  \
    LNT_MAYBE_INT(lnt_attention_options, attention_head_dim, 1, LNT_MOST_WIDTH, 0, 0, "columns of a head; null: hidden_size / num_heads"),     \
    LNT_SWITCH(lnt_attention_options, qkv_bias, false, "biases in the projections to queries, keys and values"),                               \
    LNT_SWITCH(lnt_attention_options, o_bias, false, "a bias in the projection back"),                                                         \
    LNT_SWITCH(lnt_attention_options, qk_norm, false, "an RMSNorm over each head of queries and keys"),                                        \
    LNT_WORD(lnt_attention_options, qk_norm_of, "head all", 0, "whether that norm is over each head or over all of them together"),            \
    LNT_SWITCH(lnt_attention_options, centred_qk_norm, false, "that norm's weights are 1 + w"),                                                \
    LNT_MAYBE_REAL(lnt_attention_options, qk_norm_eps, 0, 1, 1e-5, "added to its mean squares; null: norm_eps"),                               \
    LNT_SWITCH(lnt_attention_options, attention_gate, false, "outputs times sigmoid(g_proj x) before the projection back"),                    \
    LNT_MAYBE_INT(lnt_attention_options, window_size, 1, LNT_MOST_TOKENS, 0, 0, "tokens seen, the current one among them; null: all"),         \
    LNT_MAYBE_REAL(lnt_attention_options, attention_scale, 1e-9, 1e9, 0, "factor of the scores; null: head_dim^-1/2"),                         \
    LNT_REAL(lnt_attention_options, key_multiplier, -1e9, 1e9, 1, "keys times this"),                                                          \
    LNT_MAYBE_REAL(lnt_attention_options, rope_theta, 1, 1e15, 10000, "base of the rotary positions; null: there are none"),                   \
    LNT_SWITCH(lnt_attention_options, attention_rope, true, "rotary positions; else there are none"),                                          \
    LNT_REAL(lnt_attention_options, rotary_factor, 1e-6, 1, 1, "share of a head's columns that turn with the position"),                       \
    LNT_WORD(lnt_attention_options, rope_type, "default linear llama3 yarn", 0, "how angles are scaled for longer texts"),                     \
    LNT_REAL(lnt_attention_options, rope_factor, 1e-6, 1e9, 1, "how many times longer"),                                                       \
    LNT_REAL(lnt_attention_options, rope_low_freq_factor, 1e-9, 1e9, 1, "llama3: waves longer than the old length / this are stretched"),      \
    LNT_REAL(lnt_attention_options, rope_high_freq_factor, 1e-9, 1e9, 4, "llama3: waves shorter than the old length / this stay"),             \
    LNT_INT(lnt_attention_options, rope_original_positions, 1, LNT_MOST_TOKENS, 8192, "llama3, yarn: the old length"),                         \
    LNT_REAL(lnt_attention_options, rope_beta_fast, 1e-9, 1e9, 32, "yarn: what turns so often in the old length stays"),                       \
    LNT_REAL(lnt_attention_options, rope_beta_slow, 1e-9, 1e9, 1, "yarn: what turns less is stretched"),                                       \
    LNT_SWITCH(lnt_attention_options, rope_truncate, true, "yarn: between whole columns"),                                                     \
    LNT_MAYBE_REAL(lnt_attention_options, rope_attention_factor, 1e-9, 1e9, 0, "yarn: factor of cosines and sines; null: by the rule"),        \
    LNT_MAYBE_REAL(lnt_attention_options, rope_mscale, -1e9, 1e9, 0, "yarn: in that rule"),                                                    \
    LNT_MAYBE_REAL(lnt_attention_options, rope_mscale_all_dim, -1e9, 1e9, 0, "yarn: in that rule")

linnet_status lnt_check_attention(lnt_ctx *c, const lnt_layer *l, const lnt_attention_options *o);
lnt_buf lnt_softmax_attention(lnt_program *p, const lnt_layer *l, const lnt_attention_options *o, lnt_buf x);

#endif
