/* The scan core: first-order recurrences of channels on their own. Equations: operators.md#scan. */
#include "recurrence/scan/scan.h"

#include "recurrence/recur_node.h"
#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_scan_chunk);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_scan_recurrent);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_selective_chunk);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_selective_recurrent);

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_scan_chunk_cuda, lnt_scan_recurrent_cuda;           /* scan_cuda.cu */
extern const lnt_recur_impl lnt_selective_chunk_cuda, lnt_selective_recurrent_cuda; /* selective_cuda.cu */
#endif

static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &lnt_scan_chunk_cuda,    &lnt_scan_recurrent_cuda,
#endif
    &lnt_scan_chunk_amx,     &lnt_scan_chunk_avx512,     &lnt_scan_chunk_avx2,     &lnt_scan_chunk_base,
    &lnt_scan_recurrent_amx, &lnt_scan_recurrent_avx512, &lnt_scan_recurrent_avx2, &lnt_scan_recurrent_base,
    &lnt_scan_reference,     NULL,
};

/* A product and a sum a token and channel; in reverse a sum and two products. Exponentials are not counted. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_scan_args *a = args;
    (void)C;
    return (backward ? 3.0 : 2.0) * (double)a->tokens * a->D;
}

static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_scan_args, D), 4, 1, 1 << 24, 2048, NULL, "channels" },
    { 0 },
};
static const lnt_recur_option options[] = { { 0 } };
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_scan_args, "log_a", "T D", log_a, .values = LNT_VALUES_DECAY, .gate = true, .help = "natural log of the decay, at most 0"),
    LNT_INPUT(lnt_scan_args, "x", "T D", x, .wide = true, .forward_only = true),
    LNT_STATE(lnt_scan_args, "s", "", "N D", s),
    LNT_OUTPUT(lnt_scan_args, "o", "T D", o, dout, .wide = true, .read_back = true),
    { 0 },
};

const lnt_recur_op lnt_recur_scan = {
    .name = "scan",
    .core = "scan",
    .equation = "h_t = e^{log_a_t} h_{t-1} + x_t, o_t = h_t",
    .args_size = sizeof(lnt_scan_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE_READING("scan", LNT_NEEDS_IN0 | LNT_NEEDS_OUT0) }, /* log_a and the states */
};

/* ---- selective_scan ---------------------------------------------------------------------------------------------------------------------------- */

static const lnt_recur_impl *const selective_impls[] = {
#ifdef LINNET_CUDA
    &lnt_selective_chunk_cuda,    &lnt_selective_recurrent_cuda,
#endif
    &lnt_selective_chunk_amx,     &lnt_selective_chunk_avx512,     &lnt_selective_chunk_avx2,     &lnt_selective_chunk_base,
    &lnt_selective_recurrent_amx, &lnt_selective_recurrent_avx512, &lnt_selective_recurrent_avx2, &lnt_selective_recurrent_base,
    &lnt_selective_reference,     NULL,
};

/* A number of a state: its decay's exponent, two for the update, two for the read-out; in reverse twice the update to make states again, and 13. */
static double selective_flops(const void *args, int C, bool backward)
{
    const lnt_selective_args *a = args;
    (void)C;
    return (backward ? 16.0 : 5.0) * (double)a->tokens * a->D * a->M;
}

static const lnt_recur_size selective_sizes[] = {
    { "D", LNT_AT(lnt_selective_args, D), 4, 1, 1 << 24, 2048, NULL, "channels" },
    { "M", LNT_AT(lnt_selective_args, M), 4, 1, 4096, 16, NULL, "numbers of a channel's state" },
    { 0 },
};
static const lnt_recur_tensor selective_tensors[] = {
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

const lnt_recur_op lnt_recur_selective_scan = {
    .name = "selective_scan",
    .core = "scan",
    .equation = "h_t = e^{delta_t A} h_{t-1} + delta_t u_t B_t, o_t = sum_m C_t h_t + D u_t",
    .args_size = sizeof(lnt_selective_args),
    .sizes = selective_sizes,
    .tensors = selective_tensors,
    .options = options,
    .impls = selective_impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .flops = selective_flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("selective_scan") },
};
