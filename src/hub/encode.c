/* Text to ids: added tokens are cut out, what lies between is normalised and cut into words; words seen before come from a cache. */
#include "hub/encoder.h"

#include "core/border.h"

enum {
    CACHED_WORD = 48, /* bytes; longer words are rare and seldom the same */
    CACHED_WORDS = 1 << 17, /* about ten megabytes */
};

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

linnet_status lnt_encoder_put(lnt_encoder *e, const int32_t *ids, size_t n)
{
    LNT_TRY(grow(e->c, &e->ids, e->count, &e->room, e->count + n));
    memcpy(e->ids + e->count, ids, n * sizeof *ids);
    e->count += n;
    return LINNET_OK;
}

/* ---- words ---- */

static linnet_status remember(lnt_encoder *e, const uint8_t *word, size_t n, size_t from)
{
    bool fresh;
    size_t count = e->count - from;
    if (count > 255) return LINNET_OK;
    int64_t *value = lnt_bytemap_put(&e->cache, word, n, &fresh);
    if (!value) return lnt_fail_memory(e->c, n);
    *value = (int64_t)(e->n_cached << 8 | count);
    LNT_TRY(grow(e->c, &e->cached, e->n_cached, &e->cached_room, e->n_cached + count));
    if (count) memcpy(e->cached + e->n_cached, e->ids + from, count * sizeof *e->ids);
    e->n_cached += count;
    return LINNET_OK;
}

/* Through the cache when the word is short. */
static linnet_status cached(lnt_encoder *e, const uint8_t *word, size_t n)
{
    const bool short_word = n <= CACHED_WORD;
    const int64_t *known = short_word ? lnt_bytemap_find(&e->cache, word, n) : NULL;
    if (known) return lnt_encoder_put(e, e->cached + (*known >> 8), (size_t)(*known & 255));
    const size_t from = e->count;
    LNT_TRY((e->t->model == LNT_MODEL_UNIGRAM ? lnt_unigram_word : lnt_bpe_word)(e, word, n));
    return short_word && e->cache.n < CACHED_WORDS ? remember(e, word, n, from) : LINNET_OK;
}

static linnet_status encode_word(void *user, const uint8_t *word, size_t n)
{
    lnt_encoder *e = user;
    const struct linnet_tokenizer *t = e->t;
    if (n == 1 && t->bytewise && t->model == LNT_MODEL_BPE) return lnt_encoder_put(e, &t->byte_id[*word], 1);
    const int64_t *whole = t->ignore_merges ? lnt_bytemap_find(&t->whole, word, n) : NULL;
    if (whole) return lnt_encoder_put(e, &(int32_t){(int32_t)*whole}, 1);
    /* A long word, a whole text where nothing cuts it, goes in the parts that no merge joins. */
    while (t->model == LNT_MODEL_BPE && n > CACHED_WORD) {
        const size_t part = lnt_bpe_seam(t, word, n);
        LNT_TRY(cached(e, word, part));
        word += part;
        n -= part;
    }
    return n ? cached(e, word, n) : LINNET_OK;
}

static linnet_status encode_words(lnt_encoder *e, const uint8_t *text, size_t n, lnt_place place)
{
    if (n == 0) return LINNET_OK;
    if (e->t->model == LNT_MODEL_LONGEST) return lnt_longest_word(e, text, n);
    if (e->t->pre.n == 0 && e->t->bytewise && e->t->n_merges == 0 && e->t->model == LNT_MODEL_BPE && !e->t->ignore_merges) { /* bytes */
        LNT_TRY(grow(e->c, &e->ids, e->count, &e->room, e->count + n));
        for (size_t i = 0; i < n; i++) e->ids[e->count++] = e->t->byte_id[text[i]];
        return LINNET_OK;
    }
    return lnt_cut(&e->cutter, text, n, place);
}

/* ---- added tokens ---- */

/* Whether a token that is to be a word of its own is one at text[begin..end). */
static bool stands_alone(const uint8_t *text, size_t n, size_t begin, size_t end)
{
    size_t bytes;
    return !(begin > 0 && lnt_is_word(lnt_utf8_last(text, begin, &bytes))) && !(end < n && lnt_is_word(lnt_utf8_first(text + end, n - end, &bytes)));
}

/* Where the white space before `at` begins, and where the one behind it ends. */
static size_t white_before(const uint8_t *text, size_t at, size_t least)
{
    for (size_t bytes; at > least && lnt_is_white(lnt_utf8_last(text, at, &bytes));) at -= bytes;
    return at;
}

static size_t white_behind(const uint8_t *text, size_t n, size_t at)
{
    for (size_t bytes; at < n && lnt_is_white(lnt_utf8_first(text + at, n - at, &bytes));) at += bytes;
    return at;
}

static linnet_status encode_parts(lnt_encoder *e, bool normalized, const uint8_t *text, size_t n, lnt_place place);

static linnet_status encode_between(lnt_encoder *e, bool normalized, const uint8_t *text, size_t n, lnt_place place)
{
    const uint8_t *out;
    size_t out_n;
    bool moved = false;
    if (normalized) return encode_words(e, text, n, place);
    LNT_TRY(lnt_normalize(&e->cutter.matcher, &e->t->normalizer, text, n, e->work, &out, &out_n, &moved));
    return encode_parts(e, true, out, out_n, moved ? LNT_INSIDE : place);
}

/* Cut out the added tokens, leftmost and longest first; what lies between goes on: to normalisation, then to the normalised added tokens, then to
 * the words. */
static linnet_status encode_parts(lnt_encoder *e, bool normalized, const uint8_t *text, size_t n, lnt_place place)
{
    const lnt_trie *trie = normalized ? &e->t->added_normal : &e->t->added_raw;
    size_t from = 0, length = 0;
    for (size_t i = 0; trie->n_nodes && i < n;) {
        const int32_t which = trie->root[text[i]] ? lnt_trie_longest(trie, text + i, n - i, &length) : -1;
        if (which < 0) {
            i++;
            continue;
        }
        const lnt_added *a = &e->t->added[which];
        size_t begin = i, end = i + length;
        i = end;
        if ((a->special && e->plain) || (a->single_word && !stands_alone(text, n, begin, end))) continue;
        if (a->lstrip) begin = white_before(text, begin, from);
        if (a->rstrip) end = white_behind(text, n, end);
        if (begin > from) LNT_TRY(encode_between(e, normalized, text + from, begin - from, from ? LNT_INSIDE : place));
        LNT_TRY(lnt_encoder_put(e, &a->id, 1));
        from = end;
    }
    return from < n ? encode_between(e, normalized, text + from, n - from, from ? LNT_INSIDE : place) : LINNET_OK;
}

static linnet_status encode(lnt_encoder *e, const uint8_t *text, size_t n, int32_t flags)
{
    const struct linnet_tokenizer *t = e->t;
    const bool template = flags & LINNET_ENCODE_TEMPLATE;
    LNT_TRY(lnt_cutter_begin(&e->cutter));
    LNT_TRY(grow(e->c, &e->ids, 0, &e->room, n / 3 + 16));
    if (template) LNT_TRY(lnt_encoder_put(e, t->before, (size_t)t->n_before));
    LNT_TRY(encode_parts(e, false, text, n, LNT_AT_START));
    return template ? lnt_encoder_put(e, t->after, (size_t)t->n_after) : LINNET_OK;
}

linnet_status linnet_tokenizer_encode_as(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t flags, int32_t **ids,
                                         int64_t *count)
{
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_NEED(c, ids);
    LNT_NEED(c, count);
    if (bytes) LNT_NEED(c, text);
    if (flags & ~(LINNET_ENCODE_TEMPLATE | LINNET_ENCODE_PLAIN)) return lnt_fail(c, LINNET_EINVAL, "flags is %d, expected a sum of 1 and 2", flags);
    lnt_encoder e = {.c = c, .t = t, .plain = flags & LINNET_ENCODE_PLAIN};
    e.cutter = (lnt_cutter){.c = c, .p = &t->pre, .word = encode_word, .user = &e};
    linnet_status s = encode(&e, (const uint8_t *)text, bytes, flags);
    lnt_cutter_end(&e.cutter);
    lnt_bytemap_free(&e.cache);
    lnt_buffer_free(&e.work[0]);
    lnt_buffer_free(&e.work[1]);
    lnt_free(e.cached);
    lnt_free(e.id);
    lnt_free(e.heap);
    lnt_free(e.node);
    if (s != LINNET_OK) {
        lnt_free(e.ids);
        return s;
    }
    *ids = e.ids;
    *count = (int64_t)e.count;
    return LINNET_OK;
}

linnet_status linnet_tokenizer_encode(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t **ids, int64_t *count)
{
    return linnet_tokenizer_encode_as(c, t, text, bytes, 0, ids, count);
}
