/* A state that is a chunk: H and G where it began, and its rows so far. For the one solver whose results depend on where chunks begin, by rounding
 * (LNT_CG_FLASH), so that one token at a time gives what all at once do. */
#ifndef LNT_MESA_REPLAY_H
#define LNT_MESA_REPLAY_H

#include "program/program.h"
#include "recurrence/mesa/mesa_args.h"

enum { LNT_REPLAY_CHUNK = 64 };

/* Bytes of a sequence: G [Hv,K,V], H [Hv,K,K], then rows of k, v (dtype), g, beta (float32). */
int64_t lnt_replay_state_bytes(const lnt_mesa_args *a);
/* The same as tensors: G, H, and the rows of the chunk that `tokens` tokens have begun. */
int lnt_replay_state_tensors(const lnt_mesa_args *a, int64_t tokens, lnt_state_tensor *t);
/* Workspace besides the kernel's: the chunk's rows and up to `tokens` new ones, side by side. */
size_t lnt_replay_bytes(const lnt_mesa_args *a, int64_t tokens);
/* All sequences of the call, `a` being the call on all rows. */
linnet_status lnt_replay_forward(const lnt_call *k, const lnt_mesa_args *a);

#endif
