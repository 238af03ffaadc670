/* The Mesa core on the CPU: conjugate gradients for a chunk of tokens at once, everything else by the decay core. Heads go side by side
 * (chunk_walk.h); those that are longer than the window are mesa_window_cpu.c's.
 *
 * For the rows of a chunk of n <= C tokens with start state H, b_i = g_1 + ... + g_i, D_ij = e^{b_i - b_j} for j <= i, else 0, no H_t is ever formed:
 *
 *   Op(P) = e^b.(P H) + ((P K^T).D.beta) K + P.Lambda                                              (operators.md#mesa)
 *   diag(H_i) = e^{b_i} diag(H) + sum_j D_ij beta_j k_j^2
 *
 * The solve is mesa_solve_cpu.c's. Then o = G^T x is linear attention with the query x and the key beta k: a call of the decay core for a segment of
 * the head, whose rows stay in the cache. Backward, with y = G do (the decay core's dq) and (H + Lambda) e = y by the same solver, two of the decay
 * core's backward passes: (x, beta k, v, do) and (x, beta k, k, -e).
 *
 * With cg_gradient = LNT_CG_UNROLLED the backward pass takes the forward solve's steps again, chunk by chunk, keeps them, and differentiates them
 * last step first (mesa_unroll_cpu.c); the products with keys and states that this makes are done for all steps of a chunk at once.
 *
 * Always float32: the steps shrink a residual, and what bf16 operands lose there (2e-3) no later step brings back. Tiles, which lose it:
 * mesa_amx_cpu.c. */
#if !defined(LNT_VARIANT_amx)
#include "core/cpu.h"
#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/chunk/chunk_signed.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/mesa/mesa_solver.h"
#include "recurrence/mesa/mesa_window.h"
#include "simd/mm.h"

/* Chunks of 16: the squares of 32 and 64 cost more than the state they spare reading (docs/performance/mesa.md). */
enum { CHUNK = 16, FLASH_CHUNK = 64, SEGMENT = 128 };

/* A head at work. */
typedef struct {
    const lnt_mesa_args *a;
    const lnt_head *x;
    bool token; /* the token form: a chunk is one token, already in H */
} piece;

typedef lnt_mesa_solver solver;
typedef lnt_mesa_trail trail;

/* Scratch of a thread. [segment,K]: k kb x b; [segment,V]: v o; [segment]: g beta. Backward: dkb dkb2 dvalue [segment,K], dv [segment,V], dg dg2
 * [segment], dG [K,V] and dH [K,K] twice, the states before every segment, dq_sum dk_sum [len,K] when heads share q and k. */
typedef struct {
    solver s;
    float *G, *k, *kb, *x, *b, *v, *o, *g, *beta;
    float *sign, *gates, *dsign, *dsign2; /* [segment] where decays have one; gates: the logarithms of their sizes, g where they have none */
    float *dkb, *dkb2, *dvalue, *dv, *dg, *dg2, *dG[2], *dH[2], *Hs, *Gs, *dq_sum, *dk_sum;
    float *q, *dq, *Hc; /* of steps that are kept: [segment,K] twice, the states before every chunk of the segment */
    double *dlambda;    /* [segment,K] where every token has a Lambda */
    float *u, *P, *Ps;  /* LNT_CG_SHERMAN_MORRISON: [K]; [K,K]; the same before every segment */
    double *inverse;    /* [K + 1,K] */
    void *window;       /* of the heads whose window ends before they do */
    void *decay; /* workspace of the decay core */
    size_t decay_size;
} scratch;

extern const lnt_recur_impl LNT_V(lnt_decay_chunk), LNT_V(lnt_decay_recurrent);
static const lnt_recur_impl *decay_of(bool token) { return token ? &LNT_V(lnt_decay_recurrent) : &LNT_V(lnt_decay_chunk); }

static bool unrolled(const lnt_mesa_args *a) { return a->cg_gradient == LNT_CG_UNROLLED; }
static bool flash(const lnt_mesa_args *a) { return a->cg_solver == LNT_CG_FLASH; }

static int chunk_of(const lnt_mesa_args *a) { return chunk_length(&a->heads, a->chunk ? a->chunk : flash(a) ? FLASH_CHUNK : CHUNK); }

/* A whole number of chunks, no more than the longest sequence fills. */
static int64_t segment_length(const lnt_mesa_args *a)
{
    int64_t C = chunk_of(a), S = C > SEGMENT ? C : SEGMENT / C * C, longest = (a->longest + C - 1) / C * C;
    return S < longest ? S : longest > 0 ? longest : C;
}

/* One head's segment of `len` tokens as a call on the decay core: everything dense and local. cu[2] is the caller's. */
static lnt_recur_args decay_call(const lnt_mesa_args *a, int64_t len, int V, int64_t *cu, const scratch *w)
{
    lnt_recur_args d = { .op = &lnt_recur_simple_gla };
    cu[0] = 0;
    cu[1] = len;
    d.dtype = LINNET_F32;
    d.form = LINNET_FORM_CHUNK;
    d.tokens = d.longest = len;
    d.sequences = d.Hq = d.Hv = 1;
    d.cu_seqlens = cu;
    d.K = a->K;
    d.V = V;
    d.scale = 1;
    d.q = w->x;
    d.k = w->kb;
    d.g = w->g;
    d.sign = w->sign;
    d.has_sign = a->heads.has_sign;
    d.workspace = w->decay;
    d.workspace_size = w->decay_size;
    return d;
}

/* Blocks of `rows` at most: the guess, the steps, the one that is not counted, and the direction that no step takes. */
static void carve_trail(lnt_carve *c, int steps, int C, int64_t wide, trail *t)
{
    int64_t rows = (int64_t)(steps + 3) * C;
    float **each[] = { &t->alpha, &t->curve, &t->before, &t->ratio }, **wides[] = { &t->diagonal, &t->dP, &t->dR, &t->dM, &t->dD, &t->T };
    for (int i = 0; i < 4; i++) *each[i] = lnt_carve_floats(c, rows);
    for (int i = 0; i < 6; i++) *wides[i] = lnt_carve_floats(c, C * wide);
    t->S2 = lnt_carve_floats(c, rows * C);
    t->D = lnt_carve_floats(c, (int64_t)C * C);
    t->ddelta = lnt_carve_floats(c, C);
    t->dB = lnt_carve_floats(c, C);
    t->row = lnt_carve_bytes(c, (size_t)rows * sizeof *t->row);
    t->live = lnt_carve_bytes(c, (size_t)(steps + 3) * sizeof *t->live);
}

void LNT_V(lnt_mesa_carve_solver)(lnt_carve *c, const lnt_mesa_args *a, int C, int M, bool keep, solver *s)
{
    int64_t K = a->K, wide = (K + LNT_VL - 1) / LNT_VL * LNT_VL;
    s->C = C;
    s->M = M;
    s->wide = wide;
    s->lambda_step = a->lambda_varies ? wide : 0;
    int64_t kept = keep ? (int64_t)(a->cg_max_steps + 3) * C : C;
    float **rows[] = { &s->X, &s->R, &s->jacobi };
    float **each[] = { &s->in, &s->out, &s->scale, &s->delta, &s->goal, &s->size };
    s->H = lnt_carve_floats(c, K * K);
    s->half_H = flash(a) ? lnt_carve_floats(c, K * K) : NULL;
    s->half_P = flash(a) ? lnt_carve_floats(c, C * wide) : NULL;
    s->kt = lnt_carve_floats(c, K * M);
    s->kk = lnt_carve_floats(c, K * M);
    s->lambda = lnt_carve_floats(c, a->lambda_varies ? C * wide : wide);
    s->mask = lnt_carve_floats(c, (int64_t)C * M);
    s->S = lnt_carve_floats(c, kept * M);
    for (int i = 0; i < 3; i++) *rows[i] = lnt_carve_floats(c, C * wide);
    s->P = s->P0 = lnt_carve_floats(c, kept * wide);
    s->W = s->W0 = lnt_carve_floats(c, kept * wide);
    for (int i = 0; i < 6; i++) *each[i] = lnt_carve_floats(c, C);
    s->row = lnt_carve_bytes(c, (size_t)C * sizeof *s->row);
    s->keep = keep;
    if (keep) carve_trail(c, a->cg_max_steps, C, wide, &s->past);
}

/* What the decay core wants for calls of V columns: forward for either form, as a segment may go token by token (sound). */
static size_t decay_bytes(const lnt_mesa_args *a, int V, bool backward, bool token, const scratch *w)
{
    int64_t cu[2];
    const lnt_recur_args d = decay_call(a, segment_length(a), V, cu, w);
    const size_t own = decay_of(token)->workspace(&d, backward, 1), other = backward ? 0 : decay_of(!token)->workspace(&d, false, 1);
    return own > other ? own : other;
}

/* A thread's scratch at base (NULL: only measure); returns its bytes. */
static size_t carve(const lnt_mesa_args *a, bool backward, bool token, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    int64_t K = a->K, V = a->V, S = segment_length(a), longest = a->longest;
    *w = (scratch){ .G = NULL };
    LNT_V(lnt_mesa_carve_solver)(&c, a, chunk_of(a), chunk_of(a), backward && unrolled(a), &w->s);
    float **keys[] = { &w->k, &w->kb, &w->x, &w->b, &w->dkb, &w->dkb2, &w->dvalue }, **values[] = { &w->v, &w->o, &w->dv };
    float **each[] = { &w->g, &w->beta, &w->dg, &w->dg2 };
    for (int i = 0; i < (backward ? 7 : 4); i++) *keys[i] = lnt_carve_floats(&c, S * K);
    for (int i = 0; i < (backward ? 3 : 2); i++) *values[i] = lnt_carve_floats(&c, S * V);
    for (int i = 0; i < (backward ? 4 : 2); i++) *each[i] = lnt_carve_floats(&c, S);
    float **turns[] = { &w->sign, &w->gates, &w->dsign, &w->dsign2 };
    for (int i = 0; i < 4 && a->heads.has_sign; i++) *turns[i] = lnt_carve_floats(&c, S);
    if (!a->heads.has_sign) w->gates = w->g;
    w->G = lnt_carve_floats(&c, K * V);
    if (lnt_mesa_is_recursive(a)) w->u = lnt_carve_floats(&c, K);
    w->decay_size = decay_bytes(a, a->V, backward, token, w);
    if (backward) {
        int64_t segments = longest > S ? (longest + S - 1) / S : 1;
        for (int i = 0; i < 2; i++) {
            w->dG[i] = lnt_carve_floats(&c, K * V);
            w->dH[i] = lnt_carve_floats(&c, K * K);
        }
        w->Hs = lnt_carve_floats(&c, segments * K * K);
        w->Gs = lnt_carve_floats(&c, segments * K * V);
        if (lnt_mesa_is_recursive(a)) {
            w->P = lnt_carve_floats(&c, K * K);
            w->Ps = lnt_carve_floats(&c, segments * K * K);
            w->inverse = lnt_carve_bytes(&c, (size_t)((K + 1) * K) * sizeof *w->inverse);
        }
        if (unrolled(a)) {
            w->q = lnt_carve_floats(&c, S * K);
            w->dq = lnt_carve_floats(&c, S * K);
            w->Hc = lnt_carve_floats(&c, S / chunk_of(a) * K * K);
        }
        if (a->lambda_varies) w->dlambda = lnt_carve_bytes(&c, (size_t)(S * K) * sizeof *w->dlambda);
        if (a->Hq < a->Hv) {
            w->dq_sum = lnt_carve_floats(&c, longest * K);
            w->dk_sum = lnt_carve_floats(&c, longest * K);
        }
        const size_t second = decay_bytes(a, a->K, true, token, w);
        if (second > w->decay_size) w->decay_size = second;
    }
    w->decay = lnt_carve_bytes(&c, w->decay_size);
    if (lnt_mesa_windowed(a, longest)) w->window = lnt_carve_bytes(&c, LNT_V(lnt_mesa_window_bytes)(a, backward));
    return c.used;
}

/* ---- segments ------------------------------------------------------------------------------------------------------------------------ */

/* S = e^{b_n} S + (e^{b_n - b}.kb)^T v for the n rows whose decays are prepared. */
static void write_state(const solver *s, int K, int V, int n, const float *kb, const float *v, float *S)
{
    rows_scaled(n, K, 1.0f, s->out, kb, s->P);
    LNT_V(lnt_mm_scaled)(s->in + n - 1, 0, K, V, n, s->P, 1, K, v, V, S, V);
}

static lnt_mesa_recursive recursive(piece p, const scratch *w, float *P)
{
    return (lnt_mesa_recursive){ .k = w->k, .g = w->g, .beta = w->beta, .lambda = w->s.lambda, .P = P, .u = w->u, .h = p.x->h };
}

/* Lambda, or its inverse, as a matrix. */
static void diagonal(const lnt_mesa_args *a, const solver *s, bool inverse, float *A)
{
    memset(A, 0, (size_t)a->K * (size_t)a->K * sizeof *A);
    for (int64_t i = 0; i < a->K; i++) A[i * (a->K + 1)] = inverse ? 1.0f / s->lambda[i] : s->lambda[i];
}

/* Rows from token t of the segment that comes next are fetched while this one's are worked on: n of them, or those that there are. */
static int64_t fetch_keys(piece p, int64_t t, int64_t n)
{
    const lnt_mesa_args *a = p.a;
    n = t < p.x->first ? 0 : least(n, p.x->first + p.x->len - t);
    rows_ahead(a->k, a->dtype, t, n, a->Hq, p.x->hq, a->K);
    rows_ahead(a->v, a->dtype, t, n, a->Hv, p.x->h, a->V);
    return n;
}

static void fetch(piece p, int64_t t, int64_t n, bool back)
{
    const lnt_mesa_args *a = p.a;
    n = fetch_keys(p, t, n);
    if (!back) rows_ahead(a->q, a->dtype, t, n, a->Hq, p.x->hq, a->K);
    if (back) rows_ahead(a->x, LINNET_F32, t, n, a->Hv, p.x->h, a->K);
    if (back) rows_ahead(a->do_, a->dtype, t, n, a->Hv, p.x->h, a->V);
}

/* Solve `len` rows of a segment from token t. s->H goes on to the state after them. */
static void solve_segment(piece p, int64_t t, int64_t len, const float *b, float *x, bool back, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    solver *s = &w->s;
    int64_t K = a->K, C = p.token ? 1 : s->C, S = segment_length(a);
    const lnt_mesa_recursive r = recursive(p, w, s->H);
    if (lnt_mesa_is_recursive(a)) LNT_V(lnt_mesa_recursion)(a, &r, t, len, b, x);
    for (int64_t i = 0; i < len && !lnt_mesa_is_recursive(a); i += C) {
        int n = (int)(len - i < C ? len - i : C);
        const float *k = w->k + i * K, *kb = w->kb + i * K;
        fetch(p, t + i + (back ? -S : S), n, back);
        if (p.token) {
            s->in[0] = expf(w->g[i]) * (w->sign ? w->sign[i] : 1.0f);
            s->out[0] = 1.0f;
            write_state(s, (int)K, (int)K, 1, kb, k, s->H);
        }
        LNT_V(lnt_mesa_solve_chunk)(s, a, p.x->h, t + i, n, p.token, w->gates + i, w->beta + i, k, b + i * K, x + i * K);
        if (!p.token) write_state(s, (int)K, (int)K, n, kb, k, s->H);
    }
}

/* Keys, written keys, values and gates of `len` rows from token t. */
static void load_segment(piece p, int64_t t, int64_t len, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    const float *g = a->g, *beta = a->beta, *sign = a->heads.sign;
    rows_in(w->k, a->k, a->dtype, t, len, a->Hq, p.x->hq, a->K);
    if (flash(a)) lnt_mesa_to_half(w->k, len * a->K);
    rows_in(w->v, a->v, a->dtype, t, len, a->Hv, p.x->h, a->V);
    for (int64_t i = 0; i < len; i++) {
        w->g[i] = g[(t + i) * a->Hv + p.x->h];
        w->beta[i] = beta[(t + i) * a->Hv + p.x->h];
        if (w->sign) w->sign[i] = sign[(t + i) * a->Hv + p.x->h];
    }
    if (w->sign) signed_gates((int)len, w->g, w->sign, 1, w->gates);
    rows_scaled(len, a->K, 1.0f, w->beta, w->k, w->kb);
}

static const float *state_at(const void *s, int64_t i, int64_t size) { return s ? (const float *)s + i * size : NULL; }

static void copy_state(float *dst, const float *src, int64_t size)
{
    if (!src)
        memset(dst, 0, (size_t)size * sizeof *dst);
    else if (src != dst)
        memcpy(dst, src, (size_t)size * sizeof *dst);
}

/* Those of single tokens come with their chunk (lnt_mesa_prepare). */
void LNT_V(lnt_mesa_load_lambda)(const lnt_mesa_args *a, int h, const solver *s)
{
    memset(s->lambda, 0, (size_t)((s->lambda_step ? s->C : 1) * s->wide) * sizeof *s->lambda);
    if (a->lambda) memcpy(s->lambda, state_at(a->lambda, h, a->K), (size_t)a->K * sizeof *s->lambda);
}

/* Masked products are 0 times what is masked, which NaN and infinity survive: a segment that holds them goes token by token, so that they reach no
 * token before theirs. Gates are -infinity where they reset. */
static bool sound(const lnt_mesa_args *a, int64_t len, const scratch *w)
{
    bool gates = true;
    for (int64_t i = 0; i < len; i++) gates = gates && !isnan(w->gates[i]);
    return gates && row_finite(w->k, len * a->K) && row_finite(w->v, len * a->V) && row_finite(w->beta, len) && row_finite(w->b, len * a->K);
}

static void forward_piece(piece p, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    const bool token = p.token;
    int64_t K = a->K, V = a->V, S = segment_length(a), at = p.x->index, cu[2];
    if (a->hT) w->s.H = (float *)a->hT + at * K * K;
    copy_state(w->s.H, state_at(a->h0, at, K * K), K * K);
    LNT_V(lnt_mesa_load_lambda)(a, p.x->h, &w->s);
    if (lnt_mesa_is_recursive(a) && !a->h0) diagonal(a, &w->s, true, w->s.H);
    float *G = a->sT ? (float *)a->sT + at * K * V : w->G;
    const float *before = state_at(a->s0, at, K * V);
    for (int64_t i = 0; i == 0 || i < p.x->len; i += S, before = G) {
        int64_t t = p.x->first + i, len = p.x->len - i < S ? p.x->len - i : S;
        if (len) {
            load_segment(p, t, len, w);
            rows_in(w->b, a->q, a->dtype, t, len, a->Hq, p.x->hq, K);
            if (flash(a)) lnt_mesa_to_half(w->b, len * K);
            p.token = token || !sound(a, len, w);
            solve_segment(p, t, len, w->b, w->x, false, w);
            if (flash(a)) lnt_mesa_to_half(w->x, len * K);
            rows_out(a->x, LINNET_F32, t, len, a->Hv, p.x->h, K, w->x);
        }
        lnt_recur_args d = decay_call(a, len, (int)V, cu, w);
        d.v = w->v;
        d.o = w->o;
        d.s0 = before;
        d.sT = G;
        decay_of(p.token)->forward(&d, 1);
        rows_out(a->o, a->dtype, t, len, a->Hv, p.x->h, V, w->o);
    }
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------ */

/* The same of P into Ps, its end into P; and Hs begins as its inverse. */
static void sweep_inverse(piece p, int64_t at, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    const int64_t K = a->K, S = segment_length(a);
    const float *h0 = state_at(a->h0, at, K * K);
    if (!lnt_mesa_is_recursive(a)) return;
    diagonal(a, &w->s, true, w->P);
    diagonal(a, &w->s, false, w->Hs);
    if (h0) {
        memcpy(w->P, h0, (size_t)(K * K) * sizeof *h0);
        LNT_V(lnt_mesa_invert)((int)K, h0, w->inverse, w->Hs);
    }
    const lnt_mesa_recursive r = recursive(p, w, w->P);
    for (int64_t i = 0; i < p.x->len; i += S) {
        const int64_t len = p.x->len - i < S ? p.x->len - i : S;
        memcpy(w->Ps + i / S * K * K, w->P, (size_t)(K * K) * sizeof *w->P);
        load_segment(p, p.x->first + i, len, w);
        LNT_V(lnt_mesa_recursion)(a, &r, p.x->first + i, len, NULL, w->x);
    }
}

/* The states before every segment into Hs and Gs. */
static void sweep(piece p, int64_t at, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    int64_t K = a->K, V = a->V, S = segment_length(a), segment = 0;
    solver *s = &w->s;
    const int64_t C = p.token ? 1 : s->C;
    copy_state(w->Hs, state_at(a->h0, at, K * K), K * K);
    sweep_inverse(p, at, w);
    copy_state(w->Gs, state_at(a->s0, at, K * V), K * V);
    for (int64_t i = 0; i + S < p.x->len; i += S, segment++) {
        float *H = w->Hs + (segment + 1) * K * K, *G = w->Gs + (segment + 1) * K * V;
        copy_state(H, H - K * K, K * K);
        copy_state(G, G - K * V, K * V);
        load_segment(p, p.x->first + i, S, w);
        for (int64_t j = 0; j < S; j += C) {
            int n = (int)(S - j < C ? S - j : C);
            fetch_keys(p, p.x->first + i + S + j, n);
            LNT_V(lnt_chunk_decay)(n, w->gates + j, 1, s->mask, s->C, s->in, s->out);
            if (w->sign) signed_turn(n, w->sign + j, 1, s->mask, s->C, s->in, s->out, s->delta);
            write_state(s, (int)K, (int)K, n, w->kb + j * K, w->k + j * K, H);
            write_state(s, (int)K, (int)V, n, w->kb + j * K, w->v + j * V, G);
        }
    }
}

/* Gradients of a segment's rows from what the two passes left. */
static void put_gradients(piece p, int64_t t, int64_t len, const float *e, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    int64_t K = a->K;
    float *dbeta = a->dbeta, *dg = a->dg, *dsign = w->sign ? a->heads.dsign : NULL;
    for (int64_t i = 0; i < len; i++) {
        float *dk = w->dkb + i * K;
        row_add(dk, 1.0f, w->dkb2 + i * K, K);
        if (dbeta) dbeta[(t + i) * a->Hv + p.x->h] = row_dot(w->k + i * K, dk, K);
        if (dg) dg[(t + i) * a->Hv + p.x->h] = w->dg[i] + w->dg2[i];
        if (dsign) dsign[(t + i) * a->Hv + p.x->h] = w->dsign[i] + w->dsign2[i];
        row_scale(dk, w->beta[i], K);
        row_add(dk, 1.0f, w->dvalue + i * K, K);
    }
    rows_out(a->dv, a->dtype, t, len, a->Hv, p.x->h, a->V, w->dv);
    if (w->dq_sum) {
        row_add(w->dq_sum + (t - p.x->first) * K, 1.0f, e, len * K);
        row_add(w->dk_sum + (t - p.x->first) * K, 1.0f, w->dkb, len * K);
    } else {
        rows_out(a->dq, a->dtype, t, len, a->Hq, p.x->hq, K, e);
        rows_out(a->dk, a->dtype, t, len, a->Hq, p.x->hq, K, w->dkb);
    }
}

/* The gradients of a segment's own Lambdas, which begin at 0. */
static void put_lambdas(piece p, int64_t t, int64_t len, const scratch *w)
{
    float *out = p.a->dlambda_t;
    const int64_t K = p.a->K;
    for (int64_t i = 0; w->dlambda && out && i < len; i++)
        for (int64_t j = 0; j < K; j++) out[((t + i) * p.a->Hv + p.x->h) * K + j] = (float)w->dlambda[i * K + j];
}

/* Gradients of a segment's queries, keys and gates by way of H, from those of x in w->b; w->dH[0] goes from the segment's end to its start. */
static void differentiate_segment(piece p, int64_t t, int64_t len, const float *H, double *dlambda, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    solver *s = &w->s;
    int64_t K = a->K, C = s->C, chunks = (len + C - 1) / C;
    rows_in(w->q, a->q, a->dtype, t, len, a->Hq, p.x->hq, K);
    memcpy(w->Hc, H, (size_t)(K * K) * sizeof *H);
    for (int64_t i = 0; i + 1 < chunks; i++) {
        float *next = w->Hc + (i + 1) * K * K;
        memcpy(next, next - K * K, (size_t)(K * K) * sizeof *next);
        LNT_V(lnt_chunk_decay)((int)C, w->g + i * C, 1, s->mask, C, s->in, s->out);
        s->P = s->P0;
        write_state(s, (int)K, (int)K, (int)C, w->kb + i * C * K, w->k + i * C * K, next);
    }
    for (int64_t i = chunks - 1; i >= 0; i--) {
        int64_t at = i * C;
        int n = (int)(len - at < C ? len - at : C);
        s->H = w->Hc + i * K * K;
        LNT_V(lnt_mesa_solve_chunk)(s, a, p.x->h, t + at, n, false, w->g + at, w->beta + at, w->k + at * K, w->q + at * K, w->dq + at * K);
        lnt_mesa_rows r = { .n = n, .k = w->k + at * K, .kb = w->kb + at * K, .g = w->g + at, .beta = w->beta + at, .q = w->q + at * K,
                            .dx = w->b + at * K, .dq = w->dq + at * K, .dkb = w->dkb2 + at * K, .dvalue = w->dvalue + at * K, .dg = w->dg2 + at };
        LNT_V(lnt_mesa_differentiate)(s, a, &r, w->dH[0], w->dlambda ? w->dlambda + at * K : dlambda);
    }
    put_lambdas(p, t, len, w);
}

/* The rows [t, t+len) with H and G before them; dG[0] and dH[0] (the latter transposed) become the gradients of those. */
static void backward_segment(piece p, int64_t t, int64_t len, const float *H, const float *G, double *dlambda, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    int64_t K = a->K, V = a->V, cu[2];
    load_segment(p, t, len, w);
    if (w->dlambda) memset(w->dlambda, 0, (size_t)(len * K) * sizeof *w->dlambda);
    rows_in(w->x, a->x, LINNET_F32, t, len, a->Hv, p.x->h, K);
    rows_in(w->o, a->do_, a->dtype, t, len, a->Hv, p.x->h, V);
    lnt_recur_args d = decay_call(a, len, (int)V, cu, w);
    d.v = w->v;
    d.do_ = w->o;
    d.s0 = G;
    d.dsT = w->dG[0];
    d.dq = w->b; /* y = G do */
    d.dk = w->dkb;
    d.dv = w->dv;
    d.dg = w->dg;
    d.dsign = w->dsign;
    d.ds0 = w->dG[1];
    decay_of(p.token)->backward(&d, 1);

    if (unrolled(a)) {
        differentiate_segment(p, t, len, H, dlambda, w);
        put_gradients(p, t, len, w->dq, w);
        float *dG = w->dG[0];
        w->dG[0] = w->dG[1];
        w->dG[1] = dG;
        return;
    }
    float *e = w->dvalue; /* until the second pass writes there */
    copy_state(w->s.H, lnt_mesa_is_recursive(a) ? w->Ps + (t - p.x->first) / segment_length(a) * K * K : H, K * K);
    solve_segment(p, t, len, w->b, e, true, w);
    double *dl = w->dlambda ? w->dlambda : dlambda;
    for (int64_t i = 0; i < len && !lnt_mesa_is_recursive(a); i++, dl += w->dlambda ? K : 0)
        for (int64_t j = 0; j < K; j++) dl[j] -= (double)w->x[i * K + j] * e[i * K + j];
    put_lambdas(p, t, len, w);
    for (int64_t i = 0; i < len * K; i++) w->b[i] = -e[i];

    d = decay_call(a, len, (int)K, cu, w);
    d.v = w->k;
    d.do_ = w->b;
    d.s0 = H;
    d.dsT = w->dH[0];
    d.dk = w->dkb2;
    d.dv = w->dvalue;
    d.dg = w->dg2;
    d.dsign = w->dsign2;
    d.ds0 = w->dH[1];
    decay_of(p.token)->backward(&d, 1);
    row_scale(w->b, -1.0f, len * K);
    put_gradients(p, t, len, w->b, w);
    float *dG = w->dG[0], *dH = w->dH[0];
    w->dG[0] = w->dG[1];
    w->dG[1] = dG;
    w->dH[0] = w->dH[1];
    w->dH[1] = dH;
}

/* dlambda [K] of this piece is written. */
static void backward_piece(piece p, double *dlambda, scratch *w)
{
    const lnt_mesa_args *a = p.a;
    int64_t K = a->K, V = a->V, S = segment_length(a), at = p.x->index;
    memset(dlambda, 0, (size_t)K * sizeof *dlambda);
    LNT_V(lnt_mesa_load_lambda)(a, p.x->h, &w->s);
    sweep(p, at, w);
    copy_state(w->dG[0], state_at(a->dsT, at, K * V), K * V);
    if (a->dhT)
        LNT_V(lnt_transpose)((int)K, (int)K, state_at(a->dhT, at, K * K), K, w->dH[0], K);
    else
        copy_state(w->dH[0], NULL, K * K);
    if (unrolled(a)) LNT_V(lnt_mesa_symmetric)((int)K, w->dH[0]);
    if (lnt_mesa_is_recursive(a)) { /* from the gradient of P, by dH = -P dP P */
        memcpy(w->dH[1], w->dH[0], (size_t)(K * K) * sizeof(float));
        LNT_V(lnt_mesa_between)((int)K, w->P, w->dH[1], w->s.H, w->dH[0]);
    }
    for (int64_t segment = (p.x->len + S - 1) / S - 1; segment >= 0; segment--) {
        int64_t i = segment * S, len = p.x->len - i < S ? p.x->len - i : S;
        backward_segment(p, p.x->first + i, len, w->Hs + segment * K * K, w->Gs + segment * K * V, dlambda, w);
    }
    if (lnt_mesa_is_recursive(a)) { /* Lambda is the state that H begins with, and its gradient that of P */
        for (int64_t i = 0; i < K && !a->h0; i++) dlambda[i] += w->dH[0][i * (K + 1)];
        memcpy(w->dH[1], w->dH[0], (size_t)(K * K) * sizeof(float));
        LNT_V(lnt_mesa_between)((int)K, w->Hs, w->dH[1], w->s.H, w->dH[0]);
    }
    if (a->dh0) LNT_V(lnt_transpose)((int)K, (int)K, w->dH[0], K, (float *)a->dh0 + at * K * K, K);
    if (a->ds0) memcpy((float *)a->ds0 + at * K * V, w->dG[0], (size_t)(K * V) * sizeof(float));
}

/* ---- the implementations ------------------------------------------------------------------------------------------------------------- */

#define ENGINE LNT_V(lnt_mm_f32)

/* Through the solver's steps the token form's way back is the chunk form's, as it is beyond a window. */
static bool back_by_token(const lnt_mesa_args *a, bool token) { return token && !unrolled(a); }

static size_t each_bytes(const lnt_mesa_args *a, bool backward, bool token)
{
    scratch w;
    return carve(a, backward, backward ? back_by_token(a, token) : token, NULL, &w);
}

static size_t workspace(const void *args, bool backward, int threads, bool token)
{
    return (size_t)threads * each_bytes(args, backward, token) + (backward ? lnt_mesa_partial_bytes(args) : 0);
}

static void forward_head(const lnt_head *x, char *base, bool token)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    scratch w;
    carve(a, false, token, base, &w);
    if (lnt_mesa_windowed(a, x->len))
        LNT_V(lnt_mesa_window_forward)(x, token, w.window);
    else
        forward_piece((piece){ a, x, token }, &w);
}

/* The heads that share q and k follow one another in the same scratch: the first clears their sums, the last puts them out. */
static void backward_head(const lnt_head *x, char *base, bool token)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int group = a->Hv / a->Hq;
    double *dlambda = (double *)a->workspace + x->index * a->K;
    scratch w;
    token = back_by_token(a, token);
    carve(a, true, token, base, &w);
    if (w.dq_sum && x->h % group == 0) {
        memset(w.dq_sum, 0, (size_t)(x->len * a->K) * sizeof(float));
        memset(w.dk_sum, 0, (size_t)(x->len * a->K) * sizeof(float));
    }
    if (lnt_mesa_windowed(a, x->len))
        LNT_V(lnt_mesa_window_backward)(x, w.dq_sum, w.dk_sum, dlambda, w.window);
    else
        backward_piece((piece){ a, x, token }, dlambda, &w);
    if (w.dq_sum && (x->h + 1) % group == 0) {
        rows_out(a->dq, a->dtype, x->first, x->len, a->Hq, x->hq, a->K, w.dq_sum);
        rows_out(a->dk, a->dtype, x->first, x->len, a->Hq, x->hq, a->K, w.dk_sum);
    }
}

static void chunk_forward_head(const lnt_head *x, char *base) { forward_head(x, base, false); }
static void token_forward_head(const lnt_head *x, char *base) { forward_head(x, base, true); }
static void chunk_backward_head(const lnt_head *x, char *base) { backward_head(x, base, false); }
static void token_backward_head(const lnt_head *x, char *base) { backward_head(x, base, true); }

static void forward(const void *args, int threads, bool token)
{
    const lnt_mesa_args *a = args;
    walk_heads(&a->heads, threads, false, &ENGINE, a->workspace, each_bytes(a, false, token), token ? token_forward_head : chunk_forward_head);
}

static void backward(const void *args, int threads, bool token)
{
    const lnt_mesa_args *a = args;
    walk_heads(&a->heads, threads, true, &ENGINE, (char *)a->workspace + lnt_mesa_partial_bytes(a), each_bytes(a, true, token),
               token ? token_backward_head : chunk_backward_head);
    lnt_mesa_sum_lambda(a);
}

#define FORM(NAME, WORD, FORM, TOKEN)                                                                                              \
    static size_t NAME##_workspace(const void *args, bool back, int threads) { return workspace(args, back, threads, TOKEN); }     \
    static void NAME##_forward(const void *args, int threads) { forward(args, threads, TOKEN); }                                   \
    static void NAME##_backward(const void *args, int threads) { backward(args, threads, TOKEN); }                                 \
    extern const lnt_recur_impl LNT_V(lnt_mesa_##NAME);                                                                            \
    const lnt_recur_impl LNT_V(lnt_mesa_##NAME) = { .name = LNT_V_NAME(WORD), .form = FORM, .needs = LNT_V_LEVEL,                  \
                                                   .workspace = NAME##_workspace, .forward = NAME##_forward, .backward = NAME##_backward }
FORM(chunk, "chunk", LINNET_FORM_CHUNK, false);
FORM(recurrent, "recurrent", LINNET_FORM_RECURRENT, true);

#endif
