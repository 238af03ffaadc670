/* Cutting a text into the words that a tokenizer's model works on, as the file says.
 *
 * Bytes that are not UTF-8 become words of one byte, so that every text of a byte-level tokenizer has an encoding that gives it back. */
#ifndef LNT_HUB_PRETOKENIZE_H
#define LNT_HUB_PRETOKENIZE_H

#include "hub/buffer.h"
#include "hub/regex.h"

enum { LNT_MAX_CUTS = 16 };

typedef enum {
    LNT_CUT_PATTERN,   /* at the matches of a pattern */
    LNT_CUT_METASPACE, /* blanks become a mark, and a cut goes in front of each */
    LNT_CUT_PREFIX,    /* a blank in front, where there is none */
} lnt_cut_kind;

/* What becomes of a match, as tokenizer.json calls it. */
typedef enum { LNT_ISOLATED, LNT_REMOVED, LNT_CONTIGUOUS, LNT_MERGED_WITH_PREVIOUS, LNT_MERGED_WITH_NEXT } lnt_behavior;

/* When METASPACE puts a mark in front of a piece that has none: always, of the first piece of a text alone, never. */
typedef enum { LNT_PREPEND_ALWAYS, LNT_PREPEND_FIRST, LNT_PREPEND_NEVER } lnt_prepend;

typedef struct {
    lnt_cut_kind kind;
    lnt_pattern *pattern;
    lnt_behavior behavior;
    bool invert;        /* what lies between is the match */
    char mark[5];       /* of METASPACE: one character */
    lnt_prepend prepend;
    bool split;
} lnt_cut_step;

typedef struct {
    int n;
    lnt_cut_step step[LNT_MAX_CUTS]; /* each cuts the pieces of the one before */
} lnt_pretokenizer;

/* GPT-2's pattern. */
extern const char lnt_gpt2_pattern[];

/* Room for a step; NULL and an error: there are too many. */
linnet_status lnt_pretokenizer_step(lnt_ctx *c, lnt_pretokenizer *p, const char *path, lnt_cut_step **out);
/* Add a pattern (`literal`: a plain string) whose matches are isolated. `path` is for messages. */
linnet_status lnt_pretokenizer_add(lnt_ctx *c, lnt_pretokenizer *p, const char *path, const char *pattern, bool literal);
void lnt_pretokenizer_free(lnt_pretokenizer *p);

/* Where a piece stands: at the very beginning of the text, further on, or behind bytes that are not UTF-8 (nothing is put in front of it). */
typedef enum { LNT_AT_START, LNT_INSIDE, LNT_BEHIND_BYTES } lnt_place;

/* What one call of many needs; fill with lnt_cutter_begin, end with lnt_cutter_end. */
typedef struct {
    lnt_ctx *c;
    const lnt_pretokenizer *p;
    linnet_status (*word)(void *user, const uint8_t *word, size_t n);
    void *user;
    lnt_matcher matcher;
    lnt_buffer made[LNT_MAX_CUTS]; /* what a step made of its piece */
} lnt_cutter;

linnet_status lnt_cutter_begin(lnt_cutter *k);
linnet_status lnt_cut(lnt_cutter *k, const uint8_t *text, size_t n, lnt_place place);
void lnt_cutter_end(lnt_cutter *k);

#endif
