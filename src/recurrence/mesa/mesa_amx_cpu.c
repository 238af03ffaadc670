/* The Mesa core for bf16 tensors on AMX tiles: mesa_cpu.c's walk, with every product through tiles (the solve: mesa_amx_solve.h). */
#include "recurrence/mesa/mesa_solver.h"

#if defined(__AMX_BF16__)
#define LNT_ROWS_BETWEEN_TILES
#include "core/cpu.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay.h"
#include "recurrence/mesa/mesa_amx_solve.h"

/* Rows of a segment, which the decay core gets at once. */
enum { SEGMENT = 256 };

/* A head's rows of a segment in bf16, [S,K]: k, beta k, x, y; [S,V]: v, o or dO; x and e in float32, [S,K]; row: room for one [K]. Backward:
 * gradients, states before every segment, sums over heads that share q and k, all as in mesa_cpu.c; forms of what a sweep writes. */
typedef struct {
    solver s;
    lnt_bf16 *k, *kb, *x16, *y, *v, *o, *dkb, *dkb2, *dvalue, *dv;
    float *x, *e, *g, *beta, *out, *row, *dg, *dg2, *G, *dG[2], *dH[2], *Hs, *Gs, *dq_sum, *dk_sum;
    void *forms, *decay;
    size_t decay_size;
} scratch;

extern const lnt_recur_impl LNT_V(lnt_decay_chunk);

static int64_t segment_length(const lnt_mesa_args *a) { return chunk_length(&a->heads, SEGMENT); }

/* A segment as a call on the decay core (mesa_cpu.c); `alone`: in chunks of one token. */
static lnt_recur_args decay_call(const lnt_mesa_args *a, int64_t len, int V, bool alone, int64_t *cu, const scratch *w)
{
    cu[0] = 0;
    cu[1] = len;
    return (lnt_recur_args){ .op = &lnt_recur_simple_gla, .dtype = LINNET_BF16, .form = LINNET_FORM_CHUNK, .tokens = len, .longest = len,
                             .chunk = alone ? 1 : 0, .sequences = 1, .Hq = 1, .Hv = 1, .cu_seqlens = cu, .K = a->K, .V = V, .scale = 1,
                             .q = w->x16, .k = w->kb, .g = w->g, .workspace = w->decay, .workspace_size = w->decay_size };
}

static size_t decay_bytes(const lnt_mesa_args *a, int V, bool backward, const scratch *w)
{
    int64_t cu[2];
    const lnt_recur_args d = decay_call(a, segment_length(a), V, false, cu, w);
    return LNT_V(lnt_decay_chunk).workspace(&d, backward, 1);
}

/* A thread's scratch at base (NULL: only measure); returns its bytes. */
static size_t carve(const lnt_mesa_args *a, bool backward, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    const int64_t K = a->K, V = a->V, S = segment_length(a), longest = a->longest, segments = longest > S ? (longest + S - 1) / S : 1;
    *w = (scratch){ .x = NULL };
    carve_solver(&c, a, chunk_length(&a->heads, a->chunk && a->chunk < ROWS ? a->chunk : ROWS), &w->s);
    lnt_bf16 **keys[] = { &w->k, &w->kb, &w->x16, &w->y, &w->dkb, &w->dkb2, &w->dvalue }, **values[] = { &w->v, &w->o, &w->dv };
    for (int i = 0; i < (backward ? 7 : 3); i++) *keys[i] = carve16(&c, S * K);
    for (int i = 0; i < (backward ? 3 : 2); i++) *values[i] = carve16(&c, S * V);
    float **each[] = { &w->g, &w->beta, &w->out, &w->dg, &w->dg2 }, **rows[] = { &w->x, &w->e };
    for (int i = 0; i < (backward ? 5 : 2); i++) *each[i] = lnt_carve_floats(&c, S);
    for (int i = 0; i < (backward ? 2 : 1); i++) *rows[i] = lnt_carve_floats(&c, S * K);
    if (!backward) w->G = lnt_carve_floats(&c, K * V);
    w->decay_size = decay_bytes(a, a->V, backward, w);
    if (backward) {
        for (int i = 0; i < 2; i++) {
            w->dG[i] = lnt_carve_floats(&c, K * V);
            w->dH[i] = lnt_carve_floats(&c, K * K);
        }
        w->row = lnt_carve_floats(&c, K);
        w->Hs = lnt_carve_floats(&c, segments * K * K);
        w->Gs = lnt_carve_floats(&c, segments * K * V);
        w->forms = lnt_carve_bytes(&c, ENGINE->bytes((int)S, a->K, LNT_LEFT_T) + ENGINE->bytes((int)S, a->K > a->V ? a->K : a->V, LNT_RIGHT));
        if (a->Hq < a->Hv) {
            w->dq_sum = lnt_carve_floats(&c, longest * K);
            w->dk_sum = lnt_carve_floats(&c, longest * K);
        }
        const size_t second = decay_bytes(a, a->K, true, w);
        if (second > w->decay_size) w->decay_size = second;
    }
    w->decay = lnt_carve_bytes(&c, w->decay_size);
    return c.used;
}

/* ---- rows of bf16 ---------------------------------------------------------------------------------------------------------------------- */

/* x NULL: zeros. */
static void rows16_in(lnt_bf16 *dst, const void *x, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width)
{
    for (int64_t i = 0; i < n; i++, dst += width) {
        rows_awake(i);
        if (x)
            memcpy(dst, row_at(x, first + i, heads, h, width), (size_t)width * sizeof *dst);
        else
            memset(dst, 0, (size_t)width * sizeof *dst);
    }
}

static void rows16_out(void *y, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width, const lnt_bf16 *src)
{
    const bool past = rows_past(y, LINNET_BF16, width);
    for (int64_t i = 0; y && i < n; i++, src += width) {
        lnt_bf16 *row = (lnt_bf16 *)y + ((first + i) * heads + h) * width;
        rows_awake(i);
        if (past)
            for (int64_t j = 0; j < width; j += 32) _mm512_stream_si512((void *)(row + j), _mm512_loadu_si512(src + j));
        else
            memcpy(row, src, (size_t)width * sizeof *src);
    }
}

/* As mesa_cpu.c has it. */
static int64_t fetch_keys(const lnt_head *x, int64_t t, int64_t n)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    n = t < x->first ? 0 : least(n, x->first + x->len - t);
    rows_ahead(a->k, LINNET_BF16, t, n, a->Hq, x->hq, a->K);
    rows_ahead(a->v, LINNET_BF16, t, n, a->Hv, x->h, a->V);
    return n;
}

static void fetch(const lnt_head *x, int64_t t, int64_t n, bool back)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    n = fetch_keys(x, t, n);
    if (!back) rows_ahead(a->q, LINNET_BF16, t, n, a->Hq, x->hq, a->K);
    if (back) rows_ahead(a->x, LINNET_F32, t, n, a->Hv, x->h, a->K);
    if (back) rows_ahead(a->do_, LINNET_BF16, t, n, a->Hv, x->h, a->V);
}

static bool row_finite16(const lnt_bf16 *x, int64_t n)
{
    vf sum = v_zero();
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) sum += v_load_bf16(x + i) * 0.0f;
    float rest = v_sum(sum);
    for (; i < n; i++) rest += lnt_bf16_to_f32(x[i]) * 0.0f;
    return rest == 0;
}

/* Solve `len` rows of a segment from token t; H goes on with them, but to the segment's end only forward. */
static void solve_segment(const lnt_head *x, int64_t t, int64_t len, int C, const lnt_bf16 *b, int64_t stride, solution o, bool back, scratch *w)
{
    const lnt_mesa_args *a = o.a;
    solver *s = &w->s;
    const int K = a->K, W = s->W;
    const int64_t S = segment_length(a);
    for (int64_t i = 0; i < len; i += C) {
        const int n = (int)(len - i < C ? len - i : C);
        fetch(x, t + i + (back ? -S : S), n, back);
        prepare_chunk(s, a, x->hq, t + i, n, w->g + i, w->beta + i);
        o.t = t + i;
        solve_chunk(s, &o, n, b + i * stride, stride);
        o.x += (int64_t)n * K;
        o.x16 += (int64_t)n * K;
        if (back && i + C >= len) return;
        const lnt_operand writes = ENGINE->prepare16(LNT_LEFT_T, ROWS, W, s->writes, W, s->writes_forms);
        ENGINE->update(s->in + n - 1, 0, &writes, true, &s->right[0], false, &s->right[1]);
    }
}

/* ---- segments -------------------------------------------------------------------------------------------------------------------------- */

/* Gates, strengths, values and written keys of `len` rows from token t. */
static void load_segment(const lnt_head *x, int64_t t, int64_t len, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const float *g = a->g, *beta = a->beta;
    const int64_t K = a->K;
    for (int64_t i = 0; i < len; i++) {
        w->g[i] = g[(t + i) * a->Hv + x->h];
        w->beta[i] = beta[(t + i) * a->Hv + x->h];
        rows_awake(i);
        row_scaled16(w->beta[i], row_at(a->k, t + i, a->Hq, x->hq, K), K, w->kb + i * K);
    }
    rows16_in(w->v, a->v, t, len, a->Hv, x->h, a->V);
}

/* As mesa_cpu.c has it. A query is its own row's alone. */
static bool sound(const lnt_mesa_args *a, int64_t len, const scratch *w)
{
    bool gates = true;
    for (int64_t i = 0; i < len; i++) gates = gates && !isnan(w->g[i]);
    return gates && row_finite16(w->kb, len * a->K) && row_finite16(w->v, len * a->V);
}

static const float *state_at(const void *s, int64_t i, int64_t size) { return s ? (const float *)s + i * size : NULL; }

static void copy_state(float *dst, const float *src, int64_t size)
{
    if (src)
        memcpy(dst, src, (size_t)size * sizeof *dst);
    else
        memset(dst, 0, (size_t)size * sizeof *dst);
}

/* A call on the decay core, which releases the tiles. */
static void run_decay(const lnt_recur_args *d, bool back)
{
    if (back)
        LNT_V(lnt_decay_chunk).backward(d, 1);
    else
        LNT_V(lnt_decay_chunk).forward(d, 1);
    ENGINE->begin();
}

static void forward_head(const lnt_head *x, char *base)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V, S = segment_length(a), at = x->index;
    int64_t cu[2];
    scratch work, *w = &work;
    carve(a, false, base, w);
    begin_head(a, x->h, &w->s);
    load_H(&w->s, a->K, state_at(a->h0, at, K * K));
    float *G = a->sT ? (float *)a->sT + at * K * V : w->G;
    const float *before = state_at(a->s0, at, K * V);
    for (int64_t i = 0; i == 0 || i < x->len; i += S, before = G) {
        const int64_t t = x->first + i, len = x->len - i < S ? x->len - i : S;
        bool alone = false;
        if (len) {
            load_segment(x, t, len, w);
            alone = !sound(a, len, w);
            const solution o = { .a = a, .h = x->h, .x = w->x, .f = 1, .x16 = w->x16 };
            solve_segment(x, t, len, alone ? 1 : w->s.C, row_at(a->q, t, a->Hq, x->hq, K), a->Hq * K, o, false, w);
            rows_out(a->x, LINNET_F32, t, len, a->Hv, x->h, K, w->x);
        }
        lnt_recur_args d = decay_call(a, len, a->V, alone, cu, w);
        d.v = w->v;
        d.o = w->o;
        d.s0 = before;
        d.sT = G;
        run_decay(&d, false);
        rows16_out(a->o, t, len, a->Hv, x->h, V, w->o);
    }
    if (a->hT) store_H(&w->s, a->K, (float *)a->hT + at * K * K);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------- */

/* The states before every segment into Hs and Gs: a segment is one write. */
static void sweep(const lnt_head *x, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V, S = segment_length(a), at = x->index;
    void *values = (char *)w->forms + ENGINE->bytes((int)S, a->K, LNT_LEFT_T);
    float *H = w->Hs, *G = w->Gs;
    copy_state(H, state_at(a->h0, at, K * K), K * K);
    copy_state(G, state_at(a->s0, at, K * V), K * V);
    for (int64_t t = x->first; t + S < x->first + x->len; t += S, H += K * K, G += K * V) {
        float sum = 0;
        for (int64_t i = S - 1; i >= 0; i--) {
            w->out[i] = sum;
            sum += ((const float *)a->g)[(t + i) * a->Hv + x->h];
        }
        row_exp(w->out, S);
        const float end = expf(sum);
        for (int64_t i = 0; i < S; i++) {
            rows_awake(i);
            if (i % ROWS == 0) fetch_keys(x, t + S + i, ROWS);
            row_scaled16(w->out[i] * ((const float *)a->beta)[(t + i) * a->Hv + x->h], row_at(a->k, t + i, a->Hq, x->hq, K), K, w->kb + i * K);
        }
        const lnt_operand writes = ENGINE->prepare16(LNT_LEFT_T, (int)S, a->K, w->kb, K, w->forms);
        lnt_operand to = ENGINE->prepare16(LNT_RIGHT, (int)S, a->K, row_at(a->k, t, a->Hq, x->hq, K), a->Hq * K, values);
        memcpy(H + K * K, H, (size_t)(K * K) * sizeof *H);
        ENGINE->multiply(LNT_MM_SCALED, &end, &writes, true, &to, false, H + K * K, K);
        to = ENGINE->prepare16(LNT_RIGHT, (int)S, a->V, row_at(a->v, t, a->Hv, x->h, V), a->Hv * V, values);
        memcpy(G + K * V, G, (size_t)(K * V) * sizeof *G);
        ENGINE->multiply(LNT_MM_SCALED, &end, &writes, true, &to, false, G + K * V, V);
    }
}

/* dk = beta (p + q) + r, which may lie where p does, or added to `sum` where that is given; (p + q).k. */
static float row_gradient(const lnt_bf16 *p, const lnt_bf16 *q, const lnt_bf16 *r, const lnt_bf16 *k, float beta, int64_t n, float *sum, lnt_bf16 *dk)
{
    vf dots = v_zero();
    int64_t j = 0;
    for (; j + LNT_VL <= n; j += LNT_VL) {
        const vf both = v_load_bf16(p + j) + v_load_bf16(q + j), y = beta * both + v_load_bf16(r + j);
        dots += both * v_load_bf16(k + j);
        if (sum)
            v_store(sum + j, v_load(sum + j) + y);
        else
            v_store_bf16(dk + j, y);
    }
    float dot = v_sum(dots);
    for (; j < n; j++) {
        const float both = lnt_bf16_to_f32(p[j]) + lnt_bf16_to_f32(q[j]), y = beta * both + lnt_bf16_to_f32(r[j]);
        dot += both * lnt_bf16_to_f32(k[j]);
        if (sum)
            sum[j] += y;
        else
            dk[j] = lnt_f32_to_bf16(y);
    }
    return dot;
}

/* Gradients of a segment's rows from what the two passes and the solve left. */
static void put_gradients(const lnt_head *x, int64_t t, int64_t len, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K;
    float *dbeta = a->dbeta, *dg = a->dg;
    for (int64_t i = 0; i < len; i++) {
        const int64_t at = (t + i) * a->Hv + x->h;
        float *sum = w->dk_sum ? w->dk_sum + (t + i - x->first) * K : NULL;
        lnt_bf16 *dk = w->dkb + i * K;
        if (i % 8 == 0) lnt_tiles_awake();
        const float dot = row_gradient(dk, w->dkb2 + i * K, w->dvalue + i * K, w->k + i * K, w->beta[i], K, sum, dk);
        if (dbeta) dbeta[at] = dot;
        if (dg) dg[at] = w->dg[i] + w->dg2[i];
    }
    rows16_out(a->dv, t, len, a->Hv, x->h, a->V, w->dv);
    if (!w->dk_sum) rows16_out(a->dk, t, len, a->Hq, x->hq, K, w->dkb);
    if (w->dq_sum)
        row_add(w->dq_sum + (t - x->first) * K, 1.0f, w->e, len * K);
    else
        rows_out(a->dq, LINNET_BF16, t, len, a->Hq, x->hq, K, w->e);
}

static void swap(float **x)
{
    float *first = x[0];
    x[0] = x[1];
    x[1] = first;
}

/* The rows [t, t+len) with H and G before them; dG[0] and dH[0] (the latter transposed) become the gradients of those. */
static void backward_segment(const lnt_head *x, int64_t t, int64_t len, const float *H, const float *G, double *dlambda, scratch *w)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V;
    int64_t cu[2];
    load_segment(x, t, len, w);
    rows16_in(w->k, a->k, t, len, a->Hq, x->hq, K);
    rows_in(w->x, a->x, LINNET_F32, t, len, a->Hv, x->h, K);
    row_rounded(1, w->x, len * K, w->x16);
    rows16_in(w->o, a->do_, t, len, a->Hv, x->h, V);
    lnt_recur_args d = decay_call(a, len, a->V, false, cu, w);
    d.v = w->v;
    d.do_ = w->o;
    d.s0 = G;
    d.dsT = w->dG[0];
    d.dq = w->y; /* y = G do */
    d.dk = w->dkb;
    d.dv = w->dv;
    d.dg = w->dg;
    d.ds0 = w->dG[1];
    run_decay(&d, true);
    swap(w->dG);

    load_H(&w->s, a->K, H);
    const solution o = { .a = a, .h = x->h, .x = w->e, .f = -1, .x16 = w->y }; /* a row of y is read before it is written */
    solve_segment(x, t, len, w->s.C, w->y, K, o, true, w);
    float *sums = w->row;
    memset(sums, 0, (size_t)K * sizeof *sums);
    for (int64_t i = 0; i < len; i++) {
        rows_awake(i);
        row_add_times(K, -1, w->x + i * K, w->e + i * K, sums);
    }
    for (int64_t j = 0; j < K; j++) dlambda[j] += (double)sums[j];

    d = decay_call(a, len, a->K, false, cu, w);
    d.v = w->k;
    d.do_ = w->y;
    d.s0 = H;
    d.dsT = w->dH[0];
    d.dk = w->dkb2;
    d.dv = w->dvalue;
    d.dg = w->dg2;
    d.ds0 = w->dH[1];
    run_decay(&d, true);
    swap(w->dH);
    put_gradients(x, t, len, w);
}

/* The heads that share q and k follow one another in the same scratch: the first clears their sums, the last puts them out. */
static void backward_head(const lnt_head *x, char *base)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)x->a;
    const int64_t K = a->K, V = a->V, S = segment_length(a), at = x->index, group = a->Hv / a->Hq;
    double *dlambda = (double *)a->workspace + at * K;
    scratch work, *w = &work;
    carve(a, true, base, w);
    memset(dlambda, 0, (size_t)K * sizeof *dlambda);
    if (w->dq_sum && x->h % group == 0) {
        memset(w->dq_sum, 0, (size_t)(x->len * K) * sizeof(float));
        memset(w->dk_sum, 0, (size_t)(x->len * K) * sizeof(float));
    }
    begin_head(a, x->h, &w->s);
    sweep(x, w);
    copy_state(w->dG[0], state_at(a->dsT, at, K * V), K * V);
    if (a->dhT)
        LNT_V(lnt_transpose)(a->K, a->K, state_at(a->dhT, at, K * K), K, w->dH[0], K);
    else
        copy_state(w->dH[0], NULL, K * K);
    for (int64_t segment = (x->len + S - 1) / S - 1; segment >= 0; segment--) {
        const int64_t i = segment * S, len = x->len - i < S ? x->len - i : S;
        backward_segment(x, x->first + i, len, w->Hs + segment * K * K, w->Gs + segment * K * V, dlambda, w);
    }
    if (a->dh0) LNT_V(lnt_transpose)(a->K, a->K, w->dH[0], K, (float *)a->dh0 + at * K * K, K);
    if (a->ds0) memcpy((float *)a->ds0 + at * K * V, w->dG[0], (size_t)(K * V) * sizeof(float));
    if (w->dq_sum && (x->h + 1) % group == 0) {
        rows_out(a->dq, LINNET_BF16, x->first, x->len, a->Hq, x->hq, K, w->dq_sum);
        rows_out(a->dk, LINNET_BF16, x->first, x->len, a->Hq, x->hq, K, w->dk_sum);
    }
}

/* ---- the implementation ---------------------------------------------------------------------------------------------------------------- */

static size_t each_bytes(const lnt_mesa_args *a, bool backward)
{
    scratch w;
    return carve(a, backward, NULL, &w);
}

static size_t workspace(const void *args, bool backward, int threads)
{
    return (size_t)threads * each_bytes(args, backward) + (backward ? lnt_mesa_partial_bytes(args) : 0);
}

static void forward(const void *args, int threads)
{
    const lnt_mesa_args *a = args;
    walk_heads(&a->heads, threads, false, ENGINE, a->workspace, each_bytes(a, false), forward_head);
}

static void backward(const void *args, int threads)
{
    const lnt_mesa_args *a = args;
    walk_heads(&a->heads, threads, true, ENGINE, (char *)a->workspace + lnt_mesa_partial_bytes(a), each_bytes(a, true), backward_head);
    lnt_mesa_sum_lambda(a);
}

static const char *declines(const void *args, bool back)
{
    const lnt_mesa_args *a = args;
    (void)back;
    if (a->dtype != LINNET_BF16) return "its products round to bf16; the tensors are float32";
    if (a->longest < ROWS) return "the sequences do not fill a chunk";
    if (a->cg_solver != LNT_CG_LEVEL || !a->cg_max_steps) return "it takes level steps, one at least";
    if (a->cg_gradient != LNT_CG_IMPLICIT) return "the gradient through steps is taken in float32";
    if (a->heads.window || a->lambda_varies || a->heads.has_sign) return "windows, Lambdas of tokens and signs are taken in float32";
    return a->K > COLUMNS ? "K is above 256" : NULL;
}

extern const lnt_recur_impl LNT_V(lnt_mesa_chunk);
const lnt_recur_impl LNT_V(lnt_mesa_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL, .declines = declines,
                                              .workspace = workspace, .forward = forward, .backward = backward };
#endif
