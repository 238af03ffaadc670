/* The chain of the states' gradients in mma.sync. */
#include "recurrence/delta/delta_back_chain.cuh"

void lnt_delta_back_sm80(const lnt_delta_chain *p, const lnt_cuda *d) { launch_back_chain<false>(*p, d); }
