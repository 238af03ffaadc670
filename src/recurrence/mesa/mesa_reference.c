/* The Mesa core in float64, token by token: the truth.
 *
 *   H_t = e^{g_t} H_{t-1} + beta_t k_t k_t^T      G_t = e^{g_t} G_{t-1} + beta_t k_t v_t^T                (operators.md#mesa)
 *   (H_t + Lambda) x_t = q_t                      o_t = G_t^T x_t
 *
 * The system is solved directly (L D L^T). With cg_tolerance = 0, which asks for so many steps and not for the solution, it is left to exactly those
 * conjugate-gradient steps. Backward, with y_t = G_t do_t and (H_t + Lambda) e_t = y_t:
 *
 *   dq = e      dlambda = - sum_t x.e      dG += x do^T      dH += -e x^T
 *   dk = beta (dG v + (dH + dH^T) k)      dv = beta dG^T k      dbeta = k.(dG v) + k.(dH k)
 *   dg = e^g (<G_{t-1}, dG> + <H_{t-1}, dH>),      then dG and dH times e^g      (with `signed` e^g is sign e^g, and dsign is dg / sign)
 *
 * With cg_gradient = LNT_CG_UNROLLED x is always what the steps leave, and dq, dlambda and dH come from differentiating them, last step first. */
#include "recurrence/mesa/mesa_args.h"
#include "recurrence/reference.h"

/* What a conjugate-gradient step was: x += alpha p, r -= alpha w, p = M r + ratio p with alpha = delta / curve, delta = r.Mr. */
typedef struct {
    double delta, curve, alpha, ratio;
} cg_step;

/* Rows [K] of a head, o [V], and A [K,K], the factored system. p w r [steps + 1,K] and steps: of every conjugate-gradient step when they are
 * differentiated, else of the last. */
typedef struct {
    double *A, *lambda, *dlambda, *x, *y, *e, *d, *dr, *dp, *dd, *dw, *o, *r, *p, *w;
    cg_step *steps;
    double *inverse, *product; /* [K,K] twice, LNT_CG_SHERMAN_MORRISON */
    int64_t stride; /* from step to step in p, w and r: K, or 0 when nothing is kept */
} rows;

static const lnt_mesa_args *args_of(const lnt_recur_args *a) { return (const lnt_mesa_args *)a; }
static bool unrolled(const lnt_mesa_args *a) { return a->cg_gradient == LNT_CG_UNROLLED; }

static int64_t carve(const lnt_mesa_args *a, bool backward, double *p, rows *w)
{
    int64_t K = a->K, kept = backward && unrolled(a) ? a->cg_max_steps + 2 : 1, used = 0; /* one step more than the cap may be taken */
    const struct {
        double **at;
        int64_t count;
    } parts[] = { { &w->A, K * K },
                  { &w->lambda, K },
                  { &w->dlambda, K },
                  { &w->x, K },
                  { &w->y, K },
                  { &w->e, K },
                  { &w->d, K },
                  { &w->dr, K },
                  { &w->dp, K },
                  { &w->dd, K },
                  { &w->dw, K },
                  { &w->o, a->V },
                  { &w->inverse, lnt_mesa_is_recursive(a) ? K * K : 0 },
                  { &w->product, lnt_mesa_is_recursive(a) ? K * K : 0 },
                  { &w->r, kept * K },
                  { &w->p, kept * K },
                  { &w->w, kept * K },
                  { (double **)&w->steps, kept * (int64_t)(sizeof(cg_step) / sizeof(double)) } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p ? p + used : NULL;
        used += parts[i].count;
    }
    w->stride = kept > 1 ? K : 0;
    return used;
}

static int64_t own(const lnt_recur_args *a, bool backward)
{
    rows w;
    return carve(args_of(a), backward, NULL, &w);
}

static rows rows_of(const ref_head *h)
{
    rows w;
    carve(args_of(h->a), h->dS != NULL, h->own, &w);
    return w;
}

/* H [K,K], then G [K,V]. */
static int64_t state(const lnt_recur_args *a) { return a->K * ((int64_t)a->K + a->V); }

static void symmetrise(int64_t K, double *H)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < i; j++) H[i * K + j] = H[j * K + i] = 0.5 * (H[i * K + j] + H[j * K + i]);
}

static void step(const ref_head *h, int64_t t)
{
    int64_t K = h->a->K, V = h->a->V;
    double alpha = ref_decay(h, t), beta = ref_strength(h, t), *H = h->S, *G = h->S + K * K;
    for (int64_t i = 0; i < K; i++) {
        for (int64_t j = 0; j < K; j++) H[i * K + j] = alpha * H[i * K + j] + beta * h->k[i] * h->k[j];
        for (int64_t j = 0; j < V; j++) G[i * V + j] = alpha * G[i * V + j] + beta * h->k[i] * h->v[j];
    }
}

/* ---- the system ---------------------------------------------------------------------------------------------------------------------- */

/* y = (H + Lambda) x */
static void apply(int64_t K, const double *H, const double *lambda, const double *x, double *y)
{
    for (int64_t i = 0; i < K; i++) y[i] = ref_dot(K, H + i * K, x) + lambda[i] * x[i];
}

/* A = H + Lambda as L D L^T: L below the diagonal, D on it. */
static void factor(int64_t K, const double *H, const double *lambda, double *A)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = H[i * K + j] + (i == j ? lambda[i] : 0);
            for (int64_t m = 0; m < j; m++) sum -= A[i * K + m] * A[j * K + m] * A[m * K + m];
            A[i * K + j] = i == j ? sum : sum / A[j * K + j];
        }
}

static void solve_factored(int64_t K, const double *A, double *x)
{
    for (int64_t i = 0; i < K; i++) x[i] -= ref_dot(i, A + i * K, x);
    for (int64_t i = 0; i < K; i++) x[i] /= A[i * K + i];
    for (int64_t i = K - 1; i >= 0; i--)
        for (int64_t j = i + 1; j < K; j++) x[i] -= A[j * K + i] * x[j];
}

/* x = y / diag for the solvers that begin there: the plain ones with that guess, and whatever takes no step. */
static bool begins_at_guess(const lnt_mesa_args *a)
{
    return a->cg_guess == LNT_CG_DIAGONAL && (a->cg_solver > LNT_CG_JACOBI || a->cg_max_steps == 0);
}

/* The preconditioned solvers begin at 0 with the direction of the diagonal guess; with that guess, the first step, which finds its best multiple, is
 * not counted. */
static int uncounted(const lnt_mesa_args *a)
{
    return a->cg_guess == LNT_CG_DIAGONAL && a->cg_solver <= LNT_CG_JACOBI && a->cg_max_steps > 0;
}

static double added(const lnt_mesa_args *a) { return a->cg_solver >= LNT_CG_ABSOLUTE ? 1e-5 : 0; }

/* H_ii as the preconditioners and the guess take it: where decays have a sign it may be below 0, and so might what it makes with Lambda. */
static double diagonal_of(const lnt_mesa_args *a, const double *H, int64_t i)
{
    const double x = H[i * (a->K + 1)];
    return a->heads.has_sign && x < 0 ? 0 : x;
}

/* Place of the smallest diagonal element. */
static int64_t least(int64_t K, const double *H)
{
    int64_t at = 0;
    for (int64_t i = 1; i < K; i++)
        if (H[i * K + i] < H[at * K + at]) at = i;
    return at;
}

/* Conjugate gradients on (H + Lambda) x = y: cg_max_steps steps and the uncounted one, unless the residual vanishes or (where the steps are what is
 * differentiated) reaches the tolerance. Nothing is rounded to float16. Returns all steps. */
static int64_t cg(const lnt_mesa_args *a, const double *H, const double *y, double *x, const rows *w)
{
    int64_t K = a->K, taken = 0, at = least(K, H);
    double absolute = added(a), delta = 0, *p = w->p, *r = w->r;
    double tolerance = unrolled(a) ? fmax(a->cg_tolerance, 0x1p-52) : a->cg_tolerance; /* further steps would be made of rounding errors */
    double goal = absolute ? -1 : tolerance * tolerance * ref_dot(K, y, y);
    for (int64_t i = 0; i < K; i++) {
        double jacobi = 1 / (diagonal_of(a, H, i) + w->lambda[i]);
        w->d[i] = a->cg_solver == LNT_CG_LEVEL ? 1 / (diagonal_of(a, H, at) + w->lambda[i]) : a->cg_solver == LNT_CG_JACOBI ? jacobi : 1;
        x[i] = begins_at_guess(a) ? y[i] * jacobi : 0;
    }
    apply(K, H, w->lambda, x, r);
    for (int64_t i = 0; i < K; i++) {
        r[i] = y[i] - r[i];
        p[i] = w->d[i] * r[i];
        delta += r[i] * p[i];
    }
    while (taken < a->cg_max_steps + uncounted(a)) {
        double *Ap = w->w + taken * w->stride, *next = p + w->stride, *left = r + w->stride, before = delta, size = 0;
        apply(K, H, w->lambda, p, Ap);
        double curve = ref_dot(K, p, Ap) + absolute, alpha = delta / curve;
        const bool lost = !isfinite(delta) || !isfinite(curve); /* no comparison would take it for anything but a row that is done */
        if (!lost && !(delta > 0 && (absolute > 0 || curve > 0))) break;
        if (lost) alpha = NAN;
        delta = 0;
        for (int64_t i = 0; i < K; i++) {
            x[i] += alpha * p[i];
            left[i] = r[i] - alpha * Ap[i];
            delta += left[i] * w->d[i] * left[i];
            size += left[i] * left[i];
        }
        double ratio = delta / (before + absolute);
        for (int64_t i = 0; i < K; i++) next[i] = w->d[i] * left[i] + ratio * p[i];
        w->steps[w->stride ? taken : 0] = (cg_step){ before, curve, alpha, ratio };
        taken++;
        p = next;
        r = left;
        if (lost || size <= goal) break;
    }
    return taken;
}

/* x of token t for the right side y. Returns the steps of cg(). */
static int64_t solve(const ref_head *h, int64_t t, const double *H, const double *y, double *x, const rows *w)
{
    const lnt_mesa_args *a = args_of(h->a);
    int64_t K = a->K, taken = 0, at = ref_row(h, t);
    if (lnt_mesa_is_recursive(a) || (a->cg_tolerance > 0 && !unrolled(a))) {
        factor(K, H, w->lambda, w->A);
        memcpy(x, y, (size_t)K * sizeof *x);
        solve_factored(K, w->A, x);
    } else
        taken = cg(a, H, y, x, w);
    if (!a->steps && !a->residual) return taken;
    apply(K, H, w->lambda, x, w->dr);
    for (int64_t i = 0; i < K; i++) w->dr[i] = y[i] - w->dr[i];
    double size = ref_dot(K, y, y);
    ref_put(a->steps, ref_f(h->a), at, (double)(taken > uncounted(a) ? taken - uncounted(a) : 0));
    ref_put(a->residual, ref_f(h->a), at, size == 0 ? 0 : sqrt(ref_dot(K, w->dr, w->dr) / size));
    return taken;
}

/* ---- states -------------------------------------------------------------------------------------------------------------------------- */

/* With LNT_CG_SHERMAN_MORRISON the state's H has Lambda in it, which decays as all of it, and stands in files as its inverse P; dH = -P dP P. */

static void invert(int64_t K, const double *A, const rows *w, double *out)
{
    for (int64_t i = 0; i < K; i++) w->d[i] = 0;
    factor(K, A, w->d, w->A);
    for (int64_t i = 0; i < K; i++) {
        for (int64_t j = 0; j < K; j++) w->d[j] = i == j;
        solve_factored(K, w->A, w->d);
        for (int64_t j = 0; j < K; j++) out[j * K + i] = w->d[j];
    }
}

/* D = - A D A */
static void between(int64_t K, const double *A, const rows *w, double *D)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) {
            w->product[i * K + j] = 0;
            for (int64_t m = 0; m < K; m++) w->product[i * K + j] -= A[i * K + m] * D[m * K + j];
        }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) {
            D[i * K + j] = 0;
            for (int64_t m = 0; m < K; m++) D[i * K + j] += w->product[i * K + m] * A[m * K + j];
        }
}

/* H with Lambda: the inverse of the initial P. */
static void initial_inverse(const ref_head *h, const rows *w, double *H)
{
    const lnt_mesa_args *a = args_of(h->a);
    const int64_t K = a->K;
    for (int64_t i = 0; i < K * K; i++) H[i] = 0;
    if (a->h0) {
        ref_get_row(w->inverse, a->h0, ref_f(h->a), ref_index(h), K * K);
        invert(K, w->inverse, w, H);
    } else
        for (int64_t i = 0; i < K; i++) H[i * (K + 1)] = ref_get(a->lambda, ref_f(h->a), h->h * K + i);
}

static void load(const ref_head *h, bool gradient, double *S)
{
    const lnt_mesa_args *a = args_of(h->a);
    int64_t K = a->K;
    const rows w = rows_of(h);
    const bool inverse = lnt_mesa_is_recursive(a);
    if (!a->lambda_varies) ref_get_row(w.lambda, a->lambda, ref_f(h->a), h->h, K);
    for (int64_t i = 0; i < K && inverse; i++) w.lambda[i] = 0;
    ref_get_row(S, gradient ? a->dhT : a->h0, ref_f(h->a), ref_index(h), K * K);
    ref_get_row(S + K * K, gradient ? a->dsT : a->s0, ref_f(h->a), ref_index(h), K * a->V);
    if (inverse && !gradient) initial_inverse(h, &w, S);
    if (inverse && gradient) {
        invert(K, h->S, &w, w.inverse);
        between(K, w.inverse, &w, S);
    }
}

static void store(const ref_head *h, bool gradient, const double *S)
{
    const lnt_mesa_args *a = args_of(h->a);
    int64_t K = a->K;
    const rows w = rows_of(h);
    double *H = gradient ? h->dS : h->S;
    if (gradient && unrolled(a)) symmetrise(K, h->dS);
    if (lnt_mesa_is_recursive(a) && gradient) {
        for (int64_t i = 0; i < K && !a->h0; i++) h->sums[i] += h->dS[i * (K + 1)];
        initial_inverse(h, &w, h->S);
        between(K, h->S, &w, h->dS);
    } else if (lnt_mesa_is_recursive(a)) {
        invert(K, S, &w, w.inverse);
        H = w.inverse;
    }
    ref_put_row(gradient ? a->dh0 : a->hT, ref_f(h->a), ref_index(h), K * K, H);
    ref_put_row(gradient ? a->ds0 : a->sT, ref_f(h->a), ref_index(h), K * a->V, S + K * K);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------------- */

/* x and o of token t, whose Lambda is at hand. */
static void read_state(const ref_head *h, int64_t t, const rows *w)
{
    const lnt_mesa_args *a = args_of(h->a);
    int64_t K = a->K, V = a->V;
    solve(h, t, h->S, h->q, w->x, w);
    ref_put_row(a->x, ref_f(h->a), ref_row(h, t), K, w->x);
    for (int64_t j = 0; j < V; j++) {
        w->o[j] = 0;
        for (int64_t i = 0; i < K; i++) w->o[j] += h->S[K * K + i * V + j] * w->x[i];
    }
    ref_put_row(a->o, a->dtype, ref_row(h, t), V, w->o);
}

static void read(const ref_head *h, int64_t t)
{
    const lnt_mesa_args *a = args_of(h->a);
    const rows w = rows_of(h);
    if (a->lambda_varies) ref_get_row(w.lambda, a->lambda_t, ref_f(h->a), ref_row(h, t), a->K);
    read_state(h, t, &w);
}

/* From e = y = G do, the gradient of x: e becomes that of q, and dH and dlambda take theirs. The solution's, which is as good as x is. */
static void implicit(const ref_head *h, int64_t t, const double *H, double *dH, double *dlambda, const rows *w)
{
    int64_t K = h->a->K;
    solve(h, t, H, w->y, w->e, w);
    for (int64_t i = 0; i < K; i++) {
        if (!lnt_mesa_is_recursive(args_of(h->a))) dlambda[i] -= w->x[i] * w->e[i];
        for (int64_t j = 0; j < K; j++) dH[i * K + j] -= w->e[i] * w->x[j];
    }
}

/* Gradients of 1 / (H_ii + lambda_i), d [K], come in; `at`: H's element is this one for all i (-1: its own). */
static void through_diagonal(int64_t K, int64_t at, const double *diagonal, const double *d, double *dH, double *dlambda)
{
    for (int64_t i = 0; i < K; i++) {
        double x = -d[i] * diagonal[i] * diagonal[i];
        int64_t m = at < 0 ? i : at;
        dlambda[i] += x;
        dH[m * K + m] += x;
    }
}

/* p = M r and delta = r.Mr: what they have of dp and ddelta goes to r and M. */
static void into_residual(int64_t K, const double *r, double ddelta, const rows *w)
{
    for (int64_t i = 0; i < K; i++) {
        w->dd[i] += (w->dp[i] + ddelta * r[i]) * r[i];
        w->dr[i] += w->d[i] * (w->dp[i] + 2 * ddelta * r[i]);
    }
}

/* The steps' own gradient: cg() line by line, backwards. y = dx is that of every iterate. A step p, w = Op(p), r -> r - alpha w, p -> M r + ratio p:
 *
 *   dratio = dp.p      ddelta += dratio / delta      dM += (dp + ddelta r) r      dr += M (dp + 2 ddelta r)      dp = ratio dp
 *   dalpha = dx.p - dr.w      dcurve = - dalpha alpha / curve      ddelta = dalpha / curve - dratio ratio / delta (now of the delta before)
 *   dw = dcurve p - alpha dr      dp += alpha dx + dcurve w + Op(dw)      dH += dw p^T      dlambda += dw p */
static void through_steps(const ref_head *h, int64_t t, const double *H, double *dH, double *dlambda, const rows *w)
{
    const lnt_mesa_args *a = args_of(h->a);
    int64_t K = a->K, taken = solve(h, t, H, h->q, w->e, w);
    double ddelta = 0, *dp = w->dp, *dr = w->dr, *dw = w->dw;
    for (int64_t i = 0; i < K; i++) dp[i] = dr[i] = w->dd[i] = 0;
    for (int64_t s = taken - 1; s >= 0; s--) {
        const double *p = w->p + s * K, *Ap = w->w + s * K;
        cg_step step = w->steps[s];
        double dratio = ref_dot(K, dp, p), before = step.delta + added(a);
        into_residual(K, w->r + (s + 1) * K, ddelta + dratio / before, w);
        double dalpha = ref_dot(K, w->y, p) - ref_dot(K, dr, Ap), dcurve = -dalpha * step.alpha / step.curve;
        ddelta = dalpha / step.curve - dratio * step.ratio / before;
        for (int64_t i = 0; i < K; i++) {
            dw[i] = dcurve * p[i] - step.alpha * dr[i];
            dp[i] = step.ratio * dp[i] + step.alpha * w->y[i] + dcurve * Ap[i];
        }
        for (int64_t i = 0; i < K; i++) {
            dp[i] += ref_dot(K, H + i * K, dw) + w->lambda[i] * dw[i];
            dlambda[i] += dw[i] * p[i];
            for (int64_t j = 0; j < K; j++) dH[i * K + j] += dw[i] * p[j];
        }
    }
    into_residual(K, w->r, ddelta, w);
    if (a->cg_solver <= LNT_CG_JACOBI) through_diagonal(K, a->cg_solver == LNT_CG_LEVEL ? least(K, H) : -1, w->d, w->dd, dH, dlambda);
    memcpy(w->e, dr, (size_t)K * sizeof *dr);
    if (!begins_at_guess(a)) return;
    apply(K, H, w->lambda, dr, dw); /* r = q - Op(x), x = q / diag */
    for (int64_t i = 0; i < K; i++) {
        double jacobi = 1 / (H[i * K + i] + w->lambda[i]), dx = w->y[i] - dw[i];
        w->d[i] = jacobi;
        w->dd[i] = h->q[i] * dx;
        w->e[i] += jacobi * dx;
        dlambda[i] -= dr[i] * h->q[i] * jacobi;
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) dH[i * K + j] -= dr[i] * h->q[j] * w->d[j];
    through_diagonal(K, -1, w->d, w->dd, dH, dlambda);
}

static void back(const ref_head *h, int64_t t, const double *S, const double *before)
{
    const lnt_mesa_args *a = args_of(h->a);
    int64_t K = a->K, V = a->V, place = ref_place(h, t);
    const double *G = S + K * K;
    double *dH = h->dS, *dG = h->dS + K * K;
    rows w = rows_of(h);
    ref_get_row(w.o, a->do_, a->dtype, ref_row(h, t), V);
    ref_get_row(w.x, a->x, ref_f(h->a), ref_row(h, t), K);
    for (int64_t i = 0; i < K; i++) w.y[i] = ref_dot(V, G + i * V, w.o);
    double *dlambda = a->lambda_varies ? w.dlambda : h->sums;
    if (a->lambda_varies) ref_get_row(w.lambda, a->lambda_t, ref_f(h->a), ref_row(h, t), K);
    for (int64_t i = 0; i < K; i++) w.dlambda[i] = 0;
    (unrolled(a) ? through_steps : implicit)(h, t, S, dH, dlambda, &w);
    if (a->lambda_varies) ref_put_row(a->dlambda_t, ref_f(h->a), ref_row(h, t), K, w.dlambda);
    double alpha = ref_decay(h, t), beta = ref_strength(h, t), dbeta = 0, dg = 0;
    for (int64_t i = 0; i < K; i++) {
        h->dq[place * K + i] += w.e[i];
        for (int64_t j = 0; j < V; j++) dG[i * V + j] += w.x[i] * w.o[j];
    }
    for (int64_t i = 0; i < K; i++) {
        double through_H = 0, through_G = ref_dot(V, dG + i * V, h->v);
        for (int64_t j = 0; j < K; j++) through_H += (dH[i * K + j] + dH[j * K + i]) * h->k[j];
        h->dk[place * K + i] += beta * (through_G + through_H);
        dbeta += h->k[i] * (through_G + 0.5 * through_H);
    }
    for (int64_t j = 0; j < V; j++) {
        w.o[j] = 0;
        for (int64_t i = 0; i < K; i++) w.o[j] += beta * dG[i * V + j] * h->k[i];
    }
    ref_put_row(a->dv, a->dtype, ref_row(h, t), V, w.o);
    ref_put(a->dbeta, ref_f(h->a), ref_row(h, t), dbeta);
    for (int64_t i = 0; i < state(h->a); i++) {
        dg += before[i] * h->dS[i];
        h->dS[i] *= alpha;
    }
    ref_put(a->dg, ref_f(h->a), ref_row(h, t), alpha * dg);
    ref_put(a->dsign, ref_f(h->a), ref_row(h, t), ref_decay_size(h, t) * dg);
}

static int64_t sums(const lnt_recur_args *a) { return a->K; }
static void *sum_out(const lnt_recur_args *a) { return args_of(a)->dlambda; }

/* ---- windows ---------------------------------------------------------------------------------------------------------------------------- */

/* A token's H and G are made anew from the tokens that it sees, s = t - w + 1 .. t. Backward, pair by pair, zeta_ts the decay from s to t:
 *
 *   dk_s = beta_s sum_t zeta_ts (x_t (do_t.v_s) - e_t (x_t.k_s) - x_t (e_t.k_s))      dv_s = beta_s sum_t zeta_ts do_t (x_t.k_s)
 *   dbeta_s = sum_t zeta_ts p_ts, p_ts = (x_t.k_s)(do_t.v_s) - (e_t.k_s)(x_t.k_s)      dg_i = sum over s < i <= t of zeta_ts beta_s p_ts */

/* What a sequence's head has beside rows: states, a token's rows, gradients [len,.]. */
typedef struct {
    double *S, *q, *k, *v, *d, *dq, *dk, *dv, *dbeta, *dG, *sums, *own;
} window_room;

static int64_t carve_window(const lnt_mesa_args *a, bool backward, double *p, window_room *r)
{
    const int64_t K = a->K, V = a->V, len = backward ? a->longest : 0;
    const struct {
        double **at;
        int64_t count;
    } parts[] = { { &r->S, K * (K + V) }, { &r->q, K },          { &r->k, K },       { &r->v, V },      { &r->d, V },
                  { &r->dq, len * K },    { &r->dk, len * K },   { &r->dv, len * V }, { &r->dbeta, len }, { &r->dG, len + 1 },
                  { &r->sums, K },        { &r->own, own(&a->heads, backward) } };
    int64_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p ? p + used : NULL;
        used += parts[i].count;
    }
    return used;
}

static void load_pair(const ref_head *h, int64_t s)
{
    const int64_t hq = (int64_t)h->h * h->a->Hq / h->a->Hv;
    ref_get_row(h->k, h->a->k, h->a->dtype, s * h->a->Hq + hq, h->a->K);
    ref_get_row(h->v, h->a->v, h->a->dtype, ref_row(h, s), h->a->V);
}

/* Token t's Lambda, query, and its states from the tokens that it sees. */
static void window_states(const ref_head *h, int64_t t, const rows *w)
{
    const lnt_mesa_args *a = args_of(h->a);
    const int64_t from = t - a->heads.window + 1, first = a->cu_seqlens[h->n];
    const int64_t hq = (int64_t)h->h * a->Hq / a->Hv;
    memset(h->S, 0, (size_t)state(h->a) * sizeof *h->S);
    for (int64_t s = from > first ? from : first; s <= t; s++) {
        load_pair(h, s);
        step(h, s);
    }
    ref_get_row(h->q, a->q, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->lambda, a->lambda_varies ? a->lambda_t : a->lambda, ref_f(h->a), a->lambda_varies ? ref_row(h, t) : h->h, a->K);
}

/* Token t's pairs, from its x, e and do. */
static void window_pairs(const ref_head *h, int64_t t, const rows *w, const window_room *r)
{
    const lnt_mesa_args *a = args_of(h->a);
    const int64_t K = a->K, V = a->V, first = a->cu_seqlens[h->n], from = t - a->heads.window + 1;
    double gates = 0;
    for (int64_t s = t; s >= first && s >= from; s--) {
        const double zeta = exp(gates), beta = ref_strength(h, s);
        load_pair(h, s);
        const double xk = ref_dot(K, w->x, h->k), ek = ref_dot(K, w->e, h->k), dv = ref_dot(V, r->d, h->v), pair = zeta * (xk * dv - ek * xk);
        for (int64_t i = 0; i < K; i++) r->dk[(s - first) * K + i] += beta * zeta * (w->x[i] * (dv - ek) - w->e[i] * xk);
        for (int64_t j = 0; j < V; j++) r->dv[(s - first) * V + j] += beta * zeta * r->d[j] * xk;
        r->dbeta[s - first] += pair;
        r->dG[s - first + 1] += beta * pair; /* of the gates s + 1 .. t */
        r->dG[t - first + 1] -= beta * pair;
        gates += ref_get(a->g, ref_f(h->a), ref_row(h, s));
    }
}

static ref_head window_head(const lnt_mesa_args *a, int64_t n, int h, const window_room *r, bool backward)
{
    return (ref_head){ .a = &a->heads, .n = n, .h = h, .S = r->S, .q = r->q, .k = r->k, .v = r->v, .own = r->own, .dS = backward ? r->S : NULL };
}

static void window_forward(const lnt_mesa_args *a, int threads)
{
    const int64_t each = carve_window(a, false, NULL, &(window_room){ 0 });
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hv; i++) {
        window_room r;
        carve_window(a, false, (double *)a->workspace + omp_get_thread_num() * each, &r);
        const ref_head h = window_head(a, i / a->Hv, (int)(i % a->Hv), &r, false);
        const rows w = rows_of(&h);
        for (int64_t t = a->cu_seqlens[h.n]; t < a->cu_seqlens[h.n + 1]; t++) {
            window_states(&h, t, &w);
            read_state(&h, t, &w);
        }
    }
}

static void window_backward_head(const ref_head *h, const window_room *r)
{
    const lnt_mesa_args *a = args_of(h->a);
    const rows w = rows_of(h);
    const int64_t K = a->K, V = a->V, first = a->cu_seqlens[h->n], len = a->cu_seqlens[h->n + 1] - first;
    memset(r->dv, 0, (size_t)(len * V) * sizeof *r->dv);
    memset(r->dbeta, 0, (size_t)len * sizeof *r->dbeta);
    memset(r->dG, 0, (size_t)(len + 1) * sizeof *r->dG);
    for (int64_t t = first; t < first + len; t++) {
        window_states(h, t, &w);
        ref_get_row(r->d, a->do_, a->dtype, ref_row(h, t), V);
        ref_get_row(w.x, a->x, ref_f(h->a), ref_row(h, t), K);
        for (int64_t i = 0; i < K; i++) w.y[i] = ref_dot(V, h->S + K * K + i * V, r->d);
        solve(h, t, h->S, w.y, w.e, &w);
        for (int64_t i = 0; i < K; i++) {
            r->dq[(t - first) * K + i] += w.e[i];
            w.dlambda[i] = -w.x[i] * w.e[i];
            r->sums[i] += w.dlambda[i];
        }
        if (a->lambda_varies) ref_put_row(a->dlambda_t, ref_f(h->a), ref_row(h, t), K, w.dlambda);
        window_pairs(h, t, &w, r);
    }
    double sum = 0;
    for (int64_t i = 0; i < len; i++) {
        sum += r->dG[i];
        ref_put_row(a->dv, a->dtype, ref_row(h, first + i), V, r->dv + i * V);
        ref_put(a->dbeta, ref_f(h->a), ref_row(h, first + i), r->dbeta[i]);
        ref_put(a->dg, ref_f(h->a), ref_row(h, first + i), exp(ref_get(a->g, ref_f(h->a), ref_row(h, first + i))) > 0 ? sum : 0);
    }
}

static void window_backward(const lnt_mesa_args *a, int threads)
{
    const int64_t each = carve_window(a, true, NULL, &(window_room){ 0 }), K = a->K, group = a->Hv / a->Hq;
    double *partial = a->workspace, *rooms = partial + a->sequences * a->Hv * K;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hq; i++) {
        window_room r;
        carve_window(a, true, rooms + omp_get_thread_num() * each, &r);
        const int64_t n = i / a->Hq, hq = i % a->Hq, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        memset(r.dq, 0, (size_t)(len * K) * sizeof *r.dq);
        memset(r.dk, 0, (size_t)(len * K) * sizeof *r.dk);
        for (int64_t h = hq * group; h < (hq + 1) * group; h++) {
            const ref_head x = window_head(a, n, (int)h, &r, true);
            memset(r.sums, 0, (size_t)K * sizeof *r.sums);
            window_backward_head(&x, &r);
            memcpy(partial + (n * a->Hv + h) * K, r.sums, (size_t)K * sizeof *r.sums);
        }
        for (int64_t t = 0; t < len; t++) {
            ref_put_row(a->dq, a->dtype, (first + t) * a->Hq + hq, K, r.dq + t * K);
            ref_put_row(a->dk, a->dtype, (first + t) * a->Hq + hq, K, r.dk + t * K);
        }
    }
    for (int64_t i = 0; a->dlambda && i < a->Hv * K; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += partial[n * a->Hv * K + i];
        ref_put(a->dlambda, ref_f(&a->heads), i, sum);
    }
}

static size_t window_workspace(const lnt_mesa_args *a, bool backward, int threads)
{
    const int64_t each = carve_window(a, backward, NULL, &(window_room){ 0 });
    return (size_t)(threads * each + (backward ? a->sequences * a->Hv * a->K : 0)) * sizeof(double);
}

/* ---- the implementation --------------------------------------------------------------------------------------------------------------- */

static const ref_core core = { state, own, sums, sum_out, load, store, step, read, back };
static size_t workspace(const void *args, bool backward, int threads)
{
    const lnt_mesa_args *a = args;
    return a->heads.window ? window_workspace(a, backward, threads) : lnt_ref_workspace(&core, &a->heads, backward, threads);
}
static void forward(const void *args, int threads)
{
    const lnt_mesa_args *a = args;
    if (a->heads.window)
        window_forward(a, threads);
    else
        lnt_ref_forward(&core, &a->heads, threads);
}
static void backward(const void *args, int threads)
{
    const lnt_mesa_args *a = args;
    if (a->heads.window)
        window_backward(a, threads);
    else
        lnt_ref_backward(&core, &a->heads, threads);
}

const lnt_recur_impl lnt_mesa_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
