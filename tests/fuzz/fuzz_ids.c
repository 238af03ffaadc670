/* Any bytes as a file of token ids, whole or (first byte odd) token by token: refused, or logits of the same shape. */
#include "fuzz_file.h"
#include "hub/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    linnet_context *c = fuzz_context();
    static linnet_model *m;
    if (!m) {
        linnet_config *k = fuzz_config();
        if (linnet_model_create(c, k, LINNET_F32, 1, &m) != LINNET_OK) abort();
        linnet_config_destroy(k);
    }
    if (!size) return 0;
    const char *in = fuzz_write("in.safetensors", data + 1, size - 1), *out = fuzz_path("out.safetensors");
    remove(out);
    if (fuzz_said(c, linnet_model_logits_file(c, m, in, out, data[0] & 1)) != LINNET_OK) {
        if (access(out, F_OK) == 0) abort();
        return 0;
    }
    lnt_safetensors *got;
    if (lnt_safetensors_open(c, out, &got) != LINNET_OK || !lnt_safetensors_find(got, "logits")) abort();
    lnt_safetensors_close(got);
    return 0;
}
