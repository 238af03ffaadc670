/* The ttt core: models that learn while they read, by steps of gradient descent over mini-batches of tokens. Equations: operators.md#ttt. */
#include "recurrence/ttt/ttt.h"

#include "recurrence/forms.h"
#include "recurrence/recur_node.h"

LNT_TILED_FORMS(static const lnt_recur_impl *const ttt_impls[], lnt_ttt);
LNT_TILED_FORMS(static const lnt_recur_impl *const titans_impls[], lnt_titans);

/* A row's products with the weights of a layer: its key and query through them and an outer product; of titans reading the momentum and another
 * outer product too; of the second layer the gradient back through it. In reverse two for each, and all but outer products again. Beside them two
 * products of a square of the mini-batch; in reverse four, and those again. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_ttt_args *a = args;
    double row = 0;
    (void)C;
    for (int l = 0; l < lnt_ttt_layers(a); l++) {
        const double in = (double)lnt_ttt_in(a, l), out = (double)lnt_ttt_out(a, l), once = l ? 4 : a->op->kind == LNT_TITANS ? 5 : 3;
        const double outer = a->op->kind == LNT_TITANS ? 2 : 1;
        row += 2 * in * out * (backward ? 3 * once - outer : once) + 2 * (in + out) * a->mini_batch * (backward ? 3 : 1);
    }
    return row * (double)a->tokens * a->H;
}

#define SIZES                                                                                                                      \
    { "H", LNT_AT(lnt_ttt_args, H), 4, 1, 65536, 32, NULL, "heads" }, { "D", LNT_AT(lnt_ttt_args, D), 4, 1, 4096, 64, NULL, "columns of a head" }
static const lnt_recur_size sizes[] = { SIZES, { 0 } };
static const lnt_recur_size mlp_sizes[] = {
    SIZES,
    { "F", LNT_AT(lnt_ttt_args, F), 4, 1, 16384, 256, NULL, "columns between the two layers" },
    { 0 },
};

#define MINI_BATCH                                                                                                                 \
    { "mini_batch", LNT_RECUR_INT, LNT_AT(lnt_ttt_args, mini_batch), 4, 1, LNT_TTT_LONGEST, 16, NULL,                              \
      "tokens whose gradients are taken at the same weights" }
#define INNER                                                                                                                                        \
    { "inner", LNT_RECUR_WORD, LNT_AT(lnt_ttt_args, inner), 4, 0, 1, LNT_TTT_LN, "plain ln",                                        \
      "ln: the inner model's output goes through a norm and is to be v - k; plain: it is to be v, and is what is read" }
#define BIAS                                                                                                                       \
    { "bias", LNT_RECUR_SWITCH, LNT_AT(lnt_ttt_args, bias), 4, 0, 1, 1, NULL, "the inner model has biases" }
static const lnt_recur_option ttt_options[] = { MINI_BATCH, INNER, BIAS, { 0 } };
static const lnt_recur_option titans_options[] = { MINI_BATCH, INNER, { 0 } };

#define WITH_LN .with = LNT_AT(lnt_ttt_args, inner)
#define WITH_BIAS .with = LNT_AT(lnt_ttt_args, bias)
#define QKV                                                                                                                        \
    LNT_INPUT(lnt_ttt_args, "q", "T H D", q, .wide = true), LNT_INPUT(lnt_ttt_args, "k", "T H D", k, .wide = true, .values = LNT_VALUES_UNIT), \
        LNT_INPUT(lnt_ttt_args, "v", "T H D", v, .wide = true)
#define STEP_SIZES                                                                                                                 \
    LNT_INPUT(lnt_ttt_args, "eta", "T H mini_batch", eta, .values = LNT_VALUES_STRENGTH, .gate = true, .absent = "ones",           \
              .help = "step sizes: row i of a mini-batch uses columns 0 .. i"),                                                    \
        LNT_INPUT(lnt_ttt_args, "rate", "T H", rate, .values = LNT_VALUES_STRENGTH, .gate = true, .absent = "ones",                \
                  .help = "factor of a token's step sizes, its column of eta"),                                                    \
        LNT_INPUT(lnt_ttt_args, "token_idx", "mini_batch", token_idx, .gate = true, .absent = "no such factor",                    \
                  .help = "row i of a mini-batch (from 0) has step sizes times max(1/(i+1) + token_idx_i, 0)")
#define NORM                                                                                                                       \
    LNT_INPUT(lnt_ttt_args, "ln_w", "H D", ln_w, .values = LNT_VALUES_WEIGHT, WITH_LN),                                          \
        LNT_INPUT(lnt_ttt_args, "ln_b", "H D", ln_b, WITH_LN)
#define START(NAME, SHAPE, FIELD, ...)                                                                                             \
    LNT_INPUT(lnt_ttt_args, NAME, SHAPE, FIELD, .absent = "zeros", .help = "what the state's are differences to", __VA_ARGS__)
#define OPEN_ROWS(NAME, SHAPE, FIELD, HELP) LNT_STATE(lnt_ttt_args, "s", NAME, SHAPE, FIELD, .help = HELP)
#define AT_START "weights at the start of the open mini-batch"
#define OPEN_COUNT                                                                                                                 \
    LNT_STATE(lnt_ttt_args, "s", "_n", "N H", n, .values = LNT_VALUES_COUNT, .help = "rows of the open mini-batch; gradient zero")
#define OUTPUT LNT_OUTPUT(lnt_ttt_args, "o", "T H D", o, dout, .wide = true)

static const lnt_recur_tensor linear_tensors[] = {
    QKV,
    STEP_SIZES,
    NORM,
    START("w", "H D D", layer[0].w, .with = 0),
    START("b", "H D", layer[0].b, WITH_BIAS),
    LNT_STATE(lnt_ttt_args, "s", "_w", "N H D D", layer[0].w),
    LNT_STATE(lnt_ttt_args, "s", "_b", "N H D", layer[0].b, WITH_BIAS),
    OPEN_ROWS("_w_start", "N H D D", layer[0].sw, AT_START),
    LNT_STATE(lnt_ttt_args, "s", "_b_start", "N H D", layer[0].sb, WITH_BIAS, .help = AT_START),
    OPEN_ROWS("_k", "N H mini_batch D", layer[0].x, "keys of the open mini-batch"),
    OPEN_ROWS("_u", "N H mini_batch D", layer[0].u, "gradients of the open mini-batch, times rate"),
    OPEN_COUNT,
    OUTPUT,
    { 0 },
};

static const lnt_recur_tensor mlp_tensors[] = {
    QKV,
    STEP_SIZES,
    NORM,
    START("w1", "H D F", layer[0].w, .with = 0),
    START("b1", "H F", layer[0].b, WITH_BIAS),
    START("w2", "H F D", layer[1].w, .with = 0),
    START("b2", "H D", layer[1].b, WITH_BIAS),
    LNT_STATE(lnt_ttt_args, "s", "_w1", "N H D F", layer[0].w),
    LNT_STATE(lnt_ttt_args, "s", "_b1", "N H F", layer[0].b, WITH_BIAS),
    LNT_STATE(lnt_ttt_args, "s", "_w2", "N H F D", layer[1].w),
    LNT_STATE(lnt_ttt_args, "s", "_b2", "N H D", layer[1].b, WITH_BIAS),
    OPEN_ROWS("_w1_start", "N H D F", layer[0].sw, AT_START),
    LNT_STATE(lnt_ttt_args, "s", "_b1_start", "N H F", layer[0].sb, WITH_BIAS, .help = AT_START),
    OPEN_ROWS("_w2_start", "N H F D", layer[1].sw, AT_START),
    LNT_STATE(lnt_ttt_args, "s", "_b2_start", "N H D", layer[1].sb, WITH_BIAS, .help = AT_START),
    OPEN_ROWS("_k", "N H mini_batch D", layer[0].x, "keys of the open mini-batch"),
    OPEN_ROWS("_u1", "N H mini_batch F", layer[0].u, "gradients of the open mini-batch, times rate"),
    OPEN_ROWS("_x", "N H mini_batch F", layer[1].x, "inputs of the second layer"),
    OPEN_ROWS("_u2", "N H mini_batch D", layer[1].u, "gradients of the open mini-batch, times rate"),
    OPEN_COUNT,
    OUTPUT,
    { 0 },
};

static const lnt_recur_tensor titans_tensors[] = {
    QKV,
    LNT_INPUT(lnt_ttt_args, "theta", "T H", theta, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "step sizes"),
    LNT_INPUT(lnt_ttt_args, "alpha", "T H", alpha, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "share of the memory that is forgotten"),
    LNT_INPUT(lnt_ttt_args, "eta", "T H", eta, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "share of the momentum that is kept"),
    NORM,
    START("m", "H D D", layer[0].w, .with = 0),
    LNT_STATE(lnt_ttt_args, "s", "_m", "N H D D", layer[0].w),
    LNT_STATE(lnt_ttt_args, "s", "_s", "N H D D", m, .help = "momentum"),
    OPEN_ROWS("_start", "N H D D", g, "memory at the start of the open mini-batch"),
    OPEN_COUNT,
    OUTPUT,
    { 0 },
};

#define TTT(NAME, KIND, EQUATION, SIZES_, TENSORS_)                                                                                \
    const lnt_recur_op lnt_recur_##NAME = {                                                                                        \
        .name = #NAME,                                                                                                             \
        .core = "ttt",                                                                                                             \
        .equation = EQUATION,                                                                                                      \
        .kind = KIND,                                                                                                              \
        .args_size = sizeof(lnt_ttt_args),                                                                                         \
        .sizes = SIZES_,                                                                                                           \
        .tensors = TENSORS_,                                                                                                       \
        .options = KIND == LNT_TITANS ? titans_options : ttt_options,                                                              \
        .impls = KIND == LNT_TITANS ? titans_impls : ttt_impls,                                                                    \
        .cases = lnt_ttt_cases,                                                                                                    \
        .f32 = { 2e-6, 1e-5, 5e-5 },                                                                                               \
        .bf16 = { 8e-3, 8e-3, 2e-2 },                                                                                              \
        .nonlinear = true,                                                                                                         \
        .flops = flops,                                                                                                            \
        .node = &(const lnt_op){ LNT_RECUR_NODE(#NAME) },                                                                          \
    }

TTT(ttt_linear, LNT_TTT_LINEAR, "f_t(x) = LN(x W_t + b_t) + x, W_t = W - sum_{j<=t} E_tj dl(f(k_j), v_j)/dW, o_t = f_t(q_t)", sizes,
    linear_tensors);
TTT(ttt_mlp, LNT_TTT_MLP, "f_t(x) = LN(gelu(x W1_t + b1_t) W2_t + b2_t) + x, weights as in ttt_linear, o_t = f_t(q_t)", mlp_sizes, mlp_tensors);
TTT(titans, LNT_TITANS, "S_t = eta_t S_{t-1} - theta_t dl(k_t, v_t)/dM, M_t = (1 - alpha_t) M_{t-1} + S_t, o_t = q_t M_t", sizes, titans_tensors);
