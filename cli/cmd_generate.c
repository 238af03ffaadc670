/* linnet generate: text as it is drawn. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "say.h"
#include "term.h"

static const char *const endings[] = { "length", "separator", "stop", "caller" };

/* Bytes written out as soon as they make whole UTF-8 characters, and kept for --json. */
typedef struct {
    int json, scores;
    const linnet_tokenizer *tokenizer;
    char *text; /* [size], `used` of them set; with streaming only the tail of an unfinished character */
    size_t used, size;
    bool failed;
} sink;

static bool keep(sink *k, const char *bytes, size_t n)
{
    if (k->used + n > k->size) {
        size_t size = 2 * k->size + n + 64;
        char *grown = realloc(k->text, size);
        if (!grown) return false;
        k->text = grown;
        k->size = size;
    }
    if (n) memcpy(k->text + k->used, bytes, n);
    k->used += n;
    return true;
}

static int on_token(void *user, int64_t id, const char *bytes, size_t n)
{
    (void)id;
    sink *k = user;
    if (!keep(k, bytes, n)) {
        k->failed = true;
        return 1;
    }
    if (!k->json && !k->scores) {
        size_t whole = say_whole_utf8(k->text, k->used);
        if (whole) fwrite(k->text, 1, whole, stdout);
        if (whole) memmove(k->text, k->text + whole, k->used - whole);
        k->used -= whole;
        if (say_flush(stdout) != 0) return 1; /* main() tells why */
    }
    return stop_asked();
}

/* --logprobs: a line a token. */
static int on_score(void *user, const linnet_scored_token *t)
{
    const sink *k = user;
    json_line j;
    line_open(&j, stdout);
    line_int(&j, "id", t->id);
    line_bytes(&j, "text", t->bytes, t->n_bytes);
    line_real(&j, "logprob", t->logprob);
    line_list(&j, "top");
    for (int i = 0; i < t->n_top; i++) {
        size_t n = 0;
        const char *piece = linnet_tokenizer_piece(k->tokenizer, t->top[i], &n);
        line_item(&j);
        line_int(&j, "id", t->top[i]);
        line_bytes(&j, "text", piece, n);
        line_real(&j, "logprob", t->top_logprob[i]);
        line_item_end(&j);
    }
    line_list_end(&j);
    line_close(&j);
    return say_flush(stdout) != 0 || stop_asked();
}

static void print_result(const linnet_generate_result *r, const sink *k)
{
    char state[SAY_TEXT], speed[SAY_TEXT];
    double rate = r->decode_seconds > 0 ? (double)r->tokens / r->decode_seconds : 0;
    if (k->json) {
        json_line j;
        line_open(&j, stdout);
        line_bytes(&j, "text", k->text ? k->text : "", k->used);
        line_int(&j, "prompt_tokens", r->prompt_tokens);
        line_int(&j, "tokens", r->tokens);
        line_real(&j, "prefill_seconds", r->prefill_seconds);
        line_real(&j, "decode_seconds", r->decode_seconds);
        line_int(&j, "state_bytes", r->state_bytes);
        if (r->guessed) line_int(&j, "guessed", r->guessed);
        if (r->guessed) line_int(&j, "guessed_right", r->guessed_right);
        line_text(&j, "ended", endings[r->ended]);
        line_close(&j);
        return;
    }
    if (k->used && !k->scores) fwrite(k->text, 1, k->used, stdout); /* a character the model left unfinished */
    if (!k->scores) putchar('\n');
    say_flush(stdout);
    fprintf(stderr, "%lld token%s after a prompt of %lld, %s tokens/s, %s of state\n", (long long)r->tokens,
            r->tokens == 1 ? "" : "s", (long long)r->prompt_tokens, say_count(speed, rate), say_bytes(state, (double)r->state_bytes));
    if (r->guessed) fprintf(stderr, "%lld of %lld guesses were right\n", (long long)r->guessed_right, (long long)r->guessed);
}

/* One text after the other, each from a seed of its own. */
static int write_texts(linnet_context *c, linnet_model *model, const linnet_tokenizer *t, linnet_generate_options *o, int64_t samples, bool echo,
                       sink *k)
{
    const bool plain = !k->json && !k->scores;
    for (int64_t i = 0; i < samples; i++, o->seed++) {
        linnet_generate_result r = { .size = sizeof r };
        k->used = 0;
        if (plain && samples > 1)
            printf("%s--- %lld of %lld, seed %llu\n", i ? "\n" : "", (long long)i + 1, (long long)samples, (unsigned long long)o->seed);
        if (echo && on_token(k, 0, o->prompt, o->prompt_bytes)) break;
        const linnet_status s = linnet_generate(c, model, t, o, &r);
        if (k->failed) return say_error(NULL, NULL, "out of memory");
        if (s == LINNET_OK) print_result(&r, k);
        else if (s != LINNET_EINTERRUPTED) {
            if (plain && r.tokens) putchar('\n'); /* the text that was written so far */
            return say_status(c, s);
        }
        if (stop_asked()) break;
    }
    if (!stop_asked()) return 0;
    if (plain) putchar('\n');
    return EXIT_STOPPED;
}

static int generate(const machine_args *m, const char *folder, const char *draft, const char *tokenizer_path, linnet_generate_options *o,
                    int64_t samples, bool echo, sink *k)
{
    linnet_context *c = NULL;
    linnet_model *model = NULL, *guesser = NULL;
    linnet_tokenizer *t = NULL;
    linnet_status s = LINNET_OK;
    int code = machine_open(m, &c);
    if (!code && (s = load_model(c, m, folder, &model)) != LINNET_OK) code = say_status(c, s);
    if (!code && draft && (s = load_model(c, m, draft, &guesser)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = tokenizer_beside(c, tokenizer_path, folder, model, &t);
    if (!code) {
        stop_watch();
        o->token = on_token;
        if (k->scores) o->scored = on_score;
        o->user = k;
        o->draft = guesser;
        k->tokenizer = t;
        code = write_texts(c, model, t, o, samples, echo, k);
    }
    linnet_tokenizer_destroy(t);
    linnet_model_destroy(model);
    linnet_model_destroy(guesser);
    linnet_context_destroy(c);
    return code;
}

static int run(const command *self, int argc, char **argv)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 };
    sink output = { .json = 0 };
    char *prompt_bytes = NULL;
    const char *prompt = NULL, *prompt_file = NULL, *tokenizer_path = NULL, *draft = NULL;
    int greedy = 0, echo = 0, go_on = 0;
    int64_t samples = 1, alternatives = -1;
    arg_list stops = { 0 };
    const arg table[] = {
        { "prompt", ARG_HEADING },
        { "prompt", ARG_TEXT, &prompt, "TEXT", "text to go on from", .fallback = "" },
        { "prompt-file", ARG_TEXT, &prompt_file, "FILE", "read the prompt from a file, - for standard input" },
        { "echo", ARG_SWITCH, &echo, .help = "print the prompt before the text" },
        { "sampling", ARG_HEADING },
        { "tokens", ARG_I64, &o.max_tokens, "N", "tokens to write", .range = "generate.max_tokens" },
        { "greedy", ARG_SWITCH, &greedy, .help = "always the most likely token, as --temperature 0" },
        { "temperature", ARG_REAL, &o.temperature, "X", "below 1: safer, above 1: wilder", .range = "generate.temperature" },
        { "top-k", ARG_I64, &o.top_k, "N", "draw among the N most likely, 0: among all", .range = "generate.top_k" },
        { "top-p", ARG_REAL, &o.top_p, "X", "draw among the most likely that together reach this probability", 1e-9, 1 },
        { "min-p", ARG_REAL, &o.min_p, "X", "draw no token below this share of the most likely one's probability", .range = "generate.min_p" },
        { "repetition-penalty", ARG_REAL, &o.repetition_penalty, "X", "above 1: tokens that the text has become less likely",
          .range = "generate.repetition_penalty" },
        { "seed", ARG_U64, &o.seed, "N", "of the draws" },
        { "samples", ARG_I64, &samples, "N", "texts, with this seed and the next ones", 1, 1e6 },
        { "stop", ARG_LIST, &stops, "TEXT", "end before this; may be given several times" },
        { "past-separator", ARG_SWITCH, &go_on, .help = "go on when the model ends the document" },
        { "check-finite", ARG_SWITCH, &o.check_finite, .help = "look at every operator's results and end at the first NaN or infinity, naming its "
          "layer and operator; slow" },
        { "draft", ARG_TEXT, &draft, "MODEL", "a smaller model that guesses some tokens ahead; the text is the same, sooner where it guesses well" },
        { "draft-tokens", ARG_I64, &o.draft_tokens, "N", "guesses at a time", .range = "generate.draft_tokens" },
        { "output", ARG_HEADING },
        { "logprobs", ARG_I64, &alternatives, "N", "print each token as a JSON line, with the logarithm of its probability and the N most likely",
          0, 1000, .fallback = "text", .key = "alternatives" },
        { "json", ARG_SWITCH, &output.json, .help = "print text, counts and times as one JSON line at the end" },
        { "tokenizer", ARG_TEXT, &tokenizer_path, "PATH", "tokenizer to use", .fallback = "the model's" },
        MACHINE_FLAGS(&m),
        KEPT_FLAG(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 1, 2);
    if (code >= 0) return code;
    if (words.count == 2 && strcmp(words.item[1], "-") != 0)
        return say_error(NULL, "Give the prompt with --prompt TEXT, or - to read it from standard input.", "unexpected argument \"%s\"",
                         words.item[1]);
    if (words.count == 2 && !prompt_file) prompt_file = "-";
    if (prompt && prompt_file) return say_error(NULL, "Leave one of them out.", "there are two prompts, --prompt and %s", prompt_file);
    if (prompt_file && (code = read_input(prompt_file, "the prompt", &prompt_bytes, &o.prompt_bytes)) != 0) return code;
    if (prompt) o.prompt_bytes = strlen(prompt);
    o.prompt = prompt ? prompt : prompt_bytes ? prompt_bytes : "";
    if (greedy) o.temperature = 0;
    o.stop_at_separator = !go_on;
    o.stop = (const char *const *)stops.item, o.n_stop = stops.count;
    for (int i = 0; i < stops.count; i++)
        if (!*stops.item[i]) return say_error(NULL, NULL, "--stop is \"\", expected at least one character");
    output.scores = alternatives >= 0;
    o.alternatives = output.scores ? (int32_t)alternatives : 0;
    code = generate(&m, words.item[0], draft, tokenizer_path, &o, samples, echo, &output);
    free(output.text);
    free(prompt_bytes);
    return code;
}

const command cmd_generate = {
    .name = "generate",
    .summary = "write text with a model",
    .usage = "MODEL [--prompt TEXT | --prompt-file FILE | -] [options]",
    .about = "Text goes to standard output as it is drawn. Recurrent models use the same memory for any length.",
    .example = "linnet generate model/ --prompt \"Once upon a time\" --tokens 200 --temperature 0.8",
    .run = run,
};
