#ifndef LNT_OPS_LERP_H
#define LNT_OPS_LERP_H

#include <stdbool.h>

#include "ops/kernels.h"

enum { LNT_LERP_MOST = 6 }; /* side by side */

typedef struct {
    bool row;  /* m has one row for all */
    bool sum;  /* a + m; there is no b */
    int count; /* y has so many times the columns of a; m as well, or there are so many of it */
} lnt_lerp_attr;

/* m_i, or its gradient, of the tensors behind a and b. */
static inline lnt_tensor lnt_lerp_at(const lnt_call *k, const lnt_tensor *in, int i)
{
    const int count = ((const lnt_lerp_attr *)k->attr)->count;
    if (k->node->n_in == 2 + count) return in[2 + i];
    lnt_tensor m = in[2];
    m.cols /= count;
    if (m.data) m.data = (char *)m.data + i * m.cols * (m.dtype == LINNET_F32 ? 4 : 2);
    return m;
}
extern const lnt_op lnt_token_shift_op, lnt_mul_op;
/* x m + y, of the sum that adds y to columns times one row. */
extern const lnt_pair lnt_scaled_sum;

/* The same gradient is added to what is there. */
static inline bool lnt_lerp_adds(const lnt_call *k, int i) { return k->accumulate[k->node->n_in == 3 ? 2 : 2 + i]; }

#endif
