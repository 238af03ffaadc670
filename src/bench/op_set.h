/* "KEY=VALUE" for an operator's call: a letter of its sizes or one of its options. */
#ifndef LNT_OP_SET_H
#define LNT_OP_SET_H

#include "recurrence/recurrence.h"

linnet_status lnt_op_form(lnt_ctx *c, const char *text, linnet_form *form); /* NULL: auto */
/* Value of `key` from text; `from` says where it was read. */
linnet_status lnt_op_set(lnt_ctx *c, const lnt_recur_op *op, void *args, const char *key, const char *text, const char *from);
/* "Hq=2 K=64 ...": the sizes that the operator has of its own. */
void lnt_op_sizes(const void *args, char *text, size_t size);

#endif
