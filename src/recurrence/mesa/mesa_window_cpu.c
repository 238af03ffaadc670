/* Mesa over the last w tokens, in chunks of C tokens, w = mC (operators.md#mesa, "Windows"). Row i of chunk c sees the keys behind place i of chunk
 * c - m, those of the m - 1 chunks between, and the chunk's own up to itself: the first and the last as keys of the solver, the middle as state H,
 *
 *   Op(P) = e.(P H) + ((P K^T).F) K + P.Lambda      K: the old chunk's keys over the chunk's own, F: decays and strengths, 0 where unseen
 *
 * and the read-outs alike, o = e.(X G) + ((X K^T).F) V and y = e.(do G^T) + ((do V^T).F) K.
 *
 * The middle is a queue of chunks of which the oldest leaves as the newest comes, and nothing is ever subtracted: two stacks. The chunks that came
 * since the last multiple of m are one sum, which only grows; of the m before them the sums of the last 1, 2, .. m - 1 were made when that multiple
 * was reached, from the newest on.
 *
 * Backward, what is written in a chunk is read in the chunk itself, in all of the m - 1 that follow and by the first rows of the one behind these:
 * the same walk from the end, over sums of x do^T and x e^T + e x^T. The gates take pair sums: with c_ts what the pair (t, s) has in o.do - e.(H x),
 * dg_i is the sum of c_ts over s < i <= t, so that dB_t = sum_s c_ts - sum_s c_st is summed from the end. */
#if !defined(LNT_VARIANT_amx) /* float32 alone, as the solver */
#include "recurrence/mesa/mesa_window.h"
#include "simd/mm.h"

/* Nothing passes a gate below this one. */
static const float GATE_FLOOR = -87.0f;

/* Sums over chunks, each decayed to the end of the walk so far: squares [K,K] and products [K,V]. */
typedef struct {
    float *square, *product;
} sums;

/* Scratch of a thread. [2C,K]: k, and backward x e; [2C,V]: v, and do; [C,K]: q y; [C]: g beta old_by; a chunk that is added: [C,K] rk re rs, [C,V]
 * rv, [C,C] rmask, [C] rg rbeta rin rout. */
typedef struct {
    lnt_mesa_solver s;
    const lnt_mesa_args *a;
    const lnt_head *at;
    int C;
    int64_t m, chunks;
    bool reverse;         /* the walk is the backward one, from the last chunk to the first */
    double *gates;        /* [chunks] sums of gates */
    sums newest, middle, *older; /* older [m]: of the last m - i chunks of the m before */
    double newest_gates;
    float *k, *v, *x, *e, *d, *q, *y, *o, *g, *beta, *old_by, *Gt, *vt;
    float *rk, *re, *rs, *rv, *rmask, *rg, *rbeta, *rin, *rout;
    float *all_e;         /* [length,K] */
    double *dB;           /* [length] */
    float *T[3], *weight; /* [2C,C] */
    float *dk, *dv, *through; /* [C,K], [C,V], [C,K] */
} work;

static int chunk_of(const lnt_mesa_args *a) { return (int)lnt_mesa_window_chunk(a->heads.window, a->chunk); }

static sums carve_sums(lnt_carve *c, const lnt_mesa_args *a)
{
    sums s = { .square = lnt_carve_floats(c, (int64_t)a->K * a->K) };
    s.product = lnt_carve_floats(c, (int64_t)a->K * a->V);
    return s;
}

static void carve_backward(lnt_carve *c, const lnt_mesa_args *a, work *w)
{
    const int64_t C = w->C, K = a->K, V = a->V, longest = a->longest;
    w->all_e = lnt_carve_floats(c, longest * K);
    w->dB = lnt_carve_bytes(c, (size_t)longest * sizeof *w->dB);
    for (int i = 0; i < 3; i++) w->T[i] = lnt_carve_floats(c, 2 * C * C);
    w->weight = lnt_carve_floats(c, 2 * C * C);
    w->x = lnt_carve_floats(c, 2 * C * K);
    w->e = lnt_carve_floats(c, 2 * C * K);
    w->d = lnt_carve_floats(c, 2 * C * V);
    w->re = lnt_carve_floats(c, C * K);
    w->dk = lnt_carve_floats(c, C * K);
    w->through = lnt_carve_floats(c, C * K);
    w->dv = lnt_carve_floats(c, C * V);
    w->Gt = lnt_carve_floats(c, K * V);
    w->vt = lnt_carve_floats(c, V * 2 * C);
}

/* At base (NULL: only measure); returns the bytes. */
static size_t carve(const lnt_mesa_args *a, bool backward, char *base, work *w)
{
    lnt_carve c = { base, 0 };
    *w = (work){ .a = a, .C = chunk_of(a) };
    w->m = a->heads.window / w->C;
    const int64_t C = w->C, K = a->K, V = a->V;
    LNT_V(lnt_mesa_carve_solver)(&c, a, w->C, 2 * w->C, false, &w->s);
    w->older = lnt_carve_bytes(&c, (size_t)w->m * sizeof *w->older);
    for (int64_t i = 1; i < w->m; i++) {
        const sums s = carve_sums(&c, a);
        if (base) w->older[i] = s;
    }
    w->newest = carve_sums(&c, a);
    w->middle = (sums){ .square = w->s.H, .product = lnt_carve_floats(&c, K * V) };
    w->gates = lnt_carve_bytes(&c, (size_t)((a->longest + C - 1) / C) * sizeof *w->gates);
    w->k = lnt_carve_floats(&c, 2 * C * K);
    w->v = lnt_carve_floats(&c, 2 * C * V);
    float **rows[] = { &w->q, &w->y, &w->rk, &w->rs }, **each[] = { &w->g, &w->beta, &w->old_by, &w->rg, &w->rbeta, &w->rin, &w->rout };
    for (int i = 0; i < 4; i++) *rows[i] = lnt_carve_floats(&c, C * K);
    for (int i = 0; i < 7; i++) *each[i] = lnt_carve_floats(&c, C);
    w->rv = lnt_carve_floats(&c, C * V);
    w->o = lnt_carve_floats(&c, C * V);
    w->rmask = lnt_carve_floats(&c, C * C);
    if (backward) carve_backward(&c, a, w);
    return c.used;
}

size_t LNT_V(lnt_mesa_window_bytes)(const lnt_mesa_args *a, bool backward)
{
    work w;
    return carve(a, backward, NULL, &w);
}

/* ---- chunks ----------------------------------------------------------------------------------------------------------------------------- */

static int rows_of(const work *w, int64_t chunk) { return (int)least(w->at->len - chunk * w->C, w->C); }
static int64_t token_of(const work *w, int64_t chunk) { return w->at->first + chunk * w->C; }
static void key_rows(const work *w, float *to, const void *x, int64_t chunk)
{
    rows_in(to, x, w->a->dtype, token_of(w, chunk), rows_of(w, chunk), w->a->Hq, w->at->hq, w->a->K);
}
static void value_rows(const work *w, float *to, const void *x, int64_t chunk)
{
    rows_in(to, x, w->a->dtype, token_of(w, chunk), rows_of(w, chunk), w->a->Hv, w->at->h, w->a->V);
}
static void solution_rows(const work *w, float *to, int64_t chunk)
{
    rows_in(to, w->a->x, LINNET_F32, token_of(w, chunk), rows_of(w, chunk), w->a->Hv, w->at->h, w->a->K);
}
static void gate_rows(const work *w, float *to, const void *x, int64_t chunk)
{
    rows_in(to, x, LINNET_F32, token_of(w, chunk), rows_of(w, chunk), w->a->Hv, w->at->h, 1);
}

/* Decays of a chunk that is not the solver's: rmask, rin, rout. */
static void decays(work *w, int64_t chunk)
{
    gate_rows(w, w->rg, w->a->g, chunk);
    LNT_V(lnt_chunk_decay)(rows_of(w, chunk), w->rg, 1, w->rmask, w->C, w->rin, w->rout);
}

static void start(work *w, const lnt_head *x)
{
    w->at = x;
    w->chunks = chunk_count(x, w->C);
    for (int64_t i = 0; i < w->chunks; i++) {
        gate_rows(w, w->rg, w->a->g, i);
        w->gates[i] = 0;
        for (int j = 0; j < rows_of(w, i); j++) w->gates[i] += w->rg[j];
    }
}

/* e^{gates} of the chunks between two. */
static float fade(const work *w, int64_t first, int64_t last)
{
    double sum = 0;
    for (int64_t i = first + 1; i < last; i++) sum += w->gates[i];
    return (float)exp(sum);
}

/* ---- the queue -------------------------------------------------------------------------------------------------------------------------- */

static void clear(const work *w, const sums *s)
{
    memset(s->square, 0, (size_t)w->a->K * (size_t)w->a->K * sizeof(float));
    memset(s->product, 0, (size_t)w->a->K * (size_t)w->a->V * sizeof(float));
}

/* to = f to + from; f == 0: to = from */
static void join(const work *w, float f, const sums *from, const sums *to)
{
    const int64_t square = (int64_t)w->a->K * w->a->K, product = (int64_t)w->a->K * w->a->V;
    row_scale(to->square, f, square);
    row_scale(to->product, f, product);
    row_add(to->square, 1.0f, from->square, square);
    row_add(to->product, 1.0f, from->product, product);
}

/* What a chunk writes, decayed to its end, times f: k k^T and k v^T. Backward, what it reads with, decayed from its start: x e^T + e x^T and
 * x do^T. */
static void add_chunk(work *w, int64_t chunk, float f, const sums *to)
{
    const lnt_mesa_args *a = w->a;
    const int K = a->K, V = a->V, n = rows_of(w, chunk);
    decays(w, chunk);
    if (w->reverse) {
        solution_rows(w, w->rk, chunk);
        memcpy(w->re, w->all_e + chunk * w->C * K, (size_t)(n * K) * sizeof *w->re);
        value_rows(w, w->rv, a->do_, chunk);
        rows_scaled(n, K, f, w->rin, w->re, w->rs);
        LNT_V(lnt_mm)(LNT_MM_ADD, K, K, n, w->rs, 1, K, w->rk, K, to->square, K);
        rows_scaled(n, K, f, w->rin, w->rk, w->rs);
        LNT_V(lnt_mm)(LNT_MM_ADD, K, K, n, w->rs, 1, K, w->re, K, to->square, K);
    } else {
        key_rows(w, w->rk, a->k, chunk);
        value_rows(w, w->rv, a->v, chunk);
        gate_rows(w, w->rbeta, a->beta, chunk);
        row_mul(w->rbeta, w->rout, n);
        rows_scaled(n, K, f, w->rbeta, w->rk, w->rs);
        LNT_V(lnt_mm)(LNT_MM_ADD, K, K, n, w->rs, 1, K, w->rk, K, to->square, K);
    }
    LNT_V(lnt_mm)(LNT_MM_ADD, K, V, n, w->rs, 1, K, w->rv, V, to->product, V);
}

static int64_t chunk_of_place(const work *w, int64_t place) { return w->reverse ? w->chunks - 1 - place : place; }

/* The sums of the last chunks of the m in front of `place`, from the newest on. */
static void build_older(work *w, int64_t place)
{
    double after = 0;
    for (int64_t i = w->m - 1; i >= 1; i--) {
        const int64_t chunk = chunk_of_place(w, place - w->m + i);
        clear(w, &w->older[i]);
        if (i + 1 < w->m) join(w, 1.0f, &w->older[i + 1], &w->older[i]);
        add_chunk(w, chunk, (float)exp(after), &w->older[i]);
        after += w->gates[chunk];
    }
}

/* middle = what the chunk at `place` of the walk finds. Places come one after the other, from 0 on. */
static void find_middle(work *w, int64_t place)
{
    const int64_t since = place % w->m;
    if (since == 0) {
        clear(w, &w->newest);
        w->newest_gates = 0;
        if (place) build_older(w, place);
    }
    clear(w, &w->middle);
    if (place >= w->m && since + 1 < w->m) {
        join(w, 0.0f, &w->older[since + 1], &w->middle);
        join(w, (float)exp(w->newest_gates), &w->newest, &w->middle);
    } else
        join(w, 0.0f, &w->newest, &w->middle);
}

/* The chunk at `place` goes into the queue. */
static void enter(work *w, int64_t place)
{
    const int64_t chunk = chunk_of_place(w, place);
    if (place + 1 >= w->chunks || (place + 1) % w->m == 0) return; /* nobody asks for it there */
    row_scale(w->newest.square, (float)exp(w->gates[chunk]), (int64_t)w->a->K * w->a->K);
    row_scale(w->newest.product, (float)exp(w->gates[chunk]), (int64_t)w->a->K * w->a->V);
    add_chunk(w, chunk, 1.0f, &w->newest);
    w->newest_gates += w->gates[chunk];
}

/* ---- forward ---------------------------------------------------------------------------------------------------------------------------- */

/* The keys and values that a chunk sees, gates and strengths of its own, and what the old ones are written with. */
static void load(work *w, int64_t chunk)
{
    const lnt_mesa_args *a = w->a;
    lnt_mesa_solver *s = &w->s;
    const int64_t old = chunk - w->m;
    s->old = old >= 0 ? w->C : 0;
    s->old_by = w->old_by;
    if (s->old) {
        const float f = fade(w, old, chunk);
        key_rows(w, w->k, a->k, old);
        value_rows(w, w->v, a->v, old);
        gate_rows(w, w->old_by, a->beta, old);
        decays(w, old);
        for (int j = 0; j < s->old; j++) w->old_by[j] *= f * w->rout[j];
    }
    key_rows(w, w->k + (int64_t)s->old * a->K, a->k, chunk);
    value_rows(w, w->v + (int64_t)s->old * a->V, a->v, chunk);
    gate_rows(w, w->g, a->g, chunk);
    gate_rows(w, w->beta, a->beta, chunk);
}

/* Whether nothing that a product masks is NaN or infinite: 0 times that is not 0. */
static bool sound(const work *w, int n)
{
    const lnt_mesa_args *a = w->a;
    const int64_t keys = w->s.old + n;
    bool gates = true;
    for (int i = 0; i < n; i++) gates = gates && !isnan(w->g[i]);
    return gates && row_finite(w->k, keys * a->K) && row_finite(w->v, keys * a->V) && row_finite(w->beta, n) && row_finite(w->old_by, w->s.old) &&
           row_finite(w->q, n * a->K);
}

/* out [n,E] = e.(rows S) + ((rows keys^T).F) values, for rows [n,D], keys_t [D,M], S [D,E]. */
static void read_out(const work *w, int n, int D, const float *rows, const float *keys_t, const float *S, int E, const float *values, float *out)
{
    const lnt_mesa_solver *s = &w->s;
    for (int i = 0, count = s->alone ? 1 : n; i < n; i += count) {
        const int first = lnt_mesa_first_key(s, i), keys = lnt_mesa_keys_end(s, i + count - 1) - first;
        LNT_V(lnt_mm)(LNT_MM_SET, count, E, D, rows + (int64_t)i * D, D, 1, S, E, out + (int64_t)i * E, E);
        LNT_V(lnt_mm)(LNT_MM_SET, count, keys, D, rows + (int64_t)i * D, D, 1, keys_t + first, s->M, s->S, s->M);
        for (int r = 0; r < count; r++) row_mul(s->S + (int64_t)r * s->M, s->mask + (int64_t)(i + r) * s->M + first, keys);
        LNT_V(lnt_mm_scaled)(s->in + i, 1, count, E, keys, s->S, s->M, 1, values + (int64_t)first * E, E, out + (int64_t)i * E, E);
    }
}

void LNT_V(lnt_mesa_window_forward)(const lnt_head *x, bool token, void *scratch)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    work w;
    carve(a, false, scratch, &w);
    start(&w, x);
    LNT_V(lnt_mesa_load_lambda)(a, x->h, &w.s);
    for (int64_t i = 0; i < w.chunks; i++) {
        const int64_t t = token_of(&w, i);
        const int n = rows_of(&w, i);
        find_middle(&w, i);
        load(&w, i);
        key_rows(&w, w.q, a->q, i);
        w.s.alone = token || !sound(&w, n);
        LNT_V(lnt_mesa_solve_chunk)(&w.s, a, x->h, t, n, false, w.g, w.beta, w.k, w.q, w.y);
        rows_out(a->x, LINNET_F32, t, n, a->Hv, x->h, a->K, w.y);
        read_out(&w, n, a->K, w.y, w.s.kt, w.middle.product, a->V, w.v, w.o);
        rows_out(a->o, a->dtype, t, n, a->Hv, x->h, a->V, w.o);
        enter(&w, i);
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------------------------------- */

/* H_t x_t for the chunk's rows w->x, into s.W. */
static void apply_to_solutions(work *w, int n)
{
    lnt_mesa_solver *s = &w->s;
    const int K = w->a->K;
    for (int i = 0; i < n; i++) {
        memcpy(s->P + i * s->wide, w->x + (int64_t)i * K, (size_t)K * sizeof *s->P);
        memset(s->P + i * s->wide + K, 0, (size_t)(s->wide - K) * sizeof *s->P);
        s->row[i] = i;
        s->scale[i] = s->in[i];
    }
    LNT_V(lnt_mesa_apply)(s, w->k, K, n, false);
}

/* y = G do and (H + Lambda) e = y of a chunk: e and its first part of dB are kept, dq and dlambda take theirs. */
static void solve_back(work *w, int64_t chunk, float *dq_sum, double *dlambda)
{
    const lnt_mesa_args *a = w->a;
    lnt_mesa_solver *s = &w->s;
    const int64_t t = token_of(w, chunk), first = chunk * w->C;
    const int n = rows_of(w, chunk), K = a->K, V = a->V, h = w->at->h;
    float *e = w->all_e + first * K, *out = a->dlambda_t;
    find_middle(w, chunk);
    load(w, chunk);
    value_rows(w, w->o, a->do_, chunk);
    solution_rows(w, w->x, chunk);
    LNT_V(lnt_mesa_prepare)(s, a, h, t, n, false, w->g, w->beta, w->k);
    LNT_V(lnt_transpose)(K, V, w->middle.product, V, w->Gt, K);
    LNT_V(lnt_transpose)(s->old + n, V, w->v, V, w->vt, s->M);
    read_out(w, n, V, w->o, w->vt, w->Gt, K, w->k, w->y);
    LNT_V(lnt_mesa_solve_prepared)(s, a, h, t, n, false, w->k, w->y, e);
    apply_to_solutions(w, n);
    for (int64_t i = 0; i < n; i++) {
        const float *x = w->x + i * K;
        w->dB[first + i] = (double)row_dot(x, w->y + i * K, K) - row_dot(e + i * K, s->W + i * s->wide, K);
        for (int64_t j = 0; j < K; j++) {
            const double d = -(double)x[j] * e[i * K + j];
            if (!s->lambda_step) dlambda[j] += d;
            if (s->lambda_step && out) out[((t + i) * a->Hv + h) * K + j] = (float)d;
        }
    }
    if (dq_sum)
        row_add(dq_sum + first * K, 1.0f, e, (int64_t)n * K);
    else
        rows_out(a->dq, a->dtype, t, n, a->Hq, w->at->hq, K, e);
    enter(w, chunk);
}

/* The readers of a chunk's writes, rows of x, e and do: its own, then the first of the chunk where its window ends; weight [readers,C]: how much of a
 * write reaches them. Returns their number. */
static int load_readers(work *w, int64_t chunk)
{
    const lnt_mesa_args *a = w->a;
    const int n = rows_of(w, chunk), K = a->K, C = w->C;
    const int64_t late = chunk + w->m;
    int readers = n;
    if (late < w->chunks) {
        const int more = rows_of(w, late);
        const float f = fade(w, chunk, late);
        solution_rows(w, w->x + (int64_t)n * K, late);
        value_rows(w, w->d + (int64_t)n * a->V, a->do_, late);
        memcpy(w->e + (int64_t)n * K, w->all_e + late * C * K, (size_t)(more * K) * sizeof *w->e);
        decays(w, late);
        memcpy(w->beta, w->rin, (size_t)more * sizeof *w->beta);
        decays(w, chunk);
        for (int i = 0; i < more; i++)
            for (int j = 0; j < n; j++) w->weight[(int64_t)(n + i) * C + j] = j > i ? w->beta[i] * f * w->rout[j] : 0.0f;
        readers += more;
    } else
        decays(w, chunk);
    solution_rows(w, w->x, chunk);
    value_rows(w, w->d, a->do_, chunk);
    memcpy(w->e, w->all_e + chunk * C * K, (size_t)(n * K) * sizeof *w->e);
    memcpy(w->weight, w->rmask, (size_t)n * (size_t)C * sizeof *w->weight);
    return readers;
}

/* Gradients of what a chunk writes, of its gates what is left of dB. u = dk / beta = sum of zeta (x (do.v) - e (x.k) - x (e.k)); dv = beta sum of
 * zeta do (x.k); dbeta = k.u + sum of zeta (x.k)(e.k). */
static void write_gradients(work *w, int64_t chunk, float *dk_sum)
{
    const lnt_mesa_args *a = w->a;
    const int K = a->K, V = a->V, C = w->C, n = rows_of(w, chunk), h = w->at->h;
    const int64_t t = token_of(w, chunk), first = chunk * C;
    float *dbeta = a->dbeta, **T = w->T;
    find_middle(w, w->chunks - 1 - chunk);
    const int readers = load_readers(w, chunk);
    key_rows(w, w->k, a->k, chunk);
    value_rows(w, w->v, a->v, chunk);
    gate_rows(w, w->beta, a->beta, chunk);
    LNT_V(lnt_transpose)(n, K, w->k, K, w->s.kt, C);
    LNT_V(lnt_transpose)(n, V, w->v, V, w->vt, C);
    LNT_V(lnt_mm)(LNT_MM_SET, readers, n, K, w->x, K, 1, w->s.kt, C, T[0], C);
    LNT_V(lnt_mm)(LNT_MM_SET, readers, n, K, w->e, K, 1, w->s.kt, C, T[1], C);
    LNT_V(lnt_mm)(LNT_MM_SET, readers, n, V, w->d, V, 1, w->vt, C, T[2], C);
    memset(w->rin, 0, (size_t)n * sizeof *w->rin); /* sum of zeta (x.k)(e.k) */
    for (int i = 0; i < readers; i++) {
        const int64_t row = (int64_t)i * C;
        row_mul(T[0] + row, w->weight + row, n);
        row_add_times(n, 1.0f, T[0] + row, T[1] + row, w->rin);
        row_mul(T[1] + row, w->weight + row, n);
        row_mul(T[2] + row, w->weight + row, n);
        row_add(T[2] + row, -1.0f, T[1] + row, n);
    }
    LNT_V(lnt_transpose)(K, V, w->middle.product, V, w->Gt, K);
    LNT_V(lnt_mm)(LNT_MM_SET, n, K, V, w->v, V, 1, w->Gt, K, w->dk, K);
    LNT_V(lnt_mm)(LNT_MM_SET, n, K, K, w->k, K, 1, w->middle.square, K, w->through, K);
    LNT_V(lnt_mm)(LNT_MM_SET, n, V, K, w->k, K, 1, w->middle.product, V, w->dv, V);
    for (int64_t j = 0; j < n; j++) {
        w->rin[j] += 0.5f * w->rout[j] * row_dot(w->k + j * K, w->through + j * K, K);
        row_add(w->dk + j * K, -1.0f, w->through + j * K, K);
        row_scale(w->dk + j * K, w->rout[j], K);
        row_scale(w->dv + j * V, w->rout[j], V);
    }
    LNT_V(lnt_mm)(LNT_MM_ADD, n, K, readers, T[2], 1, C, w->x, K, w->dk, K);
    LNT_V(lnt_mm)(LNT_MM_SUB, n, K, readers, T[0], 1, C, w->e, K, w->dk, K);
    LNT_V(lnt_mm)(LNT_MM_ADD, n, V, readers, T[0], 1, C, w->d, V, w->dv, V);
    for (int64_t j = 0; j < n; j++) {
        const float strength = row_dot(w->k + j * K, w->dk + j * K, K) + w->rin[j];
        if (dbeta) dbeta[(t + j) * a->Hv + h] = strength;
        w->dB[first + j] -= (double)w->beta[j] * strength;
        row_scale(w->dk + j * K, w->beta[j], K);
        row_scale(w->dv + j * V, w->beta[j], V);
    }
    rows_out(a->dv, a->dtype, t, n, a->Hv, h, V, w->dv);
    if (dk_sum)
        row_add(dk_sum + first * K, 1.0f, w->dk, (int64_t)n * K);
    else
        rows_out(a->dk, a->dtype, t, n, a->Hq, w->at->hq, K, w->dk);
    enter(w, w->chunks - 1 - chunk);
}

void LNT_V(lnt_mesa_window_backward)(const lnt_head *x, float *dq_sum, float *dk_sum, double *dlambda, void *scratch)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const float *g = a->g;
    float *dg = a->dg;
    work w;
    carve(a, true, scratch, &w);
    start(&w, x);
    memset(dlambda, 0, (size_t)a->K * sizeof *dlambda);
    LNT_V(lnt_mesa_load_lambda)(a, x->h, &w.s);
    for (int64_t i = 0; i < w.chunks; i++) solve_back(&w, i, dq_sum, dlambda);
    w.reverse = true;
    for (int64_t i = w.chunks - 1; i >= 0; i--) write_gradients(&w, i, dk_sum);
    double sum = 0;
    for (int64_t i = x->len - 1; dg && i >= 0; i--) {
        const int64_t at = (x->first + i) * a->Hv + x->h;
        sum += w.dB[i];
        if (g[at] < GATE_FLOOR) sum = 0; /* no pair spans it */
        dg[at] = (float)sum;
    }
}
#endif
