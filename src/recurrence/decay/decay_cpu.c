/* The decay core on the CPU: chunk form forward and backward (decay_step_cpu.c has the token form). One piece of work is one head of one sequence.
 *
 * A chunk of n <= C rows with start state S [K,V], b_i = g_1 + ... + g_i inside the chunk, D_ij = e^{b_i - b_j} for j <= i, else 0
 * (operators.md#decay):
 *
 *   O  = s [ diag(e^b) (Q S) + (Q K^T . D) V ]              S' = e^{b_n} S + (diag(e^{b_n - b}) K)^T V
 *
 * and backward from dO and dS':
 *
 *   P  = s QK^T.D      dA = s (dO V^T).D                    dQ = dA K + s e^b.(dO S^T)         dK = dA^T Q + e^{b_n-b}.(V dS'^T)
 *   dV = P^T dO + e^{b_n-b}.(K dS')                         dS = e^{b_n} dS' + s (e^b.Q)^T dO
 *
 * and dg by decay_gates.h.
 *
 * With vector gates (operators.md#vector-decay) the factors belong to columns of Q and K (of V and dO): P, dA and what they are multiplied with go
 * through chunk/chunk_vector.h, and the products with a state read rows that are scaled before. Where the columns of S alone have gates, P and the
 * products with K and Q are those of no gate. Decays with signs: chunk_signed.h. mLSTM is scalar gates whose D and e^{b_n-b} have the rows' write
 * strengths in them, and a denominator with a floor (decay_stable.h).
 *
 * The algorithm is written in products; an engine (simd/mm.h) runs them in float32 or, for bf16 tensors, through bf16 tiles; there vector
 * gates go by decay_tiles.h. The triangle of the C x C products is used in blocks of rows. The backward pass keeps all states transposed ([V,K]):
 * that way every product finds its right operand row major without transposing a state. */
#include "core/cpu.h"
#include "recurrence/chunk/chunk_vector.h"
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_signed.h"
#include "recurrence/chunk/chunk_triangle.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay.h"
#include "recurrence/decay/decay_gates.h"
#if defined(__AMX_BF16__)
#include "recurrence/decay/decay_mild_amx.h"
#else
#include "recurrence/decay/decay_mild.h"
#endif
#include "recurrence/decay/decay_stable.h"
#include "recurrence/decay/decay_sums.h"
#include "recurrence/decay/decay_tiles.h"
#include "recurrence/decay/decay_work.h"

/* ---- one chunk --------------------------------------------------------------------------------------------------------------------- */

/* Rows that read, times the decay from the chunk's start: S_{i-1} has not met row i's gate. */
static void from_start(const scratch *w, int64_t n, float f, const float *x, float *y)
{
    int64_t K = w->gk.width;
    if (!w->early) {
        row_times(n * K, f, w->gk.from_start, x, y);
        return;
    }
    for (int64_t i = 0; i < K; i++) y[i] = f * x[i];
    row_times((n - 1) * K, f, w->gk.from_start, x + K, y + K);
}

/* in, out, read, end and D of a chunk; with vector gates the rows that meet states, scaled: with `writers` only those that are written. */
static void decays(const lnt_head *x, lnt_rows c, bool writers, scratch *w)
{
    const lnt_recur_args *a = x->a;
    int n = c.n;
    int64_t at = c.first * a->Hv + x->h;
    const float *g = a->g ? (const float *)a->g + at : a->g_head ? (const float *)a->g_head + x->h : NULL;
    const float *sign = a->has_sign ? (const float *)a->sign + at : NULL;
    if (sign) {
        signed_gates(n, g, sign, a->Hv, w->turns.gates);
        g = w->turns.gates;
    }
    if (w->stable) {
        stable_rows(&w->m, n, g, (const float *)a->i + at, a->Hv);
        g = w->m.gates;
    }
    if (a->g || w->gated != n) {
        LNT_V(lnt_chunk_decay)(n, g, w->stable || sign ? 1 : a->g ? a->Hv : 0, w->D, w->C, w->in, w->out);
        if (sign) signed_turn(n, sign, a->Hv, w->D, w->C, w->in, w->out, w->turns.room);
        for (int i = 0; i < n; i++) w->read[i] = (float)a->scale * w->in[i];
        w->end = w->in[n - 1];
        w->gated = n;
    }
    if (w->stable) stable_writes(&w->m, n, writers ? NULL : w->D, w->C, w->out);
    if (w->rows) {
        LNT_V(lnt_vector_load)(&w->gk, n, (const float *)a->gk + at * a->K, (int64_t)a->Hv * a->K, writers);
        if (!writers) from_start(w, n, (float)a->scale, w->q, w->qs);
        row_times((int64_t)n * a->K, 1.0f, w->gk.to_end, w->k, w->ks);
    }
    if (!w->columns) return;
    LNT_V(lnt_vector_load)(&w->gv, n, (const float *)a->gv + at * a->V, (int64_t)a->Hv * a->V, writers);
    row_times((int64_t)n * a->V, 1.0f, w->gv.to_end, w->v, w->vs);
}

/* to = diag(rows) from diag(columns) [m,n]; a factor that is NULL is 1; to == from is fine. */
static void decay_state(int m, int n, const float *rows, const float *columns, const float *from, float *to)
{
    for (int i = 0; i < m; i++, from += n, to += n) {
        rows_awake(i);
        if (columns)
            row_times(n, rows ? rows[i] : 1.0f, columns, from, to);
        else
            for (int j = 0; j < n; j++) to[j] = rows[i] * from[j];
    }
}

/* Of what is taken straight from the tensors elsewhere only what is asked for. */
static void load_chunk(const lnt_head *x, lnt_rows c, scratch *w, bool queries, bool keys)
{
    const lnt_recur_args *a = x->a;
    if (!w->direct || queries) rows_in(w->q, a->q, a->dtype, c.first, c.n, a->Hq, x->hq, a->K);
    if (!w->direct || keys) rows_in(w->k, a->k, a->dtype, c.first, c.n, a->Hq, x->hq, a->K);
    if (!w->direct) rows_in(w->v, a->v, a->dtype, c.first, c.n, a->Hv, x->h, a->V);
}

/* P of a read-out before the write: row i reads what the rows before it have become by row i-1, and its own write through the bonus. */
static void early_scores(const lnt_head *x, int n, scratch *w)
{
    int64_t K = x->a->K, C = w->C;
    const float *u = bonus_of(x), *readers[2] = { w->q + K };
    float *P[2] = { w->P + C };
    memset(w->P, 0, (size_t)n * sizeof(float));
    memset(w->q + n * K, 0, (size_t)K * sizeof(float));
    LNT_V(lnt_vector_pairs)(&w->gk, n, (float)x->a->scale, 1, readers, w->k, P, C);
    for (int64_t i = 0; i < n; i++) w->P[i * (C + 1)] = (float)x->a->scale * row_dot_times(w->q + i * K, w->k + i * K, u, K);
}

/* P = s QK^T.D, lower triangle in blocks. */
static void scores(const lnt_head *x, int n, const lnt_operand *q, const lnt_operand *k, scratch *w)
{
    float s = (float)x->a->scale;
    if (w->early) {
        early_scores(x, n, w);
    } else if (w->rows) {
        const float *readers[2] = { w->q };
        float *P[2] = { w->P };
        LNT_V(lnt_vector_pairs)(&w->gk, n, s, 1, readers, w->k, P, w->C);
    } else {
        triangle(BLOCKS, n, q, k, w->P, w->C);
        for (int64_t i = 0; i < n && w->turns.pairs; i++) memcpy(w->turns.pairs + i * w->C, w->P + i * w->C, (size_t)(i + 1) * 4);
        for (int64_t i = 0; i < n; i++) mask_row(w->P + i * w->C, w->D + i * w->C, s, i, block_end(BLOCKS, i, n));
    }
}

/* o += P V, with the columns' gates */
static void read_values(scratch *w, int n, const lnt_operand *P, const lnt_operand *v, int64_t V, float *o)
{
    if (!w->columns) {
        apply_lower(BLOCKS, n, P, v, V, o);
        return;
    }
    const float *A[2] = { w->P };
    float *out[2] = { o };
    LNT_V(lnt_vector_readers)(&w->gv, n, 1, A, w->C, w->v, out);
}

/* Rows that are written, with the decay to the chunk's end, as operands; in w->k, too, if they are not straight from the tensor. */
static lnt_operand writes_of(const lnt_head *x, lnt_rows c, int forms, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K;
    if (w->direct) {
        if (!a->g && !a->g_head) return of_keys(x, c, a->k, forms, w->k_forms);
        return of_scaled_keys(x, c, a->k, w->out, w->reads16, forms, w->k_forms);
    }
    rows_scaled(c.n, K, 1.0f, w->out, w->k, w->k);
    return ENGINE->prepare(forms, c.n, a->K, w->k, K, w->k_forms);
}

/* Rows of q or k for dots. */
static lnt_gate_rows rows_of(const scratch *w, const lnt_operand *m, const float *x)
{
    return w->direct ? (lnt_gate_rows){ .x16 = m->left.p, .ld = m->left.ld } : (lnt_gate_rows){ .x = x, .ld = m->cols };
}

static void forward_chunk(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V, n = c.n;
    lnt_operand q, k, v;
#if !defined(__AMX_BF16__)
    if (mild_forward(x, c, w)) return;
#endif
    load_chunk(x, c, w, false, false);
    decays(x, c, false, w);
    if (w->direct) {
        q = of_keys(x, c, a->q, LNT_LEFT, w->q_forms);
        k = of_keys(x, c, a->k, LNT_RIGHT_T, w->k_forms);
        v = of_values(x, c, a->v, LNT_RIGHT, w->v_forms);
    } else {
        q = e->prepare(LNT_LEFT, n, K, w->qs, K, w->q_forms);
        k = e->prepare(w->rows ? 0 : LNT_RIGHT_T, n, K, w->k, K, w->k_forms);
        v = e->prepare(LNT_RIGHT, n, V, w->v, V, w->v_forms);
    }
    const lnt_gate_rows queries = rows_of(w, &q, w->q), keys = rows_of(w, &k, w->k);
    rows_ahead_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V);
    scores(x, n, &q, &k, w);
    key_ahead(x, c, a->q);
    lnt_operand P = e->prepare(LNT_LEFT, n, n, w->P, w->C, w->P_forms);
    e->multiply(LNT_MM_SET, NULL, &q, false, &w->state, false, w->o, V);
    key_ahead(x, c, a->k);
    if (w->direct) {
        lower_product(LNT_MM_SET, BLOCKS, n, &P, &v, V, w->sums);
    } else {
        if (!w->rows) rows_scaled(n, V, 1.0f, w->read, w->o, w->o);
        if (w->columns) row_times((int64_t)n * V, 1.0f, w->gv.from_start, w->o, w->o);
        read_values(w, n, &P, &v, V, w->o);
    }
    if (w->columns) rows_add_diagonal(n, w->P, w->C, w->v, V, w->o);
    value_ahead(x, c, a->v);
    if (w->rows) float_ahead(x, c, a->gk, K);
    if (w->normalize)
        for (int64_t i = 0; i < n; i++) {
            if (i % 4 == 0) lnt_tiles_awake();
            float den = w->read[i] * gate_row_dot(&queries, i, w->z, K) + row_sum(w->P + i * w->C, i + 1);
            const float r = 1.0f / (w->stable ? stable_denominator(den, w->m.floor[i], a->eps) : den + (float)a->eps);
            if (w->direct) {
                w->shares[i] = r * w->read[i];
                w->shares[w->C + i] = r;
            } else {
                row_scale(w->o + i * V, r, V);
            }
        }
    if (w->direct)
        rows_out_sum(a->o, a->dtype, c.first, n, a->Hv, x->h, V, 1.0f, w->normalize ? w->shares : w->read, w->o,
                     w->normalize ? w->shares + w->C : NULL, w->sums);
    else
        rows_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V, w->o);

    if (w->columns) {
        v = e->prepare(LNT_RIGHT, n, V, w->vs, V, w->vs_forms);
        decay_state(K, V, NULL, w->gv.end, w->S, w->S);
    }
    if (w->rows) {
        lnt_operand writes = e->prepare(LNT_LEFT_T, n, K, w->ks, K, w->ks_forms);
        e->update(w->gk.end, 1, &writes, true, &v, false, &w->state);
        return;
    }
    if (w->normalize) {
        row_scale(w->z, w->end, K);
        if (w->direct)
            rows_add_up16(n, K, w->out, keys.x16, keys.ld, w->z);
    }
    k = writes_of(x, c, LNT_LEFT_T, w); /* in the place of keys */
    e->update(&w->end, 0, &k, true, &v, false, &w->state);
    if (w->normalize && !w->direct) rows_add_up(n, K, NULL, w->k, w->z);
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    scratch work, *w = &work;
    carve(a, false, base, w);
    int64_t size = (int64_t)a->K * a->V, chunks = chunk_count(x, w->C);
    get_state(x, w->S, a->s0, size);
    get_state(x, w->z, a->z0, a->K);
    get_state(x, &w->m.m, a->m0, 1);
    w->state = ENGINE->prepare(LNT_RIGHT, a->K, a->V, w->S, a->V, w->S_forms);
#if defined(__AMX_BF16__)
    for (int64_t i = 0; w->tiled && i < chunks; i++) tiled_forward(x, chunk_at(x, w->C, i, 1), w);
#endif
    for (int64_t i = 0; !w->tiled && i < chunks; i++) {
        const lnt_rows c = chunk_at(x, w->C, i, 1);
#if defined(__AMX_BF16__)
        if (w->lifted && (mild_lifted(x, c, w) || lifted_forward_chunk(x, c, w))) continue;
#endif
        forward_chunk(x, c, w);
    }
    put_state(x, a->sT, size, w->S);
    put_state(x, a->zT, a->K, w->z);
    put_state(x, a->mT, 1, &w->m.m);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------- */

/* All chunk start states, transposed, into w->states and w->zs. */
static void sweep(const lnt_head *x, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V;
    int64_t size = (int64_t)K * V, chunks = chunk_count(x, w->C);
    const size_t each = e->bytes(V, K, LNT_RIGHT);
    lnt_operand running = { .rows = 0 };
    get_turned(x, w->states, a->s0);
    if (w->direct) { /* the running state has the place of dS, which comes later */
        memcpy(w->dS, w->states, (size_t)size * sizeof *w->dS);
        running = e->prepare(LNT_RIGHT, V, K, w->dS, K, w->kept);
    }
    get_state(x, w->zs, a->z0, K);
    get_state(x, &w->m.m, a->m0, 1);
    if (w->stable) w->m.starts[0] = w->m.m, w->m.fades[0] = 1.0f;
    for (int64_t i = 0; i + 1 < chunks; i++) { /* nobody reads the final state */
        lnt_rows c = chunk_at(x, w->C, i, 1);
        float *S = w->direct ? NULL : w->states + (i + 1) * size, *z = w->zs + (i + 1) * K;
        if (!w->direct) rows_in(w->k, a->k, a->dtype, c.first, c.n, a->Hq, x->hq, K);
        if (!w->direct) rows_in(w->v, a->v, a->dtype, c.first, c.n, a->Hv, x->h, V);
        decays(x, c, true, w);
        if (w->stable) w->m.starts[i + 1] = w->m.m, w->m.fades[i + 1] = w->m.fades[i] * w->end;
        key_ahead(x, c, a->k);
        value_ahead(x, c, a->v);
        lnt_operand v = w->direct ? of_values(x, c, a->v, LNT_LEFT_T, w->v_forms) : e->prepare(LNT_LEFT_T, c.n, V, w->vs, V, w->v_forms);
        lnt_operand k = w->rows ? e->prepare(LNT_RIGHT, c.n, K, w->ks, K, w->k_forms) : writes_of(x, c, LNT_RIGHT, w);
        if (w->rows || w->columns) {
            if (w->rows) float_ahead(x, c, a->gk, K);
            decay_state(V, K, w->columns ? w->gv.end : NULL, w->rows ? w->gk.end : NULL, S - size, S);
            e->multiply(LNT_MM_ADD, NULL, &v, true, &k, false, S, K);
            continue;
        }
        if (w->direct) {
            char *const next = w->kept + (size_t)(i + 1) * each;
            if (V % 32) memset(next, 0, each); /* rows behind the last are not written */
            running.right.p = next;
            e->update(&w->end, 0, &v, true, &k, false, &running);
        } else {
            memcpy(S, S - size, (size_t)size * 4);
            e->multiply(LNT_MM_SCALED, &w->end, &v, true, &k, false, S, K);
        }
        memcpy(z, z - K, (size_t)K * 4);
        row_scale(z, w->end, K);
        if (w->normalize && w->direct)
            rows_add_up16(c.n, K, w->out, key_rows(x, c, a->k), (int64_t)a->Hq * K, z);
        else if (w->normalize)
            rows_add_up(c.n, K, NULL, w->k, z);
    }
}

/* Turn dO (in w->o; straight from the tensor it stays, and shares get its factors), X = dO S^T and Y = dO V^T into what they are for the numerators
 * and the denominators of the normalised read-out:
 *   o = num/den, den = s e^b q.z + rowsum(P) + eps      dnum = do/den      dden = -(do.num)/den^2,  do.num = s e^b q.X + sum_j P_ij Y_ij
 * mLSTM's den is |den| or the floor, which has no gradient that m's does not have: with eps = 0 no output depends on m. */
static void normalise_backward(const lnt_recur_args *a, int64_t n, const lnt_gate_rows *q, const float *z, const float *read, scratch *w)
{
    int64_t K = a->K, V = a->V;
    for (int64_t i = 0; i < n; i++) {
        const float *P = w->P + i * w->C;
        float *X = w->x + i * K, *Y = w->Y + i * w->C;
        if (i % 2 == 0) lnt_tiles_awake();
        const float den = read[i] * gate_row_dot(q, i, z, K) + row_sum(P, i + 1), floor = w->stable ? w->m.floor[i] : 0;
        float r = 1.0f / (w->stable ? stable_denominator(den, floor, a->eps) : den + (float)a->eps);
        float dden = -(read[i] * gate_row_dot(q, i, X, K) + row_dot(P, Y, i + 1)) * r * r;
        if (w->stable) w->m.pull[i] = (float)a->eps * dden, dden = stable_reads(den, floor, dden);
        w->dden[i] = dden;
        if (w->direct)
            w->shares[i] = r;
        else
            row_scale(w->o + i * V, r, V);
        row_scale_add(X, r, dden, z, K);
        int64_t j = 0;
        for (; j + LNT_VL <= i + 1; j += LNT_VL) v_store(Y + j, v_load(Y + j) * r + dden);
        for (; j <= i; j++) Y[j] = Y[j] * r + dden;
    }
}

/* dg of the chunk; `last` is <S',dS'>. */
static void gate_gradient(const lnt_head *x, lnt_rows c, double last, scratch *w)
{
    const lnt_recur_args *a = x->a;
    int64_t at = c.first * a->Hv + x->h;
    if (w->stable) {
        stable_gradient(x, c, last, &w->gates, &w->m);
        return;
    }
    if (a->has_sign) {
        signed_gradient(&w->turns, c.n, w->D, w->C, w->out, (const float *)a->g + at, (const float *)a->sign + at, a->Hv,
                        a->dg ? (float *)a->dg + at : NULL, a->dsign ? (float *)a->dsign + at : NULL);
        return;
    }
    double sum = LNT_V(lnt_chunk_gate_grad)(c.n, last, w->gates.dG, w->gates.pairs, a->g ? (const float *)a->g + at : NULL,
                                            a->dg ? (float *)a->dg + at : NULL, a->Hv);
    if (a->dg_head) ((double *)a->workspace)[x->index] += sum;
}

/* last_k and last_v: the sums over rows and over columns of e^{G_n} S . dS' e^{Gv_n}, transposed states. */
static void state_products(scratch *w, int K, int V, const float *S)
{
    memset(w->last_k, 0, (size_t)K * sizeof(float));
    for (int64_t j = 0; j < V; j++) {
        const float *Sj = S + j * K, *dS = w->dS + j * K;
        const float f = w->columns ? w->gv.end[j] : 1.0f;
        rows_awake(j);
        if (w->rows) row_add_times(K, f, Sj, dS, w->last_k);
        if (w->columns) w->last_v[j] = f * (w->rows ? row_dot_times(Sj, dS, w->gk.end, K) : row_dot(Sj, dS, K));
    }
    if (w->rows) row_mul(w->last_k, w->gk.end, K);
}

/* dQ, dK and dgk from dO S^T (in w->x), V dS'^T (in w->dk) and dA in w->Y, with vector gates. */
static void vector_key_gradients(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    int64_t K = a->K, size = c.n * K;
    int shift = w->early, n = c.n;
    const float *A[2] = { w->Y + shift * w->C };
    float *dq[2] = { w->pair_q + shift * K };
    memset(w->pair_q, 0, (size_t)(size + shift * K) * sizeof(float));
    memset(w->pair_k, 0, (size_t)size * sizeof(float));
    if (shift) memset(w->Y + n * w->C, 0, (size_t)n * sizeof(float));
    LNT_V(lnt_vector_readers)(&w->gk, n, 1, A, w->C, w->k, dq);
    LNT_V(lnt_vector_writers)(&w->gk, n, A[0], w->C, w->q + shift * K, w->pair_k);
    lnt_vector_sides s = { .early = w->early, .f = (float)a->scale, .read = w->q, .write = w->k, .dread = w->x, .dwrite = w->dk,
                           .pair_read = w->pair_q, .pair_write = w->pair_k, .A = w->Y, .ld = w->C, .bonus = w->early ? bonus_of(x) : NULL,
                           .last = w->last_k, .inside = w->inside, .stride = (int64_t)a->Hv * K,
                           .dg = a->dgk ? (float *)a->dgk + (c.first * a->Hv + x->h) * K : NULL };
    LNT_V(lnt_vector_gradients)(&w->gk, &s);
    if (w->early) bonus_gradient(x, n, w);
}

/* dV and dgv from K dS' in dv, with gates of columns; for dgv o is read again, in w->dvt. */
static void vector_value_gradient(const lnt_head *x, lnt_rows c, lnt_operand *St, float *dv, scratch *w)
{
    const lnt_recur_args *a = x->a;
    int64_t K = a->K, V = a->V, size = c.n * V;
    lnt_vector_sides s = { .f = w->rows ? 1.0f : (float)a->scale, .read = w->o, .write = w->v, .dwrite = dv, .pair_read = w->pair_o,
                           .pair_write = w->pair_v, .A = w->P, .ld = w->C, .last = w->last_v, .inside = w->inside, .stride = (int64_t)a->Hv * V };
    memset(w->pair_v, 0, (size_t)size * sizeof(float));
    LNT_V(lnt_vector_writers)(&w->gv, c.n, w->P, w->C, w->o, w->pair_v);
    if (a->dgv) {
        const lnt_operand q = ENGINE->prepare(LNT_LEFT, c.n, a->K, w->qs, K, w->rows ? w->qs_forms : w->q_forms);
        s.dg = (float *)a->dgv + (c.first * a->Hv + x->h) * V;
        s.dread = w->dvt;
        ENGINE->extend(St, LNT_RIGHT_T, w->S_turned);
        ENGINE->multiply(LNT_MM_SET, NULL, &q, false, St, true, s.dread, V);
        memset(w->pair_o, 0, (size_t)size * sizeof(float));
        read_values(w, c.n, NULL, NULL, V, w->pair_o);
    }
    LNT_V(lnt_vector_gradients)(&w->gv, &s);
}

/* dV from (K dS')^T in w->dvt: P^T dO + e^{b_n-b}.(K dS'). v is not needed any more, but for the columns' gates. */
static void value_gradient(const lnt_head *x, lnt_rows c, const lnt_operand *P, const lnt_operand *d, lnt_operand *St, scratch *w)
{
    const lnt_recur_args *a = x->a;
    int64_t V = a->V, n = c.n;
    float *dv = w->columns ? w->vs : w->v;
    LNT_V(lnt_transpose)(a->V, c.n, w->dvt, w->C, dv, V);
    if (w->direct) {
        lower_product_transposed(LNT_MM_SET, BLOCKS, n, P, d, V, w->sums);
        if (a->dv) rows_out_sum(a->dv, a->dtype, c.first, n, a->Hv, x->h, V, 1.0f, w->out, dv, NULL, w->sums);
        return;
    }
    if (w->columns) {
        vector_value_gradient(x, c, St, dv, w);
    } else {
        if (!w->rows) rows_scaled(n, V, 1.0f, w->out, dv, dv);
        apply_lower_transposed(BLOCKS, n, P, d, V, dv);
    }
    rows_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V, dv);
}

/* dA = s tril(dO V^T) into w->Y, raw products if it is to be normalised first. */
static void value_pairs(const scratch *w, int n, const lnt_operand *d, const lnt_operand *v, float s)
{
    if (w->columns) {
        const float *readers[2] = { w->o };
        float *A[2] = { w->Y };
        LNT_V(lnt_vector_pairs)(&w->gv, n, s, 1, readers, w->v, A, w->C);
    } else {
        triangle(BLOCKS, n, d, v, w->Y, w->C);
    }
}

/* Whether dm0's <S_0,dS_0> is added up beside dS_0, which tiles round; and what chunk i adds, dO divided by the denominators. */
static bool moves_by_rows(const lnt_recur_args *a, const scratch *w) { return ENGINE->bf16 && w->stable && a->dm0 && a->s0; }
static void move_rows(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const int64_t K = a->K, V = a->V;
    const float fade = w->m.fades[i], *S = w->states;
    if (w->direct) {
        rows_in(w->q, a->q, a->dtype, c.first, c.n, a->Hq, x->hq, K);
        rows_in(w->o, a->do_, a->dtype, c.first, c.n, a->Hv, x->h, V);
        rows_scaled(c.n, V, 1.0f, w->shares, w->o, w->o);
    }
    if (c.row + c.n == x->len) w->m.moved = (double)(fade * w->end) * row_dot(S, w->dS, K * V);
    stable_starts(&w->m, fade, c.n, K, V, w->read, w->q, S, w->o);
}

/* <S,dS> of a state, or of what is kept of it as a right operand. */
static float state_dot(const float *S, const lnt_operand *kept, const float *dS, int64_t size)
{
#if defined(__AMX_BF16__)
    if (!S) return right_dot(kept, dS);
#else
    (void)kept;
#endif
    return row_dot(S, dS, size);
}

/* A gradient of q or k, f_i x_i + sums_i, for one head or added up over the heads of a group (x and sums are room then). */
static void put_key_sums(const lnt_head *x, lnt_rows c, const float *f, float *rows, void *out, float *all, const float *sums)
{
    const lnt_recur_args *a = x->a;
    if (!out) return;
    if (!all) {
        rows_out_sum(out, a->dtype, c.first, c.n, a->Hq, x->hq, a->K, 1.0f, f, rows, NULL, sums);
        return;
    }
    rows_scaled(c.n, a->K, 1.0f, f, rows, rows);
    row_add(rows, 1.0f, sums, (int64_t)c.n * a->K);
    put_shared(x, c, rows, out, all);
}

/* Chunk i; w->dS becomes the gradient of its start state. Long: all kinds of gates, with what they have in common written once. */
static void backward_chunk(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V, n = c.n;
    int64_t size = (int64_t)K * V;
    float s = (float)a->scale;
    const bool direct = w->direct;
    const float *S = direct ? NULL : w->states + i * size, *z = w->zs + i * K;
    float *read = w->read, *dO = w->o;
    const bool gate = a->dg || a->dg_head || a->dsign || w->stable;
#if !defined(__AMX_BF16__)
    if (mild_back(x, c, i, S, w)) return;
#endif
    load_chunk(x, c, w, a->has_sign, a->has_sign);
    if (w->stable) w->m.m = w->m.starts[i];
    const bool straight = direct && a->do_; /* dO goes as it is */
    if (!straight) rows_in(dO, a->do_, a->dtype, c.first, n, a->Hv, x->h, V);
    decays(x, c, false, w);
    if (w->columns) row_times((int64_t)n * V, 1.0f, w->gv.from_start, dO, w->dos);
    lnt_operand q, k, v, d, St, dSt;
    if (direct) {
        q = of_keys(x, c, a->q, LNT_LEFT | LNT_RIGHT, w->q_forms);
        k = of_keys(x, c, a->k, LNT_RIGHT_T | LNT_RIGHT, w->k_forms);
        v = of_values(x, c, a->v, LNT_LEFT | LNT_RIGHT_T, w->v_forms);
        d = straight ? of_values(x, c, a->do_, LNT_LEFT | LNT_RIGHT | LNT_LEFT_T, w->do_forms) : e->prepare(LNT_LEFT, n, V, dO, V, w->do_forms);
        St = (lnt_operand){ .rows = V, .cols = K, .right = { w->kept + (size_t)i * e->bytes(V, K, LNT_RIGHT), w->state.right.ld } };
        dSt = w->state;
        e->extend(&dSt, LNT_LEFT, w->dS_forms);
    } else {
        q = e->prepare(w->rows ? 0 : LNT_LEFT | LNT_RIGHT, n, K, w->q, K, w->q_forms);
        k = e->prepare(w->rows ? 0 : LNT_RIGHT_T | LNT_RIGHT, n, K, w->k, K, w->k_forms);
        v = e->prepare(LNT_LEFT | LNT_RIGHT_T, n, V, w->v, V, w->v_forms);
        d = e->prepare(LNT_LEFT, n, V, dO, V, w->do_forms);
        St = e->prepare(LNT_RIGHT, V, K, S, K, w->S_forms);
        dSt = e->prepare(LNT_LEFT | LNT_RIGHT, V, K, w->dS, K, w->dS_forms);
    }
    const lnt_gate_rows queries = rows_of(w, &q, w->q), keys = rows_of(w, &k, w->k);
    lnt_operand ks = w->rows ? e->prepare(LNT_RIGHT_T, n, K, w->ks, K, w->ks_forms) : k;
    lnt_operand vs = w->columns ? e->prepare(LNT_LEFT, n, V, w->vs, V, w->vs_forms) : v;
    lnt_operand ds = w->columns ? e->prepare(LNT_LEFT | LNT_LEFT_T, n, V, w->dos, V, w->dos_forms) : d;
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, n, a->Hq, x->hq, K);
    rows_ahead_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V);
    scores(x, n, &q, &k, w);
    if (i && !direct) rows_ahead(S - size, LINNET_F32, 0, V, 1, 0, K);
    key_ahead(x, c, a->q);
    value_pairs(w, n, &d, &v, s);
    key_ahead(x, c, a->k);
    e->multiply(LNT_MM_SET, NULL, &ds, false, &St, false, w->x, K);
    value_ahead(x, c, a->v);
    if (a->has_sign) signed_reads(&w->turns, n, w->C, s, w->Y, K, w->q, w->x, state_dot(S, &St, w->dS, size));
    double last = gate ? (double)w->end * state_dot(S, &St, w->dS, size) : 0.0; /* <S',dS'> = e^{b_n} <S,dS'> + sum_j k_j . (what dS' gives dk_j) */
    if (a->dgk || a->dgv) state_products(w, K, V, S);
    if (w->normalize) {
        normalise_backward(a, n, &queries, z, read, w);
        if (gate) last += (double)w->end * row_dot(z, w->dz, K);
    }
    if (gate && !a->has_sign) gates_read(BLOCKS, n, K, w->P, w->Y, w->C, read, &queries, w->x, &w->gates);
    if (moves_by_rows(a, w)) move_rows(x, c, i, w);
    for (int64_t r = 0; r < n && !w->columns; r++) mask_row(w->Y + r * w->C, w->D + r * w->C, s, r, block_end(BLOCKS, r, n)); /* dA */
    for (int64_t r = 0; r < n && direct && w->normalize; r++) row_scale(w->P + r * w->C, w->shares[r], r + 1); /* P^T (dO / den) */

    lnt_operand P = e->prepare(LNT_LEFT_T, n, n, w->P, w->C, w->P_forms),
                dA = e->prepare(w->rows ? 0 : LNT_LEFT | LNT_LEFT_T, n, n, w->Y, w->C, w->Y_forms);
    if (!straight) d = e->prepare(LNT_RIGHT | (w->columns ? 0 : LNT_LEFT_T), n, V, dO, V, w->do_forms); /* normalised by now */
    if (!w->columns) ds = d;
    value_ahead(x, c, a->do_);
    e->multiply(LNT_MM_SET, NULL, &vs, false, &dSt, false, w->dk, K);
    e->multiply(LNT_MM_SET, NULL, &dSt, false, &ks, true, w->dvt, w->C);
    if (w->rows) {
        float_ahead(x, c, a->gk, K);
        vector_key_gradients(x, c, w);
    } else {
        if (direct) {
            lower_product(LNT_MM_SET, BLOCKS, n, &dA, &k, K, w->sums); /* dQ */
            put_key_sums(x, c, read, w->x, a->dq, w->dq_sum, w->sums);
        } else {
            rows_scaled(n, K, 1.0f, read, w->x, w->x);
            apply_lower(BLOCKS, n, &dA, &k, K, w->x);
        }
        for (int64_t j = 0; j < n && w->normalize; j++) {
            rows_awake(j);
            row_add(w->dk + j * K, 1.0f, w->dz, K);
        }
        for (int64_t j = 0; j < n && a->has_sign; j++) w->turns.writes[j] = row_dot(w->k + j * K, w->dk + j * K, K);
        if (!direct) rows_scaled(n, K, 1.0f, w->out, w->dk, w->dk);
        if (gate && !a->has_sign) last += gates_write(n, K, &keys, w->dk, direct ? w->out : NULL, &w->gates);
        if (direct) {
            lower_product_transposed(LNT_MM_SET, BLOCKS, n, &dA, &q, K, w->sums); /* dK */
            put_key_sums(x, c, w->out, w->dk, a->dk, w->dk_sum, w->sums);
        } else {
            apply_lower_transposed(BLOCKS, n, &dA, &q, K, w->dk);
        }
    }
    if (gate) gate_gradient(x, c, last, w);
    if (!direct) {
        put_shared(x, c, w->x, a->dq, w->dq_sum);
        put_shared(x, c, w->dk, a->dk, w->dk_sum);
    }

    value_gradient(x, c, &P, &d, &St, w);
    if (!w->rows && !direct) rows_scaled(n, K, 1.0f, read, w->qs, w->qs);
    for (int64_t r = 0; r < n && direct && w->normalize; r++) {
        w->dden[r] *= read[r];
        w->shares[r] *= read[r];
    }
    if (direct && w->normalize) read = w->shares;
    lnt_operand reads = direct ? of_scaled_keys(x, c, a->q, read, w->reads16, LNT_RIGHT, w->read_forms)
                               : e->prepare(LNT_RIGHT, n, K, w->qs, K, w->read_forms);
    if (w->rows || w->columns) {
        decay_state(V, K, w->columns ? w->gv.end : NULL, w->rows ? w->gk.end : NULL, w->dS, w->dS);
        e->multiply(LNT_MM_ADD, NULL, &ds, true, &reads, false, w->dS, K);
        return;
    }
    if (direct)
        e->update(&w->end, 0, &d, true, &reads, false, &w->state);
    else
        e->multiply(LNT_MM_SCALED, &w->end, &d, true, &reads, false, w->dS, K);
    if (!w->normalize) return;
    row_scale(w->dz, w->end, K);
    if (direct)
        rows_add_up16(n, K, w->dden, queries.x16, queries.ld, w->dz);
    else
        rows_add_up(n, K, w->dden, w->q, w->dz); /* q is scaled by now */
}

static void backward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    scratch work, *w = &work;
    carve(a, true, base, w);
    int64_t chunks = chunk_count(x, w->C);
    begin_sums(a, x->index);
    if (!w->tiled && !w->lifted) sweep(x, w);
    if (!w->lifted) get_turned(x, w->dS, a->dsT);
    if (w->direct) w->state = ENGINE->prepare(LNT_RIGHT, a->V, a->K, w->dS, a->K, w->S_forms);
#if defined(__AMX_BF16__)
    if (w->tiled) {
        tiled_sweep(x, w);
        w->state = ENGINE->prepare(LNT_RIGHT, a->V, a->K, w->dS, a->K, w->dS_forms);
        for (int64_t i = chunks - 1; i >= 0; i--) tiled_backward(x, chunk_at(x, w->C, i, -1), i, w);
    }
    if (w->lifted) {
        lifted_sweep(x, w);
        get_state(x, w->dS, a->dsT, (int64_t)a->K * a->V);
        w->state = ENGINE->prepare(LNT_RIGHT, a->K, a->V, w->dS, a->V, w->dS_forms);
        for (int64_t i = chunks - 1; i >= 0; i--) lifted_backward(x, chunk_at(x, w->C, i, -1), i, w);
        put_state(x, a->ds0, (int64_t)a->K * a->V, w->dS);
        return;
    }
#endif
    get_state(x, w->dz, a->dzT, a->K);
    w->m.m_grad = a->dmT ? ((const float *)a->dmT)[x->index] : 0;
    if (w->stable && !chunks) w->m.m_grad -= stable_moved(a, w->states, w->dS, w->zs, w->dz); /* the initial state is the final one */
    for (int64_t i = chunks - 1; !w->tiled && i >= 0; i--) backward_chunk(x, chunk_at(x, w->C, i, -1), i, w);
    if (a->ds0) LNT_V(lnt_transpose)(a->V, a->K, w->dS, a->K, (float *)a->ds0 + x->index * a->K * a->V, a->V);
    put_state(x, a->dz0, a->K, w->dz);
    if (!a->dm0) return;
    const bool by_rows = chunks && moves_by_rows(a, w);
    const double moved = by_rows ? w->m.moved + row_dot(w->zs, w->dz, a->K) : stable_moved(a, w->states, w->dS, w->zs, w->dz);
    ((float *)a->dm0)[x->index] = (float)(w->m.m_grad + moved);
}

/* ---- the implementations ----------------------------------------------------------------------------------------------------------- */

static size_t each_bytes(const lnt_recur_args *a, bool backward)
{
    scratch w;
    return carve(a, backward, NULL, &w);
}

static size_t workspace(const void *args, bool backward, int threads)
{
    return (size_t)threads * each_bytes(args, backward) + (backward ? sums_bytes(args) : 0);
}

static void forward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    walk_heads(a, threads, false, ENGINE, a->workspace, each_bytes(a, false), forward_head);
}

static void backward(const void *args, int threads)
{
    const lnt_recur_args *a = args;
    walk_heads(a, threads, true, ENGINE, (char *)a->workspace + sums_bytes(a), each_bytes(a, true), backward_head);
    put_sums(a);
}

static const char *declines(const void *args, bool back)
{
    const lnt_recur_args *a = args;
    (void)back;
    if (lnt_decay_turns(a)) return "signs of rows and columns are taken token by token";
    return ENGINE->bf16 && a->dtype != LINNET_BF16 ? "its products round to bf16; the tensors are float32" : NULL;
}

extern const lnt_recur_impl LNT_V(lnt_decay_chunk);
const lnt_recur_impl LNT_V(lnt_decay_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL, .declines = declines,
                                               .workspace = workspace, .forward = forward, .backward = backward };
