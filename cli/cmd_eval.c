/* linnet eval: loss of a model on text. */
#include "commands.h"
#include "say.h"
#include "term.h"

static int on_progress(void *user, int64_t done, int64_t total)
{
    char tail[64], a[SAY_TEXT], b[SAY_TEXT];
    snprintf(tail, sizeof tail, "%s of %s tokens", say_count(a, (double)done), say_count(b, (double)total));
    progress_show(user, total > 0 ? (double)done / (double)total : 1, "evaluate", tail);
    return stop_asked();
}

static void print_result(const linnet_eval_result *r, int json)
{
    if (json) {
        json_line j;
        line_open(&j, stdout);
        line_int(&j, "tokens", r->tokens);
        line_int(&j, "bytes", r->bytes);
        line_real(&j, "nats_per_token", r->nats_per_token);
        line_real(&j, "perplexity", r->perplexity);
        line_real(&j, "bits_per_byte", r->bits_per_byte);
        line_real(&j, "tokens_per_second", r->tokens_per_second);
        line_close(&j);
        return;
    }
    char speed[SAY_TEXT];
    printf("tokens          %lld (%lld bytes)\n", (long long)r->tokens, (long long)r->bytes);
    printf("nats per token  %.4f\n", r->nats_per_token);
    printf("perplexity      %.4f\n", r->perplexity);
    printf("bits per byte   %.4f\n", r->bits_per_byte);
    printf("speed           %s tokens/s\n", say_count(speed, r->tokens_per_second));
}

static int run(const command *self, int argc, char **argv)
{
    linnet_eval_options o = LINNET_EVAL_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 };
    const char *tokenizer_path = NULL;
    int json = 0;
    const arg table[] = {
        { "evaluation", ARG_HEADING },
        { "length", ARG_I64, &o.length, "N", "tokens of a window; every window begins with a fresh state", .range = "eval.length" },
        { "stride", ARG_I64, &o.stride, "N", "tokens from the start of a window to that of the next; less than the length: windows overlap, each "
          "token is read at several positions", .range = "eval.stride", .fallback = "the length" },
        { "max-tokens", ARG_I64, &o.max_tokens, "N", "stop after so many tokens", .range = "eval.max_tokens", .fallback = "all" },
        { "field", ARG_TEXT, &o.field, "KEY", "the texts are JSON lines, of which this field is read, each a document", .fallback = "" },
        { "tokenizer", ARG_TEXT, &tokenizer_path, "PATH", "tokenizer to use", .fallback = "the model's" },
        { "csv", ARG_TEXT, &o.csv, "FILE", "write position, loss and mean so far to this file" },
        { "plot", ARG_TEXT, &o.plot, "FILE", "the same as a picture (SVG)" },
        { "json", ARG_SWITCH, &json, .help = "print the result as one JSON line" },
        { "check-finite", ARG_SWITCH, &o.check_finite, .help = "look at every operator's results and end at the first NaN or infinity, naming its "
          "layer and operator; slow" },
        MACHINE_FLAGS(&m),
        KEPT_FLAG(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 2, -1);
    if (code >= 0) return code;
    o.n_texts = words.count - 1;
    arg_list_add(&words, tokenizer_path); /* behind the texts: what else is read */
    o.texts = words.item + 1;
    if ((code = outputs_check((const char *[]){ o.csv, o.plot }, 2, words.item[0], o.texts, o.n_texts + 1)) != 0) return code;
    linnet_context *c = NULL;
    linnet_model *model = NULL;
    linnet_tokenizer *t = NULL;
    linnet_eval_result r = { .size = sizeof r };
    progress bar;
    linnet_status s = LINNET_OK;
    code = machine_open(&m, &c);
    if (!code && (s = load_model(c, &m, words.item[0], &model)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = tokenizer_beside(c, tokenizer_path, words.item[0], model, &t);
    if (!code && !o.field) say_of_texts(c, o.texts, o.n_texts);
    if (!code) {
        progress_open(&bar, stderr);
        stop_watch();
        o.progress = on_progress;
        o.user = &bar;
        s = linnet_eval(c, model, t, &o, &r);
        progress_close(&bar);
        const bool stopped = s != LINNET_OK && stop_asked(); /* and perhaps the files could not be written either */
        if (stopped && r.tokens)
            fprintf(stderr, "stopped: what follows is of the first %lld token%s\n", (long long)r.tokens, r.tokens == 1 ? "" : "s");
        if (s == LINNET_OK || r.tokens) print_result(&r, json);
        code = s == LINNET_EINTERRUPTED ? EXIT_STOPPED : s == LINNET_OK ? 0 : say_status(c, s);
    }
    linnet_tokenizer_destroy(t);
    linnet_model_destroy(model);
    linnet_context_destroy(c);
    return code;
}

const command cmd_eval = {
    .name = "eval",
    .summary = "perplexity and bits per byte of a model on text",
    .usage = "MODEL TEXT... [options]",
    .example = "linnet eval model/ held-out.txt --length 1024 --csv loss.csv --plot loss.svg",
    .run = run,
};
