/* The Mesa core: the optimal linear fast weights for all tokens so far. Equations: operators.md#mesa. */
#include <math.h>

#include "recurrence/cases.h"
#include "recurrence/decay/decay.h"
#include "recurrence/mesa/mesa_args.h"
#include "recurrence/mesa/mesa_node.h"
#include "recurrence/recur_node.h"
#include "simd/variant.h"

extern const lnt_recur_impl lnt_mesa_reference;
extern const lnt_recur_case lnt_mesa_cases[];

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_mesa_chunk);
LNT_DECLARE_FLOAT_VARIANTS(const lnt_recur_impl, lnt_mesa_recurrent);
#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_mesa_chunk_sm80, lnt_mesa_chunk_cuda, lnt_mesa_window_sm90, lnt_mesa_window_cuda, lnt_mesa_recurrent_cuda;
#endif

/* Without the solves, whose steps are known only after a run: two decay states and the read-out of one; backward, two decay backward passes. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_mesa_args *a = args;
    double K = a->K, decay = lnt_decay_token_flops(K, a->V, C, backward);
    return (double)a->tokens * a->Hv * (backward ? decay + 10 * K * K + C * 10 * K + 2 * K * K : decay + 2 * K * K);
}

/* Of the solves at C = 16; the residual of the guess costs what a step does. */
static double solver_flops(const void *args, double steps)
{
    const lnt_mesa_args *a = args;
    double K = a->K;
    return (double)a->tokens * a->Hv * (steps + 1) * (2 * K * K + 4 * 16 * K);
}

static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &lnt_mesa_chunk_sm80, &lnt_mesa_chunk_cuda, &lnt_mesa_window_sm90, &lnt_mesa_window_cuda, &lnt_mesa_recurrent_cuda,
#endif
    LNT_VARIANTS(lnt_mesa_chunk), LNT_FLOAT_VARIANTS(lnt_mesa_recurrent), &lnt_mesa_reference, NULL,
};

/* ---- the operator ------------------------------------------------------------------------------------------------------------------------- */

enum { UNROLLED_MOST = 1024, STEPS_MOST = 1 << 20 };

static void fill(void *args) { ((lnt_mesa_args *)args)->scale = 1; }

/* A tolerance out of the reach of the cap. */
static void exact(void *args)
{
    lnt_mesa_args *a = args;
    a->cg_tolerance = 1e-7;
    a->cg_max_steps = 4 * a->K + 16;
}

/* By Sherman and Morrison: what it does not go with, and gates (where they are there, on the CPU) that let the inverse grow too far. */
static linnet_status check_recursion(lnt_ctx *c, const lnt_mesa_args *a)
{
    const char *with = a->heads.window                        ? "a window, whose old tokens would have to be subtracted"
                       : a->lambda_varies                     ? "a Lambda of each token"
                       : a->cg_gradient == LNT_CG_UNROLLED    ? "the gradient through steps, of which it takes none"
                                                              : NULL;
    if (with) return lnt_fail(c, LINNET_EINVAL, "cg_solver 5 (sherman_morrison) does not go with %s", with);
    if (lnt_on_cuda(c)) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "mesa with cg_solver 5 (sherman_morrison) has no kernel for a GPU");
        return lnt_hint(c, "Use --device cpu.");
    }
    for (int64_t i = 0; a->g && i < a->sequences * a->Hv; i++) {
        const int64_t n = i / a->Hv, h = i % a->Hv;
        double sum = 0;
        for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++)
            sum += lnt_load_element(a->g, a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32, t * a->Hv + h);
        if (exp(-sum) > LNT_MESA_GROWTH) {
            lnt_fail(c, LINNET_EINVAL,
                     "the gates of sequence %lld, head %lld sum to %g: the inverse of cg_solver 5 (sherman_morrison) grows %g times, at most %g",
                     (long long)n, (long long)h, sum, exp(-sum), (double)LNT_MESA_GROWTH);
            return lnt_hint(c, "It is for what hardly forgets (use_forget_gate = false).");
        }
    }
    return LINNET_OK;
}

static linnet_status check_signs(lnt_ctx *c, const lnt_mesa_args *a)
{
    const char *with = a->heads.window                       ? "a window"
                       : lnt_mesa_is_recursive(a)            ? "cg_solver 5 (sherman_morrison)"
                       : a->cg_solver == LNT_CG_FLASH        ? "cg_solver 4 (flash)"
                       : a->cg_gradient == LNT_CG_UNROLLED   ? "the gradient through steps"
                                                             : NULL;
    return with ? lnt_fail(c, LINNET_EINVAL, "signed does not go with %s", with) : LINNET_OK;
}

static linnet_status check(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_mesa_args *a = args;
    if (lnt_mesa_is_recursive(a)) LNT_TRY(check_recursion(c, a));
    if (a->heads.has_sign) LNT_TRY(check_signs(c, a));
    if (lnt_on_cuda(c) && ((a->lambda_varies && !a->heads.window) || a->heads.has_sign)) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "mesa with %s has no kernel for a GPU",
                 a->heads.has_sign ? "decays that have a sign" : "a Lambda of each token and no window");
        return lnt_hint(c, "Use --device cpu.");
    }
    if (a->heads.window && a->cg_solver == LNT_CG_FLASH)
        return lnt_fail(c, LINNET_EINVAL, "cg_solver = flash goes by chunks from the first token on, which a window does not see: no window");
    if (a->heads.window && a->cg_gradient == LNT_CG_UNROLLED)
        return lnt_fail(c, LINNET_EINVAL, "the gradient through the steps knows no window: cg_gradient = implicit");
    if (a->cg_steps_device && !lnt_on_cuda(c)) return lnt_fail(c, LINNET_EINVAL, "cg_steps_device without a GPU");
    if (a->cg_gradient == LNT_CG_UNROLLED && a->cg_solver == LNT_CG_FLASH)
        return lnt_fail(c, LINNET_EINVAL, "the steps of cg_solver 4 (flash) round to float16: no unrolled gradient");
    if (a->cg_gradient == LNT_CG_UNROLLED && backward && a->cg_max_steps > UNROLLED_MOST)
        return lnt_fail(c, LINNET_EINVAL, "cg_max_iter = %d; the unrolled gradient keeps every step, and takes at most %d", a->cg_max_steps,
                        UNROLLED_MOST);
    return lnt_state_check(c, args, backward);
}

static const lnt_recur_option options[] = {
    { "cg_tol", LNT_RECUR_REAL, LNT_AT(lnt_mesa_args, cg_tolerance), 8, 0, 1e30, 1e-4, NULL,
      "a solve ends at this |residual| / |q|; 0: all steps" },
    { "cg_max_iter", LNT_RECUR_INT, LNT_AT(lnt_mesa_args, cg_max_steps), 4, 0, STEPS_MOST, 30, NULL, "conjugate-gradient steps at most" },
    { "cg_guess", LNT_RECUR_WORD, LNT_AT(lnt_mesa_args, cg_guess), 4, 0, 0, LNT_CG_DIAGONAL, "diagonal zero", "where a solve begins" },
    { "cg_solver", LNT_RECUR_WORD, LNT_AT(lnt_mesa_args, cg_solver), 4, 0, 0, LNT_CG_LEVEL, "level jacobi plain absolute flash sherman_morrison",
      "its preconditioner; the last takes no steps: the inverse itself, recursively" },
    { "cg_gradient", LNT_RECUR_WORD, LNT_AT(lnt_mesa_args, cg_gradient), 4, 0, 0, LNT_CG_IMPLICIT, "implicit unrolled",
      "of the solution, or of the steps that were taken" },
    { "window", LNT_RECUR_INT, LNT_AT(lnt_mesa_args, heads.window), 8, 0, 1e15, 0, NULL,
      "a token sees itself and window-1 before it, and there are no states; 0: it sees all" },
    { "lambda_varies", LNT_RECUR_SWITCH, LNT_AT(lnt_mesa_args, lambda_varies), 4, 0, 1, 0, NULL,
      "every token has a Lambda of its own, lambda_t" },
    LNT_SIGN_OPTION,
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_STATE_QKV,
    LNT_STATE_GATE,
    LNT_STATE_SIGN,
    LNT_INPUT(lnt_mesa_args, "beta", "T Hv", beta, .values = LNT_VALUES_STEP, .gate = true, .help = "write strength"),
    LNT_INPUT(lnt_mesa_args, "lambda", "Hv K", lambda, .values = LNT_VALUES_POSITIVE, .without = LNT_AT(lnt_mesa_args, lambda_varies),
              .help = "regulariser, above 0"),
    LNT_INPUT(lnt_mesa_args, "lambda_t", "T Hv K", lambda_t, .values = LNT_VALUES_POSITIVE, .with = LNT_AT(lnt_mesa_args, lambda_varies),
              .help = "regulariser of the token, above 0"),
    LNT_STATE(lnt_mesa_args, "s", "_kv", "N Hv K V", s, .without = LNT_AT(lnt_mesa_args, window), .help = "G"),
    LNT_STATE(lnt_mesa_args, "s", "_kk", "N Hv K K", h, .values = LNT_VALUES_SYMMETRIC, .without = LNT_AT(lnt_mesa_args, window), .help = "H"),
    LNT_STATE_O,
    LNT_ROW("x", "T Hv K", LNT_AT(lnt_mesa_args, x), LNT_T_SAVED, .help = "the solutions"),
    LNT_ROW("steps", "T Hv", LNT_AT(lnt_mesa_args, steps), LNT_T_REPORT, .help = "conjugate-gradient steps of the solve"),
    LNT_ROW("residual", "T Hv", LNT_AT(lnt_mesa_args, residual), LNT_T_REPORT, .help = "|residual| / |right side| after them"),
    { 0 },
};

const lnt_recur_op lnt_recur_mesa = {
    .name = "mesa",
    .core = "mesa",
    .equation = "H_t = e^{g_t} H_{t-1} + beta_t k_t k_t^T, G_t = e^{g_t} G_{t-1} + beta_t k_t v_t^T (with signed sign_t e^{g_t}), "
                "o_t = G_t^T (H_t + diag(lambda))^-1 q_t",
    .args_size = sizeof(lnt_mesa_args),
    .sizes = lnt_state_sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_mesa_cases,
    .weights = true,
    .f32 = { 5e-5, 5e-5, 5e-5 },
    .bf16 = { 8e-3, 8e-3, 2e-2 },
    .fill = fill,
    .exact = exact,
    .check = check,
    .flops = flops,
    .counted = "steps",
    .counted_flops = solver_flops,
    .node = &lnt_mesa_node,
};
