/* linnet inspect: what a model is made of. */
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "say.h"
#include "term.h"

static void print_summary(linnet_model *model, linnet_dtype dtype)
{
    linnet_model_info i = { .size = sizeof i };
    char a[SAY_TEXT], b[SAY_TEXT];
    linnet_model_get_info(model, &i);
    printf("model       %s, %lld layer%s of width %lld, %lld token ids\n", i.model_type, (long long)i.layers, i.layers == 1 ? "" : "s",
           (long long)i.width, (long long)i.vocabulary);
    printf("parameters  %lld (%s in float32)\n", (long long)i.parameters, say_bytes(a, 4.0 * (double)i.parameters));
    printf("state       %s a sequence in generation, %s", say_bytes(b, (double)i.state_bytes_per_sequence), linnet_dtype_name(dtype));
    if (i.state_capacity > 0) printf(", key-value caches counted at %lld tokens", (long long)i.state_capacity);
    putchar('\n');
}

static int print_training(linnet_context *c, const linnet_model *model, int64_t batch, int64_t length)
{
    linnet_training_memory r = { .size = sizeof r };
    char a[5][SAY_TEXT];
    linnet_status s = linnet_model_training_memory(c, model, batch, length, LINNET_RECOMPUTE_NONE, LINNET_F32, LINNET_F32, &r);
    if (s != LINNET_OK) return say_status(c, s);
    printf("training    %s for %lld sequence%s of %lld token%s: weights %s, gradients %s, moments %s, activations %s",
           say_bytes(a[0], (double)r.total), (long long)batch, batch == 1 ? "" : "s", (long long)length, length == 1 ? "" : "s",
           say_bytes(a[1], (double)r.weights), say_bytes(a[2], (double)r.gradients), say_bytes(a[3], (double)r.moments),
           say_bytes(a[4], (double)r.activations));
    s = linnet_model_training_memory(c, model, batch, length, LINNET_RECOMPUTE_BLOCKS, LINNET_F32, LINNET_F32, &r);
    if (s != LINNET_OK) return say_status(c, s);
    printf(" (%s with --recompute)\n", say_bytes(a[4], (double)r.activations));
    return 0;
}

static int run(const command *self, int argc, char **argv)
{
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .mixer = NULL };
    arg_list words = { 0 };
    int parameters = 0, program = 0, graphviz = 0, json = 0;
    const linnet_train_options usual = LINNET_TRAIN_OPTIONS_INIT;
    int64_t batch = usual.batch, length = usual.length;
    const arg table[] = {
        { "what to show", ARG_HEADING },
        { "parameters", ARG_SWITCH, &parameters, .help = "every parameter: name, shape, initialisation" },
        { "program", ARG_SWITCH, &program, .help = "the operators in the order they run" },
        { "graphviz", ARG_SWITCH, &graphviz, .help = "the program as a Graphviz picture, for `dot -Tsvg`" },
        { "json", ARG_SWITCH, &json, .help = "everything as one JSON object, parameters and program with it" },
        { "batch", ARG_I64, &batch, "N", "sequences of a training step, for what it takes", 1, 1 << 24 },
        { "length", ARG_I64, &length, "N", "tokens of each", 1, 1 << 24 },
        MODEL_FLAGS(&shape, "tiny"),
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, 1);
    if (code >= 0) return code;
    bool described = shape.mixer || shape.pattern || shape.config || shape.preset || shape.set.count;
    if (words.count == 1 && described)
        return say_error(NULL, "Leave out one or the other.", "%s names a model, flags of section \"model\" describe a new one", words.item[0]);
    if (words.count == 0 && !described)
        return say_error(NULL, "Run `linnet inspect --help` for usage and flags.", "which model? name a folder, or --mixer and --preset");
    if (json && graphviz) return say_error(NULL, "Leave one of them out.", "--graphviz and --json exclude each other");
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    linnet_model *model = NULL;
    linnet_status s = LINNET_OK;
    code = machine_open(&m, &c);
    if (!code && words.count == 1) s = linnet_model_look(c, words.item[0], m.dtype, &model);
    else if (!code) code = model_args_config(c, &shape, &config);
    if (!code && words.count == 0) s = linnet_model_outline(c, config, m.dtype, &model);
    if (!code && s != LINNET_OK) code = say_status(c, s);
    if (!code) {
        if (!parameters && !program && !graphviz && !json) {
            print_summary(model, m.dtype);
            code = print_training(c, model, batch, length);
        }
        const struct {
            int asked;
            linnet_describe what;
        } parts[] = { { parameters && !json, LINNET_DESCRIBE_PARAMETERS },
                      { program && !json, LINNET_DESCRIBE_TEXT },
                      { graphviz, LINNET_DESCRIBE_GRAPHVIZ },
                      { json, LINNET_DESCRIBE_JSON } };
        for (int i = 0; i < 4 && !code; i++) {
            if (!parts[i].asked) continue;
            char *text = linnet_model_describe(model, parts[i].what);
            if (text) printf("%s%s", text, *text && text[strlen(text) - 1] == '\n' ? "" : "\n");
            else code = say_error(NULL, NULL, "out of memory");
            linnet_free(text);
        }
    }
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

const command cmd_inspect = {
    .name = "inspect",
    .summary = "parameters, program and state sizes of a model",
    .usage = "MODEL | --mixer NAME --preset NAME [options]",
    .about = "Looks into a checkpoint folder, or at the model that flags describe. No weights are read or drawn.",
    .example = "linnet inspect model/ --parameters\nlinnet inspect --mixer delta_net --preset tiny --graphviz | dot -Tsvg > program.svg",
    .run = run,
};
