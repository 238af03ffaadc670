/* linnet chat: a conversation in the terminal. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "linnet/serve.h"
#include "say.h"
#include "term.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static int on_token(void *user, int64_t id, const char *bytes, size_t n)
{
    (void)user, (void)id;
    fwrite(bytes, 1, n, stdout);
    return say_flush(stdout) != 0 || interrupted;
}

static void print_help(void)
{
    printf("/clear begins a new conversation, /exit or Ctrl-D ends, Ctrl-C ends an answer.\n"
           "A line that ends in a backslash goes on in the next.\n\n");
}

/* A message of one line or several; false: there is none any more. */
static bool read_message(bool terminal, const char *mark, char **text, size_t *room, size_t *n)
{
    char *line = NULL;
    size_t line_room = 0;
    bool more = true;
    for (*n = 0; more;) {
        if (terminal) fputs(*n ? "... " : mark, stdout);
        say_flush(stdout);
        const ssize_t got = getline(&line, &line_room, stdin);
        if (got <= 0) break;
        size_t length = (size_t)got - (line[got - 1] == '\n');
        more = length && line[length - 1] == '\\';
        length -= more;
        if (*n + length + 2 > *room) {
            char *grown = realloc(*text, 2 * *room + length + 256);
            if (!grown) break;
            *text = grown;
            *room = 2 * *room + length + 256;
        }
        memcpy(*text + *n, line, length);
        *n += length;
        if (more) (*text)[(*n)++] = '\n';
    }
    free(line);
    return !more;
}

/* Turn by turn. Returns the exit code. */
static int talk(linnet_context *c, linnet_chat *chat, linnet_generate_options *o)
{
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO), colours = terminal && term_colours(stdout);
    struct sigaction a = { .sa_handler = on_interrupt };
    char *text = NULL;
    size_t room = 0, n = 0;
    int code = 0;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL); /* while a line is read it ends the reading */
    if (terminal) print_help();
    while (!code && read_message(terminal, colours ? "\033[1m> \033[0m" : "> ", &text, &room, &n)) {
        linnet_generate_result r = { .size = sizeof r };
        if (n == 0) continue;
        if (n == 5 && !memcmp(text, "/exit", n)) break;
        if (n == 5 && !memcmp(text, "/help", n)) print_help();
        else if (n == 6 && !memcmp(text, "/clear", n)) {
            linnet_chat_clear(chat);
            if (terminal) printf("A new conversation.\n\n");
        } else {
            interrupted = 0;
            const linnet_status s = linnet_chat_say(chat, text, n, o, &r);
            if (s != LINNET_OK) code = say_status(c, s);
            else putchar('\n');
            if (terminal && s == LINNET_OK) putchar('\n');
            o->seed++;
            if (s == LINNET_EINVAL && terminal) code = 0; /* said; the conversation may go on */
        }
    }
    if (interrupted && !code && !feof(stdin)) code = EXIT_STOPPED;
    if (terminal) putchar('\n');
    free(text);
    return code;
}

static int chat(const machine_args *m, const char *folder, const char *tokenizer_path, const linnet_chat_options *options,
                linnet_generate_options *o)
{
    linnet_context *c = NULL;
    linnet_model *model = NULL;
    linnet_tokenizer *t = NULL;
    linnet_chat *k = NULL;
    linnet_status s = LINNET_OK;
    int code = machine_open(m, &c);
    if (!code && (s = load_model(c, m, folder, &model)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = tokenizer_beside(c, tokenizer_path, folder, model, &t);
    if (!code && (s = linnet_chat_create(c, model, t, options, &k)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = talk(c, k, o);
    linnet_chat_destroy(k);
    linnet_tokenizer_destroy(t);
    linnet_model_destroy(model);
    linnet_context_destroy(c);
    return code;
}

static int run(const command *self, int argc, char **argv)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_chat_options options = LINNET_CHAT_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 }, stops = { 0 };
    const char *tokenizer_path = NULL;
    o.max_tokens = 1024;
    const arg table[] = {
        { "conversation", ARG_HEADING },
        { "system", ARG_TEXT, &options.system, "TEXT", "what the model is told before all else", .fallback = "" },
        { "chat-template", ARG_TEXT, &options.chat_template, "NAME", chat_template_help(), .fallback = "the folder's" },
        { "context", ARG_I64, &options.context, "N", "tokens of a conversation", .range = "chat.context" },
        { "sampling", ARG_HEADING },
        { "tokens", ARG_I64, &o.max_tokens, "N", "of an answer at most", .range = "generate.max_tokens" },
        { "temperature", ARG_REAL, &o.temperature, "X", "below 1: safer, above 1: wilder, 0: always the most likely",
          .range = "generate.temperature" },
        { "top-k", ARG_I64, &o.top_k, "N", "draw among the N most likely, 0: among all", .range = "generate.top_k" },
        { "top-p", ARG_REAL, &o.top_p, "X", "draw among the most likely that together reach this probability", 1e-9, 1 },
        { "min-p", ARG_REAL, &o.min_p, "X", "draw no token below this share of the most likely one's probability", .range = "generate.min_p" },
        { "repetition-penalty", ARG_REAL, &o.repetition_penalty, "X", "above 1: tokens that the text has become less likely",
          .range = "generate.repetition_penalty" },
        { "seed", ARG_U64, &o.seed, "N", "of the first answer; the next ones have the next" },
        { "stop", ARG_LIST, &stops, "TEXT", "end an answer before this; may be given several times" },
        { "model", ARG_HEADING },
        { "tokenizer", ARG_TEXT, &tokenizer_path, "PATH", "tokenizer to use", .fallback = "the model's" },
        MACHINE_FLAGS(&m),
        KEPT_FLAG(&m),
        { .kind = ARG_END },
    };
    const int code = args_parse(self, table, argc, argv, &words, 1, 1);
    if (code >= 0) return code;
    for (int i = 0; i < stops.count; i++)
        if (!*stops.item[i]) return say_error(NULL, NULL, "--stop is \"\", expected at least one character");
    o.stop = (const char *const *)stops.item, o.n_stop = stops.count;
    o.token = on_token;
    options.folder = words.item[0];
    return chat(&m, options.folder, tokenizer_path, &options, &o);
}

const command cmd_chat = {
    .name = "chat",
    .summary = "talk with a model in the terminal",
    .usage = "MODEL [options]",
    .about = "The conversation is written as the model's family does it: by the template in its folder, or the one that --chat-template names "
             "(plain: lines that begin with User: and Assistant:, for models trained on no template). Standard input may be a file of messages, one "
             "a line.",
    .example = "linnet chat model/ --chat-template plain --temperature 0.7",
    .run = run,
};
