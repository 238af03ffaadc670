#ifndef LNT_OPS_FEATURE_MAPS_H
#define LNT_OPS_FEATURE_MAPS_H

typedef struct {
    int nu;
} lnt_dpfp_attr;

/* Columns of a head: the kernels keep a few of its copies on the stack. */
enum { LNT_FEATURE_MAX = 1024 };

#endif
