#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "args.h"
#include "term.h"

static void print_error(const char *message, const char *detail, const char *hint)
{
    say_flush(stdout);
    bool colour = term_colours(stderr);
    fprintf(stderr, "%slinnet:%s %s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "", message);
    if (detail && *detail) fprintf(stderr, "  %s\n", detail);
    if (hint && *hint) fprintf(stderr, "  %s\n", hint);
}

int say_error(const char *detail, const char *hint, const char *format, ...)
{
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    print_error(message, detail, hint);
    return EXIT_USER;
}

int say_status(const linnet_context *c, linnet_status s)
{
    const char *message = linnet_error_message(c), *option = linnet_error_option(c), *flag = args_flag(option);
    char named[1024];
    if (flag) snprintf(named, sizeof named, "--%s%s", flag, message + strlen(option));
    if (flag) message = named;
    print_error(*message ? message : linnet_status_name(s), linnet_error_detail(c), linnet_error_hint(c));
    return s == LINNET_EINTERNAL ? EXIT_INTERNAL : EXIT_USER;
}

static int lost;

int say_flush(FILE *f)
{
    const int failed = fflush(f);
    if (failed && f == stdout && !lost) lost = errno;
    return failed;
}

int say_lost(void)
{
    if (say_flush(stdout) == 0 && !ferror(stdout)) return 0;
    return lost ? lost : EIO; /* a buffer that was full in the middle of a line, and nothing after it */
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character that begins at s (n bytes left), 0: none does. Overlong forms and surrogates are none. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (length == 0 || length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return length;
}

static void write_string(FILE *f, const char *bytes, size_t n)
{
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        unsigned char b = (unsigned char)bytes[i];
        size_t length = utf8_length((const unsigned char *)bytes + i, n - i);
        if (length == 0) {
            fputs("\\ufffd", f);
            i++;
        } else if (b == '"' || b == '\\') {
            fprintf(f, "\\%c", b);
            i++;
        } else if (b < 0x20) {
            fprintf(f, "\\u%04x", b);
            i++;
        } else {
            fwrite(bytes + i, 1, length, f);
            i += length;
        }
    }
    fputc('"', f);
}

static void write_key(json_line *j, const char *key)
{
    if (j->more) fputs(", ", j->file);
    j->more = true;
    write_string(j->file, key, strlen(key));
    fputs(": ", j->file);
}

void line_open(json_line *j, FILE *f)
{
    *j = (json_line){ .file = f };
    fputc('{', f);
}

void line_text(json_line *j, const char *key, const char *value)
{
    write_key(j, key);
    if (value) write_string(j->file, value, strlen(value));
    else fputs("null", j->file);
}

void line_bytes(json_line *j, const char *key, const char *bytes, size_t n)
{
    write_key(j, key);
    write_string(j->file, bytes, n);
}

void line_real(json_line *j, const char *key, double value)
{
    write_key(j, key);
    if (isfinite(value)) fprintf(j->file, "%.9g", value);
    else fputs("null", j->file);
}

void line_int(json_line *j, const char *key, int64_t value)
{
    write_key(j, key);
    fprintf(j->file, "%" PRId64, value);
}

void line_ints(json_line *j, const char *key, const int32_t *values, int64_t n)
{
    write_key(j, key);
    fputc('[', j->file);
    for (int64_t i = 0; i < n; i++) fprintf(j->file, "%s%" PRId32, i ? ", " : "", values[i]);
    fputc(']', j->file);
}

void line_list(json_line *j, const char *key)
{
    write_key(j, key);
    fputc('[', j->file);
    j->more = false;
}

void line_item(json_line *j)
{
    fputs(j->more ? ", {" : "{", j->file);
    j->more = false;
}

void line_item_end(json_line *j)
{
    fputc('}', j->file);
    j->more = true;
}

void line_list_end(json_line *j)
{
    fputc(']', j->file);
    j->more = true;
}

void line_close(json_line *j)
{
    fputs("}\n", j->file);
    say_flush(j->file);
}

/* ---- numbers for people ----------------------------------------------------------------------------------------------------- */

/* Three significant digits. */
static int decimals(double n)
{
    return n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
}

static const char *scaled(char text[SAY_TEXT], double n, double base, const char *const units[], int n_units)
{
    int u = 0;
    while (u + 1 < n_units && n >= base * 0.9995) n /= base, u++;
    snprintf(text, SAY_TEXT, "%.*f%s", u == 0 && n == floor(n) ? 0 : decimals(n), n, units[u]);
    return text;
}

const char *say_count(char text[SAY_TEXT], double n)
{
    static const char *const units[] = { "", "k", "M", "G", "T" };
    return scaled(text, n, 1000, units, 5);
}

const char *say_rate(char text[SAY_TEXT], double n)
{
    static const char *const units[] = { " ", " k", " M", " G", " T" };
    return scaled(text, n, 1000, units, 5);
}

const char *say_bytes(char text[SAY_TEXT], double n)
{
    static const char *const units[] = { " bytes", " KiB", " MiB", " GiB", " TiB" };
    return scaled(text, n, 1024, units, 5);
}

const char *say_duration(char text[SAY_TEXT], double seconds)
{
    if (!(seconds >= 0 && seconds < 3.6e8)) { /* NaN, or ten thousand hours and more: nothing sensible to show */
        snprintf(text, SAY_TEXT, "?");
        return text;
    }
    int64_t s = (int64_t)(seconds + 0.5);
    if (s < 60) snprintf(text, SAY_TEXT, "%ds", (int)s);
    else if (s < 3600) snprintf(text, SAY_TEXT, "%dm%02ds", (int)(s / 60), (int)(s % 60));
    else snprintf(text, SAY_TEXT, "%dh%02dm", (int)(s / 3600), (int)(s / 60 % 60));
    return text;
}

const char *say_time(char text[SAY_TEXT], double seconds)
{
    const char *unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
    double n = seconds < 1e-3 ? seconds * 1e6 : seconds < 1 ? seconds * 1e3 : seconds;
    snprintf(text, SAY_TEXT, "%.*f %s", decimals(n), n, unit);
    return text;
}

size_t say_whole_utf8(const char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char b = (unsigned char)text[n - back];
        if ((b & 0xc0) == 0x80) continue; /* a continuation byte: look further back for its head */
        size_t length = b >= 0xf0 && b < 0xf5 ? 4 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xc2 && b < 0xe0 ? 2 : 1;
        return length > back ? n - back : n;
    }
    return n;
}

void say_quoted(FILE *f, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        fputs(word, f);
        return;
    }
    fputc('\'', f);
    for (; *word; word++) {
        if (*word == '\'') fputs("'\\''", f);
        else fputc(*word, f);
    }
    fputc('\'', f);
}
