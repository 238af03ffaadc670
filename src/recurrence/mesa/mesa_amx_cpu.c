/* The Mesa core for bf16 tensors on AMX tiles: mesa_cpu.c's walk, with every product through tiles.
 *
 * In the solve H, the chunk's keys and the pairs of P and keys are rounded to bf16, X and R are float32, and P is bf16 alone, as on a GPU: what X and
 * R take of a step is what the products have seen. A chunk is two tiles of rows,
 *
 *   Op(P) = e^b.(P H + (P K^T . D.beta / e^b) K) + P.Lambda      mild: b_n is at least -40, and both products are one sum in tiles
 *   Op(P) = e^b.(P H) + (P K^T . D.beta) K + P.Lambda            any other
 *
 * and its preconditioner 1 / (Lambda + min(diag(H))), H at its start. Rows and columns are padded with zeros up to 32. A step of a row behind the
 * products is two passes: one for p.w, whose sums would keep the other waiting, and one for all the rest. */
#include "recurrence/mesa/mesa_solver.h"

#if defined(__AMX_BF16__)
#define LNT_ROWS_BETWEEN_TILES
#include "core/cpu.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay.h"
#include "simd/mm.h"

#define ENGINE (&LNT_V(lnt_mm_bf16_tiles))

/* Rows of a chunk; of a segment, which the decay core gets at once; vectors of the longest row. */
enum { ROWS = 32, SEGMENT = 256, VECTORS = 16, COLUMNS = VECTORS * LNT_VL };

/* The solver of a thread, rows W apart. H [W,W]; X R w [ROWS,W]; lambda and the preconditioner m [W]; S mask [ROWS,ROWS], u [ROWS,W] where a chunk is
 * not mild; in bf16 P, keys and what is written [ROWS,W], pairs [ROWS,ROWS]. Rows at work stand in P and w in order, row[] are their places. */
typedef struct {
    int C, W;
    float *H, *X, *R, *w, *u, *lambda, *m, *S, *mask, *in, *out, *scale, *curve, *delta, *goal, *size;
    lnt_bf16 *P, *keys, *writes, *pairs;
    int *row;
    float *rest;
    void *H_forms, *rest_forms, *keys_forms, *writes_forms;
    lnt_operand left[3], right[3]; /* pairs and keys, P and H, P and what H loses */
    float least; /* of Lambda */
    int parts;
    bool mild;
} solver;

/* A head's rows of a segment in bf16, [S,K]: k, beta k, x, y; [S,V]: v, o or dO; x and e in float32, [S,K]; row: room for rows [K]. Backward:
 * gradients, states before every segment, sums over heads that share q and k, all as in mesa_cpu.c; forms of what a sweep writes. */
typedef struct {
    solver s;
    lnt_bf16 *k, *kb, *x16, *y, *v, *o, *dkb, *dkb2, *dvalue, *dv;
    float *x, *e, *g, *beta, *out, *row[3], *dg, *dg2, *G, *dG[2], *dH[2], *Hs, *Gs, *dq_sum, *dk_sum;
    void *forms, *decay;
    size_t decay_size;
} scratch;

extern const lnt_recur_impl LNT_V(lnt_decay_chunk);

static int64_t segment_length(const lnt_mesa_args *a) { return chunk_length(&a->heads, SEGMENT); }

/* A segment as a call on the decay core (mesa_cpu.c); `alone`: in chunks of one token. */
static lnt_recur_args decay_call(const lnt_mesa_args *a, int64_t len, int V, bool alone, int64_t *cu, const scratch *w)
{
    cu[0] = 0;
    cu[1] = len;
    return (lnt_recur_args){ .op = &lnt_recur_simple_gla, .dtype = LINNET_BF16, .form = LINNET_FORM_CHUNK, .tokens = len, .longest = len,
                             .chunk = alone ? 1 : 0, .sequences = 1, .Hq = 1, .Hv = 1, .cu_seqlens = cu, .K = a->K, .V = V, .scale = 1,
                             .q = w->x16, .k = w->kb, .g = w->g, .workspace = w->decay, .workspace_size = w->decay_size };
}

static size_t decay_bytes(const lnt_mesa_args *a, int V, bool backward, const scratch *w)
{
    int64_t cu[2];
    const lnt_recur_args d = decay_call(a, segment_length(a), V, false, cu, w);
    return LNT_V(lnt_decay_chunk).workspace(&d, backward, 1);
}

static lnt_bf16 *carve16(lnt_carve *c, int64_t n) { return lnt_carve_bytes(c, (size_t)n * sizeof(lnt_bf16)); }

static void carve_solver(lnt_carve *c, const lnt_mesa_args *a, solver *s)
{
    const int W = (a->K + 31) / 32 * 32, C = chunk_length(&a->heads, a->chunk && a->chunk < ROWS ? a->chunk : ROWS);
    float **wide[] = { &s->X, &s->R, &s->w, &s->u }, **each[] = { &s->in, &s->out, &s->scale, &s->curve, &s->delta, &s->goal, &s->size };
    lnt_bf16 **narrow[] = { &s->P, &s->keys, &s->writes };
    s->C = C;
    s->W = W;
    s->H = lnt_carve_floats(c, W * W);
    s->rest = lnt_carve_floats(c, W * W);
    for (int i = 0; i < 4; i++) *wide[i] = lnt_carve_floats(c, ROWS * W);
    for (int i = 0; i < 3; i++) *narrow[i] = carve16(c, ROWS * W);
    for (int i = 0; i < 7; i++) *each[i] = lnt_carve_floats(c, ROWS);
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

/* A thread's scratch at base (NULL: only measure); returns its bytes. */
static size_t carve(const lnt_mesa_args *a, bool backward, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    const int64_t K = a->K, V = a->V, S = segment_length(a), longest = a->longest, segments = longest > S ? (longest + S - 1) / S : 1;
    *w = (scratch){ .x = NULL };
    carve_solver(&c, a, &w->s);
    lnt_bf16 **keys[] = { &w->k, &w->kb, &w->x16, &w->y, &w->dkb, &w->dkb2, &w->dvalue }, **values[] = { &w->v, &w->o, &w->dv };
    for (int i = 0; i < (backward ? 7 : 3); i++) *keys[i] = carve16(&c, S * K);
    for (int i = 0; i < (backward ? 3 : 2); i++) *values[i] = carve16(&c, S * V);
    float **each[] = { &w->g, &w->beta, &w->out, &w->dg, &w->dg2 }, **rows[] = { &w->x, &w->e };
    for (int i = 0; i < (backward ? 5 : 2); i++) *each[i] = lnt_carve_floats(&c, S);
    for (int i = 0; i < (backward ? 2 : 1); i++) *rows[i] = lnt_carve_floats(&c, S * K);
    if (!backward) w->G = lnt_carve_floats(&c, K * V);
    w->decay_size = decay_bytes(a, a->V, backward, w);
    if (backward) {
        for (int i = 0; i < 2; i++) {
            w->dG[i] = lnt_carve_floats(&c, K * V);
            w->dH[i] = lnt_carve_floats(&c, K * K);
        }
        for (int i = 0; i < 3; i++) w->row[i] = lnt_carve_floats(&c, K);
        w->Hs = lnt_carve_floats(&c, segments * K * K);
        w->Gs = lnt_carve_floats(&c, segments * K * V);
        w->forms = lnt_carve_bytes(&c, ENGINE->bytes((int)S, a->K, LNT_LEFT_T) + ENGINE->bytes((int)S, a->K > a->V ? a->K : a->V, LNT_RIGHT));
        if (a->Hq < a->Hv) {
            w->dq_sum = lnt_carve_floats(&c, longest * K);
            w->dk_sum = lnt_carve_floats(&c, longest * K);
        }
        const size_t second = decay_bytes(a, a->K, true, w);
        if (second > w->decay_size) w->decay_size = second;
    }
    w->decay = lnt_carve_bytes(&c, w->decay_size);
    return c.used;
}

/* ---- rows of bf16 ---------------------------------------------------------------------------------------------------------------------- */

static const lnt_bf16 *row_at(const void *x, int64_t t, int64_t heads, int64_t h, int64_t width)
{
    return (const lnt_bf16 *)x + (t * heads + h) * width;
}

/* x NULL: zeros. */
static void rows16_in(lnt_bf16 *dst, const void *x, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width)
{
    for (int64_t i = 0; i < n; i++, dst += width) {
        rows_awake(i);
        if (x)
            memcpy(dst, row_at(x, first + i, heads, h, width), (size_t)width * sizeof *dst);
        else
            memset(dst, 0, (size_t)width * sizeof *dst);
    }
}

static void rows16_out(void *y, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width, const lnt_bf16 *src)
{
    for (int64_t i = 0; y && i < n; i++, src += width)
        memcpy((lnt_bf16 *)y + ((first + i) * heads + h) * width, src, (size_t)width * sizeof *src);
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

static bool row_finite16(const lnt_bf16 *x, int64_t n)
{
    vf sum = v_zero();
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) sum += v_load_bf16(x + i) * 0.0f;
    float rest = v_sum(sum);
    for (; i < n; i++) rest += lnt_bf16_to_f32(x[i]) * 0.0f;
    return rest == 0;
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

/* w becomes Op(p) of the j-th row at work, of n vectors; p.w is its curvature. */
INLINE void curve_row(const solver *s, const int n, int j)
{
    const lnt_bf16 *d = s->P + j * s->W;
    const float *l = s->lambda;
    float *w = s->w + j * s->W;
    const vf f = v_set(s->scale[s->row[j]]);
    vf sum[2] = { v_zero(), v_zero() };
    UNROLL for (int v = 0; v < n; v++) {
        const vf p = v_load_bf16(d + v * LNT_VL), y = f * v_load(w + v * LNT_VL) + v_load(l + v * LNT_VL) * p;
        v_store(w + v * LNT_VL, y);
        sum[v % 2] += p * y;
    }
    s->curve[j] = v_sum(sum[0] + sum[1]);
}

/* A step of that row, whose next direction becomes the kept-th. */
INLINE int step_row(const solver *s, const int n, int j, int kept)
{
    const int i = s->row[j], W = s->W;
    const lnt_bf16 *d = s->P + j * W;
    const float *w = s->w + j * W, *m = s->m, before = s->delta[j], curve = s->curve[j];
    float *x = s->X + i * W, *r = s->R + i * W;
    vf p[VECTORS] = { v_zero() }, y[VECTORS] = { v_zero() }, delta[2] = { v_zero(), v_zero() }, square[2] = { v_zero(), v_zero() };
    if (!isfinite(before) || !isfinite(curve)) return LOST;
    if (!(before > 0 && curve > 0)) return STUCK;
    const vf alpha = v_set(before / curve);
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
    const vf ratio = v_set(after / before);
    UNROLL for (int v = 0; v < n; v += 2) {
        const vf low = y[v] + ratio * p[v], high = y[v + 1] + ratio * p[v + 1];
        _mm512_storeu_si512(s->P + kept * W + v * LNT_VL, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
    }
    s->delta[kept] = after;
    s->row[kept] = i;
    return GOES_ON;
}

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

/* The rows at work take a step; those that end leave. */
INLINE int step_rows(const solver *s, const int n, const solution *o, int live, int step, int uncounted)
{
    int kept = 0;
    for (int j = 0; j < live; j++) {
        if (j % 16 == 0) lnt_tiles_awake();
        curve_row(s, n, j);
    }
    for (int j = 0; j < live; j++) {
        if (j % 8 == 0) lnt_tiles_awake();
        const int i = s->row[j], end = step_row(s, n, j, kept);
        kept += end == GOES_ON;
        if (end != GOES_ON) finish(s, o, i, end, end == SOLVED ? step + 1 - uncounted : step > uncounted ? step - uncounted : 0);
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

/* Solve `len` rows of a segment from token t; H goes on with them, but to the segment's end only when `on`. */
static void solve_segment(const lnt_head *x, int64_t t, int64_t len, int C, const lnt_bf16 *b, int64_t stride, solution o, bool on, scratch *w)
{
    const lnt_mesa_args *a = o.a;
    solver *s = &w->s;
    const int K = a->K, W = s->W;
    for (int64_t i = 0; i < len; i += C) {
        const int n = (int)(len - i < C ? len - i : C);
        prepare_chunk(s, a, x->hq, t + i, n, w->g + i, w->beta + i);
        o.t = t + i;
        solve_chunk(s, &o, n, b + i * stride, stride);
        o.x += (int64_t)n * K;
        o.x16 += (int64_t)n * K;
        if (!on && i + C >= len) return;
        const lnt_operand writes = ENGINE->prepare16(LNT_LEFT_T, ROWS, W, s->writes, W, s->writes_forms);
        ENGINE->update(s->in + n - 1, 0, &writes, true, &s->right[0], false, &s->right[1]);
    }
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

/* ---- segments -------------------------------------------------------------------------------------------------------------------------- */

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

/* Gates, strengths, values and written keys of `len` rows from token t. */
static void load_segment(const lnt_head *x, int64_t t, int64_t len, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const float *g = a->g, *beta = a->beta;
    const int64_t K = a->K;
    for (int64_t i = 0; i < len; i++) {
        w->g[i] = g[(t + i) * a->Hv + x->h];
        w->beta[i] = beta[(t + i) * a->Hv + x->h];
        rows_awake(i);
        row_scaled16(w->beta[i], row_at(a->k, t + i, a->Hq, x->hq, K), K, w->kb + i * K);
    }
    rows16_in(w->v, a->v, t, len, a->Hv, x->h, a->V);
}

/* As mesa_cpu.c has it. A query is its own row's alone. */
static bool sound(const lnt_mesa_args *a, int64_t len, const scratch *w)
{
    bool gates = true;
    for (int64_t i = 0; i < len; i++) gates = gates && !isnan(w->g[i]);
    return gates && row_finite16(w->kb, len * a->K) && row_finite16(w->v, len * a->V);
}

static const float *state_at(const void *s, int64_t i, int64_t size) { return s ? (const float *)s + i * size : NULL; }

static void copy_state(float *dst, const float *src, int64_t size)
{
    if (src)
        memcpy(dst, src, (size_t)size * sizeof *dst);
    else
        memset(dst, 0, (size_t)size * sizeof *dst);
}

/* A call on the decay core, which releases the tiles. */
static void run_decay(const lnt_recur_args *d, bool back)
{
    if (back)
        LNT_V(lnt_decay_chunk).backward(d, 1);
    else
        LNT_V(lnt_decay_chunk).forward(d, 1);
    ENGINE->begin();
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V, S = segment_length(a), at = x->index;
    int64_t cu[2];
    scratch work, *w = &work;
    carve(a, false, base, w);
    begin_head(a, x->h, &w->s);
    load_H(&w->s, a->K, state_at(a->h0, at, K * K));
    float *G = a->sT ? (float *)a->sT + at * K * V : w->G;
    const float *before = state_at(a->s0, at, K * V);
    for (int64_t i = 0; i == 0 || i < x->len; i += S, before = G) {
        const int64_t t = x->first + i, len = x->len - i < S ? x->len - i : S;
        bool alone = false;
        if (len) {
            load_segment(x, t, len, w);
            alone = !sound(a, len, w);
            const solution o = { .a = a, .h = x->h, .x = w->x, .f = 1, .x16 = w->x16 };
            solve_segment(x, t, len, alone ? 1 : w->s.C, row_at(a->q, t, a->Hq, x->hq, K), a->Hq * K, o, true, w);
            rows_out(a->x, LINNET_F32, t, len, a->Hv, x->h, K, w->x);
        }
        lnt_recur_args d = decay_call(a, len, a->V, alone, cu, w);
        d.v = w->v;
        d.o = w->o;
        d.s0 = before;
        d.sT = G;
        run_decay(&d, false);
        rows16_out(a->o, t, len, a->Hv, x->h, V, w->o);
    }
    if (a->hT) store_H(&w->s, a->K, (float *)a->hT + at * K * K);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------- */

/* The states before every segment into Hs and Gs: a segment is one write. */
static void sweep(const lnt_head *x, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V, S = segment_length(a), at = x->index;
    void *values = (char *)w->forms + ENGINE->bytes((int)S, a->K, LNT_LEFT_T);
    float *H = w->Hs, *G = w->Gs;
    copy_state(H, state_at(a->h0, at, K * K), K * K);
    copy_state(G, state_at(a->s0, at, K * V), K * V);
    for (int64_t t = x->first; t + S < x->first + x->len; t += S, H += K * K, G += K * V) {
        float sum = 0;
        for (int64_t i = S - 1; i >= 0; i--) {
            w->out[i] = sum;
            sum += ((const float *)a->g)[(t + i) * a->Hv + x->h];
        }
        row_exp(w->out, S);
        const float end = expf(sum);
        for (int64_t i = 0; i < S; i++) {
            rows_awake(i);
            row_scaled16(w->out[i] * ((const float *)a->beta)[(t + i) * a->Hv + x->h], row_at(a->k, t + i, a->Hq, x->hq, K), K, w->kb + i * K);
        }
        const lnt_operand writes = ENGINE->prepare16(LNT_LEFT_T, (int)S, a->K, w->kb, K, w->forms);
        lnt_operand to = ENGINE->prepare16(LNT_RIGHT, (int)S, a->K, row_at(a->k, t, a->Hq, x->hq, K), a->Hq * K, values);
        memcpy(H + K * K, H, (size_t)(K * K) * sizeof *H);
        ENGINE->multiply(LNT_MM_SCALED, &end, &writes, true, &to, false, H + K * K, K);
        to = ENGINE->prepare16(LNT_RIGHT, (int)S, a->V, row_at(a->v, t, a->Hv, x->h, V), a->Hv * V, values);
        memcpy(G + K * V, G, (size_t)(K * V) * sizeof *G);
        ENGINE->multiply(LNT_MM_SCALED, &end, &writes, true, &to, false, G + K * V, V);
    }
}

/* Gradients of a segment's rows from what the two passes and the solve left. */
static void put_gradients(const lnt_head *x, int64_t t, int64_t len, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K;
    float *dbeta = a->dbeta, *dg = a->dg, *first = w->row[0];
    for (int64_t i = 0; i < len; i++) {
        const int64_t at = (t + i) * a->Hv + x->h;
        float *dk = w->dk_sum ? w->dk_sum + (t + i - x->first) * K : w->row[2];
        if (i % 8 == 0) lnt_tiles_awake();
        v_row(w->dkb + i * K, LINNET_BF16, K, first);
        row_add(first, 1.0f, v_row(w->dkb2 + i * K, LINNET_BF16, K, w->row[1]), K);
        if (dbeta) dbeta[at] = row_dot16(w->k + i * K, first, K);
        if (dg) dg[at] = w->dg[i] + w->dg2[i];
        if (!w->dk_sum) memset(dk, 0, (size_t)K * sizeof *dk);
        row_add(dk, w->beta[i], first, K);
        row_add(dk, 1.0f, v_row(w->dvalue + i * K, LINNET_BF16, K, w->row[1]), K);
        if (!w->dk_sum) rows_out(a->dk, LINNET_BF16, t + i, 1, a->Hq, x->hq, K, dk);
    }
    rows16_out(a->dv, t, len, a->Hv, x->h, a->V, w->dv);
    if (w->dq_sum)
        row_add(w->dq_sum + (t - x->first) * K, 1.0f, w->e, len * K);
    else
        rows_out(a->dq, LINNET_BF16, t, len, a->Hq, x->hq, K, w->e);
}

static void swap(float **x)
{
    float *first = x[0];
    x[0] = x[1];
    x[1] = first;
}

/* The rows [t, t+len) with H and G before them; dG[0] and dH[0] (the latter transposed) become the gradients of those. */
static void backward_segment(const lnt_head *x, int64_t t, int64_t len, const float *H, const float *G, double *dlambda, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V;
    int64_t cu[2];
    load_segment(x, t, len, w);
    rows16_in(w->k, a->k, t, len, a->Hq, x->hq, K);
    rows_in(w->x, a->x, LINNET_F32, t, len, a->Hv, x->h, K);
    row_rounded(1, w->x, len * K, w->x16);
    rows16_in(w->o, a->do_, t, len, a->Hv, x->h, V);
    lnt_recur_args d = decay_call(a, len, a->V, false, cu, w);
    d.v = w->v;
    d.do_ = w->o;
    d.s0 = G;
    d.dsT = w->dG[0];
    d.dq = w->y; /* y = G do */
    d.dk = w->dkb;
    d.dv = w->dv;
    d.dg = w->dg;
    d.ds0 = w->dG[1];
    run_decay(&d, true);
    swap(w->dG);

    load_H(&w->s, a->K, H);
    const solution o = { .a = a, .h = x->h, .x = w->e, .f = -1, .x16 = w->y }; /* a row of y is read before it is written */
    solve_segment(x, t, len, w->s.C, w->y, K, o, false, w);
    float *sums = w->row[0];
    memset(sums, 0, (size_t)K * sizeof *sums);
    for (int64_t i = 0; i < len; i++) {
        rows_awake(i);
        row_add_times(K, -1, w->x + i * K, w->e + i * K, sums);
    }
    for (int64_t j = 0; j < K; j++) dlambda[j] += (double)sums[j];

    d = decay_call(a, len, a->K, false, cu, w);
    d.v = w->k;
    d.do_ = w->y;
    d.s0 = H;
    d.dsT = w->dH[0];
    d.dk = w->dkb2;
    d.dv = w->dvalue;
    d.dg = w->dg2;
    d.ds0 = w->dH[1];
    run_decay(&d, true);
    swap(w->dH);
    put_gradients(x, t, len, w);
}

/* The heads that share q and k follow one another in the same scratch: the first clears their sums, the last puts them out. */
static void backward_head(const lnt_head *x, char *base)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V, S = segment_length(a), at = x->index, group = a->Hv / a->Hq;
    double *dlambda = (double *)a->workspace + at * K;
    scratch work, *w = &work;
    carve(a, true, base, w);
    memset(dlambda, 0, (size_t)K * sizeof *dlambda);
    if (w->dq_sum && x->h % group == 0) {
        memset(w->dq_sum, 0, (size_t)(x->len * K) * sizeof(float));
        memset(w->dk_sum, 0, (size_t)(x->len * K) * sizeof(float));
    }
    begin_head(a, x->h, &w->s);
    sweep(x, w);
    copy_state(w->dG[0], state_at(a->dsT, at, K * V), K * V);
    if (a->dhT)
        LNT_V(lnt_transpose)(a->K, a->K, state_at(a->dhT, at, K * K), K, w->dH[0], K);
    else
        copy_state(w->dH[0], NULL, K * K);
    for (int64_t segment = (x->len + S - 1) / S - 1; segment >= 0; segment--) {
        const int64_t i = segment * S, len = x->len - i < S ? x->len - i : S;
        backward_segment(x, x->first + i, len, w->Hs + segment * K * K, w->Gs + segment * K * V, dlambda, w);
    }
    if (a->dh0) LNT_V(lnt_transpose)(a->K, a->K, w->dH[0], K, (float *)a->dh0 + at * K * K, K);
    if (a->ds0) memcpy((float *)a->ds0 + at * K * V, w->dG[0], (size_t)(K * V) * sizeof(float));
    if (w->dq_sum && (x->h + 1) % group == 0) {
        rows_out(a->dq, LINNET_BF16, x->first, x->len, a->Hq, x->hq, K, w->dq_sum);
        rows_out(a->dk, LINNET_BF16, x->first, x->len, a->Hq, x->hq, K, w->dk_sum);
    }
}

/* ---- the implementation ---------------------------------------------------------------------------------------------------------------- */

static size_t each_bytes(const lnt_mesa_args *a, bool backward)
{
    scratch w;
    return carve(a, backward, NULL, &w);
}

static size_t workspace(const void *args, bool backward, int threads)
{
    return (size_t)threads * each_bytes(args, backward) + (backward ? lnt_mesa_partial_bytes(args) : 0);
}

static void forward(const void *args, int threads)
{
    const lnt_mesa_args *a = args;
    walk_heads(&a->heads, threads, false, ENGINE, a->workspace, each_bytes(a, false), forward_head);
}

static void backward(const void *args, int threads)
{
    const lnt_mesa_args *a = args;
    walk_heads(&a->heads, threads, true, ENGINE, (char *)a->workspace + lnt_mesa_partial_bytes(a), each_bytes(a, true), backward_head);
    lnt_mesa_sum_lambda(a);
}

static const char *declines(const void *args, bool back)
{
    const lnt_mesa_args *a = args;
    (void)back;
    if (a->dtype != LINNET_BF16) return "its products round to bf16; the tensors are float32";
    if (a->longest < ROWS) return "the sequences do not fill a chunk";
    if (a->cg_solver != LNT_CG_LEVEL || !a->cg_max_steps) return "it takes level steps, one at least";
    if (a->cg_gradient != LNT_CG_IMPLICIT) return "the gradient through steps is taken in float32";
    if (a->heads.window || a->lambda_varies || a->heads.has_sign) return "windows, Lambdas of tokens and signs are taken in float32";
    return a->K > COLUMNS ? "K is above 256" : NULL;
}

extern const lnt_recur_impl LNT_V(lnt_mesa_chunk);
const lnt_recur_impl LNT_V(lnt_mesa_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL, .declines = declines,
                                              .workspace = workspace, .forward = forward, .backward = backward };
#endif
