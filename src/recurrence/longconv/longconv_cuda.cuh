/* What the CUDA files of the longconv core share. */
#ifndef LNT_LONGCONV_CUDA_CUH
#define LNT_LONGCONV_CUDA_CUH

#include "device/cuda.cuh"
extern "C" {
#include "recurrence/longconv/longconv.h"
}

/* A filter a channel as heads with K = V = 1, whose keys and queries are 1: q and k are NULL. */
static inline lnt_heads_conv_args lnt_longconv_as_heads(const lnt_longconv_args *a)
{
    lnt_heads_conv_args x = {};
    memcpy(&x, a, sizeof(lnt_recur_head));
    x.H = a->D, x.K = x.V = 1, x.L = a->L, x.R = a->R;
    x.v = a->u, x.h = a->h, x.skip = a->skip, x.v0 = a->s0, x.dvT = a->dsT, x.dout = a->dout;
    x.o = a->o, x.vT = a->sT, x.dv = a->du, x.dh = a->dh, x.dskip = a->dskip, x.dv0 = a->ds0;
    return x;
}

/* The final states, the last R inputs, in place or elsewhere. */
void lnt_longconv_put_states(const lnt_heads_conv_args &a, const lnt_cuda *d);

#endif
