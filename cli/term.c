#include "term.h"

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

static const double REDRAW_SECONDS = 0.1; /* faster only flickers */
static const double PIPE_SECONDS = 10;    /* a log of an hour's run stays readable */

bool term_colours(FILE *f)
{
    const char *off = getenv("NO_COLOR"), *kind = getenv("TERM");
    return isatty(fileno(f)) && !(off && *off) && !(kind && strcmp(kind, "dumb") == 0);
}

int term_width(FILE *f)
{
    struct winsize w;
    return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

double term_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_open(progress *p, FILE *f)
{
    const char *kind = getenv("TERM");
    *p = (progress){ .file = f, .terminal = isatty(fileno(f)) && !(kind && strcmp(kind, "dumb") == 0), .colour = term_colours(f) };
    p->last = p->terminal ? 0 : term_now() - PIPE_SECONDS; /* the first call shows in both cases */
}

/* Whether the terminal shows UTF-8. */
static bool utf8_terminal(void)
{
    static int known = -1;
    if (known < 0) {
        setlocale(LC_CTYPE, "");
        known = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    }
    return known == 1;
}

static void draw_bar(progress *p, int cells, double share)
{
    bool fine = utf8_terminal();
    int full = (int)(share * cells + 0.5);
    if (p->colour) fputs("\033[32m", p->file);
    for (int i = 0; i < full; i++) fputs(fine ? "━" : "=", p->file);
    if (p->colour) fputs("\033[90m", p->file);
    for (int i = full; i < cells; i++) fputs(!fine ? "-" : p->colour ? "━" : "─", p->file);
    if (p->colour) fputs("\033[0m", p->file);
}

void progress_show(progress *p, double share, const char *head, const char *tail)
{
    double now = term_now();
    share = !(share > 0) ? 0 : share > 1 ? 1 : share;
    if (now - p->last < (p->terminal ? REDRAW_SECONDS : PIPE_SECONDS)) return;
    p->last = now;
    if (!p->terminal) {
        fprintf(p->file, "%s  %3.0f%%  %s\n", head, 100 * share, tail);
        say_flush(p->file);
        return;
    }
    /* head, bar, "100%", tail, with two blanks between; the last column stays free, or some terminals wrap */
    int width = term_width(p->file) - 1;
    int cells = width - (int)strlen(head) - (int)strlen(tail) - 10;
    fputs("\r", p->file);
    if (cells >= 4) {
        fprintf(p->file, "%s  ", head);
        draw_bar(p, cells < 40 ? cells : 40, share);
        fprintf(p->file, "  %3.0f%%  %s", 100 * share, tail);
    } else {
        char line[512];
        snprintf(line, sizeof line, "%s  %.0f%%  %s", head, 100 * share, tail);
        fprintf(p->file, "%.*s", width > 0 ? width : 0, line);
    }
    fputs("\033[K", p->file);
    say_flush(p->file);
    p->drawn = true;
}

void progress_print(progress *p, const char *format, ...)
{
    progress_close(p);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(p->file, format, arguments);
    va_end(arguments);
    fputc('\n', p->file);
    say_flush(p->file);
}

void progress_close(progress *p)
{
    if (p->drawn) fputs("\r\033[K", p->file);
    if (p->drawn) say_flush(p->file);
    p->drawn = false;
}

/* ---- signals ---------------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stops, interrupts, looked;

static void on_stop(int signal_number)
{
    /* a terminal that closes may send SIGHUP twice: only a person's second Ctrl-C cuts a save short */
    if (!looked || (signal_number == SIGINT && interrupts++ > 0)) _exit(EXIT_STOPPED);
    stops = 1;
}

void stop_watch(void)
{
    struct sigaction a = { .sa_handler = on_stop, .sa_flags = SA_RESTART }, old;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(SIGHUP, &a, NULL);
}

bool stop_asked(void)
{
    looked = 1;
    return stops > 0;
}

void stop_outlive_output(void)
{
    signal(SIGPIPE, SIG_IGN);
}

bool stop_output_gone(FILE *f)
{
    struct pollfd p = { .fd = fileno(f) };
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP));
}
