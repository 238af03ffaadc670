/* What the files of the decay core share. */
#ifndef LNT_DECAY_H
#define LNT_DECAY_H

#include "recurrence/cases.h"
#include "recurrence/recur_args.h"

/* The core's operators by their gate: none, of a head, of a token; of a token, with a write strength e^i (mLSTM); of S's columns (gv), of its rows
 * (gk), of both; of its rows, read out before the write and with a bonus for the token's own (bonus). */
enum { LNT_DECAY_NONE, LNT_DECAY_HEAD, LNT_DECAY_SCALAR, LNT_DECAY_STABLE, LNT_DECAY_COLUMNS, LNT_DECAY_ROWS, LNT_DECAY_BOTH, LNT_DECAY_EARLY };

extern const lnt_recur_impl *const lnt_decay_impls[];
extern const lnt_recur_impl lnt_decay_reference;
extern const lnt_recur_case lnt_decay_cases[];
double lnt_decay_flops(const void *args, int C, bool backward);
/* Decays of rows or columns with signs. */
static inline bool lnt_decay_turns(const lnt_recur_args *a) { return a->has_sign && a->op->kind >= LNT_DECAY_COLUMNS; }
/* Of one token and value head. */
double lnt_decay_token_flops(double K, double V, int C, bool backward);

/* GPUs: a sequence is cut into segments of so many tokens, a multiple of chunk, each a piece of work for every value head and block of columns. In a
 * backward pass with gates a segment has at most LNT_DECAY_CHUNKS chunks. */
enum { LNT_DECAY_CHUNKS = 64 };
int64_t lnt_decay_segment(const lnt_recur_args *a, bool backward, int chunk, int blocks);

#endif
