/* Arguments of a command: one table of flags, from which come parsing, checks, suggestions and --help.
 *
 * A flag's default is what its target holds when parsing begins, so a table built over an option structure filled by its _INIT macro
 * shows and keeps the library's own defaults. Everything wrong is said on stderr and ends in exit code 2. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "linnet/linnet.h"

typedef struct command {
    const char *name;    /* "train" */
    const char *summary; /* one line */
    const char *usage;   /* what follows the name: "TEXT... --out DIR [options]" */
    const char *about;   /* a paragraph or two for --help, or NULL */
    const char *example;
    int (*run)(const struct command *self, int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
    const char *(*part)(int i); /* of a command made of parts: the name of the i-th, "op" of bench; NULL past the end. NULL: there are none */
} command;

/* Strings in the order given. */
typedef struct {
    const char **item;
    int count, room;
} arg_list;
void arg_list_add(arg_list *l, const char *item);
/* Memory that lives until args_release, which main() calls last; ends the process when there is none. */
void *args_alloc(size_t bytes);
void args_release(void);

typedef enum {
    ARG_HEADING, /* a title in --help: name */
    ARG_SWITCH,  /* int set to 1; takes no value */
    ARG_SWITCH_WORD, /* int set to 1, or to the place (from 1) of the word that may follow among those of `key`, "blocks|cheap" */
    ARG_INT,     /* int */
    ARG_I64,
    ARG_U64,
    ARG_REAL,    /* double */
    ARG_TEXT,    /* const char * */
    ARG_DTYPE,   /* int32_t, a linnet_dtype: f32 or bf16 */
    ARG_DTYPE64, /* the same, f64 too */
    ARG_DTYPE8,  /* the same, int8 too, no f64 */
    ARG_BYTES,   /* int64_t: "5GB", "500 MB", "1GiB", "4096" */
    ARG_LIST,    /* arg_list: may be given several times */
    ARG_KEY,     /* arg_list: "--layers 4" adds "num_hidden_layers=4", with `key` before the sign; a whole number */
    ARG_KEY_REAL, /* the same of a number, */
    ARG_KEY_WORD, /* of one of the words of `value`, "short|paper", */
    ARG_KEY_TEXT, /* of any text */
    ARG_END,
} arg_kind;

typedef struct {
    const char *name;  /* without the dashes */
    arg_kind kind;
    void *to;
    const char *value; /* what the value is called in --help: "N", "DIR" */
    const char *help;
    double min, max;   /* of numbers, both included */
    const char *fallback; /* default as shown in --help; NULL: the target's value, "": none shown */
    const char *key;  /* what the library calls it where that is not the name with _ for -; see arg_kind */
    const char *range; /* "train.batch": min and max are the library's (linnet_option_range), min of the flag itself when that is more */
} arg;

#define ARG_NO_LIMIT 1e15 /* and above: no limit worth a word */

/* Parse argv[1..]. What is no flag goes to `words`, at least `least` and at most `most` of them (-1: any number); `least` names them in errors.
 * Returns -1 to go on, or the exit code to leave with (--help: 0). --help=json is the table as a JSON object, from which man pages and the shells'
 * completion are made (cmake/cli_pages.py). */
int args_parse(const command *self, const arg *table, int argc, char **argv, arg_list *words, int least, int most);

/* The command as a shell reads it, "linnet task mqar --width 32"; argv[0] is its name. */
const char *args_command(int argc, char **argv);

/* The flags that args_parse met, as the library calls them. */
const arg_list *args_given(void);
/* The flag for what the library calls so, NULL: there is none. */
const char *args_flag(const char *option);
/* A pair is refused: where no flag made it (ARG_KEY) but --set, its key is that of no flag from here on. */
void args_refused(const char *pair);

/* train and task say what is wrong with their flags, and do nothing: `linnet sweep` asks that of each run before it makes anything. */
extern bool args_only_check;

/* Run the part that argv[1] names, of a command made of parts: "bench op" is part "op" of bench. `what` they are called in an error: "benchmark". */
int args_run_part(const command *self, const command *parts, size_t n, const char *what, int argc, char **argv);

/* The candidate nearest to `word` when it is near enough to be meant, else NULL. */
const char *args_nearest(const char *word, const char *const *candidates, int n);

/* ---- flags that several commands share --------------------------------------------------------------------------------------- */

typedef struct {
    const char *device;
    int threads; /* 0: the library's choice */
    int32_t dtype, weights; /* linnet_dtype */
} machine_args;
#define MACHINE_ARGS_INIT { .device = "cpu" }
#define MACHINE_FLAGS(m)                                                                                                            \
    { "machine", ARG_HEADING },                                                                                                     \
    { "device", ARG_TEXT, &(m)->device, "cpu|cuda", "where to compute" },                                                           \
    { "threads", ARG_INT, &(m)->threads, "N", "threads to use; the results do not depend on it", .range = "context.threads",           \
      .fallback = "every core" },                                                                                                   \
    { "dtype", ARG_DTYPE, &(m)->dtype, "TYPE", "float32 (f32), or bf16 (bfloat16) for activations and products" }

/* Of commands that load a model and do not train it, with load_model. */
#define KEPT_FLAG(m)                                                                                                                \
    { "weights", ARG_DTYPE8, &(m)->weights, "TYPE",                                                                                   \
      "how matrices are kept: float32, bf16 (with --dtype bf16), a third of the memory, or int8 with a scale for each row (on a CPU), a quarter" }
linnet_status load_model(linnet_context *c, const machine_args *m, const char *folder, linnet_model **out);

/* A context as the flags ask. Returns 0, or the exit code after saying why not. */
int machine_open(const machine_args *m, linnet_context **out);

typedef struct {
    const char *mixer, *config, *preset, *pattern;
    arg_list set;                   /* "key=value", applied last, in order */
    const char *const *defaults;    /* "key=value", NULL at the end: the size when neither --config nor --preset gives one; NULL: preset tiny */
} model_args;
#define ARG_MIXER "gated_deltanet" /* where no kind of layer is named */
#define MODEL_FLAGS(m, size)                                                                                                       \
    { "model", ARG_HEADING },                                                                                                       \
    { "mixer", ARG_TEXT, &(m)->mixer, "NAME", "kind of layer, see `linnet mixers`", .fallback = ARG_MIXER },                        \
    { "preset", ARG_TEXT, &(m)->preset, "NAME", "named size, see `linnet mixers`", .fallback = size },                              \
    { "pattern", ARG_TEXT, &(m)->pattern, "KINDS",                                                                                   \
      "kinds of layer by turns: mesa_net,attention:256 is a mesa layer, then attention over a window of 256, and so on; 3*NAME: three" },           \
    { "config", ARG_TEXT, &(m)->config, "FILE", "start from a config.json" },                                                       \
    { "layers", ARG_KEY, &(m)->set, "N", "number of layers", 1, ARG_NO_LIMIT, "", "num_hidden_layers" },                            \
    { "width", ARG_KEY, &(m)->set, "N", "width of the model", 1, ARG_NO_LIMIT, "", "hidden_size" },                                 \
    { "heads", ARG_KEY, &(m)->set, "N", "heads of each mixer", 1, ARG_NO_LIMIT, "", "num_heads" },                                  \
    { "set", ARG_LIST, &(m)->set, "KEY=VALUE", "any key of config.json; may be repeated" }

#define RECOMPUTE_FLAG(to)                                                                                                          \
    { "recompute", ARG_SWITCH_WORD, to, "[blocks|cheap]",                                                                         \
      "make the inside of each layer again in the backward pass: least memory, about a third slower (blocks says the same); cheap: only norms, " \
      "convolutions and activations, a few per cent slower", .fallback = "", .key = "blocks|cheap" }
#define MOMENTS_FLAG(to)                                                                                                            \
    { "moments", ARG_DTYPE, to, "TYPE", "float32, or bf16: AdamW's moments, rounded stochastically, in half the memory" }
#define WEIGHTS_FLAG(to)                                                                                                            \
    { "weights", ARG_DTYPE, to, "TYPE", "float32, or bf16 (with --dtype bf16): matrices without a float32 copy, rounded stochastically" }

/* The configuration that the flags describe. Returns 0, or the exit code after saying why not. */
int model_args_config(linnet_context *c, const model_args *m, linnet_config **out);
/* Whether they describe one. Returns 0, or the exit code after saying why not. */
int model_args_check(const model_args *m);
/* What the flags make of the configuration in a folder: the same when they say what it says. *out stays as it is when no such flag was given. */
int model_args_resumed(linnet_context *c, const model_args *m, const char *folder, linnet_config **out);

/* Help of a flag that names a chat template. */
const char *chat_template_help(void);

/* Say on stderr what there is to say of texts before they are used. What cannot be read is said by who reads it. */
void say_of_texts(linnet_context *c, const char *const *texts, int n_texts);
/* All of a file, "-": of standard input, closed with a zero byte and freed with free(). `what` a message calls it. Returns 0 or the exit code. */
int read_input(const char *path, const char *what, char **text, size_t *bytes);
/* Before any work: what a command writes (NULL: none) may be no file that it reads, no file in a folder of texts, none that the model in the folder
 * `model` has (NULL: there is no model), and no other output. An older output may be, also where it stands beside the model. Returns 0, or the exit
 * code after naming the two. */
int outputs_check(const char *const *out, int n_out, const char *model, const char *const *in, int n_in);
/* The tokenizer of a model's folder, or the one at `path` when that is not NULL. Returns 0, or the exit code after saying why not. */
int tokenizer_beside(linnet_context *c, const char *path, const char *folder, const linnet_model *m, linnet_tokenizer **out);

#endif
