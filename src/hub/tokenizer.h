/* The inside of linnet_tokenizer. A text goes through added tokens, normalisation, added tokens again, the pre-tokenizer, and word by word through a
 * model: byte-pair merges (Sennrich et al. 2016; over bytes, Radford et al. 2019; over characters with a fallback to bytes, as SentencePiece has it),
 * a unigram model (Kudo 2018), or the longest token of a list (RWKV's World).
 *
 *   tokenizer.c       opening, saving, lookups             tokenizer_json.c   the tokenizer.json of Hugging Face: model, vocabulary, added tokens
 *   tokenizer_gpt2.c  encoder.json and vocab.bpe           tokenizer_parts.c  its normalizer, pre-tokenizer, decoder, post-processor
 *   world.c           RWKV's list; longest match           tokenizer_write.c  tokenizer.json of a vocabulary made here
 *   encode.c          text to words                        bpe.c, unigram.c   words to ids
 *   decode.c          ids to text                          bpe_train.c        a new vocabulary from a text
 */
#ifndef LNT_HUB_TOKENIZER_H
#define LNT_HUB_TOKENIZER_H

#include "hub/bytemap.h"
#include "hub/normalize.h"
#include "hub/pretokenize.h"
#include "hub/trie.h"

enum { LNT_MAX_VOCABULARY = 1 << 24, LNT_MAX_DECODER_STEPS = 16, LNT_MAX_TEMPLATE = 32 };

typedef struct {
    const char *bytes; /* what the id adds to a text; NULL: no piece has this id */
    uint32_t n;
    bool verbatim;  /* no word and no merge has it: it is not spelled as the model spells */
    bool special; /* left out of a text unless asked for */
    const char *spelled; /* as the vocabulary has it, where that is something else: "\u2581the" */
    uint32_t n_spelled;
} lnt_piece;

typedef struct {
    int32_t left, right, result;
} lnt_merge;

/* A token that is cut out of the text before anything else. */
typedef struct {
    const char *content;
    size_t n;
    int32_t id;
    bool normalized; /* looked for after normalisation, in its own normalised form */
    bool special, single_word, lstrip, rstrip;
} lnt_added;

typedef enum { LNT_MODEL_BPE, LNT_MODEL_UNIGRAM, LNT_MODEL_LONGEST } lnt_model_kind;

/* Steps from pieces to text. */
typedef enum { LNT_DECODE_REPLACE, LNT_DECODE_FALLBACK, LNT_DECODE_FUSE, LNT_DECODE_STRIP, LNT_DECODE_MARK } lnt_decode_kind;
typedef struct {
    lnt_decode_kind kind;
    lnt_pattern *pattern; /* of REPLACE */
    char *content;        /* of REPLACE; of STRIP and MARK one character */
    size_t n;
    int64_t start, stop;  /* of STRIP: how many characters at most */
    bool drop;            /* of MARK: the first piece loses its marks */
} lnt_decode_step;

struct linnet_tokenizer {
    lnt_arena arena; /* pieces */
    int32_t n;       /* vocabulary */
    lnt_piece *pieces;
    lnt_model_kind model;
    bool bytewise;        /* words are bytes, not characters */
    int32_t byte_id[256]; /* of a byte, or of <0xHH> where words are characters; -1: none */
    int32_t separator;    /* -1: none */
    int32_t unk;          /* id of what the vocabulary lacks, -1: it is left out */

    lnt_merge *merges; /* by rank */
    int32_t n_merges;
    int32_t *pair_slots; /* open addressing over merges, -1 free; capacity a power of two */
    size_t pair_capacity;
    uint64_t *seams; /* open addressing: two characters that stand side by side in what a merge makes; 0 free */
    size_t seam_capacity;
    bool ignore_merges, fuse_unk, byte_fallback;
    lnt_bytemap whole; /* spelling of a piece to its id: of characters, and with ignore_merges */

    double *score; /* of a unigram model, by id */
    double least_score;
    lnt_trie trie; /* of a unigram model and of the longest match */

    lnt_normalizer normalizer;
    lnt_pretokenizer pre;
    lnt_added *added;
    int n_added;
    lnt_trie added_raw, added_normal; /* to places in added */
    int32_t before[LNT_MAX_TEMPLATE], after[LNT_MAX_TEMPLATE]; /* what the template puts around a text */
    int n_before, n_after;
    lnt_decode_step decode[LNT_MAX_DECODER_STEPS];
    int n_decode;

    char *source; /* the file as read, written back as it was; NULL: made here */
    size_t source_bytes;
    const char *source_name; /* of that file in a folder */
};

/* An empty tokenizer with room for n pieces: merges over bytes. */
linnet_status lnt_tokenizer_new(lnt_ctx *c, int64_t n, struct linnet_tokenizer **out);
/* Copy `bytes` in as piece `id`; the first piece of one byte is that byte's token. */
linnet_status lnt_tokenizer_set(lnt_ctx *c, struct linnet_tokenizer *t, int64_t id, const void *bytes, size_t n);
/* An added token, whose piece is set and whose content stays where it is. */
linnet_status lnt_tokenizer_add(lnt_ctx *c, struct linnet_tokenizer *t, const lnt_added *a);
/* After all pieces, merges and added tokens: the tables of encoding. Over bytes every byte must be a piece; `path` is for messages. */
linnet_status lnt_tokenizer_finish(lnt_ctx *c, struct linnet_tokenizer *t, const char *path);
/* Index of the merge of a pair, -1: none. */
int32_t lnt_tokenizer_merge(const struct linnet_tokenizer *t, int32_t left, int32_t right);
/* The characters that no merge joins: the table `seams`. */
linnet_status lnt_bpe_seams(lnt_ctx *c, struct linnet_tokenizer *t);
/* Bytes of every piece from its spelling, by the decoder's steps. */
linnet_status lnt_decoder_spell_out(lnt_ctx *c, struct linnet_tokenizer *t);

linnet_status lnt_tokenizer_from_json(lnt_ctx *c, const char *path, const char *text, size_t bytes, struct linnet_tokenizer **out);
linnet_status lnt_tokenizer_from_gpt2(lnt_ctx *c, const char *vocabulary, const char *merges, struct linnet_tokenizer **out);
linnet_status lnt_tokenizer_from_world(lnt_ctx *c, const char *path, const char *text, size_t bytes, struct linnet_tokenizer **out);
extern const char lnt_world_name[]; /* of that file */
/* Text of tokenizer.json, freed with lnt_free. */
linnet_status lnt_tokenizer_text(lnt_ctx *c, const struct linnet_tokenizer *t, char **out, size_t *bytes);
/* Names a document separator goes by, the likeliest first. */
extern const char *const lnt_separator_names[]; /* closed by NULL */

#endif
