/* linnet_config_pattern: kinds of layer by turns, as the keys that say the same (attn, layer_mixers). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/config_keys.h"
#include "model/config.h"

enum { MOST_PARTS = 64 };

typedef struct {
    char kind[LNT_NAME];
    int64_t times, window; /* window 0: all */
} part;

typedef struct {
    int n;
    int64_t layers; /* of one turn */
    part parts[MOST_PARTS];
} turn;

static bool is_equal_backbone(const lnt_config *k) { return strcmp(k->model_type, "equal_backbone") == 0; }

/* The words that may stand in a pattern. */
static void known_kinds(const lnt_config *k, char *text, size_t size)
{
    size_t at = 0;
    if (is_equal_backbone(k)) {
        for (int i = 0; i < lnt_config_key_count; i++)
            if (strcmp(lnt_config_keys[i].key, "rule") == 0) snprintf(text, size, "%s", lnt_config_keys[i].words);
        return;
    }
    for (int i = 0; i < LNT_MODEL_TYPES && at < size; i++)
        if (lnt_model_types[i].mixer) at += (size_t)snprintf(text + at, size - at, "%s%s", at ? " " : "", lnt_model_types[i].mixer);
}

static linnet_status read_part(lnt_ctx *c, const lnt_config *k, const char *text, size_t n, part *out)
{
    char word[LNT_NAME + 32], kinds[256], *at = word;
    if (n >= sizeof word) n = sizeof word - 1;
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    *out = (part){.times = 1};
    char *star = strchr(word, '*'), *colon = strchr(word, ':'), *end;
    if (star) {
        out->times = strtol(word, &end, 10);
        if (end != star || out->times < 1 || out->times > LNT_MAX_LAYERS)
            return lnt_fail(c, LINNET_EINVAL, "the pattern has \"%s\", expected a number of layers from 1 to %d before the star", word,
                            LNT_MAX_LAYERS);
        at = star + 1;
    }
    if (colon) {
        out->window = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || out->window < 1 || out->window > INT32_MAX)
            return lnt_fail(c, LINNET_EINVAL, "the pattern has \"%s\", expected a window of at least 1 after the colon", word);
        *colon = 0;
    }
    known_kinds(k, kinds, sizeof kinds);
    if (!lnt_word_in(kinds, at)) return lnt_fail(c, LINNET_EINVAL, "the pattern has \"%s\", expected %s", at, kinds);
    if (out->window && strcmp(at, "attention") != 0)
        return lnt_fail(c, LINNET_EINVAL, "the pattern gives %s a window, but only attention has one", at);
    snprintf(out->kind, sizeof out->kind, "%.47s", at);
    return LINNET_OK;
}

static linnet_status read_turn(lnt_ctx *c, const lnt_config *k, const char *pattern, turn *t)
{
    for (const char *at = pattern;; at++) {
        size_t n = strcspn(at, ",");
        if (t->n == MOST_PARTS) return lnt_fail(c, LINNET_EINVAL, "the pattern has more than %d parts", MOST_PARTS);
        LNT_TRY(read_part(c, k, at, n, &t->parts[t->n]));
        t->layers += t->parts[t->n++].times;
        at += n;
        if (!*at) break;
    }
    if (t->layers <= k->num_hidden_layers) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "the pattern names %lld layers, but the model has %lld", (long long)t->layers, (long long)k->num_hidden_layers);
}

static const part *part_of(const turn *t, int64_t layer)
{
    int i = 0;
    for (layer %= t->layers; layer >= t->parts[i].times; i++) layer -= t->parts[i].times;
    return &t->parts[i];
}

/* Softmax attention at a layer: in the entry of its window. */
static linnet_status add_attention(lnt_ctx *c, lnt_config *k, int layer, int64_t window)
{
    int i = 0;
    while (i < k->n_attn && k->attn[i].window_size != window) i++;
    if (i == LNT_MAX_ATTN) return lnt_fail(c, LINNET_EINVAL, "the pattern has more than %d windows", LNT_MAX_ATTN);
    lnt_attn_spec *a = &k->attn[i];
    if (i == k->n_attn) {
        *a = (lnt_attn_spec){.num_heads = k->num_heads, .window_size = window, .rope_theta = 10000};
        k->n_attn++;
    }
    a->layers[a->n_layers++] = layer;
    return LINNET_OK;
}

/* equal_backbone has one window. */
static linnet_status set_window(lnt_ctx *c, lnt_config *k, const turn *t)
{
    const part *first = NULL;
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->parts[i].kind, "attention") != 0) continue;
        if (first && first->window != t->parts[i].window)
            return lnt_fail(c, LINNET_EINVAL, "the pattern has windows of %lld and %lld, but an equal_backbone has one", (long long)first->window,
                            (long long)t->parts[i].window);
        first = &t->parts[i];
    }
    if (first) k->window_size = first->window;
    return LINNET_OK;
}

/* attn, and a kind for each layer where attn does not say it all. `names` [num_hidden_layers]. */
static linnet_status lay_layers(lnt_ctx *c, lnt_config *k, const turn *t, const char *own, char (*names)[LNT_NAME], bool *needed)
{
    const bool equal = is_equal_backbone(k);
    if (equal) LNT_TRY(set_window(c, k, t));
    k->n_attn = 0;
    for (int l = 0; l < k->num_hidden_layers; l++) {
        const part *p = part_of(t, l);
        const bool attention = !equal && strcmp(p->kind, "attention") == 0;
        snprintf(names[l], sizeof names[l], "%s", p->kind);
        *needed |= !attention && strcmp(p->kind, own) != 0;
        if (attention) LNT_TRY(add_attention(c, k, l, p->window));
    }
    return LINNET_OK;
}

linnet_status linnet_config_pattern(linnet_context *c, linnet_config *k, const char *pattern)
{
    turn t = {0};
    const lnt_config before = *k;
    const char *own = is_equal_backbone(k) ? before.rule : lnt_model_types[__builtin_ctz(lnt_model_type_bit(k->model_type))].mixer;
    bool needed = false;
    if (!is_equal_backbone(k) && strcmp(own, "attention") == 0) {
        lnt_fail(c, LINNET_EINVAL, "a pattern for model type %s, expected a model type with a state", k->model_type);
        return lnt_hint(c, "Attention alone is --mixer attention --set window_size=N.");
    }
    LNT_TRY(read_turn(c, k, pattern, &t));
    char(*names)[LNT_NAME] = lnt_calloc((size_t)k->num_hidden_layers * sizeof *names);
    if (!names) return lnt_fail_memory(c, (size_t)k->num_hidden_layers * sizeof *names);
    linnet_status s = lay_layers(c, k, &t, own, names, &needed);
    if (s != LINNET_OK) {
        *k = before;
        lnt_free(names);
        return s;
    }
    lnt_free(k->layer_mixers);
    k->layer_mixers = needed ? names : NULL;
    k->n_layer_mixers = needed ? (int)k->num_hidden_layers : 0;
    if (!needed) lnt_free(names);
    lnt_free(k->json);
    k->json = NULL;
    return LINNET_OK;
}
