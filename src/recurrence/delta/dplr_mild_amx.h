/* Mild gates in a chunk of the untied delta rule on AMX tiles (only dplr_cpu.c includes this): the split and the stacks of dplr_mild.h,
 *
 *   readers   a_i . P_{i-1} and s q_i . P_i          writers   b_j / P_j and k_j / P_j
 *
 * rounded to bf16 once, in blocks of 32 rows, a (b, p) of BLOCK tokens and q (k, v) of the same. Forward and back are one walk over the blocks, for
 * 32 columns of the state at a time:
 *
 *   forward   p = readers_a S + A_a u    (I - A_ab) P = p          u = [P; v]       o  = readers_q S + A_q u
 *   back      r = writers_b dS'' + A_b^T d    (I - A_ab)^T dR = r    d = [dR; dO]     dV = writers_k dS'' + A_k^T d
 *
 * where a block's sums stay in tiles from the state to the end of its own pairs; what is solved leaves them in between. Back, pairs are made
 * transposed, and the rest is dplr_mild.h's X, Y, dS and gradients, 32 columns at a time; gates' gradients begin with <S', dS'> of what the products
 * have of both, and all sums behind take rows as they were rounded: a pair that is in two of them has the same bits in both. */
#ifndef LNT_DPLR_MILD_AMX_H
#define LNT_DPLR_MILD_AMX_H

#include "recurrence/chunk/chunk_lines_amx.h"
#include "recurrence/chunk/chunk_triangle.h"
#include "recurrence/delta/dplr_work.h"

#if defined(__AMX_BF16__)
enum { BLOCK = 16, PAIR = 2 * BLOCK, STEP = BLOCK * BLOCK /* 32-bit units of a tile of a right form */ };

static int mild_rows(int n) { return (n + BLOCK - 1) / BLOCK * PAIR; }
static int64_t mild_row(int64_t i) { return i / BLOCK * PAIR + i % BLOCK; } /* of a, b or p; BLOCK behind it of q, k or v */

/* ---- front ----------------------------------------------------------------------------------------------------------------------------- */

/* One or two lines of columns of the stacks from `at` on, straight from the tensors, P and its last row; the next chunk's rows are asked for. False:
 * a gate is not mild. */
INLINE bool mild_columns(int lines, bool with_q, bool back, work *w, lnt_rows c, int at)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, own = a->Hv * K, shared = a->Hq * K;
    const int64_t first = c.first * own + w->at->h * K + at, first_shared = c.first * shared + w->at->hq * K + at;
    const int64_t next = (c.next - c.first) * own, next_shared = (c.next - c.first) * shared;
    const float *g = (const float *)a->gk + first;
    const lnt_bf16 *read = (const lnt_bf16 *)a->a + first, *write = (const lnt_bf16 *)a->b + first;
    const lnt_bf16 *q = (const lnt_bf16 *)a->q + first_shared, *k = (const lnt_bf16 *)a->k + first_shared;
    lnt_bf16 *reads = w->reads16 + at, *writes = w->writes16 + at;
    const line scale = line_set((float)a->scale);
    line sum[2] = { line_set(0), line_set(0) }, P[2] = { line_set(1), line_set(1) };
    for (int64_t i = 0; i < c.n; i++, g += own, read += own, write += own, q += shared, k += shared) {
        const int64_t row = mild_row(i) * K, second = row + BLOCK * K;
        if (i % 8 == 0) lnt_tiles_awake();
        if (i < c.next_n) {
            for (int l = 0; l < 2 * lines; l++) __builtin_prefetch(g + next + l * 16, 0, 2);
            for (int l = 0; l < lines; l++) __builtin_prefetch(read + next + l * 32, 0, 2);
            for (int l = 0; l < lines; l++) __builtin_prefetch(write + next + l * 32, 0, 2);
            for (int l = 0; l < lines; l++) __builtin_prefetch(k + next_shared + l * 32, 0, 2);
            for (int l = 0; l < lines && with_q; l++) __builtin_prefetch(q + next_shared + l * 32, 0, 2);
        }
        for (int l = 0; l < lines; l++) {
            const int64_t j = l * 32;
            line_put(reads + row + j, line_times(P[l], line_in(read + j)));
            sum[l] = line_plus(sum[l], line_of(g + j));
            P[l] = (line){ short_decay(sum[l].low), short_decay(sum[l].high) };
            const line lift = line_inverse(P[l]);
            if (with_q) line_put(reads + second + j, line_times(line_times(scale, P[l]), line_in(q + j)));
            line_put(writes + row + j, line_times(lift, line_in(write + j)));
            line_put(writes + second + j, line_times(lift, line_in(k + j)));
            if (back) line_store(w->P + i * K + at + j, P[l]);
        }
    }
    bool mild = true;
    for (int l = 0; l < lines; l++) {
        line_store(w->gk.end + at + l * 32, (line){ decay_in_range(sum[l].low), decay_in_range(sum[l].high) });
        mild &= _mm512_reduce_min_ps(_mm512_min_ps(sum[l].low, sum[l].high)) >= -MILD;
    }
    return mild;
}

INLINE bool mild_stacks(bool with_q, bool back, work *w, lnt_rows c)
{
    bool mild = true;
    int at = 0;
    for (; at + 64 <= w->K; at += 64) mild &= mild_columns(2, with_q, back, w, c, at);
    if (at < w->K) mild &= mild_columns(1, with_q, back, w, c, at);
    return mild;
}

/* Rows behind the last token, of both kinds. */
static void mild_clear(const work *w, int n, lnt_bf16 *x, int64_t width)
{
    const int64_t used = n % BLOCK, size = (int64_t)sizeof *x * (BLOCK - used) * width;
    lnt_bf16 *block = x + (int64_t)(w->m - PAIR) * width;
    if (!used) return;
    memset(block + used * width, 0, (size_t)size);
    memset(block + (BLOCK + used) * width, 0, (size_t)size);
}

/* Pairs in float32 [L,L] as a left operand: whole blocks on one side of the diagonal, zeros on the other; rows are readers, or writers. `solved`:
 * those of a with b of one and the same tokens are left out. */
INLINE void mild_left(bool writers, bool solved, const work *w, const float *pairs, lnt_bf16 *left)
{
    const int64_t L = w->m;
    for (int64_t r = 0; r < L; r += PAIR)
        for (int64_t i = 0; i < PAIR; i++) {
            const float *row = pairs + (r + i) * L;
            lnt_bf16 *to = left + (r + i) * L;
            const unsigned below = (1u << i % BLOCK) - 1u, with = 2 * below + 1; /* a reads what was written before its token, q its token's, too */
            const unsigned first = solved && i < BLOCK ? 0 : writers ? ~with : i < BLOCK ? below : with;
            const unsigned second = writers ? ~below : i < BLOCK ? below : with;
            if (i % BLOCK == 0) lnt_tiles_awake();
            for (int64_t j = 0; j < L; j += PAIR) {
                const bool own = j == r, whole = writers ? j > r : j < r;
                if (own)
                    put_wide(to + j, _mm512_maskz_loadu_ps((__mmask16)first, row + j), _mm512_maskz_loadu_ps((__mmask16)second, row + j + BLOCK));
                else if (whole)
                    line_put(to + j, line_of(row + j));
                else
                    memset(to + j, 0, PAIR * sizeof *to);
            }
        }
}

/* A chunk's stacks, their pairs [L,L] and -A_ab of each block; `back`: with what the way back wants, pairs transposed. False: its gates are not
 * mild. */
static bool mild_front(work *w, lnt_rows c, bool with_q, bool back)
{
    const lnt_mm_engine *e = w->e;
    const int64_t K = w->K, L = w->m = mild_rows(c.n);
    if (!w->mild) return false;
    const bool mild = back ? mild_stacks(true, true, w, c) : with_q ? mild_stacks(true, false, w, c) : mild_stacks(false, false, w, c);
    if (!mild) return false;
    mild_clear(w, c.n, w->reads16, K);
    mild_clear(w, c.n, w->writes16, K);
    w->readers = (lnt_operand){ .rows = (int)L, .cols = w->K, .left = { w->reads16, K } };
    w->writers = (lnt_operand){ .rows = (int)L, .cols = w->K, .left = { w->writes16, K } };
    e->extend(&w->readers, back ? LNT_RIGHT | LNT_RIGHT_T | LNT_LEFT_T : 0, w->reads_forms);
    e->extend(&w->writers, back ? LNT_RIGHT : LNT_RIGHT_T | LNT_LEFT_T, w->writes_forms);
    for (int r = 0; r < L; r += PAIR) {
        const lnt_operand x = e->view(back ? &w->writers : &w->readers, r, PAIR);
        const lnt_operand y = back ? e->view(&w->readers, r, (int)L - r) : e->view(&w->writers, 0, r + PAIR);
        float *pairs = w->pairs + r * L + (back ? r : 0), *solved = w->solved + r / 2 * BLOCK;
        e->multiply(LNT_MM_SET, NULL, &x, false, &y, true, pairs, L);
        if (!back) pairs += r;
        for (int i = 0; i < BLOCK; i++) _mm512_storeu_ps(solved + i * BLOCK, _mm512_sub_ps(_mm512_setzero_ps(), _mm512_loadu_ps(pairs + i * L)));
        if (back) {
            _Alignas(64) float turned[BLOCK * BLOCK];
            LNT_V(lnt_transpose)(BLOCK, BLOCK, solved, BLOCK, turned, BLOCK);
            memcpy(solved, turned, sizeof turned);
        }
    }
    if (back)
        mild_left(true, true, w, w->pairs, w->pairs16);
    else
        mild_left(false, true, w, w->pairs, w->pairs16);
    return true;
}

/* ---- the walk over blocks -------------------------------------------------------------------------------------------------------------- */

/* Tiles 0 and 1 (first) or 2 and 3 (second: rows from BLOCK on), or all of them, += rows [.., 32 steps] times two blocks of columns. */
INLINE void mild_steps(bool first, bool second, int64_t steps, const lnt_bf16 *rows, int64_t ld, const uint32_t *right, int64_t block)
{
    for (; steps > 0; steps--, rows += 32, right += STEP) {
        _tile_loadd(6, right, 64);
        _tile_loadd(7, right + block, 64);
        if (first) {
            _tile_loadd(4, rows, ld * 2);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (second) {
            _tile_loadd(5, rows + BLOCK * ld, ld * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

/* 32 columns of BLOCK rows as 8 pairs of a right form. */
INLINE void mild_right(const float *x, uint32_t *right, int64_t block)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int i = 0; i < BLOCK; i += 2, x += 64, right += 16)
        for (int h = 0; h < 2; h++)
            _mm512_storeu_si512(right + h * block, _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 32 + 16 * h),
                                                                                                               _mm512_loadu_ps(x + 16 * h))));
}

/* The same from n rows of a tensor, zeros behind; the next chunk's `next` rows on are asked for. With `left` as rows there, too. */
INLINE void mild_given(int64_t n, const lnt_bf16 *x, int64_t stride, int64_t ahead, int64_t asked, lnt_bf16 *left, int64_t ld, uint32_t *right,
                       int64_t block)
{
    for (int i = 0; i < BLOCK; i += 2, right += 16) {
        __m512i row[2];
        for (int r = 0; r < 2; r++, x += stride) {
            row[r] = i + r < n ? _mm512_loadu_si512(x) : _mm512_setzero_si512();
            if (i + r < asked) __builtin_prefetch(x + ahead, 0, 2);
            if (left) _mm512_storeu_si512(left + (i + r) * ld, row[r]);
        }
        line_pair(right, block, row[0], row[1]);
    }
}

/* One block's 32 columns of u (back: d), from column `at` on, in their right form and, where `left` [L,V] is, as rows; with `second` o (back: dV) on
 * its way. `state`: the right form of these columns of the state. */
INLINE void mild_block(bool back, bool second, const work *w, lnt_rows c, int64_t r, int64_t at, const lnt_operand *state, uint32_t *right,
                       lnt_bf16 *left)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, L = w->m, heads = (int64_t)a->Hv * a->V, block = L / 2 * 16, states = state->right.ld;
    const int64_t first = r / 2, n = c.n - first < BLOCK ? c.n - first : BLOCK, behind = r + PAIR;
    const lnt_bf16 *given = (const lnt_bf16 *)(back ? a->do_ : a->v) + (c.first + first) * heads + w->at->h * (int64_t)a->V + at;
    const lnt_bf16 *rows = (back ? w->writes16 : w->reads16) + r * K, *pairs = w->pairs16 + r * L;
    uint32_t *own = right + r / 2 * 16;
    lnt_bf16 *to = left ? left + r * w->V + at : NULL;
    _Alignas(64) float x[BLOCK * 32];
    mild_given(n, given, heads, (c.next - c.first) * heads, c.next_n - first, to ? to + BLOCK * w->V : NULL, w->V, own + 8 * 16, block);
    memset(own, 0, 8 * 16 * sizeof *own);
    memset(own + block, 0, 8 * 16 * sizeof *own);
    __asm__ volatile("" ::: "memory"); /* tile loads name no memory to the compiler */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    mild_steps(true, second, K / 32, rows, K, state->right.p, states);
    if (back)
        mild_steps(true, second, (L - behind) / 32, pairs + behind, L, right + behind / 2 * 16, block);
    else
        mild_steps(true, second, r / 32, pairs, L, right, block);
    mild_steps(true, false, 1, pairs + r, L, own, block);
    _tile_stored(0, x, 128);
    _tile_stored(1, x + 16, 128);
    __asm__ volatile("" ::: "memory");
    LNT_V(lnt_chunk_solve)(back, BLOCK, 32, w->solved + first * BLOCK, BLOCK, x, 32);
    mild_right(x, own, block);
    for (int i = 0; i < BLOCK && left; i++) line_put(to + i * w->V, line_of(x + i * 32));
    if (!second) return;
    __asm__ volatile("" ::: "memory");
    mild_steps(false, true, 1, pairs + r, L, own, block);
    _tile_stored(2, x, 128);
    _tile_stored(3, x + 16, 128);
    __asm__ volatile("" ::: "memory");
    columns_out((lnt_rows){ .first = c.first + first, .n = (int)n }, a->Hv, w->at->h, w->V, at, x, back ? a->dv : a->o, NULL);
}

/* All blocks by panels of the state, whose right forms [L,32] lie one behind the other; two at a time, for which a tensor's row is on one page and
 * what is multiplied stays in L1. */
INLINE void mild_walk(bool back, bool second, const work *w, lnt_rows c, const lnt_operand *state, uint32_t *right, lnt_bf16 *left)
{
    const int64_t L = w->m;
    for (int first = 0; first < w->panels; first += 2)
        for (int64_t s = 0; s < L; s += PAIR)
            for (int p = first; p < first + 2 && p < w->panels; p++)
                mild_block(back, second, w, c, back ? L - PAIR - s : s, p * 32, &state[p], right + p * L * 16, left);
}

/* S' = P_n . (S + writers^T u) */
static void mild_update(const work *w, const uint32_t *right)
{
    for (int p = 0; p < w->panels; p++) {
        const lnt_operand u = { .rows = w->m, .cols = 32, .right = { right + (int64_t)p * w->m * 16, w->m / 2 * 16 } };
        w->e->update_before(w->gk.end, NULL, &w->writers, true, &u, false, &w->state[p]);
    }
}

/* A chunk of mild gates; false, and nothing done, where they are not. */
static bool mild_forward(work *w, lnt_rows c)
{
    if (!mild_front(w, c, true, false)) return false;
    mild_walk(false, true, w, c, w->state, w->u_forms, NULL);
    mild_update(w, w->u_forms);
    return true;
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------- */

/* Forward again: u is kept as rows. */
static bool mild_sweep(work *w, lnt_rows c, int64_t i)
{
    if (!mild_front(w, c, false, false)) return false;
    mild_walk(false, false, w, c, w->state, w->u_forms, (lnt_bf16 *)(w->p + i * w->L * w->V));
    mild_update(w, w->u_forms);
    return true;
}

/* The rows' sums of <S', dS'>, from the transposed right forms of S' and of dS''. */
static void mild_last(const work *w, const lnt_operand *end, const lnt_operand *grad)
{
    for (int64_t j = 0; j < w->K; j += 16) {
        const lnt_bf16 *x = (const lnt_bf16 *)((const uint32_t *)end->right_t.p + j / 16 * end->right_t.ld);
        const lnt_bf16 *y = (const lnt_bf16 *)((const uint32_t *)grad->right_t.p + j / 16 * grad->right_t.ld);
        __m512 sum[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
        lnt_tiles_awake();
        for (int64_t i = 0; i < w->V * 16; i += 64) /* 16 columns of two pairs of rows */
            for (int h = 0; h < 2; h++)
                sum[h] = _mm512_dpbf16_ps(sum[h], (__m512bh)_mm512_loadu_si512(x + i + 32 * h), (__m512bh)_mm512_loadu_si512(y + i + 32 * h));
        _mm512_storeu_ps(w->last + j, _mm512_mul_ps(inverse(_mm512_loadu_ps(w->gk.end + j)), _mm512_add_ps(sum[0], sum[1])));
    }
}

/* 32 columns of all gradients of rows and gates from X and Y in the strips. */
static void mild_rows_back(const work *w, lnt_rows c, int at)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K;
    const float *X = w->strips[0], *Y = w->strips[1];
    const line_result da = line_to(c, a->da, a->Hv, w->at->h, K, at, NULL), db = line_to(c, a->db, a->Hv, w->at->h, K, at, NULL);
    const line_result dq = line_to(c, a->dq, a->Hq, w->at->hq, K, at, w->dq ? w->dread : NULL);
    const line_result dk = line_to(c, a->dk, a->Hq, w->at->hq, K, at, w->dk ? w->dwrite : NULL);
    float *dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + w->at->h) * K + at : NULL;
    const bool past = rows_past(dg, LINNET_F32, K);
    const line scale = line_set((float)a->scale);
    line sum = dg ? line_of(w->last + at) : line_set(0), behind = line_set(0); /* what a's next row has read */
    line P = line_of(w->P + (c.n - 1) * K + at);
    for (int64_t i = c.n - 1; i >= 0; i--) {
        const int64_t row = mild_row(i), second = row + BLOCK;
        const line before = i ? line_of(w->P + (i - 1) * K + at) : line_set(1), lift = line_inverse(P);
        const line xa = line_of(X + row * 32), xq = line_of(X + second * 32), yb = line_of(Y + row * 32), yk = line_of(Y + second * 32);
        if (i % 8 == 0) lnt_tiles_awake();
        if (dg) {
            sum = line_more(line_in(w->reads16 + second * K + at), xq, line_plus(sum, behind));
            sum = line_less(line_in(w->writes16 + row * K + at), yb, sum);
            sum = line_less(line_in(w->writes16 + second * K + at), yk, sum);
            behind = line_times(line_in(w->reads16 + row * K + at), xa);
            float *to = dg + i * a->Hv * K;
            if (past)
                _mm512_stream_ps(to, sum.low), _mm512_stream_ps(to + 16, sum.high);
            else
                line_store(to, sum);
        }
        line_result_put(&da, i, 0, line_times(before, xa));
        line_result_put(&dq, i, 0, line_times(line_times(scale, P), xq));
        line_result_put(&db, i, 0, line_times(lift, yb));
        line_result_put(&dk, i, 0, line_times(lift, yk));
        P = before;
    }
}

/* 32 columns, from `at` on, of X and of Y, block by block:  d S^T + D writers  and  u dS''^T + D^T readers. */
static void mild_strips(const work *w, int at, const lnt_operand *start, const lnt_operand *grad, const lnt_operand *d, const lnt_operand *u,
                        const lnt_operand *D)
{
    const int64_t L = w->m;
    const struct {
        const uint32_t *p;
        int64_t ld;
    } from[4] = { { start->right_t.p, start->right_t.ld }, { w->writers.right.p, w->writers.right.ld },
                  { grad->right_t.p, grad->right_t.ld }, { w->readers.right.p, w->readers.right.ld } };
    lnt_operand right[4];
    for (int i = 0; i < 4; i++) right[i] = (lnt_operand){ .cols = 32, .right = { from[i].p + at / 16 * from[i].ld, from[i].ld } };
    const uint32_t *readers = right[3].right.p;
    for (int64_t r = 0; r < L; r += PAIR) {
        const lnt_bf16 *left = (const lnt_bf16 *)D->left.p + r * L, *left_t = (const lnt_bf16 *)D->left_t.p + r * L + r;
        const lnt_operand x[2] = { w->e->view(d, (int)r, PAIR), { .rows = PAIR, .cols = (int)r + PAIR, .left = { left, L } } };
        const lnt_operand y[2] = { w->e->view(u, (int)r, PAIR), { .rows = PAIR, .cols = (int)(L - r), .left = { left_t, L } } };
        right[3].right.p = readers + r / 2 * 16;
        w->e->multiply_row(NULL, 2, x, right, w->strips[0] + r * 32, 32);
        w->e->multiply_row(NULL, 2, y, right + 2, w->strips[1] + r * 32, 32);
    }
}

/* Chunk `index` with the state in front of it and, transposed, the one behind it. */
static bool mild_back(work *w, lnt_rows c, int64_t index, const lnt_operand *start, const lnt_operand *end)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    if (!mild_front(w, c, true, true)) return false;
    const int64_t L = w->m, V = w->V;
    const int rows = (int)L;

    /* dS'', and d by the walk from the last block */
    lnt_operand grad = e->prepare_scaled(LNT_LEFT, 1.0f, w->gk.end, w->K, w->V, w->dS, V, w->dS_t_forms);
    e->extend(&grad, LNT_RIGHT_T, (char *)w->dS_t_forms + e->bytes(w->K, w->V, LNT_LEFT));
    e->extend(&grad, LNT_RIGHT, w->dS_forms);
    lnt_bf16 *left = w->d_forms;
    uint32_t *right = (uint32_t *)(left + L * V);
    for (int p = 0; p < w->panels; p++) {
        w->grads[p] = grad;
        w->grads[p].right.p = (const uint32_t *)grad.right.p + 2 * p * grad.right.ld;
    }
    mild_walk(true, true, w, c, w->grads, right, left);

    /* D, in place of pairs, and its transpose */
    const lnt_operand d = { .rows = rows, .cols = w->V, .left = { left, V }, .right = { right, L / 2 * 16 } };
    lnt_operand u = { .rows = rows, .cols = w->V, .left = { w->p + index * w->L * V, V } };
    e->extend(&u, LNT_RIGHT_T, w->u_forms);
    triangle((lnt_blocks){ e, PAIR }, L, &d, &u, w->dpairs, L);
    mild_left(false, false, w, w->dpairs, w->pairs16);
    lnt_operand D = { .rows = rows, .cols = rows, .left = { w->pairs16, L } };
    e->extend(&D, LNT_LEFT_T, w->pairs16_t);

    if (a->dgk) mild_last(w, end, &grad);
    for (int at = 0; at < w->K; at += 32) {
        mild_strips(w, at, start, &grad, &d, &u, &D);
        mild_rows_back(w, c, at);
    }
    if (w->dq) put_shared(w->at, c, w->dread, a->dq, w->dq);
    if (w->dk) put_shared(w->at, c, w->dwrite, a->dk, w->dk);

    w->grad.right.p = NULL; /* whoever takes it from here makes forms of his own */
    e->update(w->gk.end, 1, &w->readers, true, &d, false, &w->grad);
    return true;
}

#endif

#endif
