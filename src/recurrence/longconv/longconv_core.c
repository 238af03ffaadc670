/* The descriptions of the long convolutions: a filter a channel, and a filter a head. Equations: operators.md#longconv. */
#include <math.h>

#include "recurrence/longconv/longconv.h"
#include "simd/variant.h"

extern const lnt_recur_impl lnt_longconv_reference, lnt_heads_conv_reference;
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_longconv_block);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_longconv_row);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_heads_conv_block);
LNT_DECLARE_VARIANTS(const lnt_recur_impl, lnt_heads_conv_row);

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_longconv_fft_cuda, lnt_heads_conv_fft_cuda; /* longconv_fft_cuda.cu */
extern const lnt_recur_impl lnt_longconv_recurrent_cuda, lnt_heads_conv_recurrent_cuda; /* longconv_cuda.cu */
#endif

static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &lnt_longconv_fft_cuda,           &lnt_longconv_recurrent_cuda,
#endif
    LNT_VARIANTS(lnt_longconv_block), LNT_VARIANTS(lnt_longconv_row),
    &lnt_longconv_reference,          NULL,
};
static const lnt_recur_impl *const heads_impls[] = {
#ifdef LINNET_CUDA
    &lnt_heads_conv_fft_cuda,           &lnt_heads_conv_recurrent_cuda,
#endif
    LNT_VARIANTS(lnt_heads_conv_block), LNT_VARIANTS(lnt_heads_conv_row),
    &lnt_heads_conv_reference,          NULL,
};

/* A product and a sum for each pair of a token and a lag, or transforms of twice the length where those are fewer: of input, filter and output. In
 * reverse the inputs' gradients and the filter's, whose transforms but one are there. C plays no part. */
static double flops(const void *args, int C, bool backward)
{
    const lnt_longconv_args *a = args;
    (void)C;
    double sum = 0;
    for (int64_t n = 0; n < a->sequences; n++) {
        const double len = (double)(a->cu_seqlens[n + 1] - a->cu_seqlens[n]), direct = 2 * lnt_longconv_pairs(a->cu_seqlens + n, 1, a->L, 0);
        const double transforms = len > 1 ? 3 * 2.5 * 2 * len * log2(2 * len) + 6 * len : direct;
        sum += fmin(direct, transforms);
    }
    return (backward ? 2 : 1) * sum * a->D;
}

/* Two products of every pair of tokens within L, and the filter; five in reverse. */
static double heads_flops(const void *args, int C, bool backward)
{
    const lnt_heads_conv_args *a = args;
    (void)C;
    const double K = a->K, V = a->V, each = backward ? 6 * K + 4 * V + 4 : 2 * (K + V) + 1;
    return each * lnt_longconv_pairs(a->cu_seqlens, a->sequences, a->L, 0) * a->H;
}

#define LENGTHS(ARGS)                                                                                                              \
    { "L", LNT_AT(ARGS, L), 8, 1, INT64_C(1) << 40, 2048, NULL, "lags of a filter" },                                              \
        { "R", LNT_AT(ARGS, R), 8, 1, INT64_C(1) << 40, 0, "L", "inputs of a state; with fewer than L - 1 what is older counts as zeros" }

static const lnt_recur_option options[] = { { 0 } };
static const lnt_recur_size sizes[] = {
    { "D", LNT_AT(lnt_longconv_args, D), 4, 1, 1 << 24, 768, NULL, "channels" },
    LENGTHS(lnt_longconv_args),
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_longconv_args, "u", "T D", u, .wide = true),
    LNT_INPUT(lnt_longconv_args, "h", "L D", h, .help = "filters, lag 0 first"),
    LNT_INPUT(lnt_longconv_args, "D", "D", skip, .absent = "zeros", .help = "factor of u in the output"),
    LNT_STATE(lnt_longconv_args, "s", "", "N R D", s, .wide = true, .help = "the last R rows of u, newest last"),
    LNT_OUTPUT(lnt_longconv_args, "o", "T D", o, dout, .wide = true),
    { 0 },
};

const lnt_recur_op lnt_recur_long_conv = {
    .name = "long_conv",
    .core = "longconv",
    .equation = "o_t = D u_t + sum_l h_l u_{t-l}, 0 <= l < L",
    .args_size = sizeof(lnt_longconv_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_longconv_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .channel = "D",
    .flops = flops,
    .node = &lnt_longconv_node,
};

static const lnt_recur_size heads_sizes[] = {
    { "H", LNT_AT(lnt_heads_conv_args, H), 4, 1, 65536, 8, NULL, "heads" },
    { "K", LNT_AT(lnt_heads_conv_args, K), 4, 1, 65536, 96, NULL, "size of a key" },
    { "V", LNT_AT(lnt_heads_conv_args, V), 4, 1, 65536, 96, "K", "size of a value" },
    LENGTHS(lnt_heads_conv_args),
    { 0 },
};
static const lnt_recur_tensor heads_tensors[] = {
    LNT_INPUT(lnt_heads_conv_args, "q", "T H K", q, .wide = true),
    LNT_INPUT(lnt_heads_conv_args, "k", "T H K", k, .wide = true, .values = LNT_VALUES_UNIT),
    LNT_INPUT(lnt_heads_conv_args, "v", "T H V", v, .wide = true),
    LNT_INPUT(lnt_heads_conv_args, "h", "L H", h, .help = "filters, lag 0 first"),
    LNT_INPUT(lnt_heads_conv_args, "D", "H", skip, .absent = "zeros", .help = "added to a filter's lag 0"),
    LNT_STATE(lnt_heads_conv_args, "s", "_k", "N R H K", k, .wide = true, .help = "the last R rows of k, newest last"),
    LNT_STATE(lnt_heads_conv_args, "s", "_v", "N R H V", v, .wide = true, .help = "the last R rows of v"),
    LNT_OUTPUT(lnt_heads_conv_args, "o", "T H V", o, dout, .wide = true),
    { 0 },
};

const lnt_recur_op lnt_recur_multihead_long_conv = {
    .name = "multihead_long_conv",
    .core = "longconv",
    .equation = "o_t = D (q_t.k_t) v_t + sum_l h_l (q_t.k_{t-l}) v_{t-l}, 0 <= l < L: q_t^T (h * k v^T)_t",
    .args_size = sizeof(lnt_heads_conv_args),
    .sizes = heads_sizes,
    .tensors = heads_tensors,
    .options = options,
    .impls = heads_impls,
    .cases = lnt_longconv_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .nonlinear = true, /* in a state that holds keys beside values */
    .flops = heads_flops,
    .node = &lnt_heads_conv_node,
};
