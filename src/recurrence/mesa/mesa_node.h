/* Building with the Mesa core: its node brings Lambda from a parameter, draws the number of steps, and keeps a chunk as the state of one solver. */
#ifndef LNT_MESA_NODE_H
#define LNT_MESA_NODE_H

#include "program/program.h"

/* How it solves, and where its Lambda [Hv,K] = lower + softplus(p) comes from: p is a parameter that starts where Lambda is `start`. */
typedef struct {
    const char *lambda;          /* the parameter's name */
    double lower, start;
    double tolerance;            /* the operator's cg_tol, and so on */
    int32_t max_steps;           /* of calls of more than a token */
    int32_t max_steps_decoding;  /* of one token of each sequence with a state */
    int guess, solver, gradient; /* LNT_CG_... */
    int64_t window;              /* tokens that a token sees, itself among them; 0: all */
    lnt_buf sign;                /* a factor of the decay, from -1 to 1, a head; none: 1 */
    int32_t min_steps;           /* a training step takes min_steps to max_steps, each as likely (lnt_call.draw); -1: max_steps */
} lnt_mesa_options;

lnt_buf lnt_mesa(lnt_program *p, lnt_buf q, lnt_buf k, lnt_buf v, lnt_buf g, lnt_buf beta, const lnt_mesa_options *options);

/* How a mesa node solves; NULL for every other node. Its inputs are q k v g beta, its parameter is that of Lambda. */
const lnt_mesa_options *lnt_mesa_of(const lnt_node *n);

extern const lnt_op lnt_mesa_node;

/* The number of steps of a run in which they are drawn: each of min .. max as likely, where chance is uniform in (0,1]. A place on the device, NULL:
 * nothing is drawn. */
typedef struct {
    int32_t *steps;
    const double *chance;
    int32_t min, max;
} lnt_steps_draw;
/* On a GPU: lambda = lower + softplus(p) and that number, in one launch; what the former adds to p's gradient. */
void lnt_lambda_cuda(lnt_ctx *c, float *lambda, const float *p, float lower, int64_t n, lnt_steps_draw draw);
void lnt_lambda_gradient_cuda(lnt_ctx *c, float *dp, const float *p, const float *dlambda, int64_t n);

#endif
