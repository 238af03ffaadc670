/* The delta core: DeltaNet and Gated DeltaNet. Equations in README.md. */
#include "recurrence/recurrence.h"
#include "simd/variant.h"

/* The amx variant's chunk form takes bf16 tensors only; its token form would be avx512's. */
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_delta_chunk);
extern const lnt_recur_impl lnt_delta_recurrent_base, lnt_delta_recurrent_avx2, lnt_delta_recurrent_avx512;

#ifdef LINNET_CUDA
/* Chunks of 64 on tensor cores, on Hopper's and on any since sm_80; the general chunk form; the token form. */
const char *lnt_delta_fast_declines(const lnt_recur_args *a, bool backward);
const char *lnt_delta_cuda_declines(const lnt_recur_args *a, bool backward);
size_t lnt_delta_fast_workspace(const lnt_recur_args *a, bool backward, int threads);
size_t lnt_delta_chunk_cuda_workspace(const lnt_recur_args *a, bool backward, int threads);
void lnt_delta_sm80_forward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_sm80_backward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_sm90_forward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_sm90_backward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_chunk_cuda_forward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_chunk_cuda_backward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_recurrent_cuda_forward(const lnt_recur_args *a, const lnt_device *d);

static const lnt_recur_impl chunk_sm90 = { .name = "chunk-sm90", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 90,
                                           .declines = lnt_delta_fast_declines, .workspace = lnt_delta_fast_workspace,
                                           .put_forward = lnt_delta_sm90_forward, .put_backward = lnt_delta_sm90_backward };
static const lnt_recur_impl chunk_sm80 = { .name = "chunk-sm80", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80,
                                           .declines = lnt_delta_fast_declines, .workspace = lnt_delta_fast_workspace,
                                           .put_forward = lnt_delta_sm80_forward, .put_backward = lnt_delta_sm80_backward };
static const lnt_recur_impl chunk_cuda = { .name = "chunk-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80,
                                           .declines = lnt_delta_cuda_declines, .workspace = lnt_delta_chunk_cuda_workspace,
                                           .put_forward = lnt_delta_chunk_cuda_forward, .put_backward = lnt_delta_chunk_cuda_backward };
static const lnt_recur_impl recurrent_cuda = { .name = "recurrent-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80,
                                               .declines = lnt_delta_cuda_declines, .put_forward = lnt_delta_recurrent_cuda_forward };
#endif

double lnt_delta_flops(const lnt_recur_args *a, int C, bool backward)
{
    double K = a->K, V = a->V;
    /* the backward pass makes the chunk states again: 4KV + CV */
    return backward ? 18 * K * V + C * (12 * K + 9 * V) : 6 * K * V + C * (4 * K + 3 * V);
}

const lnt_recur_impl *const lnt_delta_impls[] = {
#ifdef LINNET_CUDA
    &chunk_sm90,                 &chunk_sm80,               &chunk_cuda,               &recurrent_cuda,
#endif
    &lnt_delta_chunk_amx,        &lnt_delta_chunk_avx512,   &lnt_delta_chunk_avx2,     &lnt_delta_chunk_base,
    &lnt_delta_recurrent_avx512, &lnt_delta_recurrent_avx2, &lnt_delta_recurrent_base, &lnt_delta_reference, NULL,
};
