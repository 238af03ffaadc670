/* One NaN in an input of Mesa, and every implementation, solver and gradient has to show it: on the CPU (test_mesa.c) and on a GPU
 * (test_recurrence_cuda.c). */
#ifndef MESA_NAN_H
#define MESA_NAN_H

#include "recurrence/mesa/mesa_args.h"
#include "recurrence_check.h"

#include <math.h>

static inline lnt_mesa_args *mesa_args(const lnt_problem *p) { return (lnt_mesa_args *)(uintptr_t)&p->call; }

enum { NAN_AT = 100, NAN_CHUNK = 64, NAN_FIRST = 150 }; /* its token; chunks of no implementation are longer; the first sequence's length */

/* Rows of `name` of the tokens [from, to): all NaN, or none. */
static inline void check_rows_nan(const lnt_problem *p, const char *name, int64_t from, int64_t to, bool nan, const char *who)
{
    const int i = lnt_recur_tensor_find(p->op, name);
    const int64_t row = lnt_recur_elements(&p->call, i) / p->r.tokens;
    for (int64_t j = from * row; j < to * row; j++) {
        const double x = lnt_load_element(p->data[i], lnt_recur_type(&p->call, i), j);
        if (isnan(x) != nan) fail_msg("%s: %s of token %lld is %g", who, name, (long long)(j / row), x);
    }
}

/* Outputs and gradients with NaN in the rows of `bad` of one token. A query is of its own token alone; what is written stays. */
static inline void check_one_nan(linnet_context *c, const lnt_problem *p, const char *bad, bool backward, const char *who)
{
    const bool query = !strcmp(bad, "q"), unrolled = mesa_args(p)->cg_gradient == LNT_CG_UNROLLED;
    const int64_t end = query ? NAN_AT + 1 : NAN_FIRST;
    check_rows_nan(p, "o", 0, NAN_AT / NAN_CHUNK * NAN_CHUNK, false, who);
    check_rows_nan(p, "o", NAN_AT, end, true, who);
    check_rows_nan(p, "o", NAN_FIRST, p->r.tokens, false, who);
    if (strcmp(bad, "v") != 0) check_rows_nan(p, "x", NAN_AT, end, true, who); /* the system knows no values */
    if (!backward) return;
    OK(c, lnt_problem_run(c, (lnt_problem *)(uintptr_t)p, true));
    if (!query || unrolled) check_rows_nan(p, "dq", NAN_AT, end, true, who); /* e does not depend on q */
    if (strcmp(bad, "v") != 0) check_rows_nan(p, "dv", 0, NAN_AT, true, who);
    check_rows_nan(p, "dv", NAN_FIRST, p->r.tokens, false, who);
    const float *dlambda = tensor(p, "dlambda");
    for (int i = 0; i < mesa_args(p)->Hv * mesa_args(p)->K; i++)
        if (!isnan(dlambda[i])) fail_msg("%s: dlambda is %g", who, dlambda[i]);
}

/* Every solver, both gradients and guesses, on the implementation; the number of calls that it took. A window, 0: none, is longer than the sequences:
 * what was written stays in it, and no decay is so fast that a kernel may leave out what it fades. */
static inline int mesa_shows_nan(linnet_context *c, const lnt_recur_impl *impl, lnt_dtype dtype, int64_t window)
{
    static const char *const inputs[] = { "q", "k", "v", "g", "beta" };
    int ran = 0;
    for (int run = 0; run < 5 * 5 * 2 * 2; run++) {
        const char *bad = inputs[run % 5];
        const int solver = run / 5 % 5, gradient = run / 25 % 2, guess = run / 50;
        const lnt_recur_case k = { "mesa", 2, { NAN_FIRST, 40 }, LNT_HEADS(1, 2, 64, 64), .gate = window || run % 3 ? -0.1 : -4, .beta = 1,
                                    .option = { { window ? "window" : NULL, (double)window } } };
        if (solver == LNT_CG_FLASH && gradient == LNT_CG_UNROLLED) continue;
        if (window && (solver == LNT_CG_FLASH || gradient == LNT_CG_UNROLLED)) continue; /* refused */
        lnt_problem p;
        char who[160];
        snprintf(who, sizeof who, "%s %s, NaN in %s, solver %d, gradient %d, guess %d", impl->name, lnt_dtype_name(dtype), bad, solver, gradient,
                 guess);
        OK(c, lnt_problem_make(c, &k, dtype, dtype, 5, &p));
        mesa_args(&p)->cg_solver = solver;
        mesa_args(&p)->cg_gradient = gradient;
        mesa_args(&p)->cg_guess = guess;
        mesa_args(&p)->cg_max_steps = 6;
        mesa_args(&p)->cg_tolerance = run % 2 ? 1e-3 : 0;
        p.r.impl = impl->name;
        const int i = lnt_recur_tensor_find(p.op, bad);
        const int64_t row = lnt_recur_elements(&p.call, i) / p.r.tokens;
        for (int64_t j = NAN_AT * row; j < (NAN_AT + 1) * row; j++) lnt_store_element(p.data[i], lnt_recur_type(&p.call, i), j, NAN);
        const linnet_status s = lnt_problem_run(c, &p, false);
        if (s != LINNET_EUNSUPPORTED) {
            OK(c, s);
            check_one_nan(c, &p, bad, impl->backward || impl->put_backward, who);
            ran++;
        }
        lnt_problem_free(&p);
    }
    return ran;
}

#endif
