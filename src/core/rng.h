/* Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): number i of stream s of seed k is a pure function of (k, s, i),
 * so the same draw comes out on every device, for every thread count and every order of evaluation. */
#ifndef LNT_CORE_RNG_H
#define LNT_CORE_RNG_H

#include <stdint.h>

typedef struct {
    uint64_t seed, stream, counter;
} lnt_rng;

#ifdef __CUDACC__
#define LNT_HOST_DEVICE __host__ __device__
#else
#define LNT_HOST_DEVICE
#endif

/* Four 32-bit words at position `block` of a stream. Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"):
 * multipliers and Weyl constants from there. The key is the seed, the counter words are (block, stream). */
LNT_HOST_DEVICE static inline void lnt_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
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

/* A stream as a sequence; each call takes the next position. */
lnt_rng lnt_rng_make(uint64_t seed, uint64_t stream);
uint32_t lnt_rng_u32(lnt_rng *r);
uint64_t lnt_rng_u64(lnt_rng *r);
double lnt_rng_uniform(lnt_rng *r);                 /* [0,1) with 53 bits */
double lnt_rng_normal(lnt_rng *r);                  /* Box-Muller, two uniforms a draw */
uint64_t lnt_rng_below(lnt_rng *r, uint64_t bound); /* unbiased; bound >= 1 */
/* FNV-1a of a name: the stream a named thing draws from. */
uint64_t lnt_stream_of(const char *name);

#endif
