/* The scan on the CPU (README.md). Memory decides: rows of tokens are walked as they lie there, a strip of channels at a time, whose state stays in
 * the first-level cache.
 *
 * Channels do not know of each other, and each is computed by the same operations in whatever strip, vector or lane it lies: strips may follow the
 * number of threads, and the bits do not. Where time is cut does change them; that follows from the shape alone. */
#include <omp.h>

#include "recurrence/scan/scan.h"
#include "recurrence/scan/scan_rows.h"

enum {
    FEW = 128,      /* channels of all sequences below which long sequences are cut into blocks of BLOCK tokens: they would feed no 8 threads */
    BLOCK = 1024,
};

/* Channels first .. first + width - 1 of the tokens begin .. end - 1 of sequence n. */
typedef struct {
    const lnt_scan_args *a;
    int64_t n, begin, end, first, width;
} strip;

static float *channels(const strip *s, const void *state) { return state ? (float *)(uintptr_t)state + s->n * s->a->D + s->first : NULL; }

/* ---- one token ------------------------------------------------------------------------------------------------------------------------------- */

/* How rows are read and written: their type; results past the caches, which would be gone before anybody reads them (their rows are aligned then);
 * whether decays have a sign. */
typedef struct {
    lnt_dtype type;
    bool past, sign;
} rows;

INLINE void put(rows r, void *p, lnt_dtype t, int64_t j, int64_t n, vf x) { scan_put(r.past, p, t, j, n, x); }

/* The factor of the state: e^g, or sign e^g. */
INLINE vf decay_of(rows r, const float *g, const float *sign, int64_t j, int64_t n)
{
    const vf e = v_exp(v_get(g, LINNET_F32, j, n));
    return r.sign ? e * v_get(sign, LINNET_F32, j, n) : e;
}

/* h <- a h + x, o = h, a = e^g or sign e^g. The next row is `away` elements on. */
INLINE void forward_row(rows r, int64_t width, int64_t away, const float *g, const float *sign, const void *x, float *h, void *o)
{
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(g, LINNET_F32, j, away);                                                                                        \
        scan_ahead(x, r.type, j, away);                                                                                            \
        if (r.sign) scan_ahead(sign, LINNET_F32, j, away);                                                                         \
        const vf s = decay_of(r, g, sign, j, n) * v_get(h, LINNET_F32, j, n) + v_get(x, r.type, j, n);                             \
        v_put(h, LINNET_F32, j, n, s);                                                                                             \
        put(r, o, r.type, j, n, s);                                                                                                \
    } while (0)
    EACH_VECTOR(width, BODY);
#undef BODY
}

/* lam = do + carry, carry <- a lam, dx = lam, dg = carry h_{t-1}, dsign = e^g lam h_{t-1}; h_{t-1} is of type u. */
INLINE void backward_row(rows r, lnt_dtype u, int64_t width, int64_t away, const float *g, const float *sign, const void *dout, const void *before,
                         float *carry, void *dx, float *dg, float *dsign)
{
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(g, LINNET_F32, j, away);                                                                                        \
        scan_ahead(dout, r.type, j, away);                                                                                         \
        scan_ahead(before, u, j, away);                                                                                            \
        vf s = v_get(carry, LINNET_F32, j, n);                                                                                     \
        if (dout) s += v_get(dout, r.type, j, n);                                                                                  \
        if (dx) put(r, dx, r.type, j, n, s);                                                                                       \
        s *= v_exp(v_get(g, LINNET_F32, j, n));                                                                                    \
        if (r.sign) {                                                                                                              \
            if (dsign) put(r, dsign, LINNET_F32, j, n, s * v_get(before, u, j, n));                                                \
            s *= v_get(sign, LINNET_F32, j, n);                                                                                    \
        }                                                                                                                          \
        v_put(carry, LINNET_F32, j, n, s);                                                                                         \
        if (dg) put(r, dg, LINNET_F32, j, n, s * v_get(before, u, j, n));                                                          \
    } while (0)
    EACH_VECTOR(width, BODY);
#undef BODY
}

/* What a block does to whatever enters it, z -> decay z + part: forward part <- a part + x, in reverse part <- a (part + do). */
INLINE void compose_row(rows r, bool reverse, int64_t width, const float *g, const float *sign, const void *in, float *part, float *decay)
{
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        const vf e = decay_of(r, g, sign, j, n), x = in ? v_get(in, r.type, j, n) : v_zero(), s = v_get(part, LINNET_F32, j, n);   \
        v_put(part, LINNET_F32, j, n, reverse ? e * (s + x) : e * s + x);                                                          \
        v_put(decay, LINNET_F32, j, n, e * v_get(decay, LINNET_F32, j, n));                                                        \
    } while (0)
    EACH_VECTOR(width, BODY);
#undef BODY
}

/* ---- the tokens of a strip ------------------------------------------------------------------------------------------------------------------- */

static bool goes_past(const lnt_scan_args *a, lnt_dtype t, const void *result) { return scan_goes_past(t, a->tokens, a->D, result); }

INLINE void forward_tokens(rows r, const strip *s, float *h)
{
    const lnt_scan_args *a = s->a;
    for (int64_t t = s->begin; t < s->end; t++) {
        const int64_t i = t * a->D + s->first;
        const float *g = scan_at(a->log_a, LINNET_F32, i), *sign = scan_at(a->sign, LINNET_F32, i);
        forward_row(r, s->width, t + 1 < s->end ? a->D : 0, g, sign, scan_at(a->x, r.type, i), h, scan_at(a->o, r.type, i));
    }
}

INLINE void forward_as(bool sign, const strip *s, float *h)
{
    const bool f32 = s->a->dtype == LINNET_F32;
    if (goes_past(s->a, s->a->dtype, s->a->o)) {
        f32 ? forward_tokens((rows){ LINNET_F32, true, sign }, s, h) : forward_tokens((rows){ LINNET_BF16, true, sign }, s, h);
        v_stream_end();
    } else
        f32 ? forward_tokens((rows){ LINNET_F32, false, sign }, s, h) : forward_tokens((rows){ LINNET_BF16, false, sign }, s, h);
}

/* From the state `start` (NULL: zeros); the last block of a sequence leaves the final state. */
static void forward_strip(const strip *s, const float *start, float *h)
{
    const lnt_scan_args *a = s->a;
    scan_take(h, start, s->width);
    if (a->has_sign)
        forward_as(true, s, h);
    else
        forward_as(false, s, h);
    if (a->sT && s->end == a->cu_seqlens[s->n + 1]) memcpy(channels(s, a->sT), h, (size_t)s->width * sizeof *h);
}

/* Those behind a sequence's first, whose h_{t-1} is an output, then that one. */
INLINE void backward_tokens(rows r, const strip *s, float *carry, const float *zeros)
{
    const lnt_scan_args *a = s->a;
    const int64_t first = a->cu_seqlens[s->n];
    for (int64_t t = s->end - 1; t >= s->begin; t--) {
        const int64_t i = t * a->D + s->first;
        const float *g = scan_at(a->log_a, LINNET_F32, i), *sign = scan_at(a->sign, LINNET_F32, i);
        const void *dout = scan_at(a->dout, r.type, i);
        void *dx = scan_at(a->dx, r.type, i);
        float *dg = scan_at(a->dlog_a, LINNET_F32, i), *dsign = scan_at(a->dsign, LINNET_F32, i);
        if (t > first)
            backward_row(r, r.type, s->width, t - 1 > first ? -a->D : 0, g, sign, dout, scan_at(a->o, r.type, i - a->D), carry, dx, dg, dsign);
        else
            backward_row(r, LINNET_F32, s->width, 0, g, sign, dout, a->s0 ? channels(s, a->s0) : zeros, carry, dx, dg, dsign);
    }
}

INLINE void backward_as(bool sign, const strip *s, float *carry, const float *zeros)
{
    const lnt_scan_args *a = s->a;
    const bool f32 = a->dtype == LINNET_F32;
    if (goes_past(a, a->dtype, a->dx) && goes_past(a, LINNET_F32, a->dlog_a) && goes_past(a, LINNET_F32, a->dsign)) {
        f32 ? backward_tokens((rows){ LINNET_F32, true, sign }, s, carry, zeros)
            : backward_tokens((rows){ LINNET_BF16, true, sign }, s, carry, zeros);
        v_stream_end();
    } else
        f32 ? backward_tokens((rows){ LINNET_F32, false, sign }, s, carry, zeros)
            : backward_tokens((rows){ LINNET_BF16, false, sign }, s, carry, zeros);
}

/* From the gradient `start` of the state behind the last token (NULL: zeros); the first block leaves that of the initial state. zeros [width]. */
static void backward_strip(const strip *s, const float *start, float *carry, float *zeros)
{
    const lnt_scan_args *a = s->a;
    scan_take(carry, start, s->width);
    scan_take(zeros, NULL, s->width);
    if (a->has_sign)
        backward_as(true, s, carry, zeros);
    else
        backward_as(false, s, carry, zeros);
    if (a->ds0 && s->begin == a->cu_seqlens[s->n]) memcpy(channels(s, a->ds0), carry, (size_t)s->width * sizeof *carry);
}

static void compose_strip(const strip *s, bool reverse, float *part, float *decay)
{
    const lnt_scan_args *a = s->a;
    const void *in = reverse ? a->dout : a->x;
    memset(part, 0, (size_t)s->width * sizeof *part);
    for (int64_t j = 0; j < s->width; j++) decay[j] = 1;
    for (int64_t k = 0; k < s->end - s->begin; k++) {
        const int64_t t = reverse ? s->end - 1 - k : s->begin + k, i = t * a->D + s->first;
        const float *g = scan_at(a->log_a, LINNET_F32, i), *sign = scan_at(a->sign, LINNET_F32, i);
        if (a->dtype == LINNET_F32)
            compose_row((rows){ LINNET_F32, false, sign != NULL }, reverse, s->width, g, sign, scan_at(in, LINNET_F32, i), part, decay);
        else
            compose_row((rows){ LINNET_BF16, false, sign != NULL }, reverse, s->width, g, sign, scan_at(in, LINNET_BF16, i), part, decay);
    }
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

/* Tokens of a block; 0: time is not cut. */
static int64_t block_of(const lnt_scan_args *a)
{
    const int64_t longest = a->longest;
    if (a->form != LINNET_FORM_CHUNK) return 0;
    if (a->chunk > 0) return longest > a->chunk ? a->chunk : 0;
    return a->sequences * a->D < FEW && longest >= 2 * BLOCK ? BLOCK : 0;
}

static bool few(const lnt_scan_args *a, int64_t pieces_) { return pieces_ < 2 || a->tokens * a->D < SCAN_SMALL; }

static strip strip_at(const lnt_scan_args *a, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t width)
{
    return (strip){ .a = a, .n = n, .begin = begin, .end = end, .first = first, .width = at_most(width, a->D - first) };
}

static void run_strip(const strip *s, bool back, const float *start, float *scratch)
{
    if (back)
        backward_strip(s, start, scratch, scratch + scan_room(s->a->D));
    else
        forward_strip(s, start, scratch);
}

static const void *seed_of(const lnt_scan_args *a, bool back) { return back ? a->dsT : a->s0; }
static float *scratch_of(const lnt_scan_args *a) { return (float *)a->workspace + omp_get_thread_num() * 2 * scan_room(a->D); }

/* Sequences and strips side by side. */
static void run_whole(const lnt_scan_args *a, bool back, int threads)
{
    const int64_t width = scan_strip_width(a->D, a->sequences, threads), parts = pieces(a->D, width), count = a->sequences * parts;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (!few(a, count))
    for (int64_t p = 0; p < count; p++) {
        const int64_t n = p / parts;
        const strip s = strip_at(a, n, a->cu_seqlens[n], a->cu_seqlens[n + 1], p % parts * width, width);
        run_strip(&s, back, channels(&s, seed_of(a, back)), scratch_of(a));
    }
}

/* Block b of sequence n in the order in which what is carried goes through them. */
static strip block_at(const lnt_scan_args *a, int64_t n, int64_t b, int64_t size, bool back, int64_t first)
{
    const int64_t begin = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - begin, i = back ? pieces(len, size) - 1 - b : b;
    return strip_at(a, n, begin + i * size, begin + at_most(len, (i + 1) * size), first, SCAN_WIDEST);
}

/* What enters each block, in place of what the block does to what enters it. */
static void carry_over(const strip *s, const float *seed, float *map, int64_t blocks)
{
    const int64_t D = s->a->D;
    V_EACH(j, n, s->width)
    {
        vf z = seed ? v_get(seed, LINNET_F32, j, n) : v_zero();
        for (int64_t b = 0; b < blocks; b++) {
            float *part = map + 2 * b * D + s->first, *decay = part + D;
            const vf next = b + 1 < blocks ? v_get(decay, LINNET_F32, j, n) * z + v_get(part, LINNET_F32, j, n) : z;
            v_put(part, LINNET_F32, j, n, z);
            z = next;
        }
    }
}

/* Sequences one after the other, the blocks of one side by side: what each does to what enters it; what enters each; each from that.
 * map [blocks,2,D]. */
static void run_blocks(const lnt_scan_args *a, bool back, int64_t size, int threads)
{
    const int64_t parts = pieces(a->D, SCAN_WIDEST), D = a->D;
    float *map = (float *)a->workspace + threads * 2 * scan_room(a->D);
    for (int64_t n = 0; n < a->sequences; n++) {
        const int64_t blocks = pieces(a->cu_seqlens[n + 1] - a->cu_seqlens[n], size), count = blocks * parts;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (!few(a, count))
        for (int64_t p = 0; p < count - parts; p++) { /* nothing enters behind the last */
            const strip s = block_at(a, n, p / parts, size, back, p % parts * SCAN_WIDEST);
            float *part = map + 2 * (p / parts) * D + s.first;
            compose_strip(&s, back, part, part + D);
        }
#pragma omp parallel for num_threads(threads) if (!few(a, count))
        for (int64_t p = 0; p < parts; p++) {
            const strip s = strip_at(a, n, 0, 0, p * SCAN_WIDEST, SCAN_WIDEST);
            carry_over(&s, channels(&s, seed_of(a, back)), map, blocks);
        }
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (!few(a, count))
        for (int64_t p = 0; p < count; p++) {
            const strip s = block_at(a, n, p / parts, size, back, p % parts * SCAN_WIDEST);
            run_strip(&s, back, map + 2 * (p / parts) * D + s.first, scratch_of(a));
        }
        if (!blocks)
            for (int64_t p = 0; p < parts; p++) { /* an empty sequence hands its state on */
                const strip s = strip_at(a, n, a->cu_seqlens[n], a->cu_seqlens[n], p * SCAN_WIDEST, SCAN_WIDEST);
                run_strip(&s, back, channels(&s, seed_of(a, back)), a->workspace);
            }
    }
}

static void run(const lnt_scan_args *a, bool back, int threads)
{
    const int64_t size = block_of(a);
    if (size)
        run_blocks(a, back, size, threads);
    else
        run_whole(a, back, threads);
}

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_scan_args *a = args;
    const int64_t size = block_of(a), maps = size ? pieces(a->longest, size) : 0;
    (void)back;
    return (size_t)(threads * 2 * scan_room(a->D) + maps * 2 * a->D) * sizeof(float);
}

static void forward(const void *args, int threads) { run(args, false, threads); }
static void backward(const void *args, int threads) { run(args, true, threads); }

extern const lnt_recur_impl LNT_V(lnt_scan_chunk), LNT_V(lnt_scan_recurrent);
const lnt_recur_impl LNT_V(lnt_scan_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                               .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_scan_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                   .workspace = workspace, .forward = forward, .backward = backward };
