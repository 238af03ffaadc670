/* Text as token ids: files and folders, tokenized in path order, documents closed by the tokenizer's separator. */
#ifndef LNT_HUB_CORPUS_H
#define LNT_HUB_CORPUS_H

#include "core/memory.h"

typedef struct lnt_corpus {
    int64_t n;             /* ids */
    int32_t *ids;
    int64_t files, bytes;  /* of text read */
    int64_t vocabulary;
    int64_t separator;     /* -1: none */
    int32_t *id_bytes;     /* [vocabulary]: bytes of text an id stands for (0 for the separator) */
    uint64_t fingerprint;  /* FNV-1a of the ids: the same text and tokenizer give the same */
    uint64_t *of_file;     /* [files]: the same of each file; 0: it is empty */
} lnt_corpus;

/* Texts that a caller names. */
typedef struct {
    const char *const *paths; /* each a file, or a folder whose regular files (hidden ones left out) are taken in sorted order */
    int n_paths;
    const char *field;        /* files hold JSON lines, of which this field is read, each a document; NULL: a file is a text, and a document */
} lnt_texts;

/* No text at all is an error, and so is a file that holds something else. Compressed files are unpacked (hub/unpack.h). Documents of JSON lines end
 * in a newline where the tokenizer has no separator. */
linnet_status lnt_corpus_load(lnt_ctx *c, const lnt_texts *texts, const linnet_tokenizer *t, lnt_corpus **out);
/* The bytes of the same files, joined, each document of JSON lines with a newline; at most `limit` of them (the first). Free with lnt_free. */
linnet_status lnt_corpus_text(lnt_ctx *c, const lnt_texts *texts, size_t limit, char **text, size_t *bytes);
void lnt_corpus_free(lnt_corpus *k);

/* LINNET_EINVAL when every file of `held` is one of `train`, too; `path`: what the message calls it. */
linnet_status lnt_corpus_apart(lnt_ctx *c, const lnt_corpus *train, const lnt_corpus *held, const char *path);

/* LINNET_EINVAL when these are the first bytes of what is no text (compressed files, archives, programs), or when one of them is 0. */
linnet_status lnt_text_check(lnt_ctx *c, const char *path, const uint8_t *data, size_t n);
/* Whether each of the first lines is a JSON object. */
bool lnt_text_is_json_lines(const char *text, size_t n);

/* Bytes of text that ids[0..n) stand for. */
int64_t lnt_corpus_bytes(const lnt_corpus *k, const int32_t *ids, int64_t n);

#endif
