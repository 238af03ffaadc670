/* Progress: one redrawn line on a terminal, plain lines at a calm pace in a pipe. */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include <stdbool.h>
#include <stdio.h>

bool term_colours(FILE *f); /* f is a terminal and NO_COLOR is not set */
int term_width(FILE *f);    /* columns, 80 when unknown */
double term_now(void);      /* seconds, monotonic */

typedef struct {
    FILE *file;
    bool terminal, colour, drawn;
    double last; /* when the line was last drawn or printed */
} progress;

void progress_open(progress *p, FILE *f);
/* Show `share` in [0,1] between `head` and `tail`. Cheap to call often: redraws ten times a second on a terminal, prints every ten seconds
 * in a pipe. */
void progress_show(progress *p, double share, const char *head, const char *tail);
/* A line that stays, above the moving one. */
void progress_print(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Remove the moving line. */
void progress_close(progress *p);

/* SIGINT and SIGTERM set a flag that callbacks look at; the second one ends the process at once. */
void stop_watch(void);
bool stop_asked(void);

#endif
