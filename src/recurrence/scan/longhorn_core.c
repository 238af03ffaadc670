/* The description of Longhorn, which goes by the selective scan's kernels. Equations: operators.md#longhorn. */
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"

static const lnt_recur_option options[] = { { 0 } };
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_selective_args, "x", "T D", u, .wide = true),
    LNT_INPUT(lnt_selective_args, "beta", "T D", delta, .values = LNT_VALUES_STEP, .gate = true, .help = "write strength"),
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
    .sizes = lnt_selective_sizes,
    .tensors = tensors,
    .options = options,
    .impls = lnt_selective_impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .channel = "D",
    .flops = lnt_selective_flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("longhorn") },
};
