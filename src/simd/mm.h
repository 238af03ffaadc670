/* Products of small matrices that sit in a core's cache: the inner loop of every chunk kernel. One thread, no allocation, no packing of the caller's
 * data that the caller did not ask for. Compiled for every CPU variant; only *_cpu.c files include this.
 *
 *   C[M,N] = / += / -=  A[M,K] B[K,N]
 *
 * A(i,k) is a[i*a_rs + k*a_cs] (so a transposed A costs nothing), B and C are row major with leading dimensions ldb, ldc. Any M, N, K >= 0. */
#ifndef LNT_SIMD_MM_H
#define LNT_SIMD_MM_H

#include <stdbool.h>
#include <stddef.h>

#include "simd/simd.h"

typedef enum { LNT_MM_SET, LNT_MM_ADD, LNT_MM_SUB, LNT_MM_SCALED } lnt_mm_mode; /* SCALED: C = scale C + A B, where a scale is taken */

/* float32 throughout. */
void LNT_V(lnt_mm)(lnt_mm_mode mode, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c,
                   int64_t ldc);

/* C(i,:) = scale[i*scale_stride] C(i,:) + (A B)(i,:): a decayed state takes a write. Stride 0: one factor for all rows. */
void LNT_V(lnt_mm_scaled)(const float *scale, int64_t scale_stride, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b,
                          int64_t ldb, float *c, int64_t ldc);

/* C(i,:) = scale[i] C(i,:) + factor[i] (A B)(i,:): the same where what is written decays, too. */
void LNT_V(lnt_mm_scaled_both)(const float *scale, const float *factor, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs,
                               const float *b, int64_t ldb, float *c, int64_t ldc);

/* y[N,M] = x[M,N]^T. */
void LNT_V(lnt_transpose)(int M, int N, const float *x, int64_t ldx, float *y, int64_t ldy);

/* ---- engines: an algorithm written once in products, run in float32 or through bf16 tiles ---------------------------------------------- */

/* How a matrix X will be used: as X or X^T, at the left or at the right of a product. */
enum { LNT_LEFT = 1, LNT_LEFT_T = 2, LNT_RIGHT = 4, LNT_RIGHT_T = 8 };

/* A float32 matrix x[rows,ld] with the packed forms an engine wants of it, made once and used in many products. */
typedef struct {
    const float *x;
    int64_t ld;
    int rows, cols;
    struct {
        const void *p;
        int64_t ld;
    } left, left_t, right, right_t;
} lnt_operand;

typedef struct lnt_mm_engine {
    size_t (*bytes)(int rows, int cols, int forms); /* scratch of prepare or extend, a multiple of 64 */
    lnt_operand (*prepare)(int forms, int rows, int cols, const float *x, int64_t ld, void *scratch);
    void (*extend)(lnt_operand *m, int forms, void *scratch); /* make more forms of a prepared operand or of a view */
    /* The same from rows that are bf16 already, `ld` numbers apart: nothing is rounded, and x is NULL. NULL: an engine that has no use for them. */
    lnt_operand (*prepare16)(int forms, int rows, int cols, const lnt_bf16 *x, int64_t ld, void *scratch);
    /* The left, transposed left or right form of f scale_i x(i,:), rows in float32. NULL where prepare16 is. */
    lnt_operand (*prepare_scaled)(int form, float f, const float *scale, int rows, int cols, const float *x, int64_t ld, void *scratch);
    /* The right form of what an operand loses when it is rounded: for products that must not. NULL where prepare16 is. */
    lnt_operand (*prepare_rest)(int rows, int cols, const float *x, int64_t ld, void *scratch);
    /* An operand whose rows come one group after the other: forms laid out in scratch for up to `most` rows, of which there are none, and rows up to
     * `end` of x made in them; those that were there are a multiple of 16. Not left_t, which extend makes of all. NULL where prepare16 is. */
    lnt_operand (*lay_out)(int forms, int most, int cols, const float *x, int64_t ld, void *scratch);
    void (*append)(lnt_operand *m, int end);
    /* Rows first .. first+rows-1 of a prepared operand; `first` a multiple of row_align, and the rows up to the next multiple of row_align zero. */
    lnt_operand (*view)(const lnt_operand *m, int first, int rows);
    /* C by mode from op(A) op(B), op = transpose where the flag is set; the forms must have been prepared. */
    void (*multiply)(lnt_mm_mode mode, const float *scale, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, float *c, int64_t ldc);
    /* C = the sum of `count` products A_i B_i with `row` [N], N a multiple of 16 (NULL: zeros), added to each of its rows; NULL where prepare16
     * is. */
    void (*multiply_row)(const float *row, int count, const lnt_operand *a, const lnt_operand *b, float *c, int64_t ldc);
    /* A state that takes a write: s->x(i,:) = scale[i*scale_stride] s->x(i,:) + (op(A) op(B))(i,:), rows dense. Its right form, if prepared, is
     * renewed on the way; other packed forms are void. */
    void (*update)(const float *scale, int64_t scale_stride, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s);
    /* The same with a factor for each column, s->x(i,j) = rows[i] columns[j] s->x(i,j) + ..., rows NULL: ones; NULL where prepare16 is. */
    void (*update_columns)(const float *rows, const float *columns, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s);
    /* The same where what is written decays, too, s->x(i,j) = rows[i] columns[j] (s->x + op(A) op(B))(i,j), either NULL: ones; NULL where prepare16
     * is. */
    void (*update_before)(const float *rows, const float *columns, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s);
    /* A state that stands for s->x + base (as dense as it; NULL: zeros) takes `count` writes: s->x += A_i^T B_i, and its left and right forms, as far
     * as they are prepared, become those of the sum; NULL where prepare16 is. */
    void (*update_sum)(const float *base, int count, const lnt_operand *a, const lnt_operand *b, lnt_operand *s);
    /* The same where the state fades and takes of another, as dense as it (NULL: zeros): s->x = f s->x + g other + the sum of A_i^T B_i, and its
     * forms are of that; rest (NULL: not wanted) as by prepare_rest. */
    void (*update_mixed)(float f, float g, const float *other, int count, const lnt_operand *a, const lnt_operand *b, lnt_operand *s,
                         lnt_operand *rest);
    /* A state put by for later, in the engine's own precision: kept_bytes (a multiple of 64); its columns from `first` on (a multiple of 32)
     * out of s; then an operand that is taken transposed at the right; and <kept, y> for y[rows, cols], together or for each row. */
    size_t (*kept_bytes)(int rows, int cols);
    void (*keep)(const lnt_operand *s, int first, int cols, void *kept);
    lnt_operand (*kept)(int forms, int rows, int cols, const void *kept, void *scratch);
    float (*inner)(const lnt_operand *kept, const float *y);
    void (*inner_rows)(const lnt_operand *kept, const float *y, float *sums);
    void (*begin)(void), (*end)(void); /* around any use on a thread */
    bool bf16; /* operands are rounded to bf16 */
    int row_align;
    int chunk; /* rows of a chunk that suit its speed */
    int panel; /* columns of a state that suit its cache, a multiple of 32 */
} lnt_mm_engine;

/* The tile unit falls asleep: after about 1000 cycles without a product the next one waits 900 (measured on Sapphire Rapids). A product that nobody
 * reads, every few hundred cycles of other work, keeps it awake. Between begin and end of the tile engine only. */
static inline void lnt_tiles_awake(void)
{
#if defined(__AMX_BF16__)
    _tile_dpbf16ps(0, 4, 6);
#endif
}

/* Rows of tensors that float32 products fetch into the L2 cache, a line in a step or two: a burst of prefetches fills the core's miss buffers, and
 * all that comes behind it waits. One list for each thread; what is left in it when memory goes away is harmless. */
typedef struct {
    const char *line;
    int64_t jump;      /* from a row's end to the next row */
    int n, left, each; /* lines to go, in all and of this row; of a row */
    int skip;          /* 1: every other step, as long rows come with long products */
} lnt_fetch;

enum { LNT_FETCHES = 16 };
typedef struct {
    lnt_fetch list[LNT_FETCHES]; /* list[at].n is 0 when there is none */
    int n, at;
    bool at_once; /* no lists: rows are fetched where they are named */
    bool past;    /* rows of results go past the caches, from which they would be gone before anybody reads them */
} lnt_ahead;
extern _Thread_local lnt_ahead LNT_V(lnt_mm_ahead);

/* A line, at once. gcc 12 takes a function that does nothing but prefetch for one without effect and drops its calls; with the statement it does
 * not. */
static inline void lnt_fetch_at(const void *line)
{
    __builtin_prefetch(line, 0, 2);
    __asm__ volatile("");
}

static inline void lnt_fetch_line(lnt_fetch *f)
{
    lnt_fetch_at(f->line);
    f->line += 64;
    f->n--;
    if (--f->left) return;
    f->line += f->jump;
    f->left = f->each;
}

/* All that is left. */
static inline void lnt_fetch_all(lnt_ahead *a)
{
    for (; a->at < a->n; a->at++)
        while (a->list[a->at].n) lnt_fetch_line(&a->list[a->at]);
    a->n = a->at = 0;
}

/* float32 throughout. */
extern const lnt_mm_engine LNT_V(lnt_mm_f32);
#if defined(__AMX_BF16__)
/* Operands rounded to bf16, products accumulated in float32 by AMX tiles. */
extern const lnt_mm_engine LNT_V(lnt_mm_bf16_tiles);
#endif

#endif
