/* linnet op: one operator on a safetensors file. docs/op-files.md is the contract. */
#include <string.h>

#include "commands.h"
#include "say.h"

static int run(const command *self, int argc, char **argv)
{
    linnet_op_options o = LINNET_OP_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 }, set = { 0 };
    const arg table[] = {
        { "operator", ARG_HEADING },
        { "backward", ARG_SWITCH, &o.backward, .help = "write the gradients too; cotangents do, dsT are read from IN" },
        { "form", ARG_TEXT, &o.form, "FORM", "auto, recurrent, chunk or parallel; one that nothing but the reference has for the call is refused" },
        { "weights", ARG_SWITCH, &o.weights, .help = "write the implicit attention matrix too" },
        { "chunk", ARG_INT, &o.chunk, "C", "tokens of a chunk", .range = "op.chunk", .fallback = "the implementation's own" },
        { "impl", ARG_TEXT, &o.impl, "NAME", "force one implementation" },
        { "set", ARG_LIST, &set, "KEY=VALUE", "override a scalar of the file (scale, window ...); may be repeated" },
        { "machine", ARG_HEADING },
        { "device", ARG_TEXT, &m.device, "cpu|cuda", "where to compute" },
        { "threads", ARG_INT, &m.threads, "N", "threads to use; the results do not depend on it",
          .range = "context.threads", .fallback = "every core" },
        { "dtype", ARG_DTYPE64, &m.dtype, "TYPE", "f32, bf16, or f64 for the reference" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 3, 3);
    if (code >= 0) return code;
    o.op = words.item[0];
    o.in = words.item[1];
    o.out = words.item[2];
    if ((code = outputs_check(&o.out, 1, NULL, &o.in, 1)) != 0) return code;
    o.dtype = m.dtype;
    o.set = set.item;
    o.n_set = set.count;
    linnet_context *c = NULL;
    char line[512] = "";
    code = machine_open(&m, &c);
    if (!code) {
        linnet_status s = linnet_op_file(c, &o, line, sizeof line);
        if (s == LINNET_OK) printf("%s\n", line);
        else code = say_status(c, s);
    }
    linnet_context_destroy(c);
    return code;
}

const command cmd_op = {
    .name = "op",
    .summary = "one operator on tensors, from and to safetensors files",
    .usage = "NAME IN.safetensors OUT.safetensors [options]",
    .about = "Reads the operator's inputs by name, writes its outputs and final state, and prints the shape, the implementation that ran "
             "and its time.",
    .example = "linnet op gated_delta_rule in.safetensors out.safetensors --backward --form chunk",
    .run = run,
};
