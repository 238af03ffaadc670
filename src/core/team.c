/* GCC makes a function of every parallel region and hands it, and its questions about threads and pieces, to OpenMP's runtime by the calls below,
 * whose names and arguments are fixed (libgomp's interface to the compiler, GOMP_1.0 to 4.5). cmake/Team.cmake has the linker turn those that
 * linnet's objects make to this file, and nobody else's. So a region of a context with a pool runs on it, whoever wrote the region, and every other
 * one on OpenMP's threads as before.
 *
 * The bodies of a pool may run one after another. So a region is one loop: no barrier, no critical section, no second loop, whose calls are not
 * among these; `ninja lint` looks. */
#include "core/team.h"

#include <omp.h>
#include <stdatomic.h>
#include <stddef.h>

#if defined(LNT_TEAM) /* GCC's OpenMP */

enum { MOST = 4096 }; /* threads of a context (core/border.c) */

typedef struct {
    void (*region)(void *data);
    void *data;
    int n;
    atomic_long claimed;              /* pieces of its loop */
    atomic_ullong begun[MOST / 64];   /* one bit for each body */
} team;

/* Who runs a body. */
typedef struct {
    team *of;
    int index;
    long first, end, step, piece; /* the loop */
} member;

static _Thread_local member *self; /* NULL: not in a body */
static _Thread_local const lnt_pool *at_hand;

bool lnt_pool_possible(void) { return true; }
void lnt_pool_at_hand(const lnt_pool *p) { at_hand = p && p->run ? p : NULL; }
void lnt_pool_gone(const lnt_pool *p)
{
    if (at_hand == p) at_hand = NULL;
}

/* A body is run once, whoever asks for it and however often. */
static void run_body(void *arg, int32_t i)
{
    team *t = arg;
    if (i < 0 || i >= t->n || atomic_fetch_or(&t->begun[i / 64], 1ull << i % 64) & 1ull << i % 64) return;
    member m = {.of = t, .index = i}, *const outer = self;
    const int most = omp_get_max_threads();
    if (most != 1) omp_set_num_threads(1); /* oneDNN would make a team of its own: it sees no parallel region here */
    self = &m;
    t->region(t->data);
    self = outer;
    if (most != 1) omp_set_num_threads(most);
}

void __real_GOMP_parallel(void (*region)(void *), void *data, unsigned n, unsigned flags);
bool __real_GOMP_loop_nonmonotonic_dynamic_start(long first, long end, long step, long piece, long *from, long *to);
bool __real_GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to);
void __real_GOMP_loop_end_nowait(void);
int __real_omp_get_thread_num(void);
int __real_omp_get_num_threads(void);

void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned n, unsigned flags);
void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned n, unsigned flags)
{
    const lnt_pool *pool = at_hand;
    if (!self && !pool) {
        __real_GOMP_parallel(region, data, n, flags);
        return;
    }
    team t = {.region = region, .data = data};
    t.n = self || n < 2 ? 1 : n < MOST ? (int)n : MOST; /* inside a body: alone */
    if (t.n > 1) pool->run(pool->user, t.n, run_body, &t);
    for (int i = 0; i < t.n; i++) run_body(&t, i); /* what was left out */
    at_hand = pool; /* a thread that waits may have worked for another context meanwhile */
}

bool __wrap_GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to);
bool __wrap_GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to)
{
    member *m = self;
    if (!m) return __real_GOMP_loop_nonmonotonic_dynamic_next(from, to);
    const long length = m->piece * m->step;
    *from = m->first + atomic_fetch_add(&m->of->claimed, 1) * length;
    *to = *from + length;
    if (m->step > 0 ? *to > m->end : *to < m->end) *to = m->end;
    return m->step > 0 ? *from < m->end : *from > m->end;
}

bool __wrap_GOMP_loop_nonmonotonic_dynamic_start(long first, long end, long step, long piece, long *from, long *to);
bool __wrap_GOMP_loop_nonmonotonic_dynamic_start(long first, long end, long step, long piece, long *from, long *to)
{
    member *m = self;
    if (!m) return __real_GOMP_loop_nonmonotonic_dynamic_start(first, end, step, piece, from, to);
    m->first = first, m->end = end, m->step = step, m->piece = piece;
    return __wrap_GOMP_loop_nonmonotonic_dynamic_next(from, to);
}

void __wrap_GOMP_loop_end_nowait(void);
void __wrap_GOMP_loop_end_nowait(void)
{
    if (!self) __real_GOMP_loop_end_nowait();
}

int __wrap_omp_get_thread_num(void);
int __wrap_omp_get_thread_num(void) { return self ? self->index : __real_omp_get_thread_num(); }

int __wrap_omp_get_num_threads(void);
int __wrap_omp_get_num_threads(void) { return self ? self->of->n : __real_omp_get_num_threads(); }

#else

bool lnt_pool_possible(void) { return false; }
void lnt_pool_at_hand(const lnt_pool *p) { (void)p; }
void lnt_pool_gone(const lnt_pool *p) { (void)p; }

#endif
