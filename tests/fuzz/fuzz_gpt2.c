/* Any bytes up to a zero byte as GPT-2's vocabulary, the rest as its merges: refused, or a text comes back. */
#include "fuzz_file.h"
#include "hub/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "the th\xc3\xa9 ab 12 \n\xff";
    linnet_context *c = fuzz_context();
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t n = zero ? (size_t)(zero - data) : size;
    const char *vocabulary = fuzz_write("vocab.json", data, n), *merges = fuzz_write("merges.txt", zero ? zero + 1 : data, zero ? size - n - 1 : 0);
    linnet_tokenizer *t;
    if (fuzz_said(c, lnt_tokenizer_from_gpt2(c, vocabulary, merges, &t)) != LINNET_OK) return 0;
    int32_t *ids;
    int64_t count;
    size_t at = 0, length;
    if (linnet_tokenizer_encode(c, t, text, sizeof text - 1, &ids, &count) == LINNET_OK) {
        for (int64_t i = 0; i < count; i++) {
            const char *piece = linnet_tokenizer_piece(t, ids[i], &length);
            if (!piece || length > sizeof text - 1 - at || memcmp(piece, text + at, length) != 0) abort();
            at += length;
        }
        if (at != sizeof text - 1) abort();
        linnet_free(ids);
    }
    linnet_tokenizer_destroy(t);
    return 0;
}
