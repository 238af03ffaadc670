#include "core/threads.h"

#include <omp.h>

#include "core/context.h"

/* A core at its slowest (a recurrence in float32, memory that others read too). A kernel below LEAST takes 10 to 100 us, where a second thread gains
 * little more than the 2 to 10 us that waiting for it costs on an idle machine. */
static const double FLOPS = 20e9, BYTES = 10e9, LEAST = 100e-6;

/* One part in TRIALS of the time goes into runs that try the other way, which must be faster by a fifth to be taken up: a single run may be lucky. */
static const double TRIALS = 32, FASTER = 0.8;

/* Threads that work so much of their time do not wait for each other in vain. */
static const double WORKED = 0.5;

int lnt_threads(const lnt_ctx *c)
{
    lnt_pool_at_hand(&c->pool);
    return c->alone ? 1 : c->threads;
}
int lnt_thread_index(void) { return omp_get_thread_num(); }
int linnet_threads(const linnet_context *c) { return c ? c->threads : 0; }

void lnt_threads_for(lnt_ctx *c, double flops, double bytes) { c->alone = flops / FLOPS + bytes / BYTES < LEAST; }
void lnt_threads_one(lnt_ctx *c) { c->alone = true; }
void lnt_threads_all(lnt_ctx *c) { c->alone = false; }

void lnt_rows_alone(lnt_ctx *c, bool on) { c->rows_alone = on; }
bool lnt_rows_are_alone(const lnt_ctx *c) { return c->rows_alone; }

bool lnt_pace_alone(lnt_pace *p)
{
    const double other = p->seconds[!p->alone];
    const bool may = p->runs > 1 && (p->alone || p->worked < WORKED); /* the first run finds cold caches and tells nothing */
    p->trial = may && (other == 0 || p->since > TRIALS * other);
    return p->alone != p->trial;
}

void lnt_pace_took(lnt_pace *p, double seconds, double worked)
{
    double *mine = &p->seconds[p->alone != p->trial];
    if (p->alone == p->trial) p->worked = worked; /* it was all threads */
    if (p->runs++ == 0) return;
    *mine = *mine == 0 || p->trial ? seconds : 0.75 * *mine + 0.25 * seconds;
    p->since = p->trial ? 0 : p->since + seconds;
    const double here = p->seconds[p->alone], other = p->seconds[!p->alone];
    if (other > 0 && other < FASTER * here) {
        p->alone = !p->alone;
        p->since = 0;
    }
}
