/* Vector gates in a chunk on AMX tiles (chunk_vector.h): all pairs are products of scaled rows rounded to bf16, the nearest neighbours' too.
 *
 * Rows i > j of a chunk differ first in one bit, h, of their numbers: i has it, j has it not, and their factor splits at the first row of i's h rows,
 *
 *   F_ij = P_h[i] Q_h[j]      P_h[i]: alphas from the first of the aligned h rows that i is in, through i      Q_h[j]: from behind j to the last of them
 *
 * where none exceeds 1. P and Q of 2h rows are those of h times a product of h rows in one half of the rows each. A block is 16 rows: 16 alphas of 16
 * columns are in registers while h goes from 1 to 8, and what is scaled by each P_h and Q_h leaves for rows of bf16. Where h is below 16 two levels
 * share a tile of readers or writers (8 rows each); products of one level's readers with the other's writers nobody takes. */
#include "recurrence/chunk/chunk_vector.h"

#if defined(__AMX_BF16__)
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_rows.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { ROWS = LNT_VECTOR_ROWS, BLOCKS = LNT_VECTOR_TILED / ROWS, SIDES = 2 };

/* Rows of bf16 [ROWS,width]: of a block the rows themselves, then those of the levels, readers 1 and 2, 4 and 8, writers 2 and 4, 8; `turned` what
 * writers are as right operands; for h = 16 and 32 readers and writers by block. */
typedef struct {
    lnt_bf16 *x[SIDES], *readers[SIDES][2], *y[SIDES], *writers[SIDES][2], *turned[SIDES][3];
    lnt_bf16 *far_readers[SIDES][2][2], *far_writers[SIDES][2][2], *far_turned[SIDES][2][2];
    float *start, *after, *second, *third; /* [BLOCKS,width] twice, [width]: products of whole blocks before and after a block, of blocks 1 and 2 */
} rooms;

static lnt_bf16 *take(char **at, int64_t width)
{
    lnt_bf16 *p = (lnt_bf16 *)*at;
    *at += ROWS * width * (int64_t)sizeof *p;
    return p;
}

enum { ROW_BUFFERS = SIDES * (9 + 3 * 4), SUMS = 2 * BLOCKS + 2 };
size_t LNT_V(lnt_vector_tiled_bytes)(int width) { return (size_t)width * (ROW_BUFFERS * ROWS * sizeof(lnt_bf16) + SUMS * sizeof(float)); }

static rooms rooms_at(void *base, int64_t width)
{
    rooms m;
    float *sums = base;
    m.start = sums;
    m.after = sums + BLOCKS * width;
    m.second = sums + 2 * BLOCKS * width;
    m.third = m.second + width;
    char *at = (char *)(m.third + width);
    for (int s = 0; s < SIDES; s++) {
        m.x[s] = take(&at, width);
        m.y[s] = take(&at, width);
        for (int i = 0; i < 2; i++) {
            m.readers[s][i] = take(&at, width);
            m.writers[s][i] = take(&at, width);
        }
        for (int i = 0; i < 3; i++) m.turned[s][i] = take(&at, width);
        for (int l = 0; l < 2; l++) { /* the two blocks of a level lie together */
            for (int i = 0; i < 2; i++) m.far_readers[s][l][i] = take(&at, width);
            for (int i = 0; i < 2; i++) m.far_writers[s][l][i] = take(&at, width);
            for (int i = 0; i < 2; i++) m.far_turned[s][l][i] = take(&at, width);
        }
    }
    return m;
}

/* ---- factors ------------------------------------------------------------------------------------------------------------------------- */

/* e^g, 0 below the normal numbers. */
INLINE __m512 decay(__m512 g)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(g, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ), (__m512)v_exp((vf)g));
}

/* x t of factors from 0 to 1, and 0 below 2^-100: the sum of their bits says where, so that no subnormal number is ever made. NaN stays. */
INLINE __m512i least_with(__m512 t) { return _mm512_sub_epi32(_mm512_set1_epi32((254 - 100) << 23), (__m512i)t); }
INLINE __m512 times(__m512 x, __m512 t, __m512i least) { return _mm512_maskz_mul_ps(_mm512_cmpgt_epi32_mask((__m512i)x, least), x, t); }

/* What whole blocks leave: start, after, second, third and end. */
static void sums_of_blocks(const lnt_vector_front *f, const rooms *m, int64_t W)
{
    const int64_t blocks = (f->n + ROWS - 1) / ROWS;
    for (int64_t b = 0; b < blocks; b++) {
        float *sum = m->start + b * W;
        const int64_t end = f->n < (b + 1) * ROWS ? f->n : (b + 1) * ROWS;
        lnt_tiles_awake();
        for (int64_t c = 0; c < W; c += 32) {
            __m512 low = _mm512_setzero_ps(), high = low;
            for (int64_t i = b * ROWS; i < end; i++) {
                low = _mm512_add_ps(low, _mm512_loadu_ps(f->g + i * f->stride + c));
                high = _mm512_add_ps(high, _mm512_loadu_ps(f->g + i * f->stride + c + 16));
            }
            _mm512_storeu_ps(sum + c, low);
            _mm512_storeu_ps(sum + c + 16, high);
        }
    }
    for (int64_t c = 0; c < W; c += 16) {
        __m512 sum[BLOCKS], run = _mm512_setzero_ps();
        for (int64_t b = 0; b < blocks; b++) sum[b] = _mm512_loadu_ps(m->start + b * W + c);
        if (blocks > 2) {
            _mm512_storeu_ps(m->second + c, decay(sum[1]));
            _mm512_storeu_ps(m->third + c, decay(sum[2]));
        }
        for (int64_t b = blocks - 1; b > 0; b--) {
            run = _mm512_add_ps(run, sum[b]);
            _mm512_storeu_ps(m->after + (b - 1) * W + c, decay(run));
        }
        if (f->end) _mm512_storeu_ps(f->end + c, decay(_mm512_add_ps(run, sum[0])));
        run = sum[0];
        for (int64_t b = 1; b < blocks; b++) {
            _mm512_storeu_ps(m->start + b * W + c, decay(run));
            run = _mm512_add_ps(run, sum[b]);
        }
    }
}

/* ---- a block's rows -------------------------------------------------------------------------------------------------------------------- */

/* Rows first .. first+ROWS-1 of a tensor, zeros where it has none. */
static void copy_rows(const lnt_rows16 *from, int64_t first, int64_t W, lnt_bf16 *to)
{
    for (int64_t i = first; i < first + ROWS; i++, to += W) {
        if (i < from->rows)
            memcpy(to, from->row + i * from->stride, (size_t)W * sizeof *to);
        else
            memset(to, 0, (size_t)W * sizeof *to);
    }
}

INLINE void put(lnt_bf16 *to, __m512 x)
{
    const __m256bh h = _mm512_cvtneps_pbh(x);
    memcpy(to, &h, sizeof h);
}

/* The places of a row in its level's tile. */
INLINE int place_2(int i) { return i / 4 * 2 + i % 2; }
INLINE int place_4(int i) { return i / 8 * 4 + i % 4; }

/* One vector of columns, from column c on, of block b. */
INLINE void scale_columns(int readers, int writers, const lnt_vector_front *f, const rooms *m, int64_t b, int64_t blocks, int64_t W, int64_t c)
{
    __m512 P[ROWS], Q[ROWS];
    float x[SIDES][ROWS][16], y[SIDES][ROWS][16];
    const int64_t first = b * ROWS;
    UNROLL for (int i = 0; i < ROWS; i++)
        P[i] = decay(first + i < f->n ? _mm512_loadu_ps(f->g + (first + i) * f->stride + c) : _mm512_setzero_ps());
    UNROLL for (int s = 0; s < readers; s++)
        UNROLL for (int i = 0; i < ROWS; i++) v_store(x[s][i], v_load_bf16(m->x[s] + i * W + c));
    UNROLL for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < ROWS; i++) v_store(y[s][i], v_load_bf16(m->y[s] + i * W + c));
#define READ(S, I, F) _mm512_mul_ps(_mm512_loadu_ps(x[S][I]), F)
#define WRITE(S, I, F) _mm512_mul_ps(_mm512_loadu_ps(y[S][I]), F)
    for (int s = 0; s < readers; s++) /* h = 1: writers are the rows themselves */
        UNROLL for (int i = 1; i < ROWS; i += 2) put(m->readers[s][0] + i / 2 * W + c, READ(s, i, P[i]));
    UNROLL for (int i = 0; i < ROWS; i += 2) {
        Q[i] = P[i + 1];
        Q[i + 1] = _mm512_set1_ps(1.0f);
        P[i + 1] = times(P[i + 1], P[i], least_with(P[i]));
    }
    for (int s = 0; s < readers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (i & 2) put(m->readers[s][0] + (8 + place_2(i)) * W + c, READ(s, i, P[i]));
    for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (!(i & 2)) put(m->writers[s][0] + place_2(i) * W + c, i & 1 ? _mm512_loadu_ps(y[s][i]) : WRITE(s, i, Q[i]));
#define DOUBLE(H)                                                                                                                  \
    UNROLL for (int r = 0; r < ROWS; r += 2 * (H)) {                                                                               \
        const __m512 before = P[r + (H) - 1], behind = P[r + 2 * (H) - 1];                                                         \
        const __m512i least = least_with(before), most = least_with(behind);                                                       \
        UNROLL for (int i = 0; i < (H); i++) {                                                                                     \
            P[r + (H) + i] = times(P[r + (H) + i], before, least);                                                                 \
            Q[r + i] = i == (H) - 1 ? behind : times(Q[r + i], behind, most);                                                      \
        }                                                                                                                          \
    }
    DOUBLE(2)
    for (int s = 0; s < readers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (i & 4) put(m->readers[s][1] + place_4(i) * W + c, READ(s, i, P[i]));
    for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (!(i & 4)) put(m->writers[s][0] + (8 + place_4(i)) * W + c, i % 4 == 3 ? _mm512_loadu_ps(y[s][i]) : WRITE(s, i, Q[i]));
    DOUBLE(4)
    for (int s = 0; s < readers; s++)
        UNROLL for (int i = 8; i < ROWS; i++) put(m->readers[s][1] + i * W + c, READ(s, i, P[i]));
    for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < 8; i++) put(m->writers[s][1] + i * W + c, i == 7 ? _mm512_loadu_ps(y[s][i]) : WRITE(s, i, Q[i]));
    DOUBLE(8)
#undef DOUBLE
    if (b % 2) { /* h = 16 */
        for (int s = 0; s < readers; s++)
            UNROLL for (int i = 0; i < ROWS; i++) put(m->far_readers[s][0][b / 2] + i * W + c, READ(s, i, P[i]));
    } else if (b + 1 < blocks) {
        for (int s = 0; s < writers; s++)
            UNROLL for (int i = 0; i < ROWS; i++) put(m->far_writers[s][0][b / 2] + i * W + c, WRITE(s, i, Q[i]));
    }
    if (blocks > 2) { /* h = 32 */
        const __m512 by = _mm512_loadu_ps((b < 2 ? m->second : m->third) + c);
        const __m512i least = least_with(by);
        if (b >= 2) {
            UNROLL for (int i = 0; i < ROWS; i++) {
                const __m512 F = b == 2 ? P[i] : times(P[i], by, least);
                for (int s = 0; s < readers; s++) put(m->far_readers[s][1][b - 2] + i * W + c, READ(s, i, F));
            }
        } else {
            UNROLL for (int i = 0; i < ROWS; i++) {
                const __m512 F = b == 1 ? Q[i] : times(Q[i], by, least);
                for (int s = 0; s < writers; s++) put(m->far_writers[s][1][b] + i * W + c, WRITE(s, i, F));
            }
        }
    }
    const __m512 one = _mm512_set1_ps(1.0f), before = b ? _mm512_loadu_ps(m->start + b * W + c) : one,
                 behind = b + 1 < blocks ? _mm512_loadu_ps(m->after + b * W + c) : one;
    const __m512i least = least_with(before), most = least_with(behind);
    UNROLL for (int i = 0; i < ROWS; i++) {
        if (first + i >= f->n) break;
        const __m512 F = times(P[i], before, least), G = times(Q[i], behind, most);
        for (int s = 0; s < readers; s++)
            put(f->reads[s] + (first + i) * W + c, READ(s, i, _mm512_mul_ps(F, _mm512_set1_ps(f->f_reads[s]))));
        for (int s = 0; s < writers; s++) put(f->writes[s] + (first + i) * W + c, WRITE(s, i, G));
    }
#undef READ
#undef WRITE
}

static void scale_block(const lnt_vector_front *f, const rooms *m, int64_t b, int64_t blocks, int64_t W)
{
    for (int s = 0; s < f->readers; s++) copy_rows(&f->read[s], b * ROWS, W, m->x[s]);
    for (int s = 0; s < f->writers; s++) copy_rows(&f->write[s], b * ROWS, W, m->y[s]);
    for (int64_t c = 0; c < W; c += 16) {
        lnt_tiles_awake();
        if (f->readers == 1 && f->writers == 1)
            scale_columns(1, 1, f, m, b, blocks, W, c);
        else if (f->writers == 1)
            scale_columns(2, 1, f, m, b, blocks, W, c);
        else
            scale_columns(f->readers, 2, f, m, b, blocks, W, c);
    }
}

/* ---- products -------------------------------------------------------------------------------------------------------------------------- */

static void turn(const lnt_bf16 *rows, int64_t W, lnt_bf16 *to)
{
    lnt_tiles_awake();
    LNT_V(lnt_transpose)(ROWS, (int)W / 2, (const float *)rows, W / 2, (float *)to, ROWS);
}

typedef float square[ROWS * ROWS];

/* A block's five: rows by rows; readers of 1 and 2 by rows and by writers of 2 and 4; readers of 4 and 8 by writers of 2 and 4 and by those of 8. */
static void block_products(const lnt_bf16 *x, lnt_bf16 *const readers[2], lnt_bf16 *const turned[3], int64_t W, square out[5])
{
    const lnt_bf16 *y = turned[0], *near = turned[1], *far = turned[2], *low = readers[0], *high = readers[1];
    __asm__ volatile("" ::: "memory"); /* tile loads name no memory to the compiler */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    for (int64_t k = 0; k < W; k += 32, y += 512, near += 512, far += 512) {
        _tile_loadd(6, y, 64);
        _tile_loadd(5, x + k, W * 2);
        _tile_dpbf16ps(0, 5, 6);
        _tile_loadd(5, low + k, W * 2);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(7, near, 64);
        _tile_dpbf16ps(2, 5, 7);
        _tile_loadd(5, high + k, W * 2);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(6, far, 64);
        _tile_dpbf16ps(4, 5, 6);
    }
    _tile_stored(0, out[0], 64);
    _tile_stored(1, out[1], 64);
    _tile_stored(2, out[2], 64);
    _tile_stored(3, out[3], 64);
    _tile_stored(4, out[4], 64);
    __asm__ volatile("" ::: "memory");
}

INLINE __mmask16 first_lanes(int64_t n) { return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1u); }

/* The triangle of m rows of A: a number from each level's product. */
static void block_pairs(int m, float f, square in[5], float *A, int64_t ld)
{
    for (int i = 0; i < m; i++) {
        const float *own = in[0] + i * 16, *next = in[1] + i / 2 * 16;
        __m512 v = _mm512_maskz_loadu_ps((__mmask16)(1u << i), own);
        if (i & 1) v = _mm512_mask_loadu_ps(v, (__mmask16)(1u << (i - 1)), next);
        if (i & 2) v = _mm512_mask_loadu_ps(v, (__mmask16)(3u << (i & ~3)), in[2] + (8 + place_2(i)) * 16 + i / 4 * 2 - (i & ~3));
        if (i & 4) v = _mm512_mask_loadu_ps(v, (__mmask16)(15u << (i & ~7)), in[3] + place_4(i) * 16 + 8 + i / 8 * 4 - (i & ~7));
        if (i & 8) v = _mm512_mask_loadu_ps(v, 255, in[4] + i * 16);
        _mm512_mask_storeu_ps(A + i * ld, first_lanes(m), _mm512_mul_ps(v, _mm512_set1_ps(f)));
    }
}

/* A = f (rows of readers) (writers)^T, `rows` of 16 and all 16 columns. */
static void far_pairs(int64_t rows, float f, const lnt_bf16 *readers, const lnt_bf16 *turned, int64_t W, float *A, int64_t ld)
{
    _Alignas(64) square out;
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    for (int64_t k = 0; k < W; k += 32, turned += 512) {
        _tile_loadd(5, readers + k, W * 2);
        _tile_loadd(6, turned, 64);
        _tile_dpbf16ps(0, 5, 6);
    }
    _tile_stored(0, out, 64);
    __asm__ volatile("" ::: "memory");
    for (int64_t i = 0; i < rows; i++) _mm512_storeu_ps(A + i * ld, _mm512_mul_ps(_mm512_load_ps(out + i * 16), _mm512_set1_ps(f)));
}

void LNT_V(lnt_vector_front_tiled)(const lnt_vector *v, const lnt_vector_front *f)
{
    const int64_t W = v->width, blocks = (f->n + ROWS - 1) / ROWS, ld = f->ld;
    const rooms m = rooms_at(v->tiled, W);
    _Alignas(64) square near[5];
    sums_of_blocks(f, &m, W);
    for (int s = 0; s < f->writers; s++) memset(m.writers[s][1] + 8 * W, 0, (size_t)(8 * W) * sizeof(lnt_bf16));
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = b * ROWS, rows = f->n - first < ROWS ? f->n - first : ROWS, rest = f->n - first - rows;
        scale_block(f, &m, b, blocks, W);
        for (int y = 0; y < f->writers; y++) {
            turn(m.y[y], W, m.turned[y][0]);
            turn(m.writers[y][0], W, m.turned[y][1]);
            turn(m.writers[y][1], W, m.turned[y][2]);
            if (b % 2 == 0 && b + 1 < blocks) turn(m.far_writers[y][0][b / 2], W, m.far_turned[y][0][b / 2]);
            if (blocks > 2 && b < 2) turn(m.far_writers[y][1][b], W, m.far_turned[y][1][b]);
            for (int x = 0; x < f->readers; x++) {
                float *A = f->pairs[x][y] + first * ld + first;
                block_products(m.x[x], m.readers[x], m.turned[y], W, near);
                block_pairs((int)rows, f->f_pairs[x], near, A, ld);
                for (int64_t i = 0; i < rows && rest; i++) memset(A + i * ld + rows, 0, (size_t)rest * sizeof *A);
            }
        }
    }
    for (int x = 0; x < f->readers; x++)
        for (int y = 0; y < f->writers; y++)
            for (int64_t b = 1; b < blocks; b++) {
                const int64_t rows = f->n - b * ROWS < ROWS ? f->n - b * ROWS : ROWS;
                float *A = f->pairs[x][y] + b * ROWS * ld;
                if (b % 2) far_pairs(rows, f->f_pairs[x], m.far_readers[x][0][b / 2], m.far_turned[y][0][b / 2], W, A + (b - 1) * ROWS, ld);
                for (int64_t j = 0; j < 2 && b >= 2; j++)
                    far_pairs(rows, f->f_pairs[x], m.far_readers[x][1][b - 2], m.far_turned[y][1][j], W, A + j * ROWS, ld);
            }
}
#endif
