/* tokenizer.json of Hugging Face's tokenizers, as far as it is byte-level BPE. Everything else is refused by the name of the part. */
#include <stdlib.h>
#include <string.h>

#include "hub/bytechars.h"
#include "hub/json.h"
#include "hub/tokenizer.h"

/* What the functions of one reading share. */
typedef struct {
    lnt_ctx *c;
    const char *path;
    linnet_tokenizer *t;
    const json_t *vocabulary;
} reader;

static const char *type_of(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

static bool absent(const json_t *value) { return !value || json_is_null(value); }

static linnet_status refuse(const reader *r, const char *part, const json_t *value, const char *expected)
{
    char shown[80];
    const char *type = type_of(value);
    lnt_malformed(r->c, r->path, "%s %.80s is not offered, expected %s", part, *type ? type : lnt_json_show(value, shown, sizeof shown), expected);
    return LINNET_EFORMAT;
}

/* ---- vocabulary and merges ---- */

/* A token that stands for its own text. */
static linnet_status set_apart(const reader *r, int64_t id, const char *text, size_t n)
{
    char *copy = lnt_arena_strdup(&r->t->arena, text);
    if (!copy) return lnt_fail_memory(r->c, n + 1);
    r->t->pieces[id] = (lnt_piece){.bytes = copy, .n = (uint32_t)n, .apart = true};
    return LINNET_OK;
}

static linnet_status read_piece(const reader *r, const char *key, const json_t *value)
{
    int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= r->t->n) return lnt_malformed(r->c, r->path, "the id of token \"%.60s\" is not a number below %d", key, r->t->n);
    if (r->t->pieces[id].bytes) return lnt_malformed(r->c, r->path, "id %lld is given twice", (long long)id);
    size_t n = strlen(key);
    if (n > INT32_MAX / 4) return lnt_malformed(r->c, r->path, "a token has %zu bytes", n);
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

static int32_t id_of(const reader *r, const char *text)
{
    const json_t *id = json_object_get(r->vocabulary, text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

/* A merge is "left right" or ["left", "right"]; `joined` has room for both and two more bytes. */
static linnet_status read_merge(const reader *r, const json_t *value, size_t index, char *joined, lnt_merge *m)
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
    if (pieces[m->left].apart || pieces[m->right].apart)
        return lnt_malformed(r->c, r->path, "merge %zu to \"%.60s\" uses a piece that spells no bytes", index, joined);
    return LINNET_OK;
}

static linnet_status read_merges(const reader *r, const json_t *merges)
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

static linnet_status read_model(const reader *r, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *key;
    json_t *value;
    if (*type_of(model) && strcmp(type_of(model), "BPE") != 0) return refuse(r, "model", model, "BPE");
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (!absent(affix) && json_string_length(affix) > 0) return refuse(r, affixes[i], affix, "none");
    }
    const json_t *dropout = json_object_get(model, "dropout"), *fallback = json_object_get(model, "byte_fallback");
    if (!absent(dropout) && json_number_value(dropout) != 0) return refuse(r, "dropout", dropout, "none");
    if (json_is_true(fallback)) return refuse(r, "byte_fallback", fallback, "false: a byte-level vocabulary");
    r->t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    json_object_foreach((json_t *)(uintptr_t)r->vocabulary, key, value) LNT_TRY(read_piece(r, key, value));
    return read_merges(r, json_object_get(model, "merges"));
}

/* ---- added tokens ---- */

static int by_length(const void *a, const void *b)
{
    const lnt_added *x = a, *y = b;
    return x->n != y->n ? (x->n > y->n ? -1 : 1) : x->id - y->id;
}

static linnet_status read_added_token(const reader *r, const json_t *o)
{
    static const char *const strictness[] = {"single_word", "lstrip", "rstrip"};
    linnet_tokenizer *t = r->t;
    const json_t *content = json_object_get(o, "content"), *number = json_object_get(o, "id");
    int64_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    size_t n = json_string_length(content);
    if (id < 0 || id >= t->n) return lnt_malformed(r->c, r->path, "the id of an added token is not a number below %d", t->n);
    if (n == 0 || n > INT32_MAX / 4) return lnt_malformed(r->c, r->path, "added token %lld has no content", (long long)id);
    const lnt_piece *old = &t->pieces[id];
    if (old->bytes && (old->n != n || memcmp(old->bytes, json_string_value(content), n) != 0))
        return lnt_malformed(r->c, r->path, "added token \"%.60s\" has the id %lld of another token", json_string_value(content), (long long)id);
    LNT_TRY(set_apart(r, id, json_string_value(content), n));
    if (json_is_true(json_object_get(o, "special"))) return LINNET_OK;
    for (int i = 0; i < 3; i++)
        if (json_is_true(json_object_get(o, strictness[i])))
            return lnt_malformed(r->c, r->path, "added token \"%.60s\" has %s, expected false", t->pieces[id].bytes, strictness[i]);
    t->added[t->n_added++] = (lnt_added){t->pieces[id].bytes, (uint32_t)n, (int32_t)id, json_is_true(json_object_get(o, "normalized"))};
    return LINNET_OK;
}

static linnet_status read_added(const reader *r, const json_t *list)
{
    linnet_tokenizer *t = r->t;
    size_t n = json_array_size(list);
    t->added = lnt_alloc(lnt_bytes(n, sizeof *t->added));
    if (!t->added) return lnt_fail_memory(r->c, lnt_bytes(n, sizeof *t->added));
    for (size_t i = 0; i < n; i++) LNT_TRY(read_added_token(r, json_array_get(list, i)));
    if (t->n_added) qsort(t->added, (size_t)t->n_added, sizeof *t->added, by_length);
    for (int k = 0; lnt_separator_names[k] && t->separator < 0; k++)
        for (size_t i = 0; i < n && t->separator < 0; i++) {
            const json_t *o = json_array_get(list, i);
            const char *content = json_string_value(json_object_get(o, "content"));
            if (json_is_true(json_object_get(o, "special")) && strcmp(content, lnt_separator_names[k]) == 0)
                t->separator = (int32_t)json_integer_value(json_object_get(o, "id"));
        }
    return LINNET_OK;
}

/* ---- normalizer, pre_tokenizer, decoder, post_processor ---- */

static linnet_status read_normalizer(const reader *r, const json_t *o)
{
    if (absent(o)) return LINNET_OK;
    if (strcmp(type_of(o), "NFC") == 0) {
        r->t->nfc = true;
        return LINNET_OK;
    }
    const json_t *list = json_object_get(o, "normalizers");
    if (strcmp(type_of(o), "Sequence") != 0 || !json_is_array(list)) return refuse(r, "normalizer", o, "none or NFC");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (strcmp(type_of(json_array_get(list, i)), "NFC") != 0) return refuse(r, "normalizer", json_array_get(list, i), "none or NFC");
        r->t->nfc = true;
    }
    return LINNET_OK;
}

static linnet_status read_split(const reader *r, const json_t *o)
{
    const json_t *pattern = json_object_get(o, "pattern"), *behavior = json_object_get(o, "behavior");
    const char *regex = json_string_value(json_object_get(pattern, "Regex")), *literal = json_string_value(json_object_get(pattern, "String"));
    if (!behavior || !json_is_string(behavior) || strcmp(json_string_value(behavior), "Isolated") != 0)
        return refuse(r, "the behavior of pre_tokenizer Split,", behavior ? behavior : json_null(), "Isolated");
    if (!regex && (!literal || !*literal)) return lnt_malformed(r->c, r->path, "pre_tokenizer Split has no pattern");
    return lnt_pretokenizer_add(r->c, &r->t->pre, r->path, regex ? regex : literal, !regex);
}

static linnet_status read_byte_level(const reader *r, const json_t *o, bool alone)
{
    const json_t *prefix = json_object_get(o, "add_prefix_space"), *regex = json_object_get(o, "use_regex");
    if (!json_is_boolean(prefix)) return lnt_malformed(r->c, r->path, "pre_tokenizer ByteLevel has no add_prefix_space");
    r->t->prefix_space = json_is_true(prefix);
    if (r->t->prefix_space && !alone) return refuse(r, "add_prefix_space after another pre_tokenizer,", prefix, "false");
    if (json_is_false(regex)) return LINNET_OK;
    return lnt_pretokenizer_add(r->c, &r->t->pre, r->path, lnt_gpt2_pattern, false);
}

static linnet_status read_pre_tokenizer(const reader *r, const json_t *o)
{
    static const char expected[] = "ByteLevel, or a Sequence of Split and Digits that ends with ByteLevel";
    const json_t *list = json_object_get(o, "pretokenizers");
    bool sequence = strcmp(type_of(o), "Sequence") == 0 && json_is_array(list);
    size_t n = sequence ? json_array_size(list) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *step = sequence ? json_array_get(list, i) : o;
        const char *type = type_of(step);
        bool last = i + 1 == n;
        if (strcmp(type, "ByteLevel") == 0 && last)
            LNT_TRY(read_byte_level(r, step, n == 1));
        else if (strcmp(type, "Split") == 0 && !last)
            LNT_TRY(read_split(r, step));
        else if (strcmp(type, "Digits") == 0 && !last)
            LNT_TRY(lnt_pretokenizer_add(r->c, &r->t->pre, r->path, json_is_true(json_object_get(step, "individual_digits")) ? "\\p{N}" : "\\p{N}+",
                                         false));
        else
            return refuse(r, "pre_tokenizer", step ? step : json_null(), expected);
    }
    return n ? LINNET_OK : refuse(r, "pre_tokenizer", o, expected);
}

static linnet_status read_all(const reader *r, const json_t *o)
{
    const json_t *decoder = json_object_get(o, "decoder");
    LNT_TRY(read_normalizer(r, json_object_get(o, "normalizer")));
    if (absent(json_object_get(o, "pre_tokenizer"))) return refuse(r, "pre_tokenizer", json_null(), "ByteLevel");
    LNT_TRY(read_pre_tokenizer(r, json_object_get(o, "pre_tokenizer")));
    if (!absent(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0) return refuse(r, "decoder", decoder, "ByteLevel");
    /* A post_processor only adds special tokens around a text, which linnet leaves to its callers. */
    LNT_TRY(read_model(r, json_object_get(o, "model")));
    LNT_TRY(read_added(r, json_object_get(o, "added_tokens")));
    return lnt_tokenizer_finish(r->c, r->t, r->path);
}

/* One more than the largest id. Gaps are allowed (some models pad their vocabulary), but not so many that a small file asks for much memory. */
static linnet_status count_ids(const reader *r, const json_t *added, int64_t *out)
{
    const char *key;
    json_t *value;
    size_t entries = json_object_size(r->vocabulary) + json_array_size(added), limit = 2 * entries + 65536;
    int64_t most = 0;
    if (limit > LNT_MAX_VOCABULARY) limit = LNT_MAX_VOCABULARY;
    json_object_foreach((json_t *)(uintptr_t)r->vocabulary, key, value)
        if (json_integer_value(value) > most) most = json_integer_value(value);
    for (size_t i = 0; i < json_array_size(added); i++) {
        int64_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        if (id > most) most = id;
    }
    if (most >= (int64_t)limit)
        return lnt_malformed(r->c, r->path, "the largest id is %lld, expected less than %zu for %zu tokens", (long long)most, limit, entries);
    *out = most + 1;
    return LINNET_OK;
}

linnet_status lnt_tokenizer_from_json(lnt_ctx *c, const char *path, const char *text, size_t bytes, linnet_tokenizer **out)
{
    json_t *o;
    int64_t n = 0;
    LNT_TRY(lnt_json_parse(c, path, text, bytes, &o));
    reader r = {.c = c, .path = path, .vocabulary = json_object_get(json_object_get(o, "model"), "vocab")};
    linnet_status s;
    if (!json_is_object(r.vocabulary) || (*type_of(json_object_get(o, "model")) && strcmp(type_of(json_object_get(o, "model")), "BPE") != 0))
        s = json_object_get(o, "model") ? refuse(&r, "model", json_object_get(o, "model"), "BPE with a vocabulary")
                                        : lnt_malformed(c, path, "the file has no model");
    else
        s = count_ids(&r, json_object_get(o, "added_tokens"), &n);
    if (s == LINNET_OK) s = lnt_tokenizer_new(c, n, &r.t);
    if (s == LINNET_OK) s = read_all(&r, o);
    json_decref(o);
    if (s == LINNET_OK)
        *out = r.t;
    else
        linnet_tokenizer_destroy(r.t);
    return s;
}

/* ---- writing a tokenizer that was made here ---- */

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
