/* Building with the recurrences (the plain operators are in ops/ops.h). */
#ifndef LNT_RECUR_NODE_H
#define LNT_RECUR_NODE_H

#include "program/program.h"

/* The recurrences as a node (program side of linnet/recurrence.h). Head counts come from the buffers. Missing inputs: LNT_NO_BUF. */
typedef struct {
    lnt_buf q, k, v, g, beta;
    const double *g_head;  /* constant natural-log decay of each value head, copied; NULL: none */
    double scale;          /* NaN: K^-1/2 */
    bool normalize;
    double eps;
    int64_t window;        /* attention */
} lnt_recur_in;
lnt_buf lnt_recur(lnt_program *p, const char *op, lnt_recur_in in);

/* sum[i] += part[i], on a GPU. */
void lnt_gradient_add_cuda(lnt_ctx *c, void *sum, const void *part, lnt_dtype type, int64_t n);

#endif
