/* Softmax attention on the CPU: blocks of rows against blocks of keys with a running maximum (forward) or the saved log-sum-exp (backward), and a
 * row-by-row form for decoding. Equations: operators.md#attention. The blocks are written in products, which an engine (simd/mm.h) runs in float32
 * or, for bf16 tensors, through bf16 tiles.
 *
 *   forward, key block J:   X = s Q K_J^T, masked     m' = max(m, rowmax X)     P = e^{X - m'}     l = e^{m-m'} l + rowsum P
 *                           O = e^{m-m'} O + P V_J    then O / l, L = m + log l
 *   backward:               P = e^{X - L}     dV_J += P^T dO     dX = P.(dO V_J^T - delta), delta = rowsum(dO.O)
 *                           dQ += s dX K_J    dK_J += s dX^T Q */
#include <omp.h>
#include <stdbool.h>

#include "core/cpu.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/recur_args.h"
#include "simd/mm.h"

/* float32 serves every variant up to avx512; the amx variant has tiles, for bf16 tensors. */
#if defined(__AMX_BF16__)
#define ENGINE LNT_V(lnt_mm_bf16_tiles)
#else
#define ENGINE LNT_V(lnt_mm_f32)
#endif

/* 64 rows by 64 keys: scores and probabilities (16 KB) share L1 with a panel of the operand. */
enum { BLOCK = 64 };

static int64_t block_length(const lnt_recur_args *a)
{
    int64_t B = a->chunk ? a->chunk : BLOCK, rows = a->longest + a->offset;
    return B > rows ? (rows > 0 ? rows : 1) : B;
}

static int64_t up(int64_t n) { return (n + 15) / 16 * 16; }
static int64_t blocks_of(int64_t n, int64_t B) { return (n + B - 1) / B; }

typedef struct {
    char *base;
    size_t used;
} carver;

static void *take(carver *c, int64_t n, size_t size)
{
    void *x = c->base ? c->base + c->used : NULL;
    c->used += ((size_t)n * size + 63) / 64 * 64;
    return x;
}

/* One sequence. Key row j of it is row first + j of k and v; query row i sees keys low(i) .. i + offset. */
typedef struct {
    const lnt_recur_args *a;
    int64_t first, len, rows, B; /* rows = len + offset keys */
} sequence;

static sequence sequence_of(const lnt_recur_args *a, int64_t n)
{
    int64_t first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
    return (sequence){a, first, len, len + a->offset, block_length(a)}; /* an offset is of one sequence, which may have no token yet */
}

static int64_t low(const sequence *s, int64_t i)
{
    int64_t from = s->a->window > 0 ? i + s->a->offset - s->a->window + 1 : 0;
    return from > 0 ? from : 0;
}

/* X[m,n] = s Q K^T with -inf where row i0+r does not see key j0+c, and in the padding up to a vector. X [m,up(B)]. */
static void scores(const sequence *s, int64_t i0, const lnt_operand *q, int64_t j0, const lnt_operand *k, float *X)
{
    const int64_t ld = up(s->B), n = k->rows;
    ENGINE.multiply(LNT_MM_SET, NULL, q, false, k, true, X, ld);
    for (int64_t r = 0; r < q->rows; r++) {
        float *x = X + r * ld;
        int64_t from = low(s, i0 + r) - j0, to = i0 + r + s->a->offset + 1 - j0;
        to = to < 0 ? 0 : to;
        row_scale(x, (float)s->a->scale, n);
        for (int64_t c = 0; c < from && c < n; c++) x[c] = -INFINITY;
        for (int64_t c = to < n ? to : n; c < up(n); c++) x[c] = -INFINITY;
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------- */

/* Keys and values of every block of every key head, made ready once, and whether those values are all numbers; where each sequence's blocks begin;
 * and scratch of a thread. */
typedef struct {
    int64_t *key_block, *row_block; /* [N+1] */
    lnt_operand *k, *v;             /* [blocks,Hk] rows [B,K] to be taken transposed, [B,V] */
    float *values;                  /* [blocks,Hk,B,V], which v is made of */
    char *k_forms, *v_forms;        /* k_bytes and v_bytes of each */
    size_t k_bytes, v_bytes;
    bool *sound; /* [blocks,Hk] */
    char *scratch;
    size_t scratch_bytes;
} forward_plan;

typedef struct {
    float *rows, *o, *X, *m, *l, *c; /* [B,K] [B,V] [B,up(B)] [B] [B] [B] */
    void *q_forms, *P_forms;
    lnt_operand q; /* of these rows */
} forward_scratch;

static size_t carve_forward(const lnt_recur_args *a, char *base, forward_scratch *w)
{
    carver c = {base, 0};
    int64_t B = block_length(a);
    *w = (forward_scratch){.rows = take(&c, B * a->K, 4),
                           .o = take(&c, B * a->V, 4),
                           .X = take(&c, B * up(B), 4),
                           .m = take(&c, B, 4),
                           .l = take(&c, B, 4),
                           .c = take(&c, B, 4),
                           .q_forms = take(&c, (int64_t)ENGINE.bytes((int)B, (int)a->K, LNT_LEFT), 1),
                           .P_forms = take(&c, (int64_t)ENGINE.bytes((int)B, (int)B, LNT_LEFT), 1)};
    return c.used;
}

static size_t plan_forward(const lnt_recur_args *a, int threads, char *base, forward_plan *p)
{
    carver c = {base, 0};
    int64_t B = block_length(a), blocks = 0;
    forward_scratch w;
    for (int64_t n = 0; n < a->sequences; n++) blocks += blocks_of(sequence_of(a, n).rows, B);
    p->k_bytes = ENGINE.bytes((int)B, (int)a->K, LNT_RIGHT_T);
    p->v_bytes = ENGINE.bytes((int)B, (int)a->V, LNT_RIGHT);
    blocks *= a->Hk;
    p->key_block = take(&c, a->sequences + 1, 8);
    p->row_block = take(&c, a->sequences + 1, 8);
    p->k = take(&c, blocks, sizeof *p->k);
    p->v = take(&c, blocks, sizeof *p->v);
    p->values = take(&c, blocks * B * a->V, 4);
    p->k_forms = take(&c, blocks, p->k_bytes);
    p->v_forms = take(&c, blocks, p->v_bytes);
    p->sound = take(&c, blocks, 1);
    p->scratch_bytes = carve_forward(a, NULL, &w);
    p->scratch = take(&c, threads, p->scratch_bytes);
    return c.used;
}

/* The sequence that block i of a [N+1] table of first blocks belongs to. */
static int64_t find(const int64_t *first, int64_t n, int64_t i)
{
    int64_t low_n = 0, high = n - 1;
    while (low_n < high) {
        int64_t mid = (low_n + high + 1) / 2;
        if (first[mid] <= i)
            low_n = mid;
        else
            high = mid - 1;
    }
    return low_n;
}

/* o = c o + P V with the values that a row sees alone: 0 times another, in place of a mask, is NaN when that value is NaN or infinite. */
static void add_seen(const sequence *s, const forward_scratch *w, int64_t i0, int64_t m, int64_t j0, int64_t n, const float *v)
{
    int64_t ld = up(s->B), V = s->a->V;
    for (int64_t r = 0; r < m; r++) {
        int64_t from = low(s, i0 + r) - j0, to = i0 + r + s->a->offset + 1 - j0;
        from = from > 0 ? from : 0;
        to = to < n ? to : n;
        const float *x = w->X + r * ld + from;
        if (from < to) LNT_V(lnt_mm_scaled)(w->c + r, 0, 1, (int)V, (int)(to - from), x, ld, 1, v + from * V, V, w->o + r * V, V);
    }
}

/* A block of keys, operand `at` of the plan, against the running state of a block of m rows. */
static void absorb(const sequence *s, const forward_plan *p, forward_scratch *w, int64_t i0, int64_t j0, int64_t at)
{
    const int64_t ld = up(s->B), V = s->a->V, m = w->q.rows, n = p->k[at].rows;
    scores(s, i0, &w->q, j0, &p->k[at], w->X);
    for (int64_t r = 0; r < m; r++) {
        float *x = w->X + r * ld;
        vf most = v_set(-INFINITY), sum = v_zero();
        if (r % 8 == 0) lnt_tiles_awake();
        for (int64_t c = 0; c < n; c += LNT_VL) most = v_max(most, v_load(x + c));
        float max = fmaxf(w->m[r], v_hmax(most));
        float safe = max == -INFINITY ? 0.0f : max; /* nothing seen yet */
        for (int64_t c = 0; c < n; c += LNT_VL) {
            vf e = v_exp(v_load(x + c) - safe);
            v_store(x + c, e);
            sum += e;
        }
        w->c[r] = expf(w->m[r] - safe);
        w->l[r] = w->l[r] * w->c[r] + v_sum(sum);
        w->m[r] = max;
    }
    if (p->sound[at]) {
        lnt_operand P = ENGINE.prepare(LNT_LEFT, (int)m, (int)n, w->X, ld, w->P_forms), o = {.x = w->o, .ld = V, .rows = (int)m, .cols = (int)V};
        ENGINE.update(w->c, 1, &P, false, &p->v[at], false, &o);
    } else {
        add_seen(s, w, i0, m, j0, n, p->v[at].x);
    }
}

static void forward_rows(const sequence *s, const forward_plan *p, forward_scratch *w, int64_t n, int64_t block, int64_t h)
{
    const lnt_recur_args *a = s->a;
    int64_t hk = h / (a->Hq / a->Hk), i0 = block * s->B, m = s->len - i0 < s->B ? s->len - i0 : s->B, V = a->V;
    rows_in(w->rows, a->q, a->dtype, s->first + i0, m, a->Hq, h, a->K);
    w->q = ENGINE.prepare(LNT_LEFT, (int)m, (int)a->K, w->rows, a->K, w->q_forms);
    memset(w->o, 0, (size_t)(m * V) * 4);
    for (int64_t r = 0; r < m; r++) {
        w->m[r] = -INFINITY;
        w->l[r] = 0;
    }
    for (int64_t J = low(s, i0) / s->B; J * s->B <= i0 + m - 1 + a->offset; J++) absorb(s, p, w, i0, J * s->B, (p->key_block[n] + J) * a->Hk + hk);
    float *lse = a->lse;
    for (int64_t r = 0; r < m; r++) {
        row_scale(w->o + r * V, 1.0f / w->l[r], V);
        if (lse) lse[(s->first + i0 + r) * a->Hq + h] = w->m[r] + logf(w->l[r]);
    }
    rows_out(a->o, a->dtype, s->first + i0, m, a->Hq, h, V, w->o);
}

static void pack_keys(const sequence *s, const forward_plan *p, float *rows, int64_t n, int64_t J, int64_t hk)
{
    const lnt_recur_args *a = s->a;
    int64_t at = (p->key_block[n] + J) * a->Hk + hk, j0 = J * s->B, keys = s->rows - j0 < s->B ? s->rows - j0 : s->B;
    float *values = p->values + at * s->B * a->V;
    rows_in(rows, a->k, a->dtype, s->first + j0, keys, a->Hk, hk, a->K);
    p->k[at] = ENGINE.prepare(LNT_RIGHT_T, (int)keys, (int)a->K, rows, a->K, p->k_forms + (size_t)at * p->k_bytes); /* of which nobody asks rows */
    rows_in(values, a->v, a->dtype, s->first + j0, keys, a->Hk, hk, a->V);
    p->v[at] = ENGINE.prepare(LNT_RIGHT, (int)keys, (int)a->V, values, a->V, p->v_forms + (size_t)at * p->v_bytes);
    p->sound[at] = row_finite(values, keys * a->V);
}

static void block_forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    forward_plan p;
    plan_forward(a, threads, a->workspace, &p);
    p.key_block[0] = p.row_block[0] = 0;
    for (int64_t n = 0; n < a->sequences; n++) {
        sequence s = sequence_of(a, n);
        p.key_block[n + 1] = p.key_block[n] + blocks_of(s.rows, s.B);
        p.row_block[n + 1] = p.row_block[n] + blocks_of(s.len, s.B);
    }
    int64_t keys = p.key_block[a->sequences] * a->Hk, rows = p.row_block[a->sequences] * a->Hq;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < keys; i++) {
        forward_scratch w;
        carve_forward(a, p.scratch + (size_t)omp_get_thread_num() * p.scratch_bytes, &w);
        int64_t n = find(p.key_block, a->sequences, i / a->Hk);
        sequence s = sequence_of(a, n);
        ENGINE.begin();
        pack_keys(&s, &p, w.rows, n, i / a->Hk - p.key_block[n], i % a->Hk);
        ENGINE.end();
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = rows - 1; i >= 0; i--) { /* late rows see most keys: first */
        forward_scratch w;
        carve_forward(a, p.scratch + (size_t)omp_get_thread_num() * p.scratch_bytes, &w);
        int64_t n = find(p.row_block, a->sequences, i / a->Hq);
        sequence s = sequence_of(a, n);
        ENGINE.begin();
        forward_rows(&s, &p, &w, n, i / a->Hq - p.row_block[n], i % a->Hq);
        ENGINE.end();
    }
}

/* ---- row by row ---------------------------------------------------------------------------------------------------------------------- */

/* Row i of head h; p: scratch [rows] and then q [K], o [V], and a converted row. */
static void one_row(const sequence *s, int64_t i, int64_t h, float *p)
{
    const lnt_recur_args *a = s->a;
    int64_t hk = h / (a->Hq / a->Hk), K = a->K, V = a->V, from = low(s, i), last = i + a->offset;
    float *q = p + up(s->rows), *o = q + up(K), *row = o + up(V), max = -INFINITY, sum = 0;
    size_t size = lnt_dtype_size(a->dtype);
    rows_in(q, a->q, a->dtype, s->first + i, 1, a->Hq, h, K);
    row_scale(q, (float)a->scale, K);
    const char *k = (const char *)a->k + (size_t)((s->first * a->Hk + hk) * K) * size,
               *v = (const char *)a->v + (size_t)((s->first * a->Hk + hk) * V) * size;
    for (int64_t j = from; j <= last; j++) {
        p[j - from] = row_dot(q, v_row(k + (size_t)(j * a->Hk * K) * size, a->dtype, K, row), K);
        max = p[j - from] > max ? p[j - from] : max;
    }
    memset(o, 0, (size_t)V * 4);
    for (int64_t j = from; j <= last; j++) p[j - from] -= max;
    row_exp(p, last - from + 1);
    for (int64_t j = from; j <= last; j++) {
        sum += p[j - from];
        row_add(o, p[j - from], v_row(v + (size_t)(j * a->Hk * V) * size, a->dtype, V, row), V);
    }
    row_scale(o, 1.0f / sum, V);
    rows_out(a->o, a->dtype, s->first + i, 1, a->Hq, h, V, o);
    float *lse = a->lse;
    if (lse) lse[(s->first + i) * a->Hq + h] = max + logf(sum);
}

static int64_t row_scratch(const lnt_recur_args *a) { return up(a->longest + a->offset) + 2 * (up(a->K) + up(a->V)); }

static void row_forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    int64_t pieces = a->tokens * a->Hq, floats = row_scratch(a);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        int64_t t = i / a->Hq, n = 0;
        while (a->cu_seqlens[n + 1] <= t) n++;
        sequence s = sequence_of(a, n);
        one_row(&s, t - s.first, i % a->Hq, (float *)a->workspace + omp_get_thread_num() * floats);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------- */

/* Scratch of a thread: a head's rows [len,.], gradients of one query head and of one key head, one block of keys, scores and their gradients. The
 * rows' operands are those of blocks, q_bytes and do_bytes each. */
typedef struct {
    float *q, *dout, *dq, *delta, *lse, *dk, *dv, *k, *v, *X, *Y, *o;
    lnt_operand *qs, *dos; /* [blocks of rows] */
    char *q_forms, *do_forms;
    size_t q_bytes, do_bytes;
    void *k_forms, *v_forms, *X_forms, *Y_forms;
} backward_scratch;

enum { ROWS = LNT_LEFT | LNT_RIGHT, KEYS = LNT_RIGHT | LNT_RIGHT_T, SCORES = LNT_LEFT | LNT_LEFT_T };

static size_t carve_backward(const lnt_recur_args *a, char *base, backward_scratch *w)
{
    carver c = {base, 0};
    int64_t B = block_length(a), len = a->longest, rows = len + a->offset, K = a->K, V = a->V, blocks = blocks_of(len, B);
    *w = (backward_scratch){.q = take(&c, len * K, 4),
                            .dout = take(&c, len * V, 4),
                            .dq = take(&c, len * K, 4),
                            .delta = take(&c, len, 4),
                            .lse = take(&c, len, 4),
                            .dk = take(&c, rows * K, 4),
                            .dv = take(&c, rows * V, 4),
                            .k = take(&c, B * K, 4),
                            .v = take(&c, B * V, 4),
                            .X = take(&c, B * up(B), 4),
                            .Y = take(&c, B * up(B), 4),
                            .o = take(&c, V, 4)};
    w->qs = take(&c, blocks, sizeof *w->qs);
    w->dos = take(&c, blocks, sizeof *w->dos);
    w->q_bytes = ENGINE.bytes((int)B, (int)K, ROWS);
    w->do_bytes = ENGINE.bytes((int)B, (int)V, ROWS);
    w->q_forms = take(&c, blocks, w->q_bytes);
    w->do_forms = take(&c, blocks, w->do_bytes);
    w->k_forms = take(&c, (int64_t)ENGINE.bytes((int)B, (int)K, KEYS), 1);
    w->v_forms = take(&c, (int64_t)ENGINE.bytes((int)B, (int)V, LNT_RIGHT_T), 1);
    w->X_forms = take(&c, (int64_t)ENGINE.bytes((int)B, (int)B, LNT_LEFT_T), 1);
    w->Y_forms = take(&c, (int64_t)ENGINE.bytes((int)B, (int)B, SCORES), 1);
    return c.used;
}

/* A block of rows against the block of keys from j0. */
static void backward_block(const sequence *s, const backward_scratch *w, int64_t block, int64_t j0, const lnt_operand *k, const lnt_operand *v)
{
    const lnt_operand *q = &w->qs[block], *dout = &w->dos[block];
    const int64_t ld = up(s->B), K = s->a->K, V = s->a->V, i0 = block * s->B, n = k->rows;
    scores(s, i0, q, j0, k, w->X);
    ENGINE.multiply(LNT_MM_SET, NULL, dout, false, v, true, w->Y, ld);
    for (int64_t r = 0; r < q->rows; r++) {
        float *x = w->X + r * ld, *y = w->Y + r * ld;
        vf L = v_set(w->lse[i0 + r]), delta = v_set(w->delta[i0 + r]);
        if (r % 8 == 0) lnt_tiles_awake();
        for (int64_t c = 0; c < n; c += LNT_VL) {
            vf p = v_exp(v_load(x + c) - L);
            v_store(x + c, p);
            v_store(y + c, p * (v_load(y + c) - delta));
        }
    }
    lnt_operand P = ENGINE.prepare(LNT_LEFT_T, q->rows, (int)n, w->X, ld, w->X_forms),
                dX = ENGINE.prepare(SCORES, q->rows, (int)n, w->Y, ld, w->Y_forms);
    ENGINE.multiply(LNT_MM_ADD, NULL, &P, true, dout, false, w->dv + j0 * V, V);
    ENGINE.multiply(LNT_MM_ADD, NULL, &dX, true, q, false, w->dk + j0 * K, K);
    ENGINE.multiply(LNT_MM_ADD, NULL, &dX, false, k, false, w->dq + i0 * K, K);
}

/* A query head's rows as operands; what its softmax left. */
static void head_rows(const sequence *s, const backward_scratch *w, int64_t h)
{
    const lnt_recur_args *a = s->a;
    const int64_t K = a->K, V = a->V;
    const float *lse = a->lse;
    rows_in(w->dout, a->do_, a->dtype, s->first, s->len, a->Hq, h, V);
    for (int64_t i = 0; i < s->len; i++) {
        rows_in(w->o, a->o, a->dtype, s->first + i, 1, a->Hq, h, V);
        w->delta[i] = row_dot(w->o, w->dout + i * V, V);
        w->lse[i] = lse[(s->first + i) * a->Hq + h];
    }
    rows_in(w->q, a->q, a->dtype, s->first, s->len, a->Hq, h, K);
    for (int64_t b = 0, i = 0; i < s->len; b++, i += s->B) {
        const int m = (int)(s->len - i < s->B ? s->len - i : s->B);
        w->qs[b] = ENGINE.prepare(ROWS, m, (int)K, w->q + i * K, K, w->q_forms + (size_t)b * w->q_bytes);
        w->dos[b] = ENGINE.prepare(ROWS, m, (int)V, w->dout + i * V, V, w->do_forms + (size_t)b * w->do_bytes);
    }
}

/* One query head; adds to w->dk and w->dv. */
static void backward_head(const sequence *s, const backward_scratch *w, int64_t h)
{
    const lnt_recur_args *a = s->a;
    int64_t hk = h / (a->Hq / a->Hk), K = a->K, V = a->V, ld = up(s->B);
    head_rows(s, w, h);
    memset(w->dq, 0, (size_t)(s->len * K) * 4);
    memset(w->X, 0, (size_t)(s->B * ld) * 4);
    memset(w->Y, 0, (size_t)(s->B * ld) * 4); /* its padding columns are read, times p = 0 */
    for (int64_t j0 = 0; j0 < s->rows; j0 += s->B) {
        int64_t n = s->rows - j0 < s->B ? s->rows - j0 : s->B;
        rows_in(w->k, a->k, a->dtype, s->first + j0, n, a->Hk, hk, K);
        rows_in(w->v, a->v, a->dtype, s->first + j0, n, a->Hk, hk, V);
        lnt_operand k = ENGINE.prepare(KEYS, (int)n, (int)K, w->k, K, w->k_forms),
                    v = ENGINE.prepare(LNT_RIGHT_T, (int)n, (int)V, w->v, V, w->v_forms);
        int64_t block = j0 - a->offset > 0 ? (j0 - a->offset) / s->B : 0;
        for (; block * s->B < s->len && low(s, block * s->B) < j0 + n; block++) backward_block(s, w, block, j0, &k, &v);
    }
    row_scale(w->dq, (float)a->scale, s->len * K);
    rows_out(a->dq, a->dtype, s->first, s->len, a->Hq, h, K, w->dq);
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    int64_t pieces = a->sequences * a->Hk, group = a->Hq / a->Hk;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        backward_scratch w;
        size_t bytes = carve_backward(a, NULL, &w);
        carve_backward(a, (char *)a->workspace + (size_t)omp_get_thread_num() * bytes, &w);
        sequence s = sequence_of(a, i / a->Hk);
        int64_t hk = i % a->Hk;
        memset(w.dk, 0, (size_t)(s.rows * a->K) * 4);
        memset(w.dv, 0, (size_t)(s.rows * a->V) * 4);
        ENGINE.begin();
        for (int64_t h = hk * group; h < (hk + 1) * group; h++) backward_head(&s, &w, h);
        ENGINE.end();
        row_scale(w.dk, (float)a->scale, s.rows * a->K);
        rows_out(a->dk, a->dtype, s.first, s.rows, a->Hk, hk, a->K, w.dk);
        rows_out(a->dv, a->dtype, s.first, s.rows, a->Hk, hk, a->V, w.dv);
    }
}

/* ---- the implementations ----------------------------------------------------------------------------------------------------------- */

static size_t block_workspace(const void *args, bool back, int threads)
{
    const lnt_recur_args *a = args;
    forward_plan p;
    backward_scratch w;
    return back ? (size_t)threads * carve_backward(a, NULL, &w) : plan_forward(a, threads, NULL, &p);
}

static size_t row_workspace(const void *args, bool back, int threads)
{
    const lnt_recur_args *a = args;
    return back ? block_workspace(a, true, threads) : (size_t)threads * (size_t)row_scratch(a) * 4;
}

static const char *block_declines(const void *args, bool back)
{
    const lnt_recur_args *a = args;
    (void)back;
    return ENGINE.bf16 && a->dtype != LINNET_BF16 ? "its products round to bf16; the tensors are float32" : NULL;
}

static const char *row_declines(const void *args, bool back) { return back ? block_declines(args, back) : NULL; }

extern const lnt_recur_impl LNT_V(lnt_attention_block), LNT_V(lnt_attention_row);

const lnt_recur_impl LNT_V(lnt_attention_block) = {.name = LNT_V_NAME("block"),
                                                   .form = LINNET_FORM_CHUNK,
                                                   .needs = LNT_V_LEVEL,
                                                   .declines = block_declines,
                                                   .workspace = block_workspace,
                                                   .forward = block_forward,
                                                   .backward = backward};
/* The backward pass is the blocks'. */
const lnt_recur_impl LNT_V(lnt_attention_row) = {.name = LNT_V_NAME("row"),
                                                 .form = LINNET_FORM_RECURRENT,
                                                 .needs = LNT_V_LEVEL,
                                                 .declines = row_declines,
                                                 .workspace = row_workspace,
                                                 .forward = row_forward,
                                                 .backward = backward};
