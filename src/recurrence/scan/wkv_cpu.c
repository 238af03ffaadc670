/* WKV on the CPU (README.md): as the scan, rows of tokens walked as they lie, a strip of channels at a time. Time is not cut, and channels do not
 * know of each other: the bits follow neither the strips nor the number of threads. Backward keeps the sums at the start of every BLOCK tokens and
 * makes the others again, block by block from the end.
 *
 * Inside a call the sums a and b stand over 2^n, n an integer of each channel, in place of e^m (operators.md#wkv): a token then has one exponential,
 * y = e^k / 2^n, which its read-out takes times e^u, and the decay is a constant. n moves when a weight or b leaves the range below, which is seldom,
 * and since it moves by whole powers of two, nothing is rounded by it. m is followed only for those who ask for it. */
#include <omp.h>

#include "recurrence/scan/scan.h"
#include "recurrence/scan/scan_rows.h"

enum {
    BLOCK = 32,
    WIDEST = 512, /* channels of a strip in reverse: a block's sums are 200 KB */
    SUMS = 3,     /* a, b, n; of a token of a block a, b, y */
};

/* n stays while weights are at most 2^LARGEST and b is at least SMALLEST; with e^u within e^-MOST_U and e^MOST_U, 2^100, nothing that is made of
 * these leaves the floats. Numbers beyond MOST_K, where two neighbours are an eighth apart, are taken for it. */
#define LARGEST 20.0f
#define SMALLEST 0x1p-40f
#define MOST_U 69.0f
#define MOST_K 2e6f

/* A strip of channels with rows of scratch: the sums and n; e^-e^w and what rounding took from it, e^u, e^w; m and the token it was the k of; what is
 * carried back, what that token's k gets of dm, sums over tokens for dw and du. */
enum { A, B, N, DECAY, REST, BONUS, RATE, M, LAST, DA, DB, DM, SUM_W, SUM_U, ROWS };
typedef struct {
    const lnt_wkv_args *a;
    int64_t first, width;
    float *row[ROWS];
    float *states, *shifts, *starts; /* backward: [BLOCK,SUMS,room], [BLOCK,room] where `moved`, [blocks,SUMS,room] */
    unsigned char *moved;            /* [BLOCK,room/LNT_VL]: whether n moved at a token of the block */
} strip;

static int64_t room_of(const lnt_wkv_args *a, bool back) { return back ? (at_most(a->D, WIDEST) + 15) / 16 * 16 : scan_room(a->D); }

/* ---- numbers over powers of two -------------------------------------------------------------------------------------------------------------- */

/* x held within -most and most; NaN stays. */
INLINE vf between(vf x, float most) { return v_max(v_set(-most), v_min(v_set(most), x)); }

/* e^x = p 2^n, n an integer and p from 0.7 to 1.42, to 1 ulp; *rest is what rounding took from p. v_exp2's polynomial. */
INLINE vf exp_parts(vf x, vf *n, vf *rest)
{
    *n = v_nearest(x * 1.44269504f);
    vf r = x - *n * 0.693359375f;
    r = r + *n * 2.12194440e-4f;
    vf q = v_set(1.39336411e-3f);
    q = q * r + 8.36914845e-3f;
    q = q * r + 4.16664671e-2f;
    q = q * r + 1.66665048e-1f;
    q = q * r + 5e-1f;
    q = q * r + 1.0f;
    const vf z = q * r, p = 1.0f + z;
    *rest = z - (p - 1.0f);
    return p;
}

/* x 2^n for any x and integer n. */
INLINE vf times_power(vf x, vf n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
    const vf all = v_max(v_set(-252.0f), v_min(v_set(252.0f), n)), half = v_nearest(0.5f * all);
    return x * v_by_power(v_set(1.0f), half) * v_by_power(v_set(1.0f), all - half);
#endif
}

/* The largest integer n with 2^n <= x, -inf for 0. */
INLINE vf exponent_of(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_getexp_ps((__m512)x);
#else
    return v_select(x >= v_set(0x1p-126f), __builtin_convertvector((vi)x >> 23, vf) - 127.0f, v_set(-INFINITY));
#endif
}

/* Whether all x <= most and all y >= least; NaN is neither. */
INLINE bool all_within(vf x, vf most, vf y, vf least)
{
#if defined(__AVX512F__)
    const __mmask16 first = _mm512_cmp_ps_mask((__m512)x, (__m512)most, _CMP_LE_OQ);
    return _kortestc_mask16_u8(_mm512_mask_cmp_ps_mask(first, (__m512)y, (__m512)least, _CMP_GE_OQ), 0);
#else
    const vi all = (x <= most) & (y >= least);
#if defined(__AVX2__)
    return _mm256_movemask_ps((__m256)all) == 0xff;
#elif defined(__SSE__)
    return _mm_movemask_ps((__m128)all) == 0xf;
#else
    int32_t every = -1;
    for (int i = 0; i < LNT_VL; i++) every &= all[i];
    return every != 0;
#endif
#endif
}

/* ---- a token --------------------------------------------------------------------------------------------------------------------------------- */

/* The sums before a token, n, the token's weight; b behind it; and what n was more before it (shift). */
typedef struct {
    vf a, b, power, y, next, shift;
} sums;

/* b, or a, behind a token that adds x. */
INLINE vf behind(vf decay, vf rest, vf sum, vf x) { return v_fma(decay, sum, v_fma(rest, sum, x)); }

/* n so that the larger of the two terms of b is near 1, unless that takes b itself, which is read first, out of the floats. NaN stays. */
static __attribute__((noinline, cold)) sums move(sums x, vf k, vf decay, vf rest)
{
    vf n, unused;
    const vf p = exp_parts(between(k, MOST_K), &n, &unused), before = x.power;
    x.power = v_max(v_max(before + exponent_of(decay * x.b), before + exponent_of(x.b) - 100.0f), n);
    x.shift = before - x.power;
    x.a = times_power(x.a, x.shift);
    x.b = times_power(x.b, x.shift);
    x.y = times_power(p, n - x.power);
    x.next = behind(decay, rest, x.b, x.y);
    return x;
}

/* What a token is to the sums a, b, n before it; true: n has moved. */
INLINE bool weigh(sums *x, vf k, vf decay, vf rest)
{
    vf n, unused;
    const vf p = exp_parts(v_max(v_set(-MOST_K), k), &n, &unused), more = n - x->power;
    x->y = v_by_power(p, more);
    x->next = behind(decay, rest, x->b, x->y);
    if (__builtin_expect(all_within(more, v_set(LARGEST), x->next, v_set(SMALLEST)), 1)) return false;
    *x = move(*x, k, decay, rest);
    return true;
}

INLINE vf of(const strip *s, int r, int64_t j, int64_t n) { return v_get(s->row[r], LINNET_F32, j, n); }
INLINE void put(const strip *s, int r, int64_t j, int64_t n, vf x) { v_put(s->row[r], LINNET_F32, j, n, x); }

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
        const vf v = v_get(pv, type, j, n), decay = of(s, DECAY, j, n), rest = of(s, REST, j, n);                                  \
        sums q = { .a = of(s, A, j, n), .b = of(s, B, j, n), .power = of(s, N, j, n) };                                            \
        if (weigh(&q, v_get(pk, type, j, n), decay, rest)) put(s, N, j, n, q.power);                                               \
        const vf y = of(s, BONUS, j, n) * q.y, share = 1.0f / (q.b + y);                                                           \
        scan_put(past, o, type, j, n, v_fma(y * share, v, q.a * share));                                                           \
        put(s, A, j, n, behind(decay, rest, q.a, q.y * v));                                                                        \
        put(s, B, j, n, q.next);                                                                                                   \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* The sums behind a token; keep: and those before it for the way back. */
INLINE void make_row(lnt_dtype type, bool keep, const strip *s, int64_t begin, int64_t token, int64_t away)
{
    const lnt_wkv_args *x = s->a;
    const int64_t at = (begin + token) * x->D + s->first, room = room_of(x, true), i = token % BLOCK;
    const void *pk = scan_at(x->k, type, at), *pv = scan_at(x->v, type, at);
    float *to = s->states + i * SUMS * room, *shift = s->shifts + i * room;
    unsigned char *moved = s->moved + i * (room / LNT_VL);
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(pk, type, j, away);                                                                                             \
        scan_ahead(pv, type, j, away);                                                                                             \
        const vf decay = of(s, DECAY, j, n), rest = of(s, REST, j, n);                                                             \
        sums q = { .a = of(s, A, j, n), .b = of(s, B, j, n), .power = of(s, N, j, n) };                                            \
        const bool moves = weigh(&q, v_get(pk, type, j, n), decay, rest);                                                          \
        if (moves) put(s, N, j, n, q.power);                                                                                       \
        if (keep) {                                                                                                                \
            v_put(to, LINNET_F32, j, n, q.a);                                                                                      \
            v_put(to + room, LINNET_F32, j, n, q.b);                                                                               \
            v_put(to + 2 * room, LINNET_F32, j, n, q.y);                                                                           \
            moved[j / LNT_VL] = moves;                                                                                             \
            if (moves) v_put(shift, LINNET_F32, j, n, q.shift);                                                                    \
        }                                                                                                                          \
        put(s, A, j, n, behind(decay, rest, q.a, q.y * v_get(pv, type, j, n)));                                                    \
        put(s, B, j, n, q.next);                                                                                                   \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* The equations of operators.md#wkv, with y in place of f_2 and e^u y in place of e_2. `state`: whether the final state has gradients; then DM goes
 * to the k that m was last. */
INLINE void backward_row(lnt_dtype type, bool past, bool state, const strip *s, int64_t begin, int64_t token, int64_t away)
{
    const lnt_wkv_args *x = s->a;
    const int64_t at = (begin + token) * x->D + s->first, room = room_of(x, true), i = token % BLOCK;
    const float *from = s->states + i * SUMS * room, *shift = s->shifts + i * room;
    const unsigned char *moved = s->moved + i * (room / LNT_VL);
    const void *pv = scan_at(x->v, type, at), *dout = scan_at(x->dout, type, at);
    void *dk = scan_at(x->dk, type, at), *dv = scan_at(x->dv, type, at);
#define BODY(j, n)                                                                                                                 \
    do {                                                                                                                           \
        scan_ahead(pv, type, j, away);                                                                                             \
        scan_ahead(dout, type, j, away);                                                                                           \
        const vf a = v_get(from, LINNET_F32, j, n), b = v_get(from + room, LINNET_F32, j, n);                                      \
        const vf y = v_get(from + 2 * room, LINNET_F32, j, n), v = v_get(pv, type, j, n);                                          \
        const vf da = of(s, DA, j, n), db = of(s, DB, j, n), decay = of(s, DECAY, j, n), rest = of(s, REST, j, n);                 \
        const vf e = of(s, BONUS, j, n) * y, share = 1.0f / (b + e), of_v = e * share, o = v_fma(of_v, v, a * share);              \
        const vf g = dout ? v_get(dout, type, j, n) : v_zero(), through = of_v * g, r = share * g, read = through * (v - o);       \
        vf to_k = v_fma(y, v_fma(v, da, db), read);                                                                                \
        if (state) to_k += v_select((vi)of(s, LAST, j, n) == (vi){ 0 } + (int32_t)token, of(s, DM, j, n), v_zero());               \
        if (dk) scan_put(past, dk, type, j, n, to_k);                                                                              \
        if (dv) scan_put(past, dv, type, j, n, v_fma(y, da, through));                                                             \
        put(s, SUM_W, j, n, v_fma(decay, v_fma(a, da, b * db), of(s, SUM_W, j, n)));                                               \
        put(s, SUM_U, j, n, of(s, SUM_U, j, n) + read);                                                                            \
        vf new_a = behind(decay, rest, da, r), new_b = behind(decay, rest, db, -(o * r));                                          \
        if (__builtin_expect(moved[j / LNT_VL], 0)) {                                                                              \
            new_a = times_power(new_a, v_get(shift, LINNET_F32, j, n));                                                            \
            new_b = times_power(new_b, v_get(shift, LINNET_F32, j, n));                                                            \
        }                                                                                                                          \
        put(s, DA, j, n, new_a);                                                                                                   \
        put(s, DB, j, n, new_b);                                                                                                   \
    } while (0)
    EACH_VECTOR(s->width, BODY);
#undef BODY
}

/* m, and which token's k it was. */
INLINE void follow_row(lnt_dtype type, const strip *s, int64_t begin, int64_t token)
{
    const void *k = scan_at(s->a->k, type, (begin + token) * s->a->D + s->first);
    V_EACH(j, n, s->width)
    {
        const vf older = of(s, M, j, n) - of(s, RATE, j, n), newer = v_get(k, type, j, n);
        const vi more = newer > older;
        put(s, M, j, n, v_select(more, newer, older));
        put(s, LAST, j, n, v_select(more, (vf)((vi){ 0 } + (int32_t)token), of(s, LAST, j, n)));
    }
}

/* ---- the tokens of a strip ------------------------------------------------------------------------------------------------------------------- */

/* So few tokens leave the state, to the bit, that they leave one by one: the steps of a session (program/plan.h: LNT_ALONE_TOKENS). */
enum { STEPS = 8 };

static float *state_of(const strip *s, const void *state, int64_t n) { return scan_at(state, LINNET_F32, n * s->a->D + s->first); }

static void follow(const strip *s, int64_t begin, int64_t token)
{
    s->a->dtype == LINNET_F32 ? follow_row(LINNET_F32, s, begin, token) : follow_row(LINNET_BF16, s, begin, token);
}

/* Sums that are over e^m: m, and e^m times a and b over 2^n. */
INLINE void take_sums(const strip *s, int64_t j, int64_t n, vf a, vf b, vf m)
{
    vf power, unused;
    const vf p = exp_parts(between(m, MOST_K), &power, &unused);
    const vi none = b == v_zero();
    put(s, A, j, n, v_select(none, v_zero(), p * a));
    put(s, B, j, n, p * b);
    put(s, N, j, n, v_select(none, v_set(-INFINITY), power));
    put(s, M, j, n, v_select(none, v_set(-INFINITY), m));
}

static void take_state(const strip *s, int64_t sequence)
{
    const lnt_wkv_args *x = s->a;
    scan_take(s->row[A], state_of(s, x->a0, sequence), s->width);
    scan_take(s->row[B], state_of(s, x->b0, sequence), s->width);
    scan_take(s->row[M], state_of(s, x->m0, sequence), s->width);
    V_EACH(j, n, s->width) take_sums(s, j, n, of(s, A, j, n), of(s, B, j, n), of(s, M, j, n));
}

/* What a and b over 2^n are multiplied by to be over e^m; 0 where b is 0. */
INLINE vf over_m(const strip *s, int64_t j, int64_t n)
{
    vf power, unused;
    const vf p = exp_parts(between(of(s, M, j, n), MOST_K), &power, &unused);
    return v_select(of(s, B, j, n) == v_zero(), v_zero(), times_power(1.0f / p, of(s, N, j, n) - power));
}

static void give_state(const strip *s, int64_t sequence)
{
    const lnt_wkv_args *x = s->a;
    float *a = state_of(s, x->aT, sequence), *b = state_of(s, x->bT, sequence), *m = state_of(s, x->mT, sequence);
    V_EACH(j, n, s->width)
    {
        const vf over = over_m(s, j, n);
        if (a) v_put(a, LINNET_F32, j, n, over * of(s, A, j, n));
        if (b) v_put(b, LINNET_F32, j, n, over * of(s, B, j, n));
        if (m) v_put(m, LINNET_F32, j, n, v_select(of(s, B, j, n) == v_zero(), v_zero(), of(s, M, j, n)));
    }
}

/* As if the state had been given and taken. */
static void hand_over(const strip *s)
{
    V_EACH(j, n, s->width)
    {
        const vf over = over_m(s, j, n), m = v_select(of(s, B, j, n) == v_zero(), v_zero(), of(s, M, j, n));
        take_sums(s, j, n, over * of(s, A, j, n), over * of(s, B, j, n), m);
    }
}

/* A state that nothing follows, as it came. */
static void hand_on(const strip *s, int64_t n)
{
    const lnt_wkv_args *x = s->a;
    const void *const from[] = { x->a0, x->b0, x->m0 };
    void *const to[] = { x->aT, x->bT, x->mT };
    for (int i = 0; i < SUMS; i++)
        if (to[i]) scan_take(state_of(s, to[i], n), state_of(s, from[i], n), s->width);
    for (int64_t j = 0; x->mT && j < s->width; j++)
        if (!x->b0 || state_of(s, x->b0, n)[j] == 0) state_of(s, x->mT, n)[j] = 0;
}

static void forward_strip(const strip *s, int64_t n)
{
    const lnt_wkv_args *x = s->a;
    const int64_t begin = x->cu_seqlens[n], end = x->cu_seqlens[n + 1];
    const bool past = scan_goes_past(x->dtype, x->tokens, x->D, x->o), state = x->aT || x->bT || x->mT;
    if (begin == end) {
        hand_on(s, n);
        return;
    }
    take_state(s, n);
    for (int64_t t = begin; t < end; t++) {
        const int64_t away = t + 1 < end ? x->D : 0;
        if (past)
            x->dtype == LINNET_F32 ? forward_row(LINNET_F32, true, s, t, away) : forward_row(LINNET_BF16, true, s, t, away);
        else
            x->dtype == LINNET_F32 ? forward_row(LINNET_F32, false, s, t, away) : forward_row(LINNET_BF16, false, s, t, away);
        if (state) follow(s, begin, t - begin);
        if (state && end - begin <= STEPS && t + 1 < end) hand_over(s);
    }
    if (past) v_stream_end();
    if (state) give_state(s, n);
}

static void make(bool keep, const strip *s, int64_t begin, int64_t token, int64_t away)
{
    if (s->a->dtype == LINNET_F32)
        keep ? make_row(LINNET_F32, true, s, begin, token, away) : make_row(LINNET_F32, false, s, begin, token, away);
    else
        keep ? make_row(LINNET_BF16, true, s, begin, token, away) : make_row(LINNET_BF16, false, s, begin, token, away);
}

static void fetch_gradients(const strip *s, int64_t n)
{
    scan_take(s->row[DA], state_of(s, s->a->daT, n), s->width);
    scan_take(s->row[DB], state_of(s, s->a->dbT, n), s->width);
    scan_take(s->row[DM], state_of(s, s->a->dmT, n), s->width);
}

static void put_gradients(const strip *s, int64_t n)
{
    void *const to[] = { s->a->da0, s->a->db0, s->a->dm0 };
    for (int i = 0; i < 3; i++)
        if (to[i]) memcpy(state_of(s, to[i], n), s->row[DA + i], (size_t)s->width * sizeof(float));
}

/* The final state's gradients as those of a and b over 2^n. What dm is more than these make of m goes to the one k, or m0, that m came from; each
 * decay on the way has it too. */
static void take_gradients(const strip *s, int64_t sequence, int64_t len)
{
    fetch_gradients(s, sequence);
    if (!s->a->daT && !s->a->dbT && !s->a->dmT) return;
    V_EACH(j, n, s->width) put(s, LAST, j, n, (vf)((vi){ 0 } - 1));
    for (int64_t i = 0; i < len; i++) follow(s, s->a->cu_seqlens[sequence], i);
    V_EACH(j, n, s->width)
    {
        const vf over = over_m(s, j, n), da = over * of(s, DA, j, n), db = over * of(s, DB, j, n);
        const vf rest = of(s, DM, j, n) - (of(s, A, j, n) * da + of(s, B, j, n) * db);
        const vf decays = __builtin_convertvector((int32_t)(len - 1) - (vi)of(s, LAST, j, n), vf);
        put(s, DA, j, n, da);
        put(s, DB, j, n, db);
        put(s, DM, j, n, rest);
        put(s, SUM_W, j, n, of(s, SUM_W, j, n) + decays * rest);
    }
}

/* The initial state's; one that is none has none. */
static void give_gradients(const strip *s, int64_t sequence)
{
    take_state(s, sequence);
    V_EACH(j, n, s->width)
    {
        vf power, unused;
        const vf p = exp_parts(between(of(s, M, j, n), MOST_K), &power, &unused);
        const vf a = of(s, A, j, n), b = of(s, B, j, n), da = of(s, DA, j, n), db = of(s, DB, j, n);
        const vi none = b == v_zero();
        put(s, DA, j, n, v_select(none, v_zero(), p * da));
        put(s, DB, j, n, v_select(none, v_zero(), p * db));
        put(s, DM, j, n, v_select(none, v_zero(), a * da + b * db + v_select((vi)of(s, LAST, j, n) < 0, of(s, DM, j, n), v_zero())));
    }
    put_gradients(s, sequence);
}

INLINE void back_as(lnt_dtype type, bool past, bool state, const strip *s, int64_t begin, int64_t token)
{
    const int64_t away = token > 0 ? -(int64_t)s->a->D : 0;
    if (past)
        state ? backward_row(type, true, true, s, begin, token, away) : backward_row(type, true, false, s, begin, token, away);
    else
        state ? backward_row(type, false, true, s, begin, token, away) : backward_row(type, false, false, s, begin, token, away);
}
static void back(bool past, bool state, const strip *s, int64_t begin, int64_t token)
{
    s->a->dtype == LINNET_F32 ? back_as(LINNET_F32, past, state, s, begin, token) : back_as(LINNET_BF16, past, state, s, begin, token);
}

static void backward_strip(const strip *s, int64_t n)
{
    const lnt_wkv_args *x = s->a;
    const int64_t room = room_of(x, true), one = SUMS * room, begin = x->cu_seqlens[n], len = x->cu_seqlens[n + 1] - begin;
    const bool past = scan_goes_past(x->dtype, x->tokens, x->D, x->dk) && scan_goes_past(x->dtype, x->tokens, x->D, x->dv);
    const bool state = x->daT || x->dbT || x->dmT;
    const size_t bytes = (size_t)one * sizeof(float);
    if (len == 0) { /* all that there is to a state that nothing follows */
        fetch_gradients(s, n);
        put_gradients(s, n);
        return;
    }
    take_state(s, n);
    for (int64_t i = 0; i < len; i++) { /* rows A, B and N follow each other */
        if (i % BLOCK == 0) memcpy(s->starts + i / BLOCK * one, s->row[A], bytes);
        if (i / BLOCK == (len - 1) / BLOCK) break; /* the last block's are made below */
        make(false, s, begin, i, at_most(2, len - 1 - i) * x->D);
    }
    for (int64_t b = pieces(len, BLOCK) - 1; b >= 0; b--) {
        const int64_t first = b * BLOCK, end = at_most(len, first + BLOCK);
        memcpy(s->row[A], s->starts + b * one, bytes);
        for (int64_t i = first; i < end; i++) make(true, s, begin, i, i + 1 < end ? x->D : 0);
        if (end == len) take_gradients(s, n, len);
        for (int64_t i = end - 1; i >= first; i--) back(past, state, s, begin, i);
    }
    if (past) v_stream_end();
    if (x->da0 || x->db0 || x->dm0) give_gradients(s, n);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

/* dw and du are added over sequences in parts that follow from the shape. */
static int64_t parts_of(const lnt_wkv_args *a, bool back) { return back ? at_most(a->sequences, SCAN_PARTS) : a->sequences; }

static int64_t scratch_of(const lnt_wkv_args *a, bool back)
{
    const int64_t room = room_of(a, back), flags = BLOCK * (room / LNT_VL) / (int64_t)sizeof(float);
    return (ROWS + (back ? (SUMS + 1) * BLOCK + SUMS * pieces(a->longest, BLOCK) : 0)) * room + (back ? flags : 0);
}

static strip strip_at(const lnt_wkv_args *a, bool back, int64_t i, int64_t width)
{
    const int64_t room = room_of(a, back);
    strip s = { .a = a, .first = i * width, .width = at_most(width, a->D - i * width) };
    float *scratch = (float *)a->workspace + omp_get_thread_num() * scratch_of(a, back);
    for (int r = 0; r < ROWS; r++) s.row[r] = scratch + r * room;
    s.states = scratch + ROWS * room;
    s.shifts = s.states + SUMS * BLOCK * room;
    s.starts = s.shifts + BLOCK * room;
    s.moved = (unsigned char *)(s.starts + SUMS * pieces(a->longest, BLOCK) * room);
    V_EACH(j, n, s.width)
    {
        vf power, rest;
        const vf rate = v_exp(v_get(a->w, LINNET_F32, s.first + j, n)), u = v_get(a->u, LINNET_F32, s.first + j, n);
        const vf p = exp_parts(v_max(v_set(-MOST_K), -rate), &power, &rest);
        put(&s, RATE, j, n, rate);
        put(&s, DECAY, j, n, times_power(p, power));
        put(&s, REST, j, n, times_power(rest, power));
        put(&s, BONUS, j, n, v_exp(between(u, MOST_U)));
    }
    scan_take(s.row[SUM_W], NULL, s.width);
    scan_take(s.row[SUM_U], NULL, s.width);
    return s;
}

static void add_sums(const lnt_wkv_args *a, const float *added, int64_t parts)
{
    V_EACH(j, n, a->D)
    {
        vf w = v_zero(), u = v_zero();
        for (int64_t p = 0; p < parts; p++) {
            w += v_get(added + 2 * p * a->D, LINNET_F32, j, n);
            u += v_get(added + (2 * p + 1) * a->D, LINNET_F32, j, n);
        }
        if (a->dw) v_put(a->dw, LINNET_F32, j, n, -v_exp(v_get(a->w, LINNET_F32, j, n)) * w);
        if (a->du) v_put(a->du, LINNET_F32, j, n, u);
    }
}

static void run(const lnt_wkv_args *a, bool back, int threads)
{
    const int64_t parts = parts_of(a, back), width = at_most(scan_strip_width(a->D, parts, threads), room_of(a, back));
    const int64_t strips = pieces(a->D, width), count = parts * strips;
    float *added = (float *)a->workspace + threads * scratch_of(a, back);
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
        memcpy(added + 2 * p * a->D + s.first, s.row[SUM_W], (size_t)s.width * sizeof(float));
        memcpy(added + (2 * p + 1) * a->D + s.first, s.row[SUM_U], (size_t)s.width * sizeof(float));
    }
    if (back) add_sums(a, added, parts);
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
