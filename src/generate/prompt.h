/* A prompt as ids. */
#ifndef LNT_GENERATE_PROMPT_H
#define LNT_GENERATE_PROMPT_H

#include "core/status.h"

/* An empty one starts from the separator, or from a newline when there is none. *ids is freed with linnet_free. */
linnet_status lnt_prompt_ids(lnt_ctx *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t **ids, int64_t *n);

#endif
