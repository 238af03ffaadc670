#include "hub/pretokenize.h"

#include <string.h>
#include <utf8proc.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "hub/json.h"

/* White space of Unicode (White_Space), spelled out because PCRE2's \s has U+180E too. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"

/* 's 't 're 've 'm 'll 'd, a word, a number, other signs (each with a space before it), white space but for the last before a word, white space.
 * The quantifiers are possessive where no alternative could use what they would give back. */
const char lnt_gpt2_pattern[] = "'(?:[stmd]|re|ve|ll)| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++";

enum {
    MAX_PATTERN = 65536, /* bytes; the longest published ones have about a thousand */
    HEAP_KIB = 65536, /* for a pattern that backtracks without bound, where there is no JIT */
    JIT_STACK = 8 << 20,
};

static void *take(PCRE2_SIZE n, void *user)
{
    (void)user;
    return lnt_alloc(n);
}

static void give(void *p, void *user)
{
    (void)user;
    lnt_free(p);
}

linnet_status lnt_pretokenizer_add(lnt_ctx *c, lnt_pretokenizer *p, const char *path, const char *pattern, bool literal)
{
    if (p->n == LNT_MAX_SPLITS) return lnt_malformed(c, path, "the pre-tokenizer has more than %d steps", LNT_MAX_SPLITS);
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *limits = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_code *code = NULL;
    int error = 0;
    PCRE2_SIZE at = 0;
    if (limits) {
        pcre2_set_max_pattern_length(limits, MAX_PATTERN);
        uint32_t flags = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
        code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, flags, &error, &at, limits);
    }
    pcre2_compile_context_free(limits);
    pcre2_general_context_free(memory);
    if (!code && (!limits || error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED)) return lnt_fail_memory(c, strlen(pattern));
    if (!code) {
        char text[160];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return lnt_malformed(c, path, "the pattern of the pre-tokenizer is malformed at byte %zu: %s", (size_t)at, text);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(code);
        return lnt_malformed(c, path, "the pattern of the pre-tokenizer matches the empty text");
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it the matches are the same, and slower */
    p->split[p->n++] = code;
    return LINNET_OK;
}

void lnt_pretokenizer_free(lnt_pretokenizer *p)
{
    for (int i = 0; i < p->n; i++) pcre2_code_free(p->split[i]);
    p->n = 0;
}

/* ---- UTF-8 ---- */

size_t lnt_utf8_prefix(const uint8_t *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        while (n - i >= 8 && (memcpy(&w, s + i, 8), (w & 0x8080808080808080u) == 0)) i += 8;
        if (i == n) break;
        uint8_t b = s[i];
        if (b < 0x80) {
            i++;
            continue;
        }
        size_t more = b >= 0xf0 ? 3 : b >= 0xe0 ? 2 : 1;
        if (b < 0xc2 || b > 0xf4 || n - i <= more) return i;
        /* the second byte carries the exceptions: overlong forms, surrogates, above U+10FFFF */
        uint8_t lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80, hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
        if (s[i + 1] < lo || s[i + 1] > hi) return i;
        for (size_t j = 2; j <= more; j++)
            if ((s[i + j] & 0xc0) != 0x80) return i;
        i += more + 1;
    }
    return i;
}

typedef struct {
    int32_t *at, *sorted; /* code points, and room to order them in */
    size_t n, room, sorted_room;
} points;

static linnet_status grow(lnt_ctx *c, int32_t **at, size_t used, size_t need, size_t *room)
{
    if (need <= *room) return LINNET_OK;
    const size_t more = lnt_bytes_plus(lnt_bytes(2, *room), need);
    int32_t *grown = lnt_realloc(*at, lnt_bytes(used, sizeof *grown), lnt_bytes(more, sizeof *grown));
    if (!grown) return lnt_fail_memory(c, lnt_bytes(more, sizeof *grown));
    *at = grown;
    *room = more;
    return LINNET_OK;
}

static int class_of(int32_t point) { return point < 0x300 ? 0 : utf8proc_get_property(point)->combining_class; }

/* The marks from `first` on by their classes, equal ones as they stand (Unicode 3.11, D109). */
static linnet_status order_marks(lnt_ctx *c, points *p, size_t first)
{
    enum { FEW = 32 };
    size_t n = p->n - first, place[256] = {0}, sum = 0;
    int32_t *mark = p->at + first;
    for (size_t i = 1; i < n && n <= FEW; i++) { /* by insertion */
        const int32_t one = mark[i];
        size_t k = i;
        for (; k > 0 && class_of(mark[k - 1]) > class_of(one); k--) mark[k] = mark[k - 1];
        mark[k] = one;
    }
    if (n <= FEW) return LINNET_OK;
    LNT_TRY(grow(c, &p->sorted, 0, n, &p->sorted_room)); /* by counting: a text may be marks alone */
    for (size_t i = 0; i < n; i++) place[class_of(mark[i])]++;
    for (int k = 0; k < 256; k++) {
        const size_t count = place[k];
        place[k] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) p->sorted[place[class_of(mark[i])]++] = mark[i];
    memcpy(mark, p->sorted, n * sizeof *mark);
    return LINNET_OK;
}

/* Valid UTF-8 decomposed, put in order, composed again, and back as UTF-8: *bytes of them at p->at. What utf8proc_map does, but that orders marks by
 * exchanging neighbours, in the square of their number. */
static linnet_status compose(lnt_ctx *c, const uint8_t *text, size_t n, points *p, size_t *bytes)
{
    enum { MOST_PARTS = 32 }; /* of one code point; canonical decompositions have at most 4 */
    const utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    size_t marks = 0; /* where those at the end begin */
    p->n = 0;
    for (size_t at = 0; at < n;) {
        LNT_TRY(grow(c, &p->at, p->n, p->n + MOST_PARTS + 1, &p->room));
        utf8proc_int32_t one = text[at];
        utf8proc_ssize_t parts = 1;
        if (one < 0x80) {
            p->at[p->n] = one;
            at++;
        } else {
            at += (size_t)utf8proc_iterate(text + at, (utf8proc_ssize_t)(n - at), &one);
            parts = utf8proc_decompose_char(one, p->at + p->n, MOST_PARTS, how, NULL);
        }
        if (parts < 0 || parts > MOST_PARTS) return lnt_fail(c, LINNET_EINTERNAL, "U+%04X cannot be decomposed", (unsigned)one);
        for (utf8proc_ssize_t i = 0; i < parts; i++) {
            if (class_of(p->at[p->n]) == 0) {
                LNT_TRY(order_marks(c, p, marks));
                marks = p->n + 1;
            }
            p->n++;
        }
    }
    LNT_TRY(order_marks(c, p, marks));
    const utf8proc_ssize_t got = utf8proc_reencode(p->at, (utf8proc_ssize_t)p->n, how);
    if (got < 0) return lnt_fail(c, LINNET_EINTERNAL, "a text of %zu code points cannot be composed", p->n);
    *bytes = (size_t)got;
    return LINNET_OK;
}

linnet_status lnt_nfc(lnt_ctx *c, const uint8_t *text, size_t n, uint8_t **out, size_t *out_n)
{
    size_t room = n + 16, used = 0;
    points p = {0};
    linnet_status s = LINNET_OK;
    uint8_t *buf = lnt_alloc(room);
    if (!buf) return lnt_fail_memory(c, room);
    while (n > 0) {
        size_t run = lnt_utf8_prefix(text, n), length = 1;
        if (run > 0) LNT_TRY_GOTO(s, compose(c, text, run, &p, &length), done);
        if (room - used < length) {
            const size_t more = lnt_bytes_plus(lnt_bytes(2, room), length);
            uint8_t *bigger = lnt_realloc(buf, used, more);
            if (!bigger) {
                s = lnt_fail_memory(c, more);
                goto done;
            }
            buf = bigger;
            room = more;
        }
        memcpy(buf + used, run > 0 ? (const uint8_t *)p.at : text, length);
        used += length;
        text += run ? run : 1;
        n -= run ? run : 1;
    }
    *out = buf;
    *out_n = used;
    buf = NULL;
done:
    lnt_free(buf);
    lnt_free(p.at);
    lnt_free(p.sorted);
    return s;
}

/* ---- cutting ---- */

linnet_status lnt_cutter_begin(lnt_cutter *k)
{
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    bool ok = memory && (k->limits = pcre2_match_context_create(memory));
    if (ok) pcre2_set_heap_limit(k->limits, HEAP_KIB);
    for (int i = 0; i < k->p->n && ok; i++) ok = (k->match[i] = pcre2_match_data_create(1, memory)) != NULL;
    pcre2_general_context_free(memory);
    if (ok) return LINNET_OK;
    lnt_cutter_end(k);
    return lnt_fail_memory(k->c, 256);
}

void lnt_cutter_end(lnt_cutter *k)
{
    for (int i = 0; i < LNT_MAX_SPLITS; i++) {
        pcre2_match_data_free(k->match[i]);
        k->match[i] = NULL;
    }
    pcre2_match_context_free(k->limits);
    pcre2_jit_stack_free(k->stack);
    k->limits = k->stack = NULL;
}

static int match_at(lnt_cutter *k, int level, const uint8_t *text, size_t n, size_t at)
{
    int got = pcre2_match(k->p->split[level], text, n, at, PCRE2_NO_UTF_CHECK, k->match[level], k->limits);
    if (got != PCRE2_ERROR_JIT_STACKLIMIT || k->stack) return got;
    k->stack = pcre2_jit_stack_create(32768, JIT_STACK, NULL);
    if (!k->stack) return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(k->limits, NULL, k->stack);
    return pcre2_match(k->p->split[level], text, n, at, PCRE2_NO_UTF_CHECK, k->match[level], k->limits);
}

/* text is UTF-8. */
static linnet_status cut_valid(lnt_cutter *k, int level, const uint8_t *text, size_t n)
{
    if (level == k->p->n) return n ? k->word(k->user, text, n) : LINNET_OK;
    size_t at = 0;
    while (at < n) {
        int got = match_at(k, level, text, n, at);
        if (got == PCRE2_ERROR_NOMATCH) break;
        if (got == PCRE2_ERROR_NOMEMORY) return lnt_fail_memory(k->c, JIT_STACK);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(k->match[level]);
        if (got < 0 || span[0] < at || span[1] <= span[0]) { /* limits reached, or a \K that turns back */
            lnt_fail(k->c, LINNET_EUNSUPPORTED, "the tokenizer's pattern cannot cut this text: it gives up at byte %zu of a run of %zu", at, n);
            lnt_detail(k->c, "PCRE2 says %d.", got);
            return LINNET_EUNSUPPORTED;
        }
        size_t begin = span[0], end = span[1];
        if (begin > at) LNT_TRY(cut_valid(k, level + 1, text + at, begin - at));
        LNT_TRY(cut_valid(k, level + 1, text + begin, end - begin));
        at = end;
    }
    return at < n ? cut_valid(k, level + 1, text + at, n - at) : LINNET_OK;
}

linnet_status lnt_cut(lnt_cutter *k, const uint8_t *text, size_t n)
{
    while (n > 0) {
        size_t run = lnt_utf8_prefix(text, n);
        if (run > 0)
            LNT_TRY(cut_valid(k, 0, text, run));
        else
            LNT_TRY(k->word(k->user, text, 1));
        text += run ? run : 1;
        n -= run ? run : 1;
    }
    return LINNET_OK;
}
