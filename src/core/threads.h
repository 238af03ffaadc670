/* Threads. Work is cut into pieces whose number never depends on the thread count, and every sum over pieces runs in piece order, so a
 * result has the same bits for any number of threads. Inside linnet: `#pragma omp parallel for num_threads(lnt_threads(c))`. */
#ifndef LNT_CORE_THREADS_H
#define LNT_CORE_THREADS_H

#include "core/status.h"

int lnt_threads(const lnt_ctx *c);
int lnt_thread_index(void); /* inside a parallel region: 0 .. threads-1 */

#endif
