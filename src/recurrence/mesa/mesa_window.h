/* Mesa over the last `window` tokens on the CPU: mesa_window_cpu.c, for the heads of mesa_cpu.c that are longer than that. */
#ifndef LNT_MESA_WINDOW_H
#define LNT_MESA_WINDOW_H

#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/mesa/mesa_solver.h"

/* Whether a sequence of `length` tokens is longer than the window: in a shorter one, no token leaves it. */
static inline bool lnt_mesa_windowed(const lnt_mesa_args *a, int64_t length) { return a->heads.window > 0 && length > a->heads.window; }

/* Scratch of a thread, and the two passes of a head. The sums [length,K] are those of the heads that share q and k, NULL: none do; dlambda [K] is
 * written. */
size_t LNT_V(lnt_mesa_window_bytes)(const lnt_mesa_args *a, bool backward);
void LNT_V(lnt_mesa_window_forward)(const lnt_head *x, bool token, void *scratch);
void LNT_V(lnt_mesa_window_backward)(const lnt_head *x, float *dq_sum, float *dk_sum, double *dlambda, void *scratch);

#endif
