/* WKV in float64, token by token: the truth.
 *
 *   x_t = u + k_t, e_1 = e^{m - max(m, x_t)}, e_2 = e^{x_t - max(m, x_t)}       o_t = (e_1 a + e_2 v_t) / (e_1 b + e_2)
 *   m' = max(m - e^w, k_t), f_1 = e^{m - e^w - m'}, f_2 = e^{k_t - m'}          a' = f_1 a + f_2 v_t,  b' = f_1 b + f_2           (operators.md#wkv)
 * backward, with r = do_t / (e_1 b + e_2) and da' db' dm' what the token behind sends:
 *   g_1 = f_1 (a da' + b db'),  g_2 = f_2 (v_t da' + db')                        gradients of log f_1 and log f_2
 *   dm = g_1 + e_1 (a - o_t b) r,  dk_t = g_2 + e_2 (v_t - o_t) r,  and dm' - g_1 - g_2 goes to the one of the two that m' is
 *   da = f_1 da' + e_1 r,  db = f_1 db' - e_1 o_t r,  dv_t = f_2 da' + e_2 r
 *   du = sum of e_2 (v_t - o_t) r,  dw = -e^w times the sum of dm's first part
 * b = 0: no state, m = -inf. */
#include "recurrence/reference.h"
#include "recurrence/scan/scan.h"

static lnt_dtype small(const lnt_wkv_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

typedef struct {
    double a, b, m;
} state;

static state begin(const lnt_wkv_args *x, int64_t p)
{
    state s = { ref_get(x->a0, small(x), p), ref_get(x->b0, small(x), p), ref_get(x->m0, small(x), p) };
    if (s.b == 0) s.m = -INFINITY;
    return s;
}

/* What the old sums and the new term are multiplied by. */
static void factors(double old, double new, double *one, double *two)
{
    const double most = fmax(old, new);
    *one = exp(old - most);
    *two = exp(new - most);
}

static state next(state s, double k, double v, double decay)
{
    double f1, f2;
    factors(s.m - decay, k, &f1, &f2);
    return (state){ f1 * s.a + f2 * v, f1 * s.b + f2, fmax(s.m - decay, k) };
}

static void forward(const void *args, int threads)
{
    const lnt_wkv_args *x = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < x->sequences * x->D; p++) {
        const int64_t n = p / x->D, d = p % x->D;
        const double decay = exp(ref_get(x->w, small(x), d)), u = ref_get(x->u, small(x), d);
        state s = begin(x, p);
        for (int64_t t = x->cu_seqlens[n]; t < x->cu_seqlens[n + 1]; t++) {
            const double k = ref_get(x->k, x->dtype, t * x->D + d), v = ref_get(x->v, x->dtype, t * x->D + d);
            double e1, e2;
            factors(s.m, u + k, &e1, &e2);
            ref_put(x->o, x->dtype, t * x->D + d, (e1 * s.a + e2 * v) / (e1 * s.b + e2));
            s = next(s, k, v, decay);
        }
        ref_put(x->aT, small(x), p, s.a);
        ref_put(x->bT, small(x), p, s.b);
        ref_put(x->mT, small(x), p, s.b == 0 ? 0 : s.m);
    }
}

/* One channel of one sequence; s[len+1] has its states. */
static void back(const lnt_wkv_args *x, int64_t n, int64_t d, const state *s, double sum[2])
{
    const int64_t first = x->cu_seqlens[n], len = x->cu_seqlens[n + 1] - first, p = n * x->D + d;
    const double decay = exp(ref_get(x->w, small(x), d)), u = ref_get(x->u, small(x), d);
    state g = { ref_get(x->daT, small(x), p), ref_get(x->dbT, small(x), p), ref_get(x->dmT, small(x), p) };
    for (int64_t i = len - 1; i >= 0; i--) {
        const int64_t at = (first + i) * x->D + d;
        const double k = ref_get(x->k, x->dtype, at), v = ref_get(x->v, x->dtype, at);
        double e1, e2, f1, f2;
        factors(s[i].m, u + k, &e1, &e2);
        factors(s[i].m - decay, k, &f1, &f2);
        const double under = e1 * s[i].b + e2, o = (e1 * s[i].a + e2 * v) / under, r = ref_get(x->dout, x->dtype, at) / under;
        const double g1 = f1 * (s[i].a * g.a + s[i].b * g.b), g2 = f2 * (v * g.a + g.b), rest = g.m - g1 - g2, read = e2 * (v - o) * r;
        const bool older = s[i].m - decay >= k;
        const double carried = g1 + (older ? rest : 0);
        ref_put(x->dk, x->dtype, at, g2 + (older ? 0 : rest) + read);
        ref_put(x->dv, x->dtype, at, f2 * g.a + e2 * r);
        sum[0] -= decay * carried;
        sum[1] += read;
        g = (state){ f1 * g.a + e1 * r, f1 * g.b - e1 * o * r, carried + e1 * (s[i].a - o * s[i].b) * r };
    }
    ref_put(x->da0, small(x), p, g.a);
    ref_put(x->db0, small(x), p, g.b);
    ref_put(x->dm0, small(x), p, g.m);
}

static int64_t room(const lnt_wkv_args *x) { return x->longest + 1; }

static void backward(const void *args, int threads)
{
    const lnt_wkv_args *x = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t d = 0; d < x->D; d++) {
        state *s = (state *)x->workspace + omp_get_thread_num() * room(x);
        const double decay = exp(ref_get(x->w, small(x), d));
        double sum[2] = { 0, 0 };
        for (int64_t n = 0; n < x->sequences; n++) {
            const int64_t first = x->cu_seqlens[n], len = x->cu_seqlens[n + 1] - first;
            s[0] = begin(x, n * x->D + d);
            for (int64_t i = 0; i < len; i++)
                s[i + 1] = next(s[i], ref_get(x->k, x->dtype, (first + i) * x->D + d), ref_get(x->v, x->dtype, (first + i) * x->D + d), decay);
            back(x, n, d, s, sum);
        }
        ref_put(x->dw, small(x), d, sum[0]);
        ref_put(x->du, small(x), d, sum[1]);
    }
}

static size_t workspace(const void *args, bool back_too, int threads)
{
    return back_too ? (size_t)(threads * room(args)) * sizeof(state) : 0;
}

const lnt_recur_impl lnt_wkv_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
