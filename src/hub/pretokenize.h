/* Cutting a text into the words that byte-pair encoding works on: by regular expressions, as the model's tokenizer says.
 *
 * Bytes that are not UTF-8 become words of one byte, so that every text has an encoding that gives it back. */
#ifndef LNT_HUB_PRETOKENIZE_H
#define LNT_HUB_PRETOKENIZE_H

#include "core/memory.h"

enum { LNT_MAX_SPLITS = 8 };

typedef struct {
    int n;
    void *split[LNT_MAX_SPLITS]; /* pcre2_code: each cuts the pieces of the one before into its matches and what lies between */
} lnt_pretokenizer;

/* GPT-2's pattern. */
extern const char lnt_gpt2_pattern[];

/* Add a pattern (`literal`: a plain string). `path` is for messages. */
linnet_status lnt_pretokenizer_add(lnt_ctx *c, lnt_pretokenizer *p, const char *path, const char *pattern, bool literal);
void lnt_pretokenizer_free(lnt_pretokenizer *p);

/* What one call of many needs; fill with lnt_cutter_begin, end with lnt_cutter_end. */
typedef struct {
    lnt_ctx *c;
    const lnt_pretokenizer *p;
    void *match[LNT_MAX_SPLITS], *limits, *stack; /* pcre2_match_data, pcre2_match_context, pcre2_jit_stack */
    linnet_status (*word)(void *user, const uint8_t *word, size_t n);
    void *user;
} lnt_cutter;

linnet_status lnt_cutter_begin(lnt_cutter *k);
linnet_status lnt_cut(lnt_cutter *k, const uint8_t *text, size_t n);
void lnt_cutter_end(lnt_cutter *k);

/* Bytes of the longest prefix that is UTF-8 (RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF). */
size_t lnt_utf8_prefix(const uint8_t *s, size_t n);
/* Normalise to NFC what is UTF-8 and copy the rest; *out is freed with lnt_free. */
linnet_status lnt_nfc(lnt_ctx *c, const uint8_t *text, size_t n, uint8_t **out, size_t *out_n);

#endif
