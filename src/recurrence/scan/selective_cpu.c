/* The selective scan on the CPU (README.md): strips of channels, a vector of them at a time, so that no sum goes across lanes but those over
 * channels. A block of tokens is taken together: their rows first, and then some of the M numbers at a time, vector by vector: their states
 * stay in registers over the block, the block's sums over channels in the first-level cache over the vectors.
 *
 * Sums over channels (dB, dC) and over sequences (dA, dD) are made in at most PARTS parts each, which follow from the shape, and added in order. */
#include <omp.h>

#include "recurrence/scan/scan.h"
#include "recurrence/scan/scan_rows.h"

enum {
    VECTORS = 4,
    W = VECTORS * LNT_VL, /* channels of a strip */
    BLOCK = 16,           /* tokens taken together; backward keeps the states at the start of each */
    TOGETHER = 4,         /* numbers of a state in registers */
    PARTS = 8,
    SMALL = 4096,         /* numbers of states to go over, below which threads cost more than they bring */
};

/* What a vector of channels has at a token, in vectors that follow each other: delta, or Longhorn's Delta; u; o, or what du is of B.lambda; backward:
 * do, what ddelta is of the decays, Longhorn's 1 / (1 + beta B.B). One pointer reaches all of them. */
enum { STEP, U, OUT, DOUT, THROUGH, SHARE, CELL };

/* What a strip has, [M,W] each: rates, the state, what is carried back, dA; the states at the start of all blocks. Of a block's tokens: cells
 * [VECTORS,BLOCK,CELL,LNT_VL]; B and C [BLOCK,M]; states and decays of the numbers in registers; their part of the sums over channels. */
typedef struct {
    const lnt_selective_args *a;
    int64_t first, width;  /* channels */
    int64_t begin, tokens; /* of the block */
    int64_t next;          /* where the block begins that comes after it, -1: too short to be fetched, or none */
    int64_t fetched, owed; /* rows that have been asked for beside it, and what is due of one more */
    bool o_past, du_past, ddelta_past; /* results that are written past the caches */
    float *enter, *leave;  /* states at the block's start, and where those at its end are wanted */
    float *rate;           /* A log2(e) */
    float *h, *carry, *drate, *dskip, *starts;
    float *cells;
    const float *B, *C;    /* the tensors' rows, or those widened */
    float *wide_B, *wide_C;
    float *square, *norm;  /* longhorn: B^2, and its sum [BLOCK] */
    float *states, *decays; /* [BLOCK+1,TOGETHER,LNT_VL], [BLOCK,TOGETHER,LNT_VL] */
    float *sums;           /* [BLOCK,2,TOGETHER,LNT_VL] of dB and dC */
} strip;

static int64_t square(const lnt_selective_args *a) { return (int64_t)a->M * W; }
static int64_t blocks_of(int64_t tokens) { return pieces(tokens, BLOCK); }

/* A thread's scratch at p (NULL: only measure); returns its floats. */
static int64_t carve(const lnt_selective_args *a, bool back, float *p, strip *s)
{
    const int64_t M = (a->M + 15) / 16 * 16, mw = square(a);
    int64_t used = 0;
    const struct {
        float **at;
        int64_t count;
    } parts[] = { { &s->rate, mw }, { &s->wide_B, BLOCK * M }, { &s->wide_C, BLOCK * M }, { &s->square, BLOCK * M }, { &s->norm, BLOCK },
                  { &s->cells, VECTORS * BLOCK * CELL * LNT_VL }, { &s->h, back ? 0 : mw },
                  { &s->carry, back ? mw : 0 }, { &s->drate, back ? mw : 0 }, { &s->dskip, back ? W : 0 },
                  { &s->sums, back ? BLOCK * 2 * TOGETHER * LNT_VL : 0 },
                  { &s->states, back ? (BLOCK + 1) * TOGETHER * LNT_VL : 0 }, { &s->decays, back ? BLOCK * TOGETHER * LNT_VL : 0 },
                  { &s->starts, back ? blocks_of(a->longest) * mw : 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p ? p + used : NULL;
        used += (parts[i].count + 15) / 16 * 16;
    }
    return used;
}

static int64_t scratch_floats(const lnt_selective_args *a, bool back)
{
    strip s;
    return carve(a, back, NULL, &s);
}

/* ---- [channels,M] and [M,W] ------------------------------------------------------------------------------------------------------------------ */

/* Channels beyond the strip's are zeros, and stay so: their steps are 0 too. */
static void turn_in(const strip *s, float *dst, const float *src)
{
    const int64_t M = s->a->M;
    if (!src || s->width < W) memset(dst, 0, (size_t)(M * W) * sizeof(float));
    for (int64_t m = 0; src && m < M; m++)
        for (int64_t j = 0; j < s->width; j++) dst[m * W + j] = src[(s->first + j) * M + m];
}

static void turn_out(const strip *s, float *dst, const float *src)
{
    const int64_t M = s->a->M;
    for (int64_t j = 0; dst && j < s->width; j++)
        for (int64_t m = 0; m < M; m++) dst[(s->first + j) * M + m] = src[m * W + j];
}

static float *state_of(const lnt_selective_args *a, const void *p, int64_t n) { return p ? (float *)(uintptr_t)p + n * a->D * a->M : NULL; }

/* ---- rows of a block ------------------------------------------------------------------------------------------------------------------------- */

/* What a step does to the state: e^{delta A}, 2 e^{delta A} - 1, 1 - Delta B^2. */
typedef enum { DECAYS, TURNS, ERASES } rule;
static rule rule_of(const lnt_selective_args *a) { return a->op->kind == LNT_LONGHORN ? ERASES : a->has_sign ? TURNS : DECAYS; }

static float *cell(const strip *s, int64_t v, int64_t i) { return s->cells + (v * BLOCK + i) * CELL * LNT_VL; }

/* The block's rows of B or C, which follow each other. */
static const float *token_rows(const strip *s, const void *rows, float *wide)
{
    const lnt_selective_args *a = s->a;
    return v_row(scan_at(rows, a->dtype, s->begin * a->M), a->dtype, s->tokens * a->M, wide);
}

/* Longhorn's B^2 and B.B. All sixteen sums are made at once, however many tokens the block has: their bits do not depend on that. */
static void take_squares(const strip *s)
{
    const int64_t M = s->a->M;
    const float *B = s->B;
    float *squares = s->square;
    _Alignas(64) float lanes[BLOCK * LNT_VL] = { 0 };
    for (int64_t i = 0; i < s->tokens; i++, B += M, squares += M) {
        vf sum = v_zero();
#define SQUARE(m, n)                                                                                                               \
    do {                                                                                                                           \
        const vf b = v_get(B, LINNET_F32, m, n);                                                                                   \
        v_put(squares, LINNET_F32, m, n, b * b);                                                                                   \
        sum += b * b;                                                                                                              \
    } while (0)
        EACH_VECTOR(M, SQUARE);
#undef SQUARE
        v_store(lanes + i * LNT_VL, sum);
    }
    v_sums(s->norm, lanes, BLOCK);
}

/* What a channel's step and input are in the block's tokens; where it is read what o begins with; on the way back do, and zeros to add to. Longhorn's
 * Delta is beta / (1 + beta B.B). Lanes beyond the channels are zeros: nothing is written there, and nothing decays. */
INLINE void take_channels(lnt_dtype t, bool erases, bool read, bool back, int64_t width, const strip *s)
{
    const lnt_selective_args *a = s->a;
    const float *deltas = a->delta, *skip = a->skip ? (const float *)a->skip + s->first : NULL;
    const void *us = a->u, *douts = a->dout;
    for (int64_t i = 0; i < s->tokens; i++) {
        const int64_t row = (s->begin + i) * a->D + s->first;
        const vf norm = v_set(erases ? s->norm[i] : 0);
#pragma GCC unroll 4
        V_EACH(j, n, width)
        {
            const vf delta = v_get(deltas, LINNET_F32, row + j, n), u = v_get(us, t, row + j, n);
            const vf share = erases ? 1.0f / (1.0f + delta * norm) : v_set(1.0f);
            float *to = cell(s, j / LNT_VL, i);
            v_store(to + STEP * LNT_VL, erases ? delta * share : delta);
            v_store(to + U * LNT_VL, u);
            if (read) v_store(to + OUT * LNT_VL, skip ? u * v_get(skip, LINNET_F32, j, n) : v_zero());
            if (!back) continue;
            v_store(to + OUT * LNT_VL, v_zero());
            v_store(to + DOUT * LNT_VL, douts ? v_get(douts, t, row + j, n) : v_zero());
            v_store(to + THROUGH * LNT_VL, v_zero());
            v_store(to + SHARE * LNT_VL, share);
        }
    }
}

/* CALL(dtype, erases, width) with constants where a strip is whole. */
#define BY_ROWS(s, CALL)                                                                                                           \
    do {                                                                                                                           \
        const bool erases_ = rule_of((s)->a) == ERASES;                                                                            \
        if ((s)->width < W)                                                                                                        \
            CALL((s)->a->dtype, erases_, (s)->width);                                                                              \
        else if ((s)->a->dtype == LINNET_F32)                                                                                      \
            if (erases_)                                                                                                           \
                CALL(LINNET_F32, true, W);                                                                                         \
            else                                                                                                                   \
                CALL(LINNET_F32, false, W);                                                                                        \
        else if (erases_)                                                                                                          \
            CALL(LINNET_BF16, true, W);                                                                                            \
        else                                                                                                                       \
            CALL(LINNET_BF16, false, W);                                                                                           \
    } while (0)

/* The rows of tokens begin .. begin + count - 1. */
INLINE void take_rows(strip *s, int64_t begin, int64_t count, int64_t next, bool read, bool back)
{
    s->begin = begin, s->tokens = count, s->next = next, s->fetched = s->owed = 0;
    s->B = token_rows(s, s->a->B, s->wide_B);
    if (rule_of(s->a) == ERASES) take_squares(s);
    if (read || back) s->C = token_rows(s, s->a->C, s->wide_C);
#define CHANNELS(t, erases, width) take_channels(t, erases, read, back, width, s)
    BY_ROWS(s, CHANNELS);
#undef CHANNELS
}

INLINE void fetch_row(const strip *s, const void *p, lnt_dtype t, int64_t token)
{
    const int64_t size = t == LINNET_F32 ? 4 : 2;
    const char *row = (const char *)p + (token * s->a->D + s->first) * size;
    for (int64_t k = 0; p && k < s->width * size; k += 64) __builtin_prefetch(row + k, 0, 2);
}

/* Fetch what is to be read of the next block and to be written of this one, rows that lie on pages of their own, where the hardware does not look
 * ahead: beside `count` numbers of a vector as many of the block's rows as they are of its numbers. Into the second cache: lines kilobytes apart have
 * few places in the first. (Not a function of its own: compilers leave out a call that does nothing but fetch.) */
INLINE void fetch_rows(strip *s, bool read, bool back, int64_t count)
{
    const lnt_selective_args *a = s->a;
    const int64_t all = a->M * pieces(s->width, LNT_VL);
    for (s->owed += BLOCK * count; s->owed >= all; s->owed -= all, s->fetched++) {
        if (s->next >= 0) {
            fetch_row(s, a->delta, LINNET_F32, s->next + s->fetched);
            fetch_row(s, a->u, a->dtype, s->next + s->fetched);
            if (back) fetch_row(s, a->dout, a->dtype, s->next + s->fetched);
        }
        if (s->fetched >= s->tokens) continue;
        if (read && !s->o_past) fetch_row(s, a->o, a->dtype, s->begin + s->fetched);
        if (back && !s->du_past) fetch_row(s, a->du, a->dtype, s->begin + s->fetched);
        if (back && !s->ddelta_past) fetch_row(s, a->ddelta, LINNET_F32, s->begin + s->fetched);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------------------------- */

INLINE vf decay_of(rule r, vf delta, vf rate, float squared)
{
    if (r == ERASES) return 1.0f - delta * squared;
    const vf e = v_exp2(delta * rate);
    return r == TURNS ? 2.0f * e - 1.0f : e;
}

/* Numbers m .. m+count-1 of vector v's states over the block: o where it is wanted, states and decays where they are kept. (Pointers are taken out of
 * the strip: the compiler would read them again behind each store.) */
INLINE void forward_numbers(rule r, bool read, bool keep, int count, const strip *s, int64_t v, int64_t m)
{
    const int64_t M = s->a->M, tokens = s->tokens, at = m * W + v * LNT_VL;
    const float *B = s->B + m, *C = s->C + m, *squares = s->square + m;
    float *to = cell(s, v, 0), *states = s->states, *decays = s->decays;
    vf h[TOGETHER], rate[TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        h[g] = v_load(s->enter + at + g * W), rate[g] = r == ERASES ? v_zero() : v_load(s->rate + at + g * W);
        if (keep) v_store(states + g * LNT_VL, h[g]);
    }
    for (int64_t i = 0; i < tokens; i++) {
        const vf delta = v_load(to + STEP * LNT_VL), x = delta * v_load(to + U * LNT_VL);
        vf o = read ? v_load(to + OUT * LNT_VL) : v_zero();
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            const vf e = decay_of(r, delta, rate[g], r == ERASES ? squares[g] : 0);
            h[g] = e * h[g] + x * B[g];
            if (read) o += h[g] * C[g];
            if (keep) v_store(states + (TOGETHER + g) * LNT_VL, h[g]);
            if (keep && r != ERASES) v_store(decays + g * LNT_VL, e);
        }
        if (read) v_store(to + OUT * LNT_VL, o);
        to += CELL * LNT_VL, B += M, C += M, squares += M, states += TOGETHER * LNT_VL, decays += TOGETHER * LNT_VL;
    }
#pragma GCC unroll 4
    for (int g = 0; g < count; g++)
        if (!keep) v_store(s->leave + at + g * W, h[g]);
}

/* The same in reverse, from the states and decays that were kept. Sums over channels are made in `sums` [BLOCK,2,count,LNT_VL], vector by vector.
 *
 * Longhorn's step is h - Delta B^2 h + Delta B u: its derivative by B is Delta (u - 2 B h), by Delta B (u - B h). Of write = lambda (u/2 - B h) the
 * sum over channels of Delta write is half of dB, and that over numbers of B write is ddelta but for u/2 B.lambda. */
INLINE void backward_numbers(rule r, int count, const strip *s, int64_t v, int64_t m)
{
    const int64_t M = s->a->M, last = s->tokens - 1, at = m * W + v * LNT_VL;
    const float *B = s->B + last * M + m, *C = s->C + last * M + m, *squares = s->square + last * M + m;
    const float *states = s->states + last * TOGETHER * LNT_VL, *decays = s->decays + last * TOGETHER * LNT_VL;
    float *to = cell(s, v, last), *sum_B = s->sums + last * 2 * count * LNT_VL;
    const bool add = v > 0;
    vf h[TOGETHER], carry[TOGETHER], rate[TOGETHER], drate[TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        h[g] = v_load(states + (TOGETHER + g) * LNT_VL), carry[g] = v_load(s->carry + at + g * W);
        rate[g] = r == ERASES ? v_zero() : v_load(s->rate + at + g * W), drate[g] = r == ERASES ? v_zero() : v_load(s->drate + at + g * W);
    }
    for (int64_t i = last; i >= 0; i--) {
        const vf delta = v_load(to + STEP * LNT_VL), u = v_load(to + U * LNT_VL), dy = v_load(to + DOUT * LNT_VL), x = delta * u, half = 0.5f * u;
        vf through_b = v_load(to + OUT * LNT_VL), through_a = v_load(to + THROUGH * LNT_VL);
        float *sum_C = sum_B + count * LNT_VL;
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            const vf before = v_load(states + g * LNT_VL);
            const vf decay = r == ERASES ? decay_of(r, delta, rate[g], squares[g]) : v_load(decays + g * LNT_VL);
            const vf lambda = dy * C[g] + carry[g], kept = decay * lambda;
            vf dB = add ? v_load(sum_B + g * LNT_VL) : v_zero(), dC = add ? v_load(sum_C + g * LNT_VL) : v_zero();
            if (r == ERASES) {
                const vf write = lambda * (half - B[g] * before);
                dB += delta * write, through_a += write * B[g];
            } else {
                const vf carried = (r == TURNS ? kept + lambda : kept) * before; /* gradient of delta A */
                dB += lambda * x, through_a += carried * rate[g], drate[g] += carried * delta;
            }
            dC += dy * h[g], through_b += lambda * B[g];
            v_store(sum_B + g * LNT_VL, dB);
            v_store(sum_C + g * LNT_VL, dC);
            carry[g] = kept, h[g] = before;
        }
        v_store(to + OUT * LNT_VL, through_b);
        v_store(to + THROUGH * LNT_VL, through_a);
        to -= CELL * LNT_VL, B -= M, C -= M, squares -= M, sum_B -= 2 * count * LNT_VL, states -= TOGETHER * LNT_VL, decays -= TOGETHER * LNT_VL;
    }
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        v_store(s->carry + at + g * W, carry[g]);
        if (r != ERASES) v_store(s->drate + at + g * W, drate[g]);
    }
}

/* Numbers m .. m+count-1 of all vectors over the block; and back, whose sums over channels go to, or are added to, `sums` [tokens,2,M]. */
INLINE void some_numbers(rule r, bool read, int count, strip *s, int64_t m)
{
    for (int64_t v = 0; v * LNT_VL < s->width; v++) {
        fetch_rows(s, read, false, count);
        forward_numbers(r, read, false, count, s, v, m);
    }
}
INLINE void some_back(rule r, int count, strip *s, int64_t m, float *sums, bool add)
{
    const int64_t M = s->a->M;
    for (int64_t v = 0; v * LNT_VL < s->width; v++) {
        fetch_rows(s, false, true, count);
        forward_numbers(r, false, true, count, s, v, m);
        backward_numbers(r, count, s, v, m);
    }
    float lanes[BLOCK * 2 * TOGETHER];
    v_sums(lanes, s->sums, s->tokens * 2 * count);
    for (int64_t i = 0; i < s->tokens; i++)
        for (int g = 0; g < count; g++) {
            float *to = sums + i * 2 * M + m + g;
            const float *from = lanes + i * 2 * count + g;
            to[0] = (add ? to[0] : 0) + (r == ERASES ? 2 : 1) * from[0];
            to[M] = (add ? to[M] : 0) + from[count];
        }
}

/* The M numbers, TOGETHER at a time and what is left one by one. */
INLINE void numbers(rule r, bool read, strip *s)
{
    int64_t m = 0;
    for (; m + TOGETHER <= s->a->M; m += TOGETHER) some_numbers(r, read, TOGETHER, s, m);
    for (; m < s->a->M; m++) some_numbers(r, read, 1, s, m);
}
INLINE void numbers_back(rule r, strip *s, float *sums, bool add)
{
    int64_t m = 0;
    for (; m + TOGETHER <= s->a->M; m += TOGETHER) some_back(r, TOGETHER, s, m, sums, add);
    for (; m < s->a->M; m++) some_back(r, 1, s, m, sums, add);
}

INLINE void all_numbers(bool read, strip *s)
{
    switch (rule_of(s->a)) {
    case DECAYS: numbers(DECAYS, read, s); break;
    case TURNS: numbers(TURNS, read, s); break;
    case ERASES: numbers(ERASES, read, s); break;
    }
}
static void all_back(strip *s, float *sums, bool add)
{
    switch (rule_of(s->a)) {
    case DECAYS: numbers_back(DECAYS, s, sums, add); break;
    case TURNS: numbers_back(TURNS, s, sums, add); break;
    case ERASES: numbers_back(ERASES, s, sums, add); break;
    }
}

/* ---- a strip of a sequence ------------------------------------------------------------------------------------------------------------------- */

/* A row of a strip's results, by vectors. */
INLINE void put_row(bool past, void *p, lnt_dtype t, int64_t at, int64_t width, const vf *x)
{
    if (width == W) {
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v += 2) scan_put_two(past, p, t, at + v * LNT_VL, x[v], x[v + 1]);
    } else {
        V_EACH(j, n, width) scan_put(past, p, t, at + j, n, x[j / LNT_VL]);
    }
}

INLINE void put_channels(lnt_dtype t, int64_t width, const strip *s)
{
    void *o = s->a->o;
    const bool past = s->o_past;
    for (int64_t i = 0; i < s->tokens; i++) {
        vf x[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) x[v] = v_load(cell(s, v, i) + OUT * LNT_VL);
        put_row(past, o, t, (s->begin + i) * s->a->D + s->first, width, x);
    }
}
static void put_outputs(const strip *s)
{
#define OUTPUTS(t, erases, width) put_channels(t, width, s)
    BY_ROWS(s, OUTPUTS);
#undef OUTPUTS
}

static void forward_strip(strip *s, int64_t n)
{
    const lnt_selective_args *a = s->a;
    turn_in(s, s->h, state_of(a, a->s0, n));
    const int64_t end = a->cu_seqlens[n + 1];
    s->enter = s->leave = s->h;
    for (int64_t t = a->cu_seqlens[n]; t < end; t += BLOCK) {
        take_rows(s, t, at_most(BLOCK, end - t), t + 2 * BLOCK <= end ? t + BLOCK : -1, true, false);
        all_numbers(true, s);
        put_outputs(s);
    }
    v_stream_end();
    turn_out(s, state_of(a, a->sT, n), s->h);
}

/* The gradients of a block's rows, and what is left of that of its B in sums [tokens,2,M]. */
INLINE void channel_gradients(lnt_dtype t, bool erases, int64_t width, const strip *s, float *sums)
{
    const lnt_selective_args *a = s->a;
    const int64_t M = a->M;
    const float *skips = a->skip ? (const float *)a->skip + s->first : NULL;
    void *const du = a->du, *const ddelta = a->ddelta;
    const bool du_past = s->du_past, ddelta_past = s->ddelta_past;
    for (int64_t i = 0; i < s->tokens; i++) {
        const int64_t row = (s->begin + i) * a->D + s->first;
        vf norm = v_zero() /* gradient of Longhorn's B.B */, to_u[VECTORS], to_delta[VECTORS];
#pragma GCC unroll 4
        V_EACH(j, n, width)
        {
            const float *p = cell(s, j / LNT_VL, i);
            const vf delta = v_load(p + STEP * LNT_VL), u = v_load(p + U * LNT_VL), dy = v_load(p + DOUT * LNT_VL);
            const vf through_b = v_load(p + OUT * LNT_VL), through_a = v_load(p + THROUGH * LNT_VL);
            v_store(s->dskip + j, v_load(s->dskip + j) + dy * u);
            to_u[j / LNT_VL] = skips ? delta * through_b + v_get(skips, LINNET_F32, j, n) * dy : delta * through_b;
            vf dstep = erases ? through_a + 0.5f * u * through_b : 0.693147181f * through_a + u * through_b;
            if (erases) {
                const vf share = v_load(p + SHARE * LNT_VL);
                norm -= dstep * delta * delta;
                dstep *= share * share;
            }
            to_delta[j / LNT_VL] = dstep;
        }
        if (du) put_row(du_past, du, t, row, width, to_u);
        if (ddelta) put_row(ddelta_past, ddelta, LINNET_F32, row, width, to_delta);
        const float dnorm = erases ? 2 * v_sum(norm) : 0;
        for (int64_t m = 0; erases && m < M; m++) sums[i * 2 * M + m] += s->B[i * M + m] * dnorm;
    }
}
static void block_gradients(const strip *s, float *sums)
{
#define GRADIENTS(t, erases, width) channel_gradients(t, erases, width, s, sums)
    BY_ROWS(s, GRADIENTS);
#undef GRADIENTS
}

/* The states at the start of every block, then block by block from the end: its states again, and back over them. sums [T,2,M]. */
static void backward_strip(strip *s, int64_t n, float *sums, bool add)
{
    const lnt_selective_args *a = s->a;
    const int64_t mw = square(a), first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first, blocks = blocks_of(len);
    if (blocks > 0) turn_in(s, s->starts, state_of(a, a->s0, n));
    for (int64_t b = 0; b < blocks - 1; b++) {
        s->enter = s->starts + b * mw, s->leave = s->enter + mw;
        take_rows(s, first + b * BLOCK, BLOCK, b + 2 < blocks ? first + (b + 1) * BLOCK : -1, false, false);
        all_numbers(false, s);
    }
    turn_in(s, s->carry, state_of(a, a->dsT, n));
    for (int64_t b = blocks - 1; b >= 0; b--) {
        const int64_t begin = first + b * BLOCK;
        s->enter = s->starts + b * mw;
        take_rows(s, begin, at_most(BLOCK, len - b * BLOCK), b > 0 ? begin - BLOCK : -1, false, true);
        all_back(s, sums + begin * 2 * a->M, add);
        block_gradients(s, sums + begin * 2 * a->M);
    }
    v_stream_end();
    turn_out(s, state_of(a, a->ds0, n), s->carry);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

static int64_t part_of(int64_t count, int64_t i, int64_t parts) { return count * i / parts; } /* where part i of `count` begins */

static strip strip_at(const lnt_selective_args *a, int64_t i, bool back)
{
    strip s = { .a = a, .first = i * W, .width = at_most(W, a->D - i * W) };
    s.o_past = scan_goes_past(a->dtype, a->tokens, a->D, a->o);
    s.du_past = scan_goes_past(a->dtype, a->tokens, a->D, a->du);
    s.ddelta_past = scan_goes_past(LINNET_F32, a->tokens, a->D, a->ddelta);
    carve(a, back, (float *)a->workspace + omp_get_thread_num() * scratch_floats(a, back), &s);
    if (!a->A) return s;
    turn_in(&s, s.rate, a->A);
    for (int64_t m = 0; m < square(a); m += LNT_VL) v_store(s.rate + m, v_load(s.rate + m) * 1.44269504f);
    return s;
}

static bool few(const lnt_selective_args *a, int64_t count) { return count < 2 || a->tokens * a->D * a->M < SMALL; }

static void forward(const void *args, int threads)
{
    const lnt_selective_args *a = args;
    const int64_t strips = pieces(a->D, W), count = a->sequences * strips;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (!few(a, count))
    for (int64_t p = 0; p < count; p++) {
        strip s = strip_at(a, p % strips, false);
        forward_strip(&s, p / strips);
    }
}

/* Behind the threads' scratch: sums of dB and dC [channel parts,T,2,M], of dA and dD [sequence parts,D,M] and [..,D]. */
typedef struct {
    int64_t channel_parts, sequence_parts;
    float *token, *rate, *skip;
} sums_of;

static sums_of sums_at(const lnt_selective_args *a, int threads, int64_t *floats)
{
    sums_of x = { .channel_parts = at_most(PARTS, pieces(a->D, W)), .sequence_parts = a->sequences < PARTS ? a->sequences : PARTS };
    const int64_t scratch = threads * scratch_floats(a, true), token = x.channel_parts * a->tokens * 2 * a->M;
    const int64_t rate = x.sequence_parts * a->D * a->M;
    float *base = a->workspace;
    if (base) x.token = base + scratch, x.rate = x.token + token, x.skip = x.rate + rate;
    if (floats) *floats = scratch + token + rate + x.sequence_parts * a->D;
    return x;
}

/* Sequences of a part of them and strips of a part of those, in their order. */
static void backward_piece(const lnt_selective_args *a, const sums_of *x, int64_t sequences, int64_t channels)
{
    const int64_t strips = pieces(a->D, W), begin = part_of(strips, channels, x->channel_parts);
    for (int64_t i = begin; i < part_of(strips, channels + 1, x->channel_parts); i++) {
        strip s = strip_at(a, i, true);
        memset(s.drate, 0, (size_t)square(a) * sizeof(float));
        memset(s.dskip, 0, W * sizeof(float));
        for (int64_t n = part_of(a->sequences, sequences, x->sequence_parts); n < part_of(a->sequences, sequences + 1, x->sequence_parts); n++)
            backward_strip(&s, n, x->token + channels * a->tokens * 2 * a->M, i > begin);
        turn_out(&s, x->rate + sequences * a->D * a->M, s.drate);
        memcpy(x->skip + sequences * a->D + s.first, s.dskip, (size_t)s.width * sizeof(float));
    }
}

/* out [rows,count] = the sum of parts that lie `away` apart, whose rows lie `row` apart. */
static void add_parts(void *out, lnt_dtype type, const float *part, int64_t parts, int64_t away, int64_t rows, int64_t count, int64_t row)
{
    if (!out) return;
    for (int64_t r = 0; r < rows; r++)
        V_EACH(i, n, count)
        {
            vf sum = v_zero();
            for (int64_t p = 0; p < parts; p++) sum += v_get(part + p * away + r * row, LINNET_F32, i, n);
            v_put(out, type, r * count + i, n, sum);
        }
}

static void backward(const void *args, int threads)
{
    const lnt_selective_args *a = args;
    const sums_of x = sums_at(a, threads, NULL);
    const int64_t count = x.channel_parts * x.sequence_parts, M = a->M;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (!few(a, count))
    for (int64_t p = 0; p < count; p++) backward_piece(a, &x, p / x.channel_parts, p % x.channel_parts);
    add_parts(a->dB, a->dtype, x.token, x.channel_parts, a->tokens * 2 * M, a->tokens, M, 2 * M);
    add_parts(a->dC, a->dtype, x.token + M, x.channel_parts, a->tokens * 2 * M, a->tokens, M, 2 * M);
    add_parts(a->dA, LINNET_F32, x.rate, x.sequence_parts, a->D * M, 1, a->D * M, 0);
    add_parts(a->dskip, LINNET_F32, x.skip, x.sequence_parts, a->D, 1, a->D, 0);
}

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_selective_args *a = args;
    int64_t floats = threads * scratch_floats(a, false);
    if (back) sums_at(a, threads, &floats);
    return (size_t)floats * sizeof(float);
}

/* Time is not cut: both forms are one walk. */
extern const lnt_recur_impl LNT_V(lnt_selective_chunk), LNT_V(lnt_selective_recurrent);
const lnt_recur_impl LNT_V(lnt_selective_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                                    .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_selective_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                        .workspace = workspace, .forward = forward, .backward = backward };
