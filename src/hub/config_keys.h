/* The keys of config.json: one table drives reading, setting, writing, defaults and the refusal of unknown keys. */
#ifndef LNT_HUB_CONFIG_KEYS_H
#define LNT_HUB_CONFIG_KEYS_H

#include "model/config.h"

enum { LNT_MODEL_TYPES = 8 };

typedef struct {
    const char *model_type;
    const char *mixer;        /* its name in layer_mixers; NULL: not offered there */
    const char *architecture; /* class of flash-linear-attention that loads it; NULL: the type is linnet's own */
} lnt_model_type;

extern const lnt_model_type lnt_model_types[LNT_MODEL_TYPES];

typedef enum { LNT_KEY_INT, LNT_KEY_REAL, LNT_KEY_BOOL, LNT_KEY_WORD, LNT_KEY_BOOL_AS_WORD } lnt_key_kind;

typedef struct {
    const char *key;
    unsigned types;        /* bit i: lnt_model_types[i] has the key */
    lnt_key_kind kind;
    size_t offset;         /* in lnt_config */
    double lo, hi;         /* of a number, both included */
    const char *words;     /* of a word, separated by spaces */
    const char *null_as;   /* what null stands for in the structure; NULL: null is refused */
    const char *fallback;  /* default value as text; lnt_config_defaults has the exceptions of each model type */
} lnt_config_key;

extern const lnt_config_key lnt_config_keys[];
extern const int lnt_config_key_count;

/* Defaults that differ from the key's own. */
typedef struct {
    const char *model_type, *key, *value;
} lnt_config_default;

extern const lnt_config_default lnt_config_defaults_of_type[];
extern const int lnt_config_default_count;

/* Keys that are read only with a value that leaves the function as linnet computes it. `values`: JSON texts separated by spaces. */
typedef struct {
    const char *key, *values;
} lnt_config_fixed;

const lnt_config_fixed *lnt_config_fixed_key(const char *key);
/* Keys that never change the function: switches of an implementation, bookkeeping. */
bool lnt_config_kept_key(const char *key);

/* Read the text of a config.json; `path` is for messages. */
linnet_status lnt_config_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, lnt_config **out);

/* Bit of a model type or of a mixer's name in layer_mixers; 0: unknown. */
unsigned lnt_model_type_bit(const char *model_type);
unsigned lnt_mixer_bit(const char *mixer);
/* Whether `word` is one of `words`. */
bool lnt_word_in(const char *words, const char *word);

#endif
