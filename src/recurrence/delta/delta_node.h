/* What the delta operators' nodes have beside the description: on a GPU, a decoding step together with what stands around it. */
#ifndef LNT_DELTA_NODE_H
#define LNT_DELTA_NODE_H

#include "program/program.h"

#ifdef LINNET_CUDA
bool lnt_delta_layer_makes_input(const lnt_node *n, int i, const lnt_shape *s);
bool lnt_delta_layer_follows(const lnt_node *const *group, int count, const lnt_node *n);
linnet_status lnt_delta_layer_run(const lnt_call *calls, int count);
#define LNT_DELTA_LAYER .makes_input = lnt_delta_layer_makes_input, .follows = lnt_delta_layer_follows, .run_group = lnt_delta_layer_run
#else
#define LNT_DELTA_LAYER .makes_input = NULL
#endif

#endif
