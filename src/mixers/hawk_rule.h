/* Hawk's recurrent layer, for the mixers that have it. */
#ifndef LNT_HAWK_RULE_H
#define LNT_HAWK_RULE_H

#include "mixers/mixers.h"

/* `columns` of the recurrence, its gates made by `blocks` blocks of columns, a convolution of `taps` before it. */
lnt_buf lnt_hawk_layer(lnt_program *p, const lnt_layer *l, lnt_buf x, int64_t columns, int64_t blocks, int taps);

#endif
