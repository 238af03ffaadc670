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

/* From stop_watch on, SIGINT, SIGTERM and SIGHUP (unless it was ignored, as under nohup) set a flag. Callbacks look at it with stop_asked: before one
 * has, there is nothing to finish, and a signal ends the process at once. So does a second SIGINT. */
void stop_watch(void);
bool stop_asked(void);
/* What is written to f is read no more: a pipe that was closed, a terminal that hung up. After stop_outlive_output, writing there ends no process. */
bool stop_output_gone(FILE *f);
void stop_outlive_output(void);

#endif
