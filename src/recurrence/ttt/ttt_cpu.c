/* TTT-linear and TTT-MLP on the CPU (README.md): mini-batch by mini-batch, all of its rows in products with the weights that it begins with. The
 * token form takes its rows one by one. A head of a sequence is a piece of work; backward, a head of a part of the sequences is.
 *
 * Where the processor has tiles, products of bf16 calls go through them (ttt_forms.h), but for the token form's.
 * Long: both models in both directions, of which most is common to both, with each product in float32 and on tiles. */
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/ttt/ttt_forms.h"
#include "recurrence/ttt/ttt_walk.h"

enum { LAYERS = LNT_TTT_LAYERS };

/* A head at work. Rows of the mini-batch [m,..]: first those that the state had open. W, b: the weights that it begins with, the sums of those given
 * and of the state's S_w, S_b, which alone goes on from mini-batch to mini-batch: so the bits do not depend on where calls begin. */
typedef struct {
    const lnt_ttt_args *a;
    ttt_norm norm;
    int64_t n, h, D, m, in[LAYERS], out[LAYERS], weights;
    int layers;
    float *W[LAYERS], *b[LAYERS], *S_w[LAYERS], *S_b[LAYERS];
    float *x[LAYERS], *z[LAYERS], *u[LAYERS], *raw[LAYERS], *y[LAYERS], *zq[LAYERS], *S[LAYERS], *A[LAYERS];
    float *v, *F, *rate, *position, *last, *hat, *inverse, *h1, *slope, *slope_q; /* slope: gelu' of z_0, of keys and queries */
    float *wide, *turned;                                                          /* wide [m,widest], turned [3,m,widest] */
    float *dW[LAYERS], *db[LAYERS], *dx[LAYERS], *du[LAYERS], *dy, *dz, *below, *dF, *dA, *dv, *dout, *work;
    float *dposition, *sum_w[LAYERS], *sum_b[LAYERS]; /* this piece's sums; norm has two more */
    float *starts, *inside;                          /* weights before each group of mini-batches, and before each one of a group */
    int64_t group, kept;                             /* mini-batches of a group; numbers of one in `inside` */
    bool back, tiled;
#if defined(__AMX_BF16__)
    ttt_forms *forms; /* [LAYERS] */
#endif
} head;

/* Rows of a loop take some hundred cycles (simd/mm.h). */
static inline void row_awake(int64_t i)
{
    if (i % 2 == 0) lnt_tiles_awake();
}

static int64_t numbers(const lnt_ttt_args *a)
{
    int64_t sum = 0;
    for (int l = 0; l < lnt_ttt_layers(a); l++) sum += (lnt_ttt_in(a, l) + 1) * lnt_ttt_out(a, l);
    return sum;
}

static int64_t carve(const lnt_ttt_args *a, bool back, float *p, head *x)
{
    const int64_t m = a->mini_batch, D = a->D, widest = a->F > D ? a->F : D;
    int64_t used = 0;
    *x = (head){ .a = a, .D = D, .m = m, .layers = lnt_ttt_layers(a), .weights = numbers(a), .kept = numbers(a), .back = back };
#if defined(__AMX_BF16__)
    x->tiled = ttt_is_tiled(a);
    for (int l = 0; l < x->layers && x->tiled; l++)
        x->kept = (l ? x->kept : 0) + ttt_kept(lnt_ttt_in(a, l), lnt_ttt_out(a, l)) + (lnt_ttt_out(a, l) + 15) / 16 * 16;
#endif
    x->group = ttt_group(a, x->kept);
#define TAKE(FIELD, COUNT) ((FIELD) = p ? p + used : NULL, used += ((COUNT) + 15) / 16 * 16)
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l] = lnt_ttt_in(a, l), out = x->out[l] = lnt_ttt_out(a, l);
        TAKE(x->W[l], in * out), TAKE(x->b[l], out);
        int64_t off = 0; /* S_w begins elsewhere in its page than the weights that it is added to, or each load waits for a store (ttt.md) */
        if (p && (uintptr_t)a->layer[l].w % 64 == 0 && (uintptr_t)p % 64 == 0)
            off = (int64_t)(((uintptr_t)a->layer[l].w + 128 - (uintptr_t)(p + used)) % 4096 / sizeof *p);
        used += off, TAKE(x->S_w[l], in * out), used += 1024 - off, TAKE(x->S_b[l], out);
        TAKE(x->x[l], m * in), TAKE(x->y[l], m * in), TAKE(x->S[l], m * m), TAKE(x->A[l], m * m);
        TAKE(x->z[l], m * out), TAKE(x->u[l], m * out), TAKE(x->raw[l], m * out), TAKE(x->zq[l], m * out);
        if (back) TAKE(x->dW[l], in * out), TAKE(x->db[l], out), TAKE(x->dx[l], m * in), TAKE(x->du[l], m * out);
    }
    TAKE(x->v, m * D), TAKE(x->F, m * m), TAKE(x->rate, m), TAKE(x->position, m), TAKE(x->last, m), TAKE(x->hat, m * D), TAKE(x->inverse, m);
    TAKE(x->h1, m * a->F), TAKE(x->slope, m * a->F), TAKE(x->slope_q, m * a->F);
    TAKE(x->wide, m * widest), TAKE(x->turned, 3 * m * widest), TAKE(x->work, 2 * D);
    if (back) {
        TAKE(x->dy, m * widest), TAKE(x->dz, m * widest), TAKE(x->below, m * a->F), TAKE(x->dF, m * m), TAKE(x->dA, m * m);
        TAKE(x->dv, m * D), TAKE(x->dout, m * D);
        TAKE(x->inside, x->group * x->kept), TAKE(x->starts, (lnt_ttt_batches(a, m - 1, a->longest) / x->group + 1) * x->weights);
    }
#if defined(__AMX_BF16__)
    if (x->tiled) {
        ttt_forms none[LAYERS], *forms = none;
        lnt_carve c = { (char *)p, (size_t)used * sizeof *p };
        x->forms = lnt_carve_bytes(&c, sizeof none);
        if (p) forms = x->forms;
        for (int l = 0; l < x->layers; l++) ttt_forms_carve(&c, m, x->in[l], x->out[l], back, &forms[l]);
        used = (int64_t)(c.used / sizeof *p);
    }
#endif
#undef TAKE
    return used;
}

static int64_t len_of(const head *x) { return x->a->cu_seqlens[x->n + 1] - x->a->cu_seqlens[x->n]; }

static void set_head(head *x, int64_t n, int64_t h)
{
    x->n = n, x->h = h, x->norm = ttt_norm_of(x->a, h);
    for (int64_t i = 0; i < x->m; i++) {
        const float p = x->a->token_idx ? 1 / (float)(i + 1) + ((const float *)x->a->token_idx)[i] : 1;
        x->position[i] = p < 0 ? 0 : p; /* NaN stays */
    }
}

/* ---- states ---------------------------------------------------------------------------------------------------------------------------------- */

static float *weights_of(const head *x, const void *p, int l) { return p ? (float *)(uintptr_t)p + x->h * x->in[l] * x->out[l] : NULL; }
static float *biases_of(const head *x, const void *p, int l) { return p ? (float *)(uintptr_t)p + x->h * x->out[l] : NULL; }
static float *state_at(const head *x, const void *p, int64_t count) { return ttt_state(x->a, p, x->n, x->h, count); }

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
        if (!x->tiled) continue;
        ttt_forms *f = &x->forms[l];
        f->W = ttt_state_forms(x->in[l], x->out[l], x->S_w[l], x->W[l], f->W_left, f->W_right);
        if (l) ENGINE->extend(&f->W, LNT_RIGHT_T, f->W_turned);
        if (!l && !x->back) f->W.left.p = NULL; /* nobody wants it */
#endif
    }
}

/* wide = u times the last row's step sizes, with the sign of an update. */
static void last_steps(const head *x, int l, int64_t rows)
{
    const int64_t out = x->out[l];
    for (int64_t j = 0; j < rows; j++) V_EACH(i, n, out) ttt_put(x->wide + j * out, i, n, -x->last[j] * ttt_get(x->u[l] + j * out, i, n));
}

/* The state takes the rows' update by the last one's step sizes. */
static void update(const head *x, int64_t rows)
{
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        last_steps(x, l, rows);
#if defined(__AMX_BF16__)
        if (x->tiled) {
            ttt_forms *f = &x->forms[l];
            const lnt_operand X = ttt_rows(f, TTT_OTHER, LNT_LEFT_T, rows, in, x->x[l], in);
            const lnt_operand u = ttt_rows(f, TTT_LU, LNT_RIGHT, rows, out, x->wide, out);
            ENGINE->update_sum(weights_of(x, x->a->layer[l].w, l), 1, &X, &u, &f->W);
        }
#endif
        if (!x->tiled) LNT_V(lnt_mm)(LNT_MM_ADD, (int)in, (int)out, (int)rows, x->x[l], 1, in, x->wide, out, x->S_w[l], out);
        if (x->a->bias) ttt_add_rows(x->S_b[l], rows, out, x->wide);
    }
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

/* z = x W + b, of `rows` rows. */
static void through(const head *x, int l, int64_t rows, const float *in, float *z)
{
#if defined(__AMX_BF16__)
    if (x->tiled) {
        ttt_forms *f = &x->forms[l];
        const bool keys = in == x->x[l]; /* of a whole mini-batch: read_layer takes them, too */
        const lnt_operand a = ttt_rows(f, keys ? TTT_X : TTT_OTHER, LNT_LEFT, rows, x->in[l], in, x->in[l]);
        if (keys) f->x = a;
        ENGINE->multiply_row(x->b[l], &a, false, &x->forms[l].W, false, z, x->out[l]);
        return;
    }
#endif
    for (int64_t i = 0; i < rows; i++) memcpy(z + i * x->out[l], x->b[l], (size_t)x->out[l] * sizeof *z);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)x->out[l], (int)x->in[l], in, x->in[l], 1, x->W[l], x->out[l], z, x->out[l]);
}

/* c [n,in] = y W^T, or with `add` c += that, of rows y [n,out]. */
static void back_through(const head *x, int l, bool add, int64_t n, const float *y, float *c)
{
    const int64_t in = x->in[l], out = x->out[l];
#if defined(__AMX_BF16__)
    if (x->tiled) {
        const lnt_operand a = ttt_rows(&x->forms[l], TTT_OTHER, LNT_LEFT, n, out, y, out);
        ENGINE->multiply(add ? LNT_MM_ADD : LNT_MM_SET, NULL, &a, false, &x->forms[l].W, true, c, in);
        return;
    }
#endif
    ttt_times_transposed(add ? LNT_MM_ADD : LNT_MM_SET, n, out, y, in, x->W[l], c, x->turned);
}

/* y = gelu(x), and its slope. */
static void gelu(int64_t count, const float *x, float *y, float *slope)
{
    V_EACH(i, n, count)
    {
        rows_awake(i / LNT_VL);
        vf value;
        ttt_put(slope, i, n, v_act_slope(ttt_get(x, i, n), LNT_GELU_TANH, &value));
        ttt_put(y, i, n, value);
    }
}

/* z = x y */
static void times(int64_t count, const float *x, const float *y, float *z)
{
    V_EACH(i, n, count) ttt_put(z, i, n, ttt_get(x, i, n) * ttt_get(y, i, n));
}

/* gelu''(x): with y = c (x + a x^3) and t = tanh(y), s = 1 - t^2:  s y' + x/2 (s y'' - 2 t s y'^2). Beyond |x| = 20 s is 0. */
static vf gelu_bend(vf x)
{
    const vf near = v_max(v_min(x, v_set(20.0f)), v_set(-20.0f)), square = near * near;
    const vf t = v_tanh(0.797884561f * near * (1.0f + 0.044715f * square)), s = 1.0f - t * t;
    const vf slope = 0.797884561f * (1.0f + 0.134145f * square), bend = 0.797884561f * 0.26829f * near;
    const vf y = s * slope + 0.5f * near * (s * bend - 2.0f * t * s * slope * slope);
    return v_select(x == x, y, x);
}

/* Rows of mini-batch c, which is the next, on their way into the cache; what only reading takes where that is to be done. */
static void ahead(const head *x, int64_t open, int64_t c, bool reads)
{
    const lnt_ttt_args *a = x->a;
    if (c < 0 || c >= lnt_ttt_batches(a, open, len_of(x))) return;
    const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len_of(x), c);
    const int64_t t = a->cu_seqlens[x->n] + y.first, n = y.rows - y.open;
    rows_ahead(a->k, a->dtype, t, n, a->H, x->h, x->D);
    rows_ahead(a->v, a->dtype, t, n, a->H, x->h, x->D);
    rows_ahead(a->eta, LINNET_F32, t, n, a->H, x->h, x->m);
    if (!reads) return;
    rows_ahead(a->q, a->dtype, t, n, a->H, x->h, x->D);
    rows_ahead(a->dout, a->dtype, t, n, a->H, x->h, x->D);
}

/* u of the last layer, hat and 1 / sigma, of rows p .. rows-1. */
TTT_INLINE void losses(int64_t D, const head *x, int64_t p, int64_t rows)
{
    const int top = x->layers - 1;
    int64_t i = p;
#if defined(TTT_FOURS)
    for (; D == 64 && !x->norm.plain && i + 4 <= rows; i += 4) {
        lnt_tiles_awake();
        ttt_loss_four(&x->norm, x->z[top] + i * D, x->x[0] + i * D, x->v + i * D, x->hat + i * D, x->inverse + i, x->raw[top] + i * D);
    }
#endif
    for (; i < rows; i++) {
        row_awake(i);
        ttt_loss(D, &x->norm, x->z[top] + i * D, x->x[0] + i * D, x->v + i * D, x->hat + i * D, x->inverse + i, x->raw[top] + i * D);
    }
}

/* Keys of rows p .. rows-1, tokens from t on: inputs of the layers, gradients, step sizes. */
static void learn(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, n = rows - p, H = a->H;
    const int top = x->layers - 1;
    rows_in(x->x[0] + p * D, a->k, a->dtype, t, n, H, x->h, D);
    rows_in(x->v + p * D, a->v, a->dtype, t, n, H, x->h, D);
    through(x, 0, n, x->x[0] + p * D, x->z[0] + p * x->out[0]);
    if (top) {
        gelu(n * a->F, x->z[0] + p * a->F, x->x[1] + p * a->F, x->slope + p * a->F);
        through(x, 1, n, x->x[1] + p * a->F, x->z[1] + p * D);
    }
    TTT_OF_WIDTH(D, losses, x, p, rows);
    if (top) { /* u_0 = (u W^T) gelu'(z_0) */
        back_through(x, 1, false, n, x->raw[1] + p * D, x->h1 + p * a->F);
        times(n * a->F, x->h1 + p * a->F, x->slope + p * a->F, x->raw[0] + p * a->F);
    }
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int64_t i = p; i < rows; i++) {
        const int64_t row = (t + i - p) * H + x->h;
        const float *eta = a->eta ? (const float *)a->eta + row * x->m : NULL;
        row_awake(i);
        x->rate[i] = a->rate ? ((const float *)a->rate)[row] : 1;
        float *F = x->F + i * x->m;
        V_EACH(j, c, x->m)
        {
            const vf rate = x->position[i] * (eta ? ttt_get(eta, j, c) : v_set(1));
            ttt_put(F, j, c, v_select(lane <= (int32_t)(i - j), rate, v_zero()));
        }
        for (int l = 0; l <= top; l++) ttt_scale_rows(x->u[l] + i * x->out[l], x->rate + i, 1, x->out[l], x->raw[l] + i * x->out[l]);
    }
    memcpy(x->last, x->F + (rows - 1) * x->m, (size_t)x->m * sizeof(float));
}

/* A = -F.S, S = y x^T + 1 where there are biases, from y x^T in S; rows p .. p+n-1. */
static void steps_of_pairs(const head *x, int64_t p, int64_t n, int64_t rows, float *S, float *A)
{
    const int64_t m = x->m;
    const float one = (float)x->a->bias;
    for (int64_t i = 0; i < n; i++)
        V_EACH(j, k, rows)
        {
            const vf s = ttt_get(S + i * m, j, k) + one;
            ttt_put(S + i * m, j, k, s);
            ttt_put(A + i * m, j, k, -s * ttt_get(x->F + (p + i) * m, j, k));
        }
}

/* Layer l for queries p .. rows-1 by the weights after their own rows:  zq = y W + b + A u,  A = -F.S,  S = y x^T + 1. */
static void read_layer(const head *x, int l, int64_t p, int64_t rows)
{
    const int64_t n = rows - p, in = x->in[l], out = x->out[l], m = x->m;
    float *S = x->S[l] + p * m, *A = x->A[l] + p * m, *zq = x->zq[l] + p * out;
#if defined(__AMX_BF16__)
    if (x->tiled) {
        ttt_forms *f = &x->forms[l];
        f->y = ttt_rows(f, TTT_Y, x->back ? LNT_LEFT | LNT_RIGHT | LNT_LEFT_T : LNT_LEFT, n, in, x->y[l] + p * in, in);
        if (p) f->x = ttt_rows(f, TTT_X, LNT_LEFT, rows, in, x->x[l], in);
        ENGINE->extend(&f->x, x->back ? TTT_ALL : LNT_RIGHT_T, (char *)f->room[TTT_X] + ENGINE->bytes((int)rows, (int)in, LNT_LEFT));
        ENGINE->multiply_row(x->b[l], &f->y, false, &f->W, false, zq, out);
        ttt_set_product(&f->y, &f->x, true, S, m);
        steps_of_pairs(x, p, n, rows, S, A);
        f->A = ttt_rows(f, TTT_A, x->back ? LNT_LEFT | LNT_LEFT_T : LNT_LEFT, n, rows, A, m);
        const lnt_operand u = ttt_rows(f, TTT_U, LNT_RIGHT, rows, out, x->u[l], out);
        ttt_add_product(&f->A, false, &u, false, zq, out);
        return;
    }
#endif
    through(x, l, n, x->y[l] + p * in, zq);
    LNT_V(lnt_transpose)((int)rows, (int)in, x->x[l], in, x->turned, rows);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)rows, (int)in, x->y[l] + p * in, in, 1, x->turned, rows, S, m);
    steps_of_pairs(x, p, n, rows, S, A);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)out, (int)rows, A, m, 1, x->u[l], out, zq, out);
}

static void read(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    rows_in(x->y[0] + p * x->D, a->q, a->dtype, t, rows - p, a->H, x->h, x->D);
    read_layer(x, 0, p, rows);
    if (x->layers == 1) return;
    gelu((rows - p) * a->F, x->zq[0] + p * a->F, x->y[1] + p * a->F, x->slope_q + p * a->F);
    read_layer(x, 1, p, rows);
}

/* o = LN(o) + q */
TTT_INLINE void norms_of_output(int64_t D, const head *x, int64_t p, int64_t rows, float *o)
{
    int64_t normal = p; /* rows of which the norm has been taken */
#if defined(TTT_FOURS)
    for (; D == 64 && normal + 4 <= rows; normal += 4) {
        lnt_tiles_awake();
        ttt_normalise_four(o + normal * D, o + normal * D);
    }
#endif
    for (int64_t i = p; i < rows; i++) {
        float *row = o + i * D;
        row_awake(i);
        if (i >= normal) ttt_normalise(D, row, row);
        V_EACH(c, n, D)
        ttt_put(row, c, n, ttt_get(row, c, n) * ttt_get(x->norm.w, c, n) + ttt_get(x->norm.b, c, n) + ttt_get(x->y[0] + i * D, c, n));
    }
}

/* o = LN(zq) + q, or zq. */
static void put_output(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const int64_t D = x->D;
    float *o = x->zq[x->layers - 1];
    if (!x->norm.plain) TTT_OF_WIDTH(D, norms_of_output, x, p, rows, o);
    rows_out(x->a->o, x->a->dtype, t, rows - p, x->a->H, x->h, D, o + p * D);
}

/* The next mini-batch begins. */
static void close_batch(const head *x)
{
    update(x, x->m);
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
    const int64_t len = len_of(x), open = len ? load(x) : 0, batches = lnt_ttt_batches(a, open, len);
    if (!len) {
        pass(x, false);
        return;
    }
    for (int64_t c = 0; c < batches; c++) {
        const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len, c);
        const int64_t first = a->cu_seqlens[x->n] + y.first - y.open;
        ahead(x, open, c + 1, true);
        for (int64_t i = y.open, end; i < y.rows; i = end) {
            end = one_by_one ? i + 1 : y.rows;
            learn(x, first + i, i, end);
            read(x, first + i, i, end);
            put_output(x, first + i, i, end);
        }
        if (y.rows == x->m) close_batch(x);
    }
    store(x, (open + len) % x->m);
}

static void forward_head(head *x, bool one_by_one)
{
#if defined(__AMX_BF16__)
    x->tiled = x->tiled && !one_by_one;
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

/* What the update by x gives: from x dW + db in `wide` to du and the last row's dF. */
static void last_steps_back(const head *x, int l, int64_t rows)
{
    const int64_t out = x->out[l];
    for (int64_t j = 0; j < rows; j++) {
        row_awake(j);
        x->dF[(rows - 1) * x->m + j] -= ttt_dot(out, x->wide + j * out, x->u[l] + j * out);
        ttt_add(out, -x->last[j], x->wide + j * out, x->du[l] + j * out);
    }
}

/* From dz u^T in dA to dF and the gradient of y x^T, in dA. */
static void steps_of_pairs_back(const head *x, int l, int64_t p, int64_t n, int64_t rows)
{
    const int64_t m = x->m;
    const float *S = x->S[l] + p * m, *F = x->F + p * m;
    float *dF = x->dF + p * m;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i * m, lower = p + i + 1;
        row_awake(i);
        V_EACH(j, c, lower)
        {
            const vf d = -ttt_get(x->dA + row, j, c);
            ttt_put(dF + row, j, c, ttt_get(dF + row, j, c) + d * ttt_get(S + row, j, c));
            ttt_put(x->dA + row, j, c, d * ttt_get(F + row, j, c));
        }
        memset(x->dA + row + lower, 0, (size_t)(rows - lower) * sizeof(float));
    }
}

/* Layer l's queries, from dz [n,out] of zq: du, dx, dF, dW and db take their shares; dy [n,in] is written. dW and db come from behind the
 * mini-batch. */
static void read_layer_back(const head *x, int l, int64_t p, int64_t rows)
{
    const int64_t n = rows - p, in = x->in[l], out = x->out[l], m = x->m;
    const float *A = x->A[l] + p * m, *dz = x->dz;
#if defined(__AMX_BF16__)
    if (x->tiled) {
        ttt_forms *f = &x->forms[l];
        ENGINE->multiply_row(x->db[l], &f->x, false, &f->dW, false, x->wide, out); /* x dW + db, of the update */
        if (x->a->bias) ttt_add_rows(x->db[l], n, out, dz);
        last_steps_back(x, l, rows);
        const lnt_operand d = ttt_rows(f, TTT_DZ, LNT_LEFT | LNT_RIGHT, n, out, dz, out);
        const lnt_operand u = ttt_rows(f, TTT_U, LNT_RIGHT_T, rows, out, x->u[l], out);
        ttt_add_product(&f->A, true, &d, false, x->du[l], out);
        ttt_set_product(&d, &u, true, x->dA, m);
        steps_of_pairs_back(x, l, p, n, rows);
        const lnt_operand dA = ttt_rows(f, TTT_DA, LNT_LEFT | LNT_LEFT_T, n, rows, x->dA, m);
        ttt_set_product(&d, &f->W, true, x->dy, in);
        ttt_add_product(&dA, false, &f->x, false, x->dy, in);
        ttt_add_product(&dA, true, &f->y, false, x->dx[l], in);
        last_steps(x, l, rows);
        const lnt_operand steps = ttt_rows(f, TTT_LU, LNT_LEFT, rows, out, x->wide, out);
        ttt_add_product(&steps, false, &f->dW, true, x->dx[l], in);
        f->from[0] = f->y, f->by[0] = d;
        return;
    }
#endif
    for (int64_t j = 0; j < rows; j++) memcpy(x->wide + j * out, x->db[l], (size_t)out * sizeof(float)); /* the same */
    if (x->a->bias) ttt_add_rows(x->db[l], n, out, dz);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)out, (int)in, x->x[l], in, 1, x->dW[l], out, x->wide, out);
    last_steps_back(x, l, rows);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)out, (int)n, A, 1, m, dz, out, x->du[l], out);
    LNT_V(lnt_transpose)((int)rows, (int)out, x->u[l], out, x->turned, rows);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)rows, (int)out, dz, out, 1, x->turned, rows, x->dA, m);
    steps_of_pairs_back(x, l, p, n, rows);
    ttt_times_transposed(LNT_MM_SET, n, out, dz, in, x->W[l], x->dy, x->turned);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)in, (int)rows, x->dA, m, 1, x->x[l], in, x->dy, in);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)rows, (int)in, (int)n, x->dA, 1, m, x->y[l] + p * in, in, x->dx[l], in);
    last_steps(x, l, rows);
    ttt_times_transposed(LNT_MM_ADD, rows, out, x->wide, in, x->dW[l], x->dx[l], x->turned);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)in, (int)out, (int)n, x->y[l] + p * in, 1, in, dz, out, x->dW[l], out);
}

/* Through the norm of the output, of rows z [n,D]; dz is dout before. */
TTT_INLINE void norms_of_output_back(int64_t D, const head *x, int64_t n, const float *z, float *dz)
{
    for (int64_t i = 0; i < n; i++) {
        float *hat = x->work, *d = dz + i * D;
        row_awake(i);
        const float inverse = ttt_normalise(D, z + i * D, hat);
        V_EACH(c, k, D)
        {
            const vf dc = ttt_get(d, c, k);
            ttt_put(x->norm.dw, c, k, ttt_get(x->norm.dw, c, k) + dc * ttt_get(hat, c, k));
            ttt_put(x->norm.db, c, k, ttt_get(x->norm.db, c, k) + dc);
            ttt_put(d, c, k, dc * ttt_get(x->norm.w, c, k));
        }
        ttt_project(D, d, hat, inverse, d);
    }
}

/* Through the losses of rows p .. rows-1, from du of the last layer to dz, and to dk and dv. */
TTT_INLINE void losses_back(int64_t D, const head *x, int64_t p, int64_t rows)
{
    const int top = x->layers - 1;
    for (int64_t i = p; i < rows; i++) {
        row_awake(i);
        ttt_loss_back(D, &x->norm, x->hat + i * D, x->inverse[i], x->x[0] + i * D, x->v + i * D, x->raw[top] + i * D, x->du[top] + i * D, x->work,
                      x->dz + (i - p) * D, x->dx[0] + i * D, x->dv + i * D);
    }
}

/* From the outputs' cotangents to the queries' gradients. */
static void read_back(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, n = rows - p;
    const int top = x->layers - 1;
    rows_in(x->dout, a->dout, a->dtype, t, n, a->H, x->h, D);
    memcpy(x->dz, x->dout, (size_t)(n * D) * sizeof(float));
    if (!x->norm.plain) TTT_OF_WIDTH(D, norms_of_output_back, x, n, x->zq[top] + p * D, x->dz);
    for (int l = top; l >= 0; l--) {
        read_layer_back(x, l, p, rows);
        if (!l) break;
        times(n * a->F, x->dy, x->slope_q + p * a->F, x->dz);
    }
    if (!x->norm.plain) ttt_add(n * D, 1, x->dout, x->dy);
    rows_out(a->dq, a->dtype, t, n, a->H, x->h, D, x->dy);
}

/* From the gradients of u, of rows p .. rows-1, to those of keys, values, weights and rates. */
static void learn_back(const head *x, int64_t t, int64_t p, int64_t rows)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, F = a->F, n = rows - p;
    const int top = x->layers - 1;
    for (int64_t i = p; i < rows; i++) {
        float drate = 0;
        row_awake(i);
        for (int l = 0; l <= top; l++) {
            float *du = x->du[l] + i * x->out[l];
            drate += ttt_dot(x->out[l], du, x->raw[l] + i * x->out[l]);
            row_scale(du, x->rate[i], x->out[l]);
        }
        if (a->drate) ((float *)a->drate)[(t + i - p) * a->H + x->h] = drate;
    }
    if (top) { /* u_0 = h gelu'(z_0), h = u W^T */
        const float *z = x->z[0] + p * F, *h = x->h1 + p * F;
        float *d = x->du[0] + p * F;
        V_EACH(i, k, n * F)
        {
            rows_awake(i / LNT_VL);
            ttt_put(x->below, i, k, ttt_get(d, i, k) * ttt_get(h, i, k) * gelu_bend(ttt_get(z, i, k)));
        }
        times(n * F, d, x->slope + p * F, d);
#if defined(__AMX_BF16__)
        if (x->tiled) {
            ttt_forms *f = &x->forms[1];
            f->from[2] = ttt_rows(f, TTT_BELOW, LNT_LEFT | LNT_LEFT_T, n, F, d, F);
            f->by[2] = ttt_rows(f, TTT_U, LNT_RIGHT, n, D, x->raw[1] + p * D, D);
            ttt_add_product(&f->from[2], false, &f->W, false, x->du[1] + p * D, D);
        }
#endif
        if (!x->tiled) {
            LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)D, (int)F, d, F, 1, x->W[1], D, x->du[1] + p * D, D);
            LNT_V(lnt_mm)(LNT_MM_ADD, (int)F, (int)D, (int)n, d, 1, F, x->raw[1] + p * D, D, x->dW[1], D);
        }
    }
    TTT_OF_WIDTH(D, losses_back, x, p, rows);
    for (int l = top; l >= 0; l--) {
        const int64_t in = x->in[l], out = x->out[l];
        if (a->bias) ttt_add_rows(x->db[l], n, out, x->dz);
        back_through(x, l, true, n, x->dz, x->dx[l] + p * in);
#if defined(__AMX_BF16__)
        if (x->tiled) {
            ttt_forms *f = &x->forms[l];
            f->from[1] = p ? ttt_rows(f, TTT_OTHER, LNT_LEFT_T, n, in, x->x[l] + p * in, in) : f->x;
            f->by[1] = ttt_rows(f, TTT_DZ_KEYS, LNT_RIGHT, n, out, x->dz, out);
            ENGINE->update_sum(NULL, l ? 3 : 2, f->from, f->by, &f->dW);
            ENGINE->extend(&f->dW, LNT_RIGHT_T, f->dW_turned);
        }
#endif
        if (!x->tiled) LNT_V(lnt_mm)(LNT_MM_ADD, (int)in, (int)out, (int)n, x->x[l] + p * in, 1, in, x->dz, out, x->dW[l], out);
        if (!l) break;
        times(n * F, x->dx[1] + p * F, x->slope + p * F, x->dz);
        ttt_add(n * F, 1, x->below, x->dz);
    }
    rows_out(a->dk, a->dtype, t, n, a->H, x->h, D, x->dx[0] + p * D);
    rows_out(a->dv, a->dtype, t, n, a->H, x->h, D, x->dv + p * D);
    for (int64_t i = p; i < rows; i++) {
        const int64_t row = ((t + i - p) * a->H + x->h) * x->m;
        const float *dF = x->dF + i * x->m, *eta = a->eta ? (const float *)a->eta + row : NULL;
        float *deta = a->deta ? (float *)a->deta + row : NULL;
        vf sum = v_zero();
        row_awake(i);
        V_EACH(j, c, i + 1)
        {
            const vf d = ttt_get(dF, j, c);
            if (deta) ttt_put(deta, j, c, d * x->position[i]);
            sum += eta ? d * ttt_get(eta, j, c) : d;
        }
        if (deta) memset(deta + i + 1, 0, (size_t)(x->m - i - 1) * sizeof *deta);
        x->dposition[i] += x->position[i] > 0 ? v_sum(sum) : 0;
    }
}

/* Forms of the gradients of weights as they are. */
static void pack_gradients(const head *x)
{
#if defined(__AMX_BF16__)
    for (int l = 0; l < x->layers && x->tiled; l++) {
        ttt_forms *f = &x->forms[l];
        f->dW = ttt_state_forms(x->in[l], x->out[l], x->dW[l], x->dW[l], f->dW_left, f->dW_right);
        ENGINE->extend(&f->dW, LNT_RIGHT_T, f->dW_turned);
    }
#else
    (void)x;
#endif
}

/* dW, db, from behind mini-batch y, become the gradients of its start. `ends`: it is the sequence's last. */
static void backward_batch(const head *x, const lnt_ttt_batch *y, bool ends)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m, t = a->cu_seqlens[x->n] + y->first, left = ends && y->rows < m ? y->rows : 0;
    memset(x->dF, 0, (size_t)(m * m) * sizeof(float));
    for (int l = 0; l < x->layers; l++) { /* rows that the final state has */
        ttt_some(x->dx[l], state_at(x, a->dlayer[l].xT, m * x->in[l]), left * x->in[l], m * x->in[l]);
        ttt_some(x->du[l], state_at(x, a->dlayer[l].uT, m * x->out[l]), left * x->out[l], m * x->out[l]);
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

/* The weights that a mini-batch begins with, at place i of the group: put by, where the ones behind them will be, and taken back. */
static void put_weights_by(const head *x, int64_t i)
{
    float *p = x->inside + i * x->kept;
    if (!x->tiled) {
        put_by(x, p);
        return;
    }
#if defined(__AMX_BF16__)
    for (int l = 0; l < x->layers; l++) {
        ttt_forms *f = &x->forms[l];
        const int64_t size = ttt_kept(x->in[l], x->out[l]);
        if (!i) memcpy(p, f->W_left, (size_t)size * sizeof *p); /* others are there already */
        memcpy(p + size, x->b[l], (size_t)x->out[l] * sizeof *p);
        p += size + (x->out[l] + 15) / 16 * 16;
    }
#endif
}

static void leave_weights_at(const head *x, int64_t i)
{
#if defined(__AMX_BF16__)
    float *p = x->inside + i * x->kept;
    for (int l = 0; l < x->layers && x->tiled; l++) {
        const int64_t size = ttt_kept(x->in[l], x->out[l]);
        if (x->in[l] % 16 || x->out[l] % 32) memset(p, 0, (size_t)size * sizeof *p); /* what lies beyond is not written */
        x->forms[l].W.left.p = p;
        p += size + (x->out[l] + 15) / 16 * 16;
    }
#else
    (void)x, (void)i;
#endif
}

static void take_weights_back(const head *x, int64_t i)
{
    const float *p = x->inside + i * x->kept;
    if (!x->tiled) {
        take_back(x, p);
        return;
    }
#if defined(__AMX_BF16__)
    for (int l = 0; l < x->layers; l++) {
        const int64_t size = ttt_kept(x->in[l], x->out[l]);
        x->forms[l].W = ttt_kept_forms(&x->forms[l], x->in[l], x->out[l], p);
        memcpy(x->b[l], p + size, (size_t)x->out[l] * sizeof *p);
        p += size + (x->out[l] + 15) / 16 * 16;
    }
#endif
}

/* Weights of mini-batches c .. end-1, each put by before it. */
static void sweep(const head *x, int64_t open, int64_t c, int64_t end)
{
    const lnt_ttt_args *a = x->a;
    for (int64_t i = c; i < end; i++) {
        const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len_of(x), i);
        put_weights_by(x, i - c);
        if (i + 1 == end) return;
        leave_weights_at(x, i - c + 1);
        ahead(x, open, i + 1, false);
        learn(x, a->cu_seqlens[x->n] + y.first, y.open, y.rows);
        close_batch(x);
    }
}

static void backward_rows(const head *x)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(x), open = len ? load(x) : 0, batches = lnt_ttt_batches(a, open, len), group = x->group;
    if (!len) {
        pass(x, true);
        return;
    }
    for (int64_t c = 0; c < batches; c++) {
        const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len, c);
        if (c % group == 0) put_by(x, x->starts + c / group * x->weights);
        if (c / group == (batches - 1) / group) break; /* the last group's are made below */
        learn(x, a->cu_seqlens[x->n] + y.first, y.open, y.rows);
        close_batch(x);
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
    for (int64_t g = (batches - 1) / group; g >= 0; g--) {
        const int64_t begin = g * group, end = at_most(batches, begin + group);
        if (!g) load(x); /* its open rows too */
        take_back(x, x->starts + g * x->weights);
        sweep(x, open, begin, end);
        for (int64_t c = end - 1; c >= begin; c--) {
            const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len, c);
            if (!c && open) load(x);
            take_weights_back(x, c - begin);
            ahead(x, open, c - 1, true);
            backward_batch(x, &y, c == batches - 1);
        }
    }
    store_back(x, open);
    for (int l = 0; l < x->layers; l++) {
        ttt_add(x->in[l] * x->out[l], 1, x->dW[l], x->sum_w[l]);
        ttt_add(x->out[l], 1, x->db[l], x->sum_b[l]);
    }
}

static void backward_head(const head *x)
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
