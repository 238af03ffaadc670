/* The chain of the states' gradients in wgmma. */
#include "recurrence/delta/delta_back_chain.cuh"

void lnt_delta_back_sm90(const lnt_delta_chain *p, const lnt_cuda *d) { launch_back_chain<true>(*p, d); }
