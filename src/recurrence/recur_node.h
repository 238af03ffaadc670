/* Building with the recurrences (the plain operators are in ops/ops.h). */
#ifndef LNT_RECUR_NODE_H
#define LNT_RECUR_NODE_H

#include "program/program.h"

/* How mesa solves, and where its Lambda [Hv,K] = lower + softplus(p) comes from: p is a parameter that starts where Lambda is `start`. */
typedef struct {
    const char *lambda;          /* the parameter's name */
    double lower, start;
    double tolerance;            /* as linnet_recurrence.cg_tolerance, and so on */
    int32_t max_steps;           /* of calls of more than a token */
    int32_t max_steps_decoding;  /* of one token of each sequence with a state */
    int guess, solver, gradient; /* linnet_cg_guess, linnet_cg_solver, linnet_cg_gradient */
    int32_t min_steps;           /* a training step takes min_steps to max_steps, each as likely (lnt_call.chance); -1: max_steps */
} lnt_mesa_options;

/* The recurrences as a node (program side of linnet/recurrence.h). Head counts come from the buffers. Missing inputs: LNT_NO_BUF. */
typedef struct {
    lnt_buf q, k, v, g, beta;
    const double *g_head;  /* constant natural-log decay of each value head, copied; NULL: none */
    double scale;          /* NaN: K^-1/2 */
    bool normalize;
    double eps;
    int64_t window;        /* attention */
    const lnt_mesa_options *mesa; /* copied; NULL for all others */
} lnt_recur_in;
lnt_buf lnt_recur(lnt_program *p, const char *op, lnt_recur_in in);

/* How a mesa node solves; NULL for every other node. Its inputs are q k v g beta, its parameter is that of Lambda. */
const lnt_mesa_options *lnt_mesa_of(const lnt_node *n);

/* sum[i] += part[i], on a GPU. */
void lnt_gradient_add_cuda(lnt_ctx *c, void *sum, const void *part, lnt_dtype type, int64_t n);
/* The number of steps of a run in which they are drawn: each of min .. max as likely, where chance is uniform in (0,1]. A place on the device, NULL:
 * nothing is drawn. */
typedef struct {
    int32_t *steps;
    const double *chance;
    int32_t min, max;
} lnt_steps_draw;
/* Mesa, on a GPU: lambda = lower + softplus(p) and that number, in one launch; what the former adds to p's gradient. */
void lnt_lambda_cuda(lnt_ctx *c, float *lambda, const float *p, float lower, int64_t n, lnt_steps_draw draw);
void lnt_lambda_gradient_cuda(lnt_ctx *c, float *dp, const float *p, const float *dlambda, int64_t n);

#endif
