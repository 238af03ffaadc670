/* From the JSON of a client to a request that has been checked. */
#ifndef LNT_SERVE_ASK_H
#define LNT_SERVE_ASK_H

#include "serve/service.h"

typedef struct {
    lnt_request *r;       /* held */
    bool chat, stream, echo, usage;
    const char *parameter; /* that an error is about; static text or the body's, NULL: none */
    char parameter_text[64];
} lnt_ask;

/* Of /v1/completions, or of /v1/chat/completions. On an error `parameter` may say where; the request is to be released all the same. */
linnet_status lnt_ask_read(lnt_ctx *c, const lnt_service *v, bool chat, const char *body, size_t bytes, lnt_ask *out);
/* Ids of {"prompt": text}, special tokens' strings as those tokens, freed with lnt_free; and the text of {"tokens": [ids]}, a new string. */
linnet_status lnt_ask_tokenize(lnt_ctx *c, const lnt_service *v, const char *body, size_t bytes, int32_t **ids, int64_t *n);
linnet_status lnt_ask_detokenize(lnt_ctx *c, const lnt_service *v, const char *body, size_t bytes, char **text, size_t *n);

#endif
