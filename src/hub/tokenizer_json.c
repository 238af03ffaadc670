/* tokenizer.json of Hugging Face's tokenizers: the model, its vocabulary and the added tokens. What is not offered is refused by the name of the
 * part. */
#include <math.h>
#include <string.h>

#include "core/options.h"
#include "hub/bytechars.h"
#include "hub/tokenizer_json.h"

const char *lnt_json_type(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

linnet_status lnt_json_refuse(const lnt_json_reader *r, const char *part, const json_t *value, const char *expected)
{
    char shown[80];
    const char *type = lnt_json_type(value);
    lnt_malformed(r->c, r->path, "%s %.80s is not offered, expected %s", part, *type ? type : lnt_json_show(value, shown, sizeof shown), expected);
    return LINNET_EFORMAT;
}

linnet_status lnt_json_keys(const lnt_json_reader *r, const char *part, const json_t *o, const char *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value)
        if (lnt_word_find(known, key) < 0 && !json_is_null(value))
            return lnt_malformed(r->c, r->path, "%s has the key \"%.60s\", which is not known, expected some of: %s", part, key, known);
    return LINNET_OK;
}

/* ---- vocabulary and merges ---- */

/* A token that stands for its own text. */
static linnet_status set_apart(const lnt_json_reader *r, int64_t id, const char *text, size_t n)
{
    char *copy = lnt_arena_strdup(&r->t->arena, text);
    if (!copy) return lnt_fail_memory(r->c, n + 1);
    r->t->pieces[id] = (lnt_piece){.bytes = copy, .n = (uint32_t)n, .verbatim = true};
    return LINNET_OK;
}

/* A token of a vocabulary over characters, or an added one beside it. */
static linnet_status set_spelled(const lnt_json_reader *r, int64_t id, const char *text, size_t n, bool verbatim)
{
    char *copy = lnt_arena_strdup(&r->t->arena, text);
    if (!copy) return lnt_fail_memory(r->c, n + 1);
    r->t->pieces[id] = (lnt_piece){.bytes = copy, .n = (uint32_t)n, .verbatim = verbatim, .spelled = copy, .n_spelled = (uint32_t)n};
    return LINNET_OK;
}

static linnet_status set_piece(const lnt_json_reader *r, int64_t id, const char *key, size_t n)
{
    if (n > INT32_MAX / 4) return lnt_malformed(r->c, r->path, "a token has %zu bytes", n);
    if (!r->t->bytewise) return set_spelled(r, id, key, n, false);
    uint8_t *bytes = lnt_alloc(n);
    if (!bytes) return lnt_fail_memory(r->c, n);
    int64_t got = lnt_bytechars_read(key, n, bytes);
    linnet_status s = LINNET_OK;
    if (got > 0)
        s = lnt_tokenizer_set(r->c, r->t, id, bytes, (size_t)got);
    else
        s = set_apart(r, id, key, n); /* an added token kept in the vocabulary */
    lnt_free(bytes);
    return s;
}

static linnet_status read_piece(const lnt_json_reader *r, const char *key, const json_t *value)
{
    int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= r->t->n) return lnt_malformed(r->c, r->path, "the id of token \"%.60s\" is not a number below %d", key, r->t->n);
    if (r->t->pieces[id].bytes) return lnt_malformed(r->c, r->path, "id %lld is given twice", (long long)id);
    return set_piece(r, id, key, strlen(key));
}

static int32_t id_of(const lnt_json_reader *r, const char *text)
{
    const json_t *id = json_object_get(r->vocabulary, text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

/* A merge is "left right" or ["left", "right"]; `joined` has room for both and two more bytes. */
static linnet_status read_merge(const lnt_json_reader *r, const json_t *value, size_t index, char *joined, lnt_merge *m)
{
    const char *left = json_string_value(json_array_get(value, 0)), *right = json_string_value(json_array_get(value, 1));
    if (json_is_string(value)) {
        strcpy(joined, json_string_value(value));
        char *blank = strchr(joined, ' ');
        if (!blank || strchr(blank + 1, ' ')) return lnt_malformed(r->c, r->path, "merge %zu is \"%.60s\", expected two pieces", index, joined);
        *blank = 0;
        *m = (lnt_merge){id_of(r, joined), id_of(r, blank + 1), -1};
        memmove(blank, blank + 1, strlen(blank + 1) + 1);
    } else {
        if (json_array_size(value) != 2 || !left || !right) return lnt_malformed(r->c, r->path, "merge %zu is not two pieces", index);
        *m = (lnt_merge){id_of(r, left), id_of(r, right), -1};
        strcpy(joined, left);
        strcat(joined, right);
    }
    m->result = id_of(r, joined);
    if (m->left < 0 || m->right < 0 || m->result < 0)
        return lnt_malformed(r->c, r->path, "merge %zu to \"%.60s\" uses a piece that has no id", index, joined);
    const lnt_piece *pieces = r->t->pieces;
    if (pieces[m->left].verbatim || pieces[m->right].verbatim)
        return lnt_malformed(r->c, r->path, "merge %zu to \"%.60s\" uses a piece that spells no bytes", index, joined);
    return LINNET_OK;
}

static linnet_status read_merges(const lnt_json_reader *r, const json_t *merges)
{
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > LNT_MAX_VOCABULARY)
        return lnt_malformed(r->c, r->path, "the merges are not a list of at most %d", LNT_MAX_VOCABULARY);
    r->t->merges = lnt_alloc(lnt_bytes(n, sizeof *r->t->merges));
    if (!r->t->merges) return lnt_fail_memory(r->c, lnt_bytes(n, sizeof *r->t->merges));
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(merges, i);
        size_t room = json_string_length(value) + json_string_length(json_array_get(value, 0)) + json_string_length(json_array_get(value, 1)) + 2;
        char *joined = lnt_alloc(room);
        if (!joined) return lnt_fail_memory(r->c, room);
        linnet_status s = read_merge(r, value, i, joined, &r->t->merges[i]);
        lnt_free(joined);
        LNT_TRY(s);
        r->t->n_merges++;
    }
    return LINNET_OK;
}

static linnet_status read_bpe(const lnt_json_reader *r, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *key;
    json_t *value;
    linnet_tokenizer *t = r->t;
    LNT_TRY(lnt_json_keys(r, "model BPE", model,
                          "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab merges"));
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (!lnt_json_absent(affix) && json_string_length(affix) > 0) return lnt_json_refuse(r, affixes[i], affix, "none");
    }
    const json_t *dropout = json_object_get(model, "dropout"), *unk = json_object_get(model, "unk_token");
    if (!lnt_json_absent(dropout) && json_number_value(dropout) != 0) return lnt_json_refuse(r, "dropout", dropout, "none");
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    json_object_foreach((json_t *)(uintptr_t)r->vocabulary, key, value) LNT_TRY(read_piece(r, key, value));
    t->unk = json_is_string(unk) ? id_of(r, json_string_value(unk)) : -1;
    if (json_is_string(unk) && t->unk < 0 && !t->bytewise) return lnt_json_refuse(r, "unk_token", unk, "a token of the vocabulary");
    return read_merges(r, json_object_get(model, "merges"));
}

/* A list of [piece, score]; the place is the id. */
static linnet_status read_unigram(const lnt_json_reader *r, const json_t *model)
{
    linnet_tokenizer *t = r->t;
    const json_t *unk = json_object_get(model, "unk_id");
    const size_t n = json_array_size(r->vocabulary);
    LNT_TRY(lnt_json_keys(r, "model Unigram", model, "type unk_id vocab byte_fallback"));
    t->model = LNT_MODEL_UNIGRAM;
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->least_score = HUGE_VAL;
    if (!lnt_json_absent(unk)) {
        t->unk = json_is_integer(unk) && json_integer_value(unk) >= 0 && json_integer_value(unk) < (int64_t)n ? (int32_t)json_integer_value(unk) : -1;
        if (t->unk < 0) return lnt_json_refuse(r, "unk_id", unk, "an id of the vocabulary");
    }
    t->score = lnt_calloc(lnt_bytes((size_t)t->n, sizeof *t->score));
    if (!t->score) return lnt_fail_memory(r->c, lnt_bytes((size_t)t->n, sizeof *t->score));
    for (size_t id = 0; id < n; id++) {
        const json_t *pair = json_array_get(r->vocabulary, id), *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(text) || !json_is_number(score))
            return lnt_malformed(r->c, r->path, "piece %zu of the vocabulary is not a text and a score", id);
        t->score[id] = json_number_value(score);
        if (!(fabs(t->score[id]) < 1e100)) return lnt_malformed(r->c, r->path, "the score of piece %zu is not of this world", id);
        if (t->score[id] < t->least_score) t->least_score = t->score[id];
        LNT_TRY(set_piece(r, (int64_t)id, json_string_value(text), json_string_length(text)));
        const lnt_piece *p = &t->pieces[id];
        const char *bytes = t->bytewise ? p->bytes : p->spelled;
        const size_t length = t->bytewise ? p->n : p->n_spelled;
        if (length == 0) continue;
        int32_t *value = lnt_trie_put(&t->trie, bytes, length);
        if (!value) return lnt_fail_memory(r->c, length);
        *value = (int32_t)id; /* a piece that is there twice is the last one */
    }
    return LINNET_OK;
}

/* ---- added tokens ---- */

static linnet_status read_added_token(const lnt_json_reader *r, const json_t *o)
{
    linnet_tokenizer *t = r->t;
    const json_t *content = json_object_get(o, "content"), *number = json_object_get(o, "id");
    int64_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    size_t n = json_string_length(content);
    LNT_TRY(lnt_json_keys(r, "an added token", o, "id content single_word lstrip rstrip normalized special"));
    if (id < 0 || id >= t->n) return lnt_malformed(r->c, r->path, "the id of an added token is not a number below %d", t->n);
    if (n == 0 || n > INT32_MAX / 4) return lnt_malformed(r->c, r->path, "added token %lld has no content", (long long)id);
    const char *text = json_string_value(content);
    const lnt_piece *old = &t->pieces[id];
    const char *spelled = old->spelled ? old->spelled : old->bytes;
    if (spelled && ((old->spelled ? old->n_spelled : old->n) != n || memcmp(spelled, text, n) != 0))
        return lnt_malformed(r->c, r->path, "added token \"%.60s\" has the id %lld of another token", text, (long long)id);
    const json_t *known = json_object_get(r->vocabulary, text);
    if (known && json_integer_value(known) != id)
        return lnt_malformed(r->c, r->path, "added token \"%.60s\" has the id %lld, but the vocabulary says %lld", text, (long long)id,
                             (long long)json_integer_value(known));
    if (!spelled) LNT_TRY(t->bytewise ? set_apart(r, id, text, n) : set_spelled(r, id, text, n, true));
    const lnt_added a = {.content = old->spelled ? old->spelled : old->bytes, .n = n, .id = (int32_t)id,
                         .normalized = json_is_true(json_object_get(o, "normalized")), .special = json_is_true(json_object_get(o, "special")),
                         .single_word = json_is_true(json_object_get(o, "single_word")), .lstrip = json_is_true(json_object_get(o, "lstrip")),
                         .rstrip = json_is_true(json_object_get(o, "rstrip"))};
    return lnt_tokenizer_add(r->c, t, &a);
}

static linnet_status read_added(const lnt_json_reader *r, const json_t *list)
{
    linnet_tokenizer *t = r->t;
    for (size_t i = 0; i < json_array_size(list); i++) LNT_TRY(read_added_token(r, json_array_get(list, i)));
    for (int k = 0; lnt_separator_names[k] && t->separator < 0; k++)
        for (int i = 0; i < t->n_added && t->separator < 0; i++)
            if (t->added[i].special && strcmp(t->added[i].content, lnt_separator_names[k]) == 0) t->separator = t->added[i].id;
    return LINNET_OK;
}

/* ---- the whole ---- */

static linnet_status read_all(const lnt_json_reader *r, const json_t *o)
{
    const json_t *model = json_object_get(o, "model");
    /* Truncation and padding belong to batches of a training elsewhere: a text is never cut here. */
    LNT_TRY(lnt_json_keys(r, "the file", o, "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model"));
    LNT_TRY(lnt_json_normalizer(r, json_object_get(o, "normalizer")));
    LNT_TRY(lnt_json_pre_tokenizer(r, json_object_get(o, "pre_tokenizer")));
    LNT_TRY(lnt_json_decoder(r, json_object_get(o, "decoder")));
    LNT_TRY((json_is_array(r->vocabulary) ? read_unigram : read_bpe)(r, model));
    LNT_TRY(read_added(r, json_object_get(o, "added_tokens")));
    LNT_TRY(lnt_json_post_processor(r, json_object_get(o, "post_processor")));
    return lnt_tokenizer_finish(r->c, r->t, r->path);
}

/* One more than the largest id. Gaps are allowed (some models pad their vocabulary), but not so many that a small file asks for much memory. */
static linnet_status count_ids(const lnt_json_reader *r, const json_t *added, int64_t *out)
{
    const char *key;
    json_t *value;
    size_t entries = json_object_size(r->vocabulary) + json_array_size(r->vocabulary) + json_array_size(added), limit = 2 * entries + 65536;
    int64_t most = (int64_t)json_array_size(r->vocabulary) - 1;
    if (limit > LNT_MAX_VOCABULARY) limit = LNT_MAX_VOCABULARY;
    json_object_foreach((json_t *)(uintptr_t)r->vocabulary, key, value)
        if (json_integer_value(value) > most) most = json_integer_value(value);
    for (size_t i = 0; i < json_array_size(added); i++) {
        int64_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        if (id > most) most = id;
    }
    if (most >= (int64_t)limit)
        return lnt_malformed(r->c, r->path, "the largest id is %lld, expected less than %zu for %zu tokens", (long long)most, limit, entries);
    *out = most < 0 ? 1 : most + 1;
    return LINNET_OK;
}

/* The vocabulary of a model that is offered. */
static linnet_status find_model(lnt_json_reader *r, const json_t *model)
{
    const char *type = lnt_json_type(model);
    r->vocabulary = json_object_get(model, "vocab");
    if (!model) return lnt_malformed(r->c, r->path, "the file has no model");
    const bool unigram = strcmp(type, "Unigram") == 0 || (!*type && json_is_array(r->vocabulary)), bpe = !*type || strcmp(type, "BPE") == 0;
    if (unigram ? json_is_array(r->vocabulary) : bpe && json_is_object(r->vocabulary)) return LINNET_OK;
    return lnt_json_refuse(r, "model", model, "BPE or Unigram with a vocabulary");
}

linnet_status lnt_tokenizer_from_json(lnt_ctx *c, const char *path, const char *text, size_t bytes, linnet_tokenizer **out)
{
    json_t *o;
    int64_t n = 0;
    LNT_TRY(lnt_json_parse(c, path, text, bytes, &o));
    lnt_json_reader r = {.c = c, .path = path};
    linnet_status s = find_model(&r, json_object_get(o, "model"));
    if (s == LINNET_OK) s = count_ids(&r, json_object_get(o, "added_tokens"), &n);
    if (s == LINNET_OK) s = lnt_tokenizer_new(c, n, &r.t);
    if (s == LINNET_OK) s = read_all(&r, o);
    json_decref(o);
    if (s == LINNET_OK)
        *out = r.t;
    else
        linnet_tokenizer_destroy(r.t);
    return s;
}
