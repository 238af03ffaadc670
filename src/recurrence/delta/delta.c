/* The delta core: DeltaNet and Gated DeltaNet. Equations in README.md. */
#include "recurrence/recurrence.h"
#include "simd/variant.h"

/* The amx variant's chunk form takes bf16 tensors only; its token form would be avx512's. */
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_delta_chunk);
extern const lnt_recur_impl lnt_delta_recurrent_base, lnt_delta_recurrent_avx2, lnt_delta_recurrent_avx512;

double lnt_delta_flops(const lnt_recur_args *a, int C, bool backward)
{
    double K = a->K, V = a->V;
    /* the backward pass makes the chunk states again: 4KV + CV */
    return backward ? 18 * K * V + C * (12 * K + 9 * V) : 6 * K * V + C * (4 * K + 3 * V);
}

const lnt_recur_impl *const lnt_delta_impls[] = {
    &lnt_delta_chunk_amx,        &lnt_delta_chunk_avx512,   &lnt_delta_chunk_avx2,     &lnt_delta_chunk_base,
    &lnt_delta_recurrent_avx512, &lnt_delta_recurrent_avx2, &lnt_delta_recurrent_base, &lnt_delta_reference, NULL,
};
