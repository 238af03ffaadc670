#include "core/number.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void make_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* The C locale for this thread; what it had before comes back by uselocale. The locale "C" is built in: making it takes no memory and cannot fail. */
static locale_t enter(void)
{
    pthread_once(&once, make_locale);
    return uselocale(c_locale);
}

int lnt_format_list(char *text, size_t size, const char *format, va_list ap)
{
    const locale_t before = enter();
    const int n = vsnprintf(text, size, format, ap);
    uselocale(before);
    return n;
}

int lnt_format(char *text, size_t size, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    const int n = lnt_format_list(text, size, format, ap);
    va_end(ap);
    return n;
}

double lnt_parse_real(const char *text, char **end)
{
    const locale_t before = enter();
    const double x = strtod(text, end);
    uselocale(before);
    return x;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

bool lnt_same_word(const char *a, const char *b)
{
    while (*a && lower(*a) == lower(*b)) a++, b++;
    return lower(*a) == lower(*b);
}
