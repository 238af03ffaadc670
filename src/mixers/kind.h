/* What a configuration chooses from: mixers, blocks, norms and MLPs are kinds, each a file that describes itself and a line in a list. */
#ifndef LNT_KIND_H
#define LNT_KIND_H

#include "core/options.h"

/* A layer as its parts see it. */
typedef struct lnt_layer {
    int64_t width;
    int index, layers;    /* this one, of how many */
    double norm_eps;
    bool depth_init;      /* what projects back to the residual stream starts with variance 2/layers of the others' */
    const char *where;    /* before a key in messages: "", or "retnet." where several mixers have it */
    const void *options;  /* the part's own structure */
} lnt_layer;

typedef struct lnt_kind {
    linnet_mixer_info about; /* paper, recurrence NULL: none */
    lnt_options options;
    /* What no row can say: options that do not go together or with the width. NULL: nothing. */
    linnet_status (*check)(lnt_ctx *c, const lnt_layer *l);
} lnt_kind;

/* LINNET_EINVAL unless b divides w, naming both: num_heads = b and "hidden_size" = w. */
linnet_status lnt_check_divides(lnt_ctx *c, const lnt_layer *l, const char *by, int64_t b, const char *what, int64_t w);

#endif
