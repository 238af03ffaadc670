/* Any bytes as a file of text, packed or not, whole and (first byte odd) by the field "text" of its lines: refused, or ids that are its bytes. */
#include "fuzz_file.h"
#include "hub/corpus.h"
#include "hub/unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { HEAD = 256 };
    linnet_context *c = fuzz_context();
    static linnet_tokenizer *t;
    if (!t && linnet_tokenizer_open(c, "bytes", &t) != LINNET_OK) abort();
    if (!size) return 0;
    const char *path = fuzz_write("text", data + 1, size - 1);
    uint8_t head[HEAD];
    size_t n = 0;
    char note[200];
    const linnet_status looked = fuzz_said(c, lnt_text_head(c, path, head, HEAD, &n));
    fuzz_said(c, linnet_text_note(c, &path, 1, note, sizeof note));
    lnt_corpus *k;
    const lnt_texts texts = {.paths = &path, .n_paths = 1, .field = data[0] & 1 ? "text" : NULL};
    if (fuzz_said(c, lnt_corpus_load(c, &texts, t, &k)) != LINNET_OK) return 0;
    if (looked != LINNET_OK || k->n != k->bytes) abort();
    for (size_t i = 0; !(data[0] & 1) && i < n; i++)
        if (k->ids[i] != head[i]) abort();
    lnt_corpus_free(k);
    return 0;
}
