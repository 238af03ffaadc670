/* RG-LRU on the CPU (README.md): as the scan, rows of tokens walked as they lie, a strip of channels at a time, its gates made on the way. Time is
 * not cut, and channels do not know of each other: the bits follow neither the strips nor the number of threads. */
#include <omp.h>

#include "recurrence/scan/scan.h"
#include "recurrence/scan/scan_rows.h"

/* A strip of channels with rows of scratch: what is carried, -c softplus(lambda) log2(e), the state that a sequence begins with, sigmoid(r) dlog a
 * summed over tokens. */
enum { CARRY, RATE, START, SUM, ROWS };
typedef struct {
    const lnt_rglru_args *a;
    int64_t first, width;
    float *row[ROWS];
} strip;

/* What a token is: one of many, or the first, of which nothing is kept and all is written. */
typedef enum { LATER, FIRST } place;

typedef struct {
    vf a, m, input, recur, over_m; /* over_m: 1/m, at most 2000 */
} gates;

/* Of bf16 numbers, whose results are rounded to 8 bits, functions are made to 13 bits or so: the instructions of float32 with a conversion to each
 * number more would take bf16 a tenth longer than float32. 2^x to 7.5e-5, reciprocals and roots as the processor estimates them (6e-5). Of float32
 * 2^x is made to 9e-8 (v_exp2: 2e-9), no more than the roundings behind it. */
INLINE vf exp2_of(lnt_dtype type, vf x)
{
    x = v_max(v_set(-126.0f), x);
    const vf n = v_nearest(x), f = x - n;
    vf p;
    if (type == LINNET_F32) {
        p = v_set(1.32647271e-3f);
        p = p * f + 9.67151265e-3f;
        p = p * f + 5.55073374e-2f;
        p = p * f + 2.40222421e-1f;
        p = p * f + 6.93146978e-1f;
        p = p * f + 1.0f;
    } else {
        p = v_set(5.51716691e-2f);
        p = p * f + 2.42611122e-1f;
        p = p * f + 6.93260985e-1f;
        p = p * f + 9.99928074e-1f;
    }
    return v_by_power(p, n);
}

INLINE vf reciprocal(lnt_dtype type, vf x)
{
#if defined(__AVX512F__)
    if (type == LINNET_BF16) return (vf)_mm512_rcp14_ps((__m512)x);
#else
    (void)type;
#endif
    return 1.0f / x;
}

/* The root of x >= 0, and what 1 over it is up to 2000. */
INLINE vf root(lnt_dtype type, vf x, vf *over)
{
    const vf most = v_set(2000.0f);
#if defined(__AVX512F__)
    if (type == LINNET_BF16) {
        const vf r = (vf)_mm512_rsqrt14_ps((__m512)v_max(v_set(1e-37f), x));
        *over = v_min(most, r);
        return x * r;
    }
#else
    (void)type;
#endif
    const vf y = v_sqrt(x);
    *over = v_min(most, 1.0f / y);
    return y;
}

/* a = e^x and 1 - a^2 = (1 - a)(1 + a), x given times log2(e): of x = n + f, |f| <= 1/2, 2^f = 1 + f q(f) with v_exp2's polynomial (of bf16 with one
 * to 1.5e-5), so that a - 1 = (2^n - 1) + 2^n f q(f) loses nothing where a is near 1; below 2^-100 a is that. Both sigmoids by one division: e^-x is
 * held below e^43, whose square is a float. */
INLINE gates gates_of(lnt_dtype type, place p, vf r, vf i, vf rate)
{
    const vf most = v_set(62.0f), er = exp2_of(type, v_min(most, r * -1.44269504f)) + 1.0f, ei = exp2_of(type, v_min(most, i * -1.44269504f)) + 1.0f;
    const vf both = reciprocal(type, er * ei);
    gates g = { .recur = ei * both, .input = er * both };
    if (p == FIRST) {
        g.a = v_zero(), g.m = v_set(1.0f);
        return g;
    }
    const vf x = v_max(v_set(-100.0f), rate * g.recur), n = v_nearest(x), f = x - n, two = v_by_power(v_set(1.0f), n);
    vf q;
    if (type == LINNET_F32) {
        q = v_set(1.5453163e-4f);
        q = q * f + 1.33908633e-3f;
        q = q * f + 9.61808302e-3f;
        q = q * f + 5.55035695e-2f;
        q = q * f + 2.40226507e-1f;
        q = q * f + 6.93147182e-1f;
    } else {
        q = v_set(9.61811084e-3f);
        q = q * f + 5.58372883e-2f;
        q = q * f + 2.40232522e-1f;
        q = q * f + 6.93136858e-1f;
    }
    q *= f;
    g.a = two * q + two;
    g.m = root(type, ((1.0f - two) - two * q) * (1.0f + g.a), &g.over_m);
    return g;
}

typedef struct {
    const void *x, *r, *i;
    void *o;
    float *h;
    const float *rate;
    int64_t away;
} row_ahead;

/* h <- a h + m sigmoid(i) x, o = h, for n numbers from j on. */
INLINE vf forward_vector(lnt_dtype type, place p, const row_ahead *b, int64_t j, int64_t n)
{
    scan_ahead(b->x, type, j, b->away);
    scan_ahead(b->r, type, j, b->away);
    scan_ahead(b->i, type, j, b->away);
    const gates g = gates_of(type, p, v_get(b->r, type, j, n), v_get(b->i, type, j, n), v_get(b->rate, LINNET_F32, j, n));
    const vf x = g.m * g.input * v_get(b->x, type, j, n), z = v_fma(g.a, v_get(b->h, LINNET_F32, j, n), x);
    v_put(b->h, LINNET_F32, j, n, z);
    return z;
}

INLINE void forward_row(lnt_dtype type, bool past, place p, const strip *s, int64_t t, int64_t away)
{
    const lnt_rglru_args *a = s->a;
    const int64_t i = t * a->D + s->first;
    const row_ahead b = { .x = scan_at(a->x, type, i), .r = scan_at(a->r, type, i), .i = scan_at(a->i, type, i), .o = scan_at(a->o, type, i),
                          .h = s->row[CARRY], .rate = s->row[RATE], .away = away };
    if (past && type == LINNET_BF16) { /* whole lines */
        for (int64_t j = 0; j < s->width; j += 2 * LNT_VL) {
            const vf z = forward_vector(type, p, &b, j, LNT_VL), y = forward_vector(type, p, &b, j + LNT_VL, LNT_VL);
            scan_put_two(true, b.o, type, j, z, y);
        }
        return;
    }
#define BODY(j, n) scan_put(past, b.o, type, j, n, forward_vector(type, p, &b, j, n))
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* A token of a strip, back: where its tensors are (NULL: not there); `before`, h_{t-1}, is of type u. */
typedef struct {
    const void *x, *r, *i, *dout, *before;
    void *dx, *dr, *di;
    float *carry, *sum;
    const float *rate;
    int64_t away;
} back_row;
typedef struct {
    vf dx, dr, di;
} back_vector;

/* The equations of rglru_reference.c, for n numbers from j on. */
INLINE back_vector backward_vector(lnt_dtype type, lnt_dtype u, place p, const back_row *b, int64_t j, int64_t n)
{
    back_vector d;
    scan_ahead(b->x, type, j, b->away);
    scan_ahead(b->r, type, j, b->away);
    scan_ahead(b->i, type, j, b->away);
    scan_ahead(b->dout, type, j, b->away);
    scan_ahead(b->before, u, j, b->away);
    const vf k = v_get(b->rate, LINNET_F32, j, n), x = v_get(b->x, type, j, n);
    const gates g = gates_of(type, p, v_get(b->r, type, j, n), v_get(b->i, type, j, n), k);
    vf lam = v_get(b->carry, LINNET_F32, j, n);
    if (b->dout) lam += v_get(b->dout, type, j, n);
    const vf back = g.a * lam, write = lam * g.input;
    d.dx = g.m * write;
    v_put(b->carry, LINNET_F32, j, n, back);
    d.di = d.dx * x * (1.0f - g.input);
    vf dlog = v_zero();
    if (p == LATER) dlog = back * v_get(b->before, u, j, n) - g.a * g.a * g.over_m * write * x;
    dlog *= g.recur;
    v_put(b->sum, LINNET_F32, j, n, v_get(b->sum, LINNET_F32, j, n) + dlog);
    d.dr = 0.693147181f * k * (1.0f - g.recur) * dlog;
    return d;
}

INLINE void backward_row(lnt_dtype type, lnt_dtype u, bool past, place p, const strip *s, int64_t t, const void *before, int64_t away)
{
    const lnt_rglru_args *a = s->a;
    const int64_t i = t * a->D + s->first;
    const back_row b = { .x = scan_at(a->x, type, i), .r = scan_at(a->r, type, i), .i = scan_at(a->i, type, i), .dout = scan_at(a->dout, type, i),
                         .before = before, .dx = scan_at(a->dx, type, i), .dr = scan_at(a->dr, type, i), .di = scan_at(a->di, type, i),
                         .carry = s->row[CARRY], .sum = s->row[SUM], .rate = s->row[RATE], .away = away };
    if (past && type == LINNET_BF16) { /* whole lines */
        for (int64_t j = 0; j < s->width; j += 2 * LNT_VL) {
            const back_vector d = backward_vector(type, u, p, &b, j, LNT_VL), e = backward_vector(type, u, p, &b, j + LNT_VL, LNT_VL);
            if (b.dx) scan_put_two(true, b.dx, type, j, d.dx, e.dx);
            if (b.di) scan_put_two(true, b.di, type, j, d.di, e.di);
            if (b.dr) scan_put_two(true, b.dr, type, j, d.dr, e.dr);
        }
        return;
    }
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        const back_vector d = backward_vector(type, u, p, &b, j, n);                                                               \
        if (b.dx) scan_put(past, b.dx, type, j, n, d.dx);                                                                          \
        if (b.di) scan_put(past, b.di, type, j, n, d.di);                                                                          \
        if (b.dr) scan_put(past, b.dr, type, j, n, d.dr);                                                                          \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* ---- the tokens of a strip ------------------------------------------------------------------------------------------------------------------- */

static float *state_of(const strip *s, const void *state, int64_t n) { return scan_at(state, LINNET_F32, n * s->a->D + s->first); }

/* bf16 by whole lines alone: half lines, between which there is that much to compute, take a tenth longer that way. */
static bool goes_past(const lnt_rglru_args *a, const void *result)
{
    return (a->dtype == LINNET_F32 || LNT_VL == 16) && scan_goes_past(a->dtype, a->tokens, a->D, result);
}

static void forward_strip(const strip *s, int64_t n)
{
    const lnt_rglru_args *a = s->a;
    const int64_t begin = a->cu_seqlens[n], end = a->cu_seqlens[n + 1];
    const bool past = goes_past(a, a->o);
    scan_take(s->row[CARRY], state_of(s, a->s0, n), s->width);
    for (int64_t t = begin; t < end; t++) {
        const int64_t away = t + 1 < end ? a->D : 0;
        const bool f32 = a->dtype == LINNET_F32;
        if (a->first && t == begin)
            f32 ? forward_row(LINNET_F32, false, FIRST, s, t, away) : forward_row(LINNET_BF16, false, FIRST, s, t, away);
        else if (past)
            f32 ? forward_row(LINNET_F32, true, LATER, s, t, away) : forward_row(LINNET_BF16, true, LATER, s, t, away);
        else
            f32 ? forward_row(LINNET_F32, false, LATER, s, t, away) : forward_row(LINNET_BF16, false, LATER, s, t, away);
    }
    if (past) v_stream_end();
    if (a->sT) memcpy(state_of(s, a->sT, n), s->row[CARRY], (size_t)s->width * sizeof(float));
}

INLINE void backward_token(lnt_dtype type, bool past, const strip *s, int64_t begin, int64_t t)
{
    const lnt_rglru_args *a = s->a;
    if (t > begin)
        backward_row(type, type, past, LATER, s, t, scan_at(a->o, type, (t - 1) * a->D + s->first), t - 1 > begin ? -(int64_t)a->D : 0);
    else if (a->first)
        backward_row(type, LINNET_F32, past, FIRST, s, t, s->row[START], 0);
    else
        backward_row(type, LINNET_F32, past, LATER, s, t, s->row[START], 0);
}

static void backward_strip(const strip *s, int64_t n)
{
    const lnt_rglru_args *a = s->a;
    const int64_t begin = a->cu_seqlens[n];
    const bool past = goes_past(a, a->dx) && goes_past(a, a->dr) && goes_past(a, a->di);
    scan_take(s->row[CARRY], state_of(s, a->dsT, n), s->width);
    scan_take(s->row[START], state_of(s, a->s0, n), s->width);
    for (int64_t t = a->cu_seqlens[n + 1] - 1; t >= begin; t--)
        if (a->dtype == LINNET_BF16)
            past ? backward_token(LINNET_BF16, true, s, begin, t) : backward_token(LINNET_BF16, false, s, begin, t);
        else
            past ? backward_token(LINNET_F32, true, s, begin, t) : backward_token(LINNET_F32, false, s, begin, t);
    if (past) v_stream_end();
    if (a->ds0) memcpy(state_of(s, a->ds0, n), s->row[CARRY], (size_t)s->width * sizeof(float));
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

/* dlambda is added over sequences in parts that follow from the shape. */
static int64_t parts_of(const lnt_rglru_args *a, bool back) { return back ? at_most(a->sequences, SCAN_PARTS) : a->sequences; }
static float *sums_of(const lnt_rglru_args *a, int threads) { return (float *)a->workspace + threads * ROWS * scan_room(a->D); }

static strip strip_at(const lnt_rglru_args *a, int64_t i, int64_t width)
{
    strip s = { .a = a, .first = i * width, .width = at_most(width, a->D - i * width) };
    float *scratch = (float *)a->workspace + omp_get_thread_num() * ROWS * scan_room(a->D);
    for (int r = 0; r < ROWS; r++) s.row[r] = scratch + r * scan_room(a->D);
    const float c = -(float)(1.4426950408889634 * a->c);
    V_EACH(j, n, s.width) v_put(s.row[RATE], LINNET_F32, j, n, c * v_softplus(v_get(a->lambda, LINNET_F32, s.first + j, n)));
    return s;
}

static void add_sums(const lnt_rglru_args *a, const float *sums, int64_t parts)
{
    V_EACH(j, n, a->D)
    {
        vf sum = v_zero();
        for (int64_t p = 0; p < parts; p++) sum += v_get(sums + p * a->D, LINNET_F32, j, n);
        v_put(a->dlambda, LINNET_F32, j, n, -(float)a->c * v_sigmoid(v_get(a->lambda, LINNET_F32, j, n)) * sum);
    }
}

static void run(const lnt_rglru_args *a, bool back, int threads)
{
    const int64_t parts = parts_of(a, back), width = scan_strip_width(a->D, parts, threads), strips = pieces(a->D, width), count = parts * strips;
    float *sums = sums_of(a, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && a->tokens * a->D >= SCAN_SMALL)
    for (int64_t i = 0; i < count; i++) {
        const int64_t p = i / strips;
        const strip s = strip_at(a, i % strips, width);
        scan_take(s.row[SUM], NULL, s.width);
        for (int64_t n = scan_part(a->sequences, p, parts); n < scan_part(a->sequences, p + 1, parts); n++)
            if (back)
                backward_strip(&s, n);
            else
                forward_strip(&s, n);
        if (back) memcpy(sums + p * a->D + s.first, s.row[SUM], (size_t)s.width * sizeof(float));
    }
    if (back && a->dlambda) add_sums(a, sums, parts);
}

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_rglru_args *a = args;
    return (size_t)(threads * ROWS * scan_room(a->D) + (back ? parts_of(a, back) * a->D : 0)) * sizeof(float);
}

static void forward(const void *args, int threads) { run(args, false, threads); }
static void backward(const void *args, int threads) { run(args, true, threads); }

/* Time is not cut: both forms are one walk. */
extern const lnt_recur_impl LNT_V(lnt_rglru_chunk), LNT_V(lnt_rglru_recurrent);
const lnt_recur_impl LNT_V(lnt_rglru_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                                .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_rglru_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                    .workspace = workspace, .forward = forward, .backward = backward };
