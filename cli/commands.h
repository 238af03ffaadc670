/* The commands, in the order of `linnet --help`. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "args.h"

extern const command cmd_train, cmd_eval, cmd_generate, cmd_chat, cmd_serve, cmd_tokenize, cmd_logits, cmd_inspect, cmd_mixers, cmd_task, cmd_sweep,
    cmd_convert,
    cmd_compare, cmd_op, cmd_bench;

/* The table of runs, printed, and with `out` their page there, which shows the command that was asked; returns the exit code. */
int compare_runs(const char *const *runs, int n, const char *out, const char *asked, int json);
/* page.svg of a training in its own folder. */
int page_of_run(const char *folder);

#endif
