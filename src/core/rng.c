#include "core/rng.h"

#include <math.h>

lnt_rng lnt_rng_make(uint64_t seed, uint64_t stream) { return (lnt_rng){seed, stream, 0}; }

uint32_t lnt_rng_u32(lnt_rng *r)
{
    uint32_t w[4];
    lnt_philox(r->seed, r->stream, r->counter >> 2, w);
    return w[r->counter++ & 3];
}

uint64_t lnt_rng_u64(lnt_rng *r)
{
    uint64_t hi = lnt_rng_u32(r);
    return hi << 32 | lnt_rng_u32(r);
}

double lnt_rng_uniform(lnt_rng *r) { return (double)(lnt_rng_u64(r) >> 11) * 0x1p-53; }

double lnt_rng_normal(lnt_rng *r)
{
    double u = 1.0 - lnt_rng_uniform(r), v = lnt_rng_uniform(r); /* u in (0,1] */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t lnt_rng_below(lnt_rng *r, uint64_t bound)
{
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound, x;
    do x = lnt_rng_u64(r);
    while (x >= limit);
    return x % bound;
}

uint64_t lnt_stream_of(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}
