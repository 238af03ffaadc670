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
 * The algorithm is written in products; an engine (simd/mm.h) runs them in float32 or, for bf16 tensors, through bf16 tiles. The triangle of the
 * C x C products is used in blocks of rows. The backward pass keeps all states transposed ([V,K]): that way every product finds its right operand row
 * major without transposing a state. */
#include "core/cpu.h"
#include "recurrence/chunk/chunk_vector.h"
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_signed.h"
#include "recurrence/chunk/chunk_triangle.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay.h"
#include "recurrence/decay/decay_gates.h"
#include "recurrence/decay/decay_stable.h"

/* float32 serves every variant up to avx512; the amx variant has tiles, for bf16 tensors. */
#if defined(__AMX_BF16__)
#define ENGINE (&LNT_V(lnt_mm_bf16_tiles))
#define BLOCKS ((lnt_blocks){ ENGINE, 32 })
#else
#define ENGINE (&LNT_V(lnt_mm_f32))
#define BLOCKS ((lnt_blocks){ ENGINE, 16 })
#endif

/* Scratch of a thread. [C,K]: q k x dk; [C,V]: v o; [C,C]: P D; [C]: in = e^b, out = e^{b_n-b}, read = s e^b; with vector gates in and out are ones
 * and read is s. q pair_q P Y have one row more: a read-out before the write shifts them by one, and a block that is whole goes twice as fast. */
typedef struct {
    int C;
    bool rows, columns, early; /* gates of S's rows, of its columns; read-out before the write */
    bool stable, normalize;    /* mLSTM; a state z and a denominator */
    float *S, *z, *q, *k, *v, *o, *P, *D, *in, *out, *read;
    float end;   /* e^{b_n} */
    int64_t gated; /* rows that in, out, read, D and end were made for, when the gates are the same in every chunk; 0: none yet */
    void *q_forms, *k_forms, *v_forms, *P_forms, *S_forms;
    /* backward: dS [V,K]; states [chunks,V,K], zs [chunks,K]; dvt [V,C]; Y [C,C]; dden [C]; dq_sum dk_sum [len,K] when heads share q and k */
    float *dS, *dz, *states, *zs, *x, *dk, *dvt, *Y, *dden, *dq_sum, *dk_sum;
    lnt_gates gates;
    void *do_forms, *read_forms, *dS_forms, *Y_forms;
    lnt_operand state; /* S with its right form, renewed by every write (forward) */
    /* vector gates; otherwise qs ks vs dos are q k v o themselves */
    lnt_vector gk, gv;
    float *qs, *ks;            /* [C,K] s e^G.q, e^{G_n-G}.k */
    float *vs, *dos;           /* [C,V] the same with the columns' gates */
    float *pair_q, *pair_k, *pair_v; /* [C+1,K] [C,K] [C,V] what pairs add to dQ, dK, dV */
    float *last_k, *last_v;    /* [K] [V] rows and columns of <S',dS'> */
    float *inside, *pair_o;    /* [C,max(K,V)] room; [C,V] what pairs add to o */
    void *ks_forms, *qs_forms, *vs_forms, *dos_forms, *S_turned;
    lnt_stable m; /* mLSTM */
    signed_sums turns; /* decays with a sign */
    /* gates of rows on tiles: [C rounded up to 16 and one,K] what reads and what writes states, in bf16, and forms of their own */
    bool tiled;
    lnt_bf16 *reads16, *writes16;
    char *kept;        /* [chunks] right forms of states, transposed */
    void *dS_turned;
    float *strips[2]; /* [C+1,32] twice */
} scratch;

/* With tiles a chunk of 64: its two passes over the state cost more than the larger squares (T=2048, K=V=128, two threads: 4.6 ms forward against 5.2
 * to 7.9 at 32 and 5.6 at 128). Delta keeps the engine's 32: the solve grows with the square. */
static int default_chunk(const lnt_recur_args *a, bool backward)
{
    if (ENGINE->bf16) return 64;
    /* forward with gates of rows and a state that stays in L1, one block of pairs: no level between blocks (decay.md) */
    const bool block = !backward && LNT_VECTOR_ROWS == 16 && a->op->kind >= LNT_DECAY_ROWS && (int64_t)a->K * a->V <= 64 * 64;
    return block ? LNT_VECTOR_ROWS : ENGINE->chunk;
}

static void carve_vector(lnt_carve *c, const lnt_recur_args *a, bool backward, scratch *w)
{
    const lnt_mm_engine *e = ENGINE;
    int64_t K = a->K, V = a->V, C = w->C;
    if (w->rows) {
        w->gk = LNT_V(lnt_vector_carve)(c, e, w->C, a->K);
        w->qs = lnt_carve_floats(c, C * K);
        w->ks = lnt_carve_floats(c, C * K);
        w->qs_forms = lnt_carve_bytes(c, e->bytes(w->C, a->K, LNT_LEFT | LNT_RIGHT));
        w->ks_forms = lnt_carve_bytes(c, e->bytes(w->C, a->K, LNT_LEFT_T | LNT_RIGHT | LNT_RIGHT_T));
#if defined(__AMX_BF16__)
        w->tiled = w->rows && !w->columns && lnt_vector_is_tiled(w->C, a->K);
        if (w->tiled) {
            w->reads16 = lnt_carve_bytes(c, (size_t)(w->C + 16) * (size_t)a->K * sizeof *w->reads16);
            w->writes16 = lnt_carve_bytes(c, (size_t)(w->C + 16) * (size_t)a->K * sizeof *w->writes16);
        }
#endif
    }
    if (w->columns) {
        w->gv = LNT_V(lnt_vector_carve)(c, e, w->C, a->V);
        w->vs = lnt_carve_floats(c, C * V);
        w->dos = lnt_carve_floats(c, C * V);
        w->vs_forms = lnt_carve_bytes(c, e->bytes(w->C, a->V, LNT_LEFT | LNT_LEFT_T | LNT_RIGHT));
        w->dos_forms = lnt_carve_bytes(c, e->bytes(w->C, a->V, LNT_LEFT | LNT_LEFT_T));
        w->pair_v = lnt_carve_floats(c, C * V);
        w->last_v = lnt_carve_floats(c, V);
        w->S_turned = lnt_carve_bytes(c, e->bytes(a->V, a->K, LNT_RIGHT_T));
    }
    if (!backward) return;
    w->pair_q = lnt_carve_floats(c, (C + 1) * K);
    w->pair_k = lnt_carve_floats(c, C * K);
    w->last_k = lnt_carve_floats(c, K);
    w->inside = lnt_carve_floats(c, C * (K > V ? K : V));
    if (w->columns) w->pair_o = lnt_carve_floats(c, C * V);
}

/* A thread's scratch at base (NULL: only measure); returns its bytes. */
static size_t carve(const lnt_recur_args *a, bool backward, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    const lnt_mm_engine *e = ENGINE;
    int64_t K = a->K, V = a->V, C = chunk_length(a, a->chunk ? a->chunk : default_chunk(a, backward)), longest = a->longest;
    int64_t states = longest > C ? (longest + C - 1) / C : 1;
    int n = (int)C, left = LNT_LEFT, left_t = LNT_LEFT_T, right = LNT_RIGHT, right_t = LNT_RIGHT_T;
    *w = (scratch){ .C = n,
                    .q = lnt_carve_floats(&c, (C + 1) * K),
                    .k = lnt_carve_floats(&c, C * K),
                    .v = lnt_carve_floats(&c, C * V),
                    .o = lnt_carve_floats(&c, C * V),
                    .P = lnt_carve_floats(&c, (C + 1) * C),
                    .D = lnt_carve_floats(&c, C * C),
                    .in = lnt_carve_floats(&c, C),
                    .out = lnt_carve_floats(&c, C),
                    .read = lnt_carve_floats(&c, C) };
    w->rows = a->op->kind >= LNT_DECAY_ROWS;
    w->columns = a->op->kind == LNT_DECAY_BOTH || a->op->kind == LNT_DECAY_COLUMNS;
    w->early = a->op->kind == LNT_DECAY_EARLY;
    w->stable = a->op->kind == LNT_DECAY_STABLE;
    w->normalize = a->normalize || w->stable;
    w->qs = w->q;
    w->ks = w->k;
    w->vs = w->v;
    w->dos = w->o;
    if (w->rows || w->columns) carve_vector(&c, a, backward, w);
    if (w->stable) stable_carve(&c, C, K, states, backward, &w->m);
    if (a->has_sign) signed_carve(&c, C, backward, &w->turns);
    w->q_forms = lnt_carve_bytes(&c, e->bytes(n, a->K, left | right));
    w->k_forms = lnt_carve_bytes(&c, e->bytes(n, a->K, right_t | right | left_t));
    w->v_forms = lnt_carve_bytes(&c, e->bytes(n, a->V, left | left_t | right | right_t));
    w->P_forms = lnt_carve_bytes(&c, e->bytes(n, n, left | left_t));
    w->S_forms = lnt_carve_bytes(&c, backward ? e->bytes(a->V, a->K, right) : e->bytes(a->K, a->V, right));
    if (!backward) {
        w->S = lnt_carve_floats(&c, K * V);
        w->z = lnt_carve_floats(&c, K);
        return c.used;
    }
    w->dS = lnt_carve_floats(&c, K * V);
    w->dz = lnt_carve_floats(&c, K);
    w->x = lnt_carve_floats(&c, C * K);
    w->dk = lnt_carve_floats(&c, C * K);
    w->dvt = lnt_carve_floats(&c, V * C);
    w->Y = lnt_carve_floats(&c, (C + 1) * C);
    w->dden = lnt_carve_floats(&c, C);
    gates_carve(&c, C, &w->gates);
    w->states = lnt_carve_floats(&c, (w->tiled ? 1 : states) * K * V);
    if (w->tiled) {
        w->kept = lnt_carve_bytes(&c, (size_t)states * e->bytes(a->V, a->K, right));
        w->dS_turned = lnt_carve_bytes(&c, e->bytes(a->V, a->K, right_t));
        for (int i = 0; i < 2; i++) w->strips[i] = lnt_carve_floats(&c, (C + 1) * 32);
    }
    w->zs = lnt_carve_floats(&c, states * K);
    w->do_forms = lnt_carve_bytes(&c, e->bytes(n, a->V, left | right | left_t));
    w->read_forms = lnt_carve_bytes(&c, e->bytes(n, a->K, right));
    w->dS_forms = lnt_carve_bytes(&c, e->bytes(a->V, a->K, left | right));
    w->Y_forms = lnt_carve_bytes(&c, e->bytes(n, n, left | left_t));
    if (a->Hq < a->Hv) {
        w->dq_sum = lnt_carve_floats(&c, longest * K);
        w->dk_sum = lnt_carve_floats(&c, longest * K);
    }
    return c.used;
}

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

static void load_chunk(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    rows_in(w->q, a->q, a->dtype, c.first, c.n, a->Hq, x->hq, a->K);
    rows_in(w->k, a->k, a->dtype, c.first, c.n, a->Hq, x->hq, a->K);
    rows_in(w->v, a->v, a->dtype, c.first, c.n, a->Hv, x->h, a->V);
}

static const float *bonus_of(const lnt_head *x) { return (const float *)x->a->bonus + (int64_t)x->h * x->a->K; }

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

static void forward_chunk(const lnt_head *x, lnt_rows c, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V, n = c.n;
    load_chunk(x, c, w);
    decays(x, c, false, w);
    lnt_operand q = e->prepare(LNT_LEFT, n, K, w->qs, K, w->q_forms), k = e->prepare(w->rows ? 0 : LNT_RIGHT_T, n, K, w->k, K, w->k_forms);
    lnt_operand v = e->prepare(LNT_RIGHT, n, V, w->v, V, w->v_forms);
    rows_ahead_out(a->o, a->dtype, c.first, n, a->Hv, x->h, V);
    scores(x, n, &q, &k, w);
    key_ahead(x, c, a->q);
    lnt_operand P = e->prepare(LNT_LEFT, n, n, w->P, w->C, w->P_forms);
    e->multiply(LNT_MM_SET, NULL, &q, false, &w->state, false, w->o, V);
    key_ahead(x, c, a->k);
    for (int64_t i = 0; i < n && !w->rows; i++) row_scale(w->o + i * V, w->read[i], V);
    if (w->columns) row_times((int64_t)n * V, 1.0f, w->gv.from_start, w->o, w->o);
    read_values(w, n, &P, &v, V, w->o);
    if (w->columns) rows_add_diagonal(n, w->P, w->C, w->v, V, w->o);
    value_ahead(x, c, a->v);
    if (w->rows) float_ahead(x, c, a->gk, K);
    if (w->normalize)
        for (int64_t i = 0; i < n; i++) {
            float den = w->read[i] * row_dot(w->q + i * K, w->z, K) + row_sum(w->P + i * w->C, i + 1);
            row_scale(w->o + i * V, 1.0f / (w->stable ? stable_denominator(den, w->m.floor[i], a->eps) : den + (float)a->eps), V);
        }
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
    for (int64_t j = 0; j < n; j++) row_scale(w->k + j * K, w->out[j], K);
    k = e->prepare(LNT_LEFT_T, n, K, w->k, K, w->k_forms);
    e->update(&w->end, 0, &k, true, &v, false, &w->state);
    if (!w->normalize) return;
    row_scale(w->z, w->end, K);
    for (int64_t j = 0; j < n; j++) row_add(w->z, 1.0f, w->k + j * K, K);
}

/* A state [K,V], or zeros, transposed. */
static void get_turned(const lnt_head *x, float *dst, const float *src)
{
    const lnt_recur_args *a = x->a;
    if (src)
        LNT_V(lnt_transpose)(a->K, a->V, src + x->index * a->K * a->V, a->V, dst, a->K);
    else
        get_state(x, dst, NULL, (int64_t)a->K * a->V);
}

#if defined(__AMX_BF16__)
#include "recurrence/decay/decay_tiles.h"
#endif

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
    for (int64_t i = 0; w->tiled && i < chunks; i++) tiled_forward_chunk(x, chunk_at(x, w->C, i, 1), w);
#endif
    for (int64_t i = 0; !w->tiled && i < chunks; i++) forward_chunk(x, chunk_at(x, w->C, i, 1), w);
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
    get_turned(x, w->states, a->s0);
    get_state(x, w->zs, a->z0, K);
    get_state(x, &w->m.m, a->m0, 1);
    if (w->stable) w->m.starts[0] = w->m.m, w->m.fades[0] = 1.0f;
    for (int64_t i = 0; i + 1 < chunks; i++) { /* nobody reads the final state */
        lnt_rows c = chunk_at(x, w->C, i, 1);
        float *S = w->states + (i + 1) * size, *z = w->zs + (i + 1) * K;
        rows_in(w->k, a->k, a->dtype, c.first, c.n, a->Hq, x->hq, K);
        rows_in(w->v, a->v, a->dtype, c.first, c.n, a->Hv, x->h, V);
        decays(x, c, true, w);
        if (w->stable) w->m.starts[i + 1] = w->m.m, w->m.fades[i + 1] = w->m.fades[i] * w->end;
        key_ahead(x, c, a->k);
        if (!w->rows)
            for (int64_t j = 0; j < c.n; j++) row_scale(w->k + j * K, w->out[j], K);
        value_ahead(x, c, a->v);
        lnt_operand v = e->prepare(LNT_LEFT_T, c.n, V, w->vs, V, w->v_forms), k = e->prepare(LNT_RIGHT, c.n, K, w->ks, K, w->k_forms);
        if (w->rows || w->columns) {
            if (w->rows) float_ahead(x, c, a->gk, K);
            decay_state(V, K, w->columns ? w->gv.end : NULL, w->rows ? w->gk.end : NULL, S - size, S);
            e->multiply(LNT_MM_ADD, NULL, &v, true, &k, false, S, K);
            continue;
        }
        memcpy(S, S - size, (size_t)size * 4);
        e->multiply(LNT_MM_SCALED, &w->end, &v, true, &k, false, S, K);
        memcpy(z, z - K, (size_t)K * 4);
        row_scale(z, w->end, K);
        for (int64_t j = 0; j < c.n; j++) row_add(z, 1.0f, w->k + j * K, K);
    }
}

/* Turn dO (in w->o), X = dO S^T and Y = dO V^T into what they are for the numerators and the denominators of the normalised read-out:
 *   o = num/den, den = s e^b q.z + rowsum(P) + eps      dnum = do/den      dden = -(do.num)/den^2,  do.num = s e^b q.X + sum_j P_ij Y_ij
 * mLSTM's den is |den| or the floor, which has no gradient that m's does not have: with eps = 0 no output depends on m. */
static void normalise_backward(const lnt_recur_args *a, int64_t n, const float *z, const float *read, scratch *w)
{
    int64_t K = a->K, V = a->V;
    for (int64_t i = 0; i < n; i++) {
        const float *q = w->q + i * K, *P = w->P + i * w->C;
        float *X = w->x + i * K, *Y = w->Y + i * w->C;
        const float den = read[i] * row_dot(q, z, K) + row_sum(P, i + 1), floor = w->stable ? w->m.floor[i] : 0;
        float r = 1.0f / (w->stable ? stable_denominator(den, floor, a->eps) : den + (float)a->eps);
        float dden = -(read[i] * row_dot(q, X, K) + row_dot(P, Y, i + 1)) * r * r;
        if (w->stable) dden = stable_reads(&w->m, i, den, dden, a->eps);
        w->dden[i] = dden;
        row_scale(w->o + i * V, r, V);
        row_scale(X, r, K);
        row_add(X, dden, z, K);
        for (int64_t j = 0; j <= i; j++) Y[j] = Y[j] * r + dden;
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

/* The bonus: du += c_i q_i.k_i, c_i = s do_i.v_i on the diagonal of dA. */
static void bonus_gradient(const lnt_head *x, int64_t n, const scratch *w)
{
    const int64_t K = x->a->K;
    double *restrict du = (double *)x->a->workspace + x->index * K;
    for (int64_t i = 0; i < n; i++) {
        const float d = w->Y[i * (w->C + 1)], *restrict q = w->q + i * K, *restrict k = w->k + i * K;
        for (int64_t j = 0; j < K; j++) du[j] += d * q[j] * k[j];
    }
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
    if (w->columns) {
        vector_value_gradient(x, c, St, dv, w);
    } else {
        for (int64_t j = 0; j < n && !w->rows; j++) row_scale(dv + j * V, w->out[j], V);
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
    const int64_t K = x->a->K, V = x->a->V;
    const float fade = w->m.fades[i], *S = w->states;
    if (c.row + c.n == x->len) w->m.moved = (double)(fade * w->end) * row_dot(S, w->dS, K * V);
    stable_starts(&w->m, fade, c.n, K, V, w->read, w->q, S, w->o);
}

/* Chunk i; w->dS becomes the gradient of its start state. */
static void backward_chunk(const lnt_head *x, lnt_rows c, int64_t i, scratch *w)
{
    const lnt_recur_args *a = x->a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V, n = c.n;
    int64_t size = (int64_t)K * V;
    float s = (float)a->scale;
    const float *S = w->states + i * size, *z = w->zs + i * K;
    float *read = w->read, *dO = w->o;
    load_chunk(x, c, w);
    if (w->stable) w->m.m = w->m.starts[i];
    rows_in(dO, a->do_, a->dtype, c.first, n, a->Hv, x->h, V);
    decays(x, c, false, w);
    if (w->columns) row_times((int64_t)n * V, 1.0f, w->gv.from_start, dO, w->dos);
    lnt_operand q = e->prepare(w->rows ? 0 : LNT_LEFT | LNT_RIGHT, n, K, w->q, K, w->q_forms),
                k = e->prepare(w->rows ? 0 : LNT_RIGHT_T | LNT_RIGHT, n, K, w->k, K, w->k_forms);
    lnt_operand v = e->prepare(LNT_LEFT | LNT_RIGHT_T, n, V, w->v, V, w->v_forms), d = e->prepare(LNT_LEFT, n, V, dO, V, w->do_forms);
    lnt_operand ks = w->rows ? e->prepare(LNT_RIGHT_T, n, K, w->ks, K, w->ks_forms) : k;
    lnt_operand vs = w->columns ? e->prepare(LNT_LEFT, n, V, w->vs, V, w->vs_forms) : v;
    lnt_operand ds = w->columns ? e->prepare(LNT_LEFT | LNT_LEFT_T, n, V, w->dos, V, w->dos_forms) : d;
    lnt_operand St = e->prepare(LNT_RIGHT, V, K, S, K, w->S_forms), dSt = e->prepare(LNT_LEFT | LNT_RIGHT, V, K, w->dS, K, w->dS_forms);
    if (!w->dq_sum) rows_ahead_out(a->dq, a->dtype, c.first, n, a->Hq, x->hq, K);
    if (!w->dk_sum) rows_ahead_out(a->dk, a->dtype, c.first, n, a->Hq, x->hq, K);
    rows_ahead_out(a->dv, a->dtype, c.first, n, a->Hv, x->h, V);
    scores(x, n, &q, &k, w);
    if (i) rows_ahead(S - size, LINNET_F32, 0, V, 1, 0, K);
    key_ahead(x, c, a->q);
    value_pairs(w, n, &d, &v, s);
    key_ahead(x, c, a->k);
    e->multiply(LNT_MM_SET, NULL, &ds, false, &St, false, w->x, K);
    value_ahead(x, c, a->v);
    bool gate = a->dg || a->dg_head || a->dsign || w->stable;
    if (a->has_sign) signed_reads(&w->turns, n, w->C, s, w->Y, K, w->q, w->x, row_dot(S, w->dS, size));
    double last = gate ? (double)w->end * row_dot(S, w->dS, size) : 0.0; /* <S',dS'> = e^{b_n} <S,dS'> + sum_j k_j . (what dS' gives dk_j) */
    if (a->dgk || a->dgv) state_products(w, K, V, S);
    if (w->normalize) {
        normalise_backward(a, n, z, read, w);
        if (gate) last += (double)w->end * row_dot(z, w->dz, K);
    }
    if (gate && !a->has_sign) gates_read(BLOCKS, n, K, w->P, w->Y, w->C, read, w->q, w->x, &w->gates);
    if (moves_by_rows(a, w)) move_rows(x, c, i, w);
    for (int64_t r = 0; r < n && !w->columns; r++) mask_row(w->Y + r * w->C, w->D + r * w->C, s, r, block_end(BLOCKS, r, n)); /* dA */

    lnt_operand P = e->prepare(LNT_LEFT_T, n, n, w->P, w->C, w->P_forms),
                dA = e->prepare(w->rows ? 0 : LNT_LEFT | LNT_LEFT_T, n, n, w->Y, w->C, w->Y_forms);
    d = e->prepare(LNT_RIGHT | (w->columns ? 0 : LNT_LEFT_T), n, V, dO, V, w->do_forms); /* normalised by now */
    if (!w->columns) ds = d;
    value_ahead(x, c, a->do_);
    e->multiply(LNT_MM_SET, NULL, &vs, false, &dSt, false, w->dk, K);
    e->multiply(LNT_MM_SET, NULL, &dSt, false, &ks, true, w->dvt, w->C);
    if (w->rows) {
        float_ahead(x, c, a->gk, K);
        vector_key_gradients(x, c, w);
    } else {
        for (int64_t r = 0; r < n; r++) row_scale(w->x + r * K, read[r], K);
        apply_lower(BLOCKS, n, &dA, &k, K, w->x); /* dQ */
        if (w->normalize)
            for (int64_t j = 0; j < n; j++) row_add(w->dk + j * K, 1.0f, w->dz, K);
        for (int64_t j = 0; j < n && a->has_sign; j++) w->turns.writes[j] = row_dot(w->k + j * K, w->dk + j * K, K);
        for (int64_t j = 0; j < n; j++) row_scale(w->dk + j * K, w->out[j], K);
        if (gate && !a->has_sign) last += gates_write(n, K, w->k, w->dk, &w->gates);
        apply_lower_transposed(BLOCKS, n, &dA, &q, K, w->dk); /* dK */
    }
    if (gate) gate_gradient(x, c, last, w);
    put_shared(x, c, w->x, a->dq, w->dq_sum);
    put_shared(x, c, w->dk, a->dk, w->dk_sum);

    value_gradient(x, c, &P, &d, &St, w);
    for (int64_t r = 0; r < n && !w->rows; r++) row_scale(w->qs + r * K, read[r], K);
    lnt_operand reads = e->prepare(LNT_RIGHT, n, K, w->qs, K, w->read_forms);
    if (w->rows || w->columns) {
        decay_state(V, K, w->columns ? w->gv.end : NULL, w->rows ? w->gk.end : NULL, w->dS, w->dS);
        e->multiply(LNT_MM_ADD, NULL, &ds, true, &reads, false, w->dS, K);
        return;
    }
    e->multiply(LNT_MM_SCALED, &w->end, &d, true, &reads, false, w->dS, K);
    if (!w->normalize) return;
    row_scale(w->dz, w->end, K);
    for (int64_t r = 0; r < n; r++) row_add(w->dz, w->dden[r], w->q + r * K, K);
}

/* Doubles that a head adds to parameters which all tokens share: the gate of a head, or the bonus. */
static int64_t shared_sums(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_EARLY ? a->K : 1; }
static size_t sums_bytes(const lnt_recur_args *a)
{
    return ((size_t)(a->sequences * a->Hv * shared_sums(a)) * sizeof(double) + 63) / 64 * 64;
}

static void backward_head(const lnt_head *x, char *base)
{
    const lnt_recur_args *a = x->a;
    scratch work, *w = &work;
    carve(a, true, base, w);
    int64_t sums = shared_sums(a), chunks = chunk_count(x, w->C);
    memset((double *)a->workspace + x->index * sums, 0, (size_t)sums * sizeof(double));
    get_turned(x, w->dS, a->dsT);
#if defined(__AMX_BF16__)
    if (w->tiled) {
        tiled_sweep(x, w);
        w->state = ENGINE->prepare(LNT_RIGHT, a->V, a->K, w->dS, a->K, w->dS_forms);
        for (int64_t i = chunks - 1; i >= 0; i--) tiled_backward_chunk(x, chunk_at(x, w->C, i, -1), i, w);
    }
#endif
    if (!w->tiled) sweep(x, w);
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
    const double *sums = a->workspace;
    int64_t width = shared_sums(a), all = a->Hv * width;
    float *out = a->op->kind == LNT_DECAY_EARLY ? a->dbonus : a->dg_head;
    for (int64_t i = 0; out && i < all; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += sums[n * all + i];
        out[i] = (float)sum;
    }
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
