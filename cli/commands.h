/* The commands, in the order of `linnet --help`. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "args.h"

extern const command cmd_train, cmd_eval, cmd_generate, cmd_logits, cmd_inspect, cmd_mixers, cmd_task, cmd_op, cmd_bench;

#endif
