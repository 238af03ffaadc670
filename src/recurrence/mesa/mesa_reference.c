/* The Mesa core in float64, token by token: the truth.
 *
 *   H_t = e^{g_t} H_{t-1} + beta_t k_t k_t^T      G_t = e^{g_t} G_{t-1} + beta_t k_t v_t^T                (operators.md 6)
 *   (H_t + Lambda) x_t = q_t                      o_t = G_t^T x_t
 *
 * The system is solved directly (L D L^T). With cg_tolerance = 0, which asks for so many steps and not for the solution, it is left to exactly those
 * conjugate-gradient steps. Backward, with y_t = G_t do_t and (H_t + Lambda) e_t = y_t:
 *
 *   dq = e      dlambda = - sum_t x.e      dG += x do^T      dH += -e x^T
 *   dk = beta (dG v + (dH + dH^T) k)      dv = beta dG^T k      dbeta = k.(dG v) + k.(dH k)
 *   dg = e^g (<G_{t-1}, dG> + <H_{t-1}, dH>),      then dG and dH times e^g
 *
 * With cg_gradient = LINNET_CG_UNROLLED x is always what the steps leave, and dq, dlambda and dH come from differentiating them, last step first. */
#include "recurrence/reference.h"

typedef struct {
    const lnt_recur_args *a;
    int64_t n;   /* sequence */
    int h;       /* value head */
} head;

/* What a conjugate-gradient step was: x += alpha p, r -= alpha w, p = M r + ratio p with alpha = delta / curve, delta = r.Mr. */
typedef struct {
    double delta, curve, alpha, ratio;
} cg_step;

/* Scratch of a thread: states H [K,K] and G [K,V] side by side, their gradients, A [K,K] the factored system, rows [K] and [V], and dq, dk of one
 * query-key head [len,K]. p w r [steps + 1,K] and steps: of every conjugate-gradient step when they are differentiated, else of the last. */
typedef struct {
    double *S, *dS, *A, *starts, *inside, *lambda, *q, *k, *x, *y, *e, *r, *p, *w, *d, *v, *o, *dr, *dp, *dd, *dw, *dq, *dk;
    cg_step *steps;
    int64_t stride; /* from step to step in p, w and r: K, or 0 when nothing is kept */
} scratch;

static bool unrolled(const lnt_recur_args *a) { return a->cg_gradient == LINNET_CG_UNROLLED; }

static size_t state_size(const lnt_recur_args *a) { return (size_t)a->K * ((size_t)a->K + (size_t)a->V); }

static size_t carve(const lnt_recur_args *a, double *p, bool backward, scratch *w)
{
    size_t K = (size_t)a->K, V = (size_t)a->V, len = (size_t)ref_longest(a), state = state_size(a), used = 0;
    size_t kept = backward && unrolled(a) ? (size_t)a->cg_max_steps + 2 : 1; /* one step more than the cap may be taken */
    struct {
        double **at;
        size_t count;
    } parts[] = { { &w->S, state },
                  { &w->A, K * K },
                  { &w->lambda, K },
                  { &w->q, K },
                  { &w->k, K },
                  { &w->x, K },
                  { &w->y, K },
                  { &w->e, K },
                  { &w->r, kept * K },
                  { &w->p, kept * K },
                  { &w->w, kept * K },
                  { (double **)&w->steps, kept * sizeof(cg_step) / sizeof(double) },
                  { &w->d, K },
                  { &w->dr, K },
                  { &w->dp, K },
                  { &w->dd, K },
                  { &w->dw, K },
                  { &w->v, V },
                  { &w->o, V },
                  { &w->dS, backward ? state : 0 },
                  { &w->inside, backward ? REF_BLOCK * state : 0 },
                  { &w->starts, backward ? (len + REF_BLOCK - 1) / REF_BLOCK * state : 0 },
                  { &w->dq, backward ? len * K : 0 },
                  { &w->dk, backward ? len * K : 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p ? p + used : NULL;
        used += parts[i].count;
    }
    w->stride = kept > 1 ? a->K : 0;
    return used;
}

static size_t doubles(const lnt_recur_args *a, bool backward)
{
    scratch w;
    return carve(a, NULL, backward, &w);
}

/* dlambda of every piece [N,Hv,K] comes first in the backward pass. */
static size_t partial_doubles(const lnt_recur_args *a) { return (size_t)a->sequences * (size_t)a->Hv * (size_t)a->K; }

static size_t workspace(const lnt_recur_args *a, bool backward, int threads)
{
    return ((size_t)threads * doubles(a, backward) + (backward ? partial_doubles(a) : 0)) * sizeof(double);
}

static void load_state(head x, const void *H, const void *G, double *S)
{
    int64_t K = x.a->K, V = x.a->V, i = x.n * x.a->Hv + x.h;
    for (int64_t j = 0; j < K * K; j++) S[j] = ref_get(H, ref_f(x.a), i * K * K + j);
    for (int64_t j = 0; j < K * V; j++) S[K * K + j] = ref_get(G, ref_f(x.a), i * K * V + j);
}

static void store_state(head x, void *H, void *G, const double *S)
{
    int64_t K = x.a->K, V = x.a->V, i = x.n * x.a->Hv + x.h;
    for (int64_t j = 0; j < K * K; j++) ref_put(H, ref_f(x.a), i * K * K + j, S[j]);
    for (int64_t j = 0; j < K * V; j++) ref_put(G, ref_f(x.a), i * K * V + j, S[K * K + j]);
}

static double decay(head x, int64_t t) { return exp(ref_get(x.a->g, ref_f(x.a), t * x.a->Hv + x.h)); }
static double strength(head x, int64_t t) { return ref_get(x.a->beta, ref_f(x.a), t * x.a->Hv + x.h); }

static void load_token(head x, int64_t t, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t hq = (int64_t)x.h * a->Hq / a->Hv;
    ref_get_row(w->q, a->q, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->k, a->k, a->dtype, t * a->Hq + hq, a->K);
    ref_get_row(w->v, a->v, a->dtype, t * a->Hv + x.h, a->V);
}

static void step(head x, int64_t t, scratch *w)
{
    double alpha = decay(x, t), beta = strength(x, t), *H = w->S, *G = w->S + x.a->K * x.a->K;
    for (int64_t i = 0; i < x.a->K; i++) {
        for (int64_t j = 0; j < x.a->K; j++) H[i * x.a->K + j] = alpha * H[i * x.a->K + j] + beta * w->k[i] * w->k[j];
        for (int64_t j = 0; j < x.a->V; j++) G[i * x.a->V + j] = alpha * G[i * x.a->V + j] + beta * w->k[i] * w->v[j];
    }
}

/* ---- the system ---------------------------------------------------------------------------------------------------------------------- */

static double dot(int64_t n, const double *x, const double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* y = (H + Lambda) x */
static void apply(int64_t K, const double *H, const double *lambda, const double *x, double *y)
{
    for (int64_t i = 0; i < K; i++) y[i] = dot(K, H + i * K, x) + lambda[i] * x[i];
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
    for (int64_t i = 0; i < K; i++) x[i] -= dot(i, A + i * K, x);
    for (int64_t i = 0; i < K; i++) x[i] /= A[i * K + i];
    for (int64_t i = K - 1; i >= 0; i--)
        for (int64_t j = i + 1; j < K; j++) x[i] -= A[j * K + i] * x[j];
}

/* x = y / diag for the solvers that begin there: the plain ones with that guess, and whatever takes no step. */
static bool begins_at_guess(const lnt_recur_args *a)
{
    return a->cg_guess == LINNET_CG_DIAGONAL && (a->cg_solver > LINNET_CG_JACOBI || a->cg_max_steps == 0);
}

/* The preconditioned solvers begin at 0 with the direction of the diagonal guess; with that guess, the first step, which finds its best multiple, is
 * not counted. */
static int uncounted(const lnt_recur_args *a)
{
    return a->cg_guess == LINNET_CG_DIAGONAL && a->cg_solver <= LINNET_CG_JACOBI && a->cg_max_steps > 0;
}

static double added(const lnt_recur_args *a) { return a->cg_solver >= LINNET_CG_ABSOLUTE ? 1e-5 : 0; }

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
static int64_t cg(const lnt_recur_args *a, const double *H, const double *y, double *x, scratch *w)
{
    int64_t K = a->K, taken = 0, at = least(K, H);
    double absolute = added(a), delta = 0, *p = w->p, *r = w->r;
    double tolerance = unrolled(a) ? fmax(a->cg_tolerance, 0x1p-52) : a->cg_tolerance; /* further steps would be made of rounding errors */
    double goal = absolute ? -1 : tolerance * tolerance * dot(K, y, y);
    for (int64_t i = 0; i < K; i++) {
        double jacobi = 1 / (H[i * K + i] + w->lambda[i]);
        w->d[i] = a->cg_solver == LINNET_CG_LEVEL ? 1 / (H[at * K + at] + w->lambda[i]) : a->cg_solver == LINNET_CG_JACOBI ? jacobi : 1;
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
        double curve = dot(K, p, Ap) + absolute, alpha = delta / curve;
        if (!(delta > 0 && (absolute > 0 || curve > 0))) break;
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
        if (size <= goal) break;
    }
    return taken;
}

/* x of token t for the right side y. Returns the steps of cg(). */
static int64_t solve(head h, int64_t t, const double *H, const double *y, double *x, scratch *w)
{
    const lnt_recur_args *a = h.a;
    int64_t K = a->K, taken = 0, at = t * a->Hv + h.h;
    if (a->cg_tolerance > 0 && !unrolled(a)) {
        factor(K, H, w->lambda, w->A);
        memcpy(x, y, (size_t)K * sizeof *x);
        solve_factored(K, w->A, x);
    } else
        taken = cg(a, H, y, x, w);
    if (!a->steps && !a->residual) return taken;
    apply(K, H, w->lambda, x, w->dr);
    for (int64_t i = 0; i < K; i++) w->dr[i] = y[i] - w->dr[i];
    double size = dot(K, y, y);
    ref_put(a->steps, ref_f(a), at, (double)(taken > uncounted(a) ? taken - uncounted(a) : 0));
    ref_put(a->residual, ref_f(a), at, size > 0 ? sqrt(dot(K, w->dr, w->dr) / size) : 0);
    return taken;
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------------- */

static void forward_head(head h, scratch *w)
{
    const lnt_recur_args *a = h.a;
    int64_t K = a->K, V = a->V;
    load_state(h, a->h0, a->s0, w->S);
    ref_get_row(w->lambda, a->lambda, ref_f(a), h.h, K);
    for (int64_t t = a->cu_seqlens[h.n]; t < a->cu_seqlens[h.n + 1]; t++) {
        load_token(h, t, w);
        step(h, t, w);
        solve(h, t, w->S, w->q, w->x, w);
        ref_put_row(a->x, ref_f(a), t * a->Hv + h.h, K, w->x);
        for (int64_t j = 0; j < V; j++) {
            w->o[j] = 0;
            for (int64_t i = 0; i < K; i++) w->o[j] += w->S[K * K + i * V + j] * w->x[i];
        }
        ref_put_row(a->o, a->dtype, t * a->Hv + h.h, V, w->o);
    }
    store_state(h, a->hT, a->sT, w->S);
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------ */

/* From e = y = G do, the gradient of x: e becomes that of q, and dH and dlambda take theirs. The solution's, which is as good as x is. */
static void implicit(head h, int64_t t, const double *H, double *dH, double *dlambda, scratch *w)
{
    int64_t K = h.a->K;
    solve(h, t, H, w->y, w->e, w);
    for (int64_t i = 0; i < K; i++) {
        dlambda[i] -= w->x[i] * w->e[i];
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
static void into_residual(int64_t K, const double *r, double ddelta, const scratch *w)
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
static void through_steps(head h, int64_t t, const double *H, double *dH, double *dlambda, scratch *w)
{
    const lnt_recur_args *a = h.a;
    int64_t K = a->K, taken = solve(h, t, H, w->q, w->e, w);
    double ddelta = 0, *dp = w->dp, *dr = w->dr, *dw = w->dw;
    for (int64_t i = 0; i < K; i++) dp[i] = dr[i] = w->dd[i] = 0;
    for (int64_t s = taken - 1; s >= 0; s--) {
        const double *p = w->p + s * K, *Ap = w->w + s * K;
        cg_step step = w->steps[s];
        double dratio = dot(K, dp, p), before = step.delta + added(a);
        into_residual(K, w->r + (s + 1) * K, ddelta + dratio / before, w);
        double dalpha = dot(K, w->y, p) - dot(K, dr, Ap), dcurve = -dalpha * step.alpha / step.curve;
        ddelta = dalpha / step.curve - dratio * step.ratio / before;
        for (int64_t i = 0; i < K; i++) {
            dw[i] = dcurve * p[i] - step.alpha * dr[i];
            dp[i] = step.ratio * dp[i] + step.alpha * w->y[i] + dcurve * Ap[i];
        }
        for (int64_t i = 0; i < K; i++) {
            dp[i] += dot(K, H + i * K, dw) + w->lambda[i] * dw[i];
            dlambda[i] += dw[i] * p[i];
            for (int64_t j = 0; j < K; j++) dH[i * K + j] += dw[i] * p[j];
        }
    }
    into_residual(K, w->r, ddelta, w);
    if (a->cg_solver <= LINNET_CG_JACOBI) through_diagonal(K, a->cg_solver == LINNET_CG_LEVEL ? least(K, H) : -1, w->d, w->dd, dH, dlambda);
    memcpy(w->e, dr, (size_t)K * sizeof *dr);
    if (!begins_at_guess(a)) return;
    apply(K, H, w->lambda, dr, dw); /* r = q - Op(x), x = q / diag */
    for (int64_t i = 0; i < K; i++) {
        double jacobi = 1 / (H[i * K + i] + w->lambda[i]), dx = w->y[i] - dw[i];
        w->d[i] = jacobi;
        w->dd[i] = w->q[i] * dx;
        w->e[i] += jacobi * dx;
        dlambda[i] -= dr[i] * w->q[i] * jacobi;
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) dH[i * K + j] -= dr[i] * w->q[j] * w->d[j];
    through_diagonal(K, -1, w->d, w->dd, dH, dlambda);
}

/* One token backward: S = states after it, before = states before it; w->dS becomes the gradient of the latter. */
static void backward_token(head h, int64_t t, const double *S, const double *before, double *dlambda, scratch *w)
{
    const lnt_recur_args *a = h.a;
    int64_t K = a->K, V = a->V, row = t - a->cu_seqlens[h.n], at = t * a->Hv + h.h;
    const double *G = S + K * K;
    double *dH = w->dS, *dG = w->dS + K * K;
    load_token(h, t, w);
    ref_get_row(w->o, a->do_, a->dtype, at, V);
    ref_get_row(w->x, a->x, ref_f(a), at, K);
    for (int64_t i = 0; i < K; i++) w->y[i] = dot(V, G + i * V, w->o);
    (unrolled(a) ? through_steps : implicit)(h, t, S, dH, dlambda, w);
    double alpha = decay(h, t), beta = strength(h, t), dbeta = 0, dg = 0;
    for (int64_t i = 0; i < K; i++) {
        w->dq[row * K + i] += w->e[i];
        for (int64_t j = 0; j < V; j++) dG[i * V + j] += w->x[i] * w->o[j];
    }
    for (int64_t i = 0; i < K; i++) {
        double through_H = 0, through_G = dot(V, dG + i * V, w->v);
        for (int64_t j = 0; j < K; j++) through_H += (dH[i * K + j] + dH[j * K + i]) * w->k[j];
        w->dk[row * K + i] += beta * (through_G + through_H);
        dbeta += w->k[i] * (through_G + 0.5 * through_H);
    }
    for (int64_t j = 0; j < V; j++) {
        w->o[j] = 0;
        for (int64_t i = 0; i < K; i++) w->o[j] += beta * dG[i * V + j] * w->k[i];
    }
    ref_put_row(a->dv, a->dtype, at, V, w->o);
    ref_put(a->dbeta, ref_f(a), at, dbeta);
    for (size_t i = 0; i < state_size(a); i++) {
        dg += before[i] * w->dS[i];
        w->dS[i] *= alpha;
    }
    ref_put(a->dg, ref_f(a), at, alpha * dg);
}

static void backward_head(head h, double *dlambda, scratch *w)
{
    const lnt_recur_args *a = h.a;
    int64_t first = a->cu_seqlens[h.n], len = a->cu_seqlens[h.n + 1] - first;
    size_t state = state_size(a);
    memset(dlambda, 0, (size_t)a->K * sizeof *dlambda);
    load_state(h, a->h0, a->s0, w->S);
    ref_get_row(w->lambda, a->lambda, ref_f(a), h.h, len ? a->K : 0);
    for (int64_t i = 0; i < len; i++) {
        if (i % REF_BLOCK == 0) memcpy(w->starts + (size_t)(i / REF_BLOCK) * state, w->S, state * sizeof(double));
        load_token(h, first + i, w);
        step(h, first + i, w);
    }
    load_state(h, a->dhT, a->dsT, w->dS);
    for (int64_t b = (len + REF_BLOCK - 1) / REF_BLOCK - 1; b >= 0; b--) {
        int64_t end = (b + 1) * REF_BLOCK < len ? (b + 1) * REF_BLOCK : len;
        const double *start = w->starts + (size_t)b * state;
        memcpy(w->S, start, state * sizeof(double));
        for (int64_t i = b * REF_BLOCK; i < end; i++) {
            load_token(h, first + i, w);
            step(h, first + i, w);
            memcpy(w->inside + (size_t)(i % REF_BLOCK) * state, w->S, state * sizeof(double));
        }
        for (int64_t i = end - 1; i >= b * REF_BLOCK; i--) {
            const double *S = w->inside + (size_t)(i % REF_BLOCK) * state;
            backward_token(h, first + i, S, i % REF_BLOCK ? S - state : start, dlambda, w);
        }
    }
    for (int64_t i = 0; unrolled(a) && i < a->K; i++)
        for (int64_t j = 0; j < i; j++) w->dS[i * a->K + j] = w->dS[j * a->K + i] = 0.5 * (w->dS[i * a->K + j] + w->dS[j * a->K + i]);
    store_state(h, a->dh0, a->ds0, w->dS);
}

static void forward(const lnt_recur_args *a, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hv; i++) {
        scratch w;
        carve(a, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(a, false), false, &w);
        forward_head((head){ a, i / a->Hv, (int)(i % a->Hv) }, &w);
    }
}

static void backward(const lnt_recur_args *a, int threads)
{
    double *partial = a->workspace, *scratches = partial + partial_doubles(a);
    int group = a->Hv / a->Hq;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hq; i++) {
        scratch w;
        carve(a, scratches + (size_t)omp_get_thread_num() * doubles(a, true), true, &w);
        int64_t n = i / a->Hq, hq = i % a->Hq, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        memset(w.dq, 0, (size_t)(len * a->K) * sizeof(double));
        memset(w.dk, 0, (size_t)(len * a->K) * sizeof(double));
        for (int64_t h = hq * group; h < (hq + 1) * group; h++) backward_head((head){ a, n, (int)h }, partial + (n * a->Hv + h) * a->K, &w);
        for (int64_t t = 0; t < len; t++) {
            ref_put_row(a->dq, a->dtype, (first + t) * a->Hq + hq, a->K, w.dq + t * a->K);
            ref_put_row(a->dk, a->dtype, (first + t) * a->Hq + hq, a->K, w.dk + t * a->K);
        }
    }
    for (int64_t i = 0; i < (int64_t)a->Hv * a->K; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += partial[n * a->Hv * a->K + i];
        ref_put(a->dlambda, ref_f(a), i, sum);
    }
}

const lnt_recur_impl lnt_mesa_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
