/* The decay core: linear attention, retention, simple GLA, Mamba-2; GLA, RWKV-6. Equations: operators.md#decay, #vector-decay. */
#include "recurrence/decay/decay.h"

#include "ops/row_chain.h"
#include "recurrence/recur_node.h"
#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_decay_chunk);
LNT_DECLARE_FLOAT_VARIANTS(const lnt_recur_impl, lnt_decay_recurrent);
#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_decay_chunk_sm90, lnt_decay_chunk_sm80, lnt_decay_chunk_cuda, lnt_decay_recurrent_cuda;
extern const lnt_recur_impl lnt_vector_chunk_sm90, lnt_vector_chunk_sm80, lnt_vector_row_cuda, lnt_vector_recurrent_cuda;
#endif

double lnt_decay_token_flops(double K, double V, int C, bool backward)
{
    return backward ? 10 * K * V + C * (6 * K + 4 * V) : 4 * K * V + C * 2 * (K + V);
}

double lnt_decay_flops(const void *args, int C, bool backward)
{
    const lnt_recur_args *a = args;
    return lnt_decay_token_flops(a->K, a->V, C, backward) * (double)a->tokens * a->Hv;
}

/* The chunks of a sequence follow one another, however few the heads. Cutting it into P segments divides that chain by P, and costs one more reading
 * of k and v (the segments' states) and 2 P states of float32. So: no more segments than fill the GPU. */
enum {
    FULL = 200,      /* pieces of work that keep 132 multiprocessors busy with one or two each */
    SHORTEST = 512,  /* tokens; below, the states' bytes 8 K V outgrow the tokens' 2 (2K + 2V) */
};

int64_t lnt_decay_segment(const lnt_recur_args *a, bool backward, int chunk, int blocks)
{
    int64_t longest = a->longest, segment = (longest + chunk - 1) / chunk * chunk;
    if (segment < chunk) segment = chunk;
    bool gates = backward && a->op->kind != LNT_DECAY_NONE;
    for (;;) {
        int64_t pieces = a->tokens / segment * a->Hv * blocks;
        bool few = pieces < FULL && segment >= 2 * SHORTEST, long_for_gates = gates && segment > (int64_t)LNT_DECAY_CHUNKS * chunk;
        if (!few && !long_for_gates) return segment;
        segment = (segment / 2 + chunk - 1) / chunk * chunk;
    }
}

#define ON_CPUS                                                                                                                    \
    LNT_VARIANTS(lnt_decay_chunk), LNT_FLOAT_VARIANTS(lnt_decay_recurrent), &lnt_decay_reference, NULL
const lnt_recur_impl *const lnt_decay_impls[] = {
#ifdef LINNET_CUDA
    &lnt_decay_chunk_sm90, &lnt_decay_chunk_sm80, &lnt_decay_chunk_cuda, &lnt_decay_recurrent_cuda,
#endif
    ON_CPUS,
};
static const lnt_recur_impl *const vector_impls[] = {
#ifdef LINNET_CUDA
    &lnt_vector_chunk_sm90, &lnt_vector_chunk_sm80, &lnt_vector_row_cuda, &lnt_vector_recurrent_cuda,
#endif
    ON_CPUS,
};

/* ---- operators ---------------------------------------------------------------------------------------------------------------------------- */

#define NORMALIZE                                                                                                                  \
    { "normalize", LNT_RECUR_SWITCH, LNT_AT(lnt_recur_args, normalize), 4, 0, 1, 0, NULL,                                          \
      "divide o_t by scale z_t.q_t + eps, z_t = decayed sum of k" },                                                               \
        { "eps", LNT_RECUR_REAL, LNT_AT(lnt_recur_args, eps), 8, 0, 1e30, 1e-10, NULL, "of normalize" }
static const lnt_recur_option options[] = { LNT_SCALE_OPTION, NORMALIZE, { 0 } };
static const lnt_recur_option scalar_options[] = { LNT_SCALE_OPTION, NORMALIZE, LNT_SIGN_OPTION, { 0 } };
static const lnt_recur_option vector_options[] = { LNT_SCALE_OPTION, LNT_SIGN_OPTION, { 0 } };
static const lnt_recur_option scale_only[] = { LNT_SCALE_OPTION, { 0 } };
#define STATES LNT_STATE_S, LNT_STATE(lnt_recur_args, "z", "", "N Hv K", z, .with = LNT_AT(lnt_recur_args, normalize), \
                                      .positive = LNT_AT(lnt_recur_args, normalize))
static const lnt_recur_tensor ungated[] = { LNT_STATE_QKV, STATES, LNT_STATE_O, { 0 } };
static const lnt_recur_tensor head_gated[] = {
    LNT_STATE_QKV,
    LNT_INPUT(lnt_recur_args, "g_head", "Hv", g_head, .values = LNT_VALUES_DECAY, .gate = true,
              .help = "natural log of each head's decay, at most 0"),
    STATES,
    LNT_STATE_O,
    { 0 },
};
static const lnt_recur_tensor gated[] = { LNT_STATE_QKV, LNT_STATE_GATE, LNT_STATE_SIGN, STATES, LNT_STATE_O, { 0 } };

static const lnt_recur_option stable_options[] = {
    LNT_SCALE_OPTION,
    { "eps", LNT_RECUR_REAL, LNT_AT(lnt_recur_args, eps), 8, 0, 1e30, 0, NULL, "added to the denominator of the kept states" },
    { 0 },
};
static const lnt_recur_tensor stable[] = {
    LNT_STATE_QKV,
    LNT_INPUT(lnt_recur_args, "f", "T Hv", g, .values = LNT_VALUES_DECAY, .gate = true, .help = "natural log of the decay, at most 0"),
    LNT_INPUT(lnt_recur_args, "i", "T Hv", i, .gate = true, .help = "natural log of the write strength"),
    LNT_STATE_S,
    LNT_STATE(lnt_recur_args, "n", "", "N Hv K", z),
    LNT_STATE(lnt_recur_args, "m", "", "N Hv", m, .gate = true),
    LNT_STATE_O,
    { 0 },
};

#define COLUMN_GATE                                                                                                                \
    LNT_INPUT(lnt_recur_args, "gv", "T Hv V", gv, .values = LNT_VALUES_DECAY, .gate = true,                                           \
              .help = "natural log of the decay of S's columns, at most 0")
#define TURNS(NAME, SHAPE)                                                                                                         \
    LNT_INPUT(lnt_recur_args, #NAME, SHAPE, NAME, .values = LNT_VALUES_SIGN, .gate = true, .with = LNT_AT(lnt_recur_args, has_sign), \
              .help = "factors of these decays, from -1 to 1")
#define ROW_SIGN TURNS(sign_k, "T Hv K")
#define COLUMN_SIGN TURNS(sign_v, "T Hv V")
static const lnt_recur_tensor rows_gated[] = { LNT_STATE_QKV, LNT_STATE_ROW_GATE(), ROW_SIGN, LNT_STATE_S, LNT_STATE_O, { 0 } };
static const lnt_recur_tensor columns_gated[] = { LNT_STATE_QKV, COLUMN_GATE, COLUMN_SIGN, LNT_STATE_S, LNT_STATE_O, { 0 } };
static const lnt_recur_tensor both_gated[] = {
    LNT_STATE_QKV, LNT_STATE_ROW_GATE(), ROW_SIGN, COLUMN_GATE, COLUMN_SIGN, LNT_STATE_S, LNT_STATE_O, { 0 },
};
static const lnt_recur_tensor early_read[] = {
    LNT_STATE_QKV,
    LNT_STATE_ROW_GATE(.passed = true),
    LNT_INPUT(lnt_recur_args, "bonus", "Hv K", bonus, .help = "factor of a token's own key in its read-out"),
    LNT_STATE_S,
    LNT_STATE_O,
    { 0 },
};

static linnet_status check(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_recur_args *a = args;
    if (a->has_sign && a->normalize) return lnt_fail(c, LINNET_EINVAL, "signed and normalize: the sum of keys may be 0 where decays have a sign");
    if (a->has_sign && lnt_on_cuda(c)) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "%s with signed has no kernel for a GPU", a->op->name);
        return lnt_hint(c, "Use --device cpu.");
    }
    return lnt_state_check(c, args, backward);
}

/* With a decay a head and keys that all heads share, in a decoding step with what stands around it (row_chain.h). */
static bool row(const lnt_node *n, lnt_row_step *s)
{
    lnt_recur_args x = *(const lnt_recur_args *)lnt_recur_args_of(n);
    lnt_state_fill(&x);
    if (x.op->kind != LNT_DECAY_SCALAR || n->n_in != 4 || x.normalize || x.Hq != 1 || x.Hk != 1) return false;
    if ((x.K != 64 && x.K != 128) || x.V % 32) return false;
    lnt_row_inputs(n, LNT_ROW_DECAYED, s);
    s->cols = (int64_t)x.Hv * x.V, s->head = x.V, s->count = x.K;
    s->number[0] = (float)x.scale;
    return true;
}

#define OPERATOR(NAME, KIND, TENSORS, OPTIONS, IMPLS, EQUATION)                                                                                    \
    const lnt_recur_op lnt_recur_##NAME = {                                                                                        \
        .name = #NAME, .core = "decay", .equation = EQUATION, .kind = KIND, .args_size = sizeof(lnt_recur_args), .sizes = lnt_state_sizes, \
        .tensors = TENSORS, .options = OPTIONS, .impls = IMPLS, .cases = lnt_decay_cases, .f32 = { 2e-6, 1e-5, 5e-5 },  \
        .bf16 = { 5e-3, 5e-3, 2e-2 }, .fill = lnt_state_fill, .check = check, .flops = lnt_decay_flops,                 \
        .weights = true,                                                                                                          \
        .node = &(const lnt_op){ LNT_RECUR_NODE(#NAME), .row = row },                                                             \
    }
OPERATOR(linear_attn, LNT_DECAY_NONE, ungated, options, lnt_decay_impls, "S_t = S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t");
OPERATOR(retention, LNT_DECAY_HEAD, head_gated, options, lnt_decay_impls, "S_t = e^{g_h} S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t");
OPERATOR(simple_gla, LNT_DECAY_SCALAR, gated, scalar_options, lnt_decay_impls,
         "S_t = e^{g_t} S_{t-1} + k_t v_t^T (with signed sign_t e^{g_t}), o_t = scale S_t^T q_t");
OPERATOR(mlstm, LNT_DECAY_STABLE, stable, stable_options, lnt_decay_impls,
         "m_t = max(f_t + m_{t-1}, i_t), [S_t n_t] = e^{f_t + m_{t-1} - m_t} [S_{t-1} n_{t-1}] + e^{i_t - m_t} k_t [v_t^T 1], "
         "o_t = scale S_t^T q_t / (max(|scale n_t.q_t|, e^{-m_t}) + eps)");
OPERATOR(gla, LNT_DECAY_ROWS, rows_gated, vector_options, vector_impls,
         "S_t = diag(e^{gk_t}) S_{t-1} + k_t v_t^T (with signed sign_k_t.e^{gk_t}), o_t = scale S_t^T q_t");
OPERATOR(gla_v, LNT_DECAY_COLUMNS, columns_gated, vector_options, vector_impls,
         "S_t = S_{t-1} diag(e^{gv_t}) + k_t v_t^T (with signed sign_v_t.e^{gv_t}), o_t = scale S_t^T q_t");
OPERATOR(gla_kv, LNT_DECAY_BOTH, both_gated, vector_options, vector_impls,
         "S_t = diag(e^{gk_t}) S_{t-1} diag(e^{gv_t}) + k_t v_t^T (with signed both e^g times their signs), o_t = scale S_t^T q_t");
OPERATOR(rwkv6, LNT_DECAY_EARLY, early_read, scale_only, vector_impls,
         "o_t = scale (S_{t-1} + (bonus.k_t) v_t^T)^T q_t, S_t = diag(e^{gk_t}) S_{t-1} + k_t v_t^T");
