/* Vector gates in a chunk on AMX tiles (chunk_vector.h): all pairs are products of scaled rows rounded to bf16, the nearest neighbours' too.
 *
 * Rows i > j of a chunk differ first in one bit, h, of their numbers: i has it, j has it not, and their factor splits at the first row of i's h rows,
 *
 *   F_ij = P_h[i] Q_h[j]    P_h[i]: alphas from the first of the aligned h rows that i is in, through i   Q_h[j]: from behind j to the last of them
 *
 * where none exceeds 1. P and Q of 2h rows are those of h times a product of h rows in one half of the rows each. A block is 16 rows: 16 alphas of 16
 * columns are in registers while h goes from 1 to 8, and what is scaled by each P_h and Q_h leaves for rows of bf16. Where h is below 16 two levels
 * share a tile of readers or writers (8 rows each); products of one level's readers with the other's writers nobody takes. */
#include "recurrence/chunk/chunk_vector.h"

#if defined(__AMX_BF16__)
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_mild_amx.h"
#include "recurrence/chunk/chunk_rows.h"

enum { ROWS = LNT_VECTOR_ROWS, BLOCKS = LNT_VECTOR_TILED / ROWS, SIDES = 2 };

/* Rows of bf16 [ROWS,width]: of all blocks the rows themselves, of one those of the levels, readers 1 and 2, 4 and 8, writers 2 and 4, 8; `turned`
 * what writers are as right operands; for h = 16 and 32 readers and writers by block. */
typedef struct {
    lnt_bf16 *x[SIDES], *readers[SIDES][2], *y[SIDES], *writers[SIDES][2], *turned[SIDES][3];
    lnt_bf16 *far_readers[SIDES][2][2], *far_writers[SIDES][2][2], *far_turned[SIDES][2][2];
    /* going back, for h = 16 (two pairs of blocks) and 32: A and its transpose as left operands, readers and writers as right ones */
    lnt_bf16 *A[SIDES][SIDES][3], *turned_A[SIDES][SIDES][3], *right_readers[SIDES][3], *right_writers[SIDES][3];
    float *alpha;                          /* [BLOCKS ROWS,width], for the way back */
    float *start, *after, *second, *third; /* [BLOCKS,width] twice, [width]: products of whole blocks before and after a block, of blocks 1 and 2 */
} rooms;

static lnt_bf16 *take(char **at, int64_t width)
{
    lnt_bf16 *p = (lnt_bf16 *)*at;
    *at += ROWS * width * (int64_t)sizeof *p;
    return p;
}

enum { TILE = 512 }; /* numbers of bf16 */
enum { ROW_BUFFERS = SIDES * (7 + 2 * BLOCKS + 3 * 4 + 2 * 3 * 2), SUMS = BLOCKS * ROWS + 2 * BLOCKS + 2, SQUARES = SIDES * SIDES * 2 * 3 * 2 };
size_t LNT_V(lnt_vector_tiled_bytes)(int width)
{
    const size_t bytes = (size_t)width * (ROW_BUFFERS * ROWS * sizeof(lnt_bf16) + SUMS * sizeof(float)) + SQUARES * TILE * sizeof(lnt_bf16);
    return MILD_HEAD + (bytes > mild_bytes(width) ? bytes : mild_bytes(width));
}

static rooms rooms_at(void *base, int64_t width)
{
    rooms m;
    float *sums = (float *)((char *)base + MILD_HEAD);
    m.start = sums;
    m.after = sums + BLOCKS * width;
    m.second = sums + 2 * BLOCKS * width;
    m.third = m.second + width;
    m.alpha = m.third + width;
    char *at = (char *)(m.alpha + BLOCKS * ROWS * width);
    for (int s = 0; s < SIDES; s++) {
        m.x[s] = take(&at, BLOCKS * width);
        m.y[s] = take(&at, BLOCKS * width);
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
        for (int i = 0; i < 3; i++) {
            m.right_readers[s][i] = take(&at, 2 * width);
            m.right_writers[s][i] = take(&at, 2 * width);
        }
    }
    for (int i = 0; i < SIDES * SIDES * 3; i++) {
        m.A[i / 6][i / 3 % 2][i % 3] = (lnt_bf16 *)at + i * 4 * TILE;
        m.turned_A[i / 6][i / 3 % 2][i % 3] = (lnt_bf16 *)at + (i * 4 + 2) * TILE;
    }
    return m;
}

/* ---- factors ------------------------------------------------------------------------------------------------------------------------- */

/* x t of factors from 0 to 1, and 0 below 2^-100: the sum of their bits says where, so that no subnormal number is ever made. NaN stays. */
INLINE __m512i least_with(__m512 t) { return _mm512_sub_epi32(_mm512_set1_epi32((254 - 100) << 23), (__m512i)t); }
INLINE __m512 times(__m512 x, __m512 t, __m512i least) { return _mm512_maskz_mul_ps(_mm512_cmpgt_epi32_mask((__m512i)x, least), x, t); }

/* P and Q of two rows from alphas in P, and those of 2h rows from those of h. */
INLINE void first_doubled(__m512 P[ROWS], __m512 Q[ROWS])
{
    UNROLL for (int i = 0; i < ROWS; i += 2) {
        Q[i] = P[i + 1];
        Q[i + 1] = _mm512_set1_ps(1.0f);
        P[i + 1] = times(P[i + 1], P[i], least_with(P[i]));
    }
}

INLINE void doubled(int h, __m512 P[ROWS], __m512 Q[ROWS])
{
    UNROLL for (int r = 0; r < ROWS; r += 2 * h) {
        const __m512 before = P[r + h - 1], behind = P[r + 2 * h - 1];
        const __m512i least = least_with(before), most = least_with(behind);
        UNROLL for (int i = 0; i < h; i++) {
            P[r + h + i] = times(P[r + h + i], before, least);
            Q[r + i] = i == h - 1 ? behind : times(Q[r + i], behind, most);
        }
    }
}

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
    _Alignas(64) float x[SIDES][ROWS][16], y[SIDES][ROWS][16];
    const int64_t first = b * ROWS;
    UNROLL for (int i = 0; i < ROWS; i++)
        P[i] = decay(first + i < f->n ? _mm512_loadu_ps(f->g + (first + i) * f->stride + c) : _mm512_setzero_ps());
    if (f->back) UNROLL for (int i = 0; i < ROWS; i++) _mm512_storeu_ps(m->alpha + (first + i) * W + c, P[i]);
    UNROLL for (int s = 0; s < readers; s++)
        UNROLL for (int i = 0; i < ROWS; i++) v_store(x[s][i], v_load_bf16(m->x[s] + (first + i) * W + c));
    UNROLL for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < ROWS; i++) v_store(y[s][i], v_load_bf16(m->y[s] + (first + i) * W + c));
#define READ(S, I, F) _mm512_mul_ps(_mm512_loadu_ps(x[S][I]), F)
#define WRITE(S, I, F) _mm512_mul_ps(_mm512_loadu_ps(y[S][I]), F)
    for (int s = 0; s < readers; s++) /* h = 1: writers are the rows themselves */
        UNROLL for (int i = 1; i < ROWS; i += 2) put(m->readers[s][0] + i / 2 * W + c, READ(s, i, P[i]));
    first_doubled(P, Q);
    for (int s = 0; s < readers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (i & 2) put(m->readers[s][0] + (8 + place_2(i)) * W + c, READ(s, i, P[i]));
    for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (!(i & 2)) put(m->writers[s][0] + place_2(i) * W + c, i & 1 ? _mm512_loadu_ps(y[s][i]) : WRITE(s, i, Q[i]));
    doubled(2, P, Q);
    for (int s = 0; s < readers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (i & 4) put(m->readers[s][1] + place_4(i) * W + c, READ(s, i, P[i]));
    for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < ROWS; i++)
            if (!(i & 4)) put(m->writers[s][0] + (8 + place_4(i)) * W + c, i % 4 == 3 ? _mm512_loadu_ps(y[s][i]) : WRITE(s, i, Q[i]));
    doubled(4, P, Q);
    for (int s = 0; s < readers; s++)
        UNROLL for (int i = 8; i < ROWS; i++) put(m->readers[s][1] + i * W + c, READ(s, i, P[i]));
    for (int s = 0; s < writers; s++)
        UNROLL for (int i = 0; i < 8; i++) put(m->writers[s][1] + i * W + c, i == 7 ? _mm512_loadu_ps(y[s][i]) : WRITE(s, i, Q[i]));
    doubled(8, P, Q);
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
    for (int s = 0; s < f->readers; s++) copy_rows(&f->read[s], b * ROWS, W, m->x[s] + b * ROWS * W);
    for (int s = 0; s < f->writers; s++) copy_rows(&f->write[s], b * ROWS, W, m->y[s] + b * ROWS * W);
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
    if (mild_front(v, f)) return;
    const int64_t W = v->width, blocks = (f->n + ROWS - 1) / ROWS, ld = f->ld;
    const rooms m = rooms_at(v->tiled, W);
    _Alignas(64) square near[5];
    sums_of_blocks(f, &m, W);
    for (int s = 0; s < f->writers; s++) memset(m.writers[s][1] + 8 * W, 0, (size_t)(8 * W) * sizeof(lnt_bf16));
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = b * ROWS, rows = f->n - first < ROWS ? f->n - first : ROWS, rest = f->n - first - rows;
        scale_block(f, &m, b, blocks, W);
        for (int y = 0; y < f->writers; y++) {
            turn(m.y[y] + first * W, W, m.turned[y][0]);
            turn(m.writers[y][0], W, m.turned[y][1]);
            turn(m.writers[y][1], W, m.turned[y][2]);
            if (b % 2 == 0 && b + 1 < blocks) turn(m.far_writers[y][0][b / 2], W, m.far_turned[y][0][b / 2]);
            if (blocks > 2 && b < 2) turn(m.far_writers[y][1][b], W, m.far_turned[y][1][b]);
            for (int x = 0; x < f->readers; x++) {
                float *A = f->pairs[x][y] + first * ld + first;
                block_products(m.x[x] + first * W, m.readers[x], m.turned[y], W, near);
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

bool LNT_V(lnt_vector_lift_tiled)(const lnt_vector *v, const lnt_vector_front *f, lnt_vector_lifted *to)
{
    if (!mild_front(v, f)) return false;
    const mild_rooms m = mild_at(v);
    *to = (lnt_vector_lifted){ .rows = { .rows = f->n, .cols = v->width, .left = { m.lifted[0], v->width } }, .P = m.P };
    v->e->extend(&to->rows, LNT_RIGHT, m.right_lifted[0]);
    return true;
}

/* ---- the way back ---------------------------------------------------------------------------------------------------------------------- */

/* y [16 pairs of rows,W/16 blocks...]: rows of bf16 [count,W] as a right operand of 32 rows, zeros behind them. */
static void pair_rows(int count, int64_t W, const lnt_bf16 *x, lnt_bf16 *y)
{
    const __m512i low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t c = 0; c < W; c += 32, y += 2 * TILE) {
        lnt_tiles_awake();
        for (int i = 0; i < count; i += 2) {
            const __m512i even = _mm512_loadu_si512(x + i * W + c), odd = _mm512_loadu_si512(x + (i + 1) * W + c);
            _mm512_storeu_si512(y + i * 16, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(y + TILE + i * 16, _mm512_permutex2var_epi16(even, high, odd));
        }
        if (count < 32) {
            memset(y + count * 16, 0, (size_t)(32 - count) * 32);
            memset(y + TILE + count * 16, 0, (size_t)(32 - count) * 32);
        }
    }
}

/* A square of A, rows i.. (below n) by columns j.., 16 or 32 of each, as a left operand and transposed as one. */
static void square_forms(int side, const float *A, int64_t ld, int64_t i, int64_t n, lnt_bf16 *left, lnt_bf16 *turned)
{
    _Alignas(64) float rows[32][32] = { 0 }, columns[32][32] = { 0 };
    for (int r = 0; r < side; r++)
        for (int c = 0; c < 32; c += 16)
            _mm512_store_ps(rows[r] + c, i + r < n && c < side ? _mm512_loadu_ps(A + (i + r) * ld + c) : _mm512_setzero_ps());
    LNT_V(lnt_transpose)(side, side, rows[0], 32, columns[0], 32);
    for (int r = 0; r < side; r++) {
        const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_load_ps(rows[r] + 16), _mm512_load_ps(rows[r]));
        const __m512bh y = _mm512_cvtne2ps_pbh(_mm512_load_ps(columns[r] + 16), _mm512_load_ps(columns[r]));
        memcpy(left + r * 32, &x, sizeof x);
        memcpy(turned + r * 32, &y, sizeof y);
    }
}

/* Which blocks stand around a level's border: those of pair p for h = 16, of h = 32 as pair 2. */
INLINE int side_of(int pair) { return pair < 2 ? ROWS : 2 * ROWS; }
INLINE int reader_block(int pair) { return pair < 2 ? 2 * pair + 1 : 2; }
INLINE int writer_block(int pair) { return pair < 2 ? 2 * pair : 0; }

void LNT_V(lnt_vector_back_begin)(const lnt_vector *v, const lnt_vector_back *s)
{
    if (is_mild(v)) {
        mild_back_begin(v, s);
        return;
    }
    const int64_t W = v->width, n = s->f->n;
    const rooms m = rooms_at(v->tiled, W);
    for (int p = 0; p < 3; p++) {
        const int64_t i = reader_block(p) * ROWS, j = writer_block(p) * ROWS;
        if (i >= n) continue;
        for (int x = 0; x < s->f->readers; x++) {
            lnt_bf16 *rows = p < 2 ? m.far_readers[x][0][p] : m.far_readers[x][1][0];
            if (p == 2 && i + ROWS >= n) memset(rows + ROWS * W, 0, (size_t)(ROWS * W) * sizeof *rows);
            pair_rows(side_of(p), W, rows, m.right_readers[x][p]);
            for (int y = 0; y < s->f->writers; y++) square_forms(side_of(p), s->A[x][y] + j, s->ld, i, n, m.A[x][y][p], m.turned_A[x][y][p]);
        }
        for (int y = 0; y < s->f->writers; y++)
            pair_rows(side_of(p), W, p < 2 ? m.far_writers[y][0][p] : m.far_writers[y][1][0], m.right_writers[y][p]);
    }
}

typedef float far_sums[2][ROWS][32]; /* of a block, 32 columns: from h = 16 and h = 32 */

/* What pairs across borders give the blocks' readers (writers), undecayed on their side of the border. */
static void far_products(int sides, int others, bool transposed, const rooms *m, int64_t n, int64_t c, far_sums sums[SIDES][BLOCKS])
{
    for (int s = 0; s < sides; s++)
        for (int p = 0; p < 3; p++) {
            const int block = transposed ? writer_block(p) : reader_block(p), level = p == 2;
            if (reader_block(p) * ROWS >= n) continue;
            __asm__ volatile("" ::: "memory");
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int o = 0; o < others; o++) {
                const lnt_bf16 *a = transposed ? m->turned_A[o][s][p] : m->A[s][o][p];
                const lnt_bf16 *b = (transposed ? m->right_readers[o][p] : m->right_writers[o][p]) + c / 16 * TILE;
                _tile_loadd(4, a, 64);
                _tile_loadd(6, b, 64);
                _tile_loadd(7, b + TILE, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (level) {
                    _tile_loadd(5, a + TILE, 64);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, sums[s][block][level][0], 128);
            _tile_stored(1, sums[s][block][level][0] + 16, 128);
            if (level) {
                _tile_stored(2, sums[s][block + 1][1][0], 128);
                _tile_stored(3, sums[s][block + 1][1][0] + 16, 128);
            }
            __asm__ volatile("" ::: "memory");
        }
}

/* Rows of a block by one vector of columns. */
typedef float strip[ROWS][16];

/* sums_i += sum_{j<i} A_ij F_ij y_j inside a block of m rows; a: its alphas. */
INLINE void near_reads(int m, const float *A, int64_t ld, const strip a, const strip y, strip sums)
{
    __m512 s[ROWS] = { _mm512_load_ps(y[0]) };
    UNROLL for (int i = 1; i < ROWS; i++) {
        if (i >= m) break;
        const __m512 alpha = _mm512_load_ps(a[i]);
        __m512 sum[2] = { _mm512_load_ps(sums[i]), _mm512_setzero_ps() };
        UNROLL for (int j = 0; j < i; j++) {
            s[j] = _mm512_mul_ps(s[j], alpha);
            sum[j % 2] = _mm512_fmadd_ps(_mm512_set1_ps(A[i * ld + j]), s[j], sum[j % 2]);
        }
        _mm512_store_ps(sums[i], _mm512_add_ps(sum[0], sum[1]));
        s[i] = _mm512_load_ps(y[i]);
    }
}

/* sums_j += sum_{i>j} A_ij F_ij x_i */
INLINE void near_writes(int m, const float *A, int64_t ld, const strip a, const strip x, strip sums)
{
    __m512 s[ROWS];
    UNROLL for (int back = 0; back < ROWS; back++) {
        const int j = ROWS - 1 - back;
        if (j + 1 < ROWS && j + 1 < m) {
            const __m512 alpha = _mm512_load_ps(a[j + 1]);
            __m512 sum[2] = { _mm512_load_ps(sums[j]), _mm512_setzero_ps() };
            UNROLL for (int i = ROWS - 1; i > j; i--) {
                if (i >= m) continue;
                s[i] = _mm512_mul_ps(s[i], alpha);
                sum[i % 2] = _mm512_fmadd_ps(_mm512_set1_ps(A[i * ld + j]), s[i], sum[i % 2]);
            }
            _mm512_store_ps(sums[j], _mm512_add_ps(sum[0], sum[1]));
        }
        s[j] = _mm512_load_ps(x[j]);
    }
}

/* Both, compiled for whole blocks and for others. */
static __attribute__((noinline)) void near_whole(const float *A, int64_t ld, const strip a, const strip x, const strip y, strip reads, strip writes)
{
    near_reads(ROWS, A, ld, a, y, reads);
    near_writes(ROWS, A, ld, a, x, writes);
}
static __attribute__((noinline)) void near_part(int m, const float *A, int64_t ld, const strip a, const strip x, const strip y, strip reads,
                                                strip writes)
{
    near_reads(m, A, ld, a, y, reads);
    near_writes(m, A, ld, a, x, writes);
}

typedef struct {
    far_sums reads[SIDES][BLOCKS], writes[SIDES][BLOCKS];
    float through[BLOCKS][32]; /* what stands before a block: last and the rows' shares */
    float run[32];             /* the sum of `inside` over the rows behind */
    strip alpha, P, Q, x[SIDES], y[SIDES], read[SIDES], write[SIDES], inside, passes;
} back_room;

/* P and Q of a block's alphas. */
static void scan_factors(back_room *t)
{
    __m512 P[ROWS], Q[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++) P[i] = _mm512_load_ps(t->alpha[i]);
    first_doubled(P, Q);
    doubled(2, P, Q);
    doubled(4, P, Q);
    doubled(8, P, Q);
    UNROLL for (int i = 0; i < ROWS; i++) {
        _mm512_store_ps(t->P[i], P[i]);
        _mm512_store_ps(t->Q[i], Q[i]);
    }
}

/* A block's rows from c on; no sums yet. */
static void strip_in(const lnt_bf16 *row, int64_t W, strip x, strip sums)
{
    UNROLL for (int i = 0; i < ROWS; i++) {
        v_store(x[i], v_load_bf16(row + i * W));
        v_store(sums[i], v_zero());
    }
}

/* One vector of columns, from c + half on, of block b of m rows. */
static void back_block(const lnt_vector_back *s, const rooms *r, back_room *t, int64_t b, int64_t blocks, int m, int64_t W, int64_t c, int64_t half)
{
    const lnt_vector_front *f = s->f;
    const int64_t first = b * ROWS, at = c + half, readers = f->readers, writers = f->writers;
    UNROLL for (int i = 0; i < ROWS; i++) _mm512_store_ps(t->alpha[i], _mm512_loadu_ps(r->alpha + (first + i) * W + at));
    scan_factors(t);
    for (int64_t k = 0; k < readers; k++) strip_in(r->x[k] + first * W + at, W, t->x[k], t->read[k]);
    for (int64_t k = 0; k < writers; k++) strip_in(r->y[k] + first * W + at, W, t->y[k], t->write[k]);
    for (int64_t k = 0; k < readers; k++)
        for (int64_t l = 0; l < writers; l++) {
            const float *A = s->A[k][l] + first * s->ld + first;
            if (m == ROWS)
                near_whole(A, s->ld, t->alpha, t->x[k], t->y[l], t->read[k], t->write[l]);
            else
                near_part(m, A, s->ld, t->alpha, t->x[k], t->y[l], t->read[k], t->write[l]);
        }
    const __m512 one = _mm512_set1_ps(1.0f), start = b ? _mm512_loadu_ps(r->start + b * W + at) : one;
    const __m512 after = b + 1 < blocks ? _mm512_loadu_ps(r->after + b * W + at) : one;
    const __m512 before = b == 3 ? _mm512_loadu_ps(r->third + at) : one, behind = b == 0 && blocks > 2 ? _mm512_loadu_ps(r->second + at) : one;
    const bool reads_near = b % 2, reads_far = b > 1, writes_near = b % 2 == 0 && b + 1 < blocks, writes_far = b < 2 && blocks > 2;
    for (int i = 0; i < m; i++) {
        __m512 sum = _mm512_setzero_ps(), passes = sum;
        const __m512 P = _mm512_load_ps(t->P[i]), Q = _mm512_load_ps(t->Q[i]);
        for (int64_t k = 0; k < readers; k++) {
            __m512 far = _mm512_mul_ps(_mm512_mul_ps(start, _mm512_set1_ps(s->f_state[k])), _mm512_loadu_ps(s->dread[k] + (first + i) * 32 + half));
            if (reads_near) far = _mm512_add_ps(far, _mm512_load_ps(t->reads[k][b][0][i] + half));
            if (reads_far) far = _mm512_fmadd_ps(before, _mm512_load_ps(t->reads[k][b][1][i] + half), far);
            const __m512 all = _mm512_fmadd_ps(P, far, _mm512_load_ps(t->read[k][i]));
            _mm512_store_ps(t->read[k][i], all);
            sum = _mm512_fmadd_ps(all, _mm512_load_ps(t->x[k][i]), sum);
        }
        for (int64_t k = 0; k < writers; k++) {
            __m512 far = _mm512_setzero_ps();
            if (writes_near) far = _mm512_load_ps(t->writes[k][b][0][i] + half);
            if (writes_far) far = _mm512_fmadd_ps(behind, _mm512_load_ps(t->writes[k][b][1][i] + half), far);
            const __m512 key = _mm512_load_ps(t->y[k][i]), pairs = _mm512_fmadd_ps(Q, far, _mm512_load_ps(t->write[k][i]));
            const __m512 state = _mm512_mul_ps(_mm512_mul_ps(Q, after), _mm512_loadu_ps(s->dwrite[k] + (first + i) * 32 + half));
            sum = _mm512_fnmadd_ps(key, pairs, sum);
            passes = _mm512_fmadd_ps(key, state, passes);
            _mm512_store_ps(t->write[k][i], _mm512_add_ps(pairs, state));
        }
        _mm512_store_ps(t->inside[i], sum);
        _mm512_store_ps(t->passes[i], passes);
    }
    if (s->last) {
        const bool past = rows_past(s->dg, LINNET_F32, W);
        __m512 run = _mm512_loadu_ps(t->run + half), last = _mm512_loadu_ps(t->through[b] + half);
        for (int i = m - 1; i >= 0; i--) {
            run = _mm512_add_ps(run, _mm512_load_ps(t->inside[i]));
            _mm512_store_ps(t->inside[i], run);
        }
        _mm512_storeu_ps(t->run + half, run);
        for (int i = 0; i < m; i++) {
            const __mmask16 passed = _mm512_cmp_ps_mask(_mm512_load_ps(t->alpha[i]), _mm512_setzero_ps(), _CMP_NEQ_UQ); /* nothing passes a reset */
            const __m512 dg = _mm512_maskz_add_ps(passed, last, _mm512_load_ps(t->inside[i]));
            if (past)
                _mm512_stream_ps(s->dg + (first + i) * s->stride + at, dg);
            else
                _mm512_storeu_ps(s->dg + (first + i) * s->stride + at, dg);
            last = _mm512_add_ps(last, _mm512_load_ps(t->passes[i]));
        }
    }
    for (int i = 0; i < m; i++) { /* the diagonals have no factor */
        for (int64_t k = 0; k < readers; k++) {
            __m512 sum = _mm512_load_ps(t->read[k][i]);
            for (int64_t l = 0; l < writers; l++) {
                const __m512 d = _mm512_set1_ps(s->A[k][l][(first + i) * (s->ld + 1)]);
                sum = _mm512_fmadd_ps(d, _mm512_load_ps(t->y[l][i]), sum);
                _mm512_store_ps(t->write[l][i], _mm512_fmadd_ps(d, _mm512_load_ps(t->x[k][i]), _mm512_load_ps(t->write[l][i])));
            }
            _mm512_storeu_ps(s->dread[k] + (first + i) * 32 + half, sum);
        }
        for (int64_t k = 0; k < writers; k++) _mm512_storeu_ps(s->dwrite[k] + (first + i) * 32 + half, _mm512_load_ps(t->write[k][i]));
    }
}

void LNT_V(lnt_vector_back_columns)(const lnt_vector *v, const lnt_vector_back *s, int c)
{
    if (is_mild(v)) {
        mild_back_columns(v, s, c);
        return;
    }
    const lnt_vector_front *f = s->f;
    const int64_t W = v->width, n = f->n, blocks = (n + ROWS - 1) / ROWS;
    const rooms m = rooms_at(v->tiled, W);
    _Alignas(64) back_room t;
    far_products(f->readers, f->writers, false, &m, n, c, t.reads);
    far_products(f->writers, f->readers, true, &m, n, c, t.writes);
    if (s->last) {
        __m512 low = _mm512_loadu_ps(s->last + c), high = _mm512_loadu_ps(s->last + c + 16);
        memset(t.run, 0, sizeof t.run);
        for (int64_t b = 0; b < blocks; b++) {
            _mm512_storeu_ps(t.through[b], low);
            _mm512_storeu_ps(t.through[b] + 16, high);
            for (int64_t i = b * ROWS; i < n && i < (b + 1) * ROWS; i++)
                for (int k = 0; k < f->writers; k++) {
                    const float *d = s->dwrite[k] + i * 32;
                    low = _mm512_fmadd_ps((__m512)v_load_bf16(f->writes[k] + i * W + c), _mm512_loadu_ps(d), low);
                    high = _mm512_fmadd_ps((__m512)v_load_bf16(f->writes[k] + i * W + c + 16), _mm512_loadu_ps(d + 16), high);
                }
        }
    }
    for (int64_t b = blocks - 1; b >= 0; b--)
        for (int64_t half = 0; half < 32; half += 16) {
            lnt_tiles_awake();
            back_block(s, &m, &t, b, blocks, (int)(n - b * ROWS < ROWS ? n - b * ROWS : ROWS), W, c, half);
        }
}

/* Row j's factor is the exponential of the gates' sum behind it: from the last row up. */
void LNT_V(lnt_vector_writes_tiled)(const lnt_vector *v, const lnt_vector_front *f)
{
    const int64_t W = v->width;
    for (int64_t c = 0; c < W; c += 32) {
        __m512 low = _mm512_setzero_ps(), high = low;
        for (int64_t i = f->n - 1; i >= 0; i--) {
            const __m512 F = decay(low), G = decay(high);
            if (i % 8 == 0) lnt_tiles_awake();
            for (int k = 0; k < f->writers; k++) {
                const lnt_bf16 *y = f->write[k].row + i * f->write[k].stride + c;
                put_wide(f->writes[k] + i * W + c, _mm512_mul_ps((__m512)v_load_bf16(y), F), _mm512_mul_ps((__m512)v_load_bf16(y + 16), G));
            }
            low = _mm512_add_ps(low, _mm512_loadu_ps(f->g + i * f->stride + c));
            high = _mm512_add_ps(high, _mm512_loadu_ps(f->g + i * f->stride + c + 16));
        }
        if (!f->end) continue;
        _mm512_storeu_ps(f->end + c, decay(low));
        _mm512_storeu_ps(f->end + c + 16, decay(high));
    }
}
#endif
