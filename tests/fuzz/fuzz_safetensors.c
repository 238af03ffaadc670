/* Any bytes as a safetensors file: refused, or every tensor lies inside. */
#include <stdlib.h>

#include "hub/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static linnet_context *c;
    if (!c && linnet_context_create(NULL, &c) != LINNET_OK) abort();
    lnt_safetensors *s;
    if (lnt_safetensors_parse(c, "input", data, size, &s) != LINNET_OK) {
        if (!linnet_error_message(c)[0]) abort();
        return 0;
    }
    volatile uint8_t sum = 0;
    for (int i = 0; i < s->n; i++) {
        const lnt_st_tensor *t = &s->tensors[i];
        if (lnt_safetensors_find(s, t->name) != t) abort();
        for (int64_t j = 0; j < t->count * (int64_t)lnt_dtype_size(t->dtype); j++) sum = (uint8_t)(sum + ((const uint8_t *)t->data)[j]);
    }
    lnt_safetensors_metadata(s, "format");
    lnt_safetensors_close(s);
    return 0;
}
