#ifndef LNT_OPS_IMPLICIT_FILTER_H
#define LNT_OPS_IMPLICIT_FILTER_H

/* Rates of decay, of the first column and of the last. */
typedef struct {
    double slow, fast, shift;
} lnt_decay_window_attr;

#endif
