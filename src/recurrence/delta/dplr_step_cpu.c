/* The untied delta rule token by token (operators.md#untied):
 *
 *   p = S^T a        S <- diag(r) S + b p^T + k v^T        o = s S^T q        r = e^gk
 *
 * Backward the state in front of the token is made again (token_walk.h):
 *
 *   dq = s (r.(S_{t-1} do) + (p.do) b + (v.do) k)    dS += s q do^T    dv = dS^T k    dp = dS^T b    dk = dS v    db = dS p    da = S_{t-1} dp
 *   dr = the sums of the rows of S_{t-1}.dS          dS_{t-1} = diag(r) dS + a dp^T
 *
 * A panel of columns of S, and of dS, is read twice in either direction: for the sums over its rows, and for all else. It is near the second time. */
#include "recurrence/chunk/token_walk.h"
#include "recurrence/delta/delta.h"

/* The amx variant has nothing to add to avx512 here. */
#if !defined(__AMX_BF16__)

/* Vectors of columns that are worked on side by side. */
enum { PANEL = 4 };

/* A token: q, with the scale, k, a, b and the decays alpha of S's rows [K], v [V]. */
typedef struct {
    float *q, *k, *a, *b, *alpha, *v;
} token;

#define LOAD(p) (part ? v_load_n(p, lanes) : v_load(p))
#define STORE(p, x) (part ? v_store_n(p, x, lanes) : v_store(p, x))

/* S from the state `from`, which may have its place: W vectors of columns from j on, or one of `lanes`. */
INLINE void step_panel(int W, bool part, int lanes, bool read, int K, int64_t V, const token *t, int j, const float *from, float *S, float *o)
{
    vf x[2][PANEL], v[PANEL], y[PANEL];
    from += j, S += j;
    for (int w = 0; w < W; w++) {
        x[0][w] = x[1][w] = y[w] = v_zero();
        v[w] = LOAD(t->v + j + w * LNT_VL);
    }
    int i = 0;
    for (; i + 2 <= K; i += 2) {
        const vf a0 = v_set(t->a[i]), a1 = v_set(t->a[i + 1]);
        for (int w = 0; w < W; w++) {
            x[0][w] += a0 * LOAD(from + i * V + w * LNT_VL);
            x[1][w] += a1 * LOAD(from + (i + 1) * V + w * LNT_VL);
        }
    }
    if (i < K)
        for (int w = 0; w < W; w++) x[0][w] += v_set(t->a[i]) * LOAD(from + i * V + w * LNT_VL);
    for (int w = 0; w < W; w++) x[0][w] += x[1][w];
    for (i = 0; i < K; i++) {
        const vf alpha = v_set(t->alpha[i]), k = v_set(t->k[i]), b = v_set(t->b[i]), q = v_set(t->q[i]);
        for (int w = 0; w < W; w++) {
            const vf s = alpha * LOAD(from + i * V + w * LNT_VL) + b * x[0][w] + k * v[w];
            if (read) y[w] += q * s;
            STORE(S + i * V + w * LNT_VL, s);
        }
    }
    for (int w = 0; read && w < W; w++) STORE(o + j + w * LNT_VL, y[w]);
}

INLINE void step_as(bool read, int K, int V, const token *t, const float *from, float *S, float *o)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) step_panel(PANEL, false, 0, read, K, V, t, j, from, S, o);
    for (; j + LNT_VL <= V; j += LNT_VL) step_panel(1, false, 0, read, K, V, t, j, from, S, o);
    if (j < V) step_panel(1, true, V - j, read, K, V, t, j, from, S, o);
}

/* o NULL: not read. */
static void step(int K, int V, const token *t, const float *from, float *S, float *o)
{
    if (o)
        step_as(true, K, V, t, from, S, o);
    else
        step_as(false, K, V, t, from, S, o);
}

/* Of a token: do [V]; S_{t-1} do, dk, da, db and dr [K]; dv [V]; p.do. */
typedef struct {
    float *d, *reads, *dk, *da, *db, *drows, *dv;
    float written;
} gradients;

/* dS of behind a token becomes dS of before it, by the same columns. */
INLINE void back_panel(int W, bool part, int lanes, int K, int64_t V, const token *t, int j, const float *before, float *dS, gradients *g)
{
    vf d[PANEL], v[PANEL], p[PANEL], dv[PANEL], dp[PANEL], written = v_zero();
    before += j, dS += j;
    for (int w = 0; w < W; w++) {
        p[w] = dv[w] = dp[w] = v_zero();
        d[w] = LOAD(g->d + j + w * LNT_VL);
        v[w] = LOAD(t->v + j + w * LNT_VL);
    }
    for (int i = 0; i < K; i++) {
        const vf q = v_set(t->q[i]), k = v_set(t->k[i]), a = v_set(t->a[i]), b = v_set(t->b[i]);
        vf reads = v_zero();
        for (int w = 0; w < W; w++) {
            const vf S = LOAD(before + i * V + w * LNT_VL), x = LOAD(dS + i * V + w * LNT_VL) + q * d[w];
            p[w] += a * S;
            reads += S * d[w];
            dv[w] += k * x;
            dp[w] += b * x;
            STORE(dS + i * V + w * LNT_VL, x);
        }
        g->reads[i] += v_sum(reads);
    }
    for (int w = 0; w < W; w++) {
        written += p[w] * d[w];
        STORE(g->dv + j + w * LNT_VL, dv[w]);
    }
    for (int i = 0; i < K; i++) {
        const vf alpha = v_set(t->alpha[i]), a = v_set(t->a[i]);
        vf dk = v_zero(), da = v_zero(), db = v_zero(), drow = v_zero();
        for (int w = 0; w < W; w++) {
            const vf S = LOAD(before + i * V + w * LNT_VL), x = LOAD(dS + i * V + w * LNT_VL);
            dk += x * v[w];
            db += x * p[w];
            da += S * dp[w];
            drow += S * x;
            STORE(dS + i * V + w * LNT_VL, alpha * x + a * dp[w]);
        }
        g->dk[i] += v_sum(dk);
        g->db[i] += v_sum(db);
        g->da[i] += v_sum(da);
        g->drows[i] += v_sum(drow);
    }
    g->written += v_sum(written);
}

static void step_back(int K, int V, const token *t, const float *before, float *dS, gradients *g)
{
    float *const sums[] = { g->reads, g->dk, g->da, g->db, g->drows };
    for (int i = 0; i < 5; i++) memset(sums[i], 0, (size_t)K * sizeof(float));
    g->written = 0;
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) back_panel(PANEL, false, 0, K, V, t, j, before, dS, g);
    for (; j + LNT_VL <= V; j += LNT_VL) back_panel(1, false, 0, K, V, t, j, before, dS, g);
    if (j < V) back_panel(1, true, V - j, K, V, t, j, before, dS, g);
}

/* ---- a head ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const lnt_head *x;
    token t;
    float *S, *o; /* [K,V], [V] */
    /* backward: the initial state; the gradient of S; sums over the value heads of a key head [longest,K] */
    lnt_token_walk walk;
    gradients g;
    float *start, *dS, *dq_sum, *dk_sum;
} work;

static size_t carve(const lnt_recur_args *a, bool backward, char *base, work *w)
{
    lnt_carve c = { base, 0 };
    const int64_t K = a->K, V = a->V;
    *w = (work){ .x = NULL };
    float **const keys[] = { &w->t.q, &w->t.k, &w->t.a, &w->t.b, &w->t.alpha };
    for (int i = 0; i < 5; i++) *keys[i] = lnt_carve_floats(&c, K);
    w->t.v = lnt_carve_floats(&c, V);
    if (!backward) {
        w->S = lnt_carve_floats(&c, K * V);
        w->o = lnt_carve_floats(&c, V);
        return c.used;
    }
    float **const sums[] = { &w->g.reads, &w->g.dk, &w->g.da, &w->g.db, &w->g.drows };
    for (int i = 0; i < 5; i++) *sums[i] = lnt_carve_floats(&c, K);
    w->g.d = lnt_carve_floats(&c, V);
    w->g.dv = lnt_carve_floats(&c, V);
    w->walk.size = K * V;
    w->walk.kept = lnt_carve_floats(&c, token_states(a->longest) * K * V);
    w->start = lnt_carve_floats(&c, K * V);
    w->dS = lnt_carve_floats(&c, K * V);
    if (a->Hv > a->Hq) w->dq_sum = lnt_carve_floats(&c, a->longest * K), w->dk_sum = lnt_carve_floats(&c, a->longest * K);
    return c.used;
}

/* Token i. The rows of the one that comes TOKENS_AHEAD later are sent for. */
static void load(const lnt_head *x, int64_t i, work *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t ahead = i + TOKENS_AHEAD, end = x->first + x->len;
    const token *t = &w->t;
    row_ahead(a->q, a->dtype, ahead, end, a->Hq, x->hq, a->K);
    row_ahead(a->k, a->dtype, ahead, end, a->Hq, x->hq, a->K);
    row_ahead(a->a, a->dtype, ahead, end, a->Hv, x->h, a->K);
    row_ahead(a->b, a->dtype, ahead, end, a->Hv, x->h, a->K);
    row_ahead(a->gk, LINNET_F32, ahead, end, a->Hv, x->h, a->K);
    row_ahead(a->v, a->dtype, ahead, end, a->Hv, x->h, a->V);
    rows_in(t->q, a->q, a->dtype, i, 1, a->Hq, x->hq, a->K);
    rows_in(t->k, a->k, a->dtype, i, 1, a->Hq, x->hq, a->K);
    rows_in(t->a, a->a, a->dtype, i, 1, a->Hv, x->h, a->K);
    rows_in(t->b, a->b, a->dtype, i, 1, a->Hv, x->h, a->K);
    rows_in(t->alpha, a->gk, LINNET_F32, i, 1, a->Hv, x->h, a->K);
    rows_in(t->v, a->v, a->dtype, i, 1, a->Hv, x->h, a->V);
    row_scale(t->q, (float)a->scale, a->K);
    row_exp(t->alpha, a->K);
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    work scratch, *w = &scratch;
    carve(a, false, base, w);
    const int64_t size = (int64_t)a->K * a->V, end = x->first + x->len;
    float *S = a->sT ? (float *)a->sT + x->index * size : w->S;
    if (S == w->S || a->sT != a->s0) get_state(x, S, a->s0, size);
    for (int64_t i = x->first; i < end; i++) {
        row_ahead(a->o, a->dtype, i + TOKENS_AHEAD, end, a->Hv, x->h, a->V);
        load(x, i, w);
        step(a->K, a->V, &w->t, S, S, w->o);
        rows_out(a->o, a->dtype, i, 1, a->Hv, x->h, a->V, w->o);
    }
}

/* ---- backward ----------------------------------------------------------------------------------------------------------------------------- */

static void advance(void *p, int64_t row, const float *before, float *after)
{
    work *w = p;
    load(w->x, w->x->first + row, w);
    step(w->x->a->K, w->x->a->V, &w->t, before, after, NULL);
}

static void back(void *p, int64_t row, const float *before)
{
    work *w = p;
    const lnt_head *x = w->x;
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, V = a->V, i = x->first + row;
    const lnt_rows c = { .first = i, .row = row, .n = 1 };
    const float scale = (float)a->scale;
    const token *t = &w->t;
    gradients *g = &w->g;
    load(x, i, w);
    rows_in(g->d, a->do_, a->dtype, i, 1, a->Hv, x->h, V);
    step_back(a->K, a->V, t, before, w->dS, g);
    row_mul(g->reads, t->alpha, K);
    row_scale_add(g->reads, scale, scale * row_dot(t->v, g->d, V), t->k, K);
    row_add(g->reads, scale * g->written, t->b, K);
    put_shared(x, c, g->reads, a->dq, w->dq_sum);
    put_shared(x, c, g->dk, a->dk, w->dk_sum);
    rows_out(a->da, a->dtype, i, 1, a->Hv, x->h, K, g->da);
    rows_out(a->db, a->dtype, i, 1, a->Hv, x->h, K, g->db);
    rows_out(a->dv, a->dtype, i, 1, a->Hv, x->h, V, g->dv);
    if (a->dgk) row_times(K, 1.0f, t->alpha, g->drows, (float *)a->dgk + (i * a->Hv + x->h) * K);
}

static void backward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    work scratch, *w = &scratch;
    carve(a, true, base, w);
    w->x = x;
    w->walk.work = w, w->walk.advance = advance, w->walk.back = back;
    get_state(x, w->start, a->s0, w->walk.size);
    get_state(x, w->dS, a->dsT, w->walk.size);
    token_walk_back(&w->walk, x->len, w->start);
    put_state(x, a->ds0, w->walk.size, w->dS);
}

LNT_TOKEN_FORM(lnt_dplr_recurrent)

#endif
