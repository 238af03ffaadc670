/* Vector gates in a chunk: a decay for every column of the rows that meet in a product (operators.md#gates). Only *_cpu.c files include this.
 *
 * alpha_i = e^{g_i} [width], and for i >= j the factor F_ij = alpha_{j+1} ... alpha_i, elementwise. Factors are running products of alphas: no
 * exponent is ever positive, nothing cancels (n roundings at most), and g = -inf is an exact 0 for every pair that it separates (chunk_mild.h and
 * chunk_mild_amx.h have chunks whose exponents are so small that none of this matters). What decays a state,
 * chunk after chunk, is the exponential of the gates' sum: the same gate in every token would give products the same rounding error each time. */
#ifndef LNT_CHUNK_VECTOR_H
#define LNT_CHUNK_VECTOR_H

#include "recurrence/chunk/chunk.h"

/* Rows of a block whose pairs are taken one by one; what lies between blocks is products of scaled rows. */
enum { LNT_VECTOR_ROWS = LNT_VL == 16 ? 16 : 8 };

typedef struct {
    const lnt_mm_engine *e;
    int n, C, width;
    float *alpha;              /* [C,width] */
    float *from_start, *to_end; /* [C,width] F from the chunk's start through i; F from behind i to the end */
    float *end;                /* [width] the decay over the chunk */
    float *levels;             /* [levels][C,width] of neighbouring blocks of LNT_VECTOR_ROWS 2^l rows: F from the second one's start through i in the
                                  second, F from behind i to the first one's end in the first */
    float *x, *y, *turned;     /* scratch: [C,width] twice, [width,LNT_VECTOR_ROWS] */
    void *left, *right;
    void *tiled; /* room of lnt_vector_front_tiled */
} lnt_vector;

lnt_vector LNT_V(lnt_vector_carve)(lnt_carve *c, const lnt_mm_engine *e, int C, int width);

/* The factors of n rows; row i's log decays are g + i stride. With `writers` only alpha, to_end and end. */
void LNT_V(lnt_vector_load)(lnt_vector *v, int n, const float *g, int64_t stride, bool writers);

/* With x [n,width] rows that read, y [n,width] rows that are written, of the first n rows:
 *   pairs    A_r[i,j] = f sum_c x_r[i,c] y[j,c] F_ij[c] for j <= i, 0 above; one or two readers r
 *   readers  out_r[i] += sum_{j<i} A_r[i,j] F_ij . y[j]                       one or two A_r [n,ld]
 *   writers  out[j] += sum_{i>j} A[i,j] F_ij . x[i]
 * The diagonal, which has no factor, is left to the caller by the latter two. */
void LNT_V(lnt_vector_pairs)(const lnt_vector *v, int n, float f, int readers, const float *const x[], const float *y, float *const A[], int64_t ld);
void LNT_V(lnt_vector_readers)(const lnt_vector *v, int n, int readers, const float *const A[], int64_t ld, const float *y, float *const out[]);
void LNT_V(lnt_vector_writers)(const lnt_vector *v, int n, const float *A, int64_t ld, const float *x, float *out);

#if defined(__AMX_BF16__)
/* Rows of a tensor in bf16, `stride` numbers apart; behind `rows` of them zeros. */
typedef struct {
    const lnt_bf16 *row;
    int64_t stride, rows;
} lnt_rows16;

/* A chunk's front on tiles, straight from tensors: pairs [n,ld] as above, of one or two sides that read with one or two that write, and what of them
 * meets states, rounded to bf16:
 *   reads_i = f_reads F from the chunk's start through i, times x_i         writes_j = F from behind j to the end, times y_j         end */
typedef struct {
    int n, readers, writers;
    const float *g;        /* row i's log decays at g + i stride */
    int64_t stride;
    lnt_rows16 read[2], write[2];
    float f_pairs[2], f_reads[2]; /* of a reader */
    float *pairs[2][2];    /* of a reader with a writer */
    int64_t ld;
    lnt_bf16 *reads[2], *writes[2]; /* [n,width] */
    float *end;            /* [width]; NULL: not wanted */
    bool back;             /* lnt_vector_back follows */
} lnt_vector_front;

/* The way back, behind the front of the same rows: from what states give readers and writers to their gradients and the gates', 32 columns at a
 * time. */
typedef struct {
    const lnt_vector_front *f;
    float f_state[2];        /* of what readers get from the state */
    const float *A[2][2];    /* [n,ld] the gradient of a reader's pairs with a writer, below the diagonal and on it */
    int64_t ld;
    float *dread[2], *dwrite[2]; /* [n,32] of the columns at hand: products with states, undecayed; then gradients */
    float *last;             /* [width] the rows' sums of the decayed state times its gradient; NULL where dg is not wanted */
    float *dg;               /* row i at dg + i stride */
    int64_t stride;
} lnt_vector_back;
void LNT_V(lnt_vector_back_begin)(const lnt_vector *v, const lnt_vector_back *s);
void LNT_V(lnt_vector_back_columns)(const lnt_vector *v, const lnt_vector_back *s, int c);

/* What it takes: chunks that are no longer, and whole steps of tiles. */
enum { LNT_VECTOR_TILED = 64 };
static inline bool lnt_vector_is_tiled(int C, int width) { return C <= LNT_VECTOR_TILED && width % 32 == 0 && width > 0; }
size_t LNT_V(lnt_vector_tiled_bytes)(int width);
void LNT_V(lnt_vector_front_tiled)(const lnt_vector *v, const lnt_vector_front *f);
void LNT_V(lnt_vector_writes_tiled)(const lnt_vector *v, const lnt_vector_front *f); /* writes and end alone */

/* Where the gates are mild (chunk_mild_amx.h), of a front without readers: writes and end, and the writer's rows divided by P, F from the chunk's
 * start, as a right operand. What reads then has no factor but P_i, last. False: they are not mild, and nothing was made. */
typedef struct {
    lnt_operand rows; /* [n,width] y_j / P_j */
    const float *P;   /* [n,width] */
} lnt_vector_lifted;
bool LNT_V(lnt_vector_lift_tiled)(const lnt_vector *v, const lnt_vector_front *f, lnt_vector_lifted *to);
#endif

/* A chunk's rows that read and rows that are written, and the gradients of both and of the gates (operators.md#gate-gradients). Rows that read
 * before the write (early) read what the row before them has left, and what they write themselves times the bonus. */
typedef struct {
    bool early;
    float f;                             /* of what is read from the state */
    const float *read, *write;           /* [n,width]; early: read has one row more, zeros */
    float *dread, *dwrite;               /* [n,width] products with the state and its gradient, undecayed, then gradients; dread NULL: not wanted */
    const float *pair_read, *pair_write; /* [n,width] what readers and writers above have summed */
    const float *A, *bonus;              /* [n,ld] the gradient of pairs; [width] */
    int64_t ld;
    float *last, *inside;                /* [width] the rows' sums of the decayed state times its gradient; [n,width] scratch */
    float *dg;                           /* row i at dg + i stride; NULL: not wanted, nor without dread */
    int64_t stride;
} lnt_vector_sides;
void LNT_V(lnt_vector_gradients)(const lnt_vector *v, const lnt_vector_sides *s);

/* dg_i = last + sum_{l<i} through_l + sum_{l>=i} inside_l, 0 at an exact reset; last [width], through and inside [n,width]
 * (operators.md#gate-gradients). Afterwards last and inside hold the running sums. */
void LNT_V(lnt_vector_gate_grad)(const lnt_vector *v, float *last, const float *through, float *inside, float *dg, int64_t stride);

#endif
