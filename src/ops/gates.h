#ifndef LNT_OPS_GATES_H
#define LNT_OPS_GATES_H

typedef struct {
    double cap;
} lnt_gamma_cap_attr;

#endif
