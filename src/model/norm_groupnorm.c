/* LayerNorm in each of norm_groups groups of columns (arXiv 1803.08494). */
#include "model/kinds.h"

typedef struct {
    int64_t norm_groups;
    bool norm_bias;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, norm_groups, 1, LNT_MOST_WIDTH, 4, "groups of columns"),
    LNT_SWITCH(options, norm_bias, true, "a bias a column"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_divides(c, l, "norm_groups", o->norm_groups, "hidden_size", l->width);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name)
{
    const options *o = l->options;
    lnt_buf y = lnt_layernorm(p, lnt_with_heads(p, x, (int32_t)o->norm_groups), name, l->norm_eps, true, o->norm_bias);
    return lnt_with_heads(p, y, 1);
}

const lnt_norm lnt_norm_groupnorm = {.kind = {{"groupnorm", "mean 0, variance 1 in groups of columns", "Wu and He 2018, arXiv 1803.08494", NULL},
                                              LNT_OPTIONS(options, keys), check},
                                     .build = build};
