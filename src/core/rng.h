/* Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): number i of stream s of seed k is a pure function of (k, s, i),
 * so the same draw comes out on every device, for every thread count and every order of evaluation. */
#ifndef LNT_CORE_RNG_H
#define LNT_CORE_RNG_H

#include <stdint.h>

typedef struct {
    uint64_t seed, stream, counter;
} lnt_rng;

/* Four 32-bit words at position `block` of a stream. */
void lnt_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]);

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
