/* The slstm core: a recurrence whose gates see its own last output, so that nothing but tokens one after the other computes it. Equations:
 * operators.md#slstm. */
#include "recurrence/slstm/slstm.h"

#include "core/memory.h"
#include "recurrence/forms.h"
#include "recurrence/recur_node.h"

LNT_USUAL_FORMS(static const lnt_recur_impl *const impls[], lnt_slstm);

/* The product with R; in reverse that with its transpose, and dR. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_slstm_args *a = args;
    (void)C;
    return (backward ? 4.0 : 2.0) * (double)a->tokens * a->H * a->D * a->E;
}

static linnet_status check(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_slstm_args *a = args;
    int64_t bytes;
    (void)backward;
    if (a->E != 4 * (int64_t)a->D) return lnt_fail(c, LINNET_EINVAL, "E = %d; expected 4 D = %lld", a->E, 4 * (long long)a->D);
    LNT_TRY(lnt_size_product(c, "tokens x H x E", 4, (int64_t[]){ a->tokens, a->H, a->E, 64 }, &bytes));
    LNT_TRY(lnt_size_product(c, "sequences x H x D", 4, (int64_t[]){ a->sequences, a->H, a->D, 64 }, &bytes));
    return lnt_size_product(c, "H x D x E", 4, (int64_t[]){ a->H, a->D, a->E, 1024 }, &bytes);
}

static const lnt_recur_size sizes[] = {
    { "H", LNT_AT(lnt_slstm_args, H), 4, 1, 65536, 4, NULL, "heads" },
    { "D", LNT_AT(lnt_slstm_args, D), 4, 1, 65536, 256, NULL, "units of a head" },
    { "E", LNT_AT(lnt_slstm_args, E), 4, 4, 262144, 1024, NULL, "4 D: the gates i f z o, one behind the other" },
    { 0 },
};
static const lnt_recur_option options[] = { { 0 } };
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_slstm_args, "wi", "T H D", wi, .gate = true, .forward_only = true, .help = "what a token brings to the input gate"),
    LNT_INPUT(lnt_slstm_args, "wf", "T H D", wf, .gate = true, .forward_only = true, .help = "to the forget gate"),
    LNT_INPUT(lnt_slstm_args, "wz", "T H D", wz, .wide = true, .forward_only = true, .help = "to what is written"),
    LNT_INPUT(lnt_slstm_args, "wo", "T H D", wo, .wide = true, .forward_only = true, .help = "to the output gate"),
    LNT_INPUT(lnt_slstm_args, "R", "H D E", R, .values = LNT_VALUES_UNIT, .help = "what the output before brings: y R"),
    LNT_STATE(lnt_slstm_args, "y", "", "N H D", y),
    LNT_STATE(lnt_slstm_args, "c", "", "N H D", c),
    LNT_STATE(lnt_slstm_args, "n", "", "N H D", n, .values = LNT_VALUES_POSITIVE),
    LNT_STATE(lnt_slstm_args, "m", "", "N H D", m, .gate = true),
    LNT_OUTPUT(lnt_slstm_args, "o", "T H D", o, dout, .wide = true),
    LNT_ROW("gates", "T H E", LNT_AT(lnt_slstm_args, gates), LNT_T_SAVED),
    LNT_ROW("cells", "T H E", LNT_AT(lnt_slstm_args, cells), LNT_T_SAVED),
    { 0 },
};

const lnt_recur_op lnt_recur_slstm = {
    .name = "slstm",
    .core = "slstm",
    .equation = "[i f z o] = [wi wf wz wo] + y_{t-1} R, m_t = max(logsigmoid(f) + m_{t-1}, i), a = e^{logsigmoid(f) + m_{t-1} - m_t}, "
                "w = e^{i - m_t}, c_t = a c_{t-1} + w tanh(z), n_t = a n_{t-1} + w, o_t = y_t = sigmoid(o) c_t / n_t",
    .args_size = sizeof(lnt_slstm_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_slstm_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .nonlinear = true,
    .check = check,
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE_READING("slstm", LNT_NEEDS_IN0 << 4) }, /* R, and what the forward pass kept */
};
