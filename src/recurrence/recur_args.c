/* What the operators of the cores with heads of keys and values share: sizes, scale, checks (recur_args.h). */
#include "recurrence/recur_args.h"

#include <math.h>

#include "core/memory.h"

const lnt_recur_size lnt_state_sizes[] = {
    LNT_HEADS_SIZE("Hq", Hq, 16, NULL, "heads of q"),
    LNT_HEADS_SIZE("Hk", Hk, 16, "Hq", "heads of k"),
    LNT_HEADS_SIZE("Hv", Hv, 16, "Hq", "heads of v, gates and states"),
    LNT_HEADS_SIZE("K", K, 128, NULL, "size of a key"),
    LNT_HEADS_SIZE("V", V, 128, "K", "size of a value"),
    { 0 },
};

void lnt_state_fill(void *args)
{
    lnt_recur_args *a = args;
    if (isnan(a->scale)) a->scale = 1.0 / sqrt((double)a->K);
}

linnet_status lnt_heads_check_products(lnt_ctx *c, const lnt_recur_args *a, int64_t rows, int64_t heads)
{
    int64_t bytes, wide = a->K > a->V ? a->K : a->V;
    LNT_TRY(lnt_size_product(c, "tokens x heads x head size", 4, (int64_t[]){ rows, heads, wide, 64 }, &bytes));
    return lnt_size_product(c, "sequences x heads x K x V", 5, (int64_t[]){ a->sequences, heads, wide, wide + 1, 64 }, &bytes);
}

linnet_status lnt_state_check(lnt_ctx *c, const void *args, bool backward)
{
    const lnt_recur_args *a = args;
    (void)backward;
    if (a->Hq != a->Hk) return lnt_fail(c, LINNET_EINVAL, "Hq = %d and Hk = %d heads; expected as many of q and k", a->Hq, a->Hk);
    if (a->Hv % a->Hq) return lnt_fail(c, LINNET_EINVAL, "Hv = %d is not a multiple of Hq = %d", a->Hv, a->Hq);
    int64_t rows;
    if (!lnt_mul(a->tokens, lnt_recur_writes(a), &rows)) rows = INT64_MAX; /* which is refused as too large */
    return lnt_heads_check_products(c, a, rows, a->Hv);
}
