/* Ids to text: the bytes of each piece, made once from its spelling by the decoder's steps, and what the steps do at the ends of a text. */
#include <stdio.h>

#include "core/border.h"
#include "hub/tokenizer.h"

/* The byte of "<0x0A>"; -1: no such spelling. */
static int fallback_byte(const uint8_t *s, size_t n)
{
    int value = 0;
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        const int digit = lnt_hex_digit((char)s[i]);
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

/* How many of the characters of `mark` text[n] begins with (or ends with), `most` at most, in bytes. */
static size_t run_of(const uint8_t *text, size_t n, const lnt_decode_step *z, int64_t most, bool at_end)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < most && n - bytes >= z->n; i++) {
        const uint8_t *at = at_end ? text + n - bytes - z->n : text + bytes;
        if (memcmp(at, z->content, z->n) != 0) break;
        bytes += z->n;
    }
    return bytes;
}

static linnet_status replace(lnt_matcher *m, const lnt_decode_step *z, const uint8_t *text, size_t n, lnt_buffer *out)
{
    if (lnt_utf8_prefix(text, n) != n) return lnt_buffer_put(m->c, out, text, n); /* bytes of a step before */
    for (size_t at = 0, begin, end; at < n; at = end) {
        LNT_TRY(lnt_pattern_next(m, z->pattern, text, n, at, &begin, &end));
        LNT_TRY(lnt_buffer_put(m->c, out, text + at, begin - at));
        if (begin < n) LNT_TRY(lnt_buffer_put(m->c, out, z->content, z->n));
    }
    return LINNET_OK;
}

/* Marks become blanks; in the first piece of a text they go, where the step says so. */
static linnet_status marks(lnt_ctx *c, const lnt_decode_step *z, bool first, const uint8_t *text, size_t n, lnt_buffer *out)
{
    for (size_t at = 0; at < n;) {
        const bool mark = n - at >= z->n && memcmp(text + at, z->content, z->n) == 0;
        if (!mark) LNT_TRY(lnt_buffer_put(c, out, text + at, 1));
        else if (!(first && z->drop)) LNT_TRY(lnt_buffer_put(c, out, " ", 1));
        at += mark ? z->n : 1;
    }
    return LINNET_OK;
}

static linnet_status one_step(lnt_matcher *m, const lnt_decode_step *z, bool first, const uint8_t *text, size_t n, lnt_buffer *out)
{
    out->n = 0;
    LNT_TRY(lnt_buffer_reserve(m->c, out, n));
    if (z->kind == LNT_DECODE_REPLACE) return replace(m, z, text, n, out);
    if (z->kind == LNT_DECODE_MARK) return marks(m->c, z, first, text, n, out);
    if (z->kind == LNT_DECODE_FALLBACK) {
        const int byte = fallback_byte(text, n);
        return byte < 0 ? lnt_buffer_put(m->c, out, text, n) : lnt_buffer_put(m->c, out, &(uint8_t){(uint8_t)byte}, 1);
    }
    const size_t head = run_of(text, n, z, z->start, false), tail = run_of(text + head, n - head, z, z->stop, true);
    return lnt_buffer_put(m->c, out, text + head, n - head - tail);
}

/* The steps up to a FUSE, which joins all pieces: *out lies in the spelling or in `work`. */
static linnet_status spell_out(lnt_matcher *m, const struct linnet_tokenizer *t, const lnt_piece *p, bool first, lnt_buffer work[2],
                               const uint8_t **out, size_t *n)
{
    *out = (const uint8_t *)p->spelled;
    *n = p->n_spelled;
    for (int i = 0; i < t->n_decode && t->decode[i].kind != LNT_DECODE_FUSE; i++) {
        LNT_TRY(one_step(m, &t->decode[i], first, *out, *n, &work[i % 2]));
        *out = work[i % 2].at;
        *n = work[i % 2].n;
        if (*n > 64 * (size_t)p->n_spelled + 1024) /* replacements of replacements grow without bound */
            return lnt_fail(m->c, LINNET_EFORMAT, "the tokenizer's decoder makes %zu bytes of the token \"%.60s\"", *n, p->spelled);
    }
    return LINNET_OK;
}

linnet_status lnt_decoder_spell_out(lnt_ctx *c, struct linnet_tokenizer *t)
{
    lnt_matcher m;
    lnt_buffer work[2] = {{0}, {0}};
    LNT_TRY(lnt_matcher_begin(c, &m));
    linnet_status s = LINNET_OK;
    for (int32_t id = 0; id < t->n && s == LINNET_OK; id++) {
        lnt_piece *p = &t->pieces[id];
        const uint8_t *text;
        size_t n;
        if (!p->spelled) continue;
        s = spell_out(&m, t, p, false, work, &text, &n);
        if (s != LINNET_OK) break;
        char *copy = lnt_arena_alloc(&t->arena, lnt_bytes_plus(n, 1));
        if (copy) memcpy(copy, text, n);
        else s = lnt_fail_memory(c, n);
        p->bytes = copy;
        p->n = (uint32_t)n;
    }
    lnt_buffer_free(&work[0]);
    lnt_buffer_free(&work[1]);
    lnt_matcher_end(&m);
    return s;
}

static linnet_status decode(lnt_matcher *m, const struct linnet_tokenizer *t, const int32_t *ids, int64_t n, bool special, lnt_buffer work[2],
                            lnt_buffer *out)
{
    bool first = true;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n) return lnt_fail(m->c, LINNET_EINVAL, "id %d is not of this tokenizer, expected 0 to %d", ids[i], t->n - 1);
        const lnt_piece *p = &t->pieces[ids[i]];
        if (!p->bytes || (p->special && !special)) continue;
        const uint8_t *text = (const uint8_t *)p->bytes;
        size_t bytes = p->n;
        if (first && p->spelled) LNT_TRY(spell_out(m, t, p, true, work, &text, &bytes));
        first = false;
        LNT_TRY(lnt_buffer_put(m->c, out, text, bytes));
    }
    bool fused = false; /* what follows works on the text */
    size_t head = 0;
    for (int i = 0; i < t->n_decode; i++) {
        const lnt_decode_step *z = &t->decode[i];
        fused = fused || z->kind == LNT_DECODE_FUSE;
        if (!fused || z->kind != LNT_DECODE_STRIP) continue;
        head += run_of(out->at + head, out->n - head, z, z->start, false);
        out->n -= run_of(out->at + head, out->n - head, z, z->stop, true);
    }
    memmove(out->at, out->at + head, out->n - head);
    out->n -= head;
    return lnt_buffer_put(m->c, out, "", 1);
}

linnet_status linnet_tokenizer_decode(linnet_context *c, const linnet_tokenizer *t, const int32_t *ids, int64_t count, int32_t flags, char **text,
                                      size_t *bytes)
{
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_NEED(c, text);
    LNT_NEED(c, bytes);
    if (count) LNT_NEED(c, ids);
    if (count < 0) return lnt_fail(c, LINNET_EINVAL, "count is %lld, expected 0 or more", (long long)count);
    if (flags & ~LINNET_DECODE_SPECIAL) return lnt_fail(c, LINNET_EINVAL, "flags is %d, expected 0 or 1", flags);
    lnt_matcher m;
    lnt_buffer work[2] = {{0}, {0}}, out = {0};
    LNT_TRY(lnt_matcher_begin(c, &m));
    linnet_status s = lnt_buffer_reserve(c, &out, lnt_bytes((size_t)count, 4));
    if (s == LINNET_OK) s = decode(&m, t, ids, count, flags & LINNET_DECODE_SPECIAL, work, &out);
    lnt_matcher_end(&m);
    lnt_buffer_free(&work[0]);
    lnt_buffer_free(&work[1]);
    if (s != LINNET_OK) {
        lnt_buffer_free(&out);
        return s;
    }
    *text = (char *)out.at;
    *bytes = out.n - 1;
    return LINNET_OK;
}
