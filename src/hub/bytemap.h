/* A hash map from byte strings to integers; keys are copied into one pool. */
#ifndef LNT_HUB_BYTEMAP_H
#define LNT_HUB_BYTEMAP_H

#include "core/memory.h"

typedef struct {
    size_t at;       /* of the key in the pool */
    uint32_t length, hash;
    int64_t value;
    bool used;
} lnt_bytemap_slot;

typedef struct {
    lnt_bytemap_slot *slots; /* capacity is a power of two, or 0 */
    size_t capacity, n;
    char *pool;
    size_t used, room;
} lnt_bytemap;

/* The value of a key; NULL: absent. */
int64_t *lnt_bytemap_find(const lnt_bytemap *m, const void *key, size_t n);
/* The value of a key, which is added with 0 when absent; NULL: out of memory, or a key above 2^31 bytes. Valid until the next put. */
int64_t *lnt_bytemap_put(lnt_bytemap *m, const void *key, size_t n, bool *fresh);
void lnt_bytemap_free(lnt_bytemap *m);

/* A well-mixed 64-bit word (the finaliser of SplitMix64, Steele et al. 2014). */
static inline uint64_t lnt_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
