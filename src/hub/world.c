/* RWKV's World vocabulary: a text file of one token a line, "id literal bytes", the literal a string or a byte string as Python writes them. A text
 * is cut into the longest tokens from left to right. Id 0 is in no line: the end of a document. */
#include <stdlib.h>

#include "hub/encoder.h"
#include "hub/json.h"

const char lnt_world_name[] = "rwkv_vocab_v20230424.txt";

linnet_status lnt_longest_word(lnt_encoder *e, const uint8_t *word, size_t n)
{
    while (n > 0) {
        size_t length = 1;
        int32_t id = lnt_trie_longest(&e->t->trie, word, n, &length); /* every byte is a token */
        LNT_TRY(lnt_encoder_put(e, &id, 1));
        word += length;
        n -= length;
    }
    return LINNET_OK;
}

/* One file and what of it is read. */
typedef struct {
    lnt_ctx *c;
    const char *path, *at, *end;
    int line;
} reader;

/* An escape behind its backslash: the code point or byte it stands for, -1: none that is known. */
static int32_t read_escape(reader *r, bool bytes)
{
    static const char letters[] = "ntr\\'\"ab0fv", meant[] = "\n\t\r\\'\"\a\b\0\f\v";
    if (r->at == r->end) return -1;
    const char c = *r->at++;
    const char *simple = c ? strchr(letters, c) : NULL;
    if (simple) return meant[simple - letters];
    const int digits = c == 'x' ? 2 : bytes ? 0 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int32_t value = 0;
    for (int i = 0; i < digits; i++) {
        const int digit = r->at < r->end ? lnt_hex_digit(*r->at++) : -1;
        if (digit < 0 || value > 0x10ffff) return -1;
        value = 16 * value + digit;
    }
    return digits ? value : -1;
}

/* UTF-8 of a code point; 0: it is none. */
static size_t spell(int32_t u, uint8_t *out)
{
    if (u < 0 || u > 0x10ffff || (u >= 0xd800 && u < 0xe000)) return 0;
    const size_t n = u < 0x80 ? 1 : u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, u >>= 6) out[i] = (uint8_t)(0x80 | (u & 0x3f));
    out[0] = (uint8_t)(n == 1 ? u : n == 2 ? 0xc0 | u : n == 3 ? 0xe0 | u : 0xf0 | u);
    return n;
}

static linnet_status read_literal(reader *r, lnt_buffer *out)
{
    const bool bytes = r->at < r->end && *r->at == 'b';
    r->at += bytes;
    const char quote = r->at < r->end ? *r->at : 0;
    out->n = 0;
    if (quote != '\'' && quote != '"') return lnt_malformed(r->c, r->path, "line %d has no string in quotes", r->line);
    for (r->at++; r->at < r->end && *r->at != quote;) {
        LNT_TRY(lnt_buffer_reserve(r->c, out, 4));
        if (*r->at != '\\') {
            out->at[out->n++] = (uint8_t)*r->at++;
            continue;
        }
        r->at++;
        const int32_t value = read_escape(r, bytes);
        const size_t n = bytes && value >= 0 && value < 256 ? (out->at[out->n] = (uint8_t)value, 1) : bytes ? 0 : spell(value, out->at + out->n);
        if (n == 0) return lnt_malformed(r->c, r->path, "line %d has an escape that stands for nothing", r->line);
        out->n += n;
    }
    if (r->at == r->end) return lnt_malformed(r->c, r->path, "line %d has a string without its second quote", r->line);
    r->at++;
    return LINNET_OK;
}

static int64_t read_number(reader *r)
{
    int64_t value = -1;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9' && value < LNT_MAX_VOCABULARY; r->at++)
        value = (value < 0 ? 0 : 10 * value) + (*r->at - '0');
    return value;
}

static bool read_blank(reader *r) { return r->at < r->end && *r->at == ' ' && r->at++; }

/* One line, [at, end): its id and bytes; with t, into the tokenizer. */
static linnet_status read_line(reader *r, linnet_tokenizer *t, lnt_buffer *b, int64_t *most)
{
    const int64_t id = read_number(r);
    if (id <= 0 || id >= LNT_MAX_VOCABULARY || !read_blank(r))
        return lnt_malformed(r->c, r->path, "line %d does not begin with an id of 1 to %d and a blank", r->line, LNT_MAX_VOCABULARY - 1);
    LNT_TRY(read_literal(r, b));
    const int64_t length = read_blank(r) ? read_number(r) : -1;
    if (length != (int64_t)b->n || b->n == 0 || r->at != r->end)
        return lnt_malformed(r->c, r->path, "line %d has a token of %zu bytes and says %lld", r->line, b->n, (long long)length);
    if (id > *most) *most = id;
    if (!t) return LINNET_OK;
    if (t->pieces[id].bytes) return lnt_malformed(r->c, r->path, "id %lld is given twice", (long long)id);
    LNT_TRY(lnt_tokenizer_set(r->c, t, id, b->at, b->n));
    int32_t *value = lnt_trie_put(&t->trie, b->at, b->n);
    if (!value) return lnt_fail_memory(r->c, b->n);
    if (*value >= 0) return lnt_malformed(r->c, r->path, "line %d has the token of id %d again", r->line, *value);
    *value = (int32_t)id;
    return LINNET_OK;
}

static linnet_status read_lines(lnt_ctx *c, const char *path, const char *text, size_t bytes, linnet_tokenizer *t, int64_t *most, int *lines)
{
    reader r = {.c = c, .path = path, .at = text};
    lnt_buffer b = {0};
    linnet_status s = LINNET_OK;
    for (const char *end = text + bytes, *stop; r.at < end && s == LINNET_OK; r.at = stop + 1) {
        stop = memchr(r.at, '\n', (size_t)(end - r.at));
        if (!stop) stop = end;
        r.end = stop > r.at && stop[-1] == '\r' ? stop - 1 : stop;
        r.line++;
        if (r.at < r.end) s = read_line(&r, t, &b, most);
    }
    *lines = r.line;
    lnt_buffer_free(&b);
    return s;
}

linnet_status lnt_tokenizer_from_world(lnt_ctx *c, const char *path, const char *text, size_t bytes, linnet_tokenizer **out)
{
    int64_t most = 0;
    int lines;
    linnet_tokenizer *t = NULL;
    LNT_TRY(read_lines(c, path, text, bytes, NULL, &most, &lines));
    if (most > 2 * (int64_t)lines + 65536) return lnt_malformed(c, path, "the largest id is %lld for %d lines", (long long)most, lines);
    LNT_TRY(lnt_tokenizer_new(c, most + 1, &t));
    t->model = LNT_MODEL_LONGEST;
    t->separator = 0;
    t->pieces[0] = (lnt_piece){.bytes = "", .verbatim = true, .special = true};
    linnet_status s = read_lines(c, path, text, bytes, t, &most, &lines);
    if (s == LINNET_OK) s = lnt_tokenizer_finish(c, t, path);
    if (s == LINNET_OK) *out = t;
    else linnet_tokenizer_destroy(t);
    return s;
}
