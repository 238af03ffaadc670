#include "hub/bytemap.h"

#include <string.h>

static uint32_t hash_of(const uint8_t *key, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, w;
    for (; n >= 8; key += 8, n -= 8) {
        memcpy(&w, key, 8);
        h = lnt_mix64(h ^ w);
    }
    w = 0;
    memcpy(&w, key, n);
    return (uint32_t)lnt_mix64(h ^ w);
}

/* The slot of a key, or the free slot it belongs into. */
static size_t seek(const lnt_bytemap *m, const void *key, size_t n, uint32_t hash)
{
    size_t i = hash & (m->capacity - 1);
    for (;; i = (i + 1) & (m->capacity - 1)) {
        const lnt_bytemap_slot *s = &m->slots[i];
        if (!s->used || (s->hash == hash && s->length == n && memcmp(m->pool + s->at, key, n) == 0)) return i;
    }
}

int64_t *lnt_bytemap_find(const lnt_bytemap *m, const void *key, size_t n)
{
    if (m->n == 0) return NULL;
    lnt_bytemap_slot *s = &m->slots[seek(m, key, n, hash_of(key, n))];
    return s->used ? &s->value : NULL;
}

static bool grow_slots(lnt_bytemap *m)
{
    lnt_bytemap bigger = *m;
    bigger.capacity = m->capacity ? 2 * m->capacity : 256;
    bigger.slots = lnt_calloc(lnt_bytes(bigger.capacity, sizeof *bigger.slots));
    if (!bigger.slots) return false;
    for (size_t i = 0; i < m->capacity; i++) {
        if (!m->slots[i].used) continue;
        size_t j = m->slots[i].hash & (bigger.capacity - 1);
        while (bigger.slots[j].used) j = (j + 1) & (bigger.capacity - 1);
        bigger.slots[j] = m->slots[i];
    }
    lnt_free(m->slots);
    *m = bigger;
    return true;
}

static bool grow_pool(lnt_bytemap *m, size_t n)
{
    size_t room = m->room ? m->room : 4096;
    while (room - m->used < n) room *= 2;
    char *pool = lnt_realloc(m->pool, m->used, room);
    if (!pool) return false;
    m->pool = pool;
    m->room = room;
    return true;
}

int64_t *lnt_bytemap_put(lnt_bytemap *m, const void *key, size_t n, bool *fresh)
{
    if (n > INT32_MAX) return NULL;
    if (2 * (m->n + 1) > m->capacity && !grow_slots(m)) return NULL;
    uint32_t hash = hash_of(key, n);
    lnt_bytemap_slot *s = &m->slots[seek(m, key, n, hash)];
    *fresh = !s->used;
    if (s->used) return &s->value;
    if ((m->room - m->used < n || !m->pool) && !grow_pool(m, n)) return NULL;
    memcpy(m->pool + m->used, key, n);
    *s = (lnt_bytemap_slot){.at = m->used, .length = (uint32_t)n, .hash = hash, .used = true};
    m->used += n;
    m->n++;
    return &s->value;
}

void lnt_bytemap_free(lnt_bytemap *m)
{
    lnt_free(m->slots);
    lnt_free(m->pool);
    *m = (lnt_bytemap){0};
}
