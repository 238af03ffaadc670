/* The selective scan on the CPU (README.md): strips of channels, a vector of them at a time, so that no sum goes across lanes but those over
 * channels. A block of tokens is taken together: their rows first, and then, for a vector of channels, some of the M numbers at a time, whose states
 * stay in registers over the block.
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

/* What a strip has, [M,W] each: rates, the state, what is carried back, dA; the states at the start of all blocks. Of a block's tokens: what a
 * vector of channels has at a token, [VECTORS,BLOCK,LNT_VL] each; B and C [BLOCK,M]; states and decays of the numbers in registers. */
typedef struct {
    const lnt_selective_args *a;
    int64_t first, width;  /* channels */
    int64_t begin, tokens; /* of the block */
    int64_t next;          /* where the block begins that comes after it */
    float *rate;           /* A log2(e) */
    float *h, *carry, *drate, *dskip, *starts;
    float *step, *u, *out; /* delta, or Longhorn's Delta; o, or what du is of B.lambda */
    float *dout, *through; /* backward; what ddelta is of the decays */
    float *B, *C;
    float *square, *norm;  /* longhorn: B^2, and its sum [BLOCK] */
    float *states, *decays; /* [BLOCK+1,TOGETHER,LNT_VL], [BLOCK,TOGETHER,LNT_VL] */
    float *sum_B, *sum_C;  /* [BLOCK,M,LNT_VL] */
} strip;

static int64_t square(const lnt_selective_args *a) { return (int64_t)a->M * W; }
static int64_t blocks_of(int64_t tokens) { return pieces(tokens, BLOCK); }

/* A thread's scratch at p (NULL: only measure); returns its floats. */
static int64_t carve(const lnt_selective_args *a, bool back, float *p, strip *s)
{
    const int64_t M = (a->M + 15) / 16 * 16, mw = square(a), rows = BLOCK * W, sums = (int64_t)BLOCK * a->M * LNT_VL;
    int64_t used = 0;
    const struct {
        float **at;
        int64_t count;
    } parts[] = { { &s->rate, mw }, { &s->h, mw }, { &s->B, BLOCK * M }, { &s->C, BLOCK * M }, { &s->square, BLOCK * M }, { &s->norm, BLOCK },
                  { &s->step, rows }, { &s->u, rows }, { &s->out, rows },
                  { &s->dout, back ? rows : 0 }, { &s->through, back ? rows : 0 },
                  { &s->carry, back ? mw : 0 }, { &s->drate, back ? mw : 0 }, { &s->dskip, back ? W : 0 },
                  { &s->sum_B, back ? sums : 0 }, { &s->sum_C, back ? sums : 0 },
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
    for (int64_t m = 0; m < M; m++)
        for (int64_t j = 0; j < W; j++) dst[m * W + j] = src && j < s->width ? src[(s->first + j) * M + m] : 0;
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

/* Where vector v of the block's token i is in [VECTORS,BLOCK,LNT_VL]. */
static int64_t place(int64_t v, int64_t i) { return (v * BLOCK + i) * LNT_VL; }

static void token_row(float *dst, const void *rows, const lnt_selective_args *a, int64_t t)
{
    V_EACH(m, n, a->M) v_put(dst, LINNET_F32, m, n, v_get(rows, a->dtype, t * a->M + m, n));
}

/* B of a token, and what follows from it. */
static void take_B(const strip *s, int64_t i)
{
    const lnt_selective_args *a = s->a;
    float *B = s->B + i * a->M, *squares = s->square + i * a->M;
    token_row(B, a->B, a, s->begin + i);
    if (a->op->kind != LNT_LONGHORN) return;
    vf sum = v_zero();
    V_EACH(m, n, a->M)
    {
        const vf b = v_get(B, LINNET_F32, m, n);
        v_put(squares, LINNET_F32, m, n, b * b);
        sum += b * b;
    }
    s->norm[i] = v_sum(sum);
}

/* The rows of tokens begin .. begin + count - 1: B, what a channel's step and input are, C where it is read, do on the way back. Longhorn's Delta is
 * beta / (1 + beta B.B). Lanes beyond the channels are zeros: nothing is written there, and nothing decays. */
static void take_rows(strip *s, int64_t begin, int64_t count, int64_t next, bool read, bool back)
{
    const lnt_selective_args *a = s->a;
    const bool erases = rule_of(a) == ERASES;
    s->begin = begin, s->tokens = count, s->next = next;
    for (int64_t i = 0; i < count; i++) {
        take_B(s, i);
        if (read) token_row(s->C + i * a->M, a->C, a, begin + i);
    }
    for (int64_t i = 0; i < count; i++)
        V_EACH(j, n, s->width)
        {
            const int64_t at = (begin + i) * a->D + s->first + j, to = place(j / LNT_VL, i);
            const vf delta = v_get(a->delta, LINNET_F32, at, n);
            v_store(s->step + to, erases ? delta / (1.0f + delta * s->norm[i]) : delta);
            v_store(s->u + to, v_get(a->u, a->dtype, at, n));
            if (back) v_store(s->dout + to, a->dout ? v_get(a->dout, a->dtype, at, n) : v_zero());
        }
}

/* Fetch the rows of the tokens of the next block: they lie on pages of their own, where the hardware does not look ahead. */
INLINE void fetch(const char *rows, int64_t size, int64_t at) { __builtin_prefetch(rows + at * size, 0, 3); }

static bool goes_past(const lnt_selective_args *a, const void *result) { return scan_goes_past(a->dtype, a->tokens, a->D, result); }

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
    const int64_t M = s->a->M, tokens = s->tokens, size = s->a->dtype == LINNET_F32 ? 4 : 2, row = s->a->D;
    const bool ahead = m == 0 && !keep && s->next >= 0;
    const char *next_delta = s->a->delta, *next_u = s->a->u;
    const float *step = s->step + place(v, 0), *u = s->u + place(v, 0), *B = s->B + m, *C = s->C + m, *squares = s->square + m;
    float *out = s->out + place(v, 0), *states = s->states, *decays = s->decays, *place_of = s->h + m * W + v * LNT_VL;
    int64_t next = s->next * row + s->first + v * LNT_VL;
    vf h[TOGETHER], rate[TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        h[g] = v_load(place_of + g * W), rate[g] = r == ERASES ? v_zero() : v_load(s->rate + (m + g) * W + v * LNT_VL);
        if (keep) v_store(states + g * LNT_VL, h[g]);
    }
    for (int64_t i = 0; i < tokens; i++, next += row, B += M, C += M, squares += M, states += TOGETHER * LNT_VL, decays += TOGETHER * LNT_VL) {
        const vf delta = v_load(step + i * LNT_VL), x = delta * v_load(u + i * LNT_VL);
        vf o = read ? v_load(out + i * LNT_VL) : v_zero();
        if (ahead) fetch(next_delta, 4, next), fetch(next_u, size, next);
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            const vf e = decay_of(r, delta, rate[g], r == ERASES ? squares[g] : 0);
            h[g] = e * h[g] + x * B[g];
            if (read) o += h[g] * C[g];
            if (keep) v_store(states + (TOGETHER + g) * LNT_VL, h[g]);
            if (keep && r != ERASES) v_store(decays + g * LNT_VL, e);
        }
        if (read) v_store(out + i * LNT_VL, o);
    }
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) v_store(place_of + g * W, h[g]);
}

/* The same in reverse, from the states and decays that were kept; sums over channels are added to sum_B and sum_C. */
INLINE void backward_numbers(rule r, int count, const strip *s, int64_t v, int64_t m)
{
    const int64_t M = s->a->M, last = s->tokens - 1, size = s->a->dtype == LINNET_F32 ? 4 : 2, row = s->a->D, at_m = m * W + v * LNT_VL;
    const bool ahead = m == 0 && s->next >= 0;
    const char *next_delta = s->a->delta, *next_u = s->a->u, *next_dout = s->a->dout;
    const float *step = s->step + place(v, 0), *u = s->u + place(v, 0), *dout = s->dout + place(v, 0);
    const float *B = s->B + last * M + m, *C = s->C + last * M + m, *squares = s->square + last * M + m;
    const float *states = s->states + last * TOGETHER * LNT_VL, *decays = s->decays + last * TOGETHER * LNT_VL;
    float *out = s->out + place(v, 0), *through = s->through + place(v, 0);
    float *sum_B = s->sum_B + (last * M + m) * LNT_VL, *sum_C = s->sum_C + (last * M + m) * LNT_VL;
    int64_t next = (s->next + last) * row + s->first + v * LNT_VL;
    vf h[TOGETHER], carry[TOGETHER], rate[TOGETHER], drate[TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        h[g] = v_load(states + (TOGETHER + g) * LNT_VL), carry[g] = v_load(s->carry + at_m + g * W);
        rate[g] = r == ERASES ? v_zero() : v_load(s->rate + at_m + g * W), drate[g] = r == ERASES ? v_zero() : v_load(s->drate + at_m + g * W);
    }
    for (int64_t i = last; i >= 0; i--, next -= row) {
        const vf delta = v_load(step + i * LNT_VL), x = delta * v_load(u + i * LNT_VL), dy = v_load(dout + i * LNT_VL), twice = 2.0f * delta;
        vf through_b = m == 0 ? v_zero() : v_load(out + i * LNT_VL), through_a = m == 0 ? v_zero() : v_load(through + i * LNT_VL);
        if (ahead) {
            fetch(next_delta, 4, next), fetch(next_u, size, next);
            if (next_dout) fetch(next_dout, size, next);
        }
#pragma GCC unroll 4
        for (int g = 0; g < count; g++) {
            const vf before = v_load(states + g * LNT_VL);
            const vf decay = r == ERASES ? decay_of(r, delta, rate[g], squares[g]) : v_load(decays + g * LNT_VL);
            const vf lambda = dy * C[g] + carry[g], kept = decay * lambda;
            const vf carried = (r == ERASES ? lambda : r == TURNS ? kept + lambda : kept) * before; /* gradient of delta A; less that of Delta B^2 */
            const vf write = r == ERASES ? lambda * x - (twice * B[g]) * carried : lambda * x;
            v_store(sum_B + g * LNT_VL, v_load(sum_B + g * LNT_VL) + write);
            v_store(sum_C + g * LNT_VL, v_load(sum_C + g * LNT_VL) + dy * h[g]);
            through_b += lambda * B[g];
            through_a += r == ERASES ? -(carried * squares[g]) : carried * rate[g];
            if (r != ERASES) drate[g] += carried * delta;
            carry[g] = kept, h[g] = before;
        }
        v_store(out + i * LNT_VL, through_b);
        v_store(through + i * LNT_VL, through_a);
        B -= M, C -= M, squares -= M, sum_B -= M * LNT_VL, sum_C -= M * LNT_VL, states -= TOGETHER * LNT_VL, decays -= TOGETHER * LNT_VL;
    }
#pragma GCC unroll 4
    for (int g = 0; g < count; g++) {
        v_store(s->carry + at_m + g * W, carry[g]);
        if (r != ERASES) v_store(s->drate + at_m + g * W, drate[g]);
    }
}

/* The M numbers of vector v, TOGETHER at a time and what is left one by one; in reverse the states are made again first. */
INLINE void numbers(rule r, bool read, bool back, const strip *s, int64_t v)
{
    const int64_t M = s->a->M;
    int64_t m = 0;
    for (; m + TOGETHER <= M; m += TOGETHER) {
        forward_numbers(r, read, back, TOGETHER, s, v, m);
        if (back) backward_numbers(r, TOGETHER, s, v, m);
    }
    for (; m < M; m++) {
        forward_numbers(r, read, back, 1, s, v, m);
        if (back) backward_numbers(r, 1, s, v, m);
    }
}

INLINE void all_numbers(bool read, bool back, const strip *s)
{
    for (int64_t v = 0; v < pieces(s->width, LNT_VL); v++)
        switch (rule_of(s->a)) {
        case DECAYS: numbers(DECAYS, read, back, s, v); break;
        case TURNS: numbers(TURNS, read, back, s, v); break;
        case ERASES: numbers(ERASES, read, back, s, v); break;
        }
}

/* ---- a strip of a sequence ------------------------------------------------------------------------------------------------------------------- */

static void forward_strip(strip *s, int64_t n)
{
    const lnt_selective_args *a = s->a;
    turn_in(s, s->h, state_of(a, a->s0, n));
    const int64_t end = a->cu_seqlens[n + 1];
    const bool past = goes_past(a, a->o);
    for (int64_t t = a->cu_seqlens[n]; t < end; t += BLOCK) {
        take_rows(s, t, at_most(BLOCK, end - t), t + 2 * BLOCK <= end ? t + BLOCK : -1, true, false);
        for (int64_t i = 0; i < s->tokens; i++)
            V_EACH(j, c, s->width)
            {
                const int64_t at = place(j / LNT_VL, i);
                v_store(s->out + at, a->skip ? v_load(s->u + at) * v_get(a->skip, LINNET_F32, s->first + j, c) : v_zero());
            }
        all_numbers(true, false, s);
        for (int64_t i = 0; i < s->tokens; i++)
            V_EACH(j, c, s->width) scan_put(past, a->o, a->dtype, (t + i) * a->D + s->first + j, c, v_load(s->out + place(j / LNT_VL, i)));
    }
    if (past) v_stream_end();
    turn_out(s, state_of(a, a->sT, n), s->h);
}

/* to[m] (+)= the sum over the lanes of vector m, of `count` that follow each other: sixteen at once in a third of the instructions of one by one. */
static void sum_lanes(float *to, const float *x, int64_t count, bool add)
{
    int64_t m = 0;
#if defined(__AVX512F__)
    for (; m + LNT_VL <= count; m += LNT_VL) {
        __m512 q[4];
        for (int i = 0; i < 4; i++) {
            const float *p = x + (m + 4 * i) * LNT_VL;
            const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32), d = _mm512_loadu_ps(p + 48);
            const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
            const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
            q[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
        }
        const __m512 r0 = _mm512_add_ps(_mm512_shuffle_f32x4(q[0], q[1], 0x44), _mm512_shuffle_f32x4(q[0], q[1], 0xee));
        const __m512 r1 = _mm512_add_ps(_mm512_shuffle_f32x4(q[2], q[3], 0x44), _mm512_shuffle_f32x4(q[2], q[3], 0xee));
        const vf sum = (vf)_mm512_add_ps(_mm512_shuffle_f32x4(r0, r1, 0x88), _mm512_shuffle_f32x4(r0, r1, 0xdd));
        v_store(to + m, add ? v_load(to + m) + sum : sum);
    }
#endif
    for (; m < count; m++) to[m] = (add ? to[m] : 0) + v_sum(v_load(x + m * LNT_VL));
}

/* The gradients of a block's rows, of its B and C to sums [tokens,2,M]. */
static void block_gradients(const strip *s, float *sums, bool add)
{
    const lnt_selective_args *a = s->a;
    const int64_t M = a->M;
    const bool erases = rule_of(a) == ERASES, past = goes_past(a, a->du) && goes_past(a, a->ddelta);
    for (int64_t i = 0; i < s->tokens; i++) {
        vf norm = v_zero(); /* gradient of Longhorn's B.B */
        V_EACH(j, n, s->width)
        {
            const int64_t at = (s->begin + i) * a->D + s->first + j, from = place(j / LNT_VL, i);
            const vf delta = v_load(s->step + from), u = v_load(s->u + from), dy = v_load(s->dout + from), through_b = v_load(s->out + from);
            const vf skip = a->skip ? v_get(a->skip, LINNET_F32, s->first + j, n) : v_zero();
            v_store(s->dskip + j, v_load(s->dskip + j) + dy * u);
            if (a->du) scan_put(past, a->du, a->dtype, at, n, delta * through_b + skip * dy);
            vf dstep = (erases ? 1.0f : 0.693147181f) * v_load(s->through + from) + u * through_b;
            if (erases) {
                const vf share = 1.0f / (1.0f + v_get(a->delta, LINNET_F32, at, n) * s->norm[i]);
                norm -= dstep * delta * delta;
                dstep *= share * share;
            }
            if (a->ddelta) scan_put(past, a->ddelta, LINNET_F32, at, n, dstep);
        }
        float *to = sums + i * 2 * M;
        sum_lanes(to, s->sum_B + i * M * LNT_VL, M, add);
        sum_lanes(to + M, s->sum_C + i * M * LNT_VL, M, add);
        const float dnorm = erases ? 2 * v_sum(norm) : 0;
        for (int64_t m = 0; erases && m < M; m++) to[m] += s->B[i * M + m] * dnorm;
    }
}

/* The states at the start of every block, then block by block from the end: its states again, and back over them. sums [T,2,M]. */
static void backward_strip(strip *s, int64_t n, float *sums, bool add)
{
    const lnt_selective_args *a = s->a;
    const int64_t mw = square(a), first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first, blocks = blocks_of(len);
    turn_in(s, s->h, state_of(a, a->s0, n));
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(s->starts + b * mw, s->h, (size_t)mw * sizeof(float));
        if (b == blocks - 1) break; /* the last block's are made below */
        take_rows(s, first + b * BLOCK, BLOCK, b + 2 < blocks ? first + (b + 1) * BLOCK : -1, false, false);
        all_numbers(false, false, s);
    }
    turn_in(s, s->carry, state_of(a, a->dsT, n));
    for (int64_t b = blocks - 1; b >= 0; b--) {
        const int64_t begin = b * BLOCK;
        memcpy(s->h, s->starts + b * mw, (size_t)mw * sizeof(float));
        take_rows(s, first + begin, at_most(BLOCK, len - begin), b > 0 ? first + begin - BLOCK : -1, true, true);
        memset(s->sum_B, 0, (size_t)(s->tokens * a->M * LNT_VL) * sizeof(float));
        memset(s->sum_C, 0, (size_t)(s->tokens * a->M * LNT_VL) * sizeof(float));
        all_numbers(false, true, s);
        block_gradients(s, sums + (first + begin) * 2 * a->M, add);
    }
    v_stream_end();
    turn_out(s, state_of(a, a->ds0, n), s->carry);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

static int64_t part_of(int64_t count, int64_t i, int64_t parts) { return count * i / parts; } /* where part i of `count` begins */

static strip strip_at(const lnt_selective_args *a, int64_t i, bool back)
{
    strip s = { .a = a, .first = i * W, .width = at_most(W, a->D - i * W) };
    carve(a, back, (float *)a->workspace + omp_get_thread_num() * scratch_floats(a, back), &s);
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
