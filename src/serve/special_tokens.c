#include "serve/special_tokens.h"

#include <string.h>

#include "core/file.h"
#include "hub/json.h"

enum { MOST_BYTES = 64 << 20 };

/* A token as tokenizer_config.json writes it: its string, or an object around it. */
static const char *string_of(const json_t *token) { return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token); }

static linnet_status expect(lnt_ctx *c, lnt_specials *s, const char *text)
{
    bool fresh;
    if (!text || !*text) return LINNET_OK;
    int64_t *id = lnt_bytemap_put(&s->ids, text, strlen(text), &fresh);
    if (!id) return lnt_fail_memory(c, strlen(text));
    if (fresh) *id = -1;
    if (strlen(text) > s->longest) s->longest = strlen(text);
    return LINNET_OK;
}

static linnet_status keep(lnt_ctx *c, lnt_specials *s, const json_t *token, const char **out)
{
    const char *text = string_of(token);
    if (!text || !*text) return LINNET_OK;
    if (!(*out = lnt_arena_strdup(&s->arena, text))) return lnt_fail_memory(c, strlen(text));
    return expect(c, s, text);
}

/* The template, or of several the one that is for no special purpose. */
static const json_t *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *one;
    size_t i;
    json_array_foreach(value, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) return json_object_get(one, "template");
    }
    return value;
}

static linnet_status read_tokenizer_config(lnt_ctx *c, lnt_specials *s, const json_t *config)
{
    const json_t *one;
    const char *key;
    size_t i;
    LNT_TRY(keep(c, s, json_object_get(config, "bos_token"), &s->bos));
    LNT_TRY(keep(c, s, json_object_get(config, "eos_token"), &s->eos));
    LNT_TRY(keep(c, s, json_object_get(config, "pad_token"), &s->pad));
    json_array_foreach(json_object_get(config, "additional_special_tokens"), i, one) LNT_TRY(expect(c, s, string_of(one)));
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, one)
        if (json_is_true(json_object_get(one, "special"))) LNT_TRY(expect(c, s, string_of(one)));
    const char *text = json_string_value(template_of(config));
    if (text && !(s->chat_template = lnt_arena_strdup(&s->arena, text))) return lnt_fail_memory(c, strlen(text));
    return LINNET_OK;
}

void lnt_specials_ends(lnt_specials *s, int64_t id)
{
    if (id < 0 || id >= linnet_tokenizer_vocabulary(s->t) || s->n_end_ids == LNT_END_IDS) return;
    for (int i = 0; i < s->n_end_ids; i++)
        if (s->end_ids[i] == id) return;
    s->end_ids[s->n_end_ids++] = (int32_t)id;
}

/* A file of the folder; *out NULL: there is none. */
static linnet_status load(lnt_ctx *c, lnt_specials *s, const char *folder, const char *name, json_t **out)
{
    const char *path = lnt_arena_printf(&s->arena, "%s/%s", folder, name);
    *out = NULL;
    if (!path) return lnt_fail_memory(c, strlen(folder));
    return lnt_file_exists(path) ? lnt_json_load(c, path, MOST_BYTES, out) : LINNET_OK;
}

static linnet_status read_template_file(lnt_ctx *c, lnt_specials *s, const char *folder)
{
    const char *path = lnt_arena_printf(&s->arena, "%s/chat_template.jinja", folder);
    char *text;
    size_t n;
    if (!path) return lnt_fail_memory(c, strlen(folder));
    if (s->chat_template || !lnt_file_exists(path)) return LINNET_OK;
    LNT_TRY(lnt_file_read(c, path, MOST_BYTES, &text, &n));
    s->chat_template = lnt_arena_strdup(&s->arena, text);
    lnt_free(text);
    return s->chat_template ? LINNET_OK : lnt_fail_memory(c, n);
}

static linnet_status read_folder(lnt_ctx *c, lnt_specials *s, const char *folder)
{
    json_t *config, *one;
    size_t i;
    LNT_TRY(load(c, s, folder, "tokenizer_config.json", &config));
    linnet_status status = read_tokenizer_config(c, s, config);
    json_decref(config);
    LNT_TRY(status);
    LNT_TRY(read_template_file(c, s, folder));
    LNT_TRY(load(c, s, folder, "generation_config.json", &config));
    const json_t *ends = json_object_get(config, "eos_token_id");
    if (json_is_integer(ends)) lnt_specials_ends(s, json_integer_value(ends));
    json_array_foreach(ends, i, one) if (json_is_integer(one)) lnt_specials_ends(s, json_integer_value(one));
    json_decref(config);
    return LINNET_OK;
}

linnet_status lnt_specials_open(lnt_ctx *c, const linnet_tokenizer *t, const char *folder, lnt_specials *s)
{
    /* Marks of templates that are tokens, where a tokenizer has them. */
    static const char *const marks[] = {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>",
                                        "<start_of_turn>", "<end_of_turn>", "<bos>", "<|start_of_role|>", "<|end_of_role|>", "<s>", "</s>", "[INST]",
                                        "[/INST]", "<|system|>", "<|user|>", "<|assistant|>", "<|end_of_text|>", "<|endoftext|>", NULL};
    *s = (lnt_specials){.t = t};
    const int64_t separator = linnet_tokenizer_separator(t);
    size_t bytes = 0;
    const char *piece = separator < 0 ? NULL : linnet_tokenizer_piece(t, separator, &bytes);
    for (int i = 0; marks[i]; i++) LNT_TRY(expect(c, s, marks[i]));
    if (piece) {
        char *text = lnt_arena_alloc(&s->arena, lnt_bytes_plus(bytes, 1));
        if (!text) return lnt_fail_memory(c, bytes);
        memcpy(text, piece, bytes);
        s->eos = text;
        LNT_TRY(expect(c, s, text));
    }
    lnt_specials_ends(s, separator);
    if (folder) LNT_TRY(read_folder(c, s, folder));
    for (int64_t id = linnet_tokenizer_vocabulary(t) - 1; id >= 0; id--) { /* of two with one spelling, the first */
        piece = linnet_tokenizer_piece(t, id, &bytes);
        int64_t *known = bytes ? lnt_bytemap_find(&s->ids, piece, bytes) : NULL;
        if (known) *known = id;
        if (known) s->begins[(unsigned char)*piece] = true;
    }
    if (s->eos) lnt_specials_ends(s, lnt_specials_id(s, s->eos, strlen(s->eos)));
    return LINNET_OK;
}

void lnt_specials_close(lnt_specials *s)
{
    lnt_bytemap_free(&s->ids);
    lnt_arena_free(&s->arena);
}

int32_t lnt_specials_id(const lnt_specials *s, const char *text, size_t bytes)
{
    const int64_t *id = lnt_bytemap_find(&s->ids, text, bytes);
    return id ? (int32_t)*id : -1;
}

/* ---- ids one behind the other ----------------------------------------------------------------------------------------------------------- */

static linnet_status put_ids(lnt_ids_out *o, const int32_t *ids, int64_t n)
{
    if (o->n + n > o->room) {
        const int64_t room = 2 * o->room + n + 64;
        int32_t *grown = lnt_realloc(o->ids, lnt_bytes((size_t)o->room, sizeof *ids), lnt_bytes((size_t)room, sizeof *ids));
        if (!grown) return lnt_fail_memory(o->c, lnt_bytes((size_t)room, sizeof *ids));
        o->ids = grown;
        o->room = room;
    }
    if (n) memcpy(o->ids + o->n, ids, (size_t)n * sizeof *ids);
    o->n += n;
    return LINNET_OK;
}

linnet_status lnt_ids_end(lnt_ids_out *o)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    if (!o->n_text) return LINNET_OK;
    /* plain: what spells a special token in a message is text */
    LNT_TRY(linnet_tokenizer_encode_as(o->c, o->s->t, o->text, o->n_text, LINNET_ENCODE_PLAIN, &ids, &n));
    o->n_text = 0;
    const linnet_status s = put_ids(o, ids, n);
    linnet_free(ids);
    return s;
}

linnet_status lnt_ids_text(lnt_ids_out *o, const char *text, size_t bytes)
{
    if (o->n_text + bytes > o->room_text) {
        const size_t room = lnt_bytes_plus(lnt_bytes(o->n_text, 2), lnt_bytes_plus(bytes, 256));
        char *grown = lnt_realloc(o->text, o->room_text, room);
        if (!grown) return lnt_fail_memory(o->c, room);
        o->text = grown;
        o->room_text = room;
    }
    if (bytes) memcpy(o->text + o->n_text, text, bytes);
    o->n_text += bytes;
    return LINNET_OK;
}

linnet_status lnt_ids_marks(lnt_ids_out *o, const char *text, size_t bytes)
{
    size_t from = 0;
    for (size_t at = 0; at < bytes;) {
        int32_t id = -1;
        size_t n = o->s->begins[(unsigned char)text[at]] ? o->s->longest : 0;
        if (n > bytes - at) n = bytes - at;
        while (n && (id = lnt_specials_id(o->s, text + at, n)) < 0) n--;
        if (id < 0) {
            at++;
            continue;
        }
        LNT_TRY(lnt_ids_text(o, text + from, at - from));
        LNT_TRY(lnt_ids_end(o));
        LNT_TRY(put_ids(o, &id, 1));
        from = at += n;
    }
    return lnt_ids_text(o, text + from, bytes - from);
}

void lnt_ids_close(lnt_ids_out *o)
{
    lnt_free(o->text);
    lnt_free(o->ids);
}
