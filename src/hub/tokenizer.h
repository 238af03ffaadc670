/* The inside of linnet_tokenizer: byte-level byte-pair encoding (Sennrich et al. 2016; over bytes, Radford et al. 2019).
 *
 *   tokenizer.c       opening, saving, lookups             tokenizer_json.c  the tokenizer.json of Hugging Face
 *   tokenizer_gpt2.c  encoder.json and vocab.bpe           bpe.c             text to ids
 *   bpe_train.c       a new vocabulary from a text         pretokenize.c     words of a text
 */
#ifndef LNT_HUB_TOKENIZER_H
#define LNT_HUB_TOKENIZER_H

#include "hub/bytemap.h"
#include "hub/pretokenize.h"

enum { LNT_MAX_VOCABULARY = 1 << 24 };

typedef struct {
    const char *bytes; /* NULL: no piece has this id */
    uint32_t n;
    bool apart; /* an added token, or one that is not spelled in byte characters: no word and no merge has it */
} lnt_piece;

typedef struct {
    int32_t left, right, result;
} lnt_merge;

/* A token that is cut out of the text before anything else. Special ones are not: their spelling in a text is plain text. */
typedef struct {
    const char *bytes;
    uint32_t n;
    int32_t id;
    bool normalized; /* looked for after normalisation */
} lnt_added;

struct linnet_tokenizer {
    lnt_arena arena; /* pieces, added tokens */
    int32_t n;       /* vocabulary */
    lnt_piece *pieces;
    int32_t byte_id[256];
    int32_t separator; /* -1: none */

    lnt_merge *merges; /* by rank */
    int32_t n_merges;
    int32_t *pair_slots; /* open addressing over merges, -1 free; capacity a power of two */
    size_t pair_capacity;

    lnt_pretokenizer pre;
    bool prefix_space, nfc, ignore_merges;
    lnt_bytemap whole; /* with ignore_merges: bytes of a piece to its id */
    lnt_added *added;  /* longest first */
    int n_added;

    char *source; /* tokenizer.json as read, written back as it was; NULL: made here */
    size_t source_bytes;
};

/* An empty tokenizer with room for n pieces. */
linnet_status lnt_tokenizer_new(lnt_ctx *c, int64_t n, struct linnet_tokenizer **out);
/* Copy `bytes` in as piece `id`; the first piece of one byte is that byte's token. */
linnet_status lnt_tokenizer_set(lnt_ctx *c, struct linnet_tokenizer *t, int64_t id, const void *bytes, size_t n);
/* After pieces and merges: the tables of encoding. Every byte must be a piece; `path` is for messages. */
linnet_status lnt_tokenizer_finish(lnt_ctx *c, struct linnet_tokenizer *t, const char *path);
/* Index of the merge of a pair, -1: none. */
int32_t lnt_tokenizer_merge(const struct linnet_tokenizer *t, int32_t left, int32_t right);

linnet_status lnt_tokenizer_from_json(lnt_ctx *c, const char *path, const char *text, size_t bytes, struct linnet_tokenizer **out);
linnet_status lnt_tokenizer_from_gpt2(lnt_ctx *c, const char *vocabulary, const char *merges, struct linnet_tokenizer **out);
/* Text of tokenizer.json, freed with lnt_free. */
linnet_status lnt_tokenizer_text(lnt_ctx *c, const struct linnet_tokenizer *t, char **out, size_t *bytes);
/* Names a document separator goes by, the likeliest first. */
extern const char *const lnt_separator_names[]; /* closed by NULL */

#endif
