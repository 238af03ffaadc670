/* Mild gates in a chunk of the untied delta rule, in float32 products (only dplr_cpu.c includes this). Factors F_ij = P_i / P_j
 * (chunk_mild.h), so that rows are scaled once,
 *
 *   readers   a_i . P_{i-1} and s q_i . P_i          writers   b_j / P_j and k_j / P_j
 *
 * and these meet states and each other: all pairs are the products of one stack with the other, and
 *
 *   S' = P_n . (S + writers^T u)          u = [P; V]
 *
 * Back, with dS'' = P_n . dS', D = tril(d u^T) the gradient of pairs and d = [dR; dO]:
 *
 *   X = d S^T + D writers          Y = u dS''^T + D^T readers          dS = dS'' + readers^T d
 *   da_i = P_{i-1} . X_i   dq_i = s P_i . X_i                          db_j = Y_j / P_j   dk_j likewise
 *   dgk_i = <S', dS'> by rows + sum_{l>=i} (readers . X - writers . Y)_l         a's row l + 1 counted with l, as it has met gate l last
 *
 * What lies above the diagonals of pairs is left out by selection.
 *
 * A stack is in blocks of 2 BLOCK rows, those of a (b, p) of BLOCK tokens and then of q (k, v) of the same, so that the pairs of two stacks are a
 * lower triangle of blocks. Behind the last token rows are zeros. Blocks of pairs of one and the same tokens are tidied: A_ab negated as the solve
 * wants it, zeros where nobody reads. */
#ifndef LNT_DPLR_MILD_H
#define LNT_DPLR_MILD_H

#include "recurrence/chunk/chunk_mild.h"
#include "recurrence/delta/dplr_work.h"

enum { BLOCK = MILD_BLOCK, PAIR = 2 * BLOCK };

static int mild_rows(int n) { return (n + BLOCK - 1) / BLOCK * PAIR; }
static int64_t mild_row(int64_t i) { return i / BLOCK * PAIR + i % BLOCK; } /* of a, b or p; BLOCK behind it of q, k or v */

/* Vectors of columns of the stacks from `at` on, straight from the tensors, P, 1 / P and the decay over the chunk. */
INLINE void mild_columns(bool bf16, bool with_q, int vectors, bool part, int lanes, work *w, lnt_rows c, int at)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, own = a->Hv * K, shared = a->Hq * K;
    const int64_t first = c.first * own + w->at->h * K + at, first_shared = c.first * shared + w->at->hq * K + at;
    const float *g = (const float *)a->gk + first;
    const vf scale = v_set((float)a->scale);
    float *reads = w->read + at, *writes = w->write + at, *P = w->gk.from_start + at, *inverse = w->gk.to_end + at;
    vf p[SIDE_BY_SIDE], sum[SIDE_BY_SIDE];
    UNROLL for (int k = 0; k < vectors; k++) p[k] = v_set(1.0f), sum[k] = v_zero();
    for (int64_t i = 0; i < c.n; i++) {
        const int64_t x = first + i * own, y = first_shared + i * shared, row = mild_row(i) * K, second = row + BLOCK * K;
        UNROLL for (int k = 0; k < vectors; k++) {
            const int64_t j = k * LNT_VL;
            const vf gate = mild_load(false, part, g, i * own + j, lanes);
            mild_store(part, reads + row + j, p[k] * mild_load(bf16, part, a->a, x + j, lanes), lanes);
            p[k] *= v_exp(gate);
            sum[k] += gate;
            const vf back = mild_inverse(p[k]);
            if (with_q) mild_store(part, reads + second + j, scale * p[k] * mild_load(bf16, part, a->q, y + j, lanes), lanes);
            mild_store(part, writes + row + j, back * mild_load(bf16, part, a->b, x + j, lanes), lanes);
            mild_store(part, writes + second + j, back * mild_load(bf16, part, a->k, y + j, lanes), lanes);
            mild_store(part, P + i * K + j, p[k], lanes);
            mild_store(part, inverse + i * K + j, back, lanes);
        }
    }
    UNROLL for (int k = 0; k < vectors; k++) mild_store(part, w->gk.end + at + k * LNT_VL, v_exp(sum[k]), lanes);
}

INLINE void mild_stacks(bool bf16, bool with_q, work *w, lnt_rows c)
{
    int j = 0;
    for (; j + SIDE_BY_SIDE * LNT_VL <= w->K; j += SIDE_BY_SIDE * LNT_VL) mild_columns(bf16, with_q, SIDE_BY_SIDE, false, LNT_VL, w, c, j);
    for (; j + LNT_VL <= w->K; j += LNT_VL) mild_columns(bf16, with_q, 1, false, LNT_VL, w, c, j);
    if (j < w->K) mild_columns(bf16, with_q, 1, true, w->K - j, w, c, j);
}

/* Rows behind the last token, of both kinds. */
static void mild_clear(const work *w, int n, float *x, int64_t width)
{
    const int64_t used = n % BLOCK, size = (int64_t)sizeof *x * (BLOCK - used) * width;
    float *block = x + (int64_t)(w->m - PAIR) * width;
    if (!used) return;
    memset(block + used * width, 0, (size_t)size);
    memset(block + (BLOCK + used) * width, 0, (size_t)size);
}

/* Pairs of one and the same tokens: a reads what came before its token, q what its own wrote, too. */
static void mild_tidy(const work *w, float *pairs, float ab, bool with_q)
{
    const int64_t L = w->m;
    for (int r = 0; r < w->m; r += PAIR)
        for (int i = 0; i < BLOCK; i++) {
            float *a = pairs + (r + i) * L + r, *q = a + BLOCK * L;
            mild_mask(a, i, BLOCK, ab);
            mild_mask(a + BLOCK, i, BLOCK, 1.0f);
            if (!with_q) continue;
            mild_mask(q, i + 1, BLOCK, 1.0f);
            mild_mask(q + BLOCK, i + 1, BLOCK, 1.0f);
        }
}

/* A chunk's stacks and their pairs [L,L]; false where its gates are not mild. */
static bool mild_front(work *w, lnt_rows c, bool with_q)
{
    const int64_t K = w->K, L = w->m = mild_rows(c.n);
    const bool bf16 = w->a->dtype == LINNET_BF16;
    if (bf16 && with_q)
        mild_stacks(true, true, w, c);
    else if (bf16)
        mild_stacks(true, false, w, c);
    else if (with_q)
        mild_stacks(false, true, w, c);
    else
        mild_stacks(false, false, w, c);
    if (!mild_all(w->gk.end, w->K)) return false;
    mild_clear(w, c.n, w->read, K);
    mild_clear(w, c.n, w->write, K);
    LNT_V(lnt_transpose)((int)L, w->K, w->write, K, w->turned, L);
    for (int r = 0; r < L; r += PAIR)
        LNT_V(lnt_mm)(LNT_MM_SET, with_q ? PAIR : BLOCK, r + PAIR, w->K, w->read + r * K, K, 1, w->turned, L, w->pairs + r * L, L);
    mild_tidy(w, w->pairs, -1.0f, with_q);
    return true;
}

/* P_n, by products as P is: between a write and the end there are as many of its roundings as rows. A state decays by the exponential of the gates'
 * sum. */
static const float *mild_end(const work *w, int64_t n) { return w->gk.from_start + (n - 1) * w->K; }

/* Panel p of the writes, u [L,width], o beside it, and the state behind the chunk. */
static void mild_writes(work *w, lnt_rows c, int p, bool with_q, bool update)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, L = w->m;
    const int width = w->width, heads = a->Hv * w->panels, head = w->at->h * w->panels + p;
    float *S = w->S + (int64_t)p * K * width, *o = w->x;
    for (int r = 0; r < L; r += PAIR) {
        const int first = r / 2, n = c.n - first < BLOCK ? c.n - first : BLOCK;
        float *P = w->u + (int64_t)r * width, *v = P + BLOCK * width;
        const float *of_a = w->pairs + r * L, *of_q = of_a + BLOCK * L, *reads = w->read + r * K;
        rows_in(v, a->v, a->dtype, c.first + first, n, heads, head, width);
        memset(v + n * width, 0, sizeof *v * (size_t)((BLOCK - n) * width));
        LNT_V(lnt_mm)(LNT_MM_SET, BLOCK, width, w->K, reads, K, 1, S, width, P, width);
        if (r) LNT_V(lnt_mm)(LNT_MM_ADD, BLOCK, width, r, of_a, L, 1, w->u, width, P, width);
        LNT_V(lnt_mm)(LNT_MM_ADD, BLOCK, width, BLOCK, of_a + r + BLOCK, L, 1, v, width, P, width);
        LNT_V(lnt_chunk_solve)(false, BLOCK, width, of_a + r, L, P, width);
        if (!with_q) continue;
        LNT_V(lnt_mm)(LNT_MM_SET, n, width, w->K, reads + BLOCK * K, K, 1, S, width, o, width);
        LNT_V(lnt_mm)(LNT_MM_ADD, n, width, r + PAIR, of_q, L, 1, w->u, width, o, width);
        rows_out(a->o, a->dtype, c.first + first, n, heads, head, width, o);
    }
    if (update) LNT_V(lnt_mm_scaled_both)(w->gk.end, mild_end(w, c.n), w->K, width, (int)L, w->write, 1, K, w->u, width, S, width);
}

/* Forward again: a state is kept transposed, and u, too. */
static void mild_sweep(work *w, lnt_rows c, int64_t i, bool last)
{
    const int64_t K = w->K, V = w->V, L = w->m;
    const int width = w->width;
    float *start = (float *)(w->starts + (size_t)i * w->e->kept_bytes(w->K, w->V)), *u = w->p + i * w->L * V;
    for (int p = 0; p < w->panels; p++) {
        LNT_V(lnt_transpose)(w->K, width, w->S + p * K * width, width, start + p * width * K, K);
        mild_writes(w, c, p, false, !last);
        LNT_V(lnt_transpose)((int)L, width, w->u, width, u + p * width * L, L);
    }
}

/* d = [dR; dO], the last block first, and dV:  (I - A_ab)^T dR = (b / P) dS'' + what later rows have read of p. */
static void mild_values(work *w, lnt_rows c)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, L = w->m;
    const int V = w->V;
    float *dv = w->y;
    for (int r = (int)L - PAIR; r >= 0; r -= PAIR) {
        const int first = r / 2, n = c.n - first < BLOCK ? c.n - first : BLOCK, behind = r + PAIR;
        float *dR = w->d + (int64_t)r * V, *dO = dR + BLOCK * V;
        const float *writes = w->write + r * K, *of_a = w->pairs + r * L + r, *of_q = of_a + BLOCK * L, *later = w->pairs + behind * L + r;
        const float *rest = w->d + (int64_t)behind * V;
        rows_in(dO, a->do_, a->dtype, c.first + first, n, a->Hv, w->at->h, V);
        memset(dO + n * V, 0, sizeof *dO * (size_t)((BLOCK - n) * V));
        LNT_V(lnt_mm)(LNT_MM_SET, BLOCK, V, w->K, writes, K, 1, w->grad_end, V, dR, V);
        LNT_V(lnt_mm)(LNT_MM_SET, n, V, w->K, writes + BLOCK * K, K, 1, w->grad_end, V, dv, V);
        if (behind < L) {
            LNT_V(lnt_mm)(LNT_MM_ADD, BLOCK, V, (int)L - behind, later, 1, L, rest, V, dR, V);
            LNT_V(lnt_mm)(LNT_MM_ADD, n, V, (int)L - behind, later + BLOCK, 1, L, rest, V, dv, V);
        }
        LNT_V(lnt_mm)(LNT_MM_ADD, BLOCK, V, BLOCK, of_q, 1, L, dO, V, dR, V);
        LNT_V(lnt_chunk_solve)(true, BLOCK, V, of_a, L, dR, V);
        LNT_V(lnt_mm)(LNT_MM_ADD, n, V, PAIR, of_a + BLOCK, 1, L, dR, V, dv, V); /* of a's rows and q's, dR and dO */
        rows_out(a->dv, a->dtype, c.first + first, n, a->Hv, w->at->h, V, dv);
    }
}

/* The rows' sums of <S', dS'>, of what S' is made of: the state (turned) with dS'' (turned), and writers with Y of the state. */
INLINE void mild_sums(int vectors, bool part, int lanes, work *w, const float *start, const float *grad, int at)
{
    const int64_t K = w->K, V = w->V, L = w->m;
    const float *write = w->write + at, *dwrite = w->dwrite + at;
    vf sum[SIDE_BY_SIDE];
    UNROLL for (int k = 0; k < vectors; k++) sum[k] = v_zero();
    for (int64_t i = 0; i < V; i++)
        UNROLL for (int k = 0; k < vectors; k++) {
            const int64_t j = i * K + at + k * LNT_VL;
            sum[k] += mild_load(false, part, start, j, lanes) * mild_load(false, part, grad, j, lanes);
        }
    for (int64_t i = 0; i < L; i++)
        UNROLL for (int k = 0; k < vectors; k++) {
            const int64_t j = i * K + k * LNT_VL;
            sum[k] += mild_load(false, part, write, j, lanes) * mild_load(false, part, dwrite, j, lanes);
        }
    UNROLL for (int k = 0; k < vectors; k++) mild_store(part, w->last + at + k * LNT_VL, sum[k], lanes);
}

/* Gradients of rows in place of X and Y, and of gates. */
INLINE void mild_rows_back(int vectors, bool part, int lanes, work *w, lnt_rows c, int at)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K;
    const float *P = w->gk.from_start + at, *inverse = w->gk.to_end + at, *read = w->read + at, *write = w->write + at;
    float *dread = w->dread + at, *dwrite = w->dwrite + at;
    const vf scale = v_set((float)a->scale);
    float *dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + w->at->h) * K + at : NULL;
    const bool past = dg && !part && rows_past(dg, LINNET_F32, K);
    vf sum[SIDE_BY_SIDE], behind[SIDE_BY_SIDE], p[SIDE_BY_SIDE];
    UNROLL for (int k = 0; k < vectors; k++) {
        sum[k] = mild_load(false, part, w->last, at + k * LNT_VL, lanes);
        behind[k] = v_zero(); /* what a's next row has read */
        p[k] = mild_load(false, part, P, (c.n - 1) * K + k * LNT_VL, lanes);
    }
    for (int64_t i = c.n - 1; i >= 0; i--) {
        UNROLL for (int k = 0; k < vectors; k++) {
            const int64_t j = k * LNT_VL, row = mild_row(i) * K + j, second = row + BLOCK * K;
            const vf da = mild_load(false, part, dread, row, lanes), dq = mild_load(false, part, dread, second, lanes);
            const vf db = mild_load(false, part, dwrite, row, lanes), dk = mild_load(false, part, dwrite, second, lanes);
            const vf back = mild_load(false, part, inverse, i * K + j, lanes);
            const vf before = i ? mild_load(false, part, P, (i - 1) * K + j, lanes) : v_set(1.0f);
            sum[k] += behind[k] + mild_load(false, part, read, second, lanes) * dq;
            sum[k] -= mild_load(false, part, write, row, lanes) * db + mild_load(false, part, write, second, lanes) * dk;
            behind[k] = mild_load(false, part, read, row, lanes) * da;
            if (past)
                v_stream(dg + i * a->Hv * K + j, sum[k]);
            else if (dg)
                mild_store(part, dg + i * a->Hv * K + j, sum[k], lanes);
            mild_store(part, dread + row, before * da, lanes);
            mild_store(part, dread + second, scale * p[k] * dq, lanes);
            mild_store(part, dwrite + row, back * db, lanes);
            mild_store(part, dwrite + second, back * dk, lanes);
            p[k] = before;
        }
    }
}

/* A gradient of q or k, rows of a stack. */
static void mild_put_shared(const work *w, lnt_rows c, const float *rows, void *out, float *sum)
{
    for (int first = 0; first < c.n; first += BLOCK) {
        const lnt_rows part = { .first = c.first + first, .row = c.row + first, .n = c.n - first < BLOCK ? c.n - first : BLOCK };
        put_shared(w->at, part, rows + (int64_t)(2 * first + BLOCK) * w->K, out, sum);
    }
}

/* Of a or b. */
static void mild_put(const work *w, lnt_rows c, const float *rows, void *out)
{
    for (int first = 0; first < c.n; first += BLOCK) {
        const int n = c.n - first < BLOCK ? c.n - first : BLOCK;
        rows_out(out, w->a->dtype, c.first + first, n, w->a->Hv, w->at->h, w->K, rows + (int64_t)(2 * first) * w->K);
    }
}

/* Behind mild_front: all gradients of the chunk, and dS of in front of it. */
static void mild_back(work *w, lnt_rows c, int64_t index)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, V = w->V, L = w->m;
    /* both transposed */
    const float *start = (const float *)(w->starts + (size_t)index * w->e->kept_bytes(w->K, w->V)), *u = w->p + index * w->L * V;
    float *grad = w->dS_t_forms;
    if (index) { /* of the chunk that comes next */
        rows_ahead(start - w->e->kept_bytes(w->K, w->V) / sizeof *start, LINNET_F32, 0, V, 1, 0, K);
        rows_ahead(u - w->L * V, LINNET_F32, 0, V, 1, 0, mild_rows(w->C));
    }
    rows_scaled(K, V, 1.0f, mild_end(w, c.n), w->dS, w->grad_end);
    LNT_V(lnt_transpose)(w->K, w->V, w->grad_end, V, grad, K);
    mild_values(w, c);

    /* Y of the state, and the rows' sums of <S', dS'> */
    LNT_V(lnt_mm)(LNT_MM_SET, (int)L, w->K, w->V, u, 1, L, grad, K, w->dwrite, K);
    int j = 0;
    for (; a->dgk && j + SIDE_BY_SIDE * LNT_VL <= K; j += SIDE_BY_SIDE * LNT_VL) mild_sums(SIDE_BY_SIDE, false, LNT_VL, w, start, grad, j);
    for (; a->dgk && j + LNT_VL <= K; j += LNT_VL) mild_sums(1, false, LNT_VL, w, start, grad, j);
    if (a->dgk && j < K) mild_sums(1, true, (int)K - j, w, start, grad, j);

    /* D, X and the rest of Y */
    for (int r = 0; r < L; r += PAIR) LNT_V(lnt_mm)(LNT_MM_SET, PAIR, r + PAIR, w->V, w->d + r * V, V, 1, u, L, w->dpairs + r * L, L);
    mild_tidy(w, w->dpairs, 1.0f, true);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)L, w->K, w->V, w->d, V, 1, start, K, w->dread, K);
    for (int r = 0; r < L; r += PAIR) {
        LNT_V(lnt_mm)(LNT_MM_ADD, PAIR, w->K, r + PAIR, w->dpairs + r * L, L, 1, w->write, K, w->dread + r * K, K);
        LNT_V(lnt_mm)(LNT_MM_ADD, PAIR, w->K, (int)L - r, w->dpairs + r * L + r, 1, L, w->read + r * K, K, w->dwrite + r * K, K);
    }
    LNT_V(lnt_mm_scaled)(w->gk.end, 1, w->K, w->V, (int)L, w->read, 1, K, w->d, V, w->dS, V);

    for (j = 0; j + SIDE_BY_SIDE * LNT_VL <= K; j += SIDE_BY_SIDE * LNT_VL) mild_rows_back(SIDE_BY_SIDE, false, LNT_VL, w, c, j);
    for (; j + LNT_VL <= K; j += LNT_VL) mild_rows_back(1, false, LNT_VL, w, c, j);
    if (j < K) mild_rows_back(1, true, (int)K - j, w, c, j);
    mild_put(w, c, w->dread, a->da);
    mild_put(w, c, w->dwrite, a->db);
    mild_put_shared(w, c, w->dread, a->dq, w->dq);
    mild_put_shared(w, c, w->dwrite, a->dk, w->dk);
}
#endif
