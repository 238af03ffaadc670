/* The parts of tokenizer.json around its model. A Sequence is its members in order, however deep; what is not known here is refused by its name. */
#include <string.h>

#include "core/options.h"
#include "hub/tokenizer_json.h"

enum { DEEPEST = 16 }; /* Sequences in Sequences */

typedef linnet_status (*read_step)(const lnt_json_reader *r, const json_t *o, bool last);

/* Calls `step` for o, or for the members of a Sequence, whose list goes by `list`; `last`: nothing follows in the whole part. */
static linnet_status each_step(const lnt_json_reader *r, const char *part, const json_t *o, const char *list, read_step step, bool last, int depth)
{
    if (strcmp(lnt_json_type(o), "Sequence") != 0) return step(r, o, last);
    const json_t *members = json_object_get(o, list);
    if (!json_is_array(members) || depth == DEEPEST) return lnt_malformed(r->c, r->path, "%s Sequence has no list %s", part, list);
    const size_t n = json_array_size(members);
    for (size_t i = 0; i < n; i++) LNT_TRY(each_step(r, part, json_array_get(members, i), list, step, last && i + 1 == n, depth + 1));
    return LINNET_OK;
}

static linnet_status copy_text(const lnt_json_reader *r, const json_t *value, const char *what, char **out, size_t *n)
{
    if (!json_is_string(value)) return lnt_malformed(r->c, r->path, "%s is not a text", what);
    *n = json_string_length(value);
    *out = lnt_strdup(json_string_value(value));
    return *out ? LINNET_OK : lnt_fail_memory(r->c, *n);
}

/* {"String": s} or {"Regex": s} */
static linnet_status read_pattern(const lnt_json_reader *r, const json_t *o, const char *what, lnt_pattern **out)
{
    const char *regex = json_string_value(json_object_get(o, "Regex")), *literal = json_string_value(json_object_get(o, "String"));
    if (!regex && (!literal || !*literal)) return lnt_malformed(r->c, r->path, "%s is missing", what);
    return lnt_pattern_compile(r->c, r->path, what, regex ? regex : literal, !regex, out);
}

/* ---- normalizer ---- */

static const struct {
    const char *type, *keys;
    lnt_normal_step step;
} normal_steps[] = {
    {"NFC", "type", {.kind = LNT_NORMAL_FORM, .compose = true}},
    {"NFD", "type", {.kind = LNT_NORMAL_FORM}},
    {"NFKC", "type", {.kind = LNT_NORMAL_FORM, .compose = true, .compatible = true}},
    {"NFKD", "type", {.kind = LNT_NORMAL_FORM, .compatible = true}},
    {"Strip", "type strip_left strip_right", {.kind = LNT_NORMAL_STRIP}},
    {"StripAccents", "type", {.kind = LNT_NORMAL_ACCENTS}},
    {"Lowercase", "type", {.kind = LNT_NORMAL_LOWER}},
    {"Nmt", "type", {.kind = LNT_NORMAL_NMT}},
    {"Replace", "type pattern content", {.kind = LNT_NORMAL_REPLACE}},
    {"Prepend", "type prepend", {.kind = LNT_NORMAL_PREPEND}},
};

static linnet_status normal_step(const lnt_json_reader *r, const json_t *o, bool last)
{
    (void)last;
    lnt_normalizer *z = &r->t->normalizer;
    size_t i = 0, n = sizeof normal_steps / sizeof *normal_steps;
    while (i < n && strcmp(lnt_json_type(o), normal_steps[i].type) != 0) i++;
    if (i == n)
        return lnt_json_refuse(r, "normalizer", o ? o : json_null(),
                               "NFC, NFD, NFKC, NFKD, Strip, StripAccents, Lowercase, Nmt, Replace, Prepend, or a Sequence");
    LNT_TRY(lnt_json_keys(r, "normalizer", o, normal_steps[i].keys));
    if (z->n == LNT_MAX_NORMAL_STEPS) return lnt_malformed(r->c, r->path, "the normalizer has more than %d steps", LNT_MAX_NORMAL_STEPS);
    lnt_normal_step *s = &z->step[z->n++];
    *s = normal_steps[i].step;
    s->left = json_is_true(json_object_get(o, "strip_left"));
    s->right = json_is_true(json_object_get(o, "strip_right"));
    if (s->kind == LNT_NORMAL_PREPEND)
        return copy_text(r, json_object_get(o, "prepend"), "what normalizer Prepend puts in front", &s->content, &s->n);
    if (s->kind != LNT_NORMAL_REPLACE) return LINNET_OK;
    LNT_TRY(copy_text(r, json_object_get(o, "content"), "the content of normalizer Replace", &s->content, &s->n));
    return read_pattern(r, json_object_get(o, "pattern"), "the pattern of normalizer Replace", &s->pattern);
}

linnet_status lnt_json_normalizer(const lnt_json_reader *r, const json_t *o)
{
    return lnt_json_absent(o) ? LINNET_OK : each_step(r, "normalizer", o, "normalizers", normal_step, true, 0);
}

/* ---- pre_tokenizer ---- */

static linnet_status add_cut(const lnt_json_reader *r, const char *pattern, lnt_behavior behavior, bool invert)
{
    LNT_TRY(lnt_pretokenizer_add(r->c, &r->t->pre, r->path, pattern, false));
    lnt_cut_step *z = &r->t->pre.step[r->t->pre.n - 1];
    z->behavior = behavior;
    z->invert = invert;
    return LINNET_OK;
}

static linnet_status read_behavior(const lnt_json_reader *r, const json_t *o, const char *part, lnt_behavior *out)
{
    static const char words[] = "Isolated Removed Contiguous MergedWithPrevious MergedWithNext"; /* in the order of lnt_behavior */
    const json_t *value = json_object_get(o, "behavior");
    const int place = json_is_string(value) ? lnt_word_find(words, json_string_value(value)) : -1;
    if (place < 0)
        return lnt_json_refuse(r, part, value ? value : json_null(), "Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
    *out = (lnt_behavior)place;
    return LINNET_OK;
}

static linnet_status split_step(const lnt_json_reader *r, const json_t *o)
{
    lnt_cut_step *z = NULL;
    lnt_behavior behavior = LNT_ISOLATED;
    LNT_TRY(lnt_json_keys(r, "pre_tokenizer Split", o, "type pattern behavior invert"));
    LNT_TRY(read_behavior(r, o, "the behavior of pre_tokenizer Split,", &behavior));
    LNT_TRY(lnt_pretokenizer_step(r->c, &r->t->pre, r->path, &z));
    z->behavior = behavior;
    z->invert = json_is_true(json_object_get(o, "invert"));
    return read_pattern(r, json_object_get(o, "pattern"), "the pattern of the pre-tokenizer", &z->pattern);
}

static linnet_status metaspace_step(const lnt_json_reader *r, const json_t *o)
{
    lnt_cut_step *z = NULL;
    const json_t *mark = json_object_get(o, "replacement"), *scheme = json_object_get(o, "prepend_scheme"), *split = json_object_get(o, "split");
    const size_t n = json_string_length(mark);
    size_t first = 0;
    LNT_TRY(lnt_json_keys(r, "pre_tokenizer Metaspace", o, "type replacement prepend_scheme split add_prefix_space str_rep"));
    if (n == 0 || (lnt_utf8_first((const uint8_t *)json_string_value(mark), n, &first), first != n))
        return lnt_json_refuse(r, "the replacement of pre_tokenizer Metaspace,", mark ? mark : json_null(), "one character");
    LNT_TRY(lnt_pretokenizer_step(r->c, &r->t->pre, r->path, &z));
    z->kind = LNT_CUT_METASPACE;
    memcpy(z->mark, json_string_value(mark), n + 1);
    z->split = !json_is_false(split);
    /* older files say it by add_prefix_space */
    if (!scheme) z->prepend = json_is_false(json_object_get(o, "add_prefix_space")) ? LNT_PREPEND_NEVER : LNT_PREPEND_ALWAYS;
    const int place = scheme ? json_is_string(scheme) ? lnt_word_find("always first never", json_string_value(scheme)) : -1 : (int)z->prepend;
    if (place < 0) return lnt_json_refuse(r, "the prepend_scheme of pre_tokenizer Metaspace,", scheme, "always, first or never");
    z->prepend = (lnt_prepend)place;
    return LINNET_OK;
}

static linnet_status byte_level_step(const lnt_json_reader *r, const json_t *o, bool last)
{
    lnt_cut_step *z = NULL;
    const json_t *prefix = json_object_get(o, "add_prefix_space");
    LNT_TRY(lnt_json_keys(r, "pre_tokenizer ByteLevel", o, "type add_prefix_space trim_offsets use_regex"));
    if (!json_is_boolean(prefix)) return lnt_malformed(r->c, r->path, "pre_tokenizer ByteLevel has no add_prefix_space");
    if (!last) return lnt_json_refuse(r, "what follows pre_tokenizer ByteLevel,", o, "nothing: it comes last");
    r->t->bytewise = true;
    if (json_is_true(prefix)) {
        LNT_TRY(lnt_pretokenizer_step(r->c, &r->t->pre, r->path, &z));
        z->kind = LNT_CUT_PREFIX;
    }
    return json_is_false(json_object_get(o, "use_regex")) ? LINNET_OK : lnt_pretokenizer_add(r->c, &r->t->pre, r->path, lnt_gpt2_pattern, false);
}

static linnet_status cut_step(const lnt_json_reader *r, const json_t *o, bool last)
{
    const char *type = lnt_json_type(o);
    lnt_behavior behavior = LNT_ISOLATED;
    if (strcmp(type, "ByteLevel") == 0) return byte_level_step(r, o, last);
    if (strcmp(type, "Split") == 0) return split_step(r, o);
    if (strcmp(type, "Metaspace") == 0) return metaspace_step(r, o);
    if (strcmp(type, "Digits") == 0) {
        LNT_TRY(lnt_json_keys(r, "pre_tokenizer Digits", o, "type individual_digits"));
        return add_cut(r, json_is_true(json_object_get(o, "individual_digits")) ? "\\p{N}" : "\\p{N}+", LNT_ISOLATED, false);
    }
    if (strcmp(type, "Punctuation") == 0) {
        LNT_TRY(lnt_json_keys(r, "pre_tokenizer Punctuation", o, "type behavior"));
        LNT_TRY(read_behavior(r, o, "the behavior of pre_tokenizer Punctuation,", &behavior));
        return add_cut(r, "[!-\\/:-@\\[-`{-~\\p{P}]", behavior, false);
    }
    const bool whitespace = strcmp(type, "Whitespace") == 0;
    if (whitespace || strcmp(type, "WhitespaceSplit") == 0) {
        LNT_TRY(lnt_json_keys(r, "pre_tokenizer Whitespace", o, "type"));
        static const char words[] = "[" LNT_WORD_CLASS "\\x{200c}\\x{200d}]+|[^" LNT_WORD_CLASS "\\x{200c}\\x{200d}\\s]+";
        return whitespace ? add_cut(r, words, LNT_REMOVED, true) : add_cut(r, "\\s", LNT_REMOVED, false);
    }
    return lnt_json_refuse(r, "pre_tokenizer", o ? o : json_null(),
                           "ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, or a Sequence");
}

linnet_status lnt_json_pre_tokenizer(const lnt_json_reader *r, const json_t *o)
{
    r->t->bytewise = false;
    return lnt_json_absent(o) ? LINNET_OK : each_step(r, "pre_tokenizer", o, "pretokenizers", cut_step, true, 0);
}

/* ---- decoder ---- */

static linnet_status one_character(const lnt_json_reader *r, const json_t *value, const char *what, lnt_decode_step *z)
{
    size_t first = 0;
    LNT_TRY(copy_text(r, value, what, &z->content, &z->n));
    if (z->n > 0) lnt_utf8_first((const uint8_t *)z->content, z->n, &first);
    return z->n > 0 && first == z->n ? LINNET_OK : lnt_json_refuse(r, what, value, "one character");
}

static linnet_status decode_step(const lnt_json_reader *r, const json_t *o, bool last)
{
    (void)last;
    static const struct {
        const char *type, *keys;
        lnt_decode_kind kind;
    } steps[] = {
        {"Replace", "type pattern content", LNT_DECODE_REPLACE}, {"ByteFallback", "type", LNT_DECODE_FALLBACK},
        {"Fuse", "type", LNT_DECODE_FUSE},                       {"Strip", "type content start stop", LNT_DECODE_STRIP},
        {"Metaspace", "type replacement prepend_scheme split add_prefix_space str_rep", LNT_DECODE_MARK},
    };
    linnet_tokenizer *t = r->t;
    size_t i = 0, n = sizeof steps / sizeof *steps;
    while (i < n && strcmp(lnt_json_type(o), steps[i].type) != 0) i++;
    if (i == n) return lnt_json_refuse(r, "decoder", o ? o : json_null(), "Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip");
    LNT_TRY(lnt_json_keys(r, "decoder", o, steps[i].keys));
    if (t->n_decode == LNT_MAX_DECODER_STEPS) return lnt_malformed(r->c, r->path, "the decoder has more than %d steps", LNT_MAX_DECODER_STEPS);
    for (int k = 0; k < t->n_decode; k++)
        if (t->decode[k].kind == LNT_DECODE_FUSE && steps[i].kind != LNT_DECODE_STRIP && steps[i].kind != LNT_DECODE_FUSE)
            return lnt_json_refuse(r, "what follows decoder Fuse,", o, "Strip");
    lnt_decode_step *z = &t->decode[t->n_decode++];
    *z = (lnt_decode_step){.kind = steps[i].kind};
    if (z->kind == LNT_DECODE_REPLACE) {
        LNT_TRY(copy_text(r, json_object_get(o, "content"), "the content of decoder Replace", &z->content, &z->n));
        return read_pattern(r, json_object_get(o, "pattern"), "the pattern of decoder Replace", &z->pattern);
    }
    if (z->kind == LNT_DECODE_MARK) {
        const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
        z->drop = scheme ? strcmp(scheme, "never") != 0 : !json_is_false(json_object_get(o, "add_prefix_space"));
        return one_character(r, json_object_get(o, "replacement"), "the replacement of decoder Metaspace", z);
    }
    if (z->kind != LNT_DECODE_STRIP) return LINNET_OK;
    z->start = json_integer_value(json_object_get(o, "start"));
    z->stop = json_integer_value(json_object_get(o, "stop"));
    return one_character(r, json_object_get(o, "content"), "the content of decoder Strip", z);
}

/* Over bytes a piece is its bytes. */
static linnet_status byte_decode_step(const lnt_json_reader *r, const json_t *o, bool last)
{
    (void)last;
    if (strcmp(lnt_json_type(o), "ByteLevel") != 0)
        return lnt_json_refuse(r, "decoder", o ? o : json_null(), "ByteLevel behind pre_tokenizer ByteLevel");
    return lnt_json_keys(r, "decoder ByteLevel", o, "type add_prefix_space trim_offsets use_regex");
}

linnet_status lnt_json_decoder(const lnt_json_reader *r, const json_t *o)
{
    if (r->t->bytewise) return lnt_json_absent(o) ? LINNET_OK : each_step(r, "decoder", o, "decoders", byte_decode_step, true, 0);
    if (lnt_json_absent(o)) return lnt_json_refuse(r, "decoder", json_null(), "one, where the pre_tokenizer is not ByteLevel");
    return each_step(r, "decoder", o, "decoders", decode_step, true, 0);
}

/* ---- post_processor ---- */

static linnet_status put_template(const lnt_json_reader *r, int32_t *list, int *n, int at, const json_t *id)
{
    const int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value >= r->t->n) return lnt_malformed(r->c, r->path, "an id of post_processor is not a number below %d", r->t->n);
    if (*n == LNT_MAX_TEMPLATE) return lnt_malformed(r->c, r->path, "post_processor has more than %d tokens", LNT_MAX_TEMPLATE);
    memmove(list + at + 1, list + at, (size_t)(*n - at) * sizeof *list);
    list[at] = (int32_t)value;
    ++*n;
    return LINNET_OK;
}

static linnet_status template_step(const lnt_json_reader *r, const json_t *o)
{
    linnet_tokenizer *t = r->t;
    const json_t *single = json_object_get(o, "single"), *tokens = json_object_get(o, "special_tokens");
    int texts = 0, placed = 0;
    LNT_TRY(lnt_json_keys(r, "post_processor TemplateProcessing", o, "type single pair special_tokens"));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken"), *text = json_object_get(item, "Sequence");
        const char *name = json_string_value(json_object_get(special ? special : text, "id"));
        const json_t *ids = name && special ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (text && name && strcmp(name, "A") == 0) texts++;
        else if (!json_is_array(ids)) return lnt_malformed(r->c, r->path, "the template of post_processor has a part that is neither a token nor $A");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            const json_t *id = json_array_get(ids, k);
            if (texts) LNT_TRY(put_template(r, t->after, &t->n_after, t->n_after, id));
            else LNT_TRY(put_template(r, t->before, &t->n_before, placed++, id));
        }
    }
    return texts == 1 ? LINNET_OK : lnt_malformed(r->c, r->path, "the template of post_processor has %d texts, expected 1", texts);
}

static linnet_status post_step(const lnt_json_reader *r, const json_t *o, bool last)
{
    (void)last;
    linnet_tokenizer *t = r->t;
    const char *type = lnt_json_type(o);
    if (strcmp(type, "TemplateProcessing") == 0) return template_step(r, o);
    if (strcmp(type, "ByteLevel") == 0) return LINNET_OK; /* about offsets, which nobody asks for here */
    if (strcmp(type, "BertProcessing") != 0 && strcmp(type, "RobertaProcessing") != 0)
        return lnt_json_refuse(r, "post_processor", o ? o : json_null(),
                               "TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, or a Sequence");
    LNT_TRY(put_template(r, t->before, &t->n_before, 0, json_array_get(json_object_get(o, "cls"), 1)));
    return put_template(r, t->after, &t->n_after, t->n_after, json_array_get(json_object_get(o, "sep"), 1));
}

linnet_status lnt_json_post_processor(const lnt_json_reader *r, const json_t *o)
{
    return lnt_json_absent(o) ? LINNET_OK : each_step(r, "post_processor", o, "processors", post_step, true, 0);
}
