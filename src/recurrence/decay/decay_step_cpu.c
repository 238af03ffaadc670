/* The decay core token by token, one pass over the state in either direction (operators.md#decay, #vector-decay):
 *
 *   S <- diag(r) S diag(c) + k v^T          o = s S^T q,   or, read before the write with a bonus u,   o = s (S + (u.k) v^T)^T q
 *
 * with r and c the decays of the token, e^g with their signs. Backward the state in front of the token is made again (token_walk.h); with
 * P = S_{t-1}.dS_t, dS_t being what its reader and all behind it give,
 *
 *   dq = s (r.(S_{t-1} (c.do)) + (v.do) k)      dS_t += s q do^T      dk = dS_t v      dv = dS_t^T k
 *   dr = P c      dc = P^T r      dS_{t-1} = diag(r) dS_t diag(c)
 *
 * and of one decay for all of S the sum of P. No difference is taken, and a decay's gradient is that of its logarithm only when it is multiplied with
 * the decay: both are right at 0. The normalised read-out divides do by its denominator first, and has z beside S; mLSTM: decay_stable.h. */
#include "recurrence/chunk/token_walk.h"
#include "recurrence/decay/decay.h"
#include "recurrence/decay/decay_stable.h"
#include "recurrence/decay/decay_sums.h"

/* The amx variant has nothing to add to avx512 here. */
#if !defined(__AMX_BF16__)

/* Vectors of columns that are worked on side by side. */
enum { PANEL = 4 };

/* What a token brings: decays of S's rows (NULL: alpha for all) and columns (NULL: 1). */
typedef struct {
    float alpha, size, scale; /* alpha is size with its sign */
    bool early;
    float own; /* early: q.(u.k) */
    bool taken; /* mLSTM: m is i; the write strength, which k has by now, and the floor */
    float write, floor;
    float *rows, *columns, *q, *k, *v, *uk; /* uk: u.k */
} token;

/* f(rows, columns, early, ..), the three known at compile time: what the core's operators have. */
#define BY_DECAYS(t, f, ...)                                                                                                       \
    ((t)->early                  ? f(true, false, true, __VA_ARGS__)                                                               \
     : (t)->rows && (t)->columns ? f(true, true, false, __VA_ARGS__)                                                               \
     : (t)->rows                 ? f(true, false, false, __VA_ARGS__)                                                              \
     : (t)->columns              ? f(false, true, false, __VA_ARGS__)                                                              \
                                 : f(false, false, false, __VA_ARGS__))
#define LOAD(p) (part ? v_load_n(p, lanes) : v_load(p))
#define STORE(p, x) (part ? v_store_n(p, x, lanes) : v_store(p, x))

/* S = diag(r) from diag(c) + k v^T, and with `read` o = s S^T q (early: of `from`, and q.(u.k) v), in one pass: P vectors of columns from j on, or
 * one of `lanes`. */
INLINE void step_columns(int P, bool part, int lanes, bool rows, bool columns, bool early, bool read, int K, int V, const token *t, int j,
                         const float *from, float *S, float *o)
{
    vf value[PANEL], sum[PANEL], column[PANEL];
    for (int p = 0; p < P; p++) {
        const int at = j + p * LNT_VL;
        value[p] = LOAD(t->v + at);
        if (columns) column[p] = LOAD(t->columns + at);
        sum[p] = read && early ? t->own * value[p] : v_zero();
    }
    for (int i = 0; i < K; i++) {
        const int64_t at = (int64_t)i * V + j;
        const vf key = v_set(t->k[i]), query = v_set(t->q[i]), alpha = v_set(rows ? t->rows[i] : t->alpha);
        for (int p = 0; p < P; p++) {
            vf x = LOAD(from + at + p * LNT_VL);
            if (read && early) sum[p] += query * x;
            if (columns) x *= column[p];
            x = x * alpha + key * value[p];
            STORE(S + at + p * LNT_VL, x);
            if (read && !early) sum[p] += query * x;
        }
    }
    for (int p = 0; read && p < P; p++) STORE(o + j + p * LNT_VL, sum[p] * t->scale);
}

INLINE void step_as(bool rows, bool columns, bool early, bool read, int K, int V, const token *t, const float *from, float *S, float *o)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) step_columns(PANEL, false, 0, rows, columns, early, read, K, V, t, j, from, S, o);
    for (; j + LNT_VL <= V; j += LNT_VL) step_columns(1, false, 0, rows, columns, early, read, K, V, t, j, from, S, o);
    if (j < V) step_columns(1, true, V - j, rows, columns, early, read, K, V, t, j, from, S, o);
}

/* From one state to the next, which may have its place; o NULL: not read. */
static void step(int K, int V, const token *t, const float *from, float *S, float *o)
{
    if (o)
        BY_DECAYS(t, step_as, true, K, V, t, from, S, o);
    else
        BY_DECAYS(t, step_as, false, K, V, t, from, S, o);
}

/* Of a token: do, divided by the denominator; what the state before gives its reader [K], which becomes dq; dk [K], dv [V]; dr [K] (without decays of
 * rows their sum), dc [V]. */
typedef struct {
    float *d, *reads, *dk, *dv, *drows, *dcolumns;
    float dalpha;
} gradients;

/* dS of behind a token becomes dS of before it, in one pass, by the same columns. */
INLINE void back_columns(int P, bool part, int lanes, bool rows, bool columns, bool early, int K, int V, const token *t, int j, const float *before,
                         float *dS, gradients *g)
{
    vf value[PANEL], d[PANEL], column[PANEL], dv[PANEL], dcolumn[PANEL], all = v_zero();
    for (int p = 0; p < P; p++) {
        const int at = j + p * LNT_VL;
        value[p] = LOAD(t->v + at);
        d[p] = LOAD(g->d + at);
        if (columns) column[p] = LOAD(t->columns + at);
        dv[p] = dcolumn[p] = v_zero();
    }
    for (int i = 0; i < K; i++) {
        const int64_t at = (int64_t)i * V + j;
        const vf key = v_set(t->k[i]), query = v_set(t->scale * t->q[i]), alpha = v_set(rows ? t->rows[i] : t->alpha);
        vf reads = v_zero(), dk = v_zero(), drow = v_zero();
        for (int p = 0; p < P; p++) {
            vf S = LOAD(before + at + p * LNT_VL), x = LOAD(dS + at + p * LNT_VL);
            if (!early) x += query * d[p];
            dk += x * value[p];
            dv[p] += x * key;
            if (columns) {
                dcolumn[p] += alpha * S * x;
                S *= column[p];
            }
            reads += S * d[p];
            drow += S * x;
            x *= alpha;
            if (columns) x *= column[p];
            if (early) x += query * d[p];
            STORE(dS + at + p * LNT_VL, x);
        }
        g->reads[i] += v_sum(reads);
        g->dk[i] += v_sum(dk);
        if (rows)
            g->drows[i] += v_sum(drow);
        else
            all += drow;
    }
    if (!rows) g->dalpha += v_sum(all);
    for (int p = 0; p < P; p++) {
        STORE(g->dv + j + p * LNT_VL, dv[p]);
        if (columns) STORE(g->dcolumns + j + p * LNT_VL, dcolumn[p]);
    }
}

INLINE void back_as(bool rows, bool columns, bool early, int K, int V, const token *t, const float *before, float *dS, gradients *g)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) back_columns(PANEL, false, 0, rows, columns, early, K, V, t, j, before, dS, g);
    for (; j + LNT_VL <= V; j += LNT_VL) back_columns(1, false, 0, rows, columns, early, K, V, t, j, before, dS, g);
    if (j < V) back_columns(1, true, V - j, rows, columns, early, K, V, t, j, before, dS, g);
}

static void step_back(int K, int V, const token *t, const float *before, float *dS, gradients *g)
{
    float *const sums[] = { g->reads, g->dk, g->drows };
    for (int i = 0; i < 3; i++) memset(sums[i], 0, (size_t)K * sizeof(float));
    g->dalpha = 0;
    BY_DECAYS(t, back_as, K, V, t, before, dS, g);
}

/* ---- a head ------------------------------------------------------------------------------------------------------------------------------- */

/* A thread's scratch. A state is S [K,V] and, normalised, z [K] and m behind it. */
typedef struct {
    const lnt_head *x;
    token t;
    bool stable, normalize;
    float *S, *z, *o; /* [K,V], [K], [V] */
    /* backward: the initial state; the gradients of S and z; S behind the last token (mLSTM) */
    lnt_token_walk walk;
    gradients g;
    float *start, *dS, *dz, *last;
    float *dq_sum, *dk_sum; /* over the value heads of a key head [longest,K] */
    double m_grad, *sums;   /* mLSTM: decay_stable.h; the head's shared sums */
} work;

static int64_t state_size(const lnt_recur_args *a, const work *w) { return (int64_t)a->K * a->V + (w->normalize ? a->K + 1 : 0); }

static size_t carve(const lnt_recur_args *a, bool backward, char *base, work *w)
{
    lnt_carve c = { base, 0 };
    const int kind = a->op->kind;
    const int64_t K = a->K, V = a->V;
    *w = (work){ .t = { .scale = (float)a->scale, .early = kind == LNT_DECAY_EARLY }, .stable = kind == LNT_DECAY_STABLE };
    w->normalize = a->normalize || w->stable;
    w->t.q = lnt_carve_floats(&c, K);
    w->t.k = lnt_carve_floats(&c, K);
    w->t.v = lnt_carve_floats(&c, V);
    w->z = lnt_carve_floats(&c, K);
    if (w->t.early) w->t.uk = lnt_carve_floats(&c, K);
    if (kind >= LNT_DECAY_ROWS) w->t.rows = lnt_carve_floats(&c, K);
    if (kind == LNT_DECAY_BOTH || kind == LNT_DECAY_COLUMNS) w->t.columns = lnt_carve_floats(&c, V);
    if (!backward) {
        w->S = lnt_carve_floats(&c, K * V);
        w->o = lnt_carve_floats(&c, V);
        return c.used;
    }
    const int64_t size = w->walk.size = state_size(a, w);
    float **const keys[] = { &w->g.reads, &w->g.dk, &w->g.drows, &w->dz }, **const values[] = { &w->g.d, &w->g.dv, &w->g.dcolumns };
    for (int i = 0; i < 4; i++) *keys[i] = lnt_carve_floats(&c, K);
    for (int i = 0; i < 3; i++) *values[i] = lnt_carve_floats(&c, V);
    w->start = lnt_carve_floats(&c, size);
    w->walk.kept = lnt_carve_floats(&c, token_states(a->longest) * size);
    w->dS = lnt_carve_floats(&c, K * V);
    if (w->stable) w->last = lnt_carve_floats(&c, K * V);
    if (a->Hv > a->Hq) w->dq_sum = lnt_carve_floats(&c, a->longest * K), w->dk_sum = lnt_carve_floats(&c, a->longest * K);
    return c.used;
}

static void decays(const float *g, const float *sign, int64_t n, float *alpha)
{
    memcpy(alpha, g, (size_t)n * sizeof *g);
    row_exp(alpha, n);
    if (sign) row_mul(alpha, sign, n);
}
static const float *of_token(const void *x, int64_t at, int64_t n) { return x ? (const float *)x + at * n : NULL; }

/* Rows and decays of token i; mLSTM's *m in front of it becomes that behind it. Token i + TOKENS_AHEAD is sent for. */
static void load(const lnt_head *x, int64_t i, float *m, work *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t at = i * a->Hv + x->h, end = x->first + x->len, K = a->K, V = a->V;
    token *t = &w->t;
    row_ahead(a->q, a->dtype, i + TOKENS_AHEAD, end, a->Hq, x->hq, K);
    row_ahead(a->k, a->dtype, i + TOKENS_AHEAD, end, a->Hq, x->hq, K);
    row_ahead(a->v, a->dtype, i + TOKENS_AHEAD, end, a->Hv, x->h, V);
    row_ahead(a->gk, LINNET_F32, i + TOKENS_AHEAD, end, a->Hv, x->h, K);
    row_ahead(a->gv, LINNET_F32, i + TOKENS_AHEAD, end, a->Hv, x->h, V);
    rows_in(t->q, a->q, a->dtype, i, 1, a->Hq, x->hq, K);
    rows_in(t->k, a->k, a->dtype, i, 1, a->Hq, x->hq, K);
    rows_in(t->v, a->v, a->dtype, i, 1, a->Hv, x->h, V);
    float gate = a->g ? ((const float *)a->g)[at] : a->g_head ? ((const float *)a->g_head)[x->h] : 0.0f;
    if (w->stable) {
        const float in = ((const float *)a->i)[at];
        gate = stable_gate(gate, in, m, &t->taken);
        t->write = expf(in - *m);
        t->floor = stable_floor(expf(-*m));
        row_scale(t->k, t->write, K);
    }
    t->size = expf(gate);
    t->alpha = a->has_sign && a->sign ? ((const float *)a->sign)[at] * t->size : t->size;
    if (t->rows) decays((const float *)a->gk + at * K, of_token(a->sign_k, at, K), K, t->rows);
    if (t->columns) decays((const float *)a->gv + at * V, of_token(a->sign_v, at, V), V, t->columns);
    if (t->early) {
        row_times(K, 1.0f, (const float *)a->bonus + (int64_t)x->h * K, t->k, t->uk);
        t->own = row_dot(t->q, t->uk, K);
    }
}

/* The denominator of the token's read-out without eps, from z behind it; and what 1 is divided by. */
static float denominator(const lnt_recur_args *a, const work *w, const float *z, float *whole)
{
    const float den = (float)a->scale * row_dot(w->t.q, z, a->K);
    *whole = w->stable ? stable_denominator(den, w->t.floor, a->eps) : den + (float)a->eps;
    return den;
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    work scratch, *w = &scratch;
    carve(a, false, base, w);
    const int64_t K = a->K, V = a->V, end = x->first + x->len;
    const bool in_place = a->sT != NULL;
    float *S = in_place ? (float *)a->sT + x->index * K * V : w->S, m, whole;
    if (!in_place || a->sT != a->s0) get_state(x, S, a->s0, K * V);
    get_state(x, w->z, a->z0, K);
    get_state(x, &m, a->m0, 1);
    for (int64_t i = x->first; i < end; i++) {
        row_ahead(a->o, a->dtype, i + TOKENS_AHEAD, end, a->Hv, x->h, V);
        load(x, i, &m, w);
        step(a->K, a->V, &w->t, S, S, w->o);
        if (w->normalize) {
            row_scale_add(w->z, w->t.alpha, 1.0f, w->t.k, K);
            denominator(a, w, w->z, &whole);
            row_scale(w->o, 1.0f / whole, V);
        }
        rows_out(a->o, a->dtype, i, 1, a->Hv, x->h, V, w->o);
    }
    put_state(x, a->zT, K, w->z);
    put_state(x, a->mT, 1, &m);
}

/* ---- backward ----------------------------------------------------------------------------------------------------------------------------- */

static void advance(void *p, int64_t row, const float *before, float *after)
{
    work *w = p;
    const lnt_recur_args *a = w->x->a;
    const int64_t K = a->K, size = K * a->V;
    float m = w->normalize ? before[size + K] : 0;
    load(w->x, w->x->first + row, &m, w);
    step(a->K, a->V, &w->t, before, after, NULL);
    if (!w->normalize) return;
    row_next(K, w->t.alpha, before + size, w->t.k, after + size);
    after[size + K] = m;
}

/* The gradients of decays [n] at `at`: dg = decay d, dsign = e^g d. */
static void put_decays(int64_t at, int64_t n, const float *decay, const void *g, const float *d, void *dg, void *dsign)
{
    for (int64_t j = 0; j < n; j++) {
        if (dg) ((float *)dg)[at * n + j] = decay[j] * d[j];
        if (dsign) ((float *)dsign)[at * n + j] = expf(((const float *)g)[at * n + j]) * d[j];
    }
}

/* The bonus: with c = s do.v, dq += c u.k, dk += c u.q, du += c q.k, dv += s (q.(u.k)) do. */
static void put_bonus(const lnt_head *x, float c, float *dq, work *w)
{
    const lnt_recur_args *a = x->a;
    const token *t = &w->t;
    const float *u = (const float *)a->bonus + (int64_t)x->h * a->K;
    for (int64_t i = 0; i < a->K; i++) {
        dq[i] += c * t->uk[i];
        w->g.dk[i] += c * u[i] * t->q[i];
        w->sums[i] += (double)(c * t->q[i]) * t->k[i];
    }
    row_add(w->g.dv, t->scale * t->own, w->g.d, a->V);
}

/* <S,dS> + <z,dz> behind the last token. */
static double end_moved(const lnt_recur_args *a, const float *before, work *w)
{
    step(a->K, a->V, &w->t, before, w->last, NULL);
    return stable_moved(a, w->last, w->dS, w->z, w->dz);
}

/* The gradient of the decay of all of S, and with it mLSTM's others. */
static void put_decay(const lnt_head *x, int64_t at, float pull, work *w)
{
    const lnt_recur_args *a = x->a;
    const token *t = &w->t;
    double dg = (double)t->alpha * w->g.dalpha, di = 0;
    if (w->stable) {
        di = row_dot(t->k, w->g.dk, a->K);
        stable_share(t->taken, pull, &w->m_grad, &dg, &di);
        row_scale(w->g.dk, t->write, a->K);
    }
    if (a->dg) ((float *)a->dg)[at] = (float)dg;
    if (a->di) ((float *)a->di)[at] = (float)di;
    if (a->dsign) ((float *)a->dsign)[at] = t->size * w->g.dalpha;
    if (a->dg_head) *w->sums += dg;
}

static void back(void *p, int64_t row, const float *before)
{
    work *w = p;
    const lnt_head *x = w->x;
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, V = a->V, i = x->first + row, at = i * a->Hv + x->h;
    const lnt_rows c = { .first = i, .row = row, .n = 1 };
    const float *z = before + K * V;
    float m = w->normalize ? z[K] : 0, den = 0, whole = 1, pull = 0;
    token *t = &w->t;
    gradients *g = &w->g;
    load(x, i, &m, w);
    rows_in(g->d, a->do_, a->dtype, i, 1, a->Hv, x->h, V);
    if (w->normalize) {
        row_next(K, t->alpha, z, t->k, w->z);
        den = denominator(a, w, w->z, &whole);
        row_scale(g->d, 1.0f / whole, V);
    }
    if (w->stable && row + 1 == x->len) w->m_grad -= end_moved(a, before, w);
    step_back(a->K, a->V, t, before, w->dS, g);

    float *dq = g->reads;
    const float vd = row_dot(t->v, g->d, V);
    if (t->early) {
        row_scale(dq, t->scale, K);
        put_bonus(x, t->scale * vd, dq, w);
    } else {
        if (t->rows) row_mul(dq, t->rows, K);
        row_scale_add(dq, t->scale * (t->rows ? 1.0f : t->alpha), t->scale * vd, t->k, K);
    }
    if (w->normalize) { /* of the denominator, -(do.o) over it: q.dq is that of the numerators */
        float dden = -row_dot(t->q, dq, K) / whole;
        pull = (float)a->eps * dden;
        if (w->stable) dden = stable_reads(den, t->floor, dden);
        row_add(dq, t->scale * dden, w->z, K);
        row_add(w->dz, t->scale * dden, t->q, K);
        row_add(g->dk, 1.0f, w->dz, K);
        g->dalpha += row_dot(z, w->dz, K);
        row_scale(w->dz, t->alpha, K);
    }
    if (a->gk) put_decays(at, K, t->rows, a->gk, g->drows, a->dgk, a->dsign_k);
    if (a->gv) put_decays(at, V, t->columns, a->gv, g->dcolumns, a->dgv, a->dsign_v);
    put_decay(x, at, pull, w);
    put_shared(x, c, dq, a->dq, w->dq_sum);
    put_shared(x, c, g->dk, a->dk, w->dk_sum);
    rows_out(a->dv, a->dtype, i, 1, a->Hv, x->h, V, g->dv);
}

static void backward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    work scratch, *w = &scratch;
    carve(a, true, base, w);
    const int64_t K = a->K, size = K * a->V;
    w->x = x;
    w->sums = begin_sums(a, x->index);
    w->walk.work = w, w->walk.advance = advance, w->walk.back = back;
    get_state(x, w->start, a->s0, size);
    get_state(x, w->dS, a->dsT, size);
    get_state(x, w->dz, a->dzT, K);
    if (w->normalize) get_state(x, w->start + size, a->z0, K);
    if (w->normalize) get_state(x, w->start + size + K, a->m0, 1);
    w->m_grad = a->dmT ? ((const float *)a->dmT)[x->index] : 0;
    if (w->stable && !x->len) w->m_grad -= stable_moved(a, w->start, w->dS, w->start + size, w->dz); /* the initial state is the final one */
    token_walk_back(&w->walk, x->len, w->start);
    put_state(x, a->ds0, size, w->dS);
    put_state(x, a->dz0, K, w->dz);
    if (a->dm0) ((float *)a->dm0)[x->index] = (float)(w->m_grad + stable_moved(a, w->start, w->dS, w->start + size, w->dz));
}

/* ---- the implementation ------------------------------------------------------------------------------------------------------------------- */

static size_t each_bytes(const lnt_recur_args *a, bool backward)
{
    work w;
    return carve(a, backward, NULL, &w);
}

static size_t workspace(const void *args, bool back, int threads)
{
    return (size_t)threads * each_bytes(args, back) + (back ? sums_bytes(args) : 0);
}

static void forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    walk_heads(a, threads, false, &LNT_V(lnt_mm_f32), a->workspace, each_bytes(a, false), forward_head);
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    walk_heads(a, threads, true, &LNT_V(lnt_mm_f32), (char *)a->workspace + sums_bytes(a), each_bytes(a, true), backward_head);
    put_sums(a);
}

extern const lnt_recur_impl LNT_V(lnt_decay_recurrent);
const lnt_recur_impl LNT_V(lnt_decay_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                   .workspace = workspace, .forward = forward, .backward = backward };

#endif
