/* The recurrences of xLSTM: what is special to them. What holds for every operator is in test_recurrence and test_identities. */
#include "recurrence_check.h"

/* mLSTM as its paper writes it, without m: C_t = e^f C + e^i k v^T, n_t = e^f n + e^i k, o = s C^T q / max(|s n.q|, 1). One head of one sequence. */
static void mlstm_written_out(const lnt_problem *p, float *o)
{
    const int64_t T = p->r.tokens, K = args(p)->K, V = args(p)->V;
    const double scale = 1 / sqrt((double)K), m = tensor(p, "m0") ? tensor(p, "m0")[0] : 0;
    double *C = lnt_calloc((size_t)(K * (V + 1)) * sizeof *C); /* n is its last column */
    for (int64_t j = 0; tensor(p, "s0") && j < K * (V + 1); j++)
        C[j] = exp(m) * (j % (V + 1) < V ? tensor(p, "s0")[j / (V + 1) * V + j % (V + 1)] : tensor(p, "n0")[j / (V + 1)]);
    for (int64_t t = 0; t < T; t++) {
        double den = 0;
        for (int64_t v = V; v >= 0; v--) {
            double num = 0;
            for (int64_t k = 0; k < K; k++) {
                double *c = &C[k * (V + 1) + v];
                *c = exp(tensor(p, "f")[t]) * *c + exp(tensor(p, "i")[t]) * tensor(p, "k")[t * K + k] * (v < V ? tensor(p, "v")[t * V + v] : 1);
                num += scale * *c * tensor(p, "q")[t * K + k];
            }
            if (v == V)
                den = fmax(fabs(num), 1);
            else
                o[t * V + v] = (float)(num / den);
        }
    }
    lnt_free(C);
}

/* m is a choice: outputs are those of the formulas without it, also where writes are e^{300} and the states could not be kept as they are; a state
 * given with another m and divided accordingly is the same state, to its gradients; so is a zero state with any m. */
static void stabiliser_is_a_choice(void **state)
{
    (void)state;
    enum { T = 70, K = 20, V = 24 };
    const lnt_recur_case k = { "mlstm", 1, { T }, LNT_HEADS(1, 1, K, V), .gate = -0.3, .states = true };
    linnet_context *c = make_context(1);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++)
        for (int what = 0; what < 4; what++) { /* as it is; strong and weak writes; the state with another m; a zero state with another m */
            static float o[T * V];
            lnt_problem a, b;
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
            a.r.form = b.r.form = (linnet_form)form;
            for (int i = 0; what == 1 && i < T; i++)
                tensor(&a, "i")[i] = tensor(&b, "i")[i] = i == 30 ? 300 : i == 40 ? -300 : 3 * tensor(&a, "i")[i];
            memset(tensor(&a, "dmT"), 0, 4), memset(tensor(&b, "dmT"), 0, 4);
            memset(tensor(&a, "dsT"), 0, tensor_bytes(&a, "dsT")), memset(tensor(&b, "dsT"), 0, tensor_bytes(&a, "dsT"));
            memset(tensor(&a, "dnT"), 0, tensor_bytes(&a, "dnT")), memset(tensor(&b, "dnT"), 0, tensor_bytes(&a, "dnT"));
            const float by = what == 2 ? 3 : what == 3 ? -20 : 0, f = what == 3 ? 0 : expf(by);
            tensor(&b, "m0")[0] -= by;
            for (int64_t i = 0; i < K * V; i++) tensor(&b, "s0")[i] *= f, tensor(&a, "s0")[i] *= what == 3 ? 0 : 1;
            for (int64_t i = 0; i < K; i++) tensor(&b, "n0")[i] *= f, tensor(&a, "n0")[i] *= what == 3 ? 0 : 1;
            for (int back = 0; back < 2; back++) {
                OK(c, lnt_problem_run(c, &a, back));
                OK(c, lnt_problem_run(c, &b, back));
            }
            mlstm_written_out(&a, o);
            close_to("mlstm", "o written out", tensor(&a, "o"), o, T * V, 3e-6);
            static const char *const same[] = { "o", "dq", "dk", "dv", "df", "di", "ds0", "dn0" };
            for (int64_t i = 0; i < K * V; i++) tensor(&b, "ds0")[i] *= what == 3 ? expf(by) : f; /* of what is multiplied by e^m */
            for (int64_t i = 0; i < K; i++) tensor(&b, "dn0")[i] *= what == 3 ? expf(by) : f;
            for (int i = 0; i < 8; i++)
                close_to("mlstm with another m", same[i], tensor(&b, same[i]), tensor(&a, same[i]), elements(&a, same[i]),
                         i == 4 || i == 5 ? 2e-5 : 5e-6);
            lnt_problem_free(&a);
            lnt_problem_free(&b);
        }
    linnet_context_destroy(c);
}

/* Where no denominator is below 1, e^c more of every write changes nothing, and mLSTM with i = 0 is the normalised simple_gla. */
static void stabiliser_cancels(void **state)
{
    (void)state;
    enum { T = 90 };
    linnet_context *c = make_context(1);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        const lnt_recur_case k = { "mlstm", 1, { T }, LNT_HEADS(1, 2, 20, 24), .gate = -0.3, .option = { { "scale", 1000 } } };
        lnt_recur_case other = k;
        other.op = "simple_gla";
        lnt_problem a, b, s;
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
        OK(c, lnt_problem_make(c, &other, LINNET_F32, LINNET_F32, 5, &s));
        args(&s)->normalize = 1, args(&s)->eps = 0;
        static const char *const positive[] = { "q", "k" };
        lnt_problem *all[] = { &a, &b, &s };
        for (int p = 0; p < 3; p++) {
            all[p]->r.form = (linnet_form)form;
            for (int i = 0; i < 2; i++)
                for (int64_t j = 0; j < elements(&a, positive[i]); j++) {
                    float *x = tensor(all[p], positive[i]) + j;
                    *x = fabsf(*x) + 0.01f;
                }
        }
        for (int64_t j = 0; j < elements(&b, "i"); j++) tensor(&b, "i")[j] = tensor(&a, "i")[j] + 2.5f;
        memcpy(tensor(&s, "g"), tensor(&a, "f"), tensor_bytes(&a, "f"));
        static const char *const results[] = { "o", "dq", "dk", "dv" };
        for (int turn = 0; turn < 2; turn++) { /* more of everything; then i = 0 against simple_gla */
            lnt_problem *with = turn ? &s : &b;
            if (turn) memset(tensor(&a, "i"), 0, tensor_bytes(&a, "i"));
            for (int back = 0; back < 2; back++) {
                OK(c, lnt_problem_run(c, &a, back));
                OK(c, lnt_problem_run(c, with, back));
            }
            for (int i = 0; i < 4; i++)
                close_to("mlstm", results[i], tensor(&a, results[i]), tensor(with, results[i]), elements(&a, results[i]), 5e-6);
            close_to("mlstm", "df", tensor(&a, "df"), tensor(with, turn ? "dg" : "df"), elements(&a, "df"), 2e-5);
        }
        lnt_problem_free(&a);
        lnt_problem_free(&b);
        lnt_problem_free(&s);
    }
    linnet_context_destroy(c);
}

/* sLSTM as its paper writes it, without m: c_t = f c + e^i tanh(z), n_t = f n + e^i, y = sigmoid(o) c / n. One sequence. */
static void slstm_written_out(const lnt_problem *p, float *o)
{
    const int64_t T = p->r.tokens, H = lnt_recur_letter(p->op, &p->call, "H", 1), D = lnt_recur_letter(p->op, &p->call, "D", 1);
    const char *const name[] = { "wi", "wf", "wz", "wo" };
    double *y = lnt_calloc((size_t)(8 * D) * sizeof *y), *c = y + D, *n = c + D, *pre = n + D;
    for (int64_t h = 0; h < H; h++) {
        for (int64_t j = 0; j < D; j++) {
            const double m = tensor(p, "m0") ? exp(tensor(p, "m0")[h * D + j]) : 1;
            y[j] = tensor(p, "y0") ? tensor(p, "y0")[h * D + j] : 0;
            c[j] = tensor(p, "c0") ? m * tensor(p, "c0")[h * D + j] : 0;
            n[j] = tensor(p, "n0") ? m * tensor(p, "n0")[h * D + j] : 0;
        }
        for (int64_t t = 0; t < T; t++) {
            for (int64_t j = 0; j < 4 * D; j++) {
                pre[j] = tensor(p, name[j / D])[(t * H + h) * D + j % D];
                for (int64_t k = 0; k < D; k++) pre[j] += y[k] * tensor(p, "R")[(h * D + k) * 4 * D + j];
            }
            for (int64_t j = 0; j < D; j++) {
                const double keep = 1 / (1 + exp(-pre[D + j]));
                c[j] = keep * c[j] + exp(pre[j]) * tanh(pre[2 * D + j]);
                n[j] = keep * n[j] + exp(pre[j]);
                y[j] = c[j] / n[j] / (1 + exp(-pre[3 * D + j]));
                o[(t * H + h) * D + j] = (float)y[j];
            }
        }
    }
    lnt_free(y);
}

/* As in stabiliser_is_a_choice: another m of the same state, or of an empty one, is no other state. */
static void scalar_memory_written_out(void **state)
{
    (void)state;
    enum { T = 50, H = 2, D = 21 };
    const lnt_recur_case k = { "slstm", 1, { T }, { { "H", H }, { "D", D }, { "E", 4 * D } }, .states = true };
    linnet_context *c = make_context(1);
    for (int what = 0; what < 4; what++) { /* as it is; strong and weak writes; the state with another m; an empty state with another m */
        static float o[T * H * D];
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
        for (int i = 0; what == 1 && i < T * H * D; i++) {
            const int t = i / (H * D);
            tensor(&a, "wi")[i] = tensor(&b, "wi")[i] = t == 20 ? 300 : t == 30 ? -300 : 3 * tensor(&a, "wi")[i];
        }
        static const char *const ends[] = { "dcT", "dnT", "dmT" }, *const empty[] = { "c0", "n0" };
        for (int i = 0; i < 3; i++) memset(tensor(&a, ends[i]), 0, H * D * 4), memset(tensor(&b, ends[i]), 0, H * D * 4);
        const float by = what == 2 ? 3 : what == 3 ? -40 : 0, f = expf(by);
        for (int64_t i = 0; i < H * D; i++) tensor(&b, "m0")[i] -= by;
        for (int s = 0; s < 2; s++)
            for (int64_t i = 0; i < H * D; i++) tensor(&b, empty[s])[i] *= what == 3 ? 0 : f, tensor(&a, empty[s])[i] *= what == 3 ? 0 : 1;
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &a, back));
            OK(c, lnt_problem_run(c, &b, back));
        }
        slstm_written_out(&a, o);
        close_to("slstm", "o written out", tensor(&a, "o"), o, T * H * D, 3e-6);
        static const char *const same[] = { "o", "yT", "dwi", "dwf", "dwz", "dwo", "dR", "dy0" };
        for (int i = 0; i < 8; i++)
            close_to("slstm with another m", same[i], tensor(&b, same[i]), tensor(&a, same[i]), elements(&a, same[i]), 5e-6);
        if (what == 3)
            for (int64_t i = 0; i < H * D; i++) assert_true(tensor(&b, "dm0")[i] == 0);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* Without R units are on their own: c and n are scans of e^i tanh(z) and e^i. */
static void scalar_memory_is_two_scans(void **state)
{
    (void)state;
    enum { T = 60, D = 24 };
    linnet_context *c = make_context(1);
    const lnt_recur_case ka = { "slstm", 2, { 25, T - 25 }, { { "H", 1 }, { "D", D }, { "E", 4 * D } }, .states = false };
    const lnt_recur_case kb = { "scan", 2, { 25, T - 25 }, { { "D", D } }, .states = false };
    lnt_problem a, s[2];
    OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
    memset(tensor(&a, "R"), 0, tensor_bytes(&a, "R"));
    OK(c, lnt_problem_run(c, &a, false));
    for (int n = 0; n < 2; n++) {
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &s[n]));
        for (int i = 0; i < T * D; i++) {
            tensor(&s[n], "log_a")[i] = -log1pf(expf(-tensor(&a, "wf")[i]));
            tensor(&s[n], "x")[i] = expf(tensor(&a, "wi")[i]) * (n ? 1 : tanhf(tensor(&a, "wz")[i]));
        }
        OK(c, lnt_problem_run(c, &s[n], false));
    }
    for (int i = 0; i < T * D; i++) tensor(&s[0], "o")[i] *= 1 / (tensor(&s[1], "o")[i] * (1 + expf(-tensor(&a, "wo")[i])));
    close_to("slstm", "two scans", tensor(&a, "o"), tensor(&s[0], "o"), T * D, 3e-6);
    lnt_problem_free(&a);
    lnt_problem_free(&s[0]);
    lnt_problem_free(&s[1]);
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stabiliser_is_a_choice),
        cmocka_unit_test(stabiliser_cancels),
        cmocka_unit_test(scalar_memory_written_out),
        cmocka_unit_test(scalar_memory_is_two_scans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
