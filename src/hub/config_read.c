/* config.json and the public configuration: reading, setting and asking for keys. Which keys there are is said by the kinds (mixers/, model/) and by
 * the architectures (archs/); config_write.c writes. */
#include <stdio.h>
#include <string.h>

#include "core/border.h"
#include "core/file.h"
#include "hub/archs.h"
#include "hub/json.h"

enum { MAX_CONFIG_BYTES = 4 << 20 };

/* ---- values ---- */

static lnt_given given_of(const json_t *v)
{
    lnt_given g = {.kind = LNT_GIVEN_OTHER};
    lnt_json_show(v, g.shown, sizeof g.shown);
    if (json_is_null(v)) g.kind = LNT_GIVEN_NULL;
    else if (json_is_boolean(v)) g.kind = LNT_GIVEN_BOOL, g.integer = json_is_true(v), g.real = (double)g.integer;
    else if (json_is_integer(v)) g.kind = LNT_GIVEN_INT, g.integer = json_integer_value(v), g.real = (double)g.integer;
    else if (lnt_json_number(v, &g.real)) g.kind = LNT_GIVEN_REAL;
    else if (json_is_string(v)) {
        g.kind = LNT_GIVEN_WORD;
        const char *word = json_string_value(v);
        if (strlen(word) < sizeof g.word) strcpy(g.word, word);
    }
    return g;
}

bool lnt_given_of_text(const char *text, lnt_given *out)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL); /* no locale may turn its point into a comma */
    if (!v) return false;
    *out = given_of(v);
    json_decref(v);
    return true;
}

/* The defaults of an architecture into a configuration; those that `o` lacks, where there is an object. */
static linnet_status put_defaults(lnt_ctx *c, lnt_config *k, const lnt_arch_default *d, const json_t *o)
{
    for (; d && d->key; d++) {
        lnt_given v;
        bool known;
        if (o && json_object_get(o, d->key)) continue;
        if (!lnt_given_of_text(d->value, &v)) return lnt_fail_memory(c, strlen(d->value));
        LNT_TRY(lnt_config_put(c, k, d->key, &v, &known));
    }
    return LINNET_OK;
}

/* The mixers of an architecture that has several, each a part of its label; lnt_config_prune removes what no layer takes. */
static linnet_status add_layers(lnt_ctx *c, const lnt_arch *arch, lnt_config *k)
{
    for (const lnt_arch_layer *l = arch->layers; l && l->word; l++) {
        const char *label = l->label ? l->label : l->mixer;
        int part = 0;
        if (l == arch->layers) snprintf(k->mixers[0].label, sizeof k->mixers[0].label, "%s", label);
        else LNT_TRY(lnt_config_add_mixer(c, k, lnt_mixer_find(l->mixer), label, &part));
        lnt_options_default(&k->mixers[part].kind->options, k->mixers[part].options);
    }
    return LINNET_OK;
}

/* arch NULL: that of the name. */
static linnet_status make(lnt_ctx *c, const lnt_arch *arch, const char *model_type, lnt_config *out)
{
    const lnt_mixer *mixer = arch && arch->mixer ? lnt_mixer_find(arch->mixer) : NULL;
    if (!mixer) LNT_TRY(lnt_arch_named(c, model_type, &arch, &mixer));
    LNT_TRY(lnt_config_make(c, arch == &lnt_arch_linnet ? model_type : lnt_arch_name(arch), mixer, out));
    lnt_part *const part[] = {&out->block, &out->norm, &out->mlp};
    const char *const kind[] = {arch->block, arch->norm, arch->mlp};
    linnet_status s = LINNET_OK;
    for (int i = 0; i < 3 && s == LINNET_OK; i++) {
        const lnt_family f = (lnt_family)(LNT_BLOCKS + i);
        if (kind[i]) s = lnt_part_become(c, part[i], lnt_kind_find(f, kind[i]), lnt_family_name(f));
    }
    if (s == LINNET_OK) s = add_layers(c, arch, out);
    for (const lnt_arch *a = arch; a && s == LINNET_OK; a = a->base) { /* a base's count where the type itself says nothing */
        if (a == arch || !a->defaults) continue;
        s = put_defaults(c, out, a->defaults, NULL);
    }
    if (s == LINNET_OK) s = put_defaults(c, out, arch->defaults, NULL);
    if (s != LINNET_OK) lnt_config_clear(out);
    return s;
}

/* The architecture whose keys a configuration reads. */
static const lnt_arch *reads_as(const lnt_config *k)
{
    const lnt_arch *a = lnt_arch_find(k->model_type);
    return a ? a : &lnt_arch_linnet;
}

/* ---- parts: mixers, block, norm, mlp ---- */

/* The keys of one part from an object; `skip` names it. */
static linnet_status read_part(lnt_ctx *c, const char *where, const json_t *o, const char *skip, lnt_part *p)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        if (!strcmp(key, skip)) continue;
        const lnt_option *f = lnt_option_find(&p->kind->options, key);
        const lnt_given v = given_of(value);
        if (!f) {
            char known[700] = "";
            for (int i = 0, n = 0; i < p->kind->options.n && n < (int)sizeof known; i++)
                n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", i ? ", " : "", p->kind->options.row[i].key);
            lnt_fail(c, LINNET_EINVAL, "unknown key \"%.60s\" in %.*s", key, (int)strlen(where) - 1, where);
            return lnt_hint(c, "%s has %s.", p->kind->about.name, *known ? known : "no keys");
        }
        LNT_TRY(lnt_option_put(c, where, f, &v, p->options));
    }
    return LINNET_OK;
}

static const lnt_kind *kind_named(lnt_ctx *c, lnt_family f, const char *where, const json_t *name)
{
    char shown[80], list[700] = "";
    const lnt_kind *kind = json_is_string(name) ? lnt_kind_find(f, json_string_value(name)) : NULL;
    if (kind) return kind;
    for (int i = 0, n = 0; lnt_kind_at(f, i) && n < (int)sizeof list; i++)
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%s", i ? " " : "", lnt_kind_at(f, i)->about.name);
    if (name) lnt_fail(c, LINNET_EINVAL, "%s is %s, expected %s", where, lnt_json_show(name, shown, sizeof shown), list);
    else lnt_fail(c, LINNET_EINVAL, "%s is missing, expected %s", where, list);
    return NULL;
}

/* "mlp": "none", or {"kind": "swiglu", "hidden_ratio": 3}. */
static linnet_status read_single(lnt_ctx *c, lnt_family f, const json_t *value, lnt_part *p)
{
    char where[16];
    const json_t *name = json_is_object(value) ? json_object_get(value, "kind") : value;
    const lnt_kind *kind = kind_named(c, f, lnt_family_name(f), name);
    if (!kind) return LINNET_EINVAL;
    LNT_TRY(lnt_part_become(c, p, kind, lnt_family_name(f)));
    snprintf(where, sizeof where, "%s.", lnt_family_name(f));
    return json_is_object(value) ? read_part(c, where, value, "kind", p) : LINNET_OK;
}

/* A label stands in messages, in --set and between quotes. */
static bool fine_label(const char *label)
{
    size_t n = strspn(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-");
    return n && !label[n] && n < LNT_NAME - 4;
}

static linnet_status read_mixers(lnt_ctx *c, const json_t *value, lnt_config *k)
{
    const char *label;
    json_t *o;
    char shown[80], where[LNT_NAME + 16];
    if (!json_is_object(value) || !json_object_size(value))
        return lnt_fail(c, LINNET_EINVAL, "mixers is %s, expected an object of labels and mixers", lnt_json_show(value, shown, sizeof shown));
    for (int l = 0; l < LNT_MAX_LAYERS; l++) k->mixer_of[l] = 0;
    lnt_config_prune(k, false);
    bool first = true;
    json_object_foreach((json_t *)(uintptr_t)value, label, o) {
        if (!fine_label(label)) return lnt_fail(c, LINNET_EINVAL, "mixers has the label \"%.60s\", expected letters, digits and _ . : -", label);
        snprintf(where, sizeof where, "mixers.%s.mixer", label);
        const lnt_kind *kind = kind_named(c, LNT_MIXERS, where, json_is_object(o) ? json_object_get(o, "mixer") : o);
        if (!kind) return LINNET_EINVAL;
        int i = 0;
        if (!first) LNT_TRY(lnt_config_add_mixer(c, k, (const lnt_mixer *)kind, label, &i));
        k->mixers[i].kind = first ? NULL : k->mixers[i].kind; /* nothing is carried over */
        LNT_TRY(lnt_part_become(c, &k->mixers[i], kind, label));
        lnt_options_default(&kind->options, k->mixers[i].options);
        snprintf(where, sizeof where, "mixers.%s.", label);
        if (json_is_object(o)) LNT_TRY(read_part(c, where, o, "mixer", &k->mixers[i]));
        first = false;
    }
    k->named_layers = 0;
    return LINNET_OK;
}

static linnet_status read_layer_mixers(lnt_ctx *c, const json_t *value, lnt_config *k)
{
    char shown[80];
    size_t n = json_array_size(value);
    if (!json_is_null(value) && (!json_is_array(value) || n > LNT_MAX_LAYERS))
        return lnt_fail(c, LINNET_EINVAL, "layer_mixers is %s, expected null or a mixer for each layer", lnt_json_show(value, shown, sizeof shown));
    for (size_t i = 0; i < LNT_MAX_LAYERS; i++) {
        const json_t *word = json_array_get(value, i);
        int mixer = 0;
        if (word && !json_is_string(word))
            return lnt_fail(c, LINNET_EINVAL, "layer_mixers has %s, expected names", lnt_json_show(word, shown, sizeof shown));
        if (word) LNT_TRY(lnt_config_mixer_named(c, k, json_string_value(word), -1, &mixer));
        k->mixer_of[i] = (uint8_t)mixer;
    }
    k->named_layers = (int)n;
    return LINNET_OK;
}

/* ---- attn: another mixer at the listed layers ---- */

static linnet_status read_attn_entry(lnt_ctx *c, const lnt_arch *a, const json_t *o, bool seen[LNT_MAX_LAYERS], lnt_config *k)
{
    const char *key;
    json_t *value;
    char shown[80];
    int part;
    if (!json_is_object(o))
        return lnt_fail(c, LINNET_EINVAL, "attn is %s, expected null, an object or a list of objects", lnt_json_show(o, shown, sizeof shown));
    LNT_TRY(lnt_config_add_mixer(c, k, lnt_mixer_find(a->attn), a->attn, &part));
    lnt_part *p = &k->mixers[part];
    p->own_values = true;
    lnt_options_default(&p->kind->options, p->options);
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        if (!strcmp(key, "layers")) continue;
        const lnt_option *f = lnt_word_find(a->attn_keys, key) >= 0 ? lnt_option_find(&p->kind->options, key) : NULL;
        if (!f) return lnt_fail(c, LINNET_EINVAL, "unknown key \"%.60s\" in attn, expected layers %s", key, a->attn_keys);
        const lnt_given v = given_of(value);
        LNT_TRY(lnt_option_put(c, "attn.", f, &v, p->options));
    }
    const json_t *layers = json_object_get(o, "layers");
    if (!layers) return lnt_fail(c, LINNET_EINVAL, "attn has no key \"layers\"");
    if (!json_object_get(o, "num_heads")) return lnt_fail(c, LINNET_EINVAL, "attn has no key \"num_heads\"");
    if (!json_is_array(layers))
        return lnt_fail(c, LINNET_EINVAL, "attn.layers is %s, expected a list of layers", lnt_json_show(layers, shown, sizeof shown));
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const json_int_t l = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (l < 0 || l >= LNT_MAX_LAYERS)
            return lnt_fail(c, LINNET_EINVAL, "attn.layers has %s, expected layers from 0 to %d", lnt_json_show(layer, shown, sizeof shown),
                            LNT_MAX_LAYERS - 1);
        if (seen[l]) return lnt_fail(c, LINNET_EINVAL, "attn.layers has layer %d twice", (int)l);
        seen[l] = true;
        k->mixer_of[l] = (uint8_t)part;
    }
    return LINNET_OK;
}

static linnet_status read_attn(lnt_ctx *c, const lnt_arch *a, const json_t *value, lnt_config *k)
{
    bool seen[LNT_MAX_LAYERS] = {false};
    if (json_is_null(value)) return LINNET_OK;
    if (!json_is_array(value)) return read_attn_entry(c, a, value, seen, k);
    for (size_t i = 0; i < json_array_size(value); i++) LNT_TRY(read_attn_entry(c, a, json_array_get(value, i), seen, k));
    return LINNET_OK;
}

/* ---- one key ---- */

static linnet_status keep(lnt_ctx *c, const char *key, const json_t *value, lnt_config *k)
{
    json_t *kept = k->kept_json ? json_loads(k->kept_json, 0, NULL) : json_object();
    char *text = NULL;
    if (kept && json_object_set(kept, key, (json_t *)(uintptr_t)value) == 0) text = lnt_json_text(kept, JSON_SORT_KEYS);
    json_decref(kept);
    if (!text) return lnt_fail_memory(c, k->kept_json ? strlen(k->kept_json) : 16);
    lnt_free(k->kept_json);
    k->kept_json = text;
    lnt_config_touch(k);
    return LINNET_OK;
}

/* Whether a value is one of JSON texts that blanks separate and that have none inside. */
static bool is_one_of(const char *values, const char *shown)
{
    char dense[80];
    size_t n = 0;
    for (const char *at = shown; *at && n + 1 < sizeof dense; at++)
        if (*at != ' ') dense[n++] = *at;
    dense[n] = 0;
    return lnt_word_find(values, dense) >= 0;
}

static linnet_status read_other(lnt_ctx *c, const lnt_arch_other *other, const json_t *value, bool file, lnt_config *k)
{
    char shown[80];
    if (other->follows && file) return LINNET_OK; /* check_follows looks at it when all is read */
    if (other->follows) return lnt_fail(c, LINNET_EINVAL, "\"%s\" cannot be set: it is %s", other->key, other->why);
    if (other->values && !is_one_of(other->values, lnt_json_show(value, shown, sizeof shown))) {
        lnt_fail(c, LINNET_EINVAL, "%s is %s, expected %s", other->key, shown, other->values);
        return lnt_hint(c, "Another value changes what the model computes, and linnet does not offer it: %s.", other->why);
    }
    return keep(c, other->key, value, k);
}

#define LAYER_TYPES "layer_types"

/* set: read_key was asked, and takes keys that stand in no table too. */
static linnet_status refuse_unknown(lnt_ctx *c, const char *key, const lnt_config *k, bool set)
{
    char list[1400] = ""; /* the longest, falcon_h1's, is 1200 bytes */
    const lnt_arch *a = reads_as(k);
    const char *const more[] = {a->attn ? "attn" : NULL, a->layers ? LAYER_TYPES : NULL, "block", "norm", "mlp", "mixers", "layer_mixers"};
    const char *near = NULL;
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    int n = 0;
    bool elsewhere = !strcmp(key, "attn"), ours = false;
    for (int f = 0; f < LNT_FAMILIES; f++)
        for (int i = 0; lnt_kind_at((lnt_family)f, i); i++) elsewhere |= lnt_option_find(&lnt_kind_at((lnt_family)f, i)->options, key) != NULL;
    for (int i = 0; (t = lnt_config_table(k, i, &base, &part)) != NULL; i++)
        for (int j = 0; j < t->n; j++) {
            if (strlen(key) < 64 && lnt_word_distance(key, t->row[j].key) <= 2) near = t->row[j].key;
            ours |= !strcmp(key, t->row[j].key);
            if (n < (int)sizeof list) n += snprintf(list + n, sizeof list - (size_t)n, "%s%s", n ? ", " : "", t->row[j].key);
        }
    for (size_t i = 0; set && i < sizeof more / sizeof *more && n < (int)sizeof list; i++)
        if (more[i]) n += snprintf(list + n, sizeof list - (size_t)n, ", %s", more[i]);
    if (elsewhere) lnt_fail(c, LINNET_EINVAL, "\"%.60s\" is not a key of model type %s", key, k->model_type);
    else lnt_fail(c, LINNET_EINVAL, "unknown key \"%.60s\" for model type %s", key, k->model_type);
    if (ours) return lnt_hint(c, "It is a key of linnet's own model type alone.");
    return near && !elsewhere ? lnt_hint(c, "Did you mean \"%s\"?", near) : lnt_hint(c, "Its keys are %s.", list);
}

/* The mixer of each layer by the architecture's words; null: all have the first. */
static linnet_status read_layer_types(lnt_ctx *c, const lnt_arch *a, const json_t *value, lnt_config *k)
{
    char shown[80], words[200] = "";
    const size_t n = json_array_size(value);
    for (const lnt_arch_layer *l = a->layers; l->word; l++) snprintf(words + strlen(words), sizeof words - strlen(words), " %s", l->word);
    if (!json_is_null(value) && (!json_is_array(value) || n > LNT_MAX_LAYERS))
        return lnt_fail(c, LINNET_EINVAL, LAYER_TYPES " is %s, expected a word for each layer, of%s", lnt_json_show(value, shown, sizeof shown),
                        words);
    for (size_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(value, i));
        const lnt_arch_layer *l = a->layers;
        int mixer = 0;
        while (word && l->word && strcmp(l->word, word) != 0) l++;
        if (!word || !l->word)
            return lnt_fail(c, LINNET_EINVAL, LAYER_TYPES "[%zu] is %s, expected one of%s", i,
                            lnt_json_show(json_array_get(value, i), shown, sizeof shown), words);
        LNT_TRY(lnt_config_mixer_named(c, k, l->label ? l->label : l->mixer, -1, &mixer));
        k->mixer_of[i] = (uint8_t)mixer;
    }
    k->named_layers = (int)n;
    return LINNET_OK;
}

/* A key that several rows may name, for several of ours. */
static linnet_status put_each(lnt_ctx *c, const lnt_arch *a, const char *key, const lnt_given *v, lnt_config *k, bool *known)
{
    const lnt_arch *whole = a;
    for (; a; a = a->base)
        for (const lnt_arch_key *row = a->keys; row && row->ours; row++) {
            bool has = false;
            if (!row->theirs || strcmp(row->theirs, key) != 0 || lnt_arch_shadowed(whole, a, row)) continue;
            LNT_TRY(lnt_config_put(c, k, row->ours, v, &has));
            *known |= has;
            if (whole->spelled && row->only && has && !is_one_of(row->only, v->shown)) {
                lnt_fail(c, LINNET_EINVAL, "%s is %s, expected %s", key, v->shown, row->only);
                return lnt_hint(c, "Another value changes what the model computes, and linnet does not offer it here.");
            }
        }
    return LINNET_OK;
}

/* file: the key stands in a file of the model type, which may lack keys that --set may give. */
static linnet_status read_key(lnt_ctx *c, const char *key, const json_t *value, bool file, lnt_config *k)
{
    const lnt_arch *a = reads_as(k);
    if (!strcmp(key, "attn") && (a->attn || json_is_null(value))) { /* null says nothing about any type */
        const lnt_kind *kind = a->attn ? lnt_kind_find(LNT_MIXERS, a->attn) : NULL;
        for (int l = 0; !file && kind != k->mixers[0].kind && l < LNT_MAX_LAYERS; l++)
            if (k->mixers[k->mixer_of[l]].kind == kind) k->mixer_of[l] = 0;
        lnt_config_touch(k);
        return read_attn(c, a, value, k);
    }
    lnt_part *const single[] = {NULL, &k->block, &k->norm, &k->mlp};
    for (int f = LNT_BLOCKS; f < LNT_FAMILIES && !(file && a->class_name); f++)
        if (!strcmp(key, lnt_family_name((lnt_family)f))) return lnt_config_touch(k), read_single(c, (lnt_family)f, value, single[f]);
    if (!strcmp(key, "mixers")) return lnt_config_touch(k), read_mixers(c, value, k);
    if (!strcmp(key, "layer_mixers")) return lnt_config_touch(k), read_layer_mixers(c, value, k);
    if (a->layers && !strcmp(key, LAYER_TYPES)) return lnt_config_touch(k), read_layer_types(c, a, value, k);
    const lnt_arch_key *theirs = lnt_arch_their_key(a, key), *ours = lnt_arch_our_key(a, NULL, key);
    const lnt_given v = given_of(value);
    bool known = false;
    if (theirs) LNT_TRY(put_each(c, a, key, &v, k, &known));
    else if (!file || (!ours && !a->spelled)) LNT_TRY(lnt_config_put(c, k, key, &v, &known));
    if (known) return LINNET_OK;
    const lnt_arch_other *other = lnt_arch_other_key(a, key);
    return other ? read_other(c, other, value, file, k) : refuse_unknown(c, key, k, !(file && a->class_name));
}

static bool is_number(const json_t *v, double want) { return json_is_number(v) && fabs(json_number_value(v) - want) <= 1e-9 * fabs(want); }

static bool is_list_of(const json_t *v, int64_t count, double want)
{
    if (json_is_null(v) || is_number(v, want)) return true;
    bool same = json_is_array(v) && (int64_t)json_array_size(v) == count;
    for (size_t i = 0; i < json_array_size(v); i++) same &= is_number(json_array_get(v, i), want);
    return same;
}

/* Numbers that follow from what was read are what the file says. */
static linnet_status check_follows(lnt_ctx *c, const json_t *o, const lnt_config *k)
{
    for (const lnt_arch *a = reads_as(k); a; a = a->base)
        for (const lnt_arch_other *other = a->others; other && other->key; other++) {
            const json_t *value = other->follows ? json_object_get(o, other->key) : NULL;
            if (!value || json_is_null(value)) continue;
            const double want = other->follows(k);
            char shown[80];
            if (other->listed ? is_list_of(value, k->num_hidden_layers, want) : is_number(value, want)) continue;
            return lnt_fail(c, LINNET_EINVAL, "%s is %s, expected %s = %.15g%s", other->key, lnt_json_show(value, shown, sizeof shown), other->why,
                            want, other->listed ? " for each layer" : "");
        }
    return LINNET_OK;
}

/* ---- whole configurations ---- */

/* Keys of objects that the architecture has rows for, "a.b" in their place. */
static bool flatten(const lnt_arch *arch, json_t *o)
{
    bool fine = true;
    for (const lnt_arch *a = arch; a; a = a->base)
        for (const lnt_arch_key *row = a->keys; row && row->ours; row++) {
            const char *dot = row->theirs ? strchr(row->theirs, '.') : NULL, *key;
            char outer[64], path[160];
            json_t *value;
            if (!dot) continue;
            snprintf(outer, sizeof outer, "%.*s", (int)(dot - row->theirs), row->theirs);
            json_t *inner = json_object_get(o, outer);
            if (json_is_null(inner)) json_object_del(o, outer);
            if (!json_is_object(inner)) continue;
            json_incref(inner);
            json_object_del(o, outer);
            json_object_foreach(inner, key, value) {
                snprintf(path, sizeof path, "%s.%s", outer, key);
                fine &= json_object_set(o, path, value) == 0;
            }
            json_decref(inner);
        }
    return fine;
}

/* A file as its class's own keys say it, or the object itself. */
static linnet_status canonical(lnt_ctx *c, const lnt_arch *arch, const json_t *o, json_t **out)
{
    bool fine = true;
    *out = arch->spelled || arch->from_theirs ? json_deep_copy(o) : json_incref((json_t *)(uintptr_t)o);
    if (!*out) return lnt_fail_memory(c, 4096);
    for (const lnt_arch *a = arch; a; a = a->base)
        if (a->from_theirs && fine) fine = a->from_theirs(*out);
    if (fine && (!arch->spelled || flatten(arch, *out))) return LINNET_OK;
    json_decref(*out);
    *out = NULL;
    return lnt_fail(c, LINNET_EINVAL, "the configuration is not one that model type %s has", arch->model_type);
}

static linnet_status read_keys(lnt_ctx *c, const lnt_arch *arch, const json_t *o, lnt_config *k)
{
    /* what brings keys comes first, and behind the number of layers and heads what overrides them */
    static const char *const first[] = {"mixers", "layer_mixers", "block", "norm", "mlp"};
    enum { FIRST = sizeof first / sizeof *first };
    const char *key;
    json_t *value;
    const json_t *attn = json_object_get(o, "attn");
    for (int i = 0; i < FIRST; i++)
        if ((value = json_object_get(o, first[i])) != NULL) LNT_TRY(read_key(c, first[i], value, true, k));
    LNT_TRY(put_defaults(c, k, arch->absent, o));
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        bool done = !strcmp(key, "model_type") || !strcmp(key, "attn");
        for (int i = 0; i < FIRST; i++) done |= !strcmp(key, first[i]);
        if (!done) LNT_TRY(read_key(c, key, value, true, k));
    }
    if (attn) LNT_TRY(read_key(c, "attn", attn, true, k));
    LNT_TRY(lnt_config_check(c, k));
    LNT_TRY(check_follows(c, o, k));
    lnt_config_prune(k, false);
    if (arch->layers) k->named_layers = 0; /* the list had as many words as there are layers: another number of them can be set */
    return LINNET_OK;
}

linnet_status lnt_config_of_object(lnt_ctx *c, const lnt_arch *arch, const json_t *o, lnt_config *k)
{
    json_t *keys;
    const char *type = json_string_value(json_object_get(o, "model_type"));
    LNT_TRY(make(c, arch, type ? type : "", k));
    LNT_TRY(canonical(c, reads_as(k), o, &keys));
    linnet_status s = read_keys(c, reads_as(k), keys, k);
    json_decref(keys);
    return s;
}

static linnet_status read_object(lnt_ctx *c, const json_t *o, lnt_config *k)
{
    const json_t *type = json_object_get(o, "model_type");
    if (!json_is_object(o)) return lnt_fail(c, LINNET_EINVAL, "the configuration is not an object");
    if (!json_is_string(type)) return lnt_fail(c, LINNET_EINVAL, "the configuration has no model_type");
    if (!strcmp(json_string_value(type), lnt_arch_linnet.model_type) && !json_object_get(o, "mixers"))
        return lnt_fail(c, LINNET_EINVAL, "the configuration has no mixers");
    const lnt_arch *arch = lnt_arch_of_file(json_string_value(type), o);
    return lnt_config_of_object(c, arch, o, k);
}

linnet_status lnt_config_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, lnt_config **out)
{
    json_t *o;
    LNT_TRY(lnt_json_parse_python(c, path, text, bytes, &o));
    lnt_config *k = lnt_calloc(sizeof *k);
    linnet_status s = k ? read_object(c, o, k) : lnt_fail_memory(c, sizeof *k);
    json_decref(o);
    if (s == LINNET_OK) {
        *out = k;
        return LINNET_OK;
    }
    linnet_config_destroy(k);
    if (s != LINNET_EINVAL) return s;
    lnt_detail(c, "Read from %s.", path); /* what refuses knows no file */
    return LINNET_EFORMAT;
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
    LNT_NEED(c, path);
    LNT_NEED(c, out);
    if (!lnt_is_folder(path)) return load_file(c, path, out);
    size_t n = strlen(path) + sizeof "/config.json";
    char *inside = lnt_alloc(n);
    if (!inside) return lnt_fail_memory(c, n);
    snprintf(inside, n, "%s/config.json", path);
    linnet_status s = load_file(c, inside, out);
    lnt_free(inside);
    return s;
}

linnet_status linnet_config_create(linnet_context *c, const char *model_type, linnet_config **out)
{
    LNT_NEED(c, model_type);
    LNT_NEED(c, out);
    lnt_config *k = lnt_alloc(sizeof *k);
    if (!k) return lnt_fail_memory(c, sizeof *k);
    linnet_status s = make(c, NULL, model_type, k);
    if (s == LINNET_OK) lnt_config_prune(k, false), *out = k;
    else lnt_free(k);
    return s;
}

linnet_status linnet_config_set(linnet_context *c, linnet_config *k, const char *key, const char *value)
{
    LNT_NEED(c, k);
    LNT_NEED(c, key);
    LNT_NEED(c, value);
    if (!strcmp(key, "model_type")) {
        const lnt_arch *a = lnt_arch_find(value); /* a type, or the mixer that it is named for */
        if (!strcmp(value, k->model_type) || (a && a == lnt_arch_find(k->model_type))) return LINNET_OK;
        if (!strcmp(a && a->mixer ? a->mixer : value, k->mixers[0].kind->about.name)) return LINNET_OK;
        return lnt_fail(c, LINNET_EINVAL, "model_type is %s and cannot become \"%.60s\"", k->model_type, value);
    }
    json_error_t e;
    json_t *v = json_loads(value, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    if (!v && (value[0] == '{' || value[0] == '[' || value[0] == '"'))
        return lnt_fail(c, LINNET_EINVAL, "the value of %.60s is malformed JSON at column %d: %s", key, e.column, e.text);
    if (!v) v = json_string(value);
    if (!v) return lnt_fail(c, LINNET_EINVAL, "the value of %.60s is not UTF-8", key);
    lnt_config *next; /* what is refused leaves no trace */
    linnet_status s = lnt_config_copy(c, k, &next);
    if (s == LINNET_OK) {
        s = read_key(c, key, v, false, next);
        if (s == LINNET_OK) {
            const lnt_config before = *k;
            *k = *next;
            *next = before;
        }
        linnet_config_destroy(next);
    }
    json_decref(v);
    return s;
}

linnet_status linnet_config_get(linnet_context *c, const linnet_config *k, const char *key, char *text, size_t size)
{
    LNT_NEED(c, k);
    LNT_NEED(c, key);
    if (size) LNT_NEED(c, text);
    const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key;
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    for (int i = 0; (t = lnt_config_table(k, i, &base, &part)) != NULL; i++) {
        const lnt_option *o = lnt_option_find(t, name);
        if (!o || (dot && !lnt_config_labels(k, part, key))) continue;
        return lnt_config_value_text(c, o, base, text, size);
    }
    return refuse_unknown(c, key, k, false);
}
