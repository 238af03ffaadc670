/* The delta core: DeltaNet and Gated DeltaNet. Equations in README.md. */
#include "recurrence/recurrence.h"

double lnt_delta_flops(const lnt_recur_args *a, int C, bool backward)
{
    double K = a->K, V = a->V;
    /* the backward pass makes the chunk states again: 4KV + CV */
    return backward ? 18 * K * V + C * (12 * K + 9 * V) : 6 * K * V + C * (4 * K + 3 * V);
}

const lnt_recur_impl *const lnt_delta_impls[] = { &lnt_delta_reference, NULL };
