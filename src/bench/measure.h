/* What the benchmarks share. */
#ifndef LNT_BENCH_MEASURE_H
#define LNT_BENCH_MEASURE_H

#include "core/dtype.h"
#include "device/device.h"

/* The median; x is sorted. */
double lnt_median(double *x, int64_t n);
/* Device memory of `bytes` whose first `have` are filled: repeat them to the end. */
void lnt_tile(lnt_ctx *c, void *p, size_t have, size_t bytes);
/* Normal numbers (a block of them, repeated) in `n` elements of device memory: products of zeros draw less power and run faster than real ones. */
linnet_status lnt_random_fill(lnt_ctx *c, void *p, lnt_dtype t, int64_t n);

/* Seconds on the device's clock between begin and end; end waits. */
static inline void lnt_watch_begin(lnt_ctx *c) { lnt_device_of(c)->mark(lnt_device_of(c), 0); }
static inline double lnt_watch_end(lnt_ctx *c)
{
    lnt_device_of(c)->mark(lnt_device_of(c), 1);
    return lnt_device_of(c)->elapsed(lnt_device_of(c));
}

#endif
