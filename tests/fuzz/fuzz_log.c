/* Any bytes as log.jsonl that a run goes on with after the step of the first byte: what is kept is the beginning of it. */
#include "fuzz_file.h"
#include "core/file.h"
#include "train/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    linnet_context *c = fuzz_context();
    if (!size) return 0;
    const char *path = fuzz_write("log.jsonl", data + 1, size - 1);
    lnt_train_log log;
    const linnet_status s = fuzz_said(c, lnt_train_log_open(c, fuzz_folder, data[0], &log));
    lnt_train_log_close(&log);
    char *kept;
    size_t n;
    if (s != LINNET_OK || lnt_file_read(c, path, size, &kept, &n) != LINNET_OK) abort();
    if (n > size - 1 || memcmp(kept, data + 1, n) != 0) abort();
    lnt_free(kept);
    return 0;
}
