#include "hub/json.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"

linnet_status lnt_malformed(lnt_ctx *c, const char *path, const char *format, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    lnt_fail(c, LINNET_EFORMAT, "%s", text);
    lnt_detail(c, "Read from %s.", path);
    return LINNET_EFORMAT;
}

linnet_status lnt_json_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, json_t **out)
{
    json_error_t e;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (*out) return LINNET_OK;
    /* jansson leaves the text empty where an allocation of its own fails. */
    if (!e.text[0] || json_error_code(&e) == json_error_out_of_memory) return lnt_fail_memory(c, bytes);
    return lnt_malformed(c, path, "malformed JSON at line %d, column %d: %s", e.line, e.column, e.text);
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
    return out;
}
