/* A model: its configuration, its program, its weights. */
#ifndef LNT_MODEL_H
#define LNT_MODEL_H

#include "core/border.h"
#include "model/config.h"
#include "program/plan.h"

struct linnet_model {
    lnt_ctx *c;
    lnt_config *config;
    lnt_dtype dtype;
    lnt_program *p;
    lnt_buf ids, targets; /* int32 [tokens] */
    lnt_buf *layers;      /* [num_hidden_layers], each [tokens, width]: what a layer leaves; the program's memory */
    lnt_buf hidden;       /* [tokens, width] after the final norm */
    lnt_buf loss;         /* float32 [tokens, 1], 0 where the target is negative */
    lnt_buf logits;       /* float32 [tokens, vocabulary] */
    lnt_weights *w;
    bool borrowed;        /* w is another model's */
};

/* The model without weights: what a file of weights must look like, known before memory for them is taken. */
linnet_status lnt_model_outline(lnt_ctx *c, const lnt_config *k, lnt_dtype dtype, linnet_model **out);
/* Build the program of a configuration and allocate its weights (zero), kept as lnt_weights_create says. Takes a copy of the configuration. */
linnet_status lnt_model_build(lnt_ctx *c, const lnt_config *k, lnt_dtype dtype, lnt_dtype kept, linnet_model **out);

/* The weights of `m`, which must outlive it, under another configuration with the same parameters: one that solves otherwise, say. */
linnet_status lnt_model_view(lnt_ctx *c, const linnet_model *m, const lnt_config *k, linnet_model **out);

/* A model that a caller hands in: there, and made with this context. */
linnet_status lnt_model_check(lnt_ctx *c, const linnet_model *m);
/* The same, and it says what comes next, of every token. */
linnet_status lnt_model_check_next(lnt_ctx *c, const linnet_model *m);
/* The same as the first, and it has weights that are its own to change. */
linnet_status lnt_model_check_own(lnt_ctx *c, const linnet_model *m);

/* A parameter of that name, elements first .. first+n of it, and where there are some, an array for them. */
linnet_status lnt_parameter_part(lnt_ctx *c, const linnet_model *m, const char *name, int64_t first, int64_t n, const void *values,
                                 const lnt_param **out);

/* LINNET_EINVAL naming the first id outside [0, vocabulary). */
linnet_status lnt_check_ids(lnt_ctx *c, const linnet_model *m, const int32_t *ids, int64_t n);

#endif
