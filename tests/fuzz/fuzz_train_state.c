/* Any bytes as train_state.safetensors: refused, or settings in their ranges; refused, or tensors that fit a small configuration. */
#include "fuzz_file.h"
#include "train/resume.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    linnet_context *c = fuzz_context();
    static linnet_config *k;
    if (!k) k = fuzz_config();
    fuzz_write("train_state.safetensors", data, size);
    lnt_run_settings r = {.o = LINNET_TRAIN_OPTIONS_INIT};
    r.o.out = fuzz_folder;
    if (fuzz_said(c, lnt_resume_read_settings(c, &r)) == LINNET_OK && lnt_settings_check(c, &r) != LINNET_OK) abort();
    fuzz_said(c, lnt_resume_check(c, fuzz_folder, k, LINNET_F32));
    return 0;
}
