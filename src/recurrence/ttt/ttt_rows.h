/* What the ttt core's kernels do to dense float32 rows of a head: the norm, the loss and its derivatives. Only *_cpu.c files include this. */
#ifndef LNT_TTT_ROWS_H
#define LNT_TTT_ROWS_H

#include "ops/rows.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/ttt/ttt.h"

/* What is done to rows of D numbers is compiled for D = 64, in whose loops no end has to be looked for, and for any other. */
#define TTT_OF_WIDTH(D, DO, ...) ((D) == 64 ? DO(64, __VA_ARGS__) : DO(D, __VA_ARGS__))

/* The first n lanes, the others 0. */
static inline vf ttt_lanes(vf x, int64_t n)
{
    float t[LNT_VL];
    if (n == LNT_VL) return x;
    v_store(t, x);
    return v_load_n(t, n);
}
static inline vf ttt_get(const float *p, int64_t i, int64_t n) { return n == LNT_VL ? v_load(p + i) : v_load_n(p + i, n); }
static inline void ttt_put(float *p, int64_t i, int64_t n, vf x)
{
    if (n == LNT_VL)
        v_store(p + i, x);
    else
        v_store_n(p + i, x, n);
}

static inline float ttt_dot(int64_t D, const float *x, const float *y)
{
    vf sum = v_zero();
    V_EACH(i, n, D) sum += ttt_get(x, i, n) * ttt_get(y, i, n);
    return v_sum(sum);
}

/* y += f x */
static inline void ttt_add(int64_t count, float f, const float *x, float *y)
{
    V_EACH(i, n, count) ttt_put(y, i, n, ttt_get(y, i, n) + f * ttt_get(x, i, n));
}

/* sum [width] += the rows of x. */
static inline void ttt_add_rows(float *sum, int64_t rows, int64_t width, const float *x)
{
    rows_add_up(rows, width, NULL, x, sum);
}

/* y = f_i x, row by row. */
static inline void ttt_scale_rows(float *y, const float *f, int64_t rows, int64_t width, const float *x)
{
    for (int64_t r = 0; r < rows; r++) V_EACH(i, n, width) ttt_put(y + r * width, i, n, f[r] * ttt_get(x + r * width, i, n));
}

/* hat = (z - mean(z)) / sigma; returns 1 / sigma = (var + 1e-6)^-1/2. */
INLINE float ttt_normalise(int64_t D, const float *z, float *hat)
{
    vf sum = v_zero(), square = v_zero();
    V_EACH(i, n, D) sum += ttt_get(z, i, n);
    const float mean = v_sum(sum) / (float)D;
    V_EACH(i, n, D)
    {
        const vf d = ttt_lanes(ttt_get(z, i, n) - mean, n);
        square += d * d;
    }
    const float inverse = 1 / sqrtf(v_sum(square) / (float)D + 1e-6f);
    V_EACH(i, n, D) ttt_put(hat, i, n, (ttt_get(z, i, n) - mean) * inverse);
    return inverse;
}

/* out = (d - mean(d) - hat mean(d hat)) / sigma; out may be d. */
INLINE void ttt_project(int64_t D, const float *d, const float *hat, float inverse, float *out)
{
    vf sum = v_zero(), along = v_zero();
    V_EACH(i, n, D)
    {
        const vf x = ttt_get(d, i, n);
        sum += x;
        along += x * ttt_get(hat, i, n);
    }
    const float mean = v_sum(sum) / (float)D, part = v_sum(along) / (float)D;
    V_EACH(i, n, D) ttt_put(out, i, n, (ttt_get(d, i, n) - mean - part * ttt_get(hat, i, n)) * inverse);
}

/* Four rows of 64 at a time: their sums side by side, each in the order that v_sum has. */
#if defined(__AVX512F__)
#define TTT_FOURS 1
static inline __m512 ttt_sums(const vf x[4])
{
    const __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 e = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    return _mm512_add_ps(e, _mm512_permute_ps(e, 0xb1));
}

/* Row r's. */
#define TTT_OF_FOUR(X, R) ((vf)_mm512_shuffle_f32x4(X, X, (R) * 0x55))

static inline __m512 ttt_normalise_four(const float *z, float *hat)
{
    const __m512 D = _mm512_set1_ps(64.0f);
    vf part[4], d[4][4];
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
    {
        part[r] = v_zero();
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) part[r] += v_load(z + r * 64 + i * 16);
    }
    const __m512 mean = _mm512_div_ps(ttt_sums(part), D);
    const vf means[4] = { TTT_OF_FOUR(mean, 0), TTT_OF_FOUR(mean, 1), TTT_OF_FOUR(mean, 2), TTT_OF_FOUR(mean, 3) };
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
    {
        part[r] = v_zero();
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
        {
            d[r][i] = v_load(z + r * 64 + i * 16) - means[r];
            part[r] += d[r][i] * d[r][i];
        }
    }
    const __m512 var = _mm512_add_ps(_mm512_div_ps(ttt_sums(part), D), _mm512_set1_ps(1e-6f));
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(var));
    const vf by[4] = { TTT_OF_FOUR(inverse, 0), TTT_OF_FOUR(inverse, 1), TTT_OF_FOUR(inverse, 2), TTT_OF_FOUR(inverse, 3) };
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) v_store(hat + r * 64 + i * 16, d[r][i] * by[r]);
    return inverse;
}

static inline void ttt_project_four(const float *d, const float *hat, __m512 inverse, float *out)
{
    const __m512 D = _mm512_set1_ps(64.0f);
    vf sum[4], along[4];
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
    {
        sum[r] = along[r] = v_zero();
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
        {
            const vf x = v_load(d + r * 64 + i * 16);
            sum[r] += x;
            along[r] += x * v_load(hat + r * 64 + i * 16);
        }
    }
    const __m512 mean = _mm512_div_ps(ttt_sums(sum), D), part = _mm512_div_ps(ttt_sums(along), D);
    const vf means[4] = { TTT_OF_FOUR(mean, 0), TTT_OF_FOUR(mean, 1), TTT_OF_FOUR(mean, 2), TTT_OF_FOUR(mean, 3) };
    const vf parts[4] = { TTT_OF_FOUR(part, 0), TTT_OF_FOUR(part, 1), TTT_OF_FOUR(part, 2), TTT_OF_FOUR(part, 3) };
    const vf by[4] = { TTT_OF_FOUR(inverse, 0), TTT_OF_FOUR(inverse, 1), TTT_OF_FOUR(inverse, 2), TTT_OF_FOUR(inverse, 3) };
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
        {
            const int64_t at = r * 64 + i * 16;
            v_store(out + at, (v_load(d + at) - means[r] - parts[r] * v_load(hat + at)) * by[r]);
        }
}
#endif

/* A head's norm and what its rows add to the gradients of that. */
typedef struct {
    int64_t D;
    bool plain;
    const float *w, *b;
    float *dw, *db;
} ttt_norm;

static inline ttt_norm ttt_norm_of(const lnt_ttt_args *a, int64_t h)
{
    return (ttt_norm){ .D = a->D, .plain = a->inner == LNT_TTT_PLAIN, .w = a->ln_w ? (const float *)a->ln_w + h * a->D : NULL,
                       .b = a->ln_b ? (const float *)a->ln_b + h * a->D : NULL };
}

/* u = dl/dz, with hat and 1 / sigma of z for the way back; v is of `type`. */
INLINE void ttt_loss(int64_t D, const ttt_norm *x, const float *z, const float *k, const void *v, lnt_dtype type, float *hat, float *inverse,
                         float *u)
{
    if (x->plain) {
        V_EACH(i, n, D) ttt_put(u, i, n, ttt_get(z, i, n) - v_get(v, type, i, n));
        return;
    }
    *inverse = ttt_normalise(D, z, hat);
    V_EACH(i, n, D)
    {
        const vf w = ttt_get(x->w, i, n), error = w * ttt_get(hat, i, n) + ttt_get(x->b, i, n) - (v_get(v, type, i, n) - ttt_get(k, i, n));
        ttt_put(u, i, n, w * error);
    }
    ttt_project(D, u, hat, *inverse, u);
}

#if defined(TTT_FOURS)
/* The same of four rows of 64, of a model that has a norm; those of v lie `away` numbers apart. */
INLINE void ttt_loss_four(const ttt_norm *x, const float *z, const float *k, const void *v, lnt_dtype type, int64_t away, float *hat,
                              float *inverse, float *u)
{
    const __m512 by = ttt_normalise_four(z, hat);
    const vf sigmas = (vf)by;
    for (int r = 0; r < 4; r++) inverse[r] = sigmas[4 * r];
    _Pragma("GCC unroll 4") for (int i = 0; i < 64; i += 16)
    {
        const vf w = v_load(x->w + i), b = v_load(x->b + i);
        _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
        {
            const vf error = w * v_load(hat + r * 64 + i) + b - (v_get(v, type, r * away + i, LNT_VL) - v_load(k + r * 64 + i));
            v_store(u + r * 64 + i, w * error);
        }
    }
    ttt_project_four(u, hat, by, u);
}
#endif

/* The same of the next of `rows` rows, of four where that may be: returns how many. */
INLINE int64_t ttt_losses(int64_t D, const ttt_norm *x, int64_t rows, const float *z, const float *k, const void *v, lnt_dtype type, int64_t away,
                              float *hat, float *inverse, float *u)
{
#if defined(TTT_FOURS)
    if (D == 64 && !x->plain && rows >= 4) {
        ttt_loss_four(x, z, k, v, type, away, hat, inverse, u);
        return 4;
    }
#endif
    (void)rows, (void)away;
    ttt_loss(D, x, z, k, v, type, hat, inverse, u);
    return 1;
}

/* From du to dz and dv, which are written, and dk, which is added to. dz may be du; work [2,D]. */
INLINE void ttt_loss_back(int64_t D, const ttt_norm *x, const float *hat, float inverse, const float *k, const void *v, lnt_dtype type,
                              const float *u, const float *du, float *work, float *dz, float *dk, float *dv)
{
    float *dg = work, *dhat = work + D;
    if (x->plain) {
        V_EACH(i, n, D)
        {
            const vf d = ttt_get(du, i, n);
            ttt_put(dv, i, n, -d);
            ttt_put(dz, i, n, d);
        }
        return;
    }
    vf along_g = v_zero(), along_du = v_zero(), across = v_zero();
    V_EACH(i, n, D)
    {
        const vf w = ttt_get(x->w, i, n), h = ttt_get(hat, i, n), d = ttt_get(du, i, n);
        const vf error = w * h + ttt_get(x->b, i, n) - (v_get(v, type, i, n) - ttt_get(k, i, n));
        along_g += h * w * error;
        along_du += h * d;
        across += ttt_get(u, i, n) * d;
    }
    const float g_part = v_sum(along_g) / (float)D * inverse, du_part = v_sum(along_du) / (float)D * inverse;
    const float sigma_part = -v_sum(across) * inverse / (float)D;
    ttt_project(D, du, hat, inverse, dg);
    V_EACH(i, n, D)
    {
        const vf w = ttt_get(x->w, i, n), h = ttt_get(hat, i, n), g = ttt_get(dg, i, n), de = w * g;
        const vf error = w * h + ttt_get(x->b, i, n) - (v_get(v, type, i, n) - ttt_get(k, i, n));
        ttt_put(dhat, i, n, w * de - g_part * ttt_get(du, i, n) - du_part * w * error);
        ttt_put(x->dw, i, n, ttt_get(x->dw, i, n) + error * g + h * de);
        ttt_put(x->db, i, n, ttt_get(x->db, i, n) + de);
        ttt_put(dk, i, n, ttt_get(dk, i, n) + de);
        ttt_put(dv, i, n, -de);
    }
    ttt_project(D, dhat, hat, inverse, dz);
    ttt_add(D, sigma_part, hat, dz);
}

#if defined(__AMX_BF16__)
/* 32 numbers to a tensor's row; past: past the caches. */
static inline void ttt_put_line(lnt_bf16 *y, bool past, vf low, vf high)
{
    if (past) {
        line_past(y, low, high);
    } else {
        v_store_bf16(y, low);
        v_store_bf16(y + 16, high);
    }
}
#endif

/* C [n,I] (+)= f Y [n,O] W [I,O]^T, by way of its transpose, so that W stays as it lies. work [O + I, n]. */
static inline void ttt_times_transposed(lnt_mm_mode mode, int64_t n, int64_t O, const float *y, int64_t I, const float *w, float *c, float *work)
{
    float *turned = work, *out = work + O * n;
    LNT_V(lnt_transpose)((int)n, (int)O, y, O, turned, n);
    LNT_V(lnt_mm)(LNT_MM_SET, (int)I, (int)n, (int)O, w, O, 1, turned, n, out, n);
    if (mode == LNT_MM_SET) {
        LNT_V(lnt_transpose)((int)I, (int)n, out, n, c, I);
        return;
    }
    LNT_V(lnt_transpose)((int)I, (int)n, out, n, turned = work + (O + I) * n, I);
    ttt_add(n * I, mode == LNT_MM_SUB ? -1 : 1, turned, c);
}

/* Elements of state n, head h; NULL of none. */
static inline float *ttt_state(const lnt_ttt_args *a, const void *p, int64_t n, int64_t h, int64_t count)
{
    return p ? (float *)(uintptr_t)p + (n * a->H + h) * count : NULL;
}

/* dst = the sum of two, either of which may be absent. */
static inline void ttt_sum(float *dst, const float *x, const float *y, int64_t count)
{
    V_EACH(i, n, count) ttt_put(dst, i, n, (x ? ttt_get(x, i, n) : v_zero()) + (y ? ttt_get(y, i, n) : v_zero()));
}
static inline void ttt_difference(float *dst, const float *x, const float *y, int64_t count)
{
    V_EACH(i, n, count) if (dst) ttt_put(dst, i, n, ttt_get(x, i, n) - (y ? ttt_get(y, i, n) : v_zero()));
}
/* x as a state and the next call make of it, by the difference to `first`; nothing where that is zero. */
static inline void ttt_as_state(float *x, const float *first, int64_t count)
{
    V_EACH(i, n, count) if (first) ttt_put(x, i, n, ttt_get(first, i, n) + (ttt_get(x, i, n) - ttt_get(first, i, n)));
}
/* The first `some` of count elements, zeros behind them; x NULL: zeros. dst NULL: not wanted. */
static inline void ttt_some(float *dst, const float *x, int64_t some, int64_t count)
{
    if (!dst) return;
    some = x ? some : 0;
    if (some && dst != x) memcpy(dst, x, (size_t)some * sizeof *dst);
    if (some < count) memset(dst + some, 0, (size_t)(count - some) * sizeof *dst);
}

/* Rows of an open mini-batch that state n, head h, has. */
static inline int64_t ttt_open(const lnt_ttt_args *a, int64_t n, int64_t h)
{
    return a->n0 ? lnt_ttt_count(a, ((const float *)a->n0)[n * a->H + h]) : 0;
}

/* ---- pieces of work of backward passes ------------------------------------------------------------------------------------------------------- */

/* Backward keeps the memory at the start of so many floats' worth of mini-batches; longer sequences make it again in groups. */
enum { TTT_KEPT = 1 << 20 };
/* Mini-batches of a group, of so many, with `floats` of memory each. */
static inline int64_t ttt_group(int64_t batches, int64_t floats)
{
    int64_t root = 1;
    while (root * root < batches) root++;
    return batches <= TTT_KEPT / floats ? batches + 1 : root;
}
/* Most mini-batches of a sequence. */
static inline int64_t ttt_most(const lnt_ttt_args *a) { return lnt_ttt_batches(a, a->mini_batch - 1, a->longest); }

/* Sums over sequences are made in at most so many parts, which follow from the shape, and added in order. */
enum { TTT_PARTS = 8 };
static inline int64_t ttt_parts(const lnt_ttt_args *a) { return a->sequences < TTT_PARTS ? a->sequences : TTT_PARTS; }
static inline int64_t ttt_part(const lnt_ttt_args *a, int64_t i) { return a->sequences * i / ttt_parts(a); } /* where part i begins */

/* to [count] = the sum over parts [parts,..] that lie `away` apart. */
static inline void ttt_add_parts(void *to, const float *part, int64_t parts, int64_t away, int64_t count)
{
    if (to) memset(to, 0, (size_t)count * sizeof(float));
    for (int64_t p = 0; to && p < parts; p++) ttt_add(count, 1, part + p * away, to);
}

#endif
