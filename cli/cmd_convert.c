/* linnet convert: a checkpoint folder as another library's, in another dtype, in files of a size. */
#include <string.h>

#include "commands.h"
#include "say.h"

static int parse_options(const char *dtype, linnet_convert_options *o)
{
    linnet_dtype t;
    if (!o->to)
        return say_error(NULL, "Run `linnet convert --help` for usage and flags.", "--to is missing: fla, transformers, linnet or a model type");
    if (strcmp(dtype, "keep") != 0) {
        if (linnet_dtype_parse(NULL, dtype, &t) != LINNET_OK || (t != LINNET_F32 && t != LINNET_BF16 && t != LINNET_F16))
            return say_error(NULL, NULL, "--dtype is \"%s\", expected keep, f32, bf16 or f16", dtype);
        o->dtype = t;
    }
    return 0;
}

static int run(const command *self, int argc, char **argv)
{
    linnet_convert_options o = LINNET_CONVERT_OPTIONS_INIT;
    linnet_convert_result did = { .size = sizeof did };
    o.shard_bytes = 5000000000;
    const char *dtype = "keep";
    arg_list words = { 0 };
    int json = 0;
    const arg table[] = {
        { "conversion", ARG_HEADING },
        { "to", ARG_TEXT, &o.to, "LIBRARY", "fla (flash-linear-attention), transformers, linnet, or a model type of theirs (required)",
          .fallback = "" },
        { "dtype", ARG_TEXT, &dtype, "TYPE", "of the tensors: f32, bf16, f16, or keep, each its own" },
        { "shard-size", ARG_BYTES, &o.shard_bytes, "SIZE", "most bytes of tensors in one file, with an index where there are several; 0: one file",
          .fallback = "5GB" },
        { "json", ARG_SWITCH, &json, .help = "what was written as a JSON line" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 2, 2);
    if (code >= 0) return code;
    if ((code = parse_options(dtype, &o)) != 0) return code;
    linnet_context *c = NULL;
    linnet_status s = linnet_context_create(NULL, &c);
    if (s == LINNET_OK) s = linnet_convert(c, words.item[0], words.item[1], &o, &did);
    if (s != LINNET_OK) code = say_status(c, s);
    else if (json) {
        json_line j;
        line_open(&j, stdout);
        line_text(&j, "out", words.item[1]);
        line_text(&j, "model_type", did.model_type);
        line_text(&j, "class", *did.class_name ? did.class_name : NULL);
        line_int(&j, "parameters", did.parameters);
        line_int(&j, "bytes", did.bytes);
        line_int(&j, "weight_files", did.weight_files);
        line_close(&j);
    } else {
        char bytes[SAY_TEXT];
        printf("%s: model type %s, %s; %lld parameters, %s in %lld file%s\n", words.item[1], did.model_type,
               *did.class_name ? did.class_name : "linnet's own, which no other library loads", (long long)did.parameters,
               say_bytes(bytes, (double)did.bytes), (long long)did.weight_files, did.weight_files == 1 ? "" : "s");
    }
    linnet_context_destroy(c);
    return code;
}

const command cmd_convert = {
    .name = "convert",
    .summary = "a checkpoint folder for another library, dtype or file size",
    .usage = "IN OUT --to LIBRARY [options]",
    .about = "OUT is a folder that is not there or empty; it appears whole or not at all. Tensors are read one at a time. A model that no class of "
             "the library computes is refused; --to linnet takes every model.",
    .example = "linnet convert model/ for-transformers/ --to transformers --dtype bf16 --shard-size 2GB",
    .run = run,
};
