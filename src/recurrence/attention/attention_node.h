/* The node of attention, whose state is a cache. */
#ifndef LNT_ATTENTION_NODE_H
#define LNT_ATTENTION_NODE_H

#include "program/program.h"

extern const lnt_op lnt_attention_node;

#endif
