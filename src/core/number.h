/* Numbers as text, and words, the same under every locale that the host program may have set: in files and messages a number has a point.
 * cmake/lint.py keeps the locale's own functions out of every other file. */
#ifndef LNT_CORE_NUMBER_H
#define LNT_CORE_NUMBER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* snprintf and vsnprintf. Needed where a format has a conversion of floating type, or is not known. */
int lnt_format(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int lnt_format_list(char *text, size_t size, const char *format, va_list ap) __attribute__((format(printf, 3, 0)));
/* strtod. */
double lnt_parse_real(const char *text, char **end);
/* Equal but for the case of A to Z. */
bool lnt_same_word(const char *a, const char *b);

#endif
