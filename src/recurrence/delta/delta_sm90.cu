/* The chain of chunk states in wgmma. */
#include "recurrence/delta/delta_chain.cuh"

void lnt_delta_chain_sm90(const lnt_delta_chain *p, const lnt_cuda *d)
{
    if (p->K == 64)
        launch_chain<true, 64>(*p, d);
    else
        launch_chain<true, 128>(*p, d);
}
