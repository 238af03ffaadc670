/* A unigram model (Kudo 2018): of all ways to write a word as pieces, the one with the largest sum of scores, by one pass that keeps the best way to
 * every byte. A character that is no piece costs the least score and ten more; a run of those is one token. */
#include "hub/encoder.h"

static linnet_status reserve(lnt_encoder *e, size_t n)
{
    if (n < e->node_room) return LINNET_OK;
    const size_t room = lnt_bytes_plus(n < 256 ? 256 : n, 1);
    lnt_free(e->node);
    e->node_room = 0;
    e->node = lnt_alloc(lnt_bytes(room, sizeof *e->node));
    if (!e->node) return lnt_fail_memory(e->c, lnt_bytes(room, sizeof *e->node));
    e->node_room = room;
    return LINNET_OK;
}

static void reach(lnt_unigram_node *to, double score, int32_t id, size_t length)
{
    if (to->length && score <= to->score) return;
    *to = (lnt_unigram_node){score, id, (uint32_t)length};
}

/* The best way to every end of a character: id -1 is an unknown one. */
static void best_ways(lnt_encoder *e, const uint8_t *word, size_t n)
{
    static const double penalty = 10;
    const struct linnet_tokenizer *t = e->t;
    for (size_t i = 0; i <= n; i++) e->node[i] = (lnt_unigram_node){0};
    for (size_t at = 0, unit; at < n; at += unit) {
        const double here = e->node[at].score;
        bool single = false;
        unit = lnt_unit(t, word + at, n - at);
        for (size_t i = at, node = 0; i < n; i++) {
            node = (size_t)lnt_trie_step(&t->trie, (int32_t)node, word[i]);
            if (!node) break;
            const int32_t id = t->trie.value[node];
            if (id < 0) continue;
            reach(&e->node[i + 1], t->score[id] + here, id, i + 1 - at);
            single = single || i + 1 - at == unit;
        }
        if (!single) reach(&e->node[at + unit], t->least_score - penalty + here, t->unk, unit);
    }
}

/* What stands for an unknown run: itself when it is a piece after all, its bytes as tokens, the token for what is unknown. */
static linnet_status put_unknown(lnt_encoder *e, const uint8_t *run, size_t n)
{
    const struct linnet_tokenizer *t = e->t;
    const int64_t *whole = lnt_bytemap_find(&t->whole, run, n);
    if (whole) return lnt_encoder_put(e, &(int32_t){(int32_t)*whole}, 1);
    bool bytes = t->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++) bytes = t->byte_id[run[i]] >= 0;
    for (size_t i = 0; bytes && i < n; i++) LNT_TRY(lnt_encoder_put(e, &t->byte_id[run[i]], 1));
    if (bytes) return LINNET_OK;
    if (t->unk < 0) return lnt_fail(e->c, LINNET_EINVAL, "the text has a character that the tokenizer does not know, and it has no token for such");
    return lnt_encoder_put(e, &t->unk, 1);
}

linnet_status lnt_unigram_word(lnt_encoder *e, const uint8_t *word, size_t n)
{
    if (n > INT32_MAX / 4) return lnt_fail(e->c, LINNET_EINVAL, "the text has a word of %zu bytes, expected at most %d", n, INT32_MAX / 4);
    LNT_TRY(reserve(e, n));
    best_ways(e, word, n);
    /* from the end to the beginning: every node learns what comes after it */
    uint32_t after = 0;
    for (size_t at = n; at > 0;) {
        const uint32_t length = e->node[at].length;
        e->node[at].length = after;
        after = length;
        at -= length;
    }
    for (size_t at = 0; at < n;) {
        size_t end = at + after;
        const int32_t id = e->node[end].id;
        after = e->node[end].length;
        if (id != e->t->unk) LNT_TRY(lnt_encoder_put(e, &id, 1));
        else {
            while (end < n && e->node[end + after].id == id) {
                end += after;
                after = e->node[end].length;
            }
            LNT_TRY(put_unknown(e, word + at, end - at));
        }
        at = end;
    }
    return LINNET_OK;
}
