/* The chain of chunk states under a gate for each channel, in mma.sync. */
#include "recurrence/decay/decay_vector_chain.cuh"

void lnt_vector_chains_sm80(const vector_chains &c, const lnt_cuda *d) { put_chains<false>(c, d); }
