/* tokenizer.json of a byte-level vocabulary that was made here. */
#include <string.h>

#include "hub/bytechars.h"
#include "hub/json.h"
#include "hub/tokenizer.h"

/* The spelling of a piece into *room bytes at *out, which grow. */
static bool spell(const lnt_piece *p, char **out, size_t *room)
{
    if (*room < 2 * (size_t)p->n + 1) {
        lnt_free(*out);
        *room = 4 * (size_t)p->n + 64;
        *out = lnt_alloc(*room);
    }
    if (!*out) return false;
    lnt_bytechars_spell((const uint8_t *)p->bytes, p->n, *out);
    return true;
}

static json_t *vocabulary_json(const linnet_tokenizer *t)
{
    json_t *o = json_object();
    char *text = NULL;
    size_t room = 0;
    bool ok = o != NULL;
    for (int32_t id = 0; id < t->n && ok; id++)
        if (t->pieces[id].bytes) ok = spell(&t->pieces[id], &text, &room) && json_object_set_new(o, text, json_integer(id)) == 0;
    lnt_free(text);
    if (ok) return o;
    json_decref(o);
    return NULL;
}

static json_t *merges_json(const linnet_tokenizer *t)
{
    json_t *list = json_array();
    char *left = NULL, *right = NULL;
    size_t left_room = 0, right_room = 0;
    bool ok = list != NULL;
    for (int32_t m = 0; m < t->n_merges && ok; m++) {
        ok = spell(&t->pieces[t->merges[m].left], &left, &left_room) && spell(&t->pieces[t->merges[m].right], &right, &right_room) &&
             json_array_append_new(list, json_sprintf("%s %s", left, right)) == 0;
    }
    lnt_free(left);
    lnt_free(right);
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static json_t *added_json(const linnet_tokenizer *t)
{
    if (t->separator < 0) return json_array();
    const lnt_piece *p = &t->pieces[t->separator];
    return json_pack("[{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}]", "id", (int)t->separator, "content", p->bytes, (size_t)p->n, "single_word", 0, "lstrip",
                     0, "rstrip", 0, "normalized", 0, "special", 1);
}

linnet_status lnt_tokenizer_text(lnt_ctx *c, const linnet_tokenizer *t, char **out, size_t *bytes)
{
    json_t *added = added_json(t), *vocabulary = vocabulary_json(t), *merges = merges_json(t);
    json_t *o = json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
        "trim_offsets", 1, "use_regex", t->pre.n > 0, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
        "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges", merges);
    char *text = o ? lnt_json_text(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    if (!text) return lnt_fail_memory(c, (size_t)t->n * 32);
    *out = text;
    *bytes = strlen(text);
    return LINNET_OK;
}
