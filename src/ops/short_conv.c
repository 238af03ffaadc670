/* Depthwise causal convolution over time, with a bias or without one, then an activation:
 *
 *   z_t = b + sum_j w_j x_{t-W+1+j},  y_t = act(z_t)
 *   dz = dy act'(z),  dx_t = sum_j w_j dz_{t+W-1-j},  dw_j = sum_t dz_t x_{t-W+1+j},  db = sum_t dz_t
 *
 * inside each sequence. What lies before a sequence's first row is zero, or the state: its last W-1 inputs, float32 [W-1, cols]. */
#include "ops/short_conv.h"
#include "ops/builder.h"
#include "ops/row_chain.h"

LNT_DEFINE_OP(short_conv)

static int64_t conv_state(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    (void)capacity, (void)dtype; /* float32 under every policy */
    return (((const lnt_conv_attr *)n->attr)->size - 1) * lnt_in_cols(n, 0) * (int64_t)sizeof(float);
}

static int conv_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *t)
{
    (void)capacity, (void)dtype, (void)tokens;
    const int64_t rows = ((const lnt_conv_attr *)n->attr)->size - 1;
    t[0] = (lnt_state_tensor){.name = "inputs", .dtype = LINNET_F32, .ndim = 2, .dim = {rows, lnt_in_cols(n, 0)}};
    return rows > 0;
}

/* Taps as rows [size, cols]; behind them, in backward, their gradients and the bias's for each block of rows. */
static size_t conv_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_conv_attr *a = n->attr;
    const int64_t cols = lnt_in_cols(n, 0), taps = a->size * cols;
    return (size_t)taps * sizeof(float) + (backward ? lnt_sum_bytes(s, s->tokens, taps + (a->bias ? cols : 0)) : 0);
}

static void conv_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_conv_attr *a = n->attr;
    snprintf(text, size, "size %d, %s%s", a->size, a->bias ? "bias, " : "", lnt_act_name(a->act));
}

static bool conv_row(const lnt_node *n, lnt_row_step *s)
{
    const lnt_conv_attr *a = n->attr;
    if (a->size != 4) return false;
    lnt_row_inputs(n, LNT_ROW_CONV, s);
    s->act = (int)a->act, s->count = a->size;
    for (int j = 0; j + 1 < a->size; j++) s->operand[s->operands++] = (lnt_row_operand){.from = LNT_ROW_STATE + j};
    s->operand[s->operands++] = (lnt_row_operand){.from = LNT_ROW_PARAM, .spread = LNT_ROW_TAPS};
    if (n->n_param > 1) s->operand[s->operands++] = (lnt_row_operand){.from = LNT_ROW_PARAM + 1};
    return true;
}

/* A convolution, or the norm that it is a pair with. */
static bool of_convolution(const lnt_node *n) { return n->op == &lnt_conv_op || lnt_pair_of(&lnt_conv_op, n->op); }

/* As parts of a chain; or up to three that do not read each other, each with the norm it is a pair with. */
static bool conv_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    int members = 0;
    if (lnt_row_chain_follows(group, count, n)) return true;
    for (int i = 0; i < count; i++) {
        members += group[i]->op == &lnt_conv_op;
        if (!of_convolution(group[i]) || lnt_shares_data(n->program, group[i]->out[0], n->in[0])) return false;
    }
    return n->op == &lnt_conv_op && members < LNT_CONV_GROUP;
}

#ifdef LINNET_CUDA
linnet_status lnt_conv_group_cuda(const lnt_call *calls, int count);

static linnet_status conv_group(const lnt_call *calls, int count)
{
    int convolutions = 0, norms = 0; /* norms of pairs: the value between is not there */
    for (int i = 0; i < count; i++) {
        convolutions += calls[i].node->op == &lnt_conv_op;
        norms += i && calls[i - 1].node->op == &lnt_conv_op && !calls[i - 1].out[0].data;
    }
    return convolutions + norms == count && convolutions <= LNT_CONV_GROUP ? lnt_conv_group_cuda(calls, count) : lnt_row_chain_run(calls, count);
}

static linnet_status conv_back_group(const lnt_call *calls, int count)
{
    if (lnt_conv_side_cuda(calls, count, true)) return LINNET_OK;
    for (int i = 0; i < count; i++) {
        const lnt_pair *pair = lnt_pair_of(&lnt_conv_op, calls[i].node->op); /* its second comes first */
        LNT_TRY(pair ? pair->backward(&calls[i + 1], &calls[i]) : short_conv_backward(&calls[i]));
        i += pair != NULL;
    }
    return LINNET_OK;
}
#else
#define conv_group NULL
#define conv_back_group NULL
#endif

const lnt_op lnt_conv_op = {.name = "short_conv", .backward_needs = LNT_NEEDS_IN0, .strided = LNT_NEEDS_IN0, .state_size = conv_state,
                            .state_tensors = conv_tensors, .workspace = conv_workspace, .forward = short_conv_forward,
                            .backward = short_conv_backward, .describe = conv_describe, .row = conv_row, .follows = conv_follows,
                            .run_group = conv_group, .back_group = conv_back_group, .beside = LNT_CONV_GROUP};

static lnt_buf short_conv(lnt_program *p, lnt_buf x, const char *name, int size, lnt_act act, bool bias)
{
    if (!lnt_ready(p, "short_conv", 1, &x) || !lnt_row_a_token(p, "short_conv", x)) return LNT_NO_BUF;
    if (size < 1 || size > LNT_CONV_MAX) return lnt_program_fail(p, "short_conv %s: size is %d, expected 1 .. %d", name, size, LNT_CONV_MAX);
    if (act > LNT_TANH) return lnt_program_fail(p, "short_conv %s: an activation by %s", name, lnt_act_name(act)); /* gate_all, rows.cuh */
    const lnt_value *v = lnt_program_value(p, x);
    if ((v->ld | v->first) % 8 && (x = lnt_dense(p, x)).id <= 0) return LNT_NO_BUF; /* rows of a slice in steps that kernels go by */
    const lnt_conv_attr a = {size, act, bias};
    const int64_t cols = lnt_cols(p, x), dim[3] = {cols, 1, size};
    char full[256];
    if (snprintf(full, sizeof full, "%s.weight", name) >= (int)sizeof full)
        return lnt_program_fail(p, "parameter name \"%.60s...\" is too long", name);
    int param[2] = {lnt_add_param(p, full, 3, dim, (lnt_init){LNT_INIT_NORMAL, lnt_init_std(p, size), 0}, true, false)};
    if (bias) {
        snprintf(full, sizeof full, "%s.bias", name); /* shorter than .weight */
        param[1] = lnt_add_param(p, full, 1, &cols, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false);
    }
    return lnt_add_op(p, &lnt_conv_op, lnt_attr(p, &a, sizeof a), 1, &x, 1 + bias, param, (lnt_out_spec){cols, lnt_heads(p, x), false});
}

lnt_buf lnt_short_conv(lnt_program *p, lnt_buf x, const char *name, int size, lnt_act act) { return short_conv(p, x, name, size, act, false); }
lnt_buf lnt_short_conv_bias(lnt_program *p, lnt_buf x, const char *name, int size, lnt_act act) { return short_conv(p, x, name, size, act, true); }
