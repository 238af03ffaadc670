/* Thread pools as a caller may have them, for linnet_context_options.parallel. */
#ifndef POOL_OF_H
#define POOL_OF_H

#include <pthread.h>
#include <stdint.h>

#include "core/team.h"
#include "linnet/linnet.h"

typedef struct {
    enum { BACKWARDS,    /* in the thread that calls, the last first */
           SIDE_BY_SIDE, /* each in a thread of its own */
           CARELESS,     /* some twice, some never, some that were not asked for */
           WAYS } way;
    int64_t regions;     /* it was asked for */
    int32_t widest;
} pool;

typedef struct {
    void (*body)(void *arg, int32_t i);
    void *arg;
    int32_t i;
} pool_job;

static inline void *pool_thread(void *p)
{
    pool_job *j = p;
    j->body(j->arg, j->i);
    return NULL;
}

static inline void pool_run(void *user, int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    pool *p = user;
    p->regions++;
    p->widest = n > p->widest ? n : p->widest;
    if (p->way == SIDE_BY_SIDE) {
        pthread_t thread[64];
        pool_job job[64];
        const int32_t most = n < 64 ? n : 64;
        int32_t made = 0;
        for (; made < most - 1; made++) {
            job[made] = (pool_job){body, arg, made};
            if (pthread_create(&thread[made], NULL, pool_thread, &job[made])) break;
        }
        for (int32_t i = made; i < n; i++) body(arg, i);
        for (int32_t i = 0; i < made; i++) pthread_join(thread[i], NULL);
        return;
    }
    for (int32_t i = n - 1; i >= 0; i--)
        if (p->way == BACKWARDS || i % 2) body(arg, i);
    if (p->way == CARELESS) body(arg, n - 1), body(arg, 1), body(arg, n), body(arg, -1);
}

/* A context's options, with threads of the caller's where this build can have them. */
static inline linnet_context_options pool_options(int threads, pool *p)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    if (lnt_pool_possible()) o.parallel = pool_run, o.parallel_user = p;
    return o;
}

#endif
