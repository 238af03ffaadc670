/* What the parts of a server share: set when it is made, and only read from then on, by any thread. */
#ifndef LNT_SERVE_SERVICE_H
#define LNT_SERVE_SERVICE_H

#include "linnet/serve.h"
#include "serve/chat_template.h"
#include "serve/scheduler.h"

typedef struct {
    linnet_server_options o;  /* strings copied into the arena */
    lnt_arena arena;
    const linnet_tokenizer *t;
    lnt_specials specials;
    lnt_chat_template chat;
    lnt_scheduler *scheduler;
    lnt_metrics metrics;
    int64_t started;          /* seconds since 1970 */
} lnt_service;

#endif
