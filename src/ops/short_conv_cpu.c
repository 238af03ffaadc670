#include "ops/rows.h"
#include "ops/sequences.h"
#include "ops/short_conv.h"

/* A piece of work is some rows of one part of the columns. Inside it each vector of columns walks down the rows with the taps, the last inputs and
 * the last dz in registers, so that every element of x, dy and dx is touched once. (Row by row instead, with the window read again from the
 * cache: 1.3 to 2 times slower.) */
enum { PIECE_ROWS = 64, PART = 128 };

/* w [cols, size] as taps [size, cols]. */
static void taps_of(const lnt_call *k, float *taps)
{
    const int64_t cols = k->in[0].cols, size = ((const lnt_conv_attr *)k->attr)->size;
    const float *w = k->param[0].master;
    for (int64_t c = 0; c < cols; c++)
        for (int64_t j = 0; j < size; j++) taps[j * cols + c] = w[c * size + j];
}

/* Rows r0 .. r1-1 of one sequence, and the columns c0 .. c1-1. */
typedef struct {
    int64_t seq, r0, r1, c0, c1;
} run;

/* The next run of a piece that ends at row `end`; false when there is none. */
static bool next_run(const lnt_call *k, run *u, int64_t end)
{
    u->r0 = u->r1;
    if (u->r0 >= end) return false;
    while (u->r0 >= k->cu[u->seq + 1]) u->seq++;
    u->r1 = at_most(end, k->cu[u->seq + 1]);
    return true;
}

/* Columns i .. i+n-1 of the input row `r` of a sequence; before its beginning, of its state or zero. */
static inline vf input(const lnt_call *k, int64_t seq, int64_t r, int64_t i, int64_t n)
{
    const lnt_tensor *x = &k->in[0];
    if (r >= k->cu[seq]) return v_get(row_at(x, r), x->dtype, i, n);
    if (!k->state) return v_zero();
    const float *state = (const float *)((const char *)k->state + seq * k->state_stride); /* [size-1, cols] */
    return v_get(state + (r - k->cu[seq] + ((const lnt_conv_attr *)k->attr)->size - 1) * x->cols, LINNET_F32, i, n);
}

/* The bias of columns i .. i+n-1, or zero. */
static inline vf bias_of(const lnt_call *k, int64_t i, int64_t n)
{
    return ((const lnt_conv_attr *)k->attr)->bias ? v_get(k->param[1].master, LINNET_F32, i, n) : v_zero();
}

INLINE void forward_run(const lnt_call *k, const run *u, const float *taps, const int size, const lnt_act act)
{
    const lnt_tensor *y = &k->out[0];
    for (int64_t i = u->c0, n; n = at_most(LNT_VL, u->c1 - i), i < u->c1; i += LNT_VL) {
        const vf b = bias_of(k, i, n);
        vf w[LNT_CONV_MAX], x[LNT_CONV_MAX]; /* x[j]: row r - size + 1 + j */
        for (int j = 0; j < size; j++) w[j] = v_get(taps + j * y->cols, LINNET_F32, i, n);
        for (int j = 0; j + 1 < size; j++) x[j + 1] = input(k, u->seq, u->r0 - size + 1 + j, i, n);
        for (int64_t r = u->r0; r < u->r1; r++) {
            for (int j = 0; j + 1 < size; j++) x[j] = x[j + 1];
            x[size - 1] = v_get(row_at(&k->in[0], r), k->in[0].dtype, i, n);
            vf z = b;
            for (int j = 0; j < size; j++) z += w[j] * x[j];
            v_put(row_at(y, r), y->dtype, i, n, v_act(z, act));
        }
    }
}

/* dx of the run's rows, and the taps' gradients dw [size, cols] of its rows, the bias's behind them. dz reaches size-1 rows further, inside the
 * sequence. */
INLINE void backward_run(const lnt_call *k, const run *u, const float *taps, float *dw, const int size, const lnt_act act)
{
    const lnt_tensor *dy = &k->d_out[0], *dx = &k->d_in[0];
    const int64_t last = at_most(k->cu[u->seq + 1], u->r1 + size - 1);
    for (int64_t i = u->c0, n; n = at_most(LNT_VL, u->c1 - i), i < u->c1; i += LNT_VL) {
        const vf b = bias_of(k, i, n);
        vf w[LNT_CONV_MAX], x[LNT_CONV_MAX], dz[LNT_CONV_MAX], sum[LNT_CONV_MAX], all = v_zero(); /* dz[j]: row r - size + 1 + j */
        for (int j = 0; j < size; j++) {
            w[j] = v_get(taps + j * dy->cols, LINNET_F32, i, n);
            dz[j] = sum[j] = v_zero();
        }
        for (int j = 0; j + 1 < size; j++) x[j + 1] = input(k, u->seq, u->r0 - size + 1 + j, i, n);
        for (int64_t r = u->r0; r < u->r1 + size - 1; r++) {
            vf z = b, y, d = v_zero();
            for (int j = 0; j + 1 < size; j++) x[j] = x[j + 1], dz[j] = dz[j + 1];
            if (r < last) {
                x[size - 1] = v_get(row_at(&k->in[0], r), k->in[0].dtype, i, n);
                for (int j = 0; j < size; j++) z += w[j] * x[j];
                d = v_act_slope(z, act, &y) * v_get(row_at(dy, r), dy->dtype, i, n);
            }
            dz[size - 1] = d;
            if (r < u->r1) {
                for (int j = 0; j < size; j++) sum[j] += d * x[j];
                all += d;
            }
            const int64_t t = r - size + 1; /* all of its dz are there */
            if (t >= u->r0 && dx->data) {
                vf g = v_zero();
                for (int j = 0; j < size; j++) g += w[size - 1 - j] * dz[j];
                v_out(row_at(dx, t), dx->dtype, i, n, g, k->accumulate[0]);
            }
        }
        for (int j = 0; dw && j < size; j++) v_out(dw + j * dy->cols, LINNET_F32, i, n, sum[j], true);
        if (dw && ((const lnt_conv_attr *)k->attr)->bias) v_out(dw + size * dy->cols, LINNET_F32, i, n, all, true);
    }
}

/* The usual shape of a convolution has its loops unrolled. */
static void forward_any(const lnt_call *k, const run *u, const float *taps)
{
    const lnt_conv_attr *a = k->attr;
    if (a->size == 4 && a->act == LNT_SILU)
        forward_run(k, u, taps, 4, LNT_SILU);
    else
        forward_run(k, u, taps, a->size, a->act);
}

static void backward_any(const lnt_call *k, const run *u, const float *taps, float *dw)
{
    const lnt_conv_attr *a = k->attr;
    if (a->size == 4 && a->act == LNT_SILU)
        backward_run(k, u, taps, dw, 4, LNT_SILU);
    else
        backward_run(k, u, taps, dw, a->size, a->act);
}

/* Shift each sequence's last inputs into its state. */
static void advance(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0];
    const int64_t cols = x->cols, keep = ((const lnt_conv_attr *)k->attr)->size - 1;
    PARALLEL_PIECES(k->c, n, k->n_seq)
    {
        float *state = (float *)((char *)k->state + n * k->state_stride);
        const int64_t length = k->cu[n + 1] - k->cu[n];
        for (int64_t j = 0; j < keep; j++) {
            const int64_t from = length - keep + j; /* row of the sequence, < 0: of the old state */
            if (from < 0)
                memmove(state + j * cols, state + (j + length) * cols, (size_t)cols * sizeof *state);
            else
                V_EACH(i, m, cols) v_put(state + j * cols, LINNET_F32, i, m, v_get(row_at(x, k->cu[n] + from), x->dtype, i, m));
        }
    }
}

linnet_status LNT_V(lnt_short_conv_forward)(const lnt_call *k)
{
    const int64_t cols = k->out[0].cols, parts = pieces(cols, PART);
    float *taps = k->work;
    taps_of(k, taps);
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, PIECE_ROWS) * parts)
    {
        const int64_t first = p / parts * PIECE_ROWS, c0 = p % parts * PART;
        run u = {lnt_sequence_of(k, first), first, first, c0, at_most(cols, c0 + PART)};
        while (next_run(k, &u, at_most(k->tokens, first + PIECE_ROWS))) forward_any(k, &u, taps);
    }
    if (k->state) advance(k);
    return LINNET_OK;
}

/* Gradients [cols, size] of the taps, [cols] of the bias += sums [blocks, size or one more, cols], in block order. */
static void add_taps(const lnt_call *k, const float *sums, int64_t blocks)
{
    const lnt_conv_attr *a = k->attr;
    const int64_t cols = k->in[0].cols, size = a->size, rows = size + a->bias;
    PARALLEL_PIECES(k->c, p, pieces(cols, LNT_VL))
        for (int64_t j = 0; j < rows; j++) {
            const int64_t c = p * LNT_VL, n = at_most(LNT_VL, cols - c), step = j < size ? size : 1;
            float *grad = j < size ? k->param[0].grad : k->param[1].grad;
            vf s = v_zero();
            for (int64_t b = 0; b < blocks; b++) s += v_get(sums + (b * rows + j) * cols, LINNET_F32, c, n);
            for (int64_t l = 0; grad && l < n; l++) grad[(c + l) * step + (j < size ? j : 0)] += s[l];
        }
}

linnet_status LNT_V(lnt_short_conv_backward)(const lnt_call *k)
{
    const lnt_conv_attr *a = k->attr;
    const int64_t cols = k->in[0].cols, count = (a->size + a->bias) * cols, parts = pieces(cols, PART);
    const int64_t rows = lnt_sum_block_rows(k->tokens), blocks = lnt_sum_blocks(k->tokens);
    float *taps = k->work, *sums = taps + a->size * cols; /* [size, cols], [blocks, size or one more, cols] */
    const bool grad = k->param[0].grad || (a->bias && k->param[1].grad);
    taps_of(k, taps);
    if (grad) memset(sums, 0, (size_t)(blocks * count) * sizeof *sums);
    PARALLEL_PIECES(k->c, p, blocks * parts)
    {
        const int64_t first = p / parts * rows, c0 = p % parts * PART;
        run u = {lnt_sequence_of(k, first), first, first, c0, at_most(cols, c0 + PART)};
        while (next_run(k, &u, at_most(k->tokens, first + rows))) backward_any(k, &u, taps, grad ? sums + p / parts * count : NULL);
    }
    if (grad) add_taps(k, sums, blocks);
    return LINNET_OK;
}
