/* The scan core: first-order recurrences of channels on their own. Equations: operators.md#scan. */
#include "recurrence/scan/scan.h"

#include "recurrence/forms.h"
#include "recurrence/recur_node.h"

LNT_USUAL_FORMS(static const lnt_recur_impl *const impls[], lnt_scan);

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
static const lnt_recur_option options[] = {
    { "signed", LNT_RECUR_SWITCH, LNT_AT(lnt_scan_args, has_sign), 4, 0, 1, 0, NULL, "decays have a sign: a factor from -1 to 1" },
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_scan_args, "log_a", "T D", log_a, .values = LNT_VALUES_DECAY, .gate = true, .help = "natural log of the decay's size, at most 0"),
    LNT_INPUT(lnt_scan_args, "x", "T D", x, .wide = true, .forward_only = true),
    LNT_INPUT(lnt_scan_args, "sign", "T D", sign, .values = LNT_VALUES_SIGN, .gate = true, .with = LNT_AT(lnt_scan_args, has_sign),
              .help = "factor of the decay, from -1 to 1"),
    LNT_STATE(lnt_scan_args, "s", "", "N D", s),
    LNT_OUTPUT(lnt_scan_args, "o", "T D", o, dout, .wide = true, .read_back = true),
    { 0 },
};

const lnt_recur_op lnt_recur_scan = {
    .name = "scan",
    .core = "scan",
    .equation = "h_t = a_t h_{t-1} + x_t, a_t = e^{log_a_t} (or sign_t e^{log_a_t}), o_t = h_t",
    .args_size = sizeof(lnt_scan_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .channel = "D",
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE_READING("scan", LNT_NEEDS_IN0 | LNT_NEEDS_IN2 | LNT_NEEDS_OUT0) }, /* log_a, sign, the states */
};
