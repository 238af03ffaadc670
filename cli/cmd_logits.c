/* linnet logits: input_ids of a safetensors file to logits in another. */
#include "commands.h"
#include "say.h"

static int run(const command *self, int argc, char **argv)
{
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 };
    int step = 0;
    const arg table[] = {
        { "computation", ARG_HEADING },
        { "step", ARG_SWITCH, &step, .help = "token by token through the state, as in generation" },
        MACHINE_FLAGS(&m),
        KEPT_FLAG(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 3, 3);
    if (code >= 0) return code;
    if ((code = outputs_check(&words.item[2], 1, words.item[0], &words.item[1], 1)) != 0) return code;
    linnet_context *c = NULL;
    linnet_model *model = NULL;
    linnet_status s = LINNET_OK;
    code = machine_open(&m, &c);
    if (!code && (s = load_model(c, &m, words.item[0], &model)) != LINNET_OK) code = say_status(c, s);
    if (!code && (s = linnet_model_logits_file(c, model, words.item[1], words.item[2], step)) != LINNET_OK) code = say_status(c, s);
    linnet_model_destroy(model);
    linnet_context_destroy(c);
    return code;
}

const command cmd_logits = {
    .name = "logits",
    .summary = "logits of token ids, from and to safetensors files",
    .usage = "MODEL IN.safetensors OUT.safetensors [options]",
    .about = "IN holds input_ids [B,T] of an integer type; OUT receives logits [B,T,vocabulary] in float32.",
    .example = "linnet logits model/ ids.safetensors logits.safetensors",
    .run = run,
};
