#include "train/same_run.h"

#include <stdio.h>
#include <string.h>

#include "core/options.h"
#include "hub/archs.h"
#include "hub/json.h"
#include "hub/tokenizer.h"
#include "train/settings.h"

linnet_status lnt_same_tokenizer(lnt_ctx *c, const linnet_train_options *o, const linnet_tokenizer *kept)
{
    linnet_tokenizer *t = NULL;
    char *text = NULL;
    size_t bytes;
    if (!o->tokenizer || !lnt_settings_given(o, "tokenizer") || !kept->source) return LINNET_OK;
    LNT_TRY(linnet_tokenizer_open(c, o->tokenizer, &t));
    linnet_status s = LINNET_OK;
    if (t->source) bytes = t->source_bytes;
    else s = lnt_tokenizer_text(c, t, &text, &bytes);
    if (s == LINNET_OK && (bytes != kept->source_bytes || memcmp(text ? text : t->source, kept->source, bytes) != 0)) {
        lnt_fail_option(c, "tokenizer", "is \"%s\", but the run in \"%s\" was started with what its tokenizer.json holds", o->tokenizer, o->out);
        s = lnt_hint(c, "Resume without it, or start a new run in another folder.");
    }
    lnt_free(text);
    linnet_tokenizer_destroy(t);
    return s;
}

static linnet_status differs(lnt_ctx *c, const char *folder, const char *what, const char *asked, const char *kept)
{
    lnt_fail_option(c, what, "is %s, but the run in \"%s\" was started with %s", asked, folder, kept);
    return lnt_hint(c, "Resume without what says so (a preset says several keys), or start a new run in another folder.");
}

/* The first part of another kind: where one is, the two may be of types that have no key in common. */
static linnet_status check_kinds(lnt_ctx *c, const char *folder, const linnet_config *asked, const linnet_config *kept)
{
    const lnt_kind *const a[] = {asked->block.kind, asked->norm.kind, asked->mlp.kind};
    const lnt_kind *const b[] = {kept->block.kind, kept->norm.kind, kept->mlp.kind};
    for (int i = 0; i < 3; i++)
        if (a[i] != b[i]) return differs(c, folder, lnt_family_name((lnt_family)(LNT_BLOCKS + i)), a[i]->about.name, b[i]->about.name);
    for (int l = 0; l < asked->num_hidden_layers && l < kept->num_hidden_layers; l++) {
        char layer[32];
        const char *x = asked->mixers[asked->mixer_of[l]].kind->about.name, *y = kept->mixers[kept->mixer_of[l]].kind->about.name;
        snprintf(layer, sizeof layer, "layer %d", l);
        if (strcmp(x, y) != 0) return differs(c, folder, layer, x, y);
    }
    return LINNET_OK;
}

/* The first key in which what was asked for differs from the checkpoint's configuration; not one that follows from others. */
static linnet_status check_keys(lnt_ctx *c, const char *folder, const lnt_arch *arch, json_t *asked, json_t *kept)
{
    const char *key;
    json_t *value;
    char a[200], b[200];
    for (int turn = 0; turn < 2; turn++)
        json_object_foreach(turn ? kept : asked, key, value) {
            json_t *other = json_object_get(turn ? asked : kept, key);
            const lnt_arch_other *theirs = lnt_arch_other_key(arch, key);
            if ((other && json_equal(value, other)) || (theirs && theirs->follows)) continue;
            lnt_json_show(value, a, sizeof a);
            if (other) lnt_json_show(other, b, sizeof b);
            else snprintf(b, sizeof b, "nothing");
            return differs(c, folder, key, turn ? b : a, turn ? a : b);
        }
    return LINNET_OK;
}

linnet_status lnt_same_config(lnt_ctx *c, const linnet_train_options *o, const linnet_config *asked, linnet_config *kept)
{
    linnet_config *k;
    json_t *a = NULL, *b = NULL;
    LNT_TRY(check_kinds(c, o->out, asked, kept));
    LNT_TRY(lnt_config_copy(c, asked, &k));
    k->vocab_size = kept->vocab_size; /* of the tokenizer */
    k->bos_token_id = kept->bos_token_id;
    k->eos_token_id = kept->eos_token_id;
    const char *x = linnet_config_json(k), *y = linnet_config_json(kept);
    linnet_status s = x && y ? lnt_json_parse(c, "the configuration", x, strlen(x), &a) : lnt_fail_memory(c, 4096);
    if (s == LINNET_OK) s = lnt_json_parse(c, "config.json", y, strlen(y), &b);
    if (s == LINNET_OK) s = check_keys(c, o->out, lnt_arch_of(k), a, b);
    json_decref(a);
    json_decref(b);
    linnet_config_destroy(k);
    return s;
}
