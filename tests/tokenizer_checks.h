/* What the tests of tokenizers share: a text with something of everything, and checks of what a tokenizer makes of a text: against the text, against
 * another's ids, against ids written out. */
#ifndef TOKENIZER_CHECKS_H
#define TOKENIZER_CHECKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hub/tokenizer.h"
#include "one_file.h"

static const char sample[] =
    "The cat sat on the mat, and the cat's hat sat on the cat. It's 1234 o'clock; they'll sing, we've sung!\n\n   The hats of the cats\tare flat: "
    "that's that. na\xc3\xafve caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x90\xa6\xf0\x9f\x90\xa6 banana "
    "bandana ananas   \n";

static inline int setup(void **state)
{
    (void)state;
    return open_folder("tokenizer.json");
}

static inline linnet_tokenizer *opened(const char *path)
{
    linnet_tokenizer *t = NULL;
    if (linnet_tokenizer_open(ctx, path, &t) != LINNET_OK) fail_msg("%s: %s", path, linnet_error_message(ctx));
    return t;
}

static inline void check_round_trip(const linnet_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids;
    int64_t count;
    size_t at = 0, length;
    assert_int_equal(linnet_tokenizer_encode(ctx, t, text, n, &ids, &count), LINNET_OK);
    for (int64_t i = 0; i < count; i++) {
        const char *piece = linnet_tokenizer_piece(t, ids[i], &length);
        assert_non_null(piece);
        assert_true(length <= n - at);
        assert_memory_equal(piece, text + at, length);
        at += length;
    }
    assert_int_equal(at, n);
    linnet_free(ids);
}

static inline void check_same(const linnet_tokenizer *a, const linnet_tokenizer *b, const char *text, size_t n)
{
    int32_t *x, *y;
    int64_t nx, ny;
    assert_int_equal(linnet_tokenizer_encode(ctx, a, text, n, &x, &nx), LINNET_OK);
    assert_int_equal(linnet_tokenizer_encode(ctx, b, text, n, &y, &ny), LINNET_OK);
    assert_int_equal(nx, ny);
    assert_memory_equal(x, y, (size_t)nx * sizeof *x);
    linnet_free(x);
    linnet_free(y);
}

static inline void check_ids(const linnet_tokenizer *t, const char *text, int n, const int32_t *expected)
{
    int32_t *ids;
    int64_t count;
    assert_int_equal(linnet_tokenizer_encode(ctx, t, text, strlen(text), &ids, &count), LINNET_OK);
    assert_int_equal(count, n);
    assert_memory_equal(ids, expected, (size_t)n * sizeof *ids);
    linnet_free(ids);
}

#endif
