#include "serve/prefix_cache.h"

#include <string.h>

#include "hub/bytemap.h"

typedef struct {
    linnet_state *state; /* NULL: the place is free */
    int32_t *ids;        /* [tokens] */
    int64_t tokens;
    uint64_t hash;
    int64_t used;        /* when it was last asked for or put */
    bool asked, passed;  /* it was found once; a longer one goes on from it */
} entry;

struct lnt_prefix_cache {
    lnt_ctx *c;
    linnet_session *session;
    entry *entries; /* [most], of which the first n are taken */
    int64_t most, n, chunk, clock;
};

linnet_status lnt_prefix_cache_create(lnt_ctx *c, linnet_session *s, int64_t most, int64_t chunk, lnt_prefix_cache **out)
{
    lnt_prefix_cache *p = *out = lnt_calloc(sizeof *p);
    if (!p) return lnt_fail_memory(c, sizeof *p);
    *p = (lnt_prefix_cache){.c = c, .session = s, .most = most, .chunk = chunk};
    p->entries = lnt_calloc(lnt_bytes((size_t)most, sizeof *p->entries));
    return p->entries ? LINNET_OK : lnt_fail_memory(c, lnt_bytes((size_t)most, sizeof *p->entries));
}

static void drop(lnt_prefix_cache *p, entry *e)
{
    linnet_state_destroy(e->state);
    lnt_free(e->ids);
    *e = (entry){0};
    p->n--;
}

void lnt_prefix_cache_destroy(lnt_prefix_cache *p)
{
    if (!p) return;
    for (int64_t i = 0; p->entries && i < p->most; i++)
        if (p->entries[i].state) drop(p, &p->entries[i]);
    lnt_free(p->entries);
    lnt_free(p);
}

int64_t lnt_prefix_cache_states(const lnt_prefix_cache *p) { return p->n; }

static uint64_t hash_on(uint64_t hash, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) hash = lnt_mix64(hash ^ (uint32_t)ids[i]) + 1;
    return hash;
}

static entry *entry_of(lnt_prefix_cache *p, uint64_t hash, const int32_t *ids, int64_t n)
{
    for (entry *e = p->entries; e < p->entries + p->n; e++)
        if (e->tokens == n && e->hash == hash && !memcmp(e->ids, ids, (size_t)n * sizeof *ids)) return e;
    return NULL;
}

linnet_status lnt_prefix_cache_find(lnt_prefix_cache *p, const int32_t *ids, int64_t n, linnet_state *onto, int64_t *tokens)
{
    entry *best = NULL;
    uint64_t hash = 0;
    *tokens = 0;
    for (int64_t at = p->chunk; p->n && at < n; at += p->chunk) {
        hash = hash_on(hash, ids + at - p->chunk, p->chunk);
        entry *e = entry_of(p, hash, ids, at);
        if (e) best = e;
    }
    if (!best) return LINNET_OK;
    best->used = ++p->clock;
    best->asked = true;
    *tokens = best->tokens;
    return linnet_state_copy(best->state, onto);
}

/* The place for one more. */
static entry *place_for(lnt_prefix_cache *p)
{
    entry *out = NULL;
    if (p->n < p->most) return p->entries + p->n;
    for (entry *e = p->entries; e < p->entries + p->n; e++) {
        const bool idle = e->passed && !e->asked, out_idle = out && out->passed && !out->asked;
        if (!out || (idle && !out_idle) || (idle == out_idle && e->used < out->used)) out = e;
    }
    return out;
}

linnet_status lnt_prefix_cache_put(lnt_prefix_cache *p, const int32_t *ids, int64_t n, const linnet_state *state)
{
    if (!p->most || n % p->chunk) return LINNET_OK;
    const uint64_t before = hash_on(0, ids, n - p->chunk), hash = hash_on(before, ids + n - p->chunk, p->chunk);
    entry *shorter = entry_of(p, before, ids, n - p->chunk), *e = entry_of(p, hash, ids, n);
    if (shorter) shorter->passed = true;
    if (e) {
        e->used = ++p->clock;
        return LINNET_OK;
    }
    int32_t *copy = lnt_alloc(lnt_bytes((size_t)n, sizeof *copy));
    if (!copy) return lnt_fail_memory(p->c, lnt_bytes((size_t)n, sizeof *copy));
    memcpy(copy, ids, (size_t)n * sizeof *copy);
    e = place_for(p);
    const linnet_status s = e->state ? linnet_state_copy(state, e->state) : linnet_state_fork(state, &e->state);
    if (s != LINNET_OK) {
        lnt_free(copy);
        return s;
    }
    p->n += !e->ids;
    lnt_free(e->ids);
    *e = (entry){.state = e->state, .ids = copy, .tokens = n, .hash = hash, .used = ++p->clock};
    return LINNET_OK;
}
