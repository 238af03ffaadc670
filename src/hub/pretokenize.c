#include "hub/pretokenize.h"

#include "hub/json.h"
#include "hub/normalize.h"

/* White space of Unicode (White_Space). */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"

/* 's 't 're 've 'm 'll 'd, a word, a number, other signs (each with a space before it), white space but for the last before a word, white space.
 * The quantifiers are possessive where no alternative could use what they would give back. */
const char lnt_gpt2_pattern[] = "'(?:[stmd]|re|ve|ll)| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++";

linnet_status lnt_pretokenizer_step(lnt_ctx *c, lnt_pretokenizer *p, const char *path, lnt_cut_step **out)
{
    if (p->n == LNT_MAX_CUTS) return lnt_malformed(c, path, "the pre-tokenizer has more than %d steps", LNT_MAX_CUTS);
    *out = &p->step[p->n++];
    **out = (lnt_cut_step){0};
    return LINNET_OK;
}

linnet_status lnt_pretokenizer_add(lnt_ctx *c, lnt_pretokenizer *p, const char *path, const char *pattern, bool literal)
{
    lnt_cut_step *k = NULL;
    LNT_TRY(lnt_pretokenizer_step(c, p, path, &k));
    return lnt_pattern_compile(c, path, "the pattern of the pre-tokenizer", pattern, literal, &k->pattern);
}

void lnt_pretokenizer_free(lnt_pretokenizer *p)
{
    for (int i = 0; i < p->n; i++) lnt_pattern_free(p->step[i].pattern);
    p->n = 0;
}

/* ---- cutting ---- */

linnet_status lnt_cutter_begin(lnt_cutter *k) { return lnt_matcher_begin(k->c, &k->matcher); }

void lnt_cutter_end(lnt_cutter *k)
{
    lnt_matcher_end(&k->matcher);
    for (int i = 0; i < LNT_MAX_CUTS; i++) lnt_buffer_free(&k->made[i]);
}

static linnet_status cut_valid(lnt_cutter *k, int level, const uint8_t *text, size_t n, lnt_place place);

/* A piece of the text of a step: text[begin..end). */
static linnet_status pass_on(lnt_cutter *k, int level, const uint8_t *text, size_t begin, size_t end, lnt_place place)
{
    return end > begin ? cut_valid(k, level + 1, text + begin, end - begin, begin ? LNT_INSIDE : place) : LINNET_OK;
}

/* The spans that a step cuts a piece into: what was seen last waits until it is known whether the next one joins it. */
typedef struct {
    lnt_cutter *k;
    int level;
    const uint8_t *text;
    lnt_place place;
    lnt_behavior behavior;
    size_t begin, end; /* of the one that waits; empty: none does */
    bool match;        /* the last span was one */
    bool open;         /* the one that waits is a match alone, which MERGED_WITH_NEXT gives to what follows */
} spans;

static linnet_status add_span(spans *s, size_t begin, size_t end, bool match)
{
    const bool waits = s->end > s->begin;
    const bool joins = waits && (s->behavior == LNT_CONTIGUOUS             ? match == s->match
                                 : s->behavior == LNT_MERGED_WITH_PREVIOUS ? match && !s->match
                                 : s->behavior == LNT_MERGED_WITH_NEXT     ? s->open && !match
                                                                           : false);
    s->match = match;
    if (joins) {
        s->end = end;
        s->open = false;
        return LINNET_OK;
    }
    if (waits) LNT_TRY(pass_on(s->k, s->level, s->text, s->begin, s->end, s->place));
    const bool kept = !(match && s->behavior == LNT_REMOVED);
    s->begin = begin;
    s->end = kept ? end : begin;
    s->open = match;
    return LINNET_OK;
}

static linnet_status cut_at_pattern(lnt_cutter *k, int level, const uint8_t *text, size_t n, lnt_place place)
{
    const lnt_cut_step *z = &k->p->step[level];
    spans s = {.k = k, .level = level, .text = text, .place = place, .behavior = z->behavior};
    for (size_t at = 0, begin, end; at < n; at = end) {
        LNT_TRY(lnt_pattern_next(&k->matcher, z->pattern, text, n, at, &begin, &end));
        if (begin > at) LNT_TRY(add_span(&s, at, begin, z->invert));
        if (begin < n) LNT_TRY(add_span(&s, begin, end, !z->invert));
    }
    return pass_on(k, level, text, s.begin, s.end, place);
}

static linnet_status cut_at_marks(lnt_cutter *k, int level, const uint8_t *text, size_t n, lnt_place place)
{
    const lnt_cut_step *z = &k->p->step[level];
    const size_t m = strlen(z->mark);
    lnt_buffer *b = &k->made[level];
    b->n = 0;
    const bool has = text[0] == ' ' || (n >= m && memcmp(text, z->mark, m) == 0);
    const bool wanted = (z->prepend == LNT_PREPEND_ALWAYS && place != LNT_BEHIND_BYTES) || (z->prepend == LNT_PREPEND_FIRST && place == LNT_AT_START);
    LNT_TRY(lnt_buffer_reserve(k->c, b, n));
    if (wanted && !has) LNT_TRY(lnt_buffer_put(k->c, b, z->mark, m));
    for (size_t at = 0; at < n;) {
        const uint8_t *blank = memchr(text + at, ' ', n - at);
        const size_t plain = blank ? (size_t)(blank - text) - at : n - at;
        LNT_TRY(lnt_buffer_put(k->c, b, text + at, plain));
        if (blank) LNT_TRY(lnt_buffer_put(k->c, b, z->mark, m));
        at += plain + (blank != NULL);
    }
    size_t from = 0;
    for (size_t at = b->n >= m && memcmp(b->at, z->mark, m) == 0 ? m : 0; z->split && at + m <= b->n;) {
        const uint8_t *mark = memmem(b->at + at, b->n - at, z->mark, m);
        if (!mark) break;
        at = (size_t)(mark - b->at);
        LNT_TRY(pass_on(k, level, b->at, from, at, place));
        from = at;
        at += m;
    }
    return pass_on(k, level, b->at, from, b->n, place);
}

static linnet_status put_blank(lnt_cutter *k, int level, const uint8_t *text, size_t n, lnt_place place)
{
    if (text[0] == ' ' || place == LNT_BEHIND_BYTES) return cut_valid(k, level + 1, text, n, place);
    lnt_buffer *b = &k->made[level];
    b->n = 0;
    LNT_TRY(lnt_buffer_put(k->c, b, " ", 1));
    LNT_TRY(lnt_buffer_put(k->c, b, text, n));
    return cut_valid(k, level + 1, b->at, b->n, place);
}

/* text is UTF-8. */
static linnet_status cut_valid(lnt_cutter *k, int level, const uint8_t *text, size_t n, lnt_place place)
{
    if (level == k->p->n) return n ? k->word(k->user, text, n) : LINNET_OK;
    switch (k->p->step[level].kind) {
    case LNT_CUT_METASPACE: return cut_at_marks(k, level, text, n, place);
    case LNT_CUT_PREFIX: return put_blank(k, level, text, n, place);
    default: return cut_at_pattern(k, level, text, n, place);
    }
}

linnet_status lnt_cut(lnt_cutter *k, const uint8_t *text, size_t n, lnt_place place)
{
    while (n > 0) {
        size_t run = lnt_utf8_prefix(text, n);
        if (run > 0)
            LNT_TRY(cut_valid(k, 0, text, run, place));
        else
            LNT_TRY(k->word(k->user, text, 1));
        text += run ? run : 1;
        n -= run ? run : 1;
        place = LNT_BEHIND_BYTES;
    }
    return LINNET_OK;
}
