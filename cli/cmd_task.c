/* linnet task: synthetic benchmarks. mqar is multi-query associative recall (Arora et al., Zoology, 2023). */
#include <string.h>

#include "commands.h"
#include "say.h"
#include "term.h"

typedef struct {
    progress bar;
    double begin;
} view;

static int on_step(void *user, int64_t step, int64_t steps, double loss, double accuracy)
{
    view *v = user;
    char head[64], tail[128], left[SAY_TEXT];
    double gone = term_now() - v->begin;
    snprintf(head, sizeof head, "step %4lld/%lld", (long long)step, (long long)steps);
    snprintf(tail, sizeof tail, "loss %.4f  accuracy %5.1f%%  %s left", loss, 100 * accuracy,
             say_duration(left, step > 0 ? gone * (double)(steps - step) / (double)step : 0));
    progress_show(&v->bar, steps > 0 ? (double)step / (double)steps : 1, head, tail);
    return stop_asked();
}

static void print_result(const linnet_mqar_options *o, const char *mixer, const linnet_mqar_result *r, int json)
{
    char size[SAY_TEXT], time[SAY_TEXT];
    if (!json) {
        printf("mqar  %-16s %s parameters  %lld pairs in %lld tokens  %lld steps, %s  accuracy %.1f%%\n", mixer,
               say_count(size, (double)r->parameters), (long long)o->pairs, (long long)o->length, (long long)r->steps,
               say_duration(time, r->seconds), 100 * r->accuracy);
        return;
    }
    json_line j;
    line_open(&j, stdout);
    line_text(&j, "task", "mqar");
    line_text(&j, "model_type", mixer);
    line_int(&j, "parameters", r->parameters);
    line_int(&j, "vocabulary", o->vocabulary);
    line_int(&j, "length", o->length);
    line_int(&j, "pairs", o->pairs);
    line_int(&j, "rounds", o->rounds);
    line_int(&j, "steps", r->steps);
    line_real(&j, "loss", r->loss);
    line_real(&j, "accuracy", r->accuracy);
    line_real(&j, "seconds", r->seconds);
    line_close(&j);
}

static int run(const command *self, int argc, char **argv)
{
    static const char *const small[] = { "num_hidden_layers=2", "hidden_size=64", "num_heads=2", NULL };
    linnet_mqar_options o = LINNET_MQAR_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .defaults = small };
    arg_list words = { 0 };
    double minutes = 0;
    int json = 0;
    const arg table[] = {
        { "task", ARG_HEADING },
        { "vocabulary", ARG_I64, &o.vocabulary, "N", "token ids, half of them keys, half values", 4, 1 << 24 },
        { "length", ARG_I64, &o.length, "N", "tokens of an example", 4, 1 << 20 },
        { "pairs", ARG_I64, &o.pairs, "N", "keys with their values to remember", 1, 1 << 20 },
        { "rounds", ARG_I64, &o.rounds, "N", "times the keys are shown, each time with new values; the last ones are asked for", 1, 1 << 20 },
        { "test-examples", ARG_I64, &o.test_examples, "N", "examples to measure the accuracy on", 1, 1 << 24 },
        MODEL_FLAGS(&shape, "2 layers, width 64, 2 heads"),
        { "training", ARG_HEADING },
        { "steps", ARG_I64, &o.steps, "N", "optimizer steps", 1, ARG_NO_LIMIT },
        { "minutes", ARG_REAL, &minutes, "M", "stop after this time", 1e-3, 1e6, "no limit" },
        { "batch", ARG_I64, &o.batch, "N", "examples in a step", 1, 1 << 20 },
        { "learning-rate", ARG_REAL, &o.learning_rate, "X", "highest learning rate", 0, 1e3 },
        { "weight-decay", ARG_REAL, &o.weight_decay, "X", "decoupled decay of the matrices", 0, 1e3 },
        { "seed", ARG_U64, &o.seed, "N", "of the weights and the examples" },
        { "json", ARG_SWITCH, &json, .help = "print the result as one JSON line" },
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 1, 1);
    if (code >= 0) return code;
    if (strcmp(words.item[0], "mqar") != 0) return say_error(NULL, "The one task on offer is mqar.", "there is no task \"%s\"", words.item[0]);
    o.max_seconds = 60 * minutes;
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    linnet_mqar_result r;
    view v = { .begin = term_now() };
    code = machine_open(&m, &c);
    if (!code) code = model_args_config(c, &shape, &config);
    if (!code) {
        progress_open(&v.bar, stderr);
        stop_watch();
        o.progress = on_step;
        o.user = &v;
        linnet_status s = linnet_task_mqar(c, config, m.dtype, &o, &r);
        progress_close(&v.bar);
        if (s == LINNET_OK) print_result(&o, shape.mixer ? shape.mixer : shape.config ? shape.config : "gated_deltanet", &r, json);
        else code = s == LINNET_EINTERRUPTED ? EXIT_STOPPED : say_status(c, s);
    }
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

const command cmd_task = {
    .name = "task",
    .summary = "train a small model on a synthetic task and report its accuracy",
    .usage = "mqar [options]",
    .about = "mqar, multi-query associative recall: an example shows keys with their values, then asks for the value of each key.",
    .example = "linnet task mqar --mixer delta_net --pairs 8 --length 64",
    .run = run,
};
