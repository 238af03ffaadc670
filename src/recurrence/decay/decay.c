/* The decay core: linear attention, retention, simple GLA, Mamba-2. Equations in README.md. */
#include "recurrence/decay/decay.h"

#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_decay_chunk);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_decay_recurrent);
#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_decay_chunk_sm80, lnt_decay_chunk_cuda, lnt_decay_recurrent_cuda;
#endif

double lnt_decay_flops(const lnt_recur_args *a, int C, bool backward)
{
    double K = a->K, V = a->V;
    return backward ? 10 * K * V + C * (6 * K + 4 * V) : 4 * K * V + C * 2 * (K + V);
}

/* The chunks of a sequence follow one another, however few the heads. Cutting it into P segments divides that chain by P, and costs one more reading
 * of k and v (the segments' states) and 2 P states of float32. So: no more segments than fill the GPU. */
enum {
    FULL = 200,      /* pieces of work that keep 132 multiprocessors busy with one or two each */
    SHORTEST = 512,  /* tokens; below, the states' bytes 8 K V outgrow the tokens' 2 (2K + 2V) */
};

int64_t lnt_decay_segment(const lnt_recur_args *a, bool backward, int chunk, int blocks)
{
    int64_t longest = lnt_recur_longest(a), segment = (longest + chunk - 1) / chunk * chunk;
    if (segment < chunk) segment = chunk;
    bool gates = backward && lnt_recur_find(a->op)->gate != LNT_GATE_NONE;
    for (;;) {
        int64_t pieces = a->tokens / segment * a->Hv * blocks;
        bool few = pieces < FULL && segment >= 2 * SHORTEST, long_for_gates = gates && segment > (int64_t)LNT_DECAY_CHUNKS * chunk;
        if (!few && !long_for_gates) return segment;
        segment = (segment / 2 + chunk - 1) / chunk * chunk;
    }
}

const lnt_recur_impl *const lnt_decay_impls[] = {
#ifdef LINNET_CUDA
    &lnt_decay_chunk_sm80,      &lnt_decay_chunk_cuda,       &lnt_decay_recurrent_cuda,
#endif
    &lnt_decay_chunk_amx,       &lnt_decay_chunk_avx512,     &lnt_decay_chunk_avx2,     &lnt_decay_chunk_base,
    &lnt_decay_recurrent_amx,   &lnt_decay_recurrent_avx512, &lnt_decay_recurrent_avx2, &lnt_decay_recurrent_base,
    &lnt_decay_reference,       NULL,
};
