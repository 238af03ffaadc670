/* Products of few rows of x with large weights: decoding. Several weights are one call, of one x or each of its own. */
#ifndef LNT_OPS_FEW_ROWS_H
#define LNT_OPS_FEW_ROWS_H

#include "core/dtype.h"
#include "core/status.h"

enum { LNT_FEW_PARTS = 8, LNT_FEW_ROWS = 64, LNT_FEW_NARROW = 256 };

/* y[r ldy + n step] = scale act(alpha sum_k x[r,k] w[n,k] + bias[n]) (+ y). What goes into a bias or an act is rounded to bf16 before it, as when it
 * were kept. */
typedef struct {
    const void *w; /* bf16 [N, ldw] */
    const float *bias; /* [N]; NULL: none */
    int64_t N, ldw;
    void *y;
    int64_t ldy, step;
    lnt_dtype type;
    float alpha, scale;
    int act;       /* lnt_act */
    bool add;
    const void *x; /* bf16 [R, ldx] of K columns, a row of w as well; NULL: the call's */
    int64_t ldx, K;
} lnt_few_part;

/* A sum and an rmsnorm behind a product of one part without an activation: z = x + y, y rounded to bf16, and z w, which the next
 * product reads where z r w was meant, r = (mean z^2 + eps)^-1/2, and multiplies its results by r. For that, every tile's sum of z^2 is kept. */
typedef struct {
    const float *x;  /* [R, ldx] */
    float *z;        /* [R, ldz] */
    const float *w;  /* [N] */
    void *zw;        /* bf16 [R, ldzw] */
    float *squares;  /* [R, tiles], tiles up to LNT_FEW_TILES */
    int64_t ldx, ldz, ldzw;
    int tiles;       /* put there by the call */
} lnt_few_sum;
enum { LNT_FEW_TILES = 256, LNT_FEW_LEAST_TILE = 16 };

typedef struct lnt_few_rows {
    int R;         /* up to LNT_FEW_ROWS, or as below */
    int64_t K;
    const void *x; /* bf16 [R, ldx] */
    int64_t ldx;
    int parts;
    lnt_few_part part[LNT_FEW_PARTS];
    bool swiglu;   /* of two parts of equal size and without biases: y of part 0 = silu(its sum) times part 1's, both rounded to bf16 first */
    bool weights;  /* w may be read before the kernels ahead have ended */
    lnt_few_sum *sum;        /* NULL: none follows */
    const lnt_few_sum *norm; /* what made x; NULL: x needs no r */
    float mean, eps;         /* of r: 1 / columns */
} lnt_few_rows;

/* False: not this many rows on this device, or not where these tensors lie; nothing was put. Where every row is to be as if alone (core/threads.h),
 * any number of rows. */
bool lnt_few_rows_cuda(lnt_ctx *c, const lnt_few_rows *f);
/* Whether that would be done, and with a sum or behind one. */
bool lnt_few_rows_can(lnt_ctx *c, const lnt_few_rows *f);

#endif
