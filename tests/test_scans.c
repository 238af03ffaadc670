/* Scans with every weight written out, outputs as sums over all tokens before and gradients as central differences of those: complex ones, the
 * diagonal form of Longhorn and RG-LRU. Other scans are held so, or to each other, in test_s4, test_wkv and test_identities. */
#include <complex.h>

#include "recurrence/scan/scan.h"
#include "recurrence_check.h"

enum { T = 37, D = 3, M = 4 };
typedef double complex number;

/* All inputs of an operator in float64, one behind the other in its rows' order; at[i]: where row i begins, -1 where it is absent. */
typedef struct {
    const lnt_problem *p;
    double value[8 * T * D];
    int at[LNT_RECUR_TENSORS], count;
} inputs;

static inputs inputs_of(const lnt_problem *p)
{
    inputs in = { .p = p };
    for (int i = 0; p->op->tensors[i].name; i++) {
        in.at[i] = -1;
        if (!p->data[i] || is_result(p, i)) continue;
        in.at[i] = in.count;
        assert_true(in.count + (int)(p->bytes[i] / 4) <= 8 * T * D);
        for (size_t j = 0; j < p->bytes[i] / 4; j++) in.value[in.count++] = ((const float *)p->data[i])[j];
    }
    return in;
}
static const double *input(const inputs *in, const char *name) { return in->value + in->at[lnt_recur_tensor_find(in->p->op, name)]; }

/* Outputs and final states by the formula; returns <o, do> + <sT, dsT>. */
typedef double formula(const inputs *in, float *o, float *sT);

/* Channel d of row r of [.,2,D]; put: its product with the cotangent. */
static number complex_at(const double *x, int r, int d) { return x[2 * r * D + d] + I * x[(2 * r + 1) * D + d]; }
static double put(float *to, int r, int d, number x, const double *cotangent)
{
    to[2 * r * D + d] = (float)creal(x), to[(2 * r + 1) * D + d] = (float)cimag(x);
    return creal(x * conj(complex_at(cotangent, r, d)));
}

/* h_t = e^{L_t} s_0 + sum_{s <= t} e^{L_t - L_s} x_s, L_t the sum of log_a + i angle up to token t; of constant ones t + 1 of them. */
static double complex_scan(const inputs *in, float *o, float *sT)
{
    const bool constant = !strcmp(in->p->op->name, "lru");
    const double *log_a = input(in, "log_a"), *angle = input(in, "angle");
    double sum = 0;
    for (int d = 0; d < D; d++) {
        number L[T], h = 0;
        for (int t = 0; t < T; t++) {
            L[t] = constant ? (t + 1) * (log_a[d] + I * angle[d]) : (t ? L[t - 1] : 0) + log_a[t * D + d] + I * angle[t * D + d];
            h = cexp(L[t]) * complex_at(input(in, "s0"), 0, d);
            for (int s = 0; s <= t; s++) h += cexp(L[t] - L[s]) * complex_at(input(in, "x"), s, d);
            sum += put(o, t, d, h, input(in, "do"));
        }
        sum += put(sT, 0, d, h, input(in, "dsT"));
    }
    return sum;
}

/* h_t = (prod_{r <= t} f_r) s_0 + sum_{s <= t} (prod_{s < r <= t} f_r) Delta_s x_s k_s with f = 1 - Delta k^2, Delta = beta / (1 + beta k.k), of each
 * channel and number; o = sum_m q h + D x. */
static double longhorn(const inputs *in, float *o, float *sT)
{
    const double *x = input(in, "x"), *beta = input(in, "beta"), *k = input(in, "k"), *q = input(in, "q");
    double sum = 0;
    for (int d = 0; d < D; d++) {
        double Delta[T], h[M];
        for (int t = 0; t < T; t++) {
            double square = 0, y = input(in, "D")[d] * x[t * D + d];
            for (int m = 0; m < M; m++) square += k[t * M + m] * k[t * M + m];
            Delta[t] = beta[t * D + d] / (1 + beta[t * D + d] * square);
            for (int m = 0; m < M; m++) {
                double kept = 1;
                h[m] = 0;
                for (int s = t; s >= 0; s--) {
                    h[m] += kept * Delta[s] * x[s * D + d] * k[s * M + m];
                    kept *= 1 - Delta[s] * k[s * M + m] * k[s * M + m];
                }
                h[m] += kept * input(in, "s0")[d * M + m];
                y += q[t * M + m] * h[m];
            }
            o[t * D + d] = (float)y;
            sum += y * input(in, "do")[t * D + d];
        }
        for (int m = 0; m < M; m++) {
            sT[d * M + m] = (float)h[m];
            sum += h[m] * input(in, "dsT")[d * M + m];
        }
    }
    return sum;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* h_t = (prod_{r <= t} a_r) s_0 + sum_{s <= t} (prod_{s < r <= t} a_r) m_s sigmoid(i_s) x_s with a = e^{-8 softplus(lambda) sigmoid(r)} and
 * m = (1 - a^2)^{1/2}; where the first token is told from others, 0 and 1 there. */
static double rglru(const inputs *in, float *o, float *sT)
{
    const double *x = input(in, "x"), *r = input(in, "r"), *i = input(in, "i"), *lambda = input(in, "lambda"), *s0 = input(in, "s0");
    const bool first = ((const lnt_rglru_args *)(const void *)&in->p->call)->first;
    double sum = 0;
    for (int d = 0; d < D; d++) {
        double a[T], w[T], h = 0;
        for (int t = 0; t < T; t++) {
            a[t] = first && t == 0 ? 0 : exp(-8 * log1p(exp(lambda[d])) * sigmoid(r[t * D + d]));
            w[t] = sqrt(1 - a[t] * a[t]) * sigmoid(i[t * D + d]) * x[t * D + d];
            double kept = 1;
            h = 0;
            for (int s = t; s >= 0; s--) h += kept * w[s], kept *= a[s];
            h += kept * s0[d];
            o[t * D + d] = (float)h;
            sum += h * input(in, "do")[t * D + d];
        }
        sT[d] = (float)h;
        sum += h * input(in, "dsT")[d];
    }
    return sum;
}

/* Both forms of the operator, forward and every gradient. key: a switch that is on; NULL: none. */
static void check(const char *op, formula *f, const char *key)
{
    const lnt_recur_case k = { op, 1, { T }, { { "D", D }, { f == longhorn ? "M" : "P", f == longhorn ? M : 2 } },
                               .gate = -0.3, .beta = 1, .states = true, .option = { { key, 1 } } };
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        float o[2 * T * D], sT[D * M];
        lnt_problem p;
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 11, &p));
        p.r.form = (linnet_form)form;
        for (int back = 0; back < 2; back++) OK(c, lnt_problem_run(c, &p, back));
        inputs in = inputs_of(&p);
        f(&in, o, sT);
        close_to(op, "o", tensor(&p, "o"), o, elements(&p, "o"), 2e-6);
        close_to(op, "sT", tensor(&p, "sT"), sT, elements(&p, "sT"), 2e-6);
        for (int i = 0; p.op->tensors[i].name; i++) { /* a row is followed by its gradient's */
            if (p.op->tensors[i].role != LNT_T_INPUT && p.op->tensors[i].role != LNT_T_STATE) continue;
            float expected[2 * T * D], unused[2 * T * D];
            const int n = (int)(p.bytes[i] / 4);
            for (int j = 0; j < n; j++) {
                double *x = &in.value[in.at[i] + j], kept = *x, side[2];
                for (int s = 0; s < 2; s++) {
                    *x = kept + (s ? -1e-5 : 1e-5);
                    side[s] = f(&in, unused, unused);
                }
                *x = kept;
                expected[j] = (float)((side[0] - side[1]) / 2e-5);
            }
            close_to(op, p.op->tensors[i + 1].name, p.data[i + 1], expected, n, lnt_recur_allowed(p.op, LINNET_F32, i + 1));
        }
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

static void complex_scan_written_out(void **state) { (void)state, check("complex_scan", complex_scan, NULL); }
static void lru_written_out(void **state) { (void)state, check("lru", complex_scan, NULL); }
static void longhorn_written_out(void **state) { (void)state, check("longhorn", longhorn, NULL); }
static void rglru_written_out(void **state) { (void)state, check("rglru", rglru, NULL), check("rglru", rglru, "first"); }

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(complex_scan_written_out), cmocka_unit_test(lru_written_out),
                                        cmocka_unit_test(longhorn_written_out), cmocka_unit_test(rglru_written_out) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
