#include "core/rng.h"

#include <math.h>

/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): multipliers and Weyl constants from there. The key
 * is the seed, the counter words are (block, stream). */
void lnt_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

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
