/* config.json: defaults, reading, setting, writing. The rules of whole configurations are in
 * config_check.c, the keys in config_keys.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "hub/config_keys.h"
#include "hub/json.h"
#include "model/config.h"

enum { MAX_CONFIG_BYTES = 4 << 20 };

/* Where values come from: a file, or (path NULL) a caller. */
typedef struct {
    lnt_ctx *c;
    const char *path;
} source;

static linnet_status refuse(const source *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static linnet_status refuse(const source *s, const char *format, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return s->path ? lnt_malformed(s->c, s->path, "%s", text) : lnt_fail(s->c, LINNET_EINVAL, "%s", text);
}

/* The model types whose keys count: the model's own and those of layer_mixers. */
static unsigned types_of(const lnt_config *k)
{
    unsigned bits = lnt_model_type_bit(k->model_type);
    bool rules = strcmp(k->model_type, "equal_backbone") == 0; /* its layer_mixers are rules, which bring no keys */
    for (int i = 0; !rules && i < k->n_layer_mixers; i++) bits |= lnt_mixer_bit(k->layer_mixers[i]);
    return bits;
}

/* The row of a key for these types; NULL: they do not have it. */
static const lnt_config_key *find_key(const char *key, unsigned types)
{
    for (int i = 0; i < lnt_config_key_count; i++)
        if ((lnt_config_keys[i].types & types) && strcmp(lnt_config_keys[i].key, key) == 0) return &lnt_config_keys[i];
    return NULL;
}

/* ---- defaults ---- */

static void store_text(lnt_config *k, const lnt_config_key *f, const char *text)
{
    void *at = (char *)k + f->offset;
    switch (f->kind) {
    case LNT_KEY_INT: *(int64_t *)at = strtoll(text, NULL, 10); break;
    case LNT_KEY_REAL: {
        /* Defaults are written as in the papers; no locale may turn their point into a comma. */
        json_t *number = json_loads(text, JSON_DECODE_ANY, NULL);
        *(double *)at = json_number_value(number);
        json_decref(number);
        break;
    }
    case LNT_KEY_BOOL: *(bool *)at = strcmp(text, "true") == 0; break;
    case LNT_KEY_WORD:
    case LNT_KEY_BOOL_AS_WORD: snprintf(at, LNT_NAME, "%s", text); break;
    }
}

static linnet_status refuse_type(const source *s, const char *model_type)
{
    char list[256] = "";
    for (int i = 0; i < LNT_MODEL_TYPES; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", lnt_model_types[i].model_type);
    return refuse(s, "model type \"%.60s\" is not offered, expected one of %s", model_type, list);
}

static linnet_status defaults(const source *s, const char *model_type, lnt_config *out)
{
    unsigned bit = lnt_model_type_bit(model_type);
    if (!bit) return refuse_type(s, model_type);
    lnt_config k = {0};
    snprintf(k.model_type, sizeof k.model_type, "%s", model_type);
    for (int own = 0; own < 2; own++) /* the model type's own rows last */
        for (int i = 0; i < lnt_config_key_count; i++)
            if (!own || (lnt_config_keys[i].types & bit)) store_text(&k, &lnt_config_keys[i], lnt_config_keys[i].fallback);
    for (int i = 0; i < lnt_config_default_count; i++) {
        const lnt_config_default *d = &lnt_config_defaults_of_type[i];
        if (strcmp(d->model_type, model_type) == 0) store_text(&k, find_key(d->key, bit), d->value);
    }
    *out = k;
    return LINNET_OK;
}

linnet_status lnt_config_defaults(lnt_ctx *c, const char *model_type, lnt_config *out) { return defaults(&(source){c, NULL}, model_type, out); }

/* ---- reading one value ---- */

static linnet_status read_number(const source *s, const char *name, const lnt_config_key *f, const json_t *value, void *at)
{
    char shown[80];
    bool integer = f->kind == LNT_KEY_INT;
    if (integer ? !json_is_integer(value) : !json_is_number(value))
        return refuse(s, "%s is %s, expected %s%s", name, lnt_json_show(value, shown, sizeof shown), integer ? "an integer" : "a number",
                      f->null_as ? " or null" : "");
    double v = json_number_value(value);
    if (!(v >= f->lo && v <= f->hi))
        return refuse(s, "%s is %s, expected %.10g to %.10g%s", name, lnt_json_show(value, shown, sizeof shown), f->lo, f->hi,
                      f->null_as ? " or null" : "");
    if (integer)
        *(int64_t *)at = json_integer_value(value);
    else
        *(double *)at = v;
    return LINNET_OK;
}

/* One value of the table into the structure at `base`; `name` is the key as the message says it. */
static linnet_status read_value(const source *s, const char *name, const lnt_config_key *f, const json_t *value, void *base)
{
    char shown[80];
    void *at = (char *)base + f->offset;
    if (json_is_null(value) && f->null_as) {
        store_text(base, f, f->null_as);
        return LINNET_OK;
    }
    switch (f->kind) {
    case LNT_KEY_INT:
    case LNT_KEY_REAL: return read_number(s, name, f, value, at);
    case LNT_KEY_BOOL:
    case LNT_KEY_BOOL_AS_WORD:
        if (!json_is_boolean(value)) return refuse(s, "%s is %s, expected true or false", name, lnt_json_show(value, shown, sizeof shown));
        if (f->kind == LNT_KEY_BOOL)
            *(bool *)at = json_is_true(value);
        else
            strcpy(at, json_is_true(value) ? "true" : "false");
        return LINNET_OK;
    case LNT_KEY_WORD:
        if (!json_is_string(value) || !lnt_word_in(f->words, json_string_value(value)))
            return refuse(s, "%s is %s, expected %s", name, lnt_json_show(value, shown, sizeof shown), f->words[0] ? f->words : "null");
        snprintf(at, LNT_NAME, "%s", json_string_value(value));
        return LINNET_OK;
    }
    return LINNET_EINTERNAL;
}

/* ---- attn and layer_mixers ---- */

#define ATTN(key, kind, lo, hi, null_as) {#key, 0, kind, offsetof(lnt_attn_spec, key), lo, hi, NULL, null_as, NULL}
static const lnt_config_key attn_keys[] = {
    ATTN(num_heads, LNT_KEY_INT, 1, 65536, NULL),
    ATTN(num_kv_heads, LNT_KEY_INT, 1, 65536, "0"),
    ATTN(qkv_bias, LNT_KEY_BOOL, 0, 0, NULL),
    ATTN(window_size, LNT_KEY_INT, 1, 2147483647.0, "0"),
    ATTN(rope_theta, LNT_KEY_REAL, 1, 1e15, NULL),
};
enum { ATTN_KEYS = sizeof attn_keys / sizeof *attn_keys };

static linnet_status read_attn_layers(const source *s, const json_t *value, lnt_attn_spec *a)
{
    char shown[80];
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > LNT_MAX_LAYERS)
        return refuse(s, "attn.layers is %s, expected a list of layers", lnt_json_show(value, shown, sizeof shown));
    for (size_t i = 0; i < n; i++) {
        const json_t *layer = json_array_get(value, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 || json_integer_value(layer) >= LNT_MAX_LAYERS)
            return refuse(s, "attn.layers has %s, expected layers from 0 to %d", lnt_json_show(layer, shown, sizeof shown), LNT_MAX_LAYERS - 1);
        a->layers[i] = (int)json_integer_value(layer);
    }
    a->n_layers = (int)n;
    return LINNET_OK;
}

static linnet_status read_attn_entry(const source *s, const json_t *o, lnt_attn_spec *a)
{
    const char *key;
    json_t *value;
    char shown[80], name[96];
    if (!json_is_object(o)) return refuse(s, "attn is %s, expected null, an object or a list of objects", lnt_json_show(o, shown, sizeof shown));
    memset(a, 0, sizeof *a);
    a->rope_theta = 10000;
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        if (strcmp(key, "layers") == 0) {
            LNT_TRY(read_attn_layers(s, value, a));
            continue;
        }
        int i = 0;
        while (i < ATTN_KEYS && strcmp(attn_keys[i].key, key) != 0) i++;
        if (i == ATTN_KEYS)
            return refuse(s, "unknown key \"%.60s\" in attn, expected layers, num_heads, num_kv_heads, qkv_bias, window_size or rope_theta", key);
        snprintf(name, sizeof name, "attn.%s", key);
        LNT_TRY(read_value(s, name, &attn_keys[i], value, a));
    }
    if (!json_object_get(o, "layers")) return refuse(s, "attn has no key \"layers\"");
    if (!a->num_heads) return refuse(s, "attn has no key \"num_heads\"");
    return LINNET_OK;
}

static linnet_status read_attn(const source *s, const json_t *value, lnt_config *k)
{
    if (json_is_null(value)) {
        k->n_attn = 0;
        return LINNET_OK;
    }
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > LNT_MAX_ATTN) return refuse(s, "attn has %zu entries, expected at most %d", n, LNT_MAX_ATTN);
    lnt_attn_spec entries[LNT_MAX_ATTN];
    for (size_t i = 0; i < n; i++) LNT_TRY(read_attn_entry(s, json_is_array(value) ? json_array_get(value, i) : value, &entries[i]));
    memcpy(k->attn, entries, n * sizeof *entries);
    k->n_attn = (int)n;
    return LINNET_OK;
}

static linnet_status read_layer_mixers(const source *s, const json_t *value, lnt_config *k)
{
    char shown[80];
    size_t n = json_array_size(value);
    if (!json_is_null(value) && (!json_is_array(value) || n > LNT_MAX_LAYERS))
        return refuse(s, "layer_mixers is %s, expected null or a mixer for each layer", lnt_json_show(value, shown, sizeof shown));
    char(*names)[LNT_NAME] = n ? lnt_calloc(n * sizeof *names) : NULL;
    if (n && !names) return lnt_fail_memory(s->c, n * sizeof *names);
    const lnt_config_key *rule = strcmp(k->model_type, "equal_backbone") == 0 ? find_key("rule", lnt_model_type_bit(k->model_type)) : NULL;
    const char *rules = rule ? rule->words : NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *word = json_array_get(value, i);
        const char *name = json_is_string(word) ? json_string_value(word) : "";
        if (rules ? !lnt_word_in(rules, name) : !lnt_mixer_bit(name)) {
            lnt_free(names);
            return refuse(s, "layer_mixers has %s, expected %s", lnt_json_show(word, shown, sizeof shown),
                          rules ? rules : "linear_attn, retnet, simple_gla, delta_net, gated_deltanet, mesa_net or attention");
        }
        snprintf(names[i], LNT_NAME, "%s", name);
    }
    lnt_free(k->layer_mixers);
    k->layer_mixers = names;
    k->n_layer_mixers = (int)n;
    return LINNET_OK;
}

/* ---- reading one key ---- */

static linnet_status keep(const source *s, const char *key, const json_t *value, lnt_config *k)
{
    json_t *kept = k->kept_json ? json_loads(k->kept_json, 0, NULL) : json_object();
    char *text = NULL;
    if (kept && json_object_set(kept, key, (json_t *)(uintptr_t)value) == 0) text = lnt_json_text(kept, JSON_SORT_KEYS);
    json_decref(kept);
    if (!text) return lnt_fail_memory(s->c, k->kept_json ? strlen(k->kept_json) : 16);
    lnt_free(k->kept_json);
    k->kept_json = text;
    return LINNET_OK;
}

static linnet_status check_fixed(const source *s, const lnt_config_fixed *f, const json_t *value)
{
    char shown[80];
    if (lnt_word_in(f->values, lnt_json_show(value, shown, sizeof shown))) return LINNET_OK;
    linnet_status status = refuse(s, "%s is %s, expected %s", f->key, shown, f->values);
    lnt_hint(s->c, "Another value changes what the model computes, and linnet does not offer it.");
    return status;
}

static int distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);
    if (n > 63) return 64;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static linnet_status refuse_unknown(const source *s, const char *key, unsigned types, const lnt_config *k)
{
    if (find_key(key, ~0u) || strcmp(key, "attn") == 0 || strcmp(key, "layer_mixers") == 0)
        return refuse(s, "\"%.60s\" is not a key of model type %s", key, k->model_type);
    linnet_status status = refuse(s, "unknown key \"%.60s\" for model type %s", key, k->model_type);
    const lnt_config_key *near = NULL;
    for (int i = 0; i < lnt_config_key_count && strlen(key) < 64; i++)
        if ((lnt_config_keys[i].types & types) && distance(key, lnt_config_keys[i].key) <= 2) near = &lnt_config_keys[i];
    if (near)
        lnt_hint(s->c, "Did you mean \"%s\"?", near->key);
    else
        lnt_hint(s->c, "It may change what the model computes, so it is not ignored; remove it if it does not.");
    return status;
}

static linnet_status read_key(const source *s, const char *key, const json_t *value, lnt_config *k)
{
    unsigned own = lnt_model_type_bit(k->model_type), types = types_of(k), transformer = lnt_model_type_bit("transformer");
    bool known_null = json_is_null(value); /* "attn": null says nothing about any type */
    if (strcmp(key, "attn") == 0 && (own != transformer || known_null)) return read_attn(s, value, k);
    if (strcmp(key, "layer_mixers") == 0) return read_layer_mixers(s, value, k);
    const lnt_config_key *f = find_key(key, own);
    if (!f) f = find_key(key, types);
    if (f) return read_value(s, key, f, value, k);
    const lnt_config_fixed *fixed = lnt_config_fixed_key(key);
    if (fixed) LNT_TRY(check_fixed(s, fixed, value));
    if (fixed || lnt_config_kept_key(key)) return keep(s, key, value, k);
    return refuse_unknown(s, key, types, k);
}

/* ---- the public functions ---- */

linnet_status linnet_config_create(linnet_context *c, const char *model_type, linnet_config **out)
{
    lnt_config *k = lnt_alloc(sizeof *k);
    if (!k) return lnt_fail_memory(c, sizeof *k);
    linnet_status s = lnt_config_defaults(c, model_type, k);
    if (s == LINNET_OK)
        *out = k;
    else
        lnt_free(k);
    return s;
}

static linnet_status read_object(const source *s, const json_t *o, lnt_config *k)
{
    const char *key;
    json_t *value;
    const json_t *type = json_object_get(o, "model_type");
    if (!json_is_object(o)) return refuse(s, "the configuration is not an object");
    if (!json_is_string(type)) return refuse(s, "the configuration has no model_type");
    LNT_TRY(defaults(s, json_string_value(type), k));
    const json_t *mixers = json_object_get(o, "layer_mixers"); /* first, because they bring their keys */
    if (mixers) LNT_TRY(read_key(s, "layer_mixers", mixers, k));
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        if (strcmp(key, "model_type") != 0 && value != mixers) LNT_TRY(read_key(s, key, value, k));
    }
    /* flash-linear-attention's files know one solver, whose rounding their weights have learned with */
    if (types_of(k) & lnt_mixer_bit("mesa_net") && !json_object_get(o, "cg_solver")) {
        snprintf(k->cg_solver, sizeof k->cg_solver, "flash");
        snprintf(k->cg_guess, sizeof k->cg_guess, "zero");
    }
    LNT_TRY(lnt_config_check(s->c, k));
    return LINNET_OK;
}

linnet_status lnt_config_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, lnt_config **out)
{
    json_t *o;
    LNT_TRY(lnt_json_parse(c, path, text, bytes, &o));
    lnt_config *k = lnt_calloc(sizeof *k);
    linnet_status s = k ? read_object(&(source){c, path}, o, k) : lnt_fail_memory(c, sizeof *k);
    json_decref(o);
    if (s == LINNET_OK) {
        *out = k;
        return LINNET_OK;
    }
    if (s == LINNET_EINVAL) lnt_detail(c, "Read from %s.", path); /* lnt_config_check knows no file */
    linnet_config_destroy(k);
    return s;
}

static linnet_status load_file(lnt_ctx *c, const char *path, linnet_config **out)
{
    char *text;
    size_t bytes;
    LNT_TRY(lnt_file_read(c, path, MAX_CONFIG_BYTES, &text, &bytes));
    linnet_status s = lnt_config_parse(c, path, text, bytes, out);
    lnt_free(text);
    return s;
}

linnet_status linnet_config_load(linnet_context *c, const char *path, linnet_config **out)
{
    if (!lnt_is_folder(path)) return load_file(c, path, out);
    size_t n = strlen(path) + sizeof "/config.json";
    char *inside = lnt_alloc(n);
    if (!inside) return lnt_fail_memory(c, n);
    snprintf(inside, n, "%s/config.json", path);
    linnet_status s = load_file(c, inside, out);
    lnt_free(inside);
    return s;
}

linnet_status linnet_config_set(linnet_context *c, linnet_config *k, const char *key, const char *value)
{
    source s = {c, NULL};
    if (strcmp(key, "model_type") == 0) {
        if (strcmp(value, k->model_type) == 0) return LINNET_OK;
        return refuse(&s, "model_type is %s and cannot become \"%.60s\"", k->model_type, value);
    }
    json_error_t e;
    json_t *v = json_loads(value, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    if (!v && (value[0] == '{' || value[0] == '[' || value[0] == '"'))
        return refuse(&s, "the value of %.60s is malformed JSON at column %d: %s", key, e.column, e.text);
    if (!v) v = json_string(value);
    if (!v) return refuse(&s, "the value of %.60s is not UTF-8", key);
    linnet_status status = read_key(&s, key, v, k);
    json_decref(v);
    if (status != LINNET_OK) return status;
    lnt_free(k->json);
    k->json = NULL;
    return LINNET_OK;
}

void linnet_config_destroy(linnet_config *k)
{
    if (!k) return;
    lnt_free(k->layer_mixers);
    lnt_free(k->kept_json);
    lnt_free(k->json);
    lnt_free(k);
}

linnet_status lnt_config_copy(lnt_ctx *c, const lnt_config *k, lnt_config **out)
{
    lnt_config *o = lnt_alloc(sizeof *o);
    if (!o) return lnt_fail_memory(c, sizeof *o);
    *o = *k;
    o->json = NULL;
    o->kept_json = k->kept_json ? lnt_strdup(k->kept_json) : NULL;
    size_t bytes = (size_t)k->n_layer_mixers * sizeof *k->layer_mixers;
    o->layer_mixers = bytes ? lnt_alloc(bytes) : NULL;
    if ((k->kept_json && !o->kept_json) || (bytes && !o->layer_mixers)) {
        linnet_config_destroy(o);
        return lnt_fail_memory(c, bytes);
    }
    if (bytes) memcpy(o->layer_mixers, k->layer_mixers, bytes);
    *out = o;
    return LINNET_OK;
}

/* ---- writing ---- */

/* The lines of the object, sorted by key at the end; text NULL after a failed allocation. */
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
static char *real_text(page *p, double v)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        json_t *number = json_real(v);
        char *text = lnt_json_text(number, JSON_REAL_PRECISION(digits));
        json_decref(number);
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool exact = again && json_number_value(again) == v;
        json_decref(again);
        char *out = exact || digits == 17 ? (text ? lnt_arena_strdup(&p->arena, text) : NULL) : NULL;
        lnt_free(text);
        if (out || !text) return out;
    }
    return NULL;
}

static char *value_text(page *p, const lnt_config_key *f, const void *base)
{
    const void *at = (const char *)base + f->offset;
    switch (f->kind) {
    case LNT_KEY_INT:
        if (f->null_as && *(const int64_t *)at == strtoll(f->null_as, NULL, 10)) return lnt_arena_strdup(&p->arena, "null");
        return lnt_arena_printf(&p->arena, "%lld", (long long)*(const int64_t *)at);
    case LNT_KEY_REAL: return f->null_as && *(const double *)at == 0 ? lnt_arena_strdup(&p->arena, "null") : real_text(p, *(const double *)at);
    case LNT_KEY_BOOL: return lnt_arena_strdup(&p->arena, *(const bool *)at ? "true" : "false");
    case LNT_KEY_BOOL_AS_WORD: return lnt_arena_strdup(&p->arena, strcmp(at, "true") == 0 ? "true" : "false");
    case LNT_KEY_WORD:
        return f->null_as && !*(const char *)at ? lnt_arena_strdup(&p->arena, "null") : lnt_arena_printf(&p->arena, "\"%s\"", (const char *)at);
    }
    return NULL;
}

static char *attn_entry_text(page *p, const lnt_attn_spec *a)
{
    char *text = lnt_arena_strdup(&p->arena, "{\"layers\": [");
    for (int i = 0; i < a->n_layers && text; i++) text = lnt_arena_printf(&p->arena, "%s%s%d", text, i ? ", " : "", a->layers[i]);
    if (text) text = lnt_arena_printf(&p->arena, "%s]", text);
    for (int i = 0; i < ATTN_KEYS && text; i++) {
        char *value = value_text(p, &attn_keys[i], a);
        text = value ? lnt_arena_printf(&p->arena, "%s, \"%s\": %s", text, attn_keys[i].key, value) : NULL;
    }
    return text ? lnt_arena_printf(&p->arena, "%s}", text) : NULL;
}

static char *attn_text(page *p, const lnt_config *k)
{
    if (k->n_attn == 0) return lnt_arena_strdup(&p->arena, "null");
    char *text = attn_entry_text(p, &k->attn[0]);
    for (int i = 1; i < k->n_attn && text; i++) {
        char *entry = attn_entry_text(p, &k->attn[i]);
        text = entry ? lnt_arena_printf(&p->arena, "%s, %s", text, entry) : NULL;
    }
    return k->n_attn == 1 || !text ? text : lnt_arena_printf(&p->arena, "[%s]", text);
}

static char *layer_mixers_text(page *p, const lnt_config *k)
{
    char *text = lnt_arena_strdup(&p->arena, "[");
    for (int i = 0; i < k->n_layer_mixers && text; i++) text = lnt_arena_printf(&p->arena, "%s%s\"%s\"", text, i ? ", " : "", k->layer_mixers[i]);
    return text ? lnt_arena_printf(&p->arena, "%s]", text) : NULL;
}

/* The keys kept from a file; `fuse_norm` is not, where it decides the name of a weight: linnet writes the fused one, which is the default. */
static void put_kept(page *p, const lnt_config *k, const json_t *kept, const lnt_model_type *type)
{
    const char *key;
    json_t *value;
    unsigned types = types_of(k);
    bool fused_name = types & (lnt_model_type_bit("retnet") | lnt_model_type_bit("simple_gla"));
    if (type->architecture && k->n_layer_mixers == 0 && !json_object_get(kept, "architectures"))
        put(p, "architectures", lnt_arena_printf(&p->arena, "[\"%s\"]", type->architecture));
    json_object_foreach((json_t *)(uintptr_t)kept, key, value) {
        if (find_key(key, types) || (fused_name && strcmp(key, "fuse_norm") == 0)) continue;
        char *text = lnt_json_text(value, JSON_SORT_KEYS);
        put(p, key, text ? lnt_arena_strdup(&p->arena, text) : NULL);
        lnt_free(text);
    }
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

const char *linnet_config_json(linnet_config *k)
{
    if (k->json) return k->json;
    page *p = lnt_calloc(sizeof *p);
    json_t *kept = json_loads(k->kept_json ? k->kept_json : "{}", 0, NULL);
    if (p && kept) {
        unsigned types = types_of(k);
        const lnt_model_type *type = &lnt_model_types[__builtin_ctz(lnt_model_type_bit(k->model_type))];
        put(p, "model_type", lnt_arena_printf(&p->arena, "\"%s\"", k->model_type));
        for (int i = 0; i < lnt_config_key_count; i++) {
            const lnt_config_key *f = &lnt_config_keys[i], *first = find_key(f->key, lnt_model_type_bit(k->model_type));
            if (!first) first = find_key(f->key, types);
            if (f == first) put(p, f->key, value_text(p, f, k));
        }
        if (strcmp(k->model_type, "transformer") != 0 || k->n_attn) put(p, "attn", attn_text(p, k));
        if (k->n_layer_mixers) put(p, "layer_mixers", layer_mixers_text(p, k));
        put_kept(p, k, kept, type);
        qsort(p->lines, (size_t)p->n, sizeof *p->lines, by_key);
        if (!p->failed) k->json = join(p);
    }
    json_decref(kept);
    if (p) lnt_arena_free(&p->arena);
    lnt_free(p);
    return k->json;
}
