/* Any bytes as an operator's file, the first choosing the operator and the direction: refused, or outputs that are a safetensors file. */
#include "fuzz_file.h"
#include "hub/safetensors.h"
#include "linnet/recurrence.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    linnet_context *c = fuzz_context();
    if (!size) return 0;
    char line[256];
    linnet_op_options o = LINNET_OP_OPTIONS_INIT;
    for (int i = 0; i <= (data[0] & 63) && linnet_operator_at(i); i++) o.op = linnet_operator_at(i);
    o.backward = data[0] >> 6 & 1;
    o.dtype = data[0] >> 7 ? LINNET_F64 : LINNET_F32;
    o.in = fuzz_write("in.safetensors", data + 1, size - 1);
    o.out = fuzz_path("out.safetensors");
    remove(o.out);
    lnt_safetensors *got;
    if (fuzz_said(c, linnet_op_file(c, &o, line, sizeof line)) != LINNET_OK) {
        if (access(o.out, F_OK) == 0) abort();
        return 0;
    }
    if (lnt_safetensors_open(c, o.out, &got) != LINNET_OK) abort();
    lnt_safetensors_close(got);
    return 0;
}
