/* A configuration as config.json: under the architecture whose class computes it, or as linnet's own type. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/archs.h"
#include "hub/json.h"

/* The lines of the object, sorted by key at the end; failed after an allocation that did. */
typedef struct {
    const char *key;
    char *text;
} line;

typedef struct {
    lnt_arena arena;
    int n;
    bool failed;
    line lines[192];
} page;

static void put(page *p, const char *key, char *text)
{
    if (!text || p->n == (int)(sizeof p->lines / sizeof *p->lines)) {
        p->failed = true;
        return;
    }
    p->lines[p->n++] = (line){key, text};
}

/* The shortest decimal that reads back as v; by jansson, which knows about locales. */
static char *real_text(lnt_arena *a, double v)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        json_t *number = json_real(v);
        char *text = lnt_json_text(number, JSON_REAL_PRECISION(digits));
        json_decref(number);
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool exact = again && json_number_value(again) == v;
        json_decref(again);
        char *out = exact || digits == 17 ? (text ? lnt_arena_strdup(a, text) : NULL) : NULL;
        lnt_free(text);
        if (out || !text) return out;
    }
    return NULL;
}

static char *value_text(lnt_arena *a, const lnt_option *o, const void *base)
{
    const lnt_given v = lnt_option_get(o, base);
    switch (v.kind) {
    case LNT_GIVEN_NULL: return lnt_arena_strdup(a, "null");
    case LNT_GIVEN_INT: return lnt_arena_printf(a, "%lld", (long long)v.integer);
    case LNT_GIVEN_REAL: return real_text(a, v.real);
    case LNT_GIVEN_BOOL: return lnt_arena_strdup(a, v.integer ? "true" : "false");
    default: return lnt_arena_printf(a, "\"%s\"", v.word);
    }
}

linnet_status lnt_config_value_text(lnt_ctx *c, const lnt_option *o, const void *base, char *text, size_t size)
{
    lnt_arena a = {0};
    const char *made = value_text(&a, o, base);
    linnet_status s = made ? LINNET_OK : lnt_fail_memory(c, 16);
    if (made) snprintf(text, size, "%s", made);
    lnt_arena_free(&a);
    return s;
}

/* {"kind": "swiglu", "hidden_ratio": 4.0, ...} */
static char *part_text(page *p, const char *what, const lnt_part *part)
{
    char *text = lnt_arena_printf(&p->arena, "{\"%s\": \"%s\"", what, part->kind->about.name);
    for (int i = 0; i < part->kind->options.n && text; i++) {
        char *value = value_text(&p->arena, &part->kind->options.row[i], part->options);
        text = value ? lnt_arena_printf(&p->arena, "%s, \"%s\": %s", text, part->kind->options.row[i].key, value) : NULL;
    }
    return text ? lnt_arena_printf(&p->arena, "%s}", text) : NULL;
}

static char *mixers_text(page *p, const lnt_config *k)
{
    char *text = NULL;
    for (int i = 0; i < k->n_mixers; i++) {
        if (!lnt_config_uses(k, i)) continue;
        char *part = part_text(p, "mixer", &k->mixers[i]);
        text = part ? lnt_arena_printf(&p->arena, "%s%s\n    \"%s\": %s", text ? text : "{", text ? "," : "", k->mixers[i].label, part) : NULL;
        if (!text) return NULL;
    }
    return lnt_arena_printf(&p->arena, "%s}", text);
}

static char *layer_mixers_text(page *p, const lnt_config *k)
{
    char *text = lnt_arena_strdup(&p->arena, "[");
    for (int l = 0; l < k->num_hidden_layers && text; l++)
        text = lnt_arena_printf(&p->arena, "%s%s\"%s\"", text, l ? ", " : "", k->mixers[k->mixer_of[l]].label);
    return text ? lnt_arena_printf(&p->arena, "%s]", text) : NULL;
}

static char *attn_entry_text(page *p, const lnt_arch *a, const lnt_config *k, int part)
{
    const lnt_part *m = &k->mixers[part];
    char *text = lnt_arena_strdup(&p->arena, "{\"layers\": [");
    bool some = false;
    for (int l = 0; l < k->num_hidden_layers && text; l++)
        if (k->mixer_of[l] == part) text = lnt_arena_printf(&p->arena, "%s%s%d", text, some ? ", " : "", l), some = true;
    if (text) text = lnt_arena_printf(&p->arena, "%s]", text);
    for (int i = 0; i < m->kind->options.n && text; i++) {
        const lnt_option *o = &m->kind->options.row[i];
        if (lnt_word_find(a->attn_keys, o->key) < 0) continue;
        char *value = value_text(&p->arena, o, m->options);
        text = value ? lnt_arena_printf(&p->arena, "%s, \"%s\": %s", text, o->key, value) : NULL;
    }
    return text ? lnt_arena_printf(&p->arena, "%s}", text) : NULL;
}

static char *attn_text(page *p, const lnt_arch *a, const lnt_config *k)
{
    char *text = NULL;
    int n = 0;
    for (int i = 1; i < k->n_mixers; i++) {
        if (!lnt_config_uses(k, i)) continue;
        char *entry = attn_entry_text(p, a, k, i);
        text = entry ? n++ ? lnt_arena_printf(&p->arena, "%s, %s", text, entry) : entry : NULL;
        if (!text) return NULL;
    }
    return n == 0 ? lnt_arena_strdup(&p->arena, "null") : n == 1 ? text : lnt_arena_printf(&p->arena, "[%s]", text);
}

/* The keys kept from a file, as far as they belong to the type that is written. */
static void put_kept(page *p, const lnt_arch *a, const json_t *kept)
{
    const char *key;
    json_t *value;
    if (a->class_name && !json_object_get(kept, "architectures"))
        put(p, "architectures", lnt_arena_printf(&p->arena, "[\"%s\"]", a->class_name));
    json_object_foreach((json_t *)(uintptr_t)kept, key, value) {
        const lnt_arch_other *other = lnt_arch_other_key(a, key);
        const bool theirs = !strcmp(key, "architectures") || !strcmp(key, "auto_map");
        bool twice = false;
        for (int i = 0; i < p->n; i++) twice |= !strcmp(p->lines[i].key, key);
        if (!other || other->dropped || twice || (theirs && !a->class_name)) continue;
        char *text = lnt_json_text_python(value, JSON_SORT_KEYS);
        put(p, key, text ? lnt_arena_strdup(&p->arena, text) : NULL);
        lnt_free(text);
    }
}

static void put_table(page *p, const lnt_arch *a, const lnt_options *t, const lnt_part *part, const void *base)
{
    for (int i = 0; i < t->n; i++) {
        const lnt_arch_key *key = lnt_arch_our_key(a, part, t->row[i].key);
        const lnt_arch_other *number = key && key->theirs ? lnt_arch_other_key(a, key->theirs) : NULL;
        if (number && number->follows) continue; /* written with what it is where ours is null */
        if (!key || key->theirs) put(p, key ? key->theirs : t->row[i].key, value_text(&p->arena, &t->row[i], base));
    }
}

/* Numbers that follow from the keys: whole ones as such. */
static void put_follows(page *p, const lnt_arch *a, const lnt_config *k)
{
    for (; a; a = a->base)
        for (const lnt_arch_other *o = a->others; o && o->key; o++) {
            if (!o->follows) continue;
            const double v = o->follows(k);
            const bool whole = fabs(v) < 1e15 && v == (double)(int64_t)v;
            char *one = whole ? lnt_arena_printf(&p->arena, "%lld", (long long)v) : real_text(&p->arena, v), *text = one;
            for (int l = 1; o->listed && l < k->num_hidden_layers && one && text; l++) text = lnt_arena_printf(&p->arena, "%s, %s", text, one);
            put(p, o->key, o->listed && one && text ? lnt_arena_printf(&p->arena, "[%s]", text) : text);
        }
}

/* ---- a class whose keys are spelled out ---- */

static bool set_path(json_t *o, const char *path, json_t *value)
{
    const char *dot = strchr(path, '.');
    char outer[64];
    if (!dot) return json_object_set_new(o, path, value) == 0;
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - path), path);
    if (!json_object_get(o, outer) && json_object_set_new(o, outer, json_object()) != 0) return json_decref(value), false;
    return json_object_set_new(json_object_get(o, outer), dot + 1, value) == 0;
}

static bool has_path(const json_t *o, const char *path)
{
    const char *dot = strchr(path, '.');
    char outer[64];
    snprintf(outer, sizeof outer, "%.*s", dot ? (int)(dot - path) : 0, path);
    return json_object_get(dot ? json_object_get(o, outer) : o, dot ? dot + 1 : path) != NULL;
}

static json_t *value_json(const lnt_option *o, const void *base)
{
    const lnt_given v = lnt_option_get(o, base);
    switch (v.kind) {
    case LNT_GIVEN_INT: return json_integer(v.integer);
    case LNT_GIVEN_REAL: return json_real(v.real);
    case LNT_GIVEN_BOOL: return json_boolean(v.integer);
    case LNT_GIVEN_WORD: return json_string(v.word);
    default: return json_null();
    }
}

static bool spell_option(const lnt_arch *arch, const lnt_option *o, const lnt_part *part, const void *base, json_t *out)
{
    bool fine = true;
    for (const lnt_arch *a = arch; a; a = a->base)
        for (const lnt_arch_key *row = a->keys; row && row->ours; row++) {
            const lnt_arch one = {.keys = (const lnt_arch_key[]){*row, {0}}};
            if (row->theirs && lnt_arch_our_key(&one, part, o->key) && !has_path(out, row->theirs) && !lnt_arch_shadowed(arch, a, row))
                fine &= set_path(out, row->theirs, value_json(o, base));
        }
    return fine;
}

static json_t *layer_types(const lnt_arch *a, const lnt_config *k)
{
    json_t *list = json_array();
    for (int l = 0; l < k->num_hidden_layers && list; l++) {
        const lnt_part *m = &k->mixers[k->mixer_of[l]];
        const lnt_arch_layer *at = a->layers;
        while (at->word && strcmp(at->label ? at->label : at->mixer, m->label) != 0) at++;
        if (!at->word || json_array_append_new(list, json_string(at->word)) != 0) return json_decref(list), NULL;
    }
    return list;
}

static bool spell_follows(const lnt_arch *arch, const lnt_config *k, json_t *out)
{
    bool fine = true;
    for (const lnt_arch *a = arch; a; a = a->base)
        for (const lnt_arch_other *o = a->others; o && o->key; o++) {
            if (!o->follows) continue;
            const double v = o->follows(k);
            fine &= set_path(out, o->key, v == (double)(int64_t)v ? json_integer((json_int_t)v) : json_real(v));
        }
    return fine;
}

static void leave_nulls_out(const lnt_arch *a, json_t *o)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(o, next, key, value)
        if (json_is_null(value) && lnt_word_find(a->no_null, key) >= 0) json_object_del(o, key);
}

json_t *lnt_config_spell(const lnt_arch *arch, const lnt_config *k)
{
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    json_t *out = json_object();
    bool fine = out && set_path(out, "model_type", json_string(arch->model_type));
    for (int i = 0; fine && (t = lnt_config_table(k, i, &base, &part)) != NULL; i++)
        for (int r = 0; r < t->n && (i < 4 || lnt_config_uses(k, i - 4)); r++) fine &= spell_option(arch, &t->row[r], part, base, out);
    if (fine && arch->layers) fine = set_path(out, "layer_types", layer_types(arch, k));
    fine = fine && spell_follows(arch, k, out);
    for (const lnt_arch *a = arch; a && fine; a = a->base) {
        if (a->to_theirs) fine = a->to_theirs(out);
        if (a->no_null) leave_nulls_out(a, out);
    }
    if (fine) return out;
    json_decref(out);
    return NULL;
}

/* JSON with numbers as short as they go. */
static char *short_text(lnt_arena *a, const json_t *v)
{
    const bool object = json_is_object(v);
    if (json_is_real(v)) return real_text(a, json_real_value(v));
    if (!object && !json_is_array(v)) {
        char *whole = lnt_json_text_python(v, 0), *text = whole ? lnt_arena_strdup(a, whole) : NULL;
        lnt_free(whole);
        return text;
    }
    char *text = lnt_arena_strdup(a, object ? "{" : "[");
    const char *key = object ? json_object_iter_key(json_object_iter((json_t *)(uintptr_t)v)) : NULL;
    void *at = object ? json_object_iter((json_t *)(uintptr_t)v) : NULL;
    for (size_t i = 0; text && (object ? at != NULL : i < json_array_size(v)); i++) {
        char *one = short_text(a, object ? json_object_iter_value(at) : json_array_get(v, i));
        key = object ? json_object_iter_key(at) : NULL;
        if (one && object) one = lnt_arena_printf(a, "\"%s\": %s", key, one);
        text = one ? lnt_arena_printf(a, "%s%s%s", text, i ? ", " : "", one) : NULL;
        at = object ? json_object_iter_next((json_t *)(uintptr_t)v, at) : NULL;
    }
    return text ? lnt_arena_printf(a, "%s%s", text, object ? "}" : "]") : NULL;
}

/* The class's keys with those kept from a file. */
static void put_spelled(page *p, const lnt_arch *a, const lnt_config *k, json_t *kept)
{
    const char *key;
    json_t *value, *o = lnt_config_spell(a, k);
    if (!o) p->failed = true;
    if (o && a->keeping) a->keeping(o, kept);
    json_object_foreach(kept, key, value) {
        const lnt_arch_other *other = lnt_arch_other_key(a, key);
        if (o && other && !other->dropped && !has_path(o, key) && !set_path(o, key, json_deep_copy(value))) p->failed = true;
    }
    if (o && !json_object_get(o, "architectures")) set_path(o, "architectures", json_pack("[s]", a->class_name));
    json_object_foreach(o, key, value) {
        char *name = lnt_arena_strdup(&p->arena, key);
        if (name) put(p, name, short_text(&p->arena, value));
        else p->failed = true;
    }
    json_decref(o);
}

static int by_key(const void *a, const void *b) { return strcmp(((const line *)a)->key, ((const line *)b)->key); }

static char *join(page *p)
{
    size_t n = sizeof "{\n}\n";
    for (int i = 0; i < p->n; i++) n += strlen(p->lines[i].key) + strlen(p->lines[i].text) + sizeof "  \"\": ,\n";
    char *text = lnt_alloc(n), *at = text;
    if (!text) return NULL;
    at += sprintf(at, "{\n");
    for (int i = 0; i < p->n; i++) at += sprintf(at, "  \"%s\": %s%s\n", p->lines[i].key, p->lines[i].text, i + 1 < p->n ? "," : "");
    sprintf(at, "}\n");
    return text;
}

static void write_page(page *p, const lnt_config *k, json_t *kept)
{
    const lnt_arch *a = lnt_arch_of(k);
    if (a->spelled) {
        put_spelled(p, a, k, kept);
        qsort(p->lines, (size_t)p->n, sizeof *p->lines, by_key);
        return;
    }
    put(p, "model_type", lnt_arena_printf(&p->arena, "\"%s\"", a->model_type));
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    /* the common keys, and for a class those of block, norm, MLP and the first mixer beside them */
    for (int i = 0; i < (a->class_name ? 5 : 1) && (t = lnt_config_table(k, i, &base, &part)) != NULL; i++) put_table(p, a, t, part, base);
    if (a->class_name) {
        if (a->attn) put(p, "attn", attn_text(p, a, k));
        put_follows(p, a, k);
    } else {
        put(p, "block", part_text(p, "kind", &k->block));
        put(p, "norm", part_text(p, "kind", &k->norm));
        put(p, "mlp", part_text(p, "kind", &k->mlp));
        put(p, "mixers", mixers_text(p, k));
        if (k->named_layers || k->n_mixers > 1) put(p, "layer_mixers", layer_mixers_text(p, k));
    }
    put_kept(p, a, kept);
    qsort(p->lines, (size_t)p->n, sizeof *p->lines, by_key);
}

const char *linnet_config_json(linnet_config *k)
{
    if (!k) return NULL;
    if (k->json) return k->json;
    page *p = lnt_calloc(sizeof *p);
    json_t *kept = json_loads(k->kept_json ? k->kept_json : "{}", 0, NULL);
    if (p && kept) {
        write_page(p, k, kept);
        if (!p->failed) k->json = join(p);
    }
    json_decref(kept);
    if (p) lnt_arena_free(&p->arena);
    lnt_free(p);
    return k->json;
}

const char *linnet_config_class(const linnet_config *k) { return k ? lnt_arch_of(k)->class_name : NULL; }
