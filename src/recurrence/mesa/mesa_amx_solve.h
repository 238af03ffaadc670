/* The solve of the Mesa core on AMX tiles: a chunk's rows, with every product through tiles. Only mesa_amx_cpu.c includes this.
 *
 * H, the chunk's keys and the pairs of P and keys are rounded to bf16, X and R are float32, and P is bf16 alone, as on a GPU: what X and R take of a
 * step is what the products have seen. A chunk is two tiles of rows,
 *
 *   Op(P) = e^b.(P H + (P K^T . D.beta / e^b) K) + P.Lambda      mild: b_n is at least -40, and both products are one sum in tiles
 *   Op(P) = e^b.(P H) + (P K^T . D.beta) K + P.Lambda            any other
 *
 * and its preconditioner 1 / (Lambda + min(diag(H))), H at its start. Rows and columns are padded with zeros up to 32. A step of a row behind the
 * products is two passes: one for p.w, which is summed for sixteen rows at once, and one for all the rest. */
#ifndef LNT_MESA_AMX_SOLVE_H
#define LNT_MESA_AMX_SOLVE_H

#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/mesa/mesa_solver.h"
#include "simd/mm.h"

#if defined(__AMX_BF16__)
#define ENGINE (&LNT_V(lnt_mm_bf16_tiles))

/* Rows of a chunk; vectors of the longest row. */
enum { ROWS = 32, VECTORS = 16, COLUMNS = VECTORS * LNT_VL };

/* The solver of a thread, rows W apart. H [W,W]; X R w [ROWS,W]; lambda and the preconditioner m [W]; S mask [ROWS,ROWS], u [ROWS,W] where a chunk is
 * not mild; in bf16 P, keys and what is written [ROWS,W], pairs [ROWS,ROWS]. Rows at work stand in P and w in order, row[] are their places. */
typedef struct {
    int C, W;
    float *H, *X, *R, *w, *u, *lambda, *m, *S, *mask, *in, *out, *scale, *delta, *goal, *size;
    lnt_bf16 *P, *keys, *writes, *pairs;
    int *row;
    float *rest;
    void *H_forms, *rest_forms, *keys_forms, *writes_forms;
    lnt_operand left[3], right[3]; /* pairs and keys, P and H, P and what H loses */
    float least; /* of Lambda */
    int parts;
    bool mild;
} solver;

static lnt_bf16 *carve16(lnt_carve *c, int64_t n) { return lnt_carve_bytes(c, (size_t)n * sizeof(lnt_bf16)); }

/* Room for chunks of C rows. */
static void carve_solver(lnt_carve *c, const lnt_mesa_args *a, int C, solver *s)
{
    const int W = (a->K + 31) / 32 * 32;
    float **wide[] = { &s->X, &s->R, &s->w, &s->u }, **each[] = { &s->in, &s->out, &s->scale, &s->delta, &s->goal, &s->size };
    lnt_bf16 **narrow[] = { &s->P, &s->keys, &s->writes };
    s->C = C;
    s->W = W;
    s->H = lnt_carve_floats(c, W * W);
    s->rest = lnt_carve_floats(c, W * W);
    for (int i = 0; i < 4; i++) *wide[i] = lnt_carve_floats(c, ROWS * W);
    for (int i = 0; i < 3; i++) *narrow[i] = carve16(c, ROWS * W);
    for (int i = 0; i < 6; i++) *each[i] = lnt_carve_floats(c, ROWS);
    s->lambda = lnt_carve_floats(c, W);
    s->m = lnt_carve_floats(c, W);
    s->S = lnt_carve_floats(c, ROWS * ROWS);
    s->mask = lnt_carve_floats(c, ROWS * ROWS);
    s->pairs = carve16(c, ROWS * ROWS);
    s->row = lnt_carve_bytes(c, ROWS * sizeof *s->row);
    s->H_forms = lnt_carve_bytes(c, ENGINE->bytes(W, W, LNT_RIGHT));
    s->rest_forms = lnt_carve_bytes(c, ENGINE->bytes(W, W, LNT_RIGHT));
    s->keys_forms = lnt_carve_bytes(c, ENGINE->bytes(ROWS, W, LNT_RIGHT | LNT_RIGHT_T));
    s->writes_forms = lnt_carve_bytes(c, ENGINE->bytes(ROWS, W, LNT_LEFT_T));
}

/* ---- rows of bf16 ---------------------------------------------------------------------------------------------------------------------- */

static const lnt_bf16 *row_at(const void *x, int64_t t, int64_t heads, int64_t h, int64_t width)
{
    return (const lnt_bf16 *)x + (t * heads + h) * width;
}

/* y = f x */
static void row_scaled16(float f, const lnt_bf16 *x, int64_t n, lnt_bf16 *y)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store_bf16(y + i, f * v_load_bf16(x + i));
    for (; i < n; i++) y[i] = lnt_f32_to_bf16(f * lnt_bf16_to_f32(x[i]));
}

static void row_rounded(float f, const float *x, int64_t n, lnt_bf16 *y)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store_bf16(y + i, f * v_load(x + i));
    for (; i < n; i++) y[i] = lnt_f32_to_bf16(f * x[i]);
}

/* ---- the solve ------------------------------------------------------------------------------------------------------------------------- */

/* P H and the pairs with keys into w, without e^b where the chunk is mild. */
static void apply(solver *s, int live)
{
    const lnt_mm_engine *e = ENGINE;
    const int rows = live > 16 ? 32 : 16, W = s->W;
    for (int i = 0; i < 3; i++) s->left[i].rows = rows;
    e->multiply(LNT_MM_SET, NULL, &s->left[1], false, &s->right[0], true, s->S, ROWS);
    for (int i = 0; i < live; i++) {
        const float *x = s->S + i * ROWS, *m = s->mask + s->row[i] * ROWS;
        const vf low = v_load(x) * v_load(m), high = v_load(x + 16) * v_load(m + 16);
        _mm512_storeu_si512(s->pairs + i * ROWS, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
    }
    if (s->mild) {
        e->multiply_row(NULL, s->parts, s->left, s->right, s->w, W);
        return;
    }
    e->multiply_row(NULL, s->parts - 1, s->left + 1, s->right + 1, s->u, W);
    e->multiply(LNT_MM_SET, NULL, &s->left[0], false, &s->right[0], false, s->w, W);
    for (int i = 0; i < live; i++) row_add(s->w + i * W, s->in[s->row[i]], s->u + i * W, W);
}

enum { GOES_ON, SOLVED, STUCK, LOST };

/* What a solve leaves: rows x [len,K], and f times them in bf16; of the call token t and head h. */
typedef struct {
    const lnt_mesa_args *a;
    int h;
    int64_t t;
    float *x, f;
    lnt_bf16 *x16;
} solution;

static void finish(const solver *s, const solution *o, int i, int end, int steps)
{
    const lnt_mesa_args *a = o->a;
    const int64_t at = (o->t + i) * a->Hv + o->h;
    float *X = s->X + i * s->W, *R = s->R + i * s->W, *taken = a->steps, *residual = a->residual;
    for (int j = 0; end == LOST && j < s->W; j++) X[j] = R[j] = NAN;
    memcpy(o->x + (int64_t)i * a->K, X, (size_t)a->K * sizeof *X);
    row_rounded(o->f, X, a->K, o->x16 + (int64_t)i * a->K);
    if (taken) taken[at] = (float)steps;
    if (residual) residual[at] = s->size[i] == 0 ? 0.0f : sqrtf(row_dot(R, R, s->W) / s->size[i]);
}

enum { GROUP = LNT_VL };

/* w becomes Op(p) of `count` rows of n vectors, of W numbers, from the first-th at work on, alpha[] their steps, 0 where there is none: p.w of all of
 * them is summed at once. */
INLINE void curve_rows(const solver *s, const int n, int first, int count, float *alpha, float *curve)
{
    const int W = n * LNT_VL;
    const lnt_bf16 *d = s->P + first * W;
    const float *l = s->lambda;
    float *w = s->w + first * W;
    _Alignas(64) float lanes[GROUP * LNT_VL];
    if (count < GROUP) memset(lanes + count * LNT_VL, 0, (size_t)(GROUP - count) * LNT_VL * sizeof *lanes);
    for (int j = 0; j < count; j++, d += W, w += W) {
        const vf f = v_set(s->scale[s->row[first + j]]);
        vf sum[2] = { v_zero(), v_zero() };
        UNROLL for (int v = 0; v < n; v++) {
            const vf p = v_load_bf16(d + v * LNT_VL), y = f * v_load(w + v * LNT_VL) + v_load(l + v * LNT_VL) * p;
            v_store(w + v * LNT_VL, y);
            sum[v % 2] += p * y;
        }
        v_store(lanes + j * LNT_VL, sum[0] + sum[1]);
    }
    v_sums(curve, lanes, GROUP);
    const vf top = v_load(s->delta + first), low = v_load(curve), end = v_set(INFINITY);
    v_store(alpha, v_select((top > v_zero()) & (low > v_zero()) & (top < end) & (low < end), top / low, v_zero()));
}

/* A step of the j-th row at work, whose next direction becomes the kept-th. */
INLINE int step_row(const solver *s, const int n, int j, int kept, float step)
{
    const int i = s->row[j], W = n * LNT_VL;
    const lnt_bf16 *d = s->P + j * W;
    const float *w = s->w + j * W, *m = s->m;
    float *x = s->X + i * W, *r = s->R + i * W;
    vf p[VECTORS] = { v_zero() }, y[VECTORS] = { v_zero() }, delta[2] = { v_zero(), v_zero() }, square[2] = { v_zero(), v_zero() };
    const vf alpha = v_set(step);
    UNROLL for (int v = 0; v < n; v++) {
        p[v] = v_load_bf16(d + v * LNT_VL);
        v_store(x + v * LNT_VL, v_load(x + v * LNT_VL) + alpha * p[v]);
        const vf z = v_load(r + v * LNT_VL) - alpha * v_load(w + v * LNT_VL);
        v_store(r + v * LNT_VL, z);
        y[v] = v_load(m + v * LNT_VL) * z;
        delta[v % 2] += y[v] * z;
        square[v % 2] += z * z;
    }
    const float after = v_sum(delta[0] + delta[1]);
    if (v_sum(square[0] + square[1]) <= s->goal[i]) return SOLVED;
    const vf ratio = v_set(after / s->delta[j]);
    UNROLL for (int v = 0; v < n; v += 2) {
        const vf low = y[v] + ratio * p[v], high = y[v + 1] + ratio * p[v + 1];
        _mm512_storeu_si512(s->P + kept * W + v * LNT_VL, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
    }
    s->delta[kept] = after;
    s->row[kept] = i;
    return GOES_ON;
}

/* The rows at work take a step; those that end leave. */
INLINE int step_rows(const solver *s, const int n, const solution *o, int live, int step, int uncounted)
{
    int kept = 0;
    for (int first = 0; first < live; first += GROUP) {
        const int count = live - first < GROUP ? live - first : GROUP;
        _Alignas(64) float alpha[GROUP], curve[GROUP];
        lnt_tiles_awake();
        curve_rows(s, n, first, count, alpha, curve);
        for (int j = 0; j < count; j++) {
            const int row = first + j, i = s->row[row];
            if (j % 8 == 0) lnt_tiles_awake();
            int end = alpha[j] > 0 ? step_row(s, n, row, kept, alpha[j]) : isfinite(s->delta[row]) && isfinite(curve[j]) ? STUCK : LOST;
            kept += end == GOES_ON;
            if (end != GOES_ON) finish(s, o, i, end, end == SOLVED ? step + 1 - uncounted : step > uncounted ? step - uncounted : 0);
        }
    }
    return kept;
}

/* The first iterates are X = 0 and P = M b, for either guess: mesa_solve_cpu.c. b: n rows, `stride` apart. */
static void solve_chunk(solver *s, const solution *o, int n, const lnt_bf16 *b, int64_t stride)
{
    const lnt_mesa_args *a = o->a;
    const int W = s->W, uncounted = a->cg_guess == LNT_CG_DIAGONAL, most = a->cg_max_steps + uncounted;
    const float goal = (float)(a->cg_tolerance * a->cg_tolerance);
    memset(s->X, 0, (size_t)(n * W) * sizeof *s->X);
    for (int i = 0; i < n; i++, b += stride) {
        lnt_bf16 *p = s->P + i * W;
        float *r = s->R + i * W;
        vf delta = v_zero(), size = v_zero();
        rows_awake(i);
        memcpy(p, b, (size_t)a->K * sizeof *p);
        memset(p + a->K, 0, (size_t)(W - a->K) * sizeof *p);
        for (int j = 0; j < W; j += LNT_VL) {
            const vf x = v_load_bf16(p + j), y = v_load(s->m + j) * x;
            v_store(r + j, x);
            v_store_bf16(p + j, y);
            delta += x * y;
            size += x * x;
        }
        s->delta[i] = v_sum(delta);
        s->size[i] = v_sum(size);
        s->goal[i] = goal * s->size[i];
        s->scale[i] = s->mild ? s->in[i] : 1.0f;
        s->row[i] = i;
    }
    int live = n;
    for (int step = 0; live && step < most; step++) {
        apply(s, live);
        live = W == 128 ? step_rows(s, 8, o, live, step, uncounted)
             : W == 64  ? step_rows(s, 4, o, live, step, uncounted)
                        : step_rows(s, W / LNT_VL, o, live, step, uncounted);
    }
    for (int j = 0; j < live; j++) finish(s, o, s->row[j], GOES_ON, a->cg_max_steps);
}

/* What H loses when it is rounded becomes an operand, too, where it counts beside Lambda: noise of a matrix with the norm |H|_F / 1024 has one of
 * 2 / sqrt(K) of that in any direction. |H|_F is that of the diagonal's tiles and those to their right, twice. */
static void split_H(solver *s, int K)
{
    const int W = s->W;
    vf own = v_zero(), right[4] = { v_zero(), v_zero(), v_zero(), v_zero() };
    for (int i = 0; i < W; i += 4) {
        const float *h = s->H + i * W;
        const int first = i / LNT_VL * LNT_VL;
        rows_awake(i);
        for (int r = 0; r < 4; r++) own += v_load(h + r * W + first) * v_load(h + r * W + first);
        for (int j = first + LNT_VL; j < W; j += LNT_VL)
            for (int r = 0; r < 4; r++) right[r] += v_load(h + r * W + j) * v_load(h + r * W + j);
    }
    const float square = v_sum(own + 2.0f * (right[0] + right[1] + right[2] + right[3]));
    s->parts = square > 16.0f * (float)K * s->least * s->least ? 3 : 2;
    if (s->parts == 2) return;
    lnt_bf16 rounded[LNT_VL];
    for (int i = 0; i < W * W; i += LNT_VL) {
        if (i % 1024 == 0) lnt_tiles_awake();
        v_store_bf16(rounded, v_load(s->H + i));
        v_store(s->rest + i, v_load(s->H + i) - v_load_bf16(rounded));
    }
    s->right[2] = ENGINE->prepare(LNT_RIGHT, W, W, s->rest, W, s->rest_forms);
}

/* Keys, masks and preconditioner of the chunk of n rows from token t. */
static void prepare_chunk(solver *s, const lnt_mesa_args *a, int64_t hq, int64_t t, int n, const float *g, const float *beta)
{
    const int K = a->K, W = s->W;
    if (n < ROWS) {
        memset(s->mask, 0, ROWS * ROWS * sizeof *s->mask);
        memset(s->keys + n * W, 0, (size_t)((ROWS - n) * W) * sizeof *s->keys);
        memset(s->writes + n * W, 0, (size_t)((ROWS - n) * W) * sizeof *s->writes);
    }
    LNT_V(lnt_chunk_decay)(n, g, 1, s->mask, ROWS, s->in, s->out);
    s->mild = fabsf(s->in[n - 1]) >= 0x1p-58f;
    for (int i = 0; i < n; i++) {
        const lnt_bf16 *k = row_at(a->k, t + i, a->Hq, hq, K);
        rows_awake(i);
        row_times(n, s->mild ? 1.0f / s->in[i] : 1.0f, beta, s->mask + i * ROWS, s->mask + i * ROWS);
        memcpy(s->keys + i * W, k, (size_t)K * sizeof *k);
        row_scaled16(s->out[i] * beta[i], k, K, s->writes + i * W);
    }
    s->right[0] = ENGINE->prepare16(LNT_RIGHT | LNT_RIGHT_T, ROWS, W, s->keys, W, s->keys_forms);
    split_H(s, K);
    for (int j = 0; j < K; j++) s->m[j] = s->H[j * (W + 1)];
    const vf smallest = v_set(row_least(s->m, K));
    for (int j = 0; j < W; j += LNT_VL) v_store(s->m + j, v_set(1.0f) / (smallest + v_load(s->lambda + j)));
}

/* The solver's H from [K,K] (NULL: zeros), and back. */
static void load_H(solver *s, int K, const float *H)
{
    const int W = s->W;
    if (!H || K < W) memset(s->H, 0, (size_t)(W * W) * sizeof *s->H);
    for (int i = 0; H && i < K; i++) memcpy(s->H + i * W, H + (int64_t)i * K, (size_t)K * sizeof *H);
    s->right[1] = ENGINE->prepare(LNT_RIGHT, W, W, s->H, W, s->H_forms);
}
static void store_H(const solver *s, int K, float *H)
{
    for (int i = 0; H && i < K; i++) memcpy(H + (int64_t)i * K, s->H + i * s->W, (size_t)K * sizeof *H);
}

static void begin_head(const lnt_mesa_args *a, int h, solver *s)
{
    const int K = a->K, W = s->W;
    s->left[0] = (lnt_operand){ .cols = ROWS, .left = { s->pairs, ROWS } };
    s->left[1] = s->left[2] = (lnt_operand){ .cols = W, .left = { s->P, W } };
    for (int j = K; j < W; j++) s->lambda[j] = 1; /* which meets zeros */
    memset(s->keys, 0, (size_t)(ROWS * W) * sizeof *s->keys);
    memset(s->writes, 0, (size_t)(ROWS * W) * sizeof *s->writes);
    memset(s->P, 0, (size_t)(ROWS * W) * sizeof *s->P);
    memset(s->pairs, 0, ROWS * ROWS * sizeof *s->pairs);
    memcpy(s->lambda, (const float *)a->lambda + (int64_t)h * K, (size_t)K * sizeof *s->lambda);
    s->least = row_least(s->lambda, K);
}

#endif

#endif
