/* The decay core: linear attention, retention, simple GLA, Mamba-2. Equations in README.md. */
#include "recurrence/recurrence.h"
#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_decay_chunk);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_decay_recurrent);

double lnt_decay_flops(const lnt_recur_args *a, int C, bool backward)
{
    double K = a->K, V = a->V;
    return backward ? 10 * K * V + C * (6 * K + 4 * V) : 4 * K * V + C * 2 * (K + V);
}

const lnt_recur_impl *const lnt_decay_impls[] = {
    &lnt_decay_chunk_amx,       &lnt_decay_chunk_avx512,     &lnt_decay_chunk_avx2,     &lnt_decay_chunk_base,
    &lnt_decay_recurrent_amx,   &lnt_decay_recurrent_avx512, &lnt_decay_recurrent_avx2, &lnt_decay_recurrent_base,
    &lnt_decay_reference,       NULL,
};
