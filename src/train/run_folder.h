/* What a folder is to a training run, in one place, so that starting and resuming agree:
 *
 *   a run     train_state.safetensors is there; config.json, model.safetensors and tokenizer.json are, because they come first (at the end of a run,
 *             several files and an index may have taken model.safetensors' place): resume it
 *   begun     train.begun is there and no train_state: a run that ended before its first checkpoint: start it again
 *   a model   model.safetensors or an index, and no run of ours: neither
 *   free      anything else: start
 *
 * One run at a time: it holds a lock on train.lock. */
#ifndef LNT_TRAIN_RUN_FOLDER_H
#define LNT_TRAIN_RUN_FOLDER_H

#include "core/file.h"

typedef struct {
    lnt_ctx *c;
    const char *path;    /* the caller's */
    lnt_file_lock lock;
} lnt_run_folder;

/* Refused with what to do instead: a folder that cannot be resumed, or that a new run would damage; one that another run is in. Makes nothing but the
 * lock, and that only where there is a run. */
linnet_status lnt_run_folder_open(lnt_ctx *c, const char *path, bool resume, lnt_run_folder *f);
/* For a new run: from here on the folder is a begun one, and ours. */
linnet_status lnt_run_folder_begin(lnt_run_folder *f);
bool lnt_run_folder_resumable(const lnt_run_folder *f);
/* After each checkpoint, whose model.safetensors is all that holds its weights. */
void lnt_run_folder_saved(lnt_run_folder *f);
/* The weights are in one file. */
bool lnt_run_folder_whole(const lnt_run_folder *f);
void lnt_run_folder_close(lnt_run_folder *f);

#endif
