/* The description of S4D's recurrence. Equations: operators.md#s4d. */
#include "recurrence/forms.h"
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"

LNT_TILED_FORMS(static const lnt_recur_impl *const impls[], lnt_s4d);

/* A number of a state: a complex product and a real sum, and the real part of a product; in reverse the states again, and four such products. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_s4d_args *a = args;
    (void)C;
    return (backward ? 33.0 : 11.0) * (double)a->tokens * a->D * a->M;
}

static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_s4d_args, D), 4, 1, 1 << 24, 1024, NULL, "channels" },
    { "M", LNT_AT(lnt_s4d_args, M), 4, 1, 4096, 32, NULL, "complex numbers of a channel's state" },
    { "P", LNT_AT(lnt_s4d_args, P), 4, 2, 2, 2, NULL, "parts of a number: real, imaginary" },
    { 0 },
};
static const lnt_recur_option options[] = {
    { "discretization", LNT_RECUR_WORD, LNT_AT(lnt_s4d_args, discretization), 4, 0, 1, LNT_S4D_ZOH, "zoh bilinear",
      "how the equation in time becomes steps" },
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_s4d_args, "u", "T D", u, .wide = true),
    LNT_INPUT(lnt_s4d_args, "dt", "D", dt, .values = LNT_VALUES_STEP, .gate = true, .help = "step size"),
    LNT_INPUT(lnt_s4d_args, "A_re", "D M", A_re, .values = LNT_VALUES_NEGATIVE, .gate = true, .help = "rates of decay, below 0"),
    LNT_INPUT(lnt_s4d_args, "A_im", "D M", A_im, .gate = true, .help = "frequencies"),
    LNT_INPUT(lnt_s4d_args, "C_re", "D M", C_re, .help = "read-out"),
    LNT_INPUT(lnt_s4d_args, "C_im", "D M", C_im),
    LNT_INPUT(lnt_s4d_args, "D", "D", skip, .absent = "zeros", .help = "factor of u in the output"),
    LNT_STATE(lnt_s4d_args, "s", "", "N P D M", s),
    LNT_OUTPUT(lnt_s4d_args, "o", "T D", o, dout, .wide = true),
    { 0 },
};

const lnt_recur_op lnt_recur_s4d = {
    .name = "s4d",
    .core = "scan",
    .equation = "h_t = Abar h_{t-1} + u_t, o_t = 2 Re(sum_m C Bbar h_t) + D u_t; Abar = e^{dt A}, Bbar = (Abar - 1) / A",
    .args_size = sizeof(lnt_s4d_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .channel = "D",
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("s4d") },
};
