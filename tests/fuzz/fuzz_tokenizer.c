/* Any bytes up to a zero byte as tokenizer.json, the rest as a text to encode: refused, or over bytes, where nothing changes the text, it comes back;
 * with the template, and decoded, whatever the file says. */
#include <stdlib.h>
#include <string.h>

#include "hub/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char texts[] = "It's a naive caf\xc3\xa9, e\xcc\x81 12345\n\n   <|endoftext|> \xff\xc3 \xe6\x97\xa5\xe6\x9c\xac aaaaaaaaaaaaaaaaaaaab";

/* Whether every byte of a text must be among its ids. */
static bool keeps_all(const linnet_tokenizer *t)
{
    bool keeps = t->bytewise && t->model == LNT_MODEL_BPE && t->normalizer.n == 0;
    for (int i = 0; i < t->pre.n; i++) keeps = keeps && t->pre.step[i].kind == LNT_CUT_PATTERN && t->pre.step[i].behavior != LNT_REMOVED;
    for (int i = 0; i < t->n_added; i++) keeps = keeps && !t->added[i].lstrip && !t->added[i].rstrip;
    return keeps;
}

static void check_text(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids;
    int64_t count;
    char *decoded;
    size_t at = 0, length;
    linnet_status s = linnet_tokenizer_encode(c, t, text, n, &ids, &count);
    if (s == LINNET_EUNSUPPORTED) return; /* a pattern that gives up, a text that grows without bound */
    if (s == LINNET_EINVAL && t->model == LNT_MODEL_UNIGRAM && t->unk < 0) return;
    if (s != LINNET_OK) abort();
    for (int64_t i = 0; i < count; i++) {
        const char *piece = linnet_tokenizer_piece(t, ids[i], &length);
        if (!piece) abort();
        if (!keeps_all(t)) continue;
        if (length > n - at || memcmp(piece, text + at, length) != 0) abort();
        at += length;
    }
    if (at != n && keeps_all(t)) abort();
    linnet_free(ids);
    if (linnet_tokenizer_encode_as(c, t, text, n, LINNET_ENCODE_TEMPLATE | LINNET_ENCODE_PLAIN, &ids, &count) != LINNET_OK) abort();
    if (linnet_tokenizer_decode(c, t, ids, count, LINNET_DECODE_SPECIAL, &decoded, &length) != LINNET_OK || strlen(decoded) > length) abort();
    linnet_free(decoded);
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
