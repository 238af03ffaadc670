/* Mixers: the named layers of the literature, each a short program over operators and recurrence cores. One file each, one line in mixers.def.
 *
 * A mixer takes the normalised residual stream x [tokens, width] and returns [tokens, width], ready to be added. Its file holds, in this order: its
 * options as a plain structure, their table (core/options.h), the check of what no row can say, the program, and the description that ties them
 * together. Nothing outside the file knows its keys. Parameter names are those that published checkpoints of the layer have, under the scope the
 * caller has pushed ("model.layers.3.attn"). */
#ifndef LNT_MIXERS_H
#define LNT_MIXERS_H

#include "mixers/kind.h"
#include "ops/ops.h"
#include "ops/short_conv.h"
#include "program/program.h"
#include "recurrence/recur_node.h"

typedef struct {
    const char *word, *key;
} lnt_windowed;

typedef struct lnt_mixer {
    lnt_kind kind; /* first */
    /* The key of a word that can stand for a mixer of its own in a pattern ("mesa" for an equal_backbone with rule = mesa); NULL: none. */
    const char *variant;
    /* The keys that a window in a pattern sets ("attention:256"), each of one of those words, or of word NULL; the last has key NULL. NULL:
     * window_size, where there is one. */
    const lnt_windowed *windowed;
    const char *alias; /* another name that it is asked for by; NULL: none */
    /* Options for `heads` heads of `head` columns, as a preset has them. NULL: those named num_heads and head_dim, values as
     * wide as keys beside a head_dim, and no groups of heads. */
    void (*size)(void *options, int64_t heads, int64_t head);
    lnt_buf (*build)(lnt_program *p, const lnt_layer *l, lnt_buf x);
} lnt_mixer;

const lnt_mixer *lnt_mixer_at(int i); /* in the order of mixers.def; NULL past the end */
const lnt_mixer *lnt_mixer_find(const char *name);

#define X(name) extern const lnt_mixer lnt_mixer_##name;
#include "mixers/mixers.def"
#undef X

/* ---- shared by the mixers (shared.c) ---- */

void lnt_mixer_size(const lnt_mixer *m, void *options, int64_t heads, int64_t head);

/* The projection back to the residual stream. */
lnt_buf lnt_out_proj(lnt_program *p, const lnt_layer *l, lnt_buf o);
/* A product whose result joins the residual stream: its weights start as lnt_layer.depth_init says. */
lnt_buf lnt_back_linear(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name);
/* q, k or v: projection, then (conv_size > 0) convolution with `act`, or `act` alone; split into heads. name "q" makes q_proj and q_conv1d. */
lnt_buf lnt_project(lnt_program *p, lnt_buf x, const char *name, int64_t heads, int64_t dim, int64_t conv_size, lnt_act act);
/* The same without either. */
lnt_buf lnt_heads_of(lnt_program *p, lnt_buf x, const char *name, int64_t heads, int64_t dim);
/* A map through `rank` columns: name.0, then name.1, the latter with a bias or without. */
lnt_buf lnt_low_rank(lnt_program *p, lnt_buf x, const char *name, int64_t rank, int64_t out, bool bias);
/* Write strength sigmoid(b_proj x) in (0,1), or (0,2) with negative eigenvalues; [tokens, heads] float32. */
lnt_buf lnt_write_strength(lnt_program *p, lnt_buf x, int64_t heads, bool negative);
/* The natural-log decay of this layer: logsigmoid(f), or with `bounded` log(b + (1 - b) sigmoid(f)), where b of all layers are made once, from the
 * parameter lower_bounds [layers, cols] beside the layers, and the first layer has none. HGRN, HGRN2. */
lnt_buf lnt_rising_decay(lnt_program *p, const lnt_layer *l, lnt_buf f, bool bounded);
/* The output's norm over each head, gated by silu(g_proj x) or not. */
lnt_buf lnt_output_norm(lnt_program *p, const lnt_layer *l, lnt_buf x, lnt_buf o, bool gated, const char *gated_name, const char *plain_name);

/* The end of LRU and S4D: o_proj(gelu y), times sigmoid(g_proj(gelu y)) with a gate. */
lnt_buf lnt_gelu_out(lnt_program *p, const lnt_layer *l, lnt_buf y, bool gated);

/* Sizes of mixers whose key and value widths are the model's times expand_k and expand_v. */
typedef struct {
    int64_t heads, kv_heads, key, value; /* key, value: columns of one head */
} lnt_expanded;
lnt_expanded lnt_expand(const lnt_layer *l, int64_t heads, int64_t kv_heads, double expand_k, double expand_v);
linnet_status lnt_check_expanded(lnt_ctx *c, const lnt_layer *l, int64_t heads, int64_t kv_heads, double expand_k, double expand_v);
/* Values of head_dim * expand_v columns in num_v_heads heads (0: num_heads). */
linnet_status lnt_check_values(lnt_ctx *c, const lnt_layer *l, int64_t num_heads, int64_t num_v_heads, int64_t head_dim, double expand_v);
linnet_status lnt_check_even(lnt_ctx *c, const lnt_layer *l, const char *what, int64_t head);

#endif
