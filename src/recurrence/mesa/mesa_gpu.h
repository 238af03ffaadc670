/* What the program's node asks of the Mesa core on a GPU beside its operators. */
#ifndef LNT_MESA_GPU_H
#define LNT_MESA_GPU_H

#include "recurrence/mesa/mesa_args.h"

/* Lambda = lower + softplus(p), p [Hv,K] on the device. */
typedef struct {
    const float *p;
    float lower;
} lnt_mesa_lambda;

/* The rmsnorm of each head of o, y = o w act(gate) / sqrt(mean o^2 + eps): tensors are the call's dtype, w [V]. */
typedef struct {
    void *y; /* NULL: none follows */
    const float *w;   /* NULL: 1 */
    const void *gate; /* NULL: none */
    float eps;
    bool silu;    /* act: SiLU, or the sigmoid */
    bool keeps_o; /* others read o */
} lnt_mesa_norm;

/* q and k of a token as l2(silu(conv(x))), in the order of the array: four taps; x [sequences, heads K] of the call's dtype. */
typedef struct {
    const void *x;  /* NULL: q and k are the call's */
    const float *w; /* [heads K, 4] */
    void *window;   /* float32 [3, heads K], of sequence n at n stride bytes; moves on */
    int64_t stride;
    float eps;
} lnt_mesa_conv;

/* What a step does besides. */
typedef struct {
    lnt_mesa_conv conv[2]; /* with one token for each sequence, and heads of q and k as many as v's */
    lnt_mesa_norm norm;
} lnt_mesa_around;

/* A call of few tokens a sequence, token by token, whose states s0 = sT and h0 = hT of sequence n lie `stride` floats behind those of sequence n-1,
 * with the Lambda `made` for that of `a`. K and V are at most LNT_MESA_WIDEST, with anything around it
 * LNT_MESA_HELD. */
enum { LNT_MESA_WIDEST = 256, LNT_MESA_HELD = 128, LNT_MESA_FEW = 8 };
void lnt_mesa_step_states(const lnt_mesa_args *a, lnt_mesa_lambda made, const lnt_mesa_around *around, int64_t stride, lnt_device *d);

#endif
