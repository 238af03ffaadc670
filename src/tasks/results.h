/* Whose results a folder holds: no task takes the place of another's, and nothing whole gives way to a part. */
#ifndef LNT_TASKS_RESULTS_H
#define LNT_TASKS_RESULTS_H

#include "core/memory.h"
#include "core/status.h"

/* Keys of the first line of results.jsonl, whose row is "settings". */
#define LNT_RESULTS_ROW "settings"
#define LNT_RESULTS_WHOLE "complete" /* false: the run was stopped before its end */
#define LNT_RESULTS_FILES "files"    /* those that the run left */

typedef struct {
    const char *task;  /* "compare": runs side by side; "": what is there is none of a task's; NULL: there are no results */
    bool training;     /* there is a run of `linnet train` */
    bool whole;
    int n_files;
    const char **file; /* the arena's, as all of it */
} lnt_results;

/* A folder that is not there holds nothing. Results without a first line of settings are whole. */
linnet_status lnt_results_read(lnt_ctx *c, const char *folder, lnt_arena *arena, lnt_results *out);
/* LINNET_EINVAL, about the option out, where the folder holds anything but results of `task`; *whole (may be NULL): it holds all of these. */
linnet_status lnt_results_check(lnt_ctx *c, const char *folder, const char *task, bool *whole);
/* Remove a CSV file or a page of a folder; a name that leads elsewhere is left alone. */
void lnt_results_remove(const char *folder, const char *name);

#endif
