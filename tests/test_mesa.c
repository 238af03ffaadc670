/* The Mesa layer's own mathematics: identities of the solution, the solver's steps, its reports and its refusals. What it shares with the other
 * recurrences (gradients, goldens, chunks, threads, packing) is in test_recurrence.c. */
#include "mesa_problem.h"

#include <math.h>

#include "core/context.h"

/* NaN stays NaN in every implementation that this processor can run, the reference too. */
static void nan_is_seen(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int i = 0; lnt_recur_mesa.impls[i]; i++) {
        const lnt_recur_impl *impl = lnt_recur_mesa.impls[i];
        if (impl->device != LNT_DEVICE_CPU || impl->needs > (int)lnt_cpu_machine()) continue;
        const bool bf16 = impl->needs == (int)LNT_CPU_AMX || i % 2; /* tiles take nothing else */
        if (!mesa_shows_nan(c, impl, bf16 ? LINNET_BF16 : LINNET_F32, 0)) fail_msg("%s took no call", impl->name);
    }
    linnet_context_destroy(c);
}

/* o.do = q.dq for every token, as both are x (H + Lambda) e: in every variant and form, float32 to its accuracy, the reference to its own. */
static void solves_agree(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int run = 0; run < 9; run++) {
        lnt_problem p;
        make(c, case_of(90, true), run == 8 ? LINNET_F64 : LINNET_F32, &p);
        if (run < 8 && run / 2 > (int)lnt_cpu_machine()) {
            lnt_problem_free(&p);
            continue;
        }
        lnt_cpu_force(run < 8 ? (lnt_cpu_level)(run / 2) : lnt_cpu_machine());
        p.r.form = run % 2 ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
        both(c, &p);
        for (int64_t i = 0; i < 180; i++) {
            double left = row_product(&p, "o", "do", i, 24), right = row_product(&p, "q", "dq", i, 20), size = 0;
            for (int64_t j = i * 20; j < (i + 1) * 20; j++) size += fabs(element(&p, "q", j) * element(&p, "dq", j));
            if (!(fabs(left - right) <= (run == 8 ? 1e-13 : 3e-6) * size))
                fail_msg("run %d: o.do = %.9g, q.dq = %.9g at row %lld", run, left, right, (long long)i);
        }
        lnt_problem_free(&p);
    }
    lnt_cpu_force(lnt_cpu_machine());
    linnet_context_destroy(c);
}

/* dg = reverse cumulative sum of x.Lambda.e - beta dbeta, when the final states have no gradient. */
static void gate_gradient_from_solution(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    lnt_problem p;
    make(c, case_of(60, false), LINNET_F64, &p);
    both(c, &p);
    for (int h = 0; h < 2; h++) {
        double sum = 0;
        for (int64_t t = 59; t >= 0; t--) {
            int64_t i = t * 2 + h;
            sum -= element(&p, "beta", i) * element(&p, "dbeta", i);
            for (int64_t j = 0; j < 20; j++) sum += element(&p, "x", i * 20 + j) * element(&p, "dq", i * 20 + j) * element(&p, "lambda", h * 20 + j);
            if (fabs(sum - element(&p, "dg", i)) > 1e-11 * (1 + fabs(sum)))
                fail_msg("token %lld: dg = %.12g, expected %.12g", (long long)t, element(&p, "dg", i), sum);
        }
    }
    lnt_problem_free(&p);
    linnet_context_destroy(c);
}

/* H goes in symmetric and comes out symmetric, to rounding. */
static void state_stays_symmetric(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_problem p;
        make(c, case_of(90, true), LINNET_F32, &p);
        p.r.form = (linnet_form)form;
        OK(c, lnt_problem_run(c, &p, false));
        double apart = 0, size = 0;
        for (int64_t i = 0; i < 2 * 400; i++) {
            int64_t mirror = i / 400 * 400 + i % 20 * 20 + i / 20 % 20;
            apart = fmax(apart, fabs(element(&p, "sT_kk", i) - element(&p, "sT_kk", mirror)));
            size = fmax(size, fabs(element(&p, "sT_kk", i)));
        }
        if (!(size > 0.1 && apart <= 1e-6 * size)) fail_msg("form %d: H and its transpose are %g apart, elements up to %g", form, apart, size);
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* The same tokens for simple_gla, which writes beta v. */
static void make_gla(linnet_context *c, const lnt_problem *mesa, lnt_problem *gla)
{
    lnt_recur_case k = case_of(mesa->r.tokens, false);
    k.op = "simple_gla";
    make(c, k, LINNET_F64, gla);
    mesa_args(gla)->scale = 1;
    for (int64_t i = 0; i < mesa->r.tokens * 2; i++) {
        put(gla, "g", i, element(mesa, "g", i));
        for (int64_t j = i * 20; j < (i + 1) * 20; j++) put(gla, "q", j, element(mesa, "q", j));
        for (int64_t j = i * 20; j < (i + 1) * 20; j++) put(gla, "k", j, element(mesa, "k", j));
        for (int64_t j = i * 24; j < (i + 1) * 24; j++) put(gla, "v", j, element(mesa, "v", j) * element(mesa, "beta", i));
    }
}

/* Lambda o is gated linear attention when Lambda is large: the error is |H| / Lambda. */
static void large_lambda(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    for (int f = 0; f < 2; f++) {
        lnt_problem p, gla;
        make(c, case_of(90, false), f ? LINNET_F32 : LINNET_F64, &p);
        for (int i = 0; i < 40; i++) put(&p, "lambda", i, 1e6);
        make_gla(c, &p, &gla);
        OK(c, lnt_problem_run(c, &p, false));
        OK(c, lnt_problem_run(c, &gla, false));
        assert_close("Lambda = 1e6", &p, &gla, "o", 1e6, 1e-5);
        lnt_problem_free(&p);
        lnt_problem_free(&gla);
    }
    linnet_context_destroy(c);
}

/* No steps: the diagonal guess is gated linear attention of q / diag(H_t + Lambda), the zero guess gives 0. */
static void zero_steps(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    for (int run = 0; run < 16; run++) {
        lnt_problem p, gla;
        make(c, case_of(90, false), run % 2 ? LINNET_F32 : LINNET_F64, &p);
        p.r.form = run / 2 % 2 ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
        mesa_args(&p)->cg_solver = (run / 4);
        mesa_args(&p)->cg_tolerance = 0;
        mesa_args(&p)->cg_max_steps = 0;
        make_gla(c, &p, &gla);
        for (int h = 0; h < 2; h++)
            for (int64_t j = 0; j < 20; j++) {
                double H = 0;
                for (int64_t i = h; i < 180; i += 2) {
                    H = H * exp(element(&p, "g", i)) + element(&p, "beta", i) * element(&p, "k", i * 20 + j) * element(&p, "k", i * 20 + j);
                    put(&gla, "q", i * 20 + j, element(&p, "q", i * 20 + j) / (H + element(&p, "lambda", h * 20 + j)));
                }
            }
        OK(c, lnt_problem_run(c, &p, false));
        OK(c, lnt_problem_run(c, &gla, false));
        assert_close("diagonal guess", &p, &gla, "o", 1, run % 2 ? 1e-6 : 1e-13);
        mesa_args(&p)->cg_guess = LNT_CG_ZERO;
        OK(c, lnt_problem_run(c, &p, false));
        for (int64_t i = 0; i < 180 * 24; i++) assert_true(element(&p, "o", i) == 0);
        lnt_problem_free(&p);
        lnt_problem_free(&gla);
    }
    linnet_context_destroy(c);
}

/* Without forgetting, the inverse itself has a recurrence: P <- P - beta Pk (Pk)^T / (1 + beta k.Pk), P_0 = Lambda^-1 (Sherman and Morrison). */
static void sherman_morrison(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    lnt_recur_case k = { "mesa", 1, { 50 }, LNT_HEADS(1, 1, 12, 9), .gate = 0, .beta = 1 };
    for (int f = 0; f < 2; f++) {
        lnt_problem p;
        make(c, k, f ? LINNET_F32 : LINNET_F64, &p);
        OK(c, lnt_problem_run(c, &p, false));
        double P[12][12] = { { 0 } }, G[12][9] = { { 0 } };
        for (int i = 0; i < 12; i++) P[i][i] = 1 / element(&p, "lambda", i);
        for (int64_t t = 0; t < 50; t++) {
            double Pk[12] = { 0 }, x[12] = { 0 }, curve = 0, beta = element(&p, "beta", t);
            for (int i = 0; i < 12; i++)
                for (int j = 0; j < 12; j++) Pk[i] += P[i][j] * element(&p, "k", t * 12 + j);
            for (int i = 0; i < 12; i++) curve += element(&p, "k", t * 12 + i) * Pk[i];
            for (int i = 0; i < 12; i++) {
                for (int j = 0; j < 12; j++) {
                    P[i][j] -= beta * Pk[i] * Pk[j] / (1 + beta * curve);
                    x[i] += P[i][j] * element(&p, "q", t * 12 + j);
                }
                for (int j = 0; j < 9; j++) G[i][j] += beta * element(&p, "k", t * 12 + i) * element(&p, "v", t * 9 + j);
            }
            for (int j = 0; j < 9; j++) {
                double o = 0;
                for (int i = 0; i < 12; i++) o += G[i][j] * x[i];
                if (fabs(o - element(&p, "o", t * 9 + j)) > (f ? 2e-5 : 1e-12)) fail_msg("token %lld: o = %.9g, expected %.9g", (long long)t,
                                                                                       element(&p, "o", t * 9 + j), o);
            }
        }
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* So many steps in float32 are the same steps in float64, for every solver, guess, variant and form, with the residuals that they leave. */
static void steps_match_reference(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    static const int counts[] = { 1, 2, 5 };
    static float taken[180], residual[180];
    static double exact_taken[180], exact_residual[180];
    for (int run = 0; run < 24; run++) {
        lnt_problem truth, p;
        lnt_recur_case k = case_of(90, true);
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
        OK(c, lnt_problem_make(c, &k, LINNET_F64, LINNET_F32, 5, &truth));
        mesa_args(&p)->cg_tolerance = mesa_args(&truth)->cg_tolerance = 0;
        mesa_args(&p)->cg_max_steps = mesa_args(&truth)->cg_max_steps = counts[run / 8];
        mesa_args(&p)->cg_solver = mesa_args(&truth)->cg_solver = (run % 4);
        mesa_args(&p)->cg_guess = mesa_args(&truth)->cg_guess = (run / 4 % 2);
        mesa_args(&p)->steps = taken;
        mesa_args(&p)->residual = residual;
        mesa_args(&truth)->steps = exact_taken;
        mesa_args(&truth)->residual = exact_residual;
        OK(c, lnt_problem_run(c, &truth, false));
        for (int level = 0; level <= (int)lnt_cpu_machine(); level++)
            for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
                lnt_cpu_force((lnt_cpu_level)level);
                p.r.form = (linnet_form)form;
                OK(c, lnt_problem_run(c, &p, false));
                assert_close(lnt_cpu_name((lnt_cpu_level)level), &p, &truth, "x", 1, 2e-5);
                assert_close(lnt_cpu_name((lnt_cpu_level)level), &p, &truth, "o", 1, 2e-5);
                for (int i = 0; i < 180; i++) {
                    assert_true(taken[i] == exact_taken[i]);
                    assert_true(fabs(residual[i] - exact_residual[i]) <= 2e-5 * (1 + exact_residual[i]));
                }
            }
        lnt_cpu_force(lnt_cpu_machine());
        lnt_problem_free(&p);
        lnt_problem_free(&truth);
    }
    linnet_context_destroy(c);
}

/* A token's solve ends at the tolerance and not before; a cap is a cap; what is solved is within the condition number of the tolerance. */
static void tolerance_is_kept(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    static float taken[180], residual[180];
    for (int run = 0; run < 6; run++) {
        static const double tolerance[] = { 1e-2, 1e-4, 1e-6 };
        lnt_problem p, truth;
        lnt_recur_case k = case_of(90, true);
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
        OK(c, lnt_problem_make(c, &k, LINNET_F64, LINNET_F32, 5, &truth));
        mesa_args(&p)->cg_tolerance = tolerance[run / 2];
        p.r.form = run % 2 ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
        mesa_args(&p)->steps = taken;
        mesa_args(&p)->residual = residual;
        OK(c, lnt_problem_run(c, &p, false));
        OK(c, lnt_problem_run(c, &truth, false));
        assert_close("x at the tolerance", &p, &truth, "x", 1, 30 * tolerance[run / 2]);
        double sum = 0;
        for (int i = 0; i < 180; i++) {
            sum += taken[i];
            assert_true(residual[i] <= 1.001f * (float)tolerance[run / 2]);
            assert_true(taken[i] < 30);
        }
        assert_true(sum > 180);
        mesa_args(&p)->cg_max_steps = 2;
        mesa_args(&p)->cg_tolerance = 1e-6;
        OK(c, lnt_problem_run(c, &p, false));
        for (int i = 0; i < 180; i++) assert_true(taken[i] == 2);
        OK(c, lnt_problem_run(c, &p, true)); /* the report of the backward call is of its own solve */
        for (int i = 0; i < 180; i++) assert_true(taken[i] == 2);
        lnt_problem_free(&p);
        lnt_problem_free(&truth);
    }
    linnet_context_destroy(c);
}

/* No absolute constants: a query 2^-40 as long takes the same steps to 2^-40 of the same result, bit for bit, and no query takes none. */
static void free_of_scale(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    static float taken[2][180];
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_problem p[2];
        for (int i = 0; i < 2; i++) {
            make(c, case_of(90, true), LINNET_F32, &p[i]);
            p[i].r.form = (linnet_form)form;
            mesa_args(&p[i])->cg_tolerance = 1e-4;
            mesa_args(&p[i])->steps = taken[i];
            for (int64_t j = 0; i && j < 180 * 20; j++) tensor(&p[i], "q")[j] *= 0x1p-40f;
            for (int64_t j = 0; j < 20; j++) tensor(&p[i], "q")[7 * 20 + j] = 0;
            OK(c, lnt_problem_run(c, &p[i], false));
        }
        assert_memory_equal(taken[0], taken[1], sizeof taken[0]);
        assert_true(taken[0][7] == 0);
        for (int64_t j = 0; j < 180 * 24; j++) assert_true(tensor(&p[0], "o")[j] * 0x1p-40f == tensor(&p[1], "o")[j]);
        for (int64_t j = 7 * 24; j < 8 * 24; j++) assert_true(tensor(&p[0], "o")[j] == 0);
        for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(c);
}

/* flash-linear-attention's solver: the absolute one within float16's rounding, and not closer. */
static void flash_rounds_to_half(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_problem p[2];
        double error = 0, norm = 0;
        for (int i = 0; i < 2; i++) {
            make(c, case_of(150, true), LINNET_F32, &p[i]);
            p[i].r.form = (linnet_form)form;
            mesa_args(&p[i])->cg_solver = i ? LNT_CG_FLASH : LNT_CG_ABSOLUTE;
            mesa_args(&p[i])->cg_guess = LNT_CG_ZERO;
            mesa_args(&p[i])->cg_max_steps = 30;
            both(c, &p[i]);
        }
        for (int64_t i = 0; i < 300 * 24; i++) {
            double x = tensor(&p[0], "o")[i], y = tensor(&p[1], "o")[i];
            error += (x - y) * (x - y);
            norm += x * x;
        }
        assert_in_range((int)(1e5 * sqrt(error / norm)), 10, 300);
        assert_close("flash", &p[1], &p[0], "dq", 1, 3e-3);
        for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(c);
}

/* <o, do> + <final states, their cotangents> */
static double loss(linnet_context *c, lnt_problem *p)
{
    static const char *const pairs[][2] = { { "o", "do" }, { "sT_kk", "dsT_kk" }, { "sT_kv", "dsT_kv" } };
    double sum = 0;
    OK(c, lnt_problem_run(c, p, false));
    for (int i = 0; i < 3; i++) {
        int64_t n = lnt_recur_elements(&p->call, lnt_recur_tensor_find(p->op, pairs[i][0]));
        for (int64_t j = 0; j < n; j++) sum += element(p, pairs[i][0], j) * element(p, pairs[i][1], j);
    }
    return sum;
}

/* The symmetric part of element i of a gradient of H [heads,K,K]. */
static double symmetric(const lnt_problem *p, const char *name, int64_t i)
{
    int64_t K = mesa_args(p)->K, matrix = i / (K * K), row = i / K % K, column = i % K;
    return 0.5 * (element(p, name, i) + element(p, name, (matrix * K + column) * K + row));
}

/* The unrolled gradient is that of what so many steps compute, for every solver and guess, from none to more than converge: central differences. */
static void unrolled_gradient_is_that_of_the_steps(void **state)
{
    (void)state;
    static const char *const inputs[] = { "q", "k", "v", "g", "beta", "lambda", "s0_kk", "s0_kv" };
    static const char *const gradients[] = { "dq", "dk", "dv", "dg", "dbeta", "dlambda", "ds0_kk", "ds0_kv" };
    static const int counts[] = { 0, 1, 2, 4, 9 };
    linnet_context *c = make_context(1);
    lnt_recur_case k = { "mesa", 2, { 5, 3 }, LNT_HEADS(1, 2, 5, 4), .gate = -0.5, .beta = 1, .states = true };
    for (int run = 0; run < 40; run++) {
        lnt_problem p;
        OK(c, lnt_problem_make(c, &k, LINNET_F64, LINNET_F64, 11, &p));
        mesa_args(&p)->cg_gradient = LNT_CG_UNROLLED;
        mesa_args(&p)->cg_tolerance = run % 8 == 5 ? 0.1 : 0; /* a stop at the tolerance counts as so many steps */
        mesa_args(&p)->cg_max_steps = counts[run / 8];
        mesa_args(&p)->cg_solver = (run % 4);
        mesa_args(&p)->cg_guess = (run / 4 % 2);
        both(c, &p);
        for (int i = 0; i < 8; i++) {
            int64_t n = lnt_recur_elements(&p.call, lnt_recur_tensor_find(p.op, inputs[i]));
            double error = 0, norm = 0, K = mesa_args(&p)->K;
            for (int64_t j = 0; j < n; j++) {
                bool H = i == 6;
                int64_t mirror = H ? (j / (int64_t)(K * K) * (int64_t)K + j % (int64_t)K) * (int64_t)K + j / (int64_t)K % (int64_t)K : j;
                double x = element(&p, inputs[i], j), step = 1e-5, difference = 0;
                for (int sign = 1; sign >= -1; sign -= 2) {
                    put(&p, inputs[i], j, x + sign * step);
                    put(&p, inputs[i], mirror, x + sign * step);
                    difference += sign * loss(c, &p) / (2 * step);
                }
                put(&p, inputs[i], j, x);
                put(&p, inputs[i], mirror, x);
                double d = H ? symmetric(&p, gradients[i], j) * (mirror == j ? 1 : 2) : element(&p, gradients[i], j);
                error += (d - difference) * (d - difference);
                norm += difference * difference;
            }
            if (!(error <= 1e-14 * norm + 1e-18)) fail_msg("run %d: %s differs by %.3g of %.3g", run, gradients[i], sqrt(error), sqrt(norm));
        }
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* Where the steps have converged, their gradient is the solution's; two steps' is not. */
static void unrolled_gradient_converges_to_implicit(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    lnt_problem p[2], few;
    for (int i = 0; i < 2; i++) {
        make(c, case_of(60, true), LINNET_F64, &p[i]);
        mesa_args(&p[i])->cg_gradient = i;
        mesa_args(&p[i])->cg_tolerance = 1e-13;
        mesa_args(&p[i])->cg_max_steps = 60;
        both(c, &p[i]);
    }
    make(c, case_of(60, true), LINNET_F64, &few);
    mesa_args(&few)->cg_gradient = LNT_CG_UNROLLED;
    mesa_args(&few)->cg_max_steps = 2;
    both(c, &few);
    static const char *const gradients[] = { "dq", "dk", "dv", "dg", "dbeta", "dlambda", "ds0_kv" };
    for (int i = 0; i < 7; i++) {
        assert_close("unrolled", &p[1], &p[0], gradients[i], 1, 1e-9);
        assert_true(lnt_problem_error(&few, &p[0], lnt_recur_tensor_find(few.op, gradients[i])).relative > 1e-5);
    }
    for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    lnt_problem_free(&few);
    linnet_context_destroy(c);
}

/* The kernel's unrolled gradient is the reference's: variants, solvers, guesses, chunk lengths, packed and shared heads, resets; same bits alone. */
static void unrolled_kernel_matches_reference(void **state)
{
    (void)state;
    static const char *const gradients[] = { "dq", "dk", "dv", "dg", "dbeta", "dlambda", "ds0_kk", "ds0_kv" };
    static const int counts[] = { 0, 1, 3, 6 };
    static const lnt_recur_case cases[] = {
        { "mesa", 1, { 90 }, LNT_HEADS(2, 2, 20, 24), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 4, { 17, 0, 33, 1 }, LNT_HEADS(1, 2, 32, 16), .gate = -0.3, .beta = 1, .states = true },
        { "mesa", 1, { 150 }, LNT_HEADS(1, 1, 50, 60), .gate = -2, .reset = 0.05, .beta = 1, .states = true },
    };
    linnet_context *c = make_context(2), *one = make_context(1);
    for (int run = 0; run < 96; run++) {
        lnt_problem truth, p;
        OK(c, lnt_problem_make(c, &cases[run / 32], LINNET_F32, LINNET_F32, 5, &p));
        OK(c, lnt_problem_make(c, &cases[run / 32], LINNET_F64, LINNET_F32, 5, &truth));
        mesa_args(&p)->cg_gradient = mesa_args(&truth)->cg_gradient = LNT_CG_UNROLLED;
        mesa_args(&p)->cg_tolerance = mesa_args(&truth)->cg_tolerance = 0;
        mesa_args(&p)->cg_max_steps = mesa_args(&truth)->cg_max_steps = counts[run / 8 % 4];
        mesa_args(&p)->cg_solver = mesa_args(&truth)->cg_solver = (run % 4);
        mesa_args(&p)->cg_guess = mesa_args(&truth)->cg_guess = (run / 4 % 2);
        both(c, &truth);
        for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
            lnt_cpu_force((lnt_cpu_level)level);
            p.r.chunk = level % 2 ? 0 : 24;
            both(c, &p);
            for (int i = 0; i < 8; i++) assert_close(lnt_cpu_name((lnt_cpu_level)level), &p, &truth, gradients[i], 1, 3e-5);
        }
        lnt_problem alone;
        OK(one, lnt_problem_make(one, &cases[run / 32], LINNET_F32, LINNET_F32, 5, &alone));
        mesa_args(&alone)->cg_gradient = mesa_args(&p)->cg_gradient, mesa_args(&alone)->cg_tolerance = 0;
        mesa_args(&alone)->cg_max_steps = mesa_args(&p)->cg_max_steps;
        mesa_args(&alone)->cg_solver = mesa_args(&p)->cg_solver, mesa_args(&alone)->cg_guess = mesa_args(&p)->cg_guess, alone.r.chunk = p.r.chunk;
        both(one, &alone);
        for (int i = 0; i < 8; i++) {
            int t = lnt_recur_tensor_find(p.op, gradients[i]);
            assert_memory_equal(alone.data[t], p.data[t], p.bytes[t]);
        }
        lnt_problem_free(&alone);
        lnt_cpu_force(lnt_cpu_machine());
        lnt_problem_free(&p);
        lnt_problem_free(&truth);
    }
    linnet_context_destroy(one);
    linnet_context_destroy(c);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    lnt_problem p;
    make(c, case_of(20, true), LINNET_F32, &p);
    both(c, &p);
    const lnt_mesa_args good = *mesa_args(&p);
#define REFUSED(...)                                                                                                               \
    do {                                                                                                                           \
        lnt_mesa_args r = good;                                                                                                 \
        __VA_ARGS__;                                                                                                               \
        assert_int_equal(lnt_recur_run(c, &r, true), LINNET_EINVAL);                                                        \
        assert_true(strlen(linnet_error_message(c)) > 0);                                                                          \
    } while (0)
    REFUSED(r.lambda = NULL);
    REFUSED(r.x = NULL);
    REFUSED(r.beta = NULL);
    REFUSED(r.g = NULL);
    REFUSED(r.cg_tolerance = -1e-4);
    REFUSED(r.cg_tolerance = INFINITY);
    REFUSED(r.cg_max_steps = -2);
    REFUSED(r.cg_guess = 2);
    REFUSED(r.cg_solver = 5);
    REFUSED(r.cg_gradient = 2);
    REFUSED(r.cg_gradient = LNT_CG_UNROLLED, r.cg_solver = LNT_CG_FLASH);
    REFUSED(r.cg_gradient = LNT_CG_UNROLLED, r.cg_max_steps = 1025);
    REFUSED(r.cg_steps_device = &r.cg_solver);
#undef REFUSED
    lnt_problem_free(&p);
    linnet_context_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_is_seen), cmocka_unit_test(solves_agree), cmocka_unit_test(gate_gradient_from_solution),
        cmocka_unit_test(state_stays_symmetric), cmocka_unit_test(large_lambda), cmocka_unit_test(zero_steps), cmocka_unit_test(sherman_morrison),
        cmocka_unit_test(steps_match_reference), cmocka_unit_test(tolerance_is_kept), cmocka_unit_test(free_of_scale),
        cmocka_unit_test(flash_rounds_to_half), cmocka_unit_test(unrolled_gradient_is_that_of_the_steps),
        cmocka_unit_test(unrolled_gradient_converges_to_implicit), cmocka_unit_test(unrolled_kernel_matches_reference),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
