/* Any bytes as the index of a model in two files, which are well: refused, or every tensor lies inside one of them. */
#include "fuzz_file.h"
#include "hub/safetensors.h"

static void write_shard(const char *name, const char *tensor)
{
    char file[256] = {0};
    const int n = snprintf(file + 8, sizeof file - 8, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", tensor);
    const uint64_t header = (uint64_t)n;
    memcpy(file, &header, 8);
    fuzz_write(name, file, 8 + (size_t)n + 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool begun;
    linnet_context *c = fuzz_context();
    if (!begun) write_shard("a.safetensors", "x"), write_shard("b.safetensors", "y");
    begun = true;
    fuzz_write("model.safetensors.index.json", data, size);
    lnt_safetensors *s;
    if (fuzz_said(c, lnt_safetensors_open_folder(c, fuzz_folder, &s)) != LINNET_OK) return 0;
    volatile uint8_t sum = 0;
    for (int i = 0; i < s->n; i++)
        for (size_t j = 0; j < (size_t)s->tensors[i].count * lnt_dtype_size(s->tensors[i].dtype); j++)
            sum = (uint8_t)(sum + ((const uint8_t *)s->tensors[i].data)[j]);
    lnt_safetensors_close(s);
    return 0;
}
