/* Steps of few rows as kernels that stay (device/persistent.cuh). */
#ifndef LNT_RECURRENCE_PERSISTENT_H
#define LNT_RECURRENCE_PERSISTENT_H

#include <stdbool.h>

#include "core/status.h"

/* Whether what is recorded from now on is put so, on Hopper; nothing elsewhere. Not timed yet, so off. */
#ifdef LINNET_CUDA
void lnt_persistent_steps(lnt_ctx *c, bool wanted);
#else
static inline void lnt_persistent_steps(lnt_ctx *c, bool wanted) { (void)c, (void)wanted; }
#endif

#endif
