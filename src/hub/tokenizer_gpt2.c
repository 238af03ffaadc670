/* GPT-2's own two files: encoder.json (spelled piece to id) and vocab.bpe (a version line, then one merge "left right" a line, by rank). */
#include <string.h>

#include "core/file.h"
#include "hub/bytechars.h"
#include "hub/json.h"
#include "hub/tokenizer.h"

enum { MAX_BYTES = 256 << 20 };

static linnet_status read_pieces(lnt_ctx *c, const char *path, const json_t *o, linnet_tokenizer *t)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= t->n) return lnt_malformed(c, path, "the id of \"%.60s\" is not a number below %d, the count of tokens", key, t->n);
        if (t->pieces[id].bytes) return lnt_malformed(c, path, "id %lld is given twice", (long long)id);
        size_t n = strlen(key);
        uint8_t *bytes = lnt_alloc(n);
        if (!bytes) return lnt_fail_memory(c, n);
        int64_t got = lnt_bytechars_read(key, n, bytes);
        linnet_status s = got > 0 ? lnt_tokenizer_set(c, t, id, bytes, (size_t)got)
                                  : lnt_malformed(c, path, "token \"%.60s\" has a character that spells no byte", key);
        lnt_free(bytes);
        LNT_TRY(s);
    }
    for (int i = 0; lnt_separator_names[i] && t->separator < 0; i++) {
        const json_t *id = json_object_get(o, lnt_separator_names[i]);
        if (id) t->separator = (int32_t)json_integer_value(id);
    }
    if (t->separator < 0) return LINNET_OK;
    const lnt_piece *p = &t->pieces[t->separator];
    return lnt_tokenizer_add(c, t, &(lnt_added){.content = p->bytes, .n = p->n, .id = t->separator, .special = true});
}

static int32_t id_of(const json_t *o, const char *text)
{
    const json_t *id = json_object_get(o, text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

/* One line, closed with 0; its blank is overwritten to look the parts up. */
static linnet_status read_merge(lnt_ctx *c, const char *path, const json_t *o, char *text, int line, lnt_merge *m)
{
    char *blank = strchr(text, ' ');
    if (!blank || blank == text || !blank[1] || strchr(blank + 1, ' '))
        return lnt_malformed(c, path, "line %d is \"%.60s\", expected two pieces", line, text);
    *blank = 0;
    *m = (lnt_merge){id_of(o, text), id_of(o, blank + 1), -1};
    memmove(blank, blank + 1, strlen(blank + 1) + 1);
    m->result = id_of(o, text);
    if (m->left < 0 || m->right < 0 || m->result < 0)
        return lnt_malformed(c, path, "the merge to \"%.60s\" in line %d uses a piece without an id", text, line);
    return LINNET_OK;
}

static linnet_status read_merges(lnt_ctx *c, const char *path, const json_t *o, char *text, size_t n, linnet_tokenizer *t)
{
    size_t lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    if (lines > LNT_MAX_VOCABULARY) return lnt_malformed(c, path, "the file has %zu lines, expected at most %d", lines, LNT_MAX_VOCABULARY);
    t->merges = lnt_alloc(lnt_bytes(lines, sizeof *t->merges));
    if (!t->merges) return lnt_fail_memory(c, lnt_bytes(lines, sizeof *t->merges));
    int number = 0;
    for (char *line = text, *end = text + n, *stop; line < end; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        number++;
        if (memchr(line, 0, (size_t)(stop - line))) return lnt_malformed(c, path, "line %d holds a zero byte", number);
        *stop = 0;
        if (stop > line && stop[-1] == '\r') stop[-1] = 0;
        if (!*line || (number == 1 && strncmp(line, "#version", 8) == 0)) continue;
        LNT_TRY(read_merge(c, path, o, line, number, &t->merges[t->n_merges]));
        t->n_merges++;
    }
    return LINNET_OK;
}

static linnet_status build(lnt_ctx *c, const char *vocabulary, const json_t *o, const char *merges, linnet_tokenizer *t)
{
    LNT_TRY(read_pieces(c, vocabulary, o, t));
    char *text;
    size_t n;
    LNT_TRY(lnt_file_read(c, merges, MAX_BYTES, &text, &n));
    linnet_status s = read_merges(c, merges, o, text, n, t);
    lnt_free(text);
    LNT_TRY(s);
    LNT_TRY(lnt_pretokenizer_add(c, &t->pre, vocabulary, lnt_gpt2_pattern, false));
    return lnt_tokenizer_finish(c, t, vocabulary);
}

linnet_status lnt_tokenizer_from_gpt2(lnt_ctx *c, const char *vocabulary, const char *merges, linnet_tokenizer **out)
{
    json_t *o;
    linnet_tokenizer *t = NULL;
    LNT_TRY(lnt_json_load(c, vocabulary, MAX_BYTES, &o));
    size_t n = json_object_size(o);
    linnet_status s;
    if (n == 0 || n > LNT_MAX_VOCABULARY)
        s = lnt_malformed(c, vocabulary, "the vocabulary has %zu tokens, expected an object of 1 to %d", n, LNT_MAX_VOCABULARY);
    else
        s = lnt_tokenizer_new(c, (int64_t)n, &t);
    if (s == LINNET_OK) s = build(c, vocabulary, o, merges, t);
    json_decref(o);
    if (s == LINNET_OK)
        *out = t;
    else
        linnet_tokenizer_destroy(t);
    return s;
}
