/* Decoding with guesses: a small model guesses some tokens, the model looks at all of them at once, and keeps those that it draws itself. */
#ifndef LNT_GENERATE_SPECULATE_H
#define LNT_GENERATE_SPECULATE_H

#include "generate/sample.h"
#include "linnet/state.h"

typedef struct lnt_speculation lnt_speculation;

/* Both models have read ids [n]: what is drawn first comes behind them. The text is the model's own, token by token, for any guesses. V: the
 * vocabulary that is drawn from. */
linnet_status lnt_speculation_open(lnt_ctx *c, linnet_model *m, const linnet_generate_options *o, int64_t V, const int32_t *ids, int64_t n,
                                   int64_t capacity, lnt_speculation **out);
void lnt_speculation_close(lnt_speculation *s);
/* The next token, of at most `left` that are still wanted. */
linnet_status lnt_speculation_next(lnt_speculation *s, lnt_sampler *sampler, int64_t left, int64_t drawn, int32_t *now);
int64_t lnt_speculation_state_bytes(const lnt_speculation *s); /* of the model's */
void lnt_speculation_count(const lnt_speculation *s, int64_t *guessed, int64_t *kept);

#endif
