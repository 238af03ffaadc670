/* Mild gates in a chunk on AMX tiles (only chunk_vector_amx_cpu.c includes this): where no column decays by more than e^-MILD from the chunk's first
 * row to its last, a factor splits at the start whatever the pair, F_ij = P_i / P_j with P_i = alpha_1 ... alpha_i, and neither part nor any
 * product of the two, those above the diagonal included, leaves the range that float32 and bf16 have in common. So
 *
 *   readers   X_i = f x_i . P_i, which meet the state, too        lifted   L_j = y_j / P_j        writes_j = y_j . (end / P_j)
 *   A = tril(X L^T)
 *
 * and back, from B = tril(A', -1) / f of the gradient A' of pairs, R = B L and W = B^T X:
 *
 *   dx_i = P_i . (f R_i + f_state (dO S^T)_i) + A'_ii y_i         dy_j = (W_j + end . (V dS'^T)_j) / P_j + A'_jj x_j
 *   inside_i = X_i . (R_i + f_state/f (dO S^T)_i) - L_i . W_i
 *
 * with X, L and B as they were rounded: each pair is in both of inside's sums with the same bits, so that what cancels does. */
#ifndef LNT_CHUNK_MILD_AMX_H
#define LNT_CHUNK_MILD_AMX_H

#include "recurrence/chunk/chunk_factors_amx.h"
#include "recurrence/chunk/chunk_triangle.h"
#include "recurrence/chunk/chunk_vector.h"

#if defined(__AMX_BF16__)
enum { MILD_ROWS = LNT_VECTOR_TILED, MILD_SIDES = 2, MILD_HEAD = 64 /* bytes: whether the chunk at hand is one */ };

/* P, row sums so far; by side L, its forms, those of X; by pair of sides B, with its transpose, in float32 and bf16. */
typedef struct {
    float *P, *sums;
    lnt_bf16 *lifted[MILD_SIDES], *turned[MILD_SIDES], *right_lifted[MILD_SIDES], *right_readers[MILD_SIDES];
    float *B;
    lnt_bf16 *left[MILD_SIDES][MILD_SIDES], *left_t[MILD_SIDES][MILD_SIDES];
} mild_rooms;

enum { MILD_SQUARE = MILD_ROWS * MILD_ROWS };
static size_t mild_bytes(int64_t W)
{
    return (size_t)W * ((MILD_ROWS + 1) * sizeof(float) + MILD_SIDES * 4 * MILD_ROWS * sizeof(lnt_bf16)) +
           MILD_SQUARE * (sizeof(float) + MILD_SIDES * MILD_SIDES * 2 * sizeof(lnt_bf16));
}

static mild_rooms mild_at(const lnt_vector *v)
{
    const int64_t W = v->width;
    mild_rooms m = { .P = (float *)((char *)v->tiled + MILD_HEAD) };
    m.B = m.P + MILD_ROWS * W;
    lnt_bf16 *at = (lnt_bf16 *)(m.B + MILD_SQUARE);
    for (int s = 0; s < MILD_SIDES; s++) {
        lnt_bf16 **const rows[] = { &m.lifted[s], &m.turned[s], &m.right_lifted[s], &m.right_readers[s] };
        for (int i = 0; i < 4; i++, at += MILD_ROWS * W) *rows[i] = at;
        for (int i = 0; i < MILD_SIDES; i++, at += 2 * MILD_SQUARE) m.left[s][i] = at, m.left_t[s][i] = at + MILD_SQUARE;
    }
    m.sums = (float *)at;
    return m;
}

static bool is_mild(const lnt_vector *v) { return *(const int32_t *)v->tiled; }

/* ---- front ----------------------------------------------------------------------------------------------------------------------------- */

/* The gates' sums over the rows, whose exponentials are `end`; whether the chunk is mild. */
static bool mild_sums(const lnt_vector_front *f, int64_t W, float *sums)
{
    __m512 least = _mm512_setzero_ps();
    for (int64_t c = 0; c < W; c += 32) {
        __m512 low = _mm512_setzero_ps(), high = low;
        lnt_tiles_awake();
        for (int64_t i = 0; i < f->n; i++) {
            low = _mm512_add_ps(low, _mm512_loadu_ps(f->g + i * f->stride + c));
            high = _mm512_add_ps(high, _mm512_loadu_ps(f->g + i * f->stride + c + 16));
        }
        _mm512_storeu_ps(sums + c, low);
        _mm512_storeu_ps(sums + c + 16, high);
        least = _mm512_min_ps(least, _mm512_min_ps(low, high));
    }
    if (!(_mm512_reduce_min_ps(least) >= -MILD) || (f->back && !f->end)) return false;
    for (int x = 0; x < f->readers; x++)
        if (f->f_pairs[x] != f->f_reads[x] || (f->back && !(fabsf(f->f_reads[x]) >= 0x1p-64f))) return false;
    return true;
}

INLINE bool row_of(const lnt_rows16 *from, int64_t i, int64_t c, __m512 *low, __m512 *high)
{
    if (i >= from->rows) return false;
    const lnt_bf16 *row = from->row + i * from->stride + c;
    *low = (__m512)v_load_bf16(row);
    *high = (__m512)v_load_bf16(row + 16);
    return true;
}

/* All rows: P, X, L and writes. */
INLINE void mild_rows(int readers, int writers, const lnt_vector_front *f, const mild_rooms *m, int64_t W, const float *end)
{
    float *run = m->sums;
    memset(run, 0, (size_t)W * sizeof *run);
    for (int64_t i = 0; i < f->n; i++) {
        const float *g = f->g + i * f->stride;
        if (i % 4 == 0) lnt_tiles_awake();
        for (int64_t c = 0; c < W; c += 32) {
            const __m512 a = _mm512_add_ps(_mm512_loadu_ps(run + c), _mm512_loadu_ps(g + c));
            const __m512 b = _mm512_add_ps(_mm512_loadu_ps(run + c + 16), _mm512_loadu_ps(g + c + 16));
            _mm512_storeu_ps(run + c, a);
            _mm512_storeu_ps(run + c + 16, b);
            const __m512 P = short_decay(a), Q = short_decay(b), p = short_inverse(P), q = short_inverse(Q);
            if (f->back) {
                _mm512_storeu_ps(m->P + i * W + c, P);
                _mm512_storeu_ps(m->P + i * W + c + 16, Q);
            }
            __m512 low, high;
            for (int s = 0; s < readers; s++) {
                const __m512 by = _mm512_set1_ps(f->f_reads[s]);
                if (row_of(&f->read[s], i, c, &low, &high))
                    put_wide(f->reads[s] + i * W + c, _mm512_mul_ps(low, _mm512_mul_ps(P, by)), _mm512_mul_ps(high, _mm512_mul_ps(Q, by)));
                else
                    memset(f->reads[s] + i * W + c, 0, 64);
            }
            const __m512 u = _mm512_mul_ps(p, _mm512_loadu_ps(end + c)), w = _mm512_mul_ps(q, _mm512_loadu_ps(end + c + 16));
            for (int s = 0; s < writers; s++) {
                if (row_of(&f->write[s], i, c, &low, &high)) {
                    put_wide(m->lifted[s] + i * W + c, _mm512_mul_ps(low, p), _mm512_mul_ps(high, q));
                    put_wide(f->writes[s] + i * W + c, _mm512_mul_ps(low, u), _mm512_mul_ps(high, w));
                } else {
                    memset(m->lifted[s] + i * W + c, 0, 64);
                    memset(f->writes[s] + i * W + c, 0, 64);
                }
            }
        }
    }
}

/* What stands above the diagonal of A [n,ld] becomes 0. */
static void clear_above(int64_t n, float *A, int64_t ld)
{
    for (int64_t i = 0; i < n; i++, A += ld) {
        const int64_t own = i / 16 * 16;
        const unsigned lanes = n - own >= 16 ? 0xffffu : (1u << (n - own)) - 1u, kept = (2u << (i - own)) - 1u;
        _mm512_mask_storeu_ps(A + own, (__mmask16)(lanes & ~kept), _mm512_setzero_ps());
        if (own + 16 < n) memset(A + own + 16, 0, (size_t)(n - own - 16) * sizeof *A);
    }
}

/* The front, unless the chunk is none of these. */
static bool mild_front(const lnt_vector *v, const lnt_vector_front *f)
{
    const int64_t W = v->width;
    const mild_rooms m = mild_at(v);
    const lnt_blocks blocks = { v->e, 32 };
    float *end = f->end ? f->end : m.B; /* B is made later */
    const bool mild = f->n > 0 && W <= MILD_SQUARE && mild_sums(f, W, end);
    *(int32_t *)v->tiled = mild;
    if (!mild) return false;
    for (int64_t c = 0; c < W; c += 16) _mm512_storeu_ps(end + c, decay_in_range(_mm512_loadu_ps(end + c)));
    if (f->readers == 0 && f->writers == 1)
        mild_rows(0, 1, f, &m, W, end);
    else if (f->readers == 1 && f->writers == 1)
        mild_rows(1, 1, f, &m, W, end);
    else if (f->writers == 1)
        mild_rows(2, 1, f, &m, W, end);
    else
        mild_rows(f->readers, 2, f, &m, W, end);
    for (int y = 0; y < f->writers && f->readers; y++) {
        lnt_operand L = { .rows = f->n, .cols = (int)W, .left = { m.lifted[y], W } };
        v->e->extend(&L, LNT_RIGHT_T, m.turned[y]);
        for (int x = 0; x < f->readers; x++) {
            const lnt_operand X = { .rows = f->n, .cols = (int)W, .left = { f->reads[x], W } };
            triangle(blocks, f->n, &X, &L, f->pairs[x][y], f->ld);
            clear_above(f->n, f->pairs[x][y], f->ld);
        }
    }
    return true;
}

/* ---- the way back ---------------------------------------------------------------------------------------------------------------------- */

/* B of n rows, and it and its transpose in bf16, rows and columns up to 32s zeros. */
static void mild_square(int n, float f, const float *A, int64_t ld, float *B, lnt_bf16 *left, lnt_bf16 *left_t)
{
    const int side = (n + 31) / 32 * 32;
    _Alignas(64) float turned[MILD_SQUARE];
    lnt_tiles_awake();
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j += 16) {
            const int below = i < n ? i - j : 0;
            const __mmask16 mask = (__mmask16)(below >= 16 ? 0xffffu : below > 0 ? (1u << below) - 1u : 0);
            _mm512_storeu_ps(B + i * side + j, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, A + i * ld + j), _mm512_set1_ps(f)));
        }
    lnt_tiles_awake();
    LNT_V(lnt_transpose)(side, side, B, side, turned, side);
    lnt_tiles_awake();
    for (int i = 0; i < side * side; i += 32) {
        put_wide(left + i, _mm512_loadu_ps(B + i), _mm512_loadu_ps(B + i + 16));
        put_wide(left_t + i, _mm512_load_ps(turned + i), _mm512_load_ps(turned + i + 16));
    }
}

static void mild_back_begin(const lnt_vector *v, const lnt_vector_back *s)
{
    const lnt_vector_front *f = s->f;
    const mild_rooms m = mild_at(v);
    for (int x = 0; x < f->readers; x++) {
        lnt_operand X = { .rows = f->n, .cols = v->width, .left = { f->reads[x], v->width } };
        v->e->extend(&X, LNT_RIGHT, m.right_readers[x]);
        for (int y = 0; y < f->writers; y++) mild_square(f->n, 1 / f->f_reads[x], s->A[x][y], s->ld, m.B, m.left[x][y], m.left_t[x][y]);
    }
    for (int y = 0; y < f->writers; y++) {
        lnt_operand L = { .rows = f->n, .cols = v->width, .left = { m.lifted[y], v->width } };
        v->e->extend(&L, LNT_RIGHT, m.right_lifted[y]);
    }
}

typedef float mild_strip[MILD_ROWS][32];

/* Row i of the strips: gradients, and `inside` of both vectors. */
INLINE void mild_row(int readers, int writers, const lnt_vector_back *s, const mild_rooms *m, int64_t W, int64_t c, int64_t i, mild_strip *R,
                     mild_strip *B, const __m512 end[2], __m512 inside[2])
{
    const lnt_vector_front *f = s->f;
    for (int h = 0; h < 2; h++) {
        const int64_t at = c + 16 * h, to = i * 32 + 16 * h;
        const __m512 P = _mm512_loadu_ps(m->P + i * W + at), p = inverse(P);
        __m512 x[MILD_SIDES], dx[MILD_SIDES], sum = _mm512_setzero_ps();
        for (int k = 0; k < readers; k++) {
            const __m512 state = _mm512_loadu_ps(s->dread[k] + to), pairs = _mm512_loadu_ps(R[k][i] + 16 * h);
            const __m512 all = _mm512_fmadd_ps(state, _mm512_set1_ps(s->f_state[k] / f->f_reads[k]), pairs);
            sum = _mm512_fmadd_ps((__m512)v_load_bf16(f->reads[k] + i * W + at), all, sum);
            dx[k] = _mm512_mul_ps(_mm512_mul_ps(P, _mm512_set1_ps(f->f_reads[k])), all);
            x[k] = i < f->read[k].rows ? (__m512)v_load_bf16(f->read[k].row + i * f->read[k].stride + at) : _mm512_setzero_ps();
        }
        for (int k = 0; k < writers; k++) {
            const __m512 pairs = _mm512_loadu_ps(B[k][i] + 16 * h);
            const __m512 y = i < f->write[k].rows ? (__m512)v_load_bf16(f->write[k].row + i * f->write[k].stride + at) : _mm512_setzero_ps();
            __m512 dy = _mm512_mul_ps(_mm512_fmadd_ps(end[h], _mm512_loadu_ps(s->dwrite[k] + to), pairs), p);
            sum = _mm512_fnmadd_ps((__m512)v_load_bf16(m->lifted[k] + i * W + at), pairs, sum);
            for (int l = 0; l < readers; l++) {
                const __m512 d = _mm512_set1_ps(s->A[l][k][i * (s->ld + 1)]);
                dx[l] = _mm512_fmadd_ps(d, y, dx[l]);
                dy = _mm512_fmadd_ps(d, x[l], dy);
            }
            _mm512_storeu_ps(s->dwrite[k] + to, dy);
        }
        for (int k = 0; k < readers; k++) _mm512_storeu_ps(s->dread[k] + to, dx[k]);
        inside[h] = sum;
    }
}

INLINE void mild_strips(int readers, int writers, const lnt_vector_back *s, const mild_rooms *m, int64_t W, int64_t c, mild_strip *R, mild_strip *B)
{
    const lnt_vector_front *f = s->f;
    const int64_t n = f->n;
    const __m512 end[2] = { _mm512_loadu_ps(f->end + c), _mm512_loadu_ps(f->end + c + 16) };
    const bool past = s->last && rows_past(s->dg, LINNET_F32, W);
    mild_strip before; /* a row: what passes it */
    if (s->last) {
        __m512 low = _mm512_loadu_ps(s->last + c), high = _mm512_loadu_ps(s->last + c + 16);
        for (int64_t i = 0; i < n; i++) {
            __m512 a = _mm512_setzero_ps(), b = a;
            if (i % 16 == 0) lnt_tiles_awake();
            _mm512_storeu_ps(before[i], low);
            _mm512_storeu_ps(before[i] + 16, high);
            for (int k = 0; k < writers; k++) {
                const lnt_bf16 *L = m->lifted[k] + i * W + c;
                a = _mm512_fmadd_ps((__m512)v_load_bf16(L), _mm512_loadu_ps(s->dwrite[k] + i * 32), a);
                b = _mm512_fmadd_ps((__m512)v_load_bf16(L + 16), _mm512_loadu_ps(s->dwrite[k] + i * 32 + 16), b);
            }
            low = _mm512_fmadd_ps(a, end[0], low);
            high = _mm512_fmadd_ps(b, end[1], high);
        }
    }
    __m512 run[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (int64_t i = n - 1; i >= 0; i--) {
        __m512 inside[2];
        if (i % 8 == 0) lnt_tiles_awake();
        mild_row(readers, writers, s, m, W, c, i, R, B, end, inside);
        for (int h = 0; h < 2 && s->last; h++) {
            float *dg = s->dg + i * s->stride + c + 16 * h;
            run[h] = _mm512_add_ps(run[h], inside[h]);
            const __m512 all = _mm512_add_ps(run[h], _mm512_loadu_ps(before[i] + 16 * h));
            if (past)
                _mm512_stream_ps(dg, all);
            else
                _mm512_storeu_ps(dg, all);
        }
    }
}

static void mild_back_columns(const lnt_vector *v, const lnt_vector_back *s, int c)
{
    const lnt_vector_front *f = s->f;
    const int64_t W = v->width;
    const int n = f->n, side = (n + 31) / 32 * 32;
    const mild_rooms m = mild_at(v);
    const lnt_blocks blocks = { v->e, 32 };
    _Alignas(64) mild_strip R[MILD_SIDES], B[MILD_SIDES];
    for (int x = 0; x < f->readers; x++)
        for (int y = 0; y < f->writers; y++) {
            const lnt_operand A = { .x = m.B, .ld = side, .rows = n, .cols = n, .left = { m.left[x][y], side }, .left_t = { m.left_t[x][y], side } };
            const lnt_operand L = { .rows = n, .cols = 32, .right = { m.right_lifted[y] + (int64_t)c * side, side / 2 * 16 } };
            const lnt_operand X = { .rows = n, .cols = 32, .right = { m.right_readers[x] + (int64_t)c * side, side / 2 * 16 } };
            lower_product(y ? LNT_MM_ADD : LNT_MM_SET, blocks, n, &A, &L, 32, R[x][0]);
            lower_product_transposed(x ? LNT_MM_ADD : LNT_MM_SET, blocks, n, &A, &X, 32, B[y][0]);
        }
    if (f->readers == 1 && f->writers == 1)
        mild_strips(1, 1, s, &m, W, c, R, B);
    else if (f->writers == 1)
        mild_strips(2, 1, s, &m, W, c, R, B);
    else
        mild_strips(f->readers, 2, s, &m, W, c, R, B);
}

#endif

#endif
