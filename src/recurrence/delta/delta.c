/* The delta core: DeltaNet, Gated DeltaNet, KDA. Equations: operators.md#delta. */
#include "ops/row_chain.h"
#include "recurrence/delta/delta.h"
#include "recurrence/delta/delta_impls.h"
#include "recurrence/delta/delta_node.h"
#include "recurrence/recur_node.h"
#include "simd/variant.h"

/* The amx variant's chunk form takes bf16 tensors only; its token form would be avx512's. */
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_delta_chunk);
LNT_DECLARE_FLOAT_VARIANTS(const lnt_recur_impl, lnt_delta_recurrent);

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_kda_row_cuda;   /* decay_vector_cuda.cu */
extern const lnt_recur_impl lnt_kda_chunk_sm90; /* delta_vector_sm90.cu */
extern const lnt_recur_impl lnt_delta_product_sm90, lnt_delta_product_sm80, lnt_delta_product_cuda; /* delta_product_cuda.cu */

static const lnt_recur_impl chunk_sm90 = { .name = "chunk-sm90", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 90,
                                           .declines = lnt_delta_fast_declines, .workspace = lnt_delta_fast_workspace,
                                           .put_forward = lnt_delta_sm90_forward, .put_backward = lnt_delta_sm90_backward };
static const lnt_recur_impl chunk_sm80 = { .name = "chunk-sm80", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80,
                                           .declines = lnt_delta_fast_declines, .workspace = lnt_delta_fast_workspace,
                                           .put_forward = lnt_delta_sm80_forward, .put_backward = lnt_delta_sm80_backward };
static const lnt_recur_impl chunk_cuda = { .name = "chunk-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80,
                                           .declines = lnt_delta_cuda_declines, .workspace = lnt_delta_chunk_cuda_workspace,
                                           .put_forward = lnt_delta_chunk_cuda_forward, .put_backward = lnt_delta_chunk_cuda_backward };
static const lnt_recur_impl recurrent_cuda = { .name = "recurrent-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80,
                                               .declines = lnt_delta_cuda_declines, .put_forward = lnt_delta_recurrent_cuda_forward };
#endif

static double flops(const void *args, int C, bool backward)
{
    const lnt_recur_args *a = args;
    const double K = a->K, V = a->V, reads = (double)a->tokens * a->Hv, writes = lnt_recur_writes(a), rows = C * writes;
    /* the backward pass makes the chunk states again: 4KV + CV of the writes */
    if (backward) return reads * (writes * (14 * K * V + rows * (6 * K + 5 * V)) + 4 * K * V + rows * (6 * K + 4 * V));
    return reads * (writes * (4 * K * V + rows * (2 * K + V)) + 2 * K * V + rows * (2 * K + 2 * V));
}

#define ON_CPUS                                                                                                                    \
    LNT_VARIANTS(lnt_delta_chunk), LNT_FLOAT_VARIANTS(lnt_delta_recurrent), &lnt_delta_reference, NULL
static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &chunk_sm90, &chunk_sm80, &chunk_cuda, &recurrent_cuda,
#endif
    ON_CPUS,
};
static const lnt_recur_impl *const row_gated_impls[] = {
#ifdef LINNET_CUDA
    &lnt_kda_chunk_sm90, &lnt_kda_row_cuda, &recurrent_cuda,
#endif
    ON_CPUS,
};

static const lnt_recur_impl *const product_impls[] = {
#ifdef LINNET_CUDA
    &lnt_delta_product_sm90, &lnt_delta_product_sm80, &lnt_delta_product_cuda, &recurrent_cuda,
#endif
    ON_CPUS,
};

/* ---- operators ---------------------------------------------------------------------------------------------------------------------------- */

static const lnt_recur_option options[] = { LNT_SCALE_OPTION, { 0 } };
static const lnt_recur_tensor ungated[] = { LNT_STATE_QKV, LNT_STATE_BETA, LNT_STATE_S, LNT_STATE_O, { 0 } };
static const lnt_recur_tensor row_gated[] = { LNT_STATE_QKV, LNT_STATE_ROW_GATE(), LNT_STATE_BETA, LNT_STATE_S, LNT_STATE_O, { 0 } };
static const lnt_recur_tensor gated[] = { LNT_STATE_QKV, LNT_STATE_GATE, LNT_STATE_BETA, LNT_STATE_S, LNT_STATE_O, { 0 } };

/* A token's writes lie one behind the other, their number is an option. */
#define WRITES "T*n_householder "
static const lnt_recur_option product_options[] = {
    LNT_SCALE_OPTION,
    { "n_householder", LNT_RECUR_INT, LNT_AT(lnt_recur_args, writes), 4, 1, 64, 1, NULL, "writes of a token" },
    { 0 },
};
static const lnt_recur_tensor product[] = {
    LNT_INPUT(lnt_recur_args, "q", "T Hq K", q, .wide = true),
    LNT_INPUT(lnt_recur_args, "k", WRITES "Hk K", k, .wide = true, .values = LNT_VALUES_UNIT),
    LNT_INPUT(lnt_recur_args, "v", WRITES "Hv V", v, .wide = true),
    LNT_INPUT(lnt_recur_args, "g", "T Hv", g, .values = LNT_VALUES_DECAY, .gate = true, .absent = "no decay",
              .help = "natural log of the decay before the first write, at most 0"),
    LNT_INPUT(lnt_recur_args, "beta", WRITES "Hv", beta, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "write strength"),
    LNT_STATE_S,
    LNT_STATE_O,
    { 0 },
};

#define OPERATOR(NAME, KIND, TENSORS, OPTIONS, IMPLS, NODE, EQUATION)                                                                       \
    const lnt_recur_op lnt_recur_##NAME = {                                                                                        \
        .name = #NAME, .core = "delta", .equation = EQUATION, .kind = KIND, .args_size = sizeof(lnt_recur_args), .sizes = lnt_state_sizes,      \
        .tensors = TENSORS, .options = OPTIONS, .impls = IMPLS, .cases = lnt_delta_cases, .f32 = { 2e-6, 1e-5, 5e-5 },            \
        .bf16 = { 8e-3, 8e-3, 2e-2 }, .fill = lnt_state_fill, .check = lnt_state_check, .flops = flops,                            \
        .weights = true,                                                                                                           \
        .node = &(const lnt_op){ LNT_RECUR_NODE(#NAME), NODE },                                                                    \
    }
/* With a gate for each row, in a decoding step with what stands around it (row_chain.h). */
static bool row(const lnt_node *n, lnt_row_step *s)
{
    lnt_recur_args x = *(const lnt_recur_args *)lnt_recur_args_of(n);
    lnt_state_fill(&x);
    if (n->n_in != 5 || x.Hq != x.Hv || x.K != x.V || (x.K != 64 && x.K != 128)) return false;
    lnt_row_inputs(n, LNT_ROW_TIED, s);
    s->operand[4].spread = LNT_ROW_HEAD;
    s->number[0] = (float)x.scale;
    return true;
}

OPERATOR(delta_rule, LNT_DELTA_SCALAR, ungated, options, impls, LNT_DELTA_LAYER,
         "S_t = S_{t-1} + k_t beta_t (v_t - S_{t-1}^T k_t)^T, o_t = scale S_t^T q_t");
OPERATOR(gated_delta_rule, LNT_DELTA_SCALAR, gated, options, impls, LNT_DELTA_LAYER,
         "S_t = e^{g_t} S_{t-1} + k_t beta_t (v_t - e^{g_t} S_{t-1}^T k_t)^T, o_t = scale S_t^T q_t");
OPERATOR(kda, LNT_DELTA_ROWS, row_gated, options, row_gated_impls, .row = row,
         "S_t = R S_{t-1} + k_t beta_t (v_t - (R S_{t-1})^T k_t)^T, R = diag(e^{gk_t}), o_t = scale S_t^T q_t");
OPERATOR(gated_delta_product, LNT_DELTA_SCALAR, product, product_options, product_impls, .makes_input = NULL,
         "S <- e^{g_t} S_{t-1}, then for each of token t's rows of k, v, beta S <- S + k beta (v - S^T k)^T, S_t = S, o_t = scale S_t^T q_t");
