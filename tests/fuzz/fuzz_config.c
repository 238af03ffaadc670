/* Any bytes as config.json: refused, or written and read again to the same text. */
#include <stdlib.h>
#include <string.h>

#include "hub/archs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static linnet_context *c;
    if (!c && linnet_context_create(NULL, &c) != LINNET_OK) abort();
    lnt_config *k, *again;
    if (lnt_config_parse(c, "input", (const char *)data, size, &k) != LINNET_OK) {
        if (!linnet_error_message(c)[0]) abort();
        return 0;
    }
    const char *text = linnet_config_json(k);
    if (!text || lnt_config_parse(c, "written", text, strlen(text), &again) != LINNET_OK) abort();
    if (strcmp(text, linnet_config_json(again)) != 0) abort();
    linnet_config_destroy(again);
    linnet_config_destroy(k);
    return 0;
}
