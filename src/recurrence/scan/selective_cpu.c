/* The selective scan on the CPU (README.md): strips of channels, a vector of them at a time, the M numbers of their states one after the other, so
 * that no sum goes across lanes but those over channels. A strip's rates and states stay in the first-level cache as [M,W].
 *
 * Sums over channels (dB, dC) and over sequences (dA, dD) are made in at most PARTS parts each, which follow from the shape, and added in order. */
#include <omp.h>

#include "ops/rows.h"
#include "recurrence/scan/scan.h"

enum {
    W = 4 * LNT_VL, /* channels of a strip */
    BLOCK = 32,     /* tokens whose states backward makes again and keeps: with M = 16 256 KB beside their decays */
    PARTS = 8,
    SMALL = 4096,   /* numbers of states to go over, below which threads cost more than they bring */
};

/* What a strip has, [M,W] each: A, the state, what is carried back, dA; backward [BLOCK+1,M,W] states and [BLOCK,M,W] decays of a block, and the
 * states at the start of all. */
typedef struct {
    const lnt_selective_args *a;
    int64_t first, width; /* channels */
    float *rate, *h, *carry, *drate, *dskip, *states, *decays, *starts;
    float *B, *C;         /* [M] of a token; longhorn: */
    float *square, norm;  /* [M] B^2, and their sum */
    float *sum_B, *sum_C; /* [M,LNT_VL] */
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
    } parts[] = { { &s->rate, mw }, { &s->h, mw }, { &s->B, M }, { &s->C, M }, { &s->square, M },
                  { &s->carry, back ? mw : 0 }, { &s->drate, back ? mw : 0 }, { &s->dskip, back ? W : 0 }, { &s->sum_B, back ? a->M * LNT_VL : 0 },
                  { &s->sum_C, back ? a->M * LNT_VL : 0 },
                  { &s->states, back ? (BLOCK + 1) * mw : 0 }, { &s->decays, back ? BLOCK * mw : 0 },
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

static void token_row(float *dst, const void *rows, const lnt_selective_args *a, int64_t t)
{
    V_EACH(m, n, a->M) v_put(dst, LINNET_F32, m, n, v_get(rows, a->dtype, t * a->M + m, n));
}

/* B of a token, and what follows from it. */
static void take_B(strip *s, int64_t t)
{
    const lnt_selective_args *a = s->a;
    token_row(s->B, a->B, a, t);
    if (a->op->kind != LNT_LONGHORN) return;
    vf sum = v_zero();
    V_EACH(m, n, a->M)
    {
        const vf b = v_get(s->B, LINNET_F32, m, n);
        v_put(s->square, LINNET_F32, m, n, b * b);
        sum += b * b;
    }
    s->norm = v_sum(sum);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------------------------- */

/* What a step does to the state: e^{delta A}, 2 e^{delta A} - 1, 1 - Delta B^2. */
typedef enum { DECAYS, TURNS, ERASES } rule;
#define INLINE static inline __attribute__((always_inline))
static rule rule_of(const lnt_selective_args *a) { return a->op->kind == LNT_LONGHORN ? ERASES : a->has_sign ? TURNS : DECAYS; }

/* Longhorn's Delta is beta / (1 + beta B.B). */
INLINE vf step_of(rule r, const strip *s, int64_t at, int64_t n)
{
    const vf delta = v_get(s->a->delta, LINNET_F32, at, n);
    return r == ERASES ? delta / (1.0f + delta * s->norm) : delta;
}

INLINE vf decay_of(rule r, const strip *s, vf delta, int64_t j, int64_t m)
{
    if (r == ERASES) return 1.0f - delta * s->square[m];
    const vf e = v_exp(delta * v_load(s->rate + m * W + j));
    return r == TURNS ? 2.0f * e - 1.0f : e;
}

/* From h to `next` (which may be h), decays kept where there is room; o where it is wanted. */
INLINE void forward_channels(rule r, const strip *s, int64_t t, const float *h, float *next, float *decays, bool read)
{
    const lnt_selective_args *a = s->a;
    V_EACH(j, n, s->width)
    {
        const int64_t at = t * a->D + s->first + j;
        const vf delta = step_of(r, s, at, n), u = v_get(a->u, a->dtype, at, n), x = delta * u;
        vf o = read && a->skip ? u * v_get(a->skip, LINNET_F32, s->first + j, n) : v_zero();
        for (int64_t m = 0; m < a->M; m++) {
            const vf e = decay_of(r, s, delta, j, m), y = e * v_load(h + m * W + j) + x * s->B[m];
            v_store(next + m * W + j, y);
            if (decays) v_store(decays + m * W + j, e);
            if (read) o += y * s->C[m];
        }
        if (read) v_put(a->o, a->dtype, at, n, o);
    }
}

INLINE void forward_token(const strip *s, int64_t t, const float *h, float *next, float *decays, bool read)
{
    switch (rule_of(s->a)) {
    case DECAYS: forward_channels(DECAYS, s, t, h, next, decays, read); break;
    case TURNS: forward_channels(TURNS, s, t, h, next, decays, read); break;
    case ERASES: forward_channels(ERASES, s, t, h, next, decays, read); break;
    }
}

static void forward_strip(strip *s, int64_t n)
{
    const lnt_selective_args *a = s->a;
    turn_in(s, s->h, state_of(a, a->s0, n));
    for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++) {
        take_B(s, t);
        token_row(s->C, a->C, a, t);
        forward_token(s, t, s->h, s->h, NULL, true);
    }
    turn_out(s, state_of(a, a->sT, n), s->h);
}

/* From the states before and behind the token and its decays. What the channels of the strip add to dB and dC goes to sums [2,M]. */
INLINE void backward_channels(rule r, const strip *s, int64_t t, const float *before, const float *h, const float *decays, float *sums, bool add)
{
    const lnt_selective_args *a = s->a;
    const int64_t M = a->M;
    vf norm = v_zero(); /* gradient of Longhorn's B.B */
    memset(s->sum_B, 0, (size_t)(M * LNT_VL) * sizeof(float));
    memset(s->sum_C, 0, (size_t)(M * LNT_VL) * sizeof(float));
    V_EACH(j, n, s->width)
    {
        const int64_t at = t * a->D + s->first + j;
        const vf delta = step_of(r, s, at, n), u = v_get(a->u, a->dtype, at, n), x = delta * u;
        const vf dy = a->dout ? v_get(a->dout, a->dtype, at, n) : v_zero();
        vf through_b = v_zero(), through_a = v_zero();
        for (int64_t m = 0; m < M; m++) {
            const int64_t i = m * W + j;
            const vf lambda = dy * s->C[m] + v_load(s->carry + i), next = v_load(decays + i) * lambda, kept = v_load(before + i);
            const vf carried = (r == ERASES ? -lambda : r == TURNS ? next + lambda : next) * kept; /* gradient of delta A, of Delta B^2 */
            v_store(s->carry + i, next);
            if (r != ERASES) v_store(s->drate + i, v_load(s->drate + i) + carried * delta);
            const vf write = r == ERASES ? lambda * x + 2.0f * s->B[m] * delta * carried : lambda * x;
            v_store(s->sum_B + m * LNT_VL, v_load(s->sum_B + m * LNT_VL) + write);
            v_store(s->sum_C + m * LNT_VL, v_load(s->sum_C + m * LNT_VL) + dy * v_load(h + i));
            through_b += lambda * s->B[m];
            through_a += r == ERASES ? carried * s->square[m] : carried * v_load(s->rate + i);
        }
        const vf skip = a->skip ? v_get(a->skip, LINNET_F32, s->first + j, n) : v_zero();
        v_store(s->dskip + j, v_load(s->dskip + j) + dy * u);
        if (a->du) v_put(a->du, a->dtype, at, n, delta * through_b + skip * dy);
        vf dstep = through_a + u * through_b;
        if (r == ERASES) {
            const vf share = 1.0f / (1.0f + v_get(a->delta, LINNET_F32, at, n) * s->norm);
            norm -= dstep * delta * delta;
            dstep *= share * share;
        }
        if (a->ddelta) v_put(a->ddelta, LINNET_F32, at, n, dstep);
    }
    const float dnorm = r == ERASES ? v_sum(norm) : 0;
    for (int64_t m = 0; m < M; m++) {
        sums[m] = (add ? sums[m] : 0) + v_sum(v_load(s->sum_B + m * LNT_VL)) + (r == ERASES ? 2 * s->B[m] * dnorm : 0);
        sums[M + m] = (add ? sums[M + m] : 0) + v_sum(v_load(s->sum_C + m * LNT_VL));
    }
}

static void backward_token(const strip *s, int64_t t, const float *before, const float *h, const float *decays, float *sums, bool add)
{
    switch (rule_of(s->a)) {
    case DECAYS: backward_channels(DECAYS, s, t, before, h, decays, sums, add); break;
    case TURNS: backward_channels(TURNS, s, t, before, h, decays, sums, add); break;
    case ERASES: backward_channels(ERASES, s, t, before, h, decays, sums, add); break;
    }
}

/* The states at the start of every block, then block by block from the end: its states again, and back over them. sums [T,2,M]. */
static void backward_strip(strip *s, int64_t n, float *sums, bool add)
{
    const lnt_selective_args *a = s->a;
    const int64_t mw = square(a), first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
    turn_in(s, s->h, state_of(a, a->s0, n));
    for (int64_t i = 0; i < len; i++) {
        if (i % BLOCK == 0) memcpy(s->starts + i / BLOCK * mw, s->h, (size_t)mw * sizeof(float));
        if (i / BLOCK == (len - 1) / BLOCK) break; /* the last block's are made below */
        take_B(s, first + i);
        forward_token(s, first + i, s->h, s->h, NULL, false);
    }
    turn_in(s, s->carry, state_of(a, a->dsT, n));
    for (int64_t b = blocks_of(len) - 1; b >= 0; b--) {
        const int64_t begin = b * BLOCK, end = at_most(len, begin + BLOCK);
        memcpy(s->states, s->starts + b * mw, (size_t)mw * sizeof(float));
        for (int64_t i = begin; i < end; i++) {
            float *h = s->states + (i - begin) * mw;
            take_B(s, first + i);
            forward_token(s, first + i, h, h + mw, s->decays + (i - begin) * mw, false);
        }
        for (int64_t i = end - 1; i >= begin; i--) {
            const float *h = s->states + (i - begin) * mw;
            take_B(s, first + i);
            token_row(s->C, a->C, a, first + i);
            backward_token(s, first + i, h, h + mw, s->decays + (i - begin) * mw, sums + (first + i) * 2 * a->M, add);
        }
    }
    turn_out(s, state_of(a, a->ds0, n), s->carry);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

static int64_t part_of(int64_t count, int64_t i, int64_t parts) { return count * i / parts; } /* where part i of `count` begins */

static strip strip_at(const lnt_selective_args *a, int64_t i, bool back)
{
    strip s = { .a = a, .first = i * W, .width = at_most(W, a->D - i * W) };
    carve(a, back, (float *)a->workspace + omp_get_thread_num() * scratch_floats(a, back), &s);
    turn_in(&s, s.rate, a->A);
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
