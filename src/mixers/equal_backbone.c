/* The layer of the MesaNet paper's comparison (arXiv 2506.05233, table 3 and appendices D, F.2): q, k, v of the same size for every rule; q and k
 * convolved (window 4), SiLU, L2 norm; sigmoid gates for forgetting and writing, one number a head; no read-out scale; RMSNorm of each head's output.
 * Only the recurrence changes, but for mLSTM, which has gates of its own, an exponential one for writing, and no L2 norm (arXiv 2405.04517); with the
 * latter its scale K^-1/2 comes back; and for Hawk, whose layer is its own paper's (arXiv 2402.19427), with 1.25 times the model's width.
 * The rest of the backbone is in common keys: scale_embeddings, fan_in_init, depth_init, logit_soft_cap.
 *
 * The softmax rows use rotary positions on the plain projections and the scale K^-1/2 instead: the paper does not say how its attention knows
 * positions, and unit-norm q and k without a temperature would leave its softmax nearly uniform. */
#include <math.h>

#include "mixers/mesa_rule.h"
#include "mixers/hawk_rule.h"

enum { ATTENTION, LINEAR, SIMPLE_GLA, GLA, DELTA, GATED_DELTA, MESA, MLSTM, MAMBA2, HAWK };

/* What a rule's state does, in the order of its words. delta: erases before it writes. */
static const struct {
    const char *recurrence;
    bool forgets, writes, delta;
} rules[] = {{"attention", 0, 0, 0}, {"linear_attn", 0, 0, 0}, {"simple_gla", 1, 0, 0}, {"simple_gla", 1, 1, 0},
             {"delta_rule", 0, 1, 1}, {"gated_delta_rule", 1, 1, 1}, {"mesa", 1, 1, 0}, {"mlstm", 1, 0, 0},
             {"simple_gla", 1, 0, 0}, {"rglru", 1, 1, 0}};

typedef struct {
    lnt_mesa_choice mesa; /* first */
    int64_t num_heads, head_dim, conv_size, window_size;
    double rope_theta, gamma_cap;
    int rule;
} options;

static const lnt_option keys[] = {
    LNT_WORD(options, rule, "attention linear_attn simple_gla gla delta_net gated_deltanet mesa mlstm mamba2 hawk", GATED_DELTA,
             "the recurrence; simple_gla, the paper's Mamba2, forgets, gla has a write strength too, hawk is the layer of rglru"),
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 6, "heads"),
    LNT_INT(options, head_dim, 1, LNT_MOST_WIDTH, 128, "columns of a key and of a value; hawk has none"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution of queries and keys",
            .only = "rule linear_attn simple_gla gla delta_net gated_deltanet mesa mlstm mamba2 hawk"),
    LNT_MAYBE_INT(options, window_size, 1, LNT_MOST_TOKENS, 0, 0, "tokens seen, the current one among them; null: all",
                  .only = "rule attention"),
    LNT_REAL(options, rope_theta, 1, 1e15, 10000, "base of the rotary positions", .only = "rule attention"),
    LNT_MAYBE_REAL(options, gamma_cap, 0, 1, 0, "gamma times 1 - (1 - gamma_cap) beta^2; null: 0.9975 for the rule mesa, else not; 1: not",
                   .only = "rule gla gated_deltanet mesa"),
    LNT_MESA_KEYS("rule mesa"),
};

static int64_t hawk_columns(const lnt_layer *l) { return l->width * 5 / 4; }

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->rule == ATTENTION) LNT_TRY(lnt_check_even(c, l, "head_dim", o->head_dim));
    if (o->rule == HAWK) return lnt_check_divides(c, l, "num_heads", o->num_heads, "1.25 hidden_size", hawk_columns(l));
    return o->rule == MESA ? lnt_check_mesa(c, l, &o->mesa) : LINNET_OK;
}

static lnt_buf softmax_rule(lnt_program *p, const options *o, lnt_buf x)
{
    lnt_buf q = lnt_rotary(p, lnt_heads_of(p, x, "q_proj", o->num_heads, o->head_dim), o->rope_theta);
    lnt_buf k = lnt_rotary(p, lnt_heads_of(p, x, "k_proj", o->num_heads, o->head_dim), o->rope_theta);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, o->head_dim);
    return lnt_recur(p, "attention", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"window", (double)o->window_size}}});
}

/* log gamma = logsigmoid(a_proj x), with the cap of appendix F when it is set; mesa has the paper's unless another is (1: none). */
static lnt_buf forget_gate(lnt_program *p, const options *o, lnt_buf x, lnt_buf beta, lnt_buf *sign)
{
    lnt_mesa_choice mesa = o->mesa;
    mesa.allow_neg_gamma = mesa.allow_neg_gamma && o->rule == MESA;
    lnt_buf g = lnt_mesa_gate(p, &mesa, x, o->num_heads, sign);
    double cap = o->gamma_cap > 0 ? o->gamma_cap : o->rule == MESA ? 0.9975 : 0;
    return cap > 0 && beta.id ? lnt_gamma_cap(p, g, beta, cap) : g;
}

static lnt_buf mlstm_rule(lnt_program *p, const options *o, lnt_buf x)
{
    lnt_buf q = lnt_project(p, x, "q", o->num_heads, o->head_dim, o->conv_size, LNT_SILU);
    lnt_buf k = lnt_project(p, x, "k", o->num_heads, o->head_dim, o->conv_size, LNT_SILU);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, o->head_dim);
    lnt_buf i = lnt_activation(p, lnt_linear_bias(p, x, "b_proj", o->num_heads), LNT_IDENTITY, 1, true);
    lnt_buf f = forget_gate(p, o, x, LNT_NO_BUF, &(lnt_buf){0});
    return lnt_recur(p, rules[o->rule].recurrence, (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"f", f}, {"i", i}}});
}

static lnt_buf linear_rule(lnt_program *p, const options *o, lnt_buf x)
{
    lnt_buf q = lnt_l2norm(p, lnt_project(p, x, "q", o->num_heads, o->head_dim, o->conv_size, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, x, "k", o->num_heads, o->head_dim, o->conv_size, LNT_SILU), 1e-6);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, o->head_dim);
    const bool writes = rules[o->rule].writes, delta = rules[o->rule].delta;
    lnt_buf beta = writes ? lnt_activation(p, lnt_linear_bias(p, x, "b_proj", o->num_heads), LNT_SIGMOID, 1, true) : LNT_NO_BUF;
    lnt_buf sign = LNT_NO_BUF, g = rules[o->rule].forgets ? forget_gate(p, o, x, beta, &sign) : LNT_NO_BUF;
    if (o->rule == MESA) return lnt_mesa_rule(p, &o->mesa, q, k, v, g, sign, beta);
    if (!delta && writes) v = lnt_mul_buf(p, v, beta);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}, {"g", g}, {"beta", delta ? beta : LNT_NO_BUF}}, .option = {{"scale", 1}}};
    return lnt_recur(p, rules[o->rule].recurrence, in);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    if (o->rule == HAWK) return lnt_hawk_layer(p, l, x, hawk_columns(l), o->num_heads, (int)o->conv_size);
    lnt_buf y = o->rule == ATTENTION ? softmax_rule(p, o, x) : o->rule == MLSTM ? mlstm_rule(p, o, x) : linear_rule(p, o, x);
    return lnt_out_proj(p, l, lnt_rmsnorm(p, y, "o_norm", l->norm_eps));
}

static const lnt_windowed windowed[] = {{"attention", "window_size"}, {"mesa", "mesa_window"}, {0}};

const lnt_mixer lnt_mixer_equal_backbone = {
    .kind = {{"equal_backbone", "the MesaNet paper's layer, in which only the recurrence changes; "
              "its \"GLA\" and \"Mamba2\" are simple GLA stripped of the rest",
              "von Oswald et al. 2025, arXiv 2506.05233", "by rule"},
             LNT_OPTIONS(options, keys), check},
    .variant = "rule",
    .windowed = windowed,
    .build = build,
};
