/* Options that describe themselves: a table says for each key of a plain structure its kind, range, default and meaning, and from the table come
 * defaults, reading, writing, `--set`, help and the refusal of what is wrong. Knows no file format: a value comes and goes as lnt_given. */
#ifndef LNT_CORE_OPTIONS_H
#define LNT_CORE_OPTIONS_H

#include "core/status.h"

typedef enum {
    LNT_OPTION_INT,    /* int64_t */
    LNT_OPTION_REAL,   /* double */
    LNT_OPTION_SWITCH, /* bool */
    LNT_OPTION_WORD,   /* int: the word's place among `words` */
} lnt_option_kind;

typedef struct lnt_option {
    const char *key;
    lnt_option_kind kind;
    size_t offset;     /* in the structure */
    double lo, hi;     /* of a number, both included */
    double fallback;   /* default; a switch: 0 or 1, a word: its place */
    bool nullable;
    double null;       /* what null stands for in the structure */
    const char *words; /* separated by blanks */
    const char *help;  /* one line */
    const char *only;  /* a word or switch, and the values of it with which this is read: "rule mesa gla", "use_gate true"; NULL: always */
} lnt_option;

/* The table of a structure. */
typedef struct {
    const lnt_option *row;
    int n;
    size_t size; /* of the structure */
} lnt_options;

#define LNT_OPTIONS(type, rows) {rows, (int)(sizeof(rows) / sizeof *(rows)), sizeof(type)}
/* The last argument is the help; fields may follow it: "tokens seen", .only = "rule attention". */
#define LNT_INT(type, field, least, most, value, ...) \
    {.key = #field, .kind = LNT_OPTION_INT, .offset = offsetof(type, field), .lo = least, .hi = most, .fallback = value, .help = __VA_ARGS__}
#define LNT_MAYBE_INT(type, field, least, most, value, none, ...) \
    {.key = #field, .kind = LNT_OPTION_INT, .offset = offsetof(type, field), .lo = least, .hi = most, .fallback = value, .nullable = true, \
     .null = none, .help = __VA_ARGS__}
#define LNT_REAL(type, field, least, most, value, ...) \
    {.key = #field, .kind = LNT_OPTION_REAL, .offset = offsetof(type, field), .lo = least, .hi = most, .fallback = value, .help = __VA_ARGS__}
#define LNT_MAYBE_REAL(type, field, least, most, value, ...) \
    {.key = #field, .kind = LNT_OPTION_REAL, .offset = offsetof(type, field), .lo = least, .hi = most, .fallback = value, .nullable = true, \
     .help = __VA_ARGS__}
#define LNT_SWITCH(type, field, value, ...) \
    {.key = #field, .kind = LNT_OPTION_SWITCH, .offset = offsetof(type, field), .hi = 1, .fallback = value, .help = __VA_ARGS__}
#define LNT_WORD(type, field, list, value, ...) \
    {.key = #field, .kind = LNT_OPTION_WORD, .offset = offsetof(type, field), .words = list, .fallback = value, .help = __VA_ARGS__}

/* Sizes are capped so that products of two of them stay far inside 63 bits; the caps are beyond any published model. */
#define LNT_MOST_WIDTH 65536
#define LNT_MOST_TOKENS 2147483647.0

/* A value on its way in or out. */
typedef struct {
    enum { LNT_GIVEN_NULL, LNT_GIVEN_INT, LNT_GIVEN_REAL, LNT_GIVEN_BOOL, LNT_GIVEN_WORD, LNT_GIVEN_OTHER } kind;
    int64_t integer; /* of a switch: 0 or 1 */
    double real;     /* of an integer or a switch too */
    char word[48];   /* longer words are none of ours */
    char shown[80];  /* as a message shows it */
} lnt_given;

lnt_given lnt_given_int(int64_t v);
lnt_given lnt_given_real(double v);
lnt_given lnt_given_word(const char *word);

/* Whether it is read, its neighbours being as they are; the same, or as nobody has set it. */
bool lnt_option_is_read(const lnt_options *t, const lnt_option *o, const void *base);
bool lnt_option_is_idle(const lnt_options *t, const lnt_option *o, const void *base);
/* LINNET_EINVAL about what is set and not read. */
linnet_status lnt_fail_unread(lnt_ctx *c, const char *where, const lnt_options *t, const lnt_option *o, const void *base);
/* What is not read, as nobody has set it. */
void lnt_options_unset_unread(const lnt_options *t, void *base);
void lnt_options_default(const lnt_options *t, void *base);
const lnt_option *lnt_option_find(const lnt_options *t, const char *key); /* NULL: none */
/* Whether the value is of the option's kind, whatever its range. */
bool lnt_option_fits(const lnt_option *o, const lnt_given *v);
/* LINNET_EINVAL about an option: the message is its key and what is wrong, "steps is 0, expected ..."; the context keeps the key by itself, too,
 * for linnet_error_option. */
linnet_status lnt_fail_option(lnt_ctx *c, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* LINNET_EINVAL where it is none of the option's values, which `where` and the key name: "attn." and num_heads. base NULL: only looked at. */
linnet_status lnt_option_put(lnt_ctx *c, const char *where, const lnt_option *o, const lnt_given *v, void *base);
/* The value there; null as such. */
lnt_given lnt_option_get(const lnt_option *o, const void *base);
/* Values of another structure's options that are here too, by key and kind. */
void lnt_options_carry(const lnt_options *from, const void *source, const lnt_options *to, void *base);
bool lnt_options_put_int(const lnt_options *t, void *base, const char *key, int64_t v); /* false: there is no such option */

/* Place of `word` among `words`; -1: not there. The word at a place, "" past the end. */
int lnt_word_find(const char *words, const char *word);
const char *lnt_word_at(const char *words, int i, char *out, size_t size);
/* Letters to put in, take out or change that one becomes the other; 64 where b is longer than 63. */
int lnt_word_distance(const char *a, const char *b);

#endif
