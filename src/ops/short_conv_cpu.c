#include "ops/rows.h"
#include "ops/sequences.h"
#include "ops/short_conv.h"

/* A piece of work is some rows of one part of the columns: an L1 cache holds the part's dz of a piece (64+31 rows, 128 columns, 48 KB at most). */
enum { PIECE_ROWS = 64, PART = 128 };

/* w [cols, size] as taps [size, cols]. */
static void taps_of(const lnt_call *k, float *taps)
{
    const int64_t cols = k->in[0].cols, size = ((const lnt_conv_attr *)k->attr)->size;
    const float *w = k->param[0].master;
    for (int64_t c = 0; c < cols; c++)
        for (int64_t j = 0; j < size; j++) taps[j * cols + c] = w[c * size + j];
}

/* A row that the convolution reads, columns c0 on. */
typedef struct {
    const void *p;
    lnt_dtype t;
} source;

/* The rows that row r reads, oldest first: those with a NULL pointer are zero. */
static void sources_of(const lnt_call *k, int64_t r, int64_t seq, int64_t c0, source *s)
{
    const int64_t cols = k->in[0].cols, size = ((const lnt_conv_attr *)k->attr)->size;
    const float *state = k->state ? (const float *)((const char *)k->state + seq * k->state_stride) : NULL; /* [size-1, cols] */
    for (int64_t j = 0; j < size; j++) {
        const int64_t from = r - size + 1 + j;
        if (from >= k->cu[seq])
            s[j] = (source){part_at(&k->in[0], from, c0), k->in[0].dtype};
        else
            s[j] = (source){state ? state + (from - k->cu[seq] + size - 1) * cols + c0 : NULL, LINNET_F32};
    }
}

/* z of vector i. */
static inline vf convolve(const source *s, const float *taps, int64_t cols, int64_t size, int64_t i, int64_t n)
{
    vf z = v_zero();
    for (int64_t j = 0; j < size; j++)
        if (s[j].p) z += v_get(s[j].p, s[j].t, i, n) * v_get(taps + j * cols, LINNET_F32, i, n);
    return z;
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
    const lnt_conv_attr *a = k->attr;
    const lnt_tensor *y = &k->out[0];
    const int64_t cols = y->cols, parts = pieces(cols, PART);
    float *taps = k->work;
    taps_of(k, taps);
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, PIECE_ROWS) * parts)
    {
        const int64_t r0 = p / parts * PIECE_ROWS, c0 = p % parts * PART, width = at_most(PART, cols - c0);
        int64_t seq = lnt_sequence_of(k, r0);
        source s[LNT_CONV_MAX];
        for (int64_t r = r0; r < at_most(k->tokens, r0 + PIECE_ROWS); r++) {
            while (r >= k->cu[seq + 1]) seq++;
            sources_of(k, r, seq, c0, s);
            V_EACH(i, n, width) v_put(part_at(y, r, c0), y->dtype, i, n, v_act(convolve(s, taps + c0, cols, a->size, i, n), a->act));
        }
    }
    if (k->state) advance(k);
    return LINNET_OK;
}

/* dz [rows, PART] of rows r0 .. r1-1 (recomputing z), and the taps' gradients [size, cols] of the first `own` of them. */
static void slopes(const lnt_call *k, int64_t r0, int64_t r1, int64_t own, int64_t c0, int64_t width, const float *taps, float *dz, float *dw)
{
    const lnt_conv_attr *a = k->attr;
    const lnt_tensor *dy = &k->d_out[0];
    const int64_t cols = k->in[0].cols;
    int64_t seq = lnt_sequence_of(k, r0);
    source s[LNT_CONV_MAX];
    for (int64_t r = r0; r < r1; r++) {
        while (r >= k->cu[seq + 1]) seq++;
        sources_of(k, r, seq, c0, s);
        V_EACH(i, n, width)
        {
            vf y, d = v_act_slope(convolve(s, taps + c0, cols, a->size, i, n), a->act, &y) * v_get(part_at(dy, r, c0), dy->dtype, i, n);
            v_put(dz + (r - r0) * PART, LINNET_F32, i, n, d);
            if (dw && r - r0 < own)
                for (int j = 0; j < a->size; j++)
                    if (s[j].p) v_out(dw + j * cols + c0, LINNET_F32, i, n, d * v_get(s[j].p, s[j].t, i, n), true);
        }
    }
}

/* dx of row r (of a sequence that ends at `end`) from dz, whose first row is r. */
static void input_gradient(const lnt_call *k, int64_t r, int64_t end, int64_t c0, int64_t width, const float *taps, const float *dz)
{
    const lnt_tensor *dx = &k->d_in[0];
    const int64_t cols = dx->cols, size = ((const lnt_conv_attr *)k->attr)->size, ahead = at_most(size, end - r);
    V_EACH(i, n, width)
    {
        vf d = v_zero();
        for (int64_t l = 0; l < ahead; l++) d += v_get(taps + (size - 1 - l) * cols + c0, LINNET_F32, i, n) * v_get(dz + l * PART, LINNET_F32, i, n);
        v_out(part_at(dx, r, c0), dx->dtype, i, n, d, k->accumulate[0]);
    }
}

linnet_status LNT_V(lnt_short_conv_backward)(const lnt_call *k)
{
    const lnt_conv_attr *a = k->attr;
    const int64_t cols = k->in[0].cols, parts = pieces(cols, PART), rows = lnt_sum_block_rows(k->tokens), blocks = lnt_sum_blocks(k->tokens);
    float *taps = k->work, *sums = taps + a->size * cols; /* [size, cols], [blocks, size, cols] */
    float *grad = k->param[0].grad;
    taps_of(k, taps);
    PARALLEL_PIECES(k->c, p, blocks * parts)
    {
        float dz[(PIECE_ROWS + LNT_CONV_MAX) * PART];
        const int64_t b0 = p / parts * rows, b1 = at_most(k->tokens, b0 + rows), c0 = p % parts * PART, width = at_most(PART, cols - c0);
        float *dw = grad ? sums + p / parts * a->size * cols : NULL;
        for (int j = 0; dw && j < a->size; j++) memset(dw + j * cols + c0, 0, (size_t)width * sizeof *dw);
        for (int64_t r0 = b0; r0 < b1; r0 += PIECE_ROWS) {
            const int64_t r1 = at_most(b1, r0 + PIECE_ROWS), halo = at_most(k->tokens, r1 + a->size - 1);
            slopes(k, r0, halo, r1 - r0, c0, width, taps, dz, dw);
            int64_t seq = lnt_sequence_of(k, r0);
            for (int64_t r = r0; k->d_in[0].data && r < r1; r++) {
                while (r >= k->cu[seq + 1]) seq++;
                input_gradient(k, r, k->cu[seq + 1], c0, width, taps, dz + (r - r0) * PART);
            }
        }
    }
    if (!grad) return LINNET_OK;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t j = 0; j < a->size; j++)
            for (int64_t c = 0; c < cols; c++) grad[c * a->size + j] += sums[(b * a->size + j) * cols + c];
    return LINNET_OK;
}
