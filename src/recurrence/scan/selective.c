/* The description of the selective scan. Equations: operators.md#selective-scan. */
#include "recurrence/forms.h"
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"

LNT_USUAL_FORMS(const lnt_recur_impl *const lnt_selective_impls[], lnt_selective);

/* A number of a state: its decay's exponent, two for the update, two for the read-out; in reverse twice the update to make states again, and 13. */
double lnt_selective_flops(const void *args, int C, bool backward)
{
    const lnt_selective_args *a = args;
    (void)C;
    return (backward ? 16.0 : 5.0) * (double)a->tokens * a->D * a->M;
}

const lnt_recur_size lnt_selective_sizes[] = {
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
    LNT_INPUT(lnt_selective_args, "delta", "T D", delta, .values = LNT_VALUES_STEP, .gate = true, .help = "step sizes"),
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
    .equation = "h_t = a_t h_{t-1} + delta_t u_t B_t, a_t = e^{delta_t A} (or 2 e^{delta_t A} - 1), o_t = sum_m C_t h_t + D u_t",
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
    .node = &(const lnt_op){ LNT_RECUR_NODE("selective_scan") },
};
