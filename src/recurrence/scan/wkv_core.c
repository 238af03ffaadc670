/* The description of WKV, RWKV-4's recurrence. Equations: operators.md#wkv. A state of zeros is none: where b = 0, nothing has been seen and m says
 * nothing, so that a program's states need no other beginning. */
#include "recurrence/forms.h"
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"

LNT_USUAL_FORMS(static const lnt_recur_impl *const impls[], lnt_wkv);

/* A token and channel: two sums read and two moved on; in reverse the latter again, and what goes to each. Functions are not counted. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_wkv_args *a = args;
    (void)C;
    return (backward ? 34.0 : 11.0) * (double)a->tokens * a->D;
}

static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_wkv_args, D), 4, 1, 1 << 24, 2048, NULL, "channels" },
    { 0 },
};
static const lnt_recur_option options[] = { { 0 } };
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_wkv_args, "k", "T D", k, .wide = true, .help = "log of a value's weight"),
    LNT_INPUT(lnt_wkv_args, "v", "T D", v, .wide = true),
    LNT_INPUT(lnt_wkv_args, "w", "D", w, .gate = true, .help = "-e^w is a channel's log decay a token"),
    LNT_INPUT(lnt_wkv_args, "u", "D", u, .gate = true, .help = "added to the current token's k when it is read"),
    LNT_STATE(lnt_wkv_args, "a", "", "N D", a, .help = "sum of weights times values, over e^m"),
    LNT_STATE(lnt_wkv_args, "b", "", "N D", b, .values = LNT_VALUES_POSITIVE, .help = "sum of weights, over e^m; 0: none, whatever m is"),
    LNT_STATE(lnt_wkv_args, "m", "", "N D", m, .gate = true, .help = "the largest decayed k so far"),
    LNT_OUTPUT(lnt_wkv_args, "o", "T D", o, dout, .wide = true),
    { 0 },
};

const lnt_recur_op lnt_recur_wkv = {
    .name = "wkv",
    .core = "scan",
    .equation = "o_t = (a_{t-1} + e^{u + k_t} v_t) / (b_{t-1} + e^{u + k_t}), a_t = e^{-e^w} a_{t-1} + e^{k_t} v_t, "
                "b_t = e^{-e^w} b_{t-1} + e^{k_t}, a and b over e^m, m_t = max(m_{t-1} - e^w, k_t)",
    .args_size = sizeof(lnt_wkv_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 8e-3, 2e-2 },
    .nonlinear = true,
    .channel = "D",
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("wkv") },
};
