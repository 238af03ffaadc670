/* Complex scans on the CPU (README.md): as the scan, rows of tokens are walked as they lie, a strip of channels at a time, of which the real and the
 * imaginary parts stand in rows of their own. Time is not cut, and channels do not know of each other: the bits follow neither the strips nor the
 * number of threads. */
#include <omp.h>

#include "recurrence/scan/scan.h"
#include "recurrence/scan/scan_rows.h"

/* A strip of channels, with rows of scratch: what is carried (the state, or the gradient of the one behind), the decay, what rounding took from it;
 * backward the state that a sequence begins with, and sums over tokens of the gradients of lru's decays.
 *
 * lru's decays are applied again and again: what one of them lacks by rounding is lacked T times (5e-6 of the state after 400 tokens that forget
 * 1 % each), so they come in two floats. Those of tokens round one way and the other. */
enum { CARRY_RE, CARRY_IM, DECAY_RE, DECAY_IM, REST_RE, REST_IM, START_RE, START_IM, SUM_LOG, SUM_ANGLE, ROWS };
typedef struct {
    const lnt_complex_args *a;
    int64_t first, width;
    float *row[ROWS];
} strip;

static bool constant(const lnt_complex_args *a) { return a->op->kind == LNT_LRU; }

/* The strip's first channel, part p of row r of [.,2,D]. */
INLINE void *part_of(const strip *s, const void *x, lnt_dtype t, int64_t r, int p) { return scan_at(x, t, (2 * r + p) * s->a->D + s->first); }

/* The decays of row r. */
INLINE void make_decays(const strip *s, int64_t r, int64_t away)
{
    const int64_t i = r * s->a->D + s->first;
    const float *g = scan_at(s->a->log_a, LINNET_F32, i), *angle = scan_at(s->a->angle, LINNET_F32, i);
    V_EACH(j, n, s->width)
    {
        vf c, d;
        scan_ahead(g, LINNET_F32, j, away);
        scan_ahead(angle, LINNET_F32, j, away);
        const vf e = v_exp(v_get(g, LINNET_F32, j, n));
        v_cos_sin(v_get(angle, LINNET_F32, j, n), &c, &d);
        v_put(s->row[DECAY_RE], LINNET_F32, j, n, e * c);
        v_put(s->row[DECAY_IM], LINNET_F32, j, n, e * d);
    }
}

/* The same for all tokens. */
static void make_constants(const strip *s)
{
    const float *g = (const float *)s->a->log_a + s->first, *angle = (const float *)s->a->angle + s->first;
    for (int64_t j = 0; j < s->width; j++) {
        const double e = exp((double)g[j]), part[2] = { e * cos((double)angle[j]), e * sin((double)angle[j]) };
        for (int p = 0; p < 2; p++) {
            s->row[DECAY_RE + p][j] = (float)part[p];
            s->row[REST_RE + p][j] = (float)(part[p] - (double)s->row[DECAY_RE + p][j]);
        }
    }
}

/* a z, or conj(a) z (turn = -1), plus w. */
INLINE void turned(const strip *s, int64_t j, int64_t n, vf turn, vf *re, vf *im, vf wr, vf wi)
{
    const vf c = v_get(s->row[DECAY_RE], LINNET_F32, j, n), d = turn * v_get(s->row[DECAY_IM], LINNET_F32, j, n), x = *re, y = *im;
    if (constant(s->a)) {
        const vf e = v_get(s->row[REST_RE], LINNET_F32, j, n), f = turn * v_get(s->row[REST_IM], LINNET_F32, j, n);
        wr = v_fma(e, x, v_fma(-f, y, wr));
        wi = v_fma(e, y, v_fma(f, x, wi));
    }
    *re = v_fma(c, x, v_fma(-d, y, wr));
    *im = v_fma(c, y, v_fma(d, x, wi));
}

/* h <- a h + x, o = h. */
INLINE void forward_row(lnt_dtype type, const strip *s, int64_t t, int64_t away)
{
    const lnt_complex_args *a = s->a;
    float *hr = s->row[CARRY_RE], *hi = s->row[CARRY_IM];
    const void *xr = part_of(s, a->x, type, t, 0), *xi = part_of(s, a->x, type, t, 1);
    void *ore = part_of(s, a->o, type, t, 0), *oim = part_of(s, a->o, type, t, 1);
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(xr, type, j, away);                                                                                             \
        scan_ahead(xi, type, j, away);                                                                                             \
        vf re = v_get(hr, LINNET_F32, j, n), im = v_get(hi, LINNET_F32, j, n);                                                     \
        turned(s, j, n, v_set(1.0f), &re, &im, v_get(xr, type, j, n), v_get(xi, type, j, n));                                      \
        v_put(hr, LINNET_F32, j, n, re);                                                                                           \
        v_put(hi, LINNET_F32, j, n, im);                                                                                           \
        v_put(ore, type, j, n, re);                                                                                                \
        v_put(oim, type, j, n, im);                                                                                                \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* lam = do + carry, carry <- conj(a) lam, dx = lam; c = carry conj(h_{t-1}) is the gradient of log_a and angle. h_{t-1} [2] is of type u. */
INLINE void backward_row(lnt_dtype type, lnt_dtype u, const strip *s, int64_t t, const void *const *before, int64_t away)
{
    const lnt_complex_args *a = s->a;
    float *cr = s->row[CARRY_RE], *ci = s->row[CARRY_IM], *sum_log = s->row[SUM_LOG], *sum_angle = s->row[SUM_ANGLE];
    const void *dr = part_of(s, a->dout, type, t, 0), *di = part_of(s, a->dout, type, t, 1);
    void *xr = part_of(s, a->dx, type, t, 0), *xi = part_of(s, a->dx, type, t, 1);
    const bool sums = constant(a);
    float *dlog = sums ? NULL : scan_at(a->dlog_a, LINNET_F32, t * a->D + s->first);
    float *dangle = sums ? NULL : scan_at(a->dangle, LINNET_F32, t * a->D + s->first);
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        for (int p = 0; p < 2; p++) {                                                                                              \
            scan_ahead(p ? di : dr, type, j, away);                                                                                \
            scan_ahead(before[p], u, j, away);                                                                                     \
        }                                                                                                                          \
        vf re = v_get(cr, LINNET_F32, j, n), im = v_get(ci, LINNET_F32, j, n);                                                     \
        if (dr) re += v_get(dr, type, j, n), im += v_get(di, type, j, n);                                                          \
        if (xr) v_put(xr, type, j, n, re), v_put(xi, type, j, n, im);                                                              \
        turned(s, j, n, v_set(-1.0f), &re, &im, v_zero(), v_zero());                                                               \
        v_put(cr, LINNET_F32, j, n, re);                                                                                           \
        v_put(ci, LINNET_F32, j, n, im);                                                                                           \
        const vf hr = v_get(before[0], u, j, n), hi = v_get(before[1], u, j, n);                                                   \
        const vf to_log = v_fma(re, hr, im * hi), to_angle = v_fma(im, hr, -re * hi);                                              \
        if (sums) {                                                                                                                \
            v_put(sum_log, LINNET_F32, j, n, v_get(sum_log, LINNET_F32, j, n) + to_log);                                           \
            v_put(sum_angle, LINNET_F32, j, n, v_get(sum_angle, LINNET_F32, j, n) + to_angle);                                     \
        }                                                                                                                          \
        if (dlog) v_put(dlog, LINNET_F32, j, n, to_log);                                                                           \
        if (dangle) v_put(dangle, LINNET_F32, j, n, to_angle);                                                                     \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* ---- the tokens of a strip ------------------------------------------------------------------------------------------------------------------- */

static void load_state(const strip *s, const void *state, int64_t n, int re)
{
    for (int p = 0; p < 2; p++) scan_take(s->row[re + p], part_of(s, state, LINNET_F32, n, p), s->width);
}
static void store_state(const strip *s, void *state, int64_t n)
{
    for (int p = 0; p < 2 && state; p++) memcpy(part_of(s, state, LINNET_F32, n, p), s->row[CARRY_RE + p], (size_t)s->width * sizeof(float));
}

static void forward_strip(const strip *s, int64_t n)
{
    const lnt_complex_args *a = s->a;
    const int64_t end = a->cu_seqlens[n + 1];
    load_state(s, a->s0, n, CARRY_RE);
    for (int64_t t = a->cu_seqlens[n]; t < end; t++) {
        const int64_t next = t + 1 < end ? a->D : 0;
        if (!constant(a)) make_decays(s, t, next);
        if (a->dtype == LINNET_F32)
            forward_row(LINNET_F32, s, t, 2 * next);
        else
            forward_row(LINNET_BF16, s, t, 2 * next);
    }
    store_state(s, a->sT, n);
}

static void backward_strip(const strip *s, int64_t n)
{
    const lnt_complex_args *a = s->a;
    const int64_t first = a->cu_seqlens[n];
    load_state(s, a->dsT, n, CARRY_RE);
    load_state(s, a->s0, n, START_RE);
    for (int64_t t = a->cu_seqlens[n + 1] - 1; t >= first; t--) {
        const int64_t next = t - 1 > first ? -a->D : 0;
        if (!constant(a)) make_decays(s, t, next);
        const void *before[2];
        for (int p = 0; p < 2; p++) before[p] = t > first ? part_of(s, a->o, a->dtype, t - 1, p) : s->row[START_RE + p];
        if (a->dtype == LINNET_F32)
            backward_row(LINNET_F32, LINNET_F32, s, t, before, 2 * next);
        else if (t > first)
            backward_row(LINNET_BF16, LINNET_BF16, s, t, before, 2 * next);
        else
            backward_row(LINNET_BF16, LINNET_F32, s, t, before, 0);
    }
    store_state(s, a->ds0, n);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

/* Sums over sequences are made in parts that follow from the shape; what needs none has a part for each sequence. */
static int64_t parts_of(const lnt_complex_args *a, bool back) { return back && constant(a) ? at_most(a->sequences, SCAN_PARTS) : a->sequences; }

static float *sums_of(const lnt_complex_args *a, int threads) { return (float *)a->workspace + threads * ROWS * scan_room(a->D); }

static strip strip_at(const lnt_complex_args *a, int64_t i, int64_t width)
{
    strip s = { .a = a, .first = i * width, .width = at_most(width, a->D - i * width) };
    float *scratch = (float *)a->workspace + omp_get_thread_num() * ROWS * scan_room(a->D);
    for (int r = 0; r < ROWS; r++) s.row[r] = scratch + r * scan_room(a->D);
    if (constant(a)) make_constants(&s);
    return s;
}

/* What parts' sums [parts,2,D] add up to, in order. */
static void add_sums(const lnt_complex_args *a, const float *sums, int64_t parts)
{
    for (int k = 0; k < 2; k++) {
        float *out = k ? a->dangle : a->dlog_a;
        for (int64_t d = 0; out && d < a->D; d++) {
            out[d] = 0;
            for (int64_t p = 0; p < parts; p++) out[d] += sums[(2 * p + k) * a->D + d];
        }
    }
}

static void run(const lnt_complex_args *a, bool back, int threads)
{
    const int64_t parts = parts_of(a, back), width = scan_strip_width(a->D, parts, threads), strips = pieces(a->D, width), count = parts * strips;
    float *sums = sums_of(a, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1 && a->tokens * a->D >= SCAN_SMALL)
    for (int64_t i = 0; i < count; i++) {
        const int64_t p = i / strips;
        const strip s = strip_at(a, i % strips, width);
        for (int k = 0; back && k < 2; k++) scan_take(s.row[SUM_LOG + k], NULL, s.width);
        for (int64_t n = scan_part(a->sequences, p, parts); n < scan_part(a->sequences, p + 1, parts); n++)
            if (back)
                backward_strip(&s, n);
            else
                forward_strip(&s, n);
        for (int k = 0; back && constant(a) && k < 2; k++)
            memcpy(sums + (2 * p + k) * a->D + s.first, s.row[SUM_LOG + k], (size_t)s.width * sizeof(float));
    }
    if (back && constant(a)) add_sums(a, sums, parts);
}

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_complex_args *a = args;
    return (size_t)(threads * ROWS * scan_room(a->D) + (back && constant(a) ? parts_of(a, back) * 2 * a->D : 0)) * sizeof(float);
}

static void forward(const void *args, int threads) { run(args, false, threads); }
static void backward(const void *args, int threads) { run(args, true, threads); }

/* Time is not cut: both forms are one walk. */
extern const lnt_recur_impl LNT_V(lnt_complex_chunk), LNT_V(lnt_complex_recurrent);
const lnt_recur_impl LNT_V(lnt_complex_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                                  .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_complex_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                      .workspace = workspace, .forward = forward, .backward = backward };
