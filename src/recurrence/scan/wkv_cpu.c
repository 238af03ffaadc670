/* WKV on the CPU (README.md): as the scan, rows of tokens walked as they lie, a strip of channels at a time. Time is not cut, and channels do not
 * know of each other: the bits follow neither the strips nor the number of threads. Backward keeps the states at the start of every BLOCK tokens and
 * makes the others again, block by block from the end. */
#include <omp.h>

#include "recurrence/scan/scan.h"
#include "recurrence/scan/scan_rows.h"

enum {
    BLOCK = 32,
    WIDEST = 512, /* channels of a strip: in reverse a block's states are 200 KB */
    SUMS = 3,     /* a, b, m */
};

/* A strip of channels with rows of scratch: the state, what is carried back, e^w, u, and sums over tokens for dw and du. */
enum { A, B, M, DA, DB, DM, RATE, BONUS, SUM_W, SUM_U, ROWS };
typedef struct {
    const lnt_wkv_args *a;
    int64_t first, width;
    float *row[ROWS];
    float *states, *starts; /* backward: [BLOCK+1,SUMS,room], [blocks,SUMS,room] */
} strip;

static int64_t room_of(const lnt_wkv_args *a) { return (at_most(a->D, WIDEST) + 15) / 16 * 16; }
static int64_t strip_width(const lnt_wkv_args *a, int64_t count, int threads) { return at_most(scan_strip_width(a->D, count, threads), WIDEST); }

/* What the old sums and the new term are multiplied by: the larger by 1. An old m of -inf is no old sum. */
typedef struct {
    vf one, two;
} factors;
INLINE factors factors_of(vf older, vf newer)
{
    const vf away = newer - older, e = v_exp2(v_abs(away) * -1.44269504f), one = v_set(1.0f);
    const vi more = away > v_zero();
    return (factors){ v_select(more, e, one), v_select(more, one, e) };
}

/* The state of element j over a token. */
INLINE void move_on(vf *a, vf *b, vf *m, vf k, vf v, vf rate)
{
    const vf older = *m - rate;
    const factors f = factors_of(older, k);
    *a = f.one * *a + f.two * v;
    *b = f.one * *b + f.two;
    *m = v_max(older, k);
}

INLINE void forward_row(lnt_dtype type, bool past, const strip *s, int64_t t, int64_t away)
{
    const lnt_wkv_args *x = s->a;
    const int64_t i = t * x->D + s->first;
    const void *pk = scan_at(x->k, type, i), *pv = scan_at(x->v, type, i);
    void *o = scan_at(x->o, type, i);
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(pk, type, j, away);                                                                                             \
        scan_ahead(pv, type, j, away);                                                                                             \
        vf a = v_get(s->row[A], LINNET_F32, j, n), b = v_get(s->row[B], LINNET_F32, j, n), m = v_get(s->row[M], LINNET_F32, j, n); \
        const vf k = v_get(pk, type, j, n), v = v_get(pv, type, j, n);                                                             \
        const factors e = factors_of(m, k + v_get(s->row[BONUS], LINNET_F32, j, n));                                               \
        scan_put(past, o, type, j, n, (e.one * a + e.two * v) / (e.one * b + e.two));                                              \
        move_on(&a, &b, &m, k, v, v_get(s->row[RATE], LINNET_F32, j, n));                                                          \
        v_put(s->row[A], LINNET_F32, j, n, a);                                                                                     \
        v_put(s->row[B], LINNET_F32, j, n, b);                                                                                     \
        v_put(s->row[M], LINNET_F32, j, n, m);                                                                                     \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* The equations of wkv_reference.c; `from` is the state before the token, [SUMS,room]. */
INLINE void backward_row(lnt_dtype type, bool past, const strip *s, int64_t t, int64_t away, const float *from)
{
    const lnt_wkv_args *x = s->a;
    const int64_t i = t * x->D + s->first, room = room_of(x);
    const void *pk = scan_at(x->k, type, i), *pv = scan_at(x->v, type, i), *dout = scan_at(x->dout, type, i);
    void *dk = scan_at(x->dk, type, i), *dv = scan_at(x->dv, type, i);
    float *const *row = s->row;
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(pk, type, j, away);                                                                                             \
        scan_ahead(pv, type, j, away);                                                                                             \
        scan_ahead(dout, type, j, away);                                                                                           \
        const vf a = v_get(from, LINNET_F32, j, n), b = v_get(from + room, LINNET_F32, j, n);                                      \
        const vf m = v_get(from + 2 * room, LINNET_F32, j, n), k = v_get(pk, type, j, n), v = v_get(pv, type, j, n);               \
        const vf da = v_get(row[DA], LINNET_F32, j, n), db = v_get(row[DB], LINNET_F32, j, n);                                     \
        const vf dm = v_get(row[DM], LINNET_F32, j, n), rate = v_get(row[RATE], LINNET_F32, j, n), older = m - rate;               \
        const factors e = factors_of(m, k + v_get(row[BONUS], LINNET_F32, j, n)), f = factors_of(older, k);                        \
        const vf share = 1.0f / (e.one * b + e.two), o = (e.one * a + e.two * v) * share;                                          \
        const vf r = dout ? v_get(dout, type, j, n) * share : v_zero();                                                            \
        const vf g1 = f.one * (a * da + b * db), g2 = f.two * (v * da + db), rest = dm - g1 - g2, read = e.two * (v - o) * r;      \
        const vi is_older = older >= k;                                                                                            \
        const vf carried = g1 + v_select(is_older, rest, v_zero());                                                                \
        if (dk) scan_put(past, dk, type, j, n, g2 + v_select(is_older, v_zero(), rest) + read);                                    \
        if (dv) scan_put(past, dv, type, j, n, f.two * da + e.two * r);                                                            \
        v_out(row[SUM_W], LINNET_F32, j, n, carried, true);                                                                        \
        v_out(row[SUM_U], LINNET_F32, j, n, read, true);                                                                           \
        v_put(row[DA], LINNET_F32, j, n, f.one * da + e.one * r);                                                                  \
        v_put(row[DB], LINNET_F32, j, n, f.one * db - e.one * o * r);                                                              \
        v_put(row[DM], LINNET_F32, j, n, carried + e.one * (a - o * b) * r);                                                       \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* From `from` to the state behind the token, `to`; both [SUMS,room]. */
INLINE void make_row(lnt_dtype type, const strip *s, int64_t t, int64_t away, const float *from, float *to)
{
    const lnt_wkv_args *x = s->a;
    const int64_t i = t * x->D + s->first, room = room_of(x);
    const void *pk = scan_at(x->k, type, i), *pv = scan_at(x->v, type, i);
    V_EACH(j, n, s->width)
    {
        scan_ahead(pk, type, j, away);
        scan_ahead(pv, type, j, away);
        vf a = v_get(from, LINNET_F32, j, n), b = v_get(from + room, LINNET_F32, j, n), m = v_get(from + 2 * room, LINNET_F32, j, n);
        move_on(&a, &b, &m, v_get(pk, type, j, n), v_get(pv, type, j, n), v_get(s->row[RATE], LINNET_F32, j, n));
        v_put(to, LINNET_F32, j, n, a);
        v_put(to + room, LINNET_F32, j, n, b);
        v_put(to + 2 * room, LINNET_F32, j, n, m);
    }
}

/* ---- the tokens of a strip ------------------------------------------------------------------------------------------------------------------- */

static float *state_of(const strip *s, const void *state, int64_t n) { return scan_at(state, LINNET_F32, n * s->a->D + s->first); }

/* The initial state into rows a, b, m. */
static void take_state(const strip *s, int64_t n, float *a, float *b, float *m)
{
    scan_take(a, state_of(s, s->a->a0, n), s->width);
    scan_take(b, state_of(s, s->a->b0, n), s->width);
    scan_take(m, state_of(s, s->a->m0, n), s->width);
    for (int64_t j = 0; j < s->width; j++)
        if (b[j] == 0) m[j] = -INFINITY;
}

static void put_row(const strip *s, void *state, int64_t n, const float *row)
{
    if (state) memcpy(state_of(s, state, n), row, (size_t)s->width * sizeof *row);
}

static void forward_strip(const strip *s, int64_t n)
{
    const lnt_wkv_args *x = s->a;
    const int64_t end = x->cu_seqlens[n + 1];
    const bool past = scan_goes_past(x->dtype, x->tokens, x->D, x->o);
    take_state(s, n, s->row[A], s->row[B], s->row[M]);
    for (int64_t t = x->cu_seqlens[n]; t < end; t++) {
        const int64_t away = t + 1 < end ? x->D : 0;
        if (past)
            forward_row(LINNET_F32, true, s, t, away);
        else
            x->dtype == LINNET_F32 ? forward_row(LINNET_F32, false, s, t, away) : forward_row(LINNET_BF16, false, s, t, away);
    }
    if (past) v_stream_end();
    for (int64_t j = 0; j < s->width; j++)
        if (s->row[B][j] == 0) s->row[M][j] = 0;
    put_row(s, x->aT, n, s->row[A]);
    put_row(s, x->bT, n, s->row[B]);
    put_row(s, x->mT, n, s->row[M]);
}

static void make(const strip *s, int64_t t, int64_t away, const float *from, float *to)
{
    s->a->dtype == LINNET_F32 ? make_row(LINNET_F32, s, t, away, from, to) : make_row(LINNET_BF16, s, t, away, from, to);
}

static void backward_strip(const strip *s, int64_t n)
{
    const lnt_wkv_args *x = s->a;
    const int64_t room = room_of(x), one = SUMS * room, first = x->cu_seqlens[n], len = x->cu_seqlens[n + 1] - first;
    const bool past = scan_goes_past(x->dtype, x->tokens, x->D, x->dk) && scan_goes_past(x->dtype, x->tokens, x->D, x->dv);
    float *h = s->states;
    take_state(s, n, h, h + room, h + 2 * room);
    for (int64_t i = 0; i < len; i++) {
        if (i % BLOCK == 0) memcpy(s->starts + i / BLOCK * one, h, (size_t)one * sizeof *h);
        if (i / BLOCK == (len - 1) / BLOCK) break; /* the last block's are made below */
        make(s, first + i, x->D, h, h);
    }
    scan_take(s->row[DA], state_of(s, x->daT, n), s->width);
    scan_take(s->row[DB], state_of(s, x->dbT, n), s->width);
    scan_take(s->row[DM], state_of(s, x->dmT, n), s->width);
    for (int64_t b = pieces(len, BLOCK) - 1; b >= 0; b--) {
        const int64_t begin = b * BLOCK, end = at_most(len, begin + BLOCK);
        memcpy(h, s->starts + b * one, (size_t)one * sizeof *h);
        for (int64_t i = begin; i + 1 < end; i++) make(s, first + i, x->D, h + (i - begin) * one, h + (i + 1 - begin) * one);
        for (int64_t i = end - 1; i >= begin; i--) {
            const float *from = h + (i - begin) * one;
            const int64_t away = i > 0 ? -(int64_t)x->D : 0;
            if (past)
                backward_row(LINNET_F32, true, s, first + i, away, from);
            else
                x->dtype == LINNET_F32 ? backward_row(LINNET_F32, false, s, first + i, away, from)
                                       : backward_row(LINNET_BF16, false, s, first + i, away, from);
        }
    }
    if (past) v_stream_end();
    put_row(s, x->da0, n, s->row[DA]);
    put_row(s, x->db0, n, s->row[DB]);
    put_row(s, x->dm0, n, s->row[DM]);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

/* dw and du are added over sequences in parts that follow from the shape. */
static int64_t parts_of(const lnt_wkv_args *a, bool back) { return back ? at_most(a->sequences, SCAN_PARTS) : a->sequences; }

static int64_t scratch_of(const lnt_wkv_args *a, bool back)
{
    return (ROWS + (back ? SUMS * (BLOCK + 1 + pieces(a->longest, BLOCK)) : 0)) * room_of(a);
}

static strip strip_at(const lnt_wkv_args *a, bool back, int64_t i, int64_t width)
{
    const int64_t room = room_of(a);
    strip s = { .a = a, .first = i * width, .width = at_most(width, a->D - i * width) };
    float *scratch = (float *)a->workspace + omp_get_thread_num() * scratch_of(a, back);
    for (int r = 0; r < ROWS; r++) s.row[r] = scratch + r * room;
    s.states = scratch + ROWS * room;
    s.starts = s.states + SUMS * (BLOCK + 1) * room;
    V_EACH(j, n, s.width) v_put(s.row[RATE], LINNET_F32, j, n, v_exp(v_get(a->w, LINNET_F32, s.first + j, n)));
    scan_take(s.row[BONUS], (const float *)a->u + s.first, s.width);
    scan_take(s.row[SUM_W], NULL, s.width);
    scan_take(s.row[SUM_U], NULL, s.width);
    return s;
}

static void add_sums(const lnt_wkv_args *a, const float *sums, int64_t parts)
{
    V_EACH(j, n, a->D)
    {
        vf w = v_zero(), u = v_zero();
        for (int64_t p = 0; p < parts; p++) {
            w += v_get(sums + 2 * p * a->D, LINNET_F32, j, n);
            u += v_get(sums + (2 * p + 1) * a->D, LINNET_F32, j, n);
        }
        if (a->dw) v_put(a->dw, LINNET_F32, j, n, -v_exp(v_get(a->w, LINNET_F32, j, n)) * w);
        if (a->du) v_put(a->du, LINNET_F32, j, n, u);
    }
}

static void run(const lnt_wkv_args *a, bool back, int threads)
{
    const int64_t parts = parts_of(a, back), width = strip_width(a, parts, threads), strips = pieces(a->D, width), count = parts * strips;
    float *sums = (float *)a->workspace + threads * scratch_of(a, back);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && a->tokens * a->D >= SCAN_SMALL)
    for (int64_t i = 0; i < count; i++) {
        const int64_t p = i / strips;
        const strip s = strip_at(a, back, i % strips, width);
        for (int64_t n = scan_part(a->sequences, p, parts); n < scan_part(a->sequences, p + 1, parts); n++)
            if (back)
                backward_strip(&s, n);
            else
                forward_strip(&s, n);
        if (!back) continue;
        memcpy(sums + 2 * p * a->D + s.first, s.row[SUM_W], (size_t)s.width * sizeof(float));
        memcpy(sums + (2 * p + 1) * a->D + s.first, s.row[SUM_U], (size_t)s.width * sizeof(float));
    }
    if (back) add_sums(a, sums, parts);
}

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_wkv_args *a = args;
    return (size_t)(threads * scratch_of(a, back) + (back ? 2 * parts_of(a, back) * a->D : 0)) * sizeof(float);
}

static void forward(const void *args, int threads) { run(args, false, threads); }
static void backward(const void *args, int threads) { run(args, true, threads); }

/* Time is not cut: both forms are one walk. */
extern const lnt_recur_impl LNT_V(lnt_wkv_chunk), LNT_V(lnt_wkv_recurrent);
const lnt_recur_impl LNT_V(lnt_wkv_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                              .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_wkv_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                  .workspace = workspace, .forward = forward, .backward = backward };
