/* What a model is: the common keys, a block, a norm and an MLP, and for each layer a mixer, each with its own options.
 *
 * Layers that share a mixer and its options share a part; part 0 is that of every layer nobody named. How files say all this is hub/'s affair: this
 * structure knows neither JSON nor other projects' names. */
#ifndef LNT_MODEL_CONFIG_H
#define LNT_MODEL_CONFIG_H

#include "core/memory.h"
#include "model/kinds.h"

enum { LNT_MAX_LAYERS = 512, LNT_MAX_PARTS = 32, LNT_NAME = 48 };

/* Whose vector a token's logits are made of. */
enum { LNT_FROM_TOKEN, LNT_FROM_LAST };

/* A kind with its options. */
typedef struct {
    const lnt_kind *kind;
    void *options;          /* owned */
    char label[LNT_NAME];   /* its name in this configuration: the kind's, or where two are of a kind "attention.2", "mesa" */
    bool own_values;        /* it came with its own values: keys without a label leave it alone */
    bool window_named;      /* a pattern said its window, which another pattern without one does not take for its own */
} lnt_part;

typedef struct linnet_config {
    char model_type[LNT_NAME]; /* what it was read or made as */
    int64_t vocab_size, hidden_size, num_hidden_layers, max_position_embeddings;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: null */
    double norm_eps, initializer_range, logit_soft_cap, embedding_multiplier, logit_multiplier, logit_divisor;
    bool tie_word_embeddings, scale_embeddings, fan_in_init, depth_init, residual_in_fp32;
    int readout; /* LNT_FROM_TOKEN ... */
    lnt_part block, norm, mlp;
    int n_mixers;
    lnt_part mixers[LNT_MAX_PARTS];
    uint8_t mixer_of[LNT_MAX_LAYERS]; /* a layer's place among the mixers */
    int named_layers;                 /* a list named the mixer of each of so many layers; 0: there was none */
    int64_t sized_heads, sized_head;  /* what lnt_config_size was told, for mixers that come later; 0: nothing, or heads were set since */

    /* keys of a file that do not change the function computed, kept for writing back: text of the hub's, owned; NULL: none */
    char *kept_json;
    char *json; /* last text handed out, owned */
} linnet_config;

typedef linnet_config lnt_config;

extern const lnt_options lnt_common_keys;

/* Defaults of everything, all layers of one mixer. Released with lnt_config_clear. */
linnet_status lnt_config_make(lnt_ctx *c, const char *model_type, const lnt_mixer *mixer, lnt_config *out);
void lnt_config_clear(lnt_config *k);
linnet_status lnt_config_copy(lnt_ctx *c, const lnt_config *k, lnt_config **out);
/* Whole-configuration checks (head counts divide, layers in range ...), each with the offending value. */
linnet_status lnt_config_check(lnt_ctx *c, const lnt_config *k);
/* LINNET_EINVAL where logits are none of a next token: the readout is not the token's own. */
linnet_status lnt_config_check_next(lnt_ctx *c, const lnt_config *k);
/* Forget the text handed out: something changed. */
void lnt_config_touch(lnt_config *k);

/* Another kind in a part's place; options that both have keep their values. */
linnet_status lnt_part_become(lnt_ctx *c, lnt_part *p, const lnt_kind *kind, const char *label);
/* A new mixer at *index: the options of the first part of its kind, or else its defaults with heads of the named size,
 * or like those of the others. */
linnet_status lnt_config_add_mixer(lnt_ctx *c, lnt_config *k, const lnt_mixer *mixer, const char *label, int *index);
/* The part that a word of a list names, made where there is none: a label, a word of part 0's variant, a mixer. window: 0 for none, -1 for whatever
 * it has. */
linnet_status lnt_config_mixer_named(lnt_ctx *c, lnt_config *k, const char *word, int64_t window, int *index);
/* LINNET_EINVAL: the word names no mixer, and what does, `also` ("" or words) among them. */
linnet_status lnt_no_mixer(lnt_ctx *c, const char *word, const char *also);
/* Tokens that a layer of a mixer or a mixer's variant named `word` sees, 0: all; -1: the layer is none, or knows no window. */
int64_t lnt_config_window(const lnt_config *k, int layer, const char *word);
/* Parts that no layer uses go; the first stays unless first_too. */
void lnt_config_prune(lnt_config *k, bool first_too);
bool lnt_config_uses(const lnt_config *k, int part);

/* The tables that a key without label speaks to, one after the other: the common keys, block, norm, MLP, mixers. NULL past the end; *base: the
 * structure, *part: NULL for the common keys. */
const lnt_options *lnt_config_table(const lnt_config *k, int i, void **base, const lnt_part **part);
/* A key of every table that has it ("num_heads"), or of one part ("retnet.num_heads"). *known false: nobody has it, and nothing is wrong. */
linnet_status lnt_config_put(lnt_ctx *c, lnt_config *k, const char *key, const lnt_given *v, bool *known);
/* Whether "retnet.num_heads" is of the part: by its label, or a mixer's other name where no part has that for its own. */
bool lnt_config_labels(const lnt_config *k, const lnt_part *p, const char *key);
/* An integer that is in range, where there is such a key. */
void lnt_config_put_int(lnt_config *k, const char *key, int64_t v);
/* Named sizes and the checks of benchmarks: heads of a width for all mixers, the MLP as its rule says. */
void lnt_config_size(lnt_config *k, int64_t width, int64_t heads, int64_t head);

/* The layer as `p`'s kind sees it. */
lnt_layer lnt_config_layer(const lnt_config *k, const lnt_part *p, int layer);

#endif
