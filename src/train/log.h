/* log.jsonl beside the checkpoint: one JSON object a step, evaluation results within. Numbers are printed so that they read back exactly; what JSON
 * has no number for is null. */
#ifndef LNT_TRAIN_LOG_H
#define LNT_TRAIN_LOG_H

#include "core/status.h"

typedef struct {
    char *path;
    void *stream; /* FILE* */
} lnt_train_log;

/* Open for appending after `step`: lines of later steps (written after the checkpoint one resumes from) are dropped, so the file reads as one run. */
linnet_status lnt_train_log_open(lnt_ctx *c, const char *folder, int64_t step, lnt_train_log *log);
linnet_status lnt_train_log_step(lnt_ctx *c, lnt_train_log *log, const linnet_train_progress *p);
/* Every line is on the disk. */
linnet_status lnt_train_log_sync(lnt_ctx *c, lnt_train_log *log);
void lnt_train_log_close(lnt_train_log *log);

#endif
