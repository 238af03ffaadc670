/* The decay core token by token, one pass over the state (operators.md#decay, #vector-decay):
 *
 *   S <- diag(e^gk) S diag(e^gv) + k v^T        o = s S^T q,   or, read before the write with a bonus u,   o = s (S + (u.k) v^T)^T q
 *
 * Backward is the chunk form's, but where e^gk and e^gv have signs: there it goes token by token, too, because a sign's gradient is finite where its
 * decay is 0 only if the decay is left out of it (operators.md#decays-with-a-sign). With A_ij = r_i c_j the decays of a token and P = S_{t-1}.dS_t,
 *
 *   dS_t += s q do^T    dq = s S_t do    dk = dS_t v    dv = dS_t^T k    dr = P c    dc = P^T r    dS_{t-1} = A.dS_t */
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay.h"
#include "recurrence/decay/decay_stable.h"

/* What a token brings: decays of S's rows (NULL: alpha for all) and columns (NULL: 1). */
typedef struct {
    float alpha, scale;
    bool early;
    float own; /* early: q.(u.k) */
    const float *rows, *columns, *q, *k, *v;
} token;

/* S = alpha S + k v^T and o = s S^T q (early: of S before, and q.(u.k) v) in one pass over the state, LNT_VL * P columns at a time, or one vector of
 * `lanes`. */
static inline __attribute__((always_inline)) void step_columns(int P, bool part, int lanes, bool rows, bool columns, bool early, int K, int V,
                                                               const token *t, int j, float *S, float *o)
{
    vf value[4], sum[4], column[4];
    for (int p = 0; p < P; p++) {
        int at = j + p * LNT_VL;
        value[p] = part ? v_load_n(t->v + at, lanes) : v_load(t->v + at);
        if (columns) column[p] = part ? v_load_n(t->columns + at, lanes) : v_load(t->columns + at);
        sum[p] = early ? t->own * value[p] : v_zero();
    }
    for (int i = 0; i < K; i++) {
        float *row = S + (int64_t)i * V + j;
        vf key = v_set(t->k[i]), query = v_set(t->q[i]), alpha = v_set(rows ? t->rows[i] : t->alpha);
        for (int p = 0; p < P; p++) {
            vf x = part ? v_load_n(row, lanes) : v_load(row + p * LNT_VL);
            if (early) sum[p] += query * x;
            if (columns) x *= column[p];
            x = x * alpha + key * value[p];
            if (part)
                v_store_n(row, x, lanes);
            else
                v_store(row + p * LNT_VL, x);
            if (!early) sum[p] += query * x;
        }
    }
    for (int p = 0; p < P; p++) {
        if (part)
            v_store_n(o + j, sum[p] * t->scale, lanes);
        else
            v_store(o + j + p * LNT_VL, sum[p] * t->scale);
    }
}

static inline __attribute__((always_inline)) void step_as(bool rows, bool columns, bool early, int K, int V, const token *t, float *S, float *o)
{
    int j = 0;
    for (; j + 4 * LNT_VL <= V; j += 4 * LNT_VL) step_columns(4, false, 0, rows, columns, early, K, V, t, j, S, o);
    for (; j + LNT_VL <= V; j += LNT_VL) step_columns(1, false, 0, rows, columns, early, K, V, t, j, S, o);
    if (j < V) step_columns(1, true, V - j, rows, columns, early, K, V, t, j, S, o);
}

static void step(int K, int V, const token *t, float *S, float *o)
{
    if (t->early)
        step_as(true, false, true, K, V, t, S, o);
    else if (t->columns && !t->rows)
        step_as(false, true, false, K, V, t, S, o);
    else if (t->columns)
        step_as(true, true, false, K, V, t, S, o);
    else if (t->rows)
        step_as(true, false, false, K, V, t, S, o);
    else
        step_as(false, false, false, K, V, t, S, o);
}

static void decays(const float *g, const float *sign, int64_t n, float *alpha)
{
    memcpy(alpha, g, (size_t)n * sizeof *g);
    row_exp(alpha, n);
    if (sign) row_mul(alpha, sign, n);
}
static const float *of_token(const void *x, int64_t at, int64_t n) { return x ? (const float *)x + at * n : NULL; }

typedef struct {
    float *S, *z, *q, *k, *v, *o, *rows, *columns, *uk; /* [K,V], [K], [K], [K], [V], [V], decays [K] [V], u.k [K] */
} scratch;

static size_t carve(const lnt_recur_args *a, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    int64_t K = a->K, V = a->V;
    *w = (scratch){ .S = lnt_carve_floats(&c, K * V),   .z = lnt_carve_floats(&c, K), .q = lnt_carve_floats(&c, K),
                    .k = lnt_carve_floats(&c, K),       .v = lnt_carve_floats(&c, V), .o = lnt_carve_floats(&c, V),
                    .rows = lnt_carve_floats(&c, K),    .columns = lnt_carve_floats(&c, V), .uk = lnt_carve_floats(&c, K) };
    return c.used;
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    scratch work, *w = &work;
    carve(a, base, w);
    int K = a->K, V = a->V, kind = a->op->kind;
    bool in_place = a->sT != NULL;
    float *S = in_place ? (float *)a->sT + x->index * K * V : w->S, *z = w->z;
    if (!in_place || a->sT != a->s0) get_state(x, S, a->s0, (int64_t)K * V);
    get_state(x, z, a->z0, K);
    float m, taken, floor = 0;
    get_state(x, &m, a->m0, 1);
    const bool stable = kind == LNT_DECAY_STABLE;
    const float *g = a->g, *g_head = a->g_head;
    token t = { .scale = (float)a->scale, .early = kind == LNT_DECAY_EARLY, .q = w->q, .k = w->k, .v = w->v };
    if (kind >= LNT_DECAY_ROWS) t.rows = w->rows;
    if (kind == LNT_DECAY_BOTH || kind == LNT_DECAY_COLUMNS) t.columns = w->columns;
    const int64_t end = x->first + x->len;
    for (int64_t i = x->first; i < end; i++) {
        int64_t at = i * a->Hv + x->h;
        row_ahead(a->q, a->dtype, i + TOKENS_AHEAD, end, a->Hq, x->hq, K);
        row_ahead(a->k, a->dtype, i + TOKENS_AHEAD, end, a->Hq, x->hq, K);
        row_ahead(a->v, a->dtype, i + TOKENS_AHEAD, end, a->Hv, x->h, V);
        row_ahead(a->gk, LINNET_F32, i + TOKENS_AHEAD, end, a->Hv, x->h, K);
        row_ahead(a->gv, LINNET_F32, i + TOKENS_AHEAD, end, a->Hv, x->h, V);
        row_ahead(a->o, a->dtype, i + TOKENS_AHEAD, end, a->Hv, x->h, V);
        rows_in(w->q, a->q, a->dtype, i, 1, a->Hq, x->hq, K);
        rows_in(w->k, a->k, a->dtype, i, 1, a->Hq, x->hq, K);
        rows_in(w->v, a->v, a->dtype, i, 1, a->Hv, x->h, V);
        float gate = g ? g[at] : g_head ? g_head[x->h] : 0.0f;
        if (stable) {
            const float in = ((const float *)a->i)[at];
            gate = stable_gate(gate, in, &m, &taken);
            row_scale(w->k, expf(in - m), K);
            floor = stable_floor(expf(-m));
        }
        t.alpha = a->sign ? ((const float *)a->sign)[at] * expf(gate) : expf(gate);
        if (t.rows) decays((const float *)a->gk + at * K, of_token(a->sign_k, at, K), K, w->rows);
        if (t.columns) decays((const float *)a->gv + at * V, of_token(a->sign_v, at, V), V, w->columns);
        if (t.early) {
            row_times(K, 1.0f, (const float *)a->bonus + (int64_t)x->h * K, w->k, w->uk);
            t.own = row_dot(w->q, w->uk, K);
        }
        step(K, V, &t, S, w->o);
        if (a->normalize || stable) {
            row_scale(z, t.alpha, K);
            row_add(z, 1.0f, w->k, K);
            const float den = (float)a->scale * row_dot(w->q, z, K);
            row_scale(w->o, 1.0f / (stable ? stable_denominator(den, floor, a->eps) : den + (float)a->eps), V);
        }
        rows_out(a->o, a->dtype, i, 1, a->Hv, x->h, V, w->o);
    }
    put_state(x, a->zT, K, z);
    put_state(x, a->mT, 1, &m);
}

static size_t each_bytes(const lnt_recur_args *a)
{
    scratch w;
    return carve(a, NULL, &w);
}

static void forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    walk_heads(a, threads, false, &LNT_V(lnt_mm_f32), a->workspace, each_bytes(a), forward_head);
}

/* ---- backward, with signs ---- */

enum { BLOCK = 16 }; /* tokens whose states are made again at a time, from the one that was kept in front of them */

typedef struct {
    float *kept, *states, *dS;                                              /* in front of every block, of a block's tokens [BLOCK+1,K,V]; [K,V] */
    float *q, *k, *v, *d, *rows, *columns, *drows, *dcolumns, *dq, *dk, *dv, *out; /* of a token [K] or [V]; room [V] */
    float *dq_sum, *dk_sum;                                                 /* over the value heads of a key head [longest,K] */
} turned;

static size_t carve_turned(const lnt_recur_args *a, char *base, turned *w)
{
    lnt_carve c = { base, 0 };
    const int64_t K = a->K, V = a->V, blocks = (a->longest + BLOCK - 1) / BLOCK, shared = a->Hv > a->Hq ? a->longest * K : 0;
    *w = (turned){ .kept = lnt_carve_floats(&c, blocks * K * V) };
    w->states = lnt_carve_floats(&c, (BLOCK + 1) * K * V);
    w->dS = lnt_carve_floats(&c, K * V);
    float **const keys[] = { &w->q, &w->k, &w->rows, &w->drows, &w->dq, &w->dk };
    float **const values[] = { &w->v, &w->d, &w->columns, &w->dcolumns, &w->dv, &w->out };
    for (int i = 0; i < 6; i++) *keys[i] = lnt_carve_floats(&c, K);
    for (int i = 0; i < 6; i++) *values[i] = lnt_carve_floats(&c, V);
    if (shared) w->dq_sum = lnt_carve_floats(&c, shared), w->dk_sum = lnt_carve_floats(&c, shared);
    return c.used;
}

/* Token i's rows and decays; without rows' decays or columns', ones. */
static void load_token(const lnt_head *x, int64_t i, turned *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t at = i * a->Hv + x->h, K = a->K, V = a->V;
    rows_in(w->q, a->q, a->dtype, i, 1, a->Hq, x->hq, K);
    rows_in(w->k, a->k, a->dtype, i, 1, a->Hq, x->hq, K);
    rows_in(w->v, a->v, a->dtype, i, 1, a->Hv, x->h, V);
    for (int64_t j = 0; j < K; j++) w->rows[j] = 1;
    for (int64_t j = 0; j < V; j++) w->columns[j] = 1;
    if (a->gk) decays((const float *)a->gk + at * K, (const float *)a->sign_k + at * K, K, w->rows);
    if (a->gv) decays((const float *)a->gv + at * V, (const float *)a->sign_v + at * V, V, w->columns);
}

static void advance(const lnt_head *x, int64_t i, turned *w, float *S)
{
    load_token(x, i, w);
    const token t = { .scale = 1, .q = w->q, .k = w->k, .v = w->v, .rows = w->rows, .columns = w->columns };
    step(x->a->K, x->a->V, &t, S, w->out);
}

/* The gradients of decays [n] at `at`: dg = decay d, dsign = e^g d. */
static void put_turns(int64_t at, int64_t n, const float *decay, const void *g, const float *d, void *dg, void *dsign)
{
    for (int64_t j = 0; j < n; j++) {
        if (dg) ((float *)dg)[at * n + j] = decay[j] * d[j];
        if (dsign) ((float *)dsign)[at * n + j] = expf(((const float *)g)[at * n + j]) * d[j];
    }
}

static void backward_token(const lnt_head *x, int64_t row, const float *before, const float *S, turned *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t i = x->first + row, at = i * a->Hv + x->h, K = a->K, V = a->V;
    const lnt_rows c = { .first = i, .row = row, .n = 1 };
    load_token(x, i, w);
    memset(w->d, 0, (size_t)V * sizeof *w->d);
    if (a->do_) rows_in(w->d, a->do_, a->dtype, i, 1, a->Hv, x->h, V);
    memset(w->dv, 0, (size_t)V * sizeof *w->dv);
    memset(w->dcolumns, 0, (size_t)V * sizeof *w->dcolumns);
    for (int64_t k = 0; k < K; k++) {
        float *dS = w->dS + k * V;
        w->dq[k] = (float)a->scale * row_dot(S + k * V, w->d, V);
        row_add(dS, (float)a->scale * w->q[k], w->d, V);
        w->dk[k] = row_dot(dS, w->v, V);
        row_add(w->dv, w->k[k], dS, V);
        row_times(V, 1.0f, before + k * V, dS, w->out);
        row_add(w->dcolumns, w->rows[k], w->out, V);
        w->drows[k] = row_dot(w->out, w->columns, V);
        row_times(V, w->rows[k], w->columns, dS, dS);
    }
    put_shared(x, c, w->dq, a->dq, w->dq_sum);
    put_shared(x, c, w->dk, a->dk, w->dk_sum);
    if (a->dv) rows_out(a->dv, a->dtype, i, 1, a->Hv, x->h, V, w->dv);
    if (a->gk) put_turns(at, K, w->rows, a->gk, w->drows, a->dgk, a->dsign_k);
    if (a->gv) put_turns(at, V, w->columns, a->gv, w->dcolumns, a->dgv, a->dsign_v);
}

static void backward_turned(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    turned work = { 0 }, *w = &work;
    carve_turned(a, base, w);
    const int64_t size = (int64_t)a->K * a->V, blocks = (x->len + BLOCK - 1) / BLOCK;
    get_state(x, w->states, a->s0, size);
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(w->kept + b * size, w->states, (size_t)size * sizeof *w->kept);
        for (int64_t r = b * BLOCK; r < least(x->len, (b + 1) * BLOCK); r++) advance(x, x->first + r, w, w->states);
    }
    get_state(x, w->dS, a->dsT, size);
    for (int64_t b = blocks - 1; b >= 0; b--) {
        const int64_t from = b * BLOCK, n = least(x->len - from, BLOCK);
        memcpy(w->states, w->kept + b * size, (size_t)size * sizeof *w->kept);
        for (int64_t r = 0; r < n; r++) {
            float *next = w->states + (r + 1) * size;
            memcpy(next, next - size, (size_t)size * sizeof *next);
            advance(x, x->first + from + r, w, next);
        }
        for (int64_t r = n - 1; r >= 0; r--) backward_token(x, from + r, w->states + r * size, w->states + (r + 1) * size, w);
    }
    put_state(x, a->ds0, size, w->dS);
}

extern const lnt_recur_impl LNT_V(lnt_decay_chunk), LNT_V(lnt_decay_recurrent);

static size_t workspace(const void *args, bool back, int threads)
{
    turned w;
    if (back && lnt_decay_turns(args)) return (size_t)threads * carve_turned(args, NULL, &w);
    return back ? LNT_V(lnt_decay_chunk).workspace(args, true, threads) : (size_t)threads * each_bytes(args);
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    turned w;
    if (lnt_decay_turns(a))
        walk_heads(a, threads, true, &LNT_V(lnt_mm_f32), a->workspace, carve_turned(a, NULL, &w), backward_turned);
    else
        LNT_V(lnt_decay_chunk).backward(args, threads);
}

static const char *declines(const void *args, bool back)
{
    const lnt_recur_args *a = args;
    int64_t states;
    if (!lnt_decay_turns(a)) return LNT_V(lnt_decay_chunk).declines(args, back);
    if (back && (!lnt_mul(a->longest, (int64_t)a->K * a->V, &states) || states > (int64_t)1 << 50)) return "the states of all blocks are too large";
    return NULL;
}

const lnt_recur_impl LNT_V(lnt_decay_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                   .declines = declines, .workspace = workspace, .forward = forward, .backward = backward };
