/* Threads. Work is cut into pieces whose number never depends on the thread count, and every sum over pieces runs in piece order, so a
 * result has the same bits for any number of threads. Inside linnet: `#pragma omp parallel for num_threads(lnt_threads(c))`, one loop
 * a region, whose pieces wait for no other.
 *
 * That leaves the number free. Threads wait for each other at the end of every kernel, which takes microseconds where each has a core to itself, and
 * a time slice of the system (some milliseconds) where another process has one: thirty times as long as a decoding step of a small model. So kernels
 * of little work get one thread, and decoding steps get all or one, whichever was faster lately; so do runs without states, training's among them,
 * where threads mostly wait. */
#ifndef LNT_CORE_THREADS_H
#define LNT_CORE_THREADS_H

#include "core/status.h"

/* For the parallel regions that this thread comes to next, which run on the context's threads: the caller's where it has some (core/team.h). */
int lnt_threads(const lnt_ctx *c);
int lnt_thread_index(void); /* inside a parallel region: 0 .. threads-1 */

/* What comes next is one kernel of so many floating-point operations over so many bytes: lnt_threads is 1 if that is too little to be shared, until
 * the next of these calls. */
void lnt_threads_for(lnt_ctx *c, double flops, double bytes);
void lnt_threads_one(lnt_ctx *c);
void lnt_threads_all(lnt_ctx *c);

/* The same for the rows of a call: between lnt_rows_alone(c, true) and (c, false) a product gives every row the bits that it has by itself, whatever
 * rows stand beside it (ops/gemm.c), and an operator with a state gives a token what it gives to one that comes by itself. What a state becomes then
 * depends neither on whose steps it shares nor on how many of its own are done at once. */
void lnt_rows_alone(lnt_ctx *c, bool on);
bool lnt_rows_are_alone(const lnt_ctx *c);

/* Runs of one kind, again and again: with one thread or with all. Zero to begin with. */
typedef struct {
    double seconds[2]; /* of a run with all threads [0] and with one [1], as they lately were; 0: not known */
    double since;      /* seconds in runs since the other way was tried */
    double worked;     /* the share of their time that all threads last worked */
    bool alone, trial; /* the way that is taken; the run under way tries the other */
    int64_t runs;
} lnt_pace;
bool lnt_pace_alone(lnt_pace *p);                /* of the next run: with one thread? */
/* That run; `worked`: the share of all threads' time in it that was work. Where it is most of it one thread is not tried: 0 for runs so short that a
 * trial costs nothing. */
void lnt_pace_took(lnt_pace *p, double seconds, double worked);

#endif
