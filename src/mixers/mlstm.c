/* The mLSTM layer of xLSTM (arXiv 2405.04517, section 2.3) as the 7B model has it (arXiv 2503.13427): a state with a forget gate, an exponential
 * input gate and a normaliser,
 *   C_t = sigmoid(f~_t) C_{t-1} + e^{i~_t} k_t v_t^T,   n_t = sigmoid(f~_t) n_{t-1} + e^{i~_t} k_t,   h_t = C_t^T q_t / max(|n_t.q_t|, 1)
 * with queries times head size^-1/2, i~ and f~ softly capped, and y = W_o (sigmoid(o_t) . LayerNorm of each head's h_t). */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads;
    double qk_dim_factor, v_dim_factor, gate_soft_cap, eps;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 8, "heads"),
    LNT_REAL(options, qk_dim_factor, 1.0 / LNT_MOST_WIDTH, 64, 0.5, "columns of queries and of keys, as a share of hidden_size"),
    LNT_REAL(options, v_dim_factor, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of values, as a share of hidden_size"),
    LNT_MAYBE_REAL(options, gate_soft_cap, 1e-3, 1e6, 15, "what goes into the gates is a tanh(x / a); null: x itself"),
    LNT_REAL(options, eps, 0, 1, 1e-6, "added to the normaliser of the state as it is kept, divided by its largest write"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    const int64_t q = (int64_t)((double)l->width * o->qk_dim_factor), v = (int64_t)((double)l->width * o->v_dim_factor);
    if (q < 1 || v < 1)
        return lnt_fail(c, LINNET_EINVAL, "%sqk_dim_factor = %g and v_dim_factor = %g of hidden_size = %lld leave no key or value", l->where,
                        o->qk_dim_factor, o->v_dim_factor, (long long)l->width);
    LNT_TRY(lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size * qk_dim_factor", q));
    return lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size * v_dim_factor", v);
}

/* What goes into a gate; at first the same for every token: biases spread from `low` to `high` over the heads. */
static lnt_buf gate(lnt_program *p, const options *o, lnt_buf x, const char *weight, const char *bias, const char *name, double low, double high)
{
    const int64_t dim[2] = {o->num_heads, lnt_cols(p, x)};
    lnt_add_param(p, weight, 2, dim, (lnt_init){LNT_INIT_CONST, 0, 0}, true, true);
    lnt_add_param(p, bias, 1, dim, (lnt_init){LNT_INIT_SPREAD, low, high}, false, false);
    const double cap = o->gate_soft_cap;
    lnt_buf y = lnt_activation(p, lnt_linear_bias(p, x, name, o->num_heads), LNT_IDENTITY, cap > 0 ? 1 / cap : 1, true);
    return cap > 0 ? lnt_activation(p, y, LNT_TANH, cap, true) : y;
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t q_size = (int64_t)((double)l->width * o->qk_dim_factor) / o->num_heads;
    const int64_t v_size = (int64_t)((double)l->width * o->v_dim_factor) / o->num_heads;
    lnt_buf q = lnt_heads_of(p, x, "q", o->num_heads, q_size), k = lnt_heads_of(p, x, "k", o->num_heads, q_size);
    lnt_buf v = lnt_heads_of(p, x, "v", o->num_heads, v_size);
    lnt_buf i = gate(p, o, x, "igate_preact.weight", "igate_preact.bias", "igate_preact", -10, -10);
    lnt_buf f = gate(p, o, x, "fgate_preact.weight", "fgate_preact.bias", "fgate_preact", 3, 6);
    f = lnt_activation(p, f, LNT_LOG_SIGMOID, 1, true);
    lnt_buf h = lnt_recur(p, "mlstm", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"f", f}, {"i", i}}, .option = {{"eps", o->eps}}});
    h = lnt_with_heads(p, lnt_layernorm(p, h, "multihead_norm", l->norm_eps, true, false), 1);
    h = lnt_glu(p, lnt_linear(p, x, "ogate_preact", v_size * o->num_heads), h, LNT_SIGMOID);
    return lnt_back_linear(p, l, h, "out_proj");
}

const lnt_mixer lnt_mixer_mlstm = {
    .kind = {{"mlstm", "xLSTM's matrix memory: an exponential input gate, a forget gate, a normaliser", "Beck et al. 2024, arXiv 2405.04517",
              "mlstm"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};
