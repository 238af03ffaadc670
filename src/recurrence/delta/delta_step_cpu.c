/* The delta core token by token (operators.md#delta):
 *
 *   u = b (v - e^g S^T k)        S <- e^g S + k u^T        o = s S^T q
 *
 * with one gate for all of S, or one for each of its rows. Of a token's several writes the first decays and the last is read.
 * A panel of columns of S is read twice, once for S^T k and once for the write and the read-out, and is in L1 the second time. */
#include <omp.h>

#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/delta/delta.h"

/* The amx variant has nothing to add to avx512 here. */
#if !defined(__AMX_BF16__)

#define INLINE static inline __attribute__((always_inline))

enum { PANEL = 4, BACKWARD_CHUNK = 16 };

/* A token. alphas [K], ka = alphas.k with a gate for each row; otherwise NULL and k. */
typedef struct {
    float alpha, beta, scale;
    const float *alphas, *ka, *q, *k, *v;
} token;

/* W vectors of columns, or one partial vector of `lanes`, from column j. */
INLINE void step_panel(int W, bool part, int lanes, bool rows, bool read, int K, int64_t V, const token *t, int j, float *S, float *o)
{
    const float *q = t->q, *k = t->k, *ka = t->ka, *v = t->v + j;
    float alpha = t->alpha, beta = t->beta, scale = t->scale;
    S += j;
    if (read) o += j;
#define LOAD(p) (part ? v_load_n(p, lanes) : v_load(p))
    vf x[2][PANEL], u[PANEL], y[PANEL];
    for (int w = 0; w < W; w++) x[0][w] = x[1][w] = y[w] = v_zero();
    int i = 0;
    for (; i + 2 <= K; i += 2) {
        vf k0 = v_set(ka[i]), k1 = v_set(ka[i + 1]);
        for (int w = 0; w < W; w++) {
            x[0][w] += k0 * LOAD(S + i * V + w * LNT_VL);
            x[1][w] += k1 * LOAD(S + (i + 1) * V + w * LNT_VL);
        }
    }
    if (i < K)
        for (int w = 0; w < W; w++) x[0][w] += v_set(ka[i]) * LOAD(S + i * V + w * LNT_VL);
    for (int w = 0; w < W; w++) u[w] = beta * (LOAD(v + w * LNT_VL) - alpha * (x[0][w] + x[1][w]));
    vf decay = v_set(alpha);
    for (i = 0; i < K; i++) {
        vf ki = v_set(k[i]), qi = read ? v_set(q[i]) : v_zero();
        if (rows) decay = v_set(t->alphas[i]);
        for (int w = 0; w < W; w++) {
            float *p = S + i * V + w * LNT_VL;
            vf s = decay * LOAD(p) + ki * u[w];
            if (read) y[w] += qi * s;
            if (part)
                v_store_n(p, s, lanes);
            else
                v_store(p, s);
        }
    }
    for (int w = 0; read && w < W; w++) {
        if (part)
            v_store_n(o + w * LNT_VL, scale * y[w], lanes);
        else
            v_store(o + w * LNT_VL, scale * y[w]);
    }
#undef LOAD
}

INLINE void step_as(bool rows, bool read, int K, int V, const token *t, float *S, float *o)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) step_panel(PANEL, false, 0, rows, read, K, V, t, j, S, o);
    for (; j + LNT_VL <= V; j += LNT_VL) step_panel(1, false, 0, rows, read, K, V, t, j, S, o);
    if (j < V) step_panel(1, true, V - j, rows, read, K, V, t, j, S, o);
}

/* q,k [K], v,o [V], S [K,V]; o NULL: not read. */
static void step(int K, int V, const token *t, float *S, float *o)
{
    if (t->alphas)
        step_as(true, true, K, V, t, S, o);
    else if (o)
        step_as(false, true, K, V, t, S, o);
    else
        step_as(false, false, K, V, t, S, o);
}

typedef struct {
    float *S, *q, *k, *v, *o, *alphas, *ka; /* [K,V], [K], [K], [V], [V], [K] twice */
} work;

static size_t carve(work *w, const lnt_recur_args *a, char *base)
{
    lnt_carve c = { base, 0 };
    w->S = lnt_carve_floats(&c, (int64_t)a->K * a->V);
    w->q = lnt_carve_floats(&c, a->K);
    w->k = lnt_carve_floats(&c, a->K);
    w->v = lnt_carve_floats(&c, a->V);
    w->o = lnt_carve_floats(&c, a->V);
    w->alphas = lnt_carve_floats(&c, a->K);
    w->ka = lnt_carve_floats(&c, a->K);
    return c.used;
}

static void forward_head(const lnt_recur_args *a, work *w, int64_t n, int h)
{
    int64_t size = (int64_t)a->K * a->V, index = n * a->Hv + h;
    const int hq = h / (a->Hv / a->Hq), writes = lnt_recur_writes(a);
    float *S = a->sT ? (float *)a->sT + index * size : w->S;
    const float *s0 = a->s0 ? (const float *)a->s0 + index * size : NULL, *g = a->g, *beta = a->beta;
    if (!s0)
        memset(S, 0, (size_t)size * sizeof *S);
    else if (S != s0)
        memcpy(S, s0, (size_t)size * sizeof *S);
    const int64_t end = a->cu_seqlens[n + 1];
    for (int64_t t = a->cu_seqlens[n]; t < end; t++) {
        const int64_t ahead = (t + TOKENS_AHEAD) * writes;
        row_ahead(a->q, a->dtype, t + TOKENS_AHEAD, end, a->Hq, hq, a->K);
        row_ahead(a->gk, LINNET_F32, t + TOKENS_AHEAD, end, a->Hv, h, a->K);
        row_ahead(a->o, a->dtype, t + TOKENS_AHEAD, end, a->Hv, h, a->V);
        for (int64_t u = ahead; u < ahead + writes; u++) {
            row_ahead(a->k, a->dtype, u, end * writes, a->Hq, hq, a->K);
            row_ahead(a->v, a->dtype, u, end * writes, a->Hv, h, a->V);
        }
        rows_in(w->q, a->q, a->dtype, t, 1, a->Hq, hq, a->K);
        for (int64_t u = t * writes; u < (t + 1) * writes; u++) {
            rows_in(w->k, a->k, a->dtype, u, 1, a->Hq, hq, a->K);
            rows_in(w->v, a->v, a->dtype, u, 1, a->Hv, h, a->V);
            const float alpha = g && u == t * writes ? expf(g[t * a->Hv + h]) : 1.0f;
            token x = { alpha, beta[u * a->Hv + h], (float)a->scale, NULL, w->k, w->q, w->k, w->v };
            if (a->op->kind == LNT_DELTA_ROWS) {
                memcpy(w->alphas, (const float *)a->gk + (t * a->Hv + h) * a->K, (size_t)a->K * sizeof *w->alphas);
                row_exp(w->alphas, a->K);
                row_times(a->K, 1.0f, w->alphas, w->k, w->ka);
                x.alphas = w->alphas;
                x.ka = w->ka;
            }
            step(a->K, a->V, &x, S, u + 1 == (t + 1) * writes ? w->o : NULL);
        }
        rows_out(a->o, a->dtype, t, 1, a->Hv, h, a->V, w->o);
    }
}

static void forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    work measured;
    size_t each = carve(&measured, a, NULL);
    int64_t heads = a->sequences * a->Hv;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (heads > 1)
    for (int64_t i = 0; i < heads; i++) {
        work w;
        carve(&w, a, (char *)a->workspace + (size_t)omp_get_thread_num() * each);
        forward_head(a, &w, i / a->Hv, (int)(i % a->Hv));
    }
}

/* Backward is the chunk form's, in chunks short enough that a handful of tokens costs little: the same gradients, exactly. */
extern const lnt_recur_impl LNT_V(lnt_delta_chunk);

static lnt_recur_args short_chunks(const lnt_recur_args *a)
{
    lnt_recur_args b = *a;
    if (b.chunk == 0) b.chunk = BACKWARD_CHUNK;
    return b;
}

static const char *declines(const void *args, bool back) { return back ? LNT_V(lnt_delta_chunk).declines(args, true) : NULL; }

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_recur_args *a = args;
    lnt_recur_args b = short_chunks(a);
    work measured;
    return back ? LNT_V(lnt_delta_chunk).workspace(&b, true, threads) : (size_t)threads * carve(&measured, a, NULL);
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    lnt_recur_args b = short_chunks(a);
    LNT_V(lnt_delta_chunk).backward(&b, threads);
}

extern const lnt_recur_impl LNT_V(lnt_delta_recurrent);
const lnt_recur_impl LNT_V(lnt_delta_recurrent) = {
    .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL, .declines = declines, .workspace = workspace,
    .forward = forward, .backward = backward};

#endif
