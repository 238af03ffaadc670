/* The descriptions of complex first-order scans. Equations: operators.md#complex-scan. */
#include "recurrence/forms.h"
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"

LNT_USUAL_FORMS(static const lnt_recur_impl *const impls[], lnt_complex);

/* A complex product and sum a token and channel; in reverse a sum and two products. Exponentials and angles are not counted. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_complex_args *a = args;
    (void)C;
    return (backward ? 14.0 : 8.0) * (double)a->tokens * a->D;
}

static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_complex_args, D), 4, 1, 1 << 24, 2048, NULL, "channels" },
    { "P", LNT_AT(lnt_complex_args, P), 4, 2, 2, 2, NULL, "parts of a number: real, imaginary" },
    { 0 },
};
static const lnt_recur_option options[] = { { 0 } };

#define DECAYS(SHAPE)                                                                                                              \
    LNT_INPUT(lnt_complex_args, "log_a", SHAPE, log_a, .values = LNT_VALUES_DECAY, .gate = true,                                   \
              .help = "natural log of the decay's size, at most 0"),                                                               \
        LNT_INPUT(lnt_complex_args, "angle", SHAPE, angle, .gate = true, .help = "by how much the state turns, in radians")
#define INPUT LNT_INPUT(lnt_complex_args, "x", "T P D", x, .wide = true, .forward_only = true)
#define REST                                                                                                                       \
    LNT_STATE(lnt_complex_args, "s", "", "N P D", s), LNT_OUTPUT(lnt_complex_args, "o", "T P D", o, dout, .wide = true, .read_back = true)

static const lnt_recur_tensor varying[] = { INPUT, DECAYS("T D"), REST, { 0 } }, constant[] = { INPUT, DECAYS("D"), REST, { 0 } };

#define OPERATOR(NAME, KIND, TENSORS, EQUATION)                                                                                    \
    const lnt_recur_op lnt_recur_##NAME = {                                                                                        \
        .name = #NAME, .core = "scan", .equation = EQUATION, .kind = KIND, .args_size = sizeof(lnt_complex_args), .sizes = sizes,  \
        .tensors = TENSORS, .options = options, .impls = impls, .cases = lnt_scan_cases, .f32 = { 2e-6, 1e-5, 5e-5 },              \
        .bf16 = { 5e-3, 5e-3, 2e-2 }, .channel = "D", .flops = flops,                                                                \
        .node = &(const lnt_op){ LNT_RECUR_NODE_READING(#NAME, LNT_NEEDS_IN1 | LNT_NEEDS_IN2 | LNT_NEEDS_OUT0) }, /* and states */  \
    }
OPERATOR(complex_scan, LNT_COMPLEX_SCAN, varying, "h_t = e^{log_a_t + i angle_t} h_{t-1} + x_t, o_t = h_t, in complex numbers");
OPERATOR(lru, LNT_LRU, constant, "h_t = e^{log_a + i angle} h_{t-1} + x_t, o_t = h_t, in complex numbers");
