/* What the files of the decay core share. */
#ifndef LNT_DECAY_H
#define LNT_DECAY_H

#include "recurrence/recurrence.h"

/* GPUs: a sequence is cut into segments of so many tokens, a multiple of chunk, each a piece of work for every value head and block of columns. In a
 * backward pass with gates a segment has at most LNT_DECAY_CHUNKS chunks. */
enum { LNT_DECAY_CHUNKS = 64 };
int64_t lnt_decay_segment(const lnt_recur_args *a, bool backward, int chunk, int blocks);

#endif
