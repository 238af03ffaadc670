/* The chain of chunk states in wgmma. */
#include "recurrence/delta/delta_chain_sm90.cuh"

void lnt_delta_chain_sm90(const lnt_delta_chain *p, const lnt_cuda *d)
{
    if (p->K == 64)
        launch_chain<true, 64>(*p, d);
    else if (!p->o)
        p->wide ? launch<true, 128, 2, false>(*p, d) : launch<true, 128, 1, false>(*p, d);
    else
        launch_read<128>(*p, d);
}
