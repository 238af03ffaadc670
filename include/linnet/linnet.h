/* linnet: linear-time sequence models in C. The whole public interface but the raw operators (recurrence.h).
 *
 * Conventions, said once for the whole header.
 * - A function that can fail returns linnet_status: 0 is success, negative is an error. The error's text (message, detail,
 *   hint) stays on the context until the next failing call on it. On error, outputs are untouched unless said otherwise.
 * - An option structure begins with its size; fill it with its LINNET_..._INIT macro, then change what you need. Fields are only
 *   ever added at the end.
 * - Strings are UTF-8. Strings handed in are copied; strings handed out belong to the object they came from.
 * - Destroying NULL does nothing.
 * - One context serves one thread at a time; several contexts may live in several threads.
 * Since 0.1 unless a declaration says otherwise. */
#ifndef LINNET_LINNET_H
#define LINNET_LINNET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LINNET_API __attribute__((visibility("default")))
#else
#define LINNET_API
#endif

#define LINNET_VERSION_MAJOR 0
#define LINNET_VERSION_MINOR 1
#define LINNET_VERSION_PATCH 0

/* "0.1.0"; static storage. */
LINNET_API const char *linnet_version(void);

/* ---- status ---------------------------------------------------------------------------------------------------------------- */

typedef enum {
    LINNET_OK = 0,
    LINNET_EINVAL = -1,       /* an argument, a shape or a value is wrong */
    LINNET_ENOMEM = -2,       /* an allocation failed */
    LINNET_EIO = -3,          /* a file could not be read or written */
    LINNET_EFORMAT = -4,      /* a file's contents are malformed */
    LINNET_EUNSUPPORTED = -5, /* understood, but not offered by this build or machine */
    LINNET_EINTERRUPTED = -6, /* the caller's callback asked to stop; what was promised to be saved is saved */
    LINNET_EINTERNAL = -7,    /* a bug in linnet */
} linnet_status;

/* Short name of a status, for example "invalid argument"; static storage. */
LINNET_API const char *linnet_status_name(linnet_status s);

/* ---- context --------------------------------------------------------------------------------------------------------------- */

typedef struct linnet_context linnet_context;

typedef struct {
    size_t size;
    int threads;         /* 0: OMP_NUM_THREADS, or every core this process may use */
    const char *device;  /* "cpu" (default when NULL), "cuda", or "cuda:1" for the second GPU */
    void (*log)(void *user, const char *line); /* dispatch and other diagnostics; NULL: none */
    void *log_user;
    void *stream;        /* a cudaStream_t that all work of this context is put on; NULL: a stream of its own. Kept open by the caller. */
} linnet_context_options;
#define LINNET_CONTEXT_OPTIONS_INIT { .size = sizeof(linnet_context_options) }

/* Create a context. `options` may be NULL. On failure `*out` still holds a context that carries the error's text and is good for nothing else
 * (destroy it), or NULL when not even that could be allocated. */
LINNET_API linnet_status linnet_context_create(const linnet_context_options *options, linnet_context **out);
LINNET_API void linnet_context_destroy(linnet_context *c);

/* The last error of a context: what is wrong, the facts around it, what to do. "" when there is nothing to say. */
LINNET_API const char *linnet_error_message(const linnet_context *c);
LINNET_API const char *linnet_error_detail(const linnet_context *c);
LINNET_API const char *linnet_error_hint(const linnet_context *c);

LINNET_API int linnet_threads(const linnet_context *c);

/* What runs here: "cpu: avx512 amx, 2 threads"; belongs to the context. */
LINNET_API const char *linnet_machine(const linnet_context *c);

/* ---- numbers --------------------------------------------------------------------------------------------------------------- */

typedef enum { LINNET_F32 = 0, LINNET_BF16 = 1, LINNET_F64 = 2, LINNET_F16 = 3, LINNET_I64 = 4, LINNET_I32 = 5, LINNET_U8 = 6 } linnet_dtype;


/* "f32", "bf16" ...; static storage. linnet_dtype_parse also takes "float32", "bfloat16". */
LINNET_API const char *linnet_dtype_name(linnet_dtype t);
LINNET_API linnet_status linnet_dtype_parse(linnet_context *c, const char *text, linnet_dtype *out);

/* ---- model configuration ---------------------------------------------------------------------------------------------------
 * The keys are those of config.json in flash-linear-attention's form (model_type, hidden_size, num_hidden_layers, num_heads, attn ...). */

typedef struct linnet_config linnet_config;

/* Defaults of a model type ("gated_deltanet", "transformer" ...). */
LINNET_API linnet_status linnet_config_create(linnet_context *c, const char *model_type, linnet_config **out);
/* Read config.json, or the config.json of a folder. Unknown keys that change the function computed are refused; those that do not are kept. */
LINNET_API linnet_status linnet_config_load(linnet_context *c, const char *path, linnet_config **out);
/* Set one key; `value` is JSON or a bare word: "512", "true", "null", "{\"layers\":[1,3],\"window_size\":256}". */
LINNET_API linnet_status linnet_config_set(linnet_context *c, linnet_config *k, const char *key, const char *value);
/* Apply a named size ("tiny", "small" ...): width, layers, heads. */
LINNET_API linnet_status linnet_config_preset(linnet_context *c, linnet_config *k, const char *preset);
/* Kinds of layer by turns, "mesa_net,attention:256" or "3*gated_deltanet,attention": each a mixer (of equal_backbone a rule), with N* in front for N
 * such layers, and behind attention a window. The keys attn and layer_mixers become what says that for num_hidden_layers, so set that first. */
LINNET_API linnet_status linnet_config_pattern(linnet_context *c, linnet_config *k, const char *pattern);
/* The i-th preset's name and one line about it; NULL past the end. */
LINNET_API const char *linnet_preset_name(int i);
LINNET_API const char *linnet_preset_summary(int i);
/* The configuration as JSON text, owned by the configuration until its next change. NULL when out of memory. */
LINNET_API const char *linnet_config_json(linnet_config *k);
LINNET_API void linnet_config_destroy(linnet_config *k);

/* The i-th mixer: name, one line, paper; NULL past the end. */
typedef struct {
    const char *name, *summary, *paper, *recurrence;
} linnet_mixer_info;
LINNET_API const linnet_mixer_info *linnet_mixer_at(int i);

/* ---- model ------------------------------------------------------------------------------------------------------------------ */

typedef struct linnet_model linnet_model;

/* A model with freshly drawn weights. dtype: LINNET_F32, or LINNET_BF16 (activations and product operands in bf16, everything else float32). */
LINNET_API linnet_status linnet_model_create(linnet_context *c, const linnet_config *k, linnet_dtype dtype, uint64_t seed, linnet_model **out);
/* weights: how the operands of matrix products are kept, LINNET_F32 (as linnet_model_create), or LINNET_BF16 under that dtype: without a float32
 * master; training then rounds them stochastically. */
LINNET_API linnet_status linnet_model_create_kept(linnet_context *c, const linnet_config *k, linnet_dtype dtype, linnet_dtype weights, uint64_t seed,
                                                  linnet_model **out);
/* Load a checkpoint folder: config.json and model.safetensors. */
LINNET_API linnet_status linnet_model_load(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out);
/* Write config.json and model.safetensors (float32 master weights), each replaced atomically. */
LINNET_API linnet_status linnet_model_save(linnet_context *c, const linnet_model *m, const char *folder);
LINNET_API void linnet_model_destroy(linnet_model *m);

typedef struct {
    int64_t parameters, vocabulary, width, layers;
    int64_t state_bytes_per_sequence; /* of generation; key-value caches counted at `state_capacity` tokens */
    int64_t state_capacity;
    const char *model_type;
} linnet_model_info;
LINNET_API void linnet_model_get_info(const linnet_model *m, linnet_model_info *out);

typedef enum { LINNET_DESCRIBE_TEXT, LINNET_DESCRIBE_GRAPHVIZ, LINNET_DESCRIBE_PARAMETERS, LINNET_DESCRIBE_JSON } linnet_describe;
/* The model as text: its program, its program as Graphviz, its parameter table, all of it as JSON. Free with linnet_free. NULL when out of memory. */
LINNET_API char *linnet_model_describe(linnet_model *m, linnet_describe what);
/* Free what the library handed out with this instruction. */
LINNET_API void linnet_free(void *p);

/* logits[B,T,vocabulary] of ids[B,T]; every id in [0, vocabulary). */
LINNET_API linnet_status linnet_model_logits(linnet_context *c, linnet_model *m, const int64_t *ids, int64_t B, int64_t T, float *logits);
/* `linnet logits`: input_ids [B,T] of a safetensors file to logits [B,T,V] f32 of another. With step != 0, token by token through the state. */
LINNET_API linnet_status linnet_model_logits_file(linnet_context *c, linnet_model *m, const char *in, const char *out, int step);

/* ---- tokenizer -------------------------------------------------------------------------------------------------------------- */

typedef struct linnet_tokenizer linnet_tokenizer;

/* "bytes" (256 ids, id = byte, no separator); a tokenizer.json; a folder that holds tokenizer.json, or encoder.json and vocab.bpe. */
LINNET_API linnet_status linnet_tokenizer_open(linnet_context *c, const char *path, linnet_tokenizer **out);
/* Train byte-level BPE with `vocabulary` ids (at least 257: the bytes and <|endoftext|>) on a text. */
LINNET_API linnet_status linnet_tokenizer_train(linnet_context *c, const char *text, size_t bytes, int64_t vocabulary, linnet_tokenizer **out);
/* Write tokenizer.json into a folder. */
LINNET_API linnet_status linnet_tokenizer_save(linnet_context *c, const linnet_tokenizer *t, const char *folder);
LINNET_API void linnet_tokenizer_destroy(linnet_tokenizer *t);
LINNET_API int64_t linnet_tokenizer_vocabulary(const linnet_tokenizer *t);
/* Id of the document separator (<|endoftext|> or the like), -1: none. */
LINNET_API int64_t linnet_tokenizer_separator(const linnet_tokenizer *t);
/* Ids of a text; *ids is freed with linnet_free. Any bytes are accepted. */
LINNET_API linnet_status linnet_tokenizer_encode(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t **ids,
                                                 int64_t *count);
/* Bytes of one id (not zero-terminated; they may be a part of a UTF-8 character). NULL when the id is outside the vocabulary. */
LINNET_API const char *linnet_tokenizer_piece(const linnet_tokenizer *t, int64_t id, size_t *bytes);

/* ---- training --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t step, steps;
    double loss;            /* nats per token of this step's batch */
    double learning_rate, gradient_norm;
    double tokens_per_second;
    double seconds, seconds_left;
    int64_t tokens;         /* seen since the start of the run, resumes included */
    int evaluated;          /* 1: the fields below are fresh */
    double eval_loss;       /* nats per token on the held-out text */
    double eval_bits_per_byte;
    int saved;              /* 1: a checkpoint was just written */
    const char *note;       /* something to tell the user, or NULL */
} linnet_train_progress;

/* What the backward pass makes again instead of keeping it from the forward pass. */
enum {
    LINNET_RECOMPUTE_NONE = 0,
    LINNET_RECOMPUTE_BLOCKS = 1, /* everything inside a layer: least memory, about a third more time */
    LINNET_RECOMPUTE_CHEAP = 2,  /* norms, convolutions, activations; results of products and recurrences are kept */
};

typedef struct {
    size_t size;
    const char *const *texts;     /* files or folders (every regular file below, sorted by path), n_texts of them */
    int n_texts;
    const char *held_out;         /* file or folder; NULL: the last `held_out_share` of each document set */
    double held_out_share;        /* 0.1 */
    const char *tokenizer;        /* as linnet_tokenizer_open; NULL: "bytes" */
    int64_t train_tokenizer;      /* > 0: train a BPE of this vocabulary on the training text instead */
    const char *out;              /* checkpoint folder */
    int resume;                   /* continue from `out`, bit for bit; the texts must be the same */
    int64_t steps;                /* optimizer steps; 0: as many as fit into max_seconds, measured on the first ones and then fixed */
    double max_seconds;           /* stop (and save) after this wall time; 0: no limit */
    int64_t batch, length;        /* sequences of `length` tokens in one micro-batch */
    int64_t accumulate;           /* micro-batches an optimizer step */
    double learning_rate, min_learning_rate_share; /* peak; cosine to this share */
    int64_t warmup;               /* steps */
    double beta1, beta2, epsilon, weight_decay, clip;
    uint64_t seed;
    int64_t eval_every, eval_tokens; /* steps; tokens of held-out text (0: all) */
    int64_t save_every;           /* steps; 0: at the end only */
    int isolate_documents;        /* 1: states are reset at document boundaries; 0: documents are joined with the separator */
    int recompute;                /* in the backward pass, LINNET_RECOMPUTE_...; the bits are the same */
    /* Called after every step; return non-zero to stop: the state is saved and the call returns LINNET_EINTERRUPTED. */
    int (*progress)(void *user, const linnet_train_progress *p);
    void *user;
    linnet_dtype weights;         /* LINNET_F32; LINNET_BF16 (under that dtype): matrices without a float32 master, rounded stochastically */
} linnet_train_options;
#define LINNET_TRAIN_OPTIONS_INIT                                                                                                   \
    { .size = sizeof(linnet_train_options), .held_out_share = 0.1, .steps = 1000, .batch = 8, .length = 256, .accumulate = 1,       \
      .learning_rate = 2e-3, .min_learning_rate_share = 0.1, .warmup = 100, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8,           \
      .weight_decay = 0.1, .clip = 1.0, .seed = 1, .eval_every = 250, .eval_tokens = 65536, .save_every = 250 }

/* Train `config` (ignored when resuming: the checkpoint's is used) and leave in `out`: config.json, model.safetensors, tokenizer.json,
 * train_state.safetensors (optimizer moments, random and data position) and log.jsonl. */
LINNET_API linnet_status linnet_train(linnet_context *c, const linnet_config *config, linnet_dtype dtype, const linnet_train_options *o);

/* ---- evaluation ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *const *texts; /* files or folders */
    int n_texts;
    int64_t length;           /* window; every window starts with a fresh state */
    int64_t max_tokens;       /* 0: all */
    const char *csv;          /* write position, loss, mean-so-far to this file; NULL: none */
    const char *plot;         /* the same as an SVG picture; NULL: none */
    int (*progress)(void *user, int64_t done, int64_t total); /* non-zero: stop */
    void *user;
    int64_t stride;           /* from the start of a window to that of the next, at most length; 0: length, windows do not overlap */
} linnet_eval_options;
#define LINNET_EVAL_OPTIONS_INIT { .size = sizeof(linnet_eval_options), .length = 1024 }

typedef struct {
    int64_t tokens, bytes; /* predictions, more than the text has where windows overlap; bytes of the text */
    double nats_per_token, perplexity, bits_per_byte, tokens_per_second;
} linnet_eval_result;
LINNET_API linnet_status linnet_eval(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_eval_options *o,
                                     linnet_eval_result *out);

/* ---- generation ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *prompt;
    size_t prompt_bytes;
    int64_t max_tokens;
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off */
    double top_p;       /* 1: off */
    uint64_t seed;
    int stop_at_separator;
    /* Each new token as it is drawn; non-zero: stop. */
    int (*token)(void *user, int64_t id, const char *bytes, size_t n);
    void *user;
} linnet_generate_options;
#define LINNET_GENERATE_OPTIONS_INIT                                                                                                \
    { .size = sizeof(linnet_generate_options), .max_tokens = 256, .temperature = 1.0, .top_p = 1.0, .seed = 1, .stop_at_separator = 1 }

typedef struct {
    int64_t prompt_tokens, tokens;
    double prefill_seconds, decode_seconds;
    int64_t state_bytes;
} linnet_generate_result;
LINNET_API linnet_status linnet_generate(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *o,
                                         linnet_generate_result *out);

/* ---- operators on files, benchmarks, tasks -------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *op, *in, *out;
    int backward;
    const char *form;           /* auto recurrent chunk parallel */
    int chunk;
    linnet_dtype dtype;         /* LINNET_F64: the reference */
    const char *impl;           /* force one by name */
    const char *const *set;     /* "key=value", n_set of them */
    int n_set;
} linnet_op_options;
#define LINNET_OP_OPTIONS_INIT { .size = sizeof(linnet_op_options), .form = "auto", .dtype = LINNET_F32 }

/* Run one operator on a safetensors file (docs/op-files.md). `line` receives "gated_delta_rule B=2 T=70 ... chunk-avx512 0.12 ms". */
LINNET_API linnet_status linnet_op_file(linnet_context *c, const linnet_op_options *o, char *line, size_t line_size);
/* The i-th operator's name; NULL past the end. */
LINNET_API const char *linnet_op_at(int i);

/* Ceilings of this machine, measured by linnet_bench_machine. */
typedef struct {
    double f32_flops, bf16_flops; /* square matrix products (oneDNN, cuBLASLt) of random numbers, per second */
    double copy_bytes;            /* read plus write, per second */
    int64_t f32_size, bf16_size;  /* rows and columns of those matrices */
} linnet_machine_rates;
LINNET_API linnet_status linnet_bench_machine(linnet_context *c, linnet_machine_rates *out);

typedef struct {
    size_t size;
    const char *op;
    linnet_dtype dtype;
    int64_t B, T;
    int32_t Hq, Hv, K, V;
    int64_t window;
    const char *form, *impl;
    int chunk, repeats;
    double cg_tolerance; /* mesa: as linnet_recurrence has them; NaN, -1: its defaults */
    int32_t cg_steps;
    int cg_unrolled;     /* its gradient is that of the steps */
} linnet_bench_op_options;
#define LINNET_BENCH_OP_OPTIONS_INIT                                                                                               \
    { .size = sizeof(linnet_bench_op_options), .B = 1, .T = 2048, .Hq = 16, .Hv = 16, .K = 128, .V = 128, .form = "auto", .repeats = 7, \
      .cg_tolerance = __builtin_nan(""), .cg_steps = -1 }
typedef struct {
    char impl[64];
    double forward_error, backward_error; /* relative rms against the float64 reference on a short prefix */
    double forward_seconds, both_seconds; /* medians */
    double forward_flops, both_flops;     /* useful FLOPs of one run */
    size_t workspace;
    char backward_impl[64];
    double shape_error;                   /* on a GPU, of one head at the very shape, against the CPU's float32 kernels; NaN: not checked */
    double forward_bytes, both_bytes;     /* inputs and results, once */
    size_t peak_memory;                   /* of a GPU, while the operator was timed; 0 on the CPU */
    double steps, backward_steps;         /* mesa: mean conjugate-gradient steps of a token, counted in the FLOPs */
} linnet_bench_op_result;
/* Check the implementation against the reference, then time it: single calls on the CPU; on a GPU batches of calls, over inputs that are in no
 * cache. */
LINNET_API linnet_status linnet_bench_op(linnet_context *c, const linnet_bench_op_options *o, linnet_bench_op_result *out);

typedef struct {
    size_t size;
    int64_t batch, length, repeats;
    int recompute;          /* LINNET_RECOMPUTE_... */
} linnet_bench_train_options;
#define LINNET_BENCH_TRAIN_OPTIONS_INIT { .size = sizeof(linnet_bench_train_options), .batch = 4, .length = 1024, .repeats = 5 }
typedef struct {
    double step_seconds, tokens_per_second, flops; /* median; useful FLOPs of a step: 6 per parameter and token plus the recurrences */
    double decode_seconds, decode_bytes;           /* one token at batch 1; bytes of weights and states it must read */
    int64_t parameters, plan_bytes;                /* activations, gradients, workspaces */
    char *profile;                                 /* operator by operator, linnet_free */
    double update_seconds;                         /* of the step, the optimizer's */
    int64_t device_bytes;                          /* the most memory in use on the GPU, the driver's own included; 0 on the CPU */
} linnet_bench_train_result;
LINNET_API linnet_status linnet_bench_train(linnet_context *c, linnet_model *m, const linnet_bench_train_options *o, linnet_bench_train_result *out);

typedef struct {
    size_t size;
    int64_t batch, steps;
} linnet_bench_decode_options;
#define LINNET_BENCH_DECODE_OPTIONS_INIT { .size = sizeof(linnet_bench_decode_options), .batch = 1, .steps = 128 }
typedef struct {
    double step_seconds, tokens_per_second; /* median; greedy, the ids of each step come from the one before */
    double bytes;                           /* of weights and states that a step must move */
    double check_error;                     /* of two such layers: logits of steps against those of one pass, relative rms */
    int64_t parameters, state_bytes;        /* the latter of one sequence */
    size_t peak_memory;                     /* of a GPU; 0 on the CPU */
} linnet_bench_decode_result;
/* One token at a time for `batch` sequences with states of their own. */
LINNET_API linnet_status linnet_bench_decode(linnet_context *c, linnet_model *m, const linnet_bench_decode_options *o,
                                             linnet_bench_decode_result *out);

/* Multi-query associative recall (Arora et al., Zoology, 2023): train a small model to answer `pairs` queries and report its accuracy. */
typedef struct {
    size_t size;
    int64_t vocabulary, length, pairs;
    int64_t steps, batch;
    double learning_rate, weight_decay;
    uint64_t seed;
    double max_seconds;
    int64_t test_examples;
    int (*progress)(void *user, int64_t step, int64_t steps, double loss, double accuracy);
    void *user;
    int64_t rounds; /* 1: the benchmark; more: every round gives the same keys new values, and the last ones are asked for */
} linnet_mqar_options;
#define LINNET_MQAR_OPTIONS_INIT                                                                                                    \
    { .size = sizeof(linnet_mqar_options), .vocabulary = 256, .length = 64, .pairs = 8, .steps = 1000, .batch = 64,                 \
      .learning_rate = 3e-3, .weight_decay = 0.1, .seed = 1, .test_examples = 1000, .rounds = 1 }
typedef struct {
    double accuracy, loss, seconds;
    int64_t parameters, steps;
} linnet_mqar_result;
LINNET_API linnet_status linnet_task_mqar(linnet_context *c, const linnet_config *config, linnet_dtype dtype, const linnet_mqar_options *o,
                                          linnet_mqar_result *out);

/* What the mesa layers of a model do on a text: gates, regulariser, condition number of H_t + Lambda and conjugate-gradient steps over position, and
 * the loss over position when the solves get a fixed number of steps or stop at a tolerance. Leaves CSV files and a page of plots, mesa.svg, in a
 * folder (docs/mesa-analysis.md). */
typedef struct {
    size_t size;
    const char *const *texts;  /* files or folders */
    int n_texts;
    int64_t length;            /* window; every window starts with a fresh state, a last short one is left out */
    int64_t max_tokens;        /* 0: all */
    const char *out;           /* folder, made when it is not there */
    const int64_t *budgets;    /* fixed numbers of steps, at most 6; NULL: 0 5 10 15 30 */
    int n_budgets;
    const double *tolerances;  /* at most 6; NULL: 1e-1 1e-2 1e-3 1e-4 */
    int n_tolerances;
    const char *solver;        /* level, jacobi or plain; NULL: the model's, where that one can end early, else level */
    int (*progress)(void *user, int64_t done, int64_t total); /* non-zero: stop */
    void *user;
} linnet_mesa_analysis_options;
#define LINNET_MESA_ANALYSIS_OPTIONS_INIT { .size = sizeof(linnet_mesa_analysis_options), .length = 1024, .max_tokens = 16384 }

typedef struct {
    int64_t budget;            /* steps; -1: the solves stop at the tolerance */
    double tolerance;          /* NaN for a budget */
    double nats_per_token;
    double steps, paper_steps; /* mean over tokens, heads and layers: by the solver at hand, by the paper's (NaN for a budget) */
} linnet_mesa_analysis_setting;
typedef struct {
    int64_t tokens, length;    /* predictions, and of a window */
    int layers, heads;         /* mesa layers, heads of each */
    double nats_per_token;     /* of the model as its file says */
    double condition;          /* the largest of the means over windows */
    int n_settings;            /* budgets, then tolerances */
    linnet_mesa_analysis_setting settings[12];
} linnet_mesa_analysis_result;
LINNET_API linnet_status linnet_task_mesa_analysis(linnet_context *c, linnet_model *m, const linnet_tokenizer *t,
                                                   const linnet_mesa_analysis_options *o, linnet_mesa_analysis_result *out);

#ifdef __cplusplus
}
#endif
#endif
