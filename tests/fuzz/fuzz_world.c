/* Any bytes as RWKV's list of tokens: refused, or a text comes back. A line for each byte stands before them, so that a list can be whole. */
#include "fuzz_file.h"
#include "hub/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "the th\xc3\xa9 ab 12 \n\xff";
    linnet_context *c = fuzz_context();
    size_t n = 0, room = 256 * 20 + size;
    char *list = malloc(room);
    if (!list) return 0;
    for (int b = 0; b < 256; b++) n += (size_t)snprintf(list + n, room - n, "%d b'\\x%02x' 1\n", b + 1, b);
    if (size) memcpy(list + n, data, size);
    linnet_tokenizer *t;
    const linnet_status s = fuzz_said(c, lnt_tokenizer_from_world(c, "input", list, n + size, &t));
    free(list);
    if (s != LINNET_OK) return 0;
    int32_t *ids;
    int64_t count;
    char *back;
    size_t length;
    if (linnet_tokenizer_encode(c, t, text, sizeof text - 1, &ids, &count) != LINNET_OK) abort();
    if (linnet_tokenizer_decode(c, t, ids, count, 0, &back, &length) != LINNET_OK) abort();
    if (length != sizeof text - 1 || memcmp(back, text, length) != 0) abort();
    linnet_free(back);
    linnet_free(ids);
    linnet_tokenizer_destroy(t);
    return 0;
}
