#ifndef LNT_OPS_FEATURE_MAPS_H
#define LNT_OPS_FEATURE_MAPS_H

#include <stdint.h>

typedef struct {
    int nu;
} lnt_dpfp_attr;

/* Degree 2: phi(x).phi(y) = one^2 + (linear^2) x.y + square^2 (x.y)^2. Parts whose factor is 0 are left out. */
typedef struct {
    double one, linear, square;
} lnt_quadratic_attr;
enum { LNT_QUADRATIC_MAX = 64 }; /* columns of a head */
static inline int64_t lnt_quadratic_cols(const lnt_quadratic_attr *a, int64_t d)
{
    return (a->one != 0) + (a->linear != 0 ? d : 0) + d * (d + 1) / 2;
}

/* Columns of a head: the kernels keep a few of its copies on the stack. */
enum { LNT_FEATURE_MAX = 1024 };

#endif
