/* Host memory: checked sizes, the one allocator (the system's, or the caller's: linnet_allocator_set) that tests can make fail, arenas by lifetime.
 *
 * Device memory lives behind device/device.h; what is allocated here is for descriptions, files and host-side tables. */
#ifndef LNT_CORE_MEMORY_H
#define LNT_CORE_MEMORY_H

#include "core/status.h"

#define LNT_ALIGN 64 /* a cache line, and the widest vector */

/* true and *out = a*b (or a+b) when it fits in 63 bits; false otherwise. Negative operands never fit. */
bool lnt_mul(int64_t a, int64_t b, int64_t *out);
bool lnt_add(int64_t a, int64_t b, int64_t *out);
/* Product of n sizes; LINNET_EINVAL naming `what` when it does not fit. */
linnet_status lnt_size_product(lnt_ctx *c, const char *what, int n, const int64_t *dims, int64_t *out);

/* Bytes for an allocator: n things of `size` bytes, and a and b together. What does not fit (or was negative before the cast) becomes SIZE_MAX,
 * which every allocator refuses and lnt_fail_memory names, so that a size is written once and needs no check of its own. cmake/lint.py finds
 * products and sums that reach an allocator any other way. */
static inline size_t lnt_bytes(size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) || bytes > INT64_MAX ? SIZE_MAX : bytes;
}
static inline size_t lnt_bytes_plus(size_t a, size_t b)
{
    size_t bytes;
    return __builtin_add_overflow(a, b, &bytes) || bytes > INT64_MAX ? SIZE_MAX : bytes;
}

/* Aligned to LNT_ALIGN. lnt_alloc leaves contents undefined; lnt_calloc zeroes. NULL on failure, and for 0 bytes a valid block.
 * lnt_realloc keeps the old block on failure. `lnt_free(NULL)` does nothing. */
void *lnt_alloc(size_t bytes);
void *lnt_calloc(size_t bytes);
void *lnt_realloc(void *old, size_t old_bytes, size_t bytes);
void lnt_free(void *p);
char *lnt_strdup(const char *s);

/* Test hooks: the n-th allocation from now (1-based) fails, once; 0 turns it off. lnt_alloc_count() counts calls since the last set,
 * lnt_alloc_largest() is the most bytes that one of them asked for, refused ones included. */
void lnt_alloc_fail_at(int64_t n);
int64_t lnt_alloc_count(void);
size_t lnt_alloc_largest(void);

/* An arena: blocks that are freed as a whole. */
typedef struct lnt_arena {
    struct lnt_arena_block *head;
    size_t used; /* bytes handed out */
} lnt_arena;

void *lnt_arena_alloc(lnt_arena *a, size_t bytes);  /* zeroed, aligned to 16; NULL on failure */
char *lnt_arena_strdup(lnt_arena *a, const char *s);
char *lnt_arena_printf(lnt_arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lnt_arena_free(lnt_arena *a);

#endif
