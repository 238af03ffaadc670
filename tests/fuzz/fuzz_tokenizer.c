/* Any bytes up to a zero byte as tokenizer.json, the rest as a text to encode: refused, or the text comes back. */
#include <stdlib.h>
#include <string.h>

#include "hub/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char texts[] = "It's a naive caf\xc3\xa9, e\xcc\x81 12345\n\n   <|endoftext|> \xff\xc3 \xe6\x97\xa5\xe6\x9c\xac aaaaaaaaaaaaaaaaaaaab";

static void check_text(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids;
    int64_t count;
    size_t at = 0, length;
    linnet_status s = linnet_tokenizer_encode(c, t, text, n, &ids, &count);
    if (s == LINNET_EUNSUPPORTED) return; /* a pattern that gives up */
    if (s != LINNET_OK) abort();
    for (int64_t i = 0; i < count && !t->nfc && !t->prefix_space; i++) {
        const char *piece = linnet_tokenizer_piece(t, ids[i], &length);
        if (!piece || length > n - at || memcmp(piece, text + at, length) != 0) abort();
        at += length;
    }
    if (at != n && !t->nfc && !t->prefix_space) abort();
    linnet_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static linnet_context *c;
    if (!c && linnet_context_create(NULL, &c) != LINNET_OK) abort();
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t json = zero ? (size_t)(zero - data) : size;
    linnet_tokenizer *t;
    if (lnt_tokenizer_from_json(c, "input", (const char *)data, json, &t) != LINNET_OK) {
        if (!linnet_error_message(c)[0]) abort();
        return 0;
    }
    check_text(c, t, texts, sizeof texts - 1);
    if (zero) check_text(c, t, (const char *)zero + 1, size - json - 1);
    linnet_tokenizer_destroy(t);
    return 0;
}
