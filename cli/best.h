/* The checkpoint with the least held-out loss, kept beside the newest one. */
#ifndef CLI_BEST_H
#define CLI_BEST_H

#include <stdint.h>

typedef struct {
    const char *folder; /* of the run; NULL: nothing is kept */
    double loss;        /* of what is kept */
    int failed;         /* said once */
} best_kept;

/* What an earlier session of the run kept counts. */
void best_open(best_kept *b, const char *folder);
/* A checkpoint was written after `step`, and the loss is its own: keep it in FOLDER/best when it is less. */
void best_saved(best_kept *b, int64_t step, double loss);

#endif
