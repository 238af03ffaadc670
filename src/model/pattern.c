/* linnet_config_pattern: kinds of layer by turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/border.h"
#include "model/config.h"

enum { MOST_TURN = LNT_MAX_LAYERS };

/* The part of the pattern at `text` [n]: its mixer, made where there is none, and how many layers of it. */
static linnet_status read_part(lnt_ctx *c, lnt_config *k, const char *text, size_t n, int *mixer, int64_t *times)
{
    char word[LNT_NAME + 32], *at = word, *end;
    if (n >= sizeof word) n = sizeof word - 1;
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    char *star = strchr(word, '*'), *colon = strchr(word, ':');
    int64_t window = 0;
    *times = 1;
    if (star) {
        *times = strtol(word, &end, 10);
        if (end != star || *times < 1 || *times > LNT_MAX_LAYERS)
            return lnt_fail(c, LINNET_EINVAL, "the pattern has \"%s\", expected a number of layers from 1 to %d before the star", word,
                            LNT_MAX_LAYERS);
        at = star + 1;
    }
    if (colon) {
        window = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || window < 1 || window > INT32_MAX)
            return lnt_fail(c, LINNET_EINVAL, "the pattern has \"%s\", expected a window of at least 1 after the colon", word);
        *colon = 0;
    }
    LNT_TRY(lnt_config_mixer_named(c, k, at, window, mixer));
    k->mixers[*mixer].own_values = false;
    return LINNET_OK;
}

/* The layers of one turn; their number. */
static linnet_status read_turn(lnt_ctx *c, lnt_config *k, const char *pattern, uint8_t turn[MOST_TURN], int64_t *layers)
{
    *layers = 0;
    for (const char *at = pattern;; at++) {
        size_t n = strcspn(at, ",");
        int mixer;
        int64_t times;
        LNT_TRY(read_part(c, k, at, n, &mixer, &times));
        for (int64_t i = 0; i < times && *layers + i < MOST_TURN; i++) turn[*layers + i] = (uint8_t)mixer;
        *layers += times;
        at += n;
        if (!*at) break;
    }
    if (*layers <= k->num_hidden_layers) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "the pattern names %lld layers, but the model has %lld", (long long)*layers, (long long)k->num_hidden_layers);
}

linnet_status linnet_config_pattern(linnet_context *c, linnet_config *k, const char *pattern)
{
    LNT_NEED(c, k);
    LNT_NEED(c, pattern);
    uint8_t turn[MOST_TURN];
    int64_t layers;
    linnet_config *next;
    LNT_TRY(lnt_config_copy(c, k, &next));
    linnet_status s = read_turn(c, next, pattern, turn, &layers);
    if (s == LINNET_OK) {
        for (int l = 0; l < LNT_MAX_LAYERS; l++) next->mixer_of[l] = l < k->num_hidden_layers ? turn[l % layers] : 0;
        lnt_config_prune(next, true);
        next->named_layers = next->n_mixers > 1 ? (int)k->num_hidden_layers : 0;
        lnt_config_touch(next);
        const lnt_config before = *k;
        *k = *next;
        *next = before;
    }
    lnt_config_clear(next);
    lnt_free(next);
    return s;
}
