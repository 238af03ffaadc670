/* Texts inside files of JSON lines: one string of each line's object. */
#ifndef LNT_HUB_RECORDS_H
#define LNT_HUB_RECORDS_H

#include <jansson.h>

#include "core/memory.h"

typedef struct {
    lnt_ctx *c;
    const char *path, *field;
    const char *at, *end;
    int64_t line;    /* of the record at hand, from 1 */
    json_t *object;  /* that record; the text belongs to it */
} lnt_records;

/* `text` [bytes] is a file's and stays the caller's; `field` is a key, or several with points between them for objects inside. */
void lnt_records_begin(lnt_ctx *c, const char *path, const char *field, const char *text, size_t bytes, lnt_records *r);
/* The next record's text, which lives until the next call; NULL at the end. A line that is no object with such a string is refused by its number;
 * empty lines are none. */
linnet_status lnt_records_next(lnt_records *r, const char **text, size_t *bytes);
void lnt_records_end(lnt_records *r);

#endif
