/* Mild gates of rows in a chunk on AMX tiles (only decay_cpu.c includes this): decay_mild.h's readers and writers, each rounded to bf16 once,
 *
 *   X_i = s q_i . P_{i-1} (a read-out before the write) or s q_i . P_i          L_j = k_j / P_j
 *
 * the state's part and the pairs' of a product summed up in tiles that are stored once. Forward, A = tril(X L^T) with the bonus on its diagonal,
 *
 *   O  = X S + A V                                      S' = P_n . (S + L^T V)
 *
 * and back, D = tril(dO V^T), dS'' = P_n . dS',
 *
 *   dV = L dS'' + A^T dO      X~ = dO S^T + D L      Y~ = V dS''^T + D^T X      dS = dS'' + X^T dO
 *   dq_i = s P_{i-1} . X~_i or s P_i . X~_i          dk_j = Y~_j / P_j          dgk_i = <S, dS> by rows - sum_{l<i} (X . X~ - L . Y~)_l
 *
 * where row i of X . X~ counts with those before gate i if it reads before its write. <S, dS> is the dot of what the products have, and a pair that
 * is in both sums has the same bits there. States are transposed going back. */
#ifndef LNT_DECAY_MILD_AMX_H
#define LNT_DECAY_MILD_AMX_H

#include "recurrence/decay/decay_tiles.h"

#if defined(__AMX_BF16__)
enum { BLOCK = 32 };

/* Room that gates of rows leave on tiles: P [C,K]; a row's product with itself through the bonus, 16 parts and their sum; the gradient of that. */
static float *mild_P(const scratch *w) { return w->gk.from_start; }
static float *mild_parts(const scratch *w) { return w->k; }
static float *mild_bonus(const scratch *w) { return w->in; }
static float *mild_bonus_grad(const scratch *w) { return w->out; }

/* ---- front ----------------------------------------------------------------------------------------------------------------------------- */

/* One or two lines of columns, from `at` on, of X, L and the chunk's decay straight from the tensors, going back of P, too; the next chunk's rows are
 * asked for. False: a gate is not mild. */
INLINE bool mild_columns(int lines, bool early, bool back, const lnt_head *x, lnt_rows c, scratch *w, int at)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, own = a->Hv * K, shared = a->Hq * K, next = (c.next - c.first) * own, next_shared = (c.next - c.first) * shared;
    const float *g = (const float *)a->gk + c.first * own + x->h * K + at, *bonus = early ? bonus_of(x) + at : NULL;
    const lnt_bf16 *q = key_rows(x, c, a->q) + at, *k = key_rows(x, c, a->k) + at;
    const line scale = line_set((float)a->scale), base = line_set(LOG2_E);
    line y[2] = { line_set(0), line_set(0) } /* P = 2^y */, P[2] = { line_set(1), line_set(1) }, u[2] = { line_set(0), line_set(0) };
    for (int l = 0; l < lines && early; l++) u[l] = line_of(bonus + l * 32);
    for (int64_t i = 0; i < c.n; i++, g += own, q += shared, k += shared) {
        line part = line_set(0);
        if (i % 8 == 0) lnt_tiles_awake();
        for (int l = 0; l < 2 * lines && i < c.next_n; l++) __builtin_prefetch(g + next + l * 16, 0, 2);
        for (int l = 0; l < lines && i < c.next_n; l++) __builtin_prefetch(k + next_shared + l * 32, 0, 2);
        for (int l = 0; l < lines && i < c.next_n; l++) __builtin_prefetch(q + next_shared + l * 32, 0, 2);
        for (int l = 0; l < lines; l++) {
            const int64_t j = l * 32, to = i * K + at + j;
            const line query = line_in(q + j), key = line_in(k + j), before = P[l];
            y[l] = line_more(line_of(g + j), base, y[l]);
            P[l] = (line){ short_power(y[l].low), short_power(y[l].high) };
            line_put(w->reads16 + to, line_times(line_times(scale, early ? before : P[l]), query));
            line_put(w->writes16 + to, line_times(line_inverse(P[l]), key));
            if (back) line_store(mild_P(w) + to, P[l]);
            if (early) part = line_more(line_times(u[l], query), key, part);
        }
        if (!early) continue;
        float *const parts = mild_parts(w) + i * 16;
        __m512 all = _mm512_add_ps(part.low, part.high);
        if (at) all = _mm512_add_ps(all, _mm512_loadu_ps(parts));
        _mm512_storeu_ps(parts, all);
    }
    bool mild = true;
    for (int l = 0; l < lines; l++) {
        line_store(w->gk.end + at + l * 32, (line){ power_in_range(y[l].low), power_in_range(y[l].high) });
        mild &= _mm512_reduce_min_ps(_mm512_min_ps(y[l].low, y[l].high)) >= -MILD * LOG2_E;
    }
    return mild;
}

INLINE bool mild_rows(bool early, bool back, const lnt_head *x, lnt_rows c, scratch *w)
{
    const int K = x->a->K;
    bool mild = true;
    int at = 0;
    for (; at + 64 <= K; at += 64) mild &= mild_columns(2, early, back, x, c, w, at);
    if (at < K) mild &= mild_columns(1, early, back, x, c, w, at);
    return mild;
}

/* X and L of a chunk as left operands, and the bonus' diagonal; false: its gates are not mild. */
static bool mild_front(const lnt_head *x, lnt_rows c, bool back, scratch *w, lnt_operand *X, lnt_operand *L)
{
    const lnt_recur_args *a = x->a;
    const bool mild = back ? w->early ? mild_rows(true, true, x, c, w) : mild_rows(false, true, x, c, w)
                           : w->early ? mild_rows(true, false, x, c, w) : mild_rows(false, false, x, c, w);
    if (!mild) return false;
    *X = (lnt_operand){ .rows = c.n, .cols = a->K, .left = { w->reads16, a->K } };
    *L = (lnt_operand){ .rows = c.n, .cols = a->K, .left = { w->writes16, a->K } };
    for (int64_t i = 0; i < c.n && w->early; i++) {
        rows_awake(i);
        mild_bonus(w)[i] = (float)a->scale * v_sum(v_load(mild_parts(w) + i * 16));
    }
    return true;
}

/* Pairs in float32 [n,ld] as a left operand: what stands below the diagonal (`above`: above it), zeros on the other side of it in blocks that it goes
 * through; on it what `diagonal` has, or without one the pairs'. */
INLINE lnt_operand mild_left(bool above, int n, const float *pairs, int64_t ld, const float *diagonal, lnt_bf16 *left)
{
    const int64_t side = (n + BLOCK - 1) / BLOCK * BLOCK, whole = n / BLOCK * BLOCK;
    for (int64_t i = 0; i < n; i++, pairs += ld) {
        const int64_t own = i / BLOCK * BLOCK;
        const uint32_t behind = n % BLOCK ? (1u << n % BLOCK) - 1 : ~0u; /* columns of the last block */
        const uint32_t at = 1u << (i - own), under = at - 1, side_of = above ? ~(under | at) : under, valid = own < whole ? ~0u : behind;
        const uint32_t mask = (diagonal ? side_of : side_of | at) & valid;
        lnt_bf16 *to = left + i * side;
        rows_awake(i);
        for (int64_t j = above ? own + BLOCK : 0; j < (above ? whole : own); j += BLOCK) line_put(to + j, line_of(pairs + j));
        if (above && own < whole && whole < side) line_put(to + whole, line_some(pairs + whole, behind));
        line x = line_some(pairs + own, mask);
        if (diagonal) {
            const __m512 d = _mm512_set1_ps(diagonal[i]);
            x = (line){ _mm512_mask_mov_ps(x.low, (__mmask16)at, d), _mm512_mask_mov_ps(x.high, (__mmask16)(at >> 16), d) };
        }
        line_put(to + own, x);
    }
    return (lnt_operand){ .rows = n, .cols = n, .left = { left, side } };
}

/* Rows first .. first+rows-1 of a lower triangle, or of an upper one, with the columns that they have. */
static lnt_operand mild_band(bool above, const lnt_operand *A, int first, int rows)
{
    const lnt_bf16 *left = (const lnt_bf16 *)A->left.p + first * A->left.ld;
    return (lnt_operand){ .rows = rows, .cols = above ? A->rows - first : first + rows, .left = { left + (above ? first : 0), A->left.ld } };
}

/* Rows from `first` on of an operand that stands at the right. */
static lnt_operand mild_behind(const lnt_operand *m, int first)
{
    return (lnt_operand){ .cols = m->cols, .right = { (const uint32_t *)m->right.p + first / 2 * 16, m->right.ld } };
}

/* C [n,width] = x y + A z, A a lower triangle or (`above`) an upper one. */
static void mild_product(bool above, const lnt_operand *x, const lnt_operand *y, const lnt_operand *A, const lnt_operand *z, float *C, int64_t width)
{
    for (int r = 0; r < x->rows; r += BLOCK) {
        const int rows = block_rows(BLOCKS, r, x->rows);
        const lnt_operand left[2] = { ENGINE->view(x, r, rows), mild_band(above, A, r, rows) }, right[2] = { *y, mild_behind(z, above ? r : 0) };
        ENGINE->multiply_row(NULL, 2, left, right, C + r * width, width);
    }
}

/* A chunk of mild gates; false, and nothing done, where they are not. */
static bool mild_forward(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int V = a->V, n = c.n;
    lnt_operand X, L;
    if (V % 32 || !mild_front(x, c, false, w, &X, &L)) return false;
    rows_ahead_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V);
    ENGINE->extend(&L, LNT_RIGHT_T | LNT_LEFT_T, w->ks_forms);
    triangle(BLOCKS, n, &X, &L, w->P, w->C);
    tiled_values(x, c, a->v, NULL, w->v_forms);
    const lnt_operand A = mild_left(false, n, w->P, w->C, w->early ? mild_bonus(w) : NULL, w->P_forms);
    const lnt_operand v = { .rows = n, .cols = V, .right = { w->v_forms, (n + 31) / 32 * 256 } };
    mild_product(false, &X, &w->state, &A, &v, w->o, V);
    rows_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V, w->o);
    ENGINE->update_before(w->gk.end, NULL, &L, true, &v, false, &w->state);
    return true;
}

/* 32 or 64 columns, from `at` on, of M = v / P as a right operand, of P and of the chunk's decay, of gates of columns; going back M's rows, too, and
 * E = f P . dO as rows and as a right operand, f = s where readers do not have it. The next chunk's rows are asked for. False: a gate is not mild. */
INLINE bool mild_lift(int lines, bool back, const lnt_head *x, lnt_rows c, scratch *w, int64_t at)
{
    const int64_t V = x->a->V, stride = x->a->Hv * V, first = c.first * stride + x->h * V + at, next = (c.next - c.first) * stride;
    const int64_t side = (c.n + 31) / 32 * 32, block = side / 2 * 16;
    const float *g = (const float *)x->a->gv + first;
    const lnt_bf16 *v = (const lnt_bf16 *)x->a->v + first, *d = back && x->a->do_ ? (const lnt_bf16 *)x->a->do_ + first : NULL;
    const line base = line_set(LOG2_E), scale = line_set(w->rows ? 1.0f : (float)x->a->scale);
    line y[2] = { line_set(0), line_set(0) }; /* P = 2^y */
    for (int64_t i = 0; i < side; i += 2) {
        __m512i row[2][2] = { { _mm512_setzero_si512(), _mm512_setzero_si512() }, { _mm512_setzero_si512(), _mm512_setzero_si512() } };
        __m512i read[2][2] = { { row[0][0], row[0][0] }, { row[0][0], row[0][0] } };
        if (i % 8 == 0) lnt_tiles_awake();
        for (int64_t r = i; r < i + 2; r++) {
            for (int l = 0; l < 2 * lines && r < c.next_n; l++) __builtin_prefetch(g + next + r * stride + l * 16, 0, 2);
            for (int l = 0; l < lines && r < c.next_n; l++) __builtin_prefetch(v + next + r * stride + l * 32, 0, 2);
            for (int l = 0; l < lines && d && r < c.next_n; l++) __builtin_prefetch(d + next + r * stride + l * 32, 0, 2);
            for (int l = 0; l < lines && r < c.n; l++) {
                y[l] = line_more(line_of(g + r * stride + l * 32), base, y[l]);
                const line P = { short_power(y[l].low), short_power(y[l].high) };
                line_store(w->gv.from_start + r * V + at + l * 32, P);
                row[r - i][l] = line_round(line_times(line_inverse(P), line_in(v + r * stride + l * 32)));
                if (!back) continue;
                if (d) read[r - i][l] = line_round(line_times(line_times(scale, P), line_in(d + r * stride + l * 32)));
                _mm512_storeu_si512(w->value_writes + r * V + at + l * 32, row[r - i][l]);
                _mm512_storeu_si512(w->value_reads + r * V + at + l * 32, read[r - i][l]);
            }
        }
        for (int l = 0; l < lines; l++) {
            const int64_t to = (at / 16 + 2 * l) * block + i / 2 * 16;
            line_pair((uint32_t *)w->v_forms + to, block, row[0][l], row[1][l]);
            if (back) line_pair((uint32_t *)w->dos_forms + to, block, read[0][l], read[1][l]);
        }
    }
    bool mild = true;
    for (int l = 0; l < lines; l++) {
        line_store(w->gv.end + at + l * 32, (line){ power_in_range(y[l].low), power_in_range(y[l].high) });
        mild &= _mm512_reduce_min_ps(_mm512_min_ps(y[l].low, y[l].high)) >= -MILD * LOG2_E;
    }
    return mild;
}

/* All columns of these, and with gates of rows X and L; false: gates are not mild. */
INLINE bool mild_lift_front(bool back, const lnt_head *x, lnt_rows c, scratch *w, lnt_operand *X, lnt_operand *L)
{
    const int64_t V = x->a->V;
    bool mild = true;
    int64_t at = 0;
    for (; at + 64 <= V; at += 64) mild &= mild_lift(2, back, x, c, w, at);
    if (at < V) mild &= mild_lift(1, back, x, c, w, at);
    return mild && (!w->rows || mild_front(x, c, back, w, X, L));
}

/* Mild gates of columns, alone or with mild gates of rows: O = s P . (Q S + tril(Q K^T) (V / P)). False, and nothing done, where they are not. */
static bool mild_lifted(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t V = a->V;
    const int n = c.n;
    lnt_operand X, L;
    if (!mild_lift_front(false, x, c, w, &X, &L)) return false;
    rows_ahead_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V);
    if (w->rows) {
        ENGINE->extend(&L, LNT_RIGHT_T | LNT_LEFT_T, w->ks_forms);
    } else {
        X = of_keys(x, c, a->q, LNT_LEFT, w->q_forms);
        L = of_keys(x, c, a->k, LNT_RIGHT_T, w->k_forms);
        ENGINE->extend(&L, LNT_LEFT_T, (char *)w->k_forms + ENGINE->bytes(n, a->K, LNT_RIGHT_T)); /* from the rows that are copied there */
        key_ahead(x, c, a->q);
        key_ahead(x, c, a->k);
    }
    triangle(BLOCKS, n, &X, &L, w->P, w->C);
    const lnt_operand A = mild_left(false, n, w->P, w->C, NULL, w->P_forms);
    const lnt_operand v = { .rows = n, .cols = a->V, .right = { w->v_forms, (n + 31) / 32 * 256 } };
    mild_product(false, &X, &w->state, &A, &v, w->o, V);
    const line_result o = line_to(c, a->o, a->Hv, x->h, V, 0, NULL);
    const line scale = line_set(w->rows ? 1.0f : (float)a->scale);
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        for (int64_t j = 0; j < V; j += 32)
            line_result_put(&o, i, j, line_times(line_times(scale, line_of(w->gv.from_start + i * V + j)), line_of(w->o + i * V + j)));
    }
    ENGINE->update_before(w->rows ? w->gk.end : NULL, w->gv.end, &L, true, &v, false, &w->state);
    return true;
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------- */

/* dS'' = row_end_i column_end_j dS'_ij [rows,cols] (row_end NULL: ones) as a right operand, and transposed. */
static lnt_operand mild_decayed(int64_t rows, int64_t cols, const float *row_end, const float *column_end, scratch *w)
{
    const int64_t block = rows / 2 * 16, turned = cols / 2 * 16;
    uint32_t *right = w->dS_forms, *right_t = w->dS_turned;
    _Alignas(64) lnt_bf16 lines[16 * 32];
    for (int64_t j = 0; j < rows; j += 16)
        for (int64_t at = 0; at < cols; at += 32) {
            const line end = line_of(column_end + at);
            lnt_tiles_awake();
            for (int64_t i = 0; i < 16; i++) {
                const line by = row_end ? line_times(line_set(row_end[j + i]), end) : end;
                line_put(lines + i * 32, line_times(by, line_of(w->dS + (j + i) * cols + at)));
            }
            for (int64_t i = 0; i < 16; i += 2) {
                const __m512i even = _mm512_load_si512(lines + i * 32), odd = _mm512_load_si512(lines + i * 32 + 32);
                line_pair(right + at / 16 * block + (j + i) / 2 * 16, block, even, odd);
            }
            LNT_V(lnt_transpose)(16, 16, (const float *)lines, 16, (float *)(right_t + j / 16 * turned + at / 2 * 16), 16);
        }
    return (lnt_operand){ .rows = (int)rows, .cols = (int)cols, .right = { right, block }, .right_t = { right_t, turned } };
}

/* A row of a gate's gradients from the sum behind it, before its read-out if that is early; what the next row's begins with. */
INLINE line mild_gate(float *to, bool past, bool early, const lnt_bf16 *reads, line X, const lnt_bf16 *writes, line Y, line sum)
{
    const line without = line_less(line_in(reads), X, sum), all = early ? without : sum;
    if (past)
        _mm512_stream_ps(to, all.low), _mm512_stream_ps(to + 16, all.high);
    else
        line_store(to, all);
    return line_more(line_in(writes), Y, without);
}

/* 32 columns of the gradients of rows, gates and the bonus from X~ and Y~ in the strips. */
INLINE void mild_rows_back(bool early, const lnt_head *x, lnt_rows c, const scratch *w, int64_t at)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, stride = (int64_t)a->Hq * K;
    const line_result dq = line_to(c, a->dq, a->Hq, x->hq, K, at, w->dq_sum ? w->x : NULL);
    const line_result dk = line_to(c, a->dk, a->Hq, x->hq, K, at, w->dk_sum ? w->dk : NULL);
    const lnt_bf16 *q = key_rows(x, c, a->q) + at, *k = key_rows(x, c, a->k) + at;
    const float *P = mild_P(w) + at;
    float *dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + x->h) * K + at : NULL;
    const bool past = rows_past(dg, LINNET_F32, K);
    const line scale = line_set((float)a->scale), u = early ? line_of(bonus_of(x) + at) : line_set(0);
    line sum = dg ? line_of(w->last_k + at) : line_set(0), before = line_set(1), du = line_set(0);
    for (int64_t i = 0; i < c.n; i++, P += K) {
        const line own = line_of(P), X = line_of(w->strips[0] + i * 32), Y = line_of(w->strips[1] + i * 32);
        line to_q = line_times(line_times(scale, early ? before : own), X), to_k = line_times(line_inverse(own), Y);
        if (i % 8 == 0) lnt_tiles_awake();
        if (dg) sum = mild_gate(dg + i * a->Hv * K, past, early, w->reads16 + i * K + at, X, w->writes16 + i * K + at, Y, sum);
        if (early) {
            const line d = line_set(mild_bonus_grad(w)[i]), by = line_times(d, u), query = line_in(q + i * stride), key = line_in(k + i * stride);
            to_q = line_more(by, key, to_q);
            to_k = line_more(by, query, to_k);
            du = line_more(line_times(d, query), key, du);
        }
        line_result_put(&dq, i, 0, to_q);
        line_result_put(&dk, i, 0, to_k);
        before = own;
    }
    if (!early) return;
    double *sums = (double *)a->workspace + x->index * K + at;
    _Alignas(64) float parts[32];
    line_store(parts, du);
    for (int j = 0; j < 32; j++) sums[j] += parts[j];
}

/* Chunk i: w->dS becomes the gradient of its start state; false, and nothing done, where its gates are not mild. */
static bool mild_back(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int K = a->K, V = a->V, n = c.n;
    lnt_operand X, L;
    if (V % 32 || !mild_front(x, c, true, w, &X, &L)) return false;
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, n, a->Hq, x->hq, K);
    rows_ahead_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V);
    e->extend(&X, LNT_RIGHT_T, w->qs_forms);
    e->extend(&X, LNT_RIGHT, w->read_forms);
    e->extend(&L, LNT_RIGHT, w->ks_forms);
    const size_t left = e->bytes(n, V, LNT_LEFT), right = e->bytes(n, V, LNT_RIGHT);
    lnt_operand d = { .rows = n, .cols = V, .left = { w->do_forms, V }, .right = { (char *)w->do_forms + left, (n + 31) / 32 * 256 } };
    lnt_operand v = { .rows = n, .cols = V, .left = { w->v_forms, V } };
    tiled_values(x, c, a->do_, w->do_forms, (uint32_t *)((char *)w->do_forms + left));
    tiled_values(x, c, a->v, w->v_forms, NULL);
    e->extend(&d, LNT_LEFT_T, (char *)w->do_forms + left + right);
    e->extend(&v, LNT_RIGHT_T, (char *)w->v_forms + left);

    /* dV */
    const lnt_operand grad = mild_decayed(V, K, NULL, w->gk.end, w), turned = { .rows = K, .cols = V, .right = { grad.right_t.p, grad.right_t.ld } };
    for (int r = 0; r < n; r += BLOCK) {
        const lnt_operand writers = e->view(&L, r, block_rows(BLOCKS, r, n)), readers = e->view(&X, r, n - r);
        e->multiply(LNT_MM_SET, NULL, &writers, false, &readers, true, w->P + (int64_t)r * (w->C + 1), w->C);
    }
    const lnt_operand A = mild_left(true, n, w->P, w->C, w->early ? mild_bonus(w) : NULL, w->P_forms);
    mild_product(true, &L, &turned, &A, &d, w->o, V);
    rows_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V, w->o);

    /* D, whose diagonal belongs to the bonus where there is one, and dS */
    float *own = mild_bonus_grad(w), *none = mild_bonus(w);
    triangle(BLOCKS, n, &d, &v, w->Y, w->C);
    for (int64_t r = 0; r < n && w->early; r++) own[r] = (float)a->scale * w->Y[r * (w->C + 1)], none[r] = 0;
    lnt_operand D = mild_left(false, n, w->Y, w->C, w->early ? none : NULL, w->Y_forms);
    e->extend(&D, LNT_LEFT_T, (char *)w->Y_forms + e->bytes(n, n, LNT_LEFT));
    const lnt_operand Dt = { .rows = n, .cols = n, .left = { D.left_t.p, D.left_t.ld } };
    const lnt_operand St = { .rows = V, .cols = K, .right = { w->kept + (size_t)i * e->bytes(V, K, LNT_RIGHT), (V + 31) / 32 * 256 } };
    w->state.right.p = NULL; /* what needs it makes it */
    e->update_columns(NULL, w->gk.end, &d, true, &X, false, &w->state);
    if (a->dgk) tiled_state_products(&St, w->dS, NULL, w->last_k);

    for (int at = 0; at < K; at += 32) {
        const lnt_operand S = right_columns(&St, at), dS = right_columns(&grad, at), writers = right_columns(&L, at), readers = right_columns(&X, at);
        mild_product(false, &d, &S, &D, &writers, w->strips[0], 32);
        mild_product(true, &v, &dS, &Dt, &readers, w->strips[1], 32);
        if (w->early)
            mild_rows_back(true, x, c, w, at);
        else
            mild_rows_back(false, x, c, w, at);
    }
    if (w->dq_sum) put_shared(x, c, w->x, a->dq, w->dq_sum);
    if (w->dk_sum) put_shared(x, c, w->dk, a->dk, w->dk_sum);
    return true;
}

/* 32 columns of dv and dgv from U and dM in the strips. */
static void mild_values_back(const lnt_head *x, lnt_rows c, const scratch *w, int64_t at)
{
    const lnt_recur_args *a = x->a;
    const int64_t V = a->V;
    const line_result dv = line_to(c, a->dv, a->Hv, x->h, V, at, NULL);
    float *dg = a->dgv ? (float *)a->dgv + (c.first * a->Hv + x->h) * V + at : NULL;
    const bool past = rows_past(dg, LINNET_F32, V);
    line sum = dg ? line_of(w->last_v + at) : line_set(0);
    for (int64_t i = 0; i < c.n; i++) {
        const int64_t own = i * V + at;
        const line U = line_of(w->strips[0] + i * 32), dM = line_of(w->strips[1] + i * 32);
        if (i % 8 == 0) lnt_tiles_awake();
        if (dg) sum = mild_gate(dg + i * a->Hv * V, past, false, w->value_reads + own, U, w->value_writes + own, dM, sum);
        line_result_put(&dv, i, 0, line_times(line_inverse(line_of(w->gv.from_start + own)), dM));
    }
}

/* A lower triangle of pairs as a left operand, and in `turned` transposed. */
static lnt_operand mild_triangle(int n, const lnt_operand *reads, const lnt_operand *writes, float *pairs, int64_t ld, void *forms,
                                 lnt_operand *turned)
{
    triangle(BLOCKS, n, reads, writes, pairs, ld);
    lnt_operand A = mild_left(false, n, pairs, ld, NULL, forms);
    ENGINE->extend(&A, LNT_LEFT_T, (char *)forms + ENGINE->bytes(n, n, LNT_LEFT));
    *turned = (lnt_operand){ .rows = n, .cols = n, .left = { A.left_t.p, A.left_t.ld } };
    return A;
}

/* Chunk i of gates of columns, alone or with gates of rows: w->dS becomes the gradient of its start state; false, and nothing done, where its gates
 * are not mild. Of o = R . U, M = v / R and E = R . dO, with R the columns' P and decays of both kinds in dS'' = P_n . dS' . R_n,
 *
 *   U = X S + A M     dM = L dS'' + A^T E     X~ = E S^T + D L     Y~ = M dS''^T + D^T X     D = tril(E M^T)     dS = dS'' + X^T E
 *   dv_j = dM_j / R_j     dgv_i = <S, dS> by columns - sum_{l<i} (E . U - M . dM)_l
 *
 * and the rest as with gates of rows alone. */
static bool mild_lifted_back(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int K = a->K, V = a->V, n = c.n;
    const int64_t block = (n + 31) / 32 * 256;
    lnt_operand X, L, At, Dt;
    if (K % 32 || !mild_lift_front(true, x, c, w, &X, &L)) return false;
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, n, a->Hq, x->hq, K);
    rows_ahead_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V);
    if (w->rows) {
        e->extend(&X, LNT_RIGHT, w->read_forms);
        e->extend(&X, LNT_LEFT_T, w->qs_forms);
        e->extend(&L, LNT_RIGHT_T | LNT_RIGHT, w->ks_forms);
    } else {
        X = of_keys(x, c, a->q, LNT_LEFT | LNT_RIGHT | LNT_LEFT_T, w->q_forms);
        L = of_keys(x, c, a->k, LNT_RIGHT_T | LNT_RIGHT, w->k_forms);
        key_ahead(x, c, a->q);
        key_ahead(x, c, a->k);
    }
    const lnt_operand E = { .rows = n, .cols = V, .left = { w->value_reads, V }, .right = { w->dos_forms, block } };
    lnt_operand M = { .rows = n, .cols = V, .left = { w->value_writes, V }, .right = { w->v_forms, block } };
    e->extend(&M, LNT_RIGHT_T, (char *)w->v_forms + e->bytes(n, V, LNT_RIGHT));
    const lnt_operand A = mild_triangle(n, &X, &L, w->P, w->C, w->P_forms, &At), D = mild_triangle(n, &E, &M, w->Y, w->C, w->Y_forms, &Dt);

    /* states */
    const float *row_end = w->rows ? w->gk.end : NULL;
    lnt_operand S = { .rows = K, .cols = V, .right = { w->kept + (size_t)i * e->bytes(K, V, LNT_RIGHT), K / 2 * 16 } };
    e->extend(&S, LNT_LEFT_T, w->S_turned);
    const lnt_operand St = e->prepare16(LNT_RIGHT, V, K, S.left_t.p, S.left_t.ld, w->S_forms);
    const lnt_operand grad = mild_decayed(K, V, row_end, w->gv.end, w);
    const lnt_operand turned = { .rows = V, .cols = K, .right = { grad.right_t.p, grad.right_t.ld } };
    w->state.right.p = NULL; /* what needs it makes it */
    e->update_columns(row_end, w->gv.end, &X, true, &E, false, &w->state);
    if (w->rows && (a->dgk || a->dgv))
        tiled_both_products(&S, w->dS, NULL, NULL, w->last_k, w->last_v);
    else if (a->dgv)
        tiled_state_products(&S, w->dS, NULL, w->last_v);

    for (int at = 0; at < V; at += 32) {
        const lnt_operand start = right_columns(&S, at), dS = right_columns(&grad, at);
        const lnt_operand writers = right_columns(&M, at), readers = right_columns(&E, at);
        mild_product(false, &X, &start, &A, &writers, w->strips[0], 32);
        mild_product(true, &L, &dS, &At, &readers, w->strips[1], 32);
        mild_values_back(x, c, w, at);
    }
    for (int at = 0; at < K; at += 32) {
        const lnt_operand start = right_columns(&St, at), dS = right_columns(&turned, at);
        const lnt_operand writers = right_columns(&L, at), readers = right_columns(&X, at);
        mild_product(false, &E, &start, &D, &writers, w->strips[0], 32);
        mild_product(true, &M, &dS, &Dt, &readers, w->strips[1], 32);
        if (w->rows) {
            mild_rows_back(false, x, c, w, at);
        } else {
            columns_out(c, a->Hq, x->hq, K, at, w->strips[0], a->dq, w->dq_sum ? w->x : NULL);
            columns_out(c, a->Hq, x->hq, K, at, w->strips[1], a->dk, w->dk_sum ? w->dk : NULL);
        }
    }
    if (w->dq_sum) put_shared(x, c, w->x, a->dq, w->dq_sum);
    if (w->dk_sum) put_shared(x, c, w->dk, a->dk, w->dk_sum);
    return true;
}

/* ---- a chunk of any gates -------------------------------------------------------------------------------------------------------- */

static void tiled_forward(const lnt_head *x, lnt_rows c, scratch *w)
{
    if (!mild_forward(x, c, w)) tiled_forward_chunk(x, c, w);
}
static void tiled_backward(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    if (!mild_back(x, c, i, w)) tiled_backward_chunk(x, c, i, w);
}
static void lifted_backward(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    if (!mild_lifted_back(x, c, i, w)) lifted_backward_chunk(x, c, i, w);
}
#endif

#endif
