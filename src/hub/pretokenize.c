#include "hub/pretokenize.h"

#include <stdlib.h>
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

linnet_status lnt_nfc(lnt_ctx *c, const uint8_t *text, size_t n, uint8_t **out, size_t *out_n)
{
    size_t room = n + 16, used = 0;
    uint8_t *buf = lnt_alloc(room);
    if (!buf) return lnt_fail_memory(c, room);
    while (n > 0) {
        size_t run = lnt_utf8_prefix(text, n), length = 1;
        const uint8_t *from = text;
        utf8proc_uint8_t *mapped = NULL;
        if (run > 0) {
            utf8proc_ssize_t got = utf8proc_map(text, (utf8proc_ssize_t)run, &mapped, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            if (got < 0) {
                lnt_free(buf);
                return lnt_fail_memory(c, run);
            }
            from = mapped;
            length = (size_t)got;
        }
        if (room - used < length) {
            uint8_t *bigger = lnt_realloc(buf, used, 2 * room + length);
            if (!bigger) {
                free(mapped);
                lnt_free(buf);
                return lnt_fail_memory(c, 2 * room + length);
            }
            buf = bigger;
            room = 2 * room + length;
        }
        memcpy(buf + used, from, length);
        used += length;
        free(mapped);
        text += run ? run : 1;
        n -= run ? run : 1;
    }
    *out = buf;
    *out_n = used;
    return LINNET_OK;
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
