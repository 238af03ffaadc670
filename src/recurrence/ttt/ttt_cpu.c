/* TTT-linear and TTT-MLP on the CPU (README.md): mini-batch by mini-batch, all of its rows in products with the weights that it begins with. The
 * token form takes its rows one by one. A head of a sequence is a piece of work; backward, a head of a part of the sequences is.
 *
 * Where the processor has tiles, products of bf16 calls go through them, but for the token form's, and several mini-batches are taken together
 * (ttt_tiled.h). Long: both models in both directions, of which most is common to both. */
#include "recurrence/chunk/chunk_factors_amx.h"
#include "recurrence/ttt/ttt_tiled.h"
#include "recurrence/ttt/ttt_walk.h"

static void set_head(head *x, int64_t n, int64_t h)
{
    x->n = n, x->h = h, x->norm = ttt_norm_of(x->a, h);
    for (int64_t i = 0; i < x->m; i++) {
        const float p = x->a->token_idx ? 1 / (float)(i + 1) + ((const float *)x->a->token_idx)[i] : 1;
        x->position[i] = p < 0 ? 0 : p; /* NaN stays */
    }
}

/* ---- states ---------------------------------------------------------------------------------------------------------------------------------- */

static void sum_biases(const head *x)
{
    for (int l = 0; l < x->layers; l++) ttt_sum(x->b[l], biases_of(x, x->a->layer[l].b, l), x->S_b[l], x->out[l]);
}

static void sum_up(const head *x)
{
    sum_biases(x);
    for (int l = 0; l < x->layers; l++) {
        ttt_sum(x->W[l], weights_of(x, x->a->layer[l].w, l), x->S_w[l], x->in[l] * x->out[l]);
#if defined(__AMX_BF16__)
        if (x->tiled) tiled_weights(x, l);
#endif
    }
}

/* The state takes the rows' update by the last one's step sizes. */
static void update_layer(const head *x, int l, int64_t rows)
{
    TILES_INSTEAD(x, tiled_update(x, l, rows))
    last_steps(x, l, rows);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)x->in[l], (int)x->out[l], (int)rows, x->x[l], 1, x->in[l], x->wide, x->out[l], x->S_w[l], x->out[l]);
    if (x->a->bias) ttt_add_rows(x->S_b[l], rows, x->out[l], x->wide);
}

static void update(const head *x, int64_t rows)
{
    for (int l = 0; l < x->layers; l++) update_layer(x, l, rows);
}

/* The initial state's open rows, and the weights that they began with. Returns how many. */
static int64_t load(const head *x)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m, open = ttt_open(a, x->n, x->h);
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        ttt_some(x->S_w[l], state_at(x, open ? a->layer[l].sw0 : a->layer[l].w0, in * out), in * out, in * out);
        ttt_some(x->S_b[l], state_at(x, open ? a->layer[l].sb0 : a->layer[l].b0, out), out, out);
        ttt_some(x->x[l], state_at(x, a->layer[l].x0, m * in), open * in, open * in);
        ttt_some(x->u[l], state_at(x, a->layer[l].u0, m * out), open * out, open * out);
    }
    sum_up(x);
    return open;
}

/* The final state: the weights after the last row, and the `open` rows of its mini-batch with those it began with. */
static void store(const head *x, int64_t open)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m;
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        ttt_some(state_at(x, a->layer[l].swT, in * out), x->S_w[l], open ? in * out : 0, in * out);
        ttt_some(state_at(x, a->layer[l].sbT, out), x->S_b[l], open ? out : 0, out);
        ttt_some(state_at(x, a->layer[l].xT, m * in), x->x[l], open * in, m * in);
        ttt_some(state_at(x, a->layer[l].uT, m * out), x->u[l], open * out, m * out);
    }
    if (open) update(x, open);
    for (int l = 0; l < x->layers; l++) {
        ttt_some(state_at(x, a->layer[l].wT, x->in[l] * x->out[l]), x->S_w[l], x->in[l] * x->out[l], x->in[l] * x->out[l]);
        ttt_some(state_at(x, a->layer[l].bT, x->out[l]), x->S_b[l], x->out[l], x->out[l]);
    }
    if (a->nT) *state_at(x, a->nT, 1) = (float)open;
}

/* A state as it is, or its gradient: of a sequence without tokens. */
static void pass(const head *x, bool gradient)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m, open = ttt_open(a, x->n, x->h);
    for (int l = 0; l < x->layers; l++) {
        const lnt_ttt_layer *s = gradient ? &a->dlayer[l] : &a->layer[l];
        const int64_t in = x->in[l], out = x->out[l];
#define PASS(INITIAL, FINAL, SOME, COUNT)                                                                                          \
    ttt_some(state_at(x, gradient ? (INITIAL) : (FINAL), COUNT), state_at(x, gradient ? (FINAL) : (INITIAL), COUNT), SOME, COUNT)
        PASS(s->w0, s->wT, in * out, in * out);
        PASS(s->b0, s->bT, out, out);
        PASS(s->sw0, s->swT, open ? in * out : 0, in * out);
        PASS(s->sb0, s->sbT, open ? out : 0, out);
        PASS(s->x0, s->xT, open * in, m * in);
        PASS(s->u0, s->uT, open * out, m * out);
    }
#undef PASS
    float *n = state_at(x, gradient ? a->dn0 : a->nT, 1);
    if (n) *n = gradient ? 0 : (float)open;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------------------------- */

/* z = y W + b, of n rows. */
static void through(const head *x, int l, int64_t n, const float *y, float *z)
{
    for (int64_t i = 0; i < n; i++) memcpy(z + i * x->out[l], x->b[l], (size_t)x->out[l] * sizeof *z);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)x->out[l], (int)x->in[l], y, x->in[l], 1, x->W[l], x->out[l], z, x->out[l]);
}

/* Keys i .. end-1 of a mini-batch through layer l. */
static void keys_through(const head *x, int l, int64_t i, int64_t end)
{
    TILES_INSTEAD(x, tiled_keys(x, l, i, end))
    through(x, l, end - i, x->x[l] + i * x->in[l], x->z[l] + i * x->out[l]);
}

/* h = u W^T, of the upper layer's gradients. */
static void slopes_through(const head *x, int64_t i, int64_t end)
{
    const int64_t D = x->D, F = x->in[1];
    TILES_INSTEAD(x, tiled_slopes(x, i, end))
    ttt_times_transposed(LNT_MM_SET, end - i, D, x->raw[1] + i * D, F, x->W[1], x->h1 + i * F, x->turned);
}

/* s = sigmoid(y), y = c (x + a x^3), the factor of x in gelu, and 1 - s; on tiles without a division. (By short_power and short_inverse dtoken_idx,
 * whose terms cancel, was 1.1 times as far off as it may be.) */
INLINE vf gelu_gate(bool tiled, vf x, vf *rest)
{
#if defined(__AMX_BF16__)
    if (tiled) {
        const vf e = -2.30220819f * x * (1.0f + 0.044715f * x * x);
        const vf t = (vf)power_in_range((__m512)v_max(v_set(-120.0f), v_min(v_set(120.0f), e))), s = (vf)inverse((__m512)(1.0f + t));
        *rest = t * s;
        return s;
    }
#endif
    (void)tiled;
    const vf s = v_gelu_gate(x);
    *rest = 1.0f - s;
    return s;
}

/* gelu(x), its slope and its bend, which are s + x s' and 2 s' + x s'' of s' = s (1 - s) y', or NULL. Beyond |x| = 20 s' is 0. */
INLINE void gelu_of(bool tiled, int64_t count, const float *x, float *y, float *slope, float *bend)
{
    V_EACH(i, n, count)
    {
        vf rest;
        rows_awake(i / LNT_VL);
        const vf at = ttt_get(x, i, n), s = gelu_gate(tiled, at, &rest);
        ttt_put(y, i, n, at * s);
        if (!slope) continue;
        const vf near = v_max(v_min(at, v_set(20.0f)), v_set(-20.0f)), both = s * rest;
        const vf first = 1.59576912f + 0.214064449f * near * near, second = 0.428128898f * near;
        ttt_put(slope, i, n, s + near * both * first);
        if (bend) ttt_put(bend, i, n, both * (2.0f * first + near * (second + first * first * (1.0f - 2.0f * s))));
    }
}

static void gelu(bool tiled, int64_t count, const float *x, float *y)
{
    tiled ? gelu_of(true, count, x, y, NULL, NULL) : gelu_of(false, count, x, y, NULL, NULL);
}

static void gelu_and_slope(bool tiled, int64_t count, const float *x, float *y, float *slope)
{
    tiled ? gelu_of(true, count, x, y, slope, NULL) : gelu_of(false, count, x, y, slope, NULL);
}

static void gelu_and_bend(bool tiled, int64_t count, const float *x, float *y, float *slope, float *bend)
{
    tiled ? gelu_of(true, count, x, y, slope, bend) : gelu_of(false, count, x, y, slope, bend);
}

/* z = x y, z = x y + b */
static void times(int64_t count, const float *x, const float *y, float *z)
{
    V_EACH(i, n, count) ttt_put(z, i, n, ttt_get(x, i, n) * ttt_get(y, i, n));
}

static void times_and(int64_t count, const float *x, const float *y, const float *b, float *z)
{
    V_EACH(i, n, count)
    {
        rows_awake(i / LNT_VL);
        ttt_put(z, i, n, ttt_get(x, i, n) * ttt_get(y, i, n) + ttt_get(b, i, n));
    }
}

/* Rows of span c, which is the next, on their way into the cache; what only reading takes where that is to be done. */
static void ahead(const head *x, int64_t open, int64_t c, bool reads)
{
    const lnt_ttt_args *a = x->a;
    if (x->tiled || c < 0 || c >= spans_of(&x->place, open, len_of(&x->place))) return; /* tiled: row by row, by row_of_next */
    const lnt_ttt_batch y = span_at(&x->place, open, len_of(&x->place), c);
    const int64_t t = a->cu_seqlens[x->n] + y.first, n = y.rows - y.open;
    rows_ahead(a->k, a->dtype, t, n, a->H, x->h, x->D);
    rows_ahead(a->v, a->dtype, t, n, a->H, x->h, x->D);
    rows_ahead(a->eta, LINNET_F32, t, n, a->H, x->h, x->m);
    if (!reads) return;
    rows_ahead(a->q, a->dtype, t, n, a->H, x->h, x->D);
    rows_ahead(a->dout, a->dtype, t, n, a->H, x->h, x->D);
}

/* Values of row i, token t: on tiles as they lie in the tensor, rows `away` numbers apart. */
typedef struct {
    const void *row;
    lnt_dtype type;
    int64_t away;
} values;
INLINE values values_of(const head *x, bool tiled, int64_t t, int64_t i)
{
    const int64_t D = x->D, away = x->a->H * D;
    if (tiled) return (values){ (const lnt_bf16 *)x->a->v + t * away + x->h * D, LINNET_BF16, away };
    return (values){ x->v + i * D, LINNET_F32, D };
}

/* u of the last layer, raw and by the rows' rates, hat and 1 / sigma, of rows p .. rows-1, tokens from t on. Where nobody asks for them again, raw
 * and hat are those of a few rows, in the L1 cache. */
INLINE void losses(int64_t D, bool tiled, const head *x, int64_t t, int64_t p, int64_t rows)
{
    const int top = x->layers - 1;
    int64_t n;
    for (int64_t i = p; i < rows; i += n) {
        const float *z = x->z[top] + i * D, *k = x->x[0] + i * D;
        const values v = values_of(x, tiled, t + i - p, i);
        float *hat = x->hat + (x->back ? i * D : 0), *raw = x->raw[top] + (x->back || top ? i * D : 0);
        row_awake(i);
        n = ttt_losses(D, &x->norm, rows - i, z, k, v.row, v.type, v.away, hat, x->inverse + i, raw);
        for (int64_t r = i; r < i + n; r++) rows_of_next(&x->place, x->a->k, x->a->v, t + r - p);
        ttt_scale_rows(x->u[top] + i * D, x->rate + i, n, D, raw);
    }
}

/* Of rows p .. rows-1, tokens from t on. */
static void step_sizes(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m;
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int64_t i = p, end; i < rows; i = end) {
        const int64_t first = batch_of(&x->place, i);
        for (end = last_of(&x->place, i, rows) + 1; i < end; i++) {
            const int64_t row = (t + i - p) * a->H + x->h;
            const float *eta = a->eta ? (const float *)a->eta + row * m : NULL;
            light_row_awake(i);
            row_of_next(&x->place, a->eta, LINNET_F32, t + i - p, m);
            x->rate[i] = a->rate ? ((const float *)a->rate)[row] : 1;
            float *F = x->F + i * x->span;
            V_EACH(j, c, m)
            {
                const vf rate = x->position[i - first] * (eta ? ttt_get(eta, j, c) : v_set(1));
                ttt_put(F + first, j, c, v_select(lane <= (int32_t)(i - first - j), rate, v_zero()));
            }
            V_EACH(j, c, first) ttt_put(F, j, c, ttt_get(x->last, j, c));
            V_EACH(j, c, x->span - first - m) ttt_put(F + first + m, j, c, v_zero());
        }
        memcpy(x->last + first, x->F + (end - 1) * x->span + first, (size_t)m * sizeof(float));
    }
}

/* The lower layer's gradients, h gelu'(z_0), by the rows' rates. */
static void scaled_slopes(int64_t rows, int64_t F, const float *h, const float *slope, const float *rate, float *u)
{
    for (int64_t r = 0; r < rows; r++, h += F, slope += F, u += F) {
        row_awake(r);
        V_EACH(i, n, F) ttt_put(u, i, n, rate[r] * (ttt_get(h, i, n) * ttt_get(slope, i, n)));
    }
}

/* Keys of rows i .. end-1 of a mini-batch, tokens from t on: inputs of the layers, gradients. */
static void learn_batch(const head *x, int64_t t, int64_t i, int64_t end)
{
    const int64_t D = x->D, F = x->a->F, n = end - i;
    const int top = x->layers - 1;
    keys_through(x, 0, i, end);
    if (top) {
        if (x->away < 0) /* on the way back */
            gelu_and_bend(x->tiled, n * F, x->z[0] + i * F, x->x[1] + i * F, x->slope + i * F, x->bend + i * F);
        else
            gelu_and_slope(x->tiled, n * F, x->z[0] + i * F, x->x[1] + i * F, x->slope + i * F);
        keys_through(x, 1, i, end);
    }
    if (x->tiled)
        TTT_OF_WIDTH(D, losses, true, x, t, i, end);
    else
        TTT_OF_WIDTH(D, losses, false, x, t, i, end);
    if (top) {
        slopes_through(x, i, end);
        scaled_slopes(n, F, x->h1 + i * F, x->slope + i * F, x->rate + i, x->u[0] + i * F);
    }
#if defined(__AMX_BF16__)
    for (int l = 0; l <= top && x->tiled; l++) tiled_u(x, l, i, end);
#endif
}

/* Keys of rows p .. rows-1, tokens from t on. */
static void learn(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    rows_in(x->x[0] + p * x->D, a->k, a->dtype, t, rows - p, a->H, x->h, x->D);
    if (!x->tiled) rows_in(x->v + p * x->D, a->v, a->dtype, t, rows - p, a->H, x->h, x->D);
    step_sizes(x, t, p, rows);
    for (int64_t i = p, end; i < rows; i = end) {
        end = last_of(&x->place, i, rows) + 1;
        learn_batch(x, t + i - p, i, end);
    }
}

/* Layer l for queries p .. rows-1 by the weights after their own rows:  zq = y W + b + A u,  A = -F.S,  S = y x^T + 1 where there are biases. */
static void read_layer(const head *x, int l, int64_t t, int64_t p, int64_t rows)
{
    const int64_t n = rows - p, in = x->in[l], out = x->out[l], m = x->span;
    float *S = x->S[l] + p * m, *A = x->A[l] + p * m, *zq = x->zq[l] + p * out;
    (void)t; /* tiles take queries as they come */
    TILES_INSTEAD(x, tiled_read(x, l, t, p, rows))
    through(x, l, n, x->y[l] + p * in, zq);
    LNT_V(lnt_transpose)((int)rows, (int)in, x->x[l], in, x->turned, rows);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)rows, (int)in, x->y[l] + p * in, in, 1, x->turned, rows, S, m);
    steps_of_pairs(x, p, n, rows, (float)x->a->bias, S, A);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)out, (int)rows, A, m, 1, x->u[l], out, zq, out);
}

static void read(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    if (!x->tiled) rows_in(x->y[0] + p * x->D, a->q, a->dtype, t, rows - p, a->H, x->h, x->D);
    read_layer(x, 0, t, p, rows);
    if (x->layers == 1) return;
    if (x->back)
        gelu_and_slope(x->tiled, (rows - p) * a->F, x->zq[0] + p * a->F, x->y[1] + p * a->F, x->slope_q + p * a->F);
    else
        gelu(x->tiled, (rows - p) * a->F, x->zq[0] + p * a->F, x->y[1] + p * a->F);
    read_layer(x, 1, t, p, rows);
}

/* LN(o) + q to the tensor, or in its place; on tiles D is whole lines. */
INLINE void norms_of_output(int64_t D, const head *x, int64_t t, int64_t p, int64_t rows, float *o)
{
    int64_t normal = p; /* rows of which the norm has been taken */
#if defined(__AMX_BF16__)
    const bool past = rows_past(x->a->o, LINNET_BF16, D);
#endif
    for (int64_t i = p; i < rows; i++) {
        float *row = o + i * D;
        row_awake(i);
        rows_of_next(&x->place, x->a->q, NULL, t + i - p);
#if defined(TTT_FOURS)
        if (D == 64 && i == normal && i + 4 <= rows) ttt_normalise_four(row, row), normal = i + 4;
#endif
        if (i >= normal) ttt_normalise(D, row, row);
#if defined(__AMX_BF16__)
        const int64_t at = ((t + i - p) * x->a->H + x->h) * D;
        const lnt_bf16 *q = (const lnt_bf16 *)x->a->q + at;
        lnt_bf16 *to = (lnt_bf16 *)x->a->o + at;
        for (int64_t c = 0; x->tiled && c < D; c += 32) {
            const vf low = v_load(row + c) * v_load(x->norm.w + c) + v_load(x->norm.b + c) + v_load_bf16(q + c);
            const vf high = v_load(row + c + 16) * v_load(x->norm.w + c + 16) + v_load(x->norm.b + c + 16) + v_load_bf16(q + c + 16);
            ttt_put_line(to + c, past, low, high);
        }
        if (x->tiled) continue;
#endif
        V_EACH(c, n, D) ttt_put(row, c, n, ttt_get(row, c, n) * ttt_get(x->norm.w, c, n) + ttt_get(x->norm.b, c, n) + ttt_get(x->y[0] + i * D, c, n));
    }
}

/* o = LN(zq) + q, or zq. */
static void put_output(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const int64_t D = x->D;
    float *o = x->zq[x->layers - 1];
    if (!x->a->o) return;
    if (!x->norm.plain) TTT_OF_WIDTH(D, norms_of_output, x, t, p, rows, o);
    if (x->norm.plain || !x->tiled) rows_out(x->a->o, x->a->dtype, t, rows - p, x->a->H, x->h, D, o + p * D);
}

/* The next span begins. */
static void close_span(const head *x, int64_t rows)
{
    update(x, rows);
    if (!x->tiled) {
        sum_up(x);
        return;
    }
    sum_biases(x);
#if defined(__AMX_BF16__)
    for (int l = 1; l < x->layers; l++) ENGINE->extend(&x->forms[l].W, LNT_RIGHT_T, x->forms[l].W_turned);
#endif
}

static void forward_rows(const head *x, bool one_by_one)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(&x->place), open = len ? load(x) : 0, spans = spans_of(&x->place, open, len);
    if (!len) {
        pass(x, false);
        return;
    }
    for (int64_t c = 0; c < spans; c++) {
        const lnt_ttt_batch y = span_at(&x->place, open, len, c);
        const int64_t first = a->cu_seqlens[x->n] + y.first - y.open;
        ahead(x, open, c + 1, true);
        for (int64_t i = y.open, end; i < y.rows; i = end) {
            end = one_by_one ? i + 1 : y.rows;
            learn(x, first + i, i, end);
            read(x, first + i, i, end);
            put_output(x, first + i, i, end);
        }
        if (y.rows % x->m == 0) close_span(x, y.rows);
    }
    store(x, (open + len) % x->m);
}

static void forward_head(head *x, bool one_by_one)
{
#if defined(__AMX_BF16__)
    if (one_by_one) x->tiled = false, x->span = x->m;
    x->away = x->span;
    ENGINE->begin();
    forward_rows(x, one_by_one);
    ENGINE->end();
#else
    forward_rows(x, one_by_one);
#endif
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------------- */

static void put_by(const head *x, float *p)
{
    for (int l = 0; l < x->layers; l++) {
        memcpy(p, x->S_w[l], (size_t)(x->in[l] * x->out[l]) * sizeof *p);
        memcpy(p += x->in[l] * x->out[l], x->S_b[l], (size_t)x->out[l] * sizeof *p);
        p += x->out[l];
    }
}

static void take_back(const head *x, const float *p)
{
    for (int l = 0; l < x->layers; l++) {
        memcpy(x->S_w[l], p, (size_t)(x->in[l] * x->out[l]) * sizeof *p);
        memcpy(x->S_b[l], p += x->in[l] * x->out[l], (size_t)x->out[l] * sizeof *p);
        p += x->out[l];
    }
    sum_up(x);
}

/* Layer l's queries, from dz [n,out] of zq: du, dx, dF, dW and db take their shares; dy [n,in] is written. dW and db come from behind the
 * mini-batch. */
static void read_layer_back(const head *x, int l, int64_t p, int64_t rows)
{
    const int64_t n = rows - p, in = x->in[l], out = x->out[l], m = x->span;
    const float *A = x->A[l] + p * m, *dz = x->dz;
    TILES_INSTEAD(x, tiled_read_back(x, l, p, rows))
    for (int64_t j = 0; j < rows; j++) memcpy(x->wide + j * out, x->db[l], (size_t)out * sizeof(float)); /* the same */
    if (x->a->bias) ttt_add_rows(x->db[l], n, out, dz);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)out, (int)in, x->x[l], in, 1, x->dW[l], out, x->wide, out);
    last_steps_back(x, l, rows);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)out, (int)n, A, 1, m, dz, out, x->du[l], out);
    LNT_V(lnt_transpose)((int)rows, (int)out, x->u[l], out, x->turned, rows);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)rows, (int)out, dz, out, 1, x->turned, rows, x->dA, m);
    steps_of_pairs_back(x, false, p, n, rows, x->S[l] + p * m);
    ttt_times_transposed(LNT_MM_SET, n, out, dz, in, x->W[l], x->dy, x->turned);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)in, (int)rows, x->dA, m, 1, x->x[l], in, x->dy, in);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)in, (int)n, x->dA, 1, m, x->y[l] + p * in, in, x->dx[l], in);
    last_steps(x, l, rows);
    ttt_times_transposed(LNT_MM_ADD, rows, out, x->wide, in, x->dW[l], x->dx[l], x->turned);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)in, (int)out, (int)n, x->y[l] + p * in, 1, in, dz, out, x->dW[l], out);
}

/* Through the norm of the output, of rows z [n,D], tokens from t on. */
INLINE void norms_of_output_back(int64_t D, const head *x, int64_t t, int64_t n, const float *z, const float *dout, float *dz)
{
    for (int64_t i = 0; i < n; i++) {
        float *hat = x->work, *d = dz + i * D;
        row_awake(i);
        rows_of_next(&x->place, x->a->q, x->a->dout, t + i);
        const float inverse = ttt_normalise(D, z + i * D, hat);
        V_EACH(c, k, D)
        {
            const vf dc = ttt_get(dout + i * D, c, k);
            ttt_put(x->norm.dw, c, k, ttt_get(x->norm.dw, c, k) + dc * ttt_get(hat, c, k));
            ttt_put(x->norm.db, c, k, ttt_get(x->norm.db, c, k) + dc);
            ttt_put(d, c, k, dc * ttt_get(x->norm.w, c, k));
        }
        ttt_project(D, d, hat, inverse, d);
    }
}

/* Through the losses of rows p .. rows-1, tokens from t on, from du of the last layer to dz in z's place, and to dk and dv. */
INLINE void losses_back(int64_t D, bool tiled, const head *x, int64_t t, int64_t p, int64_t rows)
{
    const int top = x->layers - 1;
    for (int64_t i = p; i < rows; i++) {
        const values v = values_of(x, tiled, t + i - p, i);
        row_awake(i);
        ttt_loss_back(D, &x->norm, x->hat + i * D, x->inverse[i], x->x[0] + i * D, v.row, v.type, x->raw[top] + i * D, x->du[top] + i * D, x->work,
                      x->z[top] + i * D, x->dx[0] + i * D, x->dv + i * D);
    }
}

/* From the outputs' cotangents to the queries' gradients. */
static void read_back(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, n = rows - p;
    const int top = x->layers - 1;
    rows_in(x->dout, a->dout, a->dtype, t, n, a->H, x->h, D);
    if (x->norm.plain)
        memcpy(x->dz, x->dout, (size_t)(n * D) * sizeof(float));
    else
        TTT_OF_WIDTH(D, norms_of_output_back, x, t, n, x->zq[top] + p * D, x->dout, x->dz);
    for (int l = top; l >= 0; l--) {
        read_layer_back(x, l, p, rows);
        if (!l) break;
        times(n * a->F, x->dy, x->slope_q + p * a->F, x->dz);
    }
    if (x->norm.plain)
        rows_out(a->dq, a->dtype, t, n, a->H, x->h, D, x->dy);
    else if (a->dq)
        rows_out_sum(a->dq, a->dtype, t, n, a->H, x->h, D, 1, NULL, x->dy, NULL, x->dout);
}

/* Through h of keys i .. end-1, from its gradient in du of the lower layer; dW later. */
static void slopes_back(const head *x, int64_t i, int64_t end)
{
    const int64_t D = x->D, F = x->in[1];
    TILES_INSTEAD(x, tiled_slopes_back(x, i, end))
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)(end - i), (int)D, (int)F, x->du[0] + i * F, F, 1, x->W[1], D, x->du[1] + i * D, D);
}

/* Keys i .. end-1 of layer l, from dz to dx. */
static void keys_back(const head *x, int l, int64_t i, int64_t end)
{
    TILES_INSTEAD(x, tiled_keys_back(x, l, i, end))
    ttt_times_transposed(LNT_MM_ADD, end - i, x->out[l], x->z[l] + i * x->out[l], x->in[l], x->W[l], x->dx[l] + i * x->in[l], x->turned);
}

/* What h and z of keys p .. rows-1 have for dW; on tiles queries, too. */
static void writes(const head *x, int l, int64_t p, int64_t rows)
{
    const int64_t n = rows - p, in = x->in[l], out = x->out[l];
    TILES_INSTEAD(x, tiled_writes(x, l, p, rows))
    if (l) LNT_V(lnt_mm)(LNT_MM_ADD, (int)in, (int)out, (int)n, x->du[0] + p * in, 1, in, x->raw[1] + p * out, out, x->dW[l], out);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)in, (int)out, (int)n, x->x[l] + p * in, 1, in, x->z[l] + p * out, out, x->dW[l], out);
}

/* A row of the lower layer, u = rate h gelu'(z): from du to the gradient of h in its place, and what z gets of it in gelu's bend's. Returns the
 * gradient of the rate. */
static float lower_back(int64_t F, float rate, const float *h, const float *slope, float *bend, float *du)
{
    vf sum = v_zero();
    V_EACH(i, n, F)
    {
        const vf d = ttt_get(du, i, n), by_h = d * ttt_get(h, i, n), gate = ttt_get(slope, i, n);
        sum += by_h * gate;
        ttt_put(bend, i, n, rate * by_h * ttt_get(bend, i, n));
        ttt_put(du, i, n, rate * d * gate);
    }
    return v_sum(sum);
}

/* From the gradients of u, of rows i .. end-1 of a mini-batch, to those of its inputs, values and rates; those of z take its place. */
static void learn_batch_back(const head *x, int64_t t, int64_t i, int64_t end)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, F = a->F, n = end - i;
    const int top = x->layers - 1;
    for (int64_t r = i; r < end; r++) {
        float *du = x->du[top] + r * D, drate = 0;
        if (top) {
            row_awake(r);
            drate = lower_back(F, x->rate[r], x->h1 + r * F, x->slope + r * F, x->bend + r * F, x->du[0] + r * F);
        } else {
            light_row_awake(r);
        }
        drate += ttt_dot(D, du, x->raw[top] + r * D);
        row_scale(du, x->rate[r], D);
        if (a->drate) ((float *)a->drate)[(t + r - i) * a->H + x->h] = drate;
    }
    if (top) slopes_back(x, i, end);
    if (x->tiled)
        TTT_OF_WIDTH(D, losses_back, true, x, t, i, end);
    else
        TTT_OF_WIDTH(D, losses_back, false, x, t, i, end);
    for (int l = top; l >= 0; l--) {
        if (a->bias) ttt_add_rows(x->db[l], n, x->out[l], x->z[l] + i * x->out[l]);
        keys_back(x, l, i, end);
        if (!l) break;
        times_and(n * F, x->dx[1] + i * F, x->slope + i * F, x->bend + i * F, x->z[0] + i * F);
    }
}

/* From dF of rows p .. rows-1 to the gradients of eta and token_idx. */
static void step_sizes_back(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m;
    for (int64_t i = p; i < rows; i++)
        for (int64_t j = 0; j < batch_of(&x->place, i); j += m) ttt_add(m, 1, x->dF + i * x->span + j, x->dF + (j + m - 1) * x->span + j);
    for (int64_t i = p; i < rows; i++) {
        const int64_t row = ((t + i - p) * a->H + x->h) * m, first = batch_of(&x->place, i), r = i - first;
        const float *dF = x->dF + i * x->span + first, *eta = a->eta ? (const float *)a->eta + row : NULL;
        float *deta = a->deta ? (float *)a->deta + row : NULL;
        vf sum = v_zero();
        row_awake(i);
        V_EACH(j, c, r + 1)
        {
            const vf d = ttt_get(dF, j, c);
            if (deta) ttt_put(deta, j, c, d * x->position[r]);
            sum += eta ? d * ttt_get(eta, j, c) : d;
        }
        if (deta) memset(deta + r + 1, 0, (size_t)(m - r - 1) * sizeof *deta);
        x->dposition[r] += x->position[r] > 0 ? v_sum(sum) : 0;
    }
}

/* From the gradients of u, of rows p .. rows-1, to those of keys, values, weights and rates. */
static void learn_back(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t n = rows - p;
    for (int64_t end = rows, i; end > p; end = i) {
        i = batch_of(&x->place, end - 1) > p ? batch_of(&x->place, end - 1) : p;
        learn_batch_back(x, t + i - p, i, end);
    }
    for (int l = x->layers - 1; l >= 0; l--) writes(x, l, p, rows);
    rows_out(a->dk, a->dtype, t, n, a->H, x->h, x->D, x->dx[0] + p * x->D);
    rows_out(a->dv, a->dtype, t, n, a->H, x->h, x->D, x->dv + p * x->D);
    step_sizes_back(x, t, p, rows);
}

/* Forms of the gradients of weights as they are. */
static void pack_gradients(const head *x)
{
#if defined(__AMX_BF16__)
    for (int l = 0; l < x->layers && x->tiled; l++) tiled_gradients(x, l);
#else
    (void)x;
#endif
}

/* dW, db, from behind span y, become the gradients of its start. `ends`: it is the sequence's last. */
static void backward_batch(const head *x, const lnt_ttt_batch *y, bool ends)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m, t = a->cu_seqlens[x->n] + y->first, left = ends && y->rows < m ? y->rows : 0;
    memset(x->dF, 0, (size_t)(x->span * x->span) * sizeof(float));
    for (int l = 0; l < x->layers; l++) { /* rows that the final state has */
        ttt_some(x->dx[l], state_at(x, a->dlayer[l].xT, m * x->in[l]), left * x->in[l], x->span * x->in[l]);
        ttt_some(x->du[l], state_at(x, a->dlayer[l].uT, m * x->out[l]), left * x->out[l], x->span * x->out[l]);
    }
    learn(x, t, y->open, y->rows);
    read(x, t, y->open, y->rows);
    read_back(x, t, y->open, y->rows);
    learn_back(x, t, y->open, y->rows);
    for (int l = 0; left && l < x->layers; l++) {
        const int64_t count = x->in[l] * x->out[l], out = x->out[l];
        const float *w = state_at(x, a->dlayer[l].swT, count), *b = state_at(x, a->dlayer[l].sbT, out);
        if (w) ttt_add(count, 1, w, x->dW[l]);
        if (b) ttt_add(out, 1, b, x->db[l]);
    }
    if (left) pack_gradients(x);
}

/* To the initial state. */
static void store_back(const head *x, int64_t open)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m;
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        ttt_some(state_at(x, a->dlayer[l].w0, in * out), x->dW[l], open ? 0 : in * out, in * out);
        ttt_some(state_at(x, a->dlayer[l].b0, out), x->db[l], open ? 0 : out, out);
        ttt_some(state_at(x, a->dlayer[l].sw0, in * out), x->dW[l], open ? in * out : 0, in * out);
        ttt_some(state_at(x, a->dlayer[l].sb0, out), x->db[l], open ? out : 0, out);
        ttt_some(state_at(x, a->dlayer[l].x0, m * in), x->dx[l], open * in, m * in);
        ttt_some(state_at(x, a->dlayer[l].u0, m * out), x->du[l], open * out, m * out);
    }
    if (a->dn0) *state_at(x, a->dn0, 1) = 0;
}

/* The weights that a span begins with, at place i of the group: put by, where the ones behind them will be, and taken back. */
static void put_weights_by(const head *x, int64_t i)
{
    TILES_INSTEAD(x, tiled_put_by(x, x->inside + i * x->kept, i > 0)) /* the others are there already, but for biases */
    put_by(x, x->inside + i * x->kept);
}

static void leave_weights_at(const head *x, int64_t i)
{
    TILES_INSTEAD(x, tiled_leave_at(x, x->inside + i * x->kept))
    (void)x, (void)i;
}

static void take_weights_back(const head *x, int64_t i)
{
    TILES_INSTEAD(x, tiled_take_back(x, x->inside + i * x->kept))
    take_back(x, x->inside + i * x->kept);
}

/* Weights of spans c .. end-1, each put by before it. */
static void sweep(head *x, int64_t open, int64_t c, int64_t end)
{
    const lnt_ttt_args *a = x->a;
    x->away = x->span;
    for (int64_t i = c; i < end; i++) {
        const lnt_ttt_batch y = span_at(&x->place, open, len_of(&x->place), i);
        put_weights_by(x, i - c);
        if (i + 1 == end) return;
        leave_weights_at(x, i - c + 1);
        ahead(x, open, i + 1, false);
        learn(x, a->cu_seqlens[x->n] + y.first, y.open, y.rows);
        close_span(x, y.rows);
    }
}

static void backward_rows(head *x)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(&x->place), open = len ? load(x) : 0, spans = spans_of(&x->place, open, len), group = x->group;
    if (!len) {
        pass(x, true);
        return;
    }
    x->away = x->span;
    for (int64_t c = 0; c < spans; c++) {
        const lnt_ttt_batch y = span_at(&x->place, open, len, c);
        if (c % group == 0) put_by(x, x->starts + c / group * x->weights);
        if (c / group == (spans - 1) / group) break; /* the last group's are made below */
        learn(x, a->cu_seqlens[x->n] + y.first, y.open, y.rows);
        close_span(x, y.rows);
    }
    for (int l = 0; l < x->layers; l++) {
        const int64_t count = x->in[l] * x->out[l], out = x->out[l];
        ttt_some(x->dW[l], state_at(x, a->dlayer[l].wT, count), count, count);
        ttt_some(x->db[l], state_at(x, a->dlayer[l].bT, out), out, out);
        ttt_add(count, -1, x->dW[l], x->sum_w[l]); /* final states are differences too */
        ttt_add(out, -1, x->db[l], x->sum_b[l]);
        const float *w = state_at(x, a->dlayer[l].swT, count), *b = state_at(x, a->dlayer[l].sbT, out);
        if (w && (open + len) % x->m) ttt_add(count, -1, w, x->sum_w[l]);
        if (b && (open + len) % x->m) ttt_add(out, -1, b, x->sum_b[l]);
    }
    pack_gradients(x);
    for (int64_t g = (spans - 1) / group; g >= 0; g--) {
        const int64_t begin = g * group, end = at_most(spans, begin + group);
        if (!g) load(x); /* its open rows too */
        take_back(x, x->starts + g * x->weights);
        sweep(x, open, begin, end);
        x->away = -x->span;
        for (int64_t c = end - 1; c >= begin; c--) {
            const lnt_ttt_batch y = span_at(&x->place, open, len, c);
            if (!c && open) load(x);
            take_weights_back(x, c - begin);
            ahead(x, open, c - 1, true);
            backward_batch(x, &y, c == spans - 1);
        }
    }
    store_back(x, open);
    for (int l = 0; l < x->layers; l++) {
        ttt_add(x->in[l] * x->out[l], 1, x->dW[l], x->sum_w[l]);
        ttt_add(x->out[l], 1, x->db[l], x->sum_b[l]);
    }
}

static void backward_head(head *x)
{
#if defined(__AMX_BF16__)
    ENGINE->begin();
    backward_rows(x);
    ENGINE->end();
#else
    backward_rows(x);
#endif
}

/* Sums of the weights' gradients, of the norm's and of token_idx's. */
static int64_t sums(const lnt_ttt_args *a) { return numbers(a) + 2 * a->D + a->mini_batch; }

static void bind_sums(head *x, float *p)
{
    for (int l = 0; l < x->layers; l++) {
        x->sum_w[l] = p, x->sum_b[l] = p += x->in[l] * x->out[l];
        p += x->out[l];
    }
    x->norm.dw = p, x->norm.db = p += x->D;
    x->dposition = p + x->D;
}

/* token_idx is shared by heads, too. */
static void add_sums(const lnt_ttt_args *a, int64_t h, const float *p, int64_t parts, int64_t away)
{
    for (int l = 0; l < lnt_ttt_layers(a); l++) {
        const int64_t out = lnt_ttt_out(a, l), product = lnt_ttt_in(a, l) * out;
        if (a->dlayer[l].w) ttt_add_parts((float *)a->dlayer[l].w + h * product, p, parts, away, product);
        if (a->dlayer[l].b) ttt_add_parts((float *)a->dlayer[l].b + h * out, p + product, parts, away, out);
        p += product + out;
    }
    if (a->dln_w) ttt_add_parts((float *)a->dln_w + h * a->D, p, parts, away, a->D);
    if (a->dln_b) ttt_add_parts((float *)a->dln_b + h * a->D, p + a->D, parts, away, a->D);
    if (a->dtoken_idx && !h) memset(a->dtoken_idx, 0, (size_t)a->mini_batch * sizeof(float));
    for (int64_t i = 0; a->dtoken_idx && i < parts; i++) ttt_add(a->mini_batch, 1, p + 2 * a->D + i * away, a->dtoken_idx);
}

LNT_TTT_FORMS(lnt_ttt);
