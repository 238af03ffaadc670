/* The description of RG-LRU, and its node. Equations: operators.md#rg-lru.
 *
 * The layer writes the first token of a sequence whole. Whether a call's first token is that, a node that carries a state knows by how many tokens
 * the sequence has had. */
#include "recurrence/forms.h"
#include "recurrence/recur_node.h"
#include "recurrence/scan/scan.h"

LNT_USUAL_FORMS(static const lnt_recur_impl *const impls[], lnt_rglru);

/* A token and channel: the scan's two, and four products of gates; in reverse those again and what goes to each. Functions are not counted. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_rglru_args *a = args;
    (void)C;
    return (backward ? 24.0 : 6.0) * (double)a->tokens * a->D;
}

static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_rglru_args, D), 4, 1, 1 << 24, 2048, NULL, "channels" },
    { 0 },
};
static const lnt_recur_option options[] = {
    { "first", LNT_RECUR_SWITCH, LNT_AT(lnt_rglru_args, first), 4, 0, 1, 0, NULL,
      "a sequence's first token is written whole: the factor sqrt(1 - a^2) is 1 there and the initial state is not read" },
    { "c", LNT_RECUR_REAL, LNT_AT(lnt_rglru_args, c), 8, 1e-3, 1e3, 8, NULL, "factor of all log decays" },
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_rglru_args, "x", "T D", x, .wide = true),
    LNT_INPUT(lnt_rglru_args, "r", "T D", r, .wide = true, .help = "its sigmoid is the gate of the decay"),
    LNT_INPUT(lnt_rglru_args, "i", "T D", i, .wide = true, .help = "its sigmoid is the gate of x"),
    LNT_INPUT(lnt_rglru_args, "lambda", "D", lambda, .gate = true, .help = "its softplus is a channel's rate of decay"),
    LNT_STATE(lnt_rglru_args, "s", "", "N D", s),
    LNT_OUTPUT(lnt_rglru_args, "o", "T D", o, dout, .wide = true, .read_back = true),
    { 0 },
};

/* ---- the node ---------------------------------------------------------------------------------------------------------------------------------- */

/* Sequences that begin with this call, and others, one by one. */
static linnet_status forward(const lnt_call *k)
{
    lnt_recur_call call;
    lnt_recur_bind(k, &call);
    lnt_rglru_args *a = (void *)&call;
    bool any = false;
    for (int64_t n = 0; a->first && k->state && n < k->n_seq; n++) any |= k->position[n] == 0;
    if (k->state && !any) a->first = 0;
    if (!k->state || !any) return lnt_recur_forward(k, &call);
    for (int64_t n = 0; n < k->n_seq; n++) {
        lnt_recur_call one = call;
        lnt_rglru_args *b = (void *)&one;
        int64_t cu[2];
        lnt_recur_slice(&one, k->cu[n], k->cu[n + 1] - k->cu[n], cu);
        b->s0 = b->sT = (char *)k->state + n * k->state_stride;
        b->first = k->position[n] == 0;
        LNT_TRY(lnt_recur_run(k->c, &one, false));
    }
    return LINNET_OK;
}

static const lnt_op node = {
    .name = "rglru",
    .backward_needs = LNT_NEEDS_ALL_IN | LNT_NEEDS_OUT0,
    .save_size = lnt_recur_save_size,
    .state_size = lnt_recur_state_size,
    .state_tensors = lnt_recur_state_tensors,
    .workspace = lnt_recur_node_workspace,
    .flops = lnt_recur_node_flops,
    .host_position = true,
    .forward = forward,
    .backward = lnt_recur_node_backward,
    .describe = lnt_recur_describe,
};

const lnt_recur_op lnt_recur_rglru = {
    .name = "rglru",
    .core = "scan",
    .equation = "h_t = a_t h_{t-1} + sqrt(1 - a_t^2) sigmoid(i_t) x_t, log a_t = -c softplus(lambda) sigmoid(r_t), o_t = h_t",
    .args_size = sizeof(lnt_rglru_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_scan_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 8e-3, 2e-2 },
    .channel = "D",
    .flops = flops,
    .node = &node,
};
