#include "ops/rows.h"
#include "ops/sequences.h"
#include "ops/token_shift.h"

/* ---- token shift ------------------------------------------------------------------------------------------------------------------------ */

static float *state_of(const lnt_call *k, int64_t seq) { return (float *)((char *)k->state + seq * k->state_stride); }

linnet_status LNT_V(lnt_token_shift_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t cols = x->cols, size = rows_a_piece(cols);
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, size))
    {
        int64_t seq = lnt_sequence_of(k, p * size);
        for (int64_t r = p * size; r < at_most(k->tokens, (p + 1) * size); r++) {
            while (r >= k->cu[seq + 1]) seq++;
            const bool first = r == k->cu[seq];
            const void *from = !first ? row_at(x, r - 1) : k->state ? state_of(k, seq) : NULL;
            V_EACH(i, n, cols) v_put(row_at(y, r), y->dtype, i, n, from ? v_get(from, first ? LINNET_F32 : x->dtype, i, n) : v_zero());
        }
    }
    for (int64_t s = 0; k->state && s < k->n_seq; s++)
        if (k->cu[s + 1] > k->cu[s])
            V_EACH(i, n, cols) v_put(state_of(k, s), LINNET_F32, i, n, v_get(row_at(x, k->cu[s + 1] - 1), x->dtype, i, n));
    return LINNET_OK;
}

linnet_status LNT_V(lnt_token_shift_backward)(const lnt_call *k)
{
    const lnt_tensor *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t cols = dx->cols, size = rows_a_piece(cols);
    PARALLEL_PIECES(k->c, p, pieces(dx->data ? k->tokens : 0, size))
    {
        int64_t seq = lnt_sequence_of(k, p * size);
        for (int64_t r = p * size; r < at_most(k->tokens, (p + 1) * size); r++) {
            while (r >= k->cu[seq + 1]) seq++;
            const void *from = r + 1 < k->cu[seq + 1] ? row_at(dy, r + 1) : NULL;
            if (from || !k->accumulate[0])
                V_EACH(i, n, cols) v_out(row_at(dx, r), dx->dtype, i, n, from ? v_get(from, dy->dtype, i, n) : v_zero(), k->accumulate[0]);
        }
    }
    return LINNET_OK;
}

/* ---- lerp --------------------------------------------------------------------------------------------------------------------------------- */

linnet_status LNT_V(lnt_lerp_forward)(const lnt_call *k)
{
    const lnt_tensor *a = &k->in[0], *b = &k->in[1], *m = &k->in[2], *y = &k->out[0];
    const int64_t size = rows_a_piece(y->cols), step = !((const lnt_lerp_attr *)k->attr)->row;
    PARALLEL_PIECES(k->c, p, pieces(y->rows, size))
        for (int64_t r = p * size; r < at_most(y->rows, (p + 1) * size); r++) {
            const void *ar = a->data ? row_at(a, r) : NULL, *br = b->data ? row_at(b, r) : NULL, *mr = row_at(m, r * step);
            V_EACH(i, n, y->cols)
            {
                vf from = ar ? v_get(ar, a->dtype, i, n) : v_zero(), by = v_get(mr, m->dtype, i, n);
                v_put(row_at(y, r), y->dtype, i, n, br ? from + (v_get(br, b->dtype, i, n) - from) * by : from + by);
            }
        }
    return LINNET_OK;
}

/* Row r; dm goes into sum [cols] when that is not NULL. */
static void lerp_row_back(const lnt_call *k, int64_t r, float *sum)
{
    const lnt_tensor *a = &k->in[0], *b = &k->in[1], *m = &k->in[2], *dy = &k->d_out[0], *da = &k->d_in[0], *db = &k->d_in[1], *dm = &k->d_in[2];
    const lnt_lerp_attr *x = k->attr;
    const bool row = x->row;
    V_EACH(i, n, dy->cols)
    {
        vf d = v_get(row_at(dy, r), dy->dtype, i, n), by = x->sum ? v_zero() : v_get(row_at(m, row ? 0 : r), m->dtype, i, n);
        if (da->data) v_out(row_at(da, r), da->dtype, i, n, d - d * by, k->accumulate[0]);
        if (db->data) v_out(row_at(db, r), db->dtype, i, n, d * by, k->accumulate[1]);
        if (!dm->data) continue;
        if (!x->sum) {
            vf way = v_get(row_at(b, r), b->dtype, i, n);
            if (a->data) way -= v_get(row_at(a, r), a->dtype, i, n);
            d *= way;
        }
        if (sum)
            v_out(sum, LINNET_F32, i, n, d, true);
        else
            v_out(row_at(dm, r), dm->dtype, i, n, d, k->accumulate[2]);
    }
}

linnet_status LNT_V(lnt_lerp_backward)(const lnt_call *k)
{
    const lnt_tensor *dm = &k->d_in[2];
    const int64_t rows = k->d_out[0].rows, cols = k->d_out[0].cols, size = lnt_sum_block_rows(rows), blocks = lnt_sum_blocks(rows);
    const bool sums = ((const lnt_lerp_attr *)k->attr)->row && dm->data;
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *sum = sums ? (float *)k->work + p * cols : NULL;
        if (sum) memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t r = p * size; r < at_most(rows, (p + 1) * size); r++) lerp_row_back(k, r, sum);
    }
    if (sums && !k->accumulate[2]) memset(dm->data, 0, (size_t)cols * sizeof(float));
    if (sums) add_blocks(k->c, dm->data, k->work, blocks, cols);
    return LINNET_OK;
}
