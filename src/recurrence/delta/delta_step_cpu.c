/* The delta core token by token (operators.md#delta):
 *
 *   u = b (v - S~^T k)        S~ = diag(r) S        S <- S~ + k u^T        o = s S^T q
 *
 * with one decay for all of S, or one for each of its rows, r = e^g. Of a token's several writes, which are a step each, the first decays and the
 * last is read. Backward the state in front of the step is made again (token_walk.h), and with its error e = v - S~^T k
 *
 *   dq = s (S~ do + (u.do) k)    dS += s q do^T    du = dS^T k    db = du.e    dv = b du    dk = dS u - S~ dv
 *   dS~ = dS - k dv^T            dr = the sums of the rows of S_{t-1}.dS~            dS_{t-1} = diag(r) dS~
 *
 * A panel of columns of S, and of dS, is read twice in either direction: for S~^T k and du, and for all else. It is near the second time. */
#include "recurrence/chunk/token_walk.h"
#include "recurrence/delta/delta.h"

/* The amx variant has nothing to add to avx512 here. */
#if !defined(__AMX_BF16__)

/* Vectors of columns that are worked on side by side. */
enum { PANEL = 4 };

/* What a step brings. With a decay for each row alphas [K] and ka = alphas.k; otherwise alpha, alphas NULL, and ka is k. */
typedef struct {
    float alpha, beta, scale;
    bool decays, read; /* the first of its token's writes, and the last */
    float *alphas, *ka, *q, *k, *v;
} token;

/* f(rows, read, ..), both known at compile time: what the core's operators have. */
#define BY_KIND(t, read, f, ...)                                                                                                   \
    ((t)->alphas && (read) ? f(true, true, __VA_ARGS__)                                                                            \
     : (t)->alphas         ? f(true, false, __VA_ARGS__)                                                                           \
     : (read)              ? f(false, true, __VA_ARGS__)                                                                           \
                           : f(false, false, __VA_ARGS__))
#define LOAD(p) (part ? v_load_n(p, lanes) : v_load(p))
#define STORE(p, x) (part ? v_store_n(p, x, lanes) : v_store(p, x))

/* S from the state `from`, which may have its place: W vectors of columns from j on, or one of `lanes`. */
INLINE void step_panel(int W, bool part, int lanes, bool rows, bool read, int K, int64_t V, const token *t, int j, const float *from, float *S,
                       float *o)
{
    const float *q = t->q, *k = t->k, *ka = t->ka, *v = t->v + j;
    const float alpha = t->alpha, beta = t->beta, scale = t->scale;
    from += j, S += j;
    vf x[2][PANEL], u[PANEL], y[PANEL];
    for (int w = 0; w < W; w++) x[0][w] = x[1][w] = y[w] = v_zero();
    int i = 0;
    for (; i + 2 <= K; i += 2) {
        const vf k0 = v_set(ka[i]), k1 = v_set(ka[i + 1]);
        for (int w = 0; w < W; w++) {
            x[0][w] += k0 * LOAD(from + i * V + w * LNT_VL);
            x[1][w] += k1 * LOAD(from + (i + 1) * V + w * LNT_VL);
        }
    }
    if (i < K)
        for (int w = 0; w < W; w++) x[0][w] += v_set(ka[i]) * LOAD(from + i * V + w * LNT_VL);
    for (int w = 0; w < W; w++) u[w] = beta * (LOAD(v + w * LNT_VL) - alpha * (x[0][w] + x[1][w]));
    vf decay = v_set(alpha);
    for (i = 0; i < K; i++) {
        const vf ki = v_set(k[i]), qi = read ? v_set(q[i]) : v_zero();
        if (rows) decay = v_set(t->alphas[i]);
        for (int w = 0; w < W; w++) {
            const vf s = decay * LOAD(from + i * V + w * LNT_VL) + ki * u[w];
            if (read) y[w] += qi * s;
            STORE(S + i * V + w * LNT_VL, s);
        }
    }
    for (int w = 0; read && w < W; w++) STORE(o + j + w * LNT_VL, scale * y[w]);
}

INLINE void step_as(bool rows, bool read, int K, int V, const token *t, const float *from, float *S, float *o)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) step_panel(PANEL, false, 0, rows, read, K, V, t, j, from, S, o);
    for (; j + LNT_VL <= V; j += LNT_VL) step_panel(1, false, 0, rows, read, K, V, t, j, from, S, o);
    if (j < V) step_panel(1, true, V - j, rows, read, K, V, t, j, from, S, o);
}

/* q,k [K], v,o [V], S [K,V]; o NULL: not read. */
static void step(int K, int V, const token *t, const float *from, float *S, float *o) { BY_KIND(t, o, step_as, K, V, t, from, S, o); }

/* Of a step: do; S_{t-1} do [K]; dk [K], dv [V]; dr [K] (with one decay for all their sum); db, and u.do. */
typedef struct {
    float *d, *reads, *dk, *dv, *drows;
    float dalpha, dbeta, written;
} gradients;

/* dS of behind a step becomes dS of before it, by the same columns. */
INLINE void back_panel(int W, bool part, int lanes, bool rows, bool read, int K, int64_t V, const token *t, int j, const float *before, float *dS,
                       gradients *g)
{
    const float *k = t->k, *ka = t->ka;
    vf d[PANEL], u[PANEL], dv[PANEL], sums[3] = { v_zero(), v_zero(), v_zero() }; /* db, u.do, dr of all rows */
    before += j, dS += j;
    for (int w = 0; w < W; w++) {
        u[w] = dv[w] = v_zero(); /* S~^T k and du, first */
        d[w] = read ? LOAD(g->d + j + w * LNT_VL) : v_zero();
    }
    for (int i = 0; i < K; i++) {
        const vf ki = v_set(k[i]), a = v_set(ka[i]), q = v_set(t->scale * t->q[i]);
        vf reads = v_zero();
        for (int w = 0; w < W; w++) {
            const vf S = LOAD(before + i * V + w * LNT_VL);
            vf x = LOAD(dS + i * V + w * LNT_VL);
            u[w] += a * S;
            if (read) {
                reads += S * d[w];
                x += q * d[w];
                STORE(dS + i * V + w * LNT_VL, x);
            }
            dv[w] += ki * x;
        }
        if (read) g->reads[i] += v_sum(reads);
    }
    for (int w = 0; w < W; w++) {
        const vf e = LOAD(t->v + j + w * LNT_VL) - t->alpha * u[w];
        sums[0] += e * dv[w];
        u[w] = t->beta * e;
        sums[1] += u[w] * d[w];
        dv[w] *= t->beta;
        STORE(g->dv + j + w * LNT_VL, dv[w]);
    }
    vf alpha = v_set(t->alpha);
    for (int i = 0; i < K; i++) {
        const vf ki = v_set(k[i]);
        vf dk = v_zero(), drow = v_zero();
        if (rows) alpha = v_set(t->alphas[i]);
        for (int w = 0; w < W; w++) {
            const vf S = LOAD(before + i * V + w * LNT_VL);
            vf x = LOAD(dS + i * V + w * LNT_VL);
            dk += x * u[w] - alpha * S * dv[w];
            x -= ki * dv[w];
            drow += S * x;
            STORE(dS + i * V + w * LNT_VL, alpha * x);
        }
        g->dk[i] += v_sum(dk);
        if (rows)
            g->drows[i] += v_sum(drow);
        else
            sums[2] += drow;
    }
    g->dbeta += v_sum(sums[0]);
    g->written += v_sum(sums[1]);
    g->dalpha += v_sum(sums[2]);
}

INLINE void back_as(bool rows, bool read, int K, int V, const token *t, const float *before, float *dS, gradients *g)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) back_panel(PANEL, false, 0, rows, read, K, V, t, j, before, dS, g);
    for (; j + LNT_VL <= V; j += LNT_VL) back_panel(1, false, 0, rows, read, K, V, t, j, before, dS, g);
    if (j < V) back_panel(1, true, V - j, rows, read, K, V, t, j, before, dS, g);
}

static void step_back(int K, int V, const token *t, const float *before, float *dS, gradients *g)
{
    float *const sums[] = { g->reads, g->dk, g->drows };
    for (int i = 0; i < 3; i++) memset(sums[i], 0, (size_t)K * sizeof(float));
    g->dalpha = g->dbeta = g->written = 0;
    BY_KIND(t, t->read, back_as, K, V, t, before, dS, g);
}

/* ---- a head ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const lnt_head *x;
    token t;
    float *S, *o; /* [K,V], [V] */
    /* backward: the initial state; the gradient of S; sums over the value heads of a key head [longest,K], dk's of all writes */
    lnt_token_walk walk;
    gradients g;
    float *start, *dS, *dq_sum, *dk_sum;
} work;

static size_t carve(const lnt_recur_args *a, bool backward, char *base, work *w)
{
    lnt_carve c = { base, 0 };
    const int64_t K = a->K, V = a->V, steps = a->longest * lnt_recur_writes(a);
    *w = (work){ .t = { .scale = (float)a->scale } };
    w->t.q = lnt_carve_floats(&c, K);
    w->t.k = w->t.ka = lnt_carve_floats(&c, K);
    w->t.v = lnt_carve_floats(&c, V);
    if (a->op->kind == LNT_DELTA_ROWS) {
        w->t.alphas = lnt_carve_floats(&c, K);
        w->t.ka = lnt_carve_floats(&c, K);
    }
    if (!backward) {
        w->S = lnt_carve_floats(&c, K * V);
        w->o = lnt_carve_floats(&c, V);
        return c.used;
    }
    float **const keys[] = { &w->g.reads, &w->g.dk, &w->g.drows }, **const values[] = { &w->g.d, &w->g.dv };
    for (int i = 0; i < 3; i++) *keys[i] = lnt_carve_floats(&c, K);
    for (int i = 0; i < 2; i++) *values[i] = lnt_carve_floats(&c, V);
    w->walk.size = K * V;
    w->walk.kept = lnt_carve_floats(&c, token_states(steps) * K * V);
    w->start = lnt_carve_floats(&c, K * V);
    w->dS = lnt_carve_floats(&c, K * V);
    if (a->Hv > a->Hq) w->dq_sum = lnt_carve_floats(&c, a->longest * K), w->dk_sum = lnt_carve_floats(&c, steps * K);
    return c.used;
}

/* Step n of a head. The rows of the token that comes TOKENS_AHEAD later are sent for. */
static void load(const lnt_head *x, int64_t n, work *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t writes = lnt_recur_writes(a), row = x->first * writes + n, i = row / writes, end = x->first + x->len, K = a->K, V = a->V;
    const int64_t ahead = row + TOKENS_AHEAD * writes;
    token *t = &w->t;
    t->decays = row % writes == 0;
    t->read = (row + 1) % writes == 0;
    row_ahead(a->k, a->dtype, ahead, end * writes, a->Hq, x->hq, K);
    row_ahead(a->v, a->dtype, ahead, end * writes, a->Hv, x->h, V);
    if (t->decays) row_ahead(a->q, a->dtype, i + TOKENS_AHEAD, end, a->Hq, x->hq, K);
    if (t->decays) row_ahead(a->gk, LINNET_F32, i + TOKENS_AHEAD, end, a->Hv, x->h, K);
    if (t->read) rows_in(t->q, a->q, a->dtype, i, 1, a->Hq, x->hq, K);
    rows_in(t->k, a->k, a->dtype, row, 1, a->Hq, x->hq, K);
    rows_in(t->v, a->v, a->dtype, row, 1, a->Hv, x->h, V);
    t->alpha = a->g && t->decays ? expf(((const float *)a->g)[i * a->Hv + x->h]) : 1.0f;
    t->beta = ((const float *)a->beta)[row * a->Hv + x->h];
    if (!t->alphas) return;
    memcpy(t->alphas, (const float *)a->gk + (i * a->Hv + x->h) * K, (size_t)K * sizeof *t->alphas);
    row_exp(t->alphas, K);
    row_times(K, 1.0f, t->alphas, t->k, t->ka);
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    work scratch, *w = &scratch;
    carve(a, false, base, w);
    const int64_t size = (int64_t)a->K * a->V, writes = lnt_recur_writes(a), end = x->first + x->len;
    float *S = a->sT ? (float *)a->sT + x->index * size : w->S;
    if (S == w->S || a->sT != a->s0) get_state(x, S, a->s0, size);
    for (int64_t n = 0; n < x->len * writes; n++) {
        const int64_t i = x->first + n / writes;
        load(x, n, w);
        step(a->K, a->V, &w->t, S, S, w->t.read ? w->o : NULL);
        if (!w->t.read) continue;
        row_ahead(a->o, a->dtype, i + TOKENS_AHEAD, end, a->Hv, x->h, a->V);
        rows_out(a->o, a->dtype, i, 1, a->Hv, x->h, a->V, w->o);
    }
}

/* ---- backward ----------------------------------------------------------------------------------------------------------------------------- */

static void advance(void *p, int64_t n, const float *before, float *after)
{
    work *w = p;
    load(w->x, n, w);
    step(w->x->a->K, w->x->a->V, &w->t, before, after, NULL);
}

static void back(void *p, int64_t n, const float *before)
{
    work *w = p;
    const lnt_head *x = w->x;
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, V = a->V, writes = lnt_recur_writes(a), step_row = x->first * writes + n, i = step_row / writes, at = i * a->Hv + x->h;
    const lnt_rows row = { .first = step_row, .row = n, .n = 1 }, read = { .first = i, .row = n / writes, .n = 1 };
    const token *t = &w->t;
    gradients *g = &w->g;
    load(x, n, w);
    if (t->read) rows_in(g->d, a->do_, a->dtype, i, 1, a->Hv, x->h, V);
    step_back(a->K, a->V, t, before, w->dS, g);
    if (t->read) {
        if (t->alphas) row_mul(g->reads, t->alphas, K);
        row_scale_add(g->reads, t->scale * t->alpha, t->scale * g->written, t->k, K);
        put_shared(x, read, g->reads, a->dq, w->dq_sum);
    }
    put_shared(x, row, g->dk, a->dk, w->dk_sum);
    rows_out(a->dv, a->dtype, step_row, 1, a->Hv, x->h, V, g->dv);
    if (a->dbeta) ((float *)a->dbeta)[step_row * a->Hv + x->h] = g->dbeta;
    if (a->dg && t->decays) ((float *)a->dg)[at] = t->alpha * g->dalpha;
    if (a->dgk) row_times(K, 1.0f, t->alphas, g->drows, (float *)a->dgk + at * K);
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
    token_walk_back(&w->walk, x->len * lnt_recur_writes(a), w->start);
    put_state(x, a->ds0, w->walk.size, w->dS);
}

LNT_TOKEN_FORM(lnt_delta_recurrent)

#endif
