/* The untied delta rule token by token:
 *
 *   p = S^T a        S <- diag(e^gk) S + b p^T + k v^T        o = s S^T q
 *
 * A panel of columns of S is read twice, once for S^T a and once for the writes and the read-out, and is in L1 the second time. */
#include <omp.h>

#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/delta/delta.h"

/* The amx variant has nothing to add to avx512 here. */
#if !defined(__AMX_BF16__)

#define INLINE static inline __attribute__((always_inline))

enum { PANEL = 4, BACKWARD_CHUNK = 16 };

/* A token: q, with the scale, k, a, b and the decays alpha of S's rows [K], v [V]. */
typedef struct {
    float *q, *k, *a, *b, *alpha, *v;
} token;

/* W vectors of columns, or one partial vector of `lanes`, from column j. */
INLINE void step_panel(int W, bool part, int lanes, int K, int64_t V, const token *t, int j, float *S, float *o)
{
#define LOAD(p) (part ? v_load_n(p, lanes) : v_load(p))
#define STORE(p, x) (part ? v_store_n(p, x, lanes) : v_store(p, x))
    vf x[2][PANEL], v[PANEL], y[PANEL];
    S += j;
    o += j;
    for (int w = 0; w < W; w++) {
        x[0][w] = x[1][w] = y[w] = v_zero();
        v[w] = LOAD(t->v + j + w * LNT_VL);
    }
    int i = 0;
    for (; i + 2 <= K; i += 2) {
        const vf a0 = v_set(t->a[i]), a1 = v_set(t->a[i + 1]);
        for (int w = 0; w < W; w++) {
            x[0][w] += a0 * LOAD(S + i * V + w * LNT_VL);
            x[1][w] += a1 * LOAD(S + (i + 1) * V + w * LNT_VL);
        }
    }
    if (i < K)
        for (int w = 0; w < W; w++) x[0][w] += v_set(t->a[i]) * LOAD(S + i * V + w * LNT_VL);
    for (int w = 0; w < W; w++) x[0][w] += x[1][w];
    for (i = 0; i < K; i++) {
        const vf alpha = v_set(t->alpha[i]), k = v_set(t->k[i]), b = v_set(t->b[i]), q = v_set(t->q[i]);
        for (int w = 0; w < W; w++) {
            float *at = S + i * V + w * LNT_VL;
            const vf s = alpha * LOAD(at) + b * x[0][w] + k * v[w];
            y[w] += q * s;
            STORE(at, s);
        }
    }
    for (int w = 0; w < W; w++) STORE(o + w * LNT_VL, y[w]);
#undef LOAD
#undef STORE
}

static void step(int K, int V, const token *t, float *S, float *o)
{
    int j = 0;
    for (; j + PANEL * LNT_VL <= V; j += PANEL * LNT_VL) step_panel(PANEL, false, 0, K, V, t, j, S, o);
    for (; j + LNT_VL <= V; j += LNT_VL) step_panel(1, false, 0, K, V, t, j, S, o);
    if (j < V) step_panel(1, true, V - j, K, V, t, j, S, o);
}

typedef struct {
    token t;
    float *S, *o; /* [K,V], [V] */
} work;

static size_t carve(work *w, const lnt_recur_args *a, char *base)
{
    lnt_carve c = { base, 0 };
    w->S = lnt_carve_floats(&c, (int64_t)a->K * a->V);
    w->o = lnt_carve_floats(&c, a->V);
    float **const keys[] = { &w->t.q, &w->t.k, &w->t.a, &w->t.b, &w->t.alpha };
    for (int i = 0; i < 5; i++) *keys[i] = lnt_carve_floats(&c, a->K);
    w->t.v = lnt_carve_floats(&c, a->V);
    return c.used;
}

static void forward_head(const lnt_recur_args *a, work *w, int64_t n, int h)
{
    const int64_t size = (int64_t)a->K * a->V, index = n * a->Hv + h;
    const int hq = h / (a->Hv / a->Hq);
    const token *t = &w->t;
    float *S = a->sT ? (float *)a->sT + index * size : w->S;
    const float *s0 = a->s0 ? (const float *)a->s0 + index * size : NULL;
    if (!s0)
        memset(S, 0, (size_t)size * sizeof *S);
    else if (S != s0)
        memcpy(S, s0, (size_t)size * sizeof *S);
    const int64_t end = a->cu_seqlens[n + 1];
    for (int64_t i = a->cu_seqlens[n]; i < end; i++) {
        row_ahead(a->q, a->dtype, i + TOKENS_AHEAD, end, a->Hq, hq, a->K);
        row_ahead(a->k, a->dtype, i + TOKENS_AHEAD, end, a->Hq, hq, a->K);
        row_ahead(a->a, a->dtype, i + TOKENS_AHEAD, end, a->Hv, h, a->K);
        row_ahead(a->b, a->dtype, i + TOKENS_AHEAD, end, a->Hv, h, a->K);
        row_ahead(a->gk, LINNET_F32, i + TOKENS_AHEAD, end, a->Hv, h, a->K);
        row_ahead(a->v, a->dtype, i + TOKENS_AHEAD, end, a->Hv, h, a->V);
        row_ahead(a->o, a->dtype, i + TOKENS_AHEAD, end, a->Hv, h, a->V);
        rows_in(t->q, a->q, a->dtype, i, 1, a->Hq, hq, a->K);
        rows_in(t->k, a->k, a->dtype, i, 1, a->Hq, hq, a->K);
        rows_in(t->a, a->a, a->dtype, i, 1, a->Hv, h, a->K);
        rows_in(t->b, a->b, a->dtype, i, 1, a->Hv, h, a->K);
        rows_in(t->alpha, a->gk, LINNET_F32, i, 1, a->Hv, h, a->K);
        rows_in(t->v, a->v, a->dtype, i, 1, a->Hv, h, a->V);
        row_scale(t->q, (float)a->scale, a->K);
        row_exp(t->alpha, a->K);
        step(a->K, a->V, t, S, w->o);
        rows_out(a->o, a->dtype, i, 1, a->Hv, h, a->V, w->o);
    }
}

static void forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    work measured;
    const size_t each = carve(&measured, a, NULL);
    const int64_t heads = a->sequences * a->Hv;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (heads > 1)
    for (int64_t i = 0; i < heads; i++) {
        work w;
        carve(&w, a, (char *)a->workspace + (size_t)omp_get_thread_num() * each);
        forward_head(a, &w, i / a->Hv, (int)(i % a->Hv));
    }
}

/* Backward is the chunk form's, in chunks short enough that a handful of tokens costs little: the same gradients, exactly. */
extern const lnt_recur_impl LNT_V(lnt_dplr_chunk);

static lnt_recur_args short_chunks(const lnt_recur_args *a)
{
    lnt_recur_args b = *a;
    if (b.chunk == 0) b.chunk = BACKWARD_CHUNK;
    return b;
}

static const char *declines(const void *args, bool back) { return back ? LNT_V(lnt_dplr_chunk).declines(args, true) : NULL; }

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_recur_args *a = args;
    const lnt_recur_args b = short_chunks(a);
    work measured;
    return back ? LNT_V(lnt_dplr_chunk).workspace(&b, true, threads) : (size_t)threads * carve(&measured, a, NULL);
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args b = short_chunks(args);
    LNT_V(lnt_dplr_chunk).backward(&b, threads);
}

extern const lnt_recur_impl LNT_V(lnt_dplr_recurrent);
const lnt_recur_impl LNT_V(lnt_dplr_recurrent) = {
    .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL, .declines = declines, .workspace = workspace,
    .forward = forward, .backward = backward};

#endif
