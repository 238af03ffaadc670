#include "hub/archs.h"

#include <stdio.h>
#include <string.h>

static const lnt_arch *const archs[] = {
#define X(name) &lnt_arch_##name,
#include "hub/archs/archs.def"
#undef X
};
enum { ARCHS = sizeof archs / sizeof *archs };

const lnt_arch *lnt_arch_at(int i) { return i >= 0 && i < ARCHS ? archs[i] : NULL; }

const lnt_arch *lnt_arch_find(const char *model_type)
{
    for (int i = 0; i < ARCHS; i++)
        if (!strcmp(archs[i]->model_type, model_type)) return archs[i];
    return NULL;
}

linnet_status lnt_arch_named(lnt_ctx *c, const char *name, const lnt_arch **arch, const lnt_mixer **mixer)
{
    *arch = lnt_arch_find(name);
    *mixer = lnt_mixer_find(*arch && (*arch)->mixer ? (*arch)->mixer : name);
    for (int i = 0; !*arch && *mixer && i < ARCHS; i++) /* softmax attention's own type has another name */
        if (archs[i]->mixer && !strcmp(archs[i]->mixer, name)) *arch = archs[i];
    if (!*arch) *arch = &lnt_arch_linnet;
    if (!*mixer && lnt_arch_find(name)) *mixer = lnt_mixer_at(0); /* until the file names another */
    if (*mixer) return LINNET_OK;
    char list[900] = "";
    size_t at = 0;
    for (int i = 0; i < ARCHS && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", archs[i]->model_type);
    for (int i = 0; lnt_mixer_at(i) && at < sizeof list; i++)
        if (!lnt_arch_find(lnt_mixer_at(i)->kind.about.name))
            at += (size_t)snprintf(list + at, sizeof list - at, ", %s", lnt_mixer_at(i)->kind.about.name);
    return lnt_fail(c, LINNET_EINVAL, "model type \"%.60s\" is not offered, expected one of %s", name, list);
}

const lnt_arch_key *lnt_arch_our_key(const lnt_arch *a, const char *ours)
{
    for (; a; a = a->base)
        for (const lnt_arch_key *k = a->keys; k && k->ours; k++)
            if (!strcmp(k->ours, ours)) return k;
    return NULL;
}

const lnt_arch_key *lnt_arch_their_key(const lnt_arch *a, const char *theirs)
{
    for (; a; a = a->base)
        for (const lnt_arch_key *k = a->keys; k && k->ours; k++)
            if (k->theirs && !strcmp(k->theirs, theirs)) return k;
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
    const lnt_part *m = &k->mixers[0];
    const lnt_given v = lnt_option_get(lnt_option_find(&m->kind->options, key), m->options);
    return v.kind == LNT_GIVEN_REAL ? v.real : (double)v.integer;
}

/* ---- which class says it ---- */

static bool same_value(const lnt_option *o, const void *base, const char *text)
{
    lnt_given want, have = lnt_option_get(o, base);
    if (!lnt_given_of_text(text, &want) || want.kind == LNT_GIVEN_NULL || have.kind == LNT_GIVEN_NULL) return have.kind == want.kind;
    return o->kind == LNT_OPTION_WORD ? !strcmp(have.word, want.word) : have.real == want.real;
}

/* Every option has the value that the class needs. */
static bool says(const lnt_arch *a, const lnt_options *t, const void *base)
{
    for (int i = 0; i < t->n; i++) {
        const lnt_arch_key *k = lnt_arch_our_key(a, t->row[i].key);
        if (k && k->only && !same_value(&t->row[i], base, k->only)) return false;
    }
    return true;
}

/* A layer of the list "attn": what its entries cannot say has the default. */
static bool says_attn(const lnt_arch *a, const lnt_part *p)
{
    const lnt_options *t = &p->kind->options;
    if (!a->attn || strcmp(a->attn, p->kind->about.name) != 0) return false;
    for (int i = 0; i < t->n; i++) {
        lnt_given v = lnt_option_get(&t->row[i], p->options);
        bool plain = (t->row[i].kind == LNT_OPTION_SWITCH || t->row[i].kind == LNT_OPTION_INT) ? (double)v.integer == t->row[i].fallback
                                                                                            : v.real == t->row[i].fallback;
        if (lnt_word_find(a->attn_keys, t->row[i].key) < 0 && !plain) return false;
    }
    return true;
}

static bool kind_is(const lnt_part *p, lnt_family f, const char *name) { return p->kind == (name ? lnt_kind_find(f, name) : lnt_kind_at(f, 0)); }

static bool says_all(const lnt_arch *a, const lnt_config *k)
{
    if (!a->class_name || strcmp(k->mixers[0].kind->about.name, a->mixer) != 0) return false;
    if (!kind_is(&k->block, LNT_BLOCKS, a->block) || !kind_is(&k->norm, LNT_NORMS, a->norm) || !kind_is(&k->mlp, LNT_MLPS, a->mlp)) return false;
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    for (int i = 0; i < 5 && (t = lnt_config_table(k, i, &base, &part)) != NULL; i++)
        if (!says(a, t, base)) return false;
    for (int i = 1; i < k->n_mixers; i++)
        if (lnt_config_uses(k, i) && !says_attn(a, &k->mixers[i])) return false;
    return true;
}

const lnt_arch *lnt_arch_of(const lnt_config *k)
{
    const lnt_arch *own = lnt_arch_find(k->model_type);
    return own && says_all(own, k) ? own : &lnt_arch_linnet;
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

const char *lnt_arch_tensor_name(const lnt_arch *a, const char *ours, int try, char *out, size_t size)
{
    bool other = false;
    snprintf(out, size, "%s", ours);
    for (; a; a = a->base)
        for (const lnt_arch_tensor *t = a->tensors; t && t->ours; t++)
            if (!t->also || try == 1) other |= replace(out, size, t->ours, t->theirs) && t->also;
    return try == 0 || other ? out : NULL;
}
