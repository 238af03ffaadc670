/* A new byte-level BPE vocabulary: count the words of a text once, then merge the most frequent pair of symbols until the vocabulary is full. Pair
 * counts are kept up to date from the words a merge touches; of equal counts the pair with the lower ids goes first, so the same text always
 * gives the same vocabulary. */
#include <string.h>

#include "core/border.h"
#include "hub/tokenizer.h"

/* Ids: the bytes 0-255, then the merges in order, <|endoftext|> last. */
enum {
    BYTES = 256,
    LONGEST_WORD = 1024, /* bytes; a longer word (a text without blanks) is counted in parts, or merges would cost its length squared */
};
static const char separator[] = "<|endoftext|>";

typedef struct {
    size_t at; /* of the symbols in the pool */
    uint32_t n;
    int64_t count;
} word;

typedef struct {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    uint32_t *words; /* that hold or held the pair */
    size_t n, room;
    int64_t touched; /* merge that last raised the count */
} pair;

typedef struct {
    int64_t count;
    uint64_t key;
    uint32_t pair;
} entry;

typedef struct {
    lnt_ctx *c;
    linnet_tokenizer *t;
    lnt_bytemap counts, ids; /* of words; of pieces */
    word *words;
    size_t n_words;
    int32_t *symbols;
    pair *pairs;
    size_t n_pairs, pair_room;
    uint32_t *slots; /* open addressing over pairs, 0 free, else index + 1 */
    size_t capacity;
    entry *heap;
    size_t n_heap, heap_room;
    uint32_t *raised; /* pairs whose count the current merge raised */
    size_t n_raised, raised_room;
} trainer;

/* Room for one element more in the array whose address is `array`. */
static bool reserve(void *array, size_t size, size_t used, size_t *room)
{
    if (used < *room) return true;
    void *old;
    memcpy(&old, array, sizeof old); /* a T* is not a void* */
    size_t bigger = *room ? 2 * *room : 4;
    void *fresh = lnt_realloc(old, lnt_bytes(used, size), lnt_bytes(bigger, size));
    if (!fresh) return false;
    memcpy(array, &fresh, sizeof fresh);
    *room = bigger;
    return true;
}

/* ---- words ---- */

static linnet_status count_word(void *user, const uint8_t *text, size_t n)
{
    trainer *r = user;
    bool fresh;
    while (n > 0) {
        size_t part = n < LONGEST_WORD ? n : LONGEST_WORD;
        int64_t *count = lnt_bytemap_put(&r->counts, text, part, &fresh);
        if (!count) return lnt_fail_memory(r->c, part);
        ++*count;
        text += part;
        n -= part;
    }
    return LINNET_OK;
}

static linnet_status list_words(trainer *r)
{
    r->words = lnt_alloc(lnt_bytes(r->counts.n, sizeof *r->words));
    r->symbols = lnt_alloc(lnt_bytes(r->counts.used, sizeof *r->symbols));
    if (!r->words || !r->symbols) return lnt_fail_memory(r->c, lnt_bytes(r->counts.used, sizeof *r->symbols));
    for (size_t i = 0; i < r->counts.used; i++) r->symbols[i] = (uint8_t)r->counts.pool[i];
    for (size_t i = 0; i < r->counts.capacity; i++) {
        const lnt_bytemap_slot *s = &r->counts.slots[i];
        if (s->used && s->length > 1) r->words[r->n_words++] = (word){s->at, s->length, s->value};
    }
    return LINNET_OK;
}

/* ---- pairs ---- */

static bool grow_slots(trainer *r)
{
    size_t capacity = r->capacity ? 2 * r->capacity : 1024;
    uint32_t *slots = lnt_calloc(lnt_bytes(capacity, sizeof *slots));
    if (!slots) return false;
    for (size_t p = 0; p < r->n_pairs; p++) {
        size_t i = lnt_mix64(r->pairs[p].key) & (capacity - 1);
        while (slots[i]) i = (i + 1) & (capacity - 1);
        slots[i] = (uint32_t)p + 1;
    }
    lnt_free(r->slots);
    r->slots = slots;
    r->capacity = capacity;
    return true;
}

static pair *find_pair(trainer *r, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (2 * (r->n_pairs + 1) > r->capacity && !grow_slots(r)) return NULL;
    size_t i = lnt_mix64(key) & (r->capacity - 1);
    for (; r->slots[i]; i = (i + 1) & (r->capacity - 1))
        if (r->pairs[r->slots[i] - 1].key == key) return &r->pairs[r->slots[i] - 1];
    if (!reserve(&r->pairs, sizeof *r->pairs, r->n_pairs, &r->pair_room)) return NULL;
    r->pairs[r->n_pairs] = (pair){.key = key, .touched = -1};
    r->slots[i] = (uint32_t)++r->n_pairs;
    return &r->pairs[r->n_pairs - 1];
}

/* `word` gained (by > 0) or lost an occurrence of a pair, counted `by` times in the text. */
static bool change(trainer *r, int32_t left, int32_t right, int64_t by, uint32_t w, int64_t merge)
{
    pair *p = find_pair(r, left, right);
    if (!p) return false;
    p->count += by;
    if (by < 0) return true;
    if (p->n == 0 || p->words[p->n - 1] != w) {
        if (!reserve(&p->words, sizeof *p->words, p->n, &p->room)) return false;
        p->words[p->n++] = w;
    }
    if (p->touched == merge) return true;
    p->touched = merge;
    if (!reserve(&r->raised, sizeof *r->raised, r->n_raised, &r->raised_room)) return false;
    r->raised[r->n_raised++] = (uint32_t)(p - r->pairs);
    return true;
}

/* ---- the heap: highest count first, then lowest ids; entries may be out of date ---- */

static bool before(const entry *a, const entry *b) { return a->count != b->count ? a->count > b->count : a->key < b->key; }

static bool push(trainer *r, uint32_t index)
{
    const pair *p = &r->pairs[index];
    if (p->count <= 0) return true;
    if (!reserve(&r->heap, sizeof *r->heap, r->n_heap, &r->heap_room)) return false;
    entry x = {p->count, p->key, index};
    size_t i = r->n_heap++;
    for (size_t up; i > 0 && before(&x, &r->heap[up = (i - 1) / 2]); i = up) r->heap[i] = r->heap[up];
    r->heap[i] = x;
    return true;
}

static entry pop(trainer *r)
{
    entry top = r->heap[0], x = r->heap[--r->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < r->n_heap; i = down) {
        if (down + 1 < r->n_heap && before(&r->heap[down + 1], &r->heap[down])) down++;
        if (!before(&r->heap[down], &x)) break;
        r->heap[i] = r->heap[down];
    }
    r->heap[i] = x;
    return top;
}

static bool push_raised(trainer *r)
{
    bool ok = true;
    for (size_t i = 0; i < r->n_raised && ok; i++) ok = push(r, r->raised[i]);
    r->n_raised = 0;
    return ok;
}

/* ---- merging ---- */

/* Replace (left, right) by `result` in one word. */
static bool merge_word(trainer *r, uint32_t index, int32_t left, int32_t right, int32_t result, int64_t merge)
{
    word *w = &r->words[index];
    int32_t *s = r->symbols + w->at;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        if (s[i] != left || i + 1 == w->n || s[i + 1] != right) {
            s[n++] = s[i];
            continue;
        }
        if (n > 0 && !(change(r, s[n - 1], left, -w->count, index, merge) && change(r, s[n - 1], result, w->count, index, merge))) return false;
        if (i + 2 < w->n && !(change(r, right, s[i + 2], -w->count, index, merge) && change(r, result, s[i + 2], w->count, index, merge)))
            return false;
        s[n++] = result;
        i++;
    }
    w->n = n;
    return true;
}

/* The id of left + right: a new one, or that of a piece with the same bytes that other merges made. */
static linnet_status result_of(trainer *r, int32_t left, int32_t right, int32_t *n, int32_t *out)
{
    const lnt_piece *a = &r->t->pieces[left], *b = &r->t->pieces[right];
    size_t length = (size_t)a->n + b->n;
    bool fresh = false;
    char *bytes = lnt_alloc(length);
    if (!bytes) return lnt_fail_memory(r->c, length);
    memcpy(bytes, a->bytes, a->n);
    memcpy(bytes + a->n, b->bytes, b->n);
    int64_t *id = lnt_bytemap_put(&r->ids, bytes, length, &fresh);
    linnet_status s = id ? LINNET_OK : lnt_fail_memory(r->c, length);
    if (id && fresh) {
        *id = *n;
        s = lnt_tokenizer_set(r->c, r->t, (*n)++, bytes, length);
    }
    if (id) *out = (int32_t)*id;
    lnt_free(bytes);
    return s;
}

static linnet_status merge_pair(trainer *r, uint32_t index, int32_t *n)
{
    linnet_tokenizer *t = r->t;
    int32_t left = (int32_t)(r->pairs[index].key >> 32), right = (int32_t)(uint32_t)r->pairs[index].key, result = -1;
    LNT_TRY(result_of(r, left, right, n, &result));
    int64_t merge = t->n_merges;
    t->merges[t->n_merges++] = (lnt_merge){left, right, result};
    uint32_t *words = r->pairs[index].words; /* taken out: the pairs may move, and this one may grow again */
    size_t n_words = r->pairs[index].n;
    r->pairs[index].words = NULL;
    r->pairs[index].n = r->pairs[index].room = 0;
    bool ok = true;
    for (size_t i = 0; i < n_words && ok; i++) ok = merge_word(r, words[i], left, right, result, merge);
    lnt_free(words);
    r->pairs[index].count = 0;
    return ok && push_raised(r) ? LINNET_OK : lnt_fail_memory(r->c, sizeof(pair) * r->n_pairs);
}

static linnet_status train(trainer *r, const char *text, size_t bytes, int64_t vocabulary)
{
    linnet_tokenizer *t = r->t;
    bool fresh;
    LNT_TRY(lnt_pretokenizer_add(r->c, &t->pre, "the text", lnt_gpt2_pattern, false));
    lnt_cutter cutter = {.c = r->c, .p = &t->pre, .word = count_word, .user = r};
    LNT_TRY(lnt_cutter_begin(&cutter));
    linnet_status s = lnt_cut(&cutter, (const uint8_t *)text, bytes, LNT_AT_START);
    lnt_cutter_end(&cutter);
    LNT_TRY(s);
    LNT_TRY(list_words(r));

    int32_t n = 0;
    for (; n < BYTES; n++) {
        uint8_t byte = (uint8_t)n;
        int64_t *id = lnt_bytemap_put(&r->ids, &byte, 1, &fresh);
        if (!id) return lnt_fail_memory(r->c, 1);
        *id = n;
        LNT_TRY(lnt_tokenizer_set(r->c, t, n, &byte, 1));
    }
    /* A merge without a new id needs a piece already made in two ways; there are at most as many as merges. */
    size_t room = (size_t)(2 * vocabulary);
    t->merges = lnt_alloc(lnt_bytes(room, sizeof *t->merges));
    if (!t->merges) return lnt_fail_memory(r->c, lnt_bytes(room, sizeof *t->merges));
    for (size_t w = 0; w < r->n_words; w++) {
        const int32_t *symbol = r->symbols + r->words[w].at;
        for (uint32_t i = 0; i + 1 < r->words[w].n; i++)
            if (!change(r, symbol[i], symbol[i + 1], r->words[w].count, (uint32_t)w, -2)) return lnt_fail_memory(r->c, sizeof(pair) * r->n_pairs);
    }
    if (!push_raised(r)) return lnt_fail_memory(r->c, sizeof(entry) * r->n_heap);
    while (n < vocabulary - 1 && r->n_heap > 0 && (size_t)t->n_merges < room) {
        entry top = pop(r);
        if (top.count != r->pairs[top.pair].count) {
            if (!push(r, top.pair)) return lnt_fail_memory(r->c, sizeof(entry) * r->n_heap);
            continue;
        }
        if (top.count < 2) break; /* what occurs once teaches nothing */
        LNT_TRY(merge_pair(r, top.pair, &n));
    }
    if (n < vocabulary - 1) lnt_log(r->c, "the text has no more pairs that repeat: the vocabulary is %d, not %lld", n + 1, (long long)vocabulary);
    LNT_TRY(lnt_tokenizer_set(r->c, t, n, separator, sizeof separator - 1));
    t->pieces[n].verbatim = true;
    t->separator = n;
    t->n = n + 1;
    LNT_TRY(lnt_tokenizer_add(r->c, t, &(lnt_added){.content = t->pieces[n].bytes, .n = t->pieces[n].n, .id = n, .special = true}));
    return lnt_tokenizer_finish(r->c, t, "the text");
}

linnet_status linnet_tokenizer_train(linnet_context *c, const char *text, size_t bytes, int64_t vocabulary, linnet_tokenizer **out)
{
    double least, most;
    LNT_TRY(linnet_option_range("train", "train_tokenizer", &least, &most));
    LNT_NEED(c, out);
    if (bytes) LNT_NEED(c, text);
    if ((double)vocabulary < least || (double)vocabulary > most)
        return lnt_fail(c, LINNET_EINVAL, "the vocabulary is %lld, expected %.0f to %.0f", (long long)vocabulary, least, most);
    if (bytes == 0) return lnt_fail(c, LINNET_EINVAL, "the text to train a tokenizer on is empty");
    trainer r = {.c = c};
    LNT_TRY(lnt_tokenizer_new(c, vocabulary, &r.t));
    linnet_status s = train(&r, text, bytes, vocabulary);
    for (size_t i = 0; i < r.n_pairs; i++) lnt_free(r.pairs[i].words);
    lnt_bytemap_free(&r.counts);
    lnt_bytemap_free(&r.ids);
    lnt_free(r.words);
    lnt_free(r.symbols);
    lnt_free(r.pairs);
    lnt_free(r.slots);
    lnt_free(r.heap);
    lnt_free(r.raised);
    if (s == LINNET_OK)
        *out = r.t;
    else
        linnet_tokenizer_destroy(r.t);
    return s;
}
