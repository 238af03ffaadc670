/* The parts of a block beside its mixer, as kinds: norms, MLPs, and the block that ties them together. One file each (norm_rmsnorm.c, mlp_swiglu.c,
 * block_pre_norm.c ...), one line each in norms.def, mlps.def, blocks.def; what was said of a mixer's file (mixers/mixers.h) holds for theirs. */
#ifndef LNT_MODEL_KINDS_H
#define LNT_MODEL_KINDS_H

#include "mixers/mixers.h"

typedef struct lnt_norm {
    lnt_kind kind; /* first */
    lnt_buf (*build)(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name);
} lnt_norm;

typedef struct lnt_mlp {
    lnt_kind kind; /* first */
    lnt_buf (*build)(lnt_program *p, const lnt_layer *l, lnt_buf x); /* NULL: there is none, nor a norm before it */
} lnt_mlp;

typedef struct lnt_block_parts lnt_block_parts; /* model/build.c */

typedef struct lnt_block {
    lnt_kind kind; /* first */
    /* The residual stream x [tokens, width] after the layer. */
    lnt_buf (*build)(lnt_program *p, const lnt_block_parts *b, lnt_buf x);
} lnt_block;

/* The layer's parts for its block: a norm under a name, the mixer under "attn", the MLP under "mlp". */
lnt_buf lnt_block_norm(lnt_program *p, const lnt_block_parts *b, lnt_buf x, const char *name);
lnt_buf lnt_block_mixer(lnt_program *p, const lnt_block_parts *b, lnt_buf x);
lnt_buf lnt_block_mlp(lnt_program *p, const lnt_block_parts *b, lnt_buf x);
bool lnt_block_has_mlp(const lnt_block_parts *b);
const void *lnt_block_options(const lnt_block_parts *b);
int lnt_block_layer(const lnt_block_parts *b);
bool lnt_block_first_mixer(const lnt_block_parts *b); /* the layer has the mixer of every layer that nobody named */

#define X(name) extern const lnt_norm lnt_norm_##name;
#include "model/norms.def"
#undef X
#define X(name) extern const lnt_mlp lnt_mlp_##name;
#include "model/mlps.def"
#undef X
#define X(name) extern const lnt_block lnt_block_##name;
#include "model/blocks.def"
#undef X

typedef enum { LNT_MIXERS, LNT_BLOCKS, LNT_NORMS, LNT_MLPS, LNT_FAMILIES } lnt_family;
const char *lnt_family_name(lnt_family f); /* "mixer", "block", "norm", "mlp" */
const lnt_kind *lnt_kind_at(lnt_family f, int i); /* in the order of the list; NULL past the end */
const lnt_kind *lnt_kind_find(lnt_family f, const char *name);

/* ---- shared by the MLPs ---- */

typedef struct {
    int64_t intermediate_size, multiple_of;
    double hidden_ratio;
} lnt_mlp_options;

#define LNT_MLP_KEYS(ratio, rule) LNT_MLP_KEYS_OF(ratio, #ratio, rule)
#define LNT_MLP_KEYS_OF(ratio, none, rule)                                                                                                     \
    LNT_MAYBE_INT(lnt_mlp_options, intermediate_size, 1, 16 * LNT_MOST_WIDTH, 0, 0, "columns inside; null: " rule),                            \
    LNT_MAYBE_REAL(lnt_mlp_options, hidden_ratio, 1.0 / 64, 64, ratio, "columns inside as a share of hidden_size; null: " none),               \
    LNT_INT(lnt_mlp_options, multiple_of, 1, LNT_MOST_WIDTH, 256, "what intermediate_size = null rounds up to a multiple of")

/* intermediate_size, or int(hidden_size * hidden_ratio * times / by) rounded up; `ratio`: the default of hidden_ratio. */
int64_t lnt_mlp_width(const lnt_layer *l, double ratio, int times, int by);

#endif
