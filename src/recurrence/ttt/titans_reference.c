/* Titans with a matrix for a memory in float64, token by token: the truth. Inside a mini-batch that begins with the memory M_0 (operators.md#titans)
 *
 *   u_t = dl/dz at z = k_t M_0      S_t = eta_t S_{t-1} - theta_t k_t u_t^T      M_t = (1 - alpha_t) M_{t-1} + S_t      o_t = q_t M_t
 *
 * Backward is the same lines in reverse; what reaches M_0 through the u_t waits for the mini-batch's first token. */
#include "recurrence/ttt/ttt_reference.h"

typedef struct {
    ttt_norm norm; /* first */
    double *M, *S, *start;          /* [D,D] now, and the memory at the start of the mini-batch */
    double *dM, *dS, *dstart, *sum; /* and what the final states add to the last: dm */
    double *starts, *inside;        /* M, S before each mini-batch, and before each token of one */
    double *row[8];
} head;

static int64_t square(const lnt_ttt_args *a) { return (int64_t)a->D * a->D; }

static int64_t carve(const lnt_ttt_args *a, double *p, head *x)
{
    int64_t used = 0;
    x->norm.a = a, x->norm.D = a->D, x->norm.m = a->mini_batch;
#define TAKE(FIELD, COUNT) ((FIELD) = p ? p + used : NULL, used += (COUNT))
    TAKE(x->M, square(a)), TAKE(x->S, square(a)), TAKE(x->start, square(a));
    TAKE(x->dM, square(a)), TAKE(x->dS, square(a)), TAKE(x->dstart, square(a)), TAKE(x->sum, square(a));
    TAKE(x->starts, 2 * square(a) * (lnt_ttt_batches(a, a->mini_batch - 1, a->longest) + 1));
    TAKE(x->inside, 2 * square(a) * a->mini_batch);
    TAKE(x->norm.dw, a->D), TAKE(x->norm.db, a->D);
    for (int i = 0; i < 8; i++) TAKE(x->row[i], a->D);
#undef TAKE
    return used;
}

static size_t workspace(const void *args, bool backward, int threads)
{
    head x;
    (void)backward, (void)threads;
    return (size_t)carve(args, NULL, &x) * sizeof(double);
}

enum { Q, K, V, U, Z, DU, DK, DV };

/* Rows of token t, and its loss. */
static void learn(const head *x, int64_t t)
{
    const lnt_ttt_args *a = x->norm.a;
    const int64_t D = a->D, row = t * a->H + x->norm.h;
    ref_get_row(x->row[Q], a->q, a->dtype, row, D);
    ref_get_row(x->row[K], a->k, a->dtype, row, D);
    ref_get_row(x->row[V], a->v, a->dtype, row, D);
    memset(x->row[Z], 0, (size_t)D * sizeof(double));
    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j < D; j++) x->row[Z][j] += x->row[K][i] * x->start[i * D + j];
    ttt_loss(&x->norm, x->row[Z], x->row[K], x->row[V], x->row[U]);
}

static double gate(const head *x, const void *p, int64_t t) { return ref_get(p, lnt_ttt_small(x->norm.a), t * x->norm.a->H + x->norm.h); }

/* M and S over token t, which learn has been over. */
static void step(const head *x, int64_t t)
{
    const lnt_ttt_args *a = x->norm.a;
    const double theta = gate(x, a->theta, t), keep = 1 - gate(x, a->alpha, t), eta = gate(x, a->eta, t);
    for (int64_t i = 0; i < a->D; i++)
        for (int64_t j = 0; j < a->D; j++) {
            double *S = x->S + i * a->D + j, *M = x->M + i * a->D + j;
            *S = eta * *S - theta * x->row[K][i] * x->row[U][j];
            *M = keep * *M + *S;
        }
}

static int64_t index_of(const head *x) { return x->norm.n * x->norm.a->H + x->norm.h; }
static int64_t len_of(const head *x) { return x->norm.a->cu_seqlens[x->norm.n + 1] - x->norm.a->cu_seqlens[x->norm.n]; }
static void copy(const head *x, double *to, const double *from) { memcpy(to, from, (size_t)square(x->norm.a) * sizeof *to); }

/* Returns the rows of the open mini-batch. */
static int64_t load(const head *x)
{
    const lnt_ttt_args *a = x->norm.a;
    const int64_t at = index_of(x), open = ttt_open(a, a->n0, at);
    ttt_sum_in(a, x->M, a->layer[0].w, x->norm.h, a->layer[0].w0, at, square(a));
    ttt_sum_in(a, x->start, a->layer[0].w, x->norm.h, open ? a->g0 : a->layer[0].w0, at, square(a));
    ref_get_row(x->S, a->m0, lnt_ttt_small(a), at, square(a));
    return open;
}

static void store(const head *x, int64_t open)
{
    const lnt_ttt_args *a = x->norm.a;
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t at = index_of(x), n = square(a);
    for (int64_t i = 0; i < n; i++) {
        const double first = ref_get(a->layer[0].w, f, x->norm.h * n + i);
        ref_put(a->layer[0].wT, f, at * n + i, x->M[i] - first);
        ref_put(a->gT, f, at * n + i, open ? x->start[i] - first : 0);
    }
    ref_put_row(a->mT, f, at, n, x->S);
    ref_put(a->nT, f, at, (double)open);
}

/* States of sequences without tokens, as they are; or their gradients. */
static void pass(const head *x, int64_t open, bool gradient)
{
    const lnt_ttt_args *a = x->norm.a;
    const lnt_dtype f = lnt_ttt_small(a);
    const lnt_ttt_layer *s = gradient ? &a->dlayer[0] : &a->layer[0];
    const int64_t at = index_of(x), n = square(a);
    for (int64_t i = at * n; i < (at + 1) * n; i++) {
        ref_put(gradient ? s->w0 : s->wT, f, i, ref_get(gradient ? s->wT : s->w0, f, i));
        ref_put(gradient ? a->dm0 : a->mT, f, i, ref_get(gradient ? a->dmT : a->m0, f, i));
        ref_put(gradient ? a->dg0 : a->gT, f, i, open ? ref_get(gradient ? a->dgT : a->g0, f, i) : 0);
    }
    ref_put(gradient ? a->dn0 : a->nT, f, at, gradient ? 0 : (double)open);
}

/* Tokens of the sequence, the states at the start of each mini-batch kept. Returns the rows of the initial state's open one. */
static int64_t forward_head(head *x, void *o)
{
    const lnt_ttt_args *a = x->norm.a;
    const int64_t open = load(x), n = square(a), m = a->mini_batch;
    double *out = x->row[Z];
    ttt_norm_in(&x->norm);
    for (int64_t i = open; i < open + len_of(x); i++) {
        const int64_t t = a->cu_seqlens[x->norm.n] + i - open;
        if (i % m == 0) copy(x, x->start, x->M);
        if (i % m == 0 || i == open) copy(x, x->starts + i / m * 2 * n, x->M), copy(x, x->starts + i / m * 2 * n + n, x->S);
        learn(x, t);
        step(x, t);
        memset(out, 0, (size_t)a->D * sizeof *out);
        for (int64_t k = 0; k < a->D; k++)
            for (int64_t j = 0; j < a->D; j++) out[j] += x->row[Q][k] * x->M[k * a->D + j];
        ref_put_row(o, a->dtype, t * a->H + x->norm.h, a->D, out);
    }
    return open;
}

static void forward(const void *args, int threads)
{
    const lnt_ttt_args *a = args;
    head x;
    (void)threads;
    carve(a, a->workspace, &x);
    for (int64_t i = 0; i < a->sequences * a->H; i++) {
        x.norm.n = i / a->H, x.norm.h = i % a->H;
        const int64_t open = forward_head(&x, a->o);
        if (len_of(&x))
            store(&x, (open + len_of(&x)) % a->mini_batch);
        else
            pass(&x, open, false);
    }
}

/* Token t back, from M, S behind it and `before`, those in front. */
static void back(const head *x, int64_t t, const double *before)
{
    const lnt_ttt_args *a = x->norm.a;
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t D = a->D, row = t * a->H + x->norm.h;
    const double theta = gate(x, a->theta, t), keep = 1 - gate(x, a->alpha, t), eta = gate(x, a->eta, t);
    double dtheta = 0, dalpha = 0, deta = 0, *dq = x->row[DV], *dout = x->row[DK];
    learn(x, t);
    ref_get_row(dout, a->dout, a->dtype, row, D);
    for (int64_t i = 0; i < D; i++) {
        dq[i] = ref_dot(D, x->M + i * D, dout);
        for (int64_t j = 0; j < D; j++) x->dM[i * D + j] += x->row[Q][i] * dout[j];
    }
    ref_put_row(a->dq, a->dtype, row, D, dq);
    memset(x->row[DU], 0, (size_t)D * sizeof(double));
    memset(x->row[DV], 0, (size_t)D * sizeof(double));
    for (int64_t i = 0; i < D; i++) {
        double along = 0;
        for (int64_t j = 0; j < D; j++) {
            double *dM = x->dM + i * D + j, *dS = x->dS + i * D + j;
            *dS += *dM;
            dalpha -= *dM * before[i * D + j];
            deta += *dS * before[D * D + i * D + j];
            along += *dS * x->row[U][j];
            x->row[DU][j] -= theta * *dS * x->row[K][i];
            *dM *= keep;
            *dS *= eta;
        }
        dtheta -= along * x->row[K][i];
        x->row[DK][i] = -theta * along;
    }
    double *dz = x->row[Q];
    ttt_loss_back(&x->norm, x->row[Z], x->row[K], x->row[V], x->row[U], x->row[DU], dz, x->row[DK], x->row[DV]);
    for (int64_t i = 0; i < D; i++) {
        x->row[DK][i] += ref_dot(D, x->start + i * D, dz);
        for (int64_t j = 0; j < D; j++) x->dstart[i * D + j] += x->row[K][i] * dz[j];
    }
    ref_put_row(a->dk, a->dtype, row, D, x->row[DK]);
    ref_put_row(a->dv, a->dtype, row, D, x->row[DV]);
    ref_put(a->dtheta, f, row, dtheta);
    ref_put(a->dalpha, f, row, dalpha);
    ref_put(a->deta, f, row, deta);
}

static void backward_batch(head *x, int64_t open, int64_t c)
{
    const lnt_ttt_args *a = x->norm.a;
    const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len_of(x), c);
    const int64_t n = square(a), first = a->cu_seqlens[x->norm.n] + y.first - y.open;
    if (!c) load(x);
    copy(x, x->M, x->starts + c * 2 * n);
    copy(x, x->S, x->starts + c * 2 * n + n);
    if (c || !open) copy(x, x->start, x->M);
    for (int64_t i = y.open; i < y.rows; i++) {
        copy(x, x->inside + i * 2 * n, x->M);
        copy(x, x->inside + i * 2 * n + n, x->S);
        learn(x, first + i);
        step(x, first + i);
    }
    for (int64_t i = y.rows - 1; i >= y.open; i--) {
        back(x, first + i, x->inside + i * 2 * n);
        copy(x, x->M, x->inside + i * 2 * n);
    }
    for (int64_t i = 0; i < n && !y.open; i++) {
        x->dM[i] += x->dstart[i];
        x->dstart[i] = 0;
    }
}

static void backward_head(head *x)
{
    const lnt_ttt_args *a = x->norm.a;
    const lnt_dtype f = lnt_ttt_small(a);
    const int64_t at = index_of(x), n = square(a), len = len_of(x), open = forward_head(x, NULL), batches = lnt_ttt_batches(a, open, len);
    if (!len) {
        pass(x, open, true);
        return;
    }
    const bool left = (open + len) % a->mini_batch != 0;
    ref_get_row(x->dM, a->dlayer[0].wT, f, at, n);
    ref_get_row(x->dS, a->dmT, f, at, n);
    for (int64_t i = 0; i < n; i++) {
        x->dstart[i] = left ? ref_get(a->dgT, f, at * n + i) : 0;
        x->sum[i] -= x->dM[i] + x->dstart[i]; /* final states are differences too */
    }
    for (int64_t c = batches - 1; c >= 0; c--) backward_batch(x, open, c);
    ref_put_row(a->dlayer[0].w0, f, at, n, x->dM);
    ref_put_row(a->dm0, f, at, n, x->dS);
    ref_put_row(a->dg0, f, at, n, x->dstart);
    for (int64_t i = 0; i < n; i++) x->sum[i] += x->dM[i] + x->dstart[i];
    ref_put(a->dn0, f, at, 0);
}

static void backward(const void *args, int threads)
{
    const lnt_ttt_args *a = args;
    const lnt_dtype f = lnt_ttt_small(a);
    head x;
    (void)threads;
    carve(a, a->workspace, &x);
    for (x.norm.h = 0; x.norm.h < a->H; x.norm.h++) {
        memset(x.norm.dw, 0, (size_t)a->D * sizeof(double));
        memset(x.norm.db, 0, (size_t)a->D * sizeof(double));
        memset(x.sum, 0, (size_t)square(a) * sizeof(double));
        for (x.norm.n = 0; x.norm.n < a->sequences; x.norm.n++) backward_head(&x);
        ref_put_row(a->dlayer[0].w, f, x.norm.h, square(a), x.sum);
        ref_put_row(a->dln_w, f, x.norm.h, a->D, x.norm.dw);
        ref_put_row(a->dln_b, f, x.norm.h, a->D, x.norm.db);
    }
}

const lnt_recur_impl lnt_titans_reference = {
    .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward, .backward = backward
};
