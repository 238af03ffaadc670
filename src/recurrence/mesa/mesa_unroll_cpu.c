/* The gradient of truncated conjugate gradients: the steps that lnt_mesa_solve_chunk kept, differentiated last step first. The reference has the
 * equations for one row; here the rows of a step go together, each with its own numbers, and rows join where they had stopped.
 *
 * A step hands (dw, p) to H: the gradient of H_t takes dw p^T. With all rows (t, s) of a chunk one after the other, P and dW [rows,K]:
 *
 *   S1 = (P K^T).D, S2 = (dW K^T).D, D_tj = e^{b_t - b_j} for j <= t, else 0                           [rows,C]
 *   dkb_j = (S2^T P)_j + out_j dH k_j      dvalue_j = beta_j ((S1^T dW)_j + out_j dH k_j)             H_t = .. + sum_j D_tj kb_j k_j^T
 *   dH <- e^{b_n} dH + P^T (in.dW)         dlambda += sum of dW.P
 *   dg_i = sum over l >= i of dB_l, dB_t = sum_s dw.(Op(p) - Lambda p) - kb_t.dkb_t, and <H', dH> at the end
 *
 * The guess is a row too: p = x_0, dw = - dr. dH is kept symmetric: only that part of p^T dw counts, and for aligned keys the other is larger. */
#if !defined(LNT_VARIANT_amx) /* float32 alone, as the solver */
#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/mesa/mesa_solver.h"
#include "simd/mm.h"

typedef lnt_mesa_solver solver;
typedef lnt_mesa_trail trail;

/* Nothing passes a gate below this one: an exact reset, for the decay core too. */
static const float GATE_FLOOR = -128.0f;

/* dp of p = M r and d of r.Mr, r standing in R, for row i: dM += (dp + d r) r, dr += M (dp + 2 d r). */
static void into_residual(const solver *s, int i, float d)
{
    const float *r = s->R + i * s->wide, *m = s->jacobi + i * s->wide, *dp = s->past.dP + i * s->wide;
    float *dr = s->past.dR + i * s->wide, *dm = s->past.dM + i * s->wide;
    for (int64_t j = 0; j < s->wide; j += LNT_VL) {
        vf x = v_load(r + j), y = v_load(dp + j);
        v_store(dm + j, v_load(dm + j) + (y + d * x) * x);
        v_store(dr + j, v_load(dr + j) + v_load(m + j) * (y + 2.0f * d * x));
    }
}

/* Row `at` of the trail, row i of the chunk: everything of the step but Op(dw). Its w becomes dw, and r what it was before the step: adding alpha w
 * back is as exact as the residual was, since it grows on the way. */
static void step_back(const solver *s, int at, int i)
{
    const trail *t = &s->past;
    float alpha = t->alpha[at], curve = t->curve[at], ratio = t->ratio[at], before = t->before[at];
    float *p = s->P0 + at * s->wide, *w = s->W0 + at * s->wide, *r = s->R + i * s->wide, *dp = t->dP + i * s->wide;
    const float *dx = s->X + i * s->wide, *dr = t->dR + i * s->wide, *l = lnt_mesa_lambda(s, i);
    if (alpha == 0) {
        memset(w, 0, (size_t)s->wide * sizeof *w);
        return;
    }
    float dratio = row_dot(dp, p, s->wide);
    into_residual(s, i, t->ddelta[i] + dratio / before);
    vf sum = v_zero();
    for (int64_t j = 0; j < s->wide; j += LNT_VL) {
        vf d = v_load(p + j), y = v_load(w + j) + v_load(l + j) * d;
        sum += v_load(dx + j) * d - v_load(dr + j) * y;
        v_store(r + j, v_load(r + j) + alpha * y);
    }
    float dalpha = v_sum(sum), dcurve = -dalpha * (alpha / curve);
    t->ddelta[i] = dalpha / curve - dratio * (ratio / before);
    sum = v_zero();
    for (int64_t j = 0; j < s->wide; j += LNT_VL) {
        vf d = v_load(p + j), y = v_load(w + j), dw = dcurve * d - alpha * v_load(dr + j);
        v_store(dp + j, ratio * v_load(dp + j) + alpha * v_load(dx + j) + dcurve * (y + v_load(l + j) * d));
        v_store(w + j, dw);
        sum += dw * y;
    }
    t->dB[i] += v_sum(sum);
}

/* T = Op(dW) - dW.Lambda on the `live` rows of the trail from `at`. */
static void apply_adjoint(solver *s, const float *k, int K, int at, int live)
{
    s->P = s->W0 + at * s->wide;
    s->W = s->past.T;
    for (int j = 0; j < live; j++) {
        s->row[j] = s->past.row[at + j];
        s->scale[j] = s->in[s->row[j]];
    }
    LNT_V(lnt_mesa_apply)(s, k, K, live, false);
}

/* Where row i's Lambda has its gradient. */
static double *lambda_row(const solver *s, int K, int i, double *dlambda) { return dlambda + (s->lambda_step ? (int64_t)i * K : 0); }

/* Gradients d of 1 / (diagonal + lambda), for row i: to dD, and for the level one all of them to the smallest element. */
static void through_diagonal(const solver *s, int i, bool level, int K, const float *d, double *all_dlambda)
{
    const float *diagonal = s->past.diagonal + i * s->wide, *l = lnt_mesa_lambda(s, i);
    double *dlambda = lambda_row(s, K, i, all_dlambda);
    float *dD = s->past.dD + i * s->wide;
    int least = 0;
    for (int j = 1; level && j < K; j++) least = diagonal[j] < diagonal[least] ? j : least;
    for (int j = 0; j < K; j++) {
        float m = 1.0f / (diagonal[level ? least : j] + l[j]), x = -d[j] * m * m;
        dlambda[j] += x;
        dD[level ? least : j] += x;
    }
}

/* x_0 = q / diag and r_0 = q - Op(x_0), for all rows: the trail's first block. T and dM serve as scratch. */
static void through_guess(solver *s, const lnt_mesa_rows *r, int K, double *dlambda)
{
    const trail *t = &s->past;
    for (int i = 0; i < r->n; i++) {
        float *w = s->W0 + i * s->wide;
        const float *dr = t->dR + i * s->wide;
        t->dB[i] -= row_dot(dr, w, K);
        for (int j = 0; j < K; j++) w[j] = -dr[j];
    }
    apply_adjoint(s, r->k, K, 0, r->n);
    for (int i = 0; i < r->n; i++) {
        const float *dr = t->dR + i * s->wide, *diagonal = t->diagonal + i * s->wide, *l = lnt_mesa_lambda(s, i);
        float *d = t->dM + i * s->wide, *dq = r->dq + i * K;
        for (int j = 0; j < K; j++) {
            float dx = s->X[i * s->wide + j] + t->T[i * s->wide + j] - l[j] * dr[j];
            dq[j] += dx / (diagonal[j] + l[j]);
            d[j] = dx * r->q[i * K + j];
        }
        through_diagonal(s, i, false, K, d, dlambda);
    }
}

/* All steps of the chunk. dW then stands in W0, dq in its place; past.dB has sum_s dw.(Op(p) - Lambda p), and past.dD the gradient of diag(H_t). */
static void walk_back(solver *s, const lnt_mesa_args *a, const lnt_mesa_rows *r, double *dlambda)
{
    trail *t = &s->past;
    int K = a->K, at = t->rows, first = a->cg_guess == LNT_CG_DIAGONAL && (a->cg_solver > LNT_CG_JACOBI || a->cg_max_steps == 0);
    size_t size = (size_t)(r->n * s->wide) * sizeof(float);
    memset(t->dP, 0, size);
    memset(t->dR, 0, size);
    memset(t->dM, 0, size);
    memset(t->dD, 0, size);
    memset(t->T, 0, size);
    for (int i = 0; i < r->n; i++) {
        t->ddelta[i] = t->dB[i] = 0;
        memset(s->X + i * s->wide, 0, (size_t)s->wide * sizeof(float));
        memcpy(s->X + i * s->wide, r->dx + i * K, (size_t)K * sizeof(float));
    }
    for (int block = t->blocks - 1; block >= first; block--) {
        int live = t->live[block];
        at -= live;
        for (int j = 0; j < live; j++) step_back(s, at + j, t->row[at + j]);
        apply_adjoint(s, r->k, K, at, live);
        for (int j = 0; j < live; j++) {
            float *dp = t->dP + t->row[at + j] * s->wide;
            const float *dw = s->W0 + (at + j) * s->wide, *l = lnt_mesa_lambda(s, t->row[at + j]);
            for (int64_t i = 0; i < s->wide && t->alpha[at + j] != 0; i += LNT_VL)
                v_store(dp + i, v_load(dp + i) + v_load(t->T + j * s->wide + i) + v_load(l + i) * v_load(dw + i));
        }
    }
    for (int i = 0; i < r->n; i++) {
        into_residual(s, i, t->ddelta[i]);
        memcpy(r->dq + i * K, t->dR + i * s->wide, (size_t)K * sizeof(float));
        if (a->cg_solver <= LNT_CG_JACOBI && a->cg_max_steps)
            through_diagonal(s, i, a->cg_solver == LNT_CG_LEVEL, K, t->dM + i * s->wide, dlambda);
    }
    if (first) through_guess(s, r, K, dlambda);
}

/* dg from past.dB and what the state at the end has; dH is the gradient of that. */
static void gate_gradient(const solver *s, const lnt_mesa_rows *r, int K, double last)
{
    for (int i = r->n - 1; i >= 0; i--) {
        last += s->past.dB[i] - row_dot(r->kb + i * K, r->dkb + i * K, K);
        r->dg[i] = r->g[i] < GATE_FLOOR ? 0.0f : (float)last;
    }
}

void LNT_V(lnt_mesa_symmetric)(int K, float *H)
{
    for (int i = 0; i < K; i++)
        for (int j = 0; j < i; j++) H[(int64_t)i * K + j] = H[(int64_t)j * K + i] = 0.5f * (H[(int64_t)i * K + j] + H[(int64_t)j * K + i]);
}

void LNT_V(lnt_mesa_differentiate)(lnt_mesa_solver *s, const lnt_mesa_args *a, const lnt_mesa_rows *r, float *dH, double *dlambda)
{
    trail *t = &s->past;
    int K = a->K, n = r->n;
    walk_back(s, a, r, dlambda);

    int rows = t->rows;
    float end = s->in[n - 1], *P = s->P0, *dW = s->W0, *S1 = s->S, *S2 = t->S2;
    LNT_V(lnt_mm)(LNT_MM_SET, rows, n, K, P, s->wide, 1, s->kt, s->C, S1, s->C);
    LNT_V(lnt_mm)(LNT_MM_SET, rows, n, K, dW, s->wide, 1, s->kt, s->C, S2, s->C);
    for (int i = 0; i < rows; i++) {
        row_mul(S1 + (int64_t)i * s->C, t->D + (int64_t)t->row[i] * s->C, n);
        row_mul(S2 + (int64_t)i * s->C, t->D + (int64_t)t->row[i] * s->C, n);
    }

    /* The state's part first: it comes back in gate_gradient with the same rounding. */
    double last = (double)end * row_dot(s->H, dH, (int64_t)K * K);
    LNT_V(lnt_mm)(LNT_MM_SET, n, K, K, r->k, K, 1, dH, K, r->dkb, K);
    for (int j = 0; j < n; j++) {
        row_scale(r->dkb + j * K, s->out[j], K);
        last += row_dot(r->kb + j * K, r->dkb + j * K, K);
    }
    memcpy(r->dvalue, r->dkb, (size_t)(n * K) * sizeof(float));
    LNT_V(lnt_mm)(LNT_MM_ADD, n, K, rows, S2, 1, s->C, P, s->wide, r->dkb, K);
    LNT_V(lnt_mm)(LNT_MM_ADD, n, K, rows, S1, 1, s->C, dW, s->wide, r->dvalue, K);

    /* diag(H_t) = e^{b_t} diag(H) + sum_j D_tj beta_j k_j^2: T = D^T dD */
    LNT_V(lnt_mm)(LNT_MM_SET, n, K, n, t->D, 1, s->C, t->dD, s->wide, t->T, s->wide);
    for (int j = 0; j < n; j++) {
        t->dB[j] += row_dot(t->dD + j * s->wide, t->diagonal + j * s->wide, K);
        for (int i = 0; i < K; i++) {
            float x = t->T[j * s->wide + i] * r->k[j * K + i];
            r->dkb[j * K + i] += x;
            r->dvalue[j * K + i] += x;
        }
        row_scale(r->dvalue + j * K, r->beta[j], K);
    }
    gate_gradient(s, r, K, last);

    for (int i = 0; i < rows; i++) {
        float *dw = dW + i * s->wide;
        double *dl = lambda_row(s, K, t->row[i], dlambda);
        for (int j = 0; j < K; j++) dl[j] += dw[j] * P[i * s->wide + j];
        row_scale(dw, s->in[t->row[i]], s->wide);
    }
    LNT_V(lnt_mm_scaled)(&end, 0, K, K, rows, P, 1, s->wide, dW, s->wide, dH, K);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < K; j++) dH[(int64_t)j * K + j] += s->in[i] * t->dD[i * s->wide + j];
    LNT_V(lnt_mesa_symmetric)(K, dH);
}

#endif
