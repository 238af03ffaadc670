/* TensorBoard's event files: numbers over steps. */
#ifndef CLI_EVENTS_H
#define CLI_EVENTS_H

#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *file; /* NULL: none */
} event_file;

/* A new file in `folder`; curves of earlier files there are read up to `step`, which a resumed run goes on from. Returns 0, or an exit code after
 * saying why not. */
int events_open(event_file *e, const char *folder, int64_t step);
/* Numbers of one step; those that are not finite are left out. */
void events_put(event_file *e, int64_t step, const char *const *names, const double *values, int n);
/* Returns 0, or an exit code after saying what could not be written. */
int events_close(event_file *e);

#endif
