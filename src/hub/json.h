/* JSON from files nobody vouches for, by jansson: duplicate keys are refused here, nesting above 2048 levels by jansson. */
#ifndef LNT_HUB_JSON_H
#define LNT_HUB_JSON_H

#include <jansson.h>

#include "core/memory.h"

/* Parse `bytes` of `text`; `path` is for the message. `*out` is released with json_decref. */
linnet_status lnt_json_parse(lnt_ctx *c, const char *path, const char *text, size_t bytes, json_t **out);
/* The same of a text that begins in line `first` of its file, for the message. */
linnet_status lnt_json_parse_line(lnt_ctx *c, const char *path, int64_t first, const char *text, size_t bytes, json_t **out);
/* lnt_json_parse of JSON as Python writes it: Infinity, -Infinity and NaN are numbers, for lnt_json_number, and lnt_json_text_python writes them
 * back. */
linnet_status lnt_json_parse_python(lnt_ctx *c, const char *path, const char *text, size_t bytes, json_t **out);
/* A number, those three too; false: it is none. */
bool lnt_json_number(const json_t *value, double *out);
/* lnt_json_parse of a whole file of at most `limit` bytes. */
linnet_status lnt_json_load(lnt_ctx *c, const char *path, size_t limit, json_t **out);
/* Text of a value, with jansson's flags; freed with lnt_free. NULL when out of memory. */
char *lnt_json_text(const json_t *value, size_t flags);
char *lnt_json_text_python(const json_t *value, size_t flags);
/* A value for an error message: its JSON, cut to the size of `out`. */
const char *lnt_json_show(const json_t *value, char *out, size_t size);

/* LINNET_EFORMAT with the message and the detail "Read from <path>.". */
linnet_status lnt_malformed(lnt_ctx *c, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
