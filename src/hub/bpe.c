/* Byte-pair encoding of a word: the pair with the lowest rank is merged first, the leftmost of equals, until no pair has a rank. A heap of pairs over
 * a linked list makes that O(n log n). */
#include <string.h>

#include "hub/encoder.h"

/* ---- where a long word may be cut: between two characters that no piece has side by side, no merge can reach across ---- */

static uint64_t seam_of(const uint8_t *left, size_t n_left, const uint8_t *right, size_t n_right)
{
    uint64_t key = 0;
    for (size_t i = 0; i < n_left; i++) key = key << 8 | left[i];
    for (size_t i = 0; i < 4; i++) key = key << 8 | (i < n_right ? right[i] : 0);
    return key + 1; /* 0 is free */
}

static bool seam_put(struct linnet_tokenizer *t, size_t *n, uint64_t key)
{
    if (2 * (*n + 1) > t->seam_capacity) {
        const size_t capacity = t->seam_capacity ? 2 * t->seam_capacity : 1024;
        uint64_t *seams = lnt_calloc(lnt_bytes(capacity, sizeof *seams));
        if (!seams) return false;
        for (size_t i = 0; i < t->seam_capacity; i++) {
            if (!t->seams[i]) continue;
            size_t j = lnt_mix64(t->seams[i]) & (capacity - 1);
            while (seams[j]) j = (j + 1) & (capacity - 1);
            seams[j] = t->seams[i];
        }
        lnt_free(t->seams);
        t->seams = seams;
        t->seam_capacity = capacity;
    }
    size_t i = lnt_mix64(key) & (t->seam_capacity - 1);
    while (t->seams[i] && t->seams[i] != key) i = (i + 1) & (t->seam_capacity - 1);
    *n += !t->seams[i];
    t->seams[i] = key;
    return true;
}

linnet_status lnt_bpe_seams(lnt_ctx *c, struct linnet_tokenizer *t)
{
    size_t n = 0;
    for (int32_t m = 0; m < t->n_merges; m++) {
        const lnt_piece *p = &t->pieces[t->merges[m].result];
        const uint8_t *text = (const uint8_t *)(t->bytewise ? p->bytes : p->spelled), *end = text + (t->bytewise ? p->n : p->n_spelled);
        for (size_t left = lnt_unit(t, text, (size_t)(end - text)); text + left < end;) {
            const size_t right = lnt_unit(t, text + left, (size_t)(end - text) - left);
            if (!seam_put(t, &n, seam_of(text, left, text + left, right))) return lnt_fail_memory(c, n);
            text += left;
            left = right;
        }
    }
    return LINNET_OK;
}

static bool joined(const struct linnet_tokenizer *t, uint64_t key)
{
    if (!t->seam_capacity) return false;
    size_t i = lnt_mix64(key) & (t->seam_capacity - 1);
    while (t->seams[i] && t->seams[i] != key) i = (i + 1) & (t->seam_capacity - 1);
    return t->seams[i] != 0;
}

size_t lnt_bpe_seam(const struct linnet_tokenizer *t, const uint8_t *word, size_t n)
{
    size_t at = 0, left = lnt_unit(t, word, n);
    bool known = lnt_unit_id(t, word, left) >= 0; /* unknown characters may become one token together */
    while (at + left < n) {
        const uint8_t *next = word + at + left;
        const size_t right = lnt_unit(t, next, n - at - left);
        const bool next_known = lnt_unit_id(t, next, right) >= 0;
        if (known && next_known && !joined(t, seam_of(word + at, left, next, right))) return at + left;
        at += left;
        left = right;
        known = next_known;
    }
    return n;
}

/* ---- one word ---- */

int32_t lnt_unit_id(const struct linnet_tokenizer *t, const uint8_t *text, size_t n)
{
    if (t->bytewise) return t->byte_id[*text];
    const int64_t *id = lnt_bytemap_find(&t->whole, text, n);
    return id ? (int32_t)*id : -1;
}

static linnet_status reserve_word(lnt_encoder *e, size_t n)
{
    if (n <= e->word_room) return LINNET_OK;
    size_t room = n < 256 ? 256 : n;
    lnt_free(e->id);
    e->word_room = 0;
    e->id = lnt_alloc(lnt_bytes(lnt_bytes(3, room), sizeof *e->id));
    if (!e->id) return lnt_fail_memory(e->c, lnt_bytes(lnt_bytes(3, room), sizeof *e->id));
    e->prev = e->id + room;
    e->next = e->prev + room;
    e->word_room = room;
    return LINNET_OK;
}

static linnet_status push(lnt_encoder *e, int32_t position)
{
    int32_t left = e->id[position], right = e->id[e->next[position]], rank = lnt_tokenizer_merge(e->t, left, right);
    if (rank < 0) return LINNET_OK;
    if (e->n_heap == e->heap_room) {
        const size_t room = e->heap_room ? 2 * e->heap_room : 256;
        lnt_bpe_candidate *heap = lnt_realloc(e->heap, lnt_bytes(e->n_heap, sizeof *heap), lnt_bytes(room, sizeof *heap));
        if (!heap) return lnt_fail_memory(e->c, lnt_bytes(room, sizeof *heap));
        e->heap = heap;
        e->heap_room = room;
    }
    lnt_bpe_candidate x = {(uint64_t)rank << 32 | (uint32_t)position, left, right};
    size_t i = e->n_heap++;
    for (size_t up; i > 0 && e->heap[up = (i - 1) / 2].key > x.key; i = up) e->heap[i] = e->heap[up];
    e->heap[i] = x;
    return LINNET_OK;
}

static lnt_bpe_candidate pop(lnt_encoder *e)
{
    lnt_bpe_candidate top = e->heap[0], x = e->heap[--e->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < e->n_heap; i = down) {
        if (down + 1 < e->n_heap && e->heap[down + 1].key < e->heap[down].key) down++;
        if (e->heap[down].key >= x.key) break;
        e->heap[i] = e->heap[down];
    }
    e->heap[i] = x;
    return top;
}

static linnet_status merge_all(lnt_encoder *e, int32_t n)
{
    e->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) LNT_TRY(push(e, i));
    while (e->n_heap > 0) {
        lnt_bpe_candidate x = pop(e);
        int32_t at = (int32_t)(uint32_t)x.key, right = e->next[at];
        if (e->id[at] != x.left || right < 0 || e->id[right] != x.right) continue; /* one of the two has been merged since */
        e->id[at] = e->t->merges[x.key >> 32].result;
        e->id[right] = -1;
        e->next[at] = e->next[right];
        if (e->next[at] >= 0) {
            e->prev[e->next[at]] = at;
            LNT_TRY(push(e, at));
        }
        if (e->prev[at] >= 0) LNT_TRY(push(e, e->prev[at]));
    }
    return LINNET_OK;
}

/* The word as symbols: its characters; where the vocabulary lacks one, its bytes as tokens, or the token for what is unknown (one for a run of them
 * with fuse_unk), or nothing. Returns how many there are. */
static int32_t split(const lnt_encoder *e, const uint8_t *word, size_t n)
{
    const struct linnet_tokenizer *t = e->t;
    int32_t m = 0;
    bool unknown = false; /* a token for what is unknown waits, as a known character may follow bytes */
    for (size_t at = 0, unit; at < n; at += unit) {
        unit = lnt_unit(t, word + at, n - at);
        const int32_t id = lnt_unit_id(t, word + at, unit);
        if (id >= 0) {
            if (unknown) e->id[m++] = t->unk;
            unknown = false;
            e->id[m++] = id;
            continue;
        }
        bool bytes = t->byte_fallback;
        for (size_t i = 0; bytes && i < unit; i++) bytes = t->byte_id[word[at + i]] >= 0;
        for (size_t i = 0; bytes && i < unit; i++) e->id[m++] = t->byte_id[word[at + i]];
        if (bytes || t->unk < 0) continue;
        if (unknown && !t->fuse_unk) e->id[m++] = t->unk;
        unknown = true;
    }
    if (unknown) e->id[m++] = t->unk;
    return m;
}

linnet_status lnt_bpe_word(lnt_encoder *e, const uint8_t *word, size_t n)
{
    if (n > INT32_MAX / 4) return lnt_fail(e->c, LINNET_EINVAL, "the text has a word of %zu bytes, expected at most %d", n, INT32_MAX / 4);
    LNT_TRY(reserve_word(e, n));
    const int32_t m = split(e, word, n);
    for (int32_t i = 0; i < m; i++) {
        e->prev[i] = i - 1;
        e->next[i] = i + 1 < m ? i + 1 : -1;
    }
    LNT_TRY(merge_all(e, m));
    for (int32_t i = 0; i < m; i = e->next[i] < 0 ? m : e->next[i]) LNT_TRY(lnt_encoder_put(e, &e->id[i], 1));
    return LINNET_OK;
}
