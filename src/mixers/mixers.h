/* Mixers: the named layers of the literature, each a short program over operators and recurrence cores. One file each, one line in mixers.def.
 *
 * A mixer takes the normalised residual stream x [tokens, width] and returns [tokens, width], ready to be added. Parameter names are
 * flash-linear-attention's, under the scope the caller has pushed ("model.layers.3.attn"). */
#ifndef LNT_MIXERS_H
#define LNT_MIXERS_H

#include "ops/ops.h"
#include "recurrence/recur_node.h"
#include "program/program.h"

typedef enum {
    LNT_MAP_IDENTITY,
    LNT_MAP_ELU,                 /* elu(x) + 1 */
    LNT_MAP_RELU,
    LNT_MAP_ELEMENTWISE_PRODUCT, /* (A x + a) . (B x + b), learned */
    LNT_MAP_HEDGEHOG,            /* softmax([2Lx, -2Lx]), learned */
    LNT_MAP_T2R,                 /* relu(Lx), learned */
    LNT_MAP_DPFP,                /* nu = 4 */
} lnt_feature_map;

/* What a mixer may need, resolved from the model's configuration by model/build.c. Each mixer reads its own few. */
typedef struct lnt_mixer_config {
    int64_t width;
    int32_t heads, kv_heads, v_heads;  /* query heads; key-value heads of grouped attention; value heads of grouped-value layers */
    int64_t key_dim, value_dim;        /* of one head */
    double norm_eps;
    double out_std;                    /* initial standard deviation of the projection back to the residual stream; 0: as the others */
    bool output_gate, short_conv, beta, neg_eigval;
    int conv_size;
    lnt_act qk_activation;
    bool qk_sum_norm;                  /* delta_net: divide q, k by their sums in place of the L2 norm */
    bool qk_norm, qkv_bias;            /* attention */
    int64_t window;
    double rope_theta;
    lnt_feature_map feature_map;
    bool tie_feature_map, norm_q, norm_k, normalize;
    const char *rule;                  /* equal_backbone */
    double gamma_cap;
    double lambda_lower_bound, cg_tolerance; /* mesa; its solver: recurrence/recur_node.h */
    int32_t cg_steps, cg_steps_min, cg_steps_decoding;
    int cg_guess, cg_solver, cg_gradient;
} lnt_mixer_config;

typedef struct lnt_mixer {
    const char *name;
    lnt_buf (*build)(lnt_program *p, const lnt_mixer_config *c, lnt_buf x);
    const char *summary, *paper, *recurrence;
} lnt_mixer;

const lnt_mixer *lnt_mixer_at(int i); /* in the order of mixers.def; NULL past the end */
const lnt_mixer *lnt_mixer_find(const char *name);

#define X(name, summary, paper, recurrence) lnt_buf lnt_mixer_##name(lnt_program *p, const lnt_mixer_config *c, lnt_buf x);
#include "mixers/mixers.def"
#undef X

/* Shared by the mixers: the projection back to the residual stream. */
lnt_buf lnt_out_proj(lnt_program *p, const lnt_mixer_config *c, lnt_buf o);
/* q, k or v: projection, then (short_conv) convolution with `act`, or `act` alone; split into heads. name "q" makes q_proj and q_conv1d. */
lnt_buf lnt_project(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, const char *name, int32_t heads, int64_t dim, lnt_act act);
/* Write strength sigmoid(b_proj x) in (0,1), or (0,2) with neg_eigval; [tokens, heads] float32. */
lnt_buf lnt_write_strength(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, int32_t heads);

/* The mesa recurrence on q, k, v, log decays and write strengths, with a learned Lambda. mesa_net.c. */
lnt_buf lnt_mesa_rule(lnt_program *p, const lnt_mixer_config *c, lnt_buf q, lnt_buf k, lnt_buf v, lnt_buf g, lnt_buf beta);

#endif
