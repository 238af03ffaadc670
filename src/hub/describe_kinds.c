/* linnet_kind_describe: what a mixer, block, norm or MLP is, and its keys, from their tables. */
#include <stdio.h>
#include <string.h>

#include "hub/archs.h"
#include "hub/json.h"

static const char *kind_of_value(const lnt_option *o)
{
    static const char *const names[] = {"integer", "number", "switch", "word"};
    return names[o->kind];
}

static json_t *key_json(const lnt_option *o, const void *defaults)
{
    char text[64];
    json_t *row = json_pack("{s:s,s:s,s:s}", "key", o->key, "kind", kind_of_value(o), "help", o->help);
    if (o->kind == LNT_OPTION_INT || o->kind == LNT_OPTION_REAL) {
        const bool integer = o->kind == LNT_OPTION_INT;
        json_object_set_new(row, "least", integer ? json_integer((json_int_t)o->lo) : json_real(o->lo));
        json_object_set_new(row, "most", integer ? json_integer((json_int_t)o->hi) : json_real(o->hi));
    }
    if (o->kind == LNT_OPTION_WORD) {
        json_t *words = json_array();
        for (int i = 0; *lnt_word_at(o->words, i, text, sizeof text); i++) json_array_append_new(words, json_string(text));
        json_object_set_new(row, "words", words);
    }
    json_object_set_new(row, "null", json_boolean(o->nullable));
    if (o->only) json_object_set_new(row, "only", json_string(o->only));
    if (lnt_config_value_text(NULL, o, defaults, text, sizeof text) == LINNET_OK)
        json_object_set_new(row, "default", json_loads(text, JSON_DECODE_ANY, NULL));
    return row;
}

static char *as_json(lnt_family f, const lnt_kind *kind, const void *defaults)
{
    json_t *keys = json_array();
    for (int i = 0; i < kind->options.n; i++) json_array_append_new(keys, key_json(&kind->options.row[i], defaults));
    const linnet_mixer_info *about = &kind->about;
    json_t *all = json_pack("{s:s,s:s,s:s?,s:s?,s:o}", lnt_family_name(f), about->name, "summary", about->summary, "paper", about->paper,
                            "recurrence", about->recurrence, "keys", keys);
    char *text = lnt_json_text(all, 0);
    json_decref(all);
    return text;
}

static void values_text(const lnt_option *o, char *text, size_t size)
{
    const char *or_null = o->nullable ? " or null" : "";
    if (o->kind == LNT_OPTION_WORD) snprintf(text, size, "%s%s", o->words, or_null);
    else if (o->kind == LNT_OPTION_SWITCH) snprintf(text, size, "true or false");
    else lnt_format(text, size, "%.12g to %.12g%s", o->lo, o->hi, or_null);
}

static char *as_text(lnt_family f, const lnt_kind *kind, const void *defaults)
{
    char values[256], fallback[64];
    lnt_arena a = {0};
    char *text = lnt_arena_printf(&a, "%s %s: %s\n", lnt_family_name(f), kind->about.name, kind->about.summary);
    if (text && kind->about.paper) text = lnt_arena_printf(&a, "%s%s\n", text, kind->about.paper);
    if (text && kind->about.recurrence) text = lnt_arena_printf(&a, "%srecurrence: %s\n", text, kind->about.recurrence);
    for (int i = 0; text && i < kind->options.n; i++) {
        const lnt_option *o = &kind->options.row[i];
        values_text(o, values, sizeof values);
        if (lnt_config_value_text(NULL, o, defaults, fallback, sizeof fallback) != LINNET_OK) break;
        text = lnt_arena_printf(&a, "%s\n  %-22s %s\n  %22s %s; default %s%s%s\n", text, o->key, o->help, "", values, fallback,
                                o->only ? "; for " : "", o->only ? o->only : "");
    }
    char *out = text ? lnt_strdup(text) : NULL;
    lnt_arena_free(&a);
    return out;
}

char *linnet_kind_describe(const char *name, int json)
{
    for (int f = 0; name && f < LNT_FAMILIES; f++) {
        const lnt_kind *kind = lnt_kind_find((lnt_family)f, name);
        if (!kind) continue;
        void *defaults = lnt_calloc(kind->options.size);
        if (!defaults) return NULL;
        lnt_options_default(&kind->options, defaults);
        char *text = json ? as_json((lnt_family)f, kind, defaults) : as_text((lnt_family)f, kind, defaults);
        lnt_free(defaults);
        return text;
    }
    return NULL;
}

const linnet_mixer_info *linnet_kind_at(const char *family, int i)
{
    for (int f = 0; family && f < LNT_FAMILIES; f++)
        if (!strcmp(lnt_family_name((lnt_family)f), family)) {
            const lnt_kind *kind = lnt_kind_at((lnt_family)f, i);
            return kind ? &kind->about : NULL;
        }
    return NULL;
}
