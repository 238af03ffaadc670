/* The delta core on CUDA: what its kernels share. Equations in README.md.
 *
 * The fast path cuts every sequence from its own start into chunks of 64 tokens; the chunk list is the sequences in order. Its forward sweep leaves
 * in the workspace what the read-out and the backward pass need of each chunk, so both are parallel over chunks where the chain of states allows.
 * In terms of the writes U (in delta_cpu.c: U = beta.E):
 *
 *   A = tril(diag(beta) (K K^T . D), -1)     T = (I + A)^{-1}     P = s tril(Q K^T . D)
 *   U = T beta.(V - e.(K S))                 O = s e.(Q S) + P U  S' = e^{G_n} S + (l.K)^T U                       (operators.md 4)
 *
 * Gates (operators.md 11.1, 11.2): G is the inclusive sum of max(g, -40) in the chunk, a reset counting as 0; R counts the resets up to and with
 * the row. D_ij = [R_i = R_j] e^{G_i - G_j} for j <= i, e_i = [R_i = 0] e^{G_i}, l_i = [R_i = R_n] e^{G_n - G_i}, and the state's own factor is
 * [R_n = 0] e^{G_n}: no exponent is positive. Rows past the end of a chunk repeat the last row's G and R; T is the identity there, P zero. */
#ifndef LNT_DELTA_CUDA_CUH
#define LNT_DELTA_CUDA_CUH

#include "device/cuda.cuh"

extern "C" {
#include "recurrence/recurrence.h"
}

enum { LNT_DELTA_C = 64 };
constexpr float LNT_DELTA_GATE_FLOOR = -40.f;

/* Views of the workspace, all aligned to 256 bytes. NC = chunks. */
typedef struct {
    int64_t chunks;
    int4 *table;       /* [NC] {sequence, first token, rows, chunk of its sequence} */
    int *first_chunk;  /* [N+1] */
    float *G;          /* [NC,Hv,64] */
    int *R;            /* [NC,Hv,64] */
    bf16 *T;           /* [NC,Hv,64,64] row major */
    bf16 *P;           /* [NC,Hv,64,64]; read-out only, else NULL */
    bf16 *U;           /* [tokens,Hv,V]; kept only, else NULL */
    bf16 *S;           /* [NC,Hv,K,V] the state at the chunk's start; kept only, else NULL */
    float *F;          /* [NC,Hv,4,64] beta, e, l, beta e as the chain reads them; beta is 0 past the end */
    int segments;      /* pieces that a sequence's chain is cut into; 1: none */
    int segment_chunks;
    float *X;          /* [N,segments,Hv,K,V] end state of a segment begun with zeros; NULL without segments */
    bf16 *M;           /* [N,segments,Hv,K,K] what carries a segment's start to its end */
    size_t bytes;      /* of all this */
    bool plain;        /* mma.sync on a Hopper GPU too; false as made */
} lnt_delta_sweep;

/* sum of ceil(length / 64), from the host's cu_seqlens. */
int64_t lnt_delta_chunks(const lnt_recur_args *a);

/* NULL: the fast path takes this call (bf16, K and V in {64,128}, tokens < 2^31); otherwise why not. */
extern "C" const char *lnt_delta_fast_declines(const lnt_recur_args *a, bool backward);

/* The views from `at` on (NULL: only `bytes` is of use). keep: U and S are wanted; read_out: P is (a->o is written). */
lnt_delta_sweep lnt_delta_sweep_at(const lnt_recur_args *a, void *at, bool keep, bool read_out);

/* Put the sweep on the stream: table, first_chunk, G, R, T; with read_out P and a->o; with keep U and S; a->sT where it is not NULL (set it to NULL
 * in a copy of the arguments when it must not be written). Needs lnt_delta_fast_declines(a) == NULL. Two kernels of the same family: one for any GPU
 * from sm_80 on, one for sm_90a, chosen by d->capability. */
void lnt_delta_sweep_put(const lnt_recur_args *a, const lnt_device *d, const lnt_delta_sweep *w);

/* Of the backward pass, the sweep's views included (delta_back.cu). */
size_t lnt_delta_fast_backward_workspace(const lnt_recur_args *a);

/* The chain of chunk states (delta_chain.cuh), from T, P and F to o, sT, U and S. */
typedef struct {
    const bf16 *q, *k, *v, *T, *P;
    const float *s0, *F;
    const int64_t *cu;
    const int *first_chunk;
    bf16 *o, *U, *S, *M; /* NULL: not wanted */
    float *sT, *X;
    int64_t sequences;
    int Hq, Hv, K, V;
    float scale;
    bool wide;           /* 128 columns of V a CTA in place of 64 (Hopper) */
    bool transitions;    /* the segments' X and M, in place of all else */
    int segments, segment_chunks;
    int stages, stash;   /* the launcher's */
} lnt_delta_chain;
void lnt_delta_chain_sm80(const lnt_delta_chain *p, const lnt_cuda *d);
void lnt_delta_chain_sm90(const lnt_delta_chain *p, const lnt_cuda *d);

/* The factors of a chunk. */
__device__ __forceinline__ float lnt_delta_pair(float Gi, int Ri, float Gj, int Rj) { return Ri == Rj ? __expf(Gi - Gj) : 0.f; }
__device__ __forceinline__ float lnt_delta_from_start(float Gi, int Ri) { return Ri == 0 ? __expf(Gi) : 0.f; }

/* What delta.c lists: the fast path in mma.sync and in wgmma; the general path (float32 and bf16, K and V up to 256); token by token. */
extern "C" {
size_t lnt_delta_fast_workspace(const lnt_recur_args *a, bool backward, int threads);
size_t lnt_delta_chunk_cuda_workspace(const lnt_recur_args *a, bool backward, int threads);
void lnt_delta_sm80_forward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_sm80_backward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_sm90_forward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_sm90_backward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_chunk_cuda_forward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_chunk_cuda_backward(const lnt_recur_args *a, const lnt_device *d);
void lnt_delta_recurrent_cuda_forward(const lnt_recur_args *a, const lnt_device *d);
}

#endif
