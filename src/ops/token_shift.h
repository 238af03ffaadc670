#ifndef LNT_OPS_TOKEN_SHIFT_H
#define LNT_OPS_TOKEN_SHIFT_H

#include <stdbool.h>

typedef struct {
    bool row; /* m has one row for all */
    bool sum; /* a + m; there is no b */
} lnt_lerp_attr;

#endif
