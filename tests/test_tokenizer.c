/* Tokenizers: every text comes back, ids agree with a plain implementation of the rule, what is not offered is refused by name. */
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"
#include "core/rng.h"
#include "hub/bytechars.h"
#include "tokenizer_checks.h"

static linnet_tokenizer *trained(int64_t vocabulary)
{
    linnet_tokenizer *t = NULL;
    assert_int_equal(linnet_tokenizer_train(ctx, sample, sizeof sample - 1, vocabulary, &t), LINNET_OK);
    return t;
}

/* ---- the parts ---- */

static void spelling_of_bytes(void **state)
{
    (void)state;
    uint8_t all[256], back[600];
    char text[513];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    size_t n = lnt_bytechars_spell(all, 256, text);
    assert_int_equal(lnt_bytechars_read(text, n, back), 256);
    assert_memory_equal(all, back, 256);
    lnt_bytechars_spell((const uint8_t *)" \n\xad", 3, text);
    assert_string_equal(text, "\xc4\xa0\xc4\x8a\xc5\x83"); /* U+0120, U+010A, U+0143 */
    assert_int_equal(lnt_bytechars_read(" ", 1, back), -1);
    assert_int_equal(lnt_bytechars_read("\xc5\x84", 2, back), -1); /* U+0144 */
    assert_int_equal(lnt_bytechars_read("\xe6\x97\xa5", 3, back), -1);
    assert_int_equal(lnt_bytechars_read("\xc4", 1, back), -1);
}

static void utf8_prefixes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n, valid;
    } cases[] = {
        {"", 0, 0},
        {"abcdefghijk", 11, 11},
        {"\xc3\xa9", 2, 2},
        {"a\xc3", 2, 1},
        {"\xc0\x80", 2, 0},
        {"\xe0\x9f\x80", 3, 0},
        {"\xe0\xa0\x80", 3, 3},
        {"\xed\x9f\xbf", 3, 3},
        {"\xed\xa0\x80", 3, 0},
        {"\xf0\x8f\x80\x80", 4, 0},
        {"\xf0\x90\x80\x80", 4, 4},
        {"\xf4\x8f\xbf\xbf", 4, 4},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xf5\x80\x80\x80", 4, 0},
        {"abcdefgh\x80", 9, 8},
        {"\xe6\x97", 2, 0},
        {"\xe6\x97z", 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *exact = malloc(cases[i].n + !cases[i].n);
        memcpy(exact, cases[i].text, cases[i].n);
        assert_int_equal(lnt_utf8_prefix(exact, cases[i].n), cases[i].valid);
        free(exact);
    }
}

static void byte_ids(void **state)
{
    (void)state;
    linnet_tokenizer *t = opened("bytes");
    char text[512];
    for (int i = 0; i < 512; i++) text[i] = (char)(i * 7);
    assert_int_equal(linnet_tokenizer_vocabulary(t), 256);
    assert_int_equal(linnet_tokenizer_separator(t), -1);
    int32_t *ids;
    int64_t count;
    assert_int_equal(linnet_tokenizer_encode(ctx, t, text, sizeof text, &ids, &count), LINNET_OK);
    assert_int_equal(count, 512);
    for (int i = 0; i < 512; i++) assert_int_equal(ids[i], (uint8_t)text[i]);
    linnet_free(ids);
    assert_int_equal(linnet_tokenizer_encode(ctx, t, "", 0, &ids, &count), LINNET_OK);
    assert_int_equal(count, 0);
    linnet_free(ids);
    size_t n;
    assert_null(linnet_tokenizer_piece(t, 256, &n));
    assert_null(linnet_tokenizer_piece(t, -1, &n));
    assert_int_equal(linnet_tokenizer_save(ctx, t, folder), LINNET_OK);
    linnet_tokenizer *again = opened(folder);
    assert_int_equal(linnet_tokenizer_vocabulary(again), 256);
    check_same(t, again, text, sizeof text);
    linnet_tokenizer_destroy(again);
    linnet_tokenizer_destroy(t);
}

/* ---- against the rule said plainly ---- */

typedef struct {
    int32_t *out;
    int n;
    const linnet_tokenizer *t;
} plain;

/* Merge the pair of lowest rank, the leftmost of equals, looking at all pairs each time. */
static linnet_status plain_word(void *user, const uint8_t *word, size_t n)
{
    plain *p = user;
    int32_t s[512];
    int m = (int)n;
    for (int i = 0; i < m; i++) s[i] = p->t->byte_id[word[i]];
    for (;;) {
        int best = -1, rank = -1;
        for (int i = 0; i + 1 < m; i++)
            for (int k = 0; k < p->t->n_merges && (rank < 0 || k < rank); k++)
                if (p->t->merges[k].left == s[i] && p->t->merges[k].right == s[i + 1]) best = i, rank = k;
        if (best < 0) break;
        s[best] = p->t->merges[rank].result;
        memmove(s + best + 1, s + best + 2, (size_t)(m - best - 2) * sizeof *s);
        m--;
    }
    memcpy(p->out + p->n, s, (size_t)m * sizeof *s);
    p->n += m;
    return LINNET_OK;
}

static void check_plain(const linnet_tokenizer *t, const char *text, size_t n)
{
    plain p = {.out = calloc(n + 1, sizeof(int32_t)), .t = t};
    lnt_cutter k = {.c = ctx, .p = &t->pre, .word = plain_word, .user = &p};
    assert_int_equal(lnt_cutter_begin(&k), LINNET_OK);
    assert_int_equal(lnt_cut(&k, (const uint8_t *)text, n, LNT_AT_START), LINNET_OK);
    lnt_cutter_end(&k);
    int32_t *ids;
    int64_t count;
    assert_int_equal(linnet_tokenizer_encode(ctx, t, text, n, &ids, &count), LINNET_OK);
    assert_int_equal(count, p.n);
    assert_memory_equal(ids, p.out, (size_t)p.n * sizeof *ids);
    linnet_free(ids);
    free(p.out);
}

static void agrees_with_the_plain_rule(void **state)
{
    (void)state;
    linnet_tokenizer *t = trained(330);
    lnt_rng r = lnt_rng_make(7, 1);
    check_plain(t, sample, sizeof sample - 1);
    char text[300];
    for (int round = 0; round < 200; round++) {
        size_t n = lnt_rng_below(&r, sizeof text);
        static const char letters[] = "aabtthn s'.\n\xc3\xa9";
        for (size_t i = 0; i < n; i++) text[i] = round % 2 ? letters[lnt_rng_below(&r, sizeof letters - 1)] : (char)lnt_rng_below(&r, 256);
        check_plain(t, text, n);
        check_round_trip(t, text, n);
    }
    linnet_tokenizer_destroy(t);
}

/* Training again, counting every pair anew before each merge. */
typedef struct {
    int32_t s[64];
    int n;
} plain_symbols;
static plain_symbols words[256];
static int n_words;

static linnet_status collect(void *user, const uint8_t *word, size_t n)
{
    (void)user;
    for (size_t i = 0; i < n; i++) words[n_words].s[i] = word[i];
    words[n_words++].n = (int)n;
    return LINNET_OK;
}

static int64_t occurrences(int32_t left, int32_t right)
{
    int64_t count = 0;
    for (int w = 0; w < n_words; w++)
        for (int i = 0; i + 1 < words[w].n; i++) count += words[w].s[i] == left && words[w].s[i + 1] == right;
    return count;
}

static void training_agrees_with_recounting(void **state)
{
    (void)state;
    linnet_tokenizer *t = trained(320);
    lnt_cutter k = {.c = ctx, .p = &t->pre, .word = collect};
    n_words = 0;
    lnt_cutter_begin(&k);
    lnt_cut(&k, (const uint8_t *)sample, sizeof sample - 1, LNT_AT_START);
    lnt_cutter_end(&k);
    assert_true(t->n_merges >= 30);
    for (int m = 0; m < t->n_merges; m++) {
        int64_t best = 0;
        int32_t left = -1, right = -1;
        for (int w = 0; w < n_words; w++)
            for (int i = 0; i + 1 < words[w].n; i++) {
                int32_t a = words[w].s[i], b = words[w].s[i + 1];
                int64_t count = occurrences(a, b);
                if (count > best || (count == best && (a < left || (a == left && b < right)))) best = count, left = a, right = b;
            }
        if (best < 2) break;
        assert_int_equal(t->merges[m].left, left);
        assert_int_equal(t->merges[m].right, right);
        for (int w = 0; w < n_words; w++) {
            int n = 0;
            for (int i = 0; i < words[w].n; i++) {
                bool hit = i + 1 < words[w].n && words[w].s[i] == left && words[w].s[i + 1] == right;
                words[w].s[n++] = hit ? t->merges[m].result : words[w].s[i];
                i += hit;
            }
            words[w].n = n;
        }
    }
    linnet_tokenizer_destroy(t);
}

static void training(void **state)
{
    (void)state;
    linnet_tokenizer *t = trained(280), *again = trained(280), *loaded;
    assert_int_equal(linnet_tokenizer_vocabulary(t), 280);
    assert_int_equal(linnet_tokenizer_separator(t), 279);
    check_same(t, again, sample, sizeof sample - 1);
    assert_int_equal(linnet_tokenizer_save(ctx, t, folder), LINNET_OK);
    loaded = opened(file);
    assert_int_equal(linnet_tokenizer_vocabulary(loaded), 280);
    assert_int_equal(linnet_tokenizer_separator(loaded), 279);
    check_same(t, loaded, sample, sizeof sample - 1);
    /* saved again, it is the same file */
    char *one, *two;
    size_t n1, n2;
    assert_int_equal(lnt_file_read(ctx, file, 1 << 20, &one, &n1), LINNET_OK);
    assert_int_equal(linnet_tokenizer_save(ctx, loaded, folder), LINNET_OK);
    assert_int_equal(lnt_file_read(ctx, file, 1 << 20, &two, &n2), LINNET_OK);
    assert_int_equal(n1, n2);
    assert_memory_equal(one, two, n1);
    lnt_free(one);
    lnt_free(two);
    /* what spells the separator is the separator, unless asked otherwise; before and after saving */
    int32_t *ids;
    int64_t count;
    check_ids(t, "a<|endoftext|>b", 3, (const int32_t[]){'a', 279, 'b'});
    check_ids(loaded, "a<|endoftext|>b", 3, (const int32_t[]){'a', 279, 'b'});
    assert_int_equal(linnet_tokenizer_encode_as(ctx, loaded, "a<|endoftext|>b", 15, LINNET_ENCODE_PLAIN, &ids, &count), LINNET_OK);
    for (int64_t i = 0; i < count; i++) assert_int_not_equal(ids[i], 279);
    linnet_free(ids);
    assert_int_equal(linnet_tokenizer_encode_as(ctx, loaded, "a", 1, 4, &ids, &count), LINNET_EINVAL);
    check_round_trip(loaded, "a<|endoftext|>b", 15);
    linnet_tokenizer_destroy(loaded);
    linnet_tokenizer_destroy(again);
    linnet_tokenizer_destroy(t);

    t = NULL;
    assert_int_equal(linnet_tokenizer_train(ctx, sample, 0, 300, &t), LINNET_EINVAL);
    assert_int_equal(linnet_tokenizer_train(ctx, sample, 10, 256, &t), LINNET_EINVAL);
    assert_int_equal(linnet_tokenizer_train(ctx, sample, 10, INT64_MAX, &t), LINNET_EINVAL);
    assert_null(t);
    assert_int_equal(linnet_tokenizer_train(ctx, "abcdefg", 7, 5000, &t), LINNET_OK); /* nothing repeats */
    assert_int_equal(linnet_tokenizer_vocabulary(t), 257);
    linnet_tokenizer_destroy(t);
    size_t n = 100000; /* one word, far longer than any */
    char *long_word = malloc(n);
    memset(long_word, 'a', n);
    assert_int_equal(linnet_tokenizer_train(ctx, long_word, n, 270, &t), LINNET_OK);
    check_round_trip(t, long_word, n);
    linnet_tokenizer_destroy(t);
    free(long_word);
}

/* ---- tokenizer.json ---- */

/* The json of a small trained tokenizer, to be changed by a case. */
static json_t *base_json(void)
{
    linnet_tokenizer *t = trained(300);
    char *text;
    size_t n;
    assert_int_equal(lnt_tokenizer_text(ctx, t, &text, &n), LINNET_OK);
    json_t *o = json_loads(text, 0, NULL);
    assert_non_null(o);
    lnt_free(text);
    linnet_tokenizer_destroy(t);
    return o;
}

static linnet_status open_json(json_t *o, linnet_tokenizer **out)
{
    assert_int_equal(json_dump_file(o, file, 0), 0);
    return linnet_tokenizer_open(ctx, file, out);
}

static linnet_tokenizer *open_changed(const char *key, const char *value)
{
    json_t *o = base_json(), *v = json_loads(value, JSON_DECODE_ANY, NULL);
    linnet_tokenizer *t = NULL;
    assert_non_null(v);
    json_object_set_new(strncmp(key, "model.", 6) == 0 ? json_object_get(o, "model") : o, strncmp(key, "model.", 6) == 0 ? key + 6 : key, v);
    open_json(o, &t);
    json_decref(o);
    return t;
}

static void refuses(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"model", "{\"type\":\"Unigram\",\"vocab\":{}}", "model Unigram is not offered, expected BPE or Unigram with a vocabulary"},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}", "piece 0 of the vocabulary"},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e300]]}", "the score of piece 0"},
        {"model", "{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",-1]]}", "unk_id 1 is not offered"},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"alpha\":0.1}", "model Unigram has the key \"alpha\""},
        {"model", "{\"type\":\"WordPiece\"}", "model WordPiece"},
        {"model", "5", "model 5 is not offered"},
        {"model.word_boundary", "true", "model BPE has the key \"word_boundary\", which is not known"},
        {"novelty", "1", "the file has the key \"novelty\""},
        {"model.dropout", "0.1", "dropout 0.1"},
        {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix \"##\""},
        {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}", "no token for byte 0x00"},
        {"model.vocab", "{\"a\":0}", "uses a piece that has no id"},
        {"model.vocab", "{\"a\":0,\"b\":0}", "id 0 is given twice"},
        {"model.vocab", "{\"a\":-1}", "id of token \"a\""},
        {"model.vocab", "{\"a\":\"x\"}", "id of token \"a\""},
        {"model.vocab", "{\"a\":16000000}", "the largest id is 16000000, expected less than"},
        {"model.merges", "5", "the merges are not a list"},
        {"model.merges", "[\"a\"]", "merge 0 is \"a\", expected two pieces"},
        {"model.merges", "[\"a b c\"]", "expected two pieces"},
        {"model.merges", "[[\"a\"]]", "merge 0 is not two pieces"},
        {"model.merges", "[[\"a\",5]]", "merge 0 is not two pieces"},
        {"model.merges", "[\"q x\"]", "uses a piece that has no id"},
        {"pre_tokenizer", "null", "decoder ByteLevel is not offered, expected Metaspace, or a Sequence"},
        {"pre_tokenizer", "{\"type\":\"UnicodeScripts\"}", "pre_tokenizer UnicodeScripts"},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", "no add_prefix_space"},
        {"pre_tokenizer", "{\"type\":\"Sequence\"}", "pre_tokenizer Sequence has no list pretokenizers"},
        {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"FixedLength\"}]}", "pre_tokenizer FixedLength"},
        {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"Whitespace\"}]}",
         "what follows pre_tokenizer ByteLevel"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", "the replacement of pre_tokenizer Metaspace"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}", "the prepend_scheme of"},
        {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}", "the behavior of pre_tokenizer Punctuation"},
        {"pre_tokenizer", "{\"type\":\"Digits\",\"roman\":true}", "pre_tokenizer Digits has the key \"roman\""},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}", "a class of classes at byte 2"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a\\\\S]\"},\"behavior\":\"Isolated\"}", "has \\S in a class at byte 2"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}", "the pattern of the pre-tokenizer is missing"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(\"},\"behavior\":\"Isolated\"},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
         "malformed at byte 2"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a*\"},\"behavior\":\"Isolated\"},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
         "matches the empty text"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removes\"},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
         "expected Isolated"},
        {"normalizer", "{\"type\":\"Precompiled\"}", "normalizer Precompiled"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"BertNormalizer\"}]}", "normalizer BertNormalizer"},
        {"normalizer", "{\"type\":\"Prepend\"}", "what normalizer Prepend puts in front is not a text"},
        {"normalizer", "{\"type\":\"Replace\",\"content\":\"a\",\"pattern\":{\"Regex\":\"(\"}}", "the pattern of normalizer Replace is malformed"},
        {"decoder", "{\"type\":\"WordPiece\"}", "decoder WordPiece"},
        {"post_processor", "{\"type\":\"Novel\"}", "post_processor Novel"},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", "the template of post_processor has 0 texts"},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}", "neither a token nor $A"},
        {"post_processor", "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",999]}", "an id of post_processor is not a number below"},
        {"model", "{\"vocab\":{\"a\":0,\"\\u65e5\":1,\"\\u65e5a\":2},\"merges\":[\"\\u65e5 a\"]}", "uses a piece that spells no bytes"},
        {"added_tokens", "[{\"id\":97,\"content\":\"x\"}]", "added token \"x\" has the id 97 of another token"},
        {"added_tokens", "[{\"id\":-3,\"content\":\"x\"}]", "id of an added token"},
        {"added_tokens", "[{\"id\":299}]", "has no content"},
        {"added_tokens", "[{\"id\":300,\"content\":\"a\"}]", "added token \"a\" has the id 300, but the vocabulary says 97"},
        {"added_tokens", "[{\"id\":300,\"content\":\"x\",\"odd\":true}]", "an added token has the key \"odd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        linnet_tokenizer *t = open_changed(cases[i][0], cases[i][1]);
        if (t || !strstr(linnet_error_message(ctx), cases[i][2])) fail_msg("case %zu says \"%s\"", i, t ? "ok" : linnet_error_message(ctx));
        assert_non_null(strstr(linnet_error_detail(ctx), file));
    }
    linnet_tokenizer *t;
    assert_int_equal(linnet_tokenizer_open(ctx, "/nowhere", &t), LINNET_EIO);
    unlink(file);
    assert_int_equal(linnet_tokenizer_open(ctx, folder, &t), LINNET_EIO);
    assert_non_null(strstr(linnet_error_message(ctx), "has no tokenizer"));
}

static void offered_forms(void **state)
{
    (void)state;
    linnet_tokenizer *t, *plainly = trained(300);
    /* merges as pairs */
    json_t *o = base_json(), *merges = json_object_get(json_object_get(o, "model"), "merges");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s", json_string_value(json_array_get(merges, i)));
        *strchr(text, ' ') = 0;
        json_array_set_new(merges, i, json_pack("[s,s]", text, text + strlen(text) + 1));
    }
    assert_int_equal(open_json(o, &t), LINNET_OK);
    json_decref(o);
    check_same(plainly, t, sample, sizeof sample - 1);
    linnet_tokenizer_destroy(t);
    /* the pattern as a Split before a ByteLevel without one */
    t = open_changed(
        "pre_tokenizer",
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":false}]}");
    assert_non_null(t);
    check_same(plainly, t, sample, sizeof sample - 1);
    linnet_tokenizer_destroy(t);
    /* digits apart: a pair of digits that repeats is no longer merged */
    t = open_changed("pre_tokenizer",
                     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":false}]}");
    assert_non_null(t);
    check_ids(t, "12", 2, (const int32_t[]){'1', '2'});
    linnet_tokenizer_destroy(t);
    /* a space before the text */
    t = open_changed("pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}");
    assert_non_null(t);
    check_same(t, t, "the", 3);
    int32_t *a, *b;
    int64_t na, nb;
    linnet_tokenizer_encode(ctx, t, "the", 3, &a, &na);
    linnet_tokenizer_encode(ctx, plainly, " the", 4, &b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, (size_t)na * sizeof *a);
    linnet_free(a);
    linnet_free(b);
    linnet_tokenizer_destroy(t);
    /* NFC: e and a combining acute accent are one character; what is not UTF-8 goes through */
    t = open_changed("normalizer", "{\"type\":\"NFC\"}");
    assert_non_null(t);
    linnet_tokenizer_encode(ctx, t, "cafe\xcc\x81\xff", 7, &a, &na);
    linnet_tokenizer_encode(ctx, plainly, "caf\xc3\xa9\xff", 6, &b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, (size_t)na * sizeof *a);
    linnet_free(a);
    linnet_free(b);
    linnet_tokenizer_destroy(t);
    /* added tokens: longest first */
    t = open_changed("added_tokens",
                     "[{\"id\":300,\"content\":\"  \"},{\"id\":301,\"content\":\"   \"},{\"id\":302,\"content\":\"<s>\",\"special\":true},"
                     "{\"id\":400,\"content\":\"</s>\",\"special\":true},{\"id\":303,\"content\":\"\\u65e5\",\"normalized\":true}]");
    assert_non_null(t);
    assert_int_equal(linnet_tokenizer_vocabulary(t), 401);
    assert_int_equal(linnet_tokenizer_separator(t), 400);
    check_ids(t, "     \xe6\x97\xa5<", 4, (const int32_t[]){301, 300, 303, '<'});
    check_ids(t, "<s>", 1, (const int32_t[]){302});
    check_round_trip(t, "  x   <s> </s>", 14);
    size_t n = 9;
    assert_non_null(linnet_tokenizer_piece(t, 350, &n)); /* a gap */
    assert_int_equal(n, 0);
    linnet_tokenizer_destroy(t);
    /* ignore_merges: a word of the vocabulary is its own token, whatever the merges say */
    o = base_json();
    json_object_set_new(json_object_get(o, "model"), "ignore_merges", json_true());
    json_object_set_new(json_object_get(json_object_get(o, "model"), "vocab"), "xyzzy", json_integer(300));
    json_object_set_new(json_object_get(json_object_get(o, "model"), "vocab"), "hello", json_integer(301));
    json_array_append_new(json_object_get(o, "added_tokens"), json_pack("{s:i,s:s,s:b}", "id", 301, "content", "hello", "special", 1));
    assert_int_equal(open_json(o, &t), LINNET_OK);
    json_decref(o);
    check_ids(t, "xyzzy", 1, (const int32_t[]){300});
    check_ids(t, "hello", 1, (const int32_t[]){301});
    linnet_tokenizer_destroy(t);
    /* a pattern that gives up on a text says so */
    t = open_changed("pre_tokenizer",
                     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},\"behavior\":\"Isolated\"},"
                     "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}");
    assert_non_null(t);
    char bomb[64];
    memset(bomb, 'a', sizeof bomb);
    bomb[63] = 'b';
    assert_int_equal(linnet_tokenizer_encode(ctx, t, bomb, sizeof bomb, &a, &na), LINNET_EUNSUPPORTED);
    linnet_tokenizer_destroy(t);
    linnet_tokenizer_destroy(plainly);
}

static void truncated_everywhere(void **state)
{
    (void)state;
    linnet_tokenizer *t = opened("bytes");
    char *text;
    size_t n;
    assert_int_equal(lnt_tokenizer_text(ctx, t, &text, &n), LINNET_OK);
    linnet_tokenizer_destroy(t);
    while (text[n - 1] == '\n') n--;
    for (size_t cut = 0; cut < n; cut++) {
        char *part = malloc(cut + 1);
        memcpy(part, text, cut);
        assert_int_equal(lnt_tokenizer_from_json(ctx, "x", part, cut, &t), LINNET_EFORMAT);
        free(part);
    }
    lnt_free(text);
}

static void allocation_failures(void **state)
{
    (void)state;
    linnet_tokenizer *t = trained(300);
    assert_int_equal(linnet_tokenizer_save(ctx, t, folder), LINNET_OK);
    linnet_tokenizer_destroy(t);
    linnet_status s;
    int64_t n = 0, made; /* not every failure is an error: a pattern works without its JIT */
    do {
        int32_t *ids = NULL;
        int64_t count;
        linnet_tokenizer *fresh = NULL;
        t = NULL;
        lnt_alloc_fail_at(++n);
        s = linnet_tokenizer_open(ctx, folder, &t);
        if (s == LINNET_OK) s = linnet_tokenizer_encode(ctx, t, sample, sizeof sample - 1, &ids, &count);
        if (s == LINNET_OK) s = linnet_tokenizer_train(ctx, sample, sizeof sample - 1, 290, &fresh);
        if (s == LINNET_OK) s = linnet_tokenizer_save(ctx, fresh, folder);
        made = lnt_alloc_count();
        lnt_alloc_fail_at(0);
        linnet_free(ids);
        linnet_tokenizer_destroy(fresh);
        linnet_tokenizer_destroy(t);
        if (s != LINNET_OK && s != LINNET_ENOMEM) fail_msg("%s", linnet_error_message(ctx));
    } while (made >= n);
    assert_int_equal(s, LINNET_OK);
    assert_true(n > 500);
}

static void full_disk(void **state)
{
    (void)state;
    linnet_tokenizer *t = trained(300), *bytes = opened("bytes"), *kept;
    assert_int_equal(linnet_tokenizer_save(ctx, bytes, folder), LINNET_OK);
    struct rlimit old, low;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 1024;
    setrlimit(RLIMIT_FSIZE, &low);
    linnet_status s = linnet_tokenizer_save(ctx, t, folder);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(s, LINNET_EIO);
    kept = opened(folder);
    assert_int_equal(linnet_tokenizer_vocabulary(kept), 256);
    linnet_tokenizer_destroy(kept);
    linnet_tokenizer_destroy(bytes);
    linnet_tokenizer_destroy(t);
}

/* ---- GPT-2's own files ---- */

static void gpt2(void **state)
{
    (void)state;
    const char *path = LINNET_SOURCE_DIR "/../shared/data/gpt2-bpe", *text_path = LINNET_SOURCE_DIR "/../shared/data/shakespeare/input.txt";
    if (!lnt_is_folder(path) || !lnt_file_exists(text_path)) {
        print_message("no GPT-2 files at %s\n", path);
        skip();
    }
    linnet_tokenizer *t = opened(path);
    assert_int_equal(linnet_tokenizer_vocabulary(t), 50257);
    assert_int_equal(linnet_tokenizer_separator(t), 50256);
    /* ids as tiktoken 0.14 gives them */
    check_ids(t, "Hello world", 2, (const int32_t[]){15496, 995});
    check_ids(t, "It's 2024!\n\n  x", 7, (const int32_t[]){1026, 338, 48609, 0, 628, 220, 2124});
    check_ids(t, "na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x90\xa6", 10,
              (const int32_t[]){2616, 38776, 10545, 245, 98, 17312, 105, 12520, 238, 99});
    lnt_file_view v;
    int32_t *ids;
    int64_t count;
    assert_int_equal(lnt_file_map(ctx, text_path, &v), LINNET_OK);
    check_round_trip(t, (const char *)v.data, v.size);
    assert_int_equal(linnet_tokenizer_encode(ctx, t, (const char *)v.data, v.size, &ids, &count), LINNET_OK);
    assert_int_equal(count, 338025); /* the same by tiktoken and by Hugging Face's tokenizers */
    linnet_free(ids);
    assert_int_equal(linnet_tokenizer_save(ctx, t, folder), LINNET_OK);
    linnet_tokenizer *again = opened(folder);
    assert_int_equal(linnet_tokenizer_separator(again), 50256);
    check_same(t, again, (const char *)v.data, v.size);
    lnt_file_unmap(&v);
    linnet_tokenizer_destroy(again);
    linnet_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spelling_of_bytes),
        cmocka_unit_test(utf8_prefixes),
        cmocka_unit_test(byte_ids),
        cmocka_unit_test(agrees_with_the_plain_rule),
        cmocka_unit_test(training_agrees_with_recounting),
        cmocka_unit_test(training),
        cmocka_unit_test(refuses),
        cmocka_unit_test(offered_forms),
        cmocka_unit_test(truncated_everywhere),
        cmocka_unit_test(allocation_failures),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(gpt2),
    };
    return cmocka_run_group_tests(tests, setup, close_folder);
}
