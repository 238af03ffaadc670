/* Titans with a matrix for a memory on the CPU (README.md): mini-batch by mini-batch. What momentum and forgetting make of a row's gradient by a
 * later row, of the memory and of the momentum is in triangles and rows of coefficients made without a division (operators.md#titans). The token
 * form takes rows one by one.
 *
 * Where the processor has tiles, products of bf16 calls go through them, but for the token form's and those of mini-batches that a call begins or
 * ends inside, and several mini-batches are taken together (titans_tiled.h). */
#include "recurrence/ttt/titans_tiled.h"
#include "recurrence/ttt/ttt_walk.h"

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

/* The rows of the next span's tokens t + away .. on their way into the cache while t .. t+n-1 are worked on. */
static void ahead(const head *x, const void *rows, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t next = t + x->away, end = a->cu_seqlens[x->n + 1];
    if (next >= a->cu_seqlens[x->n]) rows_ahead(rows, a->dtype, next, at_most(n, end - next), a->H, x->h, x->D);
}

/* Tokens t .. t+n-1: coefficients, gradients. */
static void learn(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D;
    coefficients(x, t, n);
    ahead(x, a->k, t, n);
    ahead(x, a->v, t, n);
    rows_in(x->k, a->k, a->dtype, t, n, a->H, x->h, D);
    rows_in(x->v, a->v, a->dtype, t, n, a->H, x->h, D);
    times(LNT_MM_SET, n, D, D, x->k, x->start, x->z);
    for (int64_t i = 0; i < n; i++)
        ttt_loss(D, &x->norm, x->z + i * D, x->k + i * D, x->v + i * D, LINNET_F32, x->hat + i * D, x->inverse + i, x->u + i * D);
}

/* The memory and the momentum over those n rows. */
static void update(const head *x, int64_t n)
{
    const int64_t D = x->D, last = (n - 1) * x->span;
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
    const int64_t D = x->D, R = x->span;
    ahead(x, a->q, t, n);
    rows_in(x->q, a->q, a->dtype, t, n, a->H, x->h, D);
    times(LNT_MM_SET, n, D, D, x->q, x->M, x->QM);
    times(LNT_MM_SET, n, D, D, x->q, x->S, x->QS);
    LNT_V(lnt_transpose)((int)n, (int)D, x->k, D, x->turned, n);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)n, (int)D, x->q, D, 1, x->turned, n, x->QK, R);
    parts_of_pairs(x, false, n, x->QK, x->A);
    for (int64_t i = 0; i < n; i++)
        V_EACH(c, k, D) ttt_put(x->o + i * D, c, k, x->kept[i] * ttt_get(x->QM + i * D, c, k) + x->lent[i] * ttt_get(x->QS + i * D, c, k));
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)D, (int)n, x->A, R, 1, x->u, D, x->o, D);
}

static void begin_batch(const head *x, const lnt_ttt_batch *y)
{
    if (!y->open) memcpy(x->start, x->M, (size_t)square(x->a) * sizeof(float));
}

/* Whether a span goes by tiles: one of whole mini-batches. */
static bool by_tiles(const head *x, const lnt_ttt_batch *y) { return x->tiled && !y->open && y->rows % x->m == 0; }

static void forward_rows(const head *x, bool one_by_one)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(&x->place), open = len ? load(x) : 0, spans = spans_of(&x->place, open, len);
    bool packed = false;
    if (!len) {
        pass(x, false);
        return;
    }
    for (int64_t c = 0; c < spans; c++) {
        const lnt_ttt_batch y = span_at(&x->place, open, len, c);
        if (by_tiles(x, &y)) {
            if (!packed) {
                TILES(tiled_states(x, NULL))
                packed = true;
            }
            TILES(tiled_forward(x, a->cu_seqlens[x->n] + y.first, y.rows))
            continue;
        }
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

static void forward_head(head *x, bool one_by_one)
{
    if (one_by_one) x->tiled = false, x->span = x->m;
    x->away = x->span;
    TILES(ENGINE->begin())
    forward_rows(x, one_by_one);
    TILES(ENGINE->end())
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------------- */

/* dM, dS from behind the rows become those in front of them; dstart takes its share. */
static void back(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, R = x->span, d2 = square(a), last = (n - 1) * R;
    const float *M_last = x->M_part + last, *S_last = x->S_part + last;
    float *dO = x->o, dkept[LNT_TTT_LONGEST], dlent[LNT_TTT_LONGEST], dM_last[LNT_TTT_LONGEST], dS_last[LNT_TTT_LONGEST];
    ahead(x, a->dout, t, n);
    rows_in(dO, a->dout, a->dtype, t, n, a->H, x->h, D);
    for (int64_t i = 0; i < n; i++) dkept[i] = ttt_dot(D, dO + i * D, x->QM + i * D), dlent[i] = ttt_dot(D, dO + i * D, x->QS + i * D);
    dkept[n - 1] += ttt_dot(d2, x->M, x->dM);
    dlent[n - 1] += ttt_dot(d2, x->S, x->dM);
    const float dleft = ttt_dot(d2, x->S, x->dS);
    times(LNT_MM_SET, n, D, D, x->k, x->dM, x->KM);
    times(LNT_MM_SET, n, D, D, x->k, x->dS, x->KS);
    LNT_V(lnt_transpose)((int)n, (int)D, x->u, D, x->turned, n);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)n, (int)D, dO, D, 1, x->turned, n, x->Y, R);
    memset(x->dM_part, 0, (size_t)(n * R) * sizeof(float));
    parts_of_pairs_back(x, false, n, x->QK, x->Y);
    for (int64_t j = 0; j < n; j++) {
        dM_last[j] = -ttt_dot(D, x->KM + j * D, x->u + j * D);
        dS_last[j] = -ttt_dot(D, x->KS + j * D, x->u + j * D);
        V_EACH(c, k, D)
        ttt_put(x->du + j * D, c, k, -(M_last[j] * ttt_get(x->KM + j * D, c, k) + S_last[j] * ttt_get(x->KS + j * D, c, k)));
    }
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)D, (int)n, x->A, 1, R, dO, D, x->du, D);
    ttt_scale_rows(x->wide, x->kept, n, D, dO);
    ttt_times_transposed(LNT_MM_SET, n, D, x->wide, D, x->M, x->dq, x->turned);
    ttt_scale_rows(x->wide, x->lent, n, D, dO);
    ttt_times_transposed(LNT_MM_ADD, n, D, x->wide, D, x->S, x->dq, x->turned);
    LNT_V(lnt_mm)(LNT_MM_ADD, (int)n, (int)D, (int)n, x->Y, R, 1, x->k, D, x->dq, D);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)n, (int)D, (int)n, x->Y, 1, R, x->q, D, x->dk, D);
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
    coefficients_back(x, t, n, dkept, dlent, dleft, dM_last, dS_last);
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

/* The states behind span y; of tiles the left forms at `left`. */
static void go_over(const head *x, const lnt_ttt_batch *y, float *left)
{
    const int64_t t = x->a->cu_seqlens[x->n] + y->first;
    if (by_tiles(x, y)) {
        TILES(tiled_learn(x, t, y->rows, TITANS_KEYS))
        TILES(tiled_leave_at(x, left))
        TILES(tiled_update(x, y->rows))
        return;
    }
    (void)left;
    begin_batch(x, y);
    learn(x, t, y->rows - y->open);
    update(x, y->rows - y->open);
}

/* States of spans begin .. end-1, each put by before it: those that go by tiles as left forms, any others of a head on tiles not at all, as they are
 * the first, whose states are the call's, or the last, whose are at hand. */
static void sweep(head *x, int64_t open, int64_t begin, int64_t end)
{
    bool packed = false;
    x->away = x->span;
    for (int64_t c = begin; c < end; c++) {
        const lnt_ttt_batch y = span_at(&x->place, open, len_of(&x->place), c);
        float *at = x->inside + (c - begin) * x->kept_numbers;
        if (!x->tiled) put_by(x, at);
        if (by_tiles(x, &y) && !packed) {
            TILES(tiled_states(x, at))
            packed = true;
        }
        if (c + 1 < end) go_over(x, &y, at + x->kept_numbers);
    }
}

static void backward_span(const head *x, const lnt_ttt_batch *y, const float *start)
{
    const lnt_ttt_args *a = x->a;
    const int64_t t = a->cu_seqlens[x->n] + y->first, n = y->rows - y->open, d2 = square(a);
    if (by_tiles(x, y)) {
        TILES(tiled_take_back(x, start))
        TILES(tiled_back(x, t, n))
        return;
    }
    if (y->open) load(x); /* for the memory at its start */
    if (!x->tiled) take_back(x, start);
    begin_batch(x, y);
    learn(x, t, n);
    read(x, t, n);
    back(x, t, n);
    if (y->open) return;
    ttt_add(d2, 1, x->dstart, x->dM);
    memset(x->dstart, 0, (size_t)d2 * sizeof(float));
}

static void backward_rows(head *x)
{
    const lnt_ttt_args *a = x->a;
    const int64_t len = len_of(&x->place), open = len ? load(x) : 0, spans = spans_of(&x->place, open, len), group = x->group, d2 = square(a);
    bool packed = false;
    if (!len) {
        pass(x, true);
        return;
    }
    x->away = x->span;
    for (int64_t c = 0; c < spans; c++) {
        const lnt_ttt_batch y = span_at(&x->place, open, len, c);
        if (c % group == 0) put_by(x, x->starts + c / group * 2 * d2);
        if (c / group == (spans - 1) / group) break; /* the last group's are made below */
        if (by_tiles(x, &y) && !packed) {
            TILES(tiled_states(x, x->inside))
            packed = true;
        }
        go_over(x, &y, x->inside);
    }
    ttt_some(x->dM, state_at(x, a->dlayer[0].wT), d2, d2);
    ttt_some(x->dS, state_at(x, a->dmT), d2, d2);
    ttt_some(x->dstart, state_at(x, a->dgT), (open + len) % x->m ? d2 : 0, d2);
    ttt_add(d2, -1, x->dM, x->sum); /* final states are differences too */
    ttt_add(d2, -1, x->dstart, x->sum);
    packed = false; /* the gradients */
    for (int64_t g = (spans - 1) / group; g >= 0; g--) {
        const int64_t begin = g * group, end = at_most(spans, begin + group);
        if (!g) load(x);
        take_back(x, x->starts + g * 2 * d2);
        sweep(x, open, begin, end);
        x->away = -x->span;
        for (int64_t c = end - 1; c >= begin; c--) {
            const lnt_ttt_batch y = span_at(&x->place, open, len, c);
            if (by_tiles(x, &y) && !packed) {
                TILES(tiled_gradients(x))
                packed = true;
            }
            backward_span(x, &y, x->inside + (c - begin) * x->kept_numbers);
        }
    }
    ttt_some(state_at(x, a->dlayer[0].w0), x->dM, d2, d2);
    ttt_some(state_at(x, a->dm0), x->dS, d2, d2);
    ttt_some(state_at(x, a->dg0), x->dstart, d2, d2);
    float *rows = ttt_state(a, a->dn0, x->n, x->h, 1);
    if (rows) *rows = 0;
    ttt_add(d2, 1, x->dM, x->sum);
    ttt_add(d2, 1, x->dstart, x->sum);
}

static void backward_head(head *x)
{
    TILES(ENGINE->begin())
    backward_rows(x);
    TILES(ENGINE->end())
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
