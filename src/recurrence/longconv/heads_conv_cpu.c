/* Long convolutions with a filter a head on the CPU (README.md): of the outer products k v^T nothing is made. What a token t reads of a token j is
 * h_{t-j} (q_t.k_j) v_j, so that blocks of 64 tokens by 64 go as masked attention does, the mask a table of the filter:
 *
 *   X = Q K_J^T, P = X . Toeplitz(w), O += P V_J            w = h, with D added to lag 0
 *   Y = dO V_J^T, R = Y . Toeplitz(w), dQ += R K_J, dK_J += R^T Q, dV_J += P^T dO, dw of a diagonal += its sum of X . Y */
#include <omp.h>

#include "ops/rows.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/longconv/longconv.h"

enum {
    BLOCK = 64,
    SMALL = 65536, /* products below which threads cost more than they bring */
};

static int64_t up16(int64_t n) { return (n + 15) / 16 * 16; }
static int64_t length_of(const lnt_heads_conv_args *a, int64_t n) { return a->cu_seqlens[n + 1] - a->cu_seqlens[n]; }
static int64_t past_rows(const lnt_heads_conv_args *a) { return at_most(a->R, a->L - 1); }
static int64_t block_of(const lnt_heads_conv_args *a) { return a->chunk ? at_most(a->chunk, BLOCK) : BLOCK; }

static float weight(const lnt_heads_conv_args *a, int64_t l, int64_t h)
{
    return ((const float *)a->h)[l * a->H + h] + (l == 0 && a->skip ? ((const float *)a->skip)[h] : 0.0f);
}

/* A head of a sequence: its rows and those of its past in front, row 0 the oldest that any token sees. Scratch: all keys and values [rows,K],
 * [rows,V], a block of each transposed [.,BLOCK], and of queries, outputs or cotangents, scores; the weights with falling lags, weights[top - l]
 * that of lag l; backward: gradients as the values they are of. */
typedef struct {
    const lnt_heads_conv_args *a;
    int64_t n, h, len, past, rows, lags, top, B;
    float *k, *v, *kt, *vt, *q, *o, *X, *Y, *weights;
    float *dk, *dv, *dq, *dweights;
} head;

static size_t carve(const lnt_heads_conv_args *a, int64_t rows, bool back, float *memory, head *x)
{
    const int64_t B = BLOCK, K = a->K, V = a->V;
    size_t used = 0;
    const struct {
        float **to;
        int64_t count;
    } parts[] = { { &x->k, rows * K }, { &x->v, rows * V }, { &x->kt, K * B }, { &x->vt, back ? V * B : 0 }, { &x->q, B * K }, { &x->o, B * V },
                  { &x->X, B * B }, { &x->Y, back ? B * B : 0 }, { &x->weights, rows }, { &x->dk, back ? rows * K : 0 },
                  { &x->dv, back ? rows * V : 0 }, { &x->dq, back ? B * K : 0 }, { &x->dweights, back ? rows : 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].to = memory ? memory + used : NULL;
        used += (size_t)up16(parts[i].count);
    }
    return used;
}

/* Keys and values of a head of sequence n, with `past` rows of its state. */
static void open_head(head *x, const lnt_heads_conv_args *a, int64_t n, int64_t h, bool past)
{
    x->a = a, x->n = n, x->h = h, x->B = block_of(a);
    x->len = length_of(a, n), x->past = past ? past_rows(a) : 0, x->rows = x->len + x->past;
    x->lags = at_most(a->L, x->rows), x->top = x->lags - 1;
    for (int64_t l = 0; l < x->lags; l++) x->weights[x->top - l] = weight(a, l, h);
    const int64_t from = (n + 1) * a->R - x->past;
    rows_in(x->k, a->k0, a->dtype, from, x->past, a->H, h, a->K);
    rows_in(x->v, a->v0, a->dtype, from, x->past, a->H, h, a->V);
    rows_in(x->k + x->past * a->K, a->k, a->dtype, a->cu_seqlens[n], x->len, a->H, h, a->K);
    rows_in(x->v + x->past * a->V, a->v, a->dtype, a->cu_seqlens[n], x->len, a->H, h, a->V);
}

/* Columns low .. high-1 of the block from row j0 on that row t sees. */
static int64_t low(const head *x, int64_t t, int64_t j0) { return t - x->lags + 1 > j0 ? t - x->lags + 1 - j0 : 0; }
static int64_t high(int64_t t, int64_t j0, int64_t n) { return t + 1 < j0 + n ? (t + 1 > j0 ? t + 1 - j0 : 0) : n; }

/* y = x times the filter where rows t0 .. t0+m-1 see columns, 0 elsewhere. */
static void filtered(const head *x, int64_t t0, int64_t m, int64_t j0, int64_t n, const float *from, float *to)
{
    for (int64_t r = 0; r < m; r++) {
        const int64_t t = t0 + r, begin = at_most(low(x, t, j0), n), end = high(t, j0, n);
        const int64_t first = x->top - (t - j0);
        const float *src = from + r * BLOCK;
        float *dst = to + r * BLOCK;
        for (int64_t c = 0; c < begin; c++) dst[c] = 0;
        for (int64_t c = begin; c < end; c++) dst[c] = src[c] * x->weights[first + c];
        for (int64_t c = end > begin ? end : begin; c < n; c++) dst[c] = 0;
    }
}

/* O += P V. Where a value is no number, a row takes only those it sees: 0 times such a value is none. */
static void add_values(const head *x, int64_t t0, int64_t m, int64_t j0, int64_t n)
{
    const int64_t V = x->a->V;
    const float *v = x->v + j0 * V;
    if (row_finite(v, n * V)) {
        LNT_V(lnt_mm)(LNT_MM_ADD, (int)m, (int)V, (int)n, x->X, BLOCK, 1, v, V, x->o, V);
        return;
    }
    for (int64_t r = 0; r < m; r++) {
        const int64_t begin = low(x, t0 + r, j0), end = high(t0 + r, j0, n);
        if (begin < end)
            LNT_V(lnt_mm)(LNT_MM_ADD, 1, (int)V, (int)(end - begin), x->X + r * BLOCK + begin, BLOCK, 1, v + begin * V, V, x->o + r * V, V);
    }
}

/* The first block of rows that row t0 sees something of. */
static int64_t first_block(const head *x, int64_t t0) { return t0 - x->lags + 1 > 0 ? (t0 - x->lags + 1) / x->B * x->B : 0; }

static void forward_head(head *x)
{
    const lnt_heads_conv_args *a = x->a;
    const int64_t K = a->K, V = a->V, B = x->B;
    for (int64_t i = 0; i < x->len; i += B) {
        const int64_t m = at_most(B, x->len - i), t0 = x->past + i;
        rows_in(x->q, a->q, a->dtype, a->cu_seqlens[x->n] + i, m, a->H, x->h, K);
        memset(x->o, 0, (size_t)(m * V) * sizeof *x->o);
        for (int64_t j0 = first_block(x, t0); j0 < t0 + m; j0 += B) {
            const int64_t n = at_most(B, x->rows - j0);
            LNT_V(lnt_transpose)((int)n, (int)K, x->k + j0 * K, K, x->kt, BLOCK);
            LNT_V(lnt_mm)(LNT_MM_SET, (int)m, (int)n, (int)K, x->q, K, 1, x->kt, BLOCK, x->X, BLOCK);
            filtered(x, t0, m, j0, n, x->X, x->X);
            add_values(x, t0, m, j0, n);
        }
        rows_out(a->o, a->dtype, a->cu_seqlens[x->n] + i, m, a->H, x->h, V, x->o);
    }
}

/* Final states of `cols` columns, in place or elsewhere. */
static void hand_on(const lnt_heads_conv_args *a, const void *rows, const void *before, void *state, int64_t cols)
{
    const size_t row = (size_t)cols * lnt_dtype_size(a->dtype);
    for (int64_t n = 0; state && n < a->sequences; n++) {
        const int64_t len = length_of(a, n), kept = len < a->R ? a->R - len : 0, fresh = a->R - kept;
        char *to = (char *)state + (size_t)(n * a->R) * row;
        if (kept && before)
            memmove(to, (const char *)before + (size_t)(n * a->R + len) * row, (size_t)kept * row);
        else if (kept)
            memset(to, 0, (size_t)kept * row);
        if (fresh) memcpy(to + (size_t)kept * row, (const char *)rows + (size_t)(a->cu_seqlens[n + 1] - fresh) * row, (size_t)fresh * row);
    }
}

static void hand_on_both(const lnt_heads_conv_args *a)
{
    hand_on(a, a->k, a->k0, a->kT, (int64_t)a->H * a->K);
    hand_on(a, a->v, a->v0, a->vT, (int64_t)a->H * a->V);
}

static void block_forward(const void *args, int threads)
{
    const lnt_heads_conv_args *a = args;
    const int64_t count = a->sequences * a->H;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && a->tokens * a->H * (a->K + a->V) > SMALL / 8)
    for (int64_t i = 0; i < count; i++) {
        head x;
        const int64_t rows = a->longest + past_rows(a);
        carve(a, rows, false, (float *)a->workspace + (size_t)omp_get_thread_num() * carve(a, rows, false, NULL, &x), &x);
        if (!length_of(a, i / a->H)) continue;
        open_head(&x, a, i / a->H, i % a->H, a->k0 || a->v0);
        forward_head(&x);
    }
    hand_on_both(a);
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------------ */

/* Rows t0 .. t0+m-1, whose q, dO (in o) and dq stand in scratch, against the block from j0 on. */
static void backward_block(head *x, int64_t t0, int64_t m, int64_t j0)
{
    const int64_t K = x->a->K, V = x->a->V, n = at_most(x->B, x->rows - j0);
    LNT_V(lnt_transpose)((int)n, (int)K, x->k + j0 * K, K, x->kt, BLOCK);
    LNT_V(lnt_transpose)((int)n, (int)V, x->v + j0 * V, V, x->vt, BLOCK);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)m, (int)n, (int)K, x->q, K, 1, x->kt, BLOCK, x->X, BLOCK);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)m, (int)n, (int)V, x->o, V, 1, x->vt, BLOCK, x->Y, BLOCK);
    for (int64_t r = 0; r < m; r++) {
        const int64_t t = t0 + r, end = high(t, j0, n), first = x->top - (t - j0);
        for (int64_t c = low(x, t, j0); c < end; c++) x->dweights[first + c] += x->X[r * BLOCK + c] * x->Y[r * BLOCK + c];
    }
    filtered(x, t0, m, j0, n, x->X, x->X);
    filtered(x, t0, m, j0, n, x->Y, x->Y);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)V, (int)m, x->X, 1, BLOCK, x->o, V, x->dv + j0 * V, V);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)K, (int)m, x->Y, 1, BLOCK, x->q, K, x->dk + j0 * K, K);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)m, (int)K, (int)n, x->Y, BLOCK, 1, x->k + j0 * K, K, x->dq, K);
}

/* Gradients g [past+len,width] of rows, and what the cotangent of the final state says of them, to where the rows came from. */
static void give_back(const head *x, const float *g, int64_t width, const void *final, void *rows, void *before, float *row)
{
    const lnt_heads_conv_args *a = x->a;
    for (int64_t p = before ? -a->R : 0; p < x->len; p++) {
        const int64_t r = p - (x->len - a->R), i = x->past + p;
        if (final && r >= 0)
            rows_in(row, final, a->dtype, x->n * a->R + r, 1, a->H, x->h, width);
        else
            memset(row, 0, (size_t)width * sizeof *row);
        if (i >= 0) row_add(row, 1, g + i * width, width);
        if (p < 0)
            rows_out(before, a->dtype, (x->n + 1) * a->R + p, 1, a->H, x->h, width, row);
        else
            rows_out(rows, a->dtype, a->cu_seqlens[x->n] + p, 1, a->H, x->h, width, row);
    }
}

static void backward_head(head *x)
{
    const lnt_heads_conv_args *a = x->a;
    const int64_t K = a->K, V = a->V, B = x->B;
    memset(x->dk, 0, (size_t)(x->rows * K) * sizeof *x->dk);
    memset(x->dv, 0, (size_t)(x->rows * V) * sizeof *x->dv);
    memset(x->dweights, 0, (size_t)x->lags * sizeof *x->dweights);
    for (int64_t i = 0; i < x->len; i += B) {
        const int64_t m = at_most(B, x->len - i), t0 = x->past + i;
        rows_in(x->q, a->q, a->dtype, a->cu_seqlens[x->n] + i, m, a->H, x->h, K);
        rows_in(x->o, a->dout, a->dtype, a->cu_seqlens[x->n] + i, m, a->H, x->h, V);
        memset(x->dq, 0, (size_t)(m * K) * sizeof *x->dq);
        for (int64_t j0 = first_block(x, t0); j0 < t0 + m; j0 += B) backward_block(x, t0, m, j0);
        rows_out(a->dq, a->dtype, a->cu_seqlens[x->n] + i, m, a->H, x->h, K, x->dq);
    }
    give_back(x, x->dk, K, a->dkT, a->dk, a->dk0, x->q);
    give_back(x, x->dv, V, a->dvT, a->dv, a->dv0, x->o);
}

/* All sequences of a head, whose gradients of the filter are added in order. */
static void block_backward(const void *args, int threads)
{
    const lnt_heads_conv_args *a = args;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (a->H > 1 && a->tokens * a->H * (a->K + a->V) > SMALL / 8)
    for (int64_t h = 0; h < a->H; h++) {
        head x;
        const int64_t rows = a->longest + past_rows(a);
        carve(a, rows, true, (float *)a->workspace + (size_t)omp_get_thread_num() * carve(a, rows, true, NULL, &x), &x);
        float *dh = a->dh, *dskip = a->dskip, lag0 = 0;
        for (int64_t l = 0; dh && l < a->L; l++) dh[l * a->H + h] = 0;
        for (int64_t n = 0; n < a->sequences; n++) {
            open_head(&x, a, n, h, a->k0 || a->v0 || a->dk0 || a->dv0);
            backward_head(&x);
            for (int64_t l = 0; dh && l < x.lags; l++) dh[l * a->H + h] += x.dweights[x.top - l];
            if (x.lags) lag0 += x.dweights[x.top];
        }
        if (dskip) dskip[h] = lag0;
    }
}

static size_t block_workspace(const void *args, bool back, int threads)
{
    const lnt_heads_conv_args *a = args;
    head x;
    return (size_t)threads * carve(a, a->longest + past_rows(a), back, NULL, &x) * sizeof(float);
}

/* ---- token by token -------------------------------------------------------------------------------------------------------------------------- */

static size_t row_floats(const lnt_heads_conv_args *a) { return (size_t)(2 * up16(a->K) + 2 * up16(a->V)); }

/* Row i of k or v, as it lies. */
static const float *row_of(const lnt_heads_conv_args *a, const void *rows, int64_t i, int64_t h, int64_t width, float *scratch)
{
    return v_row((const char *)rows + (size_t)((i * a->H + h) * width) * lnt_dtype_size(a->dtype), a->dtype, width, scratch);
}

static void one_token(const lnt_heads_conv_args *a, int64_t n, int64_t t, int64_t h, float *memory)
{
    const int64_t at = t - a->cu_seqlens[n], past = a->k0 && a->v0 ? a->R : 0, lags = at_most(a->L, at + past + 1), K = a->K, V = a->V;
    float *q = memory, *o = q + up16(K), *k = o + up16(V), *v = k + up16(K);
    rows_in(q, a->q, a->dtype, t, 1, a->H, h, K);
    memset(o, 0, (size_t)V * sizeof *o);
    for (int64_t l = 0; l < lags; l++) {
        const int64_t i = l <= at ? t - l : (n + 1) * a->R + at - l;
        const float s = weight(a, l, h) * row_dot(q, row_of(a, l <= at ? a->k : a->k0, i, h, K, k), K);
        row_add(o, s, row_of(a, l <= at ? a->v : a->v0, i, h, V, v), V);
    }
    rows_out(a->o, a->dtype, t, 1, a->H, h, V, o);
}

static void row_forward(const void *args, int threads)
{
    const lnt_heads_conv_args *a = args;
    const int64_t count = a->tokens * a->H;
#pragma omp parallel for num_threads(threads) if (count > 1 && count * (a->K + a->V) * at_most(a->L, a->longest + a->R) > SMALL)
    for (int64_t i = 0; i < count; i++) {
        int64_t n = 0;
        while (a->cu_seqlens[n + 1] <= i / a->H) n++;
        one_token(a, n, i / a->H, i % a->H, (float *)a->workspace + (size_t)omp_get_thread_num() * row_floats(a));
    }
    hand_on_both(a);
}

static size_t row_workspace(const void *args, bool back, int threads)
{
    return back ? block_workspace(args, true, threads) : (size_t)threads * row_floats(args) * sizeof(float);
}

extern const lnt_recur_impl LNT_V(lnt_heads_conv_block), LNT_V(lnt_heads_conv_row);
const lnt_recur_impl LNT_V(lnt_heads_conv_block) = { .name = LNT_V_NAME("block"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                                    .workspace = block_workspace, .forward = block_forward, .backward = block_backward };
/* The backward pass is the blocks'. */
const lnt_recur_impl LNT_V(lnt_heads_conv_row) = { .name = LNT_V_NAME("row"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                  .workspace = row_workspace, .forward = row_forward, .backward = block_backward };
