/* Text to ids. Words come from the pre-tokenizer; inside a word, the pair with the lowest rank is merged first, the leftmost of equals, until no pair
 * has a rank. A heap of pairs over a linked list makes that O(n log n); words seen before come from a cache. */
#include <string.h>

#include "core/border.h"
#include "hub/tokenizer.h"

enum {
    CACHED_WORD = 48, /* bytes; longer words are rare and seldom the same */
    CACHED_WORDS = 1 << 17, /* about ten megabytes */
};

typedef struct {
    uint64_t key; /* rank, then position */
    int32_t left, right;
} candidate;

typedef struct {
    lnt_ctx *c;
    const struct linnet_tokenizer *t;
    lnt_cutter cutter;
    int32_t *ids;
    size_t count, room;
    lnt_bytemap cache; /* word to (position in cached << 8 | ids) */
    int32_t *cached;
    size_t n_cached, cached_room;
    /* one word's symbols: id (-1 after it was merged away), neighbours */
    int32_t *id, *prev, *next;
    candidate *heap;
    size_t n_heap, word_room;
} encoder;

static linnet_status grow(lnt_ctx *c, int32_t **p, size_t used, size_t *room, size_t need)
{
    if (need <= *room) return LINNET_OK;
    size_t bigger = 2 * *room > need ? 2 * *room : need;
    int32_t *q = lnt_realloc(*p, lnt_bytes(used, sizeof *q), lnt_bytes(bigger, sizeof *q));
    if (!q) return lnt_fail_memory(c, lnt_bytes(bigger, sizeof *q));
    *p = q;
    *room = bigger;
    return LINNET_OK;
}

static linnet_status put(encoder *e, const int32_t *ids, size_t n)
{
    LNT_TRY(grow(e->c, &e->ids, e->count, &e->room, e->count + n));
    memcpy(e->ids + e->count, ids, n * sizeof *ids);
    e->count += n;
    return LINNET_OK;
}

/* ---- one word ---- */

static linnet_status reserve_word(encoder *e, size_t n)
{
    if (n <= e->word_room) return LINNET_OK;
    size_t room = n < 256 ? 256 : n;
    lnt_free(e->id);
    lnt_free(e->heap);
    e->word_room = 0;
    e->id = lnt_alloc(lnt_bytes(lnt_bytes(3, room), sizeof *e->id));
    e->heap = lnt_alloc(lnt_bytes(lnt_bytes(3, room), sizeof *e->heap)); /* n - 1 pairs at first, at most 2 more for each of n - 1 merges */
    if (!e->id || !e->heap) return lnt_fail_memory(e->c, lnt_bytes(lnt_bytes(3, room), sizeof *e->heap));
    e->prev = e->id + room;
    e->next = e->prev + room;
    e->word_room = room;
    return LINNET_OK;
}

static void push(encoder *e, int32_t position)
{
    int32_t left = e->id[position], right = e->id[e->next[position]], rank = lnt_tokenizer_merge(e->t, left, right);
    if (rank < 0) return;
    candidate x = {(uint64_t)rank << 32 | (uint32_t)position, left, right};
    size_t i = e->n_heap++;
    for (size_t up; i > 0 && e->heap[up = (i - 1) / 2].key > x.key; i = up) e->heap[i] = e->heap[up];
    e->heap[i] = x;
}

static candidate pop(encoder *e)
{
    candidate top = e->heap[0], x = e->heap[--e->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < e->n_heap; i = down) {
        if (down + 1 < e->n_heap && e->heap[down + 1].key < e->heap[down].key) down++;
        if (e->heap[down].key >= x.key) break;
        e->heap[i] = e->heap[down];
    }
    e->heap[i] = x;
    return top;
}

static void merge_all(encoder *e, int32_t n)
{
    e->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) push(e, i);
    while (e->n_heap > 0) {
        candidate x = pop(e);
        int32_t at = (int32_t)(uint32_t)x.key, right = e->next[at];
        if (e->id[at] != x.left || right < 0 || e->id[right] != x.right) continue; /* one of the two has been merged since */
        e->id[at] = e->t->merges[x.key >> 32].result;
        e->id[right] = -1;
        e->next[at] = e->next[right];
        if (e->next[at] >= 0) {
            e->prev[e->next[at]] = at;
            push(e, at);
        }
        if (e->prev[at] >= 0) push(e, e->prev[at]);
    }
}

static linnet_status encode_fresh(encoder *e, const uint8_t *word, size_t n)
{
    if (n > INT32_MAX / 4) return lnt_fail(e->c, LINNET_EINVAL, "the text has a word of %zu bytes, expected at most %d", n, INT32_MAX / 4);
    LNT_TRY(reserve_word(e, n));
    for (int32_t i = 0; i < (int32_t)n; i++) {
        e->id[i] = e->t->byte_id[word[i]];
        e->prev[i] = i - 1;
        e->next[i] = i + 1 < (int32_t)n ? i + 1 : -1;
    }
    merge_all(e, (int32_t)n);
    for (int32_t i = 0; i >= 0; i = e->next[i]) LNT_TRY(put(e, &e->id[i], 1));
    return LINNET_OK;
}

static linnet_status remember(encoder *e, const uint8_t *word, size_t n, size_t from)
{
    bool fresh;
    size_t count = e->count - from;
    int64_t *value = lnt_bytemap_put(&e->cache, word, n, &fresh);
    if (!value) return lnt_fail_memory(e->c, n);
    *value = (int64_t)(e->n_cached << 8 | count);
    LNT_TRY(grow(e->c, &e->cached, e->n_cached, &e->cached_room, e->n_cached + count));
    memcpy(e->cached + e->n_cached, e->ids + from, count * sizeof *e->ids);
    e->n_cached += count;
    return LINNET_OK;
}

static linnet_status encode_word(void *user, const uint8_t *word, size_t n)
{
    encoder *e = user;
    if (n == 1) return put(e, &e->t->byte_id[*word], 1);
    bool short_word = n <= CACHED_WORD;
    const int64_t *known = short_word ? lnt_bytemap_find(&e->cache, word, n) : NULL;
    if (known) return put(e, e->cached + (*known >> 8), (size_t)(*known & 255));
    size_t from = e->count;
    const int64_t *whole = e->t->ignore_merges ? lnt_bytemap_find(&e->t->whole, word, n) : NULL;
    if (whole)
        LNT_TRY(put(e, &(int32_t){(int32_t)*whole}, 1));
    else
        LNT_TRY(encode_fresh(e, word, n));
    return short_word && e->cache.n < CACHED_WORDS ? remember(e, word, n, from) : LINNET_OK;
}

/* ---- a text ---- */

static linnet_status encode_words(encoder *e, const uint8_t *text, size_t n)
{
    if (n == 0) return LINNET_OK;
    if (e->t->n_merges == 0 && !e->t->ignore_merges && !e->t->prefix_space) { /* bytes: no cut can change the ids */
        LNT_TRY(grow(e->c, &e->ids, e->count, &e->room, e->count + n));
        for (size_t i = 0; i < n; i++) e->ids[e->count++] = e->t->byte_id[text[i]];
        return LINNET_OK;
    }
    if (!e->t->prefix_space || text[0] == ' ') return lnt_cut(&e->cutter, text, n);
    uint8_t *spaced = lnt_alloc(n + 1);
    if (!spaced) return lnt_fail_memory(e->c, n + 1);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, n);
    linnet_status s = lnt_cut(&e->cutter, spaced, n + 1);
    lnt_free(spaced);
    return s;
}

static const lnt_added *added_at(const struct linnet_tokenizer *t, bool normalized, const uint8_t *text, size_t n)
{
    for (int i = 0; i < t->n_added; i++) {
        const lnt_added *a = &t->added[i];
        if (a->normalized == normalized && a->n <= n && memcmp(a->bytes, text, a->n) == 0) return a;
    }
    return NULL;
}

/* Cut out the added tokens, leftmost and longest first; what lies between goes on: to normalisation, then to the normalised added tokens, then to
 * the words. */
static linnet_status encode_parts(encoder *e, bool normalized, const uint8_t *text, size_t n);

static linnet_status encode_between(encoder *e, bool normalized, const uint8_t *text, size_t n)
{
    if (normalized) return encode_words(e, text, n);
    if (!e->t->nfc) return encode_parts(e, true, text, n);
    uint8_t *nfc;
    size_t nfc_n;
    LNT_TRY(lnt_nfc(e->c, text, n, &nfc, &nfc_n));
    linnet_status s = encode_parts(e, true, nfc, nfc_n);
    lnt_free(nfc);
    return s;
}

static linnet_status encode_parts(encoder *e, bool normalized, const uint8_t *text, size_t n)
{
    bool first[256] = {false}, any = false;
    for (int i = 0; i < e->t->n_added; i++)
        if (e->t->added[i].normalized == normalized) any = first[(uint8_t)e->t->added[i].bytes[0]] = true;
    size_t from = 0;
    for (size_t i = 0; any && i < n;) {
        const lnt_added *a = first[text[i]] ? added_at(e->t, normalized, text + i, n - i) : NULL;
        if (!a) {
            i++;
            continue;
        }
        if (i > from) LNT_TRY(encode_between(e, normalized, text + from, i - from));
        LNT_TRY(put(e, &a->id, 1));
        from = i += a->n;
    }
    return from < n ? encode_between(e, normalized, text + from, n - from) : LINNET_OK;
}

linnet_status linnet_tokenizer_encode(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t **ids, int64_t *count)
{
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_NEED(c, ids);
    LNT_NEED(c, count);
    if (bytes) LNT_NEED(c, text);
    encoder e = {.c = c, .t = t};
    e.cutter = (lnt_cutter){.c = c, .p = &t->pre, .word = encode_word, .user = &e};
    LNT_TRY(lnt_cutter_begin(&e.cutter));
    linnet_status s = grow(c, &e.ids, 0, &e.room, bytes / 3 + 16);
    if (s == LINNET_OK) s = encode_parts(&e, false, (const uint8_t *)text, bytes);
    lnt_cutter_end(&e.cutter);
    lnt_bytemap_free(&e.cache);
    lnt_free(e.cached);
    lnt_free(e.id);
    lnt_free(e.heap);
    if (s != LINNET_OK) {
        lnt_free(e.ids);
        return s;
    }
    *ids = e.ids;
    *count = (int64_t)e.count;
    return LINNET_OK;
}
