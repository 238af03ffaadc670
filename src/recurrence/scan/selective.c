/* The descriptions of what goes by the selective scan's kernels: a state of M numbers a channel. Equations: operators.md#selective-scan,
 * operators.md#longhorn. */
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"
#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_selective_chunk);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_selective_recurrent);

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_selective_chunk_cuda, lnt_selective_recurrent_cuda; /* selective_cuda.cu */
#endif

static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &lnt_selective_chunk_cuda,    &lnt_selective_recurrent_cuda,
#endif
    &lnt_selective_chunk_amx,     &lnt_selective_chunk_avx512,     &lnt_selective_chunk_avx2,     &lnt_selective_chunk_base,
    &lnt_selective_recurrent_amx, &lnt_selective_recurrent_avx512, &lnt_selective_recurrent_avx2, &lnt_selective_recurrent_base,
    &lnt_selective_reference,     NULL,
};

/* A number of a state: its decay's exponent, two for the update, two for the read-out; in reverse twice the update to make states again, and 13. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_selective_args *a = args;
    (void)C;
    return (backward ? 16.0 : 5.0) * (double)a->tokens * a->D * a->M;
}

static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_selective_args, D), 4, 1, 1 << 24, 2048, NULL, "channels" },
    { "M", LNT_AT(lnt_selective_args, M), 4, 1, 4096, 16, NULL, "numbers of a channel's state" },
    { 0 },
};
static const lnt_recur_option options[] = {
    { "signed", LNT_RECUR_SWITCH, LNT_AT(lnt_selective_args, has_sign), 4, 0, 1, 0, NULL, "decays 2 e^{delta A} - 1, from -1 to 1" },
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_selective_args, "u", "T D", u, .wide = true),
    LNT_INPUT(lnt_selective_args, "delta", "T D", delta, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "step sizes"),
    LNT_INPUT(lnt_selective_args, "A", "D M", A, .values = LNT_VALUES_NEGATIVE, .gate = true, .help = "rates of decay, below 0"),
    LNT_INPUT(lnt_selective_args, "B", "T M", B, .wide = true),
    LNT_INPUT(lnt_selective_args, "C", "T M", C, .wide = true),
    LNT_INPUT(lnt_selective_args, "D", "D", skip, .absent = "zeros", .help = "factor of u in the output"),
    LNT_STATE(lnt_selective_args, "s", "", "N D M", s),
    LNT_OUTPUT(lnt_selective_args, "o", "T D", o, dout, .wide = true),
    { 0 },
};

static linnet_status check(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_selective_args *a = args;
    (void)backward;
    if (!a->has_sign || !lnt_on_cuda(c)) return LINNET_OK;
    lnt_fail(c, LINNET_EUNSUPPORTED, "selective_scan with signed decays has no implementation for a GPU");
    return lnt_hint(c, "Use --device cpu.");
}

const lnt_recur_op lnt_recur_selective_scan = {
    .name = "selective_scan",
    .core = "scan",
    .equation = "h_t = a_t h_{t-1} + delta_t u_t B_t, a_t = e^{delta_t A} (or 2 e^{delta_t A} - 1), o_t = sum_m C_t h_t + D u_t",
    .args_size = sizeof(lnt_selective_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .check = check,
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("selective_scan") },
};

/* ---- longhorn ---------------------------------------------------------------------------------------------------------------------------------- */

static const lnt_recur_impl *const longhorn_impls[] = { /* the CPU's */
    &lnt_selective_chunk_amx,     &lnt_selective_chunk_avx512,     &lnt_selective_chunk_avx2,     &lnt_selective_chunk_base,
    &lnt_selective_recurrent_amx, &lnt_selective_recurrent_avx512, &lnt_selective_recurrent_avx2, &lnt_selective_recurrent_base,
    &lnt_selective_reference,     NULL,
};
static const lnt_recur_option no_options[] = { { 0 } };
static const lnt_recur_tensor longhorn_tensors[] = {
    LNT_INPUT(lnt_selective_args, "x", "T D", u, .wide = true),
    LNT_INPUT(lnt_selective_args, "beta", "T D", delta, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "write strength"),
    LNT_INPUT(lnt_selective_args, "k", "T M", B, .wide = true),
    LNT_INPUT(lnt_selective_args, "q", "T M", C, .wide = true),
    LNT_INPUT(lnt_selective_args, "D", "D", skip, .absent = "zeros", .help = "factor of x in the output"),
    LNT_STATE(lnt_selective_args, "s", "", "N D M", s),
    LNT_OUTPUT(lnt_selective_args, "o", "T D", o, dout, .wide = true),
    { 0 },
};

const lnt_recur_op lnt_recur_longhorn = {
    .name = "longhorn",
    .core = "scan",
    .equation = "h_t = (1 - Delta_t k_t^2) h_{t-1} + Delta_t x_t k_t, Delta_t = beta_t / (1 + beta_t k_t.k_t), o_t = sum_m q_t h_t + D x_t",
    .kind = LNT_LONGHORN,
    .args_size = sizeof(lnt_selective_args),
    .sizes = sizes,
    .tensors = longhorn_tensors,
    .options = no_options,
    .impls = longhorn_impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("longhorn") },
};
