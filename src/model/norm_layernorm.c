/* (x - mean(x)) / sqrt(var(x) + norm_eps) w + b (arXiv 1607.06450). */
#include "model/kinds.h"

typedef struct {
    bool norm_bias;
} options;

static const lnt_option keys[] = {LNT_SWITCH(options, norm_bias, true, "a bias a column")};

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name)
{
    const options *o = l->options;
    return lnt_layernorm(p, x, name, l->norm_eps, true, o->norm_bias);
}

const lnt_norm lnt_norm_layernorm = {.kind = {{"layernorm", "mean 0, variance 1, a weight and a bias a column",
                                               "Ba et al. 2016, arXiv 1607.06450", NULL},
                                              LNT_OPTIONS(options, keys), NULL},
                                     .build = build};
