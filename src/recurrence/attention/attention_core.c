/* Softmax attention: full, sliding window, grouped heads. Equations in README.md. */
#include "recurrence/recurrence.h"
#include "simd/variant.h"

LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_attention_block);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_attention_row);

/* Pairs (row, key) that see each other, over all tokens. */
static double pairs(const lnt_recur_args *a)
{
    double sum = 0;
    for (int64_t n = 0; n < a->sequences; n++) {
        double len = (double)(a->cu_seqlens[n + 1] - a->cu_seqlens[n]), seen = (double)a->offset, w = (double)a->window;
        double all = len * seen + len * (len + 1) / 2;
        if (a->window == 0 || w >= seen + len)
            sum += all;
        else {
            double growing = w > seen ? w - seen : 0; /* the first rows, whose window reaches past the start */
            sum += growing * seen + growing * (growing + 1) / 2 + (len - growing) * w;
        }
    }
    return sum;
}

/* Two products forward, five backward; C plays no part. */
double lnt_attention_flops(const lnt_recur_args *a, int C, bool backward)
{
    (void)C;
    double K = a->K, V = a->V, each = backward ? 6 * K + 4 * V : 2 * (K + V);
    return a->tokens > 0 ? each * pairs(a) / (double)a->tokens : 0;
}

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_attention_block_sm90, lnt_attention_block_cuda, lnt_attention_row_cuda;
#endif

const lnt_recur_impl *const lnt_attention_impls[] = {
#ifdef LINNET_CUDA
    &lnt_attention_block_sm90, &lnt_attention_block_cuda, &lnt_attention_row_cuda,
#endif
    &lnt_attention_block_amx, &lnt_attention_block_avx512, &lnt_attention_block_avx2, &lnt_attention_block_base,
    &lnt_attention_row_amx,   &lnt_attention_row_avx512,   &lnt_attention_row_avx2,   &lnt_attention_row_base,
    &lnt_attention_reference, NULL,
};
