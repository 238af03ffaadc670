/* The angle of a row follows from the one before by a rotation in double (64 steps lose 1e-14); a piece or a sequence begins with cos and sin. */
#include "ops/rotary.h"
#include "ops/rows.h"
#include "ops/sequences.h"

enum { PIECE_ROWS = 64 };

static void turn_row(const lnt_tensor *x, const lnt_tensor *y, int64_t r, int64_t half, int64_t rest, const float *co, const float *si, bool add)
{
    for (int64_t h = 0; h < x->heads; h++) {
        const int64_t at = h * (2 * half + rest);
        const void *x1 = part_at(x, r, at), *x2 = part_at(x, r, at + half);
        void *y1 = part_at(y, r, at), *y2 = part_at(y, r, at + half);
        V_EACH(i, n, half)
        {
            vf a = v_get(x1, x->dtype, i, n), b = v_get(x2, x->dtype, i, n), c = v_get(co, LINNET_F32, i, n), s = v_get(si, LINNET_F32, i, n);
            v_out(y1, y->dtype, i, n, a * c - b * s, add);
            v_out(y2, y->dtype, i, n, a * s + b * c, add);
        }
        V_EACH(i, n, rest)
            v_out(part_at(y, r, at + 2 * half), y->dtype, i, n, v_get(part_at(x, r, at + 2 * half), x->dtype, i, n), add);
    }
}

/* Rows r0 .. r1-1; sign -1 turns back. */
static void turn(const lnt_call *k, const lnt_tensor *x, const lnt_tensor *y, int64_t r0, int64_t r1, float sign, bool add)
{
    const lnt_rotary_attr *a = k->attr;
    double co[LNT_ROTARY_MAX / 2], si[LNT_ROTARY_MAX / 2];
    float cf[LNT_ROTARY_MAX / 2], sf[LNT_ROTARY_MAX / 2];
    int64_t seq = lnt_sequence_of(k, r0);
    for (int64_t r = r0; r < r1; r++) {
        bool begins = r == r0;
        while (r >= k->cu[seq + 1]) seq++, begins = true;
        int64_t at = r - k->cu[seq] + (k->position ? k->position[seq] : 0);
        if (a->period) at %= a->period;
        if (begins || (a->period && at == 0)) {
            const double position = (double)at;
            for (int64_t i = 0; i < a->half; i++) co[i] = cos(position * a->theta[i]), si[i] = sin(position * a->theta[i]);
        }
        for (int64_t i = 0; i < a->half; i++) cf[i] = (float)(a->scale * co[i]), sf[i] = sign * (float)(a->scale * si[i]);
        turn_row(x, y, r, a->half, a->rest, cf, sf, add);
        for (int64_t i = 0; i < a->half; i++) {
            const double c = co[i] * a->co[i] - si[i] * a->si[i];
            si[i] = co[i] * a->si[i] + si[i] * a->co[i];
            co[i] = c;
        }
    }
}

linnet_status LNT_V(lnt_rotary_forward)(const lnt_call *k)
{
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, PIECE_ROWS))
        turn(k, &k->in[0], &k->out[0], p * PIECE_ROWS, at_most(k->tokens, (p + 1) * PIECE_ROWS), 1.0f, false);
    return LINNET_OK;
}

linnet_status LNT_V(lnt_rotary_backward)(const lnt_call *k)
{
    if (!k->d_in[0].data) return LINNET_OK;
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, PIECE_ROWS))
        turn(k, &k->d_out[0], &k->d_in[0], p * PIECE_ROWS, at_most(k->tokens, (p + 1) * PIECE_ROWS), -1.0f, k->accumulate[0]);
    return LINNET_OK;
}
