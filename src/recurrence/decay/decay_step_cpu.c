/* The decay core token by token, one pass over the state (operators.md#decay, #vector-decay):
 *
 *   S <- diag(e^gk) S diag(e^gv) + k v^T        o = s S^T q,   or, read before the write with a bonus u,   o = s (S + (u.k) v^T)^T q */
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

static void decays(const float *g, int64_t n, float *alpha)
{
    memcpy(alpha, g, (size_t)n * sizeof *g);
    row_exp(alpha, n);
}

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
    for (int64_t i = x->first; i < x->first + x->len; i++) {
        int64_t at = i * a->Hv + x->h;
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
        t.alpha = a->has_sign ? ((const float *)a->sign)[at] * expf(gate) : expf(gate);
        if (t.rows) decays((const float *)a->gk + at * K, K, w->rows);
        if (t.columns) decays((const float *)a->gv + at * V, V, w->columns);
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

/* Backward is the chunk form's. */
extern const lnt_recur_impl LNT_V(lnt_decay_chunk), LNT_V(lnt_decay_recurrent);

static size_t workspace(const void *args, bool back, int threads)
{
    return back ? LNT_V(lnt_decay_chunk).workspace(args, true, threads) : (size_t)threads * each_bytes(args);
}

static void backward(const void *args, int threads) { LNT_V(lnt_decay_chunk).backward(args, threads); }
static const char *declines(const void *args, bool back) { return LNT_V(lnt_decay_chunk).declines(args, back); }

const lnt_recur_impl LNT_V(lnt_decay_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                   .declines = declines, .workspace = workspace, .forward = forward, .backward = backward };
