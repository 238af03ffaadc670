/* What the files of the slstm core share. */
#ifndef LNT_SLSTM_H
#define LNT_SLSTM_H

#include "recurrence/cases.h"
#include "recurrence/recurrence.h"

/* Row major and dense; x is the call's dtype, f float32 (float64 when that is LINNET_F64). */
typedef struct {
    LNT_RECUR_HEAD
    int32_t H, D, E;         /* E = 4 D: the gates i f z o one behind the other */
    const void *wi, *wf;     /* f [T,H,D] what a token brings to its gates; */
    const void *wz, *wo;     /* x [T,H,D] */
    const void *R;           /* f [H,D,E] what y before it brings: y R */
    const void *y0, *c0, *n0, *m0; /* f [N,H,D]; NULL: zeros */
    const void *dyT, *dcT, *dnT, *dmT;
    const void *dout;        /* x [T,H,D]; NULL: zeros */
    void *o;                 /* x [T,H,D] */
    void *yT, *cT, *nT, *mT; /* NULL: not wanted */
    /* f [T,H,E] for backward, NULL: not wanted. gates: decay of c and n, write strength, tanh z, sigmoid o; cells: sigmoid(-f), c, n, y */
    void *gates, *cells;
    void *dwi, *dwf, *dwz, *dwo, *dR, *dy0, *dc0, *dn0, *dm0; /* written, not added to; NULL: not wanted */
} lnt_slstm_args;

/* The dtype of what is f. */
static inline lnt_dtype lnt_slstm_small(const lnt_slstm_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

extern const lnt_recur_impl lnt_slstm_reference;
extern const lnt_recur_case lnt_slstm_cases[];

#endif
