#include "hub/records.h"

#include <stdio.h>
#include <string.h>

#include "hub/json.h"

void lnt_records_begin(lnt_ctx *c, const char *path, const char *field, const char *text, size_t bytes, lnt_records *r)
{
    *r = (lnt_records){.c = c, .path = path, .field = field, .at = text, .end = text + bytes};
}

void lnt_records_end(lnt_records *r)
{
    json_decref(r->object);
    r->object = NULL;
}

static bool is_blank(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
    return at == end;
}

/* The value at the path of keys; NULL: there is none. A key that has points itself counts first. */
static json_t *value_at(json_t *object, const char *field)
{
    char key[256];
    json_t *whole = json_object_get(object, field);
    const char *point = strchr(field, '.');
    if (whole || !point || (size_t)(point - field) >= sizeof key) return whole;
    snprintf(key, sizeof key, "%.*s", (int)(point - field), field);
    return value_at(json_object_get(object, key), point + 1);
}

static linnet_status no_such_text(const lnt_records *r, const json_t *value)
{
    char found[80];
    if (!json_is_object(r->object))
        lnt_fail(r->c, LINNET_EFORMAT, "line %lld of \"%s\" is %s, expected a JSON object", (long long)r->line, r->path,
                 lnt_json_show(r->object, found, sizeof found));
    else if (value)
        lnt_fail(r->c, LINNET_EFORMAT, "\"%s\" in line %lld of \"%s\" is %s, expected a text", r->field, (long long)r->line, r->path,
                 lnt_json_show(value, found, sizeof found));
    else {
        char known[200] = "";
        const char *key;
        json_t *other;
        json_object_foreach(r->object, key, other) {
            const size_t n = strlen(known);
            if (n + strlen(key) + 3 < sizeof known) snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", key);
        }
        lnt_fail(r->c, LINNET_EFORMAT, "line %lld of \"%s\" has no \"%s\"", (long long)r->line, r->path, r->field);
        return *known ? lnt_hint(r->c, "Its keys: %s.", known) : LINNET_EFORMAT;
    }
    return LINNET_EFORMAT;
}

linnet_status lnt_records_next(lnt_records *r, const char **text, size_t *bytes)
{
    lnt_records_end(r);
    *text = NULL;
    *bytes = 0;
    while (r->at < r->end) {
        const char *begin = r->at, *stop = memchr(begin, '\n', (size_t)(r->end - begin));
        const char *last = stop ? stop : r->end;
        r->at = stop ? stop + 1 : r->end;
        r->line++;
        if (is_blank(begin, last)) continue;
        json_error_t e;
        r->object = json_loadb(begin, (size_t)(last - begin), JSON_DECODE_ANY, &e);
        if (!r->object && (!e.text[0] || json_error_code(&e) == json_error_out_of_memory)) return lnt_fail_memory(r->c, (size_t)(last - begin));
        if (!r->object) {
            lnt_fail(r->c, LINNET_EFORMAT, "line %lld of \"%s\" is no JSON: %s", (long long)r->line, r->path, e.text);
            return lnt_hint(r->c, "A field is read from files that have a JSON object on each line; leave --field out for other texts.");
        }
        json_t *value = json_is_object(r->object) ? value_at(r->object, r->field) : NULL;
        if (!json_is_string(value)) return no_such_text(r, value);
        *text = json_string_value(value);
        *bytes = json_string_length(value);
        return LINNET_OK;
    }
    return LINNET_OK;
}
