/* Mesa's other ways: windows, and the recursive solution. What they share with all recurrences is in test_recurrence.c. */
#include "mesa_problem.h"

#include <math.h>

/* ---- the recursive solution ----------------------------------------------------------------------------------------------------------- */

/* Without forgetting it is Mesa; with it, Mesa whose Lambda decays as H does: outputs, and the gradients of all that both have. Too much forgetting
 * is refused, and shows as NaN in a state that grew over several calls. */
static void recursion_is_mesa(void **state)
{
    (void)state;
    static const char *const gradients[] = { "o", "dq", "dk", "dv", "dbeta" };
    linnet_context *c = make_context(2);
    for (int run = 0; run < 4; run++) {
        const bool forgets = run / 2;
        lnt_problem p, mesa;
        lnt_recur_case k = case_of(90, false);
        k.gate = forgets ? -0.1 : 0;
        make(c, k, LINNET_F32, &p);
        if (forgets) k.option[0].key = "lambda_varies", k.option[0].value = 1;
        make(c, k, LINNET_F32, &mesa);
        mesa_args(&p)->cg_solver = LNT_CG_SHERMAN_MORRISON;
        p.r.form = run % 2 ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
        for (int h = 0; forgets && h < 2; h++) {
            double sum = 0;
            for (int64_t t = 0; t < 90; t++) {
                sum += tensor(&p, "g")[t * 2 + h];
                for (int i = 0; i < 20; i++)
                    tensor(&mesa, "lambda_t")[(t * 2 + h) * 20 + i] = (float)exp(sum) * tensor(&p, "lambda")[h * 20 + i];
            }
        }
        both(c, &p);
        both(c, &mesa);
        for (int i = 0; i < 5; i++) assert_close(gradients[i], &p, &mesa, gradients[i], 1, 1e-4);
        if (!forgets) assert_close("dlambda", &p, &mesa, "dlambda", 1, 1e-4);
        for (int h = 0; forgets && h < 2; h++) /* dlambda is that of lambda_t, each times its decay */
            for (int i = 0; i < 20; i++) {
                double sum = 0, decay = 0;
                for (int64_t t = 0; t < 90; t++) {
                    decay += tensor(&p, "g")[t * 2 + h];
                    sum += exp(decay) * tensor(&mesa, "dlambda_t")[(t * 2 + h) * 20 + i];
                }
                if (!(fabs(sum - tensor(&p, "dlambda")[h * 20 + i]) <= 1e-4 * (1 + fabs(sum))))
                    fail_msg("dlambda is %g, expected %g", tensor(&p, "dlambda")[h * 20 + i], sum);
            }
        lnt_problem_free(&p);
        lnt_problem_free(&mesa);
    }
    lnt_problem p;
    make(c, case_of(90, true), LINNET_F32, &p);
    mesa_args(&p)->cg_solver = LNT_CG_SHERMAN_MORRISON;
    for (int64_t i = 0; i < 180; i++) tensor(&p, "g")[i] = -0.09f;
    assert_int_equal(lnt_problem_run(c, &p, false), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "the inverse of cg_solver 5 (sherman_morrison) grows"));
    for (int64_t i = 0; i < 180; i++) tensor(&p, "g")[i] = -0.05f; /* as much as one call may, from a state that has grown before */
    float *P = tensor(&p, "s0_kk");
    for (int64_t i = 0; i < 2 * 20 * 20; i++) P[i] *= 1000;
    OK(c, lnt_problem_run(c, &p, false));
    for (int64_t i = 0; i < 2 * 24; i++) assert_true(isnan(element(&p, "o", 10 * 48 + i)));
    lnt_problem_free(&p);
    linnet_context_destroy(c);
}

/* ---- windows -------------------------------------------------------------------------------------------------------------------------- */

static lnt_recur_case windowed(int64_t T, int64_t window)
{
    lnt_recur_case k = case_of(T, false);
    if (window) k.option[0].key = "window", k.option[0].value = (double)window;
    return k;
}

/* A window over everything is none, bit for bit; one token less changes the last token, and no other. In a packed call, the bits of a sequence that
 * the window covers are those without it, whatever stands beside. */
static void window_of_everything(void **state)
{
    (void)state;
    enum { W = 48 };
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++)
        for (int64_t T = W - 2; T <= W + 2; T++) {
            lnt_problem plain, p;
            make(c, windowed(T, 0), LINNET_F32, &plain);
            make(c, windowed(T, W), LINNET_F32, &p);
            plain.r.form = p.r.form = (linnet_form)form;
            both(c, &plain);
            both(c, &p);
            const int64_t covered = T < W ? T : W, row = 2 * 24;
            for (int64_t i = 0; i < covered * row; i++)
                if (!(fabs(element(&p, "o", i) - element(&plain, "o", i)) <= (T <= W ? 0 : 2e-5)))
                    fail_msg("T = %lld: o of token %lld is %g, %g without a window", (long long)T, (long long)(i / row), element(&p, "o", i),
                             element(&plain, "o", i));
            double apart = 0;
            for (int64_t i = covered * row; i < T * row; i++) apart = fmax(apart, fabs(element(&p, "o", i) - element(&plain, "o", i)));
            if (T > W && !(apart > 1e-3)) fail_msg("T = %lld: the window leaves nothing out", (long long)T);
            for (int64_t i = 0; T <= W && i < T * 2 * 20; i++) assert_true(element(&p, "dk", i) == element(&plain, "dk", i));
            lnt_problem_free(&plain);
            lnt_problem_free(&p);
        }
    lnt_problem packed, plain;
    lnt_recur_case k = windowed(60, 16);
    k.sequences = 3;
    memcpy(k.length, (int64_t[]){ 16, 60, 9 }, 3 * sizeof *k.length);
    make(c, k, LINNET_F32, &packed);
    k.option[0].key = NULL;
    make(c, k, LINNET_F32, &plain);
    both(c, &packed);
    both(c, &plain);
    for (int64_t t = 0; t < 85; t += t == 15 ? 61 : 1)
        for (int64_t i = t * 48; i < (t + 1) * 48; i++) assert_true(element(&packed, "o", i) == element(&plain, "o", i));
    lnt_problem_free(&packed);
    lnt_problem_free(&plain);
    linnet_context_destroy(c);
}

/* What a token has is what the last of its window's tokens alone has without a window. */
static void window_is_its_own_tokens(void **state)
{
    (void)state;
    enum { T = 75, W = 20 };
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_problem p, alone;
        make(c, windowed(T, W), LINNET_F32, &p);
        make(c, windowed(T, 0), LINNET_F32, &alone);
        p.r.form = (linnet_form)form;
        OK(c, lnt_problem_run(c, &p, false));
        for (int64_t t = 0; t < T; t++) {
            const int64_t from = t < W ? 0 : t - W + 1;
            for (int64_t row = 0; row < (t + 1 - from); row++) /* the rows that it sees come first */
                for (int n = 0; n < 5; n++) {
                    static const char *const name[] = { "q", "k", "v", "g", "beta" };
                    const int64_t width = (int64_t)(tensor_bytes(&p, name[n]) / 4) / T;
                    memcpy(tensor(&alone, name[n]) + row * width, tensor(&p, name[n]) + (from + row) * width, (size_t)width * 4);
                }
            alone.cu[1] = alone.r.tokens = t + 1 - from;
            OK(c, lnt_problem_run(c, &alone, false));
            for (int64_t i = 0; i < 48; i++) {
                const double x = element(&p, "o", t * 48 + i), y = element(&alone, "o", (t - from) * 48 + i);
                if (!(fabs(x - y) <= 2e-5)) fail_msg("o of token %lld is %g, of its window's %g", (long long)t, x, y);
            }
        }
        alone.cu[1] = alone.r.tokens = T;
        lnt_problem_free(&p);
        lnt_problem_free(&alone);
    }
    linnet_context_destroy(c);
}

/* What is no number leaves with its token, and reaches none before it. */
static void nan_leaves_the_window(void **state)
{
    (void)state;
    enum { T = 110, W = 32, AT = 41 };
    static const char *const inputs[] = { "k", "v", "g", "beta" };
    linnet_context *c = make_context(2);
    for (int run = 0; run < 8; run++) {
        lnt_problem p;
        make(c, windowed(T, W), LINNET_F32, &p);
        p.r.form = run % 2 ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
        const char *bad = inputs[run / 2];
        const int64_t width = (int64_t)(tensor_bytes(&p, bad) / 4) / T;
        for (int64_t i = AT * width; i < (AT + 1) * width; i++) tensor(&p, bad)[i] = NAN;
        OK(c, lnt_problem_run(c, &p, false));
        const int64_t last = AT + W - (run / 2 == 2); /* a gate acts on what came before it */
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = t * 48; i < (t + 1) * 48; i++)
                if (isnan(element(&p, "o", i)) != (t >= AT && t < last))
                    fail_msg("NaN in %s of token %d: o of token %lld is %g", bad, AT, (long long)t, element(&p, "o", i));
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recursion_is_mesa), cmocka_unit_test(window_of_everything), cmocka_unit_test(window_is_its_own_tokens),
        cmocka_unit_test(nan_leaves_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
