/* The backward pass of the delta core's fast path on CUDA: the forward sweep again (delta_sweep.cu), the chain of the states' gradients
 * (delta_back_chain.cuh), then what is parallel over chunks (delta_back.cu). */
#ifndef LNT_DELTA_BACK_CUH
#define LNT_DELTA_BACK_CUH

#include "recurrence/delta/delta_cuda.cuh"

/* dbeta is the diagonal of dZ U^T over beta^2. Rows written with less than this have dR in dv's place until the last kernel has seen them: their
 * dbeta is worked out from the inputs. */
constexpr float LNT_DELTA_WEAK = 1e-12f;

typedef struct {
    const bf16 *q, *k, *d_o, *T, *P, *M; /* d_o NULL: zeros */
    const float *dsT, *F;
    const int64_t *cu;
    const int *first_chunk;
    bf16 *dv, *dS;  /* [tokens,Hv,V]; [NC,Hv,K,V] the gradient at the chunk's end */
    float *ds0, *X; /* X [N,segments,Hv,K,V]: what comes out of a segment that zeros went into, of the last one with dsT */
    int64_t sequences;
    int Hq, Hv, K, V;
    float scale;
    bool wide; /* 128 columns of V a CTA in place of 64 (Hopper) */
    bool ends; /* the segments' X, in place of all else */
    int segments, segment_chunks;
    int stages, stash; /* the launcher's */
} lnt_delta_back;
void lnt_delta_back_sm80(const lnt_delta_back *p, const lnt_cuda *d);
void lnt_delta_back_sm90(const lnt_delta_back *p, const lnt_cuda *d);

#endif
