/* What delta.c lists of the delta core on a GPU. */
#ifndef LNT_DELTA_IMPLS_H
#define LNT_DELTA_IMPLS_H

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"

/* Chunks of 64 on tensor cores, in wgmma on Hopper and in mma.sync on any since sm_80. NULL: it takes this call on this thread's GPU (bf16, K and V
 * in {64,128}, tokens < 2^31); otherwise why not. */
const char *lnt_delta_fast_declines(const void *args, bool backward);
size_t lnt_delta_fast_workspace(const void *args, bool backward, int threads);
void lnt_delta_sm80_forward(const void *args, const lnt_device *d);
void lnt_delta_sm80_backward(const void *args, const lnt_device *d);
void lnt_delta_sm90_forward(const void *args, const lnt_device *d);
void lnt_delta_sm90_backward(const void *args, const lnt_device *d);

/* The general chunk form (float32 and bf16, K up to 256 and V up to 1024), and token by token. */
const char *lnt_delta_cuda_declines(const void *args, bool backward);
size_t lnt_delta_chunk_cuda_workspace(const void *args, bool backward, int threads);
void lnt_delta_chunk_cuda_forward(const void *args, const lnt_device *d);
void lnt_delta_chunk_cuda_backward(const void *args, const lnt_device *d);
void lnt_delta_recurrent_cuda_forward(const void *args, const lnt_device *d);

#endif
