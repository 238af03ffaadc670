/* TTT-linear and TTT-MLP in float64, token by token with the weights of every token written out: the truth. With f a layer, or two and a GELU between
 * them, weights W_l and biases b_l, x_l the layers' inputs (operators.md#ttt): inside a mini-batch that begins with the weights W, b
 *
 *   u_lj = rate_j dl/dz_lj at W, b for the key j       F_ij = eta_ij max(1/(i+1) + token_idx_i, 0), each factor 1 where it is absent
 *   W_l(i) = W_l - sum_{j<=i} F_ij x_lj u_lj^T         b_l(i) = b_l - sum_{j<=i} F_ij u_lj         o_i = LN(f(q_i; W(i), b(i))) + q_i
 *
 * and the next begins with W(last). Backward is the same lines in reverse: those of the queries from the last to the first row, then the keys'. */
#include "recurrence/ttt/ttt_reference.h"

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double gelu1(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)), y = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * y;
}
static double gelu2(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)), y = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x), s = 1 - t * t;
    return s * y + 0.5 * x * (s * 0.7978845608028654 * 6 * 0.044715 * x - 2 * t * s * y * y);
}

enum { LAYERS = LNT_TTT_LAYERS };

/* A head at work. Rows of the mini-batch: of the state first, then its own. W, b are its start; Wc, bc those of the row at hand. */
typedef struct {
    ttt_norm norm; /* first */
    int64_t in[LAYERS], out[LAYERS];
    int layers;
    double *W[LAYERS], *b[LAYERS], *Wc[LAYERS], *bc[LAYERS], *dW[LAYERS], *db[LAYERS], *dWc[LAYERS], *dbc[LAYERS];
    double *x[LAYERS], *z[LAYERS], *u[LAYERS], *raw[LAYERS], *y[LAYERS], *zq[LAYERS], *dx[LAYERS], *du[LAYERS]; /* rows */
    double *v, *F, *dF, *dq, *dv, *drate, *dposition, *rate; /* [m,D] [m,m] [m,m] [m,D] [m,D] [m] [m] [m] */
    double *row[6];                                     /* of the widest */
    double *starts;                                     /* weights at the start of each mini-batch */
    double *sum_w[LAYERS], *sum_b[LAYERS];              /* over sequences */
    int64_t weights;                                    /* numbers of all weights and biases */
} head;

static const lnt_ttt_args *args_of(const head *x) { return x->norm.a; }

/* Scratch at p (NULL: only measure); returns its doubles. */
static int64_t carve(const lnt_ttt_args *a, double *p, head *x)
{
    const int64_t m = a->mini_batch, D = a->D, widest = a->F > D ? a->F : D;
    int64_t used = 0;
    x->norm.a = a, x->norm.D = D, x->norm.m = m, x->layers = lnt_ttt_layers(a), x->weights = 0;
#define TAKE(FIELD, COUNT) ((FIELD) = p ? p + used : NULL, used += (COUNT))
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l] = lnt_ttt_in(a, l), out = x->out[l] = lnt_ttt_out(a, l);
        x->weights += in * out + out;
        TAKE(x->W[l], in * out), TAKE(x->b[l], out), TAKE(x->Wc[l], in * out), TAKE(x->bc[l], out);
        TAKE(x->dW[l], in * out), TAKE(x->db[l], out), TAKE(x->dWc[l], in * out), TAKE(x->dbc[l], out);
        TAKE(x->sum_w[l], in * out), TAKE(x->sum_b[l], out);
        TAKE(x->x[l], m * in), TAKE(x->dx[l], m * in), TAKE(x->y[l], m * in);
        TAKE(x->z[l], m * out), TAKE(x->u[l], m * out), TAKE(x->raw[l], m * out), TAKE(x->du[l], m * out), TAKE(x->zq[l], m * out);
    }
    TAKE(x->v, m * D), TAKE(x->dq, m * D), TAKE(x->dv, m * D), TAKE(x->F, m * m), TAKE(x->dF, m * m);
    TAKE(x->drate, m), TAKE(x->dposition, m), TAKE(x->rate, m), TAKE(x->norm.dw, D), TAKE(x->norm.db, D);
    for (int i = 0; i < 6; i++) TAKE(x->row[i], widest);
    TAKE(x->starts, (lnt_ttt_batches(a, m - 1, a->longest) + 1) * x->weights);
#undef TAKE
    return used;
}

static size_t workspace(const void *args, bool backward, int threads)
{
    head x;
    (void)backward, (void)threads;
    return (size_t)carve(args, NULL, &x) * sizeof(double);
}

static double position_factor(const lnt_ttt_args *a, int64_t i)
{
    const double x = 1 / (double)(i + 1) + ref_get(a->token_idx, lnt_ttt_small(a), i);
    return !a->token_idx ? 1 : x < 0 ? 0 : x;
}
static double eta_at(const lnt_ttt_args *a, int64_t row, int64_t j)
{
    return a->eta ? ref_get(a->eta, lnt_ttt_small(a), row * a->mini_batch + j) : 1;
}

/* y = x W + b */
static void through(const double *x, int64_t in, const double *W, const double *b, int64_t out, double *y)
{
    for (int64_t o = 0; o < out; o++) y[o] = b[o];
    for (int64_t i = 0; i < in; i++)
        for (int64_t o = 0; o < out; o++) y[o] += x[i] * W[i * out + o];
}
/* x += W y */
static void back_through(double *x, int64_t in, const double *W, int64_t out, const double *y)
{
    for (int64_t i = 0; i < in; i++) x[i] += ref_dot(out, W + i * out, y);
}
/* W += f x y^T */
static void outer(double *W, double f, const double *x, int64_t in, const double *y, int64_t out)
{
    for (int64_t i = 0; i < in; i++)
        for (int64_t o = 0; o < out; o++) W[i * out + o] += f * x[i] * y[o];
}

/* Wc, bc = W, b after rows 0 .. i, by F's row i. */
static void weights_at(const head *x, int64_t i)
{
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        memcpy(x->Wc[l], x->W[l], (size_t)(in * out) * sizeof(double));
        memcpy(x->bc[l], x->b[l], (size_t)out * sizeof(double));
        for (int64_t j = 0; j <= i; j++) {
            const double f = -x->F[i * x->norm.m + j];
            outer(x->Wc[l], f, x->x[l] + j * in, in, x->u[l] + j * out, out);
            for (int64_t o = 0; o < out && args_of(x)->bias; o++) x->bc[l][o] += f * x->u[l][j * out + o];
        }
    }
}

/* The key of row i, token t: its inputs of the layers, gradients and step sizes. */
static void learn_row(const head *x, int64_t t, int64_t i)
{
    const lnt_ttt_args *a = args_of(x);
    const int64_t D = a->D, row = t * a->H + x->norm.h;
    const int top = x->layers - 1;
    ref_get_row(x->x[0] + i * D, a->k, a->dtype, row, D);
    ref_get_row(x->v + i * D, a->v, a->dtype, row, D);
    for (int l = 0; l <= top; l++) {
        const int64_t out = x->out[l];
        double *z = x->z[l] + i * out;
        through(x->x[l] + i * x->in[l], x->in[l], x->W[l], x->b[l], out, z);
        for (int64_t o = 0; o < out && l < top; o++) x->x[1][i * out + o] = gelu(z[o]);
    }
    ttt_loss(&x->norm, x->z[top] + i * D, x->x[0] + i * D, x->v + i * D, x->raw[top] + i * D);
    if (top) {
        double *h = x->raw[0] + i * a->F;
        memset(h, 0, (size_t)a->F * sizeof *h);
        back_through(h, a->F, x->W[1], D, x->raw[1] + i * D);
        for (int64_t f = 0; f < a->F; f++) h[f] *= gelu1(x->z[0][i * a->F + f]);
    }
    x->rate[i] = a->rate ? ref_get(a->rate, lnt_ttt_small(a), row) : 1;
    for (int l = 0; l <= top; l++)
        for (int64_t o = 0; o < x->out[l]; o++) x->u[l][i * x->out[l] + o] = x->rate[i] * x->raw[l][i * x->out[l] + o];
    for (int64_t j = 0; j <= i; j++) x->F[i * x->norm.m + j] = eta_at(a, row, j) * position_factor(a, i);
}

/* The query of row i by Wc, bc; its output, where it is wanted. */
static void read_row(const head *x, int64_t t, int64_t i, void *to)
{
    const lnt_ttt_args *a = args_of(x);
    const int64_t D = a->D;
    const int top = x->layers - 1;
    ref_get_row(x->y[0] + i * D, a->q, a->dtype, t * a->H + x->norm.h, D);
    for (int l = 0; l <= top; l++) {
        double *z = x->zq[l] + i * x->out[l];
        through(x->y[l] + i * x->in[l], x->in[l], x->Wc[l], x->bc[l], x->out[l], z);
        for (int64_t o = 0; o < x->out[l] && l < top; o++) x->y[1][i * x->out[l] + o] = gelu(z[o]);
    }
    double *o = x->row[0];
    memcpy(o, x->zq[top] + i * D, (size_t)D * sizeof *o);
    if (a->inner == LNT_TTT_LN) {
        ttt_normalise(D, x->zq[top] + i * D, o);
        for (int64_t c = 0; c < D; c++) o[c] = o[c] * x->norm.w[c] + x->norm.b[c] + x->y[0][i * D + c];
    }
    ref_put_row(to, a->dtype, t * a->H + x->norm.h, D, o);
}

/* ---- states ---------------------------------------------------------------------------------------------------------------------------------- */

static int64_t index_of(const head *x) { return x->norm.n * args_of(x)->H + x->norm.h; }

/* The open mini-batch of the initial state, and the weights it began with; returns its rows. */
static int64_t load(const head *x)
{
    const lnt_ttt_args *a = args_of(x);
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t m = a->mini_batch, at = index_of(x), open = ttt_open(a, a->n0, at);
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        ttt_sum_in(a, x->W[l], a->layer[l].w, x->norm.h, open ? a->layer[l].sw0 : a->layer[l].w0, at, in * out);
        ttt_sum_in(a, x->b[l], a->layer[l].b, x->norm.h, open ? a->layer[l].sb0 : a->layer[l].b0, at, out);
        for (int64_t j = 0; j < open; j++) {
            ref_get_row(x->x[l] + j * in, a->layer[l].x0, f, at * m + j, in);
            ref_get_row(x->u[l] + j * out, a->layer[l].u0, f, at * m + j, out);
        }
    }
    return open;
}

/* Rows [m,width] of a state: the first `open` of them. */
static void put_rows(const head *x, void *to, int64_t open, int64_t width, const double *rows)
{
    const int64_t m = x->norm.m, at = index_of(x);
    for (int64_t j = 0; j < m * width; j++) ref_put(to, lnt_ttt_small(args_of(x)), at * m * width + j, j < open * width ? rows[j] : 0);
}

/* The weights Wc, bc, and the open mini-batch with those it began with, put by at `start`. */
static void store(const head *x, int64_t open, const double *start)
{
    const lnt_ttt_args *a = args_of(x);
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t at = index_of(x);
    for (int l = 0; l < x->layers; l++) {
        const int64_t count = x->in[l] * x->out[l], out = x->out[l];
        for (int64_t i = 0; i < count; i++)
            ref_put(a->layer[l].wT, f, at * count + i, x->Wc[l][i] - ref_get(a->layer[l].w, f, x->norm.h * count + i));
        for (int64_t i = 0; i < out; i++) ref_put(a->layer[l].bT, f, at * out + i, x->bc[l][i] - ref_get(a->layer[l].b, f, x->norm.h * out + i));
        for (int64_t i = 0; i < count; i++)
            ref_put(a->layer[l].swT, f, at * count + i, open ? start[i] - ref_get(a->layer[l].w, f, x->norm.h * count + i) : 0);
        for (int64_t i = 0; i < out; i++)
            ref_put(a->layer[l].sbT, f, at * out + i, open ? start[count + i] - ref_get(a->layer[l].b, f, x->norm.h * out + i) : 0);
        start += count + out;
        put_rows(x, a->layer[l].xT, open, x->in[l], x->x[l]);
        put_rows(x, a->layer[l].uT, open, out, x->u[l]);
    }
    ref_put(a->nT, f, at, (double)open);
}

/* A state as it is, or its gradient: of a sequence without tokens. */
static void pass(const head *x, int64_t open, bool gradient)
{
    const lnt_ttt_args *a = args_of(x);
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t at = index_of(x), m = x->norm.m;
#define PASS(FROM, TO, COUNT, FIRST)                                                                                               \
    for (int64_t i = 0; i < (COUNT); i++) ref_put(TO, f, at * (COUNT) + i, i < (FIRST) ? ref_get(FROM, f, at * (COUNT) + i) : 0)
    for (int l = 0; l < x->layers; l++) {
        const lnt_ttt_layer *s = gradient ? &a->dlayer[l] : &a->layer[l];
        const int64_t in = x->in[l], out = x->out[l];
        PASS(gradient ? s->wT : s->w0, gradient ? s->w0 : s->wT, in * out, in * out);
        PASS(gradient ? s->bT : s->b0, gradient ? s->b0 : s->bT, out, out);
        PASS(gradient ? s->swT : s->sw0, gradient ? s->sw0 : s->swT, in * out, open ? in * out : 0);
        PASS(gradient ? s->sbT : s->sb0, gradient ? s->sb0 : s->sbT, out, open ? out : 0);
        PASS(gradient ? s->xT : s->x0, gradient ? s->x0 : s->xT, m * in, open * in);
        PASS(gradient ? s->uT : s->u0, gradient ? s->u0 : s->uT, m * out, open * out);
    }
#undef PASS
    ref_put(gradient ? a->dn0 : a->nT, f, at, gradient ? 0 : (double)open);
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------------- */

/* Mini-batch y of the sequence from W, b on, which become the next one's start. */
static void forward_batch(const head *x, const lnt_ttt_batch *y, void *o)
{
    const int64_t first = args_of(x)->cu_seqlens[x->norm.n] + y->first - y->open;
    for (int64_t i = y->open; i < y->rows; i++) {
        learn_row(x, first + i, i);
        weights_at(x, i);
        read_row(x, first + i, i, o);
    }
    for (int l = 0; l < x->layers; l++) {
        memcpy(x->W[l], x->Wc[l], (size_t)(x->in[l] * x->out[l]) * sizeof(double));
        memcpy(x->b[l], x->bc[l], (size_t)x->out[l] * sizeof(double));
    }
}

static void put_by(const head *x, int64_t c, bool out)
{
    double *p = x->starts + c * x->weights;
    for (int l = 0; l < x->layers; l++) {
        const int64_t count[2] = { x->in[l] * x->out[l], x->out[l] };
        for (int i = 0; i < 2; p += count[i++])
            memcpy(out ? (i ? x->b[l] : x->W[l]) : p, out ? p : (i ? x->b[l] : x->W[l]), (size_t)count[i] * sizeof(double));
    }
}

/* All mini-batches; the starts of all are kept. Returns the rows of the one that the initial state has open. */
static int64_t forward_head(head *x, void *o)
{
    const lnt_ttt_args *a = args_of(x);
    const int64_t len = a->cu_seqlens[x->norm.n + 1] - a->cu_seqlens[x->norm.n], open = load(x), batches = lnt_ttt_batches(a, open, len);
    ttt_norm_in(&x->norm);
    for (int64_t c = 0; len && c < batches; c++) {
        const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len, c);
        put_by(x, c, false);
        forward_batch(x, &y, o);
    }
    return open;
}

/* One thread throughout: heads add to d token_idx, sequences to the rest. */
static void forward(const void *args, int threads)
{
    const lnt_ttt_args *a = args;
    head x;
    (void)threads;
    carve(a, a->workspace, &x);
    for (int64_t i = 0; i < a->sequences * a->H; i++) {
        x.norm.n = i / a->H, x.norm.h = i % a->H;
        const int64_t len = a->cu_seqlens[x.norm.n + 1] - a->cu_seqlens[x.norm.n], open = forward_head(&x, a->o);
        if (len)
            store(&x, (open + len) % a->mini_batch, x.starts + (lnt_ttt_batches(a, open, len) - 1) * x.weights);
        else
            pass(&x, open, false);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------------- */

/* The query of row i: to the weights that it was read with, and from those to the start's, the keys, the gradients and the step sizes. dWc, dbc hold
 * what comes from behind. */
static void read_back(const head *x, int64_t t, int64_t i)
{
    const lnt_ttt_args *a = args_of(x);
    const int64_t D = a->D, m = a->mini_batch;
    const int top = x->layers - 1;
    double *d = x->row[0], *hat = x->row[1], *below = x->row[2], *dout = x->row[3];
    weights_at(x, i);
    ref_get_row(dout, a->dout, a->dtype, t * a->H + x->norm.h, D);
    memcpy(d, dout, (size_t)D * sizeof *d);
    if (a->inner == LNT_TTT_LN) {
        const double sigma = ttt_normalise(D, x->zq[top] + i * D, hat);
        for (int64_t c = 0; c < D; c++) {
            x->norm.dw[c] += d[c] * hat[c];
            x->norm.db[c] += d[c];
            d[c] *= x->norm.w[c];
        }
        ttt_project(D, d, hat, sigma, d);
    }
    for (int l = top; l >= 0; l--) {
        outer(x->dWc[l], 1, x->y[l] + i * x->in[l], x->in[l], d, x->out[l]);
        for (int64_t o = 0; o < x->out[l]; o++) x->dbc[l][o] += d[o];
        memset(below, 0, (size_t)x->in[l] * sizeof *below);
        back_through(below, x->in[l], x->Wc[l], x->out[l], d);
        for (int64_t c = 0; c < x->in[l]; c++) d[c] = l ? below[c] * gelu1(x->zq[0][i * x->in[l] + c]) : below[c];
    }
    for (int64_t c = 0; c < D; c++) x->dq[i * D + c] = d[c] + (a->inner == LNT_TTT_LN ? dout[c] : 0);
    for (int l = 0; l <= top; l++) {
        const int64_t in = x->in[l], out = x->out[l];
        for (int64_t j = 0; j < in * out; j++) x->dW[l][j] += x->dWc[l][j];
        for (int64_t j = 0; j < out; j++) x->db[l][j] += x->dbc[l][j];
        for (int64_t j = 0; j <= i; j++) {
            const double f = x->F[i * m + j];
            double *key = x->x[l] + j * in, *u = x->u[l] + j * out, *turned = x->row[4];
            for (int64_t o = 0; o < out; o++) {
                turned[o] = a->bias ? x->dbc[l][o] : 0;
                for (int64_t c = 0; c < in; c++) turned[o] += key[c] * x->dWc[l][c * out + o];
                x->du[l][j * out + o] -= f * turned[o];
            }
            x->dF[i * m + j] -= ref_dot(out, turned, u);
            for (int64_t c = 0; c < in; c++) x->dx[l][j * in + c] -= f * ref_dot(out, x->dWc[l] + c * out, u);
        }
        memset(x->dWc[l], 0, (size_t)(in * out) * sizeof(double));
        memset(x->dbc[l], 0, (size_t)out * sizeof(double));
    }
}

/* The key of row i, once all that used its gradients has been gone through. */
static void learn_back(const head *x, int64_t t, int64_t i)
{
    const lnt_ttt_args *a = args_of(x);
    const int64_t D = a->D, F = a->F, row = t * a->H + x->norm.h;
    const int top = x->layers - 1;
    double *dz = x->row[0], *below = x->row[1];
    x->drate[i] = 0;
    for (int l = 0; l <= top; l++)
        for (int64_t o = 0; o < x->out[l]; o++) {
            x->drate[i] += x->du[l][i * x->out[l] + o] * x->raw[l][i * x->out[l] + o];
            x->du[l][i * x->out[l] + o] *= x->rate[i];
        }
    memset(below, 0, (size_t)F * sizeof *below);
    if (top) { /* u_0 = (W u) gelu'(z_0) */
        double *du0 = x->du[0] + i * F, *dh = x->row[2];
        for (int64_t f = 0; f < F; f++) {
            const double z = x->z[0][i * F + f], h = ref_dot(D, x->W[1] + f * D, x->raw[1] + i * D);
            dh[f] = du0[f] * gelu1(z);
            below[f] = du0[f] * h * gelu2(z);
            for (int64_t o = 0; o < D; o++) x->du[1][i * D + o] += dh[f] * x->W[1][f * D + o];
        }
        outer(x->dW[1], 1, dh, F, x->raw[1] + i * D, D);
    }
    memset(x->dv + i * D, 0, (size_t)D * sizeof(double));
    ttt_loss_back(&x->norm, x->z[top] + i * D, x->x[0] + i * D, x->v + i * D, x->raw[top] + i * D, x->du[top] + i * D, dz, x->dx[0] + i * D,
                  x->dv + i * D);
    for (int l = top; l >= 0; l--) {
        const int64_t in = x->in[l], out = x->out[l];
        outer(x->dW[l], 1, x->x[l] + i * in, in, dz, out);
        for (int64_t o = 0; o < out; o++) x->db[l][o] += dz[o];
        back_through(x->dx[l] + i * in, in, x->W[l], out, dz);
        for (int64_t c = 0; c < in && l; c++) dz[c] = below[c] + x->dx[l][i * in + c] * gelu1(x->z[0][i * in + c]);
    }
    ref_put_row(a->dq, a->dtype, row, D, x->dq + i * D);
    ref_put_row(a->dk, a->dtype, row, D, x->dx[0] + i * D);
    ref_put_row(a->dv, a->dtype, row, D, x->dv + i * D);
    ref_put(a->drate, lnt_ttt_small(a), row, x->drate[i]);
    for (int64_t j = 0; j < a->mini_batch; j++) {
        const double d = j <= i ? x->dF[i * a->mini_batch + j] : 0;
        ref_put(a->deta, lnt_ttt_small(a), row * a->mini_batch + j, d * position_factor(a, i));
        if (j <= i && position_factor(a, i) > 0) x->dposition[i] += d * eta_at(a, row, j);
    }
}

/* dWc, dbc, which come from behind, become the gradients of the mini-batch's start. `ends`: it is the sequence's last. */
static void backward_batch(const head *x, const lnt_ttt_batch *y, bool ends)
{
    const lnt_ttt_args *a = args_of(x);
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t m = a->mini_batch, at = index_of(x), first = a->cu_seqlens[x->norm.n] + y->first - y->open;
    memset(x->dF, 0, (size_t)(m * m) * sizeof(double));
    for (int l = 0; l < x->layers; l++) {
        memset(x->dW[l], 0, (size_t)(x->in[l] * x->out[l]) * sizeof(double));
        memset(x->db[l], 0, (size_t)x->out[l] * sizeof(double));
        memset(x->dx[l], 0, (size_t)(m * x->in[l]) * sizeof(double));
        memset(x->du[l], 0, (size_t)(m * x->out[l]) * sizeof(double));
        for (int64_t j = 0; ends && y->rows < m && j < y->rows; j++) { /* rows that the final state has */
            ref_get_row(x->dx[l] + j * x->in[l], a->dlayer[l].xT, f, at * m + j, x->in[l]);
            ref_get_row(x->du[l] + j * x->out[l], a->dlayer[l].uT, f, at * m + j, x->out[l]);
        }
    }
    for (int64_t i = y->open; i < y->rows; i++) { /* again what the forward pass had */
        learn_row(x, first + i, i);
        weights_at(x, i);
        read_row(x, first + i, i, NULL);
    }
    for (int64_t i = y->rows - 1; i >= y->open; i--) read_back(x, first + i, i);
    for (int64_t i = y->open; i < y->rows; i++) learn_back(x, first + i, i);
    for (int l = 0; l < x->layers; l++) {
        const int64_t count = x->in[l] * x->out[l], out = x->out[l];
        const bool left = ends && y->rows < m;
        for (int64_t i = 0; left && i < count; i++) x->dW[l][i] += ref_get(a->dlayer[l].swT, f, at * count + i);
        for (int64_t i = 0; left && i < out; i++) x->db[l][i] += ref_get(a->dlayer[l].sbT, f, at * out + i);
        memcpy(x->dWc[l], x->dW[l], (size_t)(x->in[l] * x->out[l]) * sizeof(double));
        memcpy(x->dbc[l], x->db[l], (size_t)x->out[l] * sizeof(double));
    }
}

/* A row of a state [N,H,count]: what is given, or zeros. */
static void put_or_not(const head *x, void *to, int64_t count, const double *from, bool given)
{
    for (int64_t i = 0; i < count; i++) ref_put(to, lnt_ttt_small(args_of(x)), index_of(x) * count + i, given ? from[i] : 0);
}

/* dWc, dbc, dx, du of the first mini-batch to the initial state. */
static void store_back(const head *x, int64_t open)
{
    const lnt_ttt_args *a = args_of(x);
    for (int l = 0; l < x->layers; l++) {
        const int64_t count = x->in[l] * x->out[l], out = x->out[l];
        put_or_not(x, a->dlayer[l].w0, count, x->dWc[l], !open);
        put_or_not(x, a->dlayer[l].b0, out, x->dbc[l], !open);
        put_or_not(x, a->dlayer[l].sw0, count, x->dWc[l], open);
        put_or_not(x, a->dlayer[l].sb0, out, x->dbc[l], open);
        put_rows(x, a->dlayer[l].x0, open, x->in[l], x->dx[l]);
        put_rows(x, a->dlayer[l].u0, open, out, x->du[l]);
    }
    ref_put(a->dn0, lnt_ttt_small(a), index_of(x), 0);
}

static void backward_head(head *x)
{
    const lnt_ttt_args *a = args_of(x);
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t len = a->cu_seqlens[x->norm.n + 1] - a->cu_seqlens[x->norm.n], at = index_of(x);
    const int64_t open = forward_head(x, NULL), batches = lnt_ttt_batches(a, open, len);
    for (int l = 0; l < x->layers; l++) {
        ref_get_row(x->dWc[l], a->dlayer[l].wT, f, at, x->in[l] * x->out[l]);
        ref_get_row(x->dbc[l], a->dlayer[l].bT, f, at, x->out[l]);
    }
    for (int64_t c = batches - 1; len && c >= 0; c--) {
        const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len, c);
        if (!c) load(x);
        put_by(x, c, true);
        backward_batch(x, &y, c == batches - 1);
    }
    if (!len) {
        pass(x, open, true);
        return;
    }
    store_back(x, open);
    const bool left = (open + len) % a->mini_batch != 0;
    for (int l = 0; l < x->layers; l++) { /* final states are differences too */
        const int64_t count = x->in[l] * x->out[l], out = x->out[l];
        for (int64_t i = 0; i < count; i++)
            x->sum_w[l][i] += x->dWc[l][i] - ref_get(a->dlayer[l].wT, f, at * count + i) - (left ? ref_get(a->dlayer[l].swT, f, at * count + i) : 0);
        for (int64_t i = 0; i < out; i++)
            x->sum_b[l][i] += x->dbc[l][i] - ref_get(a->dlayer[l].bT, f, at * out + i) - (left ? ref_get(a->dlayer[l].sbT, f, at * out + i) : 0);
    }
}

static void backward(const void *args, int threads)
{
    const lnt_ttt_args *a = args;
    const lnt_dtype f = lnt_ttt_small(a);
    head x;
    (void)threads;
    carve(a, a->workspace, &x);
    memset(x.dposition, 0, (size_t)a->mini_batch * sizeof(double));
    for (x.norm.h = 0; x.norm.h < a->H; x.norm.h++) {
        memset(x.norm.dw, 0, (size_t)a->D * sizeof(double));
        memset(x.norm.db, 0, (size_t)a->D * sizeof(double));
        for (int l = 0; l < x.layers; l++) {
            memset(x.sum_w[l], 0, (size_t)(x.in[l] * x.out[l]) * sizeof(double));
            memset(x.sum_b[l], 0, (size_t)x.out[l] * sizeof(double));
        }
        for (x.norm.n = 0; x.norm.n < a->sequences; x.norm.n++) backward_head(&x);
        for (int l = 0; l < x.layers; l++) {
            ref_put_row(a->dlayer[l].w, f, x.norm.h, x.in[l] * x.out[l], x.sum_w[l]);
            ref_put_row(a->dlayer[l].b, f, x.norm.h, x.out[l], x.sum_b[l]);
        }
        ref_put_row(a->dln_w, f, x.norm.h, a->D, x.norm.dw);
        ref_put_row(a->dln_b, f, x.norm.h, a->D, x.norm.db);
    }
    ref_put_row(a->dtoken_idx, f, 0, a->mini_batch, x.dposition);
}

const lnt_recur_impl lnt_ttt_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
