/* What a tokenizer does to a text before it cuts it. Bytes that are not UTF-8 go through as they are. */
#ifndef LNT_HUB_NORMALIZE_H
#define LNT_HUB_NORMALIZE_H

#include "hub/buffer.h"
#include "hub/regex.h"

enum { LNT_MAX_NORMAL_STEPS = 32 };

typedef enum {
    LNT_NORMAL_FORM,    /* NFC, NFD, NFKC, NFKD */
    LNT_NORMAL_STRIP,   /* white space at the ends */
    LNT_NORMAL_ACCENTS, /* marks go */
    LNT_NORMAL_LOWER,
    LNT_NORMAL_NMT,     /* control characters go, odd blanks become blanks */
    LNT_NORMAL_REPLACE,
    LNT_NORMAL_PREPEND, /* to what is not empty */
} lnt_normal_kind;

typedef struct {
    lnt_normal_kind kind;
    bool compose, compatible; /* of a form */
    bool left, right;         /* of STRIP */
    lnt_pattern *pattern;     /* of REPLACE */
    char *content;            /* of REPLACE and PREPEND */
    size_t n;                 /* its bytes */
} lnt_normal_step;

typedef struct {
    lnt_normal_step step[LNT_MAX_NORMAL_STEPS];
    int n;
} lnt_normalizer;

void lnt_normalizer_free(lnt_normalizer *z);
/* text[n] after all steps: *out is text itself or lies in one of the two buffers. *moved is set when the beginning of the text went. */
linnet_status lnt_normalize(lnt_matcher *m, const lnt_normalizer *z, const uint8_t *text, size_t n, lnt_buffer work[2], const uint8_t **out,
                            size_t *out_n, bool *moved);

/* Bytes of the longest prefix that is UTF-8 (RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF). */
size_t lnt_utf8_prefix(const uint8_t *s, size_t n);
/* The code point at the beginning of UTF-8, and its bytes; a byte that begins none is -1 and one byte. n > 0. */
int32_t lnt_utf8_first(const uint8_t *s, size_t n, size_t *bytes);
/* The same of what s[0..n) ends with. */
int32_t lnt_utf8_last(const uint8_t *s, size_t n, size_t *bytes);
bool lnt_is_white(int32_t point);     /* White_Space */
bool lnt_is_word(int32_t point);      /* what \w means in UTS #18 */
/* NFC of what is UTF-8; *out is freed with lnt_free. */
linnet_status lnt_nfc(lnt_ctx *c, const uint8_t *text, size_t n, uint8_t **out, size_t *out_n);

#endif
