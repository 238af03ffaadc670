/* The delta core in chunk form, forward and backward (equations: operators.md#delta). Written once in products; an engine (simd/mm.h)
 * runs them in float32 or, for bf16 tensors, through bf16 tiles.
 *
 * Letters: n rows in this chunk, S the state at its start [K,V], s the read-out scale, b_i = beta_i, D the decay mask, e_i = e^{G_i}, l_i = e^{G_n -
 * G_i}. With vector gates e and l are factors of columns of K and Q (chunk/chunk_vector.h): rows that meet a state are scaled before, and D, e, l
 * below are ones. Rows of k and q stand in one stack KQ: k at rows 0..n-1, q from row m on, m = n rounded up to what the engine wants, zeros between.
 *
 * A token may write several times; it decays before the first of its writes and is read behind the last. Then n rows of k, v, beta, gates and E are
 * writes (those of `c` below), and rows of q, o and Q K^T are tokens (w->t), which have the row of D, and the e, of their last write. */
#include "core/memory.h"
#include "recurrence/chunk/chunk_vector.h"
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/delta/delta.h"

typedef struct {
    const lnt_recur_args *a;
    const lnt_head *at;
    const lnt_mm_engine *e;
    int T, C, K, V, m; /* tokens and writes of the longest chunk; m: of the chunk at hand */
    int writes;        /* of a token */
    lnt_rows t;        /* the chunk at hand, as tokens */
    int masked;        /* rows of D when it is ones; 0: it is others */
    bool vector;
    int width, panels; /* columns of V that a state is worked on at a time, and how often that goes into V */
    float scale;
    float *kq;                              /* [m+C, K] */
    float *w;                               /* [m+C, C] K K^T over Q K^T, then masked */
    float *mask, *from_start, *to_end;      /* [C,C] D, [C] e, [C] l */
    float *beta, *write;                    /* [C] b, b l */
    float *gates, *dgates, *reads;          /* several writes: [C] a gate for each and its gradient, [T] e where tokens are read */
    const float *read_start;                /* [T] e of the tokens */
    float *x, *y;                           /* [m+C, V] */
    float *S;                               /* [panels,K,width] */
    lnt_operand *state, grad;               /* [panels] of S, and dS, with their right forms */
    lnt_bf16 *kq16;                         /* the same in bf16, where the engine takes tensors' rows as they are; NULL: it does not */
    void *kq_forms, *k_forms, *w_forms, *x_forms, *S_forms, *y_forms;
    /* backward only */
    char *starts;                           /* [chunks] kept states at chunk starts */
    float *errors;                          /* [longest,V] E */
    float *u, *xs, *us, *pairs, *dS;        /* [C,V] U, [m+C,K], [C,K], [m+C,C], [K,V] */
    float *dG, *dots;                       /* [C] */
    float *dq, *dk;                         /* [longest,K] sums over a group; NULL when group == 1 */
    /* vector gates: [m+C,K] e.KQ, [C,K] l.K, [C,K] what pairs add to dKwrite; for dgk (chunk_vector.h) [C,K] twice, [K] */
    lnt_vector gk;
    float *kqs, *ks, *pair_k, *inside, *through, *last;
    bool tiled;                 /* they go on tiles; then kqs and ks are bf16, and strips have 32 columns of xs and us */
    lnt_bf16 *kqs16, *ks16;
    float *strips[2];
#if defined(__AMX_BF16__)
    lnt_vector_front front;     /* of the chunk at hand */
#endif
    void *kqs_forms, *ks_forms;
    void *u_forms, *pairs_forms, *dS_forms, *dS_t_forms, *start_forms, *do_forms;
} work;

static int stacked(const lnt_mm_engine *e, int n) { return (n + e->row_align - 1) / e->row_align * e->row_align; }

/* Lay a thread's scratch out; base = NULL measures. */
static size_t carve(work *w, const lnt_recur_args *a, const lnt_mm_engine *e, int C, bool backward, char *base)
{
    lnt_carve c = {base, 0};
    int64_t K = a->K, V = a->V, longest = a->longest;
    const int T = chunk_length(a, C), writes = lnt_recur_writes(a);
    const int64_t chunks = (longest + T - 1) / T;
    C = T * writes;
    longest *= writes;
    const int rows = stacked(e, C) + T;
    *w = (work){.a = a,
                .e = e,
                .T = T,
                .C = C,
                .writes = writes,
                .K = a->K,
                .V = a->V,
                .vector = a->op->kind == LNT_DELTA_ROWS,
                .scale = (float)a->scale};
    w->width = a->V % e->panel ? a->V : e->panel;
    w->panels = a->V / w->width;
    w->kq = lnt_carve_floats(&c, rows * K);
    if (e->prepare16 && K % 32 == 0) w->kq16 = lnt_carve_bytes(&c, (size_t)(rows + 16) * (size_t)K * sizeof *w->kq16);
    w->w = lnt_carve_floats(&c, (int64_t)rows * C);
    w->mask = lnt_carve_floats(&c, (int64_t)C * C);
    w->from_start = lnt_carve_floats(&c, C);
    w->to_end = lnt_carve_floats(&c, C);
    w->beta = lnt_carve_floats(&c, C);
    w->write = lnt_carve_floats(&c, C);
    if (writes > 1) {
        w->gates = lnt_carve_floats(&c, C);
        w->dgates = lnt_carve_floats(&c, C);
        w->reads = lnt_carve_floats(&c, T);
    }
    w->x = lnt_carve_floats(&c, rows * V);
    w->y = lnt_carve_floats(&c, rows * V);
    w->S = lnt_carve_floats(&c, K * V);
    w->kq_forms = lnt_carve_bytes(&c, e->bytes(rows, a->K, LNT_LEFT | (backward ? LNT_LEFT_T | LNT_RIGHT : 0)));
    w->k_forms = lnt_carve_bytes(&c, e->bytes(C, a->K, LNT_RIGHT_T | LNT_LEFT_T));
    w->w_forms = lnt_carve_bytes(&c, e->bytes(C, C, LNT_LEFT | LNT_LEFT_T));
    w->x_forms = lnt_carve_bytes(&c, e->bytes(rows, a->V, LNT_LEFT | LNT_RIGHT));
    w->y_forms = lnt_carve_bytes(&c, e->bytes(rows, a->V, LNT_RIGHT));
    w->S_forms = lnt_carve_bytes(&c, (size_t)w->panels * e->bytes(a->K, w->width, LNT_RIGHT));
    w->state = lnt_carve_bytes(&c, (size_t)w->panels * sizeof *w->state);
    if (w->vector) {
        w->gk = LNT_V(lnt_vector_carve)(&c, e, C, a->K);
#if defined(__AMX_BF16__)
        w->tiled = lnt_vector_is_tiled(C, a->K);
#endif
        if (w->tiled) {
            w->kqs16 = lnt_carve_bytes(&c, (size_t)(rows + 16) * (size_t)K * sizeof *w->kqs16);
            w->ks16 = lnt_carve_bytes(&c, (size_t)(C + 16) * (size_t)K * sizeof *w->ks16);
        } else {
            w->kqs = lnt_carve_floats(&c, rows * K);
            w->ks = lnt_carve_floats(&c, C * K);
        }
        w->kqs_forms = lnt_carve_bytes(&c, e->bytes(rows, a->K, LNT_LEFT | LNT_LEFT_T));
        w->ks_forms = lnt_carve_bytes(&c, e->bytes(C, a->K, LNT_LEFT | LNT_LEFT_T));
    }
    if (!backward) return c.used;
    for (int i = 0; w->tiled && i < 2; i++) w->strips[i] = lnt_carve_floats(&c, (int64_t)rows * 32);
    if (w->vector && !w->tiled) {
        w->pair_k = lnt_carve_floats(&c, C * K);
        w->inside = lnt_carve_floats(&c, C * K);
        w->through = lnt_carve_floats(&c, C * K);
    }
    if (w->vector) w->last = lnt_carve_floats(&c, K);
    w->starts = lnt_carve_bytes(&c, (size_t)chunks * e->kept_bytes(a->K, a->V));
    w->errors = lnt_carve_floats(&c, longest * V);
    w->u = lnt_carve_floats(&c, C * V);
    w->xs = lnt_carve_floats(&c, rows * K);
    w->us = lnt_carve_floats(&c, C * K);
    w->pairs = lnt_carve_floats(&c, (int64_t)rows * C);
    w->dS = lnt_carve_floats(&c, K * V);
    w->dG = lnt_carve_floats(&c, C);
    w->dots = lnt_carve_floats(&c, C);
    if (a->Hv > a->Hq) {
        w->dq = lnt_carve_floats(&c, a->longest * K);
        w->dk = lnt_carve_floats(&c, longest * K);
    }
    w->u_forms = lnt_carve_bytes(&c, e->bytes(C, a->V, LNT_LEFT | LNT_RIGHT_T));
    w->pairs_forms = lnt_carve_bytes(&c, e->bytes(rows, C, LNT_LEFT | LNT_LEFT_T));
    w->dS_forms = lnt_carve_bytes(&c, e->bytes(a->K, a->V, LNT_RIGHT));
    w->dS_t_forms = lnt_carve_bytes(&c, e->bytes(a->K, a->V, LNT_RIGHT_T));
    w->start_forms = lnt_carve_bytes(&c, e->bytes(a->K, a->V, LNT_RIGHT_T));
    w->do_forms = lnt_carve_bytes(&c, e->bytes(C, a->V, LNT_RIGHT));
    return c.used;
}

/* A chunk is at hand: its rows as writes. */
static lnt_rows begin(work *w, lnt_rows t)
{
    const int64_t k = w->writes;
    w->t = t;
    return (lnt_rows){ .first = t.first * k, .row = t.row * k, .n = t.n * w->writes, .next = t.next * k, .next_n = t.next_n * k };
}

/* Between the panels of a chunk: a share of the next chunk's rows, few at a time so that they never fill the queue of misses. */
static void share_ahead(const work *w, lnt_rows c, int p, const void *x, lnt_dtype t, int heads, int h, int64_t width)
{
    int64_t from = c.next_n * p / w->panels, to = c.next_n * (p + 1) / w->panels;
    rows_ahead(x, t, c.next + from, to - from, heads, h, width);
}

static void sweep_ahead(const work *w, lnt_rows c, int p)
{
    const lnt_recur_args *a = w->a;
    share_ahead(w, c, p, a->k, a->dtype, a->Hq, w->at->hq, w->K);
    share_ahead(w, c, p, a->v, a->dtype, a->Hv, w->at->h, w->V);
    share_ahead(w, w->t, p, a->g, LINNET_F32, a->Hv, w->at->h, 1);
    share_ahead(w, c, p, a->gk, LINNET_F32, a->Hv, w->at->h, w->K);
    share_ahead(w, c, p, a->beta, LINNET_F32, a->Hv, w->at->h, 1);
}

static void forward_ahead(const work *w, lnt_rows c, int p)
{
    const lnt_recur_args *a = w->a;
    sweep_ahead(w, c, p);
    share_ahead(w, w->t, p, a->q, a->dtype, a->Hq, w->at->hq, w->K);
    share_ahead(w, w->t, p, a->o, a->dtype, a->Hv, w->at->h, w->V);
}

/* Vector gates: w.w = the pairs of KQ and K, decays and all; *kq and *k the scaled rows, which read a state and which are written into one. */
static void vector_front(work *w, lnt_rows c, bool with_q, int kq_forms, int k_forms, lnt_operand *kq, lnt_operand *k)
{
    const lnt_recur_args *a = w->a;
    int64_t K = w->K, size = c.n * K, q = w->m * K;
    const float *x[2] = { w->kq, w->kq + q };
    float *pairs[2] = { w->w, w->w + (int64_t)w->m * w->C };
    LNT_V(lnt_vector_load)(&w->gk, c.n, (const float *)a->gk + (c.first * a->Hv + w->at->h) * K, a->Hv * K, false);
    LNT_V(lnt_vector_pairs)(&w->gk, c.n, 1.0f, with_q ? 2 : 1, x, w->kq, pairs, w->C);
    row_times(size, 1.0f, w->gk.from_start, w->kq, w->kqs);
    row_times(size, 1.0f, w->gk.to_end, w->kq, w->ks);
    if (with_q) {
        memset(w->kqs + size, 0, (size_t)(q - size) * sizeof(float));
        row_times(size, 1.0f, w->gk.from_start, w->kq + q, w->kqs + q);
    }
    *kq = w->e->prepare(kq_forms & (LNT_LEFT | LNT_LEFT_T), with_q ? w->m + c.n : c.n, w->K, w->kqs, K, w->kqs_forms);
    *k = w->e->prepare(k_forms & LNT_LEFT_T ? LNT_LEFT_T : LNT_LEFT, c.n, w->K, w->ks, K, w->ks_forms);
}

#if defined(__AMX_BF16__)
/* The same on tiles, straight from the tensors. */
static void tiled_front(work *w, lnt_rows c, bool with_q, int kq_forms, int k_forms, lnt_operand *kq, lnt_operand *k)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, n = c.n, m = w->m, stride = a->Hq * K, at = (c.first * a->Hq + w->at->hq) * K;
    const lnt_rows16 keys = { (const lnt_bf16 *)a->k + at, stride, n }, queries = { with_q ? (const lnt_bf16 *)a->q + at : NULL, stride, n };
    w->front = (lnt_vector_front){ .n = c.n, .readers = with_q ? 2 : 1, .writers = 1, .g = (const float *)a->gk + (c.first * a->Hv + w->at->h) * K,
                                 .stride = a->Hv * K, .read = { keys, queries }, .write = { keys }, .f_pairs = { 1, 1 }, .f_reads = { 1, 1 },
                                 .pairs = { { w->w }, { w->w + m * w->C } }, .ld = w->C, .reads = { w->kqs16, w->kqs16 + m * K },
                                 .writes = { w->ks16 }, .end = w->gk.end, .back = !(k_forms & LNT_LEFT_T) };
    LNT_V(lnt_vector_front_tiled)(&w->gk, &w->front);
    if (with_q) memset(w->kqs16 + n * K, 0, (size_t)((m - n) * K) * sizeof *w->kqs16);
    *kq = (lnt_operand){ .rows = (int)(with_q ? m + n : n), .cols = w->K, .left = { w->kqs16, K } };
    *k = (lnt_operand){ .rows = c.n, .cols = w->K, .left = { w->ks16, K } };
    w->e->extend(kq, kq_forms & LNT_LEFT_T, w->kqs_forms);
    w->e->extend(k, k_forms & LNT_LEFT_T, w->ks_forms);
}
#endif

/* The gates of the writes, `*stride` apart: a token's decays before its first. NULL: no gate. */
static const float *gates_of(work *w, int64_t *stride)
{
    const lnt_recur_args *a = w->a;
    const float *g = a->g ? (const float *)a->g + w->t.first * a->Hv + w->at->h : NULL;
    *stride = w->writes > 1 ? 1 : a->Hv;
    if (!g || w->writes == 1) return g;
    memset(w->gates, 0, (size_t)w->t.n * (size_t)w->writes * sizeof *w->gates);
    for (int64_t i = 0; i < w->t.n; i++) w->gates[i * w->writes] = g[i * a->Hv];
    return w->gates;
}

/* The stack in bf16, as it lies in the tensors. */
static void stack_rows(work *w, lnt_rows c, bool with_q)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, stride = a->Hq * K, head = w->at->hq * K;
    const size_t row = (size_t)K * sizeof *w->kq16;
    const lnt_bf16 *k = (const lnt_bf16 *)a->k + c.first * stride + head, *q = (const lnt_bf16 *)a->q + w->t.first * stride + head;
    for (int64_t i = 0; i < c.n; i++) {
        rows_awake(i);
        memcpy(w->kq16 + i * K, k + i * stride, row);
    }
    if (!with_q) return;
    memset(w->kq16 + c.n * K, 0, (size_t)(w->m - c.n) * row);
    for (int64_t i = 0; i < w->t.n; i++) {
        rows_awake(i);
        memcpy(w->kq16 + (w->m + i) * K, q + i * stride, row);
    }
}

/* Load k, q (unless !with_q), beta and gates of a chunk; w.w = KQ K^T. KQ and its view K get the forms asked for. */
static void front(work *w, lnt_rows c, bool with_q, int kq_forms, int k_forms, lnt_operand *kq, lnt_operand *k)
{
    const lnt_recur_args *a = w->a;
    w->m = stacked(w->e, c.n);
    const bool back = !(k_forms & LNT_LEFT_T), with_rows = !w->kq16 || (w->vector && !w->tiled) || (back && a->dg);
    if (with_rows) rows_in(w->kq, a->k, a->dtype, c.first, c.n, a->Hq, w->at->hq, w->K);
    if (with_q && with_rows) {
        memset(w->kq + (int64_t)c.n * w->K, 0, (size_t)(w->m - c.n) * (size_t)w->K * sizeof(float));
        rows_in(w->kq + (int64_t)w->m * w->K, a->q, a->dtype, w->t.first, w->t.n, a->Hq, w->at->hq, w->K);
    }
    int64_t stride;
    const float *g = gates_of(w, &stride), *beta = a->beta;
    if (g || w->masked != c.n) LNT_V(lnt_chunk_decay)(c.n, g, stride, w->mask, w->C, w->from_start, w->to_end);
    w->masked = g ? 0 : c.n;
    w->read_start = w->writes > 1 ? w->reads : w->from_start;
    for (int i = 0; w->writes > 1 && i < w->t.n; i++) w->reads[i] = w->from_start[(i + 1) * w->writes - 1];
    for (int i = 0; i < c.n; i++) {
        w->beta[i] = beta[(c.first + i) * a->Hv + w->at->h];
        w->write[i] = w->beta[i] * w->to_end[i];
    }
#if defined(__AMX_BF16__)
    if (w->tiled) {
        tiled_front(w, c, with_q, kq_forms, k_forms, kq, k);
        return;
    }
#endif
    if (w->vector) {
        vector_front(w, c, with_q, kq_forms, k_forms, kq, k);
        return;
    }
    const int rows = with_q ? w->m + w->t.n : c.n;
    if (w->kq16) {
        stack_rows(w, c, with_q);
        *kq = (lnt_operand){ .rows = rows, .cols = w->K, .left = { w->kq16, w->K } };
        w->e->extend(kq, kq_forms & ~LNT_LEFT, w->kq_forms);
    } else {
        *kq = w->e->prepare(kq_forms, rows, w->K, w->kq, w->K, w->kq_forms);
    }
    *k = w->e->view(kq, 0, c.n);
    w->e->extend(k, k_forms, w->k_forms);
    w->e->multiply(LNT_MM_SET, NULL, kq, false, k, true, w->w, w->C);
}

/* The decay of a state over the chunk, and its stride from row to row. */
static const float *state_decay(const work *w, lnt_rows c) { return w->vector ? w->gk.end : &w->from_start[c.n - 1]; }

/* x_ij = f x_ij D_ij r_i c_j for n columns; r, c may be NULL (ones). A row is `step` writes: of D the last one's. */
static void apply_mask(const work *w, int n, int step, float f, const float *r, const float *c, float *x)
{
    for (int i = 0; i < n / step; i++) {
        rows_awake(i);
        float *restrict row = x + (int64_t)i * w->C;
        const float *mask = w->mask + (int64_t)(i * step + step - 1) * w->C;
        float ri = r ? f * r[i] : f;
        if (c)
            for (int j = 0; j < n; j++) row[j] *= ri * mask[j] * c[j];
        else
            for (int j = 0; j < n; j++) row[j] *= ri * mask[j];
    }
}

/* Panel p of the prediction errors, in place of x = K S:  (I + tril(K K^T . D diag(b), -1)) E = V - e.(K S). The matrix is the masked w.w. */
static void solve_errors(work *w, lnt_rows c, int p)
{
    const lnt_recur_args *a = w->a;
    rows_in_less(w->x, a->v, a->dtype, c.first, c.n, a->Hv * w->panels, w->at->h * w->panels + p, w->width, w->from_start);
    LNT_V(lnt_chunk_solve)(false, c.n, w->width, w->w, w->C, w->x, w->width);
}

/* S = e^{G_n} S + K^T (b l . E), panel p of it */
static void update_state(work *w, lnt_rows c, const lnt_operand *k, int p)
{
    rows_scaled(c.n, w->width, 1.0f, w->write, w->x, w->y);
    lnt_operand y = w->e->prepare(LNT_RIGHT, c.n, w->width, w->y, w->width, w->y_forms);
    w->e->update(state_decay(w, c), w->vector, k, true, &y, false, &w->state[p]);
}

/* What a chunk does to and with the columns of the state is done a panel at a time, while it sits in L1. */
static void forward_chunk(work *w, lnt_rows c)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    int width = w->width, heads = a->Hv * w->panels, head = w->at->h * w->panels; /* panels of V as if they were heads */
    lnt_operand kq, k;
    front(w, c, true, LNT_LEFT, LNT_RIGHT_T | LNT_LEFT_T, &kq, &k);
    float *P = w->w + (int64_t)w->m * w->C, *o = w->x + (int64_t)w->m * width;
    apply_mask(w, c.n, 1, 1.0f, NULL, w->beta, w->w);
    apply_mask(w, c.n, w->writes, w->scale, NULL, w->beta, P);
    lnt_operand p = e->prepare(LNT_LEFT, w->t.n, c.n, P, w->C, w->w_forms);
    for (int i = 0; i < w->panels; i++) {
        e->multiply(LNT_MM_SET, NULL, &kq, false, &w->state[i], false, w->x, width); /* K S over Q S */
        solve_errors(w, c, i);
        /* O = s e.(Q S) + P diag(b) E */
        lnt_operand E = e->prepare(LNT_RIGHT, c.n, width, w->x, width, w->x_forms);
        e->multiply(LNT_MM_SET, NULL, &p, false, &E, false, w->y, width);
        rows_out_sum(a->o, a->dtype, w->t.first, w->t.n, heads, head + i, width, w->scale, w->read_start, o, NULL, w->y);
        update_state(w, c, &k, i);
        forward_ahead(w, c, i);
    }
}

/* s0 (zeros without) into panels, and back. */
static void state_in(work *w, int64_t index)
{
    const float *s0 = w->a->s0;
    int64_t size = (int64_t)w->K * w->V;
    for (int p = 0; p < w->panels; p++) {
        float *S = w->S + (int64_t)p * w->K * w->width;
        rows_in(S, s0 ? s0 + index * size : NULL, LINNET_F32, 0, w->K, w->panels, p, w->width);
        w->state[p] = w->e->prepare(LNT_RIGHT, w->K, w->width, S, w->width, (char *)w->S_forms + (size_t)p * w->e->bytes(w->K, w->width, LNT_RIGHT));
    }
}

static void state_out(work *w, int64_t index)
{
    float *sT = w->a->sT;
    int64_t size = (int64_t)w->K * w->V;
    for (int p = 0; sT && p < w->panels; p++)
        rows_out(sT + index * size, LINNET_F32, 0, w->K, w->panels, p, w->width, w->S + (int64_t)p * w->K * w->width);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------- */

/* Forward again, keeping the state at every chunk's start and the prediction errors E. */
static void sweep_chunk(work *w, lnt_rows c, int64_t i, bool last)
{
    int64_t width = w->width;
    lnt_operand kq, k;
    front(w, c, false, LNT_LEFT, LNT_RIGHT_T | LNT_LEFT_T, &kq, &k);
    apply_mask(w, c.n, 1, 1.0f, NULL, w->beta, w->w);
    for (int p = 0; p < w->panels; p++) {
        w->e->keep(&w->state[p], p * w->width, w->V, w->starts + (size_t)i * w->e->kept_bytes(w->K, w->V));
        w->e->multiply(LNT_MM_SET, NULL, &kq, false, &w->state[p], false, w->x, width);
        solve_errors(w, c, p);
        float *E = w->errors + c.row * w->V + p * width;
        for (int64_t r = 0; r < c.n; r++) memcpy(E + r * w->V, w->x + r * width, (size_t)width * sizeof *E);
        if (!last) update_state(w, c, &k, p);
        sweep_ahead(w, c, p);
    }
}

/* dG_i = q_i.dq_i + k_i.dKread_i - k_i.dKwrite_i; the last row also gets <S', dS'> = e^{G_n} <S, dS'> + sum_i k_i . l_i (dS' u_i)
 * (operators.md#gate-gradients). On entry dots holds the second sum's terms. */
static void gate_gradient(work *w, lnt_rows c, const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    int64_t K = w->K;
    float inner = w->from_start[c.n - 1] * w->e->inner(S, w->dS);
    for (int64_t i = 0; i < c.n; i++) {
        const float *ki = w->kq + i * K;
        if (i % 4 == 0) lnt_tiles_awake();
        const int64_t q = (w->m + i / w->writes) * K;
        const float read = (i + 1) % w->writes ? 0.0f : row_dot(w->kq + q, w->xs + q, K);
        w->dG[i] = read + row_dot(ki, w->xs + i * K, K) - row_dot(ki, w->us + i * K, K);
        inner += w->dots[i];
    }
    int64_t stride;
    const float *g = gates_of(w, &stride);
    float *dg = (float *)a->dg + w->t.first * a->Hv + w->at->h;
    LNT_V(lnt_chunk_gate_grad)(c.n, inner, w->dG, NULL, g, w->writes > 1 ? w->dgates : dg, stride);
    for (int64_t i = 0; w->writes > 1 && i < w->t.n; i++) dg[i * a->Hv] = w->dgates[i * w->writes];
}

/* xs += [M; N] . D K and us += ([M; N] . D)^T KQ with vector gates, and dgk by chunk_vector.h. N's diagonal carries no gate and comes last. */
static void vector_key_gradients(work *w, lnt_rows c, const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    int64_t K = w->K, C = w->C, m = w->m, size = c.n * K;
    const float *M = w->pairs, *N = w->pairs + m * C, *q = w->kq + m * K, *both[2] = { M, N };
    float *dq = w->xs + m * K, *out[2] = { w->xs, dq };
    memset(w->pair_k, 0, (size_t)size * sizeof(float));
    LNT_V(lnt_vector_readers)(&w->gk, c.n, 2, both, C, w->kq, out);
    LNT_V(lnt_vector_writers)(&w->gk, c.n, M, C, w->kq, w->pair_k);
    LNT_V(lnt_vector_writers)(&w->gk, c.n, N, C, q, w->pair_k);
    if (a->dgk) {
        w->e->inner_rows(S, w->dS, w->last);
        row_mul(w->last, w->gk.end, K);
        row_times(size, 1.0f, w->kq, w->us, w->through);
        row_times(size, 1.0f, w->kq, w->xs, w->inside);
        row_add_times(size, 1.0f, q, dq, w->inside);
        row_add_times(size, -1.0f, w->kq, w->pair_k, w->inside);
        LNT_V(lnt_vector_gate_grad)(&w->gk, w->last, w->through, w->inside, (float *)a->dgk + (c.first * a->Hv + w->at->h) * K, a->Hv * K);
    }
    row_add(w->us, 1.0f, w->pair_k, size);
    rows_add_diagonal(c.n, N, C, w->kq, K, dq);
    rows_add_diagonal(c.n, N, C, q, K, w->us);
}

#if defined(__AMX_BF16__)
/* dQ, dK and dgk on tiles, from [dZ; dO] in x, U in u and pairs, 32 columns at a time. */
static void tiled_key_gradients(work *w, lnt_rows c, const lnt_operand *x, const lnt_operand *u, const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    const int64_t C = w->C, m = w->m;
    float *xs = w->strips[0], *us = w->strips[1], *dq = xs + m * 32;
    const lnt_vector_back back = { .f = &w->front, .f_state = { -1, w->scale }, .A = { { w->pairs }, { w->pairs + m * C } }, .ld = C,
                                   .dread = { xs, dq }, .dwrite = { us }, .last = a->dgk ? w->last : NULL, .stride = (int64_t)a->Hv * w->K,
                                   .dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + w->at->h) * w->K : NULL };
    if (a->dgk) {
        w->e->inner_rows(S, w->dS, w->last);
        row_mul(w->last, w->gk.end, w->K);
    }
    LNT_V(lnt_vector_back_begin)(&w->gk, &back);
    for (int at = 0; at < w->K; at += 32) {
        const lnt_operand start = w->e->view(S, at, 32), grad = w->e->view(&w->grad, at, 32);
        w->e->multiply(LNT_MM_SET, NULL, x, false, &start, true, xs, 32);
        w->e->multiply(LNT_MM_SET, NULL, u, false, &grad, true, us, 32);
        LNT_V(lnt_vector_back_columns)(&w->gk, &back, at);
        row_add(xs, 1.0f, us, c.n * 32);
        columns_out(w->t, a->Hq, w->at->hq, w->K, at, dq, a->dq, w->dq ? w->xs + m * w->K : NULL);
        columns_out(c, a->Hq, w->at->hq, w->K, at, xs, a->dk, w->dk ? w->xs : NULL);
    }
    if (w->dq) put_shared(w->at, w->t, w->xs + m * w->K, a->dq, w->dq);
    if (w->dk) put_shared(w->at, c, w->xs, a->dk, w->dk);
}
#endif

/* dR of (I + A)^T dR = P^T dO + l.(K dS') into rows 0..n-1 of x, whose rows m.. hold dO; A = tril(b_i K K^T . D, -1), P = s Q K^T . D. */
static void solve_adjoint(work *w, lnt_rows c, const lnt_operand *k, const lnt_operand *dS)
{
    const lnt_mm_engine *e = w->e;
    float *P = w->w + (int64_t)w->m * w->C, *dO = w->x + (int64_t)w->m * w->V;
    apply_mask(w, c.n, 1, 1.0f, w->beta, NULL, w->w);
    apply_mask(w, c.n, w->writes, w->scale, NULL, NULL, P);
    e->multiply(LNT_MM_SET, NULL, k, false, dS, false, w->x, w->V);
    rows_scaled(c.n, w->V, 1.0f, w->to_end, w->x, w->x);
    lnt_operand p = e->prepare(LNT_LEFT_T, w->t.n, c.n, P, w->C, w->w_forms), right = e->prepare(LNT_RIGHT, w->t.n, w->V, dO, w->V, w->do_forms);
    e->multiply(LNT_MM_ADD, NULL, &p, true, &right, false, w->x, w->V);
    LNT_V(lnt_chunk_solve)(true, c.n, w->V, w->w, w->C, w->x, w->V);
}

/* xs = [dKread; dQ] = [-e.(dZ S^T); s e.(dO S^T)] + pairs K          us = dKwrite = l.(U dS'^T) + pairs^T KQ */
static void key_gradients(work *w, lnt_rows c, const lnt_operand *k, const lnt_operand *kq, const lnt_operand *x, const lnt_operand *u,
                          const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    const int64_t K = w->K, C = w->C;
    e->multiply(LNT_MM_SET, NULL, x, false, S, true, w->xs, K);
    key_ahead(w->at, c, a->k);
    e->multiply(LNT_MM_SET, NULL, u, false, &w->grad, true, w->us, K);
    key_ahead(w->at, w->t, a->q);
    if (w->vector) {
        row_times(c.n * K, -1.0f, w->gk.from_start, w->xs, w->xs);
        row_times(c.n * K, w->scale, w->gk.from_start, w->xs + w->m * K, w->xs + w->m * K);
        row_times(c.n * K, 1.0f, w->gk.to_end, w->us, w->us);
        float_ahead(w->at, c, a->gk, K);
        vector_key_gradients(w, c, S);
    } else {
        rows_scaled(c.n, w->K, -1.0f, w->from_start, w->xs, w->xs);
        rows_scaled(w->t.n, w->K, w->scale, w->read_start, w->xs + w->m * K, w->xs + w->m * K);
        rows_scaled(c.n, w->K, 1.0f, w->to_end, w->us, w->us);
        for (int64_t i = 0; a->dg && i < c.n; i++) {
            rows_awake(i);
            w->dots[i] = row_dot(w->kq + i * K, w->us + i * K, K);
        }
        lnt_operand pairs = e->prepare(LNT_LEFT | LNT_LEFT_T, w->m + w->t.n, c.n, w->pairs, C, w->pairs_forms);
        e->multiply(LNT_MM_ADD, NULL, &pairs, false, k, false, w->xs, K);
        e->multiply(LNT_MM_ADD, NULL, &pairs, true, kq, false, w->us, K);
        if (a->dg) gate_gradient(w, c, S);
    }
    put_shared(w->at, w->t, w->xs + w->m * K, a->dq, w->dq);
    for (int64_t i = 0; i < c.n * K; i++) w->xs[i] += w->us[i];
    put_shared(w->at, c, w->xs, a->dk, w->dk);
}

static void backward_chunk(work *w, lnt_rows c, int64_t index)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    int64_t K = w->K, V = w->V, C = w->C;
    const float *E = w->errors + c.row * V;
    lnt_operand kq, k;
    front(w, c, true, LNT_LEFT | LNT_LEFT_T | LNT_RIGHT, LNT_RIGHT_T, &kq, &k);
    int rows = w->m + w->t.n;
    e->extend(&w->grad, LNT_RIGHT_T, w->dS_t_forms);
    rows_in(w->x + w->m * V, a->do_, a->dtype, w->t.first, w->t.n, a->Hv, w->at->h, V);
    rows_ahead_out(a->dv, a->dtype, c.first, c.n, a->Hv, w->at->h, V);
    solve_adjoint(w, c, &k, &w->grad);
    value_ahead(w->at, w->t, a->do_);
    rows_ahead(a->g, LINNET_F32, w->t.next, w->t.next_n, a->Hv, w->at->h, 1);
    rows_ahead(a->beta, LINNET_F32, c.next, c.next_n, a->Hv, w->at->h, 1);

    /* dbeta = rowsum(dR . E), dV = dZ = b.dR, U = b.E */
    float *dbeta = a->dbeta;
    for (int64_t i = 0; dbeta && i < c.n; i++) {
        rows_awake(i);
        dbeta[(c.first + i) * a->Hv + w->at->h] = row_dot(w->x + i * V, E + i * V, V);
    }
    rows_scaled(c.n, w->V, 1.0f, w->beta, w->x, w->x);
    memset(w->x + c.n * V, 0, (size_t)((w->m - c.n) * V) * sizeof(float));
    rows_out(a->dv, a->dtype, c.first, c.n, a->Hv, w->at->h, V, w->x);
    rows_scaled(c.n, w->V, 1.0f, w->beta, E, w->u);

    /* pairs = [dM; dP] . D:  dM = -tril(dZ U^T, -1), dP = s tril(dO U^T, 0) */
    lnt_operand x = e->prepare(LNT_LEFT, rows, w->V, w->x, V, w->x_forms), u = e->prepare(LNT_LEFT | LNT_RIGHT_T, c.n, w->V, w->u, V, w->u_forms);
    e->multiply(LNT_MM_SET, NULL, &x, false, &u, true, w->pairs, C);
    if (!w->dq) rows_ahead_out(a->dq, a->dtype, w->t.first, w->t.n, a->Hq, w->at->hq, K);
    if (!w->dk) rows_ahead_out(a->dk, a->dtype, c.first, c.n, a->Hq, w->at->hq, K);
    apply_mask(w, c.n, 1, -1.0f, NULL, NULL, w->pairs);
    for (int i = 0; i < c.n; i++) w->pairs[i * C + i] = 0.0f;
    apply_mask(w, c.n, w->writes, w->scale, NULL, NULL, w->pairs + w->m * C);

    lnt_operand S = e->kept(LNT_RIGHT_T, w->K, w->V, w->starts + (size_t)index * e->kept_bytes(w->K, w->V), w->start_forms);
#if defined(__AMX_BF16__)
    if (w->tiled) {
        key_ahead(w->at, c, a->k);
        key_ahead(w->at, w->t, a->q);
        float_ahead(w->at, c, a->gk, K);
        tiled_key_gradients(w, c, &x, &u, &S);
    }
#endif
    if (!w->tiled) key_gradients(w, c, &k, &kq, &x, &u, &S);

    /* dS = e^{G_n} dS' + s (e.Q)^T dO - (e.K)^T dZ */
    rows_scaled(c.n, w->V, -1.0f, w->from_start, w->x, w->y);
    memset(w->y + c.n * V, 0, (size_t)((w->m - c.n) * V) * sizeof(float));
    rows_scaled(w->t.n, w->V, w->scale, w->read_start, w->x + w->m * V, w->y + w->m * V);
    lnt_operand y = e->prepare(LNT_RIGHT, rows, w->V, w->y, V, w->y_forms);
    e->update(state_decay(w, c), w->vector, &kq, true, &y, false, &w->grad);
}

/* float32 products serve every variant up to avx512; the amx variant has tiles, for bf16 tensors. */
#if defined(__AMX_BF16__)
#define ENGINE LNT_V(lnt_mm_bf16_tiles)
#else
#define ENGINE LNT_V(lnt_mm_f32)
#endif

/* Tokens of a chunk: as many as have the engine's number of writes. */
static int length(const lnt_recur_args *a)
{
    const int tokens = ENGINE.chunk / lnt_recur_writes(a);
    return a->chunk > 0 ? a->chunk : tokens > 0 ? tokens : 1;
}

static void forward_head(const lnt_head *x, char *base)
{
    work w;
    carve(&w, x->a, &ENGINE, length(x->a), false, base);
    w.at = x;
    int64_t chunks = chunk_count(x, w.T);
    state_in(&w, x->index);
    for (int64_t i = 0; i < chunks; i++) forward_chunk(&w, begin(&w, chunk_at(x, w.T, i, 1)));
    state_out(&w, x->index);
}

static void backward_head(const lnt_head *x, char *base)
{
    work w;
    carve(&w, x->a, &ENGINE, length(x->a), true, base);
    w.at = x;
    int64_t size = (int64_t)w.K * w.V, chunks = chunk_count(x, w.T);
    state_in(&w, x->index);
    get_state(x, w.dS, x->a->dsT, size);
    w.grad = w.e->prepare(LNT_RIGHT, w.K, w.V, w.dS, w.V, w.dS_forms);
    for (int64_t i = 0; i < chunks; i++) sweep_chunk(&w, begin(&w, chunk_at(x, w.T, i, 1)), i, i == chunks - 1);
    for (int64_t i = chunks - 1; i >= 0; i--) backward_chunk(&w, begin(&w, chunk_at(x, w.T, i, -1)), i);
    put_state(x, x->a->ds0, size, w.dS);
}

/* ---- implementations ------------------------------------------------------------------------------------------------------------- */

static size_t each_bytes(const lnt_recur_args *a, bool backward)
{
    work w;
    return carve(&w, a, &ENGINE, length(a), backward, NULL);
}

LNT_CHUNK_FORM(lnt_delta_chunk, ENGINE)
