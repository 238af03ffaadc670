/* The decay core in float64, token by token: the truth.
 *
 *   S_t = diag(e^{g_t + gk_t}) S_{t-1} diag(e^{gv_t}) + k_t v_t^T          o_t = s S_t^T q_t        (operators.md#decay, #vector-decay)
 *
 * where a gate that the operator does not have is 0, and with `signed` each of these e^g is sign e^g. With a bonus u the read-out comes before the
 * write: o_t = s (S_{t-1} + (u.k_t) v_t^T)^T q_t.
 * With `normalize` the state has one more value column, whose v is 1 (that column is z), and o_t = num / (den + eps). W = V or V+1 columns.
 *
 * mLSTM (operators.md#mlstm) has that column too, its n, and m behind the state: with m = max(f_t + m_{t-1}, i_t), e^{g_t} is e^{f_t + m_{t-1} - m},
 * k_t is written times e^{i_t - m}, and den is max(|den|, e^{-m}). Gradients are those of these formulas, m's among them. */
#include "recurrence/decay/decay.h"
#include "recurrence/reference.h"

static bool early(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_EARLY; }
static bool stable(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_STABLE; }
static int64_t width(const lnt_recur_args *a) { return a->V + (a->normalize || stable(a)); }
static int64_t place_of_m(const lnt_recur_args *a) { return a->K * width(a); }
static int64_t state(const lnt_recur_args *a) { return place_of_m(a) + stable(a); }

/* A head's own rows: num [W], dnum [W], the decays of S's columns [W], the gradients of gv [W] and of these decays [W], the decays of rows [K]. */
static int64_t own(const lnt_recur_args *a, bool backward)
{
    (void)backward;
    return 5 * width(a) + a->K;
}
static double *columns(const ref_head *x) { return x->own + 2 * width(x->a); }
static double *rows(const ref_head *x) { return x->own + 5 * width(x->a); }

/* The decays of token t. */
static void decays(const ref_head *x, int64_t t)
{
    const lnt_recur_args *a = x->a;
    for (int64_t j = 0, at = ref_row(x, t) * a->V; j < width(a); j++)
        columns(x)[j] = j < a->V ? exp(ref_get(a->gv, ref_f(a), at + j)) * ref_sign(x, a->sign_v, at + j) : 1.0;
    ref_row_decays(x, t, rows(x));
}

/* mLSTM: m behind token t and, in place of e^f, what the state before it is decayed by; k times the write strength, which is returned. */
static double stabilise(const ref_head *x, int64_t t, double before, double *m, bool *taken)
{
    const lnt_recur_args *a = x->a;
    const double f = ref_get(a->g, ref_f(a), ref_row(x, t)), i = ref_get(a->i, ref_f(a), ref_row(x, t)), through = f + before;
    *taken = !(through > i);
    *m = *taken ? i : through;
    if (*m == -INFINITY) *m = 0; /* nothing was written, and nothing is */
    const double decay = exp(through - *m), write = exp(i - *m);
    for (int64_t k = 0; k < a->K; k++) {
        rows(x)[k] = decay;
        x->k[k] *= write;
    }
    return write;
}

static void load(const ref_head *x, bool gradient, double *S)
{
    const lnt_recur_args *a = x->a;
    const void *s = gradient ? a->dsT : a->s0, *z = gradient ? a->dzT : a->z0;
    int64_t W = width(a), i = ref_index(x);
    for (int64_t k = 0; k < a->K; k++) {
        ref_get_row(S + k * W, s, ref_f(a), i * a->K + k, a->V);
        if (W > a->V) S[k * W + a->V] = ref_get(z, ref_f(a), i * a->K + k);
    }
    if (stable(a)) S[place_of_m(a)] = ref_get(gradient ? a->dmT : a->m0, ref_f(a), i);
}

static void store(const ref_head *x, bool gradient, const double *S)
{
    const lnt_recur_args *a = x->a;
    void *s = gradient ? a->ds0 : a->sT, *z = gradient ? a->dz0 : a->zT;
    int64_t W = width(a), i = ref_index(x);
    for (int64_t k = 0; k < a->K; k++) {
        ref_put_row(s, ref_f(a), i * a->K + k, a->V, S + k * W);
        if (W > a->V) ref_put(z, ref_f(a), i * a->K + k, S[k * W + a->V]);
    }
    if (stable(a)) ref_put(gradient ? a->dm0 : a->mT, ref_f(a), i, S[place_of_m(a)]);
}

/* num = s S^T q, then num[0..V) becomes o and num[V] the denominator. */
static void read_out(const ref_head *x, const double *S, double *num)
{
    const lnt_recur_args *a = x->a;
    int64_t W = width(a);
    for (int64_t j = 0; j < W; j++) {
        double sum = 0;
        for (int64_t k = 0; k < a->K; k++) sum += S[k * W + j] * x->q[k];
        num[j] = a->scale * sum;
    }
    if (W == a->V) return;
    if (stable(a)) num[a->V] = fmax(fabs(num[a->V]), exp(-S[place_of_m(a)]));
    num[a->V] += a->eps;
    for (int64_t j = 0; j < a->V; j++) num[j] /= num[a->V];
}

static double bonus(const ref_head *x, int64_t k) { return ref_get(x->a->bonus, ref_f(x->a), x->h * x->a->K + k); }

/* S <- e^gk S e^gv + k v^T; with a bonus what is read out before that goes into num. */
static void step(const ref_head *x, int64_t t)
{
    const lnt_recur_args *a = x->a;
    int64_t W = width(a);
    if (early(a)) {
        double now = 0;
        read_out(x, x->S, x->own);
        for (int64_t k = 0; k < a->K; k++) now += a->scale * x->q[k] * bonus(x, k) * x->k[k];
        for (int64_t j = 0; j < a->V; j++) x->own[j] += now * x->v[j];
    }
    decays(x, t);
    bool taken;
    double *m = &x->S[place_of_m(a)];
    if (stable(a)) stabilise(x, t, *m, m, &taken);
    x->v[a->V] = 1;
    for (int64_t k = 0; k < a->K; k++)
        for (int64_t j = 0; j < W; j++) x->S[k * W + j] = rows(x)[k] * columns(x)[j] * x->S[k * W + j] + x->k[k] * x->v[j];
}

static void read(const ref_head *x, int64_t t)
{
    if (!early(x->a)) read_out(x, x->S, x->own);
    ref_put_row(x->a->o, x->a->dtype, ref_row(x, t), x->a->V, x->own);
}

/* What the token's own write, read out with the bonus, gives: with c = do . v, dq += s c u.k, dk += s c u.q, dv += s (q.(u.k)) do, du += s c q.k. */
static void back_bonus(const ref_head *x, int64_t place, const double *dnum, double *dv)
{
    const lnt_recur_args *a = x->a;
    double c = a->scale * ref_dot(a->V, dnum, x->v), now = 0;
    for (int64_t k = 0; k < a->K; k++) {
        double u = bonus(x, k);
        x->dq[place * a->K + k] += c * u * x->k[k];
        x->dk[place * a->K + k] += c * u * x->q[k];
        x->sums[k] += c * x->q[k] * x->k[k];
        now += a->scale * x->q[k] * u * x->k[k];
    }
    for (int64_t j = 0; j < a->V; j++) dv[j] += now * dnum[j];
}

/* The gradient of max(|den|, e^{-m}) + eps, *d, becomes that of den, or e^{-m}'s goes to m. */
static void floor_gradient(const ref_head *x, const double *S, double *d, double *dm)
{
    const lnt_recur_args *a = x->a;
    const int64_t W = width(a);
    const double floor = exp(-S[place_of_m(a)]);
    double den = 0;
    for (int64_t k = 0; k < a->K; k++) den += a->scale * S[k * W + a->V] * x->q[k];
    if (fabs(den) > floor) {
        *d = copysign(*d, den * *d);
        return;
    }
    *dm -= floor * *d;
    *d = 0;
}

/*   dnum = do / den, dden = -(do . o) / den                    dq = s S dnum      dS += s q dnum^T
 *   dk = dS v, dv = dS^T k      dgk = rowsum(e^gk S_{t-1} e^gv . dS), dgv = the sums of its columns, dg of all        dS_{t-1} = e^gk dS e^gv
 * with signs these e^g have them, and the gradient of a sign is the same sum with e^g in place of the decay;
 * with a bonus q reads S_{t-1}, and what it adds to dS is added last. */
static void back(const ref_head *x, int64_t t, const double *S, const double *before)
{
    const lnt_recur_args *a = x->a;
    int64_t W = width(a), place = ref_place(x, t);
    double *num = x->own, *dnum = x->own + W, *dcolumn = x->own + 3 * W, *turned = x->own + 4 * W;
    bool first = early(a), taken = false;
    double m = 0, write = 1, dwrite = 0, *dm = &x->dS[place_of_m(a)];
    x->v[a->V] = 1;
    ref_get_row(dnum, a->do_, a->dtype, ref_row(x, t), a->V);
    if (W > a->V) {
        read_out(x, S, num);
        double den = num[a->V], dot = ref_dot(a->V, dnum, num);
        for (int64_t j = 0; j < a->V; j++) dnum[j] /= den;
        dnum[a->V] = -dot / den;
        if (stable(a)) floor_gradient(x, S, &dnum[a->V], dm);
    }
    decays(x, t);
    if (stable(a)) write = stabilise(x, t, before[place_of_m(a)], &m, &taken);
    double dg = 0, plain = 0; /* plain: what the decay of all, sign and size, takes */
    memset(num, 0, (size_t)W * sizeof *num); /* dv */
    memset(dcolumn, 0, 2 * (size_t)W * sizeof *dcolumn); /* and turned */
    for (int64_t k = 0; k < a->K; k++) {
        double dq = 0, dk = 0, drow = 0, of_row = 0;
        for (int64_t j = 0; j < W; j++) {
            double *dS = &x->dS[k * W + j], read = a->scale * x->q[k] * dnum[j];
            dq += (first ? before : S)[k * W + j] * dnum[j];
            if (!first) *dS += read;
            dk += *dS * x->v[j];
            num[j] += *dS * x->k[k];
            plain += before[k * W + j] * *dS;
            of_row += before[k * W + j] * *dS * columns(x)[j];
            turned[j] += before[k * W + j] * *dS * rows(x)[k];
            *dS *= rows(x)[k] * columns(x)[j];
            drow += before[k * W + j] * *dS;
            dcolumn[j] += before[k * W + j] * *dS;
            if (first) *dS += read;
        }
        x->dq[place * a->K + k] += a->scale * dq;
        x->dk[place * a->K + k] += dk * write;
        dwrite += dk * x->k[k]; /* of its logarithm: k is times it by now */
        const int64_t at = ref_row(x, t) * a->K + k;
        ref_put(a->dgk, ref_f(a), at, drow);
        ref_put(a->dsign_k, ref_f(a), at, exp(ref_get(a->gk, ref_f(a), at)) * of_row);
        dg += drow;
    }
    if (stable(a)) { /* m falls out of the decay and the strength, and is f + m before or i */
        const double to_m = *dm - dg - dwrite;
        dg += taken ? 0 : to_m;
        dwrite += taken ? to_m : 0;
        *dm = dg;
        ref_put(a->di, ref_f(a), ref_row(x, t), dwrite);
    }
    if (first) back_bonus(x, place, dnum, num);
    ref_put_row(a->dv, a->dtype, ref_row(x, t), a->V, num);
    ref_put_row(a->dgv, ref_f(a), ref_row(x, t), a->V, dcolumn);
    ref_put(a->dg, ref_f(a), ref_row(x, t), dg);
    if (a->sign) ref_put(a->dsign, ref_f(a), ref_row(x, t), ref_decay_size(x, t) * plain);
    for (int64_t j = 0, at = ref_row(x, t) * a->V; j < a->V; j++)
        ref_put(a->dsign_v, ref_f(a), at + j, exp(ref_get(a->gv, ref_f(a), at + j)) * turned[j]);
    if (!first) *x->sums += dg;
}

static int64_t sums(const lnt_recur_args *a) { return early(a) ? a->K : 1; }
static void *sum_out(const lnt_recur_args *a) { return early(a) ? a->dbonus : a->dg_head; }

static const ref_core core = { state, own, sums, sum_out, load, store, step, read, back };
static size_t workspace(const void *args, bool backward, int threads) { return lnt_ref_workspace(&core, args, backward, threads); }
static void forward(const void *args, int threads) { lnt_ref_forward(&core, args, threads); }
static void backward(const void *args, int threads) { lnt_ref_backward(&core, args, threads); }

const lnt_recur_impl lnt_decay_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
