/* linnet serve: a model behind HTTP. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "linnet/serve.h"
#include "say.h"
#include "term.h"

static int stop(void *user)
{
    (void)user;
    return stop_asked();
}

static int serve(const machine_args *m, const char *folder, const char *tokenizer_path, const linnet_server_options *o)
{
    linnet_context *c = NULL;
    linnet_model *model = NULL;
    linnet_tokenizer *t = NULL;
    linnet_server *server = NULL;
    linnet_status s = LINNET_OK;
    int code = machine_open(m, &c);
    if (!code && (s = load_model(c, m, folder, &model)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = tokenizer_beside(c, tokenizer_path, folder, model, &t);
    if (!code && (s = linnet_server_create(c, model, t, o, &server)) != LINNET_OK) code = say_status(c, s);
    if (!code) {
        stop_watch();
        printf("%s answers at %s\n", o->name, linnet_server_address(server));
        say_flush(stdout);
        if (strcmp(o->host ? o->host : "127.0.0.1", "127.0.0.1") != 0 && !o->key)
            fprintf(stderr, "note: whoever reaches %s may use it; --api-key asks for a key\n", linnet_server_address(server));
        if ((s = linnet_server_run(server, stop, NULL)) != LINNET_OK) code = say_status(c, s);
    }
    linnet_server_destroy(server);
    linnet_tokenizer_destroy(t);
    linnet_model_destroy(model);
    linnet_context_destroy(c);
    return code;
}

/* The last part of a path, without slashes behind it. */
static const char *name_of(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from && path[from - 1] != '/') from--;
    char *name = args_alloc(n - from + 1);
    memcpy(name, path + from, n - from);
    name[n - from] = 0;
    return name;
}

static int run(const command *self, int argc, char **argv)
{
    linnet_server_options o = LINNET_SERVER_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 };
    const char *tokenizer_path = NULL;
    int port = 8080, connections = o.connections, ahead = o.ahead;
    double cache = (double)o.cache_bytes / (1 << 20), body = (double)o.body_bytes / (1 << 20);
    const arg table[] = {
        { "where", ARG_HEADING },
        { "host", ARG_TEXT, &o.host, "ADDRESS", "address to listen at; 0.0.0.0: all of this machine's", .fallback = "127.0.0.1" },
        { "port", ARG_INT, &port, "N", "0: one that is free", .range = "server.port" },
        { "api-key", ARG_TEXT, &o.key, "KEY", "what clients must send; better in the environment as LINNET_API_KEY, where no list of processes "
          "shows it", .fallback = "none" },
        { "name", ARG_TEXT, &o.name, "NAME", "the model's, in answers", .fallback = "the folder's" },
        { "chat-template", ARG_TEXT, &o.chat_template, "NAME", chat_template_help(), .fallback = "the folder's" },
        { "limits", ARG_HEADING },
        { "slots", ARG_I64, &o.slots, "N", "texts written at once", .range = "server.slots" },
        { "waiting", ARG_I64, &o.waiting, "N", "prompts that wait for a slot", .range = "server.waiting" },
        { "context", ARG_I64, &o.context, "N", "tokens of a prompt and its answer", .range = "server.context" },
        { "chunk", ARG_I64, &o.chunk, "N", "tokens of a prompt that are read at a time; answers depend on it, as rounding does",
          .range = "server.chunk" },
        { "cache", ARG_REAL, &cache, "MIB", "memory for states of prompts' beginnings, 0: none", 0, 1e9 },
        { "body", ARG_REAL, &body, "MIB", "the largest body of a request", 0.001, 1024 },
        { "connections", ARG_INT, &connections, "N", "at once", .range = "server.connections" },
        { "seconds", ARG_REAL, &o.seconds, "S", "for a request, its waiting included", .range = "server.seconds" },
        { "idle-seconds", ARG_REAL, &o.idle_seconds, "S", "that a connection may be idle, and that answers have to end when the server stops",
          .range = "server.idle_seconds" },
        { "ahead", ARG_INT, &ahead, "N", "1: begin a step before the last one's tokens are told, 0: never, -1: on a GPU", .range = "server.ahead" },
        { "model", ARG_HEADING },
        { "tokenizer", ARG_TEXT, &tokenizer_path, "PATH", "tokenizer to use", .fallback = "the model's" },
        MACHINE_FLAGS(&m),
        KEPT_FLAG(&m),
        { .kind = ARG_END },
    };
    const int code = args_parse(self, table, argc, argv, &words, 1, 1);
    if (code >= 0) return code;
    o.port = port;
    o.connections = connections;
    o.ahead = ahead;
    o.cache_bytes = (int64_t)(cache * (1 << 20));
    o.body_bytes = (int64_t)(body * (1 << 20));
    o.folder = words.item[0];
    if (!o.name) o.name = name_of(o.folder);
    if (!o.key) o.key = getenv("LINNET_API_KEY");
    return serve(&m, o.folder, tokenizer_path, &o);
}

const command cmd_serve = {
    .name = "serve",
    .summary = "answer over HTTP, for clients of OpenAI's interface",
    .usage = "MODEL [options]",
    .about = "Answers /v1/completions and /v1/chat/completions (streaming too), /v1/models, /tokenize, /detokenize, /health and /metrics. An answer "
             "is the same, to the bit, whatever else is asked at the same time. Ctrl-C or SIGTERM ends it.",
    .example = "linnet serve model/ --port 8080 --slots 16",
    .run = run,
};
