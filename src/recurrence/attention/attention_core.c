/* Softmax attention: full, sliding window, grouped heads. Equations: operators.md#attention. */
#include "recurrence/attention/attention_node.h"
#include "recurrence/cases.h"
#include "recurrence/recur_args.h"
#include "simd/variant.h"

extern const lnt_recur_impl lnt_attention_reference;
extern const lnt_recur_case lnt_attention_cases[];

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
static double flops(const void *args, int C, bool backward)
{
    const lnt_recur_args *a = args;
    (void)C;
    double K = a->K, V = a->V, each = backward ? 6 * K + 4 * V : 2 * (K + V);
    return each * pairs(a) * a->Hq;
}

#ifdef LINNET_CUDA
extern const lnt_recur_impl lnt_attention_block_sm90, lnt_attention_block_cuda, lnt_attention_row_cuda;
#endif

static const lnt_recur_impl *const impls[] = {
#ifdef LINNET_CUDA
    &lnt_attention_block_sm90, &lnt_attention_block_cuda, &lnt_attention_row_cuda,
#endif
    LNT_VARIANTS(lnt_attention_block), LNT_VARIANTS(lnt_attention_row),
    &lnt_attention_reference, NULL,
};

/* ---- the operator ------------------------------------------------------------------------------------------------------------------------- */

static const lnt_recur_size sizes[] = {
    LNT_HEADS_SIZE("Hq", Hq, 16, NULL, "heads of q and o"),
    LNT_HEADS_SIZE("Hk", Hk, 16, "Hq", "heads of k"),
    LNT_HEADS_SIZE("Hv", Hv, 16, "Hk", "heads of v, as many as of k"),
    LNT_HEADS_SIZE("K", K, 128, NULL, "size of a key"),
    LNT_HEADS_SIZE("V", V, 128, "K", "size of a value"),
    { "Tk", LNT_AT(lnt_recur_args, Tk), 8, 0, INT64_MAX, 0, "T", "rows of k and v; more than T: those of a cache stand in front, of one sequence" },
    { 0 },
};
static const lnt_recur_option options[] = {
    LNT_SCALE_OPTION,
    { "window", LNT_RECUR_INT, LNT_AT(lnt_recur_args, window), 8, 0, 9007199254740992.0, 0, NULL,
      "a token sees itself and the window-1 before it; 0: all" },
    { 0 },
};
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(lnt_recur_args, "q", "T Hq K", q, .wide = true),
    LNT_INPUT(lnt_recur_args, "k", "Tk Hk K", k, .wide = true, .values = LNT_VALUES_UNIT),
    LNT_INPUT(lnt_recur_args, "v", "Tk Hv V", v, .wide = true),
    LNT_OUTPUT(lnt_recur_args, "o", "T Hq V", o, do_, .wide = true, .read_back = true),
    LNT_ROW("lse", "T Hq", LNT_AT(lnt_recur_args, lse), LNT_T_SAVED, .help = "log-sum-exp of the scaled scores"),
    { 0 },
};

static void fill(void *args)
{
    lnt_recur_args *a = args;
    lnt_state_fill(a);
    a->offset = a->Tk - a->tokens;
}

static linnet_status check(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_recur_args *a = args;
    (void)backward;
    if (a->Hv != a->Hk) return lnt_fail(c, LINNET_EINVAL, "Hk = %d and Hv = %d heads; expected as many of k and v", a->Hk, a->Hv);
    if (a->Hq % a->Hk) return lnt_fail(c, LINNET_EINVAL, "Hq = %d is not a multiple of Hk = %d", a->Hq, a->Hk);
    if (a->offset < 0) return lnt_fail(c, LINNET_EINVAL, "Tk = %lld; expected at least the %lld tokens", (long long)a->Tk, (long long)a->tokens);
    if (a->offset && a->sequences != 1)
        return lnt_fail(c, LINNET_EINVAL, "Tk = %lld of %lld tokens with %lld sequences; expected one", (long long)a->Tk, (long long)a->tokens,
                        (long long)a->sequences);
    return lnt_heads_check_products(c, a, a->Tk, a->Hq);
}

const lnt_recur_op lnt_recur_attention = {
    .name = "attention",
    .core = "attention",
    .equation = "o_t = sum_j softmax_j(scale q_t.k_j) v_j, j in the window",
    .args_size = sizeof(lnt_recur_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = lnt_attention_cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .fill = fill,
    .check = check,
    .flops = flops,
    .node = &lnt_attention_node,
};
