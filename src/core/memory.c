#include "core/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/border.h"
#include "core/context.h"

bool lnt_mul(int64_t a, int64_t b, int64_t *out)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

bool lnt_add(int64_t a, int64_t b, int64_t *out)
{
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}

linnet_status lnt_size_product(lnt_ctx *c, const char *what, int n, const int64_t *dims, int64_t *out)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        if (!lnt_mul(p, dims[i], &p)) return lnt_fail(c, LINNET_EINVAL, "%s is too large: its size does not fit in 63 bits", what);
    *out = p;
    return LINNET_OK;
}

/* ---- the allocator: the system's or the caller's, with a failure hook ---- */

static atomic_llong calls, fail_at;
static atomic_size_t largest;

/* Of a block from LARGE bytes on the whole pages inside ask for pages of 2 MB, which systems grant that wait to be asked: rows that lie kilobytes
 * apart have a page each, and a processor finds those of some thousand without looking them up (docs/performance/scan.md: a quarter of a kernel's
 * time). */
static void *take_aligned(void *user, size_t bytes, size_t alignment)
{
    enum { LARGE = 4 << 20, PAGE = 1 << 16 };
    char *p = ((void)user, aligned_alloc(alignment, bytes));
#ifdef MADV_HUGEPAGE
    if (p && bytes >= LARGE) {
        const size_t skip = (size_t)(-(uintptr_t)p % PAGE);
        (void)madvise(p + skip, (bytes - skip) / PAGE * PAGE, MADV_HUGEPAGE); /* a wish */
    }
#endif
    return p;
}
static void give_back(void *user, void *block) { (void)user, free(block); }

static linnet_allocator allocator = {sizeof allocator, NULL, take_aligned, give_back};
static atomic_bool in_use; /* from the first allocation on: what one allocator gave no other can take back */

linnet_status linnet_allocator_set(const linnet_allocator *a)
{
    lnt_ctx nobody = {.status = LINNET_OK}; /* there is no context yet that could keep an error's text */
    linnet_allocator mine = LINNET_ALLOCATOR_INIT;
    LNT_TRY(lnt_options_take(&nobody, "allocator", a, &mine));
    if (!mine.allocate || !mine.release || atomic_load(&in_use)) return LINNET_EINVAL;
    allocator = mine;
    return LINNET_OK;
}

void lnt_alloc_fail_at(int64_t n)
{
    atomic_store(&calls, 0);
    atomic_store(&largest, 0);
    atomic_store(&fail_at, n);
}

int64_t lnt_alloc_count(void) { return atomic_load(&calls); }
size_t lnt_alloc_largest(void) { return atomic_load(&largest); }

static bool must_fail(void)
{
    long long n = atomic_fetch_add(&calls, 1) + 1;
    return n == atomic_load(&fail_at);
}

void *lnt_alloc(size_t bytes)
{
    for (size_t most = atomic_load(&largest); bytes > most && !atomic_compare_exchange_weak(&largest, &most, bytes);) { }
    if (must_fail() || bytes > (size_t)INT64_MAX - LNT_ALIGN) return NULL;
    if (!atomic_load_explicit(&in_use, memory_order_relaxed)) atomic_store(&in_use, true);
    size_t padded = (bytes + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN;
    void *p = allocator.allocate(allocator.user, padded ? padded : LNT_ALIGN, LNT_ALIGN);
    if (!((uintptr_t)p % LNT_ALIGN)) return p;
    allocator.release(allocator.user, p); /* kernels would end the process with it */
    return NULL;
}

void *lnt_calloc(size_t bytes)
{
    void *p = lnt_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void *lnt_realloc(void *old, size_t old_bytes, size_t bytes)
{
    void *p = lnt_alloc(bytes);
    if (!p) return NULL;
    if (old) memcpy(p, old, old_bytes < bytes ? old_bytes : bytes);
    lnt_free(old);
    return p;
}

void lnt_free(void *p)
{
    if (p) allocator.release(allocator.user, p);
}

void linnet_free(void *p) { lnt_free(p); }

char *lnt_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = lnt_alloc(n);
    if (p) memcpy(p, s, n);
    return p;
}

/* ---- arena: a list of growing blocks ---- */

struct lnt_arena_block {
    struct lnt_arena_block *next;
    size_t size, used;
    _Alignas(16) unsigned char data[];
};

void *lnt_arena_alloc(lnt_arena *a, size_t bytes)
{
    if (bytes > (size_t)INT64_MAX / 2) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    struct lnt_arena_block *b = a->head;
    if (!b || b->size - b->used < bytes) {
        size_t size = b ? b->size * 2 : 4096;
        if (size > (size_t)1 << 24) size = (size_t)1 << 24;
        if (size < bytes) size = bytes;
        b = lnt_alloc(lnt_bytes_plus(sizeof *b, size));
        if (!b) return NULL;
        b->next = a->head;
        b->size = size;
        b->used = 0;
        a->head = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    a->used += bytes;
    memset(p, 0, bytes);
    return p;
}

char *lnt_arena_strdup(lnt_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = lnt_arena_alloc(a, n);
    if (p) memcpy(p, s, n);
    return p;
}

char *lnt_arena_printf(lnt_arena *a, const char *format, ...)
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int n = lnt_format_list(NULL, 0, format, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : lnt_arena_alloc(a, (size_t)n + 1);
    if (p) lnt_format_list(p, (size_t)n + 1, format, again);
    va_end(again);
    return p;
}

void lnt_arena_free(lnt_arena *a)
{
    while (a->head) {
        struct lnt_arena_block *next = a->head->next;
        lnt_free(a->head);
        a->head = next;
    }
    a->used = 0;
}
