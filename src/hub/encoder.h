/* What the encoding of one text holds (encode.c), and the models that turn its words into ids. */
#ifndef LNT_HUB_ENCODER_H
#define LNT_HUB_ENCODER_H

#include "hub/tokenizer.h"

typedef struct {
    uint64_t key; /* rank, then position */
    int32_t left, right;
} lnt_bpe_candidate;

typedef struct {
    double score; /* of the best way here */
    int32_t id;
    uint32_t length; /* of the last piece of it; 0: there is no way yet */
} lnt_unigram_node;

typedef struct {
    lnt_ctx *c;
    const struct linnet_tokenizer *t;
    bool plain; /* special tokens are spelled out */
    lnt_cutter cutter;
    lnt_buffer work[2]; /* of normalisation */
    int32_t *ids;
    size_t count, room;
    lnt_bytemap cache; /* word to (position in cached << 8 | ids) */
    int32_t *cached;
    size_t n_cached, cached_room;
    /* one word's symbols: id (-1 after it was merged away), neighbours */
    int32_t *id, *prev, *next;
    size_t word_room;
    lnt_bpe_candidate *heap;
    size_t n_heap, heap_room;
    lnt_unigram_node *node; /* one for each byte of a word and its end */
    size_t node_room;
} lnt_encoder;

linnet_status lnt_encoder_put(lnt_encoder *e, const int32_t *ids, size_t n);
/* The bytes of the character that text[n] begins with; where words are bytes, 1. n > 0. */
static inline size_t lnt_unit(const struct linnet_tokenizer *t, const uint8_t *text, size_t n)
{
    const size_t most = t->bytewise || *text < 0xc0 ? 1 : *text >= 0xf0 ? 4 : *text >= 0xe0 ? 3 : 2;
    return most <= n ? most : n;
}
/* Id of a character (where words are bytes, of a byte); -1: none. */
int32_t lnt_unit_id(const struct linnet_tokenizer *t, const uint8_t *text, size_t n);

/* One word through a model. */
linnet_status lnt_bpe_word(lnt_encoder *e, const uint8_t *word, size_t n);
linnet_status lnt_unigram_word(lnt_encoder *e, const uint8_t *word, size_t n);
linnet_status lnt_longest_word(lnt_encoder *e, const uint8_t *word, size_t n);
/* Length of a beginning of a word of n bytes that the merges never join to what follows. */
size_t lnt_bpe_seam(const struct linnet_tokenizer *t, const uint8_t *word, size_t n);

#endif
