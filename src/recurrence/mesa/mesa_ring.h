/* The state of a Mesa node with a window w: the rows of the last w tokens, token p in row p mod w (w or the capacity, where that is less), and the
 * sums G and H over the chunks between the one where the window begins and the one at hand. For the CPU. */
#ifndef LNT_MESA_RING_H
#define LNT_MESA_RING_H

#include "program/program.h"
#include "recurrence/mesa/mesa_args.h"

/* Bytes of a sequence in a state of that capacity, and the same as tensors after `tokens` tokens. */
int64_t lnt_mesa_ring_bytes(const lnt_mesa_args *a, int64_t capacity);
int lnt_mesa_ring_tensors(const lnt_mesa_args *a, int64_t capacity, int64_t tokens, lnt_state_tensor *t);
/* Workspace of a call on such a state whose longest sequence has `tokens` tokens. */
size_t lnt_mesa_ring_workspace(const lnt_mesa_args *a, int64_t capacity, int64_t tokens, int threads, lnt_device *d);
/* All sequences of the call, `a` being the call on all rows. */
linnet_status lnt_mesa_ring_forward(const lnt_call *k, const lnt_mesa_args *a);

#endif
