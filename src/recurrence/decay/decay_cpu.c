/* The decay core on the CPU: chunk form forward and backward, token form. One piece of work is one head of one sequence.
 *
 * A chunk of n <= C rows with start state S [K,V], b_i = g_1 + ... + g_i inside the chunk, D_ij = e^{b_i - b_j} for j <= i, else 0 (operators.md 2):
 *
 *   O  = s [ diag(e^b) (Q S) + (Q K^T . D) V ]              S' = e^{b_n} S + (diag(e^{b_n - b}) K)^T V
 *
 * and backward from dO and dS':
 *
 *   P  = s QK^T.D      dA = s (dO V^T).D                    dQ = dA K + s e^b.(dO S^T)         dK = dA^T Q + e^{b_n-b}.(V dS'^T)
 *   dV = P^T dO + e^{b_n-b}.(K dS')                         dS = e^{b_n} dS' + s (e^b.Q)^T dO
 *   db = rowsum(Q.dQ) - rowsum(K.dK), db_n += <S',dS'>      dg = reverse cumulative sum of db
 *
 * Sums b and their differences are float64, so D keeps float32 accuracy whatever the gates are; a gate below GATE_FLOOR counts as GATE_FLOOR, whose
 * exponential is exactly 0 in float32: an exact reset (g = -inf) needs nothing else, and no inf - inf ever occurs.
 *
 * The algorithm is written in products; an engine (simd/mm.h) runs them in float32 or, for bf16 tensors, through bf16 tiles. The triangle of the
 * C x C products is used in blocks of rows. The backward pass keeps all states transposed ([V,K]): that way every product finds its right operand row
 * major without transposing a state. */
#include <omp.h>

#include "core/cpu.h"
#include "recurrence/chunk/chunk.h"
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/recurrence.h"
#include "simd/mm.h"

/* float32 serves every variant up to avx512; the amx variant has tiles, for bf16 tensors. */
#if defined(__AMX_BF16__)
#define ENGINE (&LNT_V(lnt_mm_bf16_tiles))
enum { BLOCK = 32 };
#else
#define ENGINE (&LNT_V(lnt_mm_f32))
enum { BLOCK = 16 };
#endif
#define GATE_FLOOR (-128.0)

typedef struct {
    const lnt_recur_args *a;
    int64_t n;  /* sequence */
    int h, hq;  /* value head, query-key head */
    int64_t first, len;
    int C;
} piece;

/* Scratch of a thread. [C,K]: q k x dk; [C,V]: v o; [C,C]: P D; [C]: in = e^b, out = e^{b_n-b}, read = s e^b. */
typedef struct {
    float *S, *z, *q, *k, *v, *o, *P, *D, *in, *out, *read;
    double *b;
    float end;   /* e^{b_n} */
    int64_t gated; /* rows that in, out, read, D and end were made for, when the gates are the same in every chunk; 0: none yet */
    void *q_forms, *k_forms, *v_forms, *P_forms, *S_forms;
    /* backward: dS [V,K]; states [chunks,V,K], zs [chunks,K]; dvt [V,C]; Y [C,C]; dden [C]; dq_sum dk_sum [len,K] when heads share q and k */
    float *dS, *dz, *states, *zs, *x, *dk, *dvt, *Y, *dden, *dq_sum, *dk_sum;
    void *do_forms, *read_forms, *dS_forms, *Y_forms;
    lnt_operand state; /* S with its right form, renewed by every write (forward) */
} scratch;

/* With tiles a chunk of 64: its two passes over the state cost more than the larger squares (T=2048, K=V=128, two threads: 4.6 ms forward against 5.2
 * to 7.9 at 32 and 5.6 at 128). Delta keeps the engine's 32: the solve grows with the square. */
static int default_chunk(void) { return ENGINE->bf16 ? 64 : ENGINE->chunk; }

static int chunk_length(const lnt_recur_args *a)
{
    int64_t C = a->chunk ? a->chunk : default_chunk(), longest = lnt_recur_longest(a);
    return (int)(C > longest ? (longest > 0 ? longest : 1) : C);
}

/* A thread's scratch at base (NULL: only measure); returns its bytes. */
static size_t carve(const lnt_recur_args *a, bool backward, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    const lnt_mm_engine *e = ENGINE;
    int64_t K = a->K, V = a->V, C = chunk_length(a), longest = lnt_recur_longest(a), states = longest > C ? (longest + C - 1) / C : 1;
    int n = (int)C, left = LNT_LEFT, left_t = LNT_LEFT_T, right = LNT_RIGHT, right_t = LNT_RIGHT_T;
    *w = (scratch){ .q = lnt_carve_floats(&c, C * K),
                    .k = lnt_carve_floats(&c, C * K),
                    .v = lnt_carve_floats(&c, C * V),
                    .o = lnt_carve_floats(&c, C * V),
                    .P = lnt_carve_floats(&c, C * C),
                    .D = lnt_carve_floats(&c, C * C),
                    .in = lnt_carve_floats(&c, C),
                    .out = lnt_carve_floats(&c, C),
                    .read = lnt_carve_floats(&c, C),
                    .b = lnt_carve_bytes(&c, (size_t)C * sizeof(double)) };
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
    w->Y = lnt_carve_floats(&c, C * C);
    w->dden = lnt_carve_floats(&c, C);
    w->states = lnt_carve_floats(&c, states * K * V);
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

/* b, in, out, read, end and D of the n rows from token t. */
static void decays(piece x, int64_t t, int64_t n, scratch *w)
{
    const lnt_recur_args *a = x.a;
    if (!a->g && w->gated == n) return;
    const float *g = a->g, *g_head = a->g_head;
    double b = 0;
    for (int64_t i = 0; i < n; i++) {
        double gate = g ? g[(t + i) * a->Hv + x.h] : g_head ? g_head[x.h] : 0.0;
        b += gate < GATE_FLOOR ? GATE_FLOOR : gate;
        w->b[i] = b;
    }
    for (int64_t i = 0; i < n; i++) {
        w->in[i] = (float)w->b[i];
        w->out[i] = (float)(b - w->b[i]);
        float *D = w->D + i * x.C;
        for (int64_t j = 0; j <= i; j++) D[j] = (float)(w->b[i] - w->b[j]);
        row_exp(D, i + 1);
    }
    row_exp(w->in, n);
    row_exp(w->out, n);
    for (int64_t i = 0; i < n; i++) w->read[i] = (float)a->scale * w->in[i];
    w->end = w->in[n - 1];
    w->gated = n;
}

/* Row i of a triangular block: x_j *= s D_ij for j <= i, 0 from there to `end`. */
static void mask_row(float *x, const float *D, float s, int64_t i, int64_t end)
{
    row_mul(x, D, i + 1);
    if (s != 1.0f) row_scale(x, s, i + 1);
    for (int64_t j = i + 1; j < end; j++) x[j] = 0.0f;
}

static int block_rows(int64_t i, int64_t n) { return (int)(i + BLOCK < n ? BLOCK : n - i); }
static int64_t block_end(int64_t i, int64_t n) { return i / BLOCK * BLOCK + block_rows(i / BLOCK * BLOCK, n); }

/* Y = X W^T on and below the diagonal, block of rows by block of rows. What lies above the diagonal blocks is left undefined. */
static void triangle(piece p, int64_t n, const lnt_operand *X, const lnt_operand *W, float *Y)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        lnt_operand x = ENGINE->view(X, (int)i, block_rows(i, n)), y = ENGINE->view(W, 0, (int)i + block_rows(i, n));
        ENGINE->multiply(LNT_MM_SET, NULL, &x, false, &y, true, Y + i * p.C, p.C);
    }
}

/* y_i += sum_{j<=i} A_ij x_j: [n,width]. */
static void apply_lower(int64_t n, const lnt_operand *A, const lnt_operand *x, int64_t width, float *y)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        lnt_operand a = ENGINE->view(A, (int)i, block_rows(i, n));
        a.cols = (int)i + a.rows;
        ENGINE->multiply(LNT_MM_ADD, NULL, &a, false, x, false, y + i * width, width);
    }
}

/* The rows from j on and the columns j .. j+cols-1 of a square operand, to be used transposed at the left. */
static lnt_operand corner(const lnt_operand *m, int j, int cols)
{
    lnt_operand v = *m;
    v.x += j * m->ld + j;
    v.rows -= j;
    v.cols = cols;
    if (v.left_t.p) v.left_t.p = (const lnt_bf16 *)v.left_t.p + j * v.left_t.ld + j;
    return v;
}

/* y_j += sum_{i>=j} A_ij x_i: [n,width]. */
static void apply_lower_transposed(int64_t n, const lnt_operand *A, const lnt_operand *x, int64_t width, float *y)
{
    for (int64_t j = 0; j < n; j += BLOCK) {
        lnt_operand a = corner(A, (int)j, block_rows(j, n)), rest = ENGINE->view(x, (int)j, (int)(n - j));
        ENGINE->multiply(LNT_MM_ADD, NULL, &a, true, &rest, false, y + j * width, width);
    }
}

/* Fetch the rows of the chunk that comes next (its first token, or -1), a tensor at a time between the products. */
static void key_ahead(piece x, int64_t next, const void *rows)
{
    if (next >= 0) rows_ahead(rows, x.a->dtype, next, x.first + x.len - next < x.C ? x.first + x.len - next : x.C, x.a->Hq, x.hq, x.a->K);
}

static void value_ahead(piece x, int64_t next, const void *rows)
{
    if (next >= 0) rows_ahead(rows, x.a->dtype, next, x.first + x.len - next < x.C ? x.first + x.len - next : x.C, x.a->Hv, x.h, x.a->V);
}

static void load_chunk(piece x, int64_t t, int64_t n, scratch *w)
{
    const lnt_recur_args *a = x.a;
    rows_in(w->q, a->q, a->dtype, t, n, a->Hq, x.hq, a->K);
    rows_in(w->k, a->k, a->dtype, t, n, a->Hq, x.hq, a->K);
    rows_in(w->v, a->v, a->dtype, t, n, a->Hv, x.h, a->V);
}

/* P = s QK^T.D, lower triangle in blocks. */
static void scores(piece x, int64_t n, const lnt_operand *q, const lnt_operand *k, scratch *w)
{
    triangle(x, n, q, k, w->P);
    for (int64_t i = 0; i < n; i++) mask_row(w->P + i * x.C, w->D + i * x.C, (float)x.a->scale, i, block_end(i, n));
}

static void forward_chunk(piece x, int64_t t, int64_t n, scratch *w)
{
    const lnt_recur_args *a = x.a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V, rows = (int)n;
    load_chunk(x, t, n, w);
    decays(x, t, n, w);
    lnt_operand q = e->prepare(LNT_LEFT, rows, K, w->q, K, w->q_forms), k = e->prepare(LNT_RIGHT_T, rows, K, w->k, K, w->k_forms);
    lnt_operand v = e->prepare(LNT_RIGHT, rows, V, w->v, V, w->v_forms);
    int64_t next = t + n < x.first + x.len ? t + n : -1;
    rows_ahead(a->o, a->dtype, t, n, a->Hv, x.h, V);
    scores(x, n, &q, &k, w);
    key_ahead(x, next, a->q);
    lnt_operand P = e->prepare(LNT_LEFT, rows, rows, w->P, x.C, w->P_forms);
    e->multiply(LNT_MM_SET, NULL, &q, false, &w->state, false, w->o, V);
    key_ahead(x, next, a->k);
    for (int64_t i = 0; i < n; i++) row_scale(w->o + i * V, w->read[i], V);
    apply_lower(n, &P, &v, V, w->o);
    value_ahead(x, next, a->v);
    if (a->normalize)
        for (int64_t i = 0; i < n; i++) {
            float den = w->read[i] * row_dot(w->q + i * K, w->z, K) + row_sum(w->P + i * x.C, i + 1) + (float)a->eps;
            row_scale(w->o + i * V, 1.0f / den, V);
        }
    rows_out(a->o, a->dtype, t, n, a->Hv, x.h, V, w->o);

    for (int64_t j = 0; j < n; j++) row_scale(w->k + j * K, w->out[j], K);
    k = e->prepare(LNT_LEFT_T, rows, K, w->k, K, w->k_forms);
    e->update(&w->end, &k, true, &v, false, &w->state);
    if (!a->normalize) return;
    row_scale(w->z, w->end, K);
    for (int64_t j = 0; j < n; j++) row_add(w->z, 1.0f, w->k + j * K, K);
}

static piece piece_of(const lnt_recur_args *a, int64_t n, int64_t h)
{
    return (piece){ a, n, (int)h, (int)(h / (a->Hv / a->Hq)), a->cu_seqlens[n], a->cu_seqlens[n + 1] - a->cu_seqlens[n], chunk_length(a) };
}

/* A state, or zeros. */
static void get_state(float *dst, const void *src, int64_t i, int64_t size)
{
    if (src)
        memcpy(dst, (const float *)src + i * size, (size_t)size * 4);
    else
        memset(dst, 0, (size_t)size * 4);
}

static void put_state(void *dst, int64_t i, int64_t size, const float *src)
{
    if (dst) memcpy((float *)dst + i * size, src, (size_t)size * 4);
}

static void forward_piece(piece x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t i = x.n * a->Hv + x.h;
    get_state(w->S, a->s0, i, (int64_t)a->K * a->V);
    get_state(w->z, a->z0, i, a->K);
    w->state = ENGINE->prepare(LNT_RIGHT, a->K, a->V, w->S, a->V, w->S_forms);
    w->gated = 0;
    for (int64_t t = 0; t < x.len; t += x.C) forward_chunk(x, x.first + t, x.len - t < x.C ? x.len - t : x.C, w);
    put_state(a->sT, i, (int64_t)a->K * a->V, w->S);
    put_state(a->zT, i, a->K, w->z);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------- */

/* All chunk start states, transposed, into w->states and w->zs. Returns the number of chunks. */
static int64_t sweep(piece x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int K = a->K, V = a->V;
    int64_t size = (int64_t)K * V, i = x.n * a->Hv + x.h, c = 0;
    if (a->s0)
        LNT_V(lnt_transpose)(K, V, (const float *)a->s0 + i * size, V, w->states, K);
    else
        memset(w->states, 0, (size_t)size * 4);
    get_state(w->zs, a->z0, i, K);
    for (int64_t t = 0; t < x.len; t += x.C, c++) {
        int64_t n = x.len - t < x.C ? x.len - t : x.C;
        if (t + n == x.len) continue; /* nobody reads the final state */
        float *S = w->states + (c + 1) * size, *z = w->zs + (c + 1) * K;
        rows_in(w->k, a->k, a->dtype, x.first + t, n, a->Hq, x.hq, K);
        rows_in(w->v, a->v, a->dtype, x.first + t, n, a->Hv, x.h, V);
        decays(x, x.first + t, n, w);
        key_ahead(x, x.first + t + n, a->k);
        for (int64_t j = 0; j < n; j++) row_scale(w->k + j * K, w->out[j], K);
        value_ahead(x, x.first + t + n, a->v);
        memcpy(S, S - size, (size_t)size * 4);
        lnt_operand v = ENGINE->prepare(LNT_LEFT_T, (int)n, V, w->v, V, w->v_forms), k = ENGINE->prepare(LNT_RIGHT, (int)n, K, w->k, K, w->k_forms);
        ENGINE->multiply(LNT_MM_SCALED, &w->end, &v, true, &k, false, S, K);
        memcpy(z, z - K, (size_t)K * 4);
        row_scale(z, w->end, K);
        for (int64_t j = 0; j < n; j++) row_add(z, 1.0f, w->k + j * K, K);
    }
    return c;
}

/* Turn dO (in w->o), X = dO S^T and Y = dO V^T into what they are for the numerators and the denominators of the normalised read-out:
 *   o = num/den, den = s e^b q.z + rowsum(P) + eps      dnum = do/den      dden = -(do.num)/den^2,  do.num = s e^b q.X + sum_j P_ij Y_ij */
static void normalise_backward(piece x, int64_t n, const float *z, const float *read, scratch *w)
{
    int64_t K = x.a->K, V = x.a->V;
    for (int64_t i = 0; i < n; i++) {
        const float *q = w->q + i * K, *P = w->P + i * x.C;
        float *X = w->x + i * K, *Y = w->Y + i * x.C;
        float r = 1.0f / (read[i] * row_dot(q, z, K) + row_sum(P, i + 1) + (float)x.a->eps);
        float dden = -(read[i] * row_dot(q, X, K) + row_dot(P, Y, i + 1)) * r * r;
        w->dden[i] = dden;
        row_scale(w->o + i * V, r, V);
        row_scale(X, r, K);
        row_add(X, dden, z, K);
        for (int64_t j = 0; j <= i; j++) Y[j] = Y[j] * r + dden;
    }
}

/* dg of the chunk from q.dq - k.dk and <S',dS'>. Returns the sum over the chunk. */
static double gate_gradient(piece x, int64_t t, int64_t n, double last, const scratch *w)
{
    const lnt_recur_args *a = x.a;
    int64_t K = a->K;
    const float *g = a->g;
    float *dg = a->dg;
    double db = last, sum = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        db += row_dot(w->q + i * K, w->x + i * K, K) - row_dot(w->k + i * K, w->dk + i * K, K);
        double d = g && g[(t + i) * a->Hv + x.h] < GATE_FLOOR ? 0.0 : db; /* nothing passes a reset */
        if (dg) dg[(t + i) * a->Hv + x.h] = (float)d;
        sum += d;
    }
    return sum;
}

/* Chunk c, from token t; w->dS becomes the gradient of its start state. Returns the sum of dg. */
static double backward_chunk(piece x, int64_t c, int64_t t, int64_t n, scratch *w)
{
    const lnt_recur_args *a = x.a;
    const lnt_mm_engine *e = ENGINE;
    int K = a->K, V = a->V, rows = (int)n;
    int64_t size = (int64_t)K * V;
    float s = (float)a->scale;
    const float *S = w->states + c * size, *z = w->zs + c * K;
    float *read = w->read, *dO = w->o;
    load_chunk(x, t, n, w);
    rows_in(dO, a->do_, a->dtype, t, n, a->Hv, x.h, V);
    decays(x, t, n, w);
    lnt_operand q = e->prepare(LNT_LEFT | LNT_RIGHT, rows, K, w->q, K, w->q_forms),
                k = e->prepare(LNT_RIGHT_T | LNT_RIGHT, rows, K, w->k, K, w->k_forms);
    lnt_operand v = e->prepare(LNT_LEFT | LNT_RIGHT_T, rows, V, w->v, V, w->v_forms), d = e->prepare(LNT_LEFT, rows, V, dO, V, w->do_forms);
    lnt_operand St = e->prepare(LNT_RIGHT, V, K, S, K, w->S_forms), dSt = e->prepare(LNT_LEFT | LNT_RIGHT, V, K, w->dS, K, w->dS_forms);
    int64_t before = c > 0 ? t - x.C : -1;
    rows_ahead(a->dv, a->dtype, t, n, a->Hv, x.h, V);
    scores(x, n, &q, &k, w);
    key_ahead(x, before, a->q);
    triangle(x, n, &d, &v, w->Y);
    key_ahead(x, before, a->k);
    e->multiply(LNT_MM_SET, NULL, &d, false, &St, false, w->x, K);
    value_ahead(x, before, a->v);
    bool gate = a->dg || a->dg_head;
    double last = gate ? (double)w->end * row_dot(S, w->dS, size) : 0.0; /* <S',dS'> = e^{b_n} <S,dS'> + sum_j k_j . (what dS' gives dk_j) */
    if (a->normalize) {
        normalise_backward(x, n, z, read, w);
        if (gate) last += (double)w->end * row_dot(z, w->dz, K);
    }
    for (int64_t i = 0; i < n; i++) mask_row(w->Y + i * x.C, w->D + i * x.C, s, i, block_end(i, n)); /* dA */

    lnt_operand P = e->prepare(LNT_LEFT_T, rows, rows, w->P, x.C, w->P_forms),
                dA = e->prepare(LNT_LEFT | LNT_LEFT_T, rows, rows, w->Y, x.C, w->Y_forms);
    d = e->prepare(LNT_RIGHT | LNT_LEFT_T, rows, V, dO, V, w->do_forms); /* normalised by now */
    for (int64_t i = 0; i < n; i++) row_scale(w->x + i * K, read[i], K);
    apply_lower(n, &dA, &k, K, w->x); /* dQ */
    value_ahead(x, before, a->do_);
    e->multiply(LNT_MM_SET, NULL, &v, false, &dSt, false, w->dk, K);
    if (!w->dq_sum) rows_ahead(a->dq, a->dtype, t, n, a->Hq, x.hq, K);
    if (a->normalize)
        for (int64_t j = 0; j < n; j++) row_add(w->dk + j * K, 1.0f, w->dz, K);
    for (int64_t j = 0; j < n; j++) row_scale(w->dk + j * K, w->out[j], K);
    for (int64_t j = 0; gate && j < n; j++) last += row_dot(w->k + j * K, w->dk + j * K, K); /* rounds as k.dk does below, so that they cancel */
    apply_lower_transposed(n, &dA, &q, K, w->dk); /* dK */
    e->multiply(LNT_MM_SET, NULL, &dSt, false, &k, true, w->dvt, x.C);
    if (!w->dk_sum) rows_ahead(a->dk, a->dtype, t, n, a->Hq, x.hq, K);
    LNT_V(lnt_transpose)(V, (int)n, w->dvt, x.C, w->v, V); /* v is not needed any more */
    for (int64_t j = 0; j < n; j++) row_scale(w->v + j * V, w->out[j], V);
    apply_lower_transposed(n, &P, &d, V, w->v); /* dV */
    rows_out(a->dv, a->dtype, t, n, a->Hv, x.h, V, w->v);
    double sum = gate ? gate_gradient(x, t, n, last, w) : 0.0;
    if (w->dq_sum) {
        row_add(w->dq_sum + (t - x.first) * K, 1.0f, w->x, n * K);
        row_add(w->dk_sum + (t - x.first) * K, 1.0f, w->dk, n * K);
    } else {
        rows_out(a->dq, a->dtype, t, n, a->Hq, x.hq, K, w->x);
        rows_out(a->dk, a->dtype, t, n, a->Hq, x.hq, K, w->dk);
    }

    for (int64_t i = 0; i < n; i++) row_scale(w->q + i * K, read[i], K);
    lnt_operand reads = e->prepare(LNT_RIGHT, rows, K, w->q, K, w->read_forms);
    e->multiply(LNT_MM_SCALED, &w->end, &d, true, &reads, false, w->dS, K);
    if (!a->normalize) return sum;
    row_scale(w->dz, w->end, K);
    for (int64_t i = 0; i < n; i++) row_add(w->dz, w->dden[i], w->q + i * K, K);
    return sum;
}

/* Returns the sum of dg over the sequence. */
static double backward_piece(piece x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int K = a->K, V = a->V;
    int64_t size = (int64_t)K * V, i = x.n * a->Hv + x.h;
    double sum = 0;
    w->gated = 0;
    int64_t chunks = sweep(x, w);
    if (a->dsT)
        LNT_V(lnt_transpose)(K, V, (const float *)a->dsT + i * size, V, w->dS, K);
    else
        memset(w->dS, 0, (size_t)size * 4);
    get_state(w->dz, a->dzT, i, K);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        int64_t t = c * x.C;
        sum += backward_chunk(x, c, x.first + t, x.len - t < x.C ? x.len - t : x.C, w);
    }
    if (a->ds0) LNT_V(lnt_transpose)(V, K, w->dS, K, (float *)a->ds0 + i * size, V);
    put_state(a->dz0, i, K, w->dz);
    return sum;
}

/* ---- token form -------------------------------------------------------------------------------------------------------------------- */

/* S = alpha S + k v^T and o = s S^T q in one pass over the state, LNT_VL * P columns at a time. */
static inline __attribute__((always_inline)) void step_columns(int P, int K, int V, float alpha, float s, const float *q, const float *k,
                                                               const float *v, float *S, float *o)
{
    vf value[4], sum[4];
    for (int p = 0; p < P; p++) {
        value[p] = v_load(v + p * LNT_VL);
        sum[p] = v_zero();
    }
    for (int i = 0; i < K; i++) {
        float *row = S + (int64_t)i * V;
        vf key = v_set(k[i]), query = v_set(q[i]);
        for (int p = 0; p < P; p++) {
            vf x = v_load(row + p * LNT_VL) * alpha + key * value[p];
            v_store(row + p * LNT_VL, x);
            sum[p] += query * x;
        }
    }
    for (int p = 0; p < P; p++) v_store(o + p * LNT_VL, sum[p] * s);
}

static void step(int K, int V, float alpha, float s, const float *q, const float *k, const float *v, float *S, float *o)
{
    int j = 0;
    for (; j + 4 * LNT_VL <= V; j += 4 * LNT_VL) step_columns(4, K, V, alpha, s, q, k, v + j, S + j, o + j);
    for (; j + LNT_VL <= V; j += LNT_VL) step_columns(1, K, V, alpha, s, q, k, v + j, S + j, o + j);
    for (; j < V; j++) {
        float sum = 0;
        for (int i = 0; i < K; i++) {
            float *x = S + (int64_t)i * V + j;
            *x = alpha * *x + k[i] * v[j];
            sum += q[i] * *x;
        }
        o[j] = s * sum;
    }
}

static void recurrent_piece(piece x, scratch *w)
{
    const lnt_recur_args *a = x.a;
    int K = a->K, V = a->V;
    int64_t i = x.n * a->Hv + x.h;
    bool in_place = a->sT != NULL;
    float *S = in_place ? (float *)a->sT + i * K * V : w->S, *z = w->z;
    if (!in_place || a->sT != a->s0) get_state(S, a->s0, i, (int64_t)K * V);
    get_state(z, a->z0, i, K);
    const float *g = a->g, *g_head = a->g_head;
    for (int64_t t = x.first; t < x.first + x.len; t++) {
        load_chunk(x, t, 1, w);
        float alpha = expf(g ? g[t * a->Hv + x.h] : g_head ? g_head[x.h] : 0.0f);
        step(K, V, alpha, (float)a->scale, w->q, w->k, w->v, S, w->o);
        if (a->normalize) {
            row_scale(z, alpha, K);
            row_add(z, 1.0f, w->k, K);
            row_scale(w->o, 1.0f / ((float)a->scale * row_dot(w->q, z, K) + (float)a->eps), V);
        }
        rows_out(a->o, a->dtype, t, 1, a->Hv, x.h, V, w->o);
    }
    put_state(a->zT, i, K, z);
}

/* ---- the implementations ----------------------------------------------------------------------------------------------------------- */

static size_t workspace(const lnt_recur_args *a, bool backward, int threads)
{
    scratch w;
    size_t sums = ((size_t)a->sequences * (size_t)a->Hv * sizeof(double) + 63) / 64 * 64;
    return (size_t)threads * carve(a, backward, NULL, &w) + (backward ? sums : 0);
}

static void run_forward(const lnt_recur_args *a, int threads, void (*body)(piece, scratch *))
{
    int64_t pieces = a->sequences * a->Hv;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        scratch w;
        size_t bytes = carve(a, false, NULL, &w);
        carve(a, false, (char *)a->workspace + (size_t)omp_get_thread_num() * bytes, &w);
        ENGINE->begin();
        body(piece_of(a, i / a->Hv, i % a->Hv), &w);
        ENGINE->end();
    }
}

static void chunk_forward(const lnt_recur_args *a, int threads) { run_forward(a, threads, forward_piece); }
static void recurrent_forward(const lnt_recur_args *a, int threads) { run_forward(a, threads, recurrent_piece); }

static void backward(const lnt_recur_args *a, int threads)
{
    int64_t group = a->Hv / a->Hq, pieces = a->sequences * a->Hq;
    double *sums = a->workspace; /* [N,Hv] */
    char *scratches = (char *)a->workspace + ((size_t)(a->sequences * a->Hv) * sizeof(double) + 63) / 64 * 64;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        scratch w;
        size_t bytes = carve(a, true, NULL, &w);
        carve(a, true, scratches + (size_t)omp_get_thread_num() * bytes, &w);
        int64_t n = i / a->Hq, hq = i % a->Hq, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        if (w.dq_sum) {
            memset(w.dq_sum, 0, (size_t)(len * a->K) * 4);
            memset(w.dk_sum, 0, (size_t)(len * a->K) * 4);
        }
        ENGINE->begin();
        for (int64_t h = hq * group; h < (hq + 1) * group; h++) sums[n * a->Hv + h] = backward_piece(piece_of(a, n, h), &w);
        if (w.dq_sum) {
            rows_out(a->dq, a->dtype, first, len, a->Hq, hq, a->K, w.dq_sum);
            rows_out(a->dk, a->dtype, first, len, a->Hq, hq, a->K, w.dk_sum);
        }
        ENGINE->end();
    }
    float *dg_head = a->dg_head;
    for (int64_t h = 0; dg_head && h < a->Hv; h++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += sums[n * a->Hv + h];
        dg_head[h] = (float)sum;
    }
}

static const char *declines(const lnt_recur_args *a, bool back)
{
    (void)back;
    return ENGINE->bf16 && a->dtype != LINNET_BF16 ? "its products round to bf16; the tensors are float32" : NULL;
}

extern const lnt_recur_impl LNT_V(lnt_decay_chunk), LNT_V(lnt_decay_recurrent);

const lnt_recur_impl LNT_V(lnt_decay_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL, .declines = declines,
                                               .workspace = workspace, .forward = chunk_forward, .backward = backward };
/* The token form's backward pass is the chunk form's. */
const lnt_recur_impl LNT_V(lnt_decay_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                   .declines = declines, .workspace = workspace, .forward = recurrent_forward, .backward = backward };
