/* Other projects' models, described: one file an architecture (archs/arch_NAME.c) and one line in archs/archs.def.
 *
 * An architecture says which kinds its layers are made of, how its keys and tensors are named, and what its config.json may hold beside them. Keys
 * that are named as ours need no row: what the chosen kinds have is read and written under its own name. What a class cannot say (another mixer in
 * between, an option that the class does not have) is saved as linnet's own type. */
#ifndef LNT_HUB_ARCHS_H
#define LNT_HUB_ARCHS_H

#include "hub/json.h"
#include "model/config.h"

/* One of our keys that the architecture has under another name, or has not. Lists end with {0}. */
typedef struct {
    const char *ours;   /* "num_heads" of whoever has it, or "attention.num_heads" of the mixer of that label */
    const char *theirs; /* "a.b": b of the object a. NULL: it has no such key, and a file with one is refused */
    const char *only;   /* JSON: the one value with which the class computes what we do; NULL: any */
} lnt_arch_key;

/* The mixer of the layers that have a word in the list "layer_types". */
typedef struct {
    const char *word, *mixer;
    const char *label; /* of the part; NULL: the mixer's name */
} lnt_arch_layer;

/* One of our keys and a value as JSON. */
typedef struct {
    const char *key, *value;
} lnt_arch_default;

/* A key that we have not. values: JSON texts without blanks, separated by blanks, with which the function is ours; NULL: whatever it says, it changes
 * nothing, and the reason. `dropped`: not written back. */
typedef struct {
    const char *key, *values, *why;
    bool dropped;
    double (*follows)(const lnt_config *k); /* a number that our keys imply: always written, and a file's must be it; NULL: not such a key */
    bool listed;                            /* that number for each layer; a file may have it once, or null */
} lnt_arch_other;
#define LNT_ONLY(key, values, why) {key, values, why, false, NULL, false}
#define LNT_KEPT(key, why) {key, NULL, why, false, NULL, false}
#define LNT_DROPPED(key, values, why) {key, values, why, true, NULL, false}
#define LNT_FOLLOWS(key, function, why) {key, NULL, why, false, function, false}
#define LNT_FOLLOWS_EACH(key, function, why) {key, NULL, why, false, function, true}

/* A part of a tensor's name. also: files have this name or ours, and we write ours. */
typedef struct {
    const char *ours, *theirs;
    bool also;
} lnt_arch_tensor;

/* The same in some layers, or of another shape. */
typedef struct {
    const char *ours, *theirs;
    const char *mixer; /* in the layers of this label alone; NULL: in all */
    int lead;          /* the file's tensor has so many dimensions of 1 in front */
    double (*turned)(const lnt_config *k); /* of ours, [a, n b], it is the transpose, [n, b, a], for this n; NULL: it is not */
} lnt_arch_rename;
#define LNT_RENAME(ours, theirs) {ours, theirs, NULL, 0, NULL}
#define LNT_RENAME_IN(mixer, ours, theirs) {ours, theirs, mixer, 0, NULL}

/* Tensors of ours that are rows of one of theirs, or of theirs that are rows of one of ours. */
typedef struct {
    const char *theirs; /* what follows the layer in its name: ".attn.qkv.weight". With a %d: one for each of `count`, rows of ours in order */
    const char *ours;   /* the same of ours, in the order of their rows, separated by blanks; those that the model lacks have none */
    double (*count)(const lnt_config *k); /* theirs has so many groups, each with the parts' rows of that group; NULL: 1 */
    const char *mixer;  /* as above */
} lnt_arch_rows;

typedef struct lnt_arch {
    const char *model_type;
    const char *name;                   /* ours, where the model type is another project's too; NULL: the model type */
    const char *told_by;                /* keys of which a file of that project has one, separated by blanks */
    const char *class_name;             /* that loads it; NULL: nobody else's */
    const char *mixer;                  /* of every layer */
    const char *attn;                   /* mixer of the layers that the key "attn" lists; NULL: there is no such key */
    const char *attn_keys;              /* what an entry of that list may hold beside "layers", separated by blanks */
    const char *block, *norm, *mlp;     /* NULL: the first of the lists */
    const lnt_arch_default *defaults;   /* of the class, where they are not those of our kinds */
    const lnt_arch_default *absent;     /* what a file means that lacks the key, where that is not the default */
    const lnt_arch_key *keys;
    const lnt_arch_other *others;
    const lnt_arch_tensor *tensors;
    const lnt_arch_rename *renames;     /* behind them */
    const lnt_arch_rows *rows;
    /* Ends of names, separated by blanks, of tensors that the class has as one, rows below rows, and cuts into equal parts when it saves. */
    const char *one_of;
    const char *const *ignored;         /* parts of names of tensors that the class can do without; the list ends with NULL */
    /* Only keys that a row names are read and written, all others have the values of `defaults`; what the class computes is what reads back the
     * same. Mixers go by layers[], which ends with {0} and begins with `mixer` (NULL: all layers have that), under "layer_types". */
    bool spelled;
    const lnt_arch_layer *layers;
    /* What no row can say: a file as it came to one with the keys above, and back; false: the class cannot say it. NULL: nothing. */
    bool (*from_theirs)(json_t *o);
    bool (*to_theirs)(json_t *o);
    const char *no_null;        /* keys, spaces between, that the class takes as a value or not at all: null is left out */
    /* Behind to_theirs: what a file said beside the rows (`kept`, at will), which is written where o has no such key. NULL: all of it. */
    void (*keeping)(json_t *o, json_t *kept);
    const struct lnt_arch *base;        /* whose lists (keys, others, tensors) go on where these end; NULL: none */
} lnt_arch;

#define X(name) extern const lnt_arch lnt_arch_##name;
#include "hub/archs/archs.def"
#undef X
extern const lnt_arch lnt_arch_fla, lnt_arch_transformers, lnt_arch_causal_lm; /* bases */
extern const lnt_arch lnt_arch_backbone, lnt_arch_linear_layers, lnt_arch_qwen_linear, lnt_arch_mamba_layers; /* bases */
extern const lnt_arch lnt_arch_expanded; /* a base */

const lnt_arch *lnt_arch_at(int i); /* in the order of archs.def; NULL past the end */
const char *lnt_arch_name(const lnt_arch *a);
const lnt_arch *lnt_arch_find(const char *name); /* or its model type */
/* The architecture of a file with this model type and these keys. */
const lnt_arch *lnt_arch_of_file(const char *model_type, const json_t *o);
/* The architecture whose class computes the configuration, or linnet's own. */
const lnt_arch *lnt_arch_of(const lnt_config *k);
/* The mixer and architecture that a model type or a mixer's name asks for; LINNET_EINVAL with the list of names. */
linnet_status lnt_arch_named(lnt_ctx *c, const char *name, const lnt_arch **arch, const lnt_mixer **mixer);

/* part: whose key it is; NULL: a common one. */
const lnt_arch_key *lnt_arch_our_key(const lnt_arch *a, const lnt_part *part, const char *ours);
const lnt_arch_key *lnt_arch_their_key(const lnt_arch *a, const char *theirs);
/* Whether a row of `base`, on the way from a, is one of a class that says something else of the same key of ours. */
bool lnt_arch_shadowed(const lnt_arch *a, const lnt_arch *base, const lnt_arch_key *row);
const lnt_arch_other *lnt_arch_other_key(const lnt_arch *a, const char *key);
/* A key of the first mixer that has it; 0: none has. */
double lnt_arch_number(const lnt_config *k, const char *key);
/* The name in a file of our tensor; try 1: the other name that it may have. NULL: there is none. a NULL: files have our names, k may be NULL. */
const char *lnt_arch_tensor_name(const lnt_arch *a, const lnt_config *k, const char *ours, int try, char *out, size_t size);
/* How the file's tensor lies, as lnt_arch_rename has it; turned 0: as ours. */
typedef struct {
    int lead;
    int64_t turned;
} lnt_arch_form;
lnt_arch_form lnt_arch_tensor_form(const lnt_arch *a, const lnt_config *k, const char *ours);

/* Where a parameter stands in files, when it is not a tensor of its own. */
enum { LNT_ARCH_PARTS = 8 };
typedef struct {
    char theirs[640];             /* with a %d where pieces > 1 */
    int64_t pieces;               /* ours is so many of theirs, one below the other */
    int64_t groups;               /* of their rows; a group has `all`, of which part[i] has rows[i], in order */
    int64_t all, rows[LNT_ARCH_PARTS];
    int parts, which;             /* which of the parts the parameter is */
    const lnt_param *part[LNT_ARCH_PARTS];
} lnt_arch_place;
/* false: it is a tensor of its own. LINNET_EINVAL where the rows cannot be divided so. */
linnet_status lnt_arch_find_place(lnt_ctx *c, const lnt_arch *a, const lnt_config *k, const lnt_program *p, const lnt_param *q, lnt_arch_place *out,
                                  bool *found);

/* The keys of a configuration as the architecture's class reads them, without those kept from a file; NULL: out of memory, or the class cannot say
 * it. config_write.c. */
json_t *lnt_config_spell(const lnt_arch *a, const lnt_config *k);
/* Whether the class says all of the configuration; why, if not NULL: what it does not say, nothing where no key or kind stands for that. archs.c. */
enum { LNT_ARCH_WHY = 200 };
bool lnt_arch_says(const lnt_arch *a, const lnt_config *k, char *why);
/* The same model, whatever it and its layers are called and came from. archs.c. */
bool lnt_config_equal(const lnt_config *a, const lnt_config *b);
/* The configuration as `a` says it, read back from what is written; *out NULL: it cannot say it. retype.c. */
linnet_status lnt_config_as(lnt_ctx *c, const lnt_config *k, const lnt_arch *a, lnt_config **out);
/* The same for what a word asks for: "linnet"; "fla" or "transformers", the first type of theirs that can, its own before others; or a model type.
 * LINNET_EINVAL where there is none. retype.c. */
linnet_status lnt_config_retype(lnt_ctx *c, const lnt_config *k, const char *to, lnt_config **out);

/* Read the text of a config.json; `path` is for messages. config_read.c. */
linnet_status lnt_config_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, lnt_config **out);
/* What the object says as a file of the architecture. config_read.c. */
linnet_status lnt_config_of_object(lnt_ctx *c, const lnt_arch *a, const json_t *o, lnt_config *k);
/* A value of the configuration's tables from JSON text; for defaults. config_read.c. */
bool lnt_given_of_text(const char *text, lnt_given *out);
/* The JSON text of an option's value. config_write.c. */
linnet_status lnt_config_value_text(lnt_ctx *c, const lnt_option *o, const void *base, char *text, size_t size);

#endif
