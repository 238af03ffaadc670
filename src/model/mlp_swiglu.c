/* down(silu(gate x) * up x) (arXiv 2002.05202). Two thirds of hidden_ratio, because there are three matrices where a plain MLP has two. */
#include "model/kinds.h"

typedef struct {
    lnt_mlp_options size; /* first */
    bool mlp_bias, adjust_size;
    double gate_multiplier, down_multiplier, size_multiplier;
} options;

static const lnt_option keys[] = {
    LNT_MLP_KEYS(4, "2/3 hidden_ratio hidden_size, rounded up"),
    LNT_SWITCH(options, mlp_bias, false, "biases in all three products"),
    LNT_REAL(options, gate_multiplier, -1e9, 1e9, 1, "the gate's branch times this, before silu"),
    LNT_REAL(options, down_multiplier, -1e9, 1e9, 1, "the result times this"),
    LNT_SWITCH(options, adjust_size, false, "columns inside are 2/3 size_multiplier intermediate_size, rounded up"),
    LNT_REAL(options, size_multiplier, 1e-6, 1e6, 1, "in that rule"),
};

static lnt_buf product(lnt_program *p, const options *o, lnt_buf x, const char *name, int64_t out)
{
    return o->mlp_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out);
}

static int64_t width_of(const lnt_layer *l, const options *o)
{
    if (!o->adjust_size || o->size.intermediate_size == 0) return lnt_mlp_width(l, 4, 2, 3);
    const int64_t by = o->size.multiple_of, w = (int64_t)(o->size_multiplier * (double)(2 * o->size.intermediate_size / 3));
    return (w + by - 1) / by * by;
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t inner = width_of(l, o);
    lnt_buf gate = product(p, o, x, "gate_proj", inner), up = product(p, o, x, "up_proj", inner); /* in this order, whatever the compiler */
    if (o->gate_multiplier != 1) gate = lnt_activation(p, gate, LNT_IDENTITY, o->gate_multiplier, false);
    lnt_buf y = lnt_swiglu(p, gate, up);
    y = o->mlp_bias ? lnt_linear_bias(p, y, "down_proj", l->width) : lnt_back_linear(p, l, y, "down_proj");
    return o->down_multiplier != 1 ? lnt_activation(p, y, LNT_IDENTITY, o->down_multiplier, false) : y;
}

const lnt_mlp lnt_mlp_swiglu = {.kind = {{"swiglu", "two branches, silu of one times the other", "Shazeer 2020, arXiv 2002.05202", NULL},
                                         LNT_OPTIONS(options, keys), NULL},
                                .build = build};
