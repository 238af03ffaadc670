/* The untied delta rule in chunk form, forward and backward (operators.md#untied). Written once in products; an engine (simd/mm.h) runs them in
 * float32 or, for bf16 tensors, through bf16 tiles.
 *
 * Two kinds of rows read, a before its token's decay and q behind it; two are written, b and k, with p = S_{t-1}^T a and v as values. Both kinds of a
 * sort stand in one stack: a (b, p) at rows 0..n-1, q times the scale (k, v) at m..m+n-1, zeros between, of which there is one row at least. A row of
 * a meets what row i-1 has left, so that a_{i+1} reads what q_i reads: from row 1 on, and with the row of zeros as its last, a's part of the stack is
 * a reader like q, and everything of chunk/chunk_vector.h holds for both.
 *
 * The pairs of all readers with all writers are one matrix: a's rows over q's, b's columns beside k's. */
#include "recurrence/delta/dplr_work.h"
#if defined(__AMX_BF16__)
#include "recurrence/delta/dplr_mild_amx.h"
#else
#include "recurrence/delta/dplr_mild.h"
#endif

static int stacked(const lnt_mm_engine *e, int n) { return (n + e->row_align) / e->row_align * e->row_align; } /* n rows and one of zeros */

/* Lay a thread's scratch out; base = NULL measures. */
static size_t carve(work *w, const lnt_recur_args *a, const lnt_mm_engine *e, int C, bool backward, char *base)
{
    lnt_carve c = { base, 0 };
    const int64_t K = a->K, V = a->V, longest = a->longest;
    C = chunk_length(a, C);
    const int both = stacked(e, C) + C, rows = both > mild_rows(C) ? both : mild_rows(C);
    const int64_t L = rows, chunks = (longest + C - 1) / C;
    *w = (work){ .a = a, .e = e, .C = C, .K = a->K, .V = a->V, .L = rows };
    w->width = a->V % e->panel ? a->V : e->panel;
    w->panels = a->V / w->width;
    w->gk = LNT_V(lnt_vector_carve)(&c, e, C, a->K);
#if defined(__AMX_BF16__)
    w->tiled = lnt_vector_is_tiled(C, a->K);
    w->mild = w->tiled && w->width == 32;
    w->pairs16 = lnt_carve_bytes(&c, e->bytes(rows, rows, LNT_LEFT));
    w->solved = lnt_carve_floats(&c, (int64_t)rows / 2 * BLOCK);
#endif
    float **const stack[] = { &w->read, &w->write, &w->reads, &w->writes };
    for (int i = 0; !w->tiled && i < 4; i++) *stack[i] = lnt_carve_floats(&c, L * K);
    if (w->tiled) {
        w->reads16 = lnt_carve_bytes(&c, (size_t)((L + 16) * K) * sizeof *w->reads16);
        w->writes16 = lnt_carve_bytes(&c, (size_t)((L + 16) * K) * sizeof *w->writes16);
    }
    w->pairs = lnt_carve_floats(&c, L * L);
    w->x = lnt_carve_floats(&c, L * V);
    w->u = lnt_carve_floats(&c, L * V);
    w->S = lnt_carve_floats(&c, K * V);
#if !defined(__AMX_BF16__)
    w->turned = lnt_carve_floats(&c, K * L);
#endif
    w->reads_forms = lnt_carve_bytes(&c, e->bytes(rows, a->K, LNT_LEFT_T | LNT_RIGHT_T));
    w->writes_forms = lnt_carve_bytes(&c, e->bytes(rows, a->K, LNT_LEFT_T | LNT_RIGHT_T));
    w->a_forms = lnt_carve_bytes(&c, e->bytes(C, C, LNT_LEFT | LNT_LEFT_T));
    w->q_forms = lnt_carve_bytes(&c, e->bytes(C, rows, LNT_LEFT | LNT_LEFT_T));
    w->v_forms = lnt_carve_bytes(&c, e->bytes(C, a->V, LNT_RIGHT));
    w->u_forms = lnt_carve_bytes(&c, e->bytes(rows, a->V, LNT_LEFT | LNT_RIGHT | LNT_RIGHT_T));
    w->S_forms = lnt_carve_bytes(&c, (size_t)w->panels * e->bytes(a->K, w->width, LNT_RIGHT));
    w->state = lnt_carve_bytes(&c, (size_t)w->panels * sizeof *w->state);
    if (!backward) return c.used;
    for (int i = 0; w->tiled && i < 2; i++) w->strips[i] = lnt_carve_floats(&c, L * 32);
#if defined(__AMX_BF16__)
    w->pairs16_t = lnt_carve_bytes(&c, e->bytes(rows, rows, LNT_LEFT_T));
    w->P = lnt_carve_floats(&c, C * K);
    w->grads = lnt_carve_bytes(&c, (size_t)w->panels * sizeof *w->grads);
#endif
    w->starts = lnt_carve_bytes(&c, (size_t)(chunks + 1) * e->kept_bytes(a->K, a->V));
    w->p = lnt_carve_floats(&c, chunks * L * V);
    w->y = lnt_carve_floats(&c, L * V);
    w->d = lnt_carve_floats(&c, L * V);
    w->dpairs = lnt_carve_floats(&c, L * L);
    w->dread = lnt_carve_floats(&c, L * K);
    w->dwrite = lnt_carve_floats(&c, L * K);
    w->dwrite_pairs = lnt_carve_floats(&c, L * K);
    w->inside = lnt_carve_floats(&c, C * K);
    w->through = lnt_carve_floats(&c, C * K);
    w->dS = lnt_carve_floats(&c, K * V);
    w->last = lnt_carve_floats(&c, K);
#if !defined(__AMX_BF16__)
    w->grad_end = lnt_carve_floats(&c, K * V);
#endif
    if (a->Hv > a->Hq) {
        w->dq = lnt_carve_floats(&c, longest * K);
        w->dk = lnt_carve_floats(&c, longest * K);
    }
    w->d_forms = lnt_carve_bytes(&c, e->bytes(rows, a->V, LNT_LEFT | LNT_RIGHT));
    w->dR_forms = lnt_carve_bytes(&c, e->bytes(C, a->V, LNT_RIGHT));
    w->do_forms = lnt_carve_bytes(&c, e->bytes(C, a->V, LNT_RIGHT));
    w->dS_forms = lnt_carve_bytes(&c, e->bytes(a->K, a->V, LNT_RIGHT));
    w->dS_t_forms = lnt_carve_bytes(&c, e->bytes(a->K, a->V, LNT_RIGHT_T));
    for (int i = 0; i < 2; i++) w->start_forms[i] = lnt_carve_bytes(&c, e->bytes(a->K, a->V, LNT_RIGHT_T));
    return c.used;
}

/* Rows n..m-1 of a stack. */
static void clear_gap(const work *w, int n, float *x, int64_t width) { memset(x + n * width, 0, (size_t)((w->m - n) * width) * sizeof *x); }

/* The next chunk's rows. */
static void ahead(const work *w, lnt_rows c)
{
    const lnt_recur_args *a = w->a;
    rows_ahead(a->a, a->dtype, c.next, c.next_n, a->Hv, w->at->h, w->K);
    rows_ahead(a->b, a->dtype, c.next, c.next_n, a->Hv, w->at->h, w->K);
    key_ahead(w->at, c, a->k);
    value_ahead(w->at, c, a->v);
    float_ahead(w->at, c, a->gk, w->K);
}

#if defined(__AMX_BF16__)
/* Pairs, and what meets states, on tiles, straight from the tensors. */
static void tiled_front(work *w, lnt_rows c, bool with_q, float *const with_b[2], float *const with_k[2], int reads_forms, int writes_forms,
                        lnt_operand *reads, lnt_operand *writes)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, n = c.n, m = w->m, own = a->Hv * K, shared = a->Hq * K;
    const int64_t at = c.first * own + w->at->h * K, shared_at = c.first * shared + w->at->hq * K;
    const lnt_bf16 *first = (const lnt_bf16 *)a->a + at;
    w->front = (lnt_vector_front){ .n = c.n, .readers = with_q ? 2 : 1, .writers = 2, .g = (const float *)a->gk + at, .stride = own,
                                 .read = { { first + own, own, n - 1 }, { with_q ? (const lnt_bf16 *)a->q + shared_at : NULL, shared, n } },
                                 .write = { { (const lnt_bf16 *)a->b + at, own, n }, { (const lnt_bf16 *)a->k + shared_at, shared, n } },
                                 .f_pairs = { 1, (float)a->scale }, .f_reads = { 1, (float)a->scale },
                                 .pairs = { { with_b[0], with_k[0] }, { with_b[1], with_k[1] } }, .ld = w->L,
                                 .reads = { w->reads16 + K, w->reads16 + m * K }, .writes = { w->writes16, w->writes16 + m * K },
                                 .end = w->gk.end, .back = writes_forms & LNT_LEFT };
    LNT_V(lnt_vector_front_tiled)(&w->gk, &w->front);
    memcpy(w->reads16, first, (size_t)K * sizeof *first);
    memset(w->reads16 + n * K, 0, (size_t)((m - n) * K) * sizeof *first);
    memset(w->writes16 + n * K, 0, (size_t)((m - n) * K) * sizeof *first);
    *reads = (lnt_operand){ .rows = (int)((with_q ? m : 0) + n), .cols = w->K, .left = { w->reads16, K } };
    *writes = (lnt_operand){ .rows = (int)(m + n), .cols = w->K, .left = { w->writes16, K } };
    w->e->extend(reads, reads_forms & LNT_LEFT_T, w->reads_forms);
    w->e->extend(writes, writes_forms & LNT_LEFT_T, w->writes_forms);
}
#endif

/* A chunk's readers and writers, their pairs, with those of a and b negated as the solve wants them, and what meets states, as operands. */
static void front(work *w, lnt_rows c, bool with_q, int reads_forms, int writes_forms, lnt_operand *reads, lnt_operand *writes)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, L = w->L, size = c.n * K, m = w->m = stacked(w->e, c.n);
    float *q = w->read + m * K, *k = w->write + m * K;
    const float *gk = (const float *)a->gk + (c.first * a->Hv + w->at->h) * K;
    if (!w->tiled) { /* in float32 */
        rows_in(w->read, a->a, a->dtype, c.first, c.n, a->Hv, w->at->h, K);
        rows_in(w->write, a->b, a->dtype, c.first, c.n, a->Hv, w->at->h, K);
        rows_in(k, a->k, a->dtype, c.first, c.n, a->Hq, w->at->hq, K);
        if (with_q) {
            rows_in(q, a->q, a->dtype, c.first, c.n, a->Hq, w->at->hq, K);
            row_scale(q, (float)a->scale, size);
        }
        float *const stack[] = { w->read, w->write, w->reads, w->writes };
        for (int i = 0; i < 4; i++) clear_gap(w, c.n, stack[i], K);
        LNT_V(lnt_vector_load)(&w->gk, c.n, gk, a->Hv * K, false);
    }

    const float *readers[2] = { w->read + K, q };
    float *with_b[2] = { w->pairs + L, w->pairs + m * L }, *with_k[2] = { with_b[0] + m, with_b[1] + m };
#if defined(__AMX_BF16__)
    if (w->tiled) tiled_front(w, c, with_q, with_b, with_k, reads_forms, writes_forms, reads, writes);
#endif
    if (!w->tiled) {
        LNT_V(lnt_vector_pairs)(&w->gk, c.n, 1.0f, with_q ? 2 : 1, readers, w->write, with_b, L);
        LNT_V(lnt_vector_pairs)(&w->gk, c.n, 1.0f, with_q ? 2 : 1, readers, k, with_k, L);
    }
    memset(w->pairs, 0, (size_t)(m + c.n) * sizeof *w->pairs);
    for (int64_t i = 1; i < c.n; i++) row_scale(w->pairs + i * L, -1.0f, i);
    for (int64_t i = 0; with_q && i < c.n; i++) memset(with_b[1] + i * L + c.n, 0, (size_t)(m - c.n) * sizeof *w->pairs);

    if (w->tiled) return;
    memcpy(w->reads, w->read, (size_t)K * sizeof *w->reads);
    row_times(size - K, 1.0f, w->gk.from_start, w->read + K, w->reads + K);
    if (with_q) row_times(size, 1.0f, w->gk.from_start, q, w->reads + m * K);
    row_times(size, 1.0f, w->gk.to_end, w->write, w->writes);
    row_times(size, 1.0f, w->gk.to_end, k, w->writes + m * K);
    *reads = w->e->prepare(reads_forms, (int)(with_q ? m : 0) + c.n, w->K, w->reads, K, w->reads_forms);
    *writes = w->e->prepare(writes_forms, (int)m + c.n, w->K, w->writes, K, w->writes_forms);
}

/* The pairs of a's rows with k's columns, and of q's rows with all. */
static lnt_operand pairs_of_a(const work *w, int n, int forms) { return w->e->prepare(forms, n, n, w->pairs + w->m, w->L, w->a_forms); }
static lnt_operand pairs_of_q(const work *w, int n, int forms)
{
    return w->e->prepare(forms, n, w->m + n, w->pairs + (int64_t)w->m * w->L, w->L, w->q_forms);
}

/* Panel p of a chunk's writes: v into u's lower rows, and  (I - A_ab) P = (e.a) S + A_ak V  into its upper; then u as an operand. With `reads` of q
 * too, their products with the state are left in x's lower rows. */
static lnt_operand solve_writes(work *w, lnt_rows c, int p, const lnt_operand *reads, const lnt_operand *ak)
{
    const lnt_recur_args *a = w->a;
    const int width = w->width, heads = a->Hv * w->panels, head = w->at->h * w->panels; /* panels of V as if they were heads */
    float *v = w->u + (int64_t)w->m * width;
    rows_in(v, a->v, a->dtype, c.first, c.n, heads, head + p, width);
    w->e->multiply(LNT_MM_SET, NULL, reads, false, &w->state[p], false, w->x, width);
    const lnt_operand values = w->e->prepare(LNT_RIGHT, c.n, width, v, width, w->v_forms);
    w->e->multiply(LNT_MM_ADD, NULL, ak, false, &values, false, w->x, width);
    LNT_V(lnt_chunk_solve)(false, c.n, width, w->pairs, w->L, w->x, width);
    memcpy(w->u, w->x, (size_t)(c.n * width) * sizeof *w->u);
    clear_gap(w, c.n, w->u, width);
    return w->e->prepare(LNT_RIGHT, w->m + c.n, width, w->u, width, w->u_forms);
}

static void forward_chunk(work *w, lnt_rows c)
{
    const lnt_recur_args *a = w->a;
    const int width = w->width, heads = a->Hv * w->panels, head = w->at->h * w->panels;
    lnt_operand reads, writes;
    rows_ahead_out(a->o, a->dtype, c.first, c.n, a->Hv, w->at->h, w->V);
#if defined(__AMX_BF16__)
    if (mild_forward(w, c)) return;
#else
    if (mild_front(w, c, true)) {
        ahead(w, c);
        key_ahead(w->at, c, a->q);
        for (int p = 0; p < w->panels; p++) mild_writes(w, c, p, true, true);
        return;
    }
#endif
    front(w, c, true, LNT_LEFT, LNT_LEFT_T, &reads, &writes);
    const lnt_operand ak = pairs_of_a(w, c.n, LNT_LEFT), q = pairs_of_q(w, c.n, LNT_LEFT);
    ahead(w, c);
    key_ahead(w->at, c, a->q);
    float *o = w->x + (int64_t)w->m * width;
    for (int p = 0; p < w->panels; p++) {
        const lnt_operand u = solve_writes(w, c, p, &reads, &ak);
        w->e->multiply(LNT_MM_ADD, NULL, &q, false, &u, false, o, width);
        rows_out(a->o, a->dtype, c.first, c.n, heads, head + p, width, o);
        w->e->update(w->gk.end, 1, &writes, true, &u, false, &w->state[p]);
    }
}

/* s0 (zeros without) into panels, and back. */
static void state_in(work *w, int64_t index)
{
    const float *s0 = w->a->s0;
    const int64_t size = (int64_t)w->K * w->V;
    for (int p = 0; p < w->panels; p++) {
        float *S = w->S + (int64_t)p * w->K * w->width;
        rows_in(S, s0 ? s0 + index * size : NULL, LINNET_F32, 0, w->K, w->panels, p, w->width);
        w->state[p] = w->e->prepare(LNT_RIGHT, w->K, w->width, S, w->width, (char *)w->S_forms + (size_t)p * w->e->bytes(w->K, w->width, LNT_RIGHT));
    }
}

static void state_out(work *w, int64_t index)
{
    float *sT = w->a->sT;
    const int64_t size = (int64_t)w->K * w->V;
    for (int p = 0; sT && p < w->panels; p++)
        rows_out(sT + index * size, LINNET_F32, 0, w->K, w->panels, p, w->width, w->S + (int64_t)p * w->K * w->width);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------- */

/* The state in front of chunk i, or behind all, put by. */
static void keep_state(const work *w, int64_t i)
{
    for (int p = 0; p < w->panels; p++) w->e->keep(&w->state[p], p * w->width, w->V, w->starts + (size_t)i * w->e->kept_bytes(w->K, w->V));
}

/* Forward again, keeping the state at every chunk's start and P. */
static void sweep_chunk(work *w, lnt_rows c, int64_t i, bool last)
{
    const int64_t width = w->width;
    lnt_operand reads, writes;
#if defined(__AMX_BF16__)
    keep_state(w, i);
    if (mild_sweep(w, c, i)) return;
#else
    if (mild_front(w, c, false)) {
        ahead(w, c);
        mild_sweep(w, c, i, last);
        return;
    }
    keep_state(w, i);
#endif
    front(w, c, false, LNT_LEFT, LNT_LEFT_T, &reads, &writes);
    const lnt_operand ak = pairs_of_a(w, c.n, LNT_LEFT);
    ahead(w, c);
    for (int p = 0; p < w->panels; p++) {
        const lnt_operand u = solve_writes(w, c, p, &reads, &ak);
        float *P = w->p + i * w->L * w->V + p * width;
        for (int64_t r = 0; r < c.n; r++) memcpy(P + r * w->V, w->u + r * width, (size_t)width * sizeof *P);
        if (!last) w->e->update(w->gk.end, 1, &writes, true, &u, false, &w->state[p]);
    }
}

/* y = [dR; dV]: dP over dV without dR's part is  l.(W dS') + A_q^T dO,  then  (I - A_ab)^T dR = dP  and  dV += A_ak^T dR.  dR and dO become the
 * stack d. */
static void value_gradients(work *w, lnt_rows c, const lnt_operand *writes)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    const int64_t V = w->V, m = w->m;
    float *dO = w->d + m * V;
    rows_in(dO, a->do_, a->dtype, c.first, c.n, a->Hv, w->at->h, V);
    e->multiply(LNT_MM_SET, NULL, writes, false, &w->grad, false, w->y, V);
    const lnt_operand q = pairs_of_q(w, c.n, LNT_LEFT_T), right = e->prepare(LNT_RIGHT, c.n, w->V, dO, V, w->do_forms);
    e->multiply(LNT_MM_ADD, NULL, &q, true, &right, false, w->y, V);
    LNT_V(lnt_chunk_solve)(true, c.n, w->V, w->pairs, w->L, w->y, V);
    const lnt_operand ak = pairs_of_a(w, c.n, LNT_LEFT_T), dR = e->prepare(LNT_RIGHT, c.n, w->V, w->y, V, w->dR_forms);
    e->multiply(LNT_MM_ADD, NULL, &ak, true, &dR, false, w->y + m * V, V);
    rows_out(a->dv, a->dtype, c.first, c.n, a->Hv, w->at->h, V, w->y + m * V);
    memcpy(w->d, w->y, (size_t)(c.n * V) * sizeof *w->d);
    clear_gap(w, c.n, w->d, V);
}

/* dgk, of what has not met a diagonal yet (chunk/README.md). */
static void gate_gradient(work *w, lnt_rows c, const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, size = c.n * K, q = w->m * K;
    if (!a->dgk) return;
    w->e->inner_rows(S, w->dS, w->last);
    row_mul(w->last, w->gk.end, K);
    row_times(size, 1.0f, w->write, w->dwrite, w->through);
    row_add_times(size, 1.0f, w->write + q, w->dwrite + q, w->through);
    row_times(size, 1.0f, w->read + K, w->dread + K, w->inside);
    row_add_times(size, 1.0f, w->read + q, w->dread + q, w->inside);
    row_add_times(size, -1.0f, w->write, w->dwrite_pairs, w->inside);
    row_add_times(size, -1.0f, w->write + q, w->dwrite_pairs + q, w->inside);
    LNT_V(lnt_vector_gate_grad)(&w->gk, w->last, w->through, w->inside, (float *)a->dgk + (c.first * a->Hv + w->at->h) * K, a->Hv * K);
}

/* Into dread and dwrite, which hold what came through states: what comes from pairs. */
static void pair_gradients(work *w, lnt_rows c, const lnt_operand *S)
{
    const int64_t K = w->K, L = w->L, m = w->m, q = m * K;
    const float *readers[2] = { w->read + K, w->read + q };
    const int next = c.n - 1; /* a's rows from the second on */
    memset(w->dwrite_pairs, 0, (size_t)((m + c.n) * K) * sizeof *w->dwrite_pairs);
    for (int k = 0; k < 2; k++) { /* with b, with k */
        const float *both[2] = { w->dpairs + L + k * m, w->dpairs + m * L + k * m }, *y = w->write + k * q;
        float *out[2] = { w->dread + K, w->dread + q };
        LNT_V(lnt_vector_readers)(&w->gk, c.n, 2, both, L, y, out);
        for (int r = 0; r < 2; r++) LNT_V(lnt_vector_writers)(&w->gk, c.n, both[r], L, readers[r], w->dwrite_pairs + k * q);
    }
    gate_gradient(w, c, S);
    row_add(w->dwrite, 1.0f, w->dwrite_pairs, (m + c.n) * K);
    for (int k = 0; k < 2; k++) {
        const float *with_a = w->dpairs + L + k * m, *with_q = w->dpairs + m * L + k * m, *y = w->write + k * q;
        rows_add_diagonal(next, with_a, L, y, K, w->dread + K);
        rows_add_diagonal(c.n, with_q, L, y, K, w->dread + q);
        rows_add_diagonal(next, with_a, L, readers[0], K, w->dwrite + k * q);
        rows_add_diagonal(c.n, with_q, L, readers[1], K, w->dwrite + k * q);
    }
}

#if defined(__AMX_BF16__)
/* All gradients of readers, writers and gates on tiles, from the stacks d and u and from dpairs, 32 columns at a time. */
static void tiled_gradients(work *w, lnt_rows c, const lnt_operand *d, const lnt_operand *u, const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    const int64_t K = w->K, L = w->L, m = w->m;
    float *dread = w->strips[0], *dwrite = w->strips[1], *with_a = w->dpairs + L, *with_q = w->dpairs + m * L;
    const lnt_vector_back back = { .f = &w->front, .f_state = { 1, (float)a->scale }, .ld = L,
                                   .A = { { with_a, with_a + m }, { with_q, with_q + m } },
                                   .dread = { dread + 32, dread + m * 32 }, .dwrite = { dwrite, dwrite + m * 32 }, .last = a->dgk ? w->last : NULL,
                                   .dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + w->at->h) * K : NULL, .stride = (int64_t)a->Hv * K };
    for (int64_t i = 0; i < c.n; i++) row_scale(with_q + i * L, (float)a->scale, m + c.n);
    if (a->dgk) {
        w->e->inner_rows(S, w->dS, w->last);
        row_mul(w->last, w->gk.end, K);
    }
    LNT_V(lnt_vector_back_begin)(&w->gk, &back);
    for (int at = 0; at < K; at += 32) {
        const lnt_operand start = w->e->view(S, at, 32), grad = w->e->view(&w->grad, at, 32);
        w->e->multiply(LNT_MM_SET, NULL, d, false, &start, true, dread, 32);
        w->e->multiply(LNT_MM_SET, NULL, u, false, &grad, true, dwrite, 32);
        LNT_V(lnt_vector_back_columns)(&w->gk, &back, at);
        columns_out(c, a->Hv, w->at->h, K, at, dread, a->da, NULL);
        columns_out(c, a->Hv, w->at->h, K, at, dwrite, a->db, NULL);
        columns_out(c, a->Hq, w->at->hq, K, at, dread + m * 32, a->dq, w->dq ? w->dread : NULL);
        columns_out(c, a->Hq, w->at->hq, K, at, dwrite + m * 32, a->dk, w->dk ? w->dwrite : NULL);
    }
    if (w->dq) put_shared(w->at, c, w->dread, a->dq, w->dq);
    if (w->dk) put_shared(w->at, c, w->dwrite, a->dk, w->dk);
}
#endif

/* The same in float32. */
static void gradients(work *w, lnt_rows c, const lnt_operand *d, const lnt_operand *u, const lnt_operand *S)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    const int64_t K = w->K, size = c.n * K, q = w->m * K;
    e->multiply(LNT_MM_SET, NULL, d, false, S, true, w->dread, K);
    e->multiply(LNT_MM_SET, NULL, u, false, &w->grad, true, w->dwrite, K);
    row_times(size - K, 1.0f, w->gk.from_start, w->dread + K, w->dread + K);
    row_times(size, 1.0f, w->gk.from_start, w->dread + q, w->dread + q);
    row_times(size, 1.0f, w->gk.to_end, w->dwrite, w->dwrite);
    row_times(size, 1.0f, w->gk.to_end, w->dwrite + q, w->dwrite + q);
    pair_gradients(w, c, S);
    row_scale(w->dread + q, (float)a->scale, size);
    rows_out(a->da, a->dtype, c.first, c.n, a->Hv, w->at->h, K, w->dread);
    rows_out(a->db, a->dtype, c.first, c.n, a->Hv, w->at->h, K, w->dwrite);
    put_shared(w->at, c, w->dread + q, a->dq, w->dq);
    put_shared(w->at, c, w->dwrite + q, a->dk, w->dk);
}

/* A chunk's results but dv, then the next chunk's rows. */
static void results_ahead(const work *w, lnt_rows c)
{
    const lnt_recur_args *a = w->a;
    rows_ahead_out(a->da, a->dtype, c.first, c.n, a->Hv, w->at->h, w->K);
    rows_ahead_out(a->db, a->dtype, c.first, c.n, a->Hv, w->at->h, w->K);
    if (!w->dq) rows_ahead_out(a->dq, a->dtype, c.first, c.n, a->Hq, w->at->hq, w->K);
    if (!w->dk) rows_ahead_out(a->dk, a->dtype, c.first, c.n, a->Hq, w->at->hq, w->K);
    ahead(w, c);
    key_ahead(w->at, c, a->q);
    value_ahead(w->at, c, a->do_);
}

/* The state in front of chunk i, or behind all; two of them, one behind the other, are there at a time. */
static lnt_operand kept_state(const work *w, int64_t i)
{
    return w->e->kept(LNT_RIGHT_T, w->K, w->V, w->starts + (size_t)i * w->e->kept_bytes(w->K, w->V), w->start_forms[i % 2]);
}

static void backward_chunk(work *w, lnt_rows c, int64_t index)
{
    const lnt_recur_args *a = w->a;
    const lnt_mm_engine *e = w->e;
    const int64_t V = w->V;
    lnt_operand reads, writes;
    rows_ahead_out(a->dv, a->dtype, c.first, c.n, a->Hv, w->at->h, w->V);
#if defined(__AMX_BF16__)
    const lnt_operand end = w->end, S = w->end = kept_state(w, index);
    if (mild_back(w, c, index, &S, &end)) return;
    if (!w->grad.right.p) w->grad = e->prepare(LNT_RIGHT, w->K, w->V, w->dS, V, w->dS_forms);
#else
    if (mild_front(w, c, true)) {
        results_ahead(w, c);
        mild_back(w, c, index);
        return;
    }
    const lnt_operand S = kept_state(w, index);
#endif
    front(w, c, true, LNT_LEFT_T, LNT_LEFT, &reads, &writes);
    const int64_t m = w->m;
    const int rows = (int)m + c.n;
    e->extend(&w->grad, LNT_RIGHT_T, w->dS_t_forms);
    value_gradients(w, c, &writes);
    results_ahead(w, c);

    /* dpairs = [dR; dO] [P; V]^T. What lies above its diagonals nobody reads. */
    memcpy(w->u, w->p + index * w->L * V, (size_t)(c.n * V) * sizeof *w->u);
    clear_gap(w, c.n, w->u, V);
    rows_in(w->u + m * V, a->v, a->dtype, c.first, c.n, a->Hv, w->at->h, V);
    const lnt_operand d = e->prepare(LNT_LEFT | LNT_RIGHT, rows, w->V, w->d, V, w->d_forms);
    const lnt_operand u = e->prepare(LNT_LEFT | LNT_RIGHT_T, rows, w->V, w->u, V, w->u_forms);
    e->multiply(LNT_MM_SET, NULL, &d, false, &u, true, w->dpairs, w->L);

    /* [dA; dQ] = e.([dR; dO] S^T) and [dB; dK] = l.([P; V] dS'^T), and from pairs */
#if defined(__AMX_BF16__)
    if (w->tiled) tiled_gradients(w, c, &d, &u, &S);
#endif
    if (!w->tiled) gradients(w, c, &d, &u, &S);

    /* dS = e^{G_n} dS' + (e.[A; s Q])^T [dR; dO] */
    e->update(w->gk.end, 1, &reads, true, &d, false, &w->grad);
}

/* float32 products serve every variant up to avx512; the amx variant has tiles, for bf16 tensors. */
#if defined(__AMX_BF16__)
#define ENGINE LNT_V(lnt_mm_bf16_tiles)
#else
#define ENGINE LNT_V(lnt_mm_f32)
#endif

/* Without tiles one block of pairs while states stay in L1: by count a third less than two blocks, and in all a ninth (delta.md). */
static int length(const lnt_recur_args *a)
{
    if (a->chunk > 0) return a->chunk;
    return !ENGINE.bf16 && (int64_t)a->K * a->V <= 64 * 64 ? ENGINE.chunk / 2 : ENGINE.chunk;
}

static void forward_head(const lnt_head *x, char *base)
{
    work w;
    carve(&w, x->a, &ENGINE, length(x->a), false, base);
    w.at = x;
    const int64_t chunks = chunk_count(x, w.C);
    state_in(&w, x->index);
    for (int64_t i = 0; i < chunks; i++) forward_chunk(&w, chunk_at(x, w.C, i, 1));
    state_out(&w, x->index);
}

static void backward_head(const lnt_head *x, char *base)
{
    work w;
    carve(&w, x->a, &ENGINE, length(x->a), true, base);
    w.at = x;
    const int64_t size = (int64_t)w.K * w.V, chunks = chunk_count(x, w.C);
    state_in(&w, x->index);
    get_state(x, w.dS, x->a->dsT, size);
    w.grad = w.e->prepare(LNT_RIGHT, w.K, w.V, w.dS, w.V, w.dS_forms);
    for (int64_t i = 0; i < chunks; i++) sweep_chunk(&w, chunk_at(x, w.C, i, 1), i, i == chunks - 1 && !w.mild);
#if defined(__AMX_BF16__)
    keep_state(&w, chunks);
    w.end = kept_state(&w, chunks);
#endif
    for (int64_t i = chunks - 1; i >= 0; i--) backward_chunk(&w, chunk_at(x, w.C, i, -1), i);
    put_state(x, x->a->ds0, size, w.dS);
}

/* ---- implementations ------------------------------------------------------------------------------------------------------------- */

static size_t each_bytes(const lnt_recur_args *a, bool backward)
{
    work w;
    return carve(&w, a, &ENGINE, length(a), backward, NULL);
}

LNT_CHUNK_FORM(lnt_dplr_chunk, ENGINE)
