#include "model/config.h"

#include <stdio.h>
#include <string.h>

#define MAX_VOCABULARY 16777216

static const lnt_option keys[] = {
    LNT_INT(lnt_config, vocab_size, 1, MAX_VOCABULARY, 32000, "token ids"),
    LNT_INT(lnt_config, hidden_size, 1, LNT_MOST_WIDTH, 2048, "columns of the residual stream"),
    LNT_INT(lnt_config, num_hidden_layers, 1, LNT_MAX_LAYERS, 24, "layers"),
    LNT_REAL(lnt_config, norm_eps, 0, 1, 1e-6, "added to mean squares and variances"),
    LNT_REAL(lnt_config, initializer_range, 0, 10, 0.02, "standard deviation of fresh weights"),
    LNT_SWITCH(lnt_config, tie_word_embeddings, false, "the head's weights are the embeddings"),
    LNT_INT(lnt_config, max_position_embeddings, 1, LNT_MOST_TOKENS, 2048, "tokens that key-value caches are counted at"),
    LNT_MAYBE_INT(lnt_config, bos_token_id, 0, MAX_VOCABULARY - 1, 1, -1, "id before a text"),
    LNT_MAYBE_INT(lnt_config, eos_token_id, 0, MAX_VOCABULARY - 1, 2, -1, "id behind a text"),
    LNT_MAYBE_INT(lnt_config, pad_token_id, 0, MAX_VOCABULARY - 1, -1, -1, "id that fills up"),
    LNT_MAYBE_REAL(lnt_config, logit_soft_cap, 0, 1e6, 0, "logits become cap tanh(logit/cap)"),
    LNT_SWITCH(lnt_config, scale_embeddings, false, "embeddings times hidden_size^1/2"),
    LNT_REAL(lnt_config, embedding_multiplier, -1e9, 1e9, 1, "embeddings times this"),
    LNT_REAL(lnt_config, logit_multiplier, -1e9, 1e9, 1, "logits times this, before the cap"),
    LNT_REAL(lnt_config, logit_divisor, 1e-9, 1e9, 1, "logits divided by this, before the cap"),
    LNT_SWITCH(lnt_config, fan_in_init, false, "fresh weights have the standard deviation fan-in^-1/2, embeddings hidden_size^-1/2"),
    LNT_SWITCH(lnt_config, depth_init, false, "fresh projections back to the residual stream have the variance 2/num_hidden_layers of fan-in's"),
    LNT_SWITCH(lnt_config, residual_in_fp32, true, "the residual stream is float32 in bf16 models too; false: it has the activations' type"),
    LNT_WORD(lnt_config, readout, "token last", LNT_FROM_TOKEN,
             "whose vector logits are made of: token: its own; last: that of its sequence's last, through a decoder that is told the place"),
};
const lnt_options lnt_common_keys = LNT_OPTIONS(lnt_config, keys);

void lnt_config_touch(lnt_config *k)
{
    lnt_free(k->json);
    k->json = NULL;
}

/* ---- parts ---- */

linnet_status lnt_part_become(lnt_ctx *c, lnt_part *p, const lnt_kind *kind, const char *label)
{
    void *options = lnt_calloc(kind->options.size);
    if (!options) return lnt_fail_memory(c, kind->options.size);
    lnt_options_default(&kind->options, options);
    if (p->kind) lnt_options_carry(&p->kind->options, p->options, &kind->options, options);
    lnt_free(p->options);
    *p = (lnt_part){.kind = kind, .options = options};
    snprintf(p->label, sizeof p->label, "%s", label);
    return LINNET_OK;
}

linnet_status lnt_config_make(lnt_ctx *c, const char *model_type, const lnt_mixer *mixer, lnt_config *out)
{
    *out = (lnt_config){.n_mixers = 1};
    snprintf(out->model_type, sizeof out->model_type, "%s", model_type);
    lnt_options_default(&lnt_common_keys, out);
    linnet_status s;
    LNT_TRY_GOTO(s, lnt_part_become(c, &out->block, lnt_kind_at(LNT_BLOCKS, 0), "block"), fail);
    LNT_TRY_GOTO(s, lnt_part_become(c, &out->norm, lnt_kind_at(LNT_NORMS, 0), "norm"), fail);
    LNT_TRY_GOTO(s, lnt_part_become(c, &out->mlp, lnt_kind_at(LNT_MLPS, 0), "mlp"), fail);
    LNT_TRY_GOTO(s, lnt_part_become(c, &out->mixers[0], &mixer->kind, mixer->kind.about.name), fail);
    return LINNET_OK;
fail:
    lnt_config_clear(out);
    return s;
}

void lnt_config_clear(lnt_config *k)
{
    lnt_part *const single[] = {&k->block, &k->norm, &k->mlp};
    for (int i = 0; i < 3; i++) lnt_free(single[i]->options);
    for (int i = 0; i < k->n_mixers; i++) lnt_free(k->mixers[i].options);
    lnt_free(k->kept_json);
    lnt_free(k->json);
    *k = (lnt_config){0};
}

void linnet_config_destroy(linnet_config *k)
{
    if (k) lnt_config_clear(k);
    lnt_free(k);
}

static bool copy_part(lnt_part *p)
{
    const void *from = p->options;
    const size_t bytes = p->kind ? p->kind->options.size : 0;
    p->options = p->kind ? lnt_calloc(bytes) : NULL;
    if (p->options && bytes) memcpy(p->options, from, bytes);
    return p->options || !p->kind;
}

linnet_status lnt_config_copy(lnt_ctx *c, const lnt_config *k, lnt_config **out)
{
    lnt_config *o = lnt_alloc(sizeof *o);
    if (!o) return lnt_fail_memory(c, sizeof *o);
    *o = *k;
    o->json = NULL;
    o->kept_json = k->kept_json ? lnt_strdup(k->kept_json) : NULL;
    bool fine = !k->kept_json || o->kept_json;
    lnt_part *const single[] = {&o->block, &o->norm, &o->mlp};
    for (int i = 0; i < 3; i++) fine &= copy_part(single[i]);
    for (int i = 0; i < o->n_mixers; i++) fine &= copy_part(&o->mixers[i]);
    if (fine) {
        *out = o;
        return LINNET_OK;
    }
    lnt_config_clear(o);
    lnt_free(o);
    return lnt_fail_memory(c, sizeof *o);
}

/* ---- mixers by name ---- */

/* Only mixers' kinds are parts among them. */
static const lnt_mixer *mixer_of_part(const lnt_part *p) { return (const lnt_mixer *)p->kind; }

static int64_t int_of(const lnt_part *p, const char *key, int64_t missing)
{
    const lnt_option *o = lnt_option_find(&p->kind->options, key);
    return o && o->kind == LNT_OPTION_INT ? lnt_option_get(o, p->options).integer : missing;
}

static const lnt_part *labelled(const lnt_config *k, const char *label)
{
    for (int i = 0; i < k->n_mixers; i++)
        if (!strcmp(k->mixers[i].label, label)) return &k->mixers[i];
    return NULL;
}

linnet_status lnt_config_add_mixer(lnt_ctx *c, lnt_config *k, const lnt_mixer *mixer, const char *label, int *index)
{
    lnt_part *p = &k->mixers[k->n_mixers];
    const lnt_part *alike = NULL;
    char name[LNT_NAME];
    if (k->n_mixers == LNT_MAX_PARTS)
        return lnt_fail(c, LINNET_EINVAL, "more than %d mixers with options of their own", LNT_MAX_PARTS);
    snprintf(name, sizeof name, "%s", label);
    for (int n = 2; labelled(k, name); n++) snprintf(name, sizeof name, "%.30s.%d", label, n);
    *p = (lnt_part){0};
    LNT_TRY(lnt_part_become(c, p, &mixer->kind, name));
    for (int i = k->n_mixers - 1; i >= 0; i--)
        if (k->mixers[i].kind == p->kind) alike = &k->mixers[i];
    if (alike) {
        memcpy(p->options, alike->options, p->kind->options.size);
    } else {
        int64_t heads = k->sized_heads, head = k->sized_head; /* what a mixer made of them is its own: Mamba-2 has twice as many */
        for (int i = 0; !heads && i < k->n_mixers; i++) {
            heads = int_of(&k->mixers[i], "num_heads", 0);
            head = int_of(&k->mixers[i], "head_dim", 0); /* either may be null and follow from the other */
            if (!heads && head) heads = k->hidden_size / head;
        }
        if (!head && heads) head = k->hidden_size / heads;
        if (heads) lnt_mixer_size(mixer, p->options, heads, head > 0 ? head : 1);
    }
    *index = k->n_mixers++;
    return LINNET_OK;
}

linnet_status lnt_no_mixer(lnt_ctx *c, const char *word, const char *also)
{
    char known[1024], one[LNT_NAME], near[LNT_NAME] = "";
    size_t at = (size_t)snprintf(known, sizeof known, "%s", also);
    for (int i = 0; lnt_mixer_at(i) && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? " " : "", lnt_mixer_at(i)->kind.about.name);
    for (int i = 0, least = 3; strlen(word) > 2 && strlen(word) < LNT_NAME && *lnt_word_at(known, i, one, sizeof one); i++) {
        const int d = strncmp(one, word, strlen(word)) == 0 ? 1 : lnt_word_distance(word, one); /* as if the rest were one letter */
        if (d >= least) continue;
        least = d;
        snprintf(near, sizeof near, "%s", one);
    }
    lnt_fail(c, LINNET_EINVAL, "\"%.60s\" is no mixer, expected %.800s", word, known);
    return *near ? lnt_hint(c, "Did you mean \"%s\"?", near) : LINNET_EINVAL;
}

/* What a window in a pattern sets; NULL: nothing. word: a variant's, or NULL. */
static const lnt_option *window_key(const lnt_mixer *mixer, const char *word)
{
    const lnt_windowed *w = mixer->windowed;
    if (!w) return word ? NULL : lnt_option_find(&mixer->kind.options, "window_size");
    while (w->key && (!w->word != !word || (word && strcmp(w->word, word) != 0))) w++;
    return w->key ? lnt_option_find(&mixer->kind.options, w->key) : NULL;
}

int64_t lnt_config_window(const lnt_config *k, int layer, const char *word)
{
    const lnt_part *p = &k->mixers[k->mixer_of[layer]];
    const lnt_mixer *mixer = mixer_of_part(p);
    const lnt_option *variant = mixer->variant ? lnt_option_find(&mixer->kind.options, mixer->variant) : NULL;
    char name[LNT_NAME];
    if (variant) lnt_word_at(variant->words, *(const int *)((const char *)p->options + variant->offset), name, sizeof name);
    else snprintf(name, sizeof name, "%s", mixer->kind.about.name);
    const lnt_option *key = strcmp(name, word) != 0 ? NULL : window_key(mixer, variant ? word : NULL);
    return key ? int_of(p, key->key, 0) : -1;
}

/* Whether a part is what a word and a window ask for. */
static bool is_that(const lnt_part *p, const lnt_mixer *mixer, const lnt_option *variant, int word, const lnt_option *key, int64_t window)
{
    if (p->kind != &mixer->kind) return false;
    if (variant && *(const int *)((const char *)p->options + variant->offset) != word) return false;
    return !key || window < 0 || int_of(p, key->key, 0) == window || (window == 0 && !p->window_named);
}

linnet_status lnt_config_mixer_named(lnt_ctx *c, lnt_config *k, const char *word, int64_t window, int *index)
{
    const lnt_mixer *mixer = mixer_of_part(&k->mixers[0]);
    const lnt_option *variant = mixer->variant ? lnt_option_find(&mixer->kind.options, mixer->variant) : NULL;
    const lnt_part *p = window < 0 ? labelled(k, word) : NULL;
    if (p) {
        *index = (int)(p - k->mixers);
        return LINNET_OK;
    }
    int place = variant ? lnt_word_find(variant->words, word) : -1;
    if (place < 0) {
        mixer = lnt_mixer_find(word);
        if (!mixer) return lnt_no_mixer(c, word, variant ? variant->words : "");
        variant = NULL;
    }
    const lnt_option *key = window_key(mixer, variant ? word : NULL);
    if (window > 0 && !key) return lnt_fail(c, LINNET_EINVAL, "%s has no window", word);
    if (!key) window = -1;
    for (int i = 0; i < k->n_mixers; i++)
        if (is_that(&k->mixers[i], mixer, variant, place, key, window)) {
            if (variant && !labelled(k, word)) snprintf(k->mixers[i].label, sizeof k->mixers[i].label, "%s", word); /* what tells it from others */
            *index = i;
            return LINNET_OK;
        }
    LNT_TRY(lnt_config_add_mixer(c, k, mixer, word, index));
    char *options = k->mixers[*index].options;
    if (variant) *(int *)(options + variant->offset) = place;
    lnt_options_unset_unread(&mixer->kind.options, options);
    if (window >= 0) lnt_options_put_int(&mixer->kind.options, options, key->key, window);
    k->mixers[*index].window_named = window > 0;
    return LINNET_OK;
}

bool lnt_config_uses(const lnt_config *k, int part)
{
    for (int l = 0; l < k->num_hidden_layers; l++)
        if (k->mixer_of[l] == part) return true;
    return false;
}

void lnt_config_prune(lnt_config *k, bool first_too)
{
    for (int i = k->n_mixers - 1; i >= !first_too; i--) {
        if (lnt_config_uses(k, i)) continue;
        lnt_free(k->mixers[i].options);
        memmove(&k->mixers[i], &k->mixers[i + 1], (size_t)(k->n_mixers - i - 1) * sizeof *k->mixers);
        k->mixers[--k->n_mixers] = (lnt_part){0};
        for (int l = 0; l < LNT_MAX_LAYERS; l++)
            if (k->mixer_of[l] == i) k->mixer_of[l] = 0;
            else if (k->mixer_of[l] > i) k->mixer_of[l]--;
    }
}

/* ---- keys ---- */

bool lnt_config_labels(const lnt_config *k, const lnt_part *p, const char *key)
{
    char word[LNT_NAME];
    const char *dot = strrchr(key, '.');
    const size_t n = dot ? (size_t)(dot - key) : 0;
    if (!p || !n || n >= sizeof word) return false;
    snprintf(word, sizeof word, "%.*s", (int)n, key);
    const lnt_mixer *named = lnt_mixer_find(word);
    if (!strcmp(p->label, word)) return true;
    return named && named->alias && p->kind == &named->kind && !labelled(k, word) && lnt_mixer_find(p->label) == named;
}

const lnt_options *lnt_config_table(const lnt_config *k, int i, void **base, const lnt_part **part)
{
    if (i >= 4 + k->n_mixers) return NULL;
    *part = i == 0 ? NULL : i == 1 ? &k->block : i == 2 ? &k->norm : i == 3 ? &k->mlp : &k->mixers[i - 4];
    *base = *part ? (*part)->options : (void *)(uintptr_t)k;
    return *part ? &(*part)->kind->options : &lnt_common_keys;
}

/* A variant's word is what tells parts of one mixer apart: without a label it is that of the first. */
static bool told_apart_by(const lnt_config *k, const lnt_part *p, const char *key)
{
    int i = 1;
    while (i < k->n_mixers && &k->mixers[i] != p) i++;
    if (i >= k->n_mixers || !mixer_of_part(p)->variant || strcmp(mixer_of_part(p)->variant, key) != 0) return false;
    for (int j = 0; j < i; j++)
        if (k->mixers[j].kind == p->kind) return true;
    return false;
}

linnet_status lnt_config_put(lnt_ctx *c, lnt_config *k, const char *key, const lnt_given *v, bool *known)
{
    const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key;
    const lnt_options *t;
    const lnt_part *part;
    void *base;
    bool fits = false;
    *known = false;
    /* whoever takes a value of this kind takes it: qk_norm is a word of one mixer, a switch of another. pass 0 looks, 1 tries, 2 does. */
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; (t = lnt_config_table(k, i, &base, &part)) != NULL; i++) {
            const lnt_option *o = lnt_option_find(t, name);
            const bool meant = dot ? lnt_config_labels(k, part, key) : !part || !(part->own_values || told_apart_by(k, part, name));
            if (!o || !meant) continue;
            *known = true;
            if (pass == 0) fits |= lnt_option_fits(o, v);
            else if (!fits || lnt_option_fits(o, v)) LNT_TRY(lnt_option_put(c, "", o, v, pass == 2 ? base : NULL));
        }
    if (*known && (!strcmp(name, "num_heads") || !strcmp(name, "head_dim"))) k->sized_heads = 0;
    if (*known) lnt_config_touch(k);
    return LINNET_OK;
}

void lnt_config_put_int(lnt_config *k, const char *key, int64_t v)
{
    bool known;
    const lnt_given given = lnt_given_int(v);
    lnt_config_put(NULL, k, key, &given, &known);
}

void lnt_config_size(lnt_config *k, int64_t width, int64_t heads, int64_t head)
{
    k->hidden_size = width;
    k->sized_heads = heads;
    k->sized_head = head;
    lnt_options_put_int(&k->mlp.kind->options, k->mlp.options, "intermediate_size", 0);
    for (int i = 0; i < k->n_mixers; i++) lnt_mixer_size(mixer_of_part(&k->mixers[i]), k->mixers[i].options, heads, head);
    lnt_config_touch(k);
}

/* ---- checks ---- */

lnt_layer lnt_config_layer(const lnt_config *k, const lnt_part *p, int layer)
{
    return (lnt_layer){.width = k->hidden_size, .index = layer, .layers = (int)k->num_hidden_layers, .norm_eps = k->norm_eps,
                       .depth_init = k->depth_init, .where = "", .options = p->options};
}

/* Whether another mixer reads the value: a key without a label is set for all. */
static bool read_by_another(const lnt_config *k, const lnt_part *p, const lnt_option *o)
{
    const lnt_given v = lnt_option_get(o, p->options);
    for (int i = 0; i < k->n_mixers; i++) {
        const lnt_part *other = &k->mixers[i];
        const lnt_option *same = other == p || !lnt_config_uses(k, i) ? NULL : lnt_option_find(&other->kind->options, o->key);
        if (!same || same->kind != o->kind || !lnt_option_is_read(&other->kind->options, same, other->options)) continue;
        const lnt_given w = lnt_option_get(same, other->options);
        if (w.kind == v.kind && w.real == v.real) return true;
    }
    return false;
}

static linnet_status check_unread(lnt_ctx *c, const lnt_config *k, const lnt_part *p, const char *where)
{
    const lnt_options *t = &p->kind->options;
    for (int i = 0; i < t->n; i++)
        if (!lnt_option_is_idle(t, &t->row[i], p->options) && !read_by_another(k, p, &t->row[i]))
            return lnt_fail_unread(c, where, t, &t->row[i], p->options);
    return LINNET_OK;
}

static linnet_status check_part(lnt_ctx *c, const lnt_config *k, const lnt_part *p, bool alone)
{
    char where[LNT_NAME + 2];
    lnt_layer l = lnt_config_layer(k, p, 0);
    snprintf(where, sizeof where, "%s.", p->label);
    if (!alone) l.where = where;
    LNT_TRY(check_unread(c, k, p, l.where));
    return p->kind->check ? p->kind->check(c, &l) : LINNET_OK;
}

linnet_status lnt_config_check(lnt_ctx *c, const lnt_config *k)
{
    if (k->named_layers && k->named_layers != k->num_hidden_layers)
        return lnt_fail(c, LINNET_EINVAL, "layer_mixers names %d layers, expected num_hidden_layers = %lld", k->named_layers,
                        (long long)k->num_hidden_layers);
    for (int l = (int)k->num_hidden_layers; l < LNT_MAX_LAYERS; l++)
        if (k->mixer_of[l])
            return lnt_fail(c, LINNET_EINVAL, "layer %d has a mixer of its own, expected layers below num_hidden_layers = %lld", l,
                            (long long)k->num_hidden_layers);
    if (k->pad_token_id >= k->vocab_size)
        return lnt_fail(c, LINNET_EINVAL, "pad_token_id is %lld, expected less than vocab_size = %lld", (long long)k->pad_token_id,
                        (long long)k->vocab_size);
    LNT_TRY(check_part(c, k, &k->block, false));
    LNT_TRY(check_part(c, k, &k->norm, false));
    LNT_TRY(check_part(c, k, &k->mlp, false));
    for (int i = 0; i < k->n_mixers; i++)
        if (lnt_config_uses(k, i)) LNT_TRY(check_part(c, k, &k->mixers[i], i == 0));
    return LINNET_OK;
}

linnet_status lnt_config_check_next(lnt_ctx *c, const lnt_config *k)
{
    if (k->readout == LNT_FROM_TOKEN) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "readout is \"last\", expected \"token\"");
    return lnt_hint(c, "Every logit is made of the sequence's last vector: there is no next token to be written or scored.");
}
