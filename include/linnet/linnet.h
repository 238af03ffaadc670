/* linnet: linear-time sequence models in C. The whole public interface but the raw operators (recurrence.h).
 *
 * Conventions, said once for the whole header.
 * - A function that can fail returns linnet_status: 0 is success, negative is an error. The error's text (message, detail,
 *   hint) stays on the context until the next failing call on it. On error, outputs are untouched unless said otherwise.
 * - An option structure begins with its size; fill it with its LINNET_..._INIT macro, then change what you need. A structure for a result
 *   begins with its size too: set it (r.size = sizeof r) before the call, which fills no more than that and then says how much. Fields are
 *   only ever added at the end, so that a program and a library of different ages understand each other.
 * - NULL is refused with LINNET_EINVAL where nothing says what it means; a function that returns no status does nothing or returns nothing.
 * - Strings are UTF-8. Strings handed in are copied; strings handed out belong to the object they came from.
 * - Destroying NULL does nothing.
 * - Threads: one context serves one thread at a time; several contexts may live in several threads. A model is used with the context that it
 *   was made with, and no other; linnet_model_share makes one of its weights for another context, so that threads run a model side by side. A
 *   configuration or a tokenizer belongs to no context: a tokenizer never changes once it is open and may be read by many threads; a
 *   configuration may be handed from thread to thread, but linnet_config_json and what sets a key change it. The error's text is the context's.
 *   Functions without a context may be called from everywhere at once.
 * - The library's own threads are OpenMP's: each thread that calls has one team, made by the first call that needs it, of as many threads as the
 *   context at hand says, and shared with the caller's own OpenMP code in that thread. A context of one thread makes no thread and waits for none:
 *   a program with a thread pool of its own has a context of one thread in each of its threads, with sessions on models that they share; or it
 *   lends the pool to a context (linnet_context_options.parallel), and the library makes no thread. Called from inside a parallel region the library
 *   does the work in the thread that calls. All of these give the same bits.
 * - The threads of GCC's OpenMP wait in a loop unless GOMP_SPINCOUNT=10000 (or OMP_WAIT_POLICY=passive) is in the environment when the program
 *   starts.
 * Since 0.1 unless a declaration says otherwise. */
#ifndef LINNET_LINNET_H
#define LINNET_LINNET_H

#include <math.h>
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

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

/* Where the library's host memory comes from. Both functions are called from any thread that calls the library and from those it makes, several at
 * once. What libraries below take for themselves is theirs: JSON while a file is read, scratch of matrix products, stacks of threads. */
typedef struct {
    size_t size;
    void *user;
    void *(*allocate)(void *user, size_t bytes, size_t alignment); /* bytes > 0, a multiple of `alignment`, a power of two; NULL: none left */
    void (*release)(void *user, void *block);                      /* never NULL */
} linnet_allocator;
#define LINNET_ALLOCATOR_INIT { sizeof(linnet_allocator), NULL, NULL, NULL }

/* Take memory there, for the whole process and until it ends. Before any other call: LINNET_EINVAL once the library has allocated something, and
 * where a function is missing. linnet_free gives back to it too. */
LINNET_API linnet_status linnet_allocator_set(const linnet_allocator *a);

/* ---- context --------------------------------------------------------------------------------------------------------------- */

typedef struct linnet_context linnet_context;

typedef struct {
    size_t size;
    int32_t threads;     /* 0: OMP_NUM_THREADS, or every core this process may use */
    const char *device;  /* "cpu" (default when NULL), "cuda", or "cuda:1" for the second GPU */
    void (*log)(void *user, const char *line); /* dispatch and other diagnostics; NULL: none */
    void *log_user;
    void *stream;        /* a cudaStream_t that all work of this context is put on; NULL: a stream of its own. Kept open by the caller. */
    /* Threads of the caller's in place of the library's own: call body(arg, i) once for each i = 0 .. n-1, n at most `threads`, in any threads and
     * in any order, side by side or one after another, and return when all have returned. Called by the thread that calls the library, never by a
     * body; what is left out that thread does afterwards. NULL: the library's own. LINNET_EUNSUPPORTED in a build by another compiler than GCC. */
    void (*parallel)(void *user, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
    void *parallel_user;
} linnet_context_options;
#define LINNET_CONTEXT_OPTIONS_INIT { sizeof(linnet_context_options), 0, NULL, NULL, NULL, NULL, NULL, NULL }

/* Create a context. `options` may be NULL. On failure `*out` still holds a context that carries the error's text and is good for nothing else
 * (destroy it), or NULL when not even that could be allocated. */
LINNET_API linnet_status linnet_context_create(const linnet_context_options *options, linnet_context **out);
LINNET_API void linnet_context_destroy(linnet_context *c);

/* The last error of a context: what is wrong, the facts around it, what to do. "" when there is nothing to say. */
LINNET_API const char *linnet_error_message(const linnet_context *c);
LINNET_API const char *linnet_error_detail(const linnet_context *c);
LINNET_API const char *linnet_error_hint(const linnet_context *c);
/* The option with which that message begins, a field of a structure or a key; "" when it is about none: a program that calls its options something
 * else puts its own name there. */
LINNET_API const char *linnet_error_option(const linnet_context *c);

/* 0 without a context. */
LINNET_API int linnet_threads(const linnet_context *c);

/* What runs here: "cpu: avx512 amx, 2 threads"; belongs to the context. */
LINNET_API const char *linnet_machine(const linnet_context *c);

/* ---- numbers --------------------------------------------------------------------------------------------------------------- */

/* In structures an enumeration is an int32_t, whose width does not depend on the compiler. */
typedef enum {
    LINNET_F32 = 0, LINNET_BF16 = 1, LINNET_F64 = 2, LINNET_F16 = 3, LINNET_I64 = 4, LINNET_I32 = 5, LINNET_U8 = 6, LINNET_I8 = 7
} linnet_dtype;

/* "f32", "bf16" ...; static storage. linnet_dtype_parse also takes "float32", "bfloat16". */
LINNET_API const char *linnet_dtype_name(linnet_dtype t);
LINNET_API linnet_status linnet_dtype_parse(linnet_context *c, const char *text, linnet_dtype *out);

/* Between what an option may lie, both ends included: linnet_option_range("train", "batch", &least, &most) for linnet_train_options.batch. Where a
 * structure gives 0 a meaning of its own, it may be 0 besides. LINNET_EINVAL when there is no such number. */
LINNET_API linnet_status linnet_option_range(const char *options, const char *field, double *least, double *most);

/* ---- model configuration ---------------------------------------------------------------------------------------------------
 * The keys are those of config.json in flash-linear-attention's form (model_type, hidden_size, num_hidden_layers, num_heads, attn ...). */

typedef struct linnet_config linnet_config;

/* Defaults of a model type ("gated_deltanet", "transformer" ...). */
LINNET_API linnet_status linnet_config_create(linnet_context *c, const char *model_type, linnet_config **out);
/* Read config.json, or the config.json of a folder. Unknown keys that change the function computed are refused; those that do not are kept. */
LINNET_API linnet_status linnet_config_load(linnet_context *c, const char *path, linnet_config **out);
/* Set one key; `value` is JSON or a bare word: "512", "true", "null", "{\"layers\":[1,3],\"window_size\":256}". A key that several mixers of a hybrid
 * have is set for all of them; "retnet.num_heads" for the one of that label. */
LINNET_API linnet_status linnet_config_set(linnet_context *c, linnet_config *k, const char *key, const char *value);
/* A key's value as JSON text, of the first part that has it, into `text`, cut to `size`. */
LINNET_API linnet_status linnet_config_get(linnet_context *c, const linnet_config *k, const char *key, char *text, size_t size);
/* The class of another project that computes this configuration, under whose model type it is saved: "GatedDeltaNetForCausalLM"; NULL: it is saved as
 * linnet's own type. Static storage. */
LINNET_API const char *linnet_config_class(const linnet_config *k);
/* Apply a named size ("tiny", "small" ...): width, layers, heads. */
LINNET_API linnet_status linnet_config_preset(linnet_context *c, linnet_config *k, const char *preset);
/* Kinds of layer by turns, "mesa_net,attention:256" or "3*gated_deltanet,attention": each a mixer (of equal_backbone a rule, too), with N* in front
 * for N such layers, and behind attention a window. They are laid over num_hidden_layers, so set that first. */
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
/* What one layer of a mixer takes in a model of `width` columns (a multiple of 128) and heads of 128, with its other keys at their defaults. */
typedef struct {
    size_t size;
    int64_t parameters;
    int64_t state_bytes;  /* of a sequence of `tokens` tokens, float32 */
    int grows;            /* the state does with every token */
    double flops_a_token; /* of products and recurrences, in a sequence of `tokens` tokens, with all the steps that solves may take */
    double flops_in_solves; /* of these; a solve that ends sooner takes fewer */
} linnet_mixer_cost;
LINNET_API linnet_status linnet_mixer_measure(linnet_context *c, const char *mixer, int64_t width, int64_t tokens, linnet_mixer_cost *out);
/* A mixer, block, norm or MLP with its keys: kind, range, default and meaning of each, as text for people or as JSON on one
 * line. Free with linnet_free. NULL: there is none of that name, or no memory. */
LINNET_API char *linnet_kind_describe(const char *name, int json);
/* The i-th block, norm or MLP by the family's name ("block", "norm", "mlp"; "mixer" too); NULL past the end. */
LINNET_API const linnet_mixer_info *linnet_kind_at(const char *family, int i);

/* ---- model ------------------------------------------------------------------------------------------------------------------ */

typedef struct linnet_model linnet_model;

/* A model with freshly drawn weights. dtype: LINNET_F32, or LINNET_BF16 (activations and product operands in bf16, everything else float32). */
LINNET_API linnet_status linnet_model_create(linnet_context *c, const linnet_config *k, linnet_dtype dtype, uint64_t seed, linnet_model **out);
/* weights: how the operands of matrix products are kept, LINNET_F32 (as linnet_model_create), or LINNET_BF16 under that dtype: without a float32
 * master; training then rounds them stochastically. */
LINNET_API linnet_status linnet_model_create_kept(linnet_context *c, const linnet_config *k, linnet_dtype dtype, linnet_dtype weights, uint64_t seed,
                                                  linnet_model **out);
/* A model without weights, which takes no memory for them: for linnet_model_get_info, linnet_model_describe and linnet_model_training_memory. */
LINNET_API linnet_status linnet_model_outline(linnet_context *c, const linnet_config *k, linnet_dtype dtype, linnet_model **out);
/* The same for a checkpoint folder: config.json, and the names, types and shapes of its weights if they are there; they are not read. */
LINNET_API linnet_status linnet_model_look(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out);
/* Load a checkpoint folder: config.json and model.safetensors. */
LINNET_API linnet_status linnet_model_load(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out);
/* The same with the operands of matrix products kept in less memory, which is never more than they take and one tensor: LINNET_BF16 under that dtype,
 * or LINNET_I8 on a CPU, integers of 8 bits with a scale for each row, the largest of which is 127; sums are float32. Such a model is not trained. */
LINNET_API linnet_status linnet_model_load_kept(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_dtype weights, linnet_model **out);
/* Write config.json and model.safetensors (float32 master weights), each replaced atomically. */
LINNET_API linnet_status linnet_model_save(linnet_context *c, const linnet_model *m, const char *folder);
LINNET_API void linnet_model_destroy(linnet_model *m);
/* The model `m`, which belongs to a context of one thread, for the context `c` of another: with the same weights, which are not copied. Both contexts
 * have the same device. What `m` is given away by this way is read by all and changed by none: `m` outlives it and is not trained meanwhile, and
 * neither trainers nor linnet_parameter_write take the shared one. No other thread uses m's context during the call. */
LINNET_API linnet_status linnet_model_share(linnet_context *c, const linnet_model *m, linnet_model **out);

enum { LINNET_CONVERT_KEEP = -1 };
typedef struct {
    size_t size;
    const char *to;      /* "linnet"; "fla" or "transformers": the first class of theirs that computes the model; or a model type */
    int32_t dtype;       /* linnet_dtype of the tensors, F32, BF16 or F16; LINNET_CONVERT_KEEP: each its own */
    int64_t shard_bytes; /* most bytes of tensors in a file, but that each has one at least; 0: no limit */
} linnet_convert_options;
#define LINNET_CONVERT_OPTIONS_INIT { sizeof(linnet_convert_options), NULL, LINNET_CONVERT_KEEP, 5000000000 }
typedef struct {
    size_t size;
    char model_type[64], class_name[64]; /* class_name "": linnet's own type, which no other library loads */
    int64_t parameters, bytes;           /* of the tensors */
    int64_t files, weight_files;
} linnet_convert_result;
/* Write the model of the folder `in` into the folder `out`, which is not there or is empty, and appears whole or not at all. Tokenizer files and
 * generation_config.json go along. A model that no class of what was asked for computes is refused. result may be NULL. */
LINNET_API linnet_status linnet_convert(linnet_context *c, const char *in, const char *out, const linnet_convert_options *o,
                                        linnet_convert_result *result);

typedef struct {
    size_t size;
    int64_t parameters, vocabulary, width, layers;
    int64_t state_bytes_per_sequence; /* of generation; key-value caches counted at `state_capacity` tokens */
    int64_t state_capacity;           /* 0: the model has none that grow as far as its max_position_embeddings */
    const char *model_type;
} linnet_model_info;
LINNET_API linnet_status linnet_model_get_info(const linnet_model *m, linnet_model_info *out);

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

/* "bytes" (256 ids, id = byte, no separator); a tokenizer.json; RWKV's list of tokens (rwkv_vocab_v20230424.txt); a folder that holds one of these,
 * or encoder.json and vocab.bpe. */
LINNET_API linnet_status linnet_tokenizer_open(linnet_context *c, const char *path, linnet_tokenizer **out);
/* Train byte-level BPE with `vocabulary` ids (at least 257: the bytes and <|endoftext|>) on a text; fewer where no more pairs come twice in it. */
LINNET_API linnet_status linnet_tokenizer_train(linnet_context *c, const char *text, size_t bytes, int64_t vocabulary, linnet_tokenizer **out);
/* Write tokenizer.json (or RWKV's list) into a folder. */
LINNET_API linnet_status linnet_tokenizer_save(linnet_context *c, const linnet_tokenizer *t, const char *folder);
LINNET_API void linnet_tokenizer_destroy(linnet_tokenizer *t);
LINNET_API int64_t linnet_tokenizer_vocabulary(const linnet_tokenizer *t);
/* Id of the document separator (<|endoftext|> or the like), -1: none. */
LINNET_API int64_t linnet_tokenizer_separator(const linnet_tokenizer *t);
/* Ids of a text; *ids is freed with linnet_free. Any bytes are accepted. Added and special tokens that the text spells are found in it, as Hugging
 * Face's tokenizers do; nothing is put around it. */
LINNET_API linnet_status linnet_tokenizer_encode(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t **ids,
                                                 int64_t *count);
/* The same with a sum of these: the special tokens that the file's template puts around a text; what spells a special token in the text is text. */
enum { LINNET_ENCODE_TEMPLATE = 1, LINNET_ENCODE_PLAIN = 2 };
LINNET_API linnet_status linnet_tokenizer_encode_as(linnet_context *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t flags,
                                                    int32_t **ids, int64_t *count);
/* Ids of files and folders as linnet_train reads them: every regular file of a folder, sorted by path; compressed ones unpacked; of JSON lines the
 * field named (NULL: they are text); a separator behind each document where the tokenizer has one. *ids is freed with linnet_free. */
LINNET_API linnet_status linnet_tokenizer_encode_files(linnet_context *c, const linnet_tokenizer *t, const char *const *paths, int32_t n_paths,
                                                       const char *field, int32_t **ids, int64_t *count);
/* The text of ids, closed with a zero byte that is not counted in *bytes; *text is freed with linnet_free. Special tokens are left out, or with
 * LINNET_DECODE_SPECIAL written as they are spelled. */
enum { LINNET_DECODE_SPECIAL = 1 };
LINNET_API linnet_status linnet_tokenizer_decode(linnet_context *c, const linnet_tokenizer *t, const int32_t *ids, int64_t count, int32_t flags,
                                                 char **text, size_t *bytes);
/* The id of a token by its spelling ("<s>"), -1: there is none. */
LINNET_API int64_t linnet_tokenizer_id(const linnet_tokenizer *t, const char *spelling);
/* Bytes of one id in the middle of a text (not zero-terminated; they may be a part of a UTF-8 character). NULL when the id is outside the
 * vocabulary. */
LINNET_API const char *linnet_tokenizer_piece(const linnet_tokenizer *t, int64_t id, size_t *bytes);

/* Texts are files, or folders of them; compressed by gzip, xz or Zstandard, they are unpacked. What is no text is refused where it is used.
 * Something to tell a user before files or folders are used as text (one holds JSON lines, say), or "". */
LINNET_API linnet_status linnet_text_note(linnet_context *c, const char *const *texts, int n_texts, char *note, size_t size);

/* ---- training --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;            /* as the library filled it */
    int64_t step, steps;
    double loss;            /* nats per token of this step's batch */
    double learning_rate, gradient_norm;
    double tokens_per_second;
    double seconds, seconds_left;
    int64_t tokens;         /* seen since the start of the run, resumes included */
    int32_t evaluated;      /* 1: the fields below are fresh */
    double eval_loss;       /* nats per token on the held-out text */
    double eval_bits_per_byte;
    int32_t saved;          /* 1: a checkpoint was just written */
    const char *note;       /* something to tell the user, or NULL */
} linnet_train_progress;

/* What the backward pass makes again instead of keeping it from the forward pass. */
enum {
    LINNET_RECOMPUTE_NONE = 0,
    LINNET_RECOMPUTE_BLOCKS = 1, /* everything inside a layer: least memory, about a third more time */
    LINNET_RECOMPUTE_CHEAP = 2,  /* norms, convolutions, activations; results of products and recurrences are kept */
};

enum { LINNET_WARMUP_AUTO = -1 };

typedef struct {
    size_t size;
    const char *const *texts;     /* files or folders (every regular file below, sorted by path), n_texts of them */
    int32_t n_texts;
    const char *held_out;         /* file or folder; NULL: the last `held_out_share` of each document set */
    double held_out_share;        /* 0.1 */
    const char *tokenizer;        /* as linnet_tokenizer_open; NULL: "bytes" */
    int64_t train_tokenizer;      /* > 0: train a BPE of up to so many ids on the training text instead */
    const char *out;              /* checkpoint folder */
    /* Continue from `out`, bit for bit, with its settings; the texts must be the same, held_out too. Where the run is at its end and `given` names
     * more `steps` than it had, it goes on to those, at the learning rate that a run of so many has there; a limit of its time is dropped. */
    int32_t resume;
    int64_t steps;                /* optimizer steps; 0: as many as fit into max_seconds, measured on the first ones and then fixed */
    double max_seconds;           /* stop (and save) after this wall time; 0: no limit */
    int64_t batch, length;        /* sequences of `length` tokens in one micro-batch */
    int64_t accumulate;           /* micro-batches an optimizer step */
    double learning_rate, min_learning_rate_share; /* peak; cosine to this share */
    int64_t warmup;               /* steps; LINNET_WARMUP_AUTO: 100, at most a fifth of all */
    double beta1, beta2, epsilon, weight_decay, clip;
    uint64_t seed;
    int64_t eval_every, eval_tokens; /* steps; tokens of held-out text (0: all) */
    int64_t save_every;           /* steps; 0: at the end only */
    int32_t isolate_documents;    /* 1: states are reset ahead of each separator; 0: documents are joined with the separator */
    int32_t recompute;            /* in the backward pass, LINNET_RECOMPUTE_...; the bits are the same */
    /* Called after every step; return non-zero to stop: the state is saved and the call returns LINNET_EINTERRUPTED. */
    int (*progress)(void *user, const linnet_train_progress *p);
    void *user;
    int32_t weights;              /* linnet_dtype: F32; BF16 (under that dtype): matrices without a float32 master, rounded stochastically */
    /* Resuming: names of what was asked for ("batch", "dtype", ...), n_given of them, which must be what the run was started with. The rest comes
     * from the checkpoint, whatever stands here. Names that are no setting of a run are passed over. */
    const char *const *given;
    int32_t n_given;
    const char *field;            /* texts, held_out too, are JSON lines, of which this field is read; "meta.text" is one of an object inside. NULL:
                                   * they are text. As the texts, it is named again to resume */
    /* A checkpoint folder to begin with: its model, weights and (unless `tokenizer` says another) tokenizer, and a fresh optimizer; the configuration
     * handed over is NULL then. Resuming, it says nothing. NULL: weights are drawn. */
    const char *init;
    double warmup_from;           /* learning rate at which the warm-up begins; 0: its steps rise evenly from none */
    int32_t no_separator_loss;    /* 1: the separator of documents is read, and nothing is asked to predict it */
    /* At the end of the run weights are written again in files of at most so many bytes of tensors (each has one at least), with an index, and
     * model.safetensors goes, where that is more than one file; until then, and where a run is stopped, it is all there is. 0: one file. */
    int64_t shard_bytes;
    int32_t moments;              /* linnet_dtype of AdamW's moments: F32; BF16: half of their memory, rounded stochastically */
} linnet_train_options;
#define LINNET_TRAIN_OPTIONS_INIT                                                                                                   \
    { sizeof(linnet_train_options), NULL, 0, NULL, 0.1,                        /* texts n_texts held_out held_out_share */          \
      NULL, 0, NULL, 0, 1000, 0,                                  /* tokenizer train_tokenizer out resume steps max_seconds */      \
      8, 256, 1, 2e-3, 0.1, LINNET_WARMUP_AUTO,                           /* batch length accumulate rate share of it warmup */     \
      0.9, 0.95, 1e-8, 0.1, 1.0, 1,                                         /* beta1 beta2 epsilon weight_decay clip seed */        \
      250, 65536, 250, 0, LINNET_RECOMPUTE_NONE, NULL, NULL, LINNET_F32, NULL, 0, /* eval_every eval_tokens save_every isolate */ \
      NULL, NULL, 0, 0, 0, LINNET_F32 }                          /* field init warmup_from no_separator_loss shard_bytes moments */

/* Train `config` and leave in `out`: config.json, model.safetensors, tokenizer.json, train_state.safetensors (optimizer moments, random and data
 * position) and log.jsonl. Resuming, config may be NULL, and must be the checkpoint's otherwise. One call at a time may train in a folder; a loss or
 * a gradient that is not finite ends a run with LINNET_EINVAL, its last checkpoint as it was. */
LINNET_API linnet_status linnet_train(linnet_context *c, const linnet_config *config, linnet_dtype dtype, const linnet_train_options *o);

/* Bytes that training takes, by its plan and without taking them; the texts come on top. */
typedef struct {
    size_t size;
    int64_t weights;     /* masters and working copies */
    int64_t gradients, moments;
    int64_t activations; /* of one micro-batch, with their gradients and workspaces */
    int64_t total;
} linnet_training_memory;
/* batch, length, recompute, weights and moments as in linnet_train_options. */
LINNET_API linnet_status linnet_model_training_memory(linnet_context *c, const linnet_model *m, int64_t batch, int64_t length, int recompute,
                                                      linnet_dtype weights, linnet_dtype moments, linnet_training_memory *out);

/* ---- evaluation ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *const *texts; /* files or folders */
    int32_t n_texts;
    int64_t length;           /* window; every window starts with a fresh state */
    int64_t max_tokens;       /* 0: all */
    const char *csv;          /* write position, loss, mean-so-far to this file; NULL: none */
    const char *plot;         /* the same as an SVG picture; NULL: none */
    int (*progress)(void *user, int64_t done, int64_t total); /* non-zero: stop */
    void *user;
    int64_t stride;           /* from the start of a window to that of the next, at most length; 0: length, windows do not overlap */
    int32_t check_finite;         /* 1: end at the first value that is no finite number, saying which layer and operator it comes from; slow */
    const char *field;        /* as in linnet_train_options */
} linnet_eval_options;
#define LINNET_EVAL_OPTIONS_INIT { sizeof(linnet_eval_options), NULL, 0, 1024, 0, NULL, NULL, NULL, NULL, 0, 0, NULL }

typedef struct {
    size_t size;
    int64_t tokens, bytes; /* predictions, more than the text has where windows overlap; bytes of the text */
    double nats_per_token, perplexity, bits_per_byte, tokens_per_second;
} linnet_eval_result;
/* Opens csv and plot before it reads anything. Stopped by `progress`, it writes them and fills *out from what was evaluated so far (tokens 0:
 * nothing), and returns LINNET_EINTERRUPTED. Where writing fails, *out is filled all the same. A loss that is no finite number is an error. */
LINNET_API linnet_status linnet_eval(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_eval_options *o,
                                     linnet_eval_result *out);

/* ---- generation ------------------------------------------------------------------------------------------------------------- */

/* A token and what the model gave it: natural logarithms of probabilities as the model has them, before temperature, penalties and cuts. */
typedef struct {
    size_t size;
    int64_t id;
    const char *bytes; /* [n_bytes], until the callback returns, as everything here */
    size_t n_bytes;
    double logprob;
    int32_t n_top;
    const int32_t *top;        /* [n_top], most probable first */
    const double *top_logprob; /* [n_top] */
} linnet_scored_token;

typedef struct {
    size_t size;
    const char *prompt;
    size_t prompt_bytes;
    int64_t max_tokens;
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off */
    double top_p;       /* 1: off */
    uint64_t seed;
    int32_t stop_at_separator;
    /* Each new token as it is drawn; non-zero: stop. With `stop`, the bytes are those that can belong to none of its strings: the others come with a
     * later token, or at the end with id -1. */
    int (*token)(void *user, int64_t id, const char *bytes, size_t n);
    void *user;
    int32_t check_finite;   /* 1: end at the first value that is no finite number, saying which layer and operator it comes from; slow */
    linnet_model *draft;    /* a smaller model of the same tokenizer that guesses ahead; the text is the one without it. On the CPU. NULL: none */
    int64_t draft_tokens;   /* guesses at a time */
    double min_p;           /* tokens below this share of the most likely one's probability are not drawn; 0: off */
    double repetition_penalty; /* logits of tokens in the prompt and the text are divided by it where positive, multiplied where negative; 1: off
                                * (Keskar et al. 2019, arXiv 1909.05858) */
    const char *const *stop; /* n_stop strings of at least a byte: the text ends before the one that is whole first */
    int32_t n_stop;
    /* Called before `token` with each token; non-zero: stop. Not with a draft. */
    int (*scored)(void *user, const linnet_scored_token *t);
    int32_t alternatives;   /* n_top of it */
} linnet_generate_options;
#define LINNET_GENERATE_OPTIONS_INIT                                                                                                \
    { sizeof(linnet_generate_options), NULL, 0, 256, 1.0, 0, 1.0, 1, 1, NULL, NULL, 0, NULL, 4, 0.0, 1.0, NULL, 0, NULL, 0 }

enum { LINNET_ENDED_LENGTH = 0, LINNET_ENDED_SEPARATOR = 1, LINNET_ENDED_STOP = 2, LINNET_ENDED_CALLER = 3 };

typedef struct {
    size_t size;
    int64_t prompt_tokens, tokens;
    double prefill_seconds, decode_seconds;
    int64_t state_bytes;
    int64_t guessed, guessed_right; /* tokens, by the draft */
    int32_t ended;                  /* LINNET_ENDED_... */
} linnet_generate_result;
LINNET_API linnet_status linnet_generate(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *o,
                                         linnet_generate_result *out);

/* ---- operators on files, benchmarks ------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *op, *in, *out;
    int32_t backward;
    const char *form;           /* auto recurrent chunk parallel */
    int32_t chunk;
    int32_t dtype;              /* linnet_dtype; LINNET_F64: the reference */
    const char *impl;           /* force one by name */
    const char *const *set;     /* "key=value", n_set of them */
    int32_t n_set;
    int32_t weights;            /* the matrix too with which each token weighs the values before it */
} linnet_op_options;
#define LINNET_OP_OPTIONS_INIT { sizeof(linnet_op_options), NULL, NULL, NULL, 0, "auto", 0, LINNET_F32, NULL, NULL, 0, 0 }

/* Run one operator on a safetensors file (docs/op-files.md). `line` receives "gated_delta_rule B=2 T=70 ... chunk-avx512 0.12 ms". */
LINNET_API linnet_status linnet_op_file(linnet_context *c, const linnet_op_options *o, char *line, size_t line_size);

/* Ceilings of this machine, measured by linnet_bench_machine. */
typedef struct {
    size_t size;
    double f32_flops, bf16_flops; /* square matrix products (oneDNN, cuBLASLt) of random numbers, per second */
    double copy_bytes;            /* read plus write, per second */
    int64_t f32_size, bf16_size;  /* rows and columns of those matrices */
    double exponentials;          /* e^x of float32, by the vector code of the operators, per second; 0 on a GPU */
} linnet_machine_rates;
LINNET_API linnet_status linnet_bench_machine(linnet_context *c, linnet_machine_rates *out);

typedef struct {
    size_t size;
    const char *op;
    int32_t dtype;       /* linnet_dtype */
    int64_t B, T;
    int32_t heads;              /* of q, which others follow; 0: as is usual for the operator */
    const char *form, *impl;
    int32_t chunk, repeats;
    const char *const *set;     /* "KEY=VALUE", n_set of them: the operator's sizes (Hq, K ...) and options */
    int32_t n_set;
} linnet_bench_op_options;
#define LINNET_BENCH_OP_OPTIONS_INIT { sizeof(linnet_bench_op_options), NULL, LINNET_F32, 1, 2048, 0, "auto", NULL, 0, 7, NULL, 0 }
typedef struct {
    size_t size;
    char impl[64], backward_impl[64];
    char sizes[160];                      /* "Hq=16 Hk=16 ..." */
    double forward_error, backward_error; /* relative rms against the float64 reference on a short prefix */
    double forward_seconds, both_seconds; /* medians */
    double forward_flops, both_flops;     /* useful FLOPs of one run */
    double shape_error;                   /* on a GPU, of one head at the very shape, against the CPU's float32 kernels; NaN: not checked */
    double forward_bytes, both_bytes;     /* inputs and results, once */
    size_t workspace;
    size_t peak_memory;                   /* of a GPU, while the operator was timed; 0 on the CPU */
    char counted[16];                     /* a report on which FLOPs depend ("steps"); "": none */
    double forward_mean, backward_mean;   /* its means */
} linnet_bench_op_result;
/* Check the implementation against the reference, then time it: single calls on the CPU; on a GPU batches of calls, over inputs that are in no
 * cache. */
LINNET_API linnet_status linnet_bench_op(linnet_context *c, const linnet_bench_op_options *o, linnet_bench_op_result *out);

typedef struct {
    size_t size;
    int64_t batch, length, repeats;
    int32_t recompute;      /* LINNET_RECOMPUTE_... */
    int64_t moments;        /* linnet_dtype: as in linnet_train_options */
} linnet_bench_train_options;
#define LINNET_BENCH_TRAIN_OPTIONS_INIT { sizeof(linnet_bench_train_options), 4, 1024, 5, LINNET_RECOMPUTE_NONE, LINNET_F32 }
typedef struct {
    size_t size;
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
#define LINNET_BENCH_DECODE_OPTIONS_INIT { sizeof(linnet_bench_decode_options), 1, 128 }
typedef struct {
    size_t size;
    double step_seconds, tokens_per_second; /* median; greedy, the ids of each step come from the one before */
    double bytes;                           /* of weights and states that a step must move */
    double check_error;                     /* of two such layers: logits of steps against those of one pass, relative rms */
    int64_t parameters, state_bytes;        /* the latter of one sequence */
    size_t peak_memory;                     /* of a GPU; 0 on the CPU */
} linnet_bench_decode_result;
/* One token at a time for `batch` sequences with states of their own. */
LINNET_API linnet_status linnet_bench_decode(linnet_context *c, linnet_model *m, const linnet_bench_decode_options *o,
                                             linnet_bench_decode_result *out);

#ifdef __cplusplus
}
#endif
#endif
