/* How families of models write conversations. A folder's template is a program in a language of its own (Jinja), for which the distributions have no
 * engine with a C interface, so the families' ways are built in, and a template is recognised by what it must contain. */
#ifndef LNT_SERVE_CHAT_TEMPLATE_H
#define LNT_SERVE_CHAT_TEMPLATE_H

#include "serve/special_tokens.h"

typedef enum { LNT_SYSTEM, LNT_USER, LNT_ASSISTANT, LNT_ROLES } lnt_role;

typedef struct {
    lnt_role role;
    const char *text;
    size_t bytes;
} lnt_message;

typedef struct lnt_chat_family lnt_chat_family;

typedef struct {
    const lnt_chat_family *family; /* NULL: none, for `why` */
    const char *begin;        /* in front of everything */
    char why[256];
} lnt_chat_template;

/* By name, or the one that the folder's template is; without either there is none, which is no error before one is needed. */
linnet_status lnt_chat_template_find(lnt_ctx *c, const lnt_specials *s, const char *name, lnt_chat_template *out);
/* Ids of a conversation up to where the assistant is to speak, which are freed with lnt_free. LINNET_EUNSUPPORTED where there is no template. */
linnet_status lnt_chat_template_ids(lnt_ctx *c, const lnt_chat_template *k, const lnt_specials *s, const lnt_message *messages, int64_t n,
                                    int32_t **ids, int64_t *n_ids);
/* What ends a turn: the string of a token, and one to be looked for in the text where it is none; NULL: nothing. */
const char *lnt_chat_template_end(const lnt_chat_template *k);
const char *lnt_chat_template_stop(const lnt_chat_template *k);

#endif
