#include "hub/regex.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "hub/buffer.h"
#include "hub/json.h"

enum {
    MAX_PATTERN = 65536, /* bytes; the longest published ones have about a thousand */
    HEAP_KIB = 65536, /* for a pattern that backtracks without bound, where there is no JIT */
    JIT_STACK = 8 << 20,
};

/* Inside of a class: what Oniguruma means by \s, \w, \h in Unicode (seen by asking it for every code point). PCRE2's \s has U+180E
 * too, its \w neither marks nor connectors. */
static const struct {
    char letter;
    const char *set;
} shorthands[] = {
    {'s', "\\p{Z}\\t-\\r\\x{85}"},
    {'w', LNT_WORD_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"},
    {'h', "0-9a-fA-F"},
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

/* The set of \s or of its opposite \S (*opposite), NULL: the letter is no shorthand that differs. */
static const char *shorthand(char letter, bool *opposite)
{
    for (size_t i = 0; i < sizeof shorthands / sizeof *shorthands; i++) {
        *opposite = letter == shorthands[i].letter - 'a' + 'A';
        if (*opposite || letter == shorthands[i].letter) return shorthands[i].set;
    }
    return NULL;
}

/* Oniguruma's classes may hold classes and intersections, which PCRE2's may not: such a pattern is refused. */
static linnet_status translate(lnt_ctx *c, const char *path, const char *what, const char *pattern, lnt_buffer *out)
{
    bool inside = false, opposite;
    for (const char *p = pattern; *p; p++) {
        const char *set = *p == '\\' && p[1] ? shorthand(p[1], &opposite) : NULL;
        if (set && inside && opposite)
            return lnt_malformed(c, path, "%s has \\%c in a class at byte %zu, expected the characters themselves", what, p[1],
                                 (size_t)(p - pattern));
        if (set) {
            if (!inside) LNT_TRY(lnt_buffer_put(c, out, opposite ? "[^" : "[", opposite ? 2 : 1));
            LNT_TRY(lnt_buffer_put(c, out, set, strlen(set)));
            if (!inside) LNT_TRY(lnt_buffer_put(c, out, "]", 1));
            p++;
            continue;
        }
        if (inside && ((*p == '[' && p[1] != ':') || (*p == '&' && p[1] == '&')))
            return lnt_malformed(c, path, "%s has a class of classes at byte %zu, expected a class of characters", what, (size_t)(p - pattern));
        if (*p == '\\' && p[1]) {
            LNT_TRY(lnt_buffer_put(c, out, p++, 2));
            continue;
        }
        const size_t name = inside && *p == '[' ? strcspn(p, "]") + 1 : 0; /* [:alpha:] */
        if (name > 1 && p[name - 1]) {
            LNT_TRY(lnt_buffer_put(c, out, p, name));
            p += name - 1;
            continue;
        }
        const size_t head = !inside && *p == '[' ? (p[1] == '^') + 1u : 0;
        if (head) {
            inside = true;
            LNT_TRY(lnt_buffer_put(c, out, p, head + (p[head] == ']'))); /* a bracket that comes first is a character */
            p += head + (p[head] == ']') - 1;
            continue;
        }
        if (*p == ']') inside = false;
        LNT_TRY(lnt_buffer_put(c, out, p, 1));
    }
    return lnt_buffer_put(c, out, "", 1);
}

static linnet_status compile(lnt_ctx *c, const char *path, const char *what, const char *pattern, bool literal, pcre2_code **out)
{
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *limits = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_code *code = NULL;
    int error = 0;
    PCRE2_SIZE at = 0;
    if (limits) {
        pcre2_set_max_pattern_length(limits, MAX_PATTERN);
        pcre2_set_newline(limits, PCRE2_NEWLINE_LF);
        uint32_t flags = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE);
        code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, flags, &error, &at, limits);
    }
    pcre2_compile_context_free(limits);
    pcre2_general_context_free(memory);
    if (!code && (!limits || error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED)) return lnt_fail_memory(c, strlen(pattern));
    if (!code) {
        char text[160];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return lnt_malformed(c, path, "%s is malformed at byte %zu: %s", what, (size_t)at, text);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(code);
        return lnt_malformed(c, path, "%s matches the empty text", what);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it the matches are the same, and slower */
    *out = code;
    return LINNET_OK;
}

linnet_status lnt_pattern_compile(lnt_ctx *c, const char *path, const char *what, const char *pattern, bool literal, lnt_pattern **out)
{
    lnt_buffer spelled = {0};
    pcre2_code *code = NULL;
    linnet_status s = literal ? LINNET_OK : translate(c, path, what, pattern, &spelled);
    if (s == LINNET_OK) s = compile(c, path, what, literal ? pattern : (const char *)spelled.at, literal, &code);
    lnt_buffer_free(&spelled);
    *out = (lnt_pattern *)code;
    return s;
}

void lnt_pattern_free(lnt_pattern *p) { pcre2_code_free((pcre2_code *)p); }

/* ---- matching ---- */

linnet_status lnt_matcher_begin(lnt_ctx *c, lnt_matcher *m)
{
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    *m = (lnt_matcher){.c = c};
    bool ok = memory && (m->limits = pcre2_match_context_create(memory)) && (m->match = pcre2_match_data_create(1, memory));
    if (ok) pcre2_set_heap_limit(m->limits, HEAP_KIB);
    pcre2_general_context_free(memory);
    if (ok) return LINNET_OK;
    lnt_matcher_end(m);
    return lnt_fail_memory(c, 256);
}

void lnt_matcher_end(lnt_matcher *m)
{
    pcre2_match_data_free(m->match);
    pcre2_match_context_free(m->limits);
    pcre2_jit_stack_free(m->stack);
    m->match = m->limits = m->stack = NULL;
}

static int match_at(lnt_matcher *m, const pcre2_code *p, const uint8_t *text, size_t n, size_t at)
{
    int got = pcre2_match(p, text, n, at, PCRE2_NO_UTF_CHECK, m->match, m->limits);
    if (got != PCRE2_ERROR_JIT_STACKLIMIT || m->stack) return got;
    m->stack = pcre2_jit_stack_create(32768, JIT_STACK, NULL);
    if (!m->stack) return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(m->limits, NULL, m->stack);
    return pcre2_match(p, text, n, at, PCRE2_NO_UTF_CHECK, m->match, m->limits);
}

linnet_status lnt_pattern_next(lnt_matcher *m, const lnt_pattern *p, const uint8_t *text, size_t n, size_t at, size_t *begin, size_t *end)
{
    int got = match_at(m, (const pcre2_code *)p, text, n, at);
    *begin = *end = n;
    if (got == PCRE2_ERROR_NOMATCH) return LINNET_OK;
    if (got == PCRE2_ERROR_NOMEMORY) return lnt_fail_memory(m->c, JIT_STACK);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->match);
    if (got < 0 || span[0] < at || span[1] <= span[0]) { /* limits reached, or a \K that turns back */
        lnt_fail(m->c, LINNET_EUNSUPPORTED, "the tokenizer's pattern cannot cut this text: it gives up at byte %zu of a run of %zu", at, n);
        lnt_detail(m->c, "PCRE2 says %d.", got);
        return LINNET_EUNSUPPORTED;
    }
    *begin = span[0];
    *end = span[1];
    return LINNET_OK;
}
