/* Conjugate gradients of a chunk's rows on the CPU, side by side: operators.md#mesa ("The solve"). Each row has its own step lengths and its own end;
 * finished rows leave the products. The rest of the core is in mesa_cpu.c, the gradient of the steps that are kept here in mesa_unroll_cpu.c. */
#if !defined(LNT_VARIANT_amx) /* which has mesa_amx_cpu.c */
#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/chunk/chunk_signed.h"
#include "recurrence/mesa/mesa_solver.h"
#include "simd/mm.h"

typedef lnt_mesa_solver solver;
typedef lnt_mesa_trail trail;

enum { BLOCK = 16 }; /* rows of a product with the keys that they see */

/* lnt_mesa_apply with its operands in float16. */
static void apply_halves(const solver *s, const float *k, int K, int live, bool token)
{
    static const float one = 1.0f;
    float *p = s->half_P;
    int64_t size = live * s->wide;
    memcpy(p, s->P, (size_t)size * sizeof *p);
    for (int i = 0; i < live && !token; i++) row_scale(p + i * s->wide, s->scale[i], K);
    lnt_mesa_to_half(p, size);
    LNT_V(lnt_mm)(LNT_MM_SET, live, K, K, p, s->wide, 1, s->half_H, K, s->W, s->wide);
    memcpy(p, s->P, (size_t)size * sizeof *p);
    lnt_mesa_to_half(p, size);
    for (int i = 0; i < live && !token; i++) {
        int keys = s->row[i] + 1;
        LNT_V(lnt_mm)(LNT_MM_SET, 1, keys, K, p + i * s->wide, s->wide, 1, s->kt, s->M, s->S, s->M);
        row_mul(s->S, s->mask + (int64_t)s->row[i] * s->M, keys);
        lnt_mesa_to_half(s->S, keys);
        LNT_V(lnt_mm_scaled)(&one, 0, 1, K, keys, s->S, s->M, 1, k, K, s->W + i * s->wide, s->wide);
    }
}

void LNT_V(lnt_mesa_apply)(const solver *s, const float *k, int K, int live, bool token)
{
    if (s->half_H) {
        apply_halves(s, k, K, live, token);
        return;
    }
    LNT_V(lnt_mm)(LNT_MM_SET, live, K, K, s->P, s->wide, 1, s->H, K, s->W, s->wide);
    for (int i = 0; i < live && !token; i += BLOCK) {
        int rows = live - i < BLOCK ? live - i : BLOCK, first = lnt_mesa_first_key(s, s->row[i]);
        int keys = lnt_mesa_keys_end(s, s->row[i + rows - 1]) - first;
        LNT_V(lnt_mm)(LNT_MM_SET, rows, keys, K, s->P + i * s->wide, s->wide, 1, s->kt + first, s->M, s->S, s->M);
        for (int r = 0; r < rows; r++) row_mul(s->S + (int64_t)r * s->M, s->mask + (int64_t)s->row[i + r] * s->M + first, keys);
        LNT_V(lnt_mm_scaled)(s->scale + i, 1, rows, K, keys, s->S, s->M, 1, k + (int64_t)first * K, K, s->W + i * s->wide, s->wide);
    }
}

/* p.(w + lambda p) of row i */
static float curvature(const solver *s, int i, const float *p, const float *w)
{
    const float *l = lnt_mesa_lambda(s, i);
    vf sum = v_zero();
    for (int64_t j = 0; j < s->wide; j += LNT_VL) {
        vf x = v_load(p + j);
        sum += x * (v_load(w + j) + v_load(l + j) * x);
    }
    return v_sum(sum);
}

/* x += alpha p, r -= alpha (w + lambda p); r.(jacobi r), and |r|^2 into *square. */
static float advance(const solver *s, int row, float alpha, const float *p, const float *w, float *square)
{
    float *x = s->X + row * s->wide, *r = s->R + row * s->wide;
    const float *m = s->jacobi + row * s->wide, *l = lnt_mesa_lambda(s, row);
    vf delta = v_zero(), sum = v_zero();
    for (int64_t i = 0; i < s->wide; i += LNT_VL) {
        vf d = v_load(p + i);
        v_store(x + i, v_load(x + i) + alpha * d);
        vf y = v_load(r + i) - alpha * (v_load(w + i) + v_load(l + i) * d);
        v_store(r + i, y);
        sum += y * y;
        delta += y * (v_load(m + i) * y);
    }
    *square = v_sum(sum);
    return v_sum(delta);
}

/* next = jacobi r + f p; next may be p. */
static void direction(const solver *s, int64_t row, float f, const float *p, float *next)
{
    const float *r = s->R + row * s->wide, *m = s->jacobi + row * s->wide;
    for (int64_t i = 0; i < s->wide; i += LNT_VL) v_store(next + i, v_load(m + i) * v_load(r + i) + f * v_load(p + i));
}

static void zero_ends(const solver *s, float *rows, int K, int64_t n)
{
    for (int64_t i = 0; i < n && K < s->wide; i++) memset(rows + i * s->wide + K, 0, (size_t)(s->wide - K) * sizeof *rows);
}

/* mask of row i: of the chunk's own keys D_ij beta_j, of older ones e_i times what they are written with, for those that it still sees. */
static void fill_mask(const solver *s, int n, const float *beta)
{
    for (int i = 0; i < n; i++) {
        float *m = s->mask + (int64_t)i * s->M;
        row_mul(m + s->old, beta, n);
        for (int j = 0; j < s->old; j++) m[j] = j > i ? s->in[i] * s->old_by[j] : 0.0f;
    }
}

/* diag(H_i) of the chunk's rows into jacobi: the state's, decayed, and the squares of the keys that they see. */
static void fill_diagonals(const solver *s, int K, int n, const float *k)
{
    const int keys = s->old + n;
    LNT_V(lnt_transpose)(keys, K, k, K, s->kt, s->M);
    for (int64_t i = 0; i < (int64_t)keys * K; i++) s->kk[i] = k[i] * k[i];
    if (!s->alone) {
        LNT_V(lnt_mm)(LNT_MM_ADD, n, K, keys, s->mask, s->M, 1, s->kk, K, s->jacobi, s->wide);
        return;
    }
    for (int i = 0; i < n; i++) {
        const int first = lnt_mesa_first_key(s, i);
        LNT_V(lnt_mm)(LNT_MM_ADD, 1, K, lnt_mesa_keys_end(s, i) - first, s->mask + (int64_t)i * s->M + first, s->M, 1, s->kk + (int64_t)first * K, K,
                      s->jacobi + i * s->wide, s->wide);
    }
}

/* The Lambdas of the chunk's tokens, where each has its own. */
static void load_lambdas(const solver *s, const lnt_mesa_args *a, int h, int64_t t, int n)
{
    const float *lambda = a->lambda_t;
    for (int i = 0; s->lambda_step && i < n; i++)
        memcpy(s->lambda + i * s->lambda_step, lambda + ((t + i) * a->Hv + h) * a->K, (size_t)a->K * sizeof *lambda);
}

/* jacobi ends as 1 / diag(H_i + Lambda), or 1 / (min(diag(H_i)) + Lambda); g: logarithms of the decays' sizes. */
void LNT_V(lnt_mesa_prepare)(solver *s, const lnt_mesa_args *a, int h, int64_t t, int n, bool token, const float *g, const float *beta,
                             const float *k)
{
    int K = a->K;
    load_lambdas(s, a, h, t, n);
    LNT_V(lnt_chunk_decay)(n, g, 1, s->mask + s->old, s->M, s->in, s->out);
    if (a->heads.has_sign)
        signed_turn(n, (const float *)a->heads.sign + t * a->Hv + h, a->Hv, s->mask + s->old, s->M, s->in, s->out, s->delta);
    if (s->keep) memcpy(s->past.D, s->mask, (size_t)n * (size_t)s->C * sizeof *s->mask);
    fill_mask(s, n, beta);
    for (int i = 0; i < K; i++) s->X[i] = s->H[(int64_t)i * K + i];
    for (int i = n - 1; i >= 0; i--) {
        float *m = s->jacobi + i * s->wide;
        for (int j = 0; j < K; j++) m[j] = (token ? 1.0f : s->in[i]) * s->X[j];
    }
    if (!token) fill_diagonals(s, K, n, k);
    if (s->keep) memcpy(s->past.diagonal, s->jacobi, (size_t)(n * s->wide) * sizeof *s->jacobi);
    bool level = a->cg_solver == LNT_CG_LEVEL && a->cg_max_steps > 0; /* without steps there is nothing but the diagonal guess */
    for (int64_t i = 0; i < n * s->wide && a->heads.has_sign; i++) s->jacobi[i] = s->jacobi[i] < 0 ? 0 : s->jacobi[i]; /* H may turn below 0 */
    for (int i = 0; i < n; i++) {
        float *m = s->jacobi + i * s->wide, smallest = level ? row_least(m, K) : 0;
        const float *l = lnt_mesa_lambda(s, i);
        for (int j = 0; j < K; j++) m[j] = 1.0f / ((level ? smallest : m[j]) + l[j]);
    }
    zero_ends(s, s->jacobi, K, n);
    zero_ends(s, s->W, K, s->keep ? (int64_t)(a->cg_max_steps + 3) * s->C : n);
    if (!s->half_H) return;
    memcpy(s->half_H, s->H, (size_t)K * (size_t)K * sizeof *s->H);
    lnt_mesa_to_half(s->half_H, (int64_t)K * K);
}

/* The `live` rows of P and W are kept: those of the next step come after them. Returns the first one's number. */
static int keep_rows(solver *s, int live)
{
    trail *t = &s->past;
    int at = t->rows;
    memcpy(t->row + at, s->row, (size_t)live * sizeof *t->row);
    memset(t->alpha + at, 0, (size_t)live * sizeof *t->alpha);
    t->live[t->blocks++] = live;
    t->rows += live;
    s->P += live * s->wide;
    s->W += live * s->wide;
    return at;
}

static void keep_step(const trail *t, int at, float alpha, float curve, float before, float ratio)
{
    t->alpha[at] = alpha;
    t->curve[at] = curve;
    t->before[at] = before;
    t->ratio[at] = ratio;
}

/* The first iterates and directions of rows from .. from + n - 1. X = 0 and P = jacobi b serve the preconditioned solver for either guess: its first
 * step finds the best multiple of jacobi b at the price of that guess's residual. Otherwise R is made from the guess. Returns the steps that are not
 * counted. */
static int begin(solver *s, const lnt_mesa_args *a, int from, int n, bool token, const float *b, const float *k)
{
    int K = a->K;
    bool diagonal = a->cg_guess == LNT_CG_DIAGONAL, preconditioned = a->cg_solver <= LNT_CG_JACOBI;
    bool from_guess = diagonal && (!preconditioned || a->cg_max_steps == 0);
    s->past.rows = s->past.blocks = 0;
    for (int j = 0; j < n; j++) {
        const int i = from + j;
        float *r = s->R + i * s->wide;
        memcpy(r, b + (int64_t)i * K, (size_t)K * sizeof *r);
        memset(r + K, 0, (size_t)(s->wide - K) * sizeof *r);
        s->size[i] = row_dot(r, r, s->wide);
        s->goal[i] = a->cg_solver >= LNT_CG_ABSOLUTE ? -1.0f : (float)(a->cg_tolerance * a->cg_tolerance) * s->size[i];
        if (a->cg_gradient == LNT_CG_UNROLLED) s->goal[i] = fmaxf(s->goal[i], 0x1p-46f * s->size[i]); /* later steps are rounding errors */
        s->row[j] = i;
        s->scale[j] = s->in[i];
        if (from_guess) direction(s, i, 0.0f, r, s->P + j * s->wide);
    }
    float *X = s->X + from * s->wide, *R = s->R + from * s->wide;
    memset(X, 0, (size_t)(n * s->wide) * sizeof *s->X);
    if (from_guess) {
        memcpy(X, s->P, (size_t)(n * s->wide) * sizeof *s->X);
        memset(s->W, 0, (size_t)(n * s->wide) * sizeof *s->W);
        LNT_V(lnt_mesa_apply)(s, k, K, n, token);
        for (int64_t i = 0; i < n * s->wide; i += LNT_VL) {
            const float *l = lnt_mesa_lambda(s, from + (int)(i / s->wide));
            v_store(R + i, v_load(R + i) - (v_load(s->W + i) + v_load(l + i % s->wide) * v_load(s->P + i)));
        }
        if (s->keep) keep_rows(s, n);
    }
    if (!preconditioned)
        for (int i = from; i < from + n; i++)
            for (int j = 0; j < K; j++) s->jacobi[i * s->wide + j] = 1.0f;
    for (int j = 0; j < n; j++) {
        direction(s, from + j, 0.0f, s->R + (from + j) * s->wide, s->P + j * s->wide);
        s->delta[j] = row_dot(s->R + (from + j) * s->wide, s->P + j * s->wide, s->wide);
    }
    return diagonal && preconditioned && a->cg_max_steps > 0;
}

/* Row i of the chunk whose first token is t (of head h) is solved, or given up. */
static void finish(const solver *s, const lnt_mesa_args *a, int h, int64_t t, int i, int steps, float *x)
{
    float *X = s->X + i * s->wide, *R = s->R + i * s->wide, *taken = a->steps, *residual = a->residual;
    memcpy(x + (int64_t)i * a->K, X, (size_t)a->K * sizeof *x);
    if (taken) taken[(t + i) * a->Hv + h] = (float)steps;
    if (residual) residual[(t + i) * a->Hv + h] = s->size[i] == 0 ? 0.0f : sqrtf(row_dot(R, R, s->wide) / s->size[i]);
}

/* Row i has met what is no number: neither is its solution, nor (at: its place in the trail) what the steps' gradient makes of it. */
static void lose(const solver *s, int i, int at)
{
    for (int64_t j = 0; j < s->wide; j++) s->X[i * s->wide + j] = s->R[i * s->wide + j] = NAN;
    if (at >= 0) keep_step(&s->past, at, NAN, NAN, NAN, NAN);
}

/* Rows from .. from + n - 1 of a chunk that is prepared. */
static void take_steps(solver *s, const lnt_mesa_args *a, int h, int64_t t, int from, int n, bool token, const float *k, const float *b, float *x)
{
    s->P = s->P0;
    s->W = s->W0;
    int free_steps = begin(s, a, from, n, token, b, k), live = n, most = a->cg_max_steps + free_steps;
    float absolute = a->cg_solver >= LNT_CG_ABSOLUTE ? 1e-5f : 0.0f;
    for (int step = 0; live && step < most; step++) {
        int kept = 0;
        const float *P = s->P, *W = s->W;
        LNT_V(lnt_mesa_apply)(s, k, a->K, live, token);
        int at = s->keep ? keep_rows(s, live) : 0;
        for (int j = 0; j < live; j++) {
            int i = s->row[j];
            const float *p = P + j * s->wide, *w = W + j * s->wide;
            float curve = curvature(s, i, p, w), square, delta;
            bool useful = s->delta[j] > 0 && (absolute > 0 || curve > 0);
            if (!isfinite(s->delta[j]) || !isfinite(curve)) { /* every comparison below would take NaN for a row that is done */
                lose(s, i, s->keep ? at + j : -1);
                useful = false;
            }
            if (!useful) {
                finish(s, a, h, t, i, step > free_steps ? step - free_steps : 0, x);
                continue;
            }
            float alpha = s->delta[j] / (curve + absolute), before = s->delta[j] + absolute;
            delta = advance(s, i, alpha, p, w, &square);
            if (s->keep) keep_step(&s->past, at + j, alpha, curve + absolute, before, delta / before);
            if (square <= s->goal[i]) {
                finish(s, a, h, t, i, step + 1 - free_steps, x);
                continue;
            }
            direction(s, i, delta / before, p, s->P + kept * s->wide);
            s->delta[kept] = delta;
            s->scale[kept] = s->in[i];
            s->row[kept++] = i;
        }
        live = kept;
    }
    for (int j = 0; j < live; j++) finish(s, a, h, t, s->row[j], a->cg_max_steps, x);
}

void LNT_V(lnt_mesa_solve_prepared)(solver *s, const lnt_mesa_args *a, int h, int64_t t, int n, bool token, const float *k, const float *b, float *x)
{
    for (int i = 0, each = s->alone ? 1 : n; i < n; i += each) take_steps(s, a, h, t, i, each, token, k, b, x);
}

void LNT_V(lnt_mesa_solve_chunk)(solver *s, const lnt_mesa_args *a, int h, int64_t t, int n, bool token, const float *g, const float *beta,
                                 const float *k, const float *b, float *x)
{
    s->P = s->P0;
    s->W = s->W0;
    LNT_V(lnt_mesa_prepare)(s, a, h, t, n, token, g, beta, k);
    LNT_V(lnt_mesa_solve_prepared)(s, a, h, t, n, token, k, b, x);
}
#endif
