/* linnet's server: a model behind HTTP as clients of OpenAI's interface ask for it (docs/server.md); and a conversation with a model without HTTP.
 *
 * Exactness. Prompts are read in pieces that end at multiples of `chunk`, and answers are written token by token. So an answer depends on the model,
 * the request and `chunk`, and on nothing else: not on the requests that run beside it, and not on whether the beginning of its prompt was read
 * before (linnet/state.h).
 *
 * Threads. A context serves one thread at a time, so linnet_server_run works in the thread that calls it; connections are handled by threads of the
 * server's own, which use neither the context nor the model.
 * Since 0.1. */
#ifndef LINNET_SERVE_H
#define LINNET_SERVE_H

#include "linnet/linnet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a server ---------------------------------------------------------------------------------------------------------------- */

typedef struct linnet_server linnet_server;

typedef struct {
    size_t size;
    const char *host;          /* NULL: 127.0.0.1, which this machine alone reaches */
    int32_t port;              /* 0: one that is free */
    int32_t connections;       /* at once; further ones are closed */
    const char *key;           /* what clients must send as `Authorization: Bearer KEY`; NULL: nothing */
    const char *name;          /* the model's, in answers; NULL: "linnet" */
    const char *folder;        /* where tokenizer_config.json and generation_config.json may be; NULL: nowhere */
    const char *chat_template; /* a name of linnet_chat_template_name; NULL: the one that tokenizer_config.json has */
    int64_t slots;             /* texts that are written at once */
    int64_t waiting;           /* prompts that wait for a slot; further requests are refused */
    int64_t context;           /* tokens of a prompt and its answer at most; of models with full attention no more than they know positions */
    int64_t chunk;             /* tokens of a prompt that are read at a time, while other texts wait for their next token */
    int64_t cache_bytes;       /* of states kept for prompts that begin as earlier ones did; 0: none are */
    int64_t body_bytes;        /* of a request at most */
    double seconds;            /* from a request to the end of its answer at most */
    double idle_seconds;       /* that a connection may neither send nor take anything */
    int32_t ahead;             /* 1: the next step is begun before the tokens of the last are told, where every text takes the most probable token
                                  or one drawn by temperature alone, and shows neither its state nor probabilities; a text that has ended was then
                                  stepped once too often, which no answer shows. 0: never; -1: on a GPU, which works while the host tells */
} linnet_server_options;
#define LINNET_SERVER_OPTIONS_INIT                                                                                                  \
    { sizeof(linnet_server_options), NULL, 0, 512, NULL, NULL, NULL, NULL, 8, 256, 8192, 256, 268435456, 4194304, 600, 60, -1 }

/* Listen, and answer nothing yet. Model and tokenizer outlive the server. LINNET_EUNSUPPORTED where linnet was built without libmicrohttpd. */
LINNET_API linnet_status linnet_server_create(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_server_options *options,
                                              linnet_server **out);
/* "http://127.0.0.1:8080"; the server's. */
LINNET_API const char *linnet_server_address(const linnet_server *s);
/* Answer until `stop`, which is asked several times a second, returns non-zero. Then no new connection is taken, what is being written has
 * `idle_seconds` to end, and the rest is told that the server stops. */
LINNET_API linnet_status linnet_server_run(linnet_server *s, int (*stop)(void *user), void *user);
LINNET_API void linnet_server_destroy(linnet_server *s);

/* ---- a conversation ------------------------------------------------------------------------------------------------------------ */

/* How the i-th family of models writes conversations, by name ("chatml"); NULL past the end. */
LINNET_API const char *linnet_chat_template_name(int i);

typedef struct linnet_chat linnet_chat;

typedef struct {
    size_t size;
    const char *folder;        /* as linnet_server_options.folder */
    const char *chat_template; /* the same */
    const char *system;        /* what the model is told before all else; NULL: nothing */
    int64_t context, chunk, cache_bytes;
} linnet_chat_options;
#define LINNET_CHAT_OPTIONS_INIT { sizeof(linnet_chat_options), NULL, NULL, NULL, 8192, 256, 67108864 }

LINNET_API linnet_status linnet_chat_create(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_chat_options *options,
                                            linnet_chat **out);
/* Say something, and hear the answer through options->token; prompt, draft and scored of the options are not for here. The answer is the one a server
 * gives to the same messages. An answer that `token` ends belongs to the conversation as far as it came. When a call fails, nothing was said. */
LINNET_API linnet_status linnet_chat_say(linnet_chat *chat, const char *text, size_t bytes, const linnet_generate_options *options,
                                         linnet_generate_result *out);
/* Forget what was said, but for the system's message. */
LINNET_API void linnet_chat_clear(linnet_chat *chat);
LINNET_API void linnet_chat_destroy(linnet_chat *chat);

#ifdef __cplusplus
}
#endif
#endif
