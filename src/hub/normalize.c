#include "hub/normalize.h"

#include <utf8proc.h>

void lnt_normalizer_free(lnt_normalizer *z)
{
    for (int i = 0; i < z->n; i++) {
        lnt_pattern_free(z->step[i].pattern);
        lnt_free(z->step[i].content);
    }
    z->n = 0;
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

int32_t lnt_utf8_first(const uint8_t *s, size_t n, size_t *bytes)
{
    const size_t most = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    utf8proc_int32_t point = s[0];
    *bytes = 1;
    if (most == 1) return point;
    if (n < most || lnt_utf8_prefix(s, most) != most) return -1;
    utf8proc_iterate(s, (utf8proc_ssize_t)most, &point);
    *bytes = most;
    return point;
}

int32_t lnt_utf8_last(const uint8_t *s, size_t n, size_t *bytes)
{
    for (size_t back = 1; back <= 4 && back <= n; back++) {
        if ((s[n - back] & 0xc0) == 0x80) continue;
        const int32_t point = lnt_utf8_first(s + n - back, back, bytes);
        if (point >= 0 && *bytes == back) return point;
        break;
    }
    *bytes = 1;
    return -1;
}

bool lnt_is_white(int32_t u)
{
    if (u < 0x80) return u == ' ' || (u >= '\t' && u <= '\r');
    return u == 0x85 || u == 0xa0 || u == 0x1680 || (u >= 0x2000 && u <= 0x200a) || u == 0x2028 || u == 0x2029 || u == 0x202f || u == 0x205f ||
           u == 0x3000;
}

bool lnt_is_word(int32_t u)
{
    if (u < 0) return false;
    const utf8proc_category_t k = utf8proc_category(u);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC || u == 0x200c || u == 0x200d ||
           (u >= 0x24b6 && u <= 0x24e9) || (u >= 0x1f130 && u <= 0x1f149) || (u >= 0x1f150 && u <= 0x1f169) || (u >= 0x1f170 && u <= 0x1f189);
}

/* ---- forms ---- */

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

/* Valid UTF-8 decomposed, put in order, composed again (NFC, NFKC), and back as UTF-8: *bytes of them at p->at. What utf8proc_map does, but that
 * orders marks by exchanging neighbours, in the square of their number. */
static linnet_status form_of(lnt_ctx *c, const lnt_normal_step *z, const uint8_t *text, size_t n, points *p, size_t *bytes)
{
    enum { MOST_PARTS = 32 }; /* of one code point; canonical decompositions have at most 4, the others at most 18 */
    const utf8proc_option_t how = UTF8PROC_STABLE | (z->compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (z->compatible ? UTF8PROC_COMPAT : 0);
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

static linnet_status into_form(lnt_ctx *c, const lnt_normal_step *z, const uint8_t *text, size_t n, lnt_buffer *out)
{
    points p = {0};
    linnet_status s = LINNET_OK;
    while (n > 0 && s == LINNET_OK) {
        size_t run = lnt_utf8_prefix(text, n), length = 1;
        if (run > 0) s = form_of(c, z, text, run, &p, &length);
        if (s == LINNET_OK) s = lnt_buffer_put(c, out, run > 0 ? (const uint8_t *)p.at : text, length);
        text += run ? run : 1;
        n -= run ? run : 1;
    }
    lnt_free(p.at);
    lnt_free(p.sorted);
    return s;
}

linnet_status lnt_nfc(lnt_ctx *c, const uint8_t *text, size_t n, uint8_t **out, size_t *out_n)
{
    lnt_buffer b = {0};
    linnet_status s = lnt_buffer_reserve(c, &b, n);
    if (s == LINNET_OK) s = into_form(c, &(lnt_normal_step){.compose = true}, text, n, &b);
    if (s != LINNET_OK) {
        lnt_buffer_free(&b);
        return s;
    }
    *out = b.at;
    *out_n = b.n;
    return LINNET_OK;
}

/* ---- the other steps ---- */

static linnet_status put_point(lnt_ctx *c, lnt_buffer *out, int32_t point)
{
    LNT_TRY(lnt_buffer_reserve(c, out, 4));
    out->n += (size_t)utf8proc_encode_char(point, out->at + out->n);
    return LINNET_OK;
}

static bool is_mark(int32_t u)
{
    const utf8proc_category_t k = u < 0x300 ? UTF8PROC_CATEGORY_CN : utf8proc_category(u);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

/* What SentencePiece's nmt rules make of a code point; -1: it goes. */
static int32_t nmt(int32_t u)
{
    if ((u >= 1 && u <= 8) || u == 0xb || (u >= 0xe && u <= 0x1f) || u == 0x7f || u == 0x8f || u == 0x9f) return -1;
    const bool blank = u == 9 || u == 0xa || u == 0xc || u == 0xd || u == 0x1680 || (u >= 0x200b && u <= 0x200f) || u == 0x2028 || u == 0x2029 ||
                       u == 0x2581 || u == 0xfeff || u == 0xfffd;
    return blank ? ' ' : u;
}

/* A step that works on one code point at a time. */
static linnet_status by_point(lnt_ctx *c, lnt_normal_kind kind, const uint8_t *text, size_t n, lnt_buffer *out, bool *moved)
{
    for (size_t at = 0, bytes; at < n; at += bytes) {
        const int32_t u = lnt_utf8_first(text + at, n - at, &bytes);
        const int32_t v = u < 0 ? u : kind == LNT_NORMAL_NMT ? nmt(u) : kind == LNT_NORMAL_LOWER ? utf8proc_tolower(u) : is_mark(u) ? -1 : u;
        if (u == 0x130 && kind == LNT_NORMAL_LOWER) LNT_TRY(lnt_buffer_put(c, out, "i\xcc\x87", 3)); /* the one small letter of two code points */
        else if (u < 0 || u == v) LNT_TRY(lnt_buffer_put(c, out, text + at, bytes));
        else if (v >= 0) LNT_TRY(put_point(c, out, v));
        else if (at == 0) *moved = true;
    }
    return LINNET_OK;
}

static linnet_status strip(lnt_ctx *c, const lnt_normal_step *z, const uint8_t *text, size_t n, lnt_buffer *out, bool *moved)
{
    size_t bytes;
    while (z->left && n > 0 && lnt_is_white(lnt_utf8_first(text, n, &bytes))) text += bytes, n -= bytes, *moved = true;
    while (z->right && n > 0 && lnt_is_white(lnt_utf8_last(text, n, &bytes))) n -= bytes;
    return lnt_buffer_put(c, out, text, n);
}

/* Replacements of replacements grow without bound; no published file comes near this. */
static size_t most_bytes(size_t n) { return lnt_bytes_plus(lnt_bytes(n, 64), 65536); }

static linnet_status replace_run(lnt_matcher *m, const lnt_normal_step *z, const uint8_t *text, size_t n, size_t most, lnt_buffer *out)
{
    for (size_t at = 0, begin, end; at < n; at = end) {
        LNT_TRY(lnt_pattern_next(m, z->pattern, text, n, at, &begin, &end));
        LNT_TRY(lnt_buffer_put(m->c, out, text + at, begin - at));
        if (begin < n) LNT_TRY(lnt_buffer_put(m->c, out, z->content, z->n));
        if (out->n > most) return lnt_fail(m->c, LINNET_EUNSUPPORTED, "the tokenizer's normalizer makes more than %zu bytes of this text", most);
    }
    return LINNET_OK;
}

static linnet_status replace(lnt_matcher *m, const lnt_normal_step *z, const uint8_t *text, size_t n, size_t most, lnt_buffer *out)
{
    while (n > 0) {
        const size_t run = lnt_utf8_prefix(text, n);
        if (run > 0) LNT_TRY(replace_run(m, z, text, run, most, out));
        else LNT_TRY(lnt_buffer_put(m->c, out, text, 1));
        text += run ? run : 1;
        n -= run ? run : 1;
    }
    return LINNET_OK;
}

static linnet_status apply(lnt_matcher *m, const lnt_normal_step *z, const uint8_t *text, size_t n, size_t most, lnt_buffer *out, bool *moved)
{
    switch (z->kind) {
    case LNT_NORMAL_FORM: return into_form(m->c, z, text, n, out);
    case LNT_NORMAL_STRIP: return strip(m->c, z, text, n, out, moved);
    case LNT_NORMAL_REPLACE: return replace(m, z, text, n, most, out);
    case LNT_NORMAL_PREPEND:
        if (n) LNT_TRY(lnt_buffer_put(m->c, out, z->content, z->n));
        return lnt_buffer_put(m->c, out, text, n);
    default: return by_point(m->c, z->kind, text, n, out, moved);
    }
}

linnet_status lnt_normalize(lnt_matcher *m, const lnt_normalizer *z, const uint8_t *text, size_t n, lnt_buffer work[2], const uint8_t **out,
                            size_t *out_n, bool *moved)
{
    const size_t most = most_bytes(n);
    for (int i = 0; i < z->n; i++) {
        lnt_buffer *to = &work[i % 2];
        to->n = 0;
        LNT_TRY(lnt_buffer_reserve(m->c, to, n));
        LNT_TRY(apply(m, &z->step[i], text, n, most, to, moved));
        text = to->at;
        n = to->n;
    }
    *out = text;
    *out_n = n;
    return LINNET_OK;
}
