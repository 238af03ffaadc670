/* Heads wider than the tiles of the tensor cores, in slices of K and V. */
#ifndef LNT_DECAY_WIDE_CUH
#define LNT_DECAY_WIDE_CUH

#include "device/cuda.cuh"

/* A wide head [K,V] is k v heads [K/k,V/v] whose read-outs over K/k rows of the state add up: slices. Tensors are read as if they had so many heads,
 * ((key head, value head of its group), slice of V, slice of K) the innermost last; gates and factors of tokens are those of the whole head. So
 * parts [T,Hv,v,k,V/v] of o and dv are summed over neighbours, and parts [T,Hv,v,k,K/k] of dq and dk over blocks of K numbers. */
struct decay_slices {
    int K, V; /* of a slice */
    int k, v; /* slices of a head */
};
/* Columns of a slice of `columns`, a multiple of 64. */
static inline int lnt_decay_slice(int columns) { return columns % 128 ? 64 : 128; }

/* out [rows,width] = the sums of parts [rows,group,width], in their order, times by[row / each] where `by` is not NULL (decay_wide_cuda.cu). */
void lnt_decay_sum(void *out, int out_bf16, const void *parts, int parts_bf16, int64_t rows, int group, int width, const lnt_cuda *d,
                   const float *by = NULL, int each = 1);
/* States [heads,K,V] as those of slices [heads,v,k,K/k,V/v], or back. */
void lnt_decay_slice_states(float *to, const float *from, bool back, int64_t heads, const decay_slices &by, const lnt_cuda *d);

#endif
