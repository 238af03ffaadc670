#ifndef LNT_OPS_ROTARY_H
#define LNT_OPS_ROTARY_H

#include <stdbool.h>
#include <stdint.h>

enum { LNT_ROTARY_MAX = 2048 }; /* columns of a head: a token's cosines and sines stay on the stack */

typedef struct {
    int64_t half;            /* pairs of a head */
    int64_t rest;            /* columns of a head behind them, which stay */
    int64_t period;          /* positions begin again after so many; 0: never */
    double scale;
    bool even;               /* theta_i = theta_1^i */
    double *theta, *co, *si; /* [half] each: angle of one position, its cosine and sine */
} lnt_rotary_attr;

#endif
