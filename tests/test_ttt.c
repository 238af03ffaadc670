/* Models that learn while they read: what titans and ttt_linear reduce to, the step sizes by their factors, and tokens one by one. */
#include "recurrence_check.h"

#include <math.h>

static void copy_tensor(lnt_problem *to, const char *name, const lnt_problem *from, const char *its)
{
    assert_int_equal(tensor_bytes(to, name), tensor_bytes(from, its));
    memcpy(tensor(to, name), tensor(from, its), tensor_bytes(to, name));
}
static void clear(lnt_problem *p, const char *const *names)
{
    for (; *names; names++) memset(tensor(p, *names), 0, tensor_bytes(p, *names));
}
static void drop(lnt_problem *p, const char *name)
{
    const int row = lnt_recur_tensor_find(p->op, name);
    assert_true(row >= 0);
    for (int i = row; i < row + 2; i++) lnt_recur_set(&p->call, &p->op->tensors[i], NULL); /* the gradient too */
}
static void run_two(linnet_context *c, lnt_problem *a, lnt_problem *b, int form)
{
    a->r.form = b->r.form = (linnet_form)form;
    for (int back = 0; back < 2; back++) {
        OK(c, lnt_problem_run(c, a, back));
        OK(c, lnt_problem_run(c, b, back));
    }
}
static void same_results(const char *who, const lnt_problem *a, const char *const (*pair)[2], int n, double allowed)
{
    const lnt_problem *b = a + 1;
    for (int i = 0; i < n; i++) close_to(who, pair[i][0], tensor(a, pair[i][0]), tensor(b, pair[i][1]), elements(a, pair[i][0]), allowed);
}

/* p[0] titans without momentum and forgetting, p[1] ttt_linear without biases: the weights behind all tokens, and what a gradient of those alone
 * brings; where the loss is plain outputs are the same too. */
static void without_momentum(linnet_context *c, int form, int inner)
{
    static const char *const given[][2] = { { "q", "q" }, { "k", "k" }, { "v", "v" }, { "rate", "theta" }, { "w", "m" }, { "s0_w", "s0_m" },
                                            { "dsT_w", "dsT_m" }, { "do", "do" }, { "ln_w", "ln_w" }, { "ln_b", "ln_b" } };
    static const char *const out[][2] = { { "sT_m", "sT_w" }, { "dk", "dk" }, { "dv", "dv" }, { "dtheta", "drate" }, { "ds0_m", "ds0_w" },
                                          { "dm", "dw" }, { "o", "o" }, { "dq", "dq" } };
    const lnt_recur_case ka = { "titans", 2, { 70, 33 }, { { "H", 2 }, { "D", 20 } }, .beta = 0.1, .states = true, .option = { { "inner", inner } } };
    lnt_recur_case kb = ka;
    lnt_problem p[2];
    kb.op = "ttt_linear", kb.option[1].key = "bias", kb.option[1].value = 0;
    OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &p[0]));
    OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &p[1]));
    clear(&p[0], (const char *const[]){ "alpha", "eta", "s0_s", "s0_n", "dsT_s", "dsT_start", NULL });
    if (inner) clear(&p[0], (const char *const[]){ "do", NULL });
    clear(&p[1], (const char *const[]){ "s0_n", "dsT_k", "dsT_u", "dsT_w_start", NULL });
    drop(&p[1], "eta");
    drop(&p[1], "token_idx");
    for (int i = 0; i < (inner ? 10 : 8); i++) copy_tensor(&p[1], given[i][0], &p[0], given[i][1]);
    run_two(c, &p[0], &p[1], form);
    same_results("titans", p, out, inner ? 6 : 8, 5e-6);
    for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
}

/* p[0] ttt_linear with a plain loss, no biases and a token for a mini-batch, p[1] the delta rule. */
static void delta_by_descent(linnet_context *c, int form)
{
    static const char *const given[][2] = { { "q", "q" }, { "k", "k" }, { "v", "v" }, { "beta", "rate" }, { "s0", "s0_w" }, { "dsT", "dsT_w" },
                                            { "do", "do" } };
    static const char *const out[][2] = { { "o", "o" }, { "sT_w", "sT" }, { "dq", "dq" }, { "dk", "dk" }, { "dv", "dv" }, { "drate", "dbeta" },
                                          { "ds0_w", "ds0" } };
    const lnt_recur_case ka = { "ttt_linear", 2, { 70, 33 }, { { "H", 2 }, { "D", 20 } }, .states = true,
                                .option = { { "inner", 0 }, { "bias", 0 }, { "mini_batch", 1 } } };
    const lnt_recur_case kb = { "delta_rule", 2, { 70, 33 }, LNT_HEADS(2, 2, 20, 20), .states = true, .option = { { "scale", 1 } } };
    lnt_problem p[2];
    OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &p[0]));
    OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &p[1]));
    drop(&p[0], "w");
    drop(&p[0], "eta");
    drop(&p[0], "token_idx");
    for (int i = 0; i < 7; i++) copy_tensor(&p[1], given[i][0], &p[0], given[i][1]);
    run_two(c, &p[0], &p[1], form);
    same_results("ttt_linear", p, out, 7, 5e-6);
    for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
}

/* p[0] with steps of factors, p[1] with the same written out; the gradient of a rate is the sum of its column's. */
static void steps_of_factors(linnet_context *c, int form)
{
    enum { H = 2, M = 7, FIRST = 36, SECOND = 20 };
    static const char *const out[][2] = { { "o", "o" }, { "sT_w", "sT_w" }, { "sT_b", "sT_b" }, { "dq", "dq" }, { "dk", "dk" }, { "dv", "dv" },
                                          { "dln_w", "dln_w" }, { "dw", "dw" } };
    const lnt_recur_case k = { "ttt_linear", 2, { FIRST, SECOND }, { { "H", H }, { "D", 20 } }, .beta = 0.5, .states = true,
                               .option = { { "mini_batch", M } } };
    lnt_problem p[2];
    for (int i = 0; i < 2; i++) {
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p[i]));
        clear(&p[i], (const char *const[]){ "s0_n", "dsT_k", "dsT_u", NULL });
    }
    drop(&p[0], "eta");
    float *eta = tensor(&p[1], "eta"), expected[(FIRST + SECOND) * H] = { 0 };
    const float *rate = tensor(&p[0], "rate"), *idx = tensor(&p[0], "token_idx");
    for (int t = 0; t < FIRST + SECOND; t++)
        for (int h = 0; h < H; h++)
            for (int j = 0; j < M; j++) {
                const int i = (t < FIRST ? t : t - FIRST) % M;
                eta[(t * H + h) * M + j] = j > i ? NAN : fmaxf(1 / (float)(i + 1) + idx[i], 0) * rate[(t - i + j) * H + h];
            }
    drop(&p[1], "rate");
    drop(&p[1], "token_idx");
    run_two(c, &p[0], &p[1], form);
    same_results("ttt_linear", p, out, 8, 5e-6);
    for (int t = 0; t < FIRST + SECOND; t++)
        for (int h = 0; h < H; h++)
            for (int i = (t < FIRST ? t : t - FIRST) % M, j = 0; j <= i; j++)
                expected[(t - i + j) * H + h] += tensor(&p[1], "deta")[(t * H + h) * M + j] * fmaxf(1 / (float)(i + 1) + idx[i], 0);
    close_to("ttt_linear", "drate", tensor(&p[0], "drate"), expected, (FIRST + SECOND) * H, 2e-5);
    for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
}

static void reductions(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        for (int inner = 0; inner < 2; inner++) without_momentum(c, form, inner);
        delta_by_descent(c, form);
        steps_of_factors(c, form);
    }
    linnet_context_destroy(c);
}

/* Calls of one token have the bits of one call by the token form, states too, whatever a state's weights are differences to. */
static void tokens_one_by_one(void **state)
{
    (void)state;
    enum { T = 40 };
    linnet_context *c = make_context(1);
    static const char *const names[] = { "ttt_linear", "ttt_mlp", "titans" };
    for (int n = 0; n < 3; n++) {
        const lnt_recur_case k = { names[n], 1, { T }, { { "H", 2 }, { "D", 20 }, { n == 1 ? "F" : NULL, 28 } }, .beta = 0.5, .states = true };
        const int64_t cu[2] = { 0, 1 };
        lnt_problem p[2];
        for (int i = 0; i < 2; i++) OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p[i]));
        p[0].r.form = p[1].r.form = LINNET_FORM_RECURRENT;
        OK(c, lnt_problem_run(c, &p[0], false));
        OK(c, lnt_problem_run(c, &p[1], false)); /* makes the workspace */
        for (int t = 0; t < T; t++) {
            lnt_recur_call one = p[1].call;
            one.head.tokens = 1, one.head.cu_seqlens = cu;
            for (int i = 0; p[1].op->tensors[i].name; i++) {
                const lnt_recur_tensor *x = &p[1].op->tensors[i];
                if (p[1].data[i] && x->shape[0] == 'T') lnt_recur_set(&one, x, (char *)p[1].data[i] + p[1].bytes[i] / T * (size_t)t);
                if (p[1].data[i] && x->role == LNT_T_STATE && t) lnt_recur_set(&one, x, p[1].data[i + 2]); /* in place from the second on */
            }
            OK(c, lnt_recur_run(c, &one, false));
        }
        for (int i = 0; p[0].op->tensors[i].name; i++)
            if (p[0].data[i] && p[0].op->tensors[i].role == LNT_T_OUTPUT && memcmp(p[0].data[i], p[1].data[i], p[0].bytes[i]))
                fail_msg("%s: %s differs token by token", names[n], p[0].op->tensors[i].name);
        for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(c);
}

/* Counts that are none: taken for the nearest that is one. */
static void counts_from_anywhere(void **state)
{
    (void)state;
    static const float given[] = { -3, NAN, INFINITY, 1e30f, 99, 2.4f }, taken[] = { 0, 0, 15, 15, 15, 2 };
    linnet_context *c = make_context(1);
    static const char *const names[] = { "ttt_linear", "titans" };
    for (int n = 0; n < 2; n++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++)
            for (size_t v = 0; v < sizeof given / sizeof *given; v++) {
                const lnt_recur_case k = { names[n], 1, { 20 }, { { "H", 1 }, { "D", 20 } }, .beta = 0.5, .states = true };
                lnt_problem p[2];
                for (int i = 0; i < 2; i++) OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p[i]));
                *tensor(&p[0], "s0_n") = given[v], *tensor(&p[1], "s0_n") = taken[v];
                run_two(c, &p[0], &p[1], form);
                for (int i = 0; p[0].op->tensors[i].name; i++)
                    if (p[0].data[i] && is_result(&p[0], i) && memcmp(p[0].data[i], p[1].data[i], p[0].bytes[i]))
                        fail_msg("%s with %g open rows: %s is not that with %g", names[n], (double)given[v], p[0].op->tensors[i].name,
                                 (double)taken[v]);
                for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
            }
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(reductions), cmocka_unit_test(tokens_one_by_one), cmocka_unit_test(counts_from_anywhere) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
