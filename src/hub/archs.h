/* Other projects' models, described: one file an architecture (archs/arch_NAME.c) and one line in archs/archs.def.
 *
 * An architecture says which kinds its layers are made of, how its keys and tensors are named, and what its config.json may hold beside them. Keys
 * that are named as ours need no row: what the chosen kinds have is read and written under its own name. What a class cannot say (another mixer in
 * between, an option that the class does not have) is saved as linnet's own type. */
#ifndef LNT_HUB_ARCHS_H
#define LNT_HUB_ARCHS_H

#include "model/config.h"

/* One of our keys that the architecture has under another name, or has not. Lists end with {0}. */
typedef struct {
    const char *ours;
    const char *theirs; /* NULL: it has no such key, and a file with one is refused */
    const char *only;   /* JSON: the one value with which the class computes what we do; NULL: any */
} lnt_arch_key;

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

typedef struct lnt_arch {
    const char *model_type;
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
    const struct lnt_arch *base;        /* whose lists (keys, others, tensors) go on where these end; NULL: none */
} lnt_arch;

#define X(name) extern const lnt_arch lnt_arch_##name;
#include "hub/archs/archs.def"
#undef X
extern const lnt_arch lnt_arch_fla, lnt_arch_transformers; /* bases */

const lnt_arch *lnt_arch_at(int i); /* in the order of archs.def; NULL past the end */
const lnt_arch *lnt_arch_find(const char *model_type);
/* The architecture whose class computes the configuration, or linnet's own. */
const lnt_arch *lnt_arch_of(const lnt_config *k);
/* The mixer and architecture that a model type or a mixer's name asks for; LINNET_EINVAL with the list of names. */
linnet_status lnt_arch_named(lnt_ctx *c, const char *name, const lnt_arch **arch, const lnt_mixer **mixer);

const lnt_arch_key *lnt_arch_our_key(const lnt_arch *a, const char *ours);
const lnt_arch_key *lnt_arch_their_key(const lnt_arch *a, const char *theirs);
const lnt_arch_other *lnt_arch_other_key(const lnt_arch *a, const char *key);
/* A key of the first mixer, which has it. */
double lnt_arch_number(const lnt_config *k, const char *key);
/* The name in a file of our tensor; try 1: the other name that it may have. NULL: there is none. */
const char *lnt_arch_tensor_name(const lnt_arch *a, const char *ours, int try, char *out, size_t size);

/* Read the text of a config.json; `path` is for messages. config_read.c. */
linnet_status lnt_config_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, lnt_config **out);
/* A value of the configuration's tables from JSON text; for defaults. config_read.c. */
bool lnt_given_of_text(const char *text, lnt_given *out);
/* The JSON text of an option's value. config_write.c. */
linnet_status lnt_config_value_text(lnt_ctx *c, const lnt_option *o, const void *base, char *text, size_t size);

#endif
