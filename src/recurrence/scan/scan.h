/* What the files of the scan core share. */
#ifndef LNT_SCAN_H
#define LNT_SCAN_H

#include "recurrence/cases.h"
#include "recurrence/recurrence.h"

/* Row major and dense; x is the call's dtype, f float32 (float64 when that is LINNET_F64). */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D;
    const void *log_a, *x;  /* f [T,D] natural-log decay, <= 0, -inf is an exact reset; x [T,D] */
    const void *s0, *dsT;   /* f [N,D]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *sT;           /* x [T,D], which backward reads; f [N,D], NULL: not wanted */
    void *dlog_a, *dx, *ds0; /* written, not added to; NULL: not wanted */
} lnt_scan_args;

/* The dtype of what is f. */
static inline lnt_dtype lnt_scan_small(const lnt_scan_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

/* A state of M numbers a channel: selective_scan. */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D, M;
    const void *u, *delta;  /* x [T,D]; f [T,D] step sizes, > 0 */
    const void *A;          /* f [D,M] rates, < 0 */
    const void *B, *C;      /* x [T,M], of all channels */
    const void *skip;       /* f [D]; NULL: zeros */
    const void *s0, *dsT;   /* f [N,D,M]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *sT;           /* x [T,D]; f [N,D,M], NULL: not wanted */
    void *du, *ddelta, *dA, *dB, *dC, *dskip, *ds0; /* written, not added to; NULL: not wanted */
} lnt_selective_args;

extern const lnt_recur_impl lnt_scan_reference, lnt_selective_reference;
extern const lnt_recur_case lnt_scan_cases[];

#endif
