/* What the files of the longconv core share. */
#ifndef LNT_LONGCONV_H
#define LNT_LONGCONV_H

#include "recurrence/cases.h"
#include "recurrence/recurrence.h"

/* Row major and dense; x is the call's dtype, f float32 (float64 when that is LINNET_F64). A state is the last R inputs, newest last. */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D;
    int64_t L, R;
    const void *u;         /* x [T,D] */
    const void *h, *skip;  /* f [L,D] filters; f [D], NULL: zeros */
    const void *s0, *dsT;  /* x [N,R,D]; NULL: zeros */
    const void *dout;      /* x [T,D]; NULL: zeros */
    void *o, *sT;          /* x [T,D]; x [N,R,D], NULL: not wanted */
    void *du, *dh, *dskip, *ds0; /* written, not added to; NULL: not wanted */
} lnt_longconv_args;

/* The multi-head form: a filter a head, over outer products of k and v. */
typedef struct {
    LNT_RECUR_HEAD
    int32_t H, K, V;
    int64_t L, R;
    const void *q, *k, *v;       /* x [T,H,K], [T,H,K], [T,H,V] */
    const void *h, *skip;        /* f [L,H]; f [H], NULL: zeros */
    const void *k0, *v0;         /* x [N,R,H,K], [N,R,H,V]; NULL: zeros */
    const void *dkT, *dvT, *dout;
    void *o, *kT, *vT;
    void *dq, *dk, *dv, *dh, *dskip, *dk0, *dv0;
} lnt_heads_conv_args;

extern const lnt_recur_case lnt_longconv_cases[];
extern const struct lnt_op lnt_longconv_node, lnt_heads_conv_node;

/* The dtype of what is f. */
static inline lnt_dtype lnt_longconv_small(lnt_dtype dtype) { return dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

/* Pairs (token, lag) of sequences whose tokens see `past` before the first, with L lags. */
static inline double lnt_longconv_pairs(const int64_t *cu, int64_t sequences, int64_t L, int64_t past)
{
    double sum = 0;
    for (int64_t n = 0; n < sequences; n++) {
        const int64_t len = cu[n + 1] - cu[n], grow = L > past ? L - past : 0, growing = len < grow ? len : grow; /* whose lags reach the beginning */
        sum += (double)growing * (double)past + (double)growing * (double)(growing + 1) / 2 + (double)(len - growing) * (double)L;
    }
    return sum;
}

#endif
