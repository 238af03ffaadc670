/* Which sequence a row belongs to, for kernels that walk the token axis. */
#ifndef LNT_OPS_SEQUENCES_H
#define LNT_OPS_SEQUENCES_H

#include "program/program.h"

/* The sequence of row r: cu[n] <= r < cu[n+1] (empty sequences hold no row). */
static inline int64_t lnt_sequence_of(const lnt_call *k, int64_t r)
{
    int64_t low = 0, high = k->n_seq; /* cu[low] <= r < cu[high] */
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (k->cu[mid] <= r)
            low = mid;
        else
            high = mid;
    }
    return low;
}

#endif
