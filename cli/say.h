/* What the commands say: errors on stderr, JSON lines, numbers as people read them. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "linnet/linnet.h"

/* Exit codes. 130 is the shell's convention for "ended by SIGINT". */
enum { EXIT_GOOD = 0, EXIT_USER = 2, EXIT_INTERNAL = 3, EXIT_STOPPED = 130 };

/* Print "linnet: message", and indented below it detail and hint (NULL or "": nothing); return EXIT_USER. */
int say_error(const char *detail, const char *hint, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The error that stands on a context (may be NULL: none could be made), an option in it called by its flag; returns the exit code of `s`. */
int say_status(const linnet_context *c, linnet_status s);

/* fflush, for what may be standard output: why that failed is remembered, for errno is another's when main() tells. */
int say_flush(FILE *f);
/* The errno of the first loss on standard output, 0: all of it is written. */
int say_lost(void);

/* One JSON object on one line. line_open, fields in order, line_close. Numbers that JSON lacks (NaN, infinities) are written as null. */
typedef struct {
    FILE *file;
    bool more;
} json_line;
void line_open(json_line *j, FILE *f);
void line_text(json_line *j, const char *key, const char *value); /* NULL: null */
void line_bytes(json_line *j, const char *key, const char *bytes, size_t n); /* what is no UTF-8 becomes U+FFFD */
void line_real(json_line *j, const char *key, double value);
void line_int(json_line *j, const char *key, int64_t value);
void line_ints(json_line *j, const char *key, const int32_t *values, int64_t n);
/* A field that is a list of objects: line_list; for each line_item, its fields, line_item_end; line_list_end. */
void line_list(json_line *j, const char *key);
void line_item(json_line *j);
void line_item_end(json_line *j);
void line_list_end(json_line *j);
void line_close(json_line *j);

/* Texts for people, in a buffer of the caller: "12.3k", "335 G" (a unit follows), "4.20 MiB", "1m02s", "0.53 ms". */
enum { SAY_TEXT = 32 };
const char *say_count(char text[SAY_TEXT], double n);
const char *say_rate(char text[SAY_TEXT], double n);
const char *say_bytes(char text[SAY_TEXT], double n);
const char *say_duration(char text[SAY_TEXT], double seconds);
const char *say_time(char text[SAY_TEXT], double seconds);

/* Length of the longest prefix of text[n] that does not end inside a UTF-8 character. */
size_t say_whole_utf8(const char *text, size_t n);

/* Print a word so that a shell reads it back as one word. */
void say_quoted(FILE *f, const char *word);

#endif
