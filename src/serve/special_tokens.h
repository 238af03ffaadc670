/* Special tokens of a model's folder: the strings that tokenizer_config.json names, and the ids that end a text (generation_config.json). */
#ifndef LNT_SERVE_SPECIAL_TOKENS_H
#define LNT_SERVE_SPECIAL_TOKENS_H

#include "hub/bytemap.h"
#include "serve/request.h"

typedef struct {
    lnt_arena arena;
    const linnet_tokenizer *t;
    const char *bos, *eos, *pad; /* NULL: none */
    const char *chat_template;   /* its source; NULL: none */
    lnt_bytemap ids;             /* of strings */
    bool begins[256];            /* a byte that one of them begins with */
    size_t longest;              /* bytes of them */
    int32_t end_ids[LNT_END_IDS];
    int n_end_ids;
} lnt_specials;

/* folder NULL, or without those files: there is the tokenizer's separator. */
linnet_status lnt_specials_open(lnt_ctx *c, const linnet_tokenizer *t, const char *folder, lnt_specials *s);
void lnt_specials_close(lnt_specials *s);
/* The id of a special token's string, -1: it is none. */
int32_t lnt_specials_id(const lnt_specials *s, const char *text, size_t bytes);
void lnt_specials_ends(lnt_specials *s, int64_t id);

/* Ids that are put one behind the other: text, and marks, which are text in which special tokens' strings are those tokens. Text between two special
 * tokens is tokenised together, wherever it came from. */
typedef struct {
    lnt_ctx *c;
    const lnt_specials *s;
    char *text; /* [n_text] that waits */
    size_t n_text, room_text;
    int32_t *ids;
    int64_t n, room;
} lnt_ids_out;

linnet_status lnt_ids_text(lnt_ids_out *o, const char *text, size_t bytes);
linnet_status lnt_ids_marks(lnt_ids_out *o, const char *text, size_t bytes);
/* The text that waits, too; before ids and n are read. */
linnet_status lnt_ids_end(lnt_ids_out *o);
void lnt_ids_close(lnt_ids_out *o);

#endif
