/* Titans with a matrix for a memory on the CPU (README.md): mini-batch by mini-batch. What momentum and forgetting make of a row's gradient by a
 * later row, of the memory and of the momentum is in triangles and rows of coefficients made without a division (operators.md#titans). The token
 * form takes rows one by one. */
#include "recurrence/ttt/ttt_walk.h"

/* A head at work. Of the rows of a mini-batch from one on, which it calls 0: kept[i] of M at their start is left behind row i, lent[i] of S comes to
 * M, left[i] of S is left; row j's gradient is in S behind row i with S_part[i,j] and in M with M_part[i,j]. */
typedef struct {
    const lnt_ttt_args *a;
    ttt_norm norm;
    int64_t n, h, D, m;
    float *M, *S, *start; /* [D,D]; start: the memory that gradients are taken at */
    float *q, *k, *v, *z, *u, *hat, *inverse, *o, *QM, *QS, *QK, *A, *turned, *wide, *work; /* rows */
    float *theta, *keep, *eta, *kept, *lent, *left, *M_part, *S_part;
    float *dM, *dS, *dstart, *KM, *KS, *du, *dq, *dk, *dv, *dz, *dM_part, *dS_part, *Y;
    float *sum, *starts, *inside;
    int64_t group;
} head;

static int64_t square(const lnt_ttt_args *a) { return (int64_t)a->D * a->D; }

static int64_t carve(const lnt_ttt_args *a, bool back, float *p, head *x)
{
    const int64_t m = a->mini_batch, D = a->D, d2 = square(a);
    int64_t used = 0;
    *x = (head){ .a = a, .D = D, .m = m, .group = ttt_group(ttt_most(a), 2 * square(a)) };
    const int64_t groups = lnt_ttt_batches(a, m - 1, a->longest) / x->group + 1;
    const struct {
        float **at;
        int64_t count;
    } parts[] = { { &x->M, d2 },          { &x->S, d2 },         { &x->start, d2 },      { &x->q, m * D },      { &x->k, m * D },
                  { &x->v, m * D },       { &x->z, m * D },      { &x->u, m * D },       { &x->hat, m * D },    { &x->inverse, m },
                  { &x->o, m * D },       { &x->QM, m * D },     { &x->QS, m * D },      { &x->QK, m * m },     { &x->A, m * m },
                  { &x->wide, m * D },    { &x->work, 2 * D },   { &x->theta, m },       { &x->keep, m },       { &x->eta, m },
                  { &x->kept, m },        { &x->lent, m },       { &x->left, m },        { &x->M_part, m * m }, { &x->S_part, m * m },
                  { &x->turned, 3 * m * D } };
    const struct {
        float **at;
        int64_t count;
    } more[] = { { &x->dM, d2 },     { &x->dS, d2 },     { &x->dstart, d2 },      { &x->KM, m * D },      { &x->KS, m * D },
                 { &x->du, m * D },  { &x->dq, m * D },  { &x->dk, m * D },       { &x->dv, m * D },      { &x->dz, m * D },
                 { &x->Y, m * m },   { &x->dM_part, m * m }, { &x->dS_part, m * m }, { &x->inside, x->group * 2 * d2 },
                 { &x->starts, groups * 2 * d2 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p ? p + used : NULL;
        used += (parts[i].count + 15) / 16 * 16;
    }
    for (size_t i = 0; back && i < sizeof more / sizeof *more; i++) {
        *more[i].at = p ? p + used : NULL;
        used += (more[i].count + 15) / 16 * 16;
    }
    return used;
}

static int64_t len_of(const head *x) { return x->a->cu_seqlens[x->n + 1] - x->a->cu_seqlens[x->n]; }
static float *state_at(const head *x, const void *p) { return ttt_state(x->a, p, x->n, x->h, square(x->a)); }
static const float *first_of(const head *x) { return x->a->layer[0].w ? (const float *)x->a->layer[0].w + x->h * square(x->a) : NULL; }

static void set_head(head *x, int64_t n, int64_t h)
{
    x->n = n, x->h = h, x->norm = ttt_norm_of(x->a, h);
}

/* C [M,N] by mode from A B, all dense; and from A^T B, A [K,M]. */
static void times(lnt_mm_mode mode, int64_t M, int64_t N, int64_t K, const float *a, const float *b, float *c)
{
    LNT_V(lnt_mm)(mode, (int)M, (int)N, (int)K, a, K, 1, b, N, c, N);
}
static void turned_times(lnt_mm_mode mode, int64_t M, int64_t N, int64_t K, const float *a, const float *b, float *c)
{
    LNT_V(lnt_mm)(mode, (int)M, (int)N, (int)K, a, 1, M, b, N, c, N);
}

/* ---- states ---------------------------------------------------------------------------------------------------------------------------------- */

static int64_t load(const head *x)
{
    const lnt_ttt_args *a = x->a;
    const int64_t open = ttt_open(a, x->n, x->h), n = square(a);
    ttt_sum(x->M, first_of(x), state_at(x, a->layer[0].w0), n);
    ttt_sum(x->start, first_of(x), state_at(x, open ? a->g0 : a->layer[0].w0), n);
    ttt_some(x->S, state_at(x, a->m0), n, n);
    return open;
}

static void store(const head *x, int64_t open)
{
    const lnt_ttt_args *a = x->a;
    const int64_t n = square(a);
    float *rows = ttt_state(a, a->nT, x->n, x->h, 1);
    ttt_difference(state_at(x, a->layer[0].wT), x->M, first_of(x), n);
    ttt_some(state_at(x, a->mT), x->S, n, n);
    if (open)
        ttt_difference(state_at(x, a->gT), x->start, first_of(x), n);
    else
        ttt_some(state_at(x, a->gT), NULL, 0, n);
    if (rows) *rows = (float)open;
}

/* A state as it is, or its gradient: of a sequence without tokens. */
static void pass(const head *x, bool gradient)
{
    const lnt_ttt_args *a = x->a;
    const lnt_ttt_layer *s = gradient ? &a->dlayer[0] : &a->layer[0];
    const int64_t open = ttt_open(a, x->n, x->h), n = square(a);
    float *rows = ttt_state(a, gradient ? a->dn0 : a->nT, x->n, x->h, 1);
    ttt_some(state_at(x, gradient ? s->w0 : s->wT), state_at(x, gradient ? s->wT : s->w0), n, n);
    ttt_some(state_at(x, gradient ? a->dm0 : a->mT), state_at(x, gradient ? a->dmT : a->m0), n, n);
    ttt_some(state_at(x, gradient ? a->dg0 : a->gT), state_at(x, gradient ? a->dgT : a->g0), open ? n : 0, n);
    if (rows) *rows = gradient ? 0 : (float)open;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------------------------- */

/* Tokens t .. t+n-1: coefficients, gradients. */
static void learn(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, m = x->m;
    rows_in(x->k, a->k, a->dtype, t, n, a->H, x->h, D);
    rows_in(x->v, a->v, a->dtype, t, n, a->H, x->h, D);
    times(LNT_MM_SET, n, D, D, x->k, x->start, x->z);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = (t + i) * a->H + x->h;
        ttt_loss(D, &x->norm, x->z + i * D, x->k + i * D, x->v + i * D, LINNET_F32, x->hat + i * D, x->inverse + i, x->u + i * D);
        const float theta = x->theta[i] = ((const float *)a->theta)[row], keep = x->keep[i] = 1 - ((const float *)a->alpha)[row];
        const float eta = x->eta[i] = ((const float *)a->eta)[row];
        x->kept[i] = keep * (i ? x->kept[i - 1] : 1);
        x->left[i] = eta * (i ? x->left[i - 1] : 1);
        x->lent[i] = keep * (i ? x->lent[i - 1] : 0) + x->left[i];
        for (int64_t j = 0; j < n; j++) {
            const float S = j < i ? eta * x->S_part[(i - 1) * m + j] : j == i ? theta : 0;
            x->S_part[i * m + j] = S;
            x->M_part[i * m + j] = (j < i ? keep * x->M_part[(i - 1) * m + j] : 0) + S;
        }
    }
}

/* The memory and the momentum over those n rows. */
static void update(const head *x, int64_t n)
{
    const int64_t D = x->D, last = (n - 1) * x->m;
    const float kept = x->kept[n - 1], lent = x->lent[n - 1], left = x->left[n - 1];
    V_EACH(i, c, D * D)
    {
        const vf S = ttt_get(x->S, i, c);
        ttt_put(x->M, i, c, kept * ttt_get(x->M, i, c) + lent * S);
        ttt_put(x->S, i, c, left * S);
    }
    ttt_scale_rows(x->wide, x->M_part + last, n, D, x->k);
    turned_times(LNT_MM_SUB, D, D, n, x->wide, x->u, x->M);
    ttt_scale_rows(x->wide, x->S_part + last, n, D, x->k);
    turned_times(LNT_MM_SUB, D, D, n, x->wide, x->u, x->S);
}

static void read(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, m = x->m;
    rows_in(x->q, a->q, a->dtype, t, n, a->H, x->h, D);
    times(LNT_MM_SET, n, D, D, x->q, x->M, x->QM);
    times(LNT_MM_SET, n, D, D, x->q, x->S, x->QS);
    LNT_V(lnt_transpose)((int)n, (int)D, x->k, D, x->turned, n);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)n, (int)D, x->q, D, 1, x->turned, n, x->QK, m);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) x->A[i * m + j] = j > i ? 0 : x->M_part[i * m + j] * x->QK[i * m + j];
        V_EACH(c, k, D)
        ttt_put(x->o + i * D, c, k, x->kept[i] * ttt_get(x->QM + i * D, c, k) + x->lent[i] * ttt_get(x->QS + i * D, c, k));
    }
    LNT_V(lnt_mm)(LNT_MM_SUB, (int)n, (int)D, (int)n, x->A, m, 1, x->u, D, x->o, D);
}

static void begin_batch(const head *x, const lnt_ttt_batch *y)
{
    if (!y->open) memcpy(x->start, x->M, (size_t)square(x->a) * sizeof(float));
}

static void forward_head(const head *x, bool one_by_one)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(x), open = len ? load(x) : 0, batches = lnt_ttt_batches(a, open, len);
    if (!len) {
        pass(x, false);
        return;
    }
    for (int64_t c = 0; c < batches; c++) {
        const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len, c);
        begin_batch(x, &y);
        for (int64_t i = y.open, t = a->cu_seqlens[x->n] + y.first, n; i < y.rows; i += n, t += n) {
            n = one_by_one ? 1 : y.rows - i;
            learn(x, t, n);
            read(x, t, n);
            update(x, n);
            rows_out(a->o, a->dtype, t, n, a->H, x->h, x->D, x->o);
            if (!one_by_one || t + 1 == a->cu_seqlens[x->n + 1]) continue;
            ttt_as_state(x->M, first_of(x), square(a)); /* the bits that tokens have as calls on their own */
            ttt_as_state(x->start, first_of(x), square(a));
        }
    }
    store(x, (open + len) % x->m);
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------------- */

/* Gradients of the coefficients, the recurrences that made them in reverse. kept, lent, left: of the rows' own. */
static void coefficients_back(const head *x, int64_t t, int64_t n, const float *dkept, const float *dlent, float dleft_last)
{
    const lnt_ttt_args *a = x->a;
    const int64_t m = x->m;
    float kept = 0, lent = 0, left = 0; /* what comes from the row behind */
    float M_back[LNT_TTT_LONGEST] = { 0 }, S_back[LNT_TTT_LONGEST] = { 0 };
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t row = (t + i) * a->H + x->h;
        const float gl = dlent[i] + lent, gm = (i == n - 1 ? dleft_last : 0) + left + gl, gk = dkept[i] + kept;
        float dkeep = i ? gl * x->lent[i - 1] + gk * x->kept[i - 1] : gk, deta = i ? gm * x->left[i - 1] : gm, dtheta = 0;
        for (int64_t j = 0; j <= i; j++) {
            const float gM = x->dM_part[i * m + j] + M_back[j], gS = x->dS_part[i * m + j] + S_back[j] + gM;
            if (j == i) dtheta = gS;
            if (j < i) dkeep += gM * x->M_part[(i - 1) * m + j], deta += gS * x->S_part[(i - 1) * m + j];
            M_back[j] = x->keep[i] * gM;
            S_back[j] = x->eta[i] * gS;
        }
        lent = x->keep[i] * gl, left = x->eta[i] * gm, kept = x->keep[i] * gk;
        if (a->dtheta) ((float *)a->dtheta)[row] = dtheta;
        if (a->dalpha) ((float *)a->dalpha)[row] = -dkeep;
        if (a->deta) ((float *)a->deta)[row] = deta;
    }
}

/* dM, dS from behind the rows become those in front of them; dstart takes its share. */
static void back(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, m = x->m, d2 = square(a), last = (n - 1) * m;
    const float *M_last = x->M_part + last, *S_last = x->S_part + last;
    float *dO = x->o, dkept[LNT_TTT_LONGEST], dlent[LNT_TTT_LONGEST];
    rows_in(dO, a->dout, a->dtype, t, n, a->H, x->h, D);
    for (int64_t i = 0; i < n; i++) dkept[i] = ttt_dot(D, dO + i * D, x->QM + i * D), dlent[i] = ttt_dot(D, dO + i * D, x->QS + i * D);
    dkept[n - 1] += ttt_dot(d2, x->M, x->dM);
    dlent[n - 1] += ttt_dot(d2, x->S, x->dM);
    const float dleft = ttt_dot(d2, x->S, x->dS);
    times(LNT_MM_SET, n, D, D, x->k, x->dM, x->KM);
    times(LNT_MM_SET, n, D, D, x->k, x->dS, x->KS);
    LNT_V(lnt_transpose)((int)n, (int)D, x->u, D, x->turned, n);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)n, (int)D, dO, D, 1, x->turned, n, x->Y, m);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const float y = j > i ? 0 : -x->Y[i * m + j];
            x->dM_part[i * m + j] = y * x->QK[i * m + j];
            x->dS_part[i * m + j] = 0;
            x->Y[i * m + j] = y * x->M_part[i * m + j];
        }
    for (int64_t j = 0; j < n; j++) {
        x->dM_part[last + j] -= ttt_dot(D, x->KM + j * D, x->u + j * D);
        x->dS_part[last + j] -= ttt_dot(D, x->KS + j * D, x->u + j * D);
        V_EACH(c, k, D)
        ttt_put(x->du + j * D, c, k, -(M_last[j] * ttt_get(x->KM + j * D, c, k) + S_last[j] * ttt_get(x->KS + j * D, c, k)));
    }
    LNT_V(lnt_mm)(LNT_MM_SUB, (int)n, (int)D, (int)n, x->A, 1, m, dO, D, x->du, D);
    ttt_scale_rows(x->wide, x->kept, n, D, dO);
    ttt_times_transposed(LNT_MM_SET, n, D, x->wide, D, x->M, x->dq, x->turned);
    ttt_scale_rows(x->wide, x->lent, n, D, dO);
    ttt_times_transposed(LNT_MM_ADD, n, D, x->wide, D, x->S, x->dq, x->turned);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)D, (int)n, x->Y, m, 1, x->k, D, x->dq, D);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)D, (int)n, x->Y, 1, m, x->q, D, x->dk, D);
    ttt_scale_rows(x->wide, M_last, n, D, x->u);
    ttt_times_transposed(LNT_MM_SUB, n, D, x->wide, D, x->dM, x->dk, x->turned);
    ttt_scale_rows(x->wide, S_last, n, D, x->u);
    ttt_times_transposed(LNT_MM_SUB, n, D, x->wide, D, x->dS, x->dk, x->turned);
    V_EACH(i, c, d2)
    {
        const vf dM = ttt_get(x->dM, i, c);
        ttt_put(x->dS, i, c, x->lent[n - 1] * dM + x->left[n - 1] * ttt_get(x->dS, i, c));
        ttt_put(x->dM, i, c, x->kept[n - 1] * dM);
    }
    ttt_scale_rows(x->wide, x->kept, n, D, x->q);
    turned_times(LNT_MM_ADD, D, D, n, x->wide, dO, x->dM);
    ttt_scale_rows(x->wide, x->lent, n, D, x->q);
    turned_times(LNT_MM_ADD, D, D, n, x->wide, dO, x->dS);
    for (int64_t i = 0; i < n; i++)
        ttt_loss_back(D, &x->norm, x->hat + i * D, x->inverse[i], x->k + i * D, x->v + i * D, LINNET_F32, x->u + i * D, x->du + i * D, x->work,
                      x->dz + i * D, x->dk + i * D, x->dv + i * D);
    ttt_times_transposed(LNT_MM_ADD, n, D, x->dz, D, x->start, x->dk, x->turned);
    turned_times(LNT_MM_ADD, D, D, n, x->k, x->dz, x->dstart);
    coefficients_back(x, t, n, dkept, dlent, dleft);
    rows_out(a->dq, a->dtype, t, n, a->H, x->h, D, x->dq);
    rows_out(a->dk, a->dtype, t, n, a->H, x->h, D, x->dk);
    rows_out(a->dv, a->dtype, t, n, a->H, x->h, D, x->dv);
}

static void put_by(const head *x, float *p)
{
    memcpy(p, x->M, (size_t)square(x->a) * sizeof *p);
    memcpy(p + square(x->a), x->S, (size_t)square(x->a) * sizeof *p);
}

static void take_back(const head *x, const float *p)
{
    memcpy(x->M, p, (size_t)square(x->a) * sizeof *p);
    memcpy(x->S, p + square(x->a), (size_t)square(x->a) * sizeof *p);
}

static void go_over(const head *x, int64_t open, int64_t c)
{
    const lnt_ttt_batch y = lnt_ttt_batch_at(x->a, open, len_of(x), c);
    begin_batch(x, &y);
    learn(x, x->a->cu_seqlens[x->n] + y.first, y.rows - y.open);
    update(x, y.rows - y.open);
}

static void backward_batch(const head *x, int64_t open, int64_t c, const float *start)
{
    const lnt_ttt_args *a = x->a;
    const lnt_ttt_batch y = lnt_ttt_batch_at(a, open, len_of(x), c);
    const int64_t t = a->cu_seqlens[x->n] + y.first, n = y.rows - y.open, d2 = square(a);
    if (y.open) load(x); /* for the memory at its start */
    take_back(x, start);
    begin_batch(x, &y);
    learn(x, t, n);
    read(x, t, n);
    back(x, t, n);
    if (y.open) return;
    ttt_add(d2, 1, x->dstart, x->dM);
    memset(x->dstart, 0, (size_t)d2 * sizeof(float));
}

static void backward_head(const head *x)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(x), open = len ? load(x) : 0, batches = lnt_ttt_batches(a, open, len), group = x->group, d2 = square(a);
    if (!len) {
        pass(x, true);
        return;
    }
    for (int64_t c = 0; c < batches; c++) {
        if (c % group == 0) put_by(x, x->starts + c / group * 2 * d2);
        if (c / group == (batches - 1) / group) break; /* the last group's are made below */
        go_over(x, open, c);
    }
    ttt_some(x->dM, state_at(x, a->dlayer[0].wT), d2, d2);
    ttt_some(x->dS, state_at(x, a->dmT), d2, d2);
    ttt_some(x->dstart, state_at(x, a->dgT), (open + len) % x->m ? d2 : 0, d2);
    ttt_add(d2, -1, x->dM, x->sum); /* final states are differences too */
    ttt_add(d2, -1, x->dstart, x->sum);
    for (int64_t g = (batches - 1) / group; g >= 0; g--) {
        const int64_t begin = g * group, end = at_most(batches, begin + group);
        if (!g) load(x);
        take_back(x, x->starts + g * 2 * d2);
        for (int64_t c = begin; c < end; c++) {
            put_by(x, x->inside + (c - begin) * 2 * d2);
            if (c + 1 < end) go_over(x, open, c);
        }
        for (int64_t c = end - 1; c >= begin; c--) backward_batch(x, open, c, x->inside + (c - begin) * 2 * d2);
    }
    ttt_some(state_at(x, a->dlayer[0].w0), x->dM, d2, d2);
    ttt_some(state_at(x, a->dm0), x->dS, d2, d2);
    ttt_some(state_at(x, a->dg0), x->dstart, d2, d2);
    float *rows = ttt_state(a, a->dn0, x->n, x->h, 1);
    if (rows) *rows = 0;
    ttt_add(d2, 1, x->dM, x->sum);
    ttt_add(d2, 1, x->dstart, x->sum);
}

/* Sums of the first memory's gradients and of the norm's. */
static int64_t sums(const lnt_ttt_args *a) { return square(a) + 2 * a->D; }

static void bind_sums(head *x, float *p)
{
    x->sum = p, x->norm.dw = p + square(x->a), x->norm.db = x->norm.dw + x->D;
}

static void add_sums(const lnt_ttt_args *a, int64_t h, const float *p, int64_t parts, int64_t away)
{
    const int64_t d2 = square(a);
    if (a->dlayer[0].w) ttt_add_parts((float *)a->dlayer[0].w + h * d2, p, parts, away, d2);
    if (a->dln_w) ttt_add_parts((float *)a->dln_w + h * a->D, p + d2, parts, away, a->D);
    if (a->dln_b) ttt_add_parts((float *)a->dln_b + h * a->D, p + d2 + a->D, parts, away, a->D);
}

LNT_TTT_FORMS(lnt_titans);
