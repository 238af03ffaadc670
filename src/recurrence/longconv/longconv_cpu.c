/* Long convolutions with a filter a channel on the CPU (README.md). Work is cut into strips of 16 channels of a sequence, whose rows lie apart from
 * those of other channels as [rows,W]; a strip's convolution goes
 *
 *   - by blocks of 64 x 64 (token, input), 8 tokens at a time in registers: W products and sums for each two loads, and
 *   - where a sequence is long, only for the inputs of a token's own block of C; what blocks before it add is made of transforms of length 2C:
 *         o_block a = F^-1 (sum over blocks J < a of F(u_J) F(h_{a-J})), F(h_m) that of lags (m-1) C + 1 .. (m+1) C - 1.
 *
 * A token's own block is never transformed with others', so that no rounding, and no NaN, reaches an earlier token. The three passes of backward are
 * the same convolution over rows in reverse. What is done to a sequence does not depend on the others of the call. */
#include <omp.h>

#include "ops/rows.h"
#include "recurrence/longconv/longconv.h"
#include "recurrence/longconv/longconv_fft.h"
#include "simd/mm.h"

enum {
    W = 16,          /* channels of a strip: a cache line */
    VECTORS = W / LNT_VL,
    ROWS = 8,        /* outputs in registers */
    TILE = 64,       /* rows of a block: its inputs, outputs and 127 lags are 16 KB */
    TRANSFORM = 256, /* C */
    FEWEST = 16,     /* blocks of C below which everything is done directly */
    SMALLEST = 8,    /* C */
    ROW_STRIP = 64,  /* channels that a token by itself is done for at once */
    SMALL = 65536,   /* products below which threads cost more than they bring */
};

/* ---- one convolution --------------------------------------------------------------------------------------------------------------------- */

/* out[t] += sum_j h[t-j] in[j], for out rows o0 <= t < o1, in rows i0 <= j < i1, lags 0 <= t-j < lags. Arrays begin with their first row. */
typedef struct {
    float *out;
    const float *in, *h;
    int64_t o0, o1, i0, i1, lags;
} convolution;

/* Some rows of out, all pairs in question. */
static void few(const convolution *c, int64_t t, int64_t count, int64_t j0, int64_t j1)
{
    for (int64_t r = t; r < t + count; r++) {
        const int64_t from = r - c->lags + 1 > j0 ? r - c->lags + 1 : j0, to = r + 1 < j1 ? r + 1 : j1;
        float *out = c->out + (r - c->o0) * W;
        for (int v = 0; v < W; v += LNT_VL) {
            vf sum = v_load(out + v);
            for (int64_t j = from; j < to; j++) sum = v_fma(v_load(c->h + (r - j) * W + v), v_load(c->in + (j - c->i0) * W + v), sum);
            v_store(out + v, sum);
        }
    }
}

/* ROWS rows of out, where every pair has a lag. */
static void full(const convolution *c, int64_t t, int64_t j0, int64_t j1)
{
    float *out = c->out + (t - c->o0) * W;
    for (int v = 0; v < W; v += LNT_VL) {
        vf sum[ROWS];
        for (int r = 0; r < ROWS; r++) sum[r] = v_load(out + r * W + v);
        for (int64_t j = j0; j < j1; j++) {
            const vf x = v_load(c->in + (j - c->i0) * W + v);
            const float *h = c->h + (t - j) * W + v;
            for (int r = 0; r < ROWS; r++) sum[r] = v_fma(v_load(h + r * W), x, sum[r]);
        }
        for (int r = 0; r < ROWS; r++) v_store(out + r * W + v, sum[r]);
    }
}

/* out rows t0 .. t1-1 against in rows j0 .. j1-1. */
static void tile(const convolution *c, int64_t t0, int64_t t1, int64_t j0, int64_t j1)
{
    for (int64_t t = t0; t < t1; t += ROWS) {
        const int64_t count = at_most(ROWS, t1 - t), first = t + count - c->lags;
        int64_t a = at_most(first > j0 ? first : j0, j1), b = at_most(j1, t + 1);
        if (count < ROWS || b < a) b = a;
        if (a > j0) few(c, t, count, j0, a);
        if (b > a) full(c, t, a, b);
        if (b < j1) few(c, t, count, b, j1);
    }
}

static void direct(const convolution *c, int64_t o0, int64_t o1, int64_t i0, int64_t i1)
{
    for (int64_t t = o0; t < o1; t += TILE)
        for (int64_t j = i0; j < i1 && j < t + TILE; j += TILE)
            if (j + TILE - 1 + c->lags > t) tile(c, t, at_most(o1, t + TILE), j, at_most(i1, j + TILE));
}

/* ---- with transforms --------------------------------------------------------------------------------------------------------------------- */

/* The length of blocks for a convolution of so many rows and lags; 0: no transforms. */
static int64_t block_length(const lnt_longconv_args *a, int64_t rows, int64_t lags)
{
    const int64_t C = a->chunk ? a->chunk : TRANSFORM, least = a->chunk ? C : FEWEST * C;
    return lnt_longconv_has_fft() && C >= SMALLEST && rows > least && lags > least ? C : 0;
}

/* Room for transforms of blocks of in, out and lags: [blocks,C+1,2,W] each, real parts and imaginary ones; and of one block, channel by channel:
 * [W,2C], [W,2C+2]. */
typedef struct {
    float *in, *lags, *out, *time, *bins;
    lnt_longconv_fft plan;
    int64_t C;
} spectra;

static size_t spectra_floats(int64_t C, int64_t blocks)
{
    return C ? (size_t)(3 * (C + 1) * blocks * 2 * W + (4 * C + 2) * W) + lnt_longconv_fft_bytes(2 * C) / sizeof(float) : 0;
}

static spectra spectra_at(float *memory, int64_t C, int64_t blocks)
{
    spectra s = { .C = C };
    if (!C) return s;
    const int64_t all = (C + 1) * blocks * 2 * W;
    s.in = memory, s.lags = s.in + all, s.out = s.lags + all, s.time = s.out + all, s.bins = s.time + 2 * C * W;
    s.plan = lnt_longconv_fft_make(2 * C, s.bins + (2 * C + 2) * W);
    return s;
}

/* Rows `first` to below `end` of x become numbers `at` and on, of all channels. */
static void put_rows(const spectra *s, const float *x, int64_t first, int64_t end, int64_t at)
{
    if (end > first) LNT_V(lnt_transpose)((int)(end - first), W, x + first * W, W, s->time + at, 2 * s->C);
}

/* What stands in time; a block of spectra. */
static void transform(const spectra *s, float *to)
{
    const int64_t n = 2 * s->C;
    for (int c = 0; c < W; c++) lnt_longconv_fft_forward(&s->plan, s->time + c * n, s->bins + c * (n + 2));
    LNT_V(lnt_transpose)(W, (int)(n + 2), s->bins, n + 2, to, W);
}

/* One bin of all blocks, `each` floats apart: out_a = sum over J of in_J lags_{a-J}, for blocks a0 <= a < a1; out begins with block a0. */
static void multiply(const float *in, int64_t in_blocks, const float *lags, int64_t last_lag, float *out, int64_t a0, int64_t a1, int64_t each)
{
    for (int64_t a = a0; a < a1; a++) {
        vf re[VECTORS], im[VECTORS];
        for (int v = 0; v < VECTORS; v++) re[v] = im[v] = v_zero();
        for (int64_t J = a > last_lag ? a - last_lag : 0; J < a && J < in_blocks; J++) {
            const float *x = in + J * each, *y = lags + (a - J) * each;
            for (int v = 0; v < VECTORS; v++) {
                const vf p = v_load(x + v * LNT_VL), q = v_load(x + W + v * LNT_VL), r = v_load(y + v * LNT_VL), i = v_load(y + W + v * LNT_VL);
                re[v] = v_fma(p, r, v_fma(-q, i, re[v]));
                im[v] = v_fma(p, i, v_fma(q, r, im[v]));
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            v_store(out + (a - a0) * each + v * LNT_VL, re[v]);
            v_store(out + (a - a0) * each + W + v * LNT_VL, im[v]);
        }
    }
}

/* out rows of block a += what its spectra, which go, say. */
static void transform_back(const spectra *s, const convolution *c, int64_t a, float *block)
{
    const int64_t C = s->C, n = 2 * C, begin = c->i0 + a * C, from = c->o0 > begin ? c->o0 : begin, to = at_most(c->o1, begin + C);
    const vf scale = v_set(1.0f / (float)n);
    LNT_V(lnt_transpose)((int)(n + 2), W, block, W, s->bins, n + 2);
    for (int w = 0; w < W; w++) lnt_longconv_fft_inverse(&s->plan, s->bins + w * (n + 2), s->time + w * n);
    LNT_V(lnt_transpose)(W, (int)C, s->time, n, block, W);
    for (int64_t t = from; t < to; t++)
        for (int v = 0; v < W; v += LNT_VL) {
            float *out = c->out + (t - c->o0) * W + v;
            v_store(out, v_fma(scale, v_load(block + (t - begin) * W + v), v_load(out)));
        }
}

/* Blocks of out count from in's first row, which no row of out is before. */
static void convolve(const convolution *c, spectra *s)
{
    const int64_t C = s->C;
    if (!C) {
        direct(c, c->o0, c->o1, c->i0, c->i1);
        return;
    }
    const int64_t in_blocks = pieces(c->i1 - c->i0, C), first = (c->o0 - c->i0) / C, a1 = pieces(c->o1 - c->i0, C), a0 = first > 0 ? first : 1;
    const int64_t last_lag = at_most(a1 - 1, (c->lags + C - 2) / C);
    for (int64_t a = first; a < a1; a++) {
        const int64_t begin = c->i0 + a * C;
        if (begin < c->i1) direct(c, c->o0 > begin ? c->o0 : begin, at_most(c->o1, begin + C), begin, at_most(c->i1, begin + C));
    }
    const int64_t each = (C + 1) * 2 * W, rows = c->i1 - c->i0;
    for (int64_t b = 0; b < in_blocks; b++) {
        memset(s->time, 0, (size_t)(2 * C * W) * sizeof *s->time);
        put_rows(s, c->in, b * C, at_most(rows, (b + 1) * C), 0);
        transform(s, s->in + b * each);
    }
    for (int64_t m = 1; m <= last_lag; m++) { /* lags before mC stand at the end */
        memset(s->time, 0, (size_t)(2 * C * W) * sizeof *s->time);
        put_rows(s, c->h, m * C, at_most(c->lags, (m + 1) * C), 0);
        put_rows(s, c->h, (m - 1) * C + 1, at_most(c->lags, m * C), C + 1);
        transform(s, s->lags + m * each);
    }
    for (int64_t k = 0; k < each; k += 2 * W) multiply(s->in + k, in_blocks, s->lags + k, last_lag, s->out + k, a0, a1, each);
    for (int64_t a = a0; a < a1; a++) transform_back(s, c, a, s->out + (a - a0) * each);
}

/* ---- strips -------------------------------------------------------------------------------------------------------------------------------- */

static const char *row_of(const void *p, lnt_dtype t, int64_t row, int64_t cols) { return (const char *)p + row * cols * (int64_t)lnt_dtype_size(t); }

/* dst [count,W] := channels d .. of rows of x [.,D], of which `step` 1 takes row, row+1 .., and -1 row, row-1 ..; x NULL: zeros. */
static void take(float *dst, const void *x, lnt_dtype t, int64_t row, int64_t count, int step, int64_t D, int64_t d)
{
    const int64_t width = at_most(W, D - d);
    if (!x || width < W) memset(dst, 0, (size_t)(count * W) * sizeof *dst);
    for (int64_t i = 0; x && i < count; i++)
        V_EACH(j, n, width) v_store_n(dst + i * W + j, v_get(row_of(x, t, row + step * i, D), t, d + j, n), n);
}

static void give(void *x, lnt_dtype t, int64_t row, int64_t count, int64_t D, int64_t d, const float *src)
{
    const int64_t width = at_most(W, D - d);
    for (int64_t i = 0; i < count; i++)
        V_EACH(j, n, width) v_put((void *)(uintptr_t)row_of(x, t, row + i, D), t, d + j, n, v_load(src + i * W + j));
}

static int64_t strips(const lnt_longconv_args *a) { return pieces(a->D, W); }
static int64_t length_of(const lnt_longconv_args *a, int64_t n) { return a->cu_seqlens[n + 1] - a->cu_seqlens[n]; }
/* Rows of a state that any token sees. */
static int64_t past_rows(const lnt_longconv_args *a) { return at_most(a->R, a->L - 1); }

/* What a thread has room for: `rows` rows of a sequence and its past, and spectra. */
typedef struct {
    int64_t rows, lags, C, blocks;
} room;

static room room_of(const lnt_longconv_args *a)
{
    room r = { .rows = a->longest + past_rows(a) };
    r.lags = at_most(a->L, r.rows);
    r.C = block_length(a, r.rows, r.lags);
    r.blocks = r.C ? pieces(r.rows, r.C) + 2 : 0; /* the filter's gradient begins in the middle of one */
    return r;
}

static size_t forward_floats(const room *r) { return (size_t)((2 * r->rows + r->lags) * W) + spectra_floats(r->C, r->blocks); }

static void forward_strip(const lnt_longconv_args *a, int64_t n, int64_t d, float *memory)
{
    const room r = room_of(a);
    const int64_t len = length_of(a, n), first = a->cu_seqlens[n], past = a->s0 ? past_rows(a) : 0, lags = at_most(a->L, len + past);
    float *x = memory, *o = x + r.rows * W, *h = o + r.rows * W, skip[W];
    take(x, a->s0, a->dtype, (n + 1) * a->R - past, past, 1, a->D, d);
    take(x + past * W, a->u, a->dtype, first, len, 1, a->D, d);
    take(h, a->h, LINNET_F32, 0, lags, 1, a->D, d);
    take(skip, a->skip, LINNET_F32, 0, 1, 1, a->D, d);
    for (int64_t i = 0; i < len; i++)
        for (int v = 0; v < W; v += LNT_VL) v_store(o + i * W + v, v_load(skip + v) * v_load(x + (past + i) * W + v));
    const convolution c = { o, x, h, past, past + len, 0, past + len, lags };
    spectra s = spectra_at(h + r.lags * W, block_length(a, past + len, lags), r.blocks);
    convolve(&c, &s);
    give(a->o, a->dtype, first, len, a->D, d, o);
}

/* The final states, in place or elsewhere: rows move down one after the other. */
static void hand_on(const lnt_longconv_args *a)
{
    const size_t row = (size_t)a->D * lnt_dtype_size(a->dtype);
    for (int64_t n = 0; a->sT && n < a->sequences; n++) {
        const int64_t len = length_of(a, n), kept = len < a->R ? a->R - len : 0, fresh = a->R - kept;
        char *to = (char *)a->sT + (size_t)(n * a->R) * row;
        if (kept && a->s0)
            memmove(to, (const char *)a->s0 + (size_t)(n * a->R + len) * row, (size_t)kept * row);
        else if (kept)
            memset(to, 0, (size_t)kept * row);
        if (fresh) memcpy(to + (size_t)kept * row, (const char *)a->u + (size_t)(a->cu_seqlens[n + 1] - fresh) * row, (size_t)fresh * row);
    }
}

static void block_forward(const void *args, int threads)
{
    const lnt_longconv_args *a = args;
    const room r = room_of(a);
    const size_t each = forward_floats(&r);
    const int64_t count = a->sequences * strips(a);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && a->tokens * a->D > SMALL)
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = i / strips(a);
        if (length_of(a, n)) forward_strip(a, n, i % strips(a) * W, (float *)a->workspace + (size_t)omp_get_thread_num() * each);
    }
    hand_on(a);
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------- */

static size_t backward_floats(const room *r) { return (size_t)((3 * r->rows + 2 * r->lags) * W) + spectra_floats(r->C, r->blocks); }

/* du and ds0 of one sequence: with time in reverse, do's convolution with the filter; row i of g is row len-1-i. */
static void inputs_back(const lnt_longconv_args *a, int64_t n, int64_t d, const float *dout, float *reverse, const float *h, float *g, spectra *s)
{
    const int64_t len = length_of(a, n), first = a->cu_seqlens[n], R = a->R, width = at_most(W, a->D - d);
    const int64_t past = a->ds0 ? past_rows(a) : 0;
    float skip[W];
    take(skip, a->skip, LINNET_F32, 0, 1, 1, a->D, d);
    for (int64_t i = 0; i < len; i++) memcpy(reverse + i * W, dout + (len - 1 - i) * W, W * sizeof(float));
    memset(g, 0, (size_t)((len + past) * W) * sizeof *g);
    for (int64_t i = 0; i < len; i++)
        for (int v = 0; v < W; v += LNT_VL) v_store(g + i * W + v, v_load(skip + v) * v_load(reverse + i * W + v));
    const convolution c = { g, reverse, h, 0, len + past, 0, len, at_most(a->L, len + past) };
    if (len) convolve(&c, s);
    for (int64_t p = a->ds0 ? -R : 0; p < len; p++) {
        const int64_t r = p - (len - R), i = len - 1 - p; /* the row of the final state that row p is */
        void *to = p < 0 ? a->ds0 : a->du;
        const int64_t at = p < 0 ? (n * R + R + p) * a->D + d : (first + p) * a->D + d;
        if (!to) continue;
        V_EACH(j, m, width)
        {
            vf x = i < len + past ? v_load(g + i * W + j) : v_zero();
            if (a->dsT && r >= 0) x += v_get(a->dsT, a->dtype, (n * R + r) * a->D + d + j, m);
            v_put(to, a->dtype, at + j, m, x);
        }
    }
}

/* dh += of one sequence: rows of u in reverse, as lags of a convolution of do. `reverse` [past+len]: row i is row len-1-i. */
static void filter_back(const lnt_longconv_args *a, int64_t n, int64_t d, const float *dout, float *reverse, float *dh, spectra *s)
{
    const int64_t len = length_of(a, n), past = a->s0 ? past_rows(a) : 0, rows = len + past;
    take(reverse, a->u, a->dtype, a->cu_seqlens[n + 1] - 1, len, -1, a->D, d);
    take(reverse + len * W, a->s0, a->dtype, (n + 1) * a->R - 1, past, -1, a->D, d);
    const convolution c = { dh, dout, reverse, rows - 1, rows - 1 + at_most(a->L, rows), past, rows, rows };
    convolve(&c, s);
}

/* All sequences of a strip. */
static void backward_strip(const lnt_longconv_args *a, int64_t d, float *memory)
{
    const room r = room_of(a);
    const int64_t width = at_most(W, a->D - d);
    float *dout = memory, *reverse = dout + r.rows * W, *g = reverse + r.rows * W, *dh = g + r.rows * W, *h = dh + r.lags * W;
    float dskip[W] = { 0 };
    take(h, a->h, LINNET_F32, 0, r.lags, 1, a->D, d);
    memset(dh, 0, (size_t)(r.lags * W) * sizeof *dh);
    for (int64_t n = 0; n < a->sequences; n++) {
        const int64_t len = length_of(a, n), rows = len + past_rows(a);
        take(dout, a->dout, a->dtype, a->cu_seqlens[n], len, 1, a->D, d);
        spectra s = spectra_at(h + r.lags * W, block_length(a, len, at_most(a->L, rows)), r.blocks);
        inputs_back(a, n, d, dout, reverse, h, g, &s);
        if (!len) continue;
        if (a->dh) filter_back(a, n, d, dout, reverse, dh, &s);
        if (!a->dskip) continue;
        take(g, a->u, a->dtype, a->cu_seqlens[n], len, 1, a->D, d);
        for (int v = 0; v < W; v += LNT_VL) {
            vf sum = v_load(dskip + v);
            for (int64_t i = 0; i < len; i++) sum = v_fma(v_load(dout + i * W + v), v_load(g + i * W + v), sum);
            v_store(dskip + v, sum);
        }
    }
    for (int64_t l = 0; a->dh && l < a->L; l++)
        V_EACH(j, n, width) v_put(a->dh, LINNET_F32, l * a->D + d + j, n, l < r.lags ? v_load(dh + l * W + j) : v_zero());
    if (a->dskip) memcpy((float *)a->dskip + d, dskip, (size_t)width * sizeof(float));
}

static void block_backward(const void *args, int threads)
{
    const lnt_longconv_args *a = args;
    const room r = room_of(a);
    const size_t each = backward_floats(&r);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (strips(a) > 1 && a->tokens * a->D > SMALL)
    for (int64_t i = 0; i < strips(a); i++) backward_strip(a, i * W, (float *)a->workspace + (size_t)omp_get_thread_num() * each);
}

static size_t block_workspace(const void *args, bool back, int threads)
{
    const room r = room_of(args);
    return (size_t)threads * (back ? backward_floats(&r) : forward_floats(&r)) * sizeof(float);
}

/* ---- token by token ------------------------------------------------------------------------------------------------------------------------ */

/* ROW_STRIP channels of a token, over rows as they lie. */
static void one_token(const lnt_longconv_args *a, int64_t n, int64_t t, int64_t d)
{
    enum { COUNT = ROW_STRIP / LNT_VL };
    const int64_t first = a->cu_seqlens[n], at = t - first, past = a->s0 ? a->R : 0, lags = at_most(a->L, at + past + 1);
    const int64_t width = at_most(ROW_STRIP, a->D - d);
    vf sum[COUNT];
    for (int v = 0; v < COUNT; v++) sum[v] = v_zero();
    for (int64_t l = 0; l < lags; l++) {
        const bool here = l <= at;
        const void *rows = here ? a->u : a->s0;
        const int64_t i = (here ? t - l : (n + 1) * a->R + at - l) * a->D + d;
        if (width == ROW_STRIP)
            for (int v = 0; v < COUNT; v++)
                sum[v] = v_fma(v_get(a->h, LINNET_F32, l * a->D + d + v * LNT_VL, LNT_VL), v_get(rows, a->dtype, i + v * LNT_VL, LNT_VL), sum[v]);
        else
            V_EACH(j, m, width)
                sum[j / LNT_VL] = v_fma(v_get(a->h, LINNET_F32, l * a->D + d + j, m), v_get(rows, a->dtype, i + j, m), sum[j / LNT_VL]);
    }
    V_EACH(j, m, width)
    {
        const vf u = v_get(a->u, a->dtype, t * a->D + d + j, m), skip = a->skip ? v_get(a->skip, LINNET_F32, d + j, m) : v_zero();
        v_put(a->o, a->dtype, t * a->D + d + j, m, v_fma(skip, u, sum[j / LNT_VL]));
    }
}

static void row_forward(const void *args, int threads)
{
    const lnt_longconv_args *a = args;
    const int64_t each = pieces(a->D, ROW_STRIP), count = a->tokens * each;
#pragma omp parallel for num_threads(threads) if (count > 1 && a->tokens * a->D * at_most(a->L, a->longest + a->R) > SMALL)
    for (int64_t i = 0; i < count; i++) {
        int64_t n = 0;
        while (a->cu_seqlens[n + 1] <= i / each) n++;
        one_token(a, n, i / each, i % each * ROW_STRIP);
    }
    hand_on(a);
}

static size_t row_workspace(const void *args, bool back, int threads) { return back ? block_workspace(args, true, threads) : 0; }

extern const lnt_recur_impl LNT_V(lnt_longconv_block), LNT_V(lnt_longconv_row);
const lnt_recur_impl LNT_V(lnt_longconv_block) = { .name = LNT_V_NAME("block"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                                  .workspace = block_workspace, .forward = block_forward, .backward = block_backward };
/* The backward pass is the blocks'. */
const lnt_recur_impl LNT_V(lnt_longconv_row) = { .name = LNT_V_NAME("row"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                .workspace = row_workspace, .forward = row_forward, .backward = block_backward };
