#include "ops/rows.h"
#include "ops/sequences.h"

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
