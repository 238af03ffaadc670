#include "bench/measure.h"

#include <stdlib.h>

#include "core/memory.h"
#include "core/rng.h"

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double lnt_median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

void lnt_tile(lnt_ctx *c, void *p, size_t have, size_t bytes)
{
    while (have > 0 && have < bytes) {
        size_t more = have < bytes - have ? have : bytes - have;
        lnt_device_copy(c, (char *)p + have, p, more);
        have += more;
    }
}

linnet_status lnt_random_fill(lnt_ctx *c, void *p, lnt_dtype t, int64_t n)
{
    enum { BLOCK = (1 << 18) - 1 }; /* odd, so that the rows of a matrix differ */
    int64_t drawn = n < BLOCK ? n : BLOCK;
    size_t bytes = lnt_bytes((size_t)drawn, lnt_dtype_size(t));
    void *host = lnt_alloc(bytes);
    if (!host) return lnt_fail_memory(c, bytes);
    lnt_rng r = lnt_rng_make(1, lnt_stream_of("bench"));
    for (int64_t i = 0; i < drawn; i++) lnt_store_element(host, t, i, lnt_rng_normal(&r));
    lnt_to_device(c, p, host, bytes);
    lnt_free(host);
    lnt_tile(c, p, bytes, (size_t)n * lnt_dtype_size(t));
    return LINNET_OK;
}
