#include "tasks/texts.h"

#include <string.h>

#include "core/file.h"
#include "hub/json.h"
#include "hub/unpack.h"

/* ---- JSON lines ----------------------------------------------------------------------------------------------------------------------- */

linnet_status lnt_lines_open(lnt_ctx *c, const char *path, lnt_lines *l)
{
    lnt_file_view v;
    *l = (lnt_lines){.c = c, .path = path};
    LNT_TRY(lnt_text_open(c, path, &v));
    const size_t n = v.size;
    l->data = lnt_alloc(lnt_bytes_plus(n, 1));
    if (l->data) {
        if (n) memcpy(l->data, v.data, n);
        l->data[n] = 0;
    }
    lnt_file_unmap(&v);
    if (!l->data) return lnt_fail_memory(c, n);
    if (memchr(l->data, 0, n)) {
        lnt_lines_close(l);
        return lnt_malformed(c, path, "not text: there is a byte 0");
    }
    l->at = l->data;
    return LINNET_OK;
}

linnet_status lnt_lines_bad(const lnt_lines *l, const char *format, ...)
{
    char what[640];
    va_list ap;
    va_start(ap, format);
    lnt_format_list(what, sizeof what, format, ap);
    va_end(ap);
    return lnt_malformed(l->c, l->path, "line %lld: %s", (long long)l->line, what);
}

linnet_status lnt_lines_next(lnt_lines *l, json_t **out)
{
    *out = NULL;
    while (*l->at) {
        const char *line = l->at;
        const size_t n = strcspn(line, "\n");
        l->at += n + (line[n] == '\n');
        l->line++;
        if (strspn(line, " \t\r") >= n) continue;
        LNT_TRY(lnt_json_parse_line(l->c, l->path, l->line, line, n, out));
        if (json_is_object(*out)) return LINNET_OK;
        json_decref(*out);
        *out = NULL;
        return lnt_lines_bad(l, "expected a JSON object");
    }
    return LINNET_OK;
}

size_t lnt_lines_bytes(const lnt_lines *l, int64_t examples, int64_t *lines)
{
    size_t bytes = 0;
    *lines = 0;
    for (const char *at = l->at; *at && (!examples || *lines < examples);) {
        const size_t n = strcspn(at, "\n");
        if (strspn(at, " \t\r") < n) {
            bytes += n;
            ++*lines;
        }
        at += n + (at[n] == '\n');
    }
    return bytes;
}

void lnt_lines_close(lnt_lines *l)
{
    lnt_free(l->data);
    l->data = NULL;
}

linnet_status lnt_lines_text(const lnt_lines *l, const json_t *object, const char *key, const char **out)
{
    *out = json_string_value(json_object_get(object, key));
    return *out ? LINNET_OK : lnt_malformed(l->c, l->path, "line %lld: \"%s\" is missing, expected a text", (long long)l->line, key);
}

/* ---- texts ------------------------------------------------------------------------------------------------------------------------------- */

void lnt_text_add(lnt_text *t, const char *text, size_t n)
{
    if (t->room && !t->text) return;
    if (t->n + n + 1 > t->room) {
        const size_t room = lnt_bytes_plus(lnt_bytes(lnt_bytes_plus(t->n, n), 2), 64);
        char *more = lnt_arena_alloc(t->arena, room);
        if (more && t->n) memcpy(more, t->text, t->n);
        t->text = more;
        t->room = room;
        if (!more) return;
    }
    memcpy(t->text + t->n, text, n);
    t->n += n;
    t->text[t->n] = 0;
}

size_t lnt_space_at(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    if (*p == ' ' || (*p >= 9 && *p <= 13) || (*p >= 28 && *p <= 31)) return 1;
    if (p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0)) return 2;
    if (p[0] == 0xe1 && p[1] == 0x9a && p[2] == 0x80) return 3;
    if (p[0] == 0xe3 && p[1] == 0x80 && p[2] == 0x80) return 3;
    if (p[0] != 0xe2) return 0;
    if (p[1] == 0x80) return (p[2] >= 0x80 && p[2] <= 0x8a) || p[2] == 0xa8 || p[2] == 0xa9 || p[2] == 0xaf ? 3 : 0;
    return p[1] == 0x81 && p[2] == 0x9f ? 3 : 0;
}

int64_t lnt_count_words(const char *text)
{
    int64_t words = 1;
    for (bool inside = false; *text;) {
        const size_t n = lnt_space_at(text);
        words += n && !inside;
        inside = n > 0;
        text += n ? n : 1;
    }
    return words;
}

int64_t lnt_count_characters(const char *text)
{
    int64_t n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

static char lower(char x) { return x >= 'A' && x <= 'Z' ? (char)(x + 'a' - 'A') : x; }

bool lnt_text_contains(const char *text, const char *part)
{
    for (; *text || !*part; text++) {
        size_t n = 0;
        while (part[n] && lower(text[n]) == lower(part[n])) n++;
        if (!part[n]) return true;
    }
    return false;
}

/* ---- wikitext ------------------------------------------------------------------------------------------------------------------------------ */

char *lnt_text_replaced(lnt_arena *arena, const char *text, const char *from, const char *to)
{
    lnt_text out = {.arena = arena};
    lnt_text_put(&out, "");
    for (const char *next; (next = strstr(text, from)) != NULL; text = next + strlen(from)) {
        lnt_text_add(&out, text, (size_t)(next - text));
        lnt_text_put(&out, to);
    }
    lnt_text_put(&out, text);
    return out.text;
}

/* From each `open` to the next `close`: white space at both ends of what stands between goes. */
static char *tightened(lnt_arena *arena, const char *text, char open, char close)
{
    lnt_text out = {.arena = arena};
    lnt_text_put(&out, "");
    for (const char *p; (p = strchr(text, open)) != NULL;) {
        const char *end = strchr(p + 1, close);
        if (!end) break;
        lnt_text_add(&out, text, (size_t)(p + 1 - text));
        const char *first = p + 1, *last = first; /* behind the last that is no white space */
        for (size_t n; first < end && (n = lnt_space_at(first)) > 0;) first += n;
        last = first;
        for (const char *q = first; q < end;) {
            const size_t n = lnt_space_at(q);
            q += n ? n : 1;
            if (!n) last = q;
        }
        lnt_text_add(&out, first, (size_t)(last - first));
        lnt_text_add(&out, end, 1);
        text = end + 1;
    }
    lnt_text_put(&out, text);
    return out.text;
}

char *lnt_detokenise(lnt_arena *arena, const char *page)
{
    static const char *const before[][2] = {{"s '", "s'"},  {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
                                            {" . ", ". "}, {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
    static const char between[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
    static const char *const after[][2] = {{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="}, {" \xc2\xb0 ", "\xc2\xb0"}, {" \n", "\n"},
                                           {"\n ", "\n"},       {" N ", " 1 "},   {" 's", "'s"}};
    char *text = lnt_arena_strdup(arena, page);
    for (size_t i = 0; text && i < sizeof before / sizeof *before; i++) text = lnt_text_replaced(arena, text, before[i][0], before[i][1]);
    for (size_t i = 0; text && i < sizeof between / sizeof *between; i++) text = tightened(arena, text, between[i][0], between[i][1]);
    for (size_t i = 0; text && i < sizeof after / sizeof *after; i++) text = lnt_text_replaced(arena, text, after[i][0], after[i][1]);
    return text;
}
