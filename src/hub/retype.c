/* The same model under another model type: what linnet convert writes. A type says a configuration when what is written as that type's reads back as
 * the same model, with the same parameters. */
#include <stdio.h>
#include <string.h>

#include "hub/archs.h"
#include "model/model.h"

/* Of the keys kept from a file, those that say nothing about a class: they go along. */
static linnet_status keep_bookkeeping(lnt_ctx *c, lnt_config *k)
{
    static const char *const about_class[] = {"architectures", "auto_map", "transformers_version"};
    json_t *kept = k->kept_json ? json_loads(k->kept_json, 0, NULL) : NULL, *value;
    const char *key;
    void *next;
    if (!kept) return LINNET_OK;
    for (size_t i = 0; i < sizeof about_class / sizeof *about_class; i++) json_object_del(kept, about_class[i]);
    json_object_foreach_safe(kept, next, key, value)
        if (!lnt_arch_other_key(&lnt_arch_transformers, key)) json_object_del(kept, key);
    lnt_free(k->kept_json);
    k->kept_json = lnt_json_text(kept, JSON_SORT_KEYS);
    json_decref(kept);
    return k->kept_json ? LINNET_OK : lnt_fail_memory(c, 4096);
}

/* Same names and shapes. */
static linnet_status same_parameters(lnt_ctx *c, const lnt_config *a, const lnt_config *b, bool *same)
{
    linnet_model *m = NULL, *n = NULL;
    linnet_status s = lnt_model_outline(c, a, LINNET_F32, &m);
    if (s == LINNET_OK) s = lnt_model_outline(c, b, LINNET_F32, &n);
    *same = s == LINNET_OK && lnt_param_count(m->p) == lnt_param_count(n->p);
    for (int i = 0; *same && i < lnt_param_count(m->p); i++) {
        const lnt_param *p = lnt_param_at(m->p, i), *q = lnt_param_find(n->p, p->name);
        *same = q && q->ndim == p->ndim && !memcmp(q->dim, p->dim, sizeof p->dim);
    }
    linnet_model_destroy(m);
    linnet_model_destroy(n);
    return s;
}

/* A class without a rule for the MLP's width is told the number that ours comes to. */
static linnet_status say_width(lnt_ctx *c, const lnt_arch *a, lnt_config *k)
{
    static const char end[] = ".mlp.down_proj.weight";
    const lnt_option *width = lnt_option_find(&k->mlp.kind->options, "intermediate_size");
    const lnt_arch_key *rule = lnt_arch_our_key(a, &k->mlp, "hidden_ratio");
    if (!a->spelled || !width || rule || lnt_option_get(width, k->mlp.options).kind != LNT_GIVEN_NULL) return LINNET_OK;
    linnet_model *m;
    LNT_TRY(lnt_model_outline(c, k, LINNET_F32, &m));
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        const size_t n = strlen(q->name);
        if (n < sizeof end || strcmp(q->name + n + 1 - sizeof end, end) != 0 || q->ndim != 2) continue;
        lnt_config_put_int(k, "intermediate_size", q->dim[1]);
        break;
    }
    linnet_model_destroy(m);
    return LINNET_OK;
}

/* A class without heads of their own width has those that fill the model. */
static void leave_head_width(const lnt_arch *a, lnt_config *k)
{
    static const lnt_given none = {.kind = LNT_GIVEN_NULL};
    for (int i = 0; i < k->n_mixers; i++) {
        const lnt_part *m = &k->mixers[i];
        const lnt_option *width = lnt_option_find(&m->kind->options, "attention_head_dim"), *heads = lnt_option_find(&m->kind->options, "num_heads");
        const lnt_arch_key *key = width ? lnt_arch_our_key(a, m, width->key) : NULL;
        if (!width || !heads || (key && key->theirs)) continue;
        if (lnt_option_get(width, m->options).integer * lnt_option_get(heads, m->options).integer == k->hidden_size)
            lnt_option_put(NULL, "", width, &none, m->options);
    }
}

static linnet_status as(lnt_ctx *c, const lnt_config *k, const lnt_arch *a, lnt_config **out, char *why)
{
    lnt_config *copy = NULL, *again = NULL;
    bool same = false;
    *out = NULL;
    LNT_TRY(lnt_config_copy(c, k, &copy));
    const bool other = lnt_arch_find(k->model_type) != a;
    linnet_status s = other ? keep_bookkeeping(c, copy) : LINNET_OK;
    snprintf(copy->model_type, sizeof copy->model_type, "%s", lnt_arch_name(a));
    lnt_config_touch(copy);
    if (s == LINNET_OK) s = say_width(c, a, copy);
    if (a->class_name) leave_head_width(a, copy);
    if (s == LINNET_OK && (a->class_name ? lnt_arch_says(a, copy, why) : lnt_arch_of(copy) == a)) {
        const char *text = linnet_config_json(copy);
        if (!text) s = lnt_fail_memory(c, 4096);
        else if (lnt_config_parse(NULL, "what is written", text, strlen(text), &again) != LINNET_OK) again = NULL;
        if (again && lnt_config_equal(copy, again)) s = same_parameters(c, k, again, &same);
    }
    linnet_config_destroy(copy);
    if (s == LINNET_OK && same) return *out = again, LINNET_OK;
    linnet_config_destroy(again);
    return s;
}

linnet_status lnt_config_as(lnt_ctx *c, const lnt_config *k, const lnt_arch *a, lnt_config **out) { return as(c, k, a, out, NULL); }

/* Whether the type is one of the library that `base` stands for. */
static bool is_of(const lnt_arch *a, const lnt_arch *base)
{
    bool ours = false, fla = false;
    for (const lnt_arch *at = a; at; at = at->base) fla |= at == &lnt_arch_fla, ours |= at == &lnt_arch_transformers;
    return a->class_name && (base == &lnt_arch_fla ? fla : ours && !fla);
}

static linnet_status first_of(lnt_ctx *c, const lnt_config *k, const lnt_arch *base, lnt_config **out)
{
    const lnt_arch *own = lnt_arch_find(k->model_type);
    *out = NULL;
    if (own && is_of(own, base)) LNT_TRY(lnt_config_as(c, k, own, out));
    for (int i = 0; !*out && lnt_arch_at(i); i++)
        if (is_of(lnt_arch_at(i), base)) LNT_TRY(lnt_config_as(c, k, lnt_arch_at(i), out));
    return LINNET_OK;
}

linnet_status lnt_config_retype(lnt_ctx *c, const lnt_config *k, const char *to, lnt_config **out)
{
    const bool fla = !strcmp(to, "fla"), transformers = !strcmp(to, "transformers");
    const lnt_arch *a = fla || transformers ? NULL : lnt_arch_find(to);
    if (!fla && !transformers && !a)
        return lnt_fail(c, LINNET_EINVAL, "\"%.60s\" is no model type, expected fla, transformers, linnet or a model type of theirs", to);
    char why[LNT_ARCH_WHY] = "";
    if (a) LNT_TRY(as(c, k, a, out, why));
    else LNT_TRY(first_of(c, k, fla ? &lnt_arch_fla : &lnt_arch_transformers, out));
    if (*out) return LINNET_OK;
    if (a)
        lnt_fail(c, LINNET_EINVAL, "model type %s does not compute this model (%s)%s%s", lnt_arch_name(a), k->model_type, *why ? ": " : "", why);
    else
        lnt_fail(c, LINNET_EINVAL, "no class of %s computes this model (%s)", fla ? "flash-linear-attention" : "Transformers", k->model_type);
    return lnt_hint(c, "--to linnet keeps it, as linnet's own model type.");
}
