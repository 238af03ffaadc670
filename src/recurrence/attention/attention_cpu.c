/* Softmax attention on the CPU: blocks of rows against blocks of keys with a running maximum (forward) or the saved log-sum-exp (backward), and a
 * row-by-row form for decoding. Equations: operators.md#attention.
 *
 *   forward, key block J:   X = s Q K_J^T, masked     m' = max(m, rowmax X)     P = e^{X - m'}     l = e^{m-m'} l + rowsum P     O = e^{m-m'} O + P
 * V_J then O / l, L = m + log l backward:   P = e^{X - L}     dV_J += P^T dO     dX = P.(dO V_J^T - delta), delta = rowsum(dO.O)     dQ += s dX K_J
 * dK_J += dX^T (s Q) */
#include <omp.h>
#include <stdbool.h>

#include "core/cpu.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/recur_args.h"
#include "simd/mm.h"

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
    return (sequence){ a, first, len, len ? len + a->offset : 0, block_length(a) };
}

static int64_t low(const sequence *s, int64_t i)
{
    int64_t from = s->a->window > 0 ? i + s->a->offset - s->a->window + 1 : 0;
    return from > 0 ? from : 0;
}

/* X[m,n] = Q KT with -inf where row i0+r does not see key j0+c, and in the padding up to a vector. kt [K,ld], X [m,ld]. */
static void scores(const sequence *s, int64_t i0, int64_t m, const float *q, int64_t j0, int64_t n, const float *kt, int64_t ld, float *X)
{
    int64_t K = s->a->K;
    LNT_V(lnt_mm)(LNT_MM_SET, (int)m, (int)n, (int)K, q, K, 1, kt, ld, X, ld);
    for (int64_t r = 0; r < m; r++) {
        float *x = X + r * ld;
        int64_t from = low(s, i0 + r) - j0, to = i0 + r + s->a->offset + 1 - j0;
        to = to < 0 ? 0 : to;
        for (int64_t c = 0; c < from && c < n; c++) x[c] = -INFINITY;
        for (int64_t c = to < n ? to : n; c < up(n); c++) x[c] = -INFINITY;
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------- */

/* Keys transposed and values of every block of every key head, made once, and whether those values are all numbers; where each sequence's blocks
 * begin; and scratch of a thread. */
typedef struct {
    int64_t *key_block, *row_block;  /* [N+1] */
    float *kt, *v;                   /* [blocks,Hk,K,ld], [blocks,Hk,B,V] */
    bool *sound;                     /* [blocks,Hk] */
    char *scratch;
    size_t scratch_bytes;
} forward_plan;

typedef struct {
    float *q, *o, *X, *m, *l, *c;  /* [B,K] [B,V] [B,ld] [B] [B] [B] */
} forward_scratch;

static size_t carve_forward(const lnt_recur_args *a, char *base, forward_scratch *w)
{
    carver c = { base, 0 };
    int64_t B = block_length(a);
    *w = (forward_scratch){ .q = take(&c, B * a->K, 4),
                            .o = take(&c, B * a->V, 4),
                            .X = take(&c, B * up(B), 4),
                            .m = take(&c, B, 4),
                            .l = take(&c, B, 4),
                            .c = take(&c, B, 4) };
    return c.used;
}

static size_t plan_forward(const lnt_recur_args *a, int threads, char *base, forward_plan *p)
{
    carver c = { base, 0 };
    int64_t B = block_length(a), blocks = 0;
    forward_scratch w;
    for (int64_t n = 0; n < a->sequences; n++) blocks += blocks_of(sequence_of(a, n).rows, B);
    *p = (forward_plan){ .key_block = take(&c, a->sequences + 1, 8),
                         .row_block = take(&c, a->sequences + 1, 8),
                         .kt = take(&c, blocks * a->Hk * a->K * up(B), 4),
                         .v = take(&c, blocks * a->Hk * B * a->V, 4),
                         .sound = take(&c, blocks * a->Hk, 1) };
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

/* One block of keys against the running state of a block of m rows. */
static void absorb(const sequence *s, const forward_scratch *w, int64_t i0, int64_t m, int64_t j0, int64_t n, const float *kt, const float *v,
                   bool sound)
{
    int64_t ld = up(s->B), V = s->a->V;
    scores(s, i0, m, w->q, j0, n, kt, ld, w->X);
    for (int64_t r = 0; r < m; r++) {
        float *x = w->X + r * ld;
        vf most = v_set(-INFINITY), sum = v_zero();
        for (int64_t c = 0; c < n; c += LNT_VL) most = v_max(most, v_load(x + c));
        float max = fmaxf(w->m[r], v_hmax(most));
        float safe = max == -INFINITY ? 0.0f : max; /* nothing seen yet */
        for (int64_t c = 0; c < n; c += LNT_VL) {
            vf p = v_exp(v_load(x + c) - safe);
            v_store(x + c, p);
            sum += p;
        }
        w->c[r] = expf(w->m[r] - safe);
        w->l[r] = w->l[r] * w->c[r] + v_sum(sum);
        w->m[r] = max;
    }
    if (sound)
        LNT_V(lnt_mm_scaled)(w->c, 1, (int)m, (int)V, (int)n, w->X, ld, 1, v, V, w->o, V);
    else
        add_seen(s, w, i0, m, j0, n, v);
}

static void forward_rows(const sequence *s, const forward_plan *p, const forward_scratch *w, int64_t n, int64_t block, int64_t h)
{
    const lnt_recur_args *a = s->a;
    int64_t hk = h / (a->Hq / a->Hk), i0 = block * s->B, m = s->len - i0 < s->B ? s->len - i0 : s->B, V = a->V;
    rows_in(w->q, a->q, a->dtype, s->first + i0, m, a->Hq, h, a->K);
    row_scale(w->q, (float)a->scale, m * a->K);
    memset(w->o, 0, (size_t)(m * V) * 4);
    for (int64_t r = 0; r < m; r++) {
        w->m[r] = -INFINITY;
        w->l[r] = 0;
    }
    for (int64_t J = low(s, i0) / s->B; J * s->B <= i0 + m - 1 + a->offset; J++) {
        int64_t at = (p->key_block[n] + J) * a->Hk + hk, j0 = J * s->B, keys = s->rows - j0 < s->B ? s->rows - j0 : s->B;
        absorb(s, w, i0, m, j0, keys, p->kt + at * a->K * up(s->B), p->v + at * s->B * V, p->sound[at]);
    }
    float *lse = a->lse;
    for (int64_t r = 0; r < m; r++) {
        row_scale(w->o + r * V, 1.0f / w->l[r], V);
        if (lse) lse[(s->first + i0 + r) * a->Hq + h] = w->m[r] + logf(w->l[r]);
    }
    rows_out(a->o, a->dtype, s->first + i0, m, a->Hq, h, V, w->o);
}

static void pack_keys(const sequence *s, const forward_plan *p, float *scratch, int64_t n, int64_t J, int64_t hk)
{
    const lnt_recur_args *a = s->a;
    int64_t at = (p->key_block[n] + J) * a->Hk + hk, j0 = J * s->B, keys = s->rows - j0 < s->B ? s->rows - j0 : s->B;
    rows_in(scratch, a->k, a->dtype, s->first + j0, keys, a->Hk, hk, a->K);
    LNT_V(lnt_transpose)((int)keys, a->K, scratch, a->K, p->kt + at * a->K * up(s->B), up(s->B));
    rows_in(p->v + at * s->B * a->V, a->v, a->dtype, s->first + j0, keys, a->Hk, hk, a->V);
    p->sound[at] = row_finite(p->v + at * s->B * a->V, keys * a->V);
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
        pack_keys(&s, &p, w.q, n, i / a->Hk - p.key_block[n], i % a->Hk);
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = rows - 1; i >= 0; i--) { /* late rows see most keys: first */
        forward_scratch w;
        carve_forward(a, p.scratch + (size_t)omp_get_thread_num() * p.scratch_bytes, &w);
        int64_t n = find(p.row_block, a->sequences, i / a->Hq);
        sequence s = sequence_of(a, n);
        forward_rows(&s, &p, &w, n, i / a->Hq - p.row_block[n], i % a->Hq);
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

static int64_t row_scratch(const lnt_recur_args *a)
{
    return up(a->longest + a->offset) + 2 * (up(a->K) + up(a->V));
}

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

/* Scratch of a thread: a head's rows [len,.] (q times s), gradients of one query head and of one key head, one block of keys, scores and their
 * gradients. */
typedef struct {
    float *q, *dout, *dq, *delta, *lse, *dk, *dv, *k, *v, *kt, *vt, *X, *Y, *o;
} backward_scratch;

static size_t carve_backward(const lnt_recur_args *a, char *base, backward_scratch *w)
{
    carver c = { base, 0 };
    int64_t B = block_length(a), len = a->longest, rows = len + a->offset, K = a->K, V = a->V;
    *w = (backward_scratch){ .q = take(&c, len * K, 4), .dout = take(&c, len * V, 4), .dq = take(&c, len * K, 4), .delta = take(&c, len, 4),
                             .lse = take(&c, len, 4), .dk = take(&c, rows * K, 4), .dv = take(&c, rows * V, 4), .k = take(&c, B * K, 4),
                             .v = take(&c, B * V, 4), .kt = take(&c, K * up(B), 4), .vt = take(&c, V * up(B), 4), .X = take(&c, B * up(B), 4),
                             .Y = take(&c, B * up(B), 4), .o = take(&c, V, 4) };
    return c.used;
}

/* Rows i0 .. i0+m-1 against the block of n keys from j0. */
static void backward_block(const sequence *s, const backward_scratch *w, int64_t i0, int64_t m, int64_t j0, int64_t n)
{
    int64_t ld = up(s->B), K = s->a->K, V = s->a->V;
    const float *q = w->q + i0 * K, *dout = w->dout + i0 * V;
    scores(s, i0, m, q, j0, n, w->kt, ld, w->X);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)m, (int)n, (int)V, dout, V, 1, w->vt, ld, w->Y, ld);
    for (int64_t r = 0; r < m; r++) {
        float *x = w->X + r * ld, *y = w->Y + r * ld;
        vf L = v_set(w->lse[i0 + r]), delta = v_set(w->delta[i0 + r]);
        for (int64_t c = 0; c < n; c += LNT_VL) {
            vf p = v_exp(v_load(x + c) - L);
            v_store(x + c, p);
            v_store(y + c, p * (v_load(y + c) - delta));
        }
    }
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)V, (int)m, w->X, 1, ld, dout, V, w->dv + j0 * V, V);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)K, (int)m, w->Y, 1, ld, q, K, w->dk + j0 * K, K);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)m, (int)K, (int)n, w->Y, ld, 1, w->k, K, w->dq + i0 * K, K);
}

/* One query head; adds to w->dk and w->dv. */
static void backward_head(const sequence *s, const backward_scratch *w, int64_t h)
{
    const lnt_recur_args *a = s->a;
    int64_t hk = h / (a->Hq / a->Hk), K = a->K, V = a->V, ld = up(s->B);
    const float *lse = a->lse;
    rows_in(w->dout, a->do_, a->dtype, s->first, s->len, a->Hq, h, V);
    for (int64_t i = 0; i < s->len; i++) {
        rows_in(w->o, a->o, a->dtype, s->first + i, 1, a->Hq, h, V);
        w->delta[i] = row_dot(w->o, w->dout + i * V, V);
        w->lse[i] = lse[(s->first + i) * a->Hq + h];
    }
    rows_in(w->q, a->q, a->dtype, s->first, s->len, a->Hq, h, K);
    row_scale(w->q, (float)a->scale, s->len * K);
    memset(w->dq, 0, (size_t)(s->len * K) * 4);
    memset(w->X, 0, (size_t)(s->B * ld) * 4);
    memset(w->Y, 0, (size_t)(s->B * ld) * 4); /* its padding columns are read, times p = 0 */
    for (int64_t j0 = 0; j0 < s->rows; j0 += s->B) {
        int64_t n = s->rows - j0 < s->B ? s->rows - j0 : s->B;
        rows_in(w->k, a->k, a->dtype, s->first + j0, n, a->Hk, hk, K);
        rows_in(w->v, a->v, a->dtype, s->first + j0, n, a->Hk, hk, V);
        LNT_V(lnt_transpose)((int)n, (int)K, w->k, K, w->kt, ld);
        LNT_V(lnt_transpose)((int)n, (int)V, w->v, V, w->vt, ld);
        int64_t i = j0 - a->offset > 0 ? (j0 - a->offset) / s->B * s->B : 0;
        for (; i < s->len && low(s, i) < j0 + n; i += s->B) backward_block(s, w, i, s->len - i < s->B ? s->len - i : s->B, j0, n);
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
        for (int64_t h = hk * group; h < (hk + 1) * group; h++) backward_head(&s, &w, h);
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

extern const lnt_recur_impl LNT_V(lnt_attention_block), LNT_V(lnt_attention_row);

const lnt_recur_impl LNT_V(lnt_attention_block) = { .name = LNT_V_NAME("block"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                                   .workspace = block_workspace, .forward = block_forward, .backward = backward };
/* The backward pass is the blocks'. */
const lnt_recur_impl LNT_V(lnt_attention_row) = { .name = LNT_V_NAME("row"),
                                                  .form = LINNET_FORM_RECURRENT,
                                                  .needs = LNT_V_LEVEL,
                                                  .workspace = row_workspace,
                                                  .forward = row_forward,
                                                  .backward = backward };
