#include "hub/archs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/number.h"

static const lnt_arch *const archs[] = {
#define X(name) &lnt_arch_##name,
#include "hub/archs/archs.def"
#undef X
};
enum { ARCHS = sizeof archs / sizeof *archs };

const lnt_arch *lnt_arch_at(int i) { return i >= 0 && i < ARCHS ? archs[i] : NULL; }

const char *lnt_arch_name(const lnt_arch *a) { return a->name ? a->name : a->model_type; }

const lnt_arch *lnt_arch_find(const char *name)
{
    for (int i = 0; i < ARCHS; i++)
        if (!strcmp(lnt_arch_name(archs[i]), name)) return archs[i];
    for (int i = 0; i < ARCHS; i++)
        if (!strcmp(archs[i]->model_type, name)) return archs[i];
    return NULL;
}

const lnt_arch *lnt_arch_of_file(const char *model_type, const json_t *o)
{
    const char *key;
    json_t *value;
    for (int i = 0; i < ARCHS; i++) {
        if (!archs[i]->told_by || strcmp(archs[i]->model_type, model_type) != 0) continue;
        json_object_foreach((json_t *)(uintptr_t)o, key, value)
            if (lnt_word_find(archs[i]->told_by, key) >= 0) return archs[i];
    }
    return lnt_arch_find(model_type);
}

linnet_status lnt_arch_named(lnt_ctx *c, const char *name, const lnt_arch **arch, const lnt_mixer **mixer)
{
    *arch = lnt_arch_find(name);
    *mixer = lnt_mixer_find(*arch && (*arch)->mixer ? (*arch)->mixer : name);
    for (int i = 0; !*arch && *mixer && i < ARCHS; i++) /* softmax attention's own type has another name */
        if (archs[i]->mixer && !archs[i]->spelled && !strcmp(archs[i]->mixer, name)) *arch = archs[i];
    if (!*arch) *arch = &lnt_arch_linnet;
    if (!*mixer && lnt_arch_find(name)) *mixer = lnt_mixer_at(0); /* until the file names another */
    if (*mixer) return LINNET_OK;
    char list[1400] = "";
    size_t at = 0;
    for (int i = 0; i < ARCHS && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", lnt_arch_name(archs[i]));
    for (int i = 0; lnt_mixer_at(i) && at < sizeof list; i++)
        if (!lnt_arch_find(lnt_mixer_at(i)->kind.about.name))
            at += (size_t)snprintf(list + at, sizeof list - at, ", %s", lnt_mixer_at(i)->kind.about.name);
    return lnt_fail(c, LINNET_EINVAL, "model type \"%.60s\" is not offered, expected one of %s", name, list);
}

/* Whether a row's key is `ours` of the part. */
static bool speaks_of(const lnt_arch_key *k, const lnt_part *part, const char *ours)
{
    const char *dot = strrchr(k->ours, '.');
    if (strcmp(dot ? dot + 1 : k->ours, ours) != 0) return false;
    const size_t n = dot ? (size_t)(dot - k->ours) : 0;
    return !dot || (part && strlen(part->label) == n && !memcmp(part->label, k->ours, n));
}

const lnt_arch_key *lnt_arch_our_key(const lnt_arch *a, const lnt_part *part, const char *ours)
{
    for (; a; a = a->base)
        for (const lnt_arch_key *k = a->keys; k && k->ours; k++)
            if (speaks_of(k, part, ours)) return k;
    return NULL;
}

bool lnt_arch_shadowed(const lnt_arch *a, const lnt_arch *base, const lnt_arch_key *row)
{
    for (; a && a != base; a = a->base)
        for (const lnt_arch_key *k = a->keys; k && k->ours; k++)
            if (!strcmp(k->ours, row->ours)) return true;
    return false;
}

const lnt_arch_key *lnt_arch_their_key(const lnt_arch *a, const char *theirs)
{
    const lnt_arch *const first = a;
    for (; a; a = a->base)
        for (const lnt_arch_key *k = a->keys; k && k->ours; k++)
            if (k->theirs && !strcmp(k->theirs, theirs) && !lnt_arch_shadowed(first, a, k)) return k;
    return NULL;
}

const lnt_arch_other *lnt_arch_other_key(const lnt_arch *a, const char *key)
{
    for (; a; a = a->base)
        for (const lnt_arch_other *o = a->others; o && o->key; o++)
            if (!strcmp(o->key, key)) return o;
    return NULL;
}

double lnt_arch_number(const lnt_config *k, const char *key)
{
    for (int i = 0; i < k->n_mixers; i++) {
        const lnt_part *m = &k->mixers[i];
        const lnt_option *o = lnt_option_find(&m->kind->options, key);
        const lnt_given v = o ? lnt_option_get(o, m->options) : (lnt_given){0};
        if (o) return v.kind == LNT_GIVEN_REAL ? v.real : (double)v.integer;
    }
    return 0;
}

/* ---- which class says it ----
 *
 * What fails says why, for a message, where `why` is not NULL. */

static bool no(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool no(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (why) lnt_format_list(why, LNT_ARCH_WHY, format, args);
    va_end(args);
    return false;
}

/* An option with its value; part: NULL for the common keys. */
static bool no_option(char *why, const lnt_part *part, const lnt_option *o, const void *base)
{
    char value[64] = "";
    if (why) lnt_config_value_text(NULL, o, base, value, sizeof value);
    return no(why, "%s%s%s is %s", part ? part->kind->about.name : "", part ? "'s " : "", o->key, value);
}

static bool same_value(const lnt_option *o, const void *base, const char *text)
{
    lnt_given want, have = lnt_option_get(o, base);
    if (!lnt_given_of_text(text, &want) || want.kind == LNT_GIVEN_NULL || have.kind == LNT_GIVEN_NULL) return have.kind == want.kind;
    return o->kind == LNT_OPTION_WORD ? !strcmp(have.word, want.word) : have.real == want.real;
}

/* Every option has the value that the class needs. */
static bool says(const lnt_arch *a, const lnt_options *t, const lnt_part *part, const void *base, char *why)
{
    for (int i = 0; i < t->n; i++) {
        const lnt_arch_key *k = lnt_arch_our_key(a, part, t->row[i].key);
        if (k && k->only && !same_value(&t->row[i], base, k->only)) return no_option(why, part, &t->row[i], base);
    }
    return true;
}

/* A layer of the list "attn": what its entries cannot say has the default. */
static bool says_attn(const lnt_arch *a, const lnt_part *p, char *why)
{
    const lnt_options *t = &p->kind->options;
    if (!a->attn || strcmp(a->attn, p->kind->about.name) != 0) return no(why, "a layer is %s", p->kind->about.name);
    for (int i = 0; i < t->n; i++) {
        lnt_given v = lnt_option_get(&t->row[i], p->options);
        bool plain = (t->row[i].kind == LNT_OPTION_SWITCH || t->row[i].kind == LNT_OPTION_INT) ? (double)v.integer == t->row[i].fallback
                                                                                            : v.real == t->row[i].fallback;
        if (lnt_word_find(a->attn_keys, t->row[i].key) < 0 && !plain) return no_option(why, p, &t->row[i], p->options);
    }
    return true;
}

static bool kind_is(const lnt_part *p, lnt_family f, const char *name, const char *what, char *why)
{
    const lnt_kind *kind = name ? lnt_kind_find(f, name) : lnt_kind_at(f, 0);
    return p->kind == kind || no(why, "the %s is %s, not %s", what, p->kind->about.name, kind->about.name);
}
/* Block, norm and MLP. */
static bool frame_is(const lnt_arch *a, const lnt_config *k, char *why)
{
    return kind_is(&k->block, LNT_BLOCKS, a->block, "block", why) && kind_is(&k->norm, LNT_NORMS, a->norm, "norm", why) &&
           kind_is(&k->mlp, LNT_MLPS, a->mlp, "MLP", why);
}

/* The rule for an MLP's width says nothing beside the width. */
static bool overruled(const lnt_part *p, const char *key)
{
    const lnt_option *width = lnt_option_find(&p->kind->options, "intermediate_size");
    return width && lnt_option_get(width, p->options).kind != LNT_GIVEN_NULL && (!strcmp(key, "hidden_ratio") || !strcmp(key, "multiple_of"));
}

static bool same_table(const lnt_options *t, const void *x, const void *y, const lnt_part *p, const lnt_part *q, char *why)
{
    for (int r = 0; r < t->n; r++) {
        if (p && overruled(p, t->row[r].key) && overruled(q, t->row[r].key)) continue;
        const lnt_given u = lnt_option_get(&t->row[r], x), v = lnt_option_get(&t->row[r], y);
        if (u.kind != v.kind || u.real != v.real) return no_option(why, p, &t->row[r], x);
    }
    return true;
}
static bool same_part(const lnt_part *p, const lnt_part *q, char *why)
{
    return p->kind == q->kind ? same_table(&p->kind->options, p->options, q->options, p, q, why) : no(why, "a part is %s", p->kind->about.name);
}
static bool same_model(const lnt_config *a, const lnt_config *b, char *why)
{
    const lnt_part *part;
    void *x, *y;
    const lnt_options *t = lnt_config_table(a, 0, &x, &part);
    lnt_config_table(b, 0, &y, &part);
    if (!same_table(t, x, y, NULL, NULL, why) || !same_part(&a->block, &b->block, why) || !same_part(&a->norm, &b->norm, why) ||
        !same_part(&a->mlp, &b->mlp, why))
        return false;
    for (int l = 0; l < a->num_hidden_layers; l++)
        if (!same_part(&a->mixers[a->mixer_of[l]], &b->mixers[b->mixer_of[l]], why)) return false;
    return true;
}
bool lnt_config_equal(const lnt_config *a, const lnt_config *b) { return same_model(a, b, NULL); }

/* Block, norm, MLP and mixers are of the class's kinds: without them its keys say nothing. */
static bool made_of(const lnt_arch *a, const lnt_config *k, char *why)
{
    if (!frame_is(a, k, why)) return false;
    for (int i = 0; i < k->n_mixers; i++) {
        const lnt_arch_layer *l = a->layers;
        const char *name = k->mixers[i].kind->about.name;
        if (!lnt_config_uses(k, i)) continue;
        while (l && l->word && strcmp(l->mixer, name) != 0) l++;
        if (l ? !l->word : strcmp(a->mixer, name) != 0) return no(why, "a layer is %s", name);
    }
    return true;
}

/* What is written as the class's reads back the same. */
static bool spells(const lnt_arch *a, const lnt_config *k, char *why)
{
    json_t *o = a->class_name && made_of(a, k, why) ? lnt_config_spell(a, k) : NULL;
    lnt_config *again = o ? lnt_calloc(sizeof *again) : NULL;
    const bool same = again && lnt_config_of_object(NULL, a, o, again) == LINNET_OK && same_model(k, again, why);
    linnet_config_destroy(again);
    json_decref(o);
    return same;
}

bool lnt_arch_says(const lnt_arch *a, const lnt_config *k, char *why)
{
    if (why) *why = 0;
    if (a->spelled) return spells(a, k, why);
    if (!a->class_name || strcmp(k->mixers[0].kind->about.name, a->mixer) != 0) return no(why, "a layer is %s", k->mixers[0].kind->about.name);
    if (!frame_is(a, k, why)) return false;
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    for (int i = 0; i < 5 && (t = lnt_config_table(k, i, &base, &part)) != NULL; i++)
        if (!says(a, t, part, base, why)) return false;
    for (int i = 1; i < k->n_mixers; i++)
        if (lnt_config_uses(k, i) && !says_attn(a, &k->mixers[i], why)) return false;
    return true;
}

const lnt_arch *lnt_arch_of(const lnt_config *k)
{
    const lnt_arch *own = lnt_arch_find(k->model_type);
    return own && lnt_arch_says(own, k, NULL) ? own : &lnt_arch_linnet;
}

/* ---- tensors ---- */

static bool replace(char *text, size_t size, const char *from, const char *to)
{
    char *at = strstr(text, from);
    size_t n = strlen(from), m = strlen(to);
    if (!at || strlen(text) - n + m >= size) return false;
    memmove(at + m, at + n, strlen(at + n) + 1);
    memcpy(at, to, m);
    return true;
}

/* The label of the layer that a name is of; NULL: of none. */
static const char *layer_label(const lnt_config *k, const char *name)
{
    const char *at = strstr(name, "layers.");
    const long l = at ? strtol(at + 7, NULL, 10) : -1;
    return k && l >= 0 && l < k->num_hidden_layers ? k->mixers[k->mixer_of[l]].label : NULL;
}

static bool meant(const char *mixer, const char *label) { return !mixer || (label && !strcmp(mixer, label)); }

const char *lnt_arch_tensor_name(const lnt_arch *a, const lnt_config *k, const char *ours, int try, char *out, size_t size)
{
    bool other = false;
    const char *label = a ? layer_label(k, ours) : NULL;
    snprintf(out, size, "%s", ours);
    for (; a; a = a->base) {
        for (const lnt_arch_tensor *t = a->tensors; t && t->ours; t++)
            if (!t->also || try == 1) other |= replace(out, size, t->ours, t->theirs) && t->also;
        for (const lnt_arch_rename *t = a->renames; t && t->ours; t++)
            if (meant(t->mixer, label)) replace(out, size, t->ours, t->theirs);
    }
    return try == 0 || other ? out : NULL;
}

lnt_arch_form lnt_arch_tensor_form(const lnt_arch *a, const lnt_config *k, const char *ours)
{
    const char *label = a ? layer_label(k, ours) : NULL;
    for (; a; a = a->base)
        for (const lnt_arch_rename *t = a->renames; t && t->ours; t++)
            if ((t->lead || t->turned) && meant(t->mixer, label) && strstr(ours, t->ours))
                return (lnt_arch_form){t->lead, t->turned ? (int64_t)t->turned(k) : 0};
    return (lnt_arch_form){0, 0};
}

/* The parts of a row under `stem`, and which of them q is. */
static bool find_parts(const lnt_arch_rows *r, const lnt_program *p, const lnt_param *q, lnt_arch_place *x, size_t *stem)
{
    char word[128], name[640];
    const size_t n = strlen(q->name);
    *stem = SIZE_MAX;
    for (int i = 0; *lnt_word_at(r->ours, i, word, sizeof word); i++) {
        const size_t m = strlen(word);
        if (m < n && !strcmp(q->name + n - m, word)) *stem = n - m;
    }
    x->parts = 0, x->which = -1;
    for (int i = 0; *stem != SIZE_MAX && *lnt_word_at(r->ours, i, word, sizeof word) && x->parts < LNT_ARCH_PARTS; i++) {
        snprintf(name, sizeof name, "%.*s%s", (int)*stem, q->name, word);
        const lnt_param *part = lnt_param_find(p, name);
        if (!part) continue;
        if (part == q) x->which = x->parts;
        x->part[x->parts++] = part;
    }
    return x->which >= 0;
}

linnet_status lnt_arch_find_place(lnt_ctx *c, const lnt_arch *a, const lnt_config *k, const lnt_program *p, const lnt_param *q, lnt_arch_place *x,
                                  bool *found)
{
    const char *label = a ? layer_label(k, q->name) : NULL;
    size_t stem = 0;
    char name[512], theirs[512];
    *found = false;
    for (const lnt_arch *at = a; at; at = at->base)
        for (const lnt_arch_rows *r = at->rows; r && r->theirs; r++) {
            if (!meant(r->mixer, label) || !find_parts(r, p, q, x, &stem)) continue;
            const int64_t count = r->count ? (int64_t)r->count(k) : 1;
            const bool pieces = strstr(r->theirs, "%d") != NULL;
            snprintf(name, sizeof name, "%.*s", (int)stem, q->name);
            if (!lnt_arch_tensor_name(a, k, name, 0, theirs, sizeof theirs)) continue;
            snprintf(x->theirs, sizeof x->theirs, "%.511s%.120s", theirs, r->theirs);
            x->pieces = pieces ? count : 1;
            x->groups = pieces ? 1 : count;
            x->all = 0;
            for (int i = 0; i < x->parts; i++) {
                if (count < 1 || x->part[i]->dim[0] % count)
                    return lnt_fail(c, LINNET_EINVAL, "tensor \"%s\" has %lld rows, which do not divide into %lld", x->part[i]->name,
                                    (long long)x->part[i]->dim[0], (long long)count);
                x->rows[i] = x->part[i]->dim[0] / count;
                x->all += x->rows[i];
            }
            *found = true;
            return LINNET_OK;
        }
    return LINNET_OK;
}
