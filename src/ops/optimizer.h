/* AdamW (Loshchilov and Hutter, arXiv 1711.05101) over a program's parameters, with clipping to a global gradient norm.
 *
 *   g <- g min(1, clip / norm),  norm = sqrt(sum of squares of every parameter's gradient)
 *   m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2
 *   w <- w - lr (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + epsilon) + weight_decay w)      weight_decay for parameters marked `decay`
 *   g <- 0, or anything for what products alone read (lnt_weights.grad_empty)
 *
 * Where the norm or the sum of the losses is not finite, weights and moments stay as they are; the caller sees it in what he reads.
 *
 * A weight kept without a float32 master, and moments kept in bf16, are rounded stochastically: up or down to a neighbour with the probability that
 * makes the mean right, by bits that are a function of (seed, step, element). Without that a second moment would hardly fall: of b2 = 0.999 a step
 * takes less than half of bf16's spacing off it.
 *
 * Everything stays on the device: norm, clipping and the sum of the losses are read once, when the step is over. The paddings between parameters
 * are left zero. */
#ifndef LNT_OPS_OPTIMIZER_H
#define LNT_OPS_OPTIMIZER_H

#include "program/plan.h"

typedef struct {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double clip;   /* largest global norm; <= 0: no limit */
    int64_t step;  /* 1 for the first update */
    uint64_t seed; /* of stochastic rounding */
} lnt_adamw;

/* What a step leaves behind. */
typedef struct {
    double nats;  /* sum of the losses since the last read */
    double norm;  /* of the gradient, before clipping */
    double scale; /* what clipping multiplied it with */
} lnt_step_sums;

/* A part of a parameter: the unit of work and of partial sums, the same on every device and for any number of threads. */
typedef struct {
    int64_t at;    /* first element in the arenas, a multiple of 64 */
    int32_t n;
    uint8_t decay, master, work; /* weight decay applies; there is a float32 master; there is a working copy */
    uint8_t zero;  /* its gradient becomes zero */
} lnt_piece;

typedef struct lnt_optimizer {
    lnt_ctx *c;
    lnt_weights *w;
    lnt_dtype kept;       /* of the moments: LINNET_F32 or LINNET_BF16 */
    void *m, *v;          /* device, [elements]: the moments */
    lnt_step_sums *sums;  /* device */
    int64_t n_pieces;
    lnt_piece *pieces;    /* device, [n_pieces] */
    double *parts;        /* device, [n_pieces]: sums of squares */
} lnt_optimizer;

/* Moments are zero. The weights must have gradients. */
linnet_status lnt_optimizer_create(lnt_ctx *c, lnt_weights *w, lnt_dtype moments, lnt_optimizer **out);
void lnt_optimizer_destroy(lnt_optimizer *o);
/* nats += the sum of loss[0..n), device memory. */
void lnt_optimizer_add_losses(lnt_optimizer *o, const float *loss, int64_t n);
linnet_status lnt_optimizer_step(lnt_optimizer *o, const lnt_adamw *h);
/* Waits for the step, and starts the sum of the losses anew. */
void lnt_optimizer_read(lnt_optimizer *o, lnt_step_sums *out);

#endif
