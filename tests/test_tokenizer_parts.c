/* Tokenizers of every kind, part by part: ids and texts that the tokenizers package gives for small files of our own, RWKV's list, linear cost. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>

#include <cmocka.h>

#include "core/file.h"
#include "core/rng.h"
#include "tokenizer_checks.h"

static linnet_status open_json(json_t *o, linnet_tokenizer **out)
{
    assert_int_equal(json_dump_file(o, file, 0), 0);
    return linnet_tokenizer_open(ctx, file, out);
}

/* ---- what the tokenizers package makes of small files of ours (bench/against_tokenizers.py --cases) ---- */

static void check_list(const char *what, size_t which, const char *text, const json_t *expected, const int32_t *ids, int64_t n)
{
    bool same = (int64_t)json_array_size(expected) == n;
    for (int64_t i = 0; i < n && same; i++) same = json_integer_value(json_array_get(expected, (size_t)i)) == ids[i];
    if (same) return;
    char *wanted = json_dumps(expected, 0);
    print_message("wanted %s, got", wanted);
    for (int64_t i = 0; i < n; i++) print_message(" %d", ids[i]);
    free(wanted);
    fail_msg("\n%s of case %zu differ for \"%s\"", what, which, text);
}

static void check_case(size_t which, const linnet_tokenizer *t, const json_t *row)
{
    const char *text = json_string_value(json_array_get(row, 0)), *back = json_string_value(json_array_get(row, 3));
    const size_t n = json_string_length(json_array_get(row, 0));
    int32_t *ids;
    int64_t count;
    char *decoded;
    size_t bytes;
    assert_int_equal(linnet_tokenizer_encode(ctx, t, text, n, &ids, &count), LINNET_OK);
    check_list("ids", which, text, json_array_get(row, 1), ids, count);
    linnet_free(ids);
    assert_int_equal(linnet_tokenizer_encode_as(ctx, t, text, n, LINNET_ENCODE_TEMPLATE, &ids, &count), LINNET_OK);
    check_list("ids with the template", which, text, json_array_get(row, 2), ids, count);
    assert_int_equal(linnet_tokenizer_decode(ctx, t, ids, count, 0, &decoded, &bytes), LINNET_OK);
    assert_int_equal(strlen(decoded), bytes);
    if (!strstr(back, "\xef\xbf\xbd") && strcmp(back, decoded) != 0) fail_msg("case %zu: \"%s\" comes back as \"%s\"", which, back, decoded);
    linnet_free(decoded);
    linnet_free(ids);
}

static void as_the_package(void **state)
{
    (void)state;
    json_t *all = json_load_file(LINNET_SOURCE_DIR "/tests/tokenizer_cases.json", 0, NULL), *cases = json_object_get(all, "cases");
    assert_true(json_array_size(cases) > 35);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *k = json_array_get(cases, i), *texts = json_object_get(k, "texts");
        json_t *o = json_deep_copy(json_object_get(k, "parts"));
        json_t *model = json_deep_copy(json_object_get(json_object_get(all, "models"), json_string_value(json_object_get(k, "model"))));
        json_object_update(model, json_object_get(k, "changes"));
        json_object_set_new(o, "model", model);
        linnet_tokenizer *t = NULL;
        if (open_json(o, &t) != LINNET_OK) fail_msg("case %zu: %s", i, linnet_error_message(ctx));
        json_decref(o);
        for (size_t j = 0; j < json_array_size(texts); j++) check_case(i, t, json_array_get(texts, j));
        linnet_tokenizer_destroy(t);
    }
    json_decref(all);
}

/* ---- RWKV's list ---- */

static linnet_status open_world(const char *tail, linnet_tokenizer **out)
{
    FILE *f = fopen(file, "wb");
    for (int b = 0; b < 256; b++) fprintf(f, b < 128 ? "%d '\\x%02x' 1\n" : "%d b'\\x%02x' 1\n", b + 1, b);
    fputs(tail, f);
    fclose(f);
    return linnet_tokenizer_open(ctx, file, out);
}

static void world(void **state)
{
    (void)state;
    linnet_tokenizer *t, *again;
    assert_int_equal(open_world("257 'th' 2\n258 'the' 3\r\n259 \"it's\" 4\n260 '\\n\\n' 2\n261 '\xe6\x97\xa5' 3\n262 b'\\xe6\\x97' 2\n"
                                "263 '\\u00e9' 2\n264 ' \\'' 2\n300 'he' 2\n", &t), LINNET_OK);
    assert_int_equal(linnet_tokenizer_vocabulary(t), 301);
    assert_int_equal(linnet_tokenizer_separator(t), 0);
    check_ids(t, "ththe it's\n\n", 5, (const int32_t[]){257, 258, 33, 259, 260});
    check_ids(t, "\xe6\x97\xa5\xe6\x97z\xc3\xa9 'he", 6, (const int32_t[]){261, 262, 'z' + 1, 263, 264, 300});
    check_round_trip(t, sample, sizeof sample - 1);
    check_round_trip(t, "\xff\xe6\x97", 3);
    int32_t ids[] = {258, 0, 33, 280, 259};
    char *text;
    size_t n;
    assert_int_equal(linnet_tokenizer_decode(ctx, t, ids, 5, 0, &text, &n), LINNET_OK);
    assert_string_equal(text, "the it's");
    linnet_free(text);
    assert_int_equal(linnet_tokenizer_decode(ctx, t, (int32_t[]){301}, 1, 0, &text, &n), LINNET_EINVAL);
    unlink(file);
    assert_int_equal(linnet_tokenizer_save(ctx, t, folder), LINNET_OK);
    again = opened(folder); /* by the name of RWKV's file */
    check_same(t, again, sample, sizeof sample - 1);
    linnet_tokenizer_destroy(again);
    linnet_tokenizer_destroy(t);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, lnt_world_name);
    unlink(path);
    static const char *const wrong[][2] = {
        {"0 'x' 1\n", "does not begin with an id"}, {"257 'th' 3\n", "a token of 2 bytes and says 3"}, {"257 th 2\n", "no string in quotes"},
        {"257 'th\n", "without its second quote"},   {"257 '\\q' 1\n", "an escape"},                     {"257 b'\\u00e9' 2\n", "an escape"},
        {"3 'zz' 2\n", "id 3 is given twice"},       {"257 'a' 1\n", "has the token of id 98 again"},    {"9999999 'th' 2\n", "the largest id is"},
        {"257 '' 0\n", "a token of 0 bytes"},        {"257 '\\ud800' 3\n", "an escape"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (open_world(wrong[i][0], &t) != LINNET_EFORMAT || !strstr(linnet_error_message(ctx), wrong[i][1]))
            fail_msg("case %zu says \"%s\"", i, linnet_error_message(ctx));
}

/* Nothing cuts these texts before the merges or the best way are looked for. */
static void long_words_cost_no_square(void **state)
{
    (void)state;
    json_t *all = json_load_file(LINNET_SOURCE_DIR "/tests/tokenizer_cases.json", 0, NULL), *models = json_object_get(all, "models");
    static const char *const decoder = "{\"type\":\"Fuse\"}";
    static const char *const parts[] = {"the", "ab", "\xe2\x96\x81", "hello\xe2\x96\x81wo", "z"};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 5; i++) {
            enum { BYTES = 2000000 };
            json_t *model = json_object_get(models, m ? "unigram" : "characters");
            json_t *o = json_pack("{s:O, s:o}", "model", model, "decoder", json_loads(decoder, 0, NULL));
            linnet_tokenizer *t;
            assert_int_equal(open_json(o, &t), LINNET_OK);
            json_decref(o);
            const size_t n = strlen(parts[i]), times = BYTES / n;
            char *text = malloc(times * n);
            for (size_t k = 0; k < times; k++) memcpy(text + k * n, parts[i], n);
            int32_t *ids;
            int64_t count;
            const clock_t start = clock();
            assert_int_equal(linnet_tokenizer_encode(ctx, t, text, times * n, &ids, &count), LINNET_OK);
            const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            if (seconds > 8) fail_msg("%d bytes of \"%s\" take %.1f s", BYTES, parts[i], seconds);
            linnet_free(ids);
            free(text);
            linnet_tokenizer_destroy(t);
        }
    json_decref(all);
}

/* Letters, marks of many classes, precomposed letters and Hangul in any order: what utf8proc makes of them. */
static void marks_are_ordered_as_unicode_says(void **state)
{
    (void)state;
    static const int32_t some[] = {'a', 'e', ' ', 0x300, 0x301, 0x302, 0x316, 0x323, 0x327, 0x345, 0x334, 0x5b0, 0x64b, 0x3099, 0xe9, 0x1e69, 0x1e0b,
                                   0x1fb7, 0x212b, 0xac01, 0x1100, 0x1161, 0x11a8, 0x1d15f, 0xf900};
    lnt_rng r = lnt_rng_make(3, 0);
    for (int round = 0; round < 3000; round++) {
        uint8_t text[2048], *mine, *wanted;
        size_t n = 0, got;
        const int few = round % 2 ? 25 : 13, count = 1 + (int)lnt_rng_below(&r, round % 3 ? 20 : 200); /* of every second round: marks almost alone */
        for (int i = 0; i < count; i++) n += (size_t)utf8proc_encode_char(some[(few < 25 && i ? 3 : 0) + (int)lnt_rng_below(&r,
                (uint64_t)few - 3)], text + n);
        utf8proc_ssize_t length = utf8proc_map(text, (utf8proc_ssize_t)n, &wanted, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_int_equal(lnt_nfc(ctx, text, n, &mine, &got), LINNET_OK);
        assert_int_equal(got, length);
        assert_memory_equal(mine, wanted, got);
        lnt_free(mine);
        free(wanted);
    }
}

/* 160 kB of marks took 18 s; the square of 800 kB would be minutes. */
static void marks_alone_cost_no_square(void **state)
{
    (void)state;
    enum { MARKS = 400000 };
    uint8_t *text = malloc(2 * MARKS), *out;
    size_t n;
    for (int i = 0; i < MARKS; i++) utf8proc_encode_char(i % 3 ? 0x301 : 0x316, text + 2 * i);
    const clock_t start = clock();
    assert_int_equal(lnt_nfc(ctx, text, 2 * MARKS, &out, &n), LINNET_OK);
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_int_equal(n, 2 * MARKS);
    assert_int_equal(out[1], 0x96); /* U+0316, of class 220, stands before U+0301, of class 230 */
    assert_int_equal(out[n - 1], 0x81);
    if (seconds > 2) fail_msg("%d marks take %.1f s", MARKS, seconds);
    lnt_free(out);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_ordered_as_unicode_says),
        cmocka_unit_test(marks_alone_cost_no_square),
        cmocka_unit_test(as_the_package),
        cmocka_unit_test(world),
        cmocka_unit_test(long_words_cost_no_square),
    };
    return cmocka_run_group_tests(tests, setup, close_folder);
}
