/* linnet train: the options of linnet_train as flags, its progress as a bar, Ctrl-C (or a closed terminal or pipe) as a saved checkpoint, its
 * curves as a page. */
#include <string.h>
#include <sys/stat.h>

#include "best.h"
#include "commands.h"
#include "events.h"
#include "say.h"
#include "term.h"

typedef struct {
    progress bar;
    int json;
    int64_t last_step;
    double last_loss, eval_bits;
    int64_t tokens;
    double seconds;
    int tensorboard, keep_best;
    const char *out;
    bool resume, began;
    event_file events;
    best_kept best;
    int code; /* not 0: a file beside the checkpoint could not be written */
} view;

static void json_step(const linnet_train_progress *p)
{
    json_line j;
    line_open(&j, stdout);
    line_int(&j, "step", p->step);
    line_real(&j, "loss", p->loss);
    line_real(&j, "learning_rate", p->learning_rate);
    line_real(&j, "gradient_norm", p->gradient_norm);
    line_real(&j, "tokens_per_second", p->tokens_per_second);
    line_int(&j, "tokens", p->tokens);
    line_real(&j, "seconds", p->seconds);
    if (p->evaluated) line_real(&j, "eval_loss", p->eval_loss);
    if (p->evaluated) line_real(&j, "eval_bits_per_byte", p->eval_bits_per_byte);
    if (p->saved) line_int(&j, "saved", 1);
    line_close(&j);
}

static void draw_step(view *v, const linnet_train_progress *p)
{
    char head[64], tail[128], speed[SAY_TEXT], left[SAY_TEXT];
    double share = p->steps > 0 ? (double)p->step / (double)p->steps : p->seconds / (p->seconds + p->seconds_left);
    int digits = snprintf(head, sizeof head, "%lld", (long long)p->steps);
    if (p->steps > 0) snprintf(head, sizeof head, "step %*lld/%lld", digits, (long long)p->step, (long long)p->steps);
    else snprintf(head, sizeof head, "step %6lld", (long long)p->step);
    snprintf(tail, sizeof tail, "loss %.4f  %s tokens/s  %s left", p->loss, say_count(speed, p->tokens_per_second),
             say_duration(left, p->seconds_left));
    progress_show(&v->bar, share, head, tail);
    if (p->evaluated)
        progress_print(&v->bar, "step %6lld  loss %.4f  held out: %.4f nats/token, %.4f bits/byte%s", (long long)p->step, p->loss, p->eval_loss,
                       p->eval_bits_per_byte, p->saved ? "  saved" : "");
}

static bool has_folder(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* --tensorboard and --keep-best, from the run's first step on: before that its folder may not be there. A run that is resumed goes on with what it
 * has the folder of. */
static void keep_beside(view *v, const linnet_train_progress *p)
{
    static const char *const names[] = { "loss", "learning_rate", "gradient_norm", "tokens_per_second", "held_out/loss", "held_out/bits_per_byte" };
    const double values[] = { p->loss, p->learning_rate, p->gradient_norm, p->tokens_per_second, p->eval_loss, p->eval_bits_per_byte };
    if (!v->began) {
        char folder[4096];
        v->began = true;
        v->tensorboard |= v->resume && has_folder(v->out, "tensorboard");
        v->keep_best |= v->resume && has_folder(v->out, "best");
        snprintf(folder, sizeof folder, "%s/tensorboard", v->out);
        if (v->tensorboard) v->code = events_open(&v->events, folder, p->step - 1);
        best_open(&v->best, v->keep_best ? v->out : NULL);
    }
    events_put(&v->events, p->step, names, values, p->evaluated ? 6 : 4);
    if (p->evaluated && p->saved) best_saved(&v->best, p->step, p->eval_loss);
}

static int on_step(void *user, const linnet_train_progress *p)
{
    view *v = user;
    stop_asked(); /* whoever reads of this step may send a signal at once: from here on it is answered by a save */
    keep_beside(v, p);
    if (p->note) progress_print(&v->bar, "%s", p->note);
    if (v->json) json_step(p);
    else draw_step(v, p);
    v->last_step = p->step;
    v->last_loss = p->loss;
    v->tokens = p->tokens;
    v->seconds = p->seconds;
    if (p->evaluated) v->eval_bits = p->eval_bits_per_byte;
    return v->code || stop_asked() || stop_output_gone(stdout);
}

/* The command that goes on where this one stopped: the same one with --resume. */
static void print_resume(FILE *f, int argc, char **argv)
{
    bool resume = false;
    fputs("linnet", f);
    for (int i = 0; i < argc; i++) {
        resume = resume || strcmp(argv[i], "--resume") == 0;
        fputc(' ', f);
        say_quoted(f, argv[i]);
    }
    fputs(resume ? "\n" : " --resume\n", f);
}

static void say_beginning(linnet_context *c, const linnet_train_options *o, view *v)
{
    linnet_config *k = NULL;
    if (linnet_config_load(c, o->init, &k) != LINNET_OK) return; /* who trains says why */
    const char *class_name = linnet_config_class(k);
    progress_print(&v->bar, "begins with the weights of %s, a fresh optimizer; saved as %s", o->init,
                   class_name ? class_name : "linnet's own model type");
    linnet_config_destroy(k);
}

static int train(const machine_args *m, const model_args *shape, linnet_train_options *o, view *v, int argc, char **argv)
{
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    int code = machine_open(m, &c);
    if (!code && o->resume) code = model_args_resumed(c, shape, o->out, &config);
    else if (!code && !o->init) code = model_args_config(c, shape, &config);
    if (!code && !o->field) say_of_texts(c, o->texts, o->n_texts);
    if (!code) {
        progress_open(&v->bar, v->json ? stderr : stdout);
        if (!v->json && o->resume) progress_print(&v->bar, "%s", linnet_machine(c));
        else if (!v->json) progress_print(&v->bar, "%s, %s", linnet_machine(c), linnet_dtype_name(m->dtype));
        if (!v->json && config && !o->resume && !linnet_config_class(config))
            progress_print(&v->bar, "saved as linnet's own model type; linnet convert writes it as another library's where one computes it");
        if (!v->json && o->init && !o->resume) say_beginning(c, o, v);
        stop_watch();
        stop_outlive_output();
        o->progress = on_step;
        o->user = v;
        linnet_status s = linnet_train(c, config, m->dtype, o);
        progress_close(&v->bar);
        const int lost = events_close(&v->events);
        if (lost && !v->code) v->code = lost;
        if (s == LINNET_EINTERRUPTED) {
            say_flush(stdout);
            fprintf(stderr, "stopped after step %lld, saved in %s; to go on: ", (long long)v->last_step, o->out);
            print_resume(stderr, argc, argv);
            code = EXIT_STOPPED;
        } else if (s != LINNET_OK)
            code = say_status(c, s);
        else if (!v->json && v->last_step == 0)
            progress_print(&v->bar, "%s is trained to its end already, nothing was left to do", o->out);
        else if (!v->json) {
            char tokens[SAY_TEXT], time[SAY_TEXT];
            progress_print(&v->bar, "trained %lld step%s, %s token%s, in %s; saved in %s", (long long)v->last_step,
                           v->last_step == 1 ? "" : "s", say_count(tokens, (double)v->tokens), v->tokens == 1 ? "" : "s",
                           say_duration(time, v->seconds), o->out);
        }
    }
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    if (!code || (code == EXIT_STOPPED && v->last_step > 0)) { /* also where nothing was left to do: a killed run may have left half a page */
        const int page = page_of_run(o->out);
        if (page && !v->code) v->code = page;
    }
    return code && code != EXIT_STOPPED ? code : v->code ? v->code : code;
}

/* Keys that are the tokenizer's: what --set says of them would be replaced. */
static int check_ids(const model_args *shape)
{
    static const char *const keys[] = { "vocab_size=", "bos_token_id=", "eos_token_id=" };
    for (int i = 0; i < shape->set.count; i++)
        for (int k = 0; k < 3; k++)
            if (strncmp(shape->set.item[i], keys[k], strlen(keys[k])) == 0)
                return say_error(NULL, "Leave it out; --tokenizer names another tokenizer, --train-tokenizer N makes one of N ids.",
                                 "--set %s: a model that is trained has its tokenizer's ids", shape->set.item[i]);
    return 0;
}

static int run(const command *self, int argc, char **argv)
{
    linnet_train_options o = LINNET_TRAIN_OPTIONS_INIT;
    o.shard_bytes = 5000000000;
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .mixer = NULL };
    view v = { .json = 0 };
    arg_list texts = { 0 };
    int64_t steps = 0; /* 0: not given */
    double minutes = 0;
    const arg table[] = {
        {"data", ARG_HEADING},
        {"out", ARG_TEXT, &o.out, "DIR", "folder for the checkpoint, log.jsonl and page.svg, the run's curves (required)"},
        {"held-out", ARG_TEXT, &o.held_out, "TEXT", "file or folder to evaluate on; without it the last part of the texts", .fallback = ""},
        {"held-out-share", ARG_REAL, &o.held_out_share, "X", "how much of the texts that last part is", .range = "train.held_out_share"},
        {"field", ARG_TEXT, &o.field, "KEY", "the texts are JSON lines, of which this field is read, each a document", .fallback = ""},
        {"init", ARG_TEXT, &o.init, "DIR", "begin with this folder's model, weights and tokenizer, and a fresh optimizer",
         .fallback = ""},
        {"tokenizer", ARG_TEXT, &o.tokenizer, "PATH", "tokenizer.json, a folder with one or with encoder.json and vocab.bpe, or bytes",
         .fallback = "bytes"},
        {"train-tokenizer", ARG_I64, &o.train_tokenizer, "N", "train a byte-level BPE of up to N ids on the texts first",
         .range = "train.train_tokenizer", .fallback = ""},
        {"isolate-documents", ARG_SWITCH, &o.isolate_documents,
         .help = "reset the state at every document; without it documents are joined with the separator"},
        {"no-separator-loss", ARG_SWITCH, &o.no_separator_loss,
         .help = "the separator of documents is read, and nothing is asked to predict it"},
        MODEL_FLAGS(&shape, "tiny"),
        {"length of the run", ARG_HEADING},
        {"steps", ARG_I64, &steps, "N", "optimizer steps", 1, ARG_NO_LIMIT, "1000, or until --minutes are over"},
        {"minutes", ARG_REAL, &minutes, "M", "stop and save after this time; without --steps, the number of steps is measured and fixed", 1e-3, 1e6,
         "", "max_seconds"},
        {"resume", ARG_SWITCH, &o.resume,
         .help = "go on from the checkpoint in --out, bit for bit, with its model and settings; a flag that says otherwise is refused, but that "
                 "--steps lengthens a run which is at its end"},
        {"optimisation", ARG_HEADING},
        {"batch", ARG_I64, &o.batch, "N", "sequences in one pass", .range = "train.batch"},
        {"length", ARG_I64, &o.length, "N", "tokens of a sequence", .range = "train.length"},
        {"accumulate", ARG_I64, &o.accumulate, "N", "passes for each optimizer step", .range = "train.accumulate"},
        {"learning-rate", ARG_REAL, &o.learning_rate, "X", "highest learning rate", .range = "train.learning_rate"},
        {"min-learning-rate-share", ARG_REAL, &o.min_learning_rate_share, "X", "share of it at which the cosine ends",
         .range = "train.min_learning_rate_share"},
        {"warmup", ARG_I64, &o.warmup, "N", "steps of linear warm-up", .min = 0, .range = "train.warmup",
         .fallback = "100, at most a fifth of the steps"},
        {"warmup-from", ARG_REAL, &o.warmup_from, "X", "learning rate at which the warm-up begins", .range = "train.warmup_from",
         .fallback = "its steps rise evenly from none"},
        {"beta1", ARG_REAL, &o.beta1, "X", "AdamW: decay of the first moment", .range = "train.beta1"},
        {"beta2", ARG_REAL, &o.beta2, "X", "AdamW: decay of the second moment", .range = "train.beta2"},
        {"epsilon", ARG_REAL, &o.epsilon, "X", "AdamW: added to the denominator", .range = "train.epsilon"},
        {"weight-decay", ARG_REAL, &o.weight_decay, "X", "AdamW: decoupled decay of the matrices", .range = "train.weight_decay"},
        {"clip", ARG_REAL, &o.clip, "X", "largest norm of the gradient, 0: no limit", .range = "train.clip"},
        {"seed", ARG_U64, &o.seed, "N", "of the weights and of the order of the text"},
        RECOMPUTE_FLAG(&o.recompute),
        WEIGHTS_FLAG(&o.weights),
        MOMENTS_FLAG(&o.moments),
        {"evaluation, checkpoints", ARG_HEADING},
        {"eval-every", ARG_I64, &o.eval_every, "N", "steps between evaluations, 0: at the end only", .range = "train.eval_every"},
        {"eval-tokens", ARG_I64, &o.eval_tokens, "N", "tokens of held-out text to read, 0: all", .range = "train.eval_tokens"},
        {"save-every", ARG_I64, &o.save_every, "N", "steps between checkpoints, 0: at the end only", .range = "train.save_every"},
        {"shard-size", ARG_BYTES, &o.shard_bytes, "SIZE", "most bytes of tensors in one file of the weights at the end of the run, with an index "
         "where there are several; 0: one file", .fallback = "5GB", .key = "shard_bytes"},
        {"keep-best", ARG_SWITCH, &v.keep_best, .help = "keep the checkpoint of the least held-out loss in DIR/best, of those that are saved and "
         "evaluated at one step"},
        {"tensorboard", ARG_SWITCH, &v.tensorboard, .help = "write losses, learning rate, gradient norm and speed for TensorBoard into "
         "DIR/tensorboard"},
        {"json", ARG_SWITCH, &v.json, .help = "one JSON line for each step on standard output"},
        MACHINE_FLAGS(&m),
        {.kind = ARG_END},
    };
    int code = args_parse(self, table, argc, argv, &texts, 0, -1);
    if (code >= 0) return code;
    static const char help[] = "Run `linnet train --help` for usage and flags.";
    if (!texts.count && !o.resume) return say_error(NULL, help, "too few arguments, expected: linnet train %s", self->usage);
    if (!o.out) return say_error(NULL, help, "--out is missing: a folder for the checkpoint");
    if (!texts.count) {
        char example[4200];
        snprintf(example, sizeof example, "It keeps what they were, not where. For example: linnet train books/ --out %s --resume", o.out);
        return say_error(NULL, example, "TEXT is missing: the texts that the run in %s was started with", o.out);
    }
    if (o.train_tokenizer && o.tokenizer) return say_error(NULL, "Leave one of them out.", "--tokenizer and --train-tokenizer exclude each other");
    const bool described = shape.mixer || shape.pattern || shape.config || shape.preset || shape.set.count;
    if (o.init && described && !o.resume)
        return say_error(NULL, "Leave out one or the other.", "--init %s names a model, flags of section \"model\" describe a new one", o.init);
    if (o.init && o.train_tokenizer) return say_error(NULL, "Leave one of them out.", "--init and --train-tokenizer exclude each other");
    if ((code = check_ids(&shape))) return code;
    if (args_only_check) return o.init || o.resume ? EXIT_GOOD : model_args_check(&shape);
    o.texts = texts.item;
    o.n_texts = texts.count;
    if (steps) o.steps = steps;
    else if (minutes > 0) o.steps = 0;
    o.max_seconds = 60 * minutes;
    o.given = args_given()->item;
    o.n_given = args_given()->count;
    v.out = o.out;
    v.resume = o.resume;
    return train(&m, &shape, &o, &v, argc, argv);
}

const command cmd_train = {
    .name = "train",
    .summary = "train a model on text files",
    .usage = "TEXT... --out DIR [options]",
    .about = "Each TEXT is a file, or a folder of which every file is read; gzip, xz and Zstandard files are unpacked. The checkpoint is a folder "
             "with config.json, model.safetensors and tokenizer.json, and beside them what --resume needs. Ctrl-C, SIGTERM, a closed terminal and a "
             "closed pipe save and say how to go on.",
    .example = "linnet train books/ --out model --preset small --minutes 20",
    .run = run,
};
