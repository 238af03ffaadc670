/* The untied delta rule: what is read before a write and where the reading is written are rows of their own. RWKV-7 and every recurrence whose
 * transition is a diagonal and a matrix of rank one. Equations: operators.md#untied. */
#include "ops/row_chain.h"
#include "recurrence/delta/delta.h"
#include "recurrence/recur_node.h"
#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_dplr_chunk);
LNT_DECLARE_FLOAT_VARIANTS(const lnt_recur_impl, lnt_dplr_recurrent);

static double flops(const void *args, int C, bool backward)
{
    const lnt_recur_args *a = args;
    double K = a->K, V = a->V, tokens = (double)a->tokens * a->Hv;
    /* the backward pass makes the chunk states again: 6KV + C(4K + 3V) */
    return tokens * (backward ? 22 * K * V + C * (28 * K + 21 * V) : 8 * K * V + C * (8 * K + 7 * V));
}

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_dplr_chunk_sm90; /* delta_vector_sm90.cu */
extern const lnt_recur_impl lnt_dplr_row_cuda, lnt_dplr_recurrent_cuda; /* dplr_cuda.cu */
#endif

static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &lnt_dplr_chunk_sm90, &lnt_dplr_row_cuda, &lnt_dplr_recurrent_cuda,
#endif
    LNT_VARIANTS(lnt_dplr_chunk), LNT_FLOAT_VARIANTS(lnt_dplr_recurrent), &lnt_dplr_reference, NULL,
};

static const lnt_recur_option options[] = { LNT_SCALE_OPTION, { 0 } };
#define UNTIED \
    LNT_INPUT(lnt_recur_args, "a", "T Hv K", a, .wide = true, .values = LNT_VALUES_UNIT, .help = "row that reads the state before the token"), \
        LNT_INPUT(lnt_recur_args, "b", "T Hv K", b, .wide = true, .values = LNT_VALUES_UNIT, .help = "row that what a has read is written with")
static const lnt_recur_tensor tensors[] = { LNT_STATE_QKV, UNTIED, LNT_STATE_ROW_GATE(.passed = true), LNT_STATE_S, LNT_STATE_O, { 0 } };
static const lnt_recur_tensor ungated[] = { LNT_STATE_QKV, UNTIED, LNT_STATE_S, LNT_STATE_O, { 0 } };

/* In a decoding step, with what stands around it (row_chain.h): a block has a head's columns, and its state. */
static bool row(const lnt_node *n, lnt_row_step *s)
{
    lnt_recur_args x = *(const lnt_recur_args *)lnt_recur_args_of(n);
    lnt_state_fill(&x);
    if (n->n_in != 6 || x.Hq != x.Hv || x.K != x.V || (x.K != 64 && x.K != 128)) return false;
    lnt_row_inputs(n, LNT_ROW_UNTIED, s);
    s->number[0] = (float)x.scale;
    return true;
}

const lnt_recur_op lnt_recur_dplr = {
    .name = "dplr", .core = "delta", .equation = "S_t = diag(e^{gk_t}) S_{t-1} + b_t (S_{t-1}^T a_t)^T + k_t v_t^T, o_t = scale S_t^T q_t",
    .args_size = sizeof(lnt_recur_args), .sizes = lnt_state_sizes, .tensors = tensors, .options = options, .impls = impls, .cases = lnt_delta_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 }, .bf16 = { 8e-3, 8e-3, 2e-2 }, .fill = lnt_state_fill, .check = lnt_state_check, .flops = flops,
    .weights = true, .node = &(const lnt_op){ LNT_RECUR_NODE("dplr"), .row = row },
};

/* The identity and a matrix of rank one: no decay. */
const lnt_recur_op lnt_recur_iplr = {
    .name = "iplr", .core = "delta", .equation = "S_t = S_{t-1} + b_t (S_{t-1}^T a_t)^T + k_t v_t^T, o_t = scale S_t^T q_t",
    .args_size = sizeof(lnt_recur_args), .sizes = lnt_state_sizes, .tensors = ungated, .options = options, .impls = impls, .cases = lnt_delta_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 }, .bf16 = { 8e-3, 8e-3, 2e-2 }, .fill = lnt_state_fill, .check = lnt_state_check, .flops = flops,
    .weights = true, .zeros = { LNT_AT(lnt_recur_args, gk), "T Hv K" },
};
