/* Texts as benchmarks read and count them: JSON lines, words, wikitext's detokeniser, whether an answer is there. */
#ifndef LNT_TASKS_TEXTS_H
#define LNT_TASKS_TEXTS_H

#include <jansson.h>

#include "core/memory.h"

/* A file of JSON objects, one a line; empty lines are passed over. */
typedef struct {
    lnt_ctx *c;
    const char *path;
    char *data, *at;
    int64_t line;
} lnt_lines;

linnet_status lnt_lines_open(lnt_ctx *c, const char *path, lnt_lines *l);
/* The next object, which the caller releases with json_decref; NULL at the end. LINNET_EFORMAT naming the line where it is none. */
linnet_status lnt_lines_next(lnt_lines *l, json_t **out);
void lnt_lines_close(lnt_lines *l);
/* Bytes of the next `examples` lines that hold something (0: of all), and how many lines these are. */
size_t lnt_lines_bytes(const lnt_lines *l, int64_t examples, int64_t *lines);
/* A key's text; LINNET_EFORMAT naming file, line and key where there is none. */
linnet_status lnt_lines_text(const lnt_lines *l, const json_t *object, const char *key, const char **out);
/* LINNET_EFORMAT naming file and line. */
linnet_status lnt_lines_bad(const lnt_lines *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A text that grows, the arena's. */
typedef struct {
    lnt_arena *arena;
    char *text;        /* ends in 0; NULL: there was no memory */
    size_t n, room;
} lnt_text;

void lnt_text_add(lnt_text *t, const char *text, size_t n);
static inline void lnt_text_put(lnt_text *t, const char *text) { lnt_text_add(t, text, __builtin_strlen(text)); }

/* Bytes of the white space (of Unicode) that a text begins with; 0: none. */
size_t lnt_space_at(const char *text);
/* Pieces between runs of white space, empty ones at the ends counted: what a split at them gives. */
int64_t lnt_count_words(const char *text);
/* Characters of UTF-8. */
int64_t lnt_count_characters(const char *text);
/* Every `from` in a text as `to`, the arena's; NULL: no memory. */
char *lnt_text_replaced(lnt_arena *arena, const char *text, const char *from, const char *to);
/* The page as running text: spaces around punctuation, in brackets and quotes, and the marks of numbers taken away. NULL: no memory. */
char *lnt_detokenise(lnt_arena *arena, const char *page);
/* Whether `part` occurs in a text, A to Z as a to z. */
bool lnt_text_contains(const char *text, const char *part);

#endif
