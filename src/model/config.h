/* What a model is: the fields of config.json (flash-linear-attention's keys and defaults) as one structure. hub/config.c reads and writes
 * it, presets.c names sizes, mixers read what they need. Zero means "null" for the sizes that may be null. */
#ifndef LNT_MODEL_CONFIG_H
#define LNT_MODEL_CONFIG_H

#include "core/memory.h"

enum { LNT_MAX_LAYERS = 512, LNT_NAME = 48 };

/* One entry of the `attn` key: softmax attention in place of the mixer at the listed layers. */
typedef struct {
    int n_layers;
    int layers[LNT_MAX_LAYERS];
    int64_t num_heads, num_kv_heads, window_size; /* num_kv_heads 0: num_heads; window_size 0: full */
    bool qkv_bias;
    double rope_theta;
} lnt_attn_spec;

enum { LNT_MAX_ATTN = 4 };

typedef struct linnet_config {
    /* every model type */
    char model_type[LNT_NAME];      /* linear_attn retnet simple_gla delta_net gated_deltanet transformer equal_backbone mesa_net */
    int64_t vocab_size, hidden_size, num_hidden_layers, intermediate_size; /* intermediate_size 0: rule of lnt_config_mlp_width */
    double hidden_ratio;
    double norm_eps, initializer_range;
    bool tie_word_embeddings;
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: null */
    bool use_l2warp;                /* must be false: not offered */
    int n_attn;
    lnt_attn_spec attn[LNT_MAX_ATTN];
    /* linnet's own key "layer_mixers": a mixer name for each layer (n_layer_mixers is 0 or num_hidden_layers), before `attn` applies; of
     * equal_backbone a rule for each layer */
    int n_layer_mixers;
    char (*layer_mixers)[LNT_NAME]; /* owned */

    /* mixers; each uses some */
    int64_t num_heads, num_kv_heads, num_v_heads, head_dim; /* 0: null */
    double expand_k, expand_v;
    bool use_output_gate, use_gate, use_beta, use_short_conv, allow_neg_eigval;
    int64_t conv_size;
    char qk_norm[LNT_NAME];         /* delta_net: "l2" "sum"; transformer: "true" "false" */
    char qk_activation[LNT_NAME];   /* silu relu elu identity */
    char feature_map[LNT_NAME];     /* "" null; elementwise_product hedgehog t2r dpfp elu relu identity */
    bool tie_feature_map_qk, norm_q, norm_k, norm_feature_map;
    bool qkv_bias;
    int64_t window_size;            /* 0: full */
    double rope_theta;

    /* equal_backbone: the MesaNet paper's backbone, in which only the recurrence changes (arXiv 2506.05233, section 4 and appendix F) */
    char rule[LNT_NAME];            /* attention linear_attn simple_gla (gate only) gla (gate and write gate) delta_net gated_deltanet mesa */
    double logit_soft_cap;          /* 30; 0: none */
    double gamma_cap;               /* mesa_net's too; 0: none, and the paper's 0.9975 for the rule mesa; 1: none */

    /* mesa_net, and equal_backbone with the rule mesa */
    double lambda_lower_bound;      /* Lambda = lambda_lower_bound + softplus(lambda_params) */
    int64_t max_cg_step_training, max_cg_step_decoding;
    int64_t min_cg_step_training;   /* linnet's own, as the next four: a training step draws from here to max_cg_step_training; -1: it takes those */
    double cg_tolerance;            /* a token's solve ends at this |residual| / |q|; 0: all steps are taken */
    char cg_solver[LNT_NAME];       /* level jacobi plain absolute flash; a mesa_net file without the key gets the last: flash-linear-attention's */
    char cg_guess[LNT_NAME];        /* diagonal zero */
    char cg_gradient[LNT_NAME];     /* implicit (of the solution) unrolled (of the steps) */

    /* keys read from a file that do not change the function computed, kept for writing back; JSON object text, owned, NULL: none */
    char *kept_json;
    char *json;                     /* last text handed out, owned */
} linnet_config;

typedef linnet_config lnt_config;

/* Defaults of a model type; LINNET_EINVAL with the list of types when unknown. hub/config.c. */
linnet_status lnt_config_defaults(lnt_ctx *c, const char *model_type, lnt_config *out);
/* Whole-configuration checks (head counts divide, sizes positive, layers in range ...), each with the offending value. hub/config.c. */
linnet_status lnt_config_check(lnt_ctx *c, const lnt_config *k);
linnet_status lnt_config_copy(lnt_ctx *c, const lnt_config *k, lnt_config **out);
/* intermediate_size, or flash-linear-attention's rule: int(d*ratio*2/3) rounded up to a multiple of 256. */
int64_t lnt_config_mlp_width(const lnt_config *k);
/* The attn entry that covers `layer`, NULL: none. */
const lnt_attn_spec *lnt_config_attn_at(const lnt_config *k, int layer);

#endif
