/* The caller's threads (linnet_context_options.parallel) in place of OpenMP's. */
#ifndef LNT_CORE_TEAM_H
#define LNT_CORE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    void (*run)(void *user, int32_t n, void (*body)(void *arg, int32_t i), void *arg); /* NULL: there is none */
    void *user;
} lnt_pool;

/* Whether this build can have its parallel regions run by a pool. */
bool lnt_pool_possible(void);

/* Parallel regions of this thread run on the pool from here on; NULL: on OpenMP's threads. It stays the caller's. lnt_threads(c) does it for c's. */
void lnt_pool_at_hand(const lnt_pool *p);
/* The pool goes away. */
void lnt_pool_gone(const lnt_pool *p);

#endif
