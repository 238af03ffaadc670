/* Regular expressions of tokenizer.json. They are written for Oniguruma in its Ruby syntax; PCRE2 runs them, after what the two read differently has
 * been spelled out (\s, \w, \h and their opposites; ^ and $ stand at lines). */
#ifndef LNT_HUB_REGEX_H
#define LNT_HUB_REGEX_H

#include "core/memory.h"

typedef struct lnt_pattern lnt_pattern;

/* Inside of a class: letters, marks, decimal digits, connectors, and the symbols that are alphabetic. */
#define LNT_WORD_CLASS \
    "\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

/* `literal`: a plain string. `what` ("the pattern of the pre-tokenizer") and `path` are for messages. A pattern that matches the empty text is
 * refused. */
linnet_status lnt_pattern_compile(lnt_ctx *c, const char *path, const char *what, const char *pattern, bool literal, lnt_pattern **out);
void lnt_pattern_free(lnt_pattern *p);

/* What matching needs, made once for a text; lnt_matcher_begin, lnt_matcher_end. */
typedef struct {
    lnt_ctx *c;
    void *match, *limits, *stack; /* pcre2_match_data, pcre2_match_context, pcre2_jit_stack */
} lnt_matcher;

linnet_status lnt_matcher_begin(lnt_ctx *c, lnt_matcher *m);
void lnt_matcher_end(lnt_matcher *m);
/* The next match in text[n], which is UTF-8, from `at` on: *begin < *end; *begin = n when there is none. LINNET_EUNSUPPORTED: the pattern gives
 * up. */
linnet_status lnt_pattern_next(lnt_matcher *m, const lnt_pattern *p, const uint8_t *text, size_t n, size_t at, size_t *begin, size_t *end);

#endif
