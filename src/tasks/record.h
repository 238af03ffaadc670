/* What a run was: the first line of results.jsonl, and words of its page. */
#ifndef LNT_TASKS_RECORD_H
#define LNT_TASKS_RECORD_H

#include "tasks/task.h"

/* Task, version, command, protocol, limit of time, machine, type of numbers, files read, every option with its value, and every key of the model:
 * into the report, which owns it. */
linnet_status lnt_record_run(lnt_run *r);
/* The same of runs side by side. */
linnet_status lnt_record_runs(lnt_report *p, const linnet_compare_options *o);
/* The record as lines of the page. */
void lnt_record_words(lnt_report *p);

#endif
