/* Mild gates of rows in a chunk, in float32 products (only decay_cpu.c includes this). With factors F_ij = P_i / P_j (chunk/chunk_mild.h), readers
 * R_i = s q_i . P_i and writers W_j = k_j / P_j:
 *
 *   A = tril(R W^T)   O = R S + A V                  S' = P_n . (S + W^T V)
 *   D = tril(dO V^T)  X = dO S^T + D W               Y = V dS''^T + D^T R              dS'' = P_n . dS'
 *   dV = W dS'' + A^T dO   dq_i = s P_i . X_i        dk_j = Y_j / P_j                  dS = dS'' + R^T dO
 *   dgk_i = <S', dS'> by rows + sum_{l>=i} (R . X - W . Y)_l
 *
 * A read-out before the write has s q_i . P_{i-1}, tril(., -1) and the bonus on the diagonal beside it; there row l + 1 of R . X counts with l, as it
 * has met gate l last. Rows are in w->qs and w->ks, P and 1 / P in the factors' place. States are transposed going back. */
#ifndef LNT_DECAY_MILD_H
#define LNT_DECAY_MILD_H

#include "recurrence/chunk/chunk_mild.h"
#include "recurrence/decay/decay_work.h"

/* Vectors of columns from `at` on straight from the tensors, with the decay over the chunk; q and k as they are, too, where there is a bonus. */
INLINE void mild_columns(bool bf16, bool early, int vectors, bool part, int lanes, const lnt_head *x, lnt_rows c, scratch *w, int at)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, own = a->Hv * K, shared = a->Hq * K;
    const int64_t first = c.first * own + x->h * K + at, first_shared = c.first * shared + x->hq * K + at;
    const float *gates = (const float *)a->gk + first;
    const vf scale = v_set((float)a->scale);
    float *reads = w->qs + at, *writes = w->ks + at, *P = w->gk.from_start + at, *inverse = w->gk.to_end + at, *q = w->q + at, *k = w->k + at;
    vf p[SIDE_BY_SIDE], sum[SIDE_BY_SIDE];
    UNROLL for (int l = 0; l < vectors; l++) p[l] = v_set(1.0f), sum[l] = v_zero();
    for (int64_t i = 0; i < c.n; i++)
        UNROLL for (int l = 0; l < vectors; l++) {
            const int64_t j = l * LNT_VL, to = i * K + j, from = first_shared + i * shared + j;
            const vf g = mild_load(false, part, gates, i * own + j, lanes), before = p[l];
            const vf query = mild_load(bf16, part, a->q, from, lanes), key = mild_load(bf16, part, a->k, from, lanes);
            p[l] *= v_exp(g);
            sum[l] += g;
            const vf back = mild_inverse(p[l]);
            mild_store(part, reads + to, scale * (early ? before : p[l]) * query, lanes);
            mild_store(part, writes + to, back * key, lanes);
            mild_store(part, P + to, p[l], lanes);
            mild_store(part, inverse + to, back, lanes);
            if (!early) continue;
            mild_store(part, q + to, query, lanes);
            mild_store(part, k + to, key, lanes);
        }
    UNROLL for (int l = 0; l < vectors; l++) mild_store(part, w->gk.end + at + l * LNT_VL, v_exp(sum[l]), lanes);
}

INLINE void mild_rows_in(bool bf16, bool early, const lnt_head *x, lnt_rows c, scratch *w)
{
    const int K = x->a->K;
    int j = 0;
    for (; j + SIDE_BY_SIDE * LNT_VL <= K; j += SIDE_BY_SIDE * LNT_VL) mild_columns(bf16, early, SIDE_BY_SIDE, false, LNT_VL, x, c, w, j);
    for (; j + LNT_VL <= K; j += LNT_VL) mild_columns(bf16, early, 1, false, LNT_VL, x, c, w, j);
    if (j < K) mild_columns(bf16, early, 1, true, K - j, x, c, w, j);
}

static int mild_block(lnt_rows c, int r) { return c.n - r < MILD_BLOCK ? c.n - r : MILD_BLOCK; }

/* A lower triangle of pairs from rows x and from others, transposed; the diagonal stays unless there is a bonus. */
static void mild_pairs(const scratch *w, lnt_rows c, int width, const float *x, const float *turned, float *A)
{
    const int64_t C = w->C;
    for (int r = 0; r < c.n; r += MILD_BLOCK) {
        const int rows = mild_block(c, r);
        LNT_V(lnt_mm)(LNT_MM_SET, rows, r + rows, width, x + (int64_t)r * width, width, 1, turned, c.n, A + r * C, C);
    }
}
static void mild_triangle(const scratch *w, lnt_rows c, float *A)
{
    for (int i = 0; i < c.n; i++) {
        const int r = i - i % MILD_BLOCK;
        mild_mask(A + (int64_t)i * w->C + r, i - r + !w->early, mild_block(c, r), 1.0f);
    }
}

/* A chunk's readers, writers and these transposed (in w->gk.x), and A; false where its gates are not of rows alone, or not mild. */
static bool mild_front(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K;
    if (!w->rows || w->columns) return false;
    if (a->dtype == LINNET_BF16) {
        if (w->early)
            mild_rows_in(true, true, x, c, w);
        else
            mild_rows_in(true, false, x, c, w);
    } else {
        if (w->early)
            mild_rows_in(false, true, x, c, w);
        else
            mild_rows_in(false, false, x, c, w);
    }
    if (!mild_all(w->gk.end, a->K)) return false;
    LNT_V(lnt_transpose)(c.n, a->K, w->ks, K, w->gk.x, c.n);
    mild_pairs(w, c, a->K, w->qs, w->gk.x, w->P);
    mild_triangle(w, c, w->P);
    for (int64_t i = 0; i < c.n && w->early; i++)
        w->P[i * (w->C + 1)] = (float)a->scale * row_dot_times(w->q + i * K, w->k + i * K, bonus_of(x), K);
    return true;
}

/* P_n, by products as P is: between a write and the end there are as many of its roundings as rows. A state decays by the exponential of the gates'
 * sum. */
static const float *mild_end(const scratch *w, lnt_rows c) { return w->gk.from_start + (int64_t)(c.n - 1) * w->gk.width; }

/* The next chunk's rows. */
static void mild_ahead(const lnt_head *x, lnt_rows c)
{
    const lnt_recur_args *a = x->a;
    key_ahead(x, c, a->q);
    key_ahead(x, c, a->k);
    value_ahead(x, c, a->v);
    float_ahead(x, c, a->gk, a->K);
}

/* A chunk, where its gates are mild. */
static bool mild_forward(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, V = a->V;
    if (!mild_front(x, c, w)) return false;
    rows_ahead_out(a->o, a->dtype, c.first, c.n, a->Hv, x->h, V);
    mild_ahead(x, c);
    rows_in(w->v, a->v, a->dtype, c.first, c.n, a->Hv, x->h, V);
    LNT_V(lnt_mm)(LNT_MM_SET, c.n, a->V, a->K, w->qs, K, 1, w->S, V, w->o, V);
    for (int r = 0; r < c.n; r += MILD_BLOCK) {
        const int rows = mild_block(c, r);
        LNT_V(lnt_mm)(LNT_MM_ADD, rows, a->V, r + rows, w->P + r * w->C, w->C, 1, w->v, V, w->o + r * V, V);
    }
    rows_out(a->o, a->dtype, c.first, c.n, a->Hv, x->h, V, w->o);
    LNT_V(lnt_mm_scaled_both)(w->gk.end, mild_end(w, c), a->K, a->V, c.n, w->ks, 1, K, w->v, V, w->S, V);
    return true;
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------- */

/* The rows' sums of <S', dS'>, of what S' is made of: the state with dS'', and writers with Y of the state. */
INLINE void mild_sums(int vectors, bool part, int lanes, const lnt_head *x, lnt_rows c, const float *S, scratch *w, int at)
{
    const int64_t K = x->a->K, V = x->a->V;
    vf sum[SIDE_BY_SIDE];
    UNROLL for (int l = 0; l < vectors; l++) sum[l] = v_zero();
    for (int64_t i = 0; i < V; i++)
        UNROLL for (int l = 0; l < vectors; l++) {
            const int64_t j = i * K + at + l * LNT_VL;
            sum[l] += mild_load(false, part, S, j, lanes) * mild_load(false, part, w->grad_end, j, lanes);
        }
    for (int64_t i = 0; i < c.n; i++)
        UNROLL for (int l = 0; l < vectors; l++) {
            const int64_t j = i * K + at + l * LNT_VL;
            sum[l] += mild_load(false, part, w->ks, j, lanes) * mild_load(false, part, w->dk, j, lanes);
        }
    UNROLL for (int l = 0; l < vectors; l++) mild_store(part, w->last_k + at + l * LNT_VL, sum[l], lanes);
}

/* dq and dk in place of X and Y, and dgk; with a bonus dA's diagonal is in dden. */
INLINE void mild_rows_back(bool early, int vectors, bool part, int lanes, const lnt_head *x, lnt_rows c, scratch *w, int at)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, stride = a->Hv * K;
    const float *P = w->gk.from_start + at, *inverse = w->gk.to_end + at, *reads = w->qs + at, *writes = w->ks + at, *q = w->q + at, *k = w->k + at;
    float *dq = w->x + at, *dk = w->dk + at, *dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + x->h) * K + at : NULL;
    const bool past = dg && !part && rows_past(dg, LINNET_F32, K);
    const vf scale = v_set((float)a->scale);
    vf sum[SIDE_BY_SIDE], behind[SIDE_BY_SIDE], bonus[SIDE_BY_SIDE];
    UNROLL for (int l = 0; l < vectors; l++) {
        sum[l] = mild_load(false, part, w->last_k, at + l * LNT_VL, lanes);
        behind[l] = v_zero();
        bonus[l] = early ? mild_load(false, part, bonus_of(x), at + l * LNT_VL, lanes) : v_zero();
    }
    for (int64_t i = c.n - 1; i >= 0; i--)
        UNROLL for (int l = 0; l < vectors; l++) {
            const int64_t j = l * LNT_VL, row = i * K + j;
            const vf X = mild_load(false, part, dq, row, lanes), Y = mild_load(false, part, dk, row, lanes);
            const vf read = X * mild_load(false, part, reads, row, lanes);
            sum[l] += (early ? behind[l] : read) - Y * mild_load(false, part, writes, row, lanes);
            behind[l] = read;
            if (past)
                v_stream(dg + i * stride + j, sum[l]);
            else if (dg)
                mild_store(part, dg + i * stride + j, sum[l], lanes);
            vf to_q = scale * X, to_k = Y * mild_load(false, part, inverse, row, lanes);
            if (!early || i) to_q *= mild_load(false, part, P, row - early * K, lanes);
            if (early) {
                const vf own = w->dden[i] * bonus[l];
                to_q += own * mild_load(false, part, k, row, lanes);
                to_k += own * mild_load(false, part, q, row, lanes);
            }
            mild_store(part, dq + row, to_q, lanes);
            mild_store(part, dk + row, to_k, lanes);
        }
}

INLINE void mild_all_back(bool early, const lnt_head *x, lnt_rows c, const float *S, scratch *w, bool sums)
{
    const int K = x->a->K;
    int j = 0;
    for (; j + SIDE_BY_SIDE * LNT_VL <= K; j += SIDE_BY_SIDE * LNT_VL)
        if (sums)
            mild_sums(SIDE_BY_SIDE, false, LNT_VL, x, c, S, w, j);
        else
            mild_rows_back(early, SIDE_BY_SIDE, false, LNT_VL, x, c, w, j);
    for (; j + LNT_VL <= K; j += LNT_VL)
        if (sums)
            mild_sums(1, false, LNT_VL, x, c, S, w, j);
        else
            mild_rows_back(early, 1, false, LNT_VL, x, c, w, j);
    if (j == K) return;
    if (sums)
        mild_sums(1, true, K - j, x, c, S, w, j);
    else
        mild_rows_back(early, 1, true, K - j, x, c, w, j);
}

/* dS, transposed, becomes what it is times the chunk's decay, and grad_end dS''. */
static void mild_decay(const lnt_head *x, lnt_rows c, scratch *w)
{
    const int64_t K = x->a->K;
    for (int64_t i = 0; i < x->a->V; i++) {
        row_times(K, 1.0f, mild_end(w, c), w->dS + i * K, w->grad_end + i * K);
        row_mul(w->dS + i * K, w->gk.end, K);
    }
}

/* Chunk i, where its gates are mild: S is the state in front of it, transposed, behind that of the chunk that comes next. */
static bool mild_back(const lnt_head *x, lnt_rows c, int64_t i, const float *S, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, V = a->V, C = w->C;
    if (!mild_front(x, c, w)) return false;
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, c.n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, c.n, a->Hq, x->hq, K);
    rows_ahead_out(a->dv, a->dtype, c.first, c.n, a->Hv, x->h, V);
    if (i) rows_ahead(S - K * V, LINNET_F32, 0, V, 1, 0, K);
    mild_ahead(x, c);
    value_ahead(x, c, a->do_);
    rows_in(w->v, a->v, a->dtype, c.first, c.n, a->Hv, x->h, V);
    rows_in(w->o, a->do_, a->dtype, c.first, c.n, a->Hv, x->h, V);
    mild_decay(x, c, w);

    /* D, whose diagonal a bonus keeps */
    LNT_V(lnt_transpose)(c.n, a->V, w->v, V, w->dvt, c.n);
    mild_pairs(w, c, a->V, w->o, w->dvt, w->Y);
    for (int64_t r = 0; r < c.n && w->early; r++) w->dden[r] = (float)a->scale * w->Y[r * (C + 1)];
    mild_triangle(w, c, w->Y);

    LNT_V(lnt_mm)(LNT_MM_SET, c.n, a->K, a->V, w->o, V, 1, S, K, w->x, K);
    LNT_V(lnt_mm)(LNT_MM_SET, c.n, a->K, a->V, w->v, V, 1, w->grad_end, K, w->dk, K);
    if (a->dgk) mild_all_back(false, x, c, S, w, true);
    LNT_V(lnt_mm)(LNT_MM_SET, a->V, c.n, a->K, w->grad_end, K, 1, w->gk.x, c.n, w->dvt, c.n);
    LNT_V(lnt_transpose)(a->V, c.n, w->dvt, c.n, w->v, V); /* v is not needed any more */
    for (int r = 0; r < c.n; r += MILD_BLOCK) {
        const int rows = mild_block(c, r), rest = c.n - r;
        LNT_V(lnt_mm)(LNT_MM_ADD, rows, a->K, r + rows, w->Y + r * C, C, 1, w->ks, K, w->x + r * K, K);
        LNT_V(lnt_mm)(LNT_MM_ADD, rows, a->K, rest, w->Y + r * C + r, 1, C, w->qs + r * K, K, w->dk + r * K, K);
        LNT_V(lnt_mm)(LNT_MM_ADD, rows, a->V, rest, w->P + r * C + r, 1, C, w->o + r * V, V, w->v + r * V, V);
    }
    rows_out(a->dv, a->dtype, c.first, c.n, a->Hv, x->h, V, w->v);
    LNT_V(lnt_mm)(LNT_MM_ADD, a->V, a->K, c.n, w->o, 1, V, w->qs, K, w->dS, K);

    if (w->early) {
        mild_all_back(true, x, c, S, w, false);
        for (int64_t r = 0; r < c.n; r++) w->Y[r * (C + 1)] = w->dden[r];
        bonus_gradient(x, c.n, w);
    } else {
        mild_all_back(false, x, c, S, w, false);
    }
    put_shared(x, c, w->x, a->dq, w->dq_sum);
    put_shared(x, c, w->dk, a->dk, w->dk_sum);
    return true;
}

#endif
