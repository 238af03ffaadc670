#include <math.h>

#include "ops/rows.h"
#include "ops/sequences.h"

/* The sines of places 0 .. n-1: [n, cols]. */
static void make_sines(const lnt_call *k, float *sines, int64_t n, int64_t cols)
{
    const int64_t half = cols / 2, size = rows_a_piece(16 * cols);
    PARALLEL_PIECES(k->c, p, pieces(n, size))
        for (int64_t t = p * size; t < at_most(n, (p + 1) * size); t++) {
            float *s = sines + t * cols;
            for (int64_t i = 0; i < half; i++) {
                const double angle = (double)t * pow(10000, half > 1 ? -(double)i / (double)(half - 1) : 0);
                s[i] = (float)sin(angle);
                s[half + i] = (float)cos(angle);
            }
            if (cols % 2) s[cols - 1] = 0;
        }
}

linnet_status LNT_V(lnt_from_last_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t cols = x->cols, size = rows_a_piece(cols);
    float *sines = k->work;
    int64_t longest = 0;
    for (int64_t s = 0; s < k->n_seq; s++) longest = k->cu[s + 1] - k->cu[s] > longest ? k->cu[s + 1] - k->cu[s] : longest;
    make_sines(k, sines, longest, cols);
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, size))
    {
        int64_t seq = lnt_sequence_of(k, p * size);
        for (int64_t r = p * size; r < at_most(k->tokens, (p + 1) * size); r++) {
            while (r >= k->cu[seq + 1]) seq++;
            const void *last = row_at(x, k->cu[seq + 1] - 1);
            const float *s = sines + (r - k->cu[seq]) * cols;
            V_EACH(i, n, cols) v_put(row_at(y, r), y->dtype, i, n, v_get(last, x->dtype, i, n) + v_get(s, LINNET_F32, i, n));
        }
    }
    return LINNET_OK;
}

/* A piece is a sequence's part of the columns. */
linnet_status LNT_V(lnt_from_last_backward)(const lnt_call *k)
{
    enum { PART = 64 };
    const lnt_tensor *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t parts = pieces(dy->cols, PART);
    PARALLEL_PIECES(k->c, p, dx->data ? k->n_seq * parts : 0)
    {
        const int64_t begin = k->cu[p / parts], last = k->cu[p / parts + 1] - 1, c = p % parts * PART;
        for (int64_t r = begin; r < last && !k->accumulate[0]; r++)
            V_EACH(i, n, at_most(dx->cols - c, PART)) v_put(part_at(dx, r, c), dx->dtype, i, n, v_zero());
        V_EACH(i, n, last >= begin ? at_most(dx->cols - c, PART) : 0)
        {
            vf sum = v_zero();
            for (int64_t r = begin; r <= last; r++) sum += v_get(part_at(dy, r, c), dy->dtype, i, n);
            v_out(part_at(dx, last, c), dx->dtype, i, n, sum, k->accumulate[0]);
        }
    }
    return LINNET_OK;
}
