/* Vector decay on CUDA: a call as its kernels take it. Equations in README.md, "A gate for each channel". */
#ifndef LNT_DECAY_VECTOR_H
#define LNT_DECAY_VECTOR_H

#include "device/device.h"

/* One call of S_t = diag(e^{gk_t}) S_{t-1} diag(e^{gv_t}) + k_t v_t^T, device pointers throughout; what is NULL is absent or
 * not wanted. `longest`: the longest sequence. */
typedef struct {
    int bf16; /* q k v o do and their gradients; float32 otherwise */
    int64_t tokens, sequences, longest;
    const int64_t *cu; /* [N+1] */
    int Hq, Hv, K, V;  /* heads of q and k; of all else */
    float scale;
    bool before;                 /* o_t reads S_{t-1} + (bonus . k_t) v_t^T (RWKV-6) */
    bool rows, columns;          /* there is gk; there is gv */
    bool delta;                  /* beta_t (v_t - S^T k_t) is written in place of v_t, S decayed by then (KDA); the general path alone */
    const void *q, *k, *v, *d_o; /* [T,Hq,K] twice, [T,Hv,V] twice */
    const float *gk, *gv, *bonus, *beta, *s0, *dsT; /* [T,Hv,K], [T,Hv,V], [Hv,K], [T,Hv], [N,Hv,K,V] twice */
    void *o, *dq, *dk, *dv;
    float *dgk, *dgv, *dbonus, *dbeta, *sT, *ds0;
    void *workspace;
} lnt_vector_call;

/* Any K and V up to 256, either type, float32 arithmetic (decay_vector_cuda.cu). */
size_t lnt_vector_general_bytes(const lnt_vector_call *a, bool backward);
void lnt_vector_general_forward(const lnt_vector_call *a, const lnt_device *d);
void lnt_vector_general_backward(const lnt_vector_call *a, const lnt_device *d);

/* bf16, K and V in multiples of 64, Hq = Hv, gk or gv, no delta, on tensor cores (decay_vector_chunk_cuda.cu). hopper: the chain by wgmma, on
 * sm_90. */
const char *lnt_vector_tiles_declines(const lnt_vector_call *a, bool backward);
size_t lnt_vector_tiles_bytes(const lnt_vector_call *a, bool backward);
void lnt_vector_tiles_forward(const lnt_vector_call *a, bool hopper, const lnt_device *d);
void lnt_vector_tiles_backward(const lnt_vector_call *a, bool hopper, const lnt_device *d);

#endif
