/* Mamba-2 and softmax attention side by side on one input (Falcon-H1, arXiv 2507.22448): y = b_s ssm(a_s x) + b_a attention(a_a x), and factors of
 * the parts of Mamba-2's first product. */
#include "mixers/attention_rule.h"
#include "mixers/mamba2_rule.h"

typedef struct {
    lnt_attention_options attention; /* first */
    lnt_mamba2_options mamba;
    double ssm_in_multiplier, ssm_out_multiplier, attention_in_multiplier, attention_out_multiplier;
} options;

#define MAMBA_INT(name, field, least, most, value, text)                                                                                       \
    {.key = name, .kind = LNT_OPTION_INT, .offset = offsetof(options, mamba.field), .lo = least, .hi = most, .fallback = value, .help = text}
#define MAMBA_SWITCH(name, field, value, text)                                                                                                 \
    {.key = name, .kind = LNT_OPTION_SWITCH, .offset = offsetof(options, mamba.field), .hi = 1, .fallback = value, .help = text}
#define MAMBA_TIMES(name, place, text)                                                                                                         \
    {.key = name, .kind = LNT_OPTION_REAL, .offset = offsetof(options, mamba.times[place]), .lo = -1e9, .hi = 1e9, .fallback = 1, .help = text}

static const lnt_option keys[] = {
    LNT_ATTENTION_KEYS(32),
    MAMBA_INT("mamba_heads", num_heads, 1, LNT_MOST_WIDTH, 32, "Mamba-2: heads"),
    MAMBA_INT("mamba_head_dim", head_dim, 1, LNT_MOST_WIDTH, 64, "Mamba-2: columns of x in a head"),
    MAMBA_INT("mamba_state_size", state_size, 1, LNT_MOST_WIDTH, 128, "Mamba-2: columns of B and C in a group"),
    MAMBA_INT("mamba_groups", n_groups, 1, LNT_MOST_WIDTH, 1, "Mamba-2: groups of heads that share B and C"),
    MAMBA_INT("mamba_conv_kernel", conv_kernel, 1, LNT_CONV_MAX, 4, "Mamba-2: taps of the convolution"),
    MAMBA_SWITCH("mamba_conv_bias", use_conv_bias, true, "Mamba-2: the convolution has a bias"),
    MAMBA_SWITCH("mamba_bias", use_bias, false, "Mamba-2: the products have biases"),
    MAMBA_SWITCH("mamba_norm", rmsnorm, false, "Mamba-2: a norm of the output, over the columns of a group"),
    MAMBA_SWITCH("mamba_norm_before_gate", norm_before_gate, true, "Mamba-2: the norm first, then the gate"),
    MAMBA_TIMES("gate_factor", 0, "Mamba-2: z times this"),
    MAMBA_TIMES("x_factor", 1, "Mamba-2: x times this"),
    MAMBA_TIMES("b_factor", 2, "Mamba-2: B times this"),
    MAMBA_TIMES("c_factor", 3, "Mamba-2: C times this"),
    MAMBA_TIMES("step_factor", 4, "Mamba-2: dt times this"),
    LNT_REAL(options, ssm_in_multiplier, -1e9, 1e9, 1, "Mamba-2's input times this"),
    LNT_REAL(options, ssm_out_multiplier, -1e9, 1e9, 1, "its output times this"),
    LNT_REAL(options, attention_in_multiplier, -1e9, 1e9, 1, "attention's input times this"),
    LNT_REAL(options, attention_out_multiplier, -1e9, 1e9, 1, "its output times this"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->mamba.num_heads % o->mamba.n_groups)
        return lnt_fail(c, LINNET_EINVAL, "%smamba_groups is %lld, expected a divisor of mamba_heads = %lld", l->where, (long long)o->mamba.n_groups,
                        (long long)o->mamba.num_heads);
    return lnt_check_attention(c, l, &o->attention);
}

static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    o->attention.num_heads = heads;
    o->attention.num_kv_heads = o->attention.attention_head_dim = 0;
    o->mamba.num_heads = 2 * heads;
    o->mamba.head_dim = o->mamba.state_size = head;
    o->mamba.n_groups = 1;
}

static lnt_buf times(lnt_program *p, lnt_buf x, double factor) { return factor == 1 ? x : lnt_activation(p, x, LNT_IDENTITY, factor, false); }

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_push_scope(p, "ssm");
    lnt_buf y = times(p, lnt_mamba2_layer(p, l, &o->mamba, times(p, x, o->ssm_in_multiplier)), o->ssm_out_multiplier);
    lnt_pop_scope(p);
    lnt_push_scope(p, "softmax");
    lnt_buf z = times(p, lnt_softmax_attention(p, l, &o->attention, times(p, x, o->attention_in_multiplier)), o->attention_out_multiplier);
    lnt_pop_scope(p);
    return lnt_add_buf(p, y, z);
}

const lnt_mixer lnt_mixer_hybrid_heads = {
    .kind = {{"hybrid_heads", "Mamba-2 and softmax attention side by side", "Zuo et al. 2025, arXiv 2507.22448", "simple_gla"},
             LNT_OPTIONS(options, keys), check},
    .size = size,
    .build = build,
};
