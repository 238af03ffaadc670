/* Vector gates on AMX tiles (decay_cpu.c): operands straight from the tensors' bf16, pairs and gradients by lnt_vector_front and lnt_vector_back.
 * States at chunks' starts are kept as the right operands that they will be. Only decay_cpu.c includes this. */
#ifndef LNT_DECAY_TILES_H
#define LNT_DECAY_TILES_H

#include "recurrence/decay/decay_work.h"
#if defined(__AMX_BF16__)
#include "recurrence/chunk/chunk_lines_amx.h"
#endif

#if defined(__AMX_BF16__)
/* P, end, and the rows that meet states, as operands. What reads before the write is moved up by one row (early_scores). */
static inline lnt_vector_front tiled_front(const lnt_head *x, lnt_rows c, bool back, scratch *w, lnt_operand *reads, lnt_operand *writes)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, C = w->C, n = c.n, shift = w->early;
    const lnt_bf16 *q = key_rows(x, c, a->q), *k = key_rows(x, c, a->k);
    const int64_t stride = (int64_t)a->Hq * K;
    const float s = (float)a->scale;
    const lnt_vector_front f = { .n = (int)n, .readers = 1, .writers = 1, .g = (const float *)a->gk + (c.first * a->Hv + x->h) * K,
                                 .stride = (int64_t)a->Hv * K, .read = { { q + shift * stride, stride, n - shift } }, .write = { { k, stride, n } },
                                 .f_pairs = { s }, .f_reads = { s }, .pairs = { { w->P + shift * C } }, .ld = C,
                                 .reads = { w->reads16 + shift * K }, .writes = { w->writes16 }, .end = w->gk.end, .back = back };
    LNT_V(lnt_vector_front_tiled)(&w->gk, &f);
    if (shift) {
        memset(w->P, 0, (size_t)n * sizeof(float));
        for (int64_t j = 0; j < K; j += LNT_VL) v_store_bf16(w->reads16 + j, s * v_load_bf16(q + j));
        for (int64_t i = 0; i < n; i++) {
            rows_awake(i);
            w->P[i * (C + 1)] = s * row_dot_times16(q + i * stride, k + i * stride, bonus_of(x), K);
        }
    }
    *reads = (lnt_operand){ .rows = c.n, .cols = a->K, .left = { w->reads16, K } };
    *writes = (lnt_operand){ .rows = c.n, .cols = a->K, .left = { w->writes16, K } };
    return f;
}

static inline void tiled_forward_chunk(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int V = a->V, n = c.n;
    lnt_operand q, k;
    rows_ahead_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V);
    tiled_front(x, c, false, w, &q, &k);
    key_ahead(x, c, a->q);
    key_ahead(x, c, a->k);
    const lnt_operand v = of_values(x, c, a->v, LNT_RIGHT, w->v_forms);
    const lnt_operand P = e->prepare(LNT_LEFT, n, n, w->P, w->C, w->P_forms);
    e->multiply(LNT_MM_SET, NULL, &q, false, &w->state, false, w->o, V);
    value_ahead(x, c, a->v);
    apply_lower(BLOCKS, n, &P, &v, V, w->o);
    rows_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V, w->o);
    float_ahead(x, c, a->gk, a->K);
    e->extend(&k, LNT_LEFT_T, w->ks_forms);
    e->update(w->gk.end, 1, &k, true, &v, false, &w->state);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------- */

/* Rows of v or dO straight from the tensor (NULL: zeros): as they are in `left`, in pairs in `right`, where these are. The next chunk's are asked
 * for. */
static inline void tiled_values(const lnt_head *x, lnt_rows c, const void *tensor, lnt_bf16 *left, uint32_t *right)
{
    const int64_t V = x->a->V, stride = x->a->Hv * V, ahead = (c.next - c.first) * stride, side = (c.n + 31) / 32 * 32, block = side / 2 * 16;
    const lnt_bf16 *p = tensor ? (const lnt_bf16 *)tensor + c.first * stride + x->h * V : NULL;
    for (int64_t i = 0; i < side; i += 2, p = p ? p + 2 * stride : NULL) {
        const bool even = p && i < c.n, odd = p && i + 1 < c.n;
        if (i % 16 == 0) lnt_tiles_awake();
        for (int64_t j = 0; j < V && p && i < c.next_n; j += 32) __builtin_prefetch(p + ahead + j, 0, 2);
        for (int64_t j = 0; j < V && p && i + 1 < c.next_n; j += 32) __builtin_prefetch(p + ahead + stride + j, 0, 2);
        for (int64_t j = 0; j < V; j += 32) {
            const __m512i first = even ? _mm512_loadu_si512(p + j) : _mm512_setzero_si512();
            const __m512i second = odd ? _mm512_loadu_si512(p + stride + j) : _mm512_setzero_si512();
            if (left && i < c.n) _mm512_storeu_si512(left + i * V + j, first);
            if (left && i + 1 < c.n) _mm512_storeu_si512(left + (i + 1) * V + j, second);
            if (right) line_pair(right + j / 16 * block + i / 2 * 16, block, first, second);
        }
    }
}

/* What rows of a tensor write to states, 32 or 64 columns from `at` on, in a right form, and `end`, the decay over the chunk: row j's factor is the
 * exponential of the gates' sum behind it, from the last row up. The next chunk's rows are asked for. */
INLINE void tiled_columns(int lines, lnt_rows c, int64_t at, const float *gates, int64_t own, const lnt_bf16 *rows, int64_t shared, float *end,
                          uint32_t *right)
{
    const int64_t next = (c.next - c.first) * own, next_shared = (c.next - c.first) * shared, pairs = (c.n + 31) / 32 * 16, block = pairs * 16;
    const float *g = gates + at;
    const lnt_bf16 *k = rows + at;
    const line base = line_set(LOG2_E);
    line y[2] = { line_set(0), line_set(0) };
    for (int64_t p = pairs - 1; p >= 0; p--) {
        __m512i row[2][2] = { { _mm512_setzero_si512(), _mm512_setzero_si512() }, { _mm512_setzero_si512(), _mm512_setzero_si512() } };
        if (p % 4 == 0) lnt_tiles_awake();
        for (int64_t r = 1; r >= 0; r--) {
            const int64_t i = 2 * p + r;
            for (int l = 0; l < 2 * lines && i < c.next_n; l++) __builtin_prefetch(g + next + i * own + l * 16, 0, 2);
            for (int l = 0; l < lines && i < c.next_n; l++) __builtin_prefetch(k + next_shared + i * shared + l * 32, 0, 2);
            for (int l = 0; l < lines && i < c.n; l++) {
                const line F = { any_short_power(y[l].low), any_short_power(y[l].high) };
                row[r][l] = line_round(line_times(F, line_in(k + i * shared + l * 32)));
                y[l] = line_more(line_of(g + i * own + l * 32), base, y[l]);
            }
        }
        for (int l = 0; l < lines; l++) line_pair(right + (at / 16 + 2 * l) * block + p * 16, block, row[0][l], row[1][l]);
    }
    for (int l = 0; l < lines; l++) line_store(end + at + l * 32, (line){ power(y[l].low), power(y[l].high) });
}

static inline lnt_operand tiled_written(lnt_rows c, int width, const float *gates, int64_t own, const lnt_bf16 *rows, int64_t shared, float *end,
                                        uint32_t *right)
{
    int at = 0;
    for (; at + 64 <= width; at += 64) tiled_columns(2, c, at, gates, own, rows, shared, end, right);
    if (at < width) tiled_columns(1, c, at, gates, own, rows, shared, end, right);
    return (lnt_operand){ .rows = c.n, .cols = width, .right = { right, (c.n + 31) / 32 * 256 } };
}

/* What keys write to states, and w->gk.end. */
static inline lnt_operand tiled_writes(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K;
    const lnt_vector_front f = { .n = c.n, .writers = 1, .g = (const float *)a->gk + (c.first * a->Hv + x->h) * K, .stride = (int64_t)a->Hv * K,
                                 .write = { { key_rows(x, c, a->k), (int64_t)a->Hq * K, c.n } }, .writes = { w->writes16 }, .end = w->gk.end };
    LNT_V(lnt_vector_writes_tiled)(&w->gk, &f);
    return (lnt_operand){ .rows = c.n, .cols = a->K, .left = { w->writes16, K } };
}

/* Right forms of the transposed states at all chunks' starts, into w->kept. */
static inline void tiled_sweep(const lnt_head *x, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int64_t K = a->K, V = a->V, chunks = chunk_count(x, w->C);
    const size_t each = e->bytes(a->V, a->K, LNT_RIGHT);
    get_turned(x, w->states, a->s0);
    lnt_operand St = e->prepare(LNT_RIGHT, a->V, a->K, w->states, K, w->kept);
    for (int64_t i = 0; i + 1 < chunks; i++) { /* nobody reads the final state */
        const lnt_rows c = chunk_at(x, w->C, i, 1);
        const float *g = (const float *)a->gk + (c.first * a->Hv + x->h) * K;
        const lnt_operand k = tiled_written(c, a->K, g, a->Hv * K, key_rows(x, c, a->k), a->Hq * K, w->gk.end, w->ks_forms);
        lnt_operand v = { .rows = c.n, .cols = a->V, .left = { w->v_forms, V } };
        if (V % 32) {
            v = of_values(x, c, a->v, LNT_LEFT_T, w->v_forms);
            value_ahead(x, c, a->v);
        } else {
            tiled_values(x, c, a->v, w->v_forms, NULL);
            e->extend(&v, LNT_LEFT_T, (char *)w->v_forms + e->bytes(c.n, a->V, LNT_LEFT));
        }
        char *const next = w->kept + (size_t)(i + 1) * each;
        if (V % 32) memset(next, 0, each); /* rows behind the last are not written */
        St.right.p = next;
        e->update_columns(NULL, w->gk.end, &v, true, &k, false, &St);
    }
}

/* last_k (last_v): the sums over rows of e^{G_n} S . dS', S in its right form: pairs of rows by 16 columns; end NULL: without the factor. */
static inline void tiled_state_products(const lnt_operand *S, const float *dS, const float *end, float *last)
{
    const int64_t K = S->cols;
    for (int64_t c = 0; c < K; c += 16) {
        const uint32_t *pairs = (const uint32_t *)S->right.p + c / 16 * S->right.ld;
        __m512 even = _mm512_setzero_ps(), odd = even;
        lnt_tiles_awake();
        for (int64_t j = 0; j < S->rows; j += 2, pairs += 16) {
            const __m512i x = _mm512_loadu_si512(pairs);
            even = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(x, 16), _mm512_loadu_ps(dS + j * K + c), even);
            if (j + 1 < S->rows)
                odd = _mm512_fmadd_ps((__m512)_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)), _mm512_loadu_ps(dS + (j + 1) * K + c), odd);
        }
        const __m512 sum = _mm512_add_ps(even, odd);
        _mm512_storeu_ps(last + c, end ? _mm512_mul_ps(sum, _mm512_loadu_ps(end + c)) : sum);
    }
}

/* The same of rows and columns, with the decays of both, NULL: without. */
static inline void tiled_both_products(const lnt_operand *S, const float *dS, const float *row_ends, const float *column_ends, float *rows,
                                       float *columns)
{
    const int64_t V = S->cols;
    memset(columns, 0, (size_t)V * sizeof *columns);
    for (int64_t j = 0; j < S->rows; j += 2, dS += 2 * V) { /* whole pairs: both sizes are multiples of 32 */
        const uint32_t *pairs = (const uint32_t *)S->right.p + j / 2 * 16;
        const float one = row_ends ? row_ends[j] : 1, two = row_ends ? row_ends[j + 1] : 1;
        const __m512 first = _mm512_set1_ps(one), second = _mm512_set1_ps(two);
        __m512 even = _mm512_setzero_ps(), odd = even;
        rows_awake(j);
        for (int64_t c = 0; c < V; c += 16, pairs += S->right.ld) {
            const __m512i x = _mm512_loadu_si512(pairs);
            const __m512 by = column_ends ? _mm512_loadu_ps(column_ends + c) : _mm512_set1_ps(1);
            const __m512 a = _mm512_mul_ps((__m512)_mm512_slli_epi32(x, 16), _mm512_mul_ps(by, _mm512_loadu_ps(dS + c)));
            const __m512 b = _mm512_mul_ps((__m512)_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)),
                                           _mm512_mul_ps(by, _mm512_loadu_ps(dS + V + c)));
            even = _mm512_add_ps(even, a);
            odd = _mm512_add_ps(odd, b);
            _mm512_storeu_ps(columns + c, _mm512_fmadd_ps(first, a, _mm512_fmadd_ps(second, b, _mm512_loadu_ps(columns + c))));
        }
        rows[j] = one * v_sum((vf)even);
        rows[j + 1] = two * v_sum((vf)odd);
    }
}

/* <S,dS>, S in its right form. */
static inline float right_dot(const lnt_operand *S, const float *dS)
{
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int64_t c = 0; c < S->cols; c += 16) {
        const uint32_t *pairs = (const uint32_t *)S->right.p + c / 16 * S->right.ld;
        const __mmask16 mask = (__mmask16)(S->cols - c < 16 ? (1u << (S->cols - c)) - 1u : 0xffffu);
        lnt_tiles_awake();
        for (int64_t j = 0; j < S->rows; j += 2, pairs += 16) {
            const __m512i x = _mm512_loadu_si512(pairs);
            even = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(x, 16), _mm512_maskz_loadu_ps(mask, dS + j * S->cols + c), even);
            odd = _mm512_fmadd_ps((__m512)_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)),
                                  _mm512_maskz_loadu_ps(j + 1 < S->rows ? mask : 0, dS + (j + 1) * S->cols + c), odd);
        }
    }
    return v_sum((vf)_mm512_add_ps(even, odd));
}

/* 32 columns, from c on, of a right form. */
static inline lnt_operand right_columns(const lnt_operand *m, int c)
{
    lnt_operand v = *m;
    v.right.p = (const uint32_t *)m->right.p + c / 16 * m->right.ld;
    v.cols = 32;
    return v;
}

/* A read-out before the write: row 0, and what the bonus gives dq, dk and its own gradient, 32 columns. */
static inline void tiled_bonus(const lnt_head *x, lnt_rows c, int64_t at, const scratch *w, float *dq, float *dk)
{
    const int64_t K = x->a->K, stride = (int64_t)x->a->Hq * K;
    const lnt_bf16 *q = key_rows(x, c, x->a->q) + at, *k = key_rows(x, c, x->a->k) + at;
    const float *u = bonus_of(x) + at;
    double *restrict du = (double *)x->a->workspace + x->index * K + at;
    row_scale(dq, (float)x->a->scale, 32);
    for (int64_t j = 0; j < 32; j += LNT_VL) {
        vf sum = v_zero();
        const vf bonus = v_load(u + j);
        for (int64_t i = 0; i < c.n; i++) {
            const vf d = v_set(w->Y[i * (w->C + 1)]), qi = v_load_bf16(q + i * stride + j), ki = v_load_bf16(k + i * stride + j);
            sum += d * qi * ki;
            v_store(dq + i * 32 + j, v_load(dq + i * 32 + j) + d * bonus * ki);
            v_store(dk + i * 32 + j, v_load(dk + i * 32 + j) + d * bonus * qi);
        }
        for (int l = 0; l < LNT_VL; l++) du[j + l] += sum[l];
    }
}

/* Chunk i; w->dS becomes the gradient of its start state. */
static inline void tiled_backward_chunk(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int K = a->K, V = a->V, n = c.n, shift = w->early;
    const float s = (float)a->scale;
    lnt_operand reads, writes, St = { .rows = V, .cols = K, .right = { w->kept + (size_t)i * e->bytes(V, K, LNT_RIGHT), (V + 31) / 32 * 256 } };
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, n, a->Hq, x->hq, K);
    e->extend(&w->state, LNT_RIGHT, w->dS_forms);
    const lnt_vector_front f = tiled_front(x, c, true, w, &reads, &writes);
    key_ahead(x, c, a->q);
    key_ahead(x, c, a->k);
    rows_ahead_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V);
    const lnt_operand v = of_values(x, c, a->v, LNT_LEFT | LNT_RIGHT_T, w->v_forms);
    lnt_operand d = { .rows = n, .cols = V };
    if (a->do_) {
        d = of_values(x, c, a->do_, LNT_LEFT | LNT_RIGHT | LNT_LEFT_T, w->do_forms);
    } else {
        memset(w->o, 0, (size_t)n * (size_t)V * sizeof(float));
        d = e->prepare(LNT_LEFT | LNT_RIGHT | LNT_LEFT_T, n, V, w->o, V, w->do_forms);
    }
    triangle(BLOCKS, n, &d, &v, w->Y, w->C);
    for (int64_t r = 0; r < n; r++) row_scale(w->Y + r * w->C, s, r + 1);
    if (shift) memset(w->Y + n * w->C, 0, (size_t)n * sizeof(float));
    if (a->dgk) tiled_state_products(&St, w->dS, w->gk.end, w->last_k);
    value_ahead(x, c, a->v);
    value_ahead(x, c, a->do_);

    float *dq = w->strips[0], *dk = w->strips[1];
    const lnt_vector_back back = { .f = &f, .f_state = { s }, .A = { { w->Y + shift * w->C } }, .ld = w->C, .dread = { dq + shift * 32 },
                                   .dwrite = { dk }, .last = a->dgk ? w->last_k : NULL, .stride = (int64_t)a->Hv * K,
                                   .dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + x->h) * K : NULL };
    LNT_V(lnt_vector_back_begin)(&w->gk, &back);
    memset(dq + n * 32, 0, 32 * sizeof *dq); /* the row behind the last that reads before its write */
    for (int at = 0; at < K; at += 32) {
        const lnt_operand S = right_columns(&St, at), dS = right_columns(&w->state, at);
        e->multiply(LNT_MM_SET, NULL, &d, false, &S, false, dq, 32);
        e->multiply(LNT_MM_SET, NULL, &v, false, &dS, false, dk, 32);
        LNT_V(lnt_vector_back_columns)(&w->gk, &back, at);
        if (shift) tiled_bonus(x, c, at, w, dq, dk);
        columns_out(c, a->Hq, x->hq, K, at, dq, a->dq, w->dq_sum ? w->x : NULL);
        columns_out(c, a->Hq, x->hq, K, at, dk, a->dk, w->dk_sum ? w->dk : NULL);
    }
    if (w->dq_sum) put_shared(x, c, w->x, a->dq, w->dq_sum);
    if (w->dk_sum) put_shared(x, c, w->dk, a->dk, w->dk_sum);
    float_ahead(x, c, a->gk, K);

    /* dV = (l.K) dS' + P^T dO */
    e->extend(&w->state, LNT_RIGHT_T, w->dS_turned);
    const lnt_operand P = e->prepare(LNT_LEFT_T, n, n, w->P, w->C, w->P_forms);
    e->multiply(LNT_MM_SET, NULL, &writes, false, &w->state, true, w->o, V);
    apply_lower_transposed(BLOCKS, n, &P, &d, V, w->o);
    rows_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V, w->o);
    e->extend(&reads, LNT_RIGHT, w->read_forms);
    e->update_columns(NULL, w->gk.end, &d, true, &reads, false, &w->state);
}

/* ---- gates of columns, alone or with gates of rows --------------------------------------------------------------------------------------- */

/* P above becomes P V: gates of columns have factors in V and dO alone. S^T is the state of gates of rows whose keys are v and whose queries are dO
 * (README.md, on a GPU), so that pairs of those are dA, and o, dv and dgv are what dq, dk and dgk are there. With
 * gates of rows, too, what is read and written has their factors, and s. */
static inline lnt_vector_front value_front(const lnt_head *x, lnt_rows c, bool reads, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t at = (c.first * a->Hv + x->h) * a->V, stride = (int64_t)a->Hv * a->V;
    const float s = w->rows ? 1.0f : (float)a->scale;
    lnt_vector_front f = { .n = c.n, .writers = 1, .g = (const float *)a->gv + at, .stride = stride,
                           .write = { { (const lnt_bf16 *)a->v + at, stride, c.n } }, .writes = { w->value_writes }, .end = w->gv.end, .back = true };
    if (!reads) return f;
    f.readers = 1;
    if (a->do_) f.read[0] = (lnt_rows16){ (const lnt_bf16 *)a->do_ + at, stride, c.n };
    f.f_pairs[0] = f.f_reads[0] = s;
    f.pairs[0][0] = w->Y;
    f.ld = w->C;
    f.reads[0] = w->value_reads;
    return f;
}

/* 32 columns, from `at` on, of o: f P times rows. */
static inline void lifted_out(const lnt_head *x, lnt_rows c, int64_t at, float f, const float *P, const float *rows)
{
    const lnt_recur_args *a = x->a;
    const int64_t V = a->V;
    lnt_bf16 *o = (lnt_bf16 *)a->o + (c.first * a->Hv + x->h) * V + at;
    const bool past = rows_past(a->o, LINNET_BF16, V);
    P += at;
    for (int64_t i = 0; i < c.n; i++, rows += 32, P += V, o += a->Hv * V) {
        const vf low = f * v_load(P) * v_load(rows), high = f * v_load(P + 16) * v_load(rows + 16);
        rows_awake(i);
        if (past) {
            line_past(o, low, high);
        } else {
            v_store_bf16(o, low);
            v_store_bf16(o + 16, high);
        }
    }
}

/* Mild gates: o = s P . (Q S + tril(Q K^T) (V / P)). False: they are not, and nothing is done. */
static inline bool lifted_forward_chunk(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int V = a->V, n = c.n;
    const lnt_vector_front f = value_front(x, c, false, w);
    lnt_vector_lifted v;
    if (!a->o || !LNT_V(lnt_vector_lift_tiled)(&w->gv, &f, &v)) return false;
    rows_ahead_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V);
    value_ahead(x, c, a->v);
    lnt_operand q, k;
    if (w->rows) {
        tiled_front(x, c, false, w, &q, &k);
        e->extend(&k, LNT_LEFT_T, w->ks_forms);
        float_ahead(x, c, a->gk, a->K);
    } else {
        q = of_keys(x, c, a->q, LNT_LEFT, w->q_forms);
        k = of_keys(x, c, a->k, LNT_RIGHT_T | LNT_LEFT_T, w->k_forms);
        triangle(BLOCKS, n, &q, &k, w->P, w->C);
    }
    key_ahead(x, c, a->q);
    key_ahead(x, c, a->k);
    for (int64_t i = 0; i < n && !w->rows; i++) memset(w->P + i * (w->C + 1) + 1, 0, (size_t)(block_end(BLOCKS, i, n) - i - 1) * sizeof *w->P);
    const lnt_operand P = e->prepare(LNT_LEFT, n, n, w->P, w->C, w->P_forms);
    float *o = w->strips[0];
    for (int at = 0; at < V; at += 32) {
        const lnt_operand right[2] = { right_columns(&w->state, at), right_columns(&v.rows, at) };
        for (int i = 0; i < n; i += BLOCKS.rows) {
            lnt_operand left[2] = { e->view(&q, i, block_rows(BLOCKS, i, n)), e->view(&P, i, block_rows(BLOCKS, i, n)) };
            left[1].cols = i + left[1].rows;
            e->multiply_row(NULL, 2, left, right, o + i * 32, 32);
        }
        lifted_out(x, c, at, w->rows ? 1.0f : (float)a->scale, v.P, o);
    }
    float_ahead(x, c, a->gv, V);
    lnt_operand writes = { .rows = n, .cols = V, .left = { w->value_writes, V } };
    e->extend(&writes, LNT_RIGHT, w->vs_forms);
    e->update_columns(w->rows ? w->gk.end : NULL, w->gv.end, &k, true, &writes, false, &w->state);
    return true;
}

/* Right forms of the states at all chunks' starts, into w->kept. */
static inline void lifted_sweep(const lnt_head *x, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int64_t chunks = chunk_count(x, w->C);
    const size_t each = e->bytes(a->K, a->V, LNT_RIGHT);
    get_state(x, w->states, a->s0, (int64_t)a->K * a->V);
    lnt_operand S = e->prepare(LNT_RIGHT, a->K, a->V, w->states, a->V, w->kept);
    for (int64_t i = 0; i + 1 < chunks; i++) { /* nobody reads the final state */
        const lnt_rows c = chunk_at(x, w->C, i, 1);
        const int64_t stride = (int64_t)a->Hv * a->V, first = c.first * stride + (int64_t)x->h * a->V;
        const lnt_bf16 *values = (const lnt_bf16 *)a->v + first;
        const lnt_operand v = tiled_written(c, a->V, (const float *)a->gv + first, stride, values, stride, w->gv.end, w->vs_forms);
        lnt_operand k;
        key_ahead(x, c, a->k);
        if (w->rows) {
            k = tiled_writes(x, c, w);
            e->extend(&k, LNT_LEFT_T, w->ks_forms);
            float_ahead(x, c, a->gk, a->K);
        } else {
            k = of_keys(x, c, a->k, LNT_LEFT, w->k_forms);
            e->extend(&k, LNT_LEFT_T, (char *)w->k_forms + e->bytes(c.n, a->K, LNT_LEFT));
        }
        char *const next = w->kept + (size_t)(i + 1) * each;
        if (a->K % 32) memset(next, 0, each); /* rows behind the last are not written */
        S.right.p = next;
        e->update_columns(w->rows ? w->gk.end : NULL, w->gv.end, &k, true, &v, false, &S);
    }
}

/* dQ, dK and dgk from dA, with gates of rows. */
static inline void lifted_key_gradients(const lnt_head *x, lnt_rows c, const lnt_vector_front *keys, const lnt_operand *reads,
                                        const lnt_operand *writes, const lnt_operand *St, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int K = a->K;
    const lnt_operand dSt = { .rows = a->V, .cols = K, .right = { w->state.right_t.p, w->state.right_t.ld } };
    float *dq = w->strips[0], *dk = w->strips[1];
    const lnt_vector_back back = { .f = keys, .f_state = { (float)a->scale }, .A = { { w->Y } }, .ld = w->C, .dread = { dq }, .dwrite = { dk },
                                   .last = a->dgk ? w->last_k : NULL, .stride = (int64_t)a->Hv * K,
                                   .dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + x->h) * K : NULL };
    LNT_V(lnt_vector_back_begin)(&w->gk, &back);
    for (int at = 0; at < K; at += 32) {
        const lnt_operand S = right_columns(St, at), dS = right_columns(&dSt, at);
        ENGINE->multiply(LNT_MM_SET, NULL, reads, false, &S, false, dq, 32);
        ENGINE->multiply(LNT_MM_SET, NULL, writes, false, &dS, false, dk, 32);
        LNT_V(lnt_vector_back_columns)(&w->gk, &back, at);
        columns_out(c, a->Hq, x->hq, K, at, dq, a->dq, w->dq_sum ? w->x : NULL);
        columns_out(c, a->Hq, x->hq, K, at, dk, a->dk, w->dk_sum ? w->dk : NULL);
    }
    float_ahead(x, c, a->gk, K);
}

/* Chunk i; w->dS becomes the gradient of its start state. */
static inline void lifted_backward_chunk(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    const int K = a->K, V = a->V, n = c.n;
    const float s = (float)a->scale;
    lnt_operand S = { .rows = K, .cols = V, .right = { w->kept + (size_t)i * e->bytes(K, V, LNT_RIGHT), w->state.right.ld } };
    e->extend(&w->state, LNT_RIGHT, w->dS_forms);
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, n, a->Hq, x->hq, K);
    rows_ahead_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V);
    const lnt_vector_front f = value_front(x, c, true, w);
    LNT_V(lnt_vector_front_tiled)(&w->gv, &f); /* dA */
    value_ahead(x, c, a->v);
    value_ahead(x, c, a->do_);
    lnt_operand q, k; /* what reads and what is written */
    lnt_vector_front keys = { .n = 0 };
    if (w->rows) {
        keys = tiled_front(x, c, true, w, &q, &k);
        for (int64_t r = 0; r < n; r++) row_scale(w->Y + r * w->C, s, r + 1);
    } else {
        q = of_keys(x, c, a->q, LNT_LEFT | LNT_RIGHT | LNT_LEFT_T, w->q_forms);
        k = of_keys(x, c, a->k, LNT_RIGHT_T | LNT_RIGHT, w->k_forms);
        triangle(BLOCKS, n, &q, &k, w->P, w->C);
        for (int64_t r = 0; r < n; r++) row_scale(w->P + r * w->C, s, r + 1);
    }
    key_ahead(x, c, a->q);
    key_ahead(x, c, a->k);
    if (w->rows && (a->dgk || a->dgv))
        tiled_both_products(&S, w->dS, w->gk.end, w->gv.end, w->last_k, w->last_v);
    else if (a->dgv)
        tiled_state_products(&S, w->dS, w->gv.end, w->last_v);

    float *o = w->strips[0], *dv = w->strips[1];
    const lnt_vector_back back = { .f = &f, .f_state = { w->rows ? 1.0f : s }, .A = { { w->P } }, .ld = w->C, .dread = { o }, .dwrite = { dv },
                                   .last = a->dgv ? w->last_v : NULL, .stride = (int64_t)a->Hv * V,
                                   .dg = a->dgv ? (float *)a->dgv + (c.first * a->Hv + x->h) * V : NULL };
    LNT_V(lnt_vector_back_begin)(&w->gv, &back);
    for (int at = 0; at < V; at += 32) {
        const lnt_operand start = right_columns(&S, at), dS = right_columns(&w->state, at);
        e->multiply(LNT_MM_SET, NULL, &q, false, &start, false, o, 32);
        e->multiply(LNT_MM_SET, NULL, &k, false, &dS, false, dv, 32);
        LNT_V(lnt_vector_back_columns)(&w->gv, &back, at);
        columns_out(c, a->Hv, x->h, V, at, dv, a->dv, NULL);
    }
    float_ahead(x, c, a->gv, V);

    /* dQ = (s e.dO) S^T + dA K, dK = (l.V) dS'^T + dA^T Q */
    lnt_operand reads = { .rows = n, .cols = V, .left = { w->value_reads, V } }, writes = { .rows = n, .cols = V, .left = { w->value_writes, V } };
    e->extend(&S, LNT_LEFT_T, w->S_turned);
    const lnt_operand St = e->prepare16(LNT_RIGHT, V, K, S.left_t.p, S.left_t.ld, w->S_forms);
    e->extend(&w->state, LNT_RIGHT_T, w->dS_turned);
    if (w->rows) {
        lifted_key_gradients(x, c, &keys, &reads, &writes, &St, w);
        e->extend(&q, LNT_LEFT_T, w->ks_forms);
    } else {
        const lnt_operand dA = e->prepare(LNT_LEFT | LNT_LEFT_T, n, n, w->Y, w->C, w->Y_forms);
        e->multiply(LNT_MM_SET, NULL, &reads, false, &St, false, w->x, K);
        apply_lower(BLOCKS, n, &dA, &k, K, w->x);
        e->multiply(LNT_MM_SET, NULL, &writes, false, &w->state, true, w->dk, K);
        apply_lower_transposed(BLOCKS, n, &dA, &q, K, w->dk);
    }
    if (!w->rows || w->dq_sum) put_shared(x, c, w->x, a->dq, w->dq_sum);
    if (!w->rows || w->dk_sum) put_shared(x, c, w->dk, a->dk, w->dk_sum);
    e->extend(&reads, LNT_RIGHT, w->dos_forms);
    e->update_columns(w->rows ? w->gk.end : NULL, w->gv.end, &q, true, &reads, false, &w->state);
}

#endif

#endif
