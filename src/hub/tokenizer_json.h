/* What the readers of one tokenizer.json share. */
#ifndef LNT_HUB_TOKENIZER_JSON_H
#define LNT_HUB_TOKENIZER_JSON_H

#include "hub/json.h"
#include "hub/tokenizer.h"

typedef struct {
    lnt_ctx *c;
    const char *path;
    linnet_tokenizer *t;
    const json_t *vocabulary; /* of the model: an object of ids, or of a unigram model a list of pieces with scores */
} lnt_json_reader;

/* The member "type", "": none. */
const char *lnt_json_type(const json_t *o);
static inline bool lnt_json_absent(const json_t *value) { return !value || json_is_null(value); }
/* LINNET_EFORMAT that names a part and what it should be. */
linnet_status lnt_json_refuse(const lnt_json_reader *r, const char *part, const json_t *value, const char *expected);
/* Every key of `o` is among `known` (separated by blanks) or null; what is neither could change the ids. */
linnet_status lnt_json_keys(const lnt_json_reader *r, const char *part, const json_t *o, const char *known);

/* The parts around the model, in tokenizer_parts.c. */
linnet_status lnt_json_normalizer(const lnt_json_reader *r, const json_t *o);
linnet_status lnt_json_pre_tokenizer(const lnt_json_reader *r, const json_t *o);
linnet_status lnt_json_decoder(const lnt_json_reader *r, const json_t *o);
linnet_status lnt_json_post_processor(const lnt_json_reader *r, const json_t *o);

#endif
