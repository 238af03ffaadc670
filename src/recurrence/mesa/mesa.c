/* The Mesa core: the optimal linear fast weights for all tokens so far. Equations in README.md. */
#include "recurrence/recurrence.h"

extern const lnt_recur_impl lnt_mesa_chunk_base, lnt_mesa_chunk_avx2, lnt_mesa_chunk_avx512;
extern const lnt_recur_impl lnt_mesa_recurrent_base, lnt_mesa_recurrent_avx2, lnt_mesa_recurrent_avx512;
#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_mesa_chunk_sm80, lnt_mesa_chunk_cuda, lnt_mesa_recurrent_cuda;
#endif

/* Without the solves, whose steps are known only after a run: two decay states and the read-out of one; backward, two decay backward passes. */
double lnt_mesa_flops(const lnt_recur_args *a, int C, bool backward)
{
    double K = a->K;
    return backward ? lnt_decay_flops(a, C, true) + 10 * K * K + C * 10 * K + 2 * K * K : lnt_decay_flops(a, C, false) + 2 * K * K;
}

const lnt_recur_impl *const lnt_mesa_impls[] = {
#ifdef LINNET_CUDA
    &lnt_mesa_chunk_sm80,       &lnt_mesa_chunk_cuda,     &lnt_mesa_recurrent_cuda,
#endif
    &lnt_mesa_chunk_avx512,     &lnt_mesa_chunk_avx2,     &lnt_mesa_chunk_base,
    &lnt_mesa_recurrent_avx512, &lnt_mesa_recurrent_avx2, &lnt_mesa_recurrent_base, &lnt_mesa_reference, NULL,
};
