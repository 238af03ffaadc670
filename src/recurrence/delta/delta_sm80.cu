/* The chain of chunk states in mma.sync. */
#include "recurrence/delta/delta_chain.cuh"

void lnt_delta_chain_sm80(const lnt_delta_chain *p, const lnt_cuda *d)
{
    if (p->K == 64)
        launch_chain<false, 64>(*p, d);
    else
        launch_chain<false, 128>(*p, d);
}
