#ifndef LNT_OPS_GATES_H
#define LNT_OPS_GATES_H

#include <stdint.h>

typedef struct {
    double cap;
} lnt_gamma_cap_attr;

typedef struct {
    int64_t d;    /* columns that share an A_log */
    double lower; /* 0: none */
} lnt_decay_gate_attr;

#endif
