#include "hub/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"

linnet_status lnt_malformed(lnt_ctx *c, const char *path, const char *format, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, format);
    lnt_format_list(text, sizeof text, format, ap);
    va_end(ap);
    lnt_fail(c, LINNET_EFORMAT, "%s", text);
    lnt_detail(c, "Read from %s.", path);
    return LINNET_EFORMAT;
}

linnet_status lnt_json_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, json_t **out)
{
    return lnt_json_parse_line(c, path, 1, text, bytes, out);
}

linnet_status lnt_json_parse_line(lnt_ctx *c, const char *path, int64_t first, const char *text, size_t bytes, json_t **out)
{
    json_error_t e;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (*out) return LINNET_OK;
    /* jansson leaves the text empty where an allocation of its own fails. */
    if (!e.text[0] || json_error_code(&e) == json_error_out_of_memory) return lnt_fail_memory(c, bytes);
    return lnt_malformed(c, path, "malformed JSON at line %lld, column %d: %s", (long long)(first - 1 + e.line), e.column, e.text);
}

/* ---- Infinity and NaN: jansson has no such numbers, so they are strings behind a mark, a character that is for private use ---- */

#define MARK "\xef\xa3\xbf" /* U+F8FF */

static const struct {
    const char *word;
    double value;
} words[] = {{"Infinity", INFINITY}, {"-Infinity", -INFINITY}, {"NaN", NAN}};
enum { WORDS = sizeof words / sizeof *words };

/* The length of one of the words at `at`, 0: there is none. */
static size_t word_at(const char *at, size_t left)
{
    for (int i = 0; i < WORDS; i++)
        if (left >= strlen(words[i].word) && !memcmp(at, words[i].word, strlen(words[i].word))) return strlen(words[i].word);
    return 0;
}

linnet_status lnt_json_parse_python(lnt_ctx *c, const char *path, const char *text, size_t bytes, json_t **out)
{
    if (!memmem(text, bytes, "Infinity", 8) && !memmem(text, bytes, "NaN", 3)) return lnt_json_parse(c, path, text, bytes, out);
    const size_t room = lnt_bytes_plus(bytes, lnt_bytes(bytes / 3 + 1, sizeof MARK + 1)); /* a word has three letters at least */
    char *marked = lnt_alloc(room);
    if (!marked) return lnt_fail_memory(c, room);
    size_t n = 0;
    bool inside = false;
    for (size_t i = 0; i < bytes;) {
        const size_t m = inside ? 0 : word_at(text + i, bytes - i);
        if (m) {
            n += (size_t)snprintf(marked + n, room - n, "\"" MARK "%.*s\"", (int)m, text + i);
            i += m;
            continue;
        }
        if (inside && text[i] == '\\' && i + 1 < bytes) marked[n++] = text[i++];
        else if (text[i] == '"') inside = !inside;
        marked[n++] = text[i++];
    }
    linnet_status s = lnt_json_parse(c, path, marked, n, out);
    lnt_free(marked);
    return s;
}

bool lnt_json_number(const json_t *value, double *out)
{
    const char *text = json_string_value(value);
    *out = json_number_value(value);
    if (json_is_number(value)) return true;
    if (!text || strncmp(text, MARK, sizeof MARK - 1) != 0) return false;
    for (int i = 0; i < WORDS; i++)
        if (!strcmp(text + sizeof MARK - 1, words[i].word)) return *out = words[i].value, true;
    return false;
}

/* Marked words in a JSON text become bare; `mark`: as the text has it. */
static void unmark(char *text, const char *mark)
{
    char *to = text;
    const size_t n = strlen(mark);
    for (const char *at = text; *at;) {
        const char *word = at + 1 + n;
        size_t m = *at == '"' && !strncmp(at + 1, mark, n) ? word_at(word, strlen(word)) : 0;
        if (m && word[m] == '"') {
            memmove(to, word, m);
            to += m;
            at = word + m + 1;
        } else
            *to++ = *at++;
    }
    *to = 0;
}

linnet_status lnt_json_load(lnt_ctx *c, const char *path, size_t limit, json_t **out)
{
    char *text;
    size_t bytes;
    LNT_TRY(lnt_file_read(c, path, limit, &text, &bytes));
    linnet_status s = lnt_json_parse(c, path, text, bytes, out);
    lnt_free(text);
    return s;
}

char *lnt_json_text(const json_t *value, size_t flags)
{
    /* Measured first: what json_dumps hands out belongs to an allocator that the host program may have replaced. */
    size_t n = json_dumpb(value, NULL, 0, flags | JSON_ENCODE_ANY);
    char *text = n ? lnt_alloc(n + 1) : NULL;
    if (!text) return NULL;
    if (json_dumpb(value, text, n, flags | JSON_ENCODE_ANY) != n) {
        lnt_free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

char *lnt_json_text_python(const json_t *value, size_t flags)
{
    char *text = lnt_json_text(value, flags);
    if (text) unmark(text, MARK);
    return text;
}

typedef struct {
    char *out;
    size_t used, size;
} shown;

static int show_part(const char *text, size_t n, void *user)
{
    shown *s = user;
    size_t room = s->size - 1 - s->used, take = n < room ? n : room;
    memcpy(s->out + s->used, text, take);
    s->used += take;
    return take < n ? -1 : 0;
}

const char *lnt_json_show(const json_t *value, char *out, size_t size)
{
    shown s = {out, 0, size};
    if (json_dump_callback(value, show_part, &s, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) != 0 && s.used == size - 1) memcpy(out + s.used - 3, "...", 3);
    out[s.used] = 0;
    unmark(out, "\\uF8FF");
    return out;
}
